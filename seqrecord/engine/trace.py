"""A trace: spans of threads as a file that Perfetto (https://ui.perfetto.dev) opens.

Spans have a name whose first word is their category:

- `fetch`: reading pages and checking them;
- `decode`: into the arena, `frame_transform` included;
- `gather`: from the arena into batches;
- `device`: a copy to the device;
- `consumer`: the user's code between two batches;
- `wait`: for any of these; `wait for batch` is the consumer's.

The format is the JSON array of Chrome's "Trace Event Format": complete events "X", counters "C",
and metadata "M" with the names of processes and threads. Unlike the JSON object of that format,
Perfetto opens an array that was cut off at any byte.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any

from seqrecord.errors import NotFoundError, StorageError

_FLUSH = 2048  # spans in memory before some thread writes them
_MOST_IN_MEMORY = 4  # times as many, before all threads wait for that
_MAX_SPANS = 1_000_000  # about 130 MB
_NOTHING = nullcontext()

_as_json = json.JSONEncoder(separators=(",", ":"), default=str).encode

_logger = logging.getLogger("seqrecord")


class Trace:
    """Records spans of any number of threads into one file; without a path it does nothing.

    Times are seconds of `time.perf_counter`, one clock for all processes of a machine, so that
    traces of DataLoader workers line up.

    Bounded: `max_spans`, about 130 bytes each, are written, and what follows is counted. Up to
    8,192 of them are in memory, or four times `flush`; the thread that brings them to 2,048, or to
    `flush`, writes them. After each write the file is complete JSON, so a killed process loses only
    the spans in memory. An existing file is replaced. Dropping the trace, and the interpreter's
    exit, close it too. In a forked process it does nothing.

    Names and arguments end up in the file: they must be of this program, never of a user's
    storage options.

    Raises `NotFoundError` where the folder does not exist, and `StorageError` where no file can be
    made. What goes wrong after that, such as a full disk, ends the trace and is logged, and
    nothing else: a training must not end with it.
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
        self._file = _File(Path(path), self._events, max_spans)
        weakref.finalize(self, self._file.close)

    @property
    def num_in_memory(self) -> int:
        """How many spans and counts are not yet written."""
        return len(self._events)

    def span(self, name: str, **args: int | str) -> AbstractContextManager[object]:
        """A context whose time is recorded, however it ends, for the thread that leaves it."""
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
        """Record what this thread did from `begin` to `end`, in seconds of `perf_counter`.

        `track` names another place than this thread: a device's stream.
        """
        if self.is_on:
            self._append((name, self._track(track), begin, end - begin, args))

    def count(self, name: str, **values: int) -> None:
        """Record what values a counter has from now on."""
        if self.is_on:
            self._append((name, self._track(None), perf_counter(), None, values))

    def close(self) -> None:
        """Write all spans. Later ones are ignored."""
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
        """The number of a track, or of this thread's. Threads' own numbers are used again."""
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
    """Where a process writes: `epoch.json`, of rank 1 in worker 0 `epoch.rank1.worker0.json`.

    `rank` is a number and how many there are; where there is one rank it is not named. `worker`
    is the number of a DataLoader's worker process, `None` in any other.
    """
    target = Path(path)
    parts = [f"rank{rank[0]}"] * (rank[1] > 1) + [f"worker{worker}"] * (worker is not None)
    return target.with_name(".".join([target.stem, *parts]) + target.suffix)


class _File:
    """The file, and the tracks in it. It does not refer to the `Trace`, which can be dropped.

    A finalizer may call `close` in a thread that is just writing: so the lock is reentrant, and
    a second call in that thread leaves the rest to the first.
    """

    def __init__(self, path: Path, events: deque[Any], max_spans: int) -> None:
        self._path = path
        self._events = events
        self._left = max_spans
        self._lost = 0
        self._lock = threading.RLock()
        self._num_tracks = 0
        self._named: dict[str, int] = {}
        self._inside = self._closing = False
        self._process = os.getpid()
        try:
            if path.is_dir():
                raise IsADirectoryError("a folder has this name")
            path.unlink(missing_ok=True)  # an iteration that is not over yet may write it
            # Unbuffered: a fork must not write once more what is in a buffer.
            self._out = path.open("xb", buffering=0)
        except FileNotFoundError:
            raise NotFoundError("no such folder for a trace", file=str(path.parent)) from None
        except OSError as error:
            reason = error.strerror or error
            raise StorageError(f"no trace can be written: {reason}", file=str(path)) from error
        self._end = 0  # of the events
        self._metadata = [self._named_event("process_name", 0, f"seqrecord {self._process}")]
        self._run()

    def track(self, name: str | None) -> int:
        """A number for the track of a name, or for a thread."""
        if os.getpid() != self._process:
            return 0
        with self._lock:
            if name is not None and name in self._named:
                return self._named[name]
            self._num_tracks += 1
            shown = name or threading.current_thread().name
            self._metadata.append(self._named_event("thread_name", self._num_tracks, shown))
            if name is not None:
                self._named[name] = self._num_tracks
            return self._num_tracks

    def write(self, *, wait: bool) -> bool:
        """Write what there is, or let another thread do it; whether more may come."""
        if os.getpid() != self._process:
            self._events.clear()
            return False
        if not self._lock.acquire(blocking=wait):
            return True
        try:
            self._run()
            return not self._out.closed
        finally:
            self._lock.release()

    def close(self) -> None:
        """Write the rest."""
        if os.getpid() == self._process:
            with self._lock:
                self._closing = True
                self._run()

    def _run(self) -> None:
        if self._inside or self._out.closed:
            return
        self._inside = True
        try:
            lines = list(self._lines())
            metadata, self._metadata = self._metadata, []
            self._put([*lines, *metadata])
            if self._closing:
                if self._lost:
                    labels = {"labels": f"{self._lost} spans lost"}
                    self._put([self._metadata_event("process_labels", 0, labels)])
                self._out.close()
        except OSError as error:
            _logger.warning("%s: the trace ends here: %s", self._path, error)
            with suppress(OSError):
                self._out.truncate(self._end)
                self._put([])
            self._out.close()
            self._events.clear()
        finally:
            self._inside = False

    def _lines(self) -> Iterator[str]:
        while self._events:
            name, track, begin, seconds, args = self._events.popleft()
            if self._left <= 0:
                self._lost += 1
                continue
            self._left -= 1
            yield (
                f'{{{_event_fields(name, seconds is None)},"ts":{begin * 1e6:.3f},'
                + (f'"dur":{seconds * 1e6:.3f},' if seconds is not None else "")
                + f'"pid":{self._process},"tid":{track},"args":{_as_json(args)}}}'
            )

    def _named_event(self, kind: str, track: int, name: str) -> str:
        return self._metadata_event(kind, track, {"name": name})

    def _metadata_event(self, kind: str, track: int, args: dict[str, str]) -> str:
        event = {"ph": "M", "name": kind, "pid": self._process, "tid": track, "args": args}
        return _as_json(event)

    def _put(self, lines: list[str]) -> None:
        """Write events over the end of the array, and the end behind them."""
        text = ",\n".join(lines)
        if lines:
            text = (",\n" if self._end else "[\n") + text
        added = text.encode()
        self._out.seek(self._end)
        data = memoryview(added + b"\n]\n")
        while data:
            data = data[self._out.write(data) or 0 :]
        self._end += len(added)


@lru_cache(maxsize=64)
def _event_fields(name: str, counts: bool) -> str:
    """What an event is, as JSON."""
    if counts:
        return f'"ph":"C","name":{_as_json(name)}'
    kind = name.split(" ", 1)[0]
    return f'"ph":"X","name":{_as_json(name)},"cat":{_as_json(kind)}'
