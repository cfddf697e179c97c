"""LeRobot's videos: the frames that lerobot gives for each row, or a refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import seqrecord
from seqrecord import open_source
from seqrecord.errors import SourceError
from seqrecord.sources import LeftOut, inventory_of
from seqrecord.writing.convert_jobs import KEPT_COST, frame_work
from tests.lerobot_data import episodes
from tests.lerobot_video_data import CAMERAS, LENGTHS, block_means, unpack, with_video
from tests.test_sources_lerobot import at, column, edit_info, rewrite
from tests.test_sources_lerobot import unpack as unpack_rows
from tests.video_file_data import (
    HAS_TABLES,
    HEIGHT,
    WIDTH,
    hide_first,
    of_gops,
    pictures,
    write_video,
)

VIDEO = CAMERAS[0]
ROWS = tuple(map(len, episodes()))


def frames_of(source: Any, number: int, name: str = VIDEO) -> npt.NDArray[np.uint8]:
    """The frames of one episode's video."""
    return of_gops(source.schema()[name], source.videos(source.episodes()[number])[name])


@pytest.mark.parametrize("version", ["v3", "v21"])
def test_what_lerobot_gives_for_each_row(tmp_path: Path, version: str) -> None:
    root = unpack(tmp_path, f"lerobot_video_{version}")
    source = open_source(root)
    assert [str(spec) for spec in source.schema().values()][:3] == [
        f"{CAMERAS[0]}: uint8 [32, 48, 3]",
        f"{CAMERAS[1]}: uint8 [32, 48, 3]",
        "observation.state: float32 [2]",
    ]
    for name in CAMERAS:
        spec = source.schema()[name]
        assert spec.kind == "image"
        assert spec.codec[0].items() >= {"codec": "av1", "pixel_format": "yuv420p"}.items()
    with np.load(root / "frames.npz") as wanted:
        for name in CAMERAS:
            start = 0
            for number, length in enumerate(LENGTHS):
                want = wanted[name][start : start + length]
                start += length
                got = block_means(frames_of(source, number, name))
                # Other builds of FFmpeg may round colours differently, by less than 1 each.
                np.testing.assert_allclose(got, want, atol=1)
                assert np.abs(np.diff(want, axis=0)).max() > 5  # so it is no other frame
    frames: list[Any] = list(source.frames(source.episodes()[2]))
    assert [frame["observation.state"].tolist() for frame in frames] == [[2, i] for i in range(7)]
    assert VIDEO not in frames[0]


@pytest.mark.parametrize("version", ["v3", "v21"])
def test_h264_in_the_same_layout(tmp_path: Path, version: str) -> None:
    root = unpack_rows(tmp_path, version)
    images = with_video(root, ROWS)
    source = open_source(root)
    parts = np.split(images, np.cumsum(ROWS)[:-1])
    for number in (2, 0, 0, 1, 2):
        np.testing.assert_array_equal(frames_of(source, number), parts[number])
    assert source.episodes()[0].metadata.get("names", {}).get(VIDEO) is None


def test_packing(tmp_path: Path) -> None:
    root = unpack_rows(tmp_path)
    images = with_video(root, ROWS)
    seqrecord.convert(open_source(root), tmp_path / "records", workers=1)
    with seqrecord.open(tmp_path / "records") as dataset:
        for number, part in enumerate(np.split(images, np.cumsum(ROWS)[:-1])):
            got = dataset.episodes[f"episode_{number:06d}"][:]
            np.testing.assert_array_equal(got[VIDEO], part)
            np.testing.assert_array_equal(
                got["action"], [frame["action"] for frame in episodes()[number]]
            )


def test_videos_that_are_left_out(tmp_path: Path) -> None:
    root = unpack_rows(tmp_path)
    with_video(root, ROWS)
    for source in (open_source(root, without_video=True), open_source(root, features=["action"])):
        assert VIDEO not in source.schema()
        assert source.videos(source.episodes()[0]) == {}  # type: ignore[attr-defined]
    alone = open_source(root, features=[VIDEO])
    assert len(frames_of(alone, 2)) == ROWS[2]
    assert list(alone.frames(alone.episodes()[1])) == [{}] * ROWS[1]


def refused(root: Path, number: int, **options: Any) -> SourceError:
    source = open_source(root, **options)
    with pytest.raises(SourceError) as caught:
        frames_of(source, number)
    assert caught.value.episode == f"episode_{number:06d}"
    assert caught.value.feature == VIDEO
    return caught.value


def test_fewer_frames_than_rows(tmp_path: Path) -> None:
    root = unpack_rows(tmp_path)
    with_video(root, [5, 3, 6])
    error = refused(root, 2)
    assert error.frame == 6
    assert "without a frame of its own" in error.message
    assert len(frames_of(open_source(root), 1)) == 3


def test_videos_that_are_broken(tmp_path: Path) -> None:
    root = unpack_rows(tmp_path, "v21")
    with_video(root, ROWS)
    folder = root / f"videos/chunk-000/{VIDEO}"
    path = folder / "episode_000001.mp4"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "not a video" in refused(root, 1).message
    path.unlink()
    assert refused(root, 1).got == "No such file or directory"
    write_video(path, pictures(3)[:, : HEIGHT // 2], rate=10)
    error = refused(root, 1)
    assert "differs from the first one" in error.message
    assert error.got == f"h264 yuv420p ({HEIGHT // 2}, {WIDTH})"
    path.write_bytes(whole)
    assert len(frames_of(open_source(root), 1)) == 3
    hide_first(path, 2, 10)
    assert refused(root, 1).frame == 1
    for each in folder.iterdir():
        each.write_bytes(b"")
    with pytest.raises(SourceError, match=r"not a video .*episode: episode_000000"):
        open_source(root).schema()


def test_a_tolerance(tmp_path: Path) -> None:
    root = unpack_rows(tmp_path)
    images = with_video(root, ROWS)
    rows = root / "data/chunk-000/file-000.parquet"
    rewrite(rows, column("timestamp", at(6, 0.11)))
    assert refused(root, 1).frame == 1
    rewrite(rows, column("timestamp", lambda times: [time + 0.003 for time in times]))
    assert refused(root, 0).frame == 0
    np.testing.assert_array_equal(frames_of(open_source(root, tolerance=0.01), 0), images[:5])


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"video_path": None}, "video_path: not as it must be"),
        ({"video_path": "/{video_key}.mp4"}, "video_path: .*a path below the dataset"),
        ({"video_path": "{video_key:03d}.mp4"}, "video_key: .*a number for video_path"),
        ({"video_path": "{video_key.x}.mp4"}, "video_path: not as it must be"),
    ],
)
def test_paths_of_videos(tmp_path: Path, changes: dict[str, Any], match: str) -> None:
    root = unpack_rows(tmp_path)
    with_video(root, ROWS)
    edit_info(root, **changes)
    with pytest.raises(SourceError, match=match):
        open_source(root).episodes()


def test_times_in_files_that_mean_nothing(tmp_path: Path) -> None:
    root = unpack_rows(tmp_path)
    with_video(root, ROWS)
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    begin = f"videos/{VIDEO}/from_timestamp"
    for value in (-1.0, float("nan"), None):
        rewrite(path, column(begin, at(1, value)))
        source = open_source(root)
        with pytest.raises(SourceError, match="from_timestamp: not as it must be") as caught:
            source.videos(source.episodes()[1])  # type: ignore[attr-defined]
        assert caught.value.episode == "episode_000001"
    rewrite(path, lambda table: table.drop_columns(begin))
    with pytest.raises(SourceError) as caught:
        open_source(root).episodes()
    assert caught.value.expected == begin


def test_video_that_is_kept_is_little_work(tmp_path: Path) -> None:
    schema = open_source(unpack(tmp_path, "lerobot_video_v3")).schema()
    videos = sum(schema[name].nbytes for name in CAMERAS)
    assert videos > 100 * KEPT_COST
    assert frame_work(schema) == schema.frame_nbytes - videos + videos // KEPT_COST


@pytest.mark.skipif(not HAS_TABLES, reason="PyAV 17 reads the tables of a video")
@pytest.mark.parametrize("version", ["v3", "v21"])
def test_frames_of_no_episode_are_in_the_inventory(tmp_path: Path, version: str) -> None:
    root = unpack_rows(tmp_path, version)
    with_video(root, [*ROWS[:-1], ROWS[-1] + 4])
    frames = LeftOut(f"frames of {VIDEO}", 4, "in no episode", "frames")
    assert frames in inventory_of(open_source(root)).left_out
    assert len(frames_of(open_source(root), 2)) == ROWS[2]


def test_an_episode_that_begins_in_the_frames_of_another(tmp_path: Path) -> None:
    root = unpack_rows(tmp_path)
    with_video(root, ROWS)
    change = column(f"videos/{VIDEO}/from_timestamp", at(1, 0.4))
    rewrite(root / "meta/episodes/chunk-000/file-000.parquet", change)
    with pytest.raises(SourceError, match="shares frames of its video with the next") as caught:
        frames_of(open_source(root), 0)
    assert (caught.value.episode, caught.value.feature) == ("episode_000000", VIDEO)
    assert caught.value.got == "5 rows to 0.400 s"
