"""Frames that may stay in memory, and their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from seqrecord.loader.engine.arena import FORMS
from seqrecord.loader.engine.frame_rows import FrameRows
from seqrecord.loader.pipes.view import View
from seqrecord.loader.sampling.frame_uses import RunFrames, united
from seqrecord.loader.sampling.runs import Intervals, Runs
from seqrecord.store.format.page_kinds import page_kind
from seqrecord.store.reading.chunk_sizes import is_decoded
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.schema import FeatureSpec

SMALL = 64 << 10  # bytes of a frame: to copy a larger one costs more than to read it alone
_LEAST = 2048


def frames_are_small(view: View) -> bool:
    """Whether to load a frame costs less than to gather it: raw ones of up to `_LEAST` bytes. So
    each shard may have all of them.
    """
    nbytes = [spec.nbytes for spec in view.stored_arrays.values()]
    is_any_decoded = any(map(is_decoded, view.dataset.features.values()))
    return frames_may_stay(view)[False] and not is_any_decoded and max(nbytes) <= _LEAST


def frames_may_stay(view: View) -> tuple[bool, bool]:
    """Whether all frames may stay in memory: if only small frames may, and if decoded ones may too.

    Decoded frames may stay if their shapes are fixed and decoding or transforming costs more than
    copying. Large raw frames do not stay: reading them again is a copy. Texts stay if the other
    features do.
    """
    if view.lists is not None:  # whose places are no frames of chunks
        return False, False
    features, transform = view.dataset.features, view.transform
    have_rows, are_small, are_costly = True, transform is None, transform is not None
    for array in view.arrays.values():
        have_rows &= FORMS[array.value_kind].fits_rows
    for name, spec in features.items() if transform is None else ():
        have_rows &= FORMS[spec.value_kind].fits_rows
        if not FORMS[spec.value_kind].stays_with_others:
            are_small = are_small and _is_small(view.dataset, name)
            are_costly |= is_decoded(spec)
    return are_small, are_small or (have_rows and are_costly and view.is_deterministic)


def features_in_memory(dataset: Dataset) -> tuple[list[str], list[str]]:
    """The features whose frames may stay in memory individually: small ones, and others.

    Small features are raw, complete and on a local disk. The others are encoded, complete, and of
    fixed shape or texts.
    """
    reader, features, index = dataset.contents.chunks, dataset.features, dataset.contents.index
    small = [
        name
        for name, spec in features.items()
        if reader.is_local and not is_decoded(spec) and _is_small(dataset, name)
        if name in reader.raw[spec.group].specs
    ]
    decoded = [
        name
        for name, spec in features.items()
        if FORMS[spec.value_kind].fits_rows
        and is_decoded(spec)
        and not len(index.group_of(name).gaps)
    ]
    return small, decoded


def resident_features(view: View, *, stay: bool) -> dict[str, list[str]]:
    """Names of features whose frames `stay` in memory, and of features decoded in every epoch."""
    features = view.dataset.features
    decoded = [n for n, spec in features.items() if view.transform is not None or is_decoded(spec)]
    return {
        "features_resident": list(features) if stay else [],
        "features_redecoded": [] if stay else decoded,
    }


def _is_small(dataset: Dataset, feature: str) -> bool:
    """Whether frames are small and complete, and each can be read alone."""
    spec, gaps = dataset.features[feature], dataset.contents.index.group_of(feature).gaps
    nbytes = spec.value_kind.constant_nbytes(spec)
    is_alone = not dataset.contents.chunks.kinds[feature].decodes_in_order
    return nbytes is not None and nbytes <= SMALL and is_alone and not len(gaps)


def can_stay(spec: FeatureSpec) -> bool:
    """Whether small frames of a feature can have a row each, and be decoded alone."""
    return FORMS[spec.value_kind].fits_rows and not page_kind(spec).decodes_in_order


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
