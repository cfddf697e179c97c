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

import json
import logging
import os
import re
import stat
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any

from seqrecord.errors import DestinationError, NotFoundError, StorageError

_FLUSH = 2048  # spans in memory before a thread writes them
_MOST_IN_MEMORY = 4  # times _FLUSH: threads then wait for the write
_MAX_SPANS = 1_000_000  # about 130 MB
_FIRST = re.compile(rb'(\[\n\{"ph":"M","name":"process_name".*"seqrecord \d+"\}\}.*)?', re.DOTALL)
_FIRST_BYTES = 200
_NOTHING = nullcontext()

_as_json = json.JSONEncoder(separators=(",", ":"), default=str).encode

_logger = logging.getLogger("seqrecord")


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
        self._file = _File(Path(path), self._events, max_spans)
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


class _File:
    """The file and its tracks. Does not refer to the `Trace`, which can be deleted.

    A finalizer may call `close` in a thread that is writing. The lock is therefore reentrant, and a
    nested call leaves the work to the outer one.
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
            if _has_trace(path):
                path.unlink(missing_ok=True)  # an unfinished iteration may still write it
            # Unbuffered: a fork must not write a buffer a second time.
            self._out = path.open("xb", buffering=0)
        except FileNotFoundError:
            raise NotFoundError(
                "the folder of the trace does not exist", file=str(path.parent)
            ) from None
        except FileExistsError:
            raise DestinationError(
                "existing file is no trace of seqrecord and stays; remove it, or choose another "
                "path for the trace",
                file=str(path),
            ) from None
        except OSError as error:
            reason = error.strerror or error
            raise StorageError(f"cannot write the trace: {reason}", file=str(path)) from error
        self._end = 0  # of the events
        self._metadata = [self._named_event("process_name", 0, f"seqrecord {self._process}")]
        self._run()

    def track(self, name: str | None) -> int:
        """Create a track for a name or for this thread, and return its number."""
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
        """Write events, unless another thread is writing. Returns whether more are accepted."""
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
        """Write the remaining events."""
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
            _logger.warning("trace %s ended early: %s", self._path, error)
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
        """Append events to the array, and terminate it again."""
        text = ",\n".join(lines)
        if lines:
            text = (",\n" if self._end else "[\n") + text
        added = text.encode()
        self._out.seek(self._end)
        data = memoryview(added + b"\n]\n")
        while data:
            data = data[self._out.write(data) or 0 :]
        self._end += len(added)


def _has_trace(path: Path) -> bool:
    """Whether a file is a trace, or empty."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return False
        with path.open("rb") as file:
            return _FIRST.fullmatch(file.read(_FIRST_BYTES)) is not None
    except FileNotFoundError:
        return False


@lru_cache(maxsize=64)
def _event_fields(name: str, counts: bool) -> str:
    """Type, name and category of an event, as JSON."""
    if counts:
        return f'"ph":"C","name":{_as_json(name)}'
    kind = name.split(" ", 1)[0]
    return f'"ph":"X","name":{_as_json(name)},"cat":{_as_json(kind)}'
