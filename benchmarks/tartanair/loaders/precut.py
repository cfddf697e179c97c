"""Clips cut before training, for formats whose samples are what they are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tartanair.compare.recordings import Recordings
from benchmarks.tartanair.loaders.base import Batch, Settings

__all__ = ["CutBatches", "cut_clips", "cut_name", "save_keys"]

_KEYS = "episodes.json"


def cut_name(name: str, settings: Settings) -> str:
    """The format's name: the cuts are of one length and stride."""
    return f"{name}-{settings.clip_len}-{settings.stride}"


def cut_clips(recordings: Recordings, settings: Settings) -> Iterator[dict[str, Any]]:
    """Every clip in order: its features, `episode` (its number) and `start`."""
    for number, (_, frames) in enumerate(recordings.read()):
        recent: list[Mapping[str, Any]] = []
        for index, frame in enumerate(frames):
            recent = [*recent, frame][-settings.clip_len :]
            start = index - settings.clip_len + 1
            if start >= 0 and start % settings.stride == 0:
                arrays = {name: np.stack([f[name] for f in recent]) for name in recordings.features}
                yield {**arrays, "episode": number, "start": start}


def save_keys(recordings: Recordings, folder: Path) -> None:
    """What the episodes' numbers stand for, for `CutBatches`."""
    (folder / _KEYS).write_text(json.dumps([episode.key for episode in recordings.episodes]))


class CutBatches:
    """Batches of cut clips, with keys for the episodes' numbers."""

    def __init__(self, folder: Path, features: Sequence[str], batches: Iterable[Batch]) -> None:
        self._episodes = json.loads((folder / _KEYS).read_text())
        self._features = features
        self._batches = batches

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            keys = [self._episodes[int(number)] for number in batch["episode"]]
            features = {name: batch[name] for name in self._features}
            yield {**features, "episode": keys, "start": batch["start"]}
