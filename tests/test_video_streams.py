"""Video files cut into GOPs: the same frames as PyAV decodes front to back, or a refusal."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest

from seqrecord.codecs.video.packages import packet_of
from seqrecord.codecs.video.packets import Start, packet_format
from seqrecord.errors import SourceError
from seqrecord.sources import VideoSource
from tests.video_file_data import (
    QUIET,
    decoded,
    gops_of,
    hide_first,
    in_fragments,
    of_file,
    pictures,
    write_video,
)

FRAMES = 40
CASES: dict[str, tuple[str, str, dict[str, str]]] = {
    "h264 with B-frames": ("mp4", "libx264", {"g": "10", "bf": "3"}),
    "h264 of open GOPs": (
        "mp4",
        "libx264",
        {"g": "10", "bf": "3", "x264-params": "open-gop=1:scenecut=0"},
    ),
    "h264 in matroska": ("mkv", "libx264", {"g": "7"}),
    "hevc of open GOPs": ("mp4", "libx265", {"g": "10", "x265-params": QUIET}),
    "hevc": ("mkv", "libx265", {"g": "10", "x265-params": f"{QUIET}:open-gop=0"}),
    "av1 as lerobot writes it": ("mp4", "libsvtav1", {"g": "2", "crf": "30", "preset": "12"}),
    "av1": ("mkv", "libsvtav1", {"g": "10", "preset": "12"}),
    "vp9": ("webm", "libvpx-vp9", {"g": "10", "cpu-used": "8", "deadline": "realtime"}),
    "vp9 with hidden frames": ("mp4", "libvpx-vp9", {"g": "20", "auto-alt-ref": "1"}),
}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SVT_LOG", "1")


def made(tmp_path: Path, case: str) -> Path:
    ending, codec, options = CASES[case]
    return write_video(tmp_path / f"a.{ending}", pictures(FRAMES), codec, options=options)


def check_times(path: Path, times: npt.NDArray[np.float64]) -> None:
    """As many frames as the container says, and their times from the first one on."""
    source = VideoSource(path)
    [info] = source.episodes()
    assert info.num_frames == len(times)
    got: list[Any] = [frame["timestamp"] for frame in source.frames(info)]
    np.testing.assert_allclose(got, times - times[0], atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_kept_packets_decode_to_the_same_bits(
    tmp_path: Path, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = made(tmp_path, case)
    times, images = decoded(path)
    assert len(times) == FRAMES
    np.testing.assert_array_equal(of_file(path), images)
    check_times(path, times)
    # In any order, in the middle of a GOP, across several, every second one.
    for rows in (slice(9, 31), slice(0, 4), slice(36, 40), slice(20, 21), slice(3, 38, 2)):
        np.testing.assert_array_equal(of_file(path, times[rows]), images[rows])
        assert sum(gop.num_frames for gop in gops_of(path, times[rows])) == len(times[rows])
    assert caplog.text == ""


def test_a_gop_is_no_longer_than_it_must_be(tmp_path: Path) -> None:
    path = write_video(
        tmp_path / "a.mp4", pictures(20), options={"g": "5", "bf": "0", "x264-params": "scenecut=0"}
    )
    times, _ = decoded(path)
    assert [gop.order for gop in gops_of(path, times[7:12])] == [
        (-1, -1, 0, 1, 2),  # what the keyframe before leads to
        (0, 1),  # and nothing behind the last frame
    ]


def test_frames_that_an_edit_list_hides(tmp_path: Path) -> None:
    path = made(tmp_path, "h264 with B-frames")
    _, all_images = decoded(path)
    hide_first(path, 13)
    times, images = decoded(path)
    np.testing.assert_array_equal(images, all_images[13:])
    np.testing.assert_array_equal(of_file(path), images)
    np.testing.assert_array_equal(of_file(path, times[:9]), images[:9])
    check_times(path, times)


def test_a_file_of_fragments(tmp_path: Path) -> None:
    whole = write_video(tmp_path / "whole.mp4", pictures(FRAMES), options={"g": "10"})
    path = in_fragments(whole, tmp_path / "fragments.mp4")
    times, images = decoded(whole)
    np.testing.assert_array_equal(of_file(path), images)
    check_times(path, times)


def test_times_that_are_not_regular(tmp_path: Path) -> None:
    ms = np.cumsum([0, 33, 34, 100, 5, 20, 33, 1000, 17, 33, 40, 40]).tolist()
    path = write_video(tmp_path / "a.mkv", pictures(len(ms)), options={"g": "4"}, times=ms)
    check_times(path, np.array(ms) / 1000)
    rows = np.array(ms)[2:9] / 1000 + 4e-5  # nearest
    np.testing.assert_array_equal(of_file(path, rows), decoded(path)[1][2:9])


LONG = {
    "keyframes are more than 256": {"g": "300", "x264-params": "scenecut=0:keyint=300"},
    "open GOPs": {"g": "9", "bf": "2", "x264-params": "open-gop=1:scenecut=0"},
}


@pytest.mark.parametrize("why", LONG)
def test_what_cannot_be_cut_is_encoded_anew(
    tmp_path: Path, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_video(
        tmp_path / "a.mp4", pictures(280), options=LONG[why] | {"preset": "ultrafast"}
    )
    times, images = decoded(path)
    with caplog.at_level(logging.WARNING):
        assert max(gop.num_frames for gop in gops_of(path)) <= 32
        assert f"re-encoded 280 frames: {why}" in caplog.text
        difference = of_file(path).astype(int) - images
        assert np.abs(difference).mean() < 4  # a frame in the wrong place is 7 away, or more
        caplog.clear()
        # 200 frames fit a GOP, whatever is in it.
        np.testing.assert_array_equal(of_file(path, times[10:210]), images[10:210])
        assert caplog.text == ""


@pytest.mark.parametrize("behind", ["", "0000", "0080", "ffff"])
def test_what_lies_behind_a_packet_does_not_count(tmp_path: Path, behind: str) -> None:
    """Decoders read there: that of MPEG-4 looks for a marker."""
    options = {"g": "5", "qscale": "2"}
    path = write_video(tmp_path / "a.avi", pictures(12), "mpeg4", options=options)
    context = av.CodecContext.create("mpeg4", "r")
    frames: list[Any] = []
    with av.open(str(path)) as file:
        for data in [bytes(packet) for packet in file.demux()]:
            more = np.frombuffer(data + bytes.fromhex(behind * 32), np.uint8)
            frames += context.decode(packet_of(more[: len(data)]))
    images = np.stack([frame.to_ndarray(format="rgb24") for frame in frames])
    np.testing.assert_array_equal(images, decoded(path)[1])


def test_other_codecs_are_encoded_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    images = pictures(12)
    path = write_video(tmp_path / "a.avi", images, "mpeg4", options={"g": "5", "qscale": "2"})
    lossless = write_video(tmp_path / "b.mkv", images, "ffv1", pixels="bgr0")
    assert VideoSource(path).schema()["image"].codec[0]["codec"] == "h264"
    times, want = decoded(path)
    assert np.abs(of_file(path, times[4:9]).astype(int) - want[4:9]).mean() < 4
    assert "re-encoded 5 frames: packets of mpeg4 are not supported" in caplog.text
    np.testing.assert_array_equal(of_file(lossless), images)


def refused(path: Path, times: npt.NDArray[np.float64] | None = None) -> SourceError:
    with pytest.raises(SourceError) as caught:
        gops_of(path, times)
    assert caught.value.file == str(path)
    return caught.value


def test_rows_without_frames(tmp_path: Path) -> None:
    path = made(tmp_path, "av1 as lerobot writes it")
    times, _ = decoded(path)
    more = np.append(times, times[-1] + 1 / 30)
    error = refused(path, more)
    assert "no frame of its own" in error.message
    assert error.frame == FRAMES
    apart = times.copy()
    apart[7] += 2e-4
    assert refused(path, apart).frame == 7
    twice = np.insert(times, 5, times[4] + 1e-5)
    assert refused(path, twice).frame == 5
    back = times[[0, 1, 3, 2]]
    assert refused(path, back).frame == 3
    assert refused(path, times - 1).frame == 0
    assert gops_of(path, np.empty(0)) == []


def test_files_that_are_broken(tmp_path: Path) -> None:
    path = made(tmp_path, "av1 as lerobot writes it")
    data = path.read_bytes()
    times, _ = decoded(path)
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(data[: len(data) // 2])  # its tables are at the end
    assert "unsupported video" in refused(cut).message
    playlist = tmp_path / "list.mp4"
    playlist.write_text("#EXTM3U\n#EXTINF:10,\na.mp4\n#EXT-X-ENDLIST\n")
    assert "unsupported video" in refused(playlist).message
    assert refused(tmp_path / "none.mp4").got == "No such file or directory"
    matroska = made(tmp_path, "av1")
    data = matroska.read_bytes()
    matroska.write_bytes(data[: len(data) // 2])
    assert refused(matroska, times).frame is not None


@pytest.mark.parametrize(
    ("codec", "options"), [("libx264", {"g": "10", "bf": "3"}), ("mpeg4", {"g": "10"})]
)
def test_a_file_that_begins_without_a_keyframe(
    tmp_path: Path, codec: str, options: dict[str, str]
) -> None:
    """Also of a codec whose packets are not kept, which nobody could decode either."""
    import av

    path = write_video(tmp_path / "a.mp4", pictures(FRAMES), codec, options=options)
    headless = tmp_path / "headless.mp4"
    with av.open(str(path)) as source, av.open(str(headless), "w") as file:
        stream = source.streams.video[0]
        copy = file.add_stream_from_template(stream)
        packets = [packet for packet in source.demux(stream) if packet.size]
        for packet in packets[2:]:
            packet.stream = copy
            file.mux(packet)
    assert "begin with a keyframe" in refused(headless).message


def test_packets_that_mean_nothing() -> None:
    rng = np.random.default_rng(0)
    for codec in ("h264", "hevc", "av1", "vp9"):
        read = packet_format(codec, b"")
        for size in [0, 1, 2, 3, 5, 8, 40] * 40:
            data = rng.integers(0, 256, size, np.uint8).tobytes()
            assert isinstance(read.start(data), Start)
            read.bare_packet(data, True)
    for extra in (b"\1\0\0\0\xff\xe1\0\xff", b"\1"):
        with pytest.raises(ValueError, match="truncated"):
            packet_format("h264", extra)
    with pytest.raises(ValueError, match="truncated"):
        packet_format("hevc", b"\1" * 30)
