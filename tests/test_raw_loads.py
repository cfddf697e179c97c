"""Small chunks of raw pages: found together, and read by one job where there are several."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import seqrecord
from seqrecord import EngineOptions, SeqRecordPipe, SeqRecordWriter
from seqrecord.engine.arena import Arena
from seqrecord.engine.buffers import GroupNeeds, HostBuffers, Needs
from seqrecord.engine.loading import ChunkLoader
from seqrecord.engine.stats import EngineStats
from seqrecord.engine.stores import Load
from seqrecord.errors import ChecksumError, StorageError
from seqrecord.reading.frames import ArraySpec
from seqrecord.storage.local import LocalStorage
from seqrecord.storage.ranges import ByteRange
from tests.clip_data import check, expected_frame, possible_clips, write_numbered
from tests.datasets import nth_chunk

FIXED = ["image", "flow", "id"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    return write_numbered(folder / "records", codecs="raw", flush_at=[5, 6])


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(
    "settings",
    [
        {"shuffle": False},
        {"engine": EngineOptions(shuffle_buffer=100)},
        {
            "engine": EngineOptions(num_cursors=1, shuffle_buffer=3)
        },  # a short ring, which begins anew often
        {"stride": 5},  # parts of chunks
        {"stride": 2, "dilation": 2},  # every second frame
        {"device": "cpu"},
    ],
)
def test_clips_are_right(path: Path, settings: dict[str, Any], verify: bool) -> None:
    """Chunks in which a frame lacks a feature come between others."""
    dataset = seqrecord.open(path, verify=verify)
    pipe = SeqRecordPipe(dataset, clip_len=3, batch_size=4, features=FIXED, **settings)
    stride, dilation = settings.get("stride", 1), settings.get("dilation", 1)
    for _ in range(2):
        clips = [name for batch in pipe for name in check(batch, FIXED, 3, dilation)]
        assert sorted(clips) == sorted(possible_clips(FIXED, 3, stride, dilation))


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("ring", [12, 40])
def test_any_frames_of_chunks_go_to_any_rows(path: Path, step: int, ring: int) -> None:
    """Loads of one job, of all frames of a chunk or of some, in rings that begin anew."""
    rng = np.random.default_rng([step, ring])
    names = ["image", "id"]
    with seqrecord.open(path, features=names) as dataset:
        specs = {n: ArraySpec(s.dtype, s.shape) for n, s in dataset.features.items()}
        group = dataset.features["id"].group
        lengths = dict.fromkeys(specs, 1)
        buffers = HostBuffers(Needs((GroupNeeds(specs, 3 * ring),), specs, lengths, 1, 1))
        (arena,) = buffers.arenas
        assert isinstance(arena, Arena)
        stats = EngineStats()
        loader = ChunkLoader(dataset, buffers, {group: step}, group, None, 1, stats)
        reader = dataset.contents.chunks
        count = len(dataset.contents.index.groups[group].file)
        frames = 0
        for _ in range(30):
            loads, places, expected = [], [], []
            for number, row in enumerate(rng.integers(0, count, 3).tolist()):
                chunk = reader.chunk_at(group, row)
                skipped = int(rng.integers(chunk.num_frames))
                most = -(-(chunk.num_frames - skipped) // step)
                size = min(ring, int(rng.choice([1, rng.integers(most) + 1, most])))
                first = chunk.first_frame + skipped
                rows = number * ring + (rng.integers(ring) + np.arange(size)) % ring
                loads.append(Load(group, number, 0, chunk.episode, row, first, size))
                places.append(rows)
                expected += [
                    (at, chunk.episode, first + i * step) for i, at in enumerate(rows.tolist())
                ]
            loader(loads, arena, np.concatenate(places))
            frames += len(expected)
            for at, episode, frame in expected:
                for name, value in expected_frame(episode, frame).items():
                    if name in names:
                        assert np.array_equal(arena[name][at], value)
        assert stats.report()["frames_decoded"] == frames
        assert stats.report()["decode_seconds"] == 0, "a chunk took the long way"


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
    with seqrecord.open(path) as dataset:
        chunk = nth_chunk(dataset, 3, 0)
        page = next(p for p in dataset.contents.chunks.pages(chunk) if p.feature == "sound")
        file = path / chunk.path
    data = bytearray(file.read_bytes())
    data[page.start + frame * 3200 + 7] ^= 1
    file.write_bytes(data)
    with seqrecord.open(path) as dataset:
        job = Job(dataset, 16, 20)
        if not is_wanted:
            job.check([(3, 0, 5)], [np.arange(5)])
            return
        with pytest.raises(ChecksumError, match=r"3 \(frames 0 to 99\).*sound"):
            job.check([(3, 0, 5)], [np.arange(5)])
        with pytest.raises(ChecksumError, match=r"3 \(frames 0 to 99\).*sound"):
            Job(dataset, 1, 300).check([(e, 0, 100) for e in (1, 3, 0)], list(_hundreds(3)))


def _hundreds(count: int) -> Iterator[npt.NDArray[np.int64]]:
    return (np.arange(i * 100, i * 100 + 100) for i in range(count))


def test_small_raw_chunks_need_no_decoding(path: Path) -> None:
    pipe = SeqRecordPipe(path, clip_len=3, batch_size=4, features=["id"], shuffle=False)
    list(pipe)
    stats = pipe.stats()
    assert stats["loads"] > 0
    assert stats["decode_seconds"] == 0 < stats["fetch_seconds"]


def test_bytes_are_counted_once(path: Path) -> None:
    with seqrecord.open(path, features=FIXED) as dataset:
        reader = dataset.contents.chunks
        rows = range(len(dataset.contents.index.groups[0].file))
        pages = [page for row in rows for page in reader.pages(reader.chunk_at(0, row))]
        frames = int(dataset.num_frames)
    pipe = SeqRecordPipe(path, clip_len=1, batch_size=4, features=["image", "id"], shuffle=False)
    list(pipe)
    expected = sum(page.stop - page.start for page in pages if page.feature != "flow")
    assert pipe.stats()["bytes_read"] == expected
    assert pipe.stats()["frames_decoded"] == frames


@pytest.mark.parametrize("feature", FIXED)
def test_a_damaged_page_is_named(tmp_path: Path, feature: str) -> None:
    path = write_numbered(tmp_path / "records", codecs="raw")
    with seqrecord.open(path) as dataset:
        chunk = nth_chunk(dataset, 3, 2)
        reader = dataset.contents.chunks
        page = next(page for page in reader.pages(chunk) if page.feature == feature)
    file = path / chunk.path
    data = bytearray(file.read_bytes())
    data[page.start + 5] ^= 1
    file.write_bytes(data)
    pipe = SeqRecordPipe(path, clip_len=3, batch_size=4, features=FIXED, shuffle=False)
    with pytest.raises(ChecksumError, match=rf"set/3 \(frames 8 to 11\).*{feature}") as caught:
        list(pipe)
    assert chunk.path in str(caught.value)
    assert list(SeqRecordPipe(seqrecord.open(path, verify=False), clip_len=3, features=FIXED))


def test_a_file_that_ends_early_is_named(tmp_path: Path) -> None:
    path = write_numbered(tmp_path / "records", codecs="raw")
    pipe = SeqRecordPipe(path, clip_len=3, batch_size=4, features=FIXED, shuffle=False)
    with seqrecord.open(path) as dataset:
        chunk = nth_chunk(dataset, 3, 2)
    with (path / chunk.path).open("r+b") as file:
        file.truncate(chunk.offset + 7)
    with pytest.raises(StorageError, match=r"set/3 \(frames 8 to 11\)") as caught:
        list(pipe)
    assert chunk.path in str(caught.value)
