"""Video files that end early, have holes, or only look like it: refused, noted, or accepted."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import seqrecord
from tests.formats.cases import upload
from tests.kit.cut_video_data import (
    FILES,
    FRAMES,
    Made,
    Result,
    avi_parts,
    declare,
    file_maker,
    files_with_gaps,
    files_with_sound,
    fragments_of,
    hole,
    joined,
    packed,
    renumbered,
    riff_chunk,
)
from tests.kit.source_faults import check_refused
from tests.kit.video_file_data import decoded

FAST = ("h264.mkv", "vp9.webm", "h264.live", "h264.fragmented", "h264.ts", "mpeg4.avi", "gif.gif")
files = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in FILES]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Write a file, once."""
    return file_maker(tmp_path_factory.mktemp("cut"))


@pytest.mark.parametrize("name", files)
def test_cut_files_are_refused(tmp_path: Path, made: Made, name: str) -> None:
    path = made(name)
    data, is_fast = path.read_bytes(), name in FAST
    sizes = [len(data) * 3 // 5, len(data) - 2]
    if not is_fast:
        sizes += [len(data) * n // 100 for n in (20, 35, 85)] + [
            len(data) - n for n in (7, 8, 9, 99)
        ]
    for size in sizes:
        result = packed(data[:size], tmp_path / f"{size}", path.suffix)
        if "not verifiable" in result.notes or (name.endswith(".ts") and size % 188 == 0):
            continue  # cut at a border
        assert result.error is not None, size
        assert str(result.error.file).endswith(path.suffix)


@pytest.mark.parametrize("name", files)
def test_holes_lose_no_frame_in_silence(tmp_path: Path, made: Made, name: str) -> None:
    path = made(name)
    data = path.read_bytes()
    places = [0.6] if name in FAST else [0.3, 0.6, 0.8]
    for start in places:
        for size in (2000,) if name in FAST else (16, 300, 2000):
            folder = tmp_path / f"{start}-{size}"
            result = packed(hole(start, size)(data), folder, path.suffix)
            is_whole = len(result.frames) == FRAMES
            assert result.error is not None or is_whole or "not read" in result.notes, (start, size)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", [n for n in FAST if n not in ("h264.ts", "gif.gif", "mpeg4.avi")])
def test_other_bytes_at_the_end_are_noted(
    tmp_path: Path, made: Made, name: str, in_place: bool
) -> None:
    path = made(name)
    whole = decoded(path)[1]
    for number, rest in enumerate((bytes(700), b"\n")):
        data = path.read_bytes() + rest
        result = packed(data, tmp_path / f"{number}", path.suffix, in_place=in_place)
        np.testing.assert_array_equal(result.frames, whole)
        assert f"a{path.suffix}: {len(rest)} " in result.notes
        assert "not read" in result.notes


@pytest.mark.parametrize("ending", ["mp4", "faststart"])
def test_appended_mp4_is_noted(
    tmp_path: Path, made: Made, caplog: pytest.LogCaptureFixture, ending: str
) -> None:
    path = made(f"h264.{ending}")
    data = path.read_bytes()
    result = packed(data * 2, tmp_path / "a", ".mp4")
    assert len(result.frames) == FRAMES
    assert f"another file from byte {len(data)} on" in result.notes
    assert any("another file" in text and "a.mp4" in text for text in caplog.messages)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vp9.browser", "h264.live", "h264.mkv"])
def test_each_cut_of_matroska_is_refused_or_not_verifiable(
    tmp_path: Path, made: Made, name: str
) -> None:
    path = made(name)
    data, ticks = path.read_bytes(), decoded(path)[0]
    accepted = 0
    for size in range(len(data) // 2, len(data), 1 if name == "vp9.browser" else 7):
        result = packed(data[:size], tmp_path / f"{size}", path.suffix)
        if result.error is None:
            accepted += 1
            assert "not verifiable" in result.notes, size
            np.testing.assert_allclose(
                result.times, (ticks - ticks[0])[: len(result.times)], 0, 2e-3
            )
    assert (accepted > 0) == name.endswith("browser")


@pytest.mark.parametrize("name", ["h264.live", "vp9.browser"])
def test_live_recordings_are_accepted_and_not_verifiable(
    tmp_path: Path, made: Made, name: str
) -> None:
    path = made(name)
    result = packed(path.read_bytes(), tmp_path / "a", path.suffix)
    np.testing.assert_array_equal(result.frames, decoded(path)[1])
    assert f"a{path.suffix}: its end is not verifiable" in result.notes


def test_joined_transport_streams_are_accepted(tmp_path: Path, made: Made) -> None:
    for name, (data, frames) in joined(made, tmp_path).items():
        result = packed(data, tmp_path / name, ".ts")
        assert len(result.frames) == frames, result.error
        assert np.diff(result.times).min() > 0.02
        assert "places where its counters begin again" in result.notes


def test_lost_transport_packets_are_refused(tmp_path: Path, made: Made) -> None:
    data = made("h264.ts").read_bytes()
    middle = len(data) // 2 // 188 * 188
    for number, (start, stop) in enumerate(((middle, middle + 188 * 3), (188 * 4, 188 * 6))):
        result = packed(data[:start] + data[stop:], tmp_path / f"{number}", ".ts")
        assert result.error is not None


@pytest.mark.parametrize("name", ["h264.fragmented", "vp9.fragmented"])
def test_lost_fragments_are_refused(tmp_path: Path, made: Made, name: str) -> None:
    data = made(name).read_bytes().replace(b"sidx", b"free")  # sizes of segments tell, too
    head, fragments, rest = fragments_of(data)
    lost = fragments[:2] + fragments[3:]
    for number, (parts, said) in enumerate(
        (
            ([head, *lost], "their numbers skip"),
            ([head, *lost, rest], "no fragment where its list has one"),
            ([head, *fragments[:-1], rest], "no fragment where its list has one"),
        )
    ):
        result = packed(b"".join(parts), tmp_path / f"{number}", ".mp4")
        assert result.error is not None, number
        assert said in result.error.message


def test_skipped_numbers_or_a_pause_alone_are_no_lost_fragments(tmp_path: Path, made: Made) -> None:
    path = made("h264.fragmented")
    head, fragments, rest = fragments_of(path.read_bytes())
    whole, space = decoded(path)[1], struct.pack(">I4s", 24, b"free") + bytes(16)
    for name, parts in {
        "no list": fragments,
        "other tracks left out": [renumbered(f, 2 * i) for i, f in enumerate(fragments)],
        "one left out": [renumbered(f, i + (i > 1)) for i, f in enumerate(fragments)],
        "not counted": [renumbered(f, 1) for f in fragments],
        "a list of before the head grew": [space, *fragments, rest],
    }.items():
        result = packed(b"".join([head, *parts]), tmp_path / name, ".mp4")
        np.testing.assert_array_equal(result.frames, whole, err_msg=f"{name}: {result.error}")


def test_frames_of_an_avi_index_must_be_there(tmp_path: Path, made: Made) -> None:
    head, chunks, index = avi_parts(made("mpeg4.avi").read_bytes())
    frames = riff_chunk(b"LIST", b"movi" + b"".join(chunks[:9] + chunks[10:]))
    result = packed(riff_chunk(b"RIFF", head + frames + index), tmp_path / "lost", ".avi")
    assert result.error is not None
    assert "its index has more frames" in result.error.message
    assert (result.error.expected, result.error.got) == ("24 frames", 23)


def test_an_avi_file_has_all_parts_that_its_head_lists(tmp_path: Path, made: Made) -> None:
    head, chunks, index = avi_parts(made("mpeg4.avi").read_bytes())
    at = head.index(b"JUNK")  # room for the list of parts, in the stream's head
    frames = riff_chunk(b"LIST", b"movi" + b"".join(chunks))
    for begin in (100, 1 << 20):
        entry = struct.pack("<QII", begin, 32, 12)
        parts = struct.pack("<HBBI4s12x", 4, 0, 0, 1, b"00dc") + entry
        changed = head[:at] + b"indx" + head[at + 4 : at + 8] + parts + head[at + 8 + len(parts) :]
        data = riff_chunk(b"RIFF", changed + frames + index)
        result = packed(data, tmp_path / f"{begin}", ".avi")
        assert (result.error is None) == (begin == 100), result.error
        assert result.error is None or "a part of its index" in result.error.message


def test_unusual_avi_files_stay_accepted(tmp_path: Path, made: Made) -> None:
    head, chunks, index = avi_parts(made("mpeg4.avi").read_bytes())
    first, second = (riff_chunk(b"LIST", b"movi" + b"".join(c)) for c in (chunks[:9], chunks[9:]))
    first_index = riff_chunk(b"idx1", index[8 : 8 + 16 * 9])
    frames = riff_chunk(b"LIST", b"movi" + b"".join(chunks))
    again = riff_chunk(b"idx1", index[8:40] + index[24:])  # an entry for a dropped frame
    files = {
        "no index": riff_chunk(b"RIFF", head + frames),
        "an entry twice": riff_chunk(b"RIFF", head + frames + again),
        "two lists, no index of the second": riff_chunk(b"RIFF", head + first + first_index)
        + riff_chunk(b"RIFF", b"AVIX" + second),
    }
    for name, data in files.items():
        result = packed(data, tmp_path / name, ".avi")
        assert len(result.frames) == FRAMES, (name, result.error)


def test_an_early_end_is_noted(
    tmp_path: Path, made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    path = made("h264.mp4")
    data = path.read_bytes()
    at = data.rindex(b"mdhd") + 16
    scale, duration = struct.unpack_from(">II", data, at)
    whole = decoded(path)[1]
    for number, extra in enumerate((2 * scale // 30, scale)):  # two frames, and a second
        caplog.clear()
        changed = declare(path, b"mdhd", 16, duration + extra)
        result = packed(changed, tmp_path / f"{number}", ".mp4")
        np.testing.assert_array_equal(result.frames, whole)
        is_noted = "before the declared end at 1.800 s" in result.notes
        assert is_noted == (number == 1) == any("declared end" in text for text in caplog.messages)


def test_an_early_end_of_matroska_is_noted(tmp_path: Path, made: Made) -> None:
    path = made("vp9.webm")
    data = path.read_bytes().replace(b"00:00:00.800000000", b"00:00:09.800000000")
    result = packed(data, tmp_path / "a", ".webm")
    np.testing.assert_array_equal(result.frames, decoded(path)[1])
    assert "before the declared end at 9.800 s" in result.notes


def test_a_checksum_shows_damage_inside_a_block(tmp_path: Path, made: Made) -> None:
    data = bytearray(made("h264.mkv").read_bytes())
    data[len(data) * 6 // 10] ^= 0x55
    result = packed(bytes(data), tmp_path / "a", ".mkv")
    assert result.error is not None
    assert "checksum" in result.error.message


@pytest.mark.parametrize(
    "write", [files_with_gaps, pytest.param(files_with_sound, marks=pytest.mark.slow)]
)
def test_valid_files_stay_accepted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, write: Callable[[Path], Iterator[Path]]
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for path in write(folder):
        result = Result(path, tmp_path / f"out-{path.name}")
        assert result.error is None, (path.name, result.error)
        np.testing.assert_array_equal(result.frames, decoded(path)[1], err_msg=path.name)
        assert "declared end" not in result.notes, (path.name, result.notes)
        assert "not read" not in result.notes, (path.name, result.notes)
    assert not [line for line in caplog.messages if str(folder) in line]


@pytest.mark.parametrize("name", ["h264.mkv", "h264.ts", "h264.fragmented"])
def test_cut_files_on_a_url_are_refused(
    tmp_path: Path, made: Made, memory_url: str, name: str
) -> None:
    path, folder = made(name), tmp_path / "files"
    folder.mkdir()
    data = path.read_bytes()
    (folder / f"a{path.suffix}").write_bytes(data[: len(data) * 3 // 5])
    assert Result(upload(folder, memory_url), tmp_path / "out").error is not None


def test_a_negative_count_of_a_table_is_no_raw_error(tmp_path: Path, made: Made) -> None:
    data = declare(made("h264.mp4"), b"ctts", 8, 0xFFFFFFFF)
    result = packed(data, tmp_path / "a", ".mp4")
    assert result.error is not None or len(result.frames) == FRAMES


def test_an_edit_list_that_displays_no_frame_is_refused(tmp_path: Path, made: Made) -> None:
    """`episodes` declares a frame for such a file, so reading it must raise."""
    data = declare(made("h264.mp4"), b"elst", 12, 1 << 24)  # the first tick that is displayed
    result = packed(data, tmp_path / "a", ".mp4")
    assert "video without frames" in str(result.error)


def test_a_packet_too_large_for_memory_is_a_damaged_video(tmp_path: Path, made: Made) -> None:
    (tmp_path / "a.mp4").write_bytes(made("h264.mp4").read_bytes())
    data = declare(made("h264.mp4"), b"stsz", 12, 0x3B000028)  # bytes of the first packet
    (tmp_path / "b.mp4").write_bytes(data)
    check_refused(seqrecord.open_source(tmp_path), ["b"], "truncated", file=tmp_path / "b.mp4")
