"""Joined datasets of which some are originals in place."""

from __future__ import annotations

import itertools
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import FrameCache, SeqRecordPipe
from seqrecord.errors import JoinError
from tests.kit.datasets import columns, write_dataset
from tests.kit.lerobot_video_data import unpack
from tests.kit.tiny import check_frames, merged_frames, read_all
from tests.kit.video_file_data import pictures, write_video

Frames = dict[str, list[dict[str, Any]]]


@pytest.fixture
def original(tmp_path: Path) -> Path:
    return unpack(tmp_path / "original", "lerobot_video_v3")


def write_progress(path: Path, source: Path) -> Frames:
    """Derive the number of each frame from any of its features; returns the numbers."""
    with seqrecord.open(source) as dataset:
        features = [*dataset.features][:1]
    numbers = itertools.count()

    def number(_: Any) -> Any:
        return {"progress": np.array([next(numbers)], "f4")}

    seqrecord.derive(source, number, path, features=features)
    return read_all(path)


def test_values_join_an_original(original: Path, tmp_path: Path) -> None:
    progress = write_progress(tmp_path / "progress", original)
    plain = read_all(original)
    joined = merged_frames(plain, progress)
    check_frames(read_all(original, join=[tmp_path / "progress"]), joined)
    moved = tmp_path / "moved"
    shutil.copytree(original, moved, copy_function=shutil.copyfile)  # with other times
    check_frames(read_all(moved, join=[tmp_path / "progress"]), joined)


def test_values_of_other_features_do_not_join_by_key(original: Path, tmp_path: Path) -> None:
    """Both derived from an original, whose numbers may have changed between the two."""
    with seqrecord.open(original) as dataset:
        names = [*dataset.features][:2]
    for place, name in zip("ab", names, strict=True):
        seqrecord.derive(
            original,
            lambda batch, place=place, name=name: {place: np.zeros((len(batch[name]), 1), "f4")},
            tmp_path / place,
            features=[name],
        )
    with pytest.raises(JoinError) as error:
        seqrecord.open(tmp_path / "a", join=[tmp_path / "b"])
    assert error.value.got == f"none of its features is left: {names[1]}"
    values = read_all(original, join=[tmp_path / "a", tmp_path / "b"])
    assert all({"a", "b"} <= frame.keys() for frames in values.values() for frame in frames)


def test_an_original_joins_a_dataset(original: Path, tmp_path: Path) -> None:
    plain = read_all(original)
    progress = {
        key: columns(progress=np.arange(len(episode), dtype="f4")) for key, episode in plain.items()
    }
    write_dataset(tmp_path / "progress", progress)
    joined = read_all(tmp_path / "progress", join=[original])
    check_frames(joined, merged_frames(progress, plain))


def test_videos_of_two_originals(tmp_path: Path) -> None:
    """Both have pages that refer to external files, in lists of their own."""
    for name, first in (("front", 0), ("wrist", 7)):
        (tmp_path / name).mkdir()
        for number in range(2):
            path = tmp_path / name / f"clip{number}.mp4"
            write_video(path, pictures(12 + number, first + 30 * number))
    with seqrecord.open(tmp_path / "wrist", features=["image"]) as wrist:
        camera = wrist.renamed({"image": "wrist"})
        with seqrecord.open(tmp_path / "front", join=[camera]) as dataset:
            front_frames, wrist_frames = read_all(tmp_path / "front"), read_all(tmp_path / "wrist")
            wrists = {k: [{"wrist": f["image"]} for f in e] for k, e in wrist_frames.items()}
            expected = merged_frames(front_frames, wrists)
            for copy in (dataset, pickle.loads(pickle.dumps(dataset))):
                frames = {k: [e[i] for i in range(len(e))] for k, e in copy.episodes.items()}
                check_frames(frames, expected)
            cache = FrameCache(tmp_path / "cache", "100MiB")
            pipes = [
                SeqRecordPipe(dataset, clip_len=3, features=["image", "wrist"], frame_cache=cache)
                for _ in range(2)
            ]
            for pipe in pipes:
                for clip in pipe:
                    episode, start = expected[clip["episode"]], clip["start"]
                    for name in ("image", "wrist"):
                        want = [frame[name] for frame in episode[start : start + 3]]
                        np.testing.assert_array_equal(clip[name], want)
            assert pipes[1].stats()["frames_from_cache"]


def replace_video(folder: Path) -> None:
    write_video(folder / "clip.mp4", pictures(20, first=60))


def shorten_video(folder: Path) -> None:
    write_video(folder / "clip.mp4", pictures(19))


@pytest.mark.parametrize("change", [replace_video, shorten_video])
def test_a_changed_original_is_refused(tmp_path: Path, change: Callable[[Path], None]) -> None:
    folder = tmp_path / "videos"
    folder.mkdir()
    write_video(folder / "clip.mp4", pictures(20))
    write_progress(tmp_path / "progress", folder)
    assert read_all(folder, join=[tmp_path / "progress"])["clip"][3]["progress"] == 3
    change(folder)
    with pytest.raises(JoinError) as error:
        seqrecord.open(folder, join=[tmp_path / "progress"])
    assert error.value.episode == "clip"
