"""Plans of a view's epochs, and the memory of each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from seqrecord.errors import MemoryLimitError
from seqrecord.loader.engine.arena import FORMS
from seqrecord.loader.engine.stores import FrameRows
from seqrecord.loader.pipes.distributed import Ranks
from seqrecord.loader.pipes.make_view import SMALLEST, make_view
from seqrecord.loader.pipes.memory import Residency, frame_sizes
from seqrecord.loader.pipes.option_values import MaxFrames
from seqrecord.loader.pipes.options import LoaderOptions
from seqrecord.loader.pipes.states import Segments
from seqrecord.loader.pipes.view import View
from seqrecord.loader.sampling.bounds import ClipStats, PlanSettings, resident_bounds
from seqrecord.loader.sampling.memory import (
    MOST_CLIPS,
    FrameSizes,
    Memory,
    MemoryPlan,
    MemoryRequest,
    usual_limit,
)
from seqrecord.loader.sampling.plan import Plan, PlannedOrder, order_of
from seqrecord.loader.sampling.runs import Shard, Window
from seqrecord.store.clips.tables import ClipTable
from seqrecord.store.format.page_kinds import page_kind
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.reading.array_specs import clip_nbytes
from seqrecord.store.reading.dataset import Dataset, DatasetLike
from seqrecord.store.text import shown_place
from seqrecord.store.units import format_size, parse_size, raise_if

REQUESTED = ("shuffle", "seed", "batch_size", "last_batch", "order")
"""Settings of plans that are arguments; memory determines the others."""

MemoryPlans: TypeAlias = dict[tuple[int, int, Segments], MemoryPlan | PlanSettings]
"""By number of shards, epoch and segments; epoch 0 and no segments stand for all whole epochs.

Settings of a saved state whose memory was not computed yet have no plan.
"""

_MOST_TOGETHER = 32  # single clips that are made at once,
_MOST_BYTES_TOGETHER = 1 << 20  # … which are small

_logger = logging.getLogger("seqrecord")


@dataclass(frozen=True, eq=False)
class EpochPlanner:
    """Plans the epochs of a view and their memory. Picklable.

    An epoch in which the number of ranks or workers changes has segments: see `sampling.elastic`.

    Attributes:
        view: the clips.
        options: the arguments of the loader.
        settings: the requested settings of plans.
        ranks: the ranks that share an epoch.
        limit_in: in a mix, a function from a rank's number of workers to the memory limit of each,
            in bytes. Batches then belong to the mix.
    """

    view: View
    options: LoaderOptions
    settings: PlanSettings
    ranks: Ranks
    limit_in: Callable[[int], int] | None = None
    _memory_plans: MemoryPlans = field(default_factory=dict, repr=False)
    _remaining: dict[tuple[int, Segments], ClipTable] = field(default_factory=dict, repr=False)
    _logged: set[int] = field(default_factory=set, repr=False)

    @classmethod
    def of(
        cls,
        view: View,
        options: LoaderOptions,
        limit_in: Callable[[int], int] | None = None,
    ) -> EpochPlanner:
        """Create the planner of a request.

        Raises `MemoryLimitError` with the smallest sufficient limit; in a mix, only the first use
        does.
        """
        given: dict[str, Any] = {name: getattr(options, name, None) for name in REQUESTED}
        most, lists = options.most_clips, view.excerpts
        if isinstance(options.batch_size, MaxFrames) and lists is not None:  # padding counts
            most = max(1, options.batch_size.frames // lists.length)
        settings = PlanSettings(**{**given, "batch_size": most})
        ranks = Ranks(options.rank)
        planner = cls(view.with_seed(options.seed), options, settings, ranks, limit_in)
        planner.clips(0)
        if limit_in is None:
            planner.plan_memory(1)
        return planner

    def __getstate__(self) -> dict[str, Any]:
        options = self.view.portable(self.options)
        return {**self.__dict__, "options": options, "_remaining": {}}

    def with_shuffle(self, shuffle: bool) -> EpochPlanner:
        """A copy with or without a shuffled order."""
        settings = replace(self.settings, shuffle=shuffle)
        return EpochPlanner(self.view, self.options, settings, self.ranks, self.limit_in)

    # ---- clips and plans

    @cached_property
    def order(self) -> PlannedOrder:
        """The order of the epochs."""
        return order_of(self.settings)

    @cached_property
    def windows(self) -> Sequence[Window]:
        """The window of clips in each group of features."""
        return self.view.group_windows

    def clips(self, epoch: int, segments: Segments = ()) -> ClipTable:
        """The clips of an epoch that remain after its segments.

        Raises `StateError` for impossible segments.
        """
        epochs = self.view.samples
        table, order = epochs.in_epoch(epoch), self.order
        is_wrong = not order.has_copies and epochs.samples_in(epoch).repeat is not None
        expected = "functions that leave out samples or add columns; none that adds repeat"
        raise_if(is_wrong, f'order="{order.name}" has each clip once', expected)
        if not segments:
            return table
        if (found := self._remaining.get((epoch, segments))) is None:
            from seqrecord.loader.sampling.elastic import find_remaining  # ranks seldom change

            episodes, draws = self.view.episodes, self.options.draws
            found = find_remaining(
                table,
                episodes,
                segments,
                epoch=epoch,
                windows=self.windows,
                draws=draws,
            )
            self._remaining.clear()
            self._remaining[epoch, segments] = found
        return found

    def plan(
        self,
        epoch: int,
        shard: Shard,
        segments: Segments = (),
        settings: PlanSettings | None = None,
    ) -> Plan:
        """The plan of one shard of an epoch that remains after its segments; with `settings`, those
        of a saved state, whatever memory they need.

        Raises `ClipError` if `last_batch="drop"` leaves no batch, and `StateError` for impossible
        segments.
        """
        if shard.index == 0 and shard.count not in self._logged:
            self._logged.add(shard.count)
            self._log_mixing(shard.count)
        settings = settings or self.plan_memory(shard.count, epoch, segments).settings
        table, episodes = self.clips(epoch, segments), self.view.episodes
        segment = len(segments)
        plan_class = self.order.plan_class(settings, epoch, segment)
        make = partial(plan_class, windows=self.windows, draws=self.options.draws)
        return make(table, episodes, settings, epoch=epoch, shard=shard, segment=segment)

    # ---- memory

    def plan_memory(self, num_shards: int, epoch: int = 0, segments: Segments = ()) -> MemoryPlan:
        """Settings and memory of epochs with `num_shards` shards, or of the rest of one.

        Raises `MemoryLimitError` if the limit is too small.
        """
        key = num_shards, epoch if segments else 0, segments
        found = self._memory_plans.get(key)
        if not isinstance(found, MemoryPlan):
            found = self._memory_plans[key] = self.fit(found, *key)
        return found

    def fit(
        self, settings: PlanSettings | None, num_shards: int, epoch: int, segments: Segments
    ) -> MemoryPlan:
        """The memory for the settings of a saved state, or for the best ones; see `plan_memory`."""
        request, limit = self.memory_request(num_shards, epoch, segments), self.limit(num_shards)
        if settings is None:
            return self.residency.plan_memory(request, limit, segments)
        return self.residency.plan_given(request, limit, settings, segments)

    def execution_memory(
        self, plan: Plan, segments: Segments = (), *, on_device: bool, in_worker: bool
    ) -> tuple[Memory, int, tuple[FrameRows, ...]]:
        """The memory of a plan's execution: arena rows, batches in flight and loads.

        Also returns its greatest size in bytes, and the rows of resident frames by group.
        """
        view, made = self.view, self.view.batch_arrays
        fitted = self.plan_memory(plan.shard.count, plan.epoch, segments)
        rows: tuple[FrameRows, ...] = ()
        if fitted.in_memory is not None:
            rows = self.residency.rows(plan.shard, segments, fitted.settings)
        own_batches = not on_device and self.limit_in is None  # on the host, and not of a mix
        frames = [group.max_resident_frames for group in plan.groups]
        memory = fitted.memory(frames)
        if in_worker and view.dataset.contents.chunks.is_local:
            # The DataLoader asks for batches ahead by itself; memory for more is slow to find.
            memory = replace(memory, prefetch=1)
        are_alike = all(FORMS[spec.value_kind].is_stacked for spec in made.values())
        if fitted.settings.batch_size is None and own_batches and are_alike:
            clip = max(1, clip_nbytes(made, view.lengths))
            most = min(_MOST_TOGETHER, _MOST_BYTES_TOGETHER // clip)
            memory = replace(memory, together=fitted.clips_at_once(memory, most))
        return memory, fitted.nbytes(memory), rows

    def store_bytes(self, plan: Plan, memory: Memory, nbytes: int) -> int:
        """The part of the memory limit for a store of remote chunks, beside a plan's execution of
        `nbytes`.

        Loads of raw frames are read ahead into the store, so it has their memory, too.
        """
        features = self.view.dataset.features.values()
        if self.view.transform is None and all(page_kind(spec).in_slices for spec in features):
            nbytes -= memory.max_read_ahead * self._sizes.chunk
        return max(0, self.limit(plan.shard.count) - nbytes)

    def leave_room(
        self, plan: Plan, segments: Segments, memory: Memory, wanted: int
    ) -> tuple[Memory, int]:
        """Reduce arenas for a store of `wanted` bytes of remote chunks, all that the plan needs.

        A short epoch never fills an arena: its cursors load fewer frames than their rings have
        rows. Returns `memory` and its greatest size in bytes as in `execution_memory`.
        """
        fitted = self.plan_memory(plan.shard.count, plan.epoch, segments)
        nbytes = fitted.nbytes(memory)
        has_room = self.store_bytes(plan, memory, nbytes) >= wanted
        if has_room or wanted > self.limit(plan.shard.count) or plan.num_clips > MOST_CLIPS:
            return memory, nbytes
        cursors = max(1, plan.num_cursors)
        rows = tuple(
            min(most, cursors * _rounded(count))
            for most, count in zip(memory.num_rows, plan.most_loaded(), strict=True)
        )
        memory = replace(memory, num_rows=rows)
        return memory, fitted.nbytes(memory)

    def keep(self, plans: MemoryPlans) -> None:
        """Use these settings from now on."""
        self._memory_plans.update(plans)

    def memory_request(
        self, num_shards: int = 1, epoch: int = 0, segments: Segments = ()
    ) -> MemoryRequest:
        """The memory request of epochs with `num_shards` shards, or of the rest of one."""
        clips, workers = "these clips", self.workers(num_shards)
        tuning, mixes = self.options.tuning, self.settings.shuffle
        mixes &= self.order.is_mixed
        bounds = (tuning.num_cursors, tuning.shuffle_buffer) if mixes else (None, None)
        if workers > 1 and self.options.memory_limit is None:
            clips += f" in each of {workers} workers, which share a rank's default limit"
        return MemoryRequest(
            self.clip_stats(epoch, segments),
            self.settings,
            self._sizes,
            num_shards,
            *bounds,
            self.residency.frames(num_shards, segments),
            self.view.dataset.url,
            clips,
        )

    def limit(self, num_shards: int) -> int:
        """The memory limit of each shard, in bytes."""
        if self.limit_in is not None:
            return self.limit_in(self.workers(num_shards))
        if self.options.memory_limit is not None:
            return parse_size(self.options.memory_limit)
        wanted = max(self.memory_request(number).wanted_limit for number in {1, num_shards})
        return usual_limit(wanted, self.workers(num_shards))

    def limit_to_stay(self, num_shards: int) -> int | None:
        """A memory limit with which all frames stay, in bytes; `None` if they never do."""
        request = self.memory_request(num_shards)
        if not any(request.frames_in_memory):
            return None
        settings = request.plan_memory(1 << 62).settings  # of frames that stay
        settings = replace(settings, resident=self.settings.shuffle)
        frames = self.residency.frames(num_shards, (), settings)
        return replace(request, frames_in_memory=frames).limit_to_stay if any(frames) else None

    def most_bytes(self, num_shards: int) -> int:
        """The greatest memory of any epoch with `num_shards` shards, in bytes."""
        fitted = self.plan_memory(num_shards)
        held = resident_bounds(self.clip_stats(), fitted.settings)
        return fitted.nbytes(fitted.memory(held))

    def decodes_once(self, num_workers: int) -> bool:
        """Whether persistent workers would decode each frame once for all epochs."""
        num_shards = self.ranks.current().count * num_workers
        are_small, _ = self.residency.in_memory
        return not are_small and self.plan_memory(num_shards).in_memory is not None

    def workers(self, num_shards: int) -> int:
        """The number of workers of a rank, from the number of shards."""
        ranks = 1 if num_shards == 1 else self.ranks.current().count
        return num_shards // ranks if num_shards % ranks == 0 else 1

    @cached_property
    def residency(self) -> Residency:
        """The frames that stay in memory."""
        options = self.options
        is_asked = options.device is None or options.memory_limit is not None
        return Residency(
            self.view, self.settings, self.windows, options.tuning.fixed_shards, is_asked
        )

    def clip_stats(self, epoch: int = 0, segments: Segments = ()) -> ClipStats:
        """The clip numbers that determine settings: of all epochs, or of the rest of one."""
        if not segments:
            return self._all_clip_stats
        table = self.clips(epoch, segments)
        return ClipStats.of(table, self.view.episodes, self.windows)

    @cached_property
    def _all_clip_stats(self) -> ClipStats:
        epochs, episodes = self.view.samples, self.view.episodes
        any_clips, repeats = epochs.differs_by_epoch, epochs.rows_differ
        return ClipStats.of(
            epochs.typical, episodes, self.windows, any_clips=any_clips, repeats=repeats
        )

    @cached_property
    def _sizes(self) -> FrameSizes:
        of_mix = self.limit_in is not None
        size = self.settings.batch_size or 1
        if (draws := self.options.draws) is not None:  # in clips of the greatest length
            size = -(-draws.most_frames(size) // draws.most)
        return frame_sizes(self.view, 0 if of_mix else size)

    def _log_mixing(self, num_shards: int) -> None:
        """Log the reason if batches are not mixed well."""
        fitted, url = self.plan_memory(num_shards), shown_place(self.view.dataset.url)
        if fitted.limited and not fitted.of_memory:
            _logger.info("%s: %s", url, fitted.limited)
        elif fitted.limited:
            enough = self.memory_request(num_shards).limit_to_mix
            whose = " of each worker" if self.workers(num_shards) > 1 else ""
            whose += " for this source" if self.limit_in is not None else ""
            _logger.warning(
                "%s: %s; a memory_limit%s of %d (%s) would do",
                *(url, fitted.limited, whose, enough, format_size(enough)),
            )


def plan_clips(location: DatasetLike, options: LoaderOptions) -> EpochPlanner:
    """Select the clips of a request, and plan their memory.

    Frame lists are divided into the smallest excerpts if memory is too small for larger ones.
    Raises the errors of `make_view`, and `MemoryLimitError` with the smallest sufficient limit.
    """
    view = make_view(location, options)
    try:
        return EpochPlanner.of(view, options)
    except MemoryLimitError:
        if view.excerpts is None:
            raise
    again = of_selected(options)
    return EpochPlanner.of(make_view(view.dataset, again, excerpt_frames=SMALLEST), options)


def of_selected(options: LoaderOptions) -> LoaderOptions:
    """The options for the dataset of a view, which has its features, names and sizes."""
    return replace(options, features=None, rename=None, resize=None)


def predict_memory(dataset: Dataset, options: LoaderOptions, *, workers: int = 0) -> int:
    """Peak memory of frames, batches and reads in flight of one rank's loaders, in bytes.

    Reads no frame without a `frame_transform`. `workers` are the rank's DataLoader workers. Python,
    torch, the training, and ready batches of a DataLoader are extra.

    Raises `MemoryLimitError` if the limit is too small.
    """
    planner = plan_clips(dataset, options)
    count = (options.rank or (0, 1))[1] * max(1, workers)
    plans = (planner.plan(0, Shard(index, count)) for index in range(count))
    sizes = (
        planner.execution_memory(plan, on_device=False, in_worker=workers > 0)[1] for plan in plans
    )
    return max(1, workers) * max(sizes)


def _rounded(count: int) -> int:
    """At least `count`, by at most an eighth more: similar epochs have arenas of one size."""
    step = 1 << max(0, count.bit_length() - 4)
    return max(1, -(-count // step) * step)
