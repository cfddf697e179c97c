"""The thread of a recorder: it takes frames from a queue and writes them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from typing import Any

from seqrecord.errors import SeqRecordError
from seqrecord.schema import Frame
from seqrecord.writing.frame_queue import Control, FrameQueue
from seqrecord.writing.writer import EpisodeWriter, SeqRecordWriter

__all__ = ["Begin", "Discard", "End", "Recording", "Stop", "Word"]

# A flush begins so early that it ends in time, if it takes no longer than those before.
_FIRST_SHARE = 0.15  # of `flush_seconds`, that the first one is taken to last
_MARGIN = 2.0
_LEAST_SHARE = 0.2
_FORGETS = 0.9


class Word(Control):
    """To the thread; it says when it has done what it was told."""

    def __init__(self) -> None:
        self.done = threading.Event()


class Begin(Word):
    def __init__(self, key: str, metadata: Mapping[str, Any], fps: float | None) -> None:
        super().__init__()
        self.key, self.metadata, self.fps = key, metadata, fps


class End(Word):
    """The episode ends."""


class Discard(Word):
    """The episode is forgotten."""


class Stop(Word):
    """So does the thread."""


class Recording:
    """What the thread does: it takes frames from the queue and writes them.

    A frame is safe `flush_seconds` after it was taken, as far as flushes last as long as before.
    """

    def __init__(self, writer: SeqRecordWriter, queue: FrameQueue, flush_seconds: float) -> None:
        self.writer = writer
        self.written_frames = 0
        self.safe_frames = 0  # of those written
        self._queue = queue
        self._flush_seconds = flush_seconds
        self._flush_takes = flush_seconds * _FIRST_SHARE
        self._episode: EpisodeWriter | None = None
        self._due: float | None = None  # when the first frame that is not flushed becomes too old

    def run(self) -> None:
        """Until the queue says to stop, or something fails."""
        try:
            while not self._queue.is_over:
                if isinstance(self._step(), Stop):
                    return  # the writer is closed by who told it
            self.writer.abort()
        except BaseException as error:
            self._queue.fail(error)
            with contextlib.suppress(SeqRecordError):  # it would be the same once more
                self.writer.abort()

    def _step(self) -> Frame | Control | None:
        """Do the next thing, and return it."""
        seconds = None if self._due is None else max(0.0, self._due - time.monotonic())
        item = self._queue.take(seconds)
        if isinstance(item, Begin):
            self._episode = self.writer.episode(item.key, metadata=item.metadata, fps=item.fps)
        elif isinstance(item, End):
            self._end()
        elif isinstance(item, Discard):
            self._discard()
        elif isinstance(item, Control):
            pass
        elif item is not None:
            assert self._episode is not None, "a frame of no episode"
            self._episode.append(item)
            self.written_frames += 1
            if self._due is None:
                wait = self._flush_seconds - _MARGIN * self._flush_takes
                self._due = time.monotonic() + max(wait, self._flush_seconds * _LEAST_SHARE)
        if self._episode is not None and self._due is not None and time.monotonic() >= self._due:
            began = time.monotonic()
            self._episode.flush()
            self._due, self.safe_frames = None, self.written_frames
            self._flush_takes = max(time.monotonic() - began, self._flush_takes * _FORGETS)
        if isinstance(item, Word):
            item.done.set()
        return item

    def _discard(self) -> None:
        episode, self._episode, self._due = self._episode, None, None
        assert episode is not None, "nothing to discard"
        episode.discard()
        self.written_frames -= episode.num_frames
        self.safe_frames = self.written_frames

    def _end(self) -> None:
        episode, self._episode, self._due = self._episode, None, None
        assert episode is not None, "the end of no episode"
        if episode.num_frames:
            episode.close()
            self.safe_frames = self.written_frames
        else:
            episode.abort()
