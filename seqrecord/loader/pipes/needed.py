"""The bytes that a plan, or all frames of a view, need from remote storage; and frames that later
epochs need.
"""

from __future__ import annotations

import numpy as np

from seqrecord.loader.pipes.view import View
from seqrecord.loader.sampling.plan import Plan
from seqrecord.loader.sampling.runs import Intervals, Runs
from seqrecord.loader.sampling.used_frames import RunFrames
from seqrecord.store.reading.needed_bytes import UsedFrames, needed_bytes
from seqrecord.store.storage.chunk_store import Pieces
from seqrecord.store.storage.ranges import MAX_GAP


def needed_in(view: View, plan: Plan) -> Pieces:
    """The bytes of a shard's frames, in the pieces to read at once.

    Frames of lists, and large frames far from each other, are read one by one: none are in pieces.
    """
    if view.excerpts is not None:
        return {}
    used, features = [], view.dataset.features
    for place, group in enumerate(plan.groups):
        nbytes = sum(spec.nbytes for spec in features.values() if spec.group == group.group)
        if (group.window.frame_step - 1) * nbytes <= MAX_GAP:
            used.append(UsedFrames(group.group, *plan.used(place)))
    if view.transform is not None:  # it reads the chunks of all groups
        frames = plan.used(0)
        groups = sorted({spec.group for spec in features.values()})
        used = [UsedFrames(group, *frames, in_whole_pages=True) for group in groups]
    return _bytes_of(view, used)


def frames_of_epochs(view: View) -> dict[int, Intervals]:
    """The frames that samples of any epoch may have, of the groups that are video or remote: if
    epochs choose others, a later one would decode the pictures between its own, or fetch the chunk,
    again. By number of the group.
    """
    intervals = dict[int, Intervals]()
    runs, chunks = Runs.of(view.samples.base.clips), view.dataset.contents.chunks
    in_order = {
        view.dataset.features[name].group
        for name, kind in chunks.kinds.items()
        if kind.decodes_in_order
    }
    if view.transform is not None and in_order:  # it needs whole frames
        in_order = {grid.group for grid in view.episodes.groups}
    for grid, window in zip(view.episodes.groups, view.group_windows, strict=True):
        if grid.group in in_order or not chunks.is_local:
            bounds = RunFrames(runs, view.episodes.num_frames, window).bounds
            intervals[grid.group] = Intervals(runs.episode, *bounds)
    return intervals


def all_bytes(view: View) -> Pieces:
    """The bytes of the selected episodes' frames."""
    contents = view.dataset.contents
    episode = view.episode_rows
    stop = contents.index.num_frames[episode].astype(np.int64)
    return _bytes_of(
        view,
        [
            UsedFrames(grid.group, episode, np.zeros_like(stop), stop)
            for grid in contents.episode_table.groups
        ],
    )


def _bytes_of(view: View, used: list[UsedFrames]) -> Pieces:
    contents = view.dataset.contents
    return needed_bytes(
        contents.index.groups,
        [file.path for file in contents.manifest.record_files],
        contents.features,
        contents.episode_table.groups,
        used,
    )
