"""Clips out of frames that come one after the other: what streaming loaders need for clips."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.tartanair.loaders.base import Batch

__all__ = ["Frame", "Window", "collate", "windows"]

Frame = dict[str, Any]
"""Feature to array, `episode` and `index`."""

Window = list[Frame]


def windows(frames: Iterable[Frame], clip_len: int, stride: int) -> Iterator[Window]:
    """Every clip, as references to its frames, which are in order within their episode."""
    recent: deque[Frame] = deque(maxlen=clip_len)
    for frame in frames:
        if frame["index"] == 0:
            recent.clear()
        recent.append(frame)
        if len(recent) == clip_len and recent[0]["index"] % stride == 0:
            yield list(recent)


def collate(clips: Sequence[Window], features: Sequence[str]) -> Batch:
    """A batch, each frame copied once."""
    batch: Batch = {}
    for name in features:
        first = clips[0][0][name]
        array = np.empty((len(clips), len(clips[0]), *first.shape), first.dtype)
        for into, clip in zip(array, clips, strict=True):
            for row, frame in zip(into, clip, strict=True):
                row[...] = frame[name]
        batch[name] = torch.from_numpy(array)
    batch["episode"] = [clip[0]["episode"] for clip in clips]
    batch["start"] = torch.tensor([clip[0]["index"] for clip in clips])
    return batch
