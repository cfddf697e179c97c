"""Poses relative to another frame of their clip, and the lengths by which they are divided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from seqrecord.camera.conventions import BoolArray, FloatArray
from seqrecord.camera.values import CONSECUTIVE
from seqrecord.store.cameras.rotations import vector_lengths
from seqrecord.store.tables.grids import IntArray


class ClipPoses(NamedTuple):
    """Poses of an image in n clips, float64 [n, T, 4, 4].

    Masks, bool [n, T], tell which are missing, and which are of padding. `frames`, int64 [n, T],
    are the numbers of their frames in the episode.
    """

    poses: FloatArray
    is_missing: BoolArray
    is_pad: BoolArray
    frames: IntArray


def relative_poses(cameras: Mapping[str, ClipPoses], to: str) -> dict[str, ClipPoses]:
    """Poses in the first frame of the first image, or of each frame in the one before it.

    Poses without a known reference are missing, and so is the first of consecutive poses.
    """
    reference, no_reference, *_ = next(iter(cameras.values()))
    result = dict[str, ClipPoses]()
    for name, (poses, is_missing, is_pad, frames) in cameras.items():
        if to == CONSECUTIVE:
            moved = _seen_from(poses[:, :-1], poses[:, 1:])
            moved = np.concatenate([np.zeros_like(poses[:, :1]), moved], axis=1)
            before = np.concatenate([np.ones_like(is_missing[:, :1]), is_missing[:, :-1]], axis=1)
            result[name] = ClipPoses(moved, is_missing | before, is_pad, frames)
        else:
            moved = _seen_from(reference[:, :1], poses)
            result[name] = ClipPoses(moved, is_missing | no_reference[:, :1], is_pad, frames)
    return result


def _seen_from(reference: FloatArray, poses: FloatArray) -> FloatArray:
    """Poses in the frame of a reference pose, both float64 [..., 4, 4].

    R^T (t - s), not R^T t - R^T s, whose rounding would move a still camera.
    """
    rotations = reference[..., :3, :3].swapaxes(-1, -2)
    moved = np.zeros(np.broadcast_shapes(reference.shape, poses.shape))
    moved[..., :3, :3] = rotations @ poses[..., :3, :3]
    steps = poses[..., :3, 3] - reference[..., :3, 3]
    moved[..., :3, 3] = (rotations @ steps[..., None])[..., 0]
    moved[..., 3, 3] = 1
    return moved


def mean_translations(cameras: Mapping[str, ClipPoses], to: str) -> FloatArray:
    """The mean distance of the known poses of each clip, float64 [n]; NaN if none is known, or if
    float64 cannot compute one.

    Without padding, steps from padding, and the reference itself: the first frame of the first
    image, or of each frame the one before it.
    """
    lengths, masks = [], []
    for number, (poses, is_missing, is_pad, frames) in enumerate(cameras.values()):
        is_left_out = is_missing | is_pad
        if to == CONSECUTIVE:
            is_left_out[:, 1:] |= is_pad[:, :-1] | (frames[:, 1:] == frames[:, :-1])
        elif number == 0:
            is_left_out |= frames == frames[:, :1]
        lengths.append(vector_lengths(poses[..., :3, 3]))
        masks.append(~is_left_out)
    is_known = np.concatenate(masks, axis=1)
    totals = np.where(is_known, np.concatenate(lengths, axis=1), 0.0).sum(axis=1)
    counts = is_known.sum(axis=1)
    means: FloatArray = np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)
    return means
