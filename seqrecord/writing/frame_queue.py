"""A queue of frames that is bounded in bytes, and goes on on a local disk."""

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
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from seqrecord.errors import DestinationError, QueueFullError, StorageError
from seqrecord.processes.threads import start
from seqrecord.schema import EncodedImage, Frame

WhenFull = Literal["spill", "raise", "drop"]

_BATCH_BYTES = 32 << 20  # of frames that are spilled at once
_BATCH_FRAMES = 1024
FILE_BYTES = 1 << 30  # from then on what is spilled goes into another file
_RETRY_SECONDS = 1.0  # after the disk took nothing more
_ENTRY_BYTES = 1024  # that a frame counts for beside its arrays

_ALIGNMENT = 64
_MAX_FREE = 64  # buffers that wait to be used again

_NOTHING = np.empty(0, np.uint8)

_logger = logging.getLogger("seqrecord")


@dataclass(frozen=True)
class QueueStats:
    """Frames and bytes that wait, in memory and on the disk, and what became of others."""

    queued_frames: int
    queued_bytes: int  # in memory
    spilled_bytes: int  # on the disk
    total_spilled_frames: int
    dropped_frames: int


class QueueCall:
    """What is not a frame: a call that is done by whoever takes from the queue."""

    def __init__(self, do: Callable[[], object]) -> None:
        self.do = do
        self.done = threading.Event()


@dataclass(frozen=True)
class _Field:
    """Where a feature lies in its frame's memory, and what it is."""

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
    """A frame that waits: in the first `nbytes` of `memory` or, if it was spilled, in a file."""

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
    """Frames for another thread, in order. Putting one copies it, and waits for nothing.

    At most `limit` bytes of frames are in memory. With `when_full="spill"` a thread writes the
    newest frames to files in `folder` when half of that is used. They have no names there, so that
    no kill leaves one, and each is gone when its frames are read. Where memory is full all the
    same, since the disk takes less than comes, and with `raise`, putting raises `QueueFullError`;
    with `drop` the frame is counted and forgotten.
    """

    def __init__(
        self,
        limit: int,
        when_full: WhenFull,
        folder: str | PathLike[str] | None = None,
        *,
        file_bytes: int = FILE_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.put_at = 0.0  # when the frame that was taken last was put, on the clock
        self._clock = clock
        self._limit = limit
        self._when_full = when_full
        self._folder, self._file_bytes = folder, file_bytes
        self._pool = FrameBuffers(limit // 4)
        self._condition = threading.Condition()
        self._entries: deque[_QueuedFrame | QueueCall] = deque()
        self._resident: deque[_QueuedFrame] = deque()  # in memory, not being spilled; oldest first
        self._bytes = 0
        self._frames = self._spilled_bytes = self._total_spilled = self._dropped = 0
        self._is_closed = False
        self._failure: BaseException | None = None
        self._spill_failure: OSError | None = None
        self._taken: _QueuedFrame | None = None
        self._discarded: list[_QueuedFrame] = []  # to close their files may take a while
        self._thread: threading.Thread | None = None
        if when_full == "spill":
            try:
                _SpillFile(folder)  # where there can be none, that is known now
            except OSError as error:
                raise DestinationError(
                    f"cannot spill there: {error.strerror}", file=str(folder or "")
                ) from error
            self._thread = threading.Thread(target=self._spill, name="seqrecord-spill", daemon=True)
            start(self._thread)

    @property
    def stats(self) -> QueueStats:
        with self._condition:
            return QueueStats(
                self._frames, self._bytes, self._spilled_bytes, self._total_spilled, self._dropped
            )

    def put(self, frame: Frame) -> bool:
        """Copy a frame into the queue; whether it is in it.

        Raises `QueueFullError`, and what `fail` was told.
        """
        fields, arrays, nbytes = _layout(frame)
        cost = nbytes + _ENTRY_BYTES
        with self._condition:
            self.check()
            now = self._clock()
            if self._bytes + cost > self._limit:
                if self._when_full == "drop":
                    self._dropped += 1
                    return False
                raise self._full(cost)
            self._bytes += cost  # before the copy, which may take a while
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
                return False
            entry = _QueuedFrame(now, fields, nbytes, memory)
            self._frames += 1
            self._entries.append(entry)
            self._resident.append(entry)
            self._condition.notify_all()
        return True

    def put_call(self, task: QueueCall) -> None:
        """Put a task behind the frames so far. Raises what `fail` was told."""
        with self._condition:
            self.check()
            self._entries.append(task)
            self._condition.notify_all()

    def discard(self, task: QueueCall) -> None:
        """Forget the frames since the task before, and put this one in their place."""
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
        """The next frame or task; `None` if none has come for so long, or if the queue is over.

        One thread takes. A frame's arrays may be used until its next call.
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
            if self._resident and self._resident[0] is entry:  # or it is on the disk, or on its way
                self._resident.popleft()
            self._taken, self.put_at = entry, entry.put_at
        memory = entry.memory if entry.file is None else entry.file.read(entry)
        return {field.name: field.value(memory) for field in entry.fields}

    def fail(self, error: BaseException) -> None:
        """Forget all frames; from now on putting one raises a `DestinationError` that says why."""
        with self._condition:
            self._failure = error
            self._forget_all()
            self._frames = self._bytes = self._spilled_bytes = 0
            self._condition.notify_all()

    def close(self) -> None:
        """End the thread that spills, and remove its files. Frames that wait are forgotten."""
        with self._condition:
            self._is_closed = True
            self._forget_all()
            self._condition.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes out of it."""
        return self._is_closed or self._failure is not None

    def check(self) -> None:
        """Raise what `fail` was told."""
        if self._failure is not None:
            error = self._failure
            why = getattr(error, "message", None) or repr(error)
            raise DestinationError(
                f"the recording failed, and nothing more is recorded ({why}); what was whole is "
                "kept: go on with resume (--resume)",
                file=getattr(error, "file", None),
            ) from error

    def _full(self, cost: int) -> QueueFullError:
        more = "" if self._spill_failure is None else f"; spilling failed: {self._spill_failure}"
        return QueueFullError(
            "frames come faster than they are written, and the queue is full" + more,
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
        """The frame that was taken before is done with."""
        entry, self._taken = self._taken, None
        if entry is not None:
            with self._condition:
                self._free(entry)
                self._condition.notify_all()
        self._discarded.clear()

    def _free(self, entry: _QueuedFrame) -> None:
        """Nobody needs a frame any more. The condition is held."""
        if self._failure is not None:
            return
        if entry.file is None:
            self._bytes -= entry.cost
            self._pool.give(entry.memory)
        else:
            self._spilled_bytes -= entry.nbytes

    def _spill(self) -> None:
        """The thread: keep memory below half of the limit.

        A file is gone with the last of its frames.
        """
        last: Callable[[], _SpillFile | None] = lambda: None  # noqa: E731 - or a weak reference
        end = 0  # of the file that was written last
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
        """Frames to spill at once, the newest first: they are needed last."""
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
        """These frames are in a file now. Those that were taken meanwhile are not needed there."""
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
        """Frames could not be written: they stay in memory, and the disk has a rest."""
        with self._condition:
            if self._spill_failure is None:
                _logger.warning("frames that wait to be recorded cannot be spilled: %s", error)
            self._spill_failure = error
            self._condition.notify_all()
            frames = (entry for entry in self._entries if isinstance(entry, _QueuedFrame))
            self._resident = deque(entry for entry in frames if entry.file is None)
            self._condition.wait_for(lambda: self._is_closed, _RETRY_SECONDS)


class _SpillFile:
    """A file without a name, which is gone when nobody refers to this any more."""

    def __init__(self, folder: str | PathLike[str] | None) -> None:
        file = tempfile.TemporaryFile(prefix="seqrecord-spill-", dir=folder)  # noqa: SIM115
        self._fd = file.fileno()
        weakref.finalize(self, file.close)

    def write(self, entries: Iterable[_QueuedFrame], offset: int) -> int:
        """Write frames, one after the other; where they end."""
        for entry in entries:
            data = entry.memory[: entry.nbytes].data
            while data:
                count = os.pwrite(self._fd, data, offset)
                data, offset = data[count:], offset + count
        return offset

    def read(self, entry: _QueuedFrame) -> npt.NDArray[np.uint8]:
        """A frame that was spilled here."""
        memory = np.empty(entry.nbytes, np.uint8)
        if os.preadv(self._fd, [memory.data], entry.offset) < entry.nbytes:
            raise StorageError("a spilled frame is cut short")
        return memory


def _layout(frame: Frame) -> tuple[list[_Field], list[npt.NDArray[Any]], int]:
    """How a frame will lie in memory, and the arrays that are copied there; bytes that it needs."""
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
    """Memory for frames, used again: touching fresh memory takes several times as long as copying.

    Safe to use from many threads. At most `limit` bytes wait to be used.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._free: list[npt.NDArray[np.uint8]] = []
        self._free_bytes = 0

    def take(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Memory of at least so many bytes, and at most a quarter more."""
        with self._lock:
            for number, buffer in enumerate(self._free):
                if nbytes <= buffer.nbytes <= nbytes * 1.25:
                    self._free_bytes -= buffer.nbytes
                    return self._free.pop(number)
        return np.empty(nbytes, np.uint8)

    def give(self, buffer: npt.NDArray[np.uint8]) -> None:
        """Nothing uses this memory any more."""
        with self._lock:
            self._free.append(buffer)
            self._free_bytes += buffer.nbytes
            while self._free_bytes > self._limit or len(self._free) > _MAX_FREE:
                self._free_bytes -= self._free.pop(0).nbytes
