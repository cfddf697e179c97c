"""The bytes that a plan, or all frames of a view, need from remote storage; and frames that later
epochs need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from seqrecord.loader.clips.layouts import episode_layout
from seqrecord.loader.engine.frame_rows import FrameRows
from seqrecord.loader.pipes.view import View
from seqrecord.loader.reading.chunk_store import Pieces
from seqrecord.loader.reading.needed_bytes import UsedFrames, needed_bytes
from seqrecord.loader.sampling.plan import Plan
from seqrecord.loader.sampling.runs import Intervals, Runs
from seqrecord.loader.sampling.used_frames import RunFrames, united
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
            used.append(UsedFrames(group.group, *plan.used(place)[:3]))
    if view.transform is not None:  # it reads the chunks of all groups
        frames = plan.used(0)[:3]
        groups = sorted({spec.group for spec in features.values()})
        used = [UsedFrames(group, *frames, in_whole_pages=True) for group in groups]
    return _bytes_of(view, used)


def frames_of_epochs(view: View, max_clips: int) -> list[Intervals]:
    """The frames that samples of any epoch may have, of each group: disjoint and ascending.

    Of samples that differ by epoch, or more than `max_clips`, these are all frames within reach.
    """
    is_fixed = view.has_fixed_frames and view.samples.common.clips.num_clips <= max_clips
    frames = view.group_frames(0) if is_fixed else [None] * len(view.group_windows)
    runs = Runs.of(view.samples.common.clips if is_fixed else view.samples.base.clips)
    intervals = []
    for window, frames_of_group in zip(view.group_windows, frames, strict=True):
        if not is_fixed:  # epochs may have other strides, or begin elsewhere
            window = replace(window, frame_step=1)
        run_frames = RunFrames(runs, view.episodes.num_frames, window, frames_of_group)
        intervals.append(united(*run_frames.intervals(np.zeros_like(runs.run)))[1])
    return intervals


def frame_rows(view: View, frames: Sequence[Intervals]) -> dict[int, FrameRows]:
    """Rows of the resident frames of each group."""
    between, rows = _groups_loaded_between(view), dict[int, FrameRows]()
    for grid, intervals in zip(view.episodes.groups, frames, strict=True):
        fills_gaps = grid.group in between
        rows[grid.group] = FrameRows(intervals, view.episodes.num_frames, fills_gaps=fills_gaps)
    return rows


def _groups_loaded_between(view: View) -> set[int]:
    """The groups of which epochs that choose other samples than the next one load more frames: a
    later one would decode the pictures between its own, or fetch the chunk, again.
    """
    if not view.samples.common.differ:
        return set()
    chunks, groups = view.dataset.contents.chunks, {grid.group for grid in view.episodes.groups}
    if not chunks.is_local:
        return groups
    in_order = {
        view.dataset.features[name].group
        for name, kind in chunks.kinds.items()
        if kind.decodes_in_order
    }
    return groups if view.transform is not None and in_order else groups & in_order


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
