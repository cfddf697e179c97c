"""The file of a trace."""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from seqrecord.errors import DestinationError, NotFoundError, StorageError

_FIRST = re.compile(rb'(\[\n\{"ph":"M","name":"process_name".*"seqrecord \d+"\}\}.*)?', re.DOTALL)
_FIRST_BYTES = 200

_as_json = json.JSONEncoder(separators=(",", ":"), default=str).encode

_logger = logging.getLogger("seqrecord")


class TraceFile:
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
                "existing file is no trace of seqrecord; remove it, or choose another "
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
