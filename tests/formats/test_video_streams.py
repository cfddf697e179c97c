"""Video files and folders of them: GOPs that decode as in PyAV, or an error."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest

import seqrecord
from seqrecord import open_source
from seqrecord.errors import SchemaError, SourceError
from seqrecord.formats.sources.video.files import VideoFile
from seqrecord.formats.sources.video.streams import read_frames, read_gops
from seqrecord.sources import Gop, VideoSource
from tests.formats.video_gops import decode_file_gops, gops_of
from tests.kit.video_file_data import (
    HEIGHT,
    QUIET,
    WIDTH,
    copy_packets,
    declare_full_range,
    decoded,
    hide_first,
    overwrite_keyframes,
    pictures,
    set_display_matrix,
    set_edits,
    write_fragmented,
    write_video,
)
from tests.video.gops import decode_gops_of

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
    """Compare number and times of frames, from the first one, with the container."""
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
    np.testing.assert_array_equal(decode_file_gops(path), images)
    check_times(path, times)
    # In any order, in the middle of a GOP, across several, every second one.
    for rows in (slice(9, 31), slice(0, 4), slice(36, 40), slice(20, 21), slice(3, 38, 2)):
        np.testing.assert_array_equal(decode_file_gops(path, times[rows]), images[rows])
        assert sum(gop.num_frames for gop in gops_of(path, times[rows])) == len(times[rows])
    assert caplog.text == ""


def test_gops_are_as_short_as_possible(tmp_path: Path) -> None:
    options = {"g": "5", "bf": "0", "x264-params": "scenecut=0"}
    path = write_video(tmp_path / "a.mp4", pictures(20), options=options)
    times, _ = decoded(path)
    assert [gop.order for gop in gops_of(path, times[7:12])] == [
        (-1, -1, 0, 1, 2),  # frames after the previous keyframe
        (0, 1),  # and nothing after the last frame
    ]


def test_hidden_frames_fragments_and_irregular_times(tmp_path: Path) -> None:
    path = made(tmp_path, "h264 with B-frames")
    _, all_images = decoded(path)
    hide_first(path, 13)  # by an edit list
    times, images = decoded(path)
    np.testing.assert_array_equal(images, all_images[13:])
    np.testing.assert_array_equal(decode_file_gops(path), images)
    np.testing.assert_array_equal(decode_file_gops(path, times[:9]), images[:9])
    check_times(path, times)
    whole = write_video(tmp_path / "whole.mp4", pictures(FRAMES), options={"g": "10"})
    path = write_fragmented(whole, tmp_path / "fragments.mp4")
    times, images = decoded(whole)
    np.testing.assert_array_equal(decode_file_gops(path), images)
    check_times(path, times)
    ms = np.cumsum([0, 33, 34, 100, 5, 20, 33, 1000, 17, 33, 40, 40]).tolist()
    path = write_video(tmp_path / "a.mkv", pictures(len(ms)), options={"g": "4"}, times=ms)
    check_times(path, np.array(ms) / 1000)
    rows = np.array(ms)[2:9] / 1000 + 4e-5  # nearest
    np.testing.assert_array_equal(decode_file_gops(path, rows), decoded(path)[1][2:9])


@pytest.mark.parametrize("case", ["h264 of open GOPs", "hevc of open GOPs"])
@pytest.mark.parametrize(
    ("edits", "is_read"),
    [
        (((0, 6), (20, 10)), {"h264": True, "hevc": False}),
        (((3, 10), (21, 12)), {"h264": False, "hevc": False}),
        (((10, 5), (33, 9)), {"h264": True, "hevc": False}),
        (((2, 16), (18, 16)), {"h264": True, "hevc": False}),
    ],
)
def test_two_edits_of_open_gops(
    tmp_path: Path, case: str, edits: tuple[tuple[int, int], ...], is_read: dict[str, bool]
) -> None:
    """Frames that refer to skipped ones are an error, before they are packed. FFmpeg 7 of PyAV 15
    decodes more of them.
    """
    _, codec, options = CASES[case]
    times = (np.arange(48) * 40 + 200).tolist()
    path = write_video(tmp_path / "a.mp4", pictures(48), codec, options=options, times=times)
    set_edits(path, *edits)
    try:
        seqrecord.convert(open_source(path), tmp_path / "records")
    except SourceError:
        assert not is_read[case[:4]]
        return
    [episode] = seqrecord.open(tmp_path / "records").episodes.values()
    images = episode.read(range(len(episode)), features=["image"])["image"]
    expected = decoded(path)[1].astype(int)  # some are encoded again
    assert images.shape == expected.shape
    assert np.abs(images - expected).mean(axis=(1, 2, 3)).max() < 8


@pytest.mark.parametrize(
    ("why", "options"),
    [
        ("open GOPs", {"g": "9", "bf": "2", "x264-params": "open-gop=1:scenecut=0"}),
        pytest.param(
            "keyframes are more than 256",
            {"g": "300", "x264-params": "scenecut=0:keyint=300"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_uncuttable_video_is_encoded_again(
    tmp_path: Path, why: str, options: dict[str, str]
) -> None:
    options = options | {"preset": "ultrafast"}
    path = write_video(tmp_path / "a.mp4", pictures(280), options=options)
    times, images = decoded(path)
    assert gops_of(path) == []
    with VideoFile(path) as file:
        for part, image in zip(read_gops(file), images, strict=True):
            assert not isinstance(part, Gop)
            assert part.reason.startswith(why)
            np.testing.assert_array_equal(part.pixels, image)
    # 200 frames fit into any GOP.
    np.testing.assert_array_equal(decode_file_gops(path, times[10:210]), images[10:210])
    assert sum(gop.num_frames for gop in gops_of(path, times[10:210])) == 200


def test_frames_of_other_codecs_are_decoded(tmp_path: Path) -> None:
    images = pictures(12)
    path = write_video(tmp_path / "a.avi", images, "mpeg4", options={"g": "5", "qscale": "2"})
    lossless = write_video(tmp_path / "b.mkv", images, "ffv1", pixels="bgr0")
    assert VideoSource(path).schema()["image"].codec[0]["codec"] == "h264"
    times, want = decoded(path)
    np.testing.assert_array_equal(decode_file_gops(path, times[4:9]), want[4:9])
    np.testing.assert_array_equal(decode_file_gops(lossless), images)


def refused(path: Path, times: npt.NDArray[np.float64] | None = None) -> SourceError:
    with pytest.raises(SourceError) as caught:
        gops_of(path, times)
    assert caught.value.file == str(path)
    return caught.value


def test_rows_without_frames(tmp_path: Path) -> None:
    path = made(tmp_path, "av1 as lerobot writes it")
    times, _ = decoded(path)
    error = refused(path, np.append(times, times[-1] + 1 / 30))
    assert "no frame of its own" in error.message
    assert error.frame == FRAMES
    apart = times.copy()
    apart[7] += 2e-4
    twice = np.insert(times, 5, times[4] + 1e-5)
    for rows, frame in ((apart, 7), (twice, 5), (times[[0, 1, 3, 2]], 3), (times - 1, 0)):
        assert refused(path, rows).frame == frame
    assert gops_of(path, np.empty(0)) == []


def test_damaged_files(tmp_path: Path) -> None:
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
    assert refused(matroska, times).message.startswith("truncated video")


def test_file_without_a_keyframe_at_the_start(tmp_path: Path) -> None:
    """Also with a codec whose packets are not copied; no decoder can decode it."""
    headless = tmp_path / "headless.mp4"
    for codec, options in (("libx264", {"g": "10", "bf": "3"}), ("mpeg4", {"g": "10"})):
        path = write_video(tmp_path / "a.mp4", pictures(FRAMES), codec, options=options)
        copy_packets(path, headless, packets=slice(2, None))
        assert "`ffmpeg -i IN -c copy OUT`" in refused(headless).message


@pytest.mark.parametrize(
    ("codec", "first", "last", "read"),
    [("libx264", 4, 12, read_gops), ("libx265", 8, 999, read_frames)],
)
def test_a_damaged_keyframe_is_no_matter_of_tolerance(
    tmp_path: Path, codec: str, first: int, last: int, read: Any
) -> None:
    options = {"g": "10", "bf": "2", "x265-params": QUIET}
    path = write_video(tmp_path / "a.mp4", pictures(20), codec, options=options)
    with av.open(str(path)) as source:
        every = [packet for packet in source.demux(source.streams.video[0]) if packet.size]
        [_, key] = [packet for packet in every if packet.is_keyframe]
        times = np.sort([float(packet.pts * packet.time_base) for packet in every])
        data = bytearray(path.read_bytes())
        last = min(last, key.size)
        data[key.pos + first : key.pos + last] = bytes(last - first)
    path.write_bytes(data)
    with VideoFile(path) as file, pytest.raises(SourceError, match="cannot be decoded") as error:
        list(read(file, times))
    assert error.value.frame in (8, 10)  # with open GOPs also the frames before it


# --- folders of video files --------------------------------------------------------------------


def images_of(source: Any, number: int, name: str = "image") -> npt.NDArray[np.uint8]:
    return decode_gops_of(source.schema()[name], source.videos(source.episodes()[number])[name])


def test_file_is_an_episode(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    first = write_video(tmp_path / "b/walk2.mp4", pictures(9), options={"g": "4"})
    ms = [0, 30, 70, 71, 200]
    second = write_video(tmp_path / "b/walk10.mkv", pictures(5), times=ms)
    (tmp_path / "b/._walk2.mp4").write_bytes(b"junk")
    source = open_source(tmp_path)
    assert [str(spec) for spec in source.schema().values()] == [
        f"image: uint8 [{HEIGHT}, {WIDTH}, 3]",
        "timestamp: float64 []",
    ]
    found = source.episodes()
    assert [(each.key, each.num_frames) for each in found] == [("b/walk2", 9), ("b/walk10", 5)]
    assert found[0].fps == 30
    np.testing.assert_array_equal(images_of(source, 0), decoded(first)[1])
    np.testing.assert_array_equal(images_of(source, 1), decoded(second)[1])
    times: list[Any] = [frame["timestamp"] for frame in source.frames(found[1])]
    np.testing.assert_allclose(times, np.array(ms) / 1000, atol=1e-9)
    alone = open_source(tmp_path, features=["image"])
    assert list(alone.frames(found[1])) == [{}] * 5


TURNS: list[tuple[tuple[int, int, int, int], Callable[[Any], Any]]] = [
    ((0, 1, -1, 0), lambda image: np.rot90(image, -1)),  # a quarter to the right
    ((0, -1, 1, 0), np.rot90),
    ((-1, 0, 0, -1), lambda image: np.rot90(image, 2)),
    ((-1, 0, 0, 1), np.fliplr),
    ((0, 1, 1, 0), lambda image: image.transpose(1, 0, 2)),
]


def test_frames_are_rotated_as_in_players(tmp_path: Path) -> None:
    """Rotated frames are encoded again."""
    root, found = tmp_path, np.empty(0)
    for number, (matrix, show) in enumerate(TURNS):
        root = tmp_path / f"{number}"
        (root / "videos").mkdir(parents=True)
        path = write_video(root / "videos/phone.mp4", pictures(9), options={"g": "4"})
        images = decoded(set_display_matrix(path, *matrix))[1]
        report = seqrecord.convert(open_source(root / "videos"), root / "records", workers=1)
        [lost] = report.inventory.left_out_data
        assert str(lost).startswith("exact pixels of image: 9 frames, h264 yuv420p encoded as h264")
        assert "the file rotates or mirrors them" in lost.reason
        wanted = np.stack([show(image) for image in images])
        with seqrecord.open(root / "records") as dataset:
            found = dataset.episodes["phone"][:]["image"]
        assert found.shape == wanted.shape
        assert np.abs(found.astype(int) - wanted).mean() < 3
    seqrecord.export.to_lerobot(root / "records", tmp_path / "lerobot")
    [exported] = (tmp_path / "lerobot").rglob("*.mp4")
    np.testing.assert_array_equal(decoded(exported)[1], found)


@pytest.mark.parametrize(
    ("codec", "pixels"), [("libx264", "yuvj420p"), ("libx265", "yuv420p10le"), ("mpeg4", "yuv420p")]
)
def test_rotated_frames_keep_their_colours(tmp_path: Path, codec: str, pixels: str) -> None:
    images = pictures(3).repeat(2, 1).repeat(2, 2)  # HEVC needs wider frames
    path = write_video(tmp_path / "phone.mp4", images, codec, pixels=pixels)
    upright = images_of(open_source(path), 0)
    found = images_of(open_source(set_display_matrix(path, 0, 1, -1, 0)), 0)
    wanted = np.rot90(upright, -1, (1, 2)).astype(int)
    assert np.abs(found - wanted).mean() < 3
    set_display_matrix(path, 1, 1, -1, 1)
    with pytest.raises(SourceError) as caught:
        open_source(path).schema()
    assert (caught.value.file, caught.value.expected) == (str(path), "a multiple of 90 degrees")


@pytest.mark.parametrize("ending", ["mkv", "mp4"])
@pytest.mark.parametrize("pixels", ["yuv420p", "yuv422p", "yuv444p"])
def test_a_range_that_only_the_container_declares(tmp_path: Path, ending: str, pixels: str) -> None:
    """The first file declares nothing, so the others have a configuration of their own."""
    (tmp_path / "videos").mkdir()
    paths = [
        write_video(
            tmp_path / f"videos/{i}.{ending}", pictures(9), pixels=pixels, options={"g": "4"}
        )
        for i in range(3)
    ]
    for path in paths[1:]:
        declare_full_range(path)
    images = [decoded(path)[1] for path in paths]
    assert np.abs(images[1].astype(int) - images[0]).mean() > 5
    seqrecord.convert(open_source(tmp_path / "videos"), tmp_path / "packed", workers=1)
    assert not seqrecord.verify(tmp_path / "packed", deep=True).problems
    for place in (tmp_path / "packed", tmp_path / "videos"):
        with seqrecord.open(place) as dataset:
            for episode, expected in zip(dataset.episodes.values(), images, strict=True):
                np.testing.assert_array_equal(episode[:]["image"], expected)
    seqrecord.export.to_lerobot(tmp_path / "packed", tmp_path / "lerobot", fps=30)
    for path, expected in zip(sorted((tmp_path / "lerobot").rglob("*.mp4")), images, strict=True):
        np.testing.assert_array_equal(decoded(path)[1], expected)


def test_frames_that_are_encoded_again_beside_others_that_declare_no_colours(
    tmp_path: Path,
) -> None:
    """A decoder would keep the colours that the encoded ones declare."""
    path = write_video(tmp_path / "a.mp4", pictures(20), options={"g": "8"})
    images = decoded(declare_full_range(path))[1]
    seqrecord.convert(open_source(path), tmp_path / "packed", workers=1)
    seqrecord.edit.trim_episodes(tmp_path / "packed", ["a"], slice(3, None))
    seqrecord.export.to_lerobot(tmp_path / "packed", tmp_path / "lerobot", fps=30)
    [exported] = (tmp_path / "lerobot").rglob("*.mp4")
    for found, expected in zip(decoded(exported)[1], images[3:], strict=True):
        assert np.abs(found.astype(int) - expected).mean() < 3
    with seqrecord.open(tmp_path / "lerobot") as dataset:
        assert dataset.num_frames == 17


@pytest.mark.parametrize(
    ("codec", "turned"), [("libx264", True), ("mpeg4", False), ("ffv1", False)]
)
def test_decoded_frames_have_the_range_of_the_container(
    tmp_path: Path, codec: str, turned: bool
) -> None:
    ending = "mp4" if turned else "mkv"
    path = declare_full_range(write_video(tmp_path / f"a.{ending}", pictures(3), codec))
    expected = decoded(path)[1]
    if turned:
        set_display_matrix(path, 0, 1, -1, 0)
        expected = np.rot90(expected, -1, (1, 2))
    np.testing.assert_array_equal(images_of(open_source(path), 0), expected)


def test_packets_that_readers_cannot_decode_are_not_committed(tmp_path: Path) -> None:
    """One frame of each packed file is decoded, and one of each kind of stream that is indexed."""
    (tmp_path / "videos").mkdir()
    for i in range(5):
        path = tmp_path / f"videos/{i}.mp4"
        write_video(path, pictures(9), options={"g": "4", "refs": "1" if i < 4 else "4"})
    for i in (1, 4):  # the second one is alone of its kind
        overwrite_keyframes(tmp_path / f"videos/{i}.mp4")
    source = open_source(tmp_path / "videos")
    for in_place, bad in ((False, ["1", "4"]), (True, ["4"])):
        options: dict[str, Any] = {"in_place": in_place, "workers": 1}
        with pytest.raises(SourceError, match=rf"cannot decode video packets.*episode: {bad[0]};"):
            seqrecord.convert(source, tmp_path / f"all{in_place}", **options)
        report = seqrecord.convert(
            source, tmp_path / f"good{in_place}", **options, skip_bad_episodes=True
        )
        assert [episode.info.key for episode in report.bad] == bad


@pytest.mark.parametrize("checks", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("matrix", [8, 14])  # YCgCo, ICtCp
def test_frames_without_a_conversion_are_not_committed(
    tmp_path: Path, matrix: int, in_place: bool, checks: bool
) -> None:
    """The packets decode; no reader can make RGB of this matrix."""
    (tmp_path / "videos").mkdir()
    plain = write_video(tmp_path / "plain.mkv", pictures(9), options={"g": "4"})
    shutil.copy(plain, tmp_path / "videos/a.mkv")
    copy_packets(plain, tmp_path / "videos/b.mkv", matrix=matrix)
    options: dict[str, Any] = {"in_place": in_place, "check_video": checks, "workers": 1}
    source = open_source(tmp_path / "videos")
    with pytest.raises(SourceError, match=r"cannot convert a video frame.*episode: b; feature"):
        seqrecord.convert(source, tmp_path / "refused", **options)
    seqrecord.convert(source, tmp_path / "skipped", **options, skip_bad_episodes=True)
    with seqrecord.open(tmp_path / "skipped") as dataset:
        assert [*dataset.episodes] == ["a"]
        np.testing.assert_array_equal(dataset.episodes["a"][:]["image"], decoded(plain)[1])
    with pytest.raises(SourceError, match="cannot convert a video frame"):
        seqrecord.open(tmp_path / "videos")


def test_copied_packets_keep_their_codec(tmp_path: Path) -> None:
    """Another codec could not decode the packets; the same codec with another quality can."""
    (tmp_path / "videos").mkdir()
    path = write_video(tmp_path / "videos/walk.mp4", pictures(4))
    source = open_source(tmp_path / "videos", features=["image"])
    lossless, ffv1 = tmp_path / "lossless", {"image": "ffv1"}
    with seqrecord.SeqRecordWriter(lossless, codecs=ffv1) as writer, writer.episode("e") as episode:
        for frame in np.zeros((4, HEIGHT, WIDTH, 3), np.uint8):
            episode.append({"image": frame})
    options: dict[Path, Any] = {lossless: {"mode": "append"}, tmp_path / "new": {"codecs": ffv1}}
    for place, more in options.items():
        seqrecord.convert(source, place, workers=1, **more)
        with seqrecord.open(place) as dataset:
            np.testing.assert_array_equal(dataset.episodes["walk"][:]["image"], decoded(path)[1])
    with pytest.raises(SchemaError, match=r"source's video.*feature: image; .*got: .*av1"):
        seqrecord.convert(source, tmp_path / "lossy", workers=1, codecs={"image": "av1"})
    codecs = {"image": f"{source.schema()['image'].codec[0]['codec']}:quality=9"}
    seqrecord.convert(source, tmp_path / "records", workers=1, codecs=codecs)
    with seqrecord.open(tmp_path / "records") as dataset:
        np.testing.assert_array_equal(dataset.episodes["walk"][:]["image"], decoded(path)[1])


def test_files_as_cameras(tmp_path: Path) -> None:
    for key in ("one", "two"):
        (tmp_path / key).mkdir()
        for camera in ("left", "right"):
            write_video(tmp_path / key / f"{camera}.mp4", pictures(6, len(key + camera)))
    source = open_source(tmp_path, by_folder=True)
    assert list(source.schema()) == ["left", "right", "timestamp"]
    assert [each.key for each in source.episodes()] == ["one", "two"]
    want = decoded(tmp_path / "two/right.mp4")[1]
    np.testing.assert_array_equal(images_of(source, 1, "right"), want)
    (tmp_path / "two/right.mp4").unlink()
    lacks = r"lacks a camera's video; .*episode: two; feature: right"
    with pytest.raises(SourceError, match=lacks):
        images_of(open_source(tmp_path, by_folder=True), 1, "right")
    write_video(tmp_path / "two/left.mkv", pictures(2))
    with pytest.raises(SourceError, match=r"videos of the same name; .*left\.mp4"):
        open_source(tmp_path, by_folder=True).episodes()


def test_damaged_files_of_a_folder(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", pictures(4))
    write_video(tmp_path / "b.mp4", pictures(4), "libvpx-vp9")
    (tmp_path / "c.mp4").write_bytes(b"no video")
    source = open_source(tmp_path)
    assert [each.num_frames for each in source.episodes()] == [4, 4, 1]
    np.testing.assert_array_equal(images_of(source, 1), decoded(tmp_path / "b.mp4")[1])
    write_video(tmp_path / "b.mp4", pictures(4)[:, : HEIGHT // 2])
    with pytest.raises(SourceError, match=r"another size than the first one; .*episode: b"):
        images_of(open_source(tmp_path), 1)
    for read in (images_of, lambda source, number: list(source.frames(source.episodes()[number]))):
        with pytest.raises(SourceError, match=r"unsupported video.*episode: c"):
            read(source, 2)
