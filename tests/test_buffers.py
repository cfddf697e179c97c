"""Host and device give the same batches of the same loads: one contract for both kinds of buffers.

Tests of a device run on every kind of stream that there is here, see `side_streams`.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqrecord.engine.arena import Arena, for_users
from seqrecord.engine.batches import Batch, BatchBuilder, ClipRows, Copy, OpenBatch
from seqrecord.engine.buffers import (
    Buffers,
    ChunkBuffers,
    GroupNeeds,
    HostBatchBuilder,
    HostBuffers,
    Needs,
)
from seqrecord.engine.device.buffers import DeviceArena, DeviceBatchBuilder, DeviceBuffers
from seqrecord.engine.device.streams import QueueLimit, Staging, find_device, streams_of
from seqrecord.engine.pools import batch_pools, page_aligned
from seqrecord.engine.stats import EngineStats
from seqrecord.reading.frames import ArraySpec
from tests.side_streams import STREAMS, LateStream, OutrunStream, make_stream

SPECS = {
    "image": ArraySpec(np.dtype("u1"), (3, 5)),  # 15 bytes: words of one
    "flow": ArraySpec(np.dtype("<f4"), (2, 3)),  # 24: words of eight
    "short": ArraySpec(np.dtype("<u2"), (3,)),
    "flag": ArraySpec(np.dtype("?"), ()),
    "note": ArraySpec(np.dtype("u1"), (None,), largest=3),
    "empty": ArraySpec(np.dtype("<f4"), (0, 2)),
    "step": ArraySpec(np.dtype("<i8"), ()),
}
FIXED = [name for name, spec in SPECS.items() if spec.is_fixed]
GROUPS = [("image", "note"), ("flow", "empty", "flag"), ("short", "step")]
NUM_ROWS, CLIP_LEN = 12, 2
LENGTHS = dict.fromkeys(SPECS, CLIP_LEN)


def needs_of(
    groups: Sequence[Iterable[str]], num_rows: int, size: int, device: Any = None
) -> Needs:
    """What batches of `size` clips need, of features in these groups."""
    rows = tuple(GroupNeeds({name: SPECS[name] for name in group}, num_rows) for group in groups)
    return Needs(rows, SPECS, LENGTHS, size, 4, device)


@contextmanager
def make(kind: str, groups: Sequence[Iterable[str]] = (SPECS,)) -> Iterator[Buffers[Any]]:
    """Buffers on the host, or on a device with a stream of this kind."""
    if kind == "host":
        yield HostBuffers(needs_of(groups, NUM_ROWS, 4))
        return
    device, stream = find_device("cpu" if kind == "late" else kind), make_stream(kind)
    with streams_of(device.type, lambda _: stream):
        yield DeviceBuffers(needs_of(groups, NUM_ROWS, 4, device))


@cache
def frame(number: int) -> dict[str, Any]:
    """A frame whose arrays are like no other's."""
    rng = np.random.default_rng(number)
    frame = {}
    for name, spec in SPECS.items():
        shape: Any = spec.shape if spec.is_fixed else (1 + number % 3,)
        frame[name] = rng.integers(0, 200, shape).astype(spec.dtype)
    return frame


def write(
    target: Any, rows: Iterable[int], numbers: list[int], names: Iterable[str] = SPECS
) -> int:
    """Write features of these frames to rows; how many bytes they are."""
    nbytes = 0
    for row, number in zip(rows, numbers, strict=True):
        for name in names:
            array = frame(number)[name]
            if SPECS[name].is_fixed:
                target[name][row] = array
            else:
                [made] = target[name].make(row, [array.shape])
                made[...] = array
            nbytes += array.nbytes
    return nbytes


class ThisThread:
    """`Copiers` that copy in the thread that asks for it."""

    num_threads = 1

    def copy(self, copies: Iterable[Copy]) -> None:
        for copy in copies:
            copy.do()


def opened(builder: BatchBuilder[Any], size: int) -> OpenBatch:
    return OpenBatch(size, lambda: builder, threading.Lock())


def gather(batch: OpenBatch, sources: Sequence[tuple[Any, list[list[int]]]], first: int) -> int:
    """Gather clips from rows of arenas."""
    slots = np.arange(first, first + len(sources[0][1]))
    parts = [ClipRows(arena, np.array(rows), list(arena.specs)) for arena, rows in sources]
    nbytes = batch.builder.gather(slots, parts, ThisThread())
    batch.name(slots, slots, np.full(len(slots), 7), 0)
    return nbytes


def check(batch: Batch, clips: list[list[int]], device: torch.device) -> None:
    """The clips of a batch have the frames of these numbers."""
    batch.arrive()
    assert list(batch.features) == list(SPECS)
    assert batch.episode.tolist() == list(range(len(clips)))
    assert batch.start.tolist() == [7] * len(clips)
    features = for_users(batch.features, ())
    for name, spec in SPECS.items():
        assert len(features[name]) == len(clips)
        for i, numbers in enumerate(clips):
            for k, number in enumerate(numbers):
                got = features[name][i][k]
                assert got.device == device
                assert got.cpu().numpy().dtype == spec.dtype
                np.testing.assert_array_equal(got.cpu().numpy(), frame(number)[name])


@settings(deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("groups", [[list(SPECS)], GROUPS], ids=["one group", "three groups"])
@pytest.mark.parametrize("kind", ["host", *STREAMS])
def test_what_is_gathered_was_loaded(
    kind: str, groups: list[list[str]], data: st.DataObject
) -> None:
    """Against a model, with rows that are loaded again and again while batches are under way.

    Each group's arena gets the same frames, in other loads and other rows.
    """
    with make(kind, groups) as buffers:
        stats = EngineStats()
        buffers.begin(stats)
        held: list[dict[int, int]] = [{} for _ in groups]  # by group: row of a frame, by its number
        crossed = 0
        under_way: list[tuple[Batch, list[list[int]]]] = []
        for turn in range(data.draw(st.integers(1, 6))):
            some = list(range(5 * turn, 5 * turn + data.draw(st.integers(1, 5))))
            for group, arena, rows_of in zip(groups, buffers.arenas, held, strict=True):
                numbers = list(some)
                row = data.draw(st.integers(0, NUM_ROWS - 1))
                while numbers:
                    count = data.draw(st.integers(1, len(numbers)))
                    part, numbers = numbers[:count], numbers[count:]
                    rows = (row + np.arange(count)) % NUM_ROWS  # around the ring's end
                    row += count
                    for number in [n for n, at in rows_of.items() if at in rows]:
                        del rows_of[number]
                    rows_of.update(zip(part, rows.tolist(), strict=True))
                    with buffers.storing(arena, rows) as (target, places):
                        crossed += write(target, places.tolist(), part, group)
            common = sorted(set.intersection(*map(set, held)))
            clip = st.lists(st.sampled_from(common), min_size=CLIP_LEN, max_size=CLIP_LEN)
            clips = data.draw(st.lists(clip, min_size=1, max_size=4))
            builder = opened(buffers.begin_batch(len(clips)), len(clips))
            cut, done = data.draw(st.integers(0, len(clips))), 0
            for gathered in (clips[:cut], clips[cut:]):
                if gathered:
                    sources = [
                        (arena, [[rows_of[number] for number in numbers] for numbers in gathered])
                        for arena, rows_of in zip(buffers.arenas, held, strict=True)
                    ]
                    nbytes = 8 * CLIP_LEN * len(gathered) * len(groups)
                    assert gather(builder, sources, done) == (0 if kind == "host" else nbytes)
                    done += len(gathered)
            under_way.append((builder.finish(), clips))
        device = buffers.needs.device or torch.device("cpu")
        for batch, numbers_of in under_way:
            check(batch, numbers_of, device)
        buffers.end()
        assert stats.device_bytes == (0 if kind == "host" else crossed)


@pytest.mark.parametrize("kind", ["host", *STREAMS])
def test_a_batch_of_several_arenas(kind: str) -> None:
    """Of two datasets, and of two arenas that hold different features of one."""
    stream = make_stream("cpu" if kind == "host" else kind)
    staging = Staging(stream)
    some = {name: SPECS[name] for name in ("flow", "note")}
    rest = {name: spec for name, spec in SPECS.items() if name not in some}
    arenas: list[Any] = [
        Arena(specs, 4) if kind == "host" else DeviceArena(specs, 4, staging)
        for specs in (SPECS, some, rest)
    ]
    builder = opened(
        HostBatchBuilder(3, SPECS, batch_pools(SPECS, 3, LENGTHS, keep=1))
        if kind == "host"
        else DeviceBatchBuilder(3, LENGTHS, SPECS, stream, QueueLimit()),
        3,
    )
    for arena, numbers in zip(arenas, ([0, 1, 2, 3], [4, 5, 6, 7], [4, 5, 6, 7]), strict=True):
        if isinstance(arena, Arena):
            write(arena, range(4), numbers, arena.specs)
        else:
            with arena.stage(np.arange(4)) as staged:
                write(staged, range(4), numbers, arena.specs)
    gather(builder, [(arenas[0], [[1, 0]])], 0)
    gather(builder, [(arenas[1], [[2, 2]]), (arenas[2], [[2, 2]])], 1)
    gather(builder, [(arenas[0], [[2, 3]])], 2)
    check(builder.finish(), [[1, 0], [6, 6], [2, 3]], stream.device)


def test_the_arena_of_a_device_takes_what_that_of_the_host_takes() -> None:
    fixed = {name: SPECS[name] for name in FIXED}
    assert DeviceArena(SPECS, 7, Staging(make_stream("cpu"))).nbytes == Arena(fixed, 7).nbytes


def test_a_load_that_fails_stores_nothing() -> None:
    with make("late") as buffers:
        stats = EngineStats()
        buffers.begin(stats)
        with pytest.raises(ZeroDivisionError), buffers.storing(buffers.arenas[0], np.arange(2)):
            raise ZeroDivisionError
        buffers.end()
        assert stats.device_bytes == stats.device_seconds == 0


def test_the_consumer_is_given_all_of_a_batch() -> None:
    stream = LateStream()
    arena = DeviceArena(SPECS, 4, Staging(stream))
    with arena.stage(np.arange(4)) as staged:
        write(staged, range(4), [0, 1, 2, 3])
    builder = opened(DeviceBatchBuilder(2, LENGTHS, SPECS, stream, QueueLimit()), 2)
    gather(builder, [(arena, [[0, 1], [2, 3]])], 0)
    batch = builder.finish()
    batch.arrive()
    (tensors,) = stream.given
    assert {id(batch.features[name]) for name in FIXED} <= {id(t) for t in tensors}
    assert len(tensors) == len(FIXED) + 4  # and four notes


def test_batches_do_not_outrun_the_device_of_the_consumer() -> None:
    """A batch begins only when the device has come to the last but two that were taken."""
    waited: list[int] = []
    with streams_of("cpu", lambda _: OutrunStream(waited)):
        buffers = DeviceBuffers(needs_of([SPECS], 4, 1, torch.device("cpu")))
    for number in range(6):
        opened(buffers.begin_batch(1), 1).finish().arrive()
        assert waited == list(range(max(0, number - 2)))


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 480, 640)])
@pytest.mark.parametrize("dtype", ["u1", "<f4", "<i8"])
def test_memory_begins_at_a_page(shape: tuple[int, ...], dtype: str) -> None:
    array = page_aligned(shape, np.dtype(dtype))
    assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
    assert array.flags.c_contiguous
    assert not array.size or array.ctypes.data % mmap.PAGESIZE == 0
    array[...] = 7
    assert (array == 7).all()


def test_room_for_chunks_grows_only_where_none_is_large_enough() -> None:
    chunks = ChunkBuffers()
    small, large = chunks.acquire(10), chunks.acquire(100)
    chunks.release(large)
    chunks.release(small)
    assert chunks.acquire(8) is small
    assert chunks.acquire(8) is large
    chunks.release(small)
    chunks.release(large)
    larger = chunks.acquire(101)  # in the place of one of the two
    assert len(larger) == 101
    assert chunks.acquire(1) is small
    assert len(chunks.acquire(1)) == 1
