"""Uploads to storages that take only whole files: written to a local file, and sent from it.

Most of the cost of a temporary file is in its pages: the system finds memory for each when it is
first written, and takes it back when the file is closed. A file that is written again costs a tenth
(836 MB took 0.06 s of a CPU where a new file took 0.5 to 2), so files are used again.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import IO, Any

from seqrecord.checksum import Buffer
from seqrecord.errors import ResourceError, StorageError
from seqrecord.processes.forks import PerProcess
from seqrecord.processes.threads import start
from seqrecord.storage.base import check_rewind
from seqrecord.storage.parts import WholeFiles, encode_part, part_path
from seqrecord.storage.ranges import check_wanted, unwanted_if

__all__ = ["FILE_POOL", "FilePool", "Hold", "SpooledUpload", "UploadTiming"]

_UNDER_WAY_BYTES = 64 << 20  # that a store may have taken to send, and not sent yet
_POLL_SECONDS = 0.25
_KEEPER, _SENDER = "seqrecord-upload", "seqrecord-send"  # names of threads

_logger = logging.getLogger("seqrecord")


@dataclass(frozen=True)
class UploadTiming:
    """How soon after a checkpoint parts are put, and how much of the file each has at most.

    With the request, a checkpoint is durable within five seconds. A file of `send_from_bytes` is
    long: it is sent while it is written. Parts that are due wait for `whole_seconds` at most where
    the whole file seems to be there as soon as they would be. The end of an upload waits for
    `leave_seconds` at most for requests that are under way.
    """

    save_seconds: float = 4.0
    part_bytes: int = 8 << 20
    send_from_bytes: int = 32 << 20
    whole_seconds: float = 5.0
    leave_seconds: float = 5.0


class SpooledUpload:
    """Writes go to a temporary local file without a name, which is sent as one object.

    A long file is sent while it is written, by a thread of its own; the store shows it when it is
    committed. Where `rewind` takes back what has been sent, all is sent anew.

    Another thread, from the first checkpoint to the end of the upload, puts what lies below the
    last checkpoint as parts, so that it can be read after a kill; but none that would be there no
    sooner than the whole file. What a thread fails with is raised by the next call.
    """

    def __init__(self, path: str, store: WholeFiles, timing: UploadTiming | None = None) -> None:
        self.path = path
        self._store = store
        self._spool = _Spool(path, store, timing or UploadTiming())
        # When it is collected, and when the interpreter leaves.
        self._stop = weakref.finalize(self, self._spool.stop)

    def write(self, data: Buffer) -> None:
        self._spool.write(data)

    def tell(self) -> int:
        return self._spool.written

    def checkpoint(self, note: bytes) -> None:
        self._spool.checkpoint(note)

    @property
    def is_durable(self) -> bool:
        return self._spool.is_durable

    def rewind(self, offset: int) -> None:
        self._spool.rewind(offset)

    def commit(self) -> None:
        # Checkpoints go on being kept meanwhile: it may take minutes.
        self._spool.send()
        self._end()

    def abort(self) -> None:
        if self._stop.alive:
            self._end()

    def leave(self) -> None:
        """Stop as a kill would, but keep the checkpoints so far if that takes no long time."""
        self._spool.finish()
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
    """The local file, and the threads that keep what lies below checkpoints and send it all."""

    def __init__(self, path: str, store: WholeFiles, timing: UploadTiming) -> None:
        self._path, self._store, self._shown = path, store, f"{store.root}/{path}"
        self._timing = timing
        self._pid = os.getpid()
        self._changed = threading.Condition()  # of what follows
        self._file: IO[bytes] = FILE_POOL.get().take()  # given back by `stop`
        self._notes: list[tuple[int, bytes]] = []  # of checkpoints that are in no part yet
        self._kept = self._saved = 0  # bytes below the last checkpoint, and bytes that are in parts
        self._is_undone = False  # some of what is in parts
        self._due: float | None = None  # when notes are to go into parts, on the monotonic clock
        self._is_busy = False  # with a part
        self._keeper: threading.Thread | None = None
        self._sender: threading.Thread | None = None
        self._failures: dict[str, BaseException] = {}  # of the threads, by name
        self._read = 0  # bytes, by who sends
        self._begun = 0.0  # when the first of them was, on the monotonic clock
        self._is_whole = False  # nothing more is written, unless the sending fails
        self._is_taken_back = False  # what was read
        self._was_rewound = False
        self._stopped = threading.Event()
        self.written = self.num_parts = 0

    @property
    def size(self) -> int | None:
        """As `Content.size`."""
        return self.written if self._is_whole else None

    def check(self) -> None:
        """Raise what a thread has failed with; `StorageError` after the end."""
        for failure in self._failures.values():
            raise failure
        if self._stopped.is_set():
            raise StorageError("the upload is closed", file=self._shown)

    def write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        with self._changed:
            self.check()
            while view:
                count = self._local(self._file.write, view)
                self.written += count
                view = view[count:]
            if self._sender is None and self.written >= self._timing.send_from_bytes:
                with suppress(ResourceError):  # then it is sent at last, by who commits
                    self._sender = self._start(_SENDER, self._stream)
            self._changed.notify_all()

    def checkpoint(self, note: bytes) -> None:
        with self._changed:
            self.check()
            if self._keeper is None:
                self._keeper = self._start(_KEEPER, self._put_parts)
            self._notes.append((self.written, note))
            self._kept = self.written
            if self._due is None:
                self._due = time.monotonic() + self._timing.save_seconds
            self._changed.notify_all()

    @property
    def is_durable(self) -> bool:
        """Whether all that is to be in parts is there."""
        with self._changed:
            return self._due is None and not self._is_busy and _KEEPER not in self._failures

    def rewind(self, offset: int) -> None:
        with self._changed:
            self.check()
            check_rewind(self.written, offset)
            self._local(self._file.truncate, offset)
            self._file.seek(offset)
            self.written = offset
            if offset < self._saved:  # a part without bytes takes back what parts have
                self._is_undone = True
                if self._due is None:
                    self._due = time.monotonic() + self._timing.save_seconds
                    self._changed.notify_all()
            self._saved, self._kept = min(self._saved, offset), min(self._kept, offset)
            self._notes = [note for note in self._notes if note[0] <= offset]
            if offset < self._read:
                self._is_taken_back = self._was_rewound = True
                self._changed.notify_all()

    def send(self) -> None:
        """Have all of it sent, by the thread that has begun with it, or by this one."""
        check_wanted(self._shown)
        with self._changed:
            self.check()
            self._is_whole = True
            self._changed.notify_all()
        try:
            if (sender := self._sender) is None:
                self._store.send(self._path, self)
                return
            while sender.is_alive():
                check_wanted(self._shown)
                sender.join(_POLL_SECONDS)
            self._sender = None  # so that it can be tried again
            if _SENDER in self._failures:
                raise self._failures.pop(_SENDER)
        except BaseException:
            with self._changed:
                self._is_whole = False
                self._changed.notify_all()
            raise

    def read(self, start: int, stop: int) -> bytes:
        """As `Content.read`."""
        with self._changed:
            if start == 0:
                self._read, self._is_taken_back = 0, False
                self._begun = time.monotonic()
            # What an error took back once is not sent again before it is sure.
            while not self._is_whole and stop > (self._kept if self._was_rewound else self.written):
                self._check_sent()
                self._changed.wait(_POLL_SECONDS)
            self._check_sent()
            stop = min(stop, self.written)
            self._read = max(self._read, stop)
            self._changed.notify_all()
        data = self._bytes(start, stop)  # the writer need not wait for that
        with self._changed:
            self._check_sent()
        return data

    def finish(self) -> None:
        """Keep what is to be kept now, and wait for that."""
        if self._pid != os.getpid():
            return
        with self._changed:
            if self._due is not None:
                self._due = time.monotonic()
            self._changed.notify_all()
            self._changed.wait_for(self._is_done, self._timing.leave_seconds)

    def stop(self) -> None:
        """End the threads, after the requests that they are at, and drop the file."""
        if self._pid != os.getpid():
            return  # a forked child has neither the threads nor, perhaps, the lock
        with self._changed:
            self._stopped.set()
            self._changed.notify_all()
        deadline = time.monotonic() + self._timing.leave_seconds
        threads = [t for t in (self._keeper, self._sender) if t is not threading.current_thread()]
        for thread in threads:
            if thread is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        with self._changed:
            if any(thread is not None and thread.is_alive() for thread in threads):
                self._file.close()  # what they still read must not be of another upload
            elif not self._file.closed:
                # A closed file in its place: nothing reads or writes the next upload's.
                file, self._file = self._file, io.BytesIO()
                self._file.close()
                FILE_POOL.get().give_back(file)

    def _check_sent(self) -> None:
        """Raise `StorageError` where there is nothing to send any more, or not what there was."""
        if self._stopped.is_set() or self._file.closed:
            raise StorageError("the upload is closed", file=self._shown)
        if self._is_taken_back:
            raise StorageError("what was sent of it is taken back", file=self._shown)
        check_wanted(self._shown)

    def _is_done(self) -> bool:
        is_idle = self._due is None and not self._is_busy
        return is_idle or self._stopped.is_set() or _KEEPER in self._failures

    def _start(self, name: str, work: Callable[[], None]) -> threading.Thread:
        def do() -> None:
            try:
                with unwanted_if(self._stopped.is_set):
                    work()
            except BaseException as error:
                if not self._stopped.is_set():
                    self._failures[name] = error
            with self._changed:
                self._changed.notify_all()

        thread = threading.Thread(target=copy_context().run, args=(do,), name=name, daemon=True)
        start(thread)
        return thread

    def _stream(self) -> None:
        """A thread: send the file while it is written."""
        while True:
            try:
                self._store.send(self._path, self)
                return
            except StorageError:
                if not self._is_taken_back:
                    raise

    def _put_parts(self) -> None:
        """A thread: put parts when they are due."""
        while self._wait():
            self._save()

    def _wait(self) -> bool:
        """Whether parts are due, as soon as they are; false at the end."""
        with self._changed:
            while not self._stopped.is_set():
                left = None if self._due is None else self._due - time.monotonic()
                if self._due is not None and left is not None and left <= 0:
                    if not self._is_there_sooner(self._due):
                        return True
                    left = _POLL_SECONDS
                self._changed.wait(left)
        return False

    def _is_there_sooner(self, due: float) -> bool:
        """Whether the whole file takes fewer bytes than the parts, and goes fast enough."""
        sent, now = max(0, self._read - _UNDER_WAY_BYTES), time.monotonic()
        left = self.written - sent
        end = now + left * (now - self._begun) / sent if sent else now
        is_soon = end <= due + self._timing.whole_seconds
        return self._is_whole and is_soon and left <= self._kept - self._saved

    def _save(self) -> None:
        """Put one part: all that is due, or as much of it as goes into one."""
        with self._changed:
            end = self._notes[-1][0] if self._notes else self._saved
            start, stop = self._saved, min(end, self._saved + self._timing.part_bytes)
            notes = [note for note in self._notes if note[0] <= stop]
            data = self._bytes(start, stop)
            number, is_needed = self.num_parts, bool(notes or data or self._is_undone)
            # Taken as done: after a failure nothing is kept any more.
            self._is_undone = False
            self._notes, self._saved = self._notes[len(notes) :], stop
            self.num_parts += is_needed
            if not self._notes:
                self._due = None
            self._is_busy = True
        if is_needed:
            self._store.put(part_path(self._path, number), encode_part(start, data, notes))
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()

    def _bytes(self, start: int, stop: int) -> bytes:
        data: bytes = self._local(os.pread, self._file.fileno(), stop - start, start)
        if len(data) < stop - start:
            raise StorageError("the temporary file was cut", file=self._shown)
        return data

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


_MOST = 2  # of a writer, one is sent while the next is written


class FilePool:
    """Keeps files that are given back while there is a `Hold`; the end of the last closes them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may come in the middle
        self._files: list[IO[bytes]] = []
        self._holds = 0

    def take(self) -> IO[bytes]:
        """A file to be written from its start; what lies behind that is of no meaning."""
        with self._lock:
            if self._files:
                return self._files.pop()
        return tempfile.TemporaryFile(buffering=0)

    def give_back(self, file: IO[bytes]) -> None:
        """Keep a file for the next `take`, or close it."""
        with self._lock, contextlib.suppress(OSError):
            if self._holds and len(self._files) < _MOST:
                file.seek(0)
                self._files.append(file)
                return
        file.close()

    def hold(self) -> None:
        with self._lock:
            self._holds += 1

    def release(self) -> None:
        files: list[IO[bytes]] = []
        with self._lock:
            self._holds -= 1
            if not self._holds:
                files, self._files = self._files, []
        for file in files:
            file.close()


FILE_POOL = PerProcess(FilePool)


class Hold:
    """Has the files of this process kept until it is released or collected."""

    def __init__(self, pool: FilePool | None = None) -> None:
        pool = pool or FILE_POOL.get()
        pool.hold()
        self.release = weakref.finalize(self, pool.release)
