"""A list of episodes: one row each, made when it is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seqrecord.clips import ClipSpec
from seqrecord.reader import Dataset, EpisodeFilter
from seqrecord.wording import counted, printable

__all__ = ["EpisodeRow", "list_episodes", "listing_lines"]

_MAX_METADATA = 100  # characters in a line; `info DATA KEY` and JSON show all


@dataclass(frozen=True)
class EpisodeRow:
    """One episode of a list. `num_clips` is `None` unless clips were asked for."""

    key: str
    num_frames: int
    num_clips: int | None
    metadata: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


def list_episodes(
    dataset: Dataset, episodes: EpisodeFilter = None, *, clip: ClipSpec | None = None
) -> Iterator[EpisodeRow]:
    """The selected episodes in the dataset's order, one at a time.

    Clips are counted as in `Dataset.clips`. Raises `ClipError` where `Dataset.find_episodes` does.
    """
    numbers = dataset.find_episodes(episodes)
    return _rows(dataset, numbers, _clips(dataset, episodes, numbers, clip))


def listing_lines(
    dataset: Dataset, episodes: EpisodeFilter = None, *, clip: ClipSpec | None = None
) -> Iterator[str]:
    """`list_episodes` as lines of an aligned table, with a total at its end."""
    numbers = dataset.find_episodes(episodes)
    clips = _clips(dataset, episodes, numbers, clip)
    frames = dataset.index.num_frames[numbers]
    keys = pc.utf8_length(dataset.index.keys.take(pa.array(numbers)))
    widths = [
        max(len("episode"), pc.max(keys).as_py()),
        max(len("frames"), len(f"{frames.max():,}")),
        0 if clips is None else max(len("clips"), len(f"{clips.max():,}")),
    ]

    def line(key: str, frame_count: str, clip_count: str, metadata: str) -> str:
        cells = [key.ljust(widths[0]), frame_count.rjust(widths[1])]
        cells += [] if clips is None else [clip_count.rjust(widths[2])]
        return "  ".join([*cells, metadata]).rstrip()

    yield line("episode", "frames", "clips", "metadata")
    for row in _rows(dataset, numbers, clips):
        metadata = printable(json.dumps(row.metadata, ensure_ascii=False)) if row.metadata else ""
        if len(metadata) > _MAX_METADATA:
            metadata = f"{metadata[: _MAX_METADATA - 1]}…"
        yield line(printable(row.key), f"{row.num_frames:,}", f"{row.num_clips or 0:,}", metadata)
    total = f"{counted(len(numbers), 'episode')}, {counted(int(frames.sum()), 'frame')}"
    yield total if clips is None else f"{total}, {counted(int(clips.sum()), 'clip')}"


def _clips(
    dataset: Dataset,
    episodes: EpisodeFilter,
    numbers: npt.NDArray[np.int64],
    clip: ClipSpec | None,
) -> npt.NDArray[np.int64] | None:
    """Clips of each of the episodes, int64[n]."""
    if clip is None:
        return None
    table = dataset.clips(clip, episodes)
    counts = np.zeros(len(dataset.index.num_frames), np.int64)
    np.add.at(counts, table.episode, table.count)
    return counts[numbers]


def _rows(
    dataset: Dataset, numbers: npt.NDArray[np.int64], clips: npt.NDArray[np.int64] | None
) -> Iterator[EpisodeRow]:
    index = dataset.index
    for place, number in enumerate(numbers.tolist()):
        yield EpisodeRow(
            key=index.keys[number].as_py(),
            num_frames=int(index.num_frames[number]),
            num_clips=None if clips is None else int(clips[place]),
            metadata=index.episode_metadata(number),
        )
