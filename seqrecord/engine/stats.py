"""What an engine has done, and which stage the others wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, fields
from time import perf_counter
from typing import Any, Literal

from seqrecord.engine.trace import Trace
from seqrecord.processes.forks import PerProcess

Stage = Literal["consumer", "fetch", "decode", "gather", "device"]

STAGES: Mapping[Stage, str] = {
    "consumer": "the consumer: batches wait for it",
    "fetch": "reading: more is asked for than the storage delivers",
    "decode": "decoding: a faster codec, or more threads, would help",
    "gather": "copying clips into batches: memory bandwidth",
    "device": "copying frames to the device: the bus",
}
"""What `stats()` says of each."""

_LITTLE = 0.05  # a share of a step that is not worth a change


@dataclass
class EngineStats:
    """Counters that any thread may add to. Seconds are summed over threads where several work.

    `bytes_read` counts pages, `frames_decoded` frames that clips need, each once although it may
    have many features; not those that are in memory from an iteration before.
    `video_frames_decoded` counts those of all videos, with frames that were decoded for others
    only. `clips` and `batches` are those handed to the consumer. `peak_buffer_bytes` is the most
    that the frames held have taken, in the arena or in batches being built. `device_bytes` went to
    the device: each frame once, and the arena's rows of each clip. `loads_throttled` counts loads
    that could not begin ahead of their round, for want of memory.
    """

    bytes_read: int = 0
    frames_decoded: int = 0
    video_frames_decoded: int = 0
    clips: int = 0
    batches: int = 0
    peak_buffer_bytes: int = 0
    device_bytes: int = 0
    loads: int = 0
    loads_throttled: int = 0
    num_threads: int = 0  # that decode, and that copy
    num_loaders: int = 0  # that read
    fetch_seconds: float = 0.0  # reading pages and checking them
    decode_seconds: float = 0.0  # into the arena, `frame_transform` included
    gather_seconds: float = 0.0  # from the arena into batches
    waiting_for_loads_seconds: float = 0.0  # by the scheduler, for frames
    waiting_for_consumer_seconds: float = 0.0  # by the scheduler, to begin a batch
    data_wait_seconds: float = 0.0  # by the consumer
    epoch_seconds: float = 0.0  # from the beginning until the consumer last had what it asked for
    device_seconds: float = 0.0  # from the host to the device; of the copies, not of a thread
    decode_seconds_by_feature: dict[str, float] = field(default_factory=dict)
    trace: Trace = field(default_factory=Trace, repr=False, compare=False)
    begun: float = field(default_factory=perf_counter, repr=False, compare=False)
    _counters: Callable[[], Mapping[str, int]] = field(default=dict, repr=False, compare=False)
    _counted: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)
    _lock: PerProcess[threading.Lock] = field(
        default_factory=lambda: PerProcess(threading.Lock), repr=False, compare=False
    )

    def __reduce__(self) -> tuple[type[EngineStats], tuple[()]]:
        return type(self), ()  # a copy, in another process, counts anew

    def add(self, **amounts: float) -> None:
        """Add to counters."""
        with self._lock.get():
            counters = vars(self)
            for name, amount in amounts.items():
                counters[name] += amount

    def add_waiting(self, begin: float, end: float) -> None:
        """The consumer has waited from one time to another, by `perf_counter`."""
        with self._lock.get():
            self.data_wait_seconds += end - begin
            self.epoch_seconds = end - self.begun

    def add_decoding(self, seconds: Mapping[str, float]) -> None:
        """Add to the seconds of each feature."""
        with self._lock.get():
            total = self.decode_seconds_by_feature
            for feature, amount in seconds.items():
                total[feature] = total.get(feature, 0.0) + amount

    def watch(self, counters: Callable[[], Mapping[str, int]]) -> None:
        """Report, too, what these counters count from now on: those of a storage."""
        self._counters, self._counted = counters, dict(counters())

    def hold(self, peak_buffer_bytes: int) -> None:
        """So many bytes of frames are held now."""
        self.peak_buffer_bytes = max(self.peak_buffer_bytes, peak_buffer_bytes)
        self.trace.count("resident", bytes=peak_buffer_bytes)

    def report(self) -> dict[str, Any]:
        """All counters by name, the storage's too, `waiting_percent`, the share of `epoch_seconds`
        that the consumer waited, and the `bottleneck` in words."""
        with self._lock.get():
            counters = {f.name: copy(getattr(self, f.name)) for f in fields(self) if f.compare}
        before = self._counted
        storage = {name: now - before.get(name, 0) for name, now in self._counters().items()}
        words = STAGES[bottleneck(counters)] if self.clips else "nothing has been delivered yet"
        waiting = 100 * counters["data_wait_seconds"] / (self.epoch_seconds or 1.0)
        return {**storage, **counters, "waiting_percent": waiting, "bottleneck": words}


def bottleneck(
    stats: Mapping[str, Any],
    *,
    waiting: float | None = None,
    copying: float = 0.0,
    consuming: float = 0.0,
) -> Stage:
    """The stage that the others wait for, from the seconds that an engine has counted.

    Where the consumer was watched, that tells more of it than the engine can: `waiting`, `copying`
    and `consuming` are seconds of a mean step that it waits for data, that it waits for the copy to
    the device, and that it works.
    """
    if waiting is None:
        waited = stats.get("data_wait_seconds", 0.0)
        if waited < stats.get("waiting_for_consumer_seconds", 0.0):
            return "consumer"
    elif max(waiting, copying) < _LITTLE * (waiting + copying + consuming or 1.0):
        return "consumer"
    elif copying > waiting:
        return "device"
    seconds: dict[Stage, float] = {
        stage: stats.get(f"{stage}_seconds", 0.0) for stage in ("decode", "fetch", "gather")
    }
    if stats.get("device_seconds", 0.0) > max(seconds.values()):
        return "device"
    # Several threads load, and their seconds add up: what counts is how long batches waited.
    loading, gathering = stats.get("waiting_for_loads_seconds", 0.0), seconds.pop("gather")
    if gathering >= loading and gathering > 0:
        return "gather"
    return max(seconds, key=seconds.__getitem__)
