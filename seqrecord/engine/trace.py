"""Traces of threads in a file for Perfetto (https://ui.perfetto.dev).

The first word of a span's name is its category:

- `fetch`: read pages and check them.
- `decode`: decode into the arena, including `frame_transform`.
- `gather`: copy from the arena into batches.
- `device`: copy to the device.
- `consumer`: user code between two batches.
- `wait`: wait for one of these; `wait for batch` is the consumer's.

The format is the JSON array of Chrome's "Trace Event Format": complete events "X", counters "C",
and metadata "M" with names of processes and threads. Perfetto opens truncated arrays, unlike
truncated objects of that format.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from time import perf_counter
from typing import Any

_FLUSH = 2048  # spans in memory before a thread writes them
_MOST_IN_MEMORY = 4  # times _FLUSH: threads then wait for the write
_MAX_SPANS = 1_000_000  # about 130 MB
_NOTHING = nullcontext()


class Trace:
    """Records spans of any number of threads in one file; disabled without a path.

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
        from seqrecord.engine.trace_file import TraceFile

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
