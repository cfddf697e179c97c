"""Frames of an episode one after the other, of each feature for itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from seqrecord.reading.episode import Episode

__all__ = ["values_in_order"]

_FRAMES_AT_ONCE = 32  # about what a chunk of images has
_SMALL_BYTES = 1 << 20  # of frames so small that a chunk has many


def values_in_order(episode: Episode, feature: str, numbers: Sequence[int]) -> Iterator[Any]:
    """What these frames have of a feature, in their order: `None` for each that lacks it.

    Holds 32 frames, or 1 MiB of smaller ones of a fixed shape. Raises what `Episode.read` raises.
    """
    present, spec = episode.present(feature), episode.features[feature]
    at_once = _FRAMES_AT_ONCE
    if spec.is_fixed:
        at_once = max(at_once, _SMALL_BYTES // max(1, spec.nbytes))
    for start in range(0, len(numbers), at_once):
        part = numbers[start : start + at_once]
        there = [number for number in part if present[number]]
        values = iter(episode.read(there, features=[feature])[feature] if there else ())
        for number in part:
            yield next(values) if present[number] else None
