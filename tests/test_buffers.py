"""Host and device give the same batches of the same loads: one contract for both kinds of buffers.

Tests of a device run on every kind of stream that there is here, see `side_streams`.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqrecord.engine.arena import Arena, Place, page_aligned
from seqrecord.engine.batches import Batch, BatchBuilder, Copy, HostBatchBuilder, batch_pools
from seqrecord.engine.buffers import Buffers, HostBuffers, Needs
from seqrecord.engine.device.arena import DeviceArena
from seqrecord.engine.device.buffers import DeviceBatchBuilder, DeviceBuffers
from seqrecord.engine.device.streams import RunAhead, find_device, streams_of
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
NUM_ROWS, CLIP_LEN = 12, 2


@contextmanager
def make(kind: str) -> Iterator[Buffers[Any]]:
    """Buffers on the host, or on a device with a stream of this kind."""
    if kind == "host":
        yield HostBuffers(Needs(SPECS, NUM_ROWS, 4, CLIP_LEN, 4))
        return
    device, stream = find_device("cpu" if kind == "late" else kind), make_stream(kind)
    with streams_of(device.type, lambda _: stream):
        yield DeviceBuffers(Needs(SPECS, NUM_ROWS, 4, CLIP_LEN, 4, device))


class OneThread:
    """Copies at once."""

    num_threads = 1

    def copy(self, copies: Iterable[Copy]) -> None:
        for copy in copies:
            copy.do()


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


def gather(builder: BatchBuilder[Any], arena: Any, clips: list[list[int]], first: int) -> int:
    nbytes = builder.gather(arena, np.array(clips), OneThread())
    builder.append(np.arange(first, first + len(clips)), np.full(len(clips), 7))
    return nbytes


def check(batch: Batch, clips: list[list[int]], device: torch.device) -> None:
    """The clips of a batch have the frames of these numbers."""
    batch.arrive()
    assert list(batch.features) == list(SPECS)
    assert batch.episode.tolist() == list(range(len(clips)))
    assert batch.start.tolist() == [7] * len(clips)
    for name, spec in SPECS.items():
        assert len(batch.features[name]) == len(clips)
        for i, numbers in enumerate(clips):
            for k, number in enumerate(numbers):
                got = batch.features[name][i][k]
                assert got.device == device
                assert got.cpu().numpy().dtype == spec.dtype
                np.testing.assert_array_equal(got.cpu().numpy(), frame(number)[name])


@settings(deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("kind", ["host", *STREAMS])
def test_what_is_gathered_was_loaded(kind: str, data: st.DataObject) -> None:
    """Against a model, with rows that are loaded again and again while batches are under way."""
    with make(kind) as buffers:
        stats = EngineStats()
        buffers.begin(stats)
        held: dict[int, int] = {}  # row: number of its frame
        loaded = crossed = 0
        under_way: list[tuple[Batch, list[list[int]]]] = []
        for _ in range(data.draw(st.integers(1, 6))):
            for _ in range(data.draw(st.integers(1, 3))):
                first, count = data.draw(st.integers(0, NUM_ROWS - 1)), data.draw(st.integers(1, 5))
                rows = (first + np.arange(count)) % NUM_ROWS  # around the ring's end
                numbers = list(range(loaded, loaded := loaded + count))
                held.update(zip(rows.tolist(), numbers, strict=True))
                place = Place(buffers.arena, np.arange(count), rows)
                with buffers.storing([place]) as [target]:
                    assert target.frames.tolist() == list(range(count))
                    crossed += write(target.target, target.rows.tolist(), numbers)
            clip = st.lists(st.sampled_from(sorted(held)), min_size=CLIP_LEN, max_size=CLIP_LEN)
            clips = data.draw(st.lists(clip, min_size=1, max_size=4))
            builder = buffers.begin_batch(len(clips))
            cut, done = data.draw(st.integers(0, len(clips))), 0
            for part in (clips[:cut], clips[cut:]):
                if part:
                    assert not builder.is_full
                    nbytes = gather(builder, buffers.arena, part, done)
                    assert nbytes == (0 if kind == "host" else 8 * CLIP_LEN * len(part))
                    done += len(part)
            assert builder.is_full
            under_way.append((builder.finish(), [[held[row] for row in rows] for rows in clips]))
        device = buffers.needs.device or torch.device("cpu")
        for batch, numbers_of in under_way:
            check(batch, numbers_of, device)
        buffers.end()
        assert stats.device_bytes == (0 if kind == "host" else crossed)


@pytest.mark.parametrize("kind", ["host", *STREAMS])
def test_a_batch_of_several_arenas(kind: str) -> None:
    """Of two data sets, and of two arenas that hold different features of one."""
    stream = make_stream("cpu" if kind == "host" else kind)
    some = {name: SPECS[name] for name in ("flow", "note")}
    rest = {name: spec for name, spec in SPECS.items() if name not in some}
    arenas: list[Any] = [
        Arena(specs, 4) if kind == "host" else DeviceArena(specs, 4, stream)
        for specs in (SPECS, some, rest)
    ]
    builder: BatchBuilder[Any] = (
        HostBatchBuilder(3, SPECS, batch_pools(SPECS, 3, CLIP_LEN, keep=1))
        if kind == "host"
        else DeviceBatchBuilder(3, CLIP_LEN, SPECS, stream, RunAhead())
    )
    for arena, numbers in zip(arenas, ([0, 1, 2, 3], [4, 5, 6, 7], [4, 5, 6, 7]), strict=True):
        if isinstance(arena, Arena):
            write(arena, range(4), numbers, arena.specs)
        else:
            with arena.stage(np.arange(4)) as staged:
                write(staged, range(4), numbers, arena.specs)
                staged.store()
    gather(builder, arenas[0], [[1, 0]], 0)
    for arena in arenas[1:]:
        builder.gather(arena, np.array([[2, 2]]), OneThread())
    builder.append(np.array([1]), np.array([7]))
    gather(builder, arenas[0], [[2, 3]], 2)
    assert builder.is_full
    check(builder.finish(), [[1, 0], [6, 6], [2, 3]], stream.device)


def test_the_arena_of_a_device_takes_what_that_of_the_host_takes() -> None:
    fixed = {name: SPECS[name] for name in FIXED}
    assert DeviceArena(SPECS, 7, make_stream("cpu")).nbytes == Arena(fixed, 7).nbytes


def test_a_load_that_fails_stores_nothing() -> None:
    with make("late") as buffers:
        stats = EngineStats()
        buffers.begin(stats)
        place = Place(buffers.arena, np.arange(2), np.arange(2))
        with pytest.raises(ZeroDivisionError), buffers.storing([place]):
            raise ZeroDivisionError
        buffers.end()
        assert stats.device_bytes == stats.device_seconds == 0


def test_the_consumer_is_given_all_of_a_batch() -> None:
    stream = LateStream()
    arena = DeviceArena(SPECS, 4, stream)
    with arena.stage(np.arange(4)) as staged:
        write(staged, range(4), [0, 1, 2, 3])
        staged.store()
    builder = DeviceBatchBuilder(2, CLIP_LEN, SPECS, stream, RunAhead())
    gather(builder, arena, [[0, 1], [2, 3]], 0)
    batch = builder.finish()
    batch.arrive()
    (tensors,) = stream.given
    assert {id(batch.features[name]) for name in FIXED} <= {id(t) for t in tensors}
    assert len(tensors) == len(FIXED) + 4  # and four notes


def test_batches_do_not_outrun_the_device_of_the_consumer() -> None:
    """A batch begins only when the device has come to the last but two that were taken."""
    waited: list[int] = []
    with streams_of("cpu", lambda _: OutrunStream(waited)):
        buffers = DeviceBuffers(Needs(SPECS, 4, 1, CLIP_LEN, 4, torch.device("cpu")))
    for number in range(6):
        buffers.begin_batch(1).finish().arrive()
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
