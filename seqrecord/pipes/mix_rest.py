"""Where a mix goes on with other ranks or workers, from the state of those before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from seqrecord.pipes.mix_loader import MixLoader
from seqrecord.pipes.mix_plan import MixRest, SourceRest
from seqrecord.pipes.mix_saved import MixState
from seqrecord.pipes.mix_sources import SourceLoader
from seqrecord.pipes.states import Stages
from seqrecord.sampling import Part, PlanSettings
from seqrecord.sampling.rest import Stage

__all__ = ["rest_after"]


def rest_after(mix: MixLoader, state: MixState) -> MixRest:
    """What is left of a mix that all ranks have left in a state.

    The clips that parts have given of each epoch of a source make one more stage of that epoch.
    """
    ranks, workers = state.sharing.ranks, state.sharing.workers
    count = ranks * workers
    plans = [
        mix.plan(state.epoch, Part(worker, count), state.rest, workers=workers)
        for worker in range(workers)
    ]
    given = [plan.given(batch) for plan, batch in zip(plans, state.batches, strict=True)]
    before = plans[0].rest
    went_on = before is not None and before.epoch == state.epoch and before.left is not None
    left = None
    if any(state.batches) or went_on:
        left = ranks * (sum(plan.num_batches for plan in plans) - sum(state.batches))
    sources = []
    for number, (name, loader) in enumerate(mix.loaders.items()):
        own = None if before is None else before.sources[number]
        settings = {} if before is None else state.settings_left.get(name, {})
        sources.append(
            _rest_of(
                loader,
                [int(clips[number]) for clips in given],
                ranks,
                own,
                state.sources[name].settings,
                settings,
            )
        )
    change = 0 if state.rest is None else state.rest.number
    return MixRest(state.epoch, left, change + 1, tuple(sources))


def _rest_of(
    loader: SourceLoader,
    given: Sequence[int],
    ranks: int,
    before: SourceRest | None,
    usual: PlanSettings,
    settings: Mapping[int, PlanSettings],
) -> SourceRest:
    """Of a source of which each worker of a rank has given so many clips since the last change."""
    count = ranks * len(given)
    places = [loader.locate(clips, count, before) for clips in given]
    old = {} if before is None else dict(before.pending)
    first, last = min(places)[0], max(places)[0]
    pending: list[tuple[int, Stages]] = []
    following = first
    for epoch in range(first, max([last, *old]) + 1):
        stages = old.get(epoch, ())
        length = loader.length(epoch, count, stages)
        clips = tuple(
            length if place > epoch else total - begin if place == epoch else 0
            for total, (place, begin) in zip(given, places, strict=True)
        )
        if any(clips):
            stage = Stage(ranks, clips, settings.get(epoch, usual) if stages else usual, True)
            stages = (*stages, stage)
        if stages:
            pending.append((epoch, stages))
            following = epoch + 1
    return SourceRest(tuple(pending), following)
