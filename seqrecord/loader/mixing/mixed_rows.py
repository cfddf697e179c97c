"""The rows of a mix's batches, from the plans of its sources."""

from __future__ import annotations

import numpy as np

from seqrecord.loader.clips.frames import ClipKeys
from seqrecord.loader.engine.batches import Batch
from seqrecord.loader.mixing.mix_loader import MixLoader
from seqrecord.loader.mixing.planning import MixPlan
from seqrecord.loader.pipes.states import Clip


def rows_of_mix(mix: MixLoader, plan: MixPlan, number: int) -> Clip:
    """The columns of a batch by its number, except columns made of features."""
    source = plan.sources(number)
    keys, epochs = ClipKeys.zeros(len(source)), np.zeros_like(source)
    loaders = list(mix.loaders.values())
    for place in np.unique(source).tolist():
        clip = int(plan.given(number)[place])
        stop, loader = clip + int((source == place).sum()), loaders[place]
        while clip < stop:
            epoch, num_clips_before = loader.view.samples.epoch_of(clip, plan.shard.count)
            epoch_plan = loader.order.plan(epoch, plan.shard)
            start = clip - num_clips_before
            clips = epoch_plan.clips_between(
                start, min(stop - num_clips_before, epoch_plan.num_clips)
            )
            _, slots = plan.places(place, num_clips_before, clips, start)
            for column, values in zip(keys, clips.keys, strict=True):
                column[slots] = values
            epochs[slots] = epoch
            clip += len(clips)
    which = int(source[0]) if mix.alternate else 0
    batch = Batch({}, keys, source, epochs)
    return mix.batches[which].columns_of(batch, plan.batches, number, planned=True)
