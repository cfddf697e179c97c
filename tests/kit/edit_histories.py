"""Random histories of edits and writes, compared with a model."""

from __future__ import annotations

import copy
import logging
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import seqrecord
from seqrecord import SeqRecordWriter, edit
from tests.kit.datasets import write_dataset

Content = dict[str, dict[str, list[float]]]
"""Values by episode key and feature."""


@dataclass
class History:
    """A dataset, the content that it must have, and the content of each version."""

    path: Path
    rng: random.Random
    content: Content = field(default_factory=dict)
    versions: dict[str, tuple[Content, bool]] = field(default_factory=dict)  # and statistics
    number: int = 0

    def value(self) -> float:
        self.number += 1
        return float(self.number)

    def key(self) -> str:
        return self.rng.choice(sorted(self.content))

    def features(self) -> set[str]:
        return set(next(iter(self.content.values())))

    def version(self) -> str:
        with seqrecord.open(self.path) as dataset:
            return dataset.version

    # Steps: each changes the dataset and the model.

    def append(self) -> None:
        key, value = f"e{self.number}", self.value()
        names = self.features() or {"x"}
        with (
            SeqRecordWriter(self.path, mode="append", chunk_frames=2, max_file_size=3000) as writer,
            writer.episode(key) as episode,
        ):
            for i in range(3):
                episode.append({name: np.float32(value + i) for name in names})
        self.content[key] = {name: [value, value + 1, value + 2] for name in names}

    def add(self) -> None:
        value, name = self.value(), self.rng.choice("qz")
        overwrites = name in self.features()
        edit.add_feature(
            self.path,
            name,
            lambda episode: [np.float32(value)] * len(episode),
            overwrite=overwrites,
        )
        for values in self.content.values():
            values[name] = [value] * len(values["x"])

    def drop(self) -> None:
        if names := sorted(self.features() - {"x"}):
            edit.drop_features(self.path, names[0])
            for values in self.content.values():
                del values[names[0]]

    def rename(self) -> None:
        old, new = self.key(), f"r{self.value():g}"
        edit.rename_episodes(self.path, {old: new})
        self.content[new] = self.content.pop(old)

    def delete(self) -> None:
        if len(self.content) > 1:
            key = self.key()
            edit.delete_episodes(self.path, [key])
            del self.content[key]

    def trim(self) -> None:
        key = self.key()
        if len(self.content[key]["x"]) > 1:
            edit.trim_episodes(self.path, [key], slice(1, None))
            for values in self.content[key].values():
                del values[0]

    def statistics(self) -> None:
        seqrecord.add_statistics(self.path)

    def reindex(self) -> None:
        seqrecord.reindex(self.path)

    def rewrite(self) -> None:
        edit.rewrite_files(self.path, min_unused=0.01)

    def clean(self) -> None:
        edit.clean(self.path, older_than=-1, keep_versions=10)

    def merge(self) -> None:
        target = self.path.with_name(f"{self.path.name}-m")
        edit.merge_datasets([self.path], target)
        self.path = target
        self.versions.clear()

    def restore(self) -> None:
        kept = [item.id for item in edit.list_versions(self.path)]
        versions = [version for version in kept if version in self.versions]
        if not versions:
            return
        version = self.rng.choice(versions)
        edit.restore_version(self.path, version)
        content, has_statistics = self.versions[version]
        self.content = copy.deepcopy(content)
        with seqrecord.open(self.path) as dataset:
            assert not has_statistics or "x" in dataset.statistics

    def check(self) -> None:
        actual = content_of(self.path)
        assert actual == self.content
        with seqrecord.open(self.path) as dataset:
            self.versions[dataset.version] = copy.deepcopy(actual), "x" in dataset.statistics
            if "x" in dataset.statistics:
                values = [value for item in actual.values() for value in item["x"]]
                assert dataset.statistics["x"].mean == pytest.approx(np.mean(values))
        assert seqrecord.verify(self.path).ok

    def check_without_manifest(self) -> None:
        copied = self.path.with_name("copied")
        shutil.copytree(self.path, copied)
        (copied / "manifest.json").unlink()
        seqrecord.reindex(copied)
        assert content_of(copied) == self.content
        shutil.rmtree(copied)


def content_of(path: Path) -> Content:
    with seqrecord.open(path) as dataset:
        return {
            key: {name: episode[:][name].tolist() for name in dataset.features}
            for key, episode in dataset.episodes.items()
        }


STEPS: tuple[Callable[[History], None], ...] = (
    *(History.append, History.add, History.drop, History.rename, History.delete, History.trim),
    *(History.statistics, History.reindex, History.rewrite, History.clean, History.merge),
    *(History.restore, History.restore, History.add, History.append),
)


def run_history(path: Path, seed: int, num_steps: int) -> None:
    history = History(path, random.Random(seed))
    write_dataset(path, {"e0": [{"x": np.float32(i)} for i in range(3)]})
    history.content, history.number = {"e0": {"x": [0.0, 1.0, 2.0]}}, 10
    history.check()
    for _ in range(num_steps):
        step = history.rng.choice(STEPS)
        logging.getLogger("seqrecord").info("step %s", step.__name__)
        step(history)
        history.check()
    history.check_without_manifest()
