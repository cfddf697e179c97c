"""Check that a loader yields exactly the baseline's clips."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tartanair.compare.recordings import Clip, Recordings
from benchmarks.tartanair.loaders.base import Batch, Loader, Settings

__all__ = ["Originals", "check", "clips_of", "wrong_clips"]

_MOST_LOSS = 8.0  # levels of 255, of a lossy image's mean difference


class Originals:
    """Clips of recordings, read by the baseline one frame at a time."""

    def __init__(self, recordings: Recordings) -> None:
        self._frames = {
            (episode.key, index): recordings.delivered(frame)
            for episode, frames in recordings.read()
            for index, frame in enumerate(frames)
        }

    def clip(self, episode: str, start: int, clip_len: int, feature: str) -> Any:
        return np.stack([self._frames[episode, start + i][feature] for i in range(clip_len)])


def check(
    loader: Loader, recordings: Recordings, folder: Path, settings: Settings, *, epochs: int = 1
) -> list[str]:
    """Problems of a loader's epochs on data prepared in `folder`; for small recordings."""
    clips = recordings.clips(settings.clip_len, settings.stride)
    batches = loader.open(folder, clips, settings)
    originals, problems, orders = Originals(recordings), [], []
    for epoch in range(epochs):
        seen = []
        for batch in batches:
            found = _wrong_values(batch, originals, settings, _MOST_LOSS if loader.lossy else 0.0)
            problems += [f"epoch {epoch}: {problem}" for problem in found]
            seen += clips_of(batch)
        problems += [f"epoch {epoch}: {p}" for p in wrong_clips(seen, clips)]
        orders.append(seen)
    canonical = [(clip.episode, clip.start) for clip in clips]
    if settings.shuffle == "off" and settings.workers == 0 and orders[0] != canonical:
        problems.append("clips are not in order")
    if settings.shuffle != "off" and orders[0] == canonical:
        problems.append("clips are not shuffled")
    return problems


def clips_of(batch: Batch) -> list[tuple[str, int]]:
    """Episode and start of each clip of a batch."""
    return list(zip(batch["episode"], (int(start) for start in batch["start"]), strict=True))


def wrong_clips(seen: Sequence[tuple[str, int]], clips: Sequence[Clip]) -> list[str]:
    """Missing and duplicate clips of an epoch."""
    expected = Counter((clip.episode, clip.start) for clip in clips)
    got = Counter(seen)
    missing, extra = expected - got, got - expected
    return [
        f"{sum(clips.values())} clips {problem}, such as {next(iter(clips))}"
        for problem, clips in (("missing", missing), ("too many", extra))
        if clips
    ]


def _wrong_values(
    batch: Batch, originals: Originals, settings: Settings, most_loss: float
) -> list[str]:
    """Features that differ from the baseline's, in any bit or by `most_loss` on average."""
    names = {*settings.features, "episode", "start"}
    if set(batch) != names:
        return [f"a batch of {sorted(batch)} instead of {sorted(names)}"]
    places = clips_of(batch)
    if len(places) > settings.batch_size:
        return [f"a batch of {len(places)} clips instead of {settings.batch_size}"]
    problems = []
    for name in settings.features:
        got = np.asarray(batch[name].cpu() if hasattr(batch[name], "cpu") else batch[name])
        for i, (episode, start) in enumerate(places):
            expected = originals.clip(episode, start, settings.clip_len, name)
            same = (got.dtype, got[i].shape) == (expected.dtype, expected.shape)
            if same and most_loss:
                same = float(np.abs(got[i].astype(np.float32) - expected).mean()) <= most_loss
            elif same:
                same = got[i].tobytes() == expected.tobytes()
            if not same:
                problems.append(
                    f"{name} of {episode} at {start}: {got.dtype}{list(got[i].shape)} is not the "
                    f"baseline's {expected.dtype}{list(expected.shape)}"
                )
    return problems
