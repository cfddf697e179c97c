"""Folders of video files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import seqrecord
from seqrecord import open_source
from seqrecord.codecs.video.config import VideoConfig
from seqrecord.errors import SchemaError, SourceError
from tests.video_file_data import (
    HEIGHT,
    WIDTH,
    decoded,
    of_gops,
    pictures,
    with_matrix,
    write_video,
)


def images_of(source: Any, number: int, name: str = "image") -> npt.NDArray[np.uint8]:
    return of_gops(source.schema()[name], source.videos(source.episodes()[number])[name])


def test_a_file_is_an_episode(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("matrix", "show"),
    [
        ((0, 1, -1, 0), lambda image: np.rot90(image, -1)),  # a quarter to the right
        ((0, -1, 1, 0), np.rot90),
        ((-1, 0, 0, -1), lambda image: np.rot90(image, 2)),
        ((-1, 0, 0, 1), np.fliplr),
        ((0, 1, 1, 0), lambda image: image.transpose(1, 0, 2)),
    ],
)
def test_frames_are_turned_as_players_turn_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, matrix: Any, show: Any
) -> None:
    (tmp_path / "videos").mkdir()
    path = write_video(tmp_path / "videos/phone.mp4", pictures(9), options={"g": "4"})
    images = decoded(with_matrix(path, *matrix))[1]
    source = open_source(tmp_path / "videos")
    seqrecord.convert(source, tmp_path / "records", workers=1)
    assert "phone.mp4: re-encoded 4 frames: the file rotates" in caplog.text
    wanted = np.stack([show(image) for image in images])
    with seqrecord.open(tmp_path / "records") as dataset:
        found = dataset.episodes["phone"][:]["image"]
    assert found.shape == wanted.shape
    assert np.abs(found.astype(int) - wanted).mean() < 3  # it is encoded anew
    seqrecord.export.to_lerobot(tmp_path / "records", tmp_path / "lerobot")
    [exported] = (tmp_path / "lerobot").rglob("*.mp4")
    np.testing.assert_array_equal(decoded(exported)[1], found)


@pytest.mark.parametrize(
    ("codec", "pixels"), [("libx264", "yuvj420p"), ("libx265", "yuv420p10le"), ("mpeg4", "yuv420p")]
)
def test_turned_frames_keep_their_colours(tmp_path: Path, codec: str, pixels: str) -> None:
    images = pictures(3).repeat(2, 1).repeat(2, 2)  # or they are too narrow for HEVC
    path = write_video(tmp_path / "phone.mp4", images, codec, pixels=pixels)
    upright = images_of(open_source(path), 0)
    found = images_of(open_source(with_matrix(path, 0, 1, -1, 0)), 0)
    wanted = np.rot90(upright, -1, (1, 2)).astype(int)
    assert np.abs(found - wanted).mean() < 3
    with_matrix(path, 1, 1, -1, 1)
    with pytest.raises(SourceError) as caught:
        open_source(path).schema()
    assert (caught.value.file, caught.value.expected) == (str(path), "a multiple of 90 degrees")


@pytest.mark.parametrize("appends", [False, True])
def test_video_that_is_kept_has_its_own_codec(tmp_path: Path, appends: bool) -> None:
    """Packets would be stored under a codec that does not decode them."""
    (tmp_path / "videos").mkdir()
    write_video(tmp_path / "videos/walk.mp4", pictures(4))
    source = open_source(tmp_path / "videos", features=["image"])
    there, codecs = tmp_path / "records", {"image": "ffv1"}
    if appends:
        with (
            seqrecord.SeqRecordWriter(there, codecs=codecs) as writer,
            writer.episode("other") as episode,
        ):
            for frame in np.zeros((4, HEIGHT, WIDTH, 3), np.uint8):
                episode.append({"image": frame})
    more: Any = {"mode": "append"} if appends else {"codecs": codecs}
    with pytest.raises(
        SchemaError, match=r"source's video.*feature: image; expected: .*got: .*ffv1"
    ):
        seqrecord.convert(source, there, workers=1, **more)


def test_video_that_is_kept_may_be_of_another_quality(tmp_path: Path) -> None:
    """What encodes otherwise decodes the same."""
    (tmp_path / "videos").mkdir()
    path = write_video(tmp_path / "videos/walk.mp4", pictures(4))
    source = open_source(tmp_path / "videos", features=["image"])
    codec = VideoConfig.from_json(source.schema()["image"].codec[0]).codec
    seqrecord.convert(
        source, tmp_path / "records", workers=1, codecs={"image": f"{codec}:quality=9"}
    )
    with seqrecord.open(tmp_path / "records") as dataset:
        np.testing.assert_array_equal(dataset.episodes["walk"][:]["image"], decoded(path)[1])


def test_files_that_are_cameras(tmp_path: Path) -> None:
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
    with pytest.raises(
        SourceError, match=r"lacks a camera's video; .*episode: two; feature: right"
    ):
        images_of(open_source(tmp_path, by_folder=True), 1, "right")
    write_video(tmp_path / "two/left.mkv", pictures(2))
    with pytest.raises(SourceError, match=r"videos of the same name; .*left\.mp4"):
        open_source(tmp_path, by_folder=True).episodes()


def test_broken_files(tmp_path: Path) -> None:
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
