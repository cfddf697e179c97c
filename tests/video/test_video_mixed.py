"""A camera whose files have several codecs: packed, in place, copied, extended, exported.

LeRobot's settings select H.264 or AV1, so an extended dataset may have both.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import seqrecord
from seqrecord import FeatureSpec, open_source
from seqrecord.errors import FormatError, FrameError, SchemaError, SourceError
from seqrecord.export import to_lerobot
from seqrecord.sources import Gop
from seqrecord.video.config import VideoConfig
from seqrecord.video.decoding import decode_gop
from seqrecord.video.encoding import encode_gop
from seqrecord.video.gops import DecodedFrame
from seqrecord.video.page_tables import parse_video_page
from seqrecord.video.references import PacketReference
from tests.cuda.test_device_video import MOST, NEEDS_TORCHCODEC
from tests.kit.command_line import run
from tests.kit.lerobot_data import LISTED, at, column, rewrite
from tests.kit.lerobot_video_data import CAMERAS, unpack, with_video
from tests.kit.made_source import GivenSource
from tests.kit.video_file_data import HEIGHT, QUIET, decoded, pictures, write_video
from tests.video.test_video_pages import GOPS, PAGE, codec
from tests.video.test_video_references import PAGE as REFERENCE

VIDEO, ROWS = CAMERAS[0], (5, 3, 7)
KEYS = [f"episode_{i:06d}" for i in range(3)]
OTHERS: list[tuple[str, dict[str, Any]]] = [  # of the second and third episode; the first is H.264
    ("libsvtav1", {"options": {"g": "2"}}),
    ("libx264", {"pixels": "yuv444p"}),
]


def lerobot_v21(tmp_path: Path, height: int = HEIGHT) -> tuple[Path, list[npt.NDArray[np.uint8]]]:
    """A file for each episode; the last is `height` pixels high."""
    root = unpack(tmp_path, "lerobot_v21")
    with_video(root, ROWS)
    paths = [root / f"videos/chunk-000/{VIDEO}/{key}.mp4" for key in KEYS]
    for path, length, (encoder, more) in zip(paths[1:], ROWS[1:], OTHERS, strict=True):
        images = pictures(length, 40)[:, : height if path == paths[-1] else HEIGHT]
        write_video(path, images, encoder, rate=10, **more)
    return root, [decoded(path)[1] for path in paths]


def lerobot_v3(tmp_path: Path) -> tuple[Path, list[npt.NDArray[np.uint8]]]:
    """Extended by LeRobot: two episodes in a file of H.264, and the third in one of AV1."""
    root = unpack(tmp_path)
    images = with_video(root, ROWS)
    folder = root / f"videos/{VIDEO}/chunk-000"
    path = write_video(folder / "file-001.mp4", pictures(7, 40), "libsvtav1", rate=10)
    for name, value in (("file_index", 1), ("from_timestamp", 0.0)):
        rewrite(root / LISTED, column(f"videos/{VIDEO}/{name}", at(2, value)))
    return root, [images[:5], images[5:8], decoded(path)[1]]


def check(dataset: Any, wanted: list[npt.NDArray[np.uint8]]) -> None:
    """Frames equal PyAV's, alone and in batches of several episodes."""
    dataset = dataset if isinstance(dataset, seqrecord.Dataset) else seqrecord.open(dataset)
    for episode, images in zip(dataset.episodes.values(), wanted, strict=True):
        np.testing.assert_array_equal(episode[:][VIDEO], images)
    check_batches(dataset, wanted)


def check_batches(
    data: Any, wanted: list[npt.NDArray[np.uint8]], most: int = 0, **more: Any
) -> None:
    pipe = seqrecord.SeqRecordPipe(data, clip_len=2, features=[VIDEO], batch_size=4, **more)
    for batch in pipe:
        for key, start, clip in zip(batch["episode"], batch["start"], batch[VIDEO], strict=True):
            images = wanted[KEYS.index(key)][start : start + 2]
            assert np.abs(clip.numpy().astype(int) - images).max() <= most


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("make", [lerobot_v3, pytest.param(lerobot_v21, marks=pytest.mark.slow)])
def test_packed_and_in_place(tmp_path: Path, make: Any, caplog: pytest.LogCaptureFixture) -> None:
    root, wanted = make(tmp_path)
    source = open_source(root)
    packed = seqrecord.convert(source, tmp_path / "packed", workers=1)
    seqrecord.convert(source, tmp_path / "index", workers=1, in_place=True, checksums=True)
    assert packed.bad == ()
    assert f"{VIDEO}: 1 episode in av1 yuv420p" in packed.inventory.notes
    for path in (tmp_path / "packed", tmp_path / "index", root):
        check(path, wanted)
        assert path == root or seqrecord.verify(path, deep=True).ok
    for name in ("packed", "index"):  # chunks are copied, and references resolved
        copied = open_source(tmp_path / name)
        seqrecord.convert(copied, tmp_path / f"{name}-copy", workers=1)
        seqrecord.convert(copied, tmp_path / f"{name}-raw", codecs={VIDEO: "raw"}, workers=1)
        check(tmp_path / f"{name}-raw", wanted)
    shutil.move(root, tmp_path / "gone")
    check(tmp_path / "packed-copy", wanted)
    check(tmp_path / "index-copy", wanted)
    options: dict[str, Any] = {"clip_len": 3, "features": [VIDEO], "batch_size": 3}
    small = seqrecord.SeqRecordPipe(tmp_path / "packed", **options, resize=(24, 32))
    assert next(iter(small))[VIDEO].shape == (3, 3, 24, 32, 3)
    assert not caplog.records or "indexed in" in caplog.text


class FirstEpisodes:
    """The first episodes of a source."""

    def __init__(self, source: Any, count: int) -> None:
        self.source, self.count = source, count

    def episodes(self) -> Any:
        return self.source.episodes()[: self.count]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)


def test_dataset_extended_with_another_codec_is_exported(tmp_path: Path) -> None:
    root, wanted = lerobot_v21(tmp_path)
    packed, source = tmp_path / "packed", open_source(root)
    first: Any = FirstEpisodes(source, 1)
    seqrecord.convert(first, packed, workers=1)
    check(packed, wanted[:1])
    seqrecord.convert(source, packed, mode="append", workers=1)
    check(packed, wanted)
    to_lerobot(packed, tmp_path / "out")
    seqrecord.convert(open_source(tmp_path / "out"), tmp_path / "copy", workers=1)
    check(tmp_path / "copy", wanted)


@pytest.mark.usefixtures("home")
def test_repaired_size_is_found_when_the_original_is_opened(tmp_path: Path) -> None:
    root, wanted = lerobot_v21(tmp_path, HEIGHT // 2)
    for _ in range(2):
        check(root, wanted[:2])
    path = root / f"videos/chunk-000/{VIDEO}/{KEYS[2]}.mp4"
    write_video(path, pictures(7, 40), "libx265", rate=10, options={"x265-params": QUIET})
    check(root, [*wanted[:2], decoded(path)[1]])


@pytest.mark.parametrize("in_place", [False, True])
def test_episodes_of_another_size_are_skipped_and_counted(
    tmp_path: Path, in_place: bool, caplog: pytest.LogCaptureFixture
) -> None:
    root, wanted = lerobot_v21(tmp_path, HEIGHT // 2)
    report = seqrecord.convert(open_source(root), tmp_path / "out", workers=1, in_place=in_place)
    assert [bad.key for bad in report.bad] == KEYS[2:]
    assert "episodes: 1 episode, video of another size" in map(str, report.inventory.left_out_data)
    check(tmp_path / "out", wanted[:2])
    message = r"left out 1 episode with video of another size; .*ffmpeg -i IN -vf scale=64:48 OUT"
    assert any(re.search(message, line) for line in caplog.messages)
    with pytest.raises(SourceError, match=r"another size than the first one.*episode_000002"):
        seqrecord.convert(open_source(root), tmp_path / "strict", workers=1, strict=True)
    findings = json.loads(run("doctor", root, "--quiet", "--json", code=1).stdout)["findings"]
    found = [each["severity"] for each in findings if each["kind"] == "stream"]
    assert found == ["warning", "error"]


@NEEDS_TORCHCODEC
def test_device_decodes_each_codec(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root, wanted = lerobot_v3(tmp_path)
    seqrecord.convert(open_source(root), tmp_path / "packed", workers=1)
    engine = seqrecord.EngineOptions(video_decoder="torchcodec")
    check_batches(tmp_path / "packed", wanted, MOST, device="cpu", engine=engine)
    assert not [each for each in caplog.messages if "decoding on the host" in each]


# ---- bytes

CONFIG = VideoConfig("av1", "yuv420p", matrix=1, range="full")
TEXT = b'{"id":"video","codec":"av1","pixel_format":"yuv420p","matrix":1,"range":"full"}'


def own_page(text: bytes = TEXT, size: int | None = None) -> bytes:
    """The page of `tests.video.test_video_pages` with a configuration."""
    words = np.frombuffer(PAGE[:48], "<u4").copy()
    words[0] |= 1 << 30
    words[1:7] += 4 + len(text)
    size = len(text) if size is None else size
    head: bytes = words.tobytes()
    return head + size.to_bytes(4, "little") + text + PAGE[48:]


def own_reference(text: bytes = TEXT) -> bytes:
    head = REFERENCE[:3] + bytes([REFERENCE[3] | 0x40]) + REFERENCE[4:]
    return head + len(text).to_bytes(4, "little") + text


def test_bytes() -> None:
    page = codec("h264").join([replace(gop, config=CONFIG) for gop in GOPS])
    assert page == own_page()
    table = parse_video_page(memoryview(page), 4, "image")
    assert table.config == CONFIG
    assert bytes(page[table.offsets[0] : table.offsets[1]]) == b"AAA"
    same = VideoConfig.from_json({**codec("h264").spec.codec[0], "quality": 3})
    assert codec("h264").join([replace(gop, config=same) for gop in GOPS]) == PAGE
    found = PacketReference.parse(memoryview(own_reference()), 15, "image")
    assert (found.config, found.encode()) == (CONFIG, own_reference())
    made = found.page(memoryview(b"AAABB-----CDDDD"), "h264")
    assert parse_video_page(made, 3, "image").config == CONFIG


def test_configurations_that_are_refused() -> None:
    for text in (
        *(b"", b"{", b"[]", b'{"id":"video"}', b'{"id":"video","codec":"av1"}'),
        TEXT.replace(b"av1", b"theora"),
        TEXT.replace(b"video", b"audio"),
        TEXT.replace(b"}", b',"more":1}'),
        TEXT.replace(b"}", b" " * 1024 + b"}"),
    ):
        with pytest.raises(FormatError, match=r"an invalid configuration.*offset: 48"):
            parse_video_page(memoryview(own_page(text)), 4, "image")
        with pytest.raises(FormatError, match="an invalid configuration"):
            PacketReference.parse(memoryview(own_reference(text)), 15, "image")
    with pytest.raises(FormatError, match="an invalid configuration"):
        parse_video_page(memoryview(own_page(size=2**32 - 1)), 4, "image")


def test_another_dtype_is_refused() -> None:
    deep = VideoConfig("ffv1", "gray16le")
    with pytest.raises(FrameError, match="another dtype"):
        codec("h264").join([replace(GOPS[0], config=deep)])
    page = own_page(json.dumps(deep.to_json()).encode())
    with pytest.raises(FormatError, match="another dtype"):
        codec("h264").reader(memoryview(page), 4)


ALTERNATING = VideoConfig("h264", "yuv444p")


def alternating(groups: list[npt.NDArray[np.uint8]], length: int = 40) -> GivenSource:
    """An episode whose packets can be kept in part: each array is the frames between two cuts."""
    spec = FeatureSpec("image", np.dtype("u1"), (48, 64, 3), (ALTERNATING.to_json(),))
    parts: list[Gop | DecodedFrame] = []
    for number, images in enumerate(groups):
        if number % 2:
            parts += [DecodedFrame(image, "h264 yuv444p", "a test") for image in images]
        else:
            parts.append(encode_gop(ALTERNATING, images))
    return GivenSource(seqrecord.Schema([spec]), {"e": [{}] * length}, {"e": {"image": parts}})


def test_kept_packets_before_a_long_group_of_encoded_frames(tmp_path: Path) -> None:
    """A chunk of video has at most 256 frames."""
    images = pictures(270)
    stored = {"image": "h264:pixel_format=yuv444p,gop=250"}
    source = alternating([images[:20], images[20:]], len(images))
    seqrecord.convert(source, tmp_path, workers=1, codecs=stored)
    found = seqrecord.open(tmp_path).episodes["e"][:]["image"]
    assert np.abs(found.astype(int) - images).mean() <= 3


@pytest.mark.parametrize(
    ("stored", "most"), [("h264:pixel_format=yuv444p,gop=3", 3), ("ffv1", 0), ("balanced", 0)]
)
def test_kept_packets_and_encoded_frames_in_an_episode(
    tmp_path: Path, stored: str, most: float
) -> None:
    groups = np.split(pictures(40), (4, 11, 18, 19, 20))
    source = alternating(groups)
    report = seqrecord.convert(source, tmp_path / "out", workers=1, codecs={"image": stored})
    lost = [each.count for each in report.inventory.left_out_data]
    assert lost == ([sum(map(len, groups[1::2]))] if most else [])
    with seqrecord.open(tmp_path / "out") as dataset:
        found = np.split(dataset.episodes["e"][:]["image"], (4, 11, 18, 19, 20))
        [again] = seqrecord.open(tmp_path / "out").episodes.values()
        np.testing.assert_array_equal(again[17:21]["image"], np.concatenate(found)[17:21])
    for number, (images, got) in enumerate(zip(groups, found, strict=True)):
        if number % 2:
            assert np.abs(got.astype(int) - images).mean() <= most
        else:
            kept = decode_gop(ALTERNATING, 48, 64, encode_gop(ALTERNATING, images))
            np.testing.assert_array_equal(got, kept)
    for lossy in ("av1", "jpeg"):
        with pytest.raises(SchemaError, match="to a lossy one"):
            seqrecord.convert(source, tmp_path / "no", workers=1, codecs={"image": lossy})
    for wrong, difference in ((groups[:-1], "20 frames missing"), ([*groups, *groups], "too many")):
        source = alternating(wrong)
        with pytest.raises(SourceError, match=f"different numbers of frames.*{difference}"):
            seqrecord.convert(source, tmp_path / "no", workers=1, codecs={"image": stored})
