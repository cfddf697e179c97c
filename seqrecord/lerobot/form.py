"""Batches in the form that LeRobot's have."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch

_CAMERAS = "observation.image"  # how LeRobot calls them


def to_lerobot(
    batch: Mapping[str, Any],
    *,
    cameras: Collection[str] | None = None,
    return_uint8: bool = False,
) -> dict[str, Any]:
    """A batch of a loader of a LeRobot dataset, in the form of LeRobot's own batches.

    Images, uint8 [batch, …, H, W, C], become float32 [batch, …, C, H, W] from 0 to 1, or with
    `return_uint8` stay uint8; other integers become int64, other floats float32. `start` is called
    `frame_index`. With `windows`, `pad="edge"` and `squeeze_time=True` of the loader that is what
    LeRobot's class gives for the same `delta_timestamps`, but for `index` and `task_index`.

    Args:
        batch: of clips, from a loader with `batch_size` or from `seqrecord.collate`.
        cameras: the features that are images; by default all whose names begin with
            `observation.image`.
    """
    found = {}
    for name, value in batch.items():
        if name in cameras if cameras is not None else name.startswith(_CAMERAS):
            value = channels_first(value, return_uint8=return_uint8)
        else:
            value = numbers(value)
        found["frame_index" if name == "start" else name] = value
    return found


def channels_first(images: Any, *, return_uint8: bool) -> Any:
    """Images uint8 [batch, …, C, H, W], or float32 from 0 to 1, of uint8 [batch, …, H, W, C]; what
    is none, such as a mask of padding, as it is."""
    if not isinstance(images, torch.Tensor) or images.dtype != torch.uint8:
        return images
    # Not by torch: its threads wait for each other, and one of them takes twice as long.
    found = np.ascontiguousarray(np.moveaxis(images.numpy(), -1, -3))
    return torch.from_numpy(found if return_uint8 else found / np.float32(255))


def numbers(value: Any) -> Any:
    """Numbers as torch makes them of Python's."""
    if not isinstance(value, torch.Tensor) or value.dtype == torch.bool:
        return value
    return value.to(torch.float32 if value.is_floating_point() else torch.int64)
