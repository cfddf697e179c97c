"""Padding in batches of a budget: as long as the longest frame of the batch.

With `ragged="pad"`, a feature of variable shape has rows of one size in memory, that of the largest
frame of the dataset. A batch of a `Budget` is a view of these rows, without the values that are
padding in all of its clips::

    rows, 8 values    batch [2, 3, …] and mask [2, 3]
    a a - - - - - -       a a -       1 1 0
    b b b - - - - -       b b b       1 1 1

Sizes that `ragged` gives as numbers are kept. Values of texts have their rows made for each batch,
of this size at once: see `tools.derive.text_values`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from seqrecord.loader.engine.devices import Device
from seqrecord.loader.engine.tensors import array_of
from seqrecord.loader.frames.array_specs import ArraySpec, mask_name


def padded_axes(rows: Mapping[str, ArraySpec], made: Mapping[str, ArraySpec]) -> dict[str, int]:
    """The varying axis, counted from the end, of each feature that is padded to the largest frame.

    `rows` are the arrays of frames, `made` those of batches. Results of functions are left out,
    unless they have the shapes of the feature and its mask.
    """
    axes = dict[str, int]()
    for mask, spec in rows.items():
        name, axis = spec.mask_of, spec.padded_axis
        if name is None or axis is None or not {name, mask} <= made.keys():
            continue
        if (made[name].shape, made[mask].shape) == (rows[name].shape, spec.shape):
            axes[name] = axis
    return axes


def cut_padding(
    features: Mapping[str, Any], axes: Mapping[str, int], device: Device | None
) -> dict[str, Any]:
    """Views of these features of a batch, tensors, and of their masks, up to the last value.

    `axes` are those of `padded_axes`.
    """
    cut_features = dict(features)
    for name, axis in axes.items():
        mask = features[mask_name(name)]
        any_value = partial(_any_value, mask)
        # On a device, not in the consumer's stream: this would wait for the training's steps.
        has_value = array_of(any_value()) if device is None else device.compute(any_value)
        length = int(np.flatnonzero(has_value).max(initial=-1)) + 1
        cut_features[name] = features[name].narrow(axis, 0, length)
        cut_features[mask_name(name)] = mask.narrow(-1, 0, length)
    return cut_features


def _any_value(mask: torch.Tensor) -> torch.Tensor:
    """Whether any frame has a value at each place of the padded axis, bool [length]."""
    return mask.flatten(0, -2).any(dim=0)
