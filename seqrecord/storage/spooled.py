"""Uploads to where a file can only be put as a whole: spooled to a local file first."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from seqrecord.checksum import Buffer
from seqrecord.errors import StorageError
from seqrecord.storage.parts import WholeFiles, encode_part, part_path
from seqrecord.storage.stopping import unwanted_if

__all__ = ["LEAVE_SECONDS", "SAVE_SECONDS", "SpooledUpload"]

SAVE_SECONDS = 4.0  # after a checkpoint: with the request it is durable within five
LEAVE_SECONDS = 5.0  # for what is kept at the end
PART_BYTES = 8 << 20  # of the file, in one part

_logger = logging.getLogger("seqrecord")


class SpooledUpload:
    """Writes go to a temporary local file without a name, and `commit` sends that as one.

    A thread, from the first checkpoint to the end of the upload, puts what lies below the last
    checkpoint as parts, so that it can be read after a kill. What it fails with is raised by the
    next call.
    """

    def __init__(self, path: str, store: WholeFiles) -> None:
        self.path = path
        self._store = store
        self._spool = _Spool(path, store)
        # When it is collected, and when the interpreter leaves.
        self._stop = weakref.finalize(self, self._spool.stop)

    def write(self, data: Buffer) -> None:
        self._spool.write(data)

    def tell(self) -> int:
        return self._spool.size

    def checkpoint(self, note: bytes) -> None:
        self._spool.checkpoint(note)

    def rewind(self, offset: int) -> None:
        self._spool.rewind(offset)

    def commit(self) -> None:
        self._spool.check()
        # Checkpoints go on being kept meanwhile: it may take minutes.
        self._store.send(self.path, self._spool.read, self._spool.size)
        self._end()

    def abort(self) -> None:
        if self._stop.alive:
            self._end()

    def leave(self) -> None:
        """Stop as a kill would, but keep the checkpoints so far if that takes no long time."""
        self._spool.finish(LEAVE_SECONDS)
        self._stop()

    def _end(self) -> None:
        self._stop()
        # The last first: a kill in between leaves a run that is shorter, and whole.
        for number in reversed(range(self._spool.num_parts)):
            try:
                self._store.remove(part_path(self.path, number))
            except StorageError as error:
                _logger.warning("a part is not needed but cannot be removed: %s", error)
                return


class _Spool:
    """The local file, and the thread that keeps what lies below checkpoints."""

    def __init__(self, path: str, store: WholeFiles) -> None:
        self._path, self._store, self._shown = path, store, f"{store.root}/{path}"
        self._pid = os.getpid()
        self._changed = threading.Condition()  # of what follows
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by `stop`
        self._notes: list[tuple[int, bytes]] = []  # of checkpoints that are in no part yet
        self._saved = 0  # bytes that are in parts
        self._due: float | None = None  # when notes are to go into parts, on the monotonic clock
        self._is_busy = False  # with a part
        self._failure: BaseException | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.size = self.num_parts = 0

    def check(self) -> None:
        """Raise what the thread has failed with; `StorageError` after the end."""
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
            self._notes.append((self.size, note))
            if self._due is None:
                self._due = time.monotonic() + SAVE_SECONDS
                self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=copy_context().run,
                    args=(self._keep,),
                    name="seqrecord-upload",
                    daemon=True,
                )
                self._thread.start()

    def rewind(self, offset: int) -> None:
        with self._changed:
            self.check()
            if not 0 <= offset <= self.size:
                raise ValueError(f"cannot rewind {self.size} bytes to {offset}")
            self._local(self._file.truncate, offset)
            self._file.seek(offset)
            self.size = offset
            self._saved = min(self._saved, offset)
            self._notes = [note for note in self._notes if note[0] <= offset]

    def read(self, start: int, stop: int) -> bytes:
        """Bytes of the file, for `WholeFiles.send`."""
        pieces: list[bytes] = []
        with self._changed:
            if self._file.closed:
                raise StorageError("the upload is closed", file=self._shown)
            while start < stop:
                piece = self._local(os.pread, self._file.fileno(), stop - start, start)
                if not piece:
                    raise StorageError("the temporary file was cut", file=self._shown)
                pieces.append(piece)
                start += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def finish(self, seconds: float) -> None:
        """Keep what is to be kept now, and wait for that for so long."""
        if self._pid != os.getpid():
            return
        with self._changed:
            if self._due is not None:
                self._due = time.monotonic()
            self._changed.notify_all()
            self._changed.wait_for(self._is_done, seconds)

    def stop(self) -> None:
        """End the thread, after the request that it is at, and drop the file."""
        if self._pid != os.getpid():
            return  # a forked child has neither the thread nor, perhaps, the lock
        with self._changed:
            self._stopped.set()
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(LEAVE_SECONDS)
        with self._changed:
            self._file.close()

    def _is_done(self) -> bool:
        if self._stopped.is_set() or self._failure is not None:
            return True
        return self._due is None and not self._is_busy

    def _keep(self) -> None:
        """The thread: put parts when they are due."""
        try:
            with unwanted_if(self._stopped.is_set):
                while self._wait():
                    self._save()
        except BaseException as error:
            with self._changed:
                if not self._stopped.is_set():
                    self._failure = error
                self._changed.notify_all()

    def _wait(self) -> bool:
        """Whether parts are due, as soon as they are; false at the end."""
        with self._changed:
            while not self._stopped.is_set():
                left = None if self._due is None else self._due - time.monotonic()
                if left is not None and left <= 0:
                    return True
                self._changed.wait(left)
        return False

    def _save(self) -> None:
        """Put one part: all that is due, or as much of it as goes into one."""
        with self._changed:
            end = self._notes[-1][0] if self._notes else self._saved
            start, stop = self._saved, min(end, self._saved + PART_BYTES)
            notes = [note for note in self._notes if note[0] <= stop]
            data = self.read(start, stop)
            number = self.num_parts
            # Taken as done: after a failure nothing is kept any more.
            self._notes, self._saved = self._notes[len(notes) :], stop
            self.num_parts += bool(notes or data)
            if not self._notes:
                self._due = None
            self._is_busy = True
        if notes or data:
            self._store.put(part_path(self._path, number), encode_part(start, data, notes))
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()

    def _local(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except OSError as error:
            cause = error.strerror or type(error).__name__
        raise StorageError(
            f"the temporary file of an upload, in {tempfile.gettempdir()}: {cause}; TMPDIR names "
            "another folder",
            file=self._shown,
        )
