"""Traces of iterations as Chrome trace event JSON, for https://ui.perfetto.dev.

The first word of a span's name is its category:

- `fetch`: read pages and check them.
- `decode`: decode into the arena, including `frame_transform`.
- `gather`: copy from the arena into batches.
- `device`: copy to the device.
- `consumer`: user code between two batches.
- `wait`: wait for any of these; `wait for batch` is the consumer's.
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
from pathlib import Path
from time import perf_counter
from typing import IO, Any, TypeAlias

from seqrecord.errors import DestinationError, NotFoundError, StorageError

_FLUSH = 2048  # spans in memory before a thread writes them
_MAX_SPANS = 1_000_000  # about 130 MB
_NOTHING = nullcontext()
_FIRST = re.compile(rb'(\[\n\{"ph":"M","name":"process_name".*"seqrecord \d+"\}\}.*)?', re.DOTALL)
_FIRST_BYTES = 200

_Event: TypeAlias = "tuple[str, int, float, float | None, dict[str, Any]]"
"""Name, track, begin, seconds (`None` for values of a counter), arguments."""

_as_json = json.JSONEncoder(separators=(",", ":"), default=str).encode

_logger = logging.getLogger("seqrecord")


class Trace:
    """Records spans from any number of threads in one file; disabled without a path.

    Times are seconds of `time.perf_counter`, which all processes of a machine share, so that traces
    of DataLoader workers align.

    At most `max_spans` spans are written, about 130 bytes each; later ones are counted. The thread
    that adds span number `flush` writes those in memory. The file is complete JSON after each
    write, so a killed process loses only spans in memory. An earlier trace is replaced. Deleting
    the trace and interpreter exit close it. Disabled in forked processes.

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
        self._file = None if path is None else _File(Path(path), max_spans, flush)
        if self._file is not None:
            weakref.finalize(self, self._file.close)

    @property
    def is_on(self) -> bool:
        """Whether spans are recorded."""
        return self._file is not None and self._file.is_open

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
        if self._file is not None and self._file.is_open:
            self._file.add((name, self._file.track(track), begin, end - begin, args))

    def count(self, name: str, **values: int) -> None:
        """Record new values of a counter."""
        if self._file is not None and self._file.is_open:
            self._file.add((name, self._file.track(None), perf_counter(), None, values))

    def close(self) -> None:
        """Write all spans; later ones are ignored."""
        if self._file is not None:
            self._file.close()


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
    """The file and its tracks. Does not refer to the `Trace`, whose finalizer closes it.

    A finalizer may run in a thread that is writing. The lock is therefore reentrant, and a nested
    call leaves the work to the outer one.
    """

    def __init__(self, path: Path, max_spans: int, flush: int) -> None:
        self._path, self._left, self._flush = path, max_spans, flush
        self._lost = 0
        self._events: deque[_Event] = deque()
        self._lock = threading.RLock()
        self._local = threading.local()  # because ids of threads are used again
        self._named: dict[str, int] = {}
        self._num_tracks = 0
        self._inside = self._closing = False
        self._process = os.getpid()
        self._out = _create(path)
        self._end = 0  # of the events
        self._metadata = [self._metadata_event("process_name", 0, name=f"seqrecord {os.getpid()}")]
        self._write()

    @property
    def is_open(self) -> bool:
        return os.getpid() == self._process and not self._out.closed

    def track(self, name: str | None) -> int:
        """The number of a track by its name; default: of this thread."""
        tracks: dict[str, int] = vars(self._local) if name is None else self._named
        shown = name or threading.current_thread().name
        if (number := tracks.get(shown)) is None:
            with self._lock:
                if (number := tracks.get(shown)) is None:  # or another thread has added the name
                    number = tracks[shown] = self._num_tracks = self._num_tracks + 1
                    self._metadata.append(self._metadata_event("thread_name", number, name=shown))
        return number

    def add(self, event: _Event) -> None:
        self._events.append(event)
        if len(self._events) >= self._flush:
            with self._lock:
                self._write()

    def close(self) -> None:
        if os.getpid() == self._process:
            with self._lock:
                self._closing = True
                self._write()

    def _write(self) -> None:
        """Write all events."""
        if self._inside or self._out.closed:
            return
        self._inside = True
        try:
            lines = list(self._lines())
            metadata, self._metadata = self._metadata, []
            self._put([*lines, *metadata])
            if self._closing:
                if self._lost:
                    labels = f"{self._lost} spans lost"
                    self._put([self._metadata_event("process_labels", 0, labels=labels)])
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
            kind, rest = f'"ph":"C","name":{_as_json(name)}', ""
            if seconds is not None:
                category = _as_json(name.split(" ", 1)[0])
                kind = f'"ph":"X","name":{_as_json(name)},"cat":{category}'
                rest = f'"dur":{seconds * 1e6:.3f},'
            place = f'"pid":{self._process},"tid":{track},"args":{_as_json(args)}'
            yield f'{{{kind},"ts":{begin * 1e6:.3f},{rest}{place}}}'

    def _metadata_event(self, kind: str, track: int, **args: str) -> str:
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


def _create(path: Path) -> IO[bytes]:
    """Create the file, in place of an earlier trace."""
    try:
        if _has_trace(path):
            path.unlink(missing_ok=True)  # an unfinished iteration may still write it
        # Unbuffered: a fork must not write a buffer a second time.
        return path.open("xb", buffering=0)
    except FileNotFoundError:
        raise NotFoundError(
            "the folder of the trace does not exist", file=str(path.parent)
        ) from None
    except FileExistsError:
        raise DestinationError(
            "existing file is no trace of seqrecord; remove it, or choose another "
            "path for the trace",
            file=str(path),
        ) from None
    except OSError as error:
        reason = error.strerror or error
        raise StorageError(f"cannot write the trace: {reason}", file=str(path)) from error


def _has_trace(path: Path) -> bool:
    """Whether a file is a trace, or empty."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return False
        with path.open("rb") as file:
            return _FIRST.fullmatch(file.read(_FIRST_BYTES)) is not None
    except FileNotFoundError:
        return False
