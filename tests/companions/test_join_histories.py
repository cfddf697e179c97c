"""Random edits of a dataset between the writing of a companion and their join."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import SeqRecordWriter, edit
from seqrecord.companions.episode_identity import episode_identity
from seqrecord.errors import JoinError
from tests.kit.datasets import columns, write_dataset, write_episodes


class History:
    """A dataset whose frames have unique numbers `id`, and companions with ten times as much."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self.path, self.number, self.versions = folder / "0", 0, list[str]()
        write_dataset(self.path, {f"e{i}": self.frames() for i in range(4)}, chunk_frames=3)

    def frames(self) -> list[dict[str, Any]]:
        length = self.random.randint(1, 14)
        first, self.number = self.number, self.number + length
        ids = np.arange(first, first + length, dtype="<i4")
        images = np.random.default_rng(first).integers(0, 255, (length, 20, 30), np.uint8)
        return columns(id=ids, image=images, extra=ids + 7)

    def keys(self) -> dict[str, int]:
        with seqrecord.open(self.path) as dataset:
            return {key: len(episode) for key, episode in dataset.episodes.items()}

    def derive(self) -> tuple[Path, set[int]]:
        """Write a companion of the present episodes; returns it and its ids."""
        path, ids = self.folder / f"companion{self.random.random()}", set[int]()
        with seqrecord.open(self.path) as dataset, SeqRecordWriter(path, chunk_frames=4) as writer:
            for number, (key, episode) in enumerate(dataset.episodes.items()):
                identity = episode_identity(dataset, number)
                with writer.episode(key, metadata={"derived_from": identity}) as values:
                    for frame in episode[:]["id"].tolist():
                        values.append({"value": np.float32(10 * frame)})
                        ids.add(frame)
        return path, ids

    # Edits

    def append(self) -> None:
        with SeqRecordWriter(self.path, mode="append", chunk_frames=3) as writer:
            key, frames = f"n{self.number}", self.frames()
            names = [n for n in frames[0] if n in seqrecord.open(self.path).features]
            write_episodes(writer, {key: [{n: frame[n] for n in names} for frame in frames]})

    def trim(self) -> None:
        key, length = self.random.choice(sorted(self.keys().items()))
        start = self.random.randrange(length)
        edit.trim_episodes(self.path, [key], slice(start, self.random.randint(start + 1, length)))

    def delete(self) -> None:
        if len(keys := self.keys()) > 1:
            edit.delete_episodes(self.path, [self.random.choice(sorted(keys))])

    def rename(self) -> None:
        keys = sorted(self.keys())  # exchanged, so that no episode gets the key of a deleted one
        edit.rename_episodes(self.path, dict(zip(keys, keys[1:] + keys[:1], strict=True)))

    def rewrite(self) -> None:
        edit.rewrite_files(self.path, min_unused=0.01)
        edit.clean(self.path, older_than=0, keep_versions=10)

    def restore(self) -> None:
        versions = [version.id for version in edit.list_versions(self.path) if version.is_whole]
        edit.restore_version(self.path, self.random.choice(versions))

    def drop(self) -> None:
        if "extra" in seqrecord.open(self.path).features:
            edit.drop_features(self.path, "extra")

    def merge(self) -> None:
        target = self.folder / f"merged{self.number}-{self.random.random()}"
        edit.merge_datasets([self.path], target, prefixes=["m/"])
        self.path = target


STEPS: list[Callable[[History], None]] = [
    *(History.append, History.trim, History.trim, History.delete, History.rename),
    *(History.rewrite, History.restore, History.drop),
]


def check_join(history: History, companion: Path, ids: set[int]) -> None:
    with seqrecord.open(history.path) as plain:
        expected = {key: episode[:]["id"].tolist() for key, episode in plain.episodes.items()}
    with seqrecord.open(history.path, join=[companion], missing="pad") as dataset:
        assert [*dataset.episodes] == [*expected]
        for key, episode in dataset.episodes.items():
            for number, frame in enumerate(expected[key]):
                values = episode[number]
                assert values["id"] == frame
                assert ("value" in values) == (frame in ids), (key, number)
                assert values.get("value", 10 * frame) == 10 * frame
    with_all = [key for key, frames in expected.items() if ids.intersection(frames)]
    if len(with_all) < len(expected):
        with pytest.raises(JoinError):
            seqrecord.open(history.path, join=[companion])
    if with_all:
        with seqrecord.open(history.path, join=[companion], missing="drop") as dataset:
            assert [*dataset.episodes] == with_all


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 60))]
)
def test_values_stay_with_their_frames(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path, seed)
    for _ in range(history.random.randint(0, 2)):
        history.random.choice(STEPS)(history)
    companion, ids = history.derive()
    for _ in range(history.random.randint(1, 5)):
        history.random.choice(STEPS)(history)
    check_join(history, companion, ids)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_values_stay_with_copied_frames(tmp_path: Path, seed: int) -> None:
    """Merged episodes have other uids, and cut pages: those without a whole page are refused."""
    history = History(tmp_path, seed)
    companion, _ = history.derive()
    for _ in range(history.random.randint(0, 3)):
        history.random.choice(STEPS)(history)
    history.merge()
    for _ in range(history.random.randint(0, 2)):
        history.random.choice(STEPS)(history)
    with seqrecord.open(history.path) as plain:
        expected = {key: episode[:]["id"].tolist() for key, episode in plain.episodes.items()}
    try:
        dataset = seqrecord.open(history.path, join=[companion], missing="pad")
    except JoinError:
        return
    for key, episode in dataset.episodes.items():
        for number, frame in enumerate(expected[key]):
            assert episode[number].get("value", 10 * frame) == 10 * frame
