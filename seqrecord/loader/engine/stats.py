"""Counters of an engine, and its bottleneck."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, fields
from time import perf_counter
from typing import Any, Literal

from seqrecord.loader.engine.traces import Trace
from seqrecord.loader.reading.chunk_store import ChunkStore
from seqrecord.store.processes.forks import PerProcess

Stage = Literal["consumer", "fetch", "decode", "gather", "device"]

STAGES: Mapping[Stage, str] = {
    "consumer": "the consumer: batches wait for it",
    "fetch": "reading: the storage is too slow for the requested bytes",
    "decode": "decoding: use a faster codec or more threads",
    "gather": "copying clips into batches: memory bandwidth",
    "device": "copying frames to the device: the bus",
}
"""Descriptions in `stats()`."""

_LITTLE = 0.05  # fraction of a step that is negligible


@dataclass
class EngineStats:
    """Thread-safe counters. Seconds are summed over threads.

    `bytes_read` counts pages read from the storage. `frames_decoded` counts frames needed by clips,
    once per frame, without resident frames. `frames_from_cache` counts such frames that have
    features from the frame cache. `frames_mapped` counts copies from mapped files, for each
    feature. `video_frames_decoded` counts decoded frames of all videos,
    including frames decoded only for others. `clips` and `batches` were delivered.
    `peak_buffer_bytes` is the peak size of frames in arenas and open batches. `planned_bytes` is
    the greatest size that the plan may need. `private_bytes` is the size of what exists of it in
    this process's own memory: touched pages of rows, batches and stored chunks, tables of frames,
    and the store of chunks; as of the report. Mapped files and shared memory do not count.
    `device_bytes` counts transfers to the device: each frame once, and the row numbers of clips.
    `loads_throttled` counts loads delayed to their round by lack of memory. A report adds
    `bytes_from_chunk_store`, which loads copied from memory in place of the storage, and
    `peak_chunk_store_bytes`, the peak size of that memory.
    """

    bytes_read: int = 0
    frames_decoded: int = 0
    frames_from_cache: int = 0
    frames_mapped: int = 0
    video_frames_decoded: int = 0
    clips: int = 0
    batches: int = 0
    peak_buffer_bytes: int = 0
    planned_bytes: int = 0
    private_bytes: int = 0
    device_bytes: int = 0
    loads: int = 0
    loads_throttled: int = 0
    num_threads: int = 0  # decoding, and copying
    num_loaders: int = 0  # reading
    fetch_seconds: float = 0.0  # reading pages and checking them
    decode_seconds: float = 0.0  # into the arena, `frame_transform` included
    gather_seconds: float = 0.0  # from the arena into batches
    waiting_for_loads_seconds: float = 0.0  # by the scheduler, for frames
    waiting_for_consumer_seconds: float = 0.0  # by the scheduler, for a free batch
    data_wait_seconds: float = 0.0  # by the consumer
    epoch_seconds: float = 0.0  # from the start on
    device_seconds: float = 0.0  # duration of copies to the device
    decode_seconds_by_feature: dict[str, float] = field(default_factory=dict)
    trace: Trace = field(default_factory=Trace, repr=False, compare=False)
    begun: float = field(default_factory=perf_counter, repr=False, compare=False)
    _counters: Callable[[], Mapping[str, int]] = field(default=dict, repr=False, compare=False)
    _counted: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)
    _store: ChunkStore | None = field(default=None, repr=False, compare=False)
    _store_counted: tuple[int, int] = field(default=(0, 0), repr=False, compare=False)
    _owners: dict[int, weakref.ref[Any]] = field(default_factory=dict, repr=False, compare=False)
    _lock: PerProcess[threading.Lock] = field(
        default_factory=lambda: PerProcess(threading.Lock), repr=False, compare=False
    )

    def __reduce__(self) -> tuple[type[EngineStats], tuple[()]]:
        return type(self), ()  # a copy in another process starts at 0

    def add(self, **amounts: float) -> None:
        """Add amounts to counters."""
        with self._lock.get():
            counters = vars(self)
            for name, amount in amounts.items():
                counters[name] += amount

    def add_waiting(self, begin: float, end: float) -> None:
        """Count waiting time of the consumer, between two values of `perf_counter`.

        For the consumer only: a lock that other threads take would be more waiting.
        """
        self.data_wait_seconds += end - begin
        self.epoch_seconds = end - self.begun

    def add_delivered(self, num_clips: int) -> None:
        """Count a batch, for the consumer only."""
        self.batches += 1
        self.clips += num_clips

    def add_decoding(self, seconds: Mapping[str, float]) -> None:
        """Add decoding seconds by feature."""
        with self._lock.get():
            total = self.decode_seconds_by_feature
            for feature, amount in seconds.items():
                total[feature] = total.get(feature, 0.0) + amount

    def watch(
        self, counters: Callable[[], Mapping[str, int]], store: ChunkStore | None = None
    ) -> None:
        """Include counters of a storage and its store of chunks in reports, from the first call
        on.
        """
        if self._counters is dict:
            self._counters, self._counted = counters, dict(counters())
            if store is not None:
                self._store = store
                self._store_counted = store.bytes_from_memory, store.surplus

    def watch_memory(self, owner: Any) -> None:
        """Count the `touched_bytes` of an object in `private_bytes` of reports, while it exists."""
        self._owners[id(owner)] = weakref.ref(owner)  # runs of a mix share buffers

    def note_fetch(self, begin: float, nbytes: int, chunk: int) -> None:
        """Count a read that began at `begin`, and trace it by the row of its first chunk."""
        end = perf_counter()
        self.trace.add("fetch", begin, end, chunk=chunk)
        self.add(bytes_read=nbytes, fetch_seconds=end - begin)

    def note_resident(self, peak_buffer_bytes: int) -> None:
        """Record the current size of resident frames in bytes."""
        self.peak_buffer_bytes = max(self.peak_buffer_bytes, peak_buffer_bytes)
        self.trace.count("resident", bytes=peak_buffer_bytes)

    def report(self) -> dict[str, Any]:
        """All counters by name, including the storage's, and two derived values.

        `waiting_percent` is the consumer's share of waiting in `epoch_seconds`; `bottleneck`
        describes the slowest stage.
        """
        owners = [reference() for reference in list(self._owners.values())]
        self.private_bytes = sum(owner.touched_bytes for owner in owners if owner is not None)
        with self._lock.get():
            counters = {f.name: copy(getattr(self, f.name)) for f in fields(self) if f.compare}
        before = self._counted
        storage = {name: now - before.get(name, 0) for name, now in self._counters().items()}
        words = STAGES[bottleneck(counters)] if self.clips else "no batch delivered yet"
        waiting = 100 * counters["data_wait_seconds"] / (self.epoch_seconds or 1.0)
        from_store = peak = 0
        if (store := self._store) is not None:
            from_store, surplus = (
                now - then
                for now, then in zip(
                    (store.bytes_from_memory, store.surplus), self._store_counted, strict=True
                )
            )
            counters["bytes_read"] = max(0, counters["bytes_read"] + surplus)
            peak = store.peak_bytes
            counters["private_bytes"] += store.used_bytes
        return {
            **storage,
            **counters,
            "bytes_from_chunk_store": from_store,
            "peak_chunk_store_bytes": peak,
            "waiting_percent": waiting,
            "bottleneck": words,
        }


def bottleneck(
    stats: Mapping[str, Any],
    *,
    waiting: float | None = None,
    copying: float = 0.0,
    consuming: float = 0.0,
) -> Stage:
    """Find the slowest stage from an engine's counters.

    `waiting`, `copying` and `consuming` are measured by the consumer, in seconds per mean step:
    waiting for data, waiting for the copy to the device, and working. They are more precise than
    the engine's counters.
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
    # Seconds of several loading threads add up; compare the time that batches waited.
    loading, gathering = stats.get("waiting_for_loads_seconds", 0.0), seconds.pop("gather")
    if gathering >= loading and gathering > 0:
        return "gather"
    return max(seconds, key=seconds.__getitem__)
