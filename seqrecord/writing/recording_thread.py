"""The thread of a recorder: a queue of frames, bounded in memory, and the writer of its items."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from seqrecord.errors import DestinationError, FormatError, QueueFullError, SeqRecordError
from seqrecord.processes.threads import start
from seqrecord.schema import Frame
from seqrecord.writing.values import copied_value, nbytes_of
from seqrecord.writing.writer import EpisodeWriter, SeqRecordWriter

_ITEM_BYTES = 1024  # overhead per frame
_POLL_SECONDS = 0.1
_FLUSH_AT = 0.5  # share of `flush_seconds` between flushes; waiting and the flush take time too


@dataclass(eq=False)
class _QueuedFrame:
    """A copy of a frame."""

    frame: Frame
    nbytes: int


class QueueCall:
    """A function call between frames; `done` is set afterwards."""

    def __init__(self, do: Callable[[], object]) -> None:
        self.do = do
        self.done = threading.Event()


class RecordingThread:
    """Writes and flushes frames in a thread, in the order of `put`, which does not wait.

    At most `limit` bytes of frames wait in memory. `begin`, `end`, `discard` and `stop` are called
    through the queue, see `call`. The thread keeps no reference to its recorder.
    """

    def __init__(self, writer: SeqRecordWriter, limit: int, flush_seconds: float) -> None:
        self.written_frames = 0
        self.durable_frames = 0  # flushed frames among `written_frames`
        self.queued_frames = self.queued_bytes = 0
        self._writer = writer
        self._limit = limit
        self._flush_seconds = flush_seconds
        self._condition = threading.Condition()
        self._items: deque[_QueuedFrame | QueueCall] = deque()
        self._failure: BaseException | None = None
        self._is_stopped = False
        self._episode: EpisodeWriter | None = None
        self._flush_at: float | None = None  # `None` without unflushed frames
        self._thread = threading.Thread(target=self._run, name="seqrecord-recorder", daemon=True)
        start(self._thread)

    # Called by the recorder.

    def put(self, frame: Frame) -> None:
        """Copy a frame into the queue.

        Raises `QueueFullError` if there is no room, and `DestinationError` after a failure.
        """
        nbytes = _ITEM_BYTES + sum(map(nbytes_of, frame.values()))
        with self._condition:
            self.check()
            if self.queued_bytes + nbytes > self._limit:
                raise QueueFullError(
                    "queue is full, and the frame was not recorded: frames arrive faster than they "
                    "are written; choose faster codecs, such as `fast`, or a larger queue_size",
                    expected=f"{nbytes} bytes free of {self._limit}",
                    got=f"{self._limit - self.queued_bytes} free",
                )
        copied = {name: copied_value(item) for name, item in frame.items()}
        with self._condition:
            if self._failure is None:  # else the next call raises
                self._items.append(_QueuedFrame(copied, nbytes))
                self.queued_frames += 1
                self.queued_bytes += nbytes
                self._condition.notify_all()

    def call(self, function: Callable[[], object], *, drop_frames: bool = False) -> QueueCall:
        """Call a function after the frames so far; `drop_frames` drops those since the last call.

        Raises `DestinationError` after a failure.
        """
        call = QueueCall(function)
        with self._condition:
            self.check()
            while drop_frames and self._items and isinstance(last := self._items[-1], _QueuedFrame):
                self._items.pop()
                self.queued_frames -= 1
                self.queued_bytes -= last.nbytes
            self._items.append(call)
            self._condition.notify_all()
        return call

    def wait_for(self, call: QueueCall) -> None:
        """Wait until a call is done; raises `DestinationError` after a failure."""
        while not call.done.wait(_POLL_SECONDS):
            self.check()

    def check(self) -> None:
        """Raise `DestinationError` after a failure."""
        if (error := self._failure) is not None:
            why = getattr(error, "message", None) or repr(error)
            raise DestinationError(
                f"recording failed and stopped ({why}); complete episodes are kept: continue with "
                "resume (--resume)",
                file=getattr(error, "file", None),
            ) from error

    def fail(self, error: BaseException) -> None:
        """Drop all frames and end the thread; `put` raises a `DestinationError` from now on."""
        with self._condition:
            self._failure = self._failure or error
            self._items.clear()
            self.queued_frames = self.queued_bytes = 0
            self._condition.notify_all()

    def join(self) -> None:
        """Wait for the end of the thread, after `stop` or `fail`."""
        self._thread.join()

    # Called by the thread.

    def begin(self, key: str, metadata: Mapping[str, Any], fps: float | None) -> None:
        """Begin an episode."""
        self._episode = self._writer.episode(key, metadata=metadata, fps=fps)

    def end(self, metadata: Mapping[str, Any] | None = None) -> None:
        """End the episode, with these entries in addition; drop it if it has no frames."""
        episode = self._ended()
        if episode.num_frames:
            try:
                episode.close(metadata)
            except FormatError:  # too long together
                episode.close()
            self.durable_frames = self.written_frames
        else:
            episode.abort()

    def discard(self) -> None:
        """Drop the episode."""
        episode = self._ended()
        episode.discard()
        self.written_frames -= episode.num_frames
        self.durable_frames = self.written_frames

    def stop(self) -> None:
        """End the thread; the caller closes the writer."""
        self._is_stopped = True

    def _run(self) -> None:
        try:
            while not self._is_stopped and self._failure is None:
                self._step()
            if not self._is_stopped:
                self._writer.abort()
        except BaseException as error:
            self.fail(error)
            with contextlib.suppress(SeqRecordError):  # the same error again
                self._writer.abort()

    def _step(self) -> None:
        """Take one item, and flush if it is time."""
        due = self._flush_at
        seconds = None if due is None else max(0.0, due - time.monotonic())
        with self._condition:
            self._condition.wait_for(lambda: self._items or self._failure is not None, seconds)
            item = self._items.popleft() if self._items else None
            if isinstance(item, _QueuedFrame):
                self.queued_frames -= 1
        if isinstance(item, QueueCall):
            item.do()
            item.done.set()
        elif item is not None:
            self._write(item)
        if self._flush_at is not None and time.monotonic() >= self._flush_at:
            self._begun().flush()
            self._flush_at, self.durable_frames = None, self.written_frames

    def _write(self, item: _QueuedFrame) -> None:
        if self._flush_at is None:  # not since `put`: frames that waited long share a flush
            self._flush_at = time.monotonic() + _FLUSH_AT * self._flush_seconds
        self._begun().append(item.frame)
        self.written_frames += 1
        with self._condition:
            if self._failure is None:
                self.queued_bytes -= item.nbytes

    def _begun(self) -> EpisodeWriter:
        assert self._episode is not None, "no episode has begun"
        return self._episode

    def _ended(self) -> EpisodeWriter:
        episode, self._episode, self._flush_at = self._begun(), None, None
        return episode
