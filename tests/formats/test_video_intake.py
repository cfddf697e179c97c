"""Videos whose packets contradict their container: equal to PyAV, or refused at intake.

Groups of pictures of every structure, in every container, with damaged or missing tables.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest

import seqrecord
from seqrecord import open_source
from seqrecord.errors import SeqRecordError, SourceError
from seqrecord.formats.sources.video.files import VideoFile
from seqrecord.formats.sources.video.streams import read_gops
from seqrecord.formats.sources.video.tables import read_table
from tests.formats.cases import upload
from tests.formats.video_gops import decode_file_gops
from tests.kit.command_line import fail, run
from tests.kit.video_file_data import HAS_TABLES, QUIET, decoded, pictures, write_video

Pixels = npt.NDArray[np.uint8]
Changed = Callable[[bytes], bytes]

X264 = "scenecut=0:keyint=8:min-keyint=8"
X265 = f"{QUIET}:{X264}"
B, PYRAMID = "bframes=2:b-adapt=0", "bframes=5:b-adapt=0"
STRUCTURES: dict[str, tuple[str, dict[str, str]]] = {
    "h264": ("libx264", {"x264-params": f"{X264}:{B}"}),
    "h264 open": ("libx264", {"x264-params": f"{X264}:{B}:open-gop=1"}),
    "h264 pyramid": ("libx264", {"x264-params": f"{X264}:{PYRAMID}:b-pyramid=strict"}),
    "h264 refresh": ("libx264", {"x264-params": f"{X264}:bframes=0:intra-refresh=1"}),
    "h264 without B": ("libx264", {"x264-params": f"{X264}:bframes=0"}),
    "hevc": ("libx265", {"x265-params": f"{X265}:{B}:open-gop=0"}),
    "hevc open": ("libx265", {"x265-params": f"{X265}:{B}:open-gop=1"}),
    "hevc pyramid": ("libx265", {"x265-params": f"{X265}:{PYRAMID}:b-pyramid=1:open-gop=0"}),
    "hevc refresh": ("libx265", {"x265-params": f"{X265}:bframes=0:intra-refresh=1"}),
    "av1": ("libsvtav1", {"g": "8", "preset": "12"}),
    "vp9": ("libvpx-vp9", {"g": "8", "cpu-used": "8", "deadline": "realtime"}),
    "vp9 hidden": ("libvpx-vp9", {"g": "12", "auto-alt-ref": "1", "lag-in-frames": "8"}),
    "mpeg4": ("mpeg4", {"g": "8", "bf": "2", "qscale": "2"}),
}


def without(*kinds: bytes) -> Changed:
    """Rename boxes of an MP4 to free space."""

    def change(data: bytes) -> bytes:
        for kind in kinds:
            data = data.replace(kind, b"free")
        return data

    return change


def shifted(data: bytes) -> bytes:
    """Increase the numbers in the sync-sample table of an MP4 by three."""
    if (at := data.find(b"stss") + 8) < 8:
        return data
    (count,) = struct.unpack_from(">I", data, at)
    numbers = struct.unpack_from(f">{count}I", data, at + 4)
    body = struct.pack(f">{count}I", *(number + 3 for number in numbers))
    return data[: at + 4] + body + data[at + 4 + len(body) :]


DAMAGES: dict[str, tuple[str, Changed | None]] = {
    "mp4": ("mp4", None),
    "mp4 without ctts": ("mp4", without(b"ctts", b"edts")),
    "mp4 without stss": ("mp4", without(b"stss")),
    "mp4 with shifted stss": ("mp4", shifted),
    "mkv": ("mkv", None),
    "mkv without display times": ("mkv", None),
    "avi": ("avi", None),
    "ts": ("ts", None),
}


NOT_MADE = {  # FFmpeg's AVI has no HEVC; a keyframe at the start is required of other codecs
    *(("hevc", "avi"), ("av1", "ts"), ("vp9", "ts"), ("mpeg4", "mp4 with shifted stss")),
}


def in_decoding_order(path: Path, copy: Path) -> Path:
    """Copy packets with times in decoding order, as a copy from AVI has them."""
    with av.open(str(path)) as source, av.open(str(copy), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0], opaque=True)
        packets = [packet for packet in source.demux(source.streams.video[0]) if packet.size]
        for number, packet in enumerate(packets):
            packet.stream, packet.time_base = stream, Fraction(1, 30)
            packet.pts = packet.dts = number
            target.mux(packet)
    return copy


Files = Callable[[str, str], tuple[Path, Pixels]]


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Make the file of a structure and a damage, once, and the frames that PyAV decodes."""
    root = tmp_path_factory.mktemp("intake")

    @cache
    def make(structure: str, damage: str) -> tuple[Path, Pixels]:
        (codec, options), (ending, change) = STRUCTURES[structure], DAMAGES[damage]
        folder = root / f"{structure} {damage}"
        folder.mkdir()
        path = folder / f"a.{ending}"
        images = pictures(18).repeat(1 + (codec == "libx265"), 2)  # x265 needs a width of 64
        if damage == "mkv without display times":
            in_decoding_order(make(structure, "mkv")[0], path)
        else:
            write_video(path, images, codec, options=options)
        if change is not None:
            path.write_bytes(change(path.read_bytes()))
        return path, decoded(path)[1]

    return make


def cases() -> Iterator[Any]:
    """All combinations; each structure and each damage is fast once, with H.264 or HEVC."""
    fast = {
        *(("h264", damage) for damage in DAMAGES if damage != "mp4"),
        *((structure, "mp4 without ctts") for structure in ("h264 open", "hevc", "hevc open")),
        *((structure, "mp4 without stss") for structure in ("h264 refresh", "av1", "vp9")),
        ("h264 pyramid", "avi"),
        ("mpeg4", "mkv without display times"),
    }
    for structure in STRUCTURES:
        for damage in DAMAGES:
            if (structure.split()[0], damage) in NOT_MADE:
                continue
            marks = () if (structure, damage) in fast else pytest.mark.slow
            yield pytest.param(structure, damage, marks=marks)


@pytest.mark.parametrize(("structure", "damage"), list(cases()))
def test_equal_to_pyav_or_refused(
    tmp_path: Path, files: Files, structure: str, damage: str
) -> None:
    path, wanted = files(structure, damage)
    is_kept = structure != "mpeg4"
    for in_place in (False, True):
        source, out = open_source(path), tmp_path / f"{in_place}"
        if in_place and (damage == "ts" or not is_kept):
            with pytest.raises(SourceError) as caught:
                seqrecord.convert(source, out, workers=1, in_place=in_place)
            assert caught.value.file == str(path)
            continue
        seqrecord.convert(source, out, workers=1, in_place=in_place)
        with seqrecord.open(out) as dataset:
            found = dataset.episodes["a"][:]["image"]
            last = dataset.episodes["a"][-1]["image"]
        np.testing.assert_array_equal(last, found[-1])
        if is_kept:
            np.testing.assert_array_equal(found, wanted)
        else:
            assert np.abs(found.astype(int) - wanted).mean(axis=(1, 2, 3)).max() < 4


def test_gif_is_stored_without_loss(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.gif", pictures(6)[:, :47, :63], "gif", pixels="rgb8")
    seqrecord.convert(open_source(path), tmp_path / "out", workers=1)
    with seqrecord.open(tmp_path / "out") as dataset:
        np.testing.assert_array_equal(dataset.episodes["a"][:]["image"], decoded(path)[1])


@pytest.mark.parametrize("damage", ["mp4", "mp4 without stss", "mp4 with shifted stss"])
def test_keyframes_on_a_url(tmp_path: Path, files: Files, memory_url: str, damage: str) -> None:
    path, wanted = files("h264 without B", damage)
    source = open_source(upload(path.parent, memory_url))
    seqrecord.convert(source, tmp_path / "out", workers=1, in_place=True)
    with seqrecord.open(tmp_path / "out") as dataset:
        np.testing.assert_array_equal(dataset.episodes["a"][:]["image"], wanted)


def test_other_damage_of_tables_gives_no_wrong_frame(
    tmp_path: Path, files: Files, thorough: bool
) -> None:
    """Frames equal PyAV's of the damaged file, or of the intact one; or an error is raised."""
    whole, intact = files("h264", "mp4")
    data, path, rng = whole.read_bytes(), tmp_path / "a.mp4", np.random.default_rng(0)
    for kind in (b"ctts", b"stts", b"stss", b"stsz", b"stsc", b"stco", b"elst"):
        at, size = data.index(kind), int.from_bytes(data[data.index(kind) - 4 :][:4], "big")
        for number in range(30 if thorough else 1):
            damaged = bytearray(data)
            damaged[at + int(rng.integers(8, size - 4))] ^= 1 << int(rng.integers(8))
            path.write_bytes(damaged)
            try:
                known = [*intact, *decoded(path)[1]]
            except (av.FFmpegError, ValueError):
                known = [*intact]
            for in_place in (False, True):
                out = tmp_path / f"{kind!r} {number} {in_place}"
                with suppress(SeqRecordError):
                    seqrecord.convert(open_source(path), out, workers=1, in_place=in_place)
                    with seqrecord.open(out) as dataset:
                        for frame in dataset.episodes["a"][:]["image"]:
                            assert any(np.array_equal(frame, each) for each in known)


def test_b_frames_of_a_stream_that_declares_none(tmp_path: Path) -> None:
    """FFmpeg looks for B-frames at the beginning; here they come later."""
    path = tmp_path / "a.mp4"
    options = {"x264-params": f"scenecut=0:keyint=60:{B}:rc-lookahead=0:b-pyramid=none"}
    write_video(path, pictures(40), options=options, p_frames=range(1, 14))
    _, wanted = decoded(path)
    data = bytearray(without(b"ctts", b"edts")(path.read_bytes()))
    end = (at := data.index(b"avcC") + 12) + int.from_bytes(data[at - 2 : at], "big")
    data[end - 3] ^= 1 << 1  # bitstream_restriction_flag of the sequence parameter set
    path.write_bytes(data)
    with VideoFile(path) as file:
        assert len(file.entries()) == (len(wanted) if HAS_TABLES else 0)
    for in_place in (False, True):
        seqrecord.convert(open_source(path), tmp_path / f"{in_place}", workers=1, in_place=in_place)
        with seqrecord.open(tmp_path / f"{in_place}") as dataset:
            np.testing.assert_array_equal(dataset.episodes["a"][:]["image"], wanted)


@pytest.mark.slow
def test_a_long_group_without_display_times(tmp_path: Path) -> None:
    options = {"preset": "ultrafast", "x264-params": f"scenecut=0:keyint=infinite:{B}"}
    path = write_video(tmp_path / "a.avi", pictures(530), options=options)
    _, wanted = decoded(path)
    assert np.abs(decode_file_gops(path).astype(int) - wanted).mean(axis=(1, 2, 3)).max() < 4
    for times in (None, np.arange(1, 3) / 30):
        with VideoFile(path) as file, pytest.raises(SourceError, match=r"ffmpeg .*IN") as caught:
            _ = read_table(file) if times is None else list(read_gops(file, times))
        assert caught.value.file == str(path)


def test_rows_of_packets_in_decoding_order(tmp_path: Path, files: Files) -> None:
    """Of a codec that is not kept, some frames cannot be told apart without display times."""
    path, _ = files("mpeg4", "mp4 without ctts")
    for rows in ([1], [2, 3], [1, 2, 3, 4, 5]):
        with pytest.raises(SourceError, match=r"cannot be decoded|not ascending"):
            decode_file_gops(path, np.array(rows) / 30)
    path, wanted = files("h264", "mp4 without ctts")
    for rows in ([1], [2, 3], [9, 12]):
        np.testing.assert_array_equal(decode_file_gops(path, np.array(rows) / 30), wanted[rows])


DIVX = b"\0\0\1\xb2DivX503b1393p"  # user data: two pictures in a packet, then an empty picture
EMPTY = b"\0\0\1\xb6\x51\0"


def test_packed_b_frames_of_mpeg4(tmp_path: Path) -> None:
    """As in files of DivX and Xvid: times are neither display times nor in decoding order."""
    path = write_video(
        tmp_path / "a.avi", pictures(13), "mpeg4", options={"bf": "1", "qscale": "2"}
    )
    _, wanted = decoded(path)
    with av.open(str(path)) as source, av.open(str(tmp_path / "b.avi"), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0], opaque=True)
        extradata = bytes(source.streams.video[0].codec_context.extradata or b"")
        name = extradata[extradata.index(b"\0\0\1\xb2") :]
        stream.codec_context.extradata = extradata.replace(name, DIVX)
        [first, *rest] = [bytes(each).replace(name, DIVX) for each in source.demux() if each.size]
        pairs = zip(rest[::2], rest[1::2], strict=True)
        for number, data in enumerate([first, *chain(*((p + b, EMPTY) for p, b in pairs))]):
            packet = av.Packet(data)
            packet.stream, packet.time_base, packet.pts = stream, Fraction(1, 30), number
            packet.dts, packet.is_keyframe = number, not number
            target.mux(packet)
    found = decode_file_gops(tmp_path / "b.avi")
    assert np.abs(found.astype(int) - wanted).mean(axis=(1, 2, 3)).max() < 4


@pytest.mark.parametrize("in_place", [pytest.param(False, marks=pytest.mark.slow), True])
def test_check_video_decodes_all_packets(tmp_path: Path, files: Files, in_place: bool) -> None:
    path, out = tmp_path / "a.mp4", tmp_path / "out"
    shutil.copy(files("h264 without B", "mp4")[0], path)
    options: dict[str, Any] = {"workers": 1, "in_place": in_place}
    seqrecord.convert(open_source(path), tmp_path / "good", check_video=True, **options)
    assert seqrecord.verify(tmp_path / "good", check_video=True).num_frames == 18
    with VideoFile(path) as file:
        start, size = next(file.place_of(each) for each in file.packets() if not each.is_key)
    data = path.read_bytes()
    path.write_bytes(data[: start + 5] + b"\xff" * (size - 5) + data[start + size :])
    command = ("index", path, "--dst") if in_place else ("write", "--src", path, "--dst")
    error = fail(*command, tmp_path / "bad", "--check-video", "--quiet")
    assert "cannot decode video packets" in error
    seqrecord.convert(open_source(path), out, **options)
    assert seqrecord.verify(out).ok
    assert "cannot decode video packets" in run("verify", out, "--check-video", code=1).stdout


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("ending", ["mp4", "mkv", "avi"])
def test_cropped_streams_have_the_declared_size(
    tmp_path: Path, ending: str, in_place: bool
) -> None:
    """Parameter sets crop on all four sides; players show the rest."""
    images, crop = pictures(8), "crop-rect=4,2,6,8"
    options = {"x264-params": f"keyint=4:bframes=0:qp=0:{crop}"}
    path = write_video(tmp_path / f"a.{ending}", images, options=options, pixels="yuv444p")
    seqrecord.convert(open_source(path), tmp_path / "out", workers=1, in_place=in_place)
    with seqrecord.open(tmp_path / "out") as dataset:
        found = dataset.episodes["a"][:]["image"]
    assert np.abs(found.astype(int) - images[:, 2:-8, 4:-6]).max() < 4


@pytest.mark.skipif(not HAS_TABLES, reason="PyAV before 17 has no tables")
@pytest.mark.parametrize("in_place", [False, True])
def test_damaged_files_name_a_remedy(tmp_path: Path, files: Files, in_place: bool) -> None:
    whole, _ = files("h264 without B", "mp4")
    data, path = whole.read_bytes(), tmp_path / "a.mp4"
    sizes = data.index(b"stsz") + 16
    with VideoFile(whole) as file:
        start, size = next(file.place_of(each) for each in file.packets() if not each.is_key)
    for damaged, match in (
        (data[: sizes + 64] + bytes(8) + data[sizes + 72 :], r"frames; .*ffmpeg -i IN -c copy"),
        (data[: sizes + 68] + b"\0\xff" + data[sizes + 70 :], r"truncated.*ffmpeg -i IN -c copy"),
        (
            data[:start] + bytes(size) + data[start + size :],
            r"zeros.*ffmpeg -i IN",
        ),
    ):
        path.write_bytes(damaged)
        with pytest.raises(SourceError, match=match) as caught:
            seqrecord.convert(
                *(open_source(path), tmp_path / "out"),
                workers=1,
                in_place=in_place,
                check_video=True,
            )
        assert caught.value.file == str(path)
