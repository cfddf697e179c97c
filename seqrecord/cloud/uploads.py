"""Uploads to storages without appends: spooled to a local file, then sent as one object.

Before that, parts preserve checkpoints in case of a kill; docs/storage_details.md defines their
bytes. The parts of `records/a` are `parts/records/a/00000` and so on. A part that begins before the
end of earlier parts replaces their content from there on.
"""

from __future__ import annotations

import logging
import os
import re
import struct
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from seqrecord.errors import NotFoundError, StorageError
from seqrecord.store.checksum import Buffer, crc32c
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.processes.threads import start
from seqrecord.store.storage.base import (
    FileInfo,
    Unfinished,
    check_buffers,
    check_path,
    check_rewind,
    short_read,
)
from seqrecord.store.storage.ranges import ByteRange, check_wanted, unwanted_if

PARTS = "parts"

_HEAD = struct.Struct("<8sIIQQI")  # magic, CRC32C of the rest, version, start, stop, notes
_NOTE = struct.Struct("<QI")  # bytes written at the checkpoint, length of the following note
_MAGIC, _VERSION = b"SEQPART\0", 1
_CHECKED_FROM = 12
_MOST_BYTES = 256 << 20  # limit for reading a part, which is smaller
_NUMBER = re.compile(r"\d{5,9}")

_logger = logging.getLogger("seqrecord")


class WholeFiles(Protocol):
    """Interface of storages without appends, as needed by uploads.

    `send`, `put_part` and `remove_part` retry; all methods raise `StorageError`.
    """

    @property
    def url(self) -> str: ...

    def send(self, path: str, content: Content) -> None:
        """Store a new file; raises `DestinationError` if it exists."""

    def put_part(self, path: str, data: bytes) -> None:
        """Store a small file with a unique name, replacing an earlier attempt."""

    def remove_part(self, path: str) -> None:
        """Remove a file if it exists."""

    def listed(self, folder: str, *, deep: bool) -> list[FileInfo]:
        """Files with clean paths in a folder; `deep` includes subfolders."""

    def read_whole(self, path: str, limit: int) -> tuple[bytes, str]:
        """See `Storage.read_whole`: a part may have been replaced by a retry."""

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        """See `Storage.read_ranges`."""


class Content(Protocol):
    """Content of a file that is sent."""

    @property
    def size(self) -> int: ...

    def read(self, start: int, stop: int) -> bytes:
        """Bytes `[start, stop)`, fewer at the end; raises `StorageError` after the upload's end."""


@dataclass(frozen=True)
class UploadTiming:
    """Timing and size of parts.

    A part is sent `save_seconds` after a checkpoint, with at most `part_bytes`, so that a
    checkpoint is durable within five seconds. If the whole file is being sent and there are no
    parts yet, they wait for up to `whole_seconds`. The end of an upload waits up to `leave_seconds`
    for a part in progress.
    """

    save_seconds: float = 4.0
    part_bytes: int = 8 << 20
    whole_seconds: float = 5.0
    leave_seconds: float = 5.0


class SpooledUpload:
    """Upload that writes to an unnamed temporary file, sent by `commit` as one object.

    After the first checkpoint, a thread sends the bytes before the last checkpoint as parts, so
    that they are readable after a kill. An error of the thread is raised by the next call.
    """

    def __init__(self, path: str, store: WholeFiles, timing: UploadTiming | None = None) -> None:
        self.path = path
        self._store = store
        self._spool = _Spool(path, store, timing or UploadTiming())
        # On garbage collection and at interpreter exit.
        self._stop = weakref.finalize(self, self._spool.stop)

    def write(self, data: Buffer) -> None:
        self._spool.write(data)

    def tell(self) -> int:
        return self._spool.size

    def checkpoint(self, note: bytes) -> None:
        self._spool.checkpoint(note)

    @property
    def is_durable(self) -> bool:
        return self._spool.is_durable

    def rewind(self, offset: int) -> None:
        self._spool.rewind(offset)

    def commit(self) -> None:
        # Meanwhile, checkpoints are still preserved: sending may take minutes.
        self._spool.send()
        self._end()

    def abort(self) -> None:
        if self._stop.alive:
            self._end()

    def abandon(self) -> None:
        """Stop as a kill would, but preserve checkpoints if that takes little time."""
        self._spool.finish()
        self._stop()

    def _end(self) -> None:
        self._stop()
        # In reverse order: a kill leaves a shorter, but contiguous sequence.
        for number in reversed(range(self._spool.num_parts)):
            try:
                self._store.remove_part(_part_path(self.path, number))
            except StorageError as error:
                _logger.warning("cannot remove an obsolete part: %s", error)
                return


class _Spool:
    """The temporary file, and the thread that sends parts."""

    def __init__(self, path: str, store: WholeFiles, timing: UploadTiming) -> None:
        self._path, self._store, self._shown = path, store, f"{store.url}/{path}"
        self._timing = timing
        self._pid = os.getpid()
        self._changed = threading.Condition()  # guards the following attributes
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by `stop`
        self._notes: list[tuple[int, bytes]] = []  # of checkpoints not in a part yet
        self._saved = 0  # bytes in parts
        self._is_undone = False  # whether `rewind` invalidated bytes in parts
        self._due: float | None = None  # monotonic time of the next part
        self._is_busy = self._is_sent = False  # sending a part; sending the whole file
        self._keeper: threading.Thread | None = None
        self._failure: BaseException | None = None  # error of the thread
        self._stopped = threading.Event()
        self.size = self.num_parts = 0

    def check(self) -> None:
        """Raise an error of the thread; `StorageError` after the end of the upload."""
        if self._failure is not None:
            raise self._failure
        if self._stopped.is_set():
            raise StorageError("the upload is closed", file=self._shown)

    def write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        with self._changed:
            self.check()
            while view:
                count = self._local(self._file.write, view)
                self.size += count
                view = view[count:]

    def checkpoint(self, note: bytes) -> None:
        with self._changed:
            self.check()
            if self._keeper is None:
                run = copy_context().run
                keeper = threading.Thread(
                    target=run, args=(self._put_parts,), name="seqrecord-upload", daemon=True
                )
                start(keeper)
                self._keeper = keeper
            self._notes.append((self.size, note))
            self._set_due()

    @property
    def is_durable(self) -> bool:
        """Whether all checkpoints are in parts."""
        with self._changed:
            return self._due is None and not self._is_busy and self._failure is None

    def rewind(self, offset: int) -> None:
        with self._changed:
            self.check()
            check_rewind(self.size, offset)
            self._local(self._file.truncate, offset)
            self._file.seek(offset)
            self.size = offset
            self._notes = [note for note in self._notes if note[0] <= offset]
            if offset < self._saved:  # an empty part invalidates bytes in parts
                self._saved, self._is_undone = offset, True
                self._set_due()

    def send(self) -> None:
        check_wanted(self._shown)
        with self._changed:
            self.check()
            self._is_sent = True
        try:
            self._store.send(self._path, self)
        except BaseException:
            with self._changed:
                self._is_sent = False
                self._changed.notify_all()
            raise

    def read(self, start: int, stop: int) -> bytes:
        """See `Content.read`."""
        with self._changed:
            if self._stopped.is_set():
                raise StorageError("the upload is closed", file=self._shown)
            return self._bytes(start, min(stop, self.size))

    def finish(self) -> None:
        """Send due parts now, and wait for that."""
        if self._pid != os.getpid():
            return
        with self._changed:
            if self._due is not None:
                self._due = time.monotonic()
            self._changed.notify_all()
            self._changed.wait_for(self._is_done, self._timing.leave_seconds)

    def stop(self) -> None:
        """End the thread after its current request, and close the file."""
        if self._pid != os.getpid():
            return  # a forked child has no thread, and the lock may be taken
        with self._changed:
            self._stopped.set()
            self._changed.notify_all()
        if self._keeper is not None and self._keeper is not threading.current_thread():
            self._keeper.join(self._timing.leave_seconds)
        with self._changed:
            self._file.close()

    def _set_due(self) -> None:
        if self._due is None:
            self._due = time.monotonic() + self._timing.save_seconds
        self._changed.notify_all()

    def _is_done(self) -> bool:
        is_idle = self._due is None and not self._is_busy
        return is_idle or self._stopped.is_set() or self._failure is not None

    def _put_parts(self) -> None:
        """Main function of the thread: sends parts when due."""
        try:
            with unwanted_if(self._stopped.is_set):
                while self._wait():
                    self._save()
        except BaseException as error:
            if not self._stopped.is_set():
                self._failure = error
        with self._changed:
            self._changed.notify_all()

    def _wait(self) -> bool:
        """Wait until a part is due; false at the end of the upload."""
        with self._changed:
            while not self._stopped.is_set():
                left = None
                if self._due is not None:
                    is_whole_first = self._is_sent and not self.num_parts
                    due = self._due + self._timing.whole_seconds * is_whole_first
                    left = due - time.monotonic()
                    if left <= 0:
                        return True
                self._changed.wait(left)
        return False

    def _save(self) -> None:
        """Send one part with all due bytes, up to `part_bytes`."""
        with self._changed:
            end = self._notes[-1][0] if self._notes else self._saved
            start, stop = self._saved, min(end, self._saved + self._timing.part_bytes)
            notes = [note for note in self._notes if note[0] <= stop]
            data = self._bytes(start, stop)
            number, is_needed = self.num_parts, bool(notes or data or self._is_undone)
            # Recorded before sending: after a failure, no part is sent any more.
            self._is_undone = False
            self._notes, self._saved = self._notes[len(notes) :], stop
            self.num_parts += is_needed
            if not self._notes:
                self._due = None
            self._is_busy = True
        if is_needed:
            self._store.put_part(_part_path(self._path, number), encode_part(start, data, notes))
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()

    def _bytes(self, start: int, stop: int) -> bytes:
        data: bytes = self._local(os.pread, self._file.fileno(), stop - start, start)
        if len(data) < stop - start:
            raise StorageError("the temporary file was truncated", file=self._shown)
        return data

    def _local(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except OSError as error:
            cause = error.strerror or type(error).__name__
        raise StorageError(
            f"the temporary file of an upload, in {tempfile.gettempdir()}: {cause}; set TMPDIR to "
            "use another folder",
            file=self._shown,
        )


class _PartFile(NamedTuple):
    """A part: bytes `start` to `stop` of the upload, at `offset` in the file `path`."""

    path: str
    offset: int
    start: int
    stop: int
    notes: list[tuple[int, bytes]]


def _part_path(path: str, number: int) -> str:
    return f"{PARTS}/{path}/{number:05d}"


def encode_part(start: int, data: bytes, notes: Sequence[tuple[int, bytes]]) -> bytes:
    """Encode a part: `data` from byte `start` on, and notes of checkpoints."""
    pieces = [_HEAD.pack(_MAGIC, 0, _VERSION, start, start + len(data), len(notes))]
    for size, note in notes:
        pieces += [_NOTE.pack(size, len(note)), note]
    pieces.append(data)
    checked = crc32c(pieces[0][_CHECKED_FROM:], *pieces[1:])
    pieces[0] = _HEAD.pack(_MAGIC, checked, *_HEAD.unpack(pieces[0])[2:])
    return b"".join(pieces)


def unfinished_uploads(folder: str, store: WholeFiles) -> list[Unfinished]:
    """Uploads with parts into a folder, sorted by path."""
    prefix = f"{PARTS}/{check_path(folder)}/"
    found: dict[str, dict[int, FileInfo]] = {}
    for file in store.listed(prefix.rstrip("/"), deep=True):
        name, _, number = file.path.removeprefix(prefix).partition("/")
        if file.path.startswith(prefix) and _NUMBER.fullmatch(number):
            found.setdefault(f"{folder}/{name}", {})[int(number)] = file
    return [_UnfinishedUpload(path, parts, store) for path, parts in sorted(found.items())]


class _UnfinishedUpload:
    """An `Unfinished` upload in parts; the contiguous sequence from part 0 on counts."""

    def __init__(self, path: str, files: dict[int, FileInfo], store: WholeFiles) -> None:
        self.path = path
        self.modified = max(file.modified for file in files.values())
        self._files, self._store = files, store

    def checkpoints(self) -> list[tuple[int, bytes]]:
        return [note for part in self._run for note in part.notes]

    def read_ranges(self, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]) -> None:
        check_buffers(ranges, buffers)
        wanted: dict[str, tuple[list[ByteRange], list[memoryview]]] = {}
        end = self._run[-1].stop if self._run else 0
        for item, buffer in zip(ranges, buffers, strict=True):
            if item.length and item.stop > end:
                shown = f"{self._store.url}/{self.path}"
                raise short_read(shown, item, max(0, end - item.start))
            for part in self._run:
                start, stop = max(item.start, part.start), min(item.stop, part.stop)
                if start < stop:
                    inside, views = wanted.setdefault(part.path, ([], []))
                    offset = part.offset - part.start
                    inside.append(ByteRange(offset + start, offset + stop))
                    views.append(buffer.cast("B")[start - item.start : stop - item.start])
        for path, (inside, views) in wanted.items():
            self._store.read_ranges(path, inside, views)

    def remove(self) -> None:
        # In reverse order: a kill leaves a shorter, but contiguous sequence.
        for number in sorted(self._files, reverse=True):
            self._store.remove_part(self._files[number].path)

    @cached_property
    def _run(self) -> list[_PartFile]:
        """Valid parts, read once and cut so that each byte of the upload is in one part."""
        run: list[_PartFile] = []
        for number in range(len(self._files)):
            part = _read(self._store, self._files.get(number))
            if part is None or part.start > (run[-1].stop if run else 0):
                break
            run = [*(_cut(each, part.start) for each in run), part]
        return run


def _read(store: WholeFiles, file: FileInfo | None) -> _PartFile | None:
    """Read a part; `None` if it is missing or damaged."""
    if file is None or file.size > _MOST_BYTES:
        return None
    notes = []
    try:
        data = memoryview(store.read_whole(file.path, _MOST_BYTES)[0])
        magic, checked, version, start, stop, count = _HEAD.unpack_from(data)
        if (magic, version) != (_MAGIC, _VERSION) or crc32c(data[_CHECKED_FROM:]) != checked:
            return None
        at = _HEAD.size
        for _ in range(count):
            size, length = _NOTE.unpack_from(data, at)
            at += _NOTE.size + length
            notes.append((size, bytes(data[at - length : at])))
    except (NotFoundError, struct.error):  # the writer committed the file, or it is truncated
        return None
    return _PartFile(file.path, at, start, stop, notes) if stop - start == len(data) - at else None


def _cut(part: _PartFile, end: int) -> _PartFile:
    """The part without bytes and notes from `end` on."""
    if part.stop <= end:
        return part
    notes = [note for note in part.notes if note[0] <= end]
    return part._replace(stop=max(part.start, end), notes=notes)
