"""Frames of small raw features from many chunks at once: the right ones, checked, in few bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import seqrecord
from seqrecord import FeatureSpec, Schema, SeqRecordDataset, SeqRecordWriter
from seqrecord.errors import ChecksumError, StorageError
from seqrecord.format.pages import slice_frames
from seqrecord.reading.reader import SeqRecordReader
from seqrecord.reading.scattered import ScatteredFrames
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
    return write(tmp_path_factory.mktemp("scattered") / "records")


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


def reader_of(dataset: SeqRecordReader, name: str) -> ScatteredFrames:
    found = dataset.chunk_reader().scattered(name)
    assert found is not None
    return found


def memory(nbytes: int) -> Any:
    return np.full(nbytes + 7, 0xAA, np.uint8)  # more than was asked for, as kept memory is


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_frames_of_many_chunks(opened: SeqRecordReader, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NAMES))
    table = opened.index.group_of(name)
    held = table.num_frames.astype(np.int64)
    ends = np.cumsum(held)
    clips = data.draw(
        st.lists(
            st.tuples(st.integers(0, sum(EPISODES) - 1), st.integers(1, 70), st.integers(1, 40)),
            min_size=1,
            max_size=8,
        )
    )
    wanted = np.unique(np.concatenate([np.arange(a, a + n * step, step) for a, n, step in clips]))
    wanted = wanted[wanted < sum(EPISODES)]
    chunk = np.searchsorted(ends, wanted, side="right")
    frame = wanted - (ends - held)[chunk]
    cuts = set(data.draw(st.lists(st.integers(0, len(wanted) - 1), max_size=3)))  # or one range
    breaks = (np.diff(chunk) > 0) | (np.diff(frame) != 1)
    begin = np.unique([0, *(np.flatnonzero(breaks) + 1), *cuts])
    last = np.append(begin[1:], len(wanted)) - 1
    found = reader_of(opened, name).read(chunk[begin], frame[begin], frame[last] + 1, memory)
    assert found is not None
    rows = np.repeat(found.rows - begin, last - begin + 1) + np.arange(len(wanted))
    np.testing.assert_array_equal(found.frames[rows], EXPECTED[name][wanted], strict=True)
    follow = (np.diff(chunk) == 1) & (frame[:-1] + 1 == held[chunk[:-1]]) & (frame[1:] == 0)
    assert (np.diff(rows)[follow] == 1).all()


def test_only_slices_of_the_frames_are_read(opened: SeqRecordReader) -> None:
    storage: Any = opened.storage
    reader = reader_of(opened, "big")
    ranges = np.array([0, 0, 3]), np.array([2, 30, 60]), np.array([4, 31, 61])
    assert reader.read(*ranges, memory) is not None
    storage.reset()
    assert reader.read(*ranges, memory) is not None  # it knows the checksums now
    [ranges] = storage.ranges.values()
    assert [item.length for item in ranges] == [10_000, 5000, 5000]


@pytest.mark.parametrize("name", ["flag", "missing", "png"])
def test_features_that_are_not_read_so(name: str, tmp_path: Path) -> None:
    codecs = {"png": "png", "flag": "raw", "missing": "raw"}
    with SeqRecordWriter(tmp_path / "records", codecs=codecs) as writer:
        for key in "ab":
            with writer.episode(key) as episode:
                for number in range(4):
                    frame = {
                        "png": np.zeros((8, 8, 3), np.uint8),
                        "flag": np.zeros(3, bool),
                        "missing": np.zeros(3),
                    }
                    if number == 2:
                        del frame["missing"]
                    episode.append(frame)
    with seqrecord.open(tmp_path / "records", features=[name]) as dataset:
        assert dataset.chunk_reader().scattered(name) is None


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
