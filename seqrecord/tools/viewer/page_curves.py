"""Curves and captions of an episode, in a few bytes."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.store.reading.episode import Episode, values_in_order
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.statistics.moments import Moments, merge_moments, moments_of
from seqrecord.tools.viewer.page_budget import MAX_SHORT_POINTS

Floats = npt.NDArray[np.float64]

_BLOCK_BYTES = 8 << 20  # of frames in memory
_MAX_TEXT = 300  # characters of a caption


class Curves:
    """A feature's values over an episode, reduced to a minimum and a maximum per step of frames.

    `moments` are of each channel.
    """

    def __init__(self, episode: Episode, spec: FeatureSpec, max_points: int) -> None:
        count = len(episode)
        self.step = 1 if count <= max_points else -(-count // max(1, max_points // 2))
        parts: list[Floats] = []
        channels = int(np.prod([n or 0 for n in spec.shape], dtype=np.int64))
        self.moments = [Moments() for _ in range(channels)]
        for block in _blocks(episode, spec, channels, self.step):
            merge_moments(self.moments, moments_of(block))
            parts.append(block if self.step == 1 else _extremes(block, self.step))
        self.values = np.concatenate(parts) if parts else np.zeros((0, channels))

    def to_json(self) -> dict[str, Any]:
        """The curves as integers from 1 in each channel's range; 0 is no number. [C, points]."""
        is_wide = len(self.values) > MAX_SHORT_POINTS
        max_code = 65_534 if is_wide else 254
        ranges = [(moments.min, moments.max) for moments in self.moments]
        low, high = np.array(ranges, np.float64).reshape(-1, 2).T  # NaN where no value is finite
        with np.errstate(over="ignore", invalid="ignore"):
            share = (self.values - low) / np.where(high > low, high - low, 1.0)
        share = np.where(np.isfinite(self.values), np.clip(np.nan_to_num(share), 0, 1), -1)
        codes = np.where(share < 0, 0, 1 + np.round(share * max_code))
        data = np.ascontiguousarray(codes.T.astype("<u2" if is_wide else "u1")).tobytes()
        return {
            "step": self.step,
            "points": len(self.values),
            "wide": is_wide,
            "low": [_short(value) for value in low.tolist()],
            "high": [_short(value) for value in high.tolist()],
            "codes": base64.b64encode(data).decode(),
        }


def _short(value: float) -> float | None:
    """Six digits of a number; `None` for NaN, which JSON lacks."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _blocks(episode: Episode, spec: FeatureSpec, channels: int, step: int) -> Iterator[Floats]:
    """Yield frames as float64 [n, C], NaN for missing ones; whole steps, about 8 MiB each."""
    present = episode.present(spec.name)
    size = max(1, _BLOCK_BYTES // max(8 * channels, 1) // step) * step
    for start in range(0, len(episode), size):
        numbers = np.arange(start, min(start + size, len(episode)))
        block = np.full((len(numbers), channels), np.nan)
        is_present = present[numbers]
        if is_present.any():
            values = episode.read(numbers[is_present].tolist(), features=[spec.name])[spec.name]
            block[is_present] = np.asarray(values, np.float64).reshape(len(values), channels)
        yield block


def _extremes(block: Floats, step: int) -> Floats:
    """Each step's minimum and maximum, in the order of frames: [2 steps, C]."""
    count = -(-len(block) // step)
    padded = np.full((count * step, block.shape[1]), np.nan)
    padded[: len(block)] = block
    steps = padded.reshape(count, step, -1)
    is_gap = ~np.isfinite(steps).any(axis=1, keepdims=True)
    low = np.where(np.isfinite(steps), steps, np.inf).argmin(axis=1)[:, None]
    high = np.where(np.isfinite(steps), steps, -np.inf).argmax(axis=1)[:, None]
    places = np.concatenate([np.minimum(low, high), np.maximum(low, high)], axis=1)
    extremes = np.take_along_axis(steps, places, axis=1)
    return np.where(is_gap, np.nan, extremes).reshape(2 * count, -1)


def captions(episode: Episode, feature: str, limit: int) -> dict[str, Any]:
    """Runs of frames with equal text, `[start, stop, text]`, in about `limit` characters.

    `changes` counts all runs with text. A frame without text is in no run.
    """
    runs: list[list[Any]] = []
    changes, room = 0, limit
    for start, stop, text in _runs(values_in_order(episode, feature, range(len(episode)))):
        if text is None or text == "":
            continue
        changes += 1
        room -= len(text[:_MAX_TEXT]) + 12
        if room >= 0:
            runs.append([start, stop, text[:_MAX_TEXT] + "…" * (len(text) > _MAX_TEXT)])
    return {"runs": runs, "changes": changes}


def _runs(values: Iterable[Any]) -> Iterator[tuple[int, int, Any]]:
    start, run_value, number = 0, None, -1
    for number, value in enumerate(values):
        if number == 0 or value != run_value:
            if number:
                yield start, number, run_value
            start, run_value = number, value
    if number >= 0:
        yield start, number + 1, run_value


def gaps(episode: Episode, feature: str, max_gaps: int = 50) -> list[list[int]]:
    """The first runs of frames without a feature: `[start, stop]`, at most `max_gaps`."""
    present = np.concatenate([[True], episode.present(feature), [True]])
    edges = np.flatnonzero(present[1:] != present[:-1]).reshape(-1, 2)
    spans: list[list[int]] = edges[:max_gaps].tolist()
    return spans
