"""A queue of frames, bounded in memory, that spills to a local disk."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import DestinationError, QueueFullError, StorageError
from seqrecord.processes.threads import start
from seqrecord.schema import EncodedImage, Frame

_BATCH_BYTES = 32 << 20  # of frames per spill
_BATCH_FRAMES = 1024
FILE_BYTES = 1 << 30  # size at which the next spill file begins
_RETRY_SECONDS = 1.0  # after a failed write
_ENTRY_BYTES = 1024  # overhead per frame

_ALIGNMENT = 64
_MAX_FREE = 64  # buffers

_NOTHING = np.empty(0, np.uint8)

_logger = logging.getLogger("seqrecord")


@dataclass(frozen=True)
class QueueStats:
    """Waiting frames and bytes, in memory and on disk; spilled frames since the start."""

    queued_frames: int
    queued_bytes: int  # in memory
    spilled_bytes: int  # on the disk
    total_spilled_frames: int


class QueueCall:
    """A function call between frames, done by the thread that takes from the queue."""

    def __init__(self, do: Callable[[], object]) -> None:
        self.do = do
        self.done = threading.Event()


@dataclass(frozen=True)
class _Field:
    """Name, byte range and type of a feature in its frame's memory."""

    name: str
    start: int
    stop: int
    kind: type  # ndarray, EncodedImage, str or bytes
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def array(self, memory: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        return memory[self.start : self.stop].view(self.dtype).reshape(self.shape)

    def value(self, memory: npt.NDArray[np.uint8]) -> Any:
        array = self.array(memory)
        if self.kind is np.ndarray:
            return array
        if self.kind is EncodedImage:
            return EncodedImage(array.tobytes())
        return array.tobytes().decode() if self.kind is str else array.tobytes()


@dataclass(eq=False)
class _QueuedFrame:
    """A waiting frame: in the first `nbytes` of `memory`, or in a file after a spill."""

    put_at: float  # on the clock
    fields: list[_Field]
    nbytes: int
    memory: npt.NDArray[np.uint8]
    file: _SpillFile | None = None
    offset: int = 0
    is_taken: bool = False

    @property
    def cost(self) -> int:
        return self.nbytes + _ENTRY_BYTES


class FrameQueue:
    """Frames for another thread, in order. `put` copies a frame and does not wait.

    At most `limit` bytes of frames are in memory. A thread writes the newest frames to files in
    `folder` while more than half of `limit` is used. The files have no names, so a kill leaves
    none, and each is removed after its frames were read. If the disk is slower than the frames,
    memory gets full: `put` then raises `QueueFullError`.
    """

    def __init__(
        self,
        limit: int,
        folder: str | PathLike[str] | None = None,
        *,
        file_bytes: int = FILE_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.put_at = 0.0  # time of `put` of the frame that was taken last
        self._clock = clock
        self._limit = limit
        self._folder, self._file_bytes = folder, file_bytes
        self._pool = FrameBuffers(limit // 4)
        self._condition = threading.Condition()
        self._entries: deque[_QueuedFrame | QueueCall] = deque()
        self._resident: deque[_QueuedFrame] = deque()  # in memory, not being spilled; oldest first
        self._bytes = 0
        self._frames = self._spilled_bytes = self._total_spilled = 0
        self._is_closed = False
        self._failure: BaseException | None = None
        self._spill_failure: OSError | None = None
        self._taken: _QueuedFrame | None = None
        self._discarded: list[_QueuedFrame] = []  # closing their files may take a while
        try:
            _SpillFile(folder)  # fail now if the folder takes no files
        except OSError as error:
            raise DestinationError(
                f"cannot spill there: {error.strerror}", file=str(folder or "")
            ) from error
        self._thread = threading.Thread(target=self._spill, name="seqrecord-spill", daemon=True)
        start(self._thread)

    @property
    def stats(self) -> QueueStats:
        with self._condition:
            return QueueStats(self._frames, self._bytes, self._spilled_bytes, self._total_spilled)

    def put(self, frame: Frame) -> None:
        """Copy a frame into the queue.

        Raises `QueueFullError` if there is no room, and `DestinationError` after `fail`.
        """
        fields, arrays, nbytes = _layout(frame)
        cost = nbytes + _ENTRY_BYTES
        with self._condition:
            self.check()
            now = self._clock()
            if self._bytes + cost > self._limit:
                raise self._full(cost)
            self._bytes += cost  # reserved before the copy
        try:
            memory = self._pool.take(nbytes)
            for field, array in zip(fields, arrays, strict=True):
                np.copyto(field.array(memory), array)
        except BaseException:
            with self._condition:
                self._bytes -= cost
            raise
        with self._condition:
            if self._failure is not None:
                return  # the next call raises
            entry = _QueuedFrame(now, fields, nbytes, memory)
            self._frames += 1
            self._entries.append(entry)
            self._resident.append(entry)
            self._condition.notify_all()

    def put_call(self, task: QueueCall) -> None:
        """Add a call after the frames so far. Raises `DestinationError` after `fail`."""
        with self._condition:
            self.check()
            self._entries.append(task)
            self._condition.notify_all()

    def discard(self, task: QueueCall) -> None:
        """Remove the frames since the last call, and add this call instead."""
        with self._condition:
            self.check()
            while self._entries and isinstance(entry := self._entries[-1], _QueuedFrame):
                self._entries.pop()
                self._frames -= 1
                entry.is_taken = True
                if self._resident and self._resident[-1] is entry:
                    self._resident.pop()
                self._free(entry)
                self._discarded.append(entry)
            self._entries.append(task)
            self._condition.notify_all()

    def take(self, seconds: float | None) -> Frame | QueueCall | None:
        """The next frame or call; `None` after a timeout of `seconds`, or if the queue is over.

        Only one thread may take. A frame's arrays are valid until its next call of `take`.
        """
        self._release_taken()
        with self._condition:
            self._condition.wait_for(lambda: self._entries or self.is_over, seconds)
            if not self._entries:
                return None
            entry = self._entries.popleft()
            if isinstance(entry, QueueCall):
                return entry
            entry.is_taken = True
            self._frames -= 1
            if self._resident and self._resident[0] is entry:  # else spilled, or being spilled
                self._resident.popleft()
            self._taken, self.put_at = entry, entry.put_at
        memory = entry.memory if entry.file is None else entry.file.read(entry)
        return {field.name: field.value(memory) for field in entry.fields}

    def fail(self, error: BaseException) -> None:
        """Drop all frames. From now on `put` raises a `DestinationError` caused by `error`."""
        with self._condition:
            self._failure = error
            self._forget_all()
            self._frames = self._bytes = self._spilled_bytes = 0
            self._condition.notify_all()

    def close(self, *, wait: bool = True) -> None:
        """Drop all frames, end the spilling thread, and remove its files.

        Finalizers do not wait for the thread: a garbage collection may run them inside a method.
        """
        with self._condition:
            self._is_closed = True
            self._forget_all()
            self._condition.notify_all()
        if wait:
            self._thread.join()

    @property
    def is_over(self) -> bool:
        """Whether the queue has failed or is closed."""
        return self._is_closed or self._failure is not None

    def check(self) -> None:
        """Raise `DestinationError` after `fail`."""
        if self._failure is not None:
            error = self._failure
            why = getattr(error, "message", None) or repr(error)
            raise DestinationError(
                f"recording failed and stopped ({why}); complete episodes are kept: continue with "
                "resume (--resume)",
                file=getattr(error, "file", None),
            ) from error

    def _full(self, cost: int) -> QueueFullError:
        more = "" if self._spill_failure is None else f"; spilling failed: {self._spill_failure}"
        return QueueFullError(
            "queue is full: frames arrive faster than they are written" + more,
            expected=f"{cost} bytes free of {self._limit}",
            got=f"{max(0, self._limit - self._bytes)} free",
        )

    def _forget_all(self) -> None:
        for entry in self._entries:
            if isinstance(entry, _QueuedFrame):
                entry.is_taken = True
        self._entries.clear()
        self._resident.clear()

    def _release_taken(self) -> None:
        """Free the memory of the frame that was taken last."""
        entry, self._taken = self._taken, None
        if entry is not None:
            with self._condition:
                self._free(entry)
                self._condition.notify_all()
        self._discarded.clear()

    def _free(self, entry: _QueuedFrame) -> None:
        """Free a frame's memory or disk space. The condition must be locked."""
        if self._failure is not None:
            return
        if entry.file is None:
            self._bytes -= entry.cost
            self._pool.give(entry.memory)
        else:
            self._spilled_bytes -= entry.nbytes

    def _spill(self) -> None:
        """Body of the thread: keep memory below half of the limit.

        Only frames refer to a spill file, so it is removed with the last of its frames.
        """
        last: Callable[[], _SpillFile | None] = lambda: None  # noqa: E731 - or a weak reference
        end = 0  # of the last file
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._is_closed or self._is_half_full)
                if self._is_closed:
                    return
                entries = self._newest()
            file = last()
            try:
                if file is None or end >= self._file_bytes:
                    file, end = _SpillFile(self._folder), 0
                first, end = end, file.write(entries, end)
            except OSError as error:
                self._keep_in_memory(error)
            else:
                self._mark_spilled(entries, file, first)
                last = weakref.ref(file)
            del file, entries

    @property
    def _is_half_full(self) -> bool:
        return self._bytes > self._limit // 2 and bool(self._resident)

    def _newest(self) -> list[_QueuedFrame]:
        """Frames to spill together, the newest first because they are needed last."""
        entries: list[_QueuedFrame] = []
        nbytes = 0
        while (
            self._resident
            and self._bytes - nbytes > self._limit // 2
            and nbytes < _BATCH_BYTES
            and len(entries) < _BATCH_FRAMES
        ):
            entries.append(self._resident.pop())
            nbytes += entries[-1].cost
        return entries

    def _mark_spilled(self, entries: list[_QueuedFrame], file: _SpillFile, offset: int) -> None:
        """Note that these frames are in a file now, except frames taken meanwhile."""
        free = []
        with self._condition:
            for entry in entries:
                if not entry.is_taken:
                    entry.file, entry.offset = file, offset
                    self._bytes -= entry.cost
                    self._spilled_bytes += entry.nbytes
                    self._total_spilled += 1
                    free.append(entry.memory)
                    entry.memory = _NOTHING
                offset += entry.nbytes
            self._spill_failure = None
            self._condition.notify_all()
        for memory in free:
            self._pool.give(memory)

    def _keep_in_memory(self, error: OSError) -> None:
        """Keep the frames in memory after a failed write, and pause before the next one."""
        with self._condition:
            if self._spill_failure is None:
                _logger.warning("queued frames cannot be spilled: %s", error)
            self._spill_failure = error
            self._condition.notify_all()
            frames = (entry for entry in self._entries if isinstance(entry, _QueuedFrame))
            self._resident = deque(entry for entry in frames if entry.file is None)
            self._condition.wait_for(lambda: self._is_closed, _RETRY_SECONDS)


class _SpillFile:
    """A file without a name, removed when nothing refers to this object."""

    def __init__(self, folder: str | PathLike[str] | None) -> None:
        file = tempfile.TemporaryFile(prefix="seqrecord-spill-", dir=folder)  # noqa: SIM115
        self._fd = file.fileno()
        weakref.finalize(self, file.close)

    def write(self, entries: Iterable[_QueuedFrame], offset: int) -> int:
        """Write frames one after the other; returns the end offset."""
        for entry in entries:
            data = entry.memory[: entry.nbytes].data
            while data:
                count = os.pwrite(self._fd, data, offset)
                data, offset = data[count:], offset + count
        return offset

    def read(self, entry: _QueuedFrame) -> npt.NDArray[np.uint8]:
        """Read a spilled frame."""
        memory = np.empty(entry.nbytes, np.uint8)
        if os.preadv(self._fd, [memory.data], entry.offset) < entry.nbytes:
            raise StorageError("spilled frame is truncated")
        return memory


def _layout(frame: Frame) -> tuple[list[_Field], list[npt.NDArray[Any]], int]:
    """Fields of a frame in memory, the arrays to copy there, and the total number of bytes."""
    fields: list[_Field] = []
    arrays: list[npt.NDArray[Any]] = []
    start = 0
    for name, item in frame.items():
        kind: type = np.ndarray
        if isinstance(item, (EncodedImage, str, bytes, bytearray, memoryview)):
            kind = type(item) if isinstance(item, (EncodedImage, str)) else bytes
            data = item.data if isinstance(item, EncodedImage) else item
            item = np.frombuffer(data.encode() if isinstance(data, str) else bytes(data), np.uint8)
        array = np.asarray(item)
        stop = start + array.nbytes
        fields.append(_Field(name, start, stop, kind, array.dtype, array.shape))
        arrays.append(array)
        start = -(-stop // _ALIGNMENT) * _ALIGNMENT
    return fields, arrays, start


class FrameBuffers:
    """Pool of memory for frames: fresh memory costs several times as long as the copy itself.

    Thread-safe. At most `limit` bytes are free at a time.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._free: list[npt.NDArray[np.uint8]] = []
        self._free_bytes = 0

    def take(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Memory of at least `nbytes`, and at most a quarter more."""
        with self._lock:
            for number, buffer in enumerate(self._free):
                if nbytes <= buffer.nbytes <= nbytes * 1.25:
                    self._free_bytes -= buffer.nbytes
                    return self._free.pop(number)
        return np.empty(nbytes, np.uint8)

    def give(self, buffer: npt.NDArray[np.uint8]) -> None:
        """Return memory to the pool."""
        with self._lock:
            self._free.append(buffer)
            self._free_bytes += buffer.nbytes
            while self._free_bytes > self._limit or len(self._free) > _MAX_FREE:
                self._free_bytes -= self._free.pop(0).nbytes
