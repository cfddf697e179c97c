"""The memory of an iteration: rows for frames, batches to build, room for chunks as they are read.

`HostBuffers` and `DeviceBuffers` have it on the host or on a device; what uses it does not ask
where. The next iteration takes it over, for memory is expensive to touch anew.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.clips.grids import followed
from seqrecord.clips.tables import IntArray
from seqrecord.engine.arena import Arena, Packed, Rows, clips_of
from seqrecord.engine.batches import BatchBuilder, ClipRows, Copiers, Copy, do_nothing
from seqrecord.engine.calls import Calls, read_only
from seqrecord.engine.crops import frames_in
from seqrecord.engine.device.streams import SideStream, side_stream
from seqrecord.engine.pools import BufferPool, batch_pools
from seqrecord.engine.stats import EngineStats
from seqrecord.reading.frames import ArraySpec
from seqrecord.schema import FeatureSpec

_SCATTERED = 64 << 10  # bytes of a clip's feature; larger ones are copied with a call each
_COPY_BYTES = 4 << 20  # at least so many in one call, where several threads copy

_ArenaT = TypeVar("_ArenaT")


@dataclass(frozen=True)
class GroupNeeds:
    """Rows for the frames of a group of features."""

    specs: Mapping[str, ArraySpec]
    num_rows: int  # of the arena
    in_memory: str = ""  # the digest of the frames, of which each has a row and stays


@dataclass(frozen=True)
class Needs:
    """What an iteration needs memory for: rows of frames, and batches of clips."""

    groups: tuple[GroupNeeds, ...]
    specs: Mapping[str, ArraySpec]  # of the features of batches, in their order
    lengths: Mapping[str, int]  # frames of each of them in a clip
    batch_size: int  # clips
    num_batches: int  # that are ever in use at a time
    device: torch.device | None = None  # with its number; `None` for the host, without staging
    shared: bool = False  # batches are sent to another process
    decoded_there: tuple[FeatureSpec, ...] = ()  # videos that the device decodes, if it can


class ChunkBuffers:
    """Arrays for chunks as they are stored, one for each load under way; they grow as needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[npt.NDArray[np.uint8]] = []  # from the smallest to the largest

    def acquire(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """An array of at least so many bytes; release it when nothing refers to it any more."""
        with self._lock:
            fitting = bisect_left(self._idle, nbytes, key=len)
            if fitting < len(self._idle):
                return self._idle.pop(fitting)
            if self._idle:  # before its successor is there: both would be more than the limit
                self._idle.pop()
        return np.empty(nbytes, np.uint8)

    @property
    def largest(self) -> int:
        """Bytes of the largest array that nobody uses."""
        return len(self._idle[-1]) if self._idle else 0

    def release(self, buffer: npt.NDArray[np.uint8]) -> None:
        with self._lock:
            insort(self._idle, buffer, key=len)


class Buffers(Protocol[_ArenaT]):
    """The memory of an iteration. Methods are called by any of its threads."""

    needs: Needs
    chunks: ChunkBuffers
    arenas: Sequence[_ArenaT]
    """One a group of features: where loads go, and what a `BatchBuilder` gathers from."""
    is_fresh: bool
    """Rows take no memory of the host yet."""

    def begin(self, stats: EngineStats) -> None:
        """Called first, by the scheduler's thread. `stats` counts what crosses to a device."""

    def storing(self, target: Any, rows: IntArray) -> AbstractContextManager[tuple[Rows, IntArray]]:
        """A context for the thread that brings frames to rows of an arena, int64[n]: what to write
        them to, and in which rows, int64[n].

        They are in `rows` when a later `BatchBuilder.gather` reads these, unless the block raises.
        """

    def begin_batch(self, size: int) -> BatchBuilder[_ArenaT]:
        """A batch of so many clips."""

    def end(self) -> None:
        """Called last, by the scheduler's thread, when no other uses this memory any more."""


class HostBuffers:
    """Buffers on the host: frames are decoded into their rows, and copied from there by threads."""

    stream: None = None

    def __init__(self, needs: Needs) -> None:
        self.needs, self.is_fresh = needs, True
        self.chunks = ChunkBuffers()
        self.arenas: Sequence[Arena] = [
            Arena(group.specs, group.num_rows) for group in needs.groups
        ]
        self._pools = batch_pools(
            needs.specs, needs.batch_size, needs.lengths, needs.num_batches, shared=needs.shared
        )

    def begin(self, stats: EngineStats) -> None:
        """See `Buffers`; there is nothing to do."""

    def storing(self, target: Any, rows: IntArray) -> AbstractContextManager[tuple[Rows, IntArray]]:
        """See `Buffers`; these rows themselves."""
        return nullcontext((target, rows))

    def begin_batch(self, size: int) -> HostBatchBuilder:
        """See `Buffers`."""
        return HostBatchBuilder(size, self.needs.specs, self._pools)

    def end(self) -> None:
        """See `Buffers`."""
        self.is_fresh = False


class BufferCache:
    """Keeps the buffers of the last iteration for the next. A copy in another process is empty.

    So a loader holds the memory of an epoch until it is dropped, and never that of two.
    """

    def __init__(self) -> None:
        self._idle: deque[Buffers[Any]] = deque(maxlen=1)
        self._process = os.getpid()
        self._stream: SideStream | None = None

    def __reduce__(self) -> tuple[type[BufferCache], tuple[()]]:
        return BufferCache, ()

    def acquire(self, needs: Needs, make: Callable[[Needs], Buffers[Any]]) -> Buffers[Any]:
        """The buffers kept, if they are what is needed, else new ones once those are gone."""
        if self._process != os.getpid():  # what a fork has of them is the other process's
            self._idle.clear()
            self._process = os.getpid()
        try:
            kept = self._idle.pop()
            if kept.needs == needs:
                return kept
            del kept
        except IndexError:
            pass
        return make(needs)

    def stream(self, device: torch.device | None) -> SideStream | None:
        """The stream for buffers of a device, one for all iterations: what torch has of the memory
        of a stream, it gives to no other one."""
        if device is None:
            return None
        if self._stream is None or self._stream.device != device:
            self._stream = side_stream(device)
        return self._stream

    def release(self, buffers: Buffers[Any]) -> None:
        """Keep buffers that this process has acquired."""
        self._idle.append(buffers)


class HostBatchBuilder:
    """A batch of `size` clips in buffers of these pools, see `batch_pools`.

    Features are gathered, see `BatchBuilder`, or their frames are loaded straight into `rows`.
    """

    def __init__(
        self, size: int, specs: Mapping[str, ArraySpec], pools: Mapping[str, BufferPool]
    ) -> None:
        self.size = size
        self._specs = specs
        self._pools = pools
        fixed = [name for name, spec in specs.items() if spec.is_fixed]
        self._buffers = {name: pools[name].acquire() for name in fixed}
        self._variable: dict[str, Packed] = {}
        self._texts: dict[str, list[Any]] = {}  # a list for each clip
        for name, spec in specs.items():
            if spec.value != "array":
                self._texts[name] = [None] * size
            elif not spec.is_fixed:
                self._variable[name] = Packed(spec, pools[name])

    @property
    def rows(self) -> dict[str, npt.NDArray[Any]]:
        """The frames of all clips, one clip's after the other's: arrays [clips * frames, …]."""
        return {
            name: buffer.reshape(-1, *buffer.shape[2:]) for name, buffer in self._buffers.items()
        }

    def gather(
        self,
        slots: IntArray,
        sources: Sequence[ClipRows[Arena]],
        copiers: Copiers,
        calls: Calls | None = None,
    ) -> int:
        if calls is not None:
            copiers.copy(self._calls(slots, sources, calls))
            return 0
        parts, others = self._parts(slots, sources)
        others += self._crops(slots, sources)
        total = sum(part.out.nbytes for part in parts)
        if total + sum(other.nbytes for other in others) < _COPY_BYTES:
            # To hand copies to threads would take longer than to make them.
            for part in parts:
                part.copy()
            for other in others:
                other.do()
        else:
            copiers.copy([*others, *_pieces(parts, total, copiers.num_threads)])
        for source in sources:
            rows = source.rows.reshape(-1)
            for name in source.features:
                if name in self._texts:
                    found = clips_of(source.arena.find_list(name, rows), len(source.rows))
                    for at, texts in zip(slots.tolist(), found, strict=True):
                        self._texts[name][at] = texts
                elif name in self._variable:
                    for frame in source.arena.find_list(name, rows):
                        self._variable[name].append(frame)
        return 0

    def clear(self, feature: str, slots: npt.NDArray[np.int64]) -> None:
        """Fill the clips at these slots with 0, of a feature of a fixed shape."""
        self._buffers[feature][slots] = 0

    def finish(self) -> tuple[dict[str, Any], Callable[[], object]]:
        features: dict[str, Any] = {}
        for name in self._specs:
            if name in self._texts:
                features[name] = self._texts[name]
            elif name in self._variable:
                features[name] = self._variable[name].finish(self.size)
            else:
                features[name] = self._pools[name].lease(self._buffers[name], self.size)
        return features, do_nothing

    def _parts(
        self, slots: npt.NDArray[np.int64], sources: Sequence[ClipRows[Arena]]
    ) -> tuple[list[_RowCopy], list[Copy]]:
        """What is copied to the clips at these slots: a feature each, or a run of slots of it.

        Small clips whose slots lie apart go through memory of their own, in one copy.
        """
        parts, scattered = [], []
        runs = list(pairwise(followed(slots)))
        for source in sources:
            for name in source.features:
                buffer = self._buffers.get(name)
                if buffer is None or (source.crop is not None and name in source.crop.features):
                    continue
                nbytes = buffer.nbytes // len(buffer)
                if len(runs) > 1 and 0 < nbytes < _SCATTERED:
                    do = partial(_scatter, source.arena, name, source.rows, buffer, slots)
                    scattered.append(Copy(nbytes * len(slots), do))
                    continue
                for begin, stop in runs:
                    rows = source.rows[begin:stop].reshape(-1)
                    out = buffer[slots[begin] : slots[begin] + stop - begin]
                    out = out.reshape(len(rows), *buffer.shape[2:])
                    parts.append(_RowCopy(source.arena, name, rows, out))
        return parts, scattered

    def _crops(
        self, slots: npt.NDArray[np.int64], sources: Sequence[ClipRows[Arena]]
    ) -> Iterator[Copy]:
        """Copies of the windows of clips."""
        for source in sources:
            if (crop := source.crop) is None:
                continue
            for name in crop.features & self._buffers.keys() & set(source.features):
                for clip, rows in enumerate(source.rows):
                    out = self._buffers[name][slots[clip]]
                    do = partial(crop.copy, name, clip, source.arena[name], rows, out)
                    yield Copy(out.nbytes, do)

    def _calls(
        self, slots: npt.NDArray[np.int64], sources: Sequence[ClipRows[Arena]], calls: Calls
    ) -> Iterator[Copy]:
        """Calls of functions, a clip each: nobody knows how long one takes, so it is worth a
        thread."""
        for number, slot in enumerate(slots.tolist()):
            yield Copy(_COPY_BYTES, partial(self._call, slot, sources, calls, number))

    def _call(
        self, slot: int, sources: Sequence[ClipRows[Arena]], calls: Calls, number: int
    ) -> None:
        clip: dict[str, Any] = {}
        for source in sources:
            clip.update(_views(source, number))
        out = {name: buffer[slot] for name, buffer in self._buffers.items()}
        for name, texts in calls.make(number, clip, out).items():
            if name in self._texts:
                self._texts[name][slot] = texts


def _views(source: ClipRows[Arena], clip: int) -> Iterator[tuple[str, Any]]:
    """The features of a clip: views [frames, …], or lists of frames, that cannot be written to."""
    arena, rows = source.arena, source.rows[clip]
    for name in source.features:
        if source.crop is not None and name in source.crop.features:
            yield name, read_only(source.crop.view(name, clip, arena[name], rows))
        elif not arena.specs[name].is_fixed:
            yield name, [read_only(frame) for frame in arena.find_list(name, rows)]
        else:
            yield name, read_only(frames_in(arena[name], rows))


class _RowCopy(NamedTuple):
    """Rows of a feature, int64 [n], that go to `out`, [n, …]."""

    arena: Arena
    feature: str
    rows: npt.NDArray[np.int64]
    out: npt.NDArray[Any]

    def copy(self) -> None:
        self.arena.gather(self.feature, self.rows, self.out)


def _scatter(
    arena: Arena,
    feature: str,
    rows: npt.NDArray[np.int64],
    buffer: npt.NDArray[Any],
    slots: npt.NDArray[np.int64],
) -> None:
    """Copy clips, rows int64[clips, frames], to slots that lie apart."""
    clips = np.empty((len(slots), *buffer.shape[1:]), buffer.dtype)
    arena.gather(feature, rows.reshape(-1), clips.reshape(-1, *buffer.shape[2:]))
    # A clip as one item: NumPy copies these in one loop, whatever their shape.
    item = np.dtype((np.void, clips[0].nbytes))
    buffer.reshape(len(buffer), -1).view(item)[slots, 0] = clips.reshape(len(clips), -1).view(item)[
        :, 0
    ]


def _pieces(parts: Iterable[_RowCopy], left: int, threads: int) -> Iterator[Copy]:
    """Copies that together are those of `parts`, `left` bytes: large ones first, then smaller.

    So threads that take one after the other finish together, with few calls: after each a thread
    must get the GIL again, which other threads may hold for a while.
    """
    for part in sorted(parts, key=lambda part: -part.out.nbytes):
        row = part.out.nbytes // max(1, len(part.rows)) or 1
        start, count = 0, len(part.rows)
        while start < count:
            stop = start + max(1, max(_COPY_BYTES, left // threads) // row)
            if (count - stop) * row < _COPY_BYTES // 2:
                stop = count
            out = part.out[start:stop]
            piece = _RowCopy(part.arena, part.feature, part.rows[start:stop], out)
            yield Copy(out.nbytes, piece.copy)
            left -= out.nbytes
            start = stop
