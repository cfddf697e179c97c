"""SeqRecordRecorder: records episodes beside a loop that must not wait."""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, get_args

import numpy as np

from seqrecord.errors import DestinationError, FrameError, SchemaError
from seqrecord.format.manifest import Manifest
from seqrecord.format.text import check_key, encode_metadata
from seqrecord.schema import EncodedImage, Frame, Schema
from seqrecord.storage import StorageLike
from seqrecord.units import parse_size
from seqrecord.writing.destination import WriteMode
from seqrecord.writing.frame_queue import FrameQueue, WhenFull
from seqrecord.writing.recording import Begin, Discard, End, Recording, Stop, Word
from seqrecord.writing.stored_schema import (
    DEFAULT_RECORD_BYTES,
    Codecs,
    Described,
    check_fps,
    infer_schema,
)
from seqrecord.writing.writer import SeqRecordWriter

__all__ = ["DEFAULT_QUEUE_BYTES", "RecorderStats", "RecordingEpisode", "SeqRecordRecorder"]

DEFAULT_QUEUE_BYTES = "1GiB"
_POLL_SECONDS = 0.1

_logger = logging.getLogger("seqrecord")


@dataclass(frozen=True)
class RecorderStats:
    """What a recorder has done so far, in frames and bytes.

    A kill keeps `safe_frames` of the `written_frames`. `queued_frames` wait to be written, of them
    `queued_bytes` in memory and `spilled_bytes` on the disk. `total_spilled_frames` have been on
    the disk at some time. `dropped_frames` found the queue full and are lost. Frames of episodes
    that were discarded are counted in `discarded_frames` alone.
    """

    recorded_frames: int  # that `append` took
    written_frames: int
    safe_frames: int
    queued_frames: int
    queued_bytes: int
    spilled_bytes: int
    total_spilled_frames: int
    dropped_frames: int
    discarded_frames: int


class SeqRecordRecorder:
    """Writes a dataset beside a control loop: `append` copies a frame and returns.

    A thread encodes and writes the frames, in order. Those that wait for it are in a queue of
    `queue_size` bytes; where they come faster than they are written, `when_full` says what happens.
    A context manager; the dataset exists when the `with` block has ended, as with
    `SeqRecordWriter`, whose other arguments these are.

    A kill at any moment, `kill -9` too, keeps each episode that has ended, and of the open one what
    came up to the last flush: `mode="resume"` brings them in. A frame is flushed within
    `flush_seconds` of its `append`. To keep to that where encoding takes longer than frames take to
    come, those that have waited are encoded quickly, without loss, into more bytes. Frames that
    wait in the queue or were spilled are lost by a kill. Older ones wait only where the storage
    takes less than comes, or where video cannot be encoded as fast.

    Args:
        destination: local path or URL of the dataset.
        schema: the features; by default those of the first frame.
        fps: frames a second of the episodes that say nothing of it.
        queue_size: bytes, or text such as "1GiB", of frames that wait in memory.
        when_full: `spill` writes frames to a local disk when half of the queue is used, and reads
            them when their turn comes; `raise` and `drop` keep to memory. Where there is no room,
            `append` raises `QueueFullError`, and with `drop` counts the frame and goes on: the
            episode then has a gap there.
        spill_folder: where frames are spilled; by default the system's folder for temporary files.
        flush_seconds: how often what was recorded is made safe from a kill; each flush ends a
            chunk, so that fewer frames than usual are in one.

    Raises what `SeqRecordWriter` raises, and `DestinationError` for a size or an interval that is
    none.
    """

    def __init__(
        self,
        destination: StorageLike,
        *,
        schema: Schema | None = None,
        features: Described | None = None,
        codecs: Codecs | None = None,
        fps: float | None = None,
        queue_size: int | str = DEFAULT_QUEUE_BYTES,
        when_full: WhenFull = "spill",
        spill_folder: str | PathLike[str] | None = None,
        flush_seconds: float = 1.0,
        chunk_frames: int | None = None,
        record_bytes: int | str = DEFAULT_RECORD_BYTES,
        statistics: bool = True,
        mode: WriteMode = "create",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        limit = _check_arguments(queue_size, when_full, flush_seconds)
        writer = SeqRecordWriter(
            destination,
            schema=schema,
            features=features,
            codecs=codecs,
            fps=fps,
            chunk_frames=chunk_frames,
            record_bytes=record_bytes,
            statistics=statistics,
            mode=mode,
            storage_options=storage_options,
        )
        try:
            self._queue = FrameQueue(limit, when_full, spill_folder)
        except BaseException:
            writer.abort()
            raise
        self._schema = writer.schema
        self._keys = set(writer.finished_keys)
        self._episode: RecordingEpisode | None = None
        self._recorded = self._discarded = 0
        self._is_closed = False
        self._writer = writer
        self._work = Recording(writer, self._queue, flush_seconds)
        self._thread = threading.Thread(
            target=self._work.run, name="seqrecord-recorder", daemon=True
        )
        self._thread.start()
        # A recorder that is forgotten leaves no thread; what it wrote stays for a resume.
        self._finalizer = weakref.finalize(self, _abandon, self._queue)
        self._finalizer.atexit = False

    def episode(
        self, key: str, *, metadata: Mapping[str, Any] | None = None, fps: float | None = None
    ) -> RecordingEpisode:
        """Start an episode; use it as a context manager and `append` its frames in order.

        Arguments and errors are those of `SeqRecordWriter.episode`.
        """
        self._check_open(key)
        if self._episode is not None:
            raise DestinationError(f"episode {self._episode.key} has not ended", episode=key)
        check_key(key)
        encode_metadata(dict(metadata or {}))
        fps = check_fps(fps)
        if key in self._keys:
            raise DestinationError("the episode is there already", episode=key)
        self._queue.tell(Begin(key, dict(metadata or {}), fps))
        self._keys.add(key)
        self._episode = RecordingEpisode(self, key)
        return self._episode

    def stats(self) -> RecorderStats:
        """What has been done so far. May be called from any thread, at any time."""
        queue = self._queue.stats
        return RecorderStats(
            recorded_frames=self._recorded,
            written_frames=self._work.written_frames,
            safe_frames=self._work.safe_frames,
            queued_frames=queue.queued_frames,
            queued_bytes=queue.queued_bytes,
            spilled_bytes=queue.spilled_bytes,
            total_spilled_frames=queue.total_spilled_frames,
            dropped_frames=queue.dropped_frames,
            discarded_frames=self._discarded,
        )

    def close(self) -> Manifest:
        """Write what waits, and commit the dataset. An episode that is open ends here.

        Raises what failed, and what `SeqRecordWriter.close` raises.
        """
        self._check_open(None)
        if self._episode is not None:
            self._episode.close(wait=False)
        word = Stop()
        try:
            self._queue.tell(word)
            self._wait_for(word)
        finally:
            self._stop()
        return self._writer.close()

    def abort(self) -> None:
        """Stop without a commit, and forget what waits; what was flushed stays for a resume."""
        if not self._is_closed:
            self._queue.fail(DestinationError("the recorder was stopped"))
            self._stop()

    def __enter__(self) -> SeqRecordRecorder:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._is_closed:
            return
        if error is None:
            self.close()
            return
        try:
            self.close()  # a recording is worth keeping, whatever ended it
        except Exception:
            _logger.exception("the recording could not be committed; go on with resume (--resume)")

    def _put(self, episode: RecordingEpisode, frame: Frame) -> bool:
        self._check_open(episode.key)
        if self._episode is not episode:
            raise DestinationError("the episode has ended", episode=episode.key)
        try:
            schema = self._schema
            if schema is None and frame:
                schema = infer_schema([frame])
            _check_frame(schema, frame)
        except SchemaError as error:
            raise error.located(episode=episode.key, frame=episode.num_frames) from error.__cause__
        self._schema = schema
        if not self._queue.put(frame):
            return False
        self._recorded += 1
        return True

    def _end(self, episode: RecordingEpisode, wait: bool) -> None:
        if self._episode is not episode:
            return
        self._check_open(episode.key)
        self._episode = None
        word = End()
        self._queue.tell(word)
        if wait:
            self._wait_for(word)

    def _discard(self, episode: RecordingEpisode, wait: bool) -> None:
        self._check_open(episode.key)
        if self._episode is not episode:
            raise DestinationError("the episode has ended", episode=episode.key)
        self._episode = None
        self._keys.remove(episode.key)
        self._recorded -= episode.num_frames
        self._discarded += episode.num_frames
        word = Discard()
        self._queue.discard(word)
        if wait:
            self._wait_for(word)

    def _wait_for(self, word: Word) -> None:
        while not word.done.wait(_POLL_SECONDS):
            self._queue.check()

    def _stop(self) -> None:
        self._is_closed = True
        self._finalizer.detach()
        self._queue.close()
        self._thread.join()

    def _check_open(self, key: str | None) -> None:
        if self._is_closed:
            raise DestinationError("the recorder is closed", episode=key)


class RecordingEpisode:
    """An episode that is being recorded.

    Leaving its `with` block ends it, by an error too: what was recorded is kept.
    """

    def __init__(self, recorder: SeqRecordRecorder, key: str) -> None:
        self.key = key
        self.num_frames = 0  # that were recorded
        self._recorder = recorder

    def append(self, frame: Frame) -> bool:
        """Record a frame: it is copied, and waits to be written. Whether it was not dropped.

        Raises `FrameError` for a frame that does not fit the features; then it is not recorded, and
        the episode goes on. Raises `QueueFullError` where there is no room, and `DestinationError`
        once writing has failed.
        """
        if self._recorder._put(self, frame):
            self.num_frames += 1
            return True
        return False

    def close(self, *, wait: bool = True) -> None:
        """End the episode. With `wait`, it is safe from a kill when this returns.

        An episode without frames is forgotten.
        """
        self._recorder._end(self, wait)

    def discard(self, *, wait: bool = False) -> None:
        """Throw the episode away: the take failed. Its key may be recorded again.

        Its frames that wait are dropped at once, and what was written of it is taken back: nothing
        of it is committed. With `wait`, no kill brings it back once this returns; else from a
        moment soon after. See `EpisodeWriter.discard`. Raises `DestinationError` for an episode
        that has ended; `seqrecord edit delete` deletes it later.
        """
        self._recorder._discard(self, wait)

    def __enter__(self) -> RecordingEpisode:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()


def _abandon(queue: FrameQueue) -> None:
    queue.fail(DestinationError("the recorder was not closed"))
    queue.close()


def _check_arguments(queue_size: int | str, when_full: str, flush_seconds: float) -> int:
    """The bytes of the queue."""
    try:
        limit = parse_size(queue_size)
    except ValueError as error:
        raise DestinationError(f"queue_size: {error}", got=repr(queue_size)[:100]) from None
    if when_full not in get_args(WhenFull):
        raise DestinationError(
            "no such when_full", expected="spill, raise or drop", got=repr(when_full)[:50]
        )
    if not 0 < flush_seconds < math.inf:
        raise DestinationError(
            "not a time between flushes", expected="seconds, more than 0", got=flush_seconds
        )
    return limit


def _check_frame(schema: Schema | None, frame: Frame) -> None:
    """Raise `FrameError` for a frame of which the writer would drop the whole episode."""
    if schema is None or not frame:
        raise FrameError("a frame without any feature")
    for name, item in frame.items():
        if name not in schema:
            raise FrameError(
                "a feature that the dataset does not have; pass a schema that names it",
                expected=f"some of {', '.join(schema)}",
                got=name,
            )
        if isinstance(item, (EncodedImage, str, bytes)):
            continue
        spec, array = schema[name], np.asarray(item)
        if array.dtype.newbyteorder("<") != spec.dtype or not spec.accepts(array.shape):
            raise FrameError(
                "an array does not fit its feature",
                feature=name,
                expected=spec,
                got=f"{array.dtype} {list(array.shape)}",
            )
