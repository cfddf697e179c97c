"""Files of the frame cache: odd files in their place, eviction, and how hits are counted."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import FrameCache, SeqRecordMix, SeqRecordPipe, SeqRecordWriter
from seqrecord.errors import StorageError
from tests.kit.datasets import noise, write_dataset
from tests.kit.frame_files import frame_files, used_bytes

EPISODES, FRAMES, SIDE = 8, 4, 32


def write(path: Path, seed: int = 0, names: tuple[str, ...] = ("image",), side: int = SIDE) -> Path:
    """A record file, and so a file in the cache, for each episode."""
    images = noise(EPISODES, FRAMES, len(names), side, side, 3, seed=seed)
    episodes = {
        f"e{number}": [dict(zip(names, frame, strict=True)) for frame in frames]
        for number, frames in enumerate(images)
    }
    codecs = dict.fromkeys(names, "png")
    write_dataset(path, episodes, chunk_frames=FRAMES, codecs=codecs, max_file_size=1)
    return path


def read(path: Path, cache: Path, limit: int | str = "64MiB", epochs: int = 1) -> dict[str, Any]:
    """Statistics of the last epoch of a new loader."""
    options: dict[str, Any] = {"frame_cache": FrameCache(cache, limit), "memory_limit": "2MiB"}
    pipe = SeqRecordPipe(path, clip_len=1, batch_size=1, **options)
    for _ in range(epochs):
        assert sum(1 for _ in pipe) == EPISODES * FRAMES
    return pipe.stats()


def link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def full_folder(path: Path) -> None:
    path.mkdir()
    (path / "file").touch()


ODD: dict[str, Callable[[Path], object]] = {
    "link": link,
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "folder": lambda path: path.mkdir(),
    "folder with a file": full_folder,
    "pipe": os.mkfifo,
    "empty": lambda path: path.touch(),
    "one byte": lambda path: path.write_bytes(b"x"),
    "longer": lambda path: path.write_bytes(bytes(1 << 16)),
}


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_file_is_one_missing_entry(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And the next loader makes a new one, and removes it, except a folder with other files."""
    path, cache = write(tmp_path / "records"), tmp_path / "cache"
    read(path, cache)
    entry = frame_files(cache)[0]
    entry.unlink()
    ODD[kind](entry)
    with caplog.at_level(logging.WARNING, "seqrecord"):
        assert read(path, cache)["frames_from_cache"] == (EPISODES - 1) * FRAMES
        assert read(path, cache)["frames_from_cache"] == EPISODES * FRAMES
    assert entry.is_dir() == (kind == "folder with a file"), "others are removed"
    assert not caplog.records


def test_an_entry_of_another_size_is_replaced_by_a_new_file(tmp_path: Path) -> None:
    """A reader that has opened it keeps the one before."""
    path, cache = write(tmp_path / "records"), tmp_path / "cache"
    read(path, cache)
    entry = frame_files(cache)[0]
    os.truncate(entry, 100)
    with entry.open("rb") as opened:
        read(path, cache)
        assert os.fstat(opened.fileno()).st_size == 100
    assert len(frame_files(cache)) == EPISODES
    assert all(file.stat().st_size > FRAMES * SIDE * SIDE * 3 for file in frame_files(cache))


def test_a_file_that_becomes_shorter_is_an_error_in_map_style(tmp_path: Path) -> None:
    """Its frames are copied from where they lie: the process would end with SIGBUS."""
    path, cache = write(tmp_path / "records", side=80), tmp_path / "cache"
    options: dict[str, Any] = {"clip_len": 1, "frame_cache": FrameCache(cache, "64MiB")}
    decoding = seqrecord.SeqRecordMapDataset(path, **options)
    images = [clip["image"] for clip in decoding.__getitems__(range(len(decoding)))]
    clips = seqrecord.SeqRecordMapDataset(path, **options)
    assert all(np.array_equal(clips[i]["image"], image) for i, image in enumerate(images))
    assert clips.stats()["frames_mapped"] == len(images)
    for file in frame_files(cache):
        os.truncate(file, 4096)
    with pytest.raises(StorageError, match="ended early"):
        _ = clips[0]


def test_a_linked_folder_is_replaced(tmp_path: Path) -> None:
    """Entries in it would not be counted."""
    path, cache, other = write(tmp_path / "records"), tmp_path / "cache", tmp_path / "other"
    read(path, cache)
    [folder] = {entry.parent for entry in frame_files(cache)}
    folder.rename(other)
    before = sorted((file.name, file.stat().st_mtime_ns) for file in other.iterdir())
    folder.symlink_to(other)
    assert read(path, cache)["frames_from_cache"] == 0
    assert read(path, cache)["frames_from_cache"] == EPISODES * FRAMES
    assert not folder.is_symlink()
    assert sorted((file.name, file.stat().st_mtime_ns) for file in other.iterdir()) == before


@pytest.mark.parametrize("number", [errno.EACCES, errno.EINVAL, errno.ENXIO, errno.EIO])
def test_only_failures_of_the_disk_pause(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = write(tmp_path / "records"), tmp_path / "cache"
    read(path, cache)
    files, opened, real = {*frame_files(cache)}, list[Path](), os.open

    def fail_first(target: Any, *args: Any, **options: Any) -> int:
        """The one that is opened first fails: others, in other threads, may come before a pause."""
        if Path(target) in files:
            opened.append(Path(target))
            if opened[-1] == opened[0]:
                raise OSError(number, os.strerror(number), target)
        return real(target, *args, **options)

    monkeypatch.setattr(os, "open", fail_first)
    found = read(path, cache)["frames_from_cache"]
    assert (found == (EPISODES - 1) * FRAMES) == (number != errno.EIO)


def test_data_larger_than_the_limit_keeps_its_first_part(tmp_path: Path) -> None:
    """Also for a new process: a dataset's frames never evict others of the same dataset."""
    path, cache = tmp_path / "records", tmp_path / "cache"
    rng = np.random.default_rng(0)
    with SeqRecordWriter(path, chunk_frames=FRAMES, codecs={"image": "png"}) as writer:
        for number in range(EPISODES):
            with writer.episode(f"e{number}") as episode:
                for _ in range(FRAMES):
                    row = rng.integers(0, 256, (1, 256, 3), np.uint8)
                    episode.append({"image": np.repeat(row, 256, axis=0)})
    kept = read(path, cache, limit := 4 << 20, epochs=2)["frames_from_cache"]
    assert 0.4 * EPISODES * FRAMES < kept < EPISODES * FRAMES
    before = frame_files(cache)
    for seed in range(3):
        options: dict[str, Any] = {"frame_cache": FrameCache(cache, limit), "seed": seed}
        pipe = SeqRecordPipe(path, clip_len=1, batch_size=1, memory_limit="4MiB", **options)
        for _ in pipe:
            pass
        assert pipe.stats()["frames_from_cache"] == kept
    assert frame_files(cache) == before
    with SeqRecordWriter(path, mode="append") as writer, writer.episode("new") as episode:
        episode.append({"image": np.zeros((256, 256, 3), np.uint8)})
    pipe = SeqRecordPipe(path, clip_len=1, batch_size=1, frame_cache=FrameCache(cache, limit))
    list(pipe)
    assert pipe.stats()["frames_from_cache"] == kept, "after an append too"
    assert used_bytes(cache) <= limit


def test_sources_of_a_mix_do_not_evict_one_another(tmp_path: Path) -> None:
    """Datasets in use at the same time, together larger than the limit."""
    names, cache = ("first", "second"), tmp_path / "cache"
    for seed, name in enumerate(names):
        write(tmp_path / name, seed, side=128)

    def epoch(seed: int) -> int:
        sources = {
            name: SeqRecordPipe(tmp_path / name, clip_len=1, frame_cache=FrameCache(cache, 2 << 20))
            for name in names
        }
        mix = SeqRecordMix(sources, batch_size=1, seed=seed)
        assert sum(1 for _ in mix) == 2 * EPISODES * FRAMES
        count: int = mix.stats()["frames_from_cache"]
        return count

    epoch(0)
    kept = 4 * len(frame_files(cache))
    assert 0.4 * EPISODES * FRAMES < kept < 1.5 * EPISODES * FRAMES
    hits = [epoch(seed) for seed in range(1, 7)]
    # A source that begins later may lose an entry or two; without protection half are lost.
    # By the order of threads: mean 1.04, standard deviation 0.012.
    assert sum(hits) > 0.85 * len(hits) * kept, hits


@pytest.mark.parametrize("seconds", [0, 10**8])
def test_entries_of_the_future_make_room(seconds: int, tmp_path: Path) -> None:
    """They were used while a clock was wrong."""
    first, cache = write(tmp_path / "first"), tmp_path / "cache"
    limit = 1 << 20
    read(first, cache, limit)
    last = write(tmp_path / "last", 1)
    for number in range(2, 9):
        read(write(tmp_path / f"more{number}", number), cache, limit)
    assert used_bytes(cache) > 600_000, "full"
    if seconds:
        for entry in frame_files(cache):
            os.utime(entry, (time.time() + seconds,) * 2)
    read(last, cache, limit)
    assert read(last, cache, limit)["frames_from_cache"] == EPISODES * FRAMES
    assert used_bytes(cache) <= limit


def test_hits_are_counted_as_decoded_frames(tmp_path: Path) -> None:
    """Once for all features of a frame."""
    path, cache = write(tmp_path / "records", names=("left", "right")), tmp_path / "cache"
    for decoded in (EPISODES * FRAMES, 0):
        stats = read(path, cache)
        assert stats["frames_decoded"] == decoded
        assert stats["frames_from_cache"] == EPISODES * FRAMES - decoded
    options: dict[str, Any] = {"frame_cache": FrameCache(cache, "64MiB"), "memory_limit": 0}
    clips = seqrecord.SeqRecordMapDataset(path, clip_len=1, **options)
    _ = [clips[number] for number in range(len(clips))]
    assert clips.stats()["frames_from_cache"] == EPISODES * FRAMES
