"""Random access: reads all clips of a call at once, into reused memory.

Each frame of the call is read once, into a row, and copied from there to its clips::

    resident    a row for each frame of the selected episodes: small raw features that fit
    others      a row for each frame of the call
    large       directly into the first clip of the batch; copied to the others
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from seqrecord.errors import SeqRecordError
from seqrecord.loader.engine.arena import (
    Arena,
    FeatureRows,
    RaggedFrames,
    for_users,
    nested,
    squeeze,
    stacked,
)
from seqrecord.loader.engine.batches import CallThreads, ClipDraws, ClipRows, Copy, repeats
from seqrecord.loader.engine.buffers import BufferNeeds, HostBuffers
from seqrecord.loader.engine.calls import as_arrays
from seqrecord.loader.engine.chunk_loader import ChunkLoader, Wanted
from seqrecord.loader.engine.pools import divide
from seqrecord.loader.engine.stats import EngineStats
from seqrecord.loader.engine.stores import first_rows
from seqrecord.loader.pipes.collating import ClipSequence
from seqrecord.loader.pipes.distributed import worker_threads
from seqrecord.loader.pipes.memory import features_in_memory, frames_in_memory, spare_memory
from seqrecord.loader.pipes.needed import all_bytes
from seqrecord.loader.pipes.view import View
from seqrecord.store.clips.frames import ClipFrames, ClipKeys
from seqrecord.store.clips.grids import frame_keys, run_bounds, split_keys
from seqrecord.store.clips.tables import IntArray
from seqrecord.store.format.pages import slice_frames
from seqrecord.store.processes.forks import PerProcess
from seqrecord.store.reading.array_specs import ArraySpec
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.storage.chunk_store import ChunkStore
from seqrecord.store.units import parse_size

_BLOCK_BYTES = 128 << 10  # of small frames, read at once: as many as Linux reads ahead
_KEEP = 3  # batches that nobody uses


@dataclass(frozen=True, eq=False)
class _FeatureSet:
    """Features that are loaded together, and a dataset with only them.

    `features` maps numbers of `ClipReader._alike` to names: in a clip, features of one number have
    the same frames.
    """

    dataset: Dataset
    features: Mapping[int, Sequence[str]]
    specs: Mapping[str, ArraySpec]  # of features whose frames go to rows of an arena
    straight: Sequence[str] = ()  # features whose frames go to their place in the batch
    is_small: bool = False  # one thread loads all frames of a group
    in_memory: Arena | None = None
    _idle: deque[Arena] = field(default_factory=partial(deque[Arena], maxlen=1))

    def acquire(self, num_rows: int) -> Arena:
        """Memory of at least `num_rows` rows for one call."""
        with suppress(IndexError):
            if (arena := self._idle.pop()).num_rows >= num_rows:
                return arena
        return Arena(self.specs, num_rows)

    def release(self, arena: Arena) -> None:
        """Keep an arena for the next call."""
        self._idle.append(arena)


class ClipReader:
    """Reads clips of a view by number. Thread-safe. Picklable; copies start without memory.

    The clips of a call are adjacent in memory, so `collate` returns them as a batch without
    copying. Each frame is read and decoded once per call. Small raw features, encoded features and
    the results of a deterministic `frame_transform` stay in memory once read if all their frames
    fit into `memory_limit` bytes. The rest of these bytes holds chunks of remote storage.
    """

    def __init__(self, view: View, memory_limit: int | str) -> None:
        self._view = view
        self._memory_limit = memory_limit
        num_frames = view.dataset.contents.episode_table.num_frames
        self._first_row = first_rows(num_frames, view.episode_rows)
        self._alike = view.clip_frames.by_window(view.arrays)
        self._sets = _sets_of(view, self._alike, parse_size(memory_limit))
        self._buffers = PerProcess(dict[bool, HostBuffers])  # for one clip, and for several
        self._filling = PerProcess(threading.Lock)  # while resident frames are read
        self._num_threads = PerProcess(worker_threads)
        self.stats = PerProcess(EngineStats)
        self._begun = PerProcess(list[bool])

    def __reduce__(self) -> tuple[Any, ...]:
        return ClipReader, (self._view, self._memory_limit)

    def _begin(self) -> None:
        """Give a store of remote chunks the memory that resident frames leave."""
        storage = self._view.dataset.contents.storage
        if isinstance(storage, ChunkStore):
            arenas = [one.in_memory for one in self._sets if one.in_memory is not None]
            nbytes = sum(arena.nbytes for arena in arenas)
            room = min(parse_size(self._memory_limit) - nbytes, spare_memory(nbytes))
            storage.begin(max(0, room), all_bytes(self._view) if room > 0 else {})
            self.stats.get().watch(storage.counters, storage)

    @property
    def resident(self) -> list[str]:
        """The features whose frames stay in memory."""
        return [
            name for one in self._sets if one.in_memory is not None for name in one.dataset.features
        ]

    def read(self, numbers: IntArray, epoch: int) -> ClipSequence:
        """Return clips of an epoch by number, int64[clips], as in `SeqRecordPipe`."""
        view, seed = self._view, 0
        if view.draws.is_any:
            # From torch's global generator, which a sampler draws the numbers from.
            seed = int(torch.randint(1 << 62, (), device="cpu"))
        clips = view.samples.locate(numbers, epoch)
        frames = view.frames(epoch)
        found, drawn = self._read(seed, clips, frames)
        features = squeeze(found, view.squeezed)
        columns, _ = view.fill_columns(clips, frames, drawn)

        def batch() -> dict[str, Any]:
            given = for_users(features, view.nested)
            return {**view.cut_clips(given, columns), **columns}

        def single() -> list[dict[str, Any]]:
            given = {name: self._divided(name, values) for name, values in features.items()}
            return view.singles(view.cut_clips(given, columns, single=True), columns)

        return ClipSequence(len(numbers), batch, single)

    def example(self, clip: ClipKeys) -> tuple[dict[str, Any], dict[str, Any]]:
        """The features of one clip, as arguments of clip functions: arrays [frames, …] or lists;
        and the columns of a batch with this clip.
        """
        frames = self._view.frames(0)
        features, drawn = self._read(0, clip, frames)
        columns, _ = self._view.fill_columns(clip, frames, drawn)
        values = {name: as_arrays(clips[0]) for name, clips in for_users(features, ()).items()}
        return values, columns

    def _divided(self, name: str, values: torch.Tensor | RaggedFrames | list[Any]) -> Any:
        """Split a feature of a batch into clips."""
        if isinstance(values, torch.Tensor):
            return divide(values) if len(values) > 1 else [values[0]]
        clips = values if isinstance(values, list) else values.lists()
        return list(map(nested, clips)) if name in self._view.nested else clips

    def _read(
        self, seed: int, clips: ClipKeys, frames: ClipFrames
    ) -> tuple[dict[str, Any], ClipDraws]:
        """Return the features of n clips as a batch, and their random parameters."""
        if not (begun := self._begun.get()):
            self._begin()
            begun.append(True)
        view, count = self._view, len(clips.start)
        buffers = self._buffers_for(count)
        builder, threads = buffers.begin_batch(count), CallThreads(self._num_threads.get())
        sources: list[ClipRows[Arena]] = []
        used: list[tuple[_FeatureSet, Arena]] = []
        found = [frames.find(names[0], clips).frames for names in self._alike]
        keys = [frame_keys(*frames.stored_frames(clips.episode[:, None], some)) for some in found]
        for one in self._sets:
            if one.in_memory is not None:
                own = {number: keys[number] for number in one.features}
                sources += self._staying(one, one.in_memory, own, buffers)
                continue
            wanted = np.concatenate([keys[number].reshape(-1) for number in one.features])
            # Each frame once, the place where it comes first, and for every place which it is.
            unique, place, which = np.unique(wanted, return_index=True, return_inverse=True)
            straight = {n: builder.rows[n] for n in one.straight}
            rows = place if straight else np.arange(len(unique))
            arena = one.acquire(len(wanted) if straight else len(unique))
            used.append((one, arena))
            target = {**straight, **{name: arena[name] for name in one.specs}}
            threads.copy(self._loads(one, unique, target, rows, buffers))
            rows = rows[which.reshape(-1)]
            threads.copy(repeats(list(straight.values()), rows))
            for number, names in one.features.items():
                some, rows = np.split(rows, [keys[number].size])
                kept = [name for name in names if name in one.specs]
                sources.append(ClipRows(arena, some.reshape(keys[number].shape), kept))
        if not view.draws.is_any:
            threads = CallThreads(1)  # copying takes less time than starting threads
        drawn = view.draw(frames, seed, 0, clips, sources)
        if drawn.crop is not None:
            sources = [replace(source, crop=drawn.crop) for source in sources]
        builder.gather(np.arange(count), sources, threads, drawn.calls, view.vectors)
        for one, arena in used:
            one.release(arena)
        return builder.finish()[0], drawn

    def _staying(
        self, one: _FeatureSet, arena: Arena, keys: Mapping[int, IntArray], buffers: HostBuffers
    ) -> list[ClipRows[Arena]]:
        """The rows of resident frames, after reading the missing ones."""
        rows = {number: self._rows(some) for number, some in keys.items()}
        missing = [some[~arena.is_read[rows[number]]] for number, some in keys.items()]
        if any(map(len, missing)):
            self._fill(one, arena, np.concatenate(missing), buffers)
        return [ClipRows(arena, rows[number], names) for number, names in one.features.items()]

    def _buffers_for(self, count: int) -> HostBuffers:
        """Memory for `count` clips; a single clip has its own, so that it keeps no batch."""
        kept, is_single, view = self._buffers.get(), count == 1, self._view
        found = kept.get(is_single)
        if found is None or found.needs.batch_size < count:
            shared = get_worker_info() is not None
            needs = BufferNeeds((), view.batch_arrays, view.lengths, count, _KEEP, shared=shared)
            found = kept[is_single] = HostBuffers(needs)
        return found

    def _loads(
        self,
        one: _FeatureSet,
        keys: IntArray,
        target: FeatureRows,
        rows: IntArray,
        buffers: HostBuffers,
    ) -> Iterator[Copy]:
        """Loads of frames, by ascending keys, into rows of `target`: one per chunk, or one per
        group.
        """
        view, grids = self._view, one.dataset.contents.episode_table.groups
        transform = view.transform
        loader = ChunkLoader(
            one.dataset,
            buffers,
            {},
            grids[0].group,
            transform,
            self._num_threads.get(),
            self.stats.get(),
            view.clip_frames,
            exact=one.in_memory is not None,
        )
        nbytes = sum(view.arrays[name].nbytes for name in chain(*one.features.values()))
        episode, frame = split_keys(keys)
        for grid in grids if transform is None else grids[:1]:  # a load of one brings all others'
            chunk = grid.row(episode, grid.place(episode, frame))
            for a, b in pairwise([0, len(keys)] if one.is_small else run_bounds(constant=chunk)):
                part = Wanted(grid.group, chunk[a:b], frame[a:b], rows[a:b], target)
                yield Copy(nbytes // len(grids) * (b - a), partial(loader.load_frames, part))

    def _rows(self, keys: IntArray) -> IntArray:
        """Rows of resident frames, by keys."""
        episode, frame = split_keys(keys)
        rows: IntArray = self._first_row[episode] + frame
        return rows

    def _fill(self, one: _FeatureSet, arena: Arena, keys: IntArray, buffers: HostBuffers) -> None:
        """Read missing resident frames and their neighbours."""

        def load(keys: IntArray) -> None:
            keys = keys[
                ~arena.is_read[self._rows(keys)]
            ]  # other threads may copy frames already read
            rows = self._rows(keys)
            items = self._loads(one, keys, arena, rows, buffers)
            CallThreads(1 if one.is_small else self._num_threads.get()).copy(items)
            arena.is_read[rows] = True

        with self._filling.get():
            keys = np.unique(keys[~arena.is_read[self._rows(keys)]])
            if not len(keys):
                return
            try:
                load(_with_neighbours(one.dataset, keys) if one.is_small else keys)
            except SeqRecordError:  # of frames that nobody wants, maybe
                load(keys)


def _sets_of(view: View, alike: Sequence[Sequence[str]], memory_limit: int) -> list[_FeatureSet]:
    """Divide the features of clips into sets by how they are loaded.

    Args:
        alike: lists of features with the same frames in a clip.
        memory_limit: greatest number of bytes of resident frames; smallest features come first.
    """
    arrays, dataset = view.arrays, view.dataset
    num_rows = int(dataset.contents.episode_table.num_frames[view.episode_rows].sum())
    if view.transform is not None:  # it needs whole frames
        needed = num_rows * (1 + sum(spec.nbytes for spec in arrays.values()))
        stays = frames_in_memory(view)[1] and needed <= memory_limit
        arena = Arena(arrays, num_rows) if stays else None
        return [_FeatureSet(dataset, dict(enumerate(alike)), arrays, in_memory=arena)]
    small, decoded = features_in_memory(dataset)
    staying = sorted([*small, *decoded], key=lambda name: arrays[name].nbytes)
    sums = accumulate(num_rows * (arrays[name].nbytes + 1) for name in staying)
    fitting = [name for name, nbytes in zip(staying, sums, strict=True) if nbytes <= memory_limit]
    in_memory = {name: Arena({name: arrays[name]}, num_rows) for name in fitting}
    direct = stacked(arrays).keys() - view.vectors.keys()
    found: list[_FeatureSet] = []
    for number, names in enumerate(alike):
        parts: dict[str | bool, list[str]] = {}
        for name in names:
            parts.setdefault(name if name in in_memory else name in small, []).append(name)
        for kind, some in parts.items():
            stored = dataset.select([name for name in some if arrays[name].mask_of is None])
            goes = kind is False and not view.draws.is_any
            straight = [name for name in some if goes and name in direct]
            specs = {name: arrays[name] for name in some if name not in straight}
            arena = in_memory.get(some[0])
            is_read_alone = kind is not False and some[0] in small
            found.append(_FeatureSet(stored, {number: some}, specs, straight, is_read_alone, arena))
    return found


def _with_neighbours(dataset: Dataset, keys: IntArray) -> IntArray:
    """Extend keys of the dataset's only feature to whole blocks of frames."""
    [grid], [spec] = dataset.contents.episode_table.groups, dataset.features.values()
    length = slice_frames(spec)
    block = max(1, _BLOCK_BYTES // (length * spec.nbytes)) * length
    return grid.block_keys(keys, block, dataset.contents.episode_table.num_frames)
