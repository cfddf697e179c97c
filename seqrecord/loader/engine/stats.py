"""Counters and traces of an engine, and its bottleneck.

The first word of a span's name is its category:

- `fetch`: read pages and check them.
- `decode`: decode into the arena, including `frame_transform`.
- `gather`: copy from the arena into batches.
- `device`: copy to the device.
- `consumer`: user code between two batches.
- `wait`: wait for any of these; `wait for batch` is the consumer's.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field, fields
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

from seqrecord.loader.reading.chunk_store import ChunkStore
from seqrecord.store.processes.forks import PerProcess

_FLUSH = 2048  # spans in memory before a thread writes them
_MOST_IN_MEMORY = 4  # times _FLUSH: threads then wait for the write
_MAX_SPANS = 1_000_000  # about 130 MB
_NOTHING = nullcontext()


class Trace:
    """Records spans from any number of threads in one file; disabled without a path.

    Times are seconds of `time.perf_counter`, which all processes of a machine share, so that traces
    of DataLoader workers align.

    At most `max_spans` spans are written, about 130 bytes each; later ones are counted. At most
    four times `flush` spans (8,192) are in memory; the thread that reaches `flush` (2,048) writes
    them. The file is complete JSON after each write, so a killed process loses only spans in
    memory. An earlier trace is replaced. Deleting the trace and interpreter exit close it. Disabled
    in forked processes.

    Names and arguments are written to the file. They must come from this package, never from a
    user's storage options.

    Raises `NotFoundError` if the folder does not exist, `DestinationError` for an existing file
    that is no trace, and `StorageError` if the file cannot be created. Later errors, such as a full
    disk, are logged and end the trace, not the training.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        max_spans: int = _MAX_SPANS,
        flush: int = _FLUSH,
    ) -> None:
        self.is_on = path is not None
        self._events: deque[tuple[str, int, float, float | None, dict[str, Any]]] = deque()
        self._flush = flush
        self._local = threading.local()
        if path is None:
            return
        from seqrecord.loader.engine.trace_file import TraceFile

        self._file = TraceFile(Path(path), self._events, max_spans)
        weakref.finalize(self, self._file.close)

    @property
    def num_in_memory(self) -> int:
        """Number of events in memory."""
        return len(self._events)

    def span(self, name: str, **args: int | str) -> AbstractContextManager[object]:
        """Context that records its duration, for the thread that leaves it."""
        return self._span(name, args) if self.is_on else _NOTHING

    @contextmanager
    def _span(self, name: str, args: dict[str, Any]) -> Iterator[None]:
        begin = perf_counter()
        try:
            yield
        finally:
            self.add(name, begin, perf_counter(), **args)

    def add(
        self, name: str, begin: float, end: float, *, track: str | None = None, **args: int | str
    ) -> None:
        """Record a span of this thread from `begin` to `end`, in seconds of `perf_counter`.

        `track` assigns the span to another track, such as a device's stream.
        """
        if self.is_on:
            self._append((name, self._track(track), begin, end - begin, args))

    def count(self, name: str, **values: int) -> None:
        """Record new values of a counter."""
        if self.is_on:
            self._append((name, self._track(None), perf_counter(), None, values))

    def close(self) -> None:
        """Write all spans; later ones are ignored."""
        if self.is_on:
            self.is_on = False
            self._file.close()

    def _append(self, event: tuple[str, int, float, float | None, dict[str, Any]]) -> None:
        self._events.append(event)
        if len(self._events) >= self._flush and not self._file.write(
            wait=len(self._events) >= _MOST_IN_MEMORY * self._flush
        ):
            self.is_on = False

    def _track(self, name: str | None) -> int:
        """Number of a track; default: this thread's. Thread ids are not unique over time."""
        try:
            tracks: dict[str | None, int] = self._local.tracks
        except AttributeError:
            tracks = self._local.tracks = {}
        if name not in tracks:
            tracks[name] = self._file.track(name)
        return tracks[name]


def trace_path(
    path: str | os.PathLike[str], *, rank: tuple[int, int] = (0, 1), worker: int | None = None
) -> Path:
    """Trace file of a process: `epoch.json`, or `epoch.rank1.worker0.json` for rank 1, worker 0.

    `rank` is (rank, number of ranks); a single rank is not named. `worker` is the number of a
    DataLoader worker, `None` otherwise.
    """
    target = Path(path)
    parts = [f"rank{rank[0]}"] * (rank[1] > 1) + [f"worker{worker}"] * (worker is not None)
    return target.with_name(".".join([target.stem, *parts]) + target.suffix)


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
    the greatest size that the plan may need, and `private_bytes` that size without the frames in
    mapped files; for the frame cache, as the last iteration ended. `device_bytes` counts
    transfers to the device: each frame once, and the row numbers of clips. `loads_throttled` counts
    loads delayed to their round by lack of memory. A report adds `bytes_from_chunk_store`, which
    loads copied from memory in place of the storage, and `peak_chunk_store_bytes`, the peak size of
    that memory.
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
