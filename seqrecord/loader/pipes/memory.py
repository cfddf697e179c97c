"""Memory: the sizes of frames, chunks and batches; frames that stay; the limit of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from torch.utils.data import get_worker_info

from seqrecord.errors import MemoryLimitError
from seqrecord.loader.engine.arena import FORMS
from seqrecord.loader.engine.stores import FrameRows
from seqrecord.loader.pipes.distributed import warn_once
from seqrecord.loader.pipes.frame_arrays import bytes_by_group
from seqrecord.loader.pipes.states import Segments
from seqrecord.loader.pipes.view import View
from seqrecord.loader.sampling.bounds import PlanSettings
from seqrecord.loader.sampling.memory import FrameSizes, MemoryPlan, MemoryRequest
from seqrecord.loader.sampling.orders import find_order
from seqrecord.loader.sampling.runs import Intervals, Shard, Window
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.processes.machine import local_ranks, process_memory, usable_memory
from seqrecord.store.reading.array_specs import ArraySpec
from seqrecord.store.reading.chunk_sizes import (
    chunk_bytes,
    decoder_bytes,
    is_decoded,
    max_chunk_bytes,
    open_chunk_bytes,
    overlapping_chunk_bytes,
    resized_bytes,
)
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.units import format_size

_MUCH, _TOO_MUCH = 0.5, 0.8  # of the machine's memory


class _Machine(NamedTuple):
    """This machine's memory, in bytes: all, of each process, and what all processes leave.

    The processes themselves (Python, torch, the model) take as much as this one at the first call.
    """

    loaders: int
    processes: int
    memory: int
    own: int
    left: int

    @classmethod
    def of_now(cls) -> _Machine:
        """The memory for the ranks and workers on this machine."""
        info, ranks = get_worker_info(), local_ranks()
        loaders = ranks * (1 if info is None else info.num_workers)
        processes = loaders + (0 if info is None else ranks)  # a worker's parent has no loader
        own, memory = process_memory(), usable_memory()
        return cls(loaders, processes, memory, own, max(0, memory - processes * own))


def spare_memory(nbytes: int, part: float = 1.0) -> int:
    """The bytes that a loader of `nbytes` may use beside them: within half of the machine's memory,
    of which it has a `part`.
    """
    machine = _Machine.of_now()
    return max(0, int(part * _MUCH * machine.left / machine.loaders) - nbytes)


def check_machine(nbytes: int, url: str) -> None:
    """Check the memory of all ranks and workers on this machine, `nbytes` each.

    Logs a warning if loaders take over half of the memory that processes leave. Raises
    `MemoryLimitError` above 80 %.
    """
    loaders, processes, memory, own, left = _Machine.of_now()
    if loaders * nbytes <= _MUCH * left:
        return
    each = f"{format_size(nbytes)} for each loader here, {loaders} in all"
    free = f"{format_size(memory)} without {processes} x {format_size(own)} of the processes"
    most = int(_TOO_MUCH * left / loaders)
    if loaders * nbytes > _TOO_MUCH * left:
        raise MemoryLimitError(
            "frames, batches and reads would take too much of this machine's memory",
            file=url,
            expected=f"at most {_TOO_MUCH:.0%} of {free}: memory_limit={most} "
            f"({format_size(most)}), fewer workers or smaller batches",
            got=each,
        )
    warn_once(
        f"{url}: frames, batches and reads take {loaders * nbytes / left:.0%} of this machine's "
        f"memory, {free}: {each}; a smaller memory_limit or fewer workers take less"
    )


def frame_sizes(view: View, batch_size: int) -> FrameSizes:
    """The sizes of a view's frames, loads and batches, for plans.

    A variable shape counts as its largest decoded frame in the selected episodes.

    With `frame_transform` the plan has one group: its arena contains transformed frames, and each
    load reads chunks of all groups. If this group is in pieces, a cursor keeps its open chunks.
    """
    transform = view.transform
    loads = _loads_of_groups(view) if transform is None else _loads_of_results(view)
    beside = loads.beside + resized_bytes(view.dataset, view.episode_rows)
    # If all frames stay, no chunk is left open, but a load decodes a whole chunk.
    whole = max(loads.chunk, loads.whole_chunk) + beside
    clip = 0
    for name, spec in view.batch_arrays.items():
        item = FORMS[spec.value_kind].item_nbytes
        clip += (spec.nbytes + item) * view.lengths[name]
    rows = tuple(max(1, nbytes) for nbytes in loads.frames)
    staying = tuple(max(1, nbytes) for nbytes in loads.staying)
    return FrameSizes(rows, loads.chunk + beside, batch_size * max(1, clip), staying, whole)


class _LoadSizes(NamedTuple):
    """Sizes of frames and loads in bytes.

    Attributes:
        staying: a frame of each group.
        frames: a frame of each group, and its cursor's open chunk.
        chunk: the largest load, with its decoder.
        whole_chunk: the largest load of whole chunks, with its decoder.
        beside: frames of a load that are in no row yet.
    """

    staying: Sequence[int]
    frames: Sequence[int]
    chunk: int
    whole_chunk: int
    beside: int


def _loads_of_groups(view: View) -> _LoadSizes:
    """The sizes of loads that each read one group."""
    features, grids = view.dataset.features, view.episodes.groups
    tables = view.dataset.contents.index.groups
    staying = bytes_by_group(view.arrays, features)
    opened = [open_chunk_bytes(grid, [tables[grid.group]], features) for grid in grids]
    numbers = sorted({spec.group for spec in features.values()})
    largest = max(int(chunk_bytes(tables[number], features).max()) for number in numbers)
    # Where a cursor keeps a chunk open, its decoder is in `opened`.
    cut = {grid.group for grid in grids if grid.stored_grid is not None}
    closed = [spec for spec in features.values() if spec.group not in cut]
    stored = view.stored_arrays.values()
    return _LoadSizes(
        staying,
        [frame + chunk for frame, chunk in zip(staying, opened, strict=True)],
        largest + max(decoder_bytes(closed), default=0),
        largest + max(decoder_bytes(features.values()), default=0),
        # Codecs may need room for a frame.
        sum(s.nbytes for s in stored if not FORMS[s.value_kind].is_stacked),
    )


def _loads_of_results(view: View) -> _LoadSizes:
    """The sizes of loads for a frame transform, which read all groups."""
    features, grid = view.dataset.features, view.episodes.leading_grid
    tables = view.dataset.contents.index.groups
    groups = [tables[number] for number in sorted({spec.group for spec in features.values()})]
    sizes = [(group, chunk_bytes(group, features)) for group in groups]
    frame = sum(spec.nbytes for spec in view.arrays.values())
    beside = frame + sum(spec.nbytes for spec in view.stored_arrays.values())
    opened = open_chunk_bytes(grid, groups, features)
    decoder = sum(decoder_bytes(features.values()))
    if grid.stored_grid is None:
        lead = tables[grid.group]
        chunk = sum(int(overlapping_chunk_bytes(lead, *one).max()) for one in sizes) + decoder
        return _LoadSizes([frame], [frame + opened], chunk, chunk, beside)
    chunk, whole = (
        sum(max_chunk_bytes(*one, int(some.max_chunk_frames.max())) for one in sizes)
        for some in (grid, grid.stored_grid)
    )
    return _LoadSizes([frame], [frame + opened], chunk, whole + decoder, beside)


_MAX_CURSORS = 1 << 24  # arrays of 128 MiB; only a damaged state has more
_SMALL = 64 << 10  # bytes of a frame: to copy a larger one costs more than to read it alone


def frames_in_memory(view: View) -> tuple[int, int]:
    """The numbers of frames that may stay in memory: if only small frames may, and if decoded ones
    may too.

    Each number is the frame count of the selected episodes, or 0. Decoded frames may stay if their
    shapes are fixed and decoding or transforming costs more than copying. Large raw frames do not
    stay: reading them again is a copy. Texts stay if the other features do.
    """
    if view.excerpts is not None:  # whose places are no frames of chunks
        return 0, 0
    features, transform = view.dataset.features, view.transform
    arrays = [n for n, spec in features.items() if not FORMS[spec.value_kind].stays_with_others]
    are_small = transform is None and all(_is_small(view.dataset, name) for name in arrays)
    may_stay = all(map(_has_rows, view.arrays.values()))
    if transform is not None:
        may_stay &= view.is_deterministic
    else:
        may_stay &= all(map(_has_rows, features.values()))
        may_stay &= any(is_decoded(features[name]) for name in arrays)
    count = int(view.episodes.num_frames[view.episode_rows].sum())
    return count * are_small, count * (are_small or may_stay)


def features_in_memory(dataset: Dataset) -> tuple[list[str], list[str]]:
    """The features whose frames may stay in memory individually: small ones, and others.

    Small features are raw, complete and on a local disk. The others are encoded, complete, and of
    fixed shape or texts.
    """
    reader, features, index = dataset.contents.chunks, dataset.features, dataset.contents.index
    small = [
        name
        for name, spec in features.items()
        if reader.is_local and not is_decoded(spec) and _is_small(dataset, name)
        if name in reader.raw[spec.group].specs
    ]
    decoded = [
        name
        for name, spec in features.items()
        if _has_rows(spec) and is_decoded(spec) and not len(index.group_of(name).gaps)
    ]
    return small, decoded


@dataclass(frozen=True, eq=False)
class Residency:
    """Decides whether the frames of a view stay in memory.

    Shards with `fixed_shards` keep their clips while frames stay. Without `keeps_decoded` only
    small frames stay.
    """

    view: View
    settings: PlanSettings
    windows: Sequence[Window]
    fixed_shards: bool
    keeps_decoded: bool

    def frames(
        self, num_shards: int, segments: Segments, settings: PlanSettings | None = None
    ) -> tuple[int, ...]:
        """The numbers of frames of each group of a shard that may stay; an estimate for several
        shards without `settings`.

        If shards get other clips in every epoch, each would decode nearly all frames: then only
        small ones stay.
        """
        is_fixed = self._has_fixed_shards(num_shards, segments, settings)
        found = self.in_memory[self.keeps_decoded and (is_fixed or num_shards == 1)]
        if num_shards > 1 and found and is_fixed:
            if settings is not None:
                return self._most(num_shards, settings)
            found = -(-found // num_shards)
        return (found,) * len(self.view.episodes.groups)

    def plan_memory(self, request: MemoryRequest, limit: int, segments: Segments) -> MemoryPlan:
        """The best settings within a limit, in bytes, for the shards of a request."""
        fitted, num_shards = request.plan_memory(limit), request.num_shards
        if fitted.in_memory is None or not self._has_fixed_shards(num_shards, segments):
            return fitted
        settings = replace(fitted.settings, resident=self.settings.shuffle)
        if num_shards > 1:  # the number of frames was a guess
            most = self._most(num_shards, settings)
            fitted = replace(fitted, sizes=request.sizes, in_memory=None).with_all(most)
        if fitted.in_memory is None:
            return replace(request, frames_in_memory=()).plan_memory(limit)
        return replace(fitted, settings=settings)

    def plan_given(
        self, request: MemoryRequest, limit: int, settings: PlanSettings, segments: Segments
    ) -> MemoryPlan:
        """The memory for the settings of a saved state.

        Raises `MemoryLimitError` if the limit is too small for frames that must stay.
        """
        frames = self.frames(request.num_shards, segments, settings)
        fitted = replace(request, frames_in_memory=frames).plan_given(settings, limit)
        if settings.resident and fitted.in_memory is None:
            sizes = request.sizes.of_staying
            least = sizes.held(frames) + sizes.beside_arena(1, 1)
            raise MemoryLimitError(
                "memory_limit is too small for the order of the saved state, in which all frames "
                "stay in memory",
                file=request.url,
                expected=f"about {format_size(least)} or more",
                got=format_size(limit),
            )
        return fitted

    def rows(
        self, shard: Shard, segments: Segments, settings: PlanSettings
    ) -> tuple[FrameRows, ...]:
        """The rows of each group's resident frames of a shard."""
        view = self.view
        if shard.count > 1 and self._has_fixed_shards(shard.count, segments, settings):
            return tuple(map(FrameRows, self._shard_frames(shard.count, settings, shard)[0]))
        rows = FrameRows.of_episodes(view.episodes.num_frames, view.episode_rows)
        return (rows,) * len(view.episodes.groups)

    def features(self, stays: bool) -> dict[str, list[str]]:
        """Names of features whose frames stay in memory, and of features decoded in every epoch."""
        features, transform = self.view.dataset.features, self.view.transform
        decoded = [n for n, spec in features.items() if transform is not None or is_decoded(spec)]
        return {
            "features_resident": list(features) if stays else [],
            "features_redecoded": [] if stays else decoded,
        }

    @cached_property
    def in_memory(self) -> tuple[int, int]:
        """See `frames_in_memory`."""
        return frames_in_memory(self.view)

    def _has_fixed_shards(
        self, num_shards: int, segments: Segments, settings: PlanSettings | None = None
    ) -> bool:
        """Whether shards have the same clips in every epoch, or may have without `settings`."""
        if segments or not find_order(self.settings.order).keeps_shards:
            return False
        if num_shards > 1 and self.view.samples.differs_by_epoch:
            return False
        may_be = self.fixed_shards or not self.settings.shuffle
        return may_be and (settings is None or settings.resident == settings.shuffle)

    def _most(self, num_shards: int, settings: PlanSettings) -> tuple[int, ...]:
        """Greatest frame counts of groups in any shard; for very many cursors, upper bounds."""
        if num_shards * settings.num_cursors > _MAX_CURSORS:
            return (self.in_memory[True],) * len(self.view.episodes.groups)
        return self._shard_frames(num_shards, settings)[1]

    def _shard_frames(
        self, num_shards: int, settings: PlanSettings, shard: Shard | None = None
    ) -> tuple[list[Intervals], tuple[int, ...]]:
        """See `shard_frames`."""
        from seqrecord.loader.sampling.fixed_shards import shard_frames

        shards = None if shard is None else np.array([shard.index])
        table, episodes = self.view.samples.clips, self.view.episodes
        return shard_frames(table, episodes, self.windows, settings, num_shards, shards)


def _is_small(dataset: Dataset, feature: str) -> bool:
    """Whether frames are small and complete, and each can be read alone."""
    spec, gaps = dataset.features[feature], dataset.contents.index.group_of(feature).gaps
    nbytes = spec.value_kind.constant_nbytes(spec)
    is_alone = not dataset.contents.chunks.kinds[feature].decodes_in_order
    return nbytes is not None and nbytes <= _SMALL and is_alone and not len(gaps)


def _has_rows(spec: ArraySpec | FeatureSpec) -> bool:
    """Whether such frames fit into preallocated rows: fixed shapes and texts do."""
    return FORMS[spec.value_kind].fits_rows
