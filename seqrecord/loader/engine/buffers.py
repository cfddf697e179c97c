"""Memory of an iteration: arenas, batches, and buffers for stored chunks.

`HostBuffers` has the interface of buffers on a device, see `loader.engine.devices`. The next
iteration reuses buffers, because touching new memory is expensive.
"""

from __future__ import annotations

import math
import mmap
import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.engine.arena import FORMS, Arena, Column, FeatureRows, PoolClasses, stacked
from seqrecord.loader.engine.batches import (
    NO_STEPS,
    BatchBuilder,
    BatchForm,
    ClipRows,
    Copiers,
    Copy,
    do_nothing,
)
from seqrecord.loader.engine.pools import BufferPool, FreshPool, HostArrays, view_of
from seqrecord.loader.engine.stats import EngineStats
from seqrecord.loader.frames.array_specs import ArraySpec
from seqrecord.loader.sampling.frame_sizes import MAX_LOADS
from seqrecord.store.bfloat16 import numbers_of
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.tables.grids import run_bounds

if TYPE_CHECKING:
    from seqrecord.loader.engine.calls import Calls
    from seqrecord.loader.engine.crops import ValuesChange
    from seqrecord.loader.engine.vectors import VectorStep, VectorSteps

_SCATTERED = 64 << 10  # bytes per clip and feature; larger ones get a call each
_COPY_BYTES = 4 << 20  # minimum per call, if several threads copy
_TASKS_PER_THREAD = 2  # of function calls, if a batch has more clips
_KEEP_SINGLE = 32  # single clips: those of a batch are deleted together

_ArenaT = TypeVar("_ArenaT")


@dataclass(frozen=True)
class GroupRows:
    """Arena size for a group of features."""

    specs: Mapping[str, ArraySpec]
    num_rows: int  # of the arena
    in_memory: str = ""  # digest of the resident frames; empty if none
    videos: tuple[FeatureSpec, ...] = ()  # for a device to decode


@dataclass(frozen=True)
class BufferNeeds:
    """Memory requirements of an iteration: arenas and batches."""

    groups: tuple[GroupRows, ...]
    specs: Mapping[str, ArraySpec]  # features of batches, in order
    lengths: Mapping[str, int]  # frames per clip
    batch_size: int  # clips
    num_batches: int  # in use at the same time
    device: torch.device | None = None  # with its number; `None`: host
    shared: bool = False  # batches are sent to another process
    most_frames: int | None = None  # of a batch, if frames of clips vary between batches
    num_chunks: int = MAX_LOADS  # stored chunks that the memory plan counts


class ChunkBuffers:
    """Arrays for stored chunks, one per load in progress. They grow as needed.

    More than `most_idle` loads may be in progress while arenas have no memory yet. Later loads keep
    so many arrays.
    """

    def __init__(self, most_idle: int) -> None:
        self._most_idle = most_idle
        self._lock = threading.Lock()
        self._idle: list[npt.NDArray[np.uint8]] = []  # ascending size
        self._all = HostArrays()

    @property
    def touched_bytes(self) -> int:
        """Bytes that take memory, of arrays in use and idle ones."""
        return self._all.touched_bytes

    def acquire(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return an array of at least `nbytes` bytes. Release it after its last use."""
        with self._lock:
            fitting = bisect_left(self._idle, nbytes, key=len)
            if fitting < len(self._idle):
                return self._idle.pop(fitting)
            if self._idle:  # before allocating the next: both would exceed the limit
                self._idle.pop()
        # Not np.empty: the allocator would keep the memory of a deleted array.
        memory = mmap.mmap(-1, max(1, nbytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        buffer = np.frombuffer(memory, np.uint8, nbytes)
        self._all.add(buffer)
        return buffer

    def release(self, buffer: npt.NDArray[np.uint8]) -> None:
        with self._lock:
            insort(self._idle, buffer, key=len)
            if len(self._idle) > self._most_idle:
                del self._idle[0]


def shapes_of(needs: BufferNeeds, form: BatchForm) -> dict[str, tuple[int, ...]]:
    """The shapes of features in one clip, for batches of this form."""
    return {
        name: form.shape(name, needs.lengths[name], [side or 0 for side in spec.shape])
        for name, spec in stacked(needs.specs).items()
    }


def most_numbers(needs: BufferNeeds) -> dict[str, int]:
    """The numbers of features in the largest batch."""
    return {
        name: (needs.most_frames or needs.batch_size * needs.lengths[name])
        * math.prod(side or 0 for side in spec.shape)
        for name, spec in stacked(needs.specs).items()
    }


class Buffers(Generic[_ArenaT]):
    """Memory of an iteration. Its methods are thread-safe.

    `arenas` has one arena per group: the target of loads, and the source of a `BatchBuilder`.
    `is_untouched` is true while the rows have not been touched, so that they take no host memory.
    """

    arenas: Sequence[_ArenaT]
    is_untouched = False

    def __init__(self, needs: BufferNeeds) -> None:
        self.needs = needs
        self.chunks = ChunkBuffers(needs.num_chunks)

    @property
    def touched_bytes(self) -> int:
        """Bytes of arenas, batches and stored chunks in this process's own host memory. Memory that
        nobody has touched takes none.
        """
        return self.chunks.touched_bytes

    def begin(self, stats: EngineStats) -> None:
        """Begin an iteration, in the scheduler's thread. `stats` counts transfers to a device."""

    def storing(
        self, target: Any, rows: IntArray
    ) -> AbstractContextManager[tuple[FeatureRows, IntArray]]:
        """Context for storing frames in rows of an arena, int64[n].

        Returns the rows to write to, and their numbers, int64[n]. A later `BatchBuilder.gather`
        reads the frames from `rows`, unless the block raises.
        """
        return nullcontext((target, rows))

    def begin_batch(self, size: int, form: BatchForm | None = None) -> BatchBuilder[_ArenaT]:
        """Begin a batch of `size` clips, of this form if batches differ."""
        raise NotImplementedError

    def end(self) -> None:
        """End the iteration, in the scheduler's thread, after all other threads."""


class HostBuffers(Buffers[Arena]):
    """Buffers in host memory. Frames are decoded into their rows, and copied by threads."""

    def __init__(self, needs: BufferNeeds) -> None:
        super().__init__(needs)
        self.is_untouched = True
        self.arenas = [Arena(group.specs, group.num_rows) for group in needs.groups]
        self._pools = _pools(needs)

    @property
    def touched_bytes(self) -> int:
        """See `Buffers`."""
        owners: Iterable[Arena | BufferPool] = (*self.arenas, *self._pools.values())
        return super().touched_bytes + sum(owner.touched_bytes for owner in owners)

    def begin_batch(self, size: int, form: BatchForm | None = None) -> HostBatchBuilder:
        """See `Buffers`."""
        shapes = None if form is None else shapes_of(self.needs, form)
        return HostBatchBuilder(size, self.needs.specs, self._pools, shapes)

    def end(self) -> None:
        """See `Buffers`."""
        self.is_untouched = False


def _pools(needs: BufferNeeds) -> dict[str, BufferPool]:
    """Create a pool per feature; text features need none.

    Batches for another process are sent without a copy. Frames of a variable shape are copied even
    then, and their memory is not reused.
    """
    size, lengths = needs.batch_size, needs.lengths
    packed = FreshPool if needs.shared else BufferPool
    classes = PoolClasses(pool_class(is_shared=needs.shared), packed)
    if needs.most_frames is not None:  # batches are views of one flat buffer
        size, lengths = needs.most_frames, dict.fromkeys(lengths, 1)
    keep = max(needs.num_batches, _KEEP_SINGLE) if size == 1 else needs.num_batches
    pools: dict[str, BufferPool] = {}
    for name, spec in needs.specs.items():
        pool = FORMS[spec.value_kind].pool(spec, (size, lengths[name]), keep, classes)
        if pool is not None:
            pools[name] = pool
    return pools


def pool_class(*, is_shared: bool) -> type[BufferPool]:
    """The class of pools; if `is_shared`, other processes receive their tensors without a copy."""
    if is_shared:
        from seqrecord.loader.engine.shared_pools import SharedBufferPool, can_share

        return SharedBufferPool if can_share() else BufferPool
    return BufferPool


class HostBatchBuilder:
    """A batch of `size` clips in buffers of pools; see `_pools`.

    Features are gathered, see `BatchBuilder`, or loaded directly into `rows`. With `shapes` of
    features in a clip, the batch is a view of the first numbers of a larger buffer.
    """

    def __init__(
        self,
        size: int,
        specs: Mapping[str, ArraySpec],
        pools: Mapping[str, BufferPool],
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self.size = size
        self._specs = specs
        self._pools = pools
        self._columns: dict[str, Column] = {}
        self._acquired: dict[str, npt.NDArray[Any]] = {}
        for name, spec in specs.items():
            if (form := FORMS[spec.value_kind]).is_stacked:
                self._acquired[name] = pools[name].acquire()
            else:
                self._columns[name] = form.column(spec, size, pools.get(name))
        self._shapes = None
        self._buffers = self._acquired
        if shapes is not None:
            self._shapes = {name: (size, *shapes[name]) for name in self._acquired}
            self._buffers = {
                n: view_of(whole, self._shapes[n]) for n, whole in self._buffers.items()
            }

    @property
    def rows(self) -> dict[str, npt.NDArray[Any]]:
        """Frames of all clips, clip by clip: arrays [clips * frames, …]."""
        return {
            name: buffer.reshape(-1, *buffer.shape[2:]) for name, buffer in self._buffers.items()
        }

    def gather(
        self,
        slots: IntArray,
        sources: Sequence[ClipRows[Arena]],
        copiers: Copiers,
        calls: Calls | None = None,
        vectors: VectorSteps = NO_STEPS,
    ) -> int:
        if calls is not None:
            copiers.copy(self._calls(slots, sources, calls, vectors, copiers.num_threads))
            return 0
        parts, copies = self._parts(slots, sources, vectors)
        copies += self._crops(slots, sources, vectors)
        copies += self._vectors(slots, sources, vectors)
        total = sum(part.out.nbytes for part in parts)
        if total + sum(copy.nbytes for copy in copies) < _COPY_BYTES:
            # Using threads would take longer than copying.
            for part in parts:
                part.copy()
            for copy in copies:
                copy.do()
        else:
            copiers.copy([*copies, *_pieces(parts, total, copiers.num_threads)])
        for source in sources if self._columns else ():
            for name in source.features:
                if (column := self._columns.get(name)) is not None:
                    frames = source.arena.find_list(name, source.rows.reshape(-1))
                    if source.crop is not None:
                        frames = source.crop.change_lists(name, frames, range(len(slots)))
                    column.gather(slots, frames)
        return 0

    def clear(self, feature: str, slots: npt.NDArray[np.int64]) -> None:
        """Fill slots of a feature with a fixed shape with 0."""
        self._buffers[feature][slots] = 0

    def finish(self) -> tuple[dict[str, Any], Callable[[], object]]:
        features: dict[str, Any] = {}
        for name in self._specs:
            if (column := self._columns.get(name)) is not None:
                features[name] = column.finish()
            else:
                shape = None if self._shapes is None else self._shapes[name]
                whole = self._acquired[name]
                features[name] = self._pools[name].lease(whole, self.size, shape)
        return features, do_nothing

    def _parts(
        self,
        slots: npt.NDArray[np.int64],
        sources: Sequence[ClipRows[Arena]],
        vectors: VectorSteps,
    ) -> tuple[list[_RowCopy], list[Copy]]:
        """Copies for slots without steps: one per feature, or per run of consecutive slots.

        Small clips with scattered slots are copied at once through a temporary array.
        """
        parts, scattered = [], []
        runs = list(pairwise(run_bounds(slots)))
        for source in sources:
            for name in source.features:
                buffer = self._buffers.get(name)
                if buffer is None or name in vectors:
                    continue
                if source.crop is not None and name in source.crop.features:
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
        self,
        slots: npt.NDArray[np.int64],
        sources: Sequence[ClipRows[Arena]],
        vectors: VectorSteps,
    ) -> Iterator[Copy]:
        """Copies of cropped windows, and of changed values without steps."""
        for source in sources:
            if (crop := source.crop) is None:
                continue
            names = crop.features - vectors.keys()
            for name in names & self._buffers.keys() & set(source.features):
                for clip, rows in enumerate(source.rows):
                    out = self._buffers[crop.target(name, clip)][slots[clip]]
                    memory, places = source_of(source.arena, name, rows)
                    do = partial(crop.copy, name, clip, memory, places, out)
                    yield Copy(out.nbytes, do)

    def _vectors(
        self, slots: IntArray, sources: Sequence[ClipRows[Arena]], vectors: VectorSteps
    ) -> Iterator[Copy]:
        """Steps of vectors, after changes of their values: one copy per feature, or per block of
        large ones.
        """
        for source in sources if vectors else ():
            for name in source.features:
                buffer = self._buffers.get(name)
                if buffer is None or (step := vectors.get(name)) is None:
                    continue
                change = None if source.crop is None else source.crop.changes.get(name)
                for block in step.blocks(source.rows):
                    rows, into = source.rows[block], slots[block]
                    of_block = None if change is None else change.take(block)
                    do = partial(_write, source.arena, name, rows, step, buffer, into, of_block)
                    yield Copy(buffer[0].nbytes * len(into), do)

    def _calls(
        self,
        slots: IntArray,
        sources: Sequence[ClipRows[Arena]],
        calls: Calls,
        vectors: VectorSteps,
        num_threads: int,
    ) -> Iterator[Copy]:
        """Function calls of some clips each. Their duration is unknown: all threads share them."""
        count = max(1, len(slots) // (_TASKS_PER_THREAD * num_threads))
        for start in range(0, len(slots), count):
            numbers = range(start, min(start + count, len(slots)))
            do = partial(self._call, slots, sources, calls, numbers, vectors)
            yield Copy(_COPY_BYTES, do)

    def _call(
        self,
        slots: IntArray,
        sources: Sequence[ClipRows[Arena]],
        calls: Calls,
        numbers: range,
        vectors: VectorSteps,
    ) -> None:
        for number in numbers:
            slot, clip = int(slots[number]), dict[str, Any]()
            for source in sources:
                clip.update(_values(source, number))
            out = {name: buffer[slot] for name, buffer in self._buffers.items()}
            for name, frames in calls.make(number, clip, out, vectors).items():
                if (column := self._columns.get(name)) is not None:
                    column.put(slot, frames)


def _values(source: ClipRows[Arena], clip: int) -> Iterator[tuple[str, Any]]:
    """Features of a clip, apart from the memory of rows: arrays [frames, …], or lists of frames."""
    # Copies, not read-only arrays: torch writes to these, too, which would change the rows, or end
    # the process where they are in a mapped file.
    from seqrecord.loader.engine.crops import frames_in

    arena, rows, crop = source.arena, source.rows[clip], source.crop
    for name in source.features:
        is_stacked = FORMS[arena.specs[name].value_kind].is_stacked
        if crop is not None and name in (crop.features if is_stacked else crop.parts):
            memory, places = source_of(arena, name, rows)
            frames = _apart(crop.view(name, clip, memory, places), memory)
            yield crop.target(name, clip), numbers_of(frames)
        elif is_stacked:
            memory, places = source_of(arena, name, rows)
            yield name, numbers_of(_apart(frames_in(memory, places), memory))
        else:
            values = arena.find_list(name, rows)
            values = values if crop is None else crop.change_lists(name, values, [clip])
            yield name, [numbers_of(v.copy()) if isinstance(v, np.ndarray) else v for v in values]


def _apart(frames: npt.NDArray[Any], memory: Any) -> npt.NDArray[Any]:
    """Frames that do not share `memory`."""
    is_array = isinstance(memory, np.ndarray)
    return frames.copy() if is_array and np.may_share_memory(frames, memory) else frames


def source_of(arena: Any, feature: str, rows: IntArray) -> tuple[Any, IntArray]:
    """Memory to copy from, and the places of a feature's rows in it."""
    return arena.source(feature, rows) if isinstance(arena, Arena) else (arena[feature], rows)


class _RowCopy(NamedTuple):
    """A copy of rows, int64 [n], of a feature to `out`, [n, …]."""

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
    """Copy clips, rows int64[clips, frames], to scattered slots."""
    clips = np.empty((len(slots), *buffer.shape[1:]), buffer.dtype)
    arena.gather(feature, rows.reshape(-1), clips.reshape(-1, *buffer.shape[2:]))
    _put(clips, buffer, slots)


def _write(
    arena: Arena,
    feature: str,
    rows: npt.NDArray[np.int64],
    step: VectorStep,
    buffer: npt.NDArray[Any],
    slots: npt.NDArray[np.int64],
    change: ValuesChange | None,
) -> None:
    """Write the result of a step for clips, rows int64[clips, frames], to slots. The step follows
    a `change` of the clips' values.
    """
    shape: tuple[int, ...] = step.given.shape  # type: ignore[assignment]
    values = np.empty((*rows.shape, *shape), step.given.dtype)
    arena.gather(feature, rows.reshape(-1), values.reshape(-1, *shape))
    if change is not None:
        values = change.view_all(values)
    start = int(slots[0])
    if int(slots[-1]) - start == len(slots) - 1:
        step.write(values, buffer[start : start + len(slots)])
    else:
        results = np.empty((len(slots), *buffer.shape[1:]), buffer.dtype)
        step.write(values, results)
        _put(results, buffer, slots)


def _put(clips: npt.NDArray[Any], buffer: npt.NDArray[Any], slots: npt.NDArray[np.int64]) -> None:
    """Copy clips to scattered slots."""
    # With a clip as one item, NumPy copies all clips in one loop.
    item = np.dtype((np.void, clips[0].nbytes))
    buffer.reshape(len(buffer), -1).view(item)[slots, 0] = clips.reshape(len(clips), -1).view(item)[
        :, 0
    ]


def _pieces(parts: Iterable[_RowCopy], remaining_bytes: int, threads: int) -> Iterator[Copy]:
    """Divide the copies `parts`, `left` bytes in total, into pieces of decreasing size.

    Threads that take one piece after the other then finish together, with few calls. After each
    call a thread waits for the GIL.
    """
    for part in sorted(parts, key=lambda part: -part.out.nbytes):
        row = part.out.nbytes // max(1, len(part.rows)) or 1
        start, count = 0, len(part.rows)
        while start < count:
            stop = start + max(1, max(_COPY_BYTES, remaining_bytes // threads) // row)
            if (count - stop) * row < _COPY_BYTES // 2:
                stop = count
            out = part.out[start:stop]
            piece = _RowCopy(part.arena, part.feature, part.rows[start:stop], out)
            yield Copy(out.nbytes, piece.copy)
            remaining_bytes -= out.nbytes
            start = stop
