"""Files of the frame cache: few and sparse, within the limit, right after any damage."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from seqrecord import (
    FrameCache,
    HorizontalFlip,
    RandomCrop,
    SeqRecordMapDataset,
    SeqRecordPipe,
)
from seqrecord.errors import StorageError
from tests.cloud.test_cache import locked
from tests.kit.datasets import columns, noise, write_dataset
from tests.kit.faults import fail_calls
from tests.kit.frame_files import damage, frame_files, slots_start, used_bytes
from tests.kit.processes import Fork, in_fork

CAMERAS = ("left", "right")
FRAMES = 3  # of an episode and chunk


def write(path: Path, episodes: int, side: int, seed: int = 0) -> Path:
    frames = {
        f"e{number}": columns(left=images, right=images[:, ::-1])
        for number, images in enumerate(noise(episodes, FRAMES, side, side, 3, seed=seed))
    }
    write_dataset(path, frames, chunk_frames=FRAMES, codecs=dict.fromkeys(CAMERAS, "png"))
    return path


def read(path: Path, cache: Path | None, limit: int | str = "1GiB", **more: Any) -> list[Any]:
    """Keys, frame numbers and pixels of an epoch in order, and frames from the cache."""
    folder = None if cache is None else FrameCache(cache, limit)
    options = {"clip_len": 1, "batch_size": 1, "memory_limit": "2MiB", **more}
    pipe = SeqRecordPipe(path, frame_cache=folder, **options)
    rows: list[Any] = [
        (batch["episode"], batch["start"].item(), *(batch[n].numpy().tobytes() for n in CAMERAS))
        for batch in pipe
    ]
    return [rows, pipe.stats()["frames_from_cache"]]


def test_few_sparse_files(tmp_path: Path) -> None:
    """One for a record file and a size, whatever the number of chunks and cameras."""
    episodes = 12
    path, cache = write(tmp_path / "records", episodes, 64), tmp_path / "cache"
    read(path, cache, stride=FRAMES)
    files = frame_files(cache)
    assert len(files) == 1
    size, blocks = (sum(n) for n in zip(*map(size_and_blocks, files), strict=True))
    assert size > 2 * episodes * FRAMES * 12288
    assert blocks < size / 2
    assert read(path, cache)[1] == episodes
    assert read(path, cache)[1] == episodes * FRAMES
    assert frame_files(cache) == files
    assert [size_and_blocks(file)[0] for file in files] == [size], "sizes do not change"


def size_and_blocks(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, 512 * status.st_blocks


@pytest.mark.timeout(600)  # a thousand places; 100 s on a quiet machine
def test_damage_of_every_byte(tmp_path: Path, thorough: bool) -> None:
    path, cache = write(tmp_path / "records", 2, 4), tmp_path / "cache"
    expected = read(path, cache)[0]
    [file] = frame_files(cache)
    whole, copy = file.read_bytes(), tmp_path / "copy"
    table_start, start = 4096, slots_start(file)
    places = [
        *range(36),
        *range(table_start, table_start + 6 * 64),
        *range(start - 4096, start - 4096 + 4 * 14),
        *range(start, start + 12 * 48),
    ]
    shutil.copytree(cache, copy)
    for at in places if thorough else random.Random(0).sample(places, 10):
        shutil.rmtree(cache)
        shutil.copytree(copy, cache)
        damage(file, at, 1 << at % 8)
        for _ in range(2):
            assert read(path, cache)[0] == expected, at
        [*_, last] = frame_files(cache)
        assert read(path, cache) == [expected, 2 * FRAMES], at
        assert last.stat().st_size == len(whole)


def test_parts_of_the_table_are_lost(tmp_path: Path) -> None:
    """Entries after the lost ones are used, and no frame takes the place of another."""
    path, cache = write(tmp_path / "records", 40, 4), tmp_path / "cache"
    expected = read(path, cache)[0]
    [file] = frame_files(cache)
    with file.open("r+b") as opened:  # a block of 64 entries of 80
        opened.seek(4096)
        opened.write(bytes(4096))
    slots = file.read_bytes()[slots_start(file) :]
    rows, count = read(path, cache)
    assert rows == expected
    assert 0 < count < 40 * FRAMES
    assert file.read_bytes()[slots_start(file) :] == slots
    assert read(path, cache) == [expected, 40 * FRAMES]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1 << 20, 8 << 20])
def test_processes_fill_it_together_within_the_limit(limit: int, tmp_path: Path) -> None:
    """Counted in blocks of all files and folders, at any time."""
    path, cache = write(tmp_path / "records", 40, 64), tmp_path / "cache"
    other = write(tmp_path / "other", 40, 48, seed=1)
    expected = {place: read(place, None)[0] for place in (path, other)}
    read(path, cache, limit, episodes=["e0"])

    def fill(number: int) -> None:
        for seed in range(2):
            for place in (path, other)[:: 1 if number % 2 else -1]:
                rows = read(place, cache, limit, seed=number + seed)[0]
                assert sorted(rows) == sorted(expected[place])

    workers, peak_bytes = [Fork(partial(fill, number)) for number in range(3)], 0
    while any(worker.is_running() for worker in workers):
        with locked(cache):
            peak_bytes = max(peak_bytes, used_bytes(cache))
        time.sleep(0.002)
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    peak_bytes = max(peak_bytes, used_bytes(cache))
    assert limit / 3 < peak_bytes <= limit
    rows, count = read(path, cache, limit)
    assert rows == expected[path]
    assert count > 0


def test_many_chunks_that_others_added_meanwhile(tmp_path: Path) -> None:
    """More than some blocks of the table have: no frame takes the place of another."""
    path, cache, count = tmp_path / "records", tmp_path / "cache", 300
    images = noise(count, 80, 80, 3)
    episodes = {f"e{number:03}": columns(left=images[number, None]) for number in range(count)}
    write_dataset(path, episodes, chunk_frames=1, codecs={"left": "png"})

    def make() -> SeqRecordMapDataset:
        return SeqRecordMapDataset(path, clip_len=1, frame_cache=FrameCache(cache, "1GiB"))

    def wrong(clips: SeqRecordMapDataset, numbers: Iterable[int] = range(count)) -> list[int]:
        return [n for n in numbers if not np.array_equal(clips[n]["left"][0], images[n])]

    slow, fast, mapped = make(), make(), make()
    assert wrong(slow, [0]) == wrong(fast) == wrong(mapped) == []
    assert mapped.stats()["frames_mapped"] == count
    assert wrong(slow, [299, 200, 250]) == wrong(mapped) == []
    new = make()
    assert wrong(new) == []
    assert new.stats()["frames_from_cache"] == count


def own_bytes() -> int:
    """Memory of this process that no file has."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous"))


WIDE = 112  # frames of this side are mapped


def wide_epochs(path: Path, cache: Path | None, count: int) -> tuple[list[int], int, int]:
    """Sums of pixels by epoch, frames from the cache, and the memory that a new process took."""

    def epochs() -> tuple[list[int], int, int]:
        options: dict[str, Any] = {"clip_len": 1, "batch_size": 4, "memory_limit": "256MiB"}
        begin = own_bytes()
        folder = None if cache is None else FrameCache(cache, "1GiB")
        pipe = SeqRecordPipe(path, frame_cache=folder, **options)
        sums = [
            sum(int(batch[name].sum()) for batch in pipe for name in CAMERAS) for _ in range(count)
        ]
        stats, size = pipe.stats(), 2 * pipe.num_clips * WIDE * WIDE * 3
        assert stats["features_resident"] == [*CAMERAS]
        is_warm = cache is not None and count > 1
        assert stats["frames_mapped"] == is_warm * len(CAMERAS) * pipe.num_clips
        assert (stats["private_bytes"] > size) == (count == 1 or cache is None)
        return sums, stats["frames_from_cache"], own_bytes() - begin

    return cast(tuple[list[int], int, int], in_fork(epochs))


@pytest.mark.slow
def test_frames_are_mapped(tmp_path: Path, other_process: Callable[..., Any]) -> None:
    """Resident rows of a warm cache take no memory of their own, in any process."""
    path, cache = write(tmp_path / "records", 80, WIDE), tmp_path / "cache"
    # Not in forks of this process: its free memory would take the rows.
    plain, _, plain_bytes = other_process(wide_epochs, path, None, 2)
    assert other_process(wide_epochs, path, cache, 1)[:2] == (plain[:1], 0)
    sums, _, warm_bytes = other_process(wide_epochs, path, cache, 2)
    assert sums == plain
    assert plain_bytes - warm_bytes > 0.8 * 2 * 80 * FRAMES * WIDE * WIDE * 3


def test_mapped_rows_are_counted_once(tmp_path: Path) -> None:
    """Also in memory that later frames take again."""
    path, cache = write(tmp_path / "records", 30, WIDE), FrameCache(tmp_path / "cache", "1GiB")
    pipe = SeqRecordPipe(path, clip_len=1, batch_size=3, memory_limit="2MiB", frame_cache=cache)
    for is_warm in (False, True, True):
        list(pipe)
        stats = pipe.stats()
        assert (stats["frames_mapped"] > 0) == is_warm
        assert 0 < stats["private_bytes"] <= 1.01 * stats["planned_bytes"]


@pytest.mark.parametrize("memory_limit", ["2MiB", "64MiB"])
def test_partial_and_damaged_files_are_mapped(memory_limit: str, tmp_path: Path) -> None:
    """Beside frames that are decoded, in the same batch; also for functions and crops."""
    path, cache = write(tmp_path / "records", 6, WIDE), tmp_path / "cache"
    options: dict[str, Any] = {"batch_size": 3, "memory_limit": memory_limit, "seed": 3}
    crops = [RandomCrop(64), HorizontalFlip(p=0.5)]
    forms: list[dict[str, Any]] = [
        {},
        {"clip_len": 2},
        {"clip_transform": crops},
        {"clip_transform": lambda clip, _: {n: clip[n][:, ::2].copy() for n in CAMERAS}},
    ]

    def outcome(folder: Path | None, form: dict[str, Any]) -> list[Any]:
        cached = None if folder is None else FrameCache(folder, "1GiB")
        pipe = SeqRecordPipe(path, frame_cache=cached, **{"clip_len": 1, **options, **form})
        return [
            (b["episode"], *(b[n].numpy().tobytes() for n in CAMERAS)) for _ in "ab" for b in pipe
        ]

    expected = [outcome(None, form) for form in forms]
    read(path, cache, stride=2)
    for number, (form, rows) in enumerate(zip(forms, expected, strict=True)):
        copy = tmp_path / f"{number}"
        shutil.copytree(cache, copy)
        [file] = frame_files(copy)
        damage(file, slots_start(file) + 1000)
        for _ in range(2):
            assert outcome(copy, form) == rows


def test_files_are_evicted_and_replaced_while_they_are_mapped(tmp_path: Path) -> None:
    path, cache = write(tmp_path / "records", 6, WIDE), tmp_path / "cache"
    options: dict[str, Any] = {"clip_len": 1, "batch_size": 1, "memory_limit": "64MiB"}
    pipe = SeqRecordPipe(path, frame_cache=FrameCache(cache, "1GiB"), **options)
    expected = [batch["left"].clone() for _ in range(2) for batch in pipe]
    again = SeqRecordPipe(path, frame_cache=FrameCache(cache, "1GiB"), **options)
    batches = iter(again)
    found = [next(batches)["left"].clone() for _ in range(4)]
    shutil.rmtree(cache)
    read(write(tmp_path / "other", 6, WIDE, seed=1), cache)
    found += [batch["left"].clone() for batch in batches]
    found += [batch["left"].clone() for batch in again]
    assert all(map(torch.equal, found, expected))


def test_a_file_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    """Not the end of the process; nothing of this package shortens a file."""
    path, cache = write(tmp_path / "records", 6, WIDE), tmp_path / "cache"
    options: dict[str, Any] = {"clip_len": 1, "batch_size": 1, "memory_limit": "64MiB"}
    read(path, cache)
    pipe = SeqRecordPipe(path, frame_cache=FrameCache(cache, "1GiB"), **options)
    assert len([*pipe]) == 6 * FRAMES
    for file in frame_files(cache):
        os.truncate(file, 10_000)
    with pytest.raises(StorageError, match="ended early"):
        list(pipe)
    assert read(path, cache)[0] == read(path, None)[0]


def write_in_place(file: Path) -> None:
    """Changes bytes of all frames, and keeps the size and the time of modification."""
    status = file.stat()
    time.sleep(0.02)  # times have the resolution of the kernel's clock
    data = bytearray(file.read_bytes())
    data[slots_start(file) + 500 :: 997] = bytes(len(data[slots_start(file) + 500 :: 997]))
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    ("map_style", "memory_limit", "are_resident"),
    [(False, "2MiB", False), (False, "64MiB", True), (True, 0, False), (True, "64MiB", True)],
)
def test_a_file_that_another_program_writes(
    map_style: bool, memory_limit: int | str, are_resident: bool, tmp_path: Path
) -> None:
    """Frames are right in the next epoch or call, of resident rows too."""
    path, cache = write(tmp_path / "records", 30, WIDE), tmp_path / "cache"
    options: dict[str, Any] = {"clip_len": 1, "memory_limit": memory_limit}

    def make(cached: FrameCache | None) -> Any:
        if map_style:
            return SeqRecordMapDataset(path, frame_cache=cached, **options)
        return SeqRecordPipe(path, batch_size=3, frame_cache=cached, shuffle=False, **options)

    def epoch(loader: Any) -> list[bytes]:
        if map_style:
            clips = map(loader.__getitem__, range(len(loader)))
            return [clip["left"].numpy().tobytes() for clip in clips]
        return [batch["left"].numpy().tobytes() for batch in loader]

    expected = epoch(make(None))
    read(path, cache)
    loader = make(FrameCache(cache, "1GiB"))
    assert [epoch(loader) for _ in range(2)] == [expected] * 2
    is_mapped = memory_limit != 0  # else frames are read into the batch
    assert (loader.stats()["frames_mapped"] > 0) == is_mapped
    for file in frame_files(cache):
        write_in_place(file)
    assert epoch(loader) == expected
    assert [epoch(loader) for _ in range(2)] == [expected] * 2
    # Frames that were decoded stay in memory; or are in the file again, and mapped.
    mapped = map_style * loader.stats()["frames_mapped"]
    for file in frame_files(cache):
        file.chmod(0o400)
        file.with_name(f"{file.name[:-1]}x").hardlink_to(file)
    assert epoch(loader) == expected
    assert (loader.stats()["frames_mapped"] > mapped) == (is_mapped and not are_resident)


def test_own_notes_of_use_are_no_changes(tmp_path: Path) -> None:
    """Resident frames of a mapped file stay, without another look at them."""
    path, cache = write(tmp_path / "records", 6, WIDE), tmp_path / "cache"
    read(path, cache)
    for file in frame_files(cache):  # used two minutes ago: a use is noted again
        os.utime(file, (file.stat().st_mtime - 120,) * 2)
    options: dict[str, Any] = {"clip_len": 1, "batch_size": 3, "memory_limit": "64MiB"}
    pipe = SeqRecordPipe(path, frame_cache=FrameCache(cache, "1GiB"), **options)
    before = max(file.stat().st_mtime_ns for file in frame_files(cache))
    list(pipe)
    assert pipe.stats()["frames_from_cache"] == 6 * FRAMES
    assert max(file.stat().st_mtime_ns for file in frame_files(cache)) > before
    for _ in range(2):
        list(pipe)
        assert pipe.stats()["frames_from_cache"] == 0
        assert pipe.stats()["frames_mapped"] > 0


def test_an_evicted_file_is_unlinked(tmp_path: Path) -> None:
    """Whoever has it open reads on; its blocks are not given to other frames."""
    limit, cache = 1 << 20, tmp_path / "cache"
    first = write(tmp_path / "first", 5, 64)
    expected = read(first, cache, limit)[0]
    file = frame_files(cache)[0]
    with file.open("rb") as opened:
        data = file.read_bytes()
        for seed in range(1, 4):
            read(write(tmp_path / f"more{seed}", 5, 64, seed), cache, limit)
        assert not file.exists()
        assert opened.read() == data
    assert read(first, cache, limit)[0] == expected
    assert used_bytes(cache) <= limit


@pytest.mark.parametrize("name", ["posix_fallocate", "pwrite", "ftruncate"])
def test_no_space(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cache = write(tmp_path / "records", 4, 16), tmp_path / "cache"
    expected = read(path, None)[0]
    with monkeypatch.context() as full:
        fail_calls(full, os, name, errno.ENOSPC, below=cache)
        assert read(path, cache) == [expected, 0]
    assert read(path, cache)[0] == expected
    assert read(path, cache) == [expected, 4 * FRAMES]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a file system")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "records", 20, 64)
    expected = read(path, None)[0]
    counts = []
    for seed in range(3):
        rows, count = read(path, small_disk / "cache", seed=seed)
        assert sorted(rows) == sorted(expected)
        counts.append(count)
    assert 0 < counts[-1] < 20 * FRAMES
