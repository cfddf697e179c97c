"""ViewOrder: the epochs of a view as integers, and the memory of each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from seqrecord.errors import ClipError
from seqrecord.loader.clips.tables import ClipTable
from seqrecord.loader.engine.frame_rows import FrameRows
from seqrecord.loader.pipes.budget_costs import SampleCosts, with_budget
from seqrecord.loader.pipes.distributed import Ranks
from seqrecord.loader.pipes.load_sizes import frame_sizes
from seqrecord.loader.pipes.make_view import make_view
from seqrecord.loader.pipes.options import LoaderOptions
from seqrecord.loader.pipes.resident_frames import (
    frame_rows,
    frames_are_small,
    frames_may_stay,
    frames_of_epochs,
)
from seqrecord.loader.pipes.states import Segments
from seqrecord.loader.pipes.view import View
from seqrecord.loader.sampling.clip_costs import ClipCosts
from seqrecord.loader.sampling.epoch_plans import EpochPlan
from seqrecord.loader.sampling.epoch_rows import EpochRows, frame_groups
from seqrecord.loader.sampling.frame_sizes import MOST_OF_RANK, FrameSizes, usual_limit
from seqrecord.loader.sampling.frame_uses import frames_of_shards
from seqrecord.loader.sampling.orders import Order
from seqrecord.loader.sampling.plan_settings import PlanSettings
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.loader.sampling.runs import Intervals, Shard
from seqrecord.loader.sampling.settings_choice import EpochMemory, SettingsRequest
from seqrecord.loader.sampling.share_orders import EpochKey
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.reading.dataset import Dataset, DatasetLike
from seqrecord.store.text import shown_place
from seqrecord.store.units import parse_size, raise_if

SavedSettings: TypeAlias = dict[tuple[int, int, Segments], PlanSettings]
"""By number of shards, epoch and segments; epoch 0 and no segments stand for all whole epochs."""

_MAX_CURSORS = 1 << 24  # arrays of 128 MiB; only a damaged state has more
_MOST_REMAINING = 4  # tables of rests that are kept

_logger = logging.getLogger("seqrecord")


@dataclass(frozen=True, eq=False)
class ViewOrder:
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
    costs: SampleCosts | None = None
    resident_frames: Sequence[Intervals] | None = None
    _saved: SavedSettings = field(default_factory=dict, repr=False)
    _memory_plans: dict[tuple[Any, ...], EpochMemory] = field(default_factory=dict, repr=False)
    _remaining: dict[tuple[int, Segments], ClipTable] = field(default_factory=dict, repr=False)
    _requests: dict[int, SettingsRequest] = field(default_factory=dict, repr=False)
    _logged: set[int] = field(default_factory=set, repr=False)
    _rows: list[tuple[ClipTable, RowTable]] = field(default_factory=list, repr=False)

    @classmethod
    def of(
        cls,
        view: View,
        options: LoaderOptions,
        limit_in: Callable[[int], int] | None = None,
        machine_part: float = 1.0,
    ) -> ViewOrder:
        """Create the order of a request.

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
        order = cls(view, options, settings, Ranks(options.rank), limit_in, machine_part, costs)
        order.clips(0)
        if limit_in is None:
            order.plan_memory(1)
        return order

    def __getstate__(self) -> dict[str, Any]:
        options = self.view.portable(self.options)
        return {**self.__dict__, "options": options, "_remaining": {}, "_requests": {}, "_rows": []}

    def with_shuffle(self, shuffle: bool) -> ViewOrder:
        """The order with or without a shuffled order."""
        settings = replace(self.settings, shuffle=shuffle)
        return self if settings == self.settings else self._copy(settings=settings)

    def with_frames_of(self, earlier: ViewOrder) -> ViewOrder:
        """The order with memory for the resident frames of an earlier one, of the same episodes
        in one process, if these include its own.
        """
        frames, own_frames = earlier._frames_of_epochs, self._frames_of_epochs
        are_resident = earlier.plan_memory(1).stays
        if are_resident and all(map(Intervals.include, frames, own_frames)):
            return self._copy(resident_frames=frames)
        return self

    def _copy(self, **changes: Any) -> ViewOrder:
        """A copy that plans anew."""
        changes |= {name: {} for name in ("_saved", "_memory_plans", "_remaining", "_requests")}
        return replace(self, _logged=set(), _rows=[], **changes)

    # ---- clips and plans

    @property
    def kind(self) -> Order:
        """The order of the epochs."""
        return self.options.epoch_order

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
        table, order = epochs.clips_in(epoch), self.kind
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
                costs=self.costs_in(epoch),
            )
            while len(self._remaining) >= _MOST_REMAINING:
                del self._remaining[next(iter(self._remaining))]
            self._remaining[epoch, segments] = remaining
        return remaining

    def costs_in(self, epoch: int) -> ClipCosts | None:
        """The costs of an epoch's samples; `None` if all clips cost the same."""
        return None if self.costs is None else self.costs.in_epoch(epoch)

    def plan(
        self,
        epoch: int,
        shard: Shard,
        segments: Segments = (),
        settings: PlanSettings | None = None,
    ) -> EpochPlan:
        """The plan of one shard of an epoch that remains after its segments: with the `settings` of
        a finished segment, or with those of `find_settings`.

        Raises `ClipError` if `last_batch="drop"` leaves no batch, and `StateError` for impossible
        segments.
        """
        _check_batches(self.options)
        if settings is None:
            settings = self.find_settings(shard.count, epoch, segments, shard.workers)
        plan = self._make_plan(epoch, segments, settings, shard)
        if self.costs is not None:
            self.costs.log(plan)
        return plan

    def log_mixing(self, shard: Shard) -> None:
        """Log the reason once, in the first shard, if batches are not mixed well."""
        is_saved = (shard.count, 0, ()) in self._saved
        if shard.index or is_saved or shard.count in self._logged:
            return
        self._logged.add(shard.count)
        fitted = self.plan_memory(shard.count, workers=shard.workers)
        if fitted.limited:
            _logger.warning("%s: %s", shown_place(self.view.dataset.url), fitted.limited)

    def _make_plan(
        self, epoch: int, segments: Segments, settings: PlanSettings, shard: Shard
    ) -> EpochPlan:
        """The plan of one shard with these settings."""
        table, num_before = self.clips(epoch, segments), 0
        if segments:
            num_before = self.clips(epoch).num_clips - table.num_clips
        return EpochPlan(
            table,
            self.view.episodes,
            settings,
            epoch=epoch,
            shard=shard,
            segments=segments,
            num_before=num_before,
            windows=self.view.group_windows,
            frames=self.view.group_frames(epoch),
            draws=self.options.draws,
            costs=self.costs_in(epoch),
            rows=self._rows_of(table),
        )

    def _rows_of(self, table: ClipTable) -> RowTable:
        """The rows of a table, which are kept until those of another one are wanted."""
        if not self._rows or self._rows[0][0] is not table:
            self._rows[:] = [(table, RowTable.of(table, in_order=not self.settings.shuffle))]
        return self._rows[0][1]

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
    ) -> EpochMemory:
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
    ) -> EpochMemory:
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
    ) -> EpochMemory:
        """See `memory_of`."""
        place = (epoch, segments) if self.limit_in is None else (0, ())
        request = self.memory_request(num_shards, *place)  # a mix has whole epochs, too
        limit = self.limit(num_shards, workers)
        frames = self.staying_frames(num_shards, segments, saved)
        if saved is not None:
            return request.keep(saved, limit, frames)
        all_frames: tuple[int, ...] = ()
        if request.are_small:
            all_frames = tuple(frames.num_frames for frames in self._frames_of_epochs)
        chosen = request.choose(limit, frames, all_frames)
        is_guess = num_shards > 1 and chosen.stays
        if not (is_guess and self.has_fixed_shards(num_shards, segments, chosen.settings)):
            return chosen
        # The number of frames follows from the settings.
        most = self._most_frames(num_shards, chosen.settings)
        division = replace(chosen.division, sizes=request.sizes, in_memory=None).with_all(most)
        if division.in_memory is not None:
            return replace(chosen, division=division)
        return request.choose(limit, ())

    def memory_request(
        self, num_shards: int = 1, epoch: int = 0, segments: Segments = ()
    ) -> SettingsRequest:
        """The request of settings for epochs with `num_shards` shards, or for the rest of one."""
        if not segments and num_shards in self._requests:
            return self._requests[num_shards]
        what, workers, tuning = "these clips", self.workers(num_shards), self.options.tuning
        is_mixed = self.settings.shuffle and self.kind.is_mixed
        bounds = (tuning.num_cursors, tuning.shuffle_buffer) if is_mixed else (None, None)
        if workers > 1 and self.options.memory_limit is None:
            what += f" in each of {workers} workers, which share a rank's default limit"
        request = SettingsRequest(
            self._rows_of(self.clips(epoch, segments)),
            self.view.episodes,
            self.view.group_windows,
            None if self.view.lists is None else self.view.group_frames(epoch),
            self.settings,
            self.sizes,
            num_shards // workers,
            workers,
            *bounds,
            frames_are_small(self.view),
            self.view.transform is not None,
            what,
            self.view.dataset.url,
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
        frames = self.staying_frames(num_shards, ())
        if not any(frames):
            return None
        request = self.memory_request(num_shards)
        settings = request.choose(1 << 62, frames, frames).settings
        frames = self.staying_frames(num_shards, (), settings)
        return request.limit_to_stay(frames) if any(frames) else None

    def decodes_once(self, num_workers: int) -> bool:
        """Whether persistent workers would decode each frame once for all epochs."""
        num_shards = self.ranks.current().count * num_workers
        may_stay = frames_may_stay(self.view)[False]
        return not may_stay and self.plan_memory(num_shards).stays

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
        if (costs := self.costs_in(0)) is not None:
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
        `settings`, of shards of equal size.

        If shards get other clips in every epoch, each would decode nearly all frames: then only
        small ones may. So they may on a device, unless its memory is limited.
        """
        is_fixed = self.has_fixed_shards(num_shards, segments, settings)
        keeps_decoded = self.options.device is None or self.options.memory_limit is not None
        if not frames_may_stay(self.view)[keeps_decoded and (is_fixed or num_shards == 1)]:
            return (0,) * len(self.view.episodes.groups)
        if settings is not None and num_shards > 1 and is_fixed:
            return self._most_frames(num_shards, settings)
        parts = num_shards if settings is None and is_fixed else 1
        return tuple(-(-frames.num_frames // parts) for frames in self._frames_of_epochs)

    def has_fixed_shards(
        self, num_shards: int, segments: Segments, settings: PlanSettings | None = None
    ) -> bool:
        """Whether shards have the same clips in every epoch, or may have without `settings`."""
        if segments or not self.kind.keeps_shards:
            return False
        if num_shards > 1 and (self.view.samples.common.differ or self.costs is not None):
            return False
        if settings is None or not settings.shuffle:
            return True
        return settings.is_resident and not settings.is_permuted

    def _most_frames(self, num_shards: int, settings: PlanSettings) -> tuple[int, ...]:
        """Greatest frame counts of groups in any shard; for very many cursors, upper bounds."""
        if num_shards * settings.num_cursors > _MAX_CURSORS:
            return tuple(frames.num_frames for frames in self._frames_of_epochs)
        return self._shard_frames(num_shards, settings)[1]

    def _shard_frames(
        self, num_shards: int, settings: PlanSettings, shard: Shard | None = None
    ) -> tuple[list[Intervals], tuple[int, ...]]:
        """See `frames_of_shards`; of one shard, or of all."""
        view, windows = self.view, self.view.group_windows
        rows = EpochRows(
            self._rows_of(view.samples.common.clips),
            frame_groups(view.episodes, windows),
            settings,
            EpochKey(settings.seed, 0),
        )
        shards = None if shard is None else np.array([shard.index])
        frames = view.group_frames(0) if view.has_fixed_frames else None
        return frames_of_shards(
            *rows.runs(num_shards, shards), view.episodes.num_frames, windows, frames
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


def _order_request(view: View, options: LoaderOptions, costs: SampleCosts | None) -> dict[str, Any]:
    """The arguments that determine the order, beside samples and settings of plans, as JSON.

    Features have their stored names, because `rename` does not change the order.
    """
    stored = view.dataset.contents.stored_name
    # The padding of features may change, and does so with the dataset.
    arrays = view.stored_arrays if view.transform is None else view.arrays
    drawn: dict[str, Any] = {"frames_per_batch": options.frames_per_batch, "budget": None}
    if costs is not None:
        drawn["budget"] = costs.describe()
    return {
        "clip_len": list(options.clip_lens or ()) or options.clip_len,
        "stride": view.samples.base.clips.spec.stride,
        "dilation": options.dilation,
        "windows": view.windows.describe(stored),
        "pad": options.pad,
        "features": sorted(map(stored, view.dataset.features)),
        "shapes": {stored(name): str(spec) for name, spec in sorted(arrays.items())},
        "shuffle_buffer": options.tuning.shuffle_buffer,
        **{name: value for name, value in drawn.items() if value is not None},
    }


def plan_clips(location: DatasetLike, options: LoaderOptions) -> ViewOrder:
    """Select the clips of a request, and plan their memory.

    Raises the errors of `make_view`, and `MemoryLimitError` with the smallest sufficient limit.
    """
    return ViewOrder.of(make_view(location, options), options)


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
