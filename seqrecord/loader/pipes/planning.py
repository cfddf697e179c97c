"""Planner: the epochs of a view as integers, and the memory of each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from seqrecord.errors import ClipError, MemoryLimitError
from seqrecord.loader.clips.tables import ClipTable
from seqrecord.loader.engine.frame_rows import FrameRows
from seqrecord.loader.pipes.budget_costs import NO_COSTS, EpochCosts, with_budget
from seqrecord.loader.pipes.distributed import Ranks
from seqrecord.loader.pipes.make_view import SMALLEST, make_view
from seqrecord.loader.pipes.memory import frame_sizes, frames_may_stay
from seqrecord.loader.pipes.needed import frame_rows, frames_of_epochs
from seqrecord.loader.pipes.options import LoaderOptions
from seqrecord.loader.pipes.states import Segments
from seqrecord.loader.pipes.view import View
from seqrecord.loader.sampling.bounds import ClipStats, PlanSettings
from seqrecord.loader.sampling.memory import (
    MOST_OF_RANK,
    FrameSizes,
    MemoryPlan,
    MemoryRequest,
    usual_limit,
)
from seqrecord.loader.sampling.plan import Plan, PlannedOrder
from seqrecord.loader.sampling.runs import Intervals, Shard
from seqrecord.loader.sampling.used_frames import frames_of_shards
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.reading.dataset import Dataset, DatasetLike
from seqrecord.store.text import shown_place
from seqrecord.store.units import format_size, parse_size, raise_if

SavedSettings: TypeAlias = dict[tuple[int, int, Segments], PlanSettings]
"""By number of shards, epoch and segments; epoch 0 and no segments stand for all whole epochs."""

_MAX_CURSORS = 1 << 24  # arrays of 128 MiB; only a damaged state has more

_logger = logging.getLogger("seqrecord")


@dataclass(frozen=True, eq=False)
class Planner:
    """Plans the epochs of a view, and their memory. Picklable.

    An epoch in which the number of ranks or workers changes has segments: see `sampling.elastic`.

    Attributes:
        view: the clips.
        options: the arguments of the loader.
        settings: the requested settings of plans; memory determines the others.
        ranks: the ranks that share an epoch.
        limit_in: in a mix, a function from a rank's number of workers to the memory limit of each,
            in bytes. Batches then belong to the mix.
        machine_part: the part of this process's share of the machine's memory; see `spare_memory`.
        costs: the costs of samples, if batches have a budget.
        resident_frames: the frames of each group that may stay in memory; `None`: those of samples.
    """

    view: View
    options: LoaderOptions
    settings: PlanSettings
    ranks: Ranks
    limit_in: Callable[[int], int] | None = None
    machine_part: float = 1.0
    costs: EpochCosts = NO_COSTS
    resident_frames: Sequence[Intervals] | None = None
    _saved: SavedSettings = field(default_factory=dict, repr=False)
    _memory_plans: dict[tuple[Any, ...], MemoryPlan] = field(default_factory=dict, repr=False)
    _remaining: dict[tuple[int, Segments], ClipTable] = field(default_factory=dict, repr=False)
    _requests: dict[int, MemoryRequest] = field(default_factory=dict, repr=False)
    _logged: set[int] = field(default_factory=set, repr=False)

    @classmethod
    def of(
        cls,
        view: View,
        options: LoaderOptions,
        limit_in: Callable[[int], int] | None = None,
        machine_part: float = 1.0,
    ) -> Planner:
        """Create the planner of a request.

        Raises `MemoryLimitError` with the smallest sufficient limit; in a mix, only the first use
        does.
        """
        view, most, costs = with_budget(view, options)
        settings = PlanSettings(
            shuffle=options.shuffle,
            seed=options.seed,
            batch_size=most,
            last_batch=options.last_batch,
            order=options.order,
        )
        planner = cls(view, options, settings, Ranks(options.rank), limit_in, machine_part, costs)
        planner.clips(0)
        if limit_in is None:
            planner.plan_memory(1)
        return planner

    def __getstate__(self) -> dict[str, Any]:
        options = self.view.portable(self.options)
        return {**self.__dict__, "options": options, "_remaining": {}, "_requests": {}}

    def with_shuffle(self, shuffle: bool) -> Planner:
        """The planner with or without a shuffled order."""
        settings = replace(self.settings, shuffle=shuffle)
        return self if settings == self.settings else self._copy(settings=settings)

    def with_frames_of(self, earlier: Planner) -> Planner:
        """The planner with memory for the resident frames of an earlier one, of the same episodes
        in one process, if these include its own.
        """
        frames, own_frames = earlier._frames_of_epochs, self._frames_of_epochs
        are_resident = earlier.plan_memory(1).in_memory is not None
        if are_resident and all(map(Intervals.include, frames, own_frames)):
            return self._copy(resident_frames=frames)
        return self

    def _copy(self, **changes: Any) -> Planner:
        """A copy that plans anew."""
        changes |= {name: {} for name in ("_saved", "_memory_plans", "_remaining", "_requests")}
        return replace(self, _logged=set(), **changes)

    # ---- clips and plans

    @cached_property
    def order(self) -> PlannedOrder:
        """The order of the epochs."""
        order = self.options.epoch_order
        assert isinstance(order, PlannedOrder)
        return order

    @property
    def differs_by_epoch(self) -> bool:
        """Whether order, clips or draws depend on the epoch."""
        is_drawn = self.view.draws.is_random or self.options.has_drawn_steps
        return self.settings.shuffle or self.view.samples.common.are_random or is_drawn

    @cached_property
    def request(self) -> dict[str, Any]:
        """See `_order_request`."""
        return _order_request(self.view, self.options, self.costs)

    def clips(self, epoch: int, segments: Segments = ()) -> ClipTable:
        """The clips of an epoch that remain after its segments.

        Raises `StateError` for impossible segments.
        """
        epochs = self.view.samples
        table, order = epochs.clips_in(epoch), self.order
        is_wrong = not order.has_copies and epochs.in_epoch(epoch).samples.repeat is not None
        expected = "functions that leave out samples or add columns; none that adds repeat"
        raise_if(is_wrong, f'order="{order.name}" has each clip once', expected)
        if not segments:
            return table
        if (remaining := self._remaining.get((epoch, segments))) is None:
            from seqrecord.loader.sampling.elastic import find_remaining  # ranks seldom change

            remaining = find_remaining(
                table,
                self.view.episodes,
                segments,
                epoch=epoch,
                windows=self.view.group_windows,
                draws=self.options.draws,
                costs=self.costs.of(epoch),
            )
            self._remaining.clear()
            self._remaining[epoch, segments] = remaining
        return remaining

    def plan(
        self,
        epoch: int,
        shard: Shard,
        segments: Segments = (),
        settings: PlanSettings | None = None,
    ) -> Plan:
        """The plan of one shard of an epoch that remains after its segments: with the `settings` of
        a finished segment, or with those of `find_settings`.

        Raises `ClipError` if `last_batch="drop"` leaves no batch, and `StateError` for impossible
        segments.
        """
        _check_batches(self.options)
        if settings is None:
            settings = self.find_settings(shard.count, epoch, segments, shard.workers)
            is_saved = (shard.count, 0, ()) in self._saved
            if shard.index == 0 and shard.count not in self._logged and not is_saved:
                self._logged.add(shard.count)
                _log_mixing(self, shard)
        plan = self._make_plan(epoch, segments, settings, shard)
        self.costs.log(plan)
        return plan

    def _make_plan(
        self, epoch: int, segments: Segments, settings: PlanSettings, shard: Shard
    ) -> Plan:
        """The plan of one shard with these settings."""
        plan_class = self.order.plan_class(settings, epoch, len(segments))
        table, common = self.clips(epoch, segments), self.view.samples.common
        is_typical = table is common.typical and not common.differ
        return plan_class(
            table,
            self.view.episodes,
            settings,
            epoch=epoch,
            shard=shard,
            segment=len(segments),
            windows=self.view.group_windows,
            frames=self.view.group_frames(epoch),
            draws=self.options.draws,
            costs=self.costs.of(epoch),
            stats=self.view.clip_stats if is_typical else None,
        )

    # ---- memory of epochs

    def find_settings(
        self, num_shards: int, epoch: int = 0, segments: Segments = (), workers: int | None = None
    ) -> PlanSettings:
        """The settings for epochs with `num_shards` shards, or for the rest of one: those of a
        loaded state, whatever memory they need, or those that `plan_memory` chooses.

        Iterations, names of batches and saved states all find them here.
        """
        saved = self._saved.get((num_shards, epoch if segments else 0, segments))
        return saved or self.plan_memory(num_shards, epoch, segments, workers).settings

    def keep(self, saved: SavedSettings) -> None:
        """Use the settings of a loaded state from now on."""
        self._saved.update(saved)

    def plan_memory(
        self, num_shards: int, epoch: int = 0, segments: Segments = (), workers: int | None = None
    ) -> MemoryPlan:
        """Settings and memory for epochs with `num_shards` shards, or for the rest of one;
        `workers` of a rank share its default limit, by default as in this process.

        Raises `MemoryLimitError` if the limit is too small.
        """
        place = num_shards, epoch if segments else 0, segments
        return self.memory_of(self._saved.get(place), *place, workers)

    def memory_of(
        self,
        saved: PlanSettings | None,
        num_shards: int,
        epoch: int,
        segments: Segments,
        workers: int | None = None,
    ) -> MemoryPlan:
        """The memory for the settings of a saved state, or for the best ones; see `plan_memory`."""
        key = saved, num_shards, epoch, segments, workers or self.workers(num_shards)
        if key not in self._memory_plans:
            self._memory_plans[key] = self._fit(*key)
        return self._memory_plans[key]

    def _fit(
        self,
        saved: PlanSettings | None,
        num_shards: int,
        epoch: int,
        segments: Segments,
        workers: int,
    ) -> MemoryPlan:
        """See `memory_of`."""
        request = self.memory_request(num_shards, epoch, segments)
        limit = self.limit(num_shards, workers)
        if saved is not None:
            frames = self.staying_frames(num_shards, segments, saved)
            request = replace(request, frames_in_memory=frames)
        fit = partial(
            self.order.fit,
            limit=limit,
            saved=saved,
            table=self.clips(epoch, segments),
            episodes=self.view.episodes,
            windows=self.view.group_windows,
            are_small=frames_may_stay(self.view)[False],
        )
        if (of_order := fit(request)) is not None:
            is_guess = saved is None and num_shards > 1 and of_order.in_memory is not None
            if not (is_guess and self.has_fixed_shards(num_shards, segments, of_order.settings)):
                return of_order
            most = self._most_frames(num_shards, of_order.settings)
            with_most = replace(of_order, sizes=request.sizes, in_memory=None).with_all(most)
            if with_most.in_memory is not None:
                return with_most
            return fit(replace(request, frames_in_memory=()))  # type: ignore[return-value]
        if saved is not None:
            return request.plan_given(saved, limit)
        fitted = request.plan_memory(limit, partial(self._used_frames, num_shards, segments))
        if fitted.in_memory is None or not self.has_fixed_shards(num_shards, segments):
            return fitted
        settings = replace(fitted.settings, resident=self.settings.shuffle)
        if num_shards > 1:  # the number of frames was a guess
            most = self._most_frames(num_shards, settings)
            fitted = replace(fitted, sizes=request.sizes, in_memory=None).with_all(most)
        if fitted.in_memory is None:
            return replace(request, frames_in_memory=()).plan_memory(limit)
        return replace(fitted, settings=settings)

    def memory_request(
        self, num_shards: int = 1, epoch: int = 0, segments: Segments = ()
    ) -> MemoryRequest:
        """The memory request for epochs with `num_shards` shards, or for the rest of one."""
        if not segments and num_shards in self._requests:
            return self._requests[num_shards]
        clips, workers, tuning = "these clips", self.workers(num_shards), self.options.tuning
        is_mixed = self.settings.shuffle and self.order.is_mixed
        bounds = (tuning.num_cursors, tuning.shuffle_buffer) if is_mixed else (None, None)
        if workers > 1 and self.options.memory_limit is None:
            clips += f" in each of {workers} workers, which share a rank's default limit"
        view, stats = self.view, self.view.clip_stats
        if segments:
            stats = ClipStats.of(self.clips(epoch, segments), view.episodes, view.group_windows)
        request = MemoryRequest(
            stats,
            self.settings,
            self.sizes,
            num_shards,
            *bounds,
            self.staying_frames(num_shards, segments),
            view.dataset.url,
            clips,
            first_round=self.costs.first_round,
            window_frames=self.costs.window_frames,
        )
        if not segments:
            self._requests[num_shards] = request
        return request

    def limit(self, num_shards: int, workers: int | None = None) -> int:
        """The memory limit of each shard, in bytes; `workers` as in `plan_memory`."""
        workers = workers or self.workers(num_shards)
        if self.limit_in is not None:
            return self.limit_in(workers)
        if self.options.memory_limit is not None:
            return parse_size(self.options.memory_limit)
        wanted = max(self.memory_request(number).wanted_limit for number in {1, num_shards})
        return usual_limit(wanted, workers)

    def limit_to_stay(self, num_shards: int) -> int | None:
        """A memory limit with which all frames are resident, in bytes; `None` if they never are."""
        request = self.memory_request(num_shards)
        if not any(request.frames_in_memory):
            return None
        # Of frames that stay:
        settings = replace(request.plan_memory(1 << 62).settings, resident=self.settings.shuffle)
        frames = self.staying_frames(num_shards, (), settings)
        return replace(request, frames_in_memory=frames).limit_to_stay if any(frames) else None

    def decodes_once(self, num_workers: int) -> bool:
        """Whether persistent workers would decode each frame once for all epochs."""
        num_shards = self.ranks.current().count * num_workers
        may_stay = frames_may_stay(self.view)[False]
        return not may_stay and self.plan_memory(num_shards).in_memory is not None

    def workers(self, num_shards: int) -> int:
        """The number of workers in a rank, from the number of shards."""
        ranks = 1 if num_shards == 1 else self.ranks.current().count
        return num_shards // ranks if num_shards % ranks == 0 else 1

    @cached_property
    def sizes(self) -> FrameSizes:
        """The sizes of frames, loads and batches."""
        size = self.settings.batch_size or 1
        if (draws := self.options.draws) is not None:  # in clips of the greatest length
            size = -(-draws.most_frames(size) // draws.most)
        if (costs := self.costs.of(0)) is not None:
            size = costs.clips_of_length(max(self.view.lengths.values()))
        return frame_sizes(self.view, 0 if self.limit_in is not None else size)

    # ---- frames that stay in memory

    @cached_property
    def _frames_of_epochs(self) -> Sequence[Intervals]:
        """See `frames_of_epochs`. Frames of more clips than can stay are not looked up."""
        if self.resident_frames is not None:
            return self.resident_frames
        most_bytes = parse_size(self.options.memory_limit or MOST_OF_RANK)
        return frames_of_epochs(self.view, most_bytes // sum(self.sizes.of_staying.frames))

    def staying_frames(
        self, num_shards: int, segments: Segments, settings: PlanSettings | None = None
    ) -> tuple[int, ...]:
        """The numbers of frames of each group of a shard that may stay in memory; without
        `settings`, upper bounds: of whole episodes, and of shards of equal size.

        If shards get other clips in every epoch, each would decode nearly all frames: then only
        small ones may. So they may on a device, unless its memory is limited.
        """
        is_fixed = self.has_fixed_shards(num_shards, segments, settings)
        keeps_decoded = self.options.device is None or self.options.memory_limit is not None
        num_groups = len(self.view.episodes.groups)
        if not frames_may_stay(self.view)[keeps_decoded and (is_fixed or num_shards == 1)]:
            return (0,) * num_groups
        if settings is None:
            parts = num_shards if is_fixed else 1
            num_frames = self.view.episodes.num_frames[self.view.episode_rows]
            return (-(-int(num_frames.sum()) // parts),) * num_groups
        if num_shards > 1 and is_fixed:
            return self._most_frames(num_shards, settings)
        return self._used_frames(1, segments)

    def _used_frames(self, num_shards: int, segments: Segments) -> tuple[int, ...]:
        """The numbers of frames of each group that samples use; in shards of equal size, if shards
        may have the same clips in every epoch.
        """
        parts = num_shards if self.has_fixed_shards(num_shards, segments) else 1
        return tuple(-(-frames.num_frames // parts) for frames in self._frames_of_epochs)

    def has_fixed_shards(
        self, num_shards: int, segments: Segments, settings: PlanSettings | None = None
    ) -> bool:
        """Whether shards have the same clips in every epoch, or may have without `settings`."""
        if segments or not self.order.keeps_shards:
            return False
        if num_shards > 1 and (self.view.samples.common.differ or self.costs.differ):
            return False
        may_be = self.options.tuning.fixed_shards or not self.settings.shuffle
        return may_be and (settings is None or settings.resident == settings.shuffle)

    def _most_frames(self, num_shards: int, settings: PlanSettings) -> tuple[int, ...]:
        """Greatest frame counts of groups in any shard; for very many cursors, upper bounds."""
        if num_shards * settings.num_cursors > _MAX_CURSORS:
            return tuple(frames.num_frames for frames in self._frames_of_epochs)
        return self._shard_frames(num_shards, settings)[1]

    def _shard_frames(
        self, num_shards: int, settings: PlanSettings, shard: Shard | None = None
    ) -> tuple[list[Intervals], tuple[int, ...]]:
        """See `frames_of_shards`; of one shard, or of all."""
        view, shards = self.view, None if shard is None else np.array([shard.index])
        table, windows = view.samples.common.clips, view.group_windows
        frames = view.group_frames(0) if view.has_fixed_frames else None
        place = table, view.episodes, windows, settings, num_shards, shards
        return frames_of_shards(
            *self.order.shard_runs(*place), view.episodes.num_frames, windows, frames
        )

    def staying_rows(
        self, shard: Shard, segments: Segments, settings: PlanSettings
    ) -> dict[int, FrameRows]:
        """The rows of resident frames in a shard, by group."""
        frames = self._frames_of_epochs
        if shard.count > 1 and self.has_fixed_shards(shard.count, segments, settings):
            frames = self._shard_frames(shard.count, settings, shard)[0]
        return frame_rows(self.view, frames)


def _check_batches(options: LoaderOptions) -> None:
    """Raise `ClipError` for draws per batch, and no batches."""
    if options.most_clips is None and (options.clip_lens is not None or options.draws_sizes):
        raise ClipError(
            "clip_len or a size is drawn for each batch, and the loader makes single clips",
            expected="a batch_size; or a SeqRecordMix around the loader",
            got=f"clip_len={options.clip_len}",
        )


def _order_request(view: View, options: LoaderOptions, costs: EpochCosts) -> dict[str, Any]:
    """The arguments that determine the order, beside samples and settings of plans, as JSON.

    Features have their stored names, because `rename` does not change the order.
    """
    stored = view.dataset.contents.stored_name
    # The padding of features may change, and does so with the dataset.
    arrays = view.stored_arrays if view.transform is None else view.arrays
    drawn = {"frames_per_batch": options.frames_per_batch, "budget": costs.describe()}
    return {
        "clip_len": list(options.clip_lens or ()) or options.clip_len,
        "stride": view.samples.base.clips.spec.stride,
        "dilation": options.dilation,
        "windows": view.windows.describe(stored),
        "pad": options.pad,
        "features": sorted(map(stored, view.dataset.features)),
        "shapes": {stored(name): str(spec) for name, spec in sorted(arrays.items())},
        "shuffle_buffer": options.tuning.shuffle_buffer,
        "fixed_shards": options.tuning.fixed_shards,
        **{name: value for name, value in drawn.items() if value is not None},
    }


def plan_clips(location: DatasetLike, options: LoaderOptions) -> Planner:
    """Select the clips of a request, and plan their memory.

    Frame lists are divided into the smallest excerpts if memory is too small for larger ones.
    Raises the errors of `make_view`, and `MemoryLimitError` with the smallest sufficient limit.
    """
    view = make_view(location, options)
    try:
        return Planner.of(view, options)
    except MemoryLimitError:
        if view.excerpts is None:
            raise
    again = of_selected(options)
    return Planner.of(make_view(view.dataset, again, excerpt_frames=SMALLEST), options)


def predict_use(dataset: Dataset, options: LoaderOptions) -> dict[str, Any]:
    """The batches of epoch 0 in one process with a budget, and their use of it; reads no frame."""
    plan = plan_clips(dataset, options).plan(0, Shard())
    uses: dict[str, Any] = {"batches": plan.num_batches}
    if (use := plan.budget_use) is not None:
        uses |= {"budget_used": round(use.used, 3), "padding": round(use.padding, 3)}
    return uses


def of_selected(options: LoaderOptions) -> LoaderOptions:
    """The options for the dataset of a view, which has its features, names and sizes."""
    return replace(options, features=None, rename=None, resize=None)


def _log_mixing(planner: Planner, shard: Shard) -> None:
    """Log the reason if batches are not mixed well."""
    fitted = planner.plan_memory(shard.count, workers=shard.workers)
    url = shown_place(planner.view.dataset.url)
    if fitted.limited and not fitted.of_memory:
        _logger.log(fitted.notice_level, "%s: %s", url, fitted.limited)
    elif fitted.limited:
        enough = planner.memory_request(shard.count).limit_to_mix
        whose = " of each worker" if shard.workers > 1 else ""
        whose += " for this source" if planner.limit_in is not None else ""
        _logger.warning(
            "%s: %s; a memory_limit%s of %d (%s) would do",
            *(url, fitted.limited, whose, enough, format_size(enough)),
        )
