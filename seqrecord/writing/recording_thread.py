"""The thread of a recorder: it takes frames from a queue and writes them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from seqrecord.errors import SeqRecordError
from seqrecord.schema import Frame
from seqrecord.writing.frame_queue import FrameQueue, QueueCall
from seqrecord.writing.writer import EpisodeWriter, SeqRecordWriter

# Shares of `flush_seconds`
_RESERVE = 0.3  # that a flush begins before the oldest frame is too old, or more: see _MARGIN
_LEAST = 0.1  # between two flushes: each takes time, and ends chunks
_FIRST = 0.25  # that the first flush is taken to last
_BUSY = 0.6  # of the time, that the storage takes: more bytes are of no use to it
_LATE = 0.15  # a frame that has waited for longer is encoded quickly

_MARGIN = 2.0  # times the longest time that an append or a flush took of late
_FORGETS = 0.9  # with each flush


class RecordingThread:
    """What the thread does: it takes frames from the queue and writes them; `begin`, `end`,
    `discard` and `stop` are tasks of the queue.

    A frame is safe from a kill `flush_seconds` after it was put into the queue, unless the storage
    takes much longer than before. Where frames have waited too long, because encoding takes longer
    than they take to come, they are encoded quickly, into more bytes, until none waits; but not
    where it is the storage that takes the time. `clock` is that of the queue, in seconds.
    """

    def __init__(
        self,
        writer: SeqRecordWriter,
        queue: FrameQueue,
        flush_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.written_frames = 0
        self.durable_frames = 0  # of those written
        self._writer = writer
        self._queue = queue
        self._clock = clock
        self._flush_seconds = flush_seconds
        self._takes = _FIRST * flush_seconds  # an append, or a flush from when it is due to its end
        self._is_stopped = False
        self._episode: EpisodeWriter | None = None
        self._oldest: float | None = None  # when the first frame that is not flushed was put
        self._flushed_at = clock()
        self._stored = 0.0  # seconds that the storage took since the last flush
        self._storing_share = 0.0  # of the time of late, that the storage took

    def run(self) -> None:
        """Until `stop`, or something fails."""
        try:
            while not self._queue.is_over:
                self.step()
                if self._is_stopped:
                    return  # the writer is closed by who told it
            self._writer.abort()
        except BaseException as error:
            self._queue.fail(error)
            with contextlib.suppress(SeqRecordError):  # it would be the same once more
                self._writer.abort()

    def step(self) -> None:
        """Do the next thing, and flush if it is time."""
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
        """An episode begins."""
        self._episode = self._writer.episode(key, metadata=metadata, fps=fps)

    def end(self) -> None:
        """The episode ends. One without frames is forgotten."""
        episode = self._ended()
        if episode.num_frames:
            episode.close()
            self.durable_frames = self.written_frames
        else:
            episode.abort()

    def discard(self) -> None:
        """The episode is forgotten."""
        episode = self._ended()
        episode.discard()
        self.written_frames -= episode.num_frames
        self.durable_frames = self.written_frames

    def stop(self) -> None:
        """So does the thread end."""
        self._is_stopped = True

    def _ended(self) -> EpisodeWriter:
        episode, self._episode, self._oldest = self._episode, None, None
        assert episode is not None, "no episode has begun"
        return episode

    def _append(self, frame: Frame) -> None:
        assert self._episode is not None, "a frame of no episode"
        put_at = self._queue.put_at
        began = self._clock()
        is_late = began - put_at > self._flush_seconds * _LATE
        with self._watched(self._episode):
            self._episode.append(frame, fast=is_late and self._storing_share < _BUSY)
            if self._episode.num_frames == 1:
                self._episode.fix_schema()  # or the first second's frames are encoded all at once
        self.written_frames += 1
        self._takes = max(self._takes, self._clock() - began)
        if self._oldest is None:
            self._oldest = put_at

    @property
    def _due(self) -> float | None:
        """When the frames that are not flushed are to be; `None` where there is none."""
        if self._oldest is None:
            return None
        reserve = max(_RESERVE * self._flush_seconds, _MARGIN * self._takes)
        safe_by = self._oldest + self._flush_seconds - reserve
        return max(safe_by, self._flushed_at + _LEAST * self._flush_seconds)

    def _flush(self, due: float) -> None:
        assert self._episode is not None, "a flush of no episode"
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
        """Note how much time the storage takes."""
        stored = episode.storing_seconds
        yield
        self._stored += episode.storing_seconds - stored
