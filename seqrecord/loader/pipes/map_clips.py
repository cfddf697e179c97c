"""Clips by number: which features are kept in memory or loaded together, and results for users."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain
from typing import Any

import torch
from torch.utils.data import get_worker_info

from seqrecord.loader.clips.frames import ClipFrames, ClipKeys
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.engine.arena import Arena, RaggedFrames, for_users, nested, squeeze, stacked
from seqrecord.loader.engine.calls import as_arrays
from seqrecord.loader.engine.frame_rows import FrameRows
from seqrecord.loader.engine.frame_store import ResidentFrames
from seqrecord.loader.engine.mapped_rows import MappedArena
from seqrecord.loader.engine.pools import divide
from seqrecord.loader.engine.random_access import CallPart, RandomAccess
from seqrecord.loader.engine.stats import EngineStats
from seqrecord.loader.frames.array_specs import ArraySpec
from seqrecord.loader.pipes.collating import ClipSequence
from seqrecord.loader.pipes.distributed import worker_threads
from seqrecord.loader.pipes.machine_memory import spare_memory
from seqrecord.loader.pipes.needed_pieces import all_bytes
from seqrecord.loader.pipes.resident_frames import (
    features_in_memory,
    frame_rows,
    frames_may_stay,
    frames_of_epochs,
)
from seqrecord.loader.pipes.view import View
from seqrecord.loader.reading.chunk_store import ChunkStore
from seqrecord.store.format.pages import slice_frames
from seqrecord.store.processes.forks import PerProcess
from seqrecord.store.tables.grids import ChunkGrid
from seqrecord.store.units import parse_size

_BLOCK_BYTES = 128 << 10  # of small frames, read at once: as many as Linux reads ahead


class MapClips:
    """Reads clips of a view by number. Thread-safe. Picklable; copies start without memory.

    The clips of a call are adjacent in memory, so `collate` returns them as a batch without
    copying. Each frame is read and decoded once per call. Small raw features, encoded features and
    the results of a deterministic `frame_transform` stay in memory once read if all their frames
    fit into `memory_limit` bytes. The rest of these bytes holds chunks of remote storage.
    """

    def __init__(self, view: View, memory_limit: int | str) -> None:
        self._view, self._memory_limit = view, memory_limit
        limit = parse_size(memory_limit)
        self._parts = [*_call_parts(view, limit)]
        self._frames: tuple[int, ClipFrames] | None = None  # of the latest epoch
        self._access = PerProcess(partial(_random_access, view, self._parts, limit))

    def __reduce__(self) -> tuple[Any, ...]:
        return MapClips, (self._view, self._memory_limit)

    @property
    def stats(self) -> EngineStats:
        """The counters of this process."""
        return self._access.get().stats

    @property
    def resident(self) -> list[str]:
        """The features whose frames are kept in memory."""
        staying = (part.dataset.features for part in self._parts if part.resident is not None)
        return [*chain.from_iterable(staying)]

    def read(self, numbers: IntArray, epoch: int) -> ClipSequence:
        """Return clips of an epoch by number, int64[clips], as in `SeqRecordPipe`."""
        view, draw = self._view, None
        clips = view.samples.locate(numbers, epoch)
        if (epoch_frames := self._frames) is None or epoch_frames[0] != epoch:
            self._frames = epoch_frames = epoch, view.frames(epoch)
        frames = epoch_frames[1]
        if view.draws.is_any:
            # From torch's global generator, which a sampler draws the numbers from.
            seed = int(torch.randint(1 << 62, (), device="cpu"))
            draw = partial(view.draw, frames, seed, 0)
        batch, drawn = self._access.get().read(clips, frames, draw)
        features = squeeze(batch, view.squeezed)
        columns, _ = view.columns.fill(clips, frames, drawn)

        def whole() -> dict[str, Any]:
            values = view.cut_clips(for_users(features, view.nested), columns)
            return {**values, **view.text_values(values), **columns}

        def single() -> list[dict[str, Any]]:
            values = {
                name: _divided(item, as_nested=name in view.nested)
                for name, item in features.items()
            }
            values = view.cut_clips(values, columns, single=True)
            return view.singles({**values, **view.text_values(values, single=True)}, columns)

        return ClipSequence(len(numbers), whole, single)

    def example(self, clip: ClipKeys) -> tuple[dict[str, Any], dict[str, Any]]:
        """The features of one clip, as arguments of clip functions: arrays [frames, …] or lists;
        and the columns of a batch with this clip.
        """
        view, frames = self._view, self._view.frames(0)
        draw = partial(view.draw, frames, 0, 0) if view.draws.is_any else None
        batch, drawn = self._access.get().read(clip, frames, draw)
        columns, _ = view.columns.fill(clip, frames, drawn)
        return {name: as_arrays(clips[0]) for name, clips in for_users(batch, ()).items()}, columns


def _random_access(view: View, parts: Sequence[CallPart], memory_limit: int) -> RandomAccess:
    """This process's memory for calls; a store of remote chunks gets what resident frames leave."""
    access = RandomAccess(
        parts,
        view.batch_arrays,
        view.lengths,
        view.vectors,
        view.transform,
        num_threads=worker_threads(),
        shared=get_worker_info() is not None,
    )
    storage = view.dataset.contents.storage
    if isinstance(storage, ChunkStore):
        nbytes = sum(part.resident.arena.nbytes for part in parts if part.resident is not None)
        room = min(memory_limit - nbytes, spare_memory(nbytes))
        storage.begin(max(0, room), all_bytes(view) if room > 0 else {})
        access.stats.watch(storage.counters, storage)
    return access


def _divided(values: torch.Tensor | RaggedFrames | list[Any], *, as_nested: bool) -> Any:
    """Split a feature of a batch into clips."""
    if isinstance(values, torch.Tensor):
        return divide(values) if len(values) > 1 else [values[0]]
    clips = values if isinstance(values, list) else values.lists()
    return list(map(nested, clips)) if as_nested else clips


def _call_parts(view: View, memory_limit: int) -> Iterator[CallPart]:
    """Divide the features of clips by how they are loaded.

    `memory_limit` is the limit of resident frames in bytes; smallest features come first.
    """
    arrays, dataset = view.arrays, view.dataset
    frame_bytes = sum(spec.nbytes for spec in arrays.values())
    small, decoded = features_in_memory(dataset)
    staying = sorted([*small, *decoded], key=lambda name: view.stored_arrays[name].nbytes)
    rows = dict[int, FrameRows]()
    if memory_limit and (staying if view.transform is None else frames_may_stay(view)[1]):
        rows = frame_rows(view, frames_of_epochs(view, memory_limit // max(1, frame_bytes)))
    if view.transform is not None:  # it needs whole frames
        [grid], resident = view.episodes.groups, None
        if rows and rows[grid.group].num_rows * (1 + frame_bytes) <= memory_limit:
            resident = _resident(view, grid, arrays, rows[grid.group])
        place = dataset, view.clip_frames, [grid.whole_chunks], [*arrays]
        yield CallPart(*place, arrays, resident=resident)
        return
    staying = staying if rows else []
    rows_of = {name: rows[dataset.features[name].group] for name in staying}
    sums = accumulate(rows_of[name].num_rows * (arrays[name].nbytes + 1) for name in staying)
    fitting = {name for name, nbytes in zip(staying, sums, strict=True) if nbytes <= memory_limit}
    for names in view.clip_frames.by_window(arrays):
        # A resident feature is loaded alone: its missing frames differ from those of others.
        parts: dict[str | bool, list[str]] = {}
        for name in names:
            parts.setdefault(name if name in fitting else name in small, []).append(name)
        for part in parts.values():
            name = part[0]
            yield _call_part(view, part, name in small, rows_of[name] if name in fitting else None)


def _call_part(
    view: View, names: Sequence[str], are_small: bool, rows: FrameRows | None
) -> CallPart:
    """Features of a window; with the rows of resident frames."""
    specs = {name: view.arrays[name] for name in names}
    stored = view.dataset.select([name for name, spec in specs.items() if spec.mask_of is None])
    groups = {spec.group for spec in stored.features.values()}
    grids = [grid.whole_chunks for grid in view.episodes.groups if grid.group in groups]
    of_all = stored, view.clip_frames, grids, names
    if rows is not None:
        block = 0
        if are_small:
            [spec] = stored.features.values()
            block = max(1, _BLOCK_BYTES // (slice_frames(spec) * spec.nbytes)) * slice_frames(spec)
        return CallPart(*of_all, specs, resident=_resident(view, grids[0], specs, rows, block))
    mapped = MappedArena.of_groups(stored.contents)
    copied = frozenset[str]().union(*(arena.specs for arena in mapped.values()))
    direct: set[str] = set()
    if not (are_small or view.draws.is_any):  # nothing is made of the frames
        direct = stacked(specs).keys() - view.vectors.keys() - copied
    rows_of_call = {n: spec for n, spec in specs.items() if n not in direct and n not in copied}
    direct_names = [name for name in names if name in direct]
    return CallPart(*of_all, rows_of_call, direct_names, mapped=mapped)


def _resident(
    view: View,
    grid: ChunkGrid,
    specs: Mapping[str, ArraySpec],
    rows: FrameRows,
    block_frames: int = 0,
) -> ResidentFrames:
    """Frames that stay in memory."""
    arena = Arena(specs, rows.num_rows)
    return ResidentFrames(grid, view.clip_frames, arena, rows, None, block_frames=block_frames)
