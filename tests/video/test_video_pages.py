"""Pages of video: literal bytes, tables against brute force, malformed pages."""

from __future__ import annotations

import random
import struct
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seqrecord
from seqrecord import FeatureSpec
from seqrecord.errors import CodecError, FormatError
from seqrecord.sources import Gop
from seqrecord.video.decoding import decode_gop
from seqrecord.video.page_tables import min_video_bytes, parse_video_page
from seqrecord.video.pages import VideoPageCodec
from tests.kit.clip_data import begun, digests, effective_arguments, minimum_memory, resumed
from tests.kit.datasets import columns, write_dataset
from tests.kit.tiny import RecordParts, change_record, record_path
from tests.kit.video_data import HEIGHT, WIDTH, moving
from tests.loader.test_memory import BESIDE, check_taken
from tests.video.gops import config_of, gops_of
from tests.video.test_video_datasets import kept_schema, state


def codec(name: str) -> VideoPageCodec:
    chain = (config_of(name).to_json(),)
    return VideoPageCodec(FeatureSpec("image", np.dtype("u1"), (HEIGHT, WIDTH, 3), chain))


def parse(page: bytes, count: int) -> list[list[int]]:
    table = parse_video_page(memoryview(page), count, "image")
    names = ("offsets", "order", "first_packet", "first_frame")
    return [getattr(table, name).tolist() for name in names]


GOPS = [Gop((b"AAA", b"BB", b"C"), (0, 2, 1)), Gop((b"DD", b"E"), (0, -1))]
PAGE = (
    bytes.fromhex(
        "05000000"  # packets
        "30000000 33000000 35000000 36000000 38000000 39000000"  # offsets
        "00000080 02000000 01000000 030000 80 ffffff7f"  # frames
    )
    + b"AAABBCDDE"
)


def test_bytes() -> None:
    assert codec("h264").join(GOPS) == PAGE
    assert parse(PAGE, 4) == [[48, 51, 53, 54, 56, 57], [0, 2, 1, 3, -1], [0, 3, 5], [0, 3, 4]]
    assert codec("h264").join([]) == b""
    text = (Path(__file__).parents[2] / "docs" / "format.md").read_text("utf-8")
    shown = [" ".join(f"{b:02x}" for b in PAGE[i : i + 16]) for i in range(0, len(PAGE), 16)]
    assert all(line in text for line in shown)


@st.composite
def _gops(draw: st.DrawFn) -> list[Gop]:
    found = []
    for _ in range(draw(st.integers(1, 4))):
        shown = draw(st.integers(1, 6))
        order = draw(st.permutations([*range(shown), *[-1] * draw(st.integers(0, 2))]))
        packets = tuple(draw(st.binary(min_size=1, max_size=3)) for _ in order)
        found.append(Gop(packets, tuple(order)))
    return found


@given(_gops())
def test_tables_equal_their_gops(gops: list[Gop]) -> None:
    count = sum(gop.num_frames for gop in gops)
    page = codec("h264").join(gops)
    assert len(page) >= min_video_bytes(count)
    offsets, order, first_packet, first_frame = parse(page, count)
    packets = [page[a:b] for a, b in pairwise(offsets)]
    assert packets == [packet for gop in gops for packet in gop.packets]
    assert first_packet[-1] == len(packets)
    for number, gop in enumerate(gops):
        own = slice(first_packet[number], first_packet[number + 1])
        base = first_frame[number]
        assert [n if n < 0 else n - base for n in order[own]] == list(gop.order)
        assert first_frame[number + 1] - base == gop.num_frames


def _word(at: int, value: int) -> bytes:
    return PAGE[:at] + struct.pack("<I", value) + PAGE[at + 4 :]


def _of(frames: list[int], size: int = 1) -> bytes:
    begin = 8 + 8 * len(frames)
    offsets = [begin + size * i for i in range(len(frames) + 1)]
    head = struct.pack(f"<I{len(offsets)}I{len(frames)}I", len(frames), *offsets, *frames)
    return head + b"x" * (size * len(frames))


_KEY = 1 << 31
_BROKEN: dict[str, tuple[bytes, int, str]] = {
    "no packets": (b"\0\0\0\0\x08\0\0\0", 0, "number of packets"),
    "more packets than bytes": (_word(0, 2**32 - 1), 4, "number of packets"),
    "fewer packets than frames": (PAGE, 6, "number of packets"),
    "first offset": (_word(4, 47), 4, "offsets do not rise"),
    "last offset": (_word(24, 58), 4, "offsets do not rise"),
    "packet of no bytes": (_word(8, 48), 4, "offsets do not rise"),
    "offset 2**32 - 1": (_word(12, 2**32 - 1), 4, "offsets do not rise"),
    "page without a keyframe": (_word(28, 0), 4, "begin with a group"),
    "frame given twice": (_word(36, 2), 4, "twice, or missing"),
    "frame given by none": (_word(36, _KEY - 1), 4, "twice, or missing"),
    "frame of another group": (_of([_KEY | 1, _KEY | 0]), 2, "twice, or missing"),
    "missing frame": (_word(36, 4), 4, "twice, or missing"),
    "group without a frame": (_of([_KEY | 0, _KEY | (_KEY - 1)]), 1, "number of frames"),
    "group of 257 frames": (_of([_KEY, *range(1, 257)]), 257, "number of frames"),
    "group of 513 packets": (_of([_KEY, *[_KEY - 1] * 512]), 1, "too many packets"),
    "cut": (PAGE[:20], 4, "number of packets"),
    "empty": (b"", 4, "number of packets"),
}


def test_tables_that_cannot_be_true() -> None:
    for name, (page, count, message) in _BROKEN.items():
        with pytest.raises(FormatError, match=message) as info:
            parse(page, count)
        assert info.value.feature == "image", name
        assert info.value.offset is not None, name


@pytest.mark.parametrize("name", ["h264", "hevc", "av1", "vp9", "ffv1"])
def test_changed_bytes_give_an_error_or_frames(name: str, thorough: bool) -> None:
    """With valid checksums: changed bytes of packets or the table, or exchanged pieces."""

    def decoded(page: bytes) -> npt.NDArray[np.uint8]:
        out = np.empty((6, HEIGHT, WIDTH, 3), np.uint8)
        codec(name).reader(memoryview(page), 6).decode_into(range(6), out)
        return out

    gops = gops_of(name, moving(6), 3)
    page, draw = codec(name).join(gops), random.Random(4)
    table = 4 + 4 * 13
    seen: set[object] = set()
    for number in range(90 if thorough else 25):
        changed = bytearray(page)
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(table if number % 3 else len(page))
            changed[at] = draw.randrange(256)
        if number % 7 == 0:
            a, b = draw.randrange(table, len(page)), draw.randrange(table, len(page))
            changed[min(a, b) : max(a, b)] = changed[min(a, b) : max(a, b)][::-1]
        try:
            seen.add(decoded(bytes(changed)).shape)
        except (CodecError, FormatError) as error:
            seen.add(type(error))
    assert FormatError in seen
    # … and a reused decoder keeps nothing of it.
    assert np.array_equal(decoded(page), decoded(codec(name).join(gops)))


def test_frames_are_decoded_once_for_any_request() -> None:
    gops = gops_of("ffv1:gop=6", moving(18), 6)
    reader = codec("ffv1").reader(memoryview(codec("ffv1").join(gops)), 18)
    out = np.empty((18, HEIGHT, WIDTH, 3), np.uint8)
    for first in range(0, 18, 2):
        reader.decode_into(range(first, first + 2), out[first : first + 2])
    assert np.array_equal(out, moving(18))
    assert reader.num_decoded == 18
    reader.decode_into([16, 3, 3, 14], out[:4])
    assert np.array_equal(out[:4], moving(18)[[16, 3, 3, 14]])
    assert reader.num_decoded == 18 + 4 + 5


def test_footers_of_video_that_are_refused(tmp_path: Path) -> None:
    """Two features in a group, too long chunks, and an unknown codec."""

    def in_one_group(parts: RecordParts) -> None:
        parts.head["schema"][1]["group"] = 0
        parts.head["num_chunks"] = [1]

    def of_257_frames(parts: RecordParts) -> None:
        for rows in (*parts.groups, parts.head["episodes"][0]):
            rows["num_frames"] = 257

    def of_another_codec(parts: RecordParts) -> None:
        parts.head["schema"][0]["codec"][0]["codec"] = "ffv2"

    chain = (config_of("ffv1").to_json(),)
    specs = [FeatureSpec("image", np.dtype("u1"), (HEIGHT, WIDTH, 3), chain)]
    specs.append(FeatureSpec("state", np.dtype("u1"), (2,), ({"id": "zstd", "level": 1},)))
    content = columns(image=moving(3), state=moving(3)[:, 0, 0, :2])
    write_dataset(tmp_path, {"a": content}, schema=seqrecord.Schema(specs))
    good = record_path(tmp_path).read_bytes()
    for change, message in ((in_one_group, "shares its group"), (of_257_frames, "wrong length")):
        change_record(tmp_path, change)
        with pytest.raises(FormatError, match=message):
            seqrecord.reindex(tmp_path, created_by="test")
        record_path(tmp_path).write_bytes(good)
    change_record(tmp_path, of_another_codec)
    seqrecord.reindex(tmp_path, created_by="test")
    with pytest.raises(seqrecord.errors.SchemaError, match="no video codec 'ffv2'"):
        seqrecord.open(tmp_path)
    assert len(seqrecord.open(tmp_path, features=["state"]).episodes["a"]) == 3


# Long chunks of video in pieces: each frame is decoded once, in little memory

Pixels = npt.NDArray[np.uint8]
Written = tuple[Path, dict[str, Pixels]]

SIZE = (64, 80)
LONGEST = 120  # frames of a chunk


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Copied GOPs of 100 frames with B-frames, and of 50, 120 and 37; `state` in one chunk an
    episode."""
    return write_long(tmp_path_factory.mktemp("long") / "records")


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The dataset `long`, with `state` in chunks of 7."""
    return write_long(tmp_path_factory.mktemp("apart") / "records", chunk_frames=7)


def write_long(path: Path, **options: Any) -> Written:
    decoded: dict[str, Pixels] = {}
    episodes = {}
    for key, cuts in {"a": (100, 100, 60), "b": (50, LONGEST, 37), "c": (20,)}.items():
        pieces = np.split(moving(sum(cuts), seed=len(key), size=SIZE), np.cumsum(cuts[:-1]))
        gops = [gops_of("h264", piece, len(piece))[0] for piece in pieces]
        decode = partial(decode_gop, config_of("h264", SIZE), *SIZE)
        decoded[key] = np.concatenate([*map(decode, gops)])
        episodes[key] = columns(image=gops) + columns(state=state(sum(cuts)))
    write_dataset(path, episodes, schema=kept_schema(size=SIZE), **options)
    return path, decoded


def upside_down(frame: dict[str, Any]) -> dict[str, Any]:
    return {"image": frame["image"][::-2, ::2], "number": frame["state"][:1] / 3}


def check(written: Written, *, at: tuple[int, ...] = (), **options: Any) -> dict[str, Any]:
    """Check all clips of an epoch and the clips `at`; return the statistics."""
    path, decoded = written
    pipe = seqrecord.SeqRecordPipe(path, batch_size=4, **effective_arguments(options))
    step = options.get("dilation", 1) * np.arange(options["clip_len"])

    def check_clip(key: str, start: Any, clip: dict[str, Any]) -> None:
        frames = int(start) + step
        expected = decoded[key][frames]
        if options.get("frame_transform") is upside_down:
            expected = expected[:, ::-2, ::2]
            assert clip["number"][:, 0].tolist() == frames.tolist(), (key, start)
        assert np.array_equal(clip["image"].numpy(), expected), (key, start)

    seen = 0
    for batch in pipe:
        for i, (key, start) in enumerate(zip(batch["episode"], batch["start"], strict=True)):
            check_clip(key, start, {n: batch[n][i] for n in ("image", "number") if n in batch})
            seen += 1
    assert seen == len(pipe) * 4 - (-pipe.stats()["clips"] % 4)
    names = options.keys() & {"clip_len", "stride", "dilation", "frame_transform"}
    own = {name: options[name] for name in names}
    clips: Any = seqrecord.SeqRecordMapDataset(path, **own) if at else []
    for number in at:
        check_clip(clips[number]["episode"], clips[number]["start"], clips[number])
    return pipe.stats()


def least_limit(path: Path, **options: Any) -> int:
    """Lowest sufficient memory limit in bytes."""
    make = partial(seqrecord.SeqRecordPipe, path, batch_size=4, **effective_arguments(options))
    return minimum_memory(make)


@pytest.mark.parametrize(
    ("dataset", "transform"), [("long", None), ("long", dict), ("apart", dict)]
)
def test_chunks_are_read_and_decoded_once(
    dataset: str, transform: Any, request: pytest.FixtureRequest
) -> None:
    """A transform gets frames in pieces; states are read once per chunk of video."""

    def spans(group: Any) -> list[tuple[int, int]]:
        """First and last frame of each chunk; episodes are far from each other."""
        begin = group.first_frame + 1000 * np.cumsum(group.first_frame == 0)
        return [*zip(begin.tolist(), (begin + group.num_frames).tolist(), strict=True)]

    path, decoded = written = request.getfixturevalue(dataset)
    options: dict[str, Any] = {"clip_len": 4, "shuffle": False, "frame_transform": transform}
    stats = check(written, **options, memory_limit=4 * least_limit(path, **options))
    assert stats["video_frames_decoded"] == sum(map(len, decoded.values()))
    assert transform is None or stats["video_frames_decoded"] == stats["frames_decoded"]
    assert stats["peak_buffer_bytes"] < 100 * SIZE[0] * SIZE[1] * 3  # a chunk has 120
    video, states = seqrecord.open(path).contents.index.groups
    expected, sizes = int(video.page_length.sum()), states.page_length[:, 0].tolist()
    for first, last in [(0, 0)] if transform is None else spans(video):
        for other, nbytes in zip(spans(states), sizes, strict=True):
            expected += nbytes * (last == 0 or max(first, other[0]) < min(last, other[1]))
    assert stats["bytes_read"] == expected


@pytest.mark.parametrize(
    ("number", "transform"),
    [
        pytest.param(n, t, marks=[pytest.mark.slow] * ((n + (t is None)) % 2))
        for n in range(7)
        for t in (None, upside_down)
    ],
)
def test_clips(long: Written, apart: Written, number: int, transform: Any) -> None:
    cases: list[dict[str, Any]] = [
        {"clip_len": 16, "num_cursors": 3},
        {"clip_len": 4, "stride": 4, "num_cursors": 2},
        {"clip_len": 3, "stride": 40, "num_cursors": 2},
        {"clip_len": 5, "dilation": 9, "num_cursors": 2},
        {"clip_len": 2, "stride": 7, "dilation": 3},
        {"clip_len": 8, "num_cursors": 4, "num_threads": 4},
        {"clip_len": 8, "num_cursors": 2, "device": "cpu"},
    ]
    options = {**cases[number], "frame_transform": transform}
    check(apart if transform else long, at=(0, 7, -1), seed=1, **options)


def test_transform_needs_no_more_memory(apart: Written) -> None:
    options: dict[str, Any] = {"clip_len": 4, "num_cursors": 2, "num_threads": 1}
    least = [least_limit(apart[0], **options, frame_transform=made) for made in (None, dict)]
    # Each current load has one extra frame and its result; a chunk has 120.
    assert least[1] <= 1.1 * least[0]
    options |= {"frame_transform": dict, "memory_limit": least[1]}
    check_taken(lambda: check(apart, **options), least[1] + BESIDE)


def test_failed_transform_leaves_no_chunk_open(apart: Written) -> None:
    """The error names the frame, which is not in the first piece."""

    def fails(frame: dict[str, Any]) -> dict[str, Any]:
        if frame["state"][0] == 3 * 61:
            raise ZeroDivisionError
        return frame

    with pytest.raises(ZeroDivisionError) as caught:
        check(apart, clip_len=4, shuffle=False, frame_transform=fails)
    assert "frame 61" in str(getattr(caught.value, "__notes__", caught.value))


def test_loads_continue_at_the_cursor(long: Written, thorough: bool) -> None:
    """Many threads load for two cursors; each load waits for the previous one."""
    total = sum(map(len, long[1].values()))
    for seed in range(3 if thorough else 1):
        stats = check(long, clip_len=4, num_cursors=2, num_threads=8, seed=seed)
        assert total <= stats["video_frames_decoded"] <= total + 2 * LONGEST  # at cuts between runs


def test_resumes_in_the_middle_of_a_chunk(long: Written) -> None:
    engine = seqrecord.EngineOptions(num_cursors=2)
    make = partial(
        seqrecord.SeqRecordPipe, long[0], clip_len=4, stride=5, batch_size=4, engine=engine
    )
    batches, pipe = digests(make()), make()
    iterator = begun(pipe, 11)
    saved = pipe.state_dict()
    del iterator
    assert digests(resumed(make(), saved)) == batches[11:]
