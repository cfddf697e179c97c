"""Memory of batches, and of a device: what fails, what is waited for, how much there is."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch

from seqrecord.engine.arena import Arena
from seqrecord.engine.batches import BatchBuilder, ClipRows, Copy, OpenBatch
from seqrecord.engine.buffers import (
    BufferCache,
    BufferNeeds,
    ChunkBuffers,
    GroupRows,
)
from seqrecord.engine.device.buffers import DeviceArena, DeviceBatchBuilder, DeviceBuffers
from seqrecord.engine.device.streams import QueueLimit, Staging, streams_of
from seqrecord.engine.pools import page_aligned
from seqrecord.engine.stats import EngineStats
from seqrecord.reading.frames import ArraySpec
from seqrecord.sampling import Clips
from tests.side_streams import LateStream, OutrunStream, make_stream

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
LENGTHS = dict.fromkeys(SPECS, 2)


def device_buffers(num_rows: int, size: int, stream: Any) -> DeviceBuffers:
    """Buffers for batches of `size` clips, on the CPU as a device with this stream."""
    rows, device = (GroupRows(SPECS, num_rows),), torch.device("cpu")
    with streams_of("cpu", lambda _: stream):
        return DeviceBuffers(BufferNeeds(rows, SPECS, LENGTHS, size, 4, device))


@cache
def frame(number: int) -> dict[str, Any]:
    """A frame whose arrays are like no other's."""
    rng = np.random.default_rng(number)
    frame = {}
    for name, spec in SPECS.items():
        shape: Any = spec.shape if spec.is_fixed else (1 + number % 3,)
        frame[name] = rng.integers(0, 200, shape).astype(spec.dtype)
    return frame


def write(target: Any, numbers: Iterable[int]) -> None:
    """Write these frames to rows from 0 on."""
    for row, number in enumerate(numbers):
        for name, array in frame(number).items():
            if SPECS[name].is_fixed:
                target[name][row] = array
            else:
                [made] = target[name].make(row, [array.shape])
                made[...] = array


class ThisThread:
    """`Copiers` that copy in the thread that asks for it."""

    num_threads = 1

    def copy(self, copies: Iterable[Copy]) -> None:
        for copy in copies:
            copy.do()


def test_a_batch_that_has_memory_waits_for_no_other_one() -> None:
    """Another source of a mix may wait for the device, with the lock that batches share."""
    lock = threading.Lock()
    builder: Any = object()
    batch = OpenBatch(1, lambda: builder, lock)
    batch.allocate()
    with ThreadPoolExecutor(1) as pool, lock:
        assert pool.submit(batch.allocate).result(timeout=10) is builder


def opened(builder: BatchBuilder[Any], size: int) -> OpenBatch:
    return OpenBatch(size, lambda: builder, threading.Lock())


def test_the_arena_of_a_device_takes_what_that_of_the_host_takes() -> None:
    fixed = {name: SPECS[name] for name in FIXED}
    assert DeviceArena(SPECS, 7, Staging(make_stream("cpu"))).nbytes == Arena(fixed, 7).nbytes


def test_a_load_that_fails_stores_nothing() -> None:
    buffers, stats = device_buffers(12, 4, LateStream()), EngineStats()
    buffers.begin(stats)
    with pytest.raises(ZeroDivisionError), buffers.storing(buffers.arenas[0], np.arange(2)):
        raise ZeroDivisionError
    buffers.end()
    assert stats.device_bytes == stats.device_seconds == 0


def test_buffers_of_another_size_have_the_stream_of_those_before() -> None:
    """Torch gives the memory that those had to no other stream."""
    kept, device, made = BufferCache(), torch.device("cpu"), []

    def make(_: torch.device) -> LateStream:
        made.append(LateStream())
        return made[-1]

    with streams_of("cpu", make):
        for num_rows in (4, 5):
            needs = BufferNeeds((GroupRows(SPECS, num_rows),), SPECS, LENGTHS, 2, 4, device)
            buffers = kept.acquire(needs, partial(DeviceBuffers, stream=kept.stream(device)))
            assert buffers.arenas[0].num_rows == num_rows
            kept.release(buffers)
    assert len(made) == 1


def test_the_consumer_is_given_all_of_a_batch() -> None:
    stream = LateStream()
    arena = DeviceArena(SPECS, 4, Staging(stream))
    with arena.stage(np.arange(4)) as staged:
        write(staged, range(4))
    batch = opened(DeviceBatchBuilder(2, LENGTHS, SPECS, stream, QueueLimit()), 2)
    slots = np.arange(2)
    parts = [ClipRows(arena, np.array([[0, 1], [2, 3]]), list(arena.specs))]
    batch.allocate().gather(slots, parts, ThisThread())
    batch.name(slots, Clips(*[slots] * 7), 0)
    made = batch.finish()
    made.arrive()
    (tensors,) = stream.given
    assert {id(made.features[name]) for name in FIXED} <= {id(t) for t in tensors}
    assert len(tensors) == len(FIXED) + 4  # and four columns


def test_batches_do_not_outrun_the_device_of_the_consumer() -> None:
    """A batch begins only when the device has come to the last but one that was taken."""
    waited: list[int] = []
    buffers = device_buffers(4, 1, OutrunStream(waited))
    for number in range(6):
        opened(buffers.begin_batch(1), 1).finish().arrive()
        assert waited == list(range(max(0, number - 1)))


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
