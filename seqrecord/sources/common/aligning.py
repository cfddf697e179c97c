"""Which rows of one list of times belong to those of another, and which messages make frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError

if TYPE_CHECKING:
    from seqrecord.sources.mcap.bags import Recording

ALIGNMENTS = ("nearest", "last")
NONE = -1
"""In place of a message where none is within the tolerance."""


def align(
    clock: npt.NDArray[np.int64], times: npt.NDArray[np.int64], how: str, tolerance: int
) -> npt.NDArray[np.int64]:
    """For each time of `clock` [N] the position of its message in `times` [M], or `NONE`.

    Both are in ascending order and in one unit, and so is `tolerance`, which is inclusive.

    ::

        times       a    b         c
        clock     |    |    |    |    |
        last      -    a    b    b    c      the last one that is not later
        nearest   a    b    b    c    c      the earlier one of two that are as near

    Of several messages of one time it is any one, but the same in every call.
    """
    if not len(times):
        return np.full(len(clock), NONE, np.int64)
    before = np.searchsorted(times, clock, side="right") - 1
    far = np.iinfo(np.int64).max
    age = np.where(before >= 0, clock - times[np.maximum(before, 0)], far)
    found, distance = before, age
    if how == "nearest":
        after = before + 1
        inside = after < len(times)
        ahead = np.where(inside, times[np.where(inside, after, 0)] - clock, far)
        found = np.where(ahead < age, after, before)
        distance = np.minimum(age, ahead)
    return np.where(distance <= tolerance, found, NONE)


def associate(
    first: npt.NDArray[np.float64], second: npt.NDArray[np.float64], within: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Pairs of rows of two rising lists, as TUM's `associate.py` finds them.

    Of all pairs less than `within` seconds apart, the closest one is taken, then the closest one
    of what is left, and so on; where two are as close, the one that is earlier in `first`, then in
    `second`. Of equal times only the last row counts. Pairs come in the order of `first`.
    """
    one, other = _last_of_equal(first), _last_of_equal(second)
    low = np.searchsorted(second[other], first[one] - within, "left")
    high = np.searchsorted(second[other], first[one] + within, "right")
    candidates = [
        (abs(first[i] - second[j]), i, j)
        for i, start, stop in zip(one.tolist(), low.tolist(), high.tolist(), strict=True)
        for j in other[start:stop].tolist()
        if abs(first[i] - second[j]) < within
    ]
    taken: dict[int, int] = {}
    used: set[int] = set()
    for _, i, j in sorted(candidates):
        if i not in taken and j not in used:
            taken[i] = j
            used.add(j)
    pairs = np.array(sorted(taken.items()), np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def sample_bounds(times: npt.NDArray[Any], samples: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Where the samples of each frame begin and end: int64 [T + 1].

    Frame t has those from its own time up to the next frame's. The last frame has those of as long
    a time as the frame before it.
    """
    interval = times[-1] - times[-2] if len(times) > 1 else 0
    return np.searchsorted(samples, np.append(times, times[-1] + interval), "left").astype(np.int64)


class AlignedMessages:
    """Which messages of a recording make its frames.

    `clock` [N] are the frames' times in ns, of each message of the clock's topic; `picks` are by
    topic the numbers of the messages [N] that the frames hold, `NONE` where none is near enough.
    """

    def __init__(
        self, recording: Recording, topics: Sequence[str], clock: str, how: str, tolerance: int
    ) -> None:
        times = recording.times()
        self.clock = times.get(clock, np.empty(0, np.int64))
        if not len(self.clock):
            raise SourceError(
                "a recording without messages of the clock",
                file=str(recording.paths[0]),
                expected=clock,
                got=", ".join(sorted(times))[:300],
            )
        self.num_messages = {topic: len(each) for topic, each in times.items()}
        none = np.empty(0, np.int64)
        self.picks = {t: align(self.clock, times.get(t, none), how, tolerance) for t in topics}
        if clock in self.picks:  # also where two of its messages are of one time
            self.picks[clock] = np.arange(len(self.clock))

    @property
    def fps(self) -> float | None:
        """Frames a second, where the clock is steady: no step is a tenth off the mean, and no time
        a quarter of a step off that of the mean."""
        since = self.clock - self.clock[0]
        steps = np.diff(since)
        if not len(steps) or steps.min() <= 0:
            return None
        mean = float(since[-1]) / len(steps)
        drift = np.abs(since - mean * np.arange(len(since))).max()
        is_steady = np.abs(steps - mean).max() <= 0.1 * mean and drift <= 0.25 * mean
        return 1e9 / mean if is_steady else None

    def counts(self, topic: str) -> dict[str, int]:
        """What became of a topic: its messages, those in frames, the others, frames without it."""
        picks, messages = self.picks[topic], self.num_messages.get(topic, 0)
        used = len(np.unique(picks[picks != NONE]))
        return {
            "messages": messages,
            "used": used,
            "dropped": messages - used,
            "frames_without": int(np.count_nonzero(picks == NONE)),
        }

    def frames(
        self, recording: Recording, read: Callable[[str, bytes, Path], Any]
    ) -> Iterator[dict[str, Any]]:
        """What `read` makes of the messages of each frame, by topic; each is read once.

        At most the messages within the tolerance of a frame are held.
        """
        stream = recording.messages(list(self.picks))
        counts = dict.fromkeys(self.picks, -1)
        wanted = {t: iter(np.unique(picks[picks != NONE])) for t, picks in self.picks.items()}
        following = {topic: next(numbers, None) for topic, numbers in wanted.items()}
        held: dict[str, dict[int, Any]] = {topic: {} for topic in self.picks}
        for row in range(len(self.clock)):
            frame: dict[str, Any] = {}
            for topic, picks in self.picks.items():
                pick = int(picks[row])
                if pick == NONE:
                    continue
                while pick not in held[topic]:
                    message = next(stream, None)
                    if message is None:
                        raise SourceError(
                            "fewer messages than the file's index says",
                            file=str(recording.paths[-1]),
                            got=f"no more of {topic}",
                        )
                    name, data, path = message
                    counts[name] += 1
                    if counts[name] == following[name]:
                        following[name] = next(wanted[name], None)
                        held[name][counts[name]] = read(name, data, path)
                for old in [number for number in held[topic] if number < pick]:
                    del held[topic][old]
                frame[topic] = held[topic][pick]
            yield frame


def _last_of_equal(times: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.flatnonzero(np.append(np.diff(times) > 0, True)[: len(times)])
