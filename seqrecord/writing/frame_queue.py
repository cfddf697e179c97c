"""A queue of frames that is bounded in bytes, and goes on on a local disk."""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from seqrecord.errors import DestinationError, QueueFullError, StorageError
from seqrecord.processes.threads import start
from seqrecord.schema import EncodedImage, Frame

__all__ = ["Control", "FrameBuffers", "FramePlan", "FrameQueue", "QueueStats", "WhenFull"]

WhenFull = Literal["spill", "raise", "drop"]

SEGMENT_BYTES = 32 << 20  # of frames that are written to one file
_SEGMENT_FRAMES = 1024
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


class Control:
    """What is not a frame: a word to whoever takes from the queue, who says when it is done."""

    def __init__(self) -> None:
        self.done = threading.Event()


@dataclass(eq=False)
class _Segment:
    """A file of frames that were spilled; it is removed with the last of them."""

    path: Path
    frames: int


@dataclass(eq=False)
class _Entry:
    number: int  # frames that were put before it
    put_at: float  # on the clock
    frame: PackedFrame
    segment: _Segment | None = None  # where the frame is, then `frame.memory` is empty
    offset: int = 0
    is_taken: bool = False

    @property
    def cost(self) -> int:
        return self.frame.nbytes + _ENTRY_BYTES


class FrameQueue:
    """Frames for another thread, in order. Putting one copies it, and waits for nothing.

    At most `limit` bytes of frames are in memory. With `when_full="spill"` a thread writes the
    newest frames to files in `folder` when half of that is used; they are removed as soon as they
    are read. Where memory is full all the same, since the disk takes less than comes, and with
    `raise`, putting raises `QueueFullError`; with `drop` the frame is counted and forgotten.
    """

    def __init__(
        self,
        limit: int,
        when_full: WhenFull,
        folder: str | PathLike[str] | None = None,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.put_at = 0.0  # when the frame that was taken last was put, on the clock
        self._clock = clock
        self._limit = limit
        self._segment_bytes = segment_bytes
        self._when_full = when_full
        self._pool = FrameBuffers(limit // 4)
        self._condition = threading.Condition()
        self._entries: deque[_Entry | Control] = deque()
        self._resident: deque[_Entry] = deque()  # frames in memory that may be spilled, by age
        self._bytes = 0
        self._frames = self._spilled_bytes = self._total_spilled = self._dropped = 0
        self._is_closed = False
        self._failure: BaseException | None = None
        self._spill_failure: OSError | None = None
        self._put = self._segments = 0
        self._taken: _Entry | None = None
        self._unneeded: deque[Path] = deque()  # files of frames that nobody needs
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._thread: threading.Thread | None = None
        if when_full == "spill":
            # The folder is made now: where it cannot be, that is known before a frame comes.
            try:
                self._folder = tempfile.TemporaryDirectory(
                    prefix="seqrecord-spill-", dir=folder, ignore_cleanup_errors=True
                )
            except OSError as error:
                raise DestinationError(
                    f"cannot spill there: {error.strerror}", file=str(folder or "")
                ) from error
            thread = threading.Thread(target=self._spill, name="seqrecord-spill", daemon=True)
            try:
                start(thread)
            except BaseException:
                self.close()
                raise
            self._thread = thread

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
        plan = FramePlan(frame)
        cost = plan.nbytes + _ENTRY_BYTES
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
            frame_in_memory = plan.pack(self._pool.take(plan.nbytes))
        except BaseException:
            with self._condition:
                self._bytes -= cost
            raise
        with self._condition:
            if self._failure is not None:
                return False
            entry = _Entry(self._put, now, frame_in_memory)
            self._put += 1
            self._frames += 1
            self._entries.append(entry)
            self._resident.append(entry)
            self._condition.notify_all()
        return True

    def tell(self, word: Control) -> None:
        """Put a word behind the frames so far. Raises what `fail` was told."""
        with self._condition:
            self.check()
            self._entries.append(word)
            self._condition.notify_all()

    def discard(self, word: Control) -> int:
        """Forget the frames since the word before, and put this one in their place.

        Returns how many were still waiting. Files are removed by who takes, not by the caller.
        """
        with self._condition:
            self.check()
            count = 0
            while self._entries and isinstance(entry := self._entries[-1], _Entry):
                self._entries.pop()
                count += 1
                entry.is_taken = True
                if self._resident and self._resident[-1] is entry:
                    self._resident.pop()
                self._free(entry)
            self._frames -= count
            self._entries.append(word)
            self._condition.notify_all()
        return count

    def take(self, seconds: float | None) -> Frame | Control | None:
        """The next frame or word; `None` if none has come for so long, or if the queue is over.

        One thread takes. A frame's arrays may be used until its next call.
        """
        self._give_back()
        with self._condition:
            self._condition.wait_for(lambda: self._entries or self.is_over, seconds)
            if not self._entries:
                return None
            entry = self._entries.popleft()
            if isinstance(entry, Control):
                return entry
            entry.is_taken = True
            self._frames -= 1
            if self._resident and self._resident[0] is entry:  # or it is on the disk, or on its way
                self._resident.popleft()
            self._taken, self.put_at = entry, entry.put_at
        return (entry.frame if entry.segment is None else self._read(entry)).unpack()

    def fail(self, error: BaseException) -> None:
        """Forget all frames; from now on putting one raises a `DestinationError` that says why."""
        with self._condition:
            self._failure = error
            for entry in self._entries:
                if isinstance(entry, _Entry):
                    entry.is_taken = True
            self._entries.clear()
            self._resident.clear()
            self._frames = self._bytes = self._spilled_bytes = 0
            self._condition.notify_all()

    def close(self) -> None:
        """End the thread that spills, and remove its files. Frames that wait are forgotten."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if self._folder is not None:
            self._folder.cleanup()

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

    def _give_back(self) -> None:
        """The frame that was taken before is done with."""
        entry, self._taken = self._taken, None
        if entry is not None:
            with self._condition:
                self._free(entry)
                self._condition.notify_all()
        while self._unneeded:
            self._unneeded.popleft().unlink(missing_ok=True)

    def _free(self, entry: _Entry) -> None:
        """Nobody needs a frame any more. The condition is held."""
        if entry.segment is not None:
            entry.segment.frames -= 1
            if not entry.segment.frames:
                self._unneeded.append(entry.segment.path)
        if self._failure is not None:
            return
        if entry.segment is None:
            self._bytes -= entry.cost
            self._pool.give(entry.frame.memory)
        else:
            self._spilled_bytes -= entry.frame.nbytes

    def _read(self, entry: _Entry) -> PackedFrame:
        """A frame that was spilled."""
        assert entry.segment is not None
        path, nbytes = entry.segment.path, entry.frame.nbytes
        memory = np.fromfile(path, np.uint8, nbytes, offset=entry.offset)
        if len(memory) < nbytes:
            raise StorageError("a spilled frame is cut short", file=str(path))
        return replace(entry.frame, memory=memory)

    def _spill(self) -> None:
        """The thread: keep memory below half of the limit."""
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._is_closed or self._newest_is_too_much)
                if self._is_closed:
                    return
                entries = self._newest()
                number = self._segments = self._segments + 1
            assert self._folder is not None
            path = Path(self._folder.name) / f"{number}.frames"
            try:
                _write(path, entries)
            except OSError as error:
                path.unlink(missing_ok=True)
                self._keep(entries, error)
                continue
            self._forget(entries, path)

    @property
    def _newest_is_too_much(self) -> bool:
        return self._bytes > self._limit // 2 and bool(self._resident)

    def _newest(self) -> list[_Entry]:
        """Frames of one segment, the newest first: they are needed last."""
        entries: list[_Entry] = []
        nbytes = 0
        while (
            self._resident
            and self._bytes - nbytes > self._limit // 2
            and nbytes < self._segment_bytes
            and len(entries) < _SEGMENT_FRAMES
        ):
            entries.append(self._resident.pop())
            nbytes += entries[-1].cost
        return entries

    def _forget(self, entries: list[_Entry], path: Path) -> None:
        """These frames are in a file now. Those that were taken meanwhile are not needed there."""
        free = []
        with self._condition:
            segment, offset = _Segment(path, 0), 0
            for entry in entries:
                if not entry.is_taken:
                    entry.segment, entry.offset = segment, offset
                    segment.frames += 1
                    self._bytes -= entry.cost
                    self._spilled_bytes += entry.frame.nbytes
                    self._total_spilled += 1
                    free.append(entry.frame.memory)
                    entry.frame = replace(entry.frame, memory=_NOTHING)
                offset += entry.frame.nbytes
            self._spill_failure = None
            self._condition.notify_all()
            is_needed = segment.frames > 0
        for memory in free:
            self._pool.give(memory)
        if not is_needed:
            path.unlink(missing_ok=True)

    def _keep(self, entries: list[_Entry], error: OSError) -> None:
        """These frames could not be written: they stay in memory, and the disk has a rest."""
        with self._condition:
            if self._spill_failure is None:
                _logger.warning("frames that wait to be recorded cannot be spilled: %s", error)
            self._spill_failure = error
            self._condition.notify_all()
            kept = [entry for entry in entries if not entry.is_taken]
            ordered = sorted([*kept, *self._resident], key=lambda entry: entry.number)
            self._resident = deque(ordered)
            self._condition.wait_for(lambda: self._is_closed, _RETRY_SECONDS)


def _write(path: Path, entries: list[_Entry]) -> None:
    with path.open("xb") as file:
        for entry in entries:
            file.write(entry.frame.memory[: entry.frame.nbytes].data)


@dataclass(frozen=True)
class _Field:
    """Where a feature lies in its frame's memory, and what it is."""

    name: str
    start: int
    stop: int
    kind: type  # ndarray, EncodedImage, str or bytes
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def value(self, data: npt.NDArray[np.uint8]) -> Any:
        memory = data[self.start : self.stop]
        if self.kind is np.ndarray:
            return memory.view(self.dtype).reshape(self.shape)
        item = memory.tobytes()
        if self.kind is EncodedImage:
            return EncodedImage(item)
        return item.decode() if self.kind is str else item


class FramePlan:
    """How a frame will lie in memory: `nbytes` of it are needed. Nothing is copied yet."""

    def __init__(self, frame: Frame) -> None:
        self._items: list[tuple[_Field, npt.NDArray[Any]]] = []
        at = 0
        for name, item in frame.items():
            kind: type = np.ndarray
            if isinstance(item, (EncodedImage, str, bytes, bytearray, memoryview)):
                kind = type(item) if isinstance(item, (EncodedImage, str)) else bytes
                data = item.data if isinstance(item, EncodedImage) else item
                data = data.encode() if isinstance(data, str) else bytes(data)
                array: npt.NDArray[Any] = np.frombuffer(data, np.uint8)
            else:
                array = np.asarray(item)
            field = _Field(name, at, at + array.nbytes, kind, array.dtype, array.shape)
            self._items.append((field, array))
            at += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        self.nbytes = at

    def pack(self, memory: npt.NDArray[np.uint8]) -> PackedFrame:
        """Copy the frame into memory of `nbytes` or more."""
        for field, array in self._items:
            target = memory[field.start : field.stop].view(field.dtype).reshape(field.shape)
            np.copyto(target, array)
        return PackedFrame(tuple(field for field, _ in self._items), memory, self.nbytes)


@dataclass(frozen=True, eq=False)
class PackedFrame:
    """A frame in the first `nbytes` of `memory`."""

    fields: tuple[_Field, ...]
    memory: npt.NDArray[np.uint8]
    nbytes: int

    def unpack(self) -> Frame:
        """The frame; its arrays are views on the memory."""
        return {field.name: field.value(self.memory) for field in self.fields}


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
