"""Frames of small raw features that stay in memory: the right ones, each read once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import seqrecord
from seqrecord import ClipError, FeatureSpec, Schema, SeqRecordDataset, SeqRecordWriter
from seqrecord.errors import ChecksumError, StorageError
from seqrecord.format.pages import slice_frames
from seqrecord.pipes.clip_sets import sets_of
from seqrecord.pipes.options import DatasetOptions
from seqrecord.pipes.selection import ClipSelection
from seqrecord.reading.kept import KeptFrames
from seqrecord.reading.reader import SeqRecordReader
from seqrecord.storage import LocalStorage
from tests.storage_doubles import CountingStorage

EPISODES = [703, 1, 40, 555]  # frames
CHUNK = 61  # frames; no slice but those of single frames ends with a chunk
SCHEMA = Schema(
    [
        FeatureSpec("big", np.dtype("u1"), (5000,)),  # a slice for each frame
        FeatureSpec("mid", np.dtype("<f4"), (200,), group=1),  # six frames a slice
        FeatureSpec("flag", np.dtype("?"), (3,), group=1),  # never read so
        FeatureSpec("small", np.dtype("<i8"), (), group=1),  # 512 frames a slice
    ]
)
NAMES = ["big", "mid", "small"]
EXPECTED = {
    "big": np.random.default_rng(0).integers(0, 256, (sum(EPISODES), 5000), np.uint8),
    "mid": np.random.default_rng(1).normal(size=(sum(EPISODES), 200)).astype("<f4"),
    "flag": np.random.default_rng(2).integers(0, 2, (sum(EPISODES), 3)).astype(bool),
    "small": np.arange(sum(EPISODES)) * 1_000_003,
}
TOTAL = sum(EPISODES)


def write(folder: Path) -> Path:
    frame = 0
    with SeqRecordWriter(folder, schema=SCHEMA, codecs="raw", chunk_frames=CHUNK) as writer:
        for number, length in enumerate(EPISODES):
            with writer.episode(f"e{number}") as episode:
                for _ in range(length):
                    episode.append({name: EXPECTED[name][frame] for name in EXPECTED})
                    frame += 1
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("kept") / "records")


class Counting(CountingStorage):
    """A local disk."""

    def local_path(self, path: str) -> str | None:
        return self.inner.local_path(path)


def open_counting(root: Path, how: str) -> SeqRecordReader:
    return seqrecord.open(Counting(LocalStorage(root)), verify=how == "verified")


@pytest.fixture(params=["verified", "unverified"])
def opened(root: Path, request: pytest.FixtureRequest) -> Iterator[SeqRecordReader]:
    with open_counting(root, request.param) as dataset:
        yield dataset


def kept_of(dataset: SeqRecordReader, name: str, **more: int) -> KeptFrames:
    raw = dataset.chunk_reader().raw[SCHEMA[name].group]
    return KeptFrames(raw, dataset.index.group_of(name), SCHEMA[name], **more)


def take(kept: KeptFrames, name: str, rows: Any) -> Any:
    out = np.empty((len(rows), *EXPECTED[name].shape[1:]), EXPECTED[name].dtype)
    kept.take(np.asarray(rows), out)
    return out


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
def test_frames_are_the_right_ones_and_each_is_read_once(
    opened: SeqRecordReader, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(NAMES))
    blocks = data.draw(st.sampled_from([1, 9_000, 1 << 17]))
    kept, storage = kept_of(opened, name, block_bytes=blocks), opened.storage
    assert isinstance(storage, Counting)
    storage.reset()
    runs = st.tuples(st.integers(0, TOTAL - 1), st.integers(1, 70), st.integers(1, 5))
    for _ in range(data.draw(st.integers(1, 6))):
        asked = data.draw(st.lists(runs, min_size=1, max_size=6))
        rows = np.concatenate([np.arange(a, a + n * step, step) for a, n, step in asked]) % TOTAL
        np.testing.assert_array_equal(take(kept, name, rows), EXPECTED[name][rows], strict=True)
    for items in storage.ranges.values():  # of frames, and of checksums
        items.sort()
        assert all(one.stop <= other.start for one, other in pairwise(items))


def test_the_first_rows_of_episodes(opened: SeqRecordReader) -> None:
    first = kept_of(opened, "mid").first
    assert first.tolist() == (np.cumsum(EPISODES) - EPISODES).tolist()


def test_many_threads(root: Path) -> None:
    with seqrecord.open(root) as dataset:
        kept = kept_of(dataset, "mid")

        def work(seed: int) -> None:
            rng = np.random.default_rng(seed)
            for _ in range(30):
                rows = rng.integers(0, TOTAL, 50)
                np.testing.assert_array_equal(take(kept, "mid", rows), EXPECTED["mid"][rows])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))


def test_what_is_damaged_is_not_kept(tmp_path: Path) -> None:
    folder = write(tmp_path / "records")
    with seqrecord.open(folder, features=["big"]) as dataset:
        reader, table = dataset.chunk_reader(), dataset.index.group_of("big")
        row = int(table.first_chunk[3])
        [page] = reader.pages(reader.chunk_at(SCHEMA["big"].group, row))
    assert slice_frames(SCHEMA["big"]) == 1
    path, at = folder / page.chunk.path, page.start + 10 * 5000 + 17

    def flip() -> None:
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 1]))

    flip()
    clips = SeqRecordDataset(folder, clip_len=3, features=["big"])
    first = sum(length - 2 for length in EPISODES[:3] if length > 2)
    for _ in range(2):
        with pytest.raises(ChecksumError, match=page.chunk.path):
            clips.__getitems__([0, first + 9])
        clips.__getitems__([0, first + 11])
    flip()
    [_, clip] = clips.__getitems__([0, first + 9])
    frame = sum(EPISODES[:3]) + 9
    np.testing.assert_array_equal(clip["big"], EXPECTED["big"][frame : frame + 3])


def kept_in(folder: Path, limit: int) -> set[str]:
    selection = ClipSelection(folder, DatasetOptions(clip_len=2))
    return {name for one in sets_of(selection, limit) for name in one.kept}


def test_what_fits_is_kept(root: Path) -> None:
    names, total = ["flag", "small", "mid", "big"], 0
    for number, name in enumerate(names):
        total += TOTAL * (SCHEMA[name].nbytes + 1)
        assert kept_in(root, total - 1) == set(names[:number])
        assert kept_in(root, total) == set(names[: number + 1])


@pytest.mark.parametrize("limit", [0, TOTAL * 900, "512MiB"])
def test_clips_are_the_same_with_any_limit(root: Path, limit: int | str) -> None:
    clips = SeqRecordDataset(root, clip_len=4, dilation=3, features=NAMES, memory_limit=limit)
    numbers = np.random.default_rng(0).integers(0, len(clips), 40).tolist()
    for _ in range(2):
        for number, clip in zip(numbers, clips.__getitems__(numbers), strict=True):
            assert 0 <= number < len(clips)
            episode = int(clip["episode"][1:])
            rows = sum(EPISODES[:episode]) + clip["start"] + np.arange(0, 12, 3)
            for name in NAMES:
                np.testing.assert_array_equal(clip[name], EXPECTED[name][rows], strict=True)


def test_a_limit_that_is_none(root: Path) -> None:
    with pytest.raises(ClipError, match="memory_limit"):
        SeqRecordDataset(root, clip_len=4, memory_limit="much")


def test_damage_is_named_where_a_clip_has_it_and_nowhere_else(tmp_path: Path) -> None:
    folder = write(tmp_path / "records")
    with seqrecord.open(folder, features=["big"]) as dataset:
        reader, table = dataset.chunk_reader(), dataset.index.group_of("big")
        row = int(table.first_chunk[3]) + 1
        [page] = reader.pages(reader.chunk_at(SCHEMA["big"].group, row))
    frame = 10
    assert slice_frames(SCHEMA["big"]) == 1
    with (folder / page.chunk.path).open("r+b") as file:
        file.seek(page.start + frame * 5000 + 17)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    first = sum(length - 2 for length in EPISODES[:3] if length > 2)  # clip of the episode
    clips = SeqRecordDataset(folder, clip_len=3, features=["big"])
    damaged = first + CHUNK + frame
    for number in (damaged - 2, damaged - 1, damaged):
        with pytest.raises(ChecksumError, match=page.chunk.path) as caught:
            clips.__getitems__([0, number, 5])
        assert "e3" in str(caught.value)
    for number in (damaged - 3, damaged + 1):
        [clip] = clips.__getitems__([number])
        at = sum(EPISODES[:3]) + clip["start"]
        np.testing.assert_array_equal(clip["big"], EXPECTED["big"][at : at + 3])


def test_a_file_that_is_too_short_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "records")
    clips = SeqRecordDataset(folder, clip_len=3, features=["mid"])
    assert len(clips.__getitems__([3, 7])) == 2
    [file] = (folder / "records").iterdir()
    with file.open("r+b") as opened:
        opened.truncate(4096)
    with pytest.raises(StorageError, match=file.name):
        clips.__getitems__([3, 7, len(clips) - 1])
