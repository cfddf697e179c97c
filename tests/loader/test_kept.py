"""Frames of small raw features that stay in memory: correct values, each read once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import seqrecord
from seqrecord import ClipError, Dataset, FeatureSpec, Schema, SeqRecordMapDataset
from seqrecord.errors import ChecksumError, StorageError
from seqrecord.store.storage.local import LocalStorage
from tests.kit.datasets import columns, damage, write_dataset, written_once
from tests.kit.faults import CountingStorage

EPISODES = [703, 1, 40, 555]  # frames
CHUNK = 401  # frames; only slices of single frames end with a chunk
SCHEMA = Schema(
    [
        FeatureSpec("big", np.dtype("u1"), (5000,)),  # a slice for each frame
        FeatureSpec("mid", np.dtype("<f4"), (200,), group=1),  # six frames a slice
        FeatureSpec("flag", np.dtype("?"), (3,), group=1),  # not read in slices
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
    frames = iter(columns(**EXPECTED))
    episodes = {f"e{n}": list(islice(frames, length)) for n, length in enumerate(EPISODES)}
    write_dataset(folder, episodes, schema=SCHEMA, codecs="raw", chunk_frames=CHUNK)
    return folder


root = written_once(write)


def counting(root: Path) -> CountingStorage:
    return CountingStorage(LocalStorage(root), is_local=True)


@pytest.fixture(params=["verified", "unverified"])
def opened(root: Path, request: pytest.FixtureRequest) -> Iterator[Dataset]:
    with seqrecord.open(counting(root), verify=request.param == "verified") as dataset:
        yield dataset


def check(clips: SeqRecordMapDataset, numbers: list[int], step: int = 1) -> None:
    """Check the frames of clips."""
    for clip in clips.__getitems__(numbers):
        first = sum(EPISODES[: int(clip["episode"][1:])]) + clip["start"]
        for name in clips.dataset.features:
            rows = first + np.arange(len(clip[name])) * step
            np.testing.assert_array_equal(clip[name], EXPECTED[name][rows], strict=True)


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
def test_frames_are_correct_and_read_once(opened: Dataset, data: st.DataObject) -> None:
    """With the default memory limit; with a lower one they may be read again."""
    names = data.draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    step, length = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 9))
    limit = data.draw(st.sampled_from([None, None, 0, TOTAL * 900]))
    options: Any = {"features": names, "clip_len": length, "dilation": step}
    options |= {} if limit is None else {"memory_limit": limit}
    clips = SeqRecordMapDataset(opened, **options)
    storage = opened.contents.storage
    assert isinstance(storage, CountingStorage)
    storage.reset()
    numbers = st.integers(0, len(clips) - 1)
    for _ in range(data.draw(st.integers(1, 6))):
        check(clips, data.draw(st.lists(numbers, min_size=1, max_size=6)), step)
    for items in storage.ranges.values() if limit is None else []:  # frames and checksums
        items.sort()
        assert all(one.stop <= other.start for one, other in pairwise(items))


@pytest.mark.parametrize("name", NAMES)
def test_frames_are_read_with_their_neighbours(root: Path, name: str) -> None:
    """In blocks of 128 KiB, so that a slice is read once for all its frames."""
    storage = counting(root)
    with seqrecord.open(storage, features=[name]) as dataset:
        clips = SeqRecordMapDataset(dataset, clip_len=1)
        storage.reset()
        block = min(CHUNK, (128 << 10) // SCHEMA[name].nbytes // 6 * 6)
        for number in range(block):
            clips[number]
        nbytes = block * SCHEMA[name].nbytes
        assert nbytes <= storage.bytes_read <= 1.3 * nbytes + 512 * SCHEMA[name].nbytes
        assert len(storage.ranges) == 1
        assert all(len(items) <= 4 for items in storage.ranges.values())


def test_only_selected_episodes_take_memory(root: Path) -> None:
    nbytes = (EPISODES[1] + EPISODES[3]) * (SCHEMA["big"].nbytes + 1)
    for limit, reads_again in ((nbytes, False), (nbytes - 1, True)):
        storage = counting(root)
        with seqrecord.open(storage, features=["big"]) as dataset:
            chosen = {"episodes": ["e1", "e3"], "memory_limit": limit}
            clips = SeqRecordMapDataset(dataset, clip_len=1, **chosen)  # type: ignore[arg-type]
            for _ in range(2):
                storage.reset()
                check(clips, list(range(len(clips))))
            assert (storage.bytes_read > 0) == reads_again


def test_many_threads(root: Path) -> None:
    clips = SeqRecordMapDataset(root, features=["mid", "big"], clip_len=5)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(10):
            check(clips, rng.integers(0, len(clips), 10).tolist())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_damage_fails_only_its_clips_and_is_not_kept(tmp_path: Path) -> None:
    folder, frame = write(tmp_path / "records"), 10
    clips = SeqRecordMapDataset(folder, clip_len=3, features=["big"])
    first = sum(length - 2 for length in EPISODES[:3] if length > 2)  # clip of the episode
    for number in (0, 1):  # chunks
        page = damage(folder, "big", 3, number, at=frame * 5000 + 17)
        damaged = first + number * CHUNK + frame
        for _ in range(2):
            for clip in range(damaged - 2, damaged + 1):
                with pytest.raises(ChecksumError) as caught:
                    clips.__getitems__([0, clip, 5])
                assert caught.value.file == str(folder / page.chunk.path)
                assert (caught.value.episode or "").startswith("e3")
            check(clips, [0, damaged - 3, damaged + 1])
        damage(folder, "big", 3, number, at=frame * 5000 + 17)  # repairs the page
        check(clips, [0, *range(damaged - 3, damaged + 2)])


@pytest.mark.slow
def test_the_smallest_features_are_kept(root: Path) -> None:
    """As many as fit into memory."""
    names = ["flag", "small", "mid", "big"]

    def read_again(limit: int) -> set[str]:
        """Features read again when all clips are read a second time."""
        storage = counting(root)
        again = set()
        with seqrecord.open(storage) as dataset:
            clips = SeqRecordMapDataset(dataset, clip_len=2, memory_limit=limit)
            for _ in range(2):
                storage.reset()
                check(clips, list(range(len(clips))))
            reader = dataset.contents.chunks
            for name in names:
                table, group = dataset.contents.index.group_of(name), SCHEMA[name].group
                for row in range(len(table.num_frames)):
                    pages = reader.pages(reader.chunk_at(group, row))
                    [page] = [page for page in pages if page.feature == name]
                    for item in storage.ranges.get(page.chunk.path, []):
                        # Bytes between two pages may be read along.
                        if page.start <= item.start and item.stop <= page.stop:
                            again.add(name)
        return again

    used, total = TOTAL - 1, 0  # an episode of one frame has no clip
    for number, name in enumerate(names):
        total += used * (SCHEMA[name].nbytes + 1)
        assert read_again(total - 1) == set(names[number:])
        assert read_again(total) == set(names[number + 1 :])


def test_an_invalid_limit_and_a_short_file_are_errors(tmp_path: Path) -> None:
    folder = write(tmp_path / "records")
    with pytest.raises(ClipError, match="memory_limit"):
        SeqRecordMapDataset(folder, clip_len=4, memory_limit="much")
    clips = SeqRecordMapDataset(folder, clip_len=3, features=["mid"])
    assert len(clips.__getitems__([3, 7])) == 2
    [file] = (folder / "records").iterdir()
    with file.open("r+b") as opened:
        opened.truncate(4096)
    with pytest.raises(StorageError, match=file.name):
        clips.__getitems__([3, 7, len(clips) - 1])
