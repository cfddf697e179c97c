"""Loads of raw chunks: of few frames only slices are read, whole chunks several at a time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import seqrecord
from seqrecord import SeqRecordWriter
from seqrecord.engine.buffers import GroupNeeds, HostBuffers, Needs
from seqrecord.engine.loading import ChunkLoader
from seqrecord.engine.stats import EngineStats
from seqrecord.engine.stores import Load
from seqrecord.errors import ChecksumError
from seqrecord.reading.frames import ArraySpec
from seqrecord.storage.local import LocalStorage
from seqrecord.storage.ranges import ByteRange
from tests.datasets import damage


def sound(episode: int) -> npt.NDArray[np.int16]:
    return np.random.default_rng(episode).integers(-9, 9, (100, 1600), np.int16)


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chunk of 100 frames an episode, of which few are worth reading parts."""
    path = tmp_path_factory.mktemp("sounds") / "records"
    with SeqRecordWriter(path, codecs="raw") as writer:
        for number in range(5):
            with writer.episode(str(number)) as episode:
                for frame, samples in enumerate(sound(number)):
                    episode.append({"sound": samples, "id": np.array([number, frame])})
    return path


class Job:
    """Loads of a dataset of `sounds` that are done together, into an arena."""

    def __init__(self, dataset: Any, step: int, num_rows: int) -> None:
        specs = {n: ArraySpec(s.dtype, s.shape) for n, s in dataset.features.items()}
        needs = Needs((GroupNeeds(specs, num_rows),), specs, dict.fromkeys(specs, 1), 1, 1)
        buffers = HostBuffers(needs)
        self.arena = buffers.arenas[0]
        self.stats = EngineStats()
        self._loader = ChunkLoader(dataset, buffers, {0: step}, 0, None, 1, self.stats)
        self._step = step

    def check(self, wanted: list[tuple[int, int, int]], rows: list[npt.NDArray[np.int64]]) -> None:
        """Load so many frames of episodes, from one on, into these rows."""
        loads = [Load(0, i, i, e, e, first, n) for i, (e, first, n) in enumerate(wanted)]
        self._loader(loads, self.arena, np.concatenate(rows))
        for (episode, first, count), some in zip(wanted, rows, strict=True):
            frames = first + np.arange(count) * self._step
            assert np.array_equal(self.arena["sound"][some], sound(episode)[frames])
            assert np.array_equal(self.arena["id"][some], [(episode, f) for f in frames.tolist()])


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("step", [1, 16, 33])
def test_of_few_frames_only_slices_are_read(sounds: Path, step: int, verify: bool) -> None:
    rng = np.random.default_rng(step)
    with seqrecord.open(sounds, verify=verify) as dataset:
        assert len(dataset.features) == 2
        assert {spec.group for spec in dataset.features.values()} == {0}
        job = Job(dataset, step, 5 * 8)
        most = 0
        for _ in range(20):
            wanted = []
            for episode in rng.permutation(5)[:4].tolist():
                first = int(rng.integers(100))
                count = int(rng.integers(min(5, (99 - first) // step + 1))) + 1
                wanted.append((episode, first, count))
            # A slice has two frames; those of `id` are a page.
            most += sum(n + 2 if step == 1 else 2 * n for _, _, n in wanted) * 3204 + 4 * 1600
            begins = (i * 8 + rng.integers(8) for i in range(4))
            turns = zip(begins, wanted, strict=True)
            rows = [at // 8 * 8 + (at + np.arange(n)) % 8 for at, (_, _, n) in turns]
            job.check(wanted, rows)
        stats = job.stats.report()
        assert 0 < stats["bytes_read"] <= most
        assert stats["loads"] == 80
        assert stats["decode_seconds"] == 0, "a chunk took the long way"


@pytest.mark.parametrize(("step", "count"), [(1, 100), (1, 96), (2, 50)])
def test_whole_chunks_take_few_calls_to_the_storage(sounds: Path, step: int, count: int) -> None:
    """Up to 2 MiB at a time, of several chunks."""
    asked: list[int] = []

    class Watched(LocalStorage):
        def read_ranges(
            self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
        ) -> None:
            asked.append(sum(map(len, buffers)))
            super().read_ranges(path, ranges, buffers)

    with seqrecord.open(Watched(sounds)) as dataset:
        job = Job(dataset, step, 400)
        asked.clear()
        rows = [some[:count] for some in _hundreds(4)]
        job.check([(e, 0, count) for e in (4, 0, 3, 1)], rows)
    assert len(asked) == 1
    assert job.stats.report()["bytes_read"] == 4 * 100 * (3200 + 16)
    assert 0 <= sum(asked) - 4 * 100 * (3200 + 16) < 4096, "a few bytes between pages"


def test_two_loads_want_the_same_frame(sounds: Path) -> None:
    with seqrecord.open(sounds) as dataset:
        job = Job(dataset, 1, 20)
        job.check([(2, 10, 4), (2, 12, 4)], [np.arange(4), np.arange(10, 14)])
        assert job.stats.report()["loads"] == 2


@pytest.mark.parametrize(("frame", "is_wanted"), [(33, True), (35, False)])
def test_slices_are_checked(sounds: Path, tmp_path: Path, frame: int, is_wanted: bool) -> None:
    path = tmp_path / "records"
    shutil.copytree(sounds, path)
    damage(path, "sound", 3, 0, at=frame * 3200 + 7)
    with seqrecord.open(path) as dataset:
        job = Job(dataset, 16, 20)
        if not is_wanted:
            job.check([(3, 0, 5)], [np.arange(5)])
            return
        whole = Job(dataset, 1, 300), [(e, 0, 100) for e in (1, 3, 0)], list(_hundreds(3))
        for one, wanted, rows in ((job, [(3, 0, 5)], [np.arange(5)]), whole):
            with pytest.raises(ChecksumError) as caught:
                one.check(wanted, rows)
            assert (caught.value.episode, caught.value.feature) == ("3 (frames 0 to 99)", "sound")


def _hundreds(count: int) -> Iterator[npt.NDArray[np.int64]]:
    return (np.arange(i * 100, i * 100 + 100) for i in range(count))
