"""The thread of a recorder: takes frames from a queue and writes them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from seqrecord.errors import FormatError, SeqRecordError
from seqrecord.schema import Frame
from seqrecord.writing.frame_queue import FrameQueue, QueueCall
from seqrecord.writing.writer import EpisodeWriter, SeqRecordWriter

# Shares of `flush_seconds`
_RESERVE = 0.3  # time before the deadline at which a flush begins, at least; see _MARGIN
_LEAST = 0.1  # between two flushes: each takes time, and ends chunks
_FIRST = 0.25  # assumed duration of the first flush
_LATE = 0.15  # frames that waited longer are encoded quickly

_BUSY = 0.6  # share of time in the storage, above which quick encoding would not help
_MARGIN = 2.0  # times the longest recent append or flush
_FORGETS = 0.9  # decay of that longest time, per flush


class RecordingThread:
    """Body of a recorder's thread: takes frames from the queue, writes and flushes them.

    `begin`, `end`, `discard` and `stop` are called through the queue. A frame is safe from a kill
    within `flush_seconds` of its `put`, unless the storage gets much slower. If encoding is slower
    than the frames, frames that waited too long are encoded quickly, into more bytes, until the
    queue is empty; not if the storage is the bottleneck. `clock` is the queue's clock, in seconds.
    """

    def __init__(
        self,
        writer: SeqRecordWriter,
        queue: FrameQueue,
        flush_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.written_frames = 0
        self.durable_frames = 0  # flushed frames among `written_frames`
        self._writer = writer
        self._queue = queue
        self._clock = clock
        self._flush_seconds = flush_seconds
        self._takes = _FIRST * flush_seconds  # recent longest append, or flush counted from due
        self._is_stopped = False
        self._episode: EpisodeWriter | None = None
        self._oldest: float | None = None  # time of `put` of the oldest unflushed frame
        self._flushed_at = clock()
        self._stored = 0.0  # seconds in the storage since the last flush
        self._storing_share = 0.0  # recent share of time in the storage

    def run(self) -> None:
        """Take and write until `stop` or an error."""
        try:
            while not self._queue.is_over:
                self.step()
                if self._is_stopped:
                    return  # the caller of `stop` closes the writer
            self._writer.abort()
        except BaseException as error:
            self._queue.fail(error)
            with contextlib.suppress(SeqRecordError):  # the same error again
                self._writer.abort()

    def step(self) -> None:
        """Take one item, and flush if it is time."""
        seconds = None if self._due is None else max(0.0, self._due - self._clock())
        item = self._queue.take(seconds)
        if isinstance(item, QueueCall):
            item.do()
        elif item is not None:
            self._append(item)
        if (due := self._due) is not None and self._clock() >= due:
            self._flush(due)
        if isinstance(item, QueueCall):
            item.done.set()

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
        """End the thread."""
        self._is_stopped = True

    def _ended(self) -> EpisodeWriter:
        episode, self._episode, self._oldest = self._episode, None, None
        assert episode is not None, "no episode has begun"
        return episode

    def _append(self, frame: Frame) -> None:
        assert self._episode is not None, "frame without an episode"
        put_at = self._queue.put_at
        began = self._clock()
        is_late = began - put_at > self._flush_seconds * _LATE
        with self._watched(self._episode):
            self._episode.append(frame, fast=is_late and self._storing_share < _BUSY)
            if self._episode.num_frames == 1:
                self._episode.fix_schema()  # else the first second's frames are encoded together
        self.written_frames += 1
        self._takes = max(self._takes, self._clock() - began)
        if self._oldest is None:
            self._oldest = put_at

    @property
    def _due(self) -> float | None:
        """Time of the next flush; `None` without unflushed frames."""
        if self._oldest is None:
            return None
        reserve = max(_RESERVE * self._flush_seconds, _MARGIN * self._takes)
        safe_by = self._oldest + self._flush_seconds - reserve
        return max(safe_by, self._flushed_at + _LEAST * self._flush_seconds)

    def _flush(self, due: float) -> None:
        assert self._episode is not None, "flush without an episode"
        with self._watched(self._episode):
            self._episode.flush()
        self._oldest, self.durable_frames = None, self.written_frames
        before, self._flushed_at = self._flushed_at, self._clock()
        share = self._stored / (self._flushed_at - before)
        self._storing_share, self._stored = (self._storing_share + share) / 2, 0.0
        took = min(self._flushed_at - due, self._flush_seconds)
        self._takes = max(took, self._takes * _FORGETS)

    @contextlib.contextmanager
    def _watched(self, episode: EpisodeWriter) -> Iterator[None]:
        """Count the time that the storage takes in this block."""
        stored = episode.storing_seconds
        yield
        self._stored += episode.storing_seconds - stored
