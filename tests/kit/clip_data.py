"""A small dataset whose arrays encode episode and frame, so that any clip can be checked."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import re
import threading
import time
import tracemalloc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest
import torch

from seqrecord import ClipError, EngineOptions, SeqRecordIterableDataset, SeqRecordPipe, Vector
from seqrecord.errors import MemoryLimitError
from tests.kit.datasets import write_dataset

LENGTHS = (23, 9, 3, 40)
"""Frames of the episodes `set/0`, `set/1`, …"""

SMALL = (6, 8, 3)
"""The shape of `image`."""

LARGE = (64, 88, 3)
"""Shape of an image whose raw pages are large enough to be read without a copy."""

STRAIGHT = (420, 418, 3)
"""Shape of an image whose frames are large enough to be loaded into a batch without an arena."""

Frame = dict[str, "npt.NDArray[Any]"]
_Loader = TypeVar("_Loader")


def expected_frame(episode: int, frame: int, shape: tuple[int, ...] = SMALL) -> Frame:
    """The stored frame. The last frame of each episode and frame 20 of the last lack `flow`."""
    return dict(_frame(episode, frame, shape))


@lru_cache(128)
def _frame(episode: int, frame: int, shape: tuple[int, ...]) -> Frame:
    image = np.random.default_rng([episode, frame]).integers(0, 256, shape, np.uint8)
    rng = np.random.default_rng([frame, episode])
    note = rng.integers(0, 256, 1 + (episode + frame) % 5, np.uint8)
    arrays: Frame = {
        "image": image,
        "flow": np.full((4, 2), 1000 * episode + frame, np.float32),
        "note": note,
        "id": np.array([episode, frame]),
    }
    if frame == LENGTHS[episode] - 1 or (episode == len(LENGTHS) - 1 and frame == 20):
        del arrays["flow"]
    for array in arrays.values():
        array.flags.writeable = False  # they are cached
    return arrays


def make_loader(path: Any, kind: Any = SeqRecordPipe, **changes: Any) -> Any:
    """A loader of clips of 3 frames, batches of 4 and a buffer of 16, with `changes`. Options of
    the engine may be passed directly, in addition to `engine`."""
    settings = {"clip_len": 3, "batch_size": 4, "shuffle_buffer": 16, "seed": 5, **changes}
    return kind(path, **effective_arguments(settings))


def begun(loader: Any, count: int = 1) -> Iterator[Any]:
    """An iterator that has returned `count` items."""
    iterator: Iterator[Any] = iter(loader)
    for _ in range(count):
        next(iterator)
    return iterator


def digests(loader: Any, epochs: int = 1) -> list[Any]:
    """Digests of all items of the loader's next epochs."""
    return [digest(item) for _ in range(epochs) for item in loader]


def resumed(loader: _Loader, state: Any) -> _Loader:
    """The loader after `load_state_dict`."""
    loader.load_state_dict(state)  # type: ignore[attr-defined]
    return loader


def check_ended(stream: SeqRecordIterableDataset) -> None:
    """The running iteration raises once another one has begun."""
    first = iter(stream)
    next(first)
    next(iter(stream))
    with pytest.raises(ClipError, match="this iteration has ended"):
        next(first)


ONE_GROUP = {"image": 0}  # the other features join the same group


def write_numbered(
    path: Path,
    *,
    codecs: Any = None,
    chunk_frames: int | None = 4,
    shape: tuple[int, ...] = SMALL,
    groups: Mapping[str, int] | None = ONE_GROUP,
    flush_at: Collection[int] = (),
) -> Path:
    """Write the dataset to several record files; `shape` is the shape of `image`.

    `groups` maps features to group numbers; `None` leaves the grouping to the writer.
    `chunk_frames=None` leaves the chunk lengths to the writer. All chunks end after the
    frames `flush_at` of each episode.
    """
    features: dict[str, dict[str, Any]] = {"note": {"shape": (None,)}}
    for name, number in (groups or {}).items():
        features.setdefault(name, {})["group"] = number
    write_dataset(
        path,
        {
            f"set/{number}": [expected_frame(number, frame, shape) for frame in range(length)]
            for number, length in enumerate(LENGTHS)
        },
        metadata={f"set/{number}": {"number": number} for number in range(len(LENGTHS))},
        flush_at=flush_at,
        codecs=codecs,
        chunk_frames=chunk_frames,
        max_file_size=60 * math.prod(shape),
        features=features,
    )
    return path


def possible_clips(
    features: Sequence[str], length: int, stride: int = 1, dilation: int = 1
) -> list[tuple[str, int]]:
    """Key and start of every clip, by brute force."""
    clips = []
    for episode, num_frames in enumerate(LENGTHS):
        for start in range(0, num_frames - (length - 1) * dilation, stride):
            frames = [start + i * dilation for i in range(length)]
            if all(set(features) <= _frame(episode, f, SMALL).keys() for f in frames):
                clips.append((f"set/{episode}", start))
    return clips


def effective_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A loader's arguments with all engine options in `engine`, without options that would raise
    because the other arguments make them useless."""
    found, names = dict(arguments), {field.name for field in fields(EngineOptions)}
    tuning = {name: found.pop(name) for name in names & found.keys()}
    engine = replace(found.pop("engine", EngineOptions()), **tuning)
    return found if engine == EngineOptions() else {**found, "engine": engine}


def with_vectors(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with `place`, `pad_to` and `normalize`, each by feature, in `vectors`."""
    found = dict(arguments)
    steps = {name: found.pop(name, {}) for name in ("place", "pad_to", "normalize")}
    names = dict.fromkeys(name for one in steps.values() for name in one)
    made = {n: Vector(**{key: one[n] for key, one in steps.items() if n in one}) for n in names}
    return {**found, "vectors": made} if made else found


def minimum_memory(make: Callable[..., object]) -> int:
    """Minimum `memory_limit` of a loader, from the error message for a smaller one."""
    with pytest.raises(MemoryLimitError, match="at least") as caught:
        make(memory_limit=1)
    return int(re.findall(r"at least (\d+) bytes", str(caught.value))[0])


def names(clip: dict[str, Any]) -> list[tuple[str, int]]:
    """Key and start of a clip, or of each clip of a batch."""
    if isinstance(clip["episode"], str):
        return [(clip["episode"], int(clip["start"]))]
    return list(zip(clip["episode"], clip["start"].tolist(), strict=True))


def all_names(items: Iterable[Any]) -> list[tuple[str, int]]:
    """Key and start of each clip of clips or batches."""
    return [name for item in items for name in names(item)]


def check_clip(
    clip: dict[str, Any], features: Sequence[str], length: int, dilation: int = 1
) -> list[tuple[str, int]]:
    """Assert that a clip or batch has the expected values; returns its names."""
    assert list(clip) == [*features, "episode", "start"]
    clips = names(clip)
    for feature in features:
        values = [clip[feature]] if isinstance(clip["episode"], str) else clip[feature]
        assert len(values) == len(clips)
        for value, (key, start) in zip(values, clips, strict=True):
            assert len(value) == length
            shape = tuple(value.shape[1:]) if feature == "image" else SMALL
            for i in range(length):
                expected = _frame(int(key[4:]), start + i * dilation, shape)[feature]
                got = value[i].numpy()
                assert got.dtype == expected.dtype
                assert np.array_equal(got, expected), (feature, key, start, i)
    return clips


def digest(clip: dict[str, Any]) -> tuple[Any, ...]:
    """A clip or batch as a value that can be compared."""
    return tuple(_plain(clip[name]) for name in clip)


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.numpy().tobytes())
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item) for item in value)
    return value


def peak_of(work: Callable[[], object]) -> int:
    """Peak of the bytes that `work` allocates through Python and NumPy."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@contextlib.contextmanager
def no_leaks() -> Iterator[None]:
    """Assert that no new thread, file descriptor or shared memory remains.

    Background threads may take a moment to end, longer on a busy machine.
    """
    ensure_running()  # multiprocessing's resource tracker stays once it is started
    gc.collect()

    before = _resources()
    yield
    gc.collect()
    patience = time.monotonic() + 30
    while (leaked := _resources() - before) and time.monotonic() < patience:
        time.sleep(0.01)
        gc.collect()  # releases objects of ended threads
    assert not leaked, leaked


def _resources() -> set[tuple[str, object]]:
    found: set[tuple[str, object]] = {("thread", t.name) for t in threading.enumerate()}
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(link.readlink())
            if "memfd:positions" not in target:  # of loaders that have had workers, as they live
                found.add(("fd", f"{link.name} {target}"))
    for file in Path("/dev/shm").iterdir():
        # torch_PID_…: of this process, or of an ended process that did not remove it.
        if (match := re.match(r"torch_(\d+)_", file.name)) is not None:
            alive = Path(f"/proc/{match[1]}").exists()
            if not alive or int(match[1]) == os.getpid():
                found.add(("shm", file.name))
    return found
