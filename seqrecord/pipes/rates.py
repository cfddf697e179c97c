"""Windows in seconds by frames a second: offsets in frames, of each number of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from seqrecord.clip_frames import OffsetWindow
from seqrecord.clips import IntArray
from seqrecord.errors import ClipError
from seqrecord.format.index import Index
from seqrecord.seconds import Seconds

__all__ = ["Rates"]


@dataclass(frozen=True)
class Rates:
    """The offsets of some features, in episodes of one rate and of others.

    Rates are different where offsets are: all episodes are of one where there are no features.
    """

    offsets: Mapping[str, IntArray]  # int64[rates, T]
    episodes: tuple[IntArray, ...]  # of each rate, rows of the selected ones
    rate: IntArray  # int64[E], of all episodes; 0 of those that are not selected
    said: Mapping[str, str]  # the windows as text, where there are several rates

    @classmethod
    def of(
        cls, windows: Mapping[str, Seconds], index: Index, selected: IntArray, *, url: str
    ) -> Rates:
        """Of features with these windows; `selected` are rows of the index.

        Raises `ClipError` where a selected episode says nothing of frames a second, where no frame
        is near enough to a time, and where episodes have different numbers of frames in a window.
        """
        rate = np.zeros(len(index.fps), np.int64)
        if not windows:
            return cls({}, (selected,), rate, {})
        if not len(selected):
            return cls(
                {name: np.zeros((1, 1), np.int64) for name in windows}, (selected,), rate, {}
            )
        said = index.fps[selected]
        if not said.all():
            row = int(selected[int(np.argmin(said > 0))])
            raise ClipError(
                "Seconds need episodes that say how many frames a second they have",
                file=url,
                episode=index.key(row),
                expected="an fps, as of SeqRecordWriter.episode; or Seconds by a timestamp",
                got="none",
            )
        values, first, of_values = np.unique(said, return_index=True, return_inverse=True)
        keys = [index.key(row) for row in selected[first].tolist()]
        by_value = {
            name: _stacked(window, values.tolist(), keys, name, url)
            for name, window in windows.items()
        }
        joined = np.concatenate(list(by_value.values()), axis=1)
        _, first, of_rates = np.unique(joined, axis=0, return_index=True, return_inverse=True)
        rate[selected] = of_rates.reshape(-1)[of_values]
        found = {name: offsets[first] for name, offsets in by_value.items()}
        texts = {}
        if len(first) > 1:
            every = ", ".join(f"{value:g}" for value in values.tolist())
            texts = {
                name: f"{window!r} at {every} frames a second" for name, window in windows.items()
            }
        episodes = tuple(selected[rate[selected] == number] for number in range(len(first)))
        return cls(found, episodes, rate, texts)

    @property
    def windows(self) -> dict[str, OffsetWindow]:
        """By feature."""
        rate = None if len(self.episodes) == 1 else self.rate
        return {name: OffsetWindow(offsets, rate) for name, offsets in self.offsets.items()}


def _stacked(window: Seconds, fps: list[float], keys: list[str], name: str, url: str) -> IntArray:
    """The offsets at each of these frames a second, int64[n, T]; `keys` are of episodes of each."""
    found: list[IntArray] = []
    for value, key in zip(fps, keys, strict=True):
        try:
            found.append(window.offsets(value, name))
        except ClipError as error:
            raise error.located(file=url, episode=key) from error.__cause__
        if len(found[-1]) != len(found[0]):
            raise ClipError(
                "episodes of different frames a second have other numbers of frames in Seconds",
                file=url,
                episode=key,
                feature=name,
                expected=f"{len(found[0])} frames, as at {fps[0]:g} frames a second; ask for times "
                "with a list or every",
                got=f"{len(found[-1])} at {value:g}",
            )
    return np.stack(found)
