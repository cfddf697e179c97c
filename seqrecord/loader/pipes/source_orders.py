"""SourceOrder: the saved state of one source's order, and its comparison with a loader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seqrecord.errors import StateError
from seqrecord.loader.pipes.planning import REQUESTED, EpochPlanner, MemoryPlans
from seqrecord.loader.pipes.states import Segments, SourceState, State, check_same
from seqrecord.loader.sampling.bounds import PlanSettings
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.text import repr_of

_COMPARED = tuple(name for name in REQUESTED if name != "batch_size")


@dataclass(frozen=True, eq=False)
class SourceOrder:
    """The order of a source's epochs, and its saved form. Picklable."""

    planner: EpochPlanner

    def state(self, num_shards: int, epoch: int = 0, segments: Segments = ()) -> SourceState:
        """The settings of the order of epochs with `num_shards` shards, and of the rest of one."""
        fit, rest = self.planner.plan_memory, None
        if segments:
            rest = fit(num_shards, epoch, segments).settings
        request = {**self.request, "samples": self.samples(epoch)}
        settings = fit(num_shards).settings
        return SourceState(settings, request, self._episodes, rest, self.excerpt_frames)

    def memory_plans(self, saved: SourceState, state: State, *, fit: bool) -> MemoryPlans:
        """The settings of a state by their place in `EpochPlanner`: for whole epochs and its rest.

        With `fit` also their memory. Raises `MemoryLimitError` with the smallest sufficient limit.
        """
        places: dict[tuple[int, int, Segments], PlanSettings]
        places = {(state.num_shards, 0, ()): saved.settings}
        if saved.rest is not None:
            places[state.num_shards, state.epoch, state.segments] = saved.rest
        if not fit:
            return {**places}
        return {place: self.planner.fit(one, *place) for place, one in places.items()}

    def check(self, state: SourceState, segments: Segments, epoch: int) -> None:
        """Raise `StateError` for a state of other clips or another order, with the differences.

        Allowed differences: settings derived from memory and defaults, the batch size, the
        dataset's location, and speed, threads and memory of reading.
        """
        planner, view = self.planner, self.planner.view
        url, episodes, saved = view.dataset.url, self._episodes, state.settings
        problem = "segments of the saved state have different settings"
        compared = [name for name in _COMPARED if saved.shuffle or name != "seed"]
        for other in (state.rest or saved, *(segment.settings for segment in segments)):
            check_same(problem, vars(saved), vars(other), compared, url)
        now = {**self.request, **{name: getattr(planner.settings, name) for name in _COMPARED}}
        now["samples"] = self.samples(epoch)
        now["num_cursors"] = planner.options.tuning.num_cursors
        is_shuffled = planner.settings.shuffle or saved.shuffle
        is_mixed = is_shuffled and planner.order.is_mixed
        may_differ = {
            "num_cursors": now["num_cursors"] is None or not is_mixed,
            "shuffle_buffer": now["shuffle_buffer"] is None or not is_mixed,
            "seed": not is_shuffled and not view.samples.is_random,
        }
        problem = "the saved state is of other settings"
        names = dict.fromkeys((*now, *state.request))  # either may lack an optional one
        compared = [name for name in names if not may_differ.get(name)]
        check_same(problem, {**state.request, **vars(saved)}, now, compared, url)
        if state.episodes.get("digest") != episodes["digest"]:
            same = state.episodes.get("dataset") == episodes["dataset"]
            problem = "the saved state is of another dataset, or this one has changed: select the "
            problem += "state's episodes, if they are still the same"
            problem = "the saved state is of other episodes of this dataset" if same else problem
            expected, got = map(_described, (state.episodes, episodes))
            raise StateError(problem, file=url, expected=expected, got=got)

    @property
    def excerpt_frames(self) -> int | None:
        """The most frames of an excerpt of frame lists; see `FrameLists`."""
        excerpts = self.planner.view.excerpts
        return None if excerpts is None else excerpts.most

    @property
    def _episodes(self) -> dict[str, Any]:
        return self.planner.view.identity

    def samples(self, epoch: int) -> Any:
        """See `SampleEpochs.digest`; in a mix, which has epochs of its own, of epoch 0."""
        in_mix = self.planner.limit_in is not None
        return self.planner.view.samples.digest(0 if in_mix else epoch)

    @cached_property
    def request(self) -> dict[str, Any]:
        """The arguments that determine the order, beside samples and settings of plans, as JSON.

        Features have their stored names, because `rename` does not change the order.
        """
        options, view = self.planner.options, self.planner.view
        # The padding of features may change, and does so with the dataset.
        arrays = view.stored_arrays if view.transform is None else view.arrays
        stored = view.dataset.contents.stored_name
        windows = view.windows.describe()
        drawn = {"frames_per_batch": options.frames_per_batch}
        return {
            "clip_len": list(options.clip_lens or ()) or options.clip_len,
            "stride": view.samples.base.clips.spec.stride,
            "dilation": options.dilation,
            "windows": {stored(name): window for name, window in windows.items()},
            "pad": options.pad,
            "features": sorted(map(stored, view.dataset.features)),
            "shapes": {stored(name): str(spec) for name, spec in sorted(arrays.items())},
            "shuffle_buffer": options.tuning.shuffle_buffer,
            "fixed_shards": options.tuning.fixed_shards,
            **{name: value for name, value in drawn.items() if value is not None},
        }


def _described(episodes: Mapping[str, Any]) -> str:
    count, frames, digest = (repr_of(episodes.get(n)) for n in ("count", "frames", "digest"))
    return f"{count} episodes of {frames} frames, digest {digest}"
