"""The bytes that a plan, or all frames of a view, need from remote storage."""

from __future__ import annotations

import numpy as np

from seqrecord.loader.clips.layouts import episode_layout
from seqrecord.loader.pipes.view import View
from seqrecord.loader.reading.chunk_store import Pieces
from seqrecord.loader.reading.needed_bytes import UsedFrames, needed_bytes
from seqrecord.loader.sampling.epoch_plans import EpochPlan
from seqrecord.store.storage.ranges import MAX_GAP


def needed_in(view: View, plan: EpochPlan) -> Pieces:
    """The bytes of a shard's frames, in the pieces to read at once.

    Frames of lists, and large frames far from each other, are read one by one: none are in pieces.
    """
    if view.lists is not None:
        return {}
    used, features = [], view.dataset.features
    for place, group in enumerate(plan.groups):
        nbytes = sum(spec.nbytes for spec in features.values() if spec.group == group.group)
        if (group.window.frame_step - 1) * nbytes <= MAX_GAP:
            used.append(UsedFrames(group.group, *plan.used(place)[:3]))
    if view.transform is not None:  # it reads the chunks of all groups
        frames = plan.used(0)[:3]
        groups = sorted({spec.group for spec in features.values()})
        used = [UsedFrames(group, *frames, in_whole_pages=True) for group in groups]
    return _bytes_of(view, used)


def all_bytes(view: View) -> Pieces:
    """The bytes of the selected episodes' frames."""
    contents = view.dataset.contents
    episode = view.episode_rows
    stop = contents.index.num_frames[episode].astype(np.int64)
    return _bytes_of(
        view,
        [
            UsedFrames(grid.group, episode, np.zeros_like(stop), stop)
            for grid in episode_layout(contents).groups
        ],
    )


def _bytes_of(view: View, used: list[UsedFrames]) -> Pieces:
    contents = view.dataset.contents
    return needed_bytes(
        contents.index.groups,
        [file.path for file in contents.manifest.record_files],
        contents.features,
        episode_layout(contents).groups,
        used,
    )
