"""Alignment of timestamped messages and rows to frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError

ALIGNMENTS = ("nearest", "last")
NONE = -1
"""Index in place of a message if none is within the tolerance."""


def align(
    clock: npt.NDArray[np.int64], times: npt.NDArray[np.int64], how: str, tolerance: int
) -> npt.NDArray[np.int64]:
    """For each time of `clock` [N] return the index of its message in `times` [M], or `NONE`.

    Both are ascending and in the same unit as `tolerance`, which is inclusive.

    ::

        times       a    b         c
        clock     |    |    |    |    |
        last      -    a    b    b    c      the last message that is not later
        nearest   a    b    b    c    c      the nearest, and the earlier of two at equal distance

    Among messages of equal time the choice is arbitrary but deterministic.
    """
    if not len(times):
        return np.full(len(clock), NONE, np.int64)
    previous_rows = np.searchsorted(times, clock, side="right") - 1
    far = np.iinfo(np.int64).max
    age = np.where(previous_rows >= 0, clock - times[np.maximum(previous_rows, 0)], far)
    rows, distance = previous_rows, age
    if how == "nearest":
        next_rows = previous_rows + 1
        has_next = next_rows < len(times)
        delay = np.where(has_next, times[np.where(has_next, next_rows, 0)] - clock, far)
        rows = np.where(delay < age, next_rows, previous_rows)
        distance = np.minimum(age, delay)
    return np.where(distance <= tolerance, rows, NONE)


def associate(
    frame_times: npt.NDArray[np.float64], row_times: npt.NDArray[np.float64], within: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Match rows of two ascending lists of times as TUM's `associate.py` does.

    Greedy: the closest pair less than `within` seconds apart is taken first, then the closest of
    the rest. Ties prefer the earlier row in `frame_times`, then in `row_times`. Of equal times only
    the last row counts. Returns both rows of each pair, int64 [P], in the order of `frame_times`.
    """
    frame_numbers, row_numbers = _last_of_equal(frame_times), _last_of_equal(row_times)
    low = np.searchsorted(row_times[row_numbers], frame_times[frame_numbers] - within, "left")
    high = np.searchsorted(row_times[row_numbers], frame_times[frame_numbers] + within, "right")
    candidates = [
        (abs(frame_times[i] - row_times[j]), i, j)
        for i, start, stop in zip(frame_numbers.tolist(), low.tolist(), high.tolist(), strict=True)
        for j in row_numbers[start:stop].tolist()
        if abs(frame_times[i] - row_times[j]) < within
    ]
    partners: dict[int, int] = {}
    used_rows: set[int] = set()
    for _, i, j in sorted(candidates):
        if i not in partners and j not in used_rows:
            partners[i] = j
            used_rows.add(j)
    pairs = np.array(sorted(partners.items()), np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def sample_bounds(times: npt.NDArray[Any], samples: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return each frame's range of samples, int64 [T + 1].

    Frame t has the samples from its own time up to the next frame's time. The last frame is as long
    as the one before.
    """
    interval = times[-1] - times[-2] if len(times) > 1 else 0
    return np.searchsorted(samples, np.append(times, times[-1] + interval), "left").astype(np.int64)


class AlignedMessages:
    """The messages of a recording that make its frames. `times` are those of all topics, in ns.

    Attributes: `clock` [N] are the frames' times in ns, one per message of the clock's topic.
    `picks` maps topics to message numbers [N], `NONE` if no message is near enough.
    """

    def __init__(
        self,
        times: Mapping[str, npt.NDArray[np.int64]],
        topics: Sequence[str],
        clock: str,
        how: str,
        tolerance: int,
        path: Path,
    ) -> None:
        self._path = path
        self.clock = times.get(clock, np.empty(0, np.int64))
        if not len(self.clock):
            raise SourceError(
                "the recording has no messages of the clock topic; choose another "
                "(--source-option clock=TOPIC)",
                file=str(path),
                expected=clock,
                got=", ".join(sorted(times))[:300],
            )
        self.num_messages = {topic: len(topic_times) for topic, topic_times in times.items()}
        no_times = np.empty(0, np.int64)
        self.picks = {t: align(self.clock, times.get(t, no_times), how, tolerance) for t in topics}
        if clock in self.picks:  # exact, also for messages of equal time
            self.picks[clock] = np.arange(len(self.clock))

    @property
    def fps(self) -> float | None:
        """Frames per second of a steady clock, else `None`.

        Steady: each step is within 10 % of the mean, and each time within a quarter step of a
        regular clock.
        """
        elapsed = self.clock - self.clock[0]
        steps = np.diff(elapsed)
        if not len(steps) or steps.min() <= 0:
            return None
        mean = float(elapsed[-1]) / len(steps)
        drift = np.abs(elapsed - mean * np.arange(len(elapsed))).max()
        is_steady = np.abs(steps - mean).max() <= 0.1 * mean and drift <= 0.25 * mean
        return 1e9 / mean if is_steady else None

    def counts(self, topic: str) -> dict[str, int]:
        """Count a topic's messages, used and dropped ones, and frames without a message."""
        picks, messages = self.picks[topic], self.num_messages.get(topic, 0)
        num_used = len(np.unique(picks[picks != NONE]))
        return {
            "messages": messages,
            "used": num_used,
            "dropped": messages - num_used,
            "frames_without": int(np.count_nonzero(picks == NONE)),
        }

    def frames(
        self,
        messages: Iterator[tuple[str, bytes, Path]],
        read: Callable[[str, bytes, Path], Any],
    ) -> Iterator[dict[str, Any]]:
        """Yield frames as dicts from topic to the result of `read`, called once per message.

        `messages` are all of the topics. Memory: at most the messages within the tolerance of a
        frame.
        """
        counts = dict.fromkeys(self.picks, -1)
        needed_numbers = {
            t: iter(np.unique(picks[picks != NONE])) for t, picks in self.picks.items()
        }
        next_numbers = {topic: next(numbers, None) for topic, numbers in needed_numbers.items()}
        read_values: dict[str, dict[int, Any]] = {topic: {} for topic in self.picks}
        for row in range(len(self.clock)):
            frame: dict[str, Any] = {}
            for topic, picks in self.picks.items():
                pick = int(picks[row])
                if pick == NONE:
                    continue
                while pick not in read_values[topic]:
                    message = next(messages, None)
                    if message is None:
                        raise SourceError(
                            "fewer messages than the file's index lists",
                            file=str(self._path),
                            got=f"no more of {topic}",
                        )
                    name, data, path = message
                    counts[name] += 1
                    if counts[name] == next_numbers[name]:
                        next_numbers[name] = next(needed_numbers[name], None)
                        read_values[name][counts[name]] = read(name, data, path)
                for old_number in [number for number in read_values[topic] if number < pick]:
                    del read_values[topic][old_number]
                frame[topic] = read_values[topic][pick]
            yield frame


def _last_of_equal(times: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.flatnonzero(np.append(np.diff(times) > 0, True)[: len(times)])
