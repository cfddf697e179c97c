"""SourceOrder: the saved state of one source's order, and its comparison with a loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from seqrecord.errors import ClipError, StateError
from seqrecord.pipes.planning import REQUESTED, EpochPlanner, MemoryPlans
from seqrecord.pipes.states import (
    Episodes,
    RemainingEpoch,
    RemainingSource,
    SourceState,
    State,
    check_same,
    segments_of,
)
from seqrecord.processes.forks import cached_property
from seqrecord.sampling import PlanSettings, Shard
from seqrecord.sampling.elastic import EpochSegment

_MAX_CURSORS = 1 << 24  # of a shard, in a saved state


@dataclass(frozen=True, eq=False)
class SourceOrder:
    """The order of a source's epochs, and its saved form. Picklable."""

    planner: EpochPlanner

    def state(self, num_shards: int, rest: RemainingSource | None) -> SourceState:
        """The settings of the order of epochs with `num_shards` shards, and of the epochs in
        `rest`.
        """
        pending, fit = () if rest is None else rest.pending, self.planner.plan_memory
        left = tuple(fit(num_shards, *epoch).settings for epoch in pending)
        return SourceState(fit(num_shards).settings, self.request, self._episodes, left)

    def memory_plans_of(
        self, state: SourceState, num_shards: int, rest: RemainingSource
    ) -> MemoryPlans:
        """The memory for the settings of a state, for whole epochs and for the epochs in `rest`.

        Raises `MemoryLimitError` with the smallest sufficient limit if they do not fit.
        """
        planner, left = self.planner, zip(rest.pending, state.left, strict=True)
        return {
            (num_shards, *epoch): planner.residency.plan_given(
                planner.memory_request(num_shards, *epoch),
                planner.limit(num_shards),
                settings,
                epoch[1],
            )
            for epoch, settings in (((0, ()), state.settings), *left)
        }

    def check_state(
        self, state: SourceState, rest: RemainingSource, *, any_batch_size: bool = False
    ) -> None:
        """Raise `StateError` for a state of other clips or another order, with the differences.

        Allowed differences: settings derived from memory and defaults, the dataset's location, and
        speed, threads and memory of reading.
        """
        planner, selection = self.planner, self.planner.selection
        url, episodes = selection.dataset.url, self._episodes
        saved, is_shuffled = state.settings, planner.settings.shuffle or state.settings.shuffle
        free = {"batch_size"} if saved.shuffle else {"batch_size", "seed"}
        segments = (segment.settings for _, segments in rest.pending for segment in segments)
        problem = "segments of the saved state have different settings"
        for other in (*state.left, *segments):
            check_same(problem, vars(saved), vars(other), set(REQUESTED) - free, url)
        now = {**self.request, **{name: getattr(planner.settings, name) for name in REQUESTED}}
        now["num_cursors"] = planner.options.tuning.num_cursors
        chosen = ("num_cursors", "shuffle_buffer")
        free = {name for name in chosen if now[name] is None or not is_shuffled}
        if any_batch_size:
            free.add("batch_size")
        if not is_shuffled and not selection.clip_set.differs_by_epoch:
            free.add("seed")
        found, problem = {**state.request, **vars(saved)}, "the saved state is of other settings"
        check_same(problem, found, now, [name for name in now if name not in free], url)
        if state.episodes.digest != episodes.digest:
            same = state.episodes.dataset == episodes.dataset
            problem = "the saved state is of another dataset, or this one has changed: select the "
            problem += "state's episodes, if they are still the same"
            problem = "the saved state is of other episodes of this dataset" if same else problem
            raise StateError(problem, file=url, expected=state.episodes, got=episodes)

    @property
    def _episodes(self) -> Episodes:
        return Episodes(**self.planner.selection.clip_set.identity)

    @cached_property
    def request(self) -> dict[str, Any]:
        """The arguments that determine the order, beside the settings of plans, as JSON.

        Features have their stored names, because `rename` does not change the order.
        """
        options, selection = self.planner.options, self.planner.selection
        dilations, frames = options.dilations, selection.frames
        # The padding of features may change, and does so with the dataset.
        arrays = frames.stored if frames.transform is None else frames.arrays
        stored = selection.dataset.contents.stored_name
        windows = selection.clip_set.windows.describe()
        drawn = {"span": options.span, "frames_per_batch": options.frames_per_batch}
        return {
            "clip_len": list(options.clip_lens or ()) or options.clip_len,
            "stride": selection.clip_set.spec.stride,
            "dilation": dilations[0] if len(dilations) == 1 else list(dilations),
            "reverse": options.reverse,
            "windows": {stored(name): window for name, window in windows.items()},
            "pad": options.pad,
            "drop_last_frames": options.drop_last_frames,
            "features": sorted(map(stored, selection.dataset.features)),
            "shapes": {stored(name): str(spec) for name, spec in sorted(arrays.items())},
            "shuffle_buffer": options.tuning.shuffle_buffer,
            "clips": selection.clip_set.chosen_digest,
            "fixed_shards": options.fixed_shards,
            **{name: value for name, value in drawn.items() if value is not None},
        }

    def remainder_after(self, state: State) -> RemainingEpoch | None:
        """See `BatchSource`: adds a segment to the epoch."""
        if not any(state.batches):
            return state.rest
        state = state.of_rank()
        segments = segments_of(state.epoch, state.rest)
        segment = EpochSegment(state.sharing.ranks, state.batches, _settings(state))
        own = RemainingSource(((state.epoch, (*segments, segment)),), state.epoch + 1)
        return RemainingEpoch(state.epoch, None, len(segments) + 1, (own,))

    def check_place(self, state: State) -> None:
        """See `BatchSource`."""
        url, settings = self.planner.selection.dataset.url, _settings(state)
        segments, count = segments_of(state.epoch, state.rest), state.sharing.num_shards
        if bool(segments) != (state.rest is not None) or len(state.sources[0].left) > 1:
            raise StateError(
                "the segments of the saved state are of other epochs",
                file=url,
                expected=f"epoch {state.epoch}",
                got=", ".join(str(epoch) for epoch, _ in state.rests[0].pending),
            )
        rows = settings.batch_size or 1 if settings.order == "sequences" else 1
        if (cursors := max(rows, settings.num_cursors)) > _MAX_CURSORS:
            raise StateError(
                "a saved state has more cursors than can be planned",
                file=url,
                expected=f"at most {_MAX_CURSORS}",
                got=cursors,
            )
        workers, first, most = state.sharing.workers, state.sharing.worker or 0, list[int]()
        are_alike = self.planner.options.frames_per_batch is None
        try:  # of each worker, the shard of the last rank: none has more batches
            for worker in range(first, first + (1 if are_alike else len(state.batches))):
                index = count - 1 if are_alike else count - workers + worker
                last = Shard(index, count, workers)
                plan = self.planner.plan_with(settings, state.epoch, last, segments)
                most.append(plan.num_batches)
        except ClipError as error:
            raise StateError(f"the saved state is of no epoch: {error}") from error
        state.check_batches(most * len(state.batches) if are_alike else most)


def _settings(state: State) -> PlanSettings:
    """The settings of the state's epoch."""
    source = state.sources[0]
    return source.left[0] if source.left else source.settings
