"""SeqRecordRecorder: records episodes beside a control loop that must not wait."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Literal

import numpy as np

from seqrecord.errors import (
    DestinationError,
    FormatError,
    MissingPackageError,
    QueueFullError,
    SchemaError,
    SeqRecordError,
    located,
)
from seqrecord.store.format.manifest import Manifest
from seqrecord.store.format.text import (
    MEASURED_FPS,
    check_key,
    encode_metadata,
    metadata_entries,
    parse_metadata,
)
from seqrecord.store.format.time_spans import CLOCKS, timestamp_features
from seqrecord.store.processes.exclusive import Exclusive, exclusive
from seqrecord.store.processes.threads import start
from seqrecord.store.schema import Block, Frame, Schema
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.opening import StorageLike
from seqrecord.store.storage.url import parse_location
from seqrecord.store.text import repr_of
from seqrecord.store.units import is_number, parse_size
from seqrecord.store.writing.destination import WriteMode
from seqrecord.store.writing.record_file import check_names, check_value
from seqrecord.store.writing.stored_schema import (
    Codecs,
    FeatureInfo,
    check_descriptions,
    check_fps,
    check_schema,
    infer_schema,
)
from seqrecord.store.writing.values import copied_value, nbytes_of, plain_frame
from seqrecord.store.writing.writer import STAMP, EpisodeWriter, SeqRecordWriter, expect_stamps
from seqrecord.video.config import VIDEO_CODECS
from seqrecord.video.packages import pyav

DEFAULT_QUEUE_BYTES = "1GiB"
[_STAMP] = STAMP
_SLOW_STEP = 1.05  # a longer step, in steps of the fps, is reported
_FRAME_BYTES = 1024  # overhead per queued frame
# Share of `flush_seconds` between flushes: waiting and the flush take time too.
# tests/tools/test_recorder.py::test_frames_are_flushed_after_half_of_the_time
_FLUSH_SHARE = 0.5
_Clock = Literal["append", "frames", "none"]  # which times frames have

_logger = logging.getLogger("seqrecord")


@dataclass(frozen=True)
class RecorderStats:
    """Counters of a recorder, in frames and bytes.

    A kill keeps the first `durable_frames` of the `written_frames`. `queued_frames` wait to be
    written, in `queued_bytes` of memory. Frames of discarded episodes only count as
    `discarded_frames`.
    """

    recorded_frames: int  # that `append` took
    written_frames: int
    durable_frames: int
    queued_frames: int
    queued_bytes: int
    discarded_frames: int


class SeqRecordRecorder:
    """Writes a dataset beside a control loop: `append` copies a frame and returns.

    A thread encodes and writes the frames, in order; waiting frames are in a queue of `queue_size`
    bytes. A context manager: the dataset exists after the `with` block, as with `SeqRecordWriter`.

    After a kill at any moment, also `kill -9`, `mode="resume"` recovers each ended episode, and the
    open episode up to its last flush. A frame is flushed within `flush_seconds` of its `append`,
    unless the encoding or the storage is slower than the frames: then they queue up, and a kill
    loses queued frames.

    Args:
        destination: a folder on a local disk; `seqrecord merge FOLDER -o URL` uploads it later.
        schema: the features; by default the features of the first frame.
        fps: frames per second of episodes without their own. If an episode's frames were appended
            more slowly, by more than 5 % in the median, its end logs a warning and stores the rate
            as `measured_fps` in its metadata. Timestamps remove the fps as in `SeqRecordWriter`.
        timestamps: store the time of each `append`, in seconds of `time.monotonic`, in the float64
            feature `timestamp`; not with `schema`, and not if the first frame has a timestamp: a
            feature of kind `timestamp`, or named `timestamp` or `log_time`.
        queue_size: limit of queued frames in memory: bytes, or text such as "1GiB". If it is
            reached, `append` raises `QueueFullError` and does not record the frame.
        flush_seconds: time between flushes. Each flush ends a chunk, so chunks get shorter.
        features: as for `SeqRecordWriter`.
        codecs: as for `SeqRecordWriter`.
        chunk_frames: as for `SeqRecordWriter`.
        max_file_size: as for `SeqRecordWriter`.
        statistics: as for `SeqRecordWriter`.
        mode: as for `SeqRecordWriter`.
        storage_options: as for `SeqRecordWriter`.

    Raises the errors of `SeqRecordWriter`, and `DestinationError` for a URL and for an invalid size
    or interval.

    Example:
        with seqrecord.SeqRecordRecorder("demos/", fps=30) as recorder:
            with recorder.episode("demo/000", metadata={"task": "stack"}) as episode:
                for number in range(90):
                    episode.append({"state": np.full(7, number, np.float32)})
        print(recorder.stats().written_frames)
    """

    def __init__(
        self,
        destination: StorageLike,
        *,
        schema: Schema | None = None,
        features: FeatureInfo | None = None,
        codecs: Codecs | None = None,
        fps: float | None = None,
        timestamps: bool = True,
        queue_size: int | str = DEFAULT_QUEUE_BYTES,
        flush_seconds: float = 1.0,
        chunk_frames: int | None = None,
        max_file_size: int | str | None = None,
        statistics: bool = True,
        mode: WriteMode = "create",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        limit = _check_arguments(queue_size, flush_seconds)
        _check_local(destination)
        check_schema(schema)
        _load_modules((codecs, schema and [spec.codec for spec in schema.values()]))
        writer = SeqRecordWriter(
            destination,
            schema=schema,
            features=features,
            codecs=codecs,
            fps=fps,
            chunk_frames=chunk_frames,
            max_file_size=max_file_size,
            statistics=statistics,
            mode=mode,
            storage_options=storage_options,
        )
        try:
            self._work = _RecordingThread(writer, limit, flush_seconds)
        except BaseException:
            writer.abort()
            raise
        self._exclusive = Exclusive("recorder", writer.url)
        self._writer = writer
        self._feature_info = check_descriptions(features)
        self._fps = fps
        self._schema = writer.schema  # from the first frame on
        self._stamps = timestamps and schema is None
        self._clock: _Clock | None = None  # from the first frame on
        self._keys = set(writer.completed_episodes)
        self._episode: RecordingEpisode | None = None  # the open one
        self._recorded = self._discarded = 0
        self._is_closed = False
        # A recorder without references leaves no thread; written frames are kept for a resume.
        # tests/tools/test_recorder.py::test_an_unclosed_recorder_leaves_no_thread
        self._finalizer = weakref.finalize(self, _abandon, self._work, os.getpid())
        self._finalizer.atexit = False

    @exclusive
    def episode(
        self, key: str, *, metadata: Mapping[str, Any] | None = None, fps: float | None = None
    ) -> RecordingEpisode:
        """Start an episode; use it as a context manager and `append` its frames in order.

        Arguments and errors as for `SeqRecordWriter.episode`.
        """
        self._check_open(key)
        if self._episode is not None:
            raise DestinationError(f"episode {self._episode.key} has not ended", episode=key)
        check_key(key)
        with located(FormatError, episode=key):
            # As it is now: the thread may begin the episode later.
            entries = parse_metadata(encode_metadata(metadata_entries(metadata)))
        fps = check_fps(fps)
        if key in self._keys:
            raise DestinationError(
                "episode exists already; choose another key, or delete the episode with "
                "`seqrecord edit delete`",
                episode=key,
            )
        self._work.call(partial(self._work.begin, key, entries, fps))
        self._keys.add(key)
        self._episode = RecordingEpisode(self, key, fps or self._fps)
        return self._episode

    def stats(self) -> RecorderStats:
        """Current counters. May be called from any thread, at any time."""
        self._exclusive.check_process()
        work = self._work
        return RecorderStats(
            recorded_frames=self._recorded,
            written_frames=work.written_frames,
            durable_frames=work.durable_frames,
            queued_frames=work.queued_frames,
            queued_bytes=work.queued_bytes,
            discarded_frames=self._discarded,
        )

    @exclusive
    def close(self) -> Manifest:
        """Write all queued frames and commit the dataset. An open episode ends here.

        Raises the error of the recording thread, if any, and the errors of `SeqRecordWriter.close`.
        """
        self._check_open(None)
        if self._episode is not None:
            self._episode.close(wait=False)
        try:
            self._work.wait_for(self._work.call(self._work.stop))
        finally:
            self._stop()
        return self._writer.close()

    @exclusive
    def abort(self) -> None:
        """Stop without a commit, and drop queued frames; flushed frames are kept for a resume."""
        if not self._is_closed:
            self._stop()

    def __reduce__(self) -> tuple[object, ...]:
        return self._exclusive.__reduce__()

    def __enter__(self) -> SeqRecordRecorder:
        self._exclusive.check_process()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._is_closed or (error is not None and not self._exclusive.is_own):
            return
        if error is None:
            self.close()
            return
        try:
            self.close()  # keep the recording after an error too
        except Exception:
            _logger.exception("recording could not be committed; continue with resume (--resume)")

    def _stop(self) -> None:
        self._is_closed = True
        self._finalizer.detach()
        self._work.fail(DestinationError("the recorder was stopped"))
        self._work.join()

    def _check_open(self, key: str | None) -> None:
        if self._is_closed:
            raise DestinationError("the recorder is closed", episode=key)

    def _clock_for(self, frame: Frame) -> _Clock:
        """The frames' clock; the recorder's first frame decides."""
        if self._clock is not None:
            return self._clock
        schema = self._schema or infer_schema([frame], self._feature_info)
        clocks = {*timestamp_features(schema)} | (schema.keys() & {*CLOCKS})
        is_free = self._schema is None and not clocks
        if clocks == {_STAMP} and _STAMP not in frame:  # perhaps of an earlier recorder
            spec = schema[_STAMP]
            form = spec.dtype, spec.shape, spec.kind, spec.unit
            is_free = form == (np.dtype("f8"), (), "timestamp", "s")
        if self._stamps and is_free:
            return "append"
        return "frames" if clocks else "none"


class RecordingEpisode:
    """An episode that is being recorded.

    Leaving its `with` block ends it, also after an error: recorded frames are kept.
    """

    def __init__(self, recorder: SeqRecordRecorder, key: str, fps: float | None) -> None:
        self.key = key
        self.num_frames = 0
        self._fps = fps
        self._times = array("d")  # of `append`, in seconds
        self._recorder = recorder
        self._exclusive = recorder._exclusive

    @exclusive
    def append(self, frame: Frame) -> None:
        """Copy a frame into the queue.

        Raises `FrameError` for a frame that does not fit the features; it is not recorded, and the
        episode continues. Raises `QueueFullError` if there is no room, and `DestinationError` after
        an error of the recording thread.
        """
        now = time.monotonic()
        recorder = self._check_current()
        feature_info = recorder._feature_info
        with located(SchemaError, episode=self.key, frame=self.num_frames):
            Block.of(frame := plain_frame(frame))  # refuses None
            if (clock := recorder._clock_for(frame)) == "append":
                frame = {**frame, _STAMP: np.float64(now)}
                feature_info = {**(feature_info or {}), **STAMP}
            schema = recorder._schema or infer_schema([frame], feature_info)
            check_names(schema, frame)
            for name, item in frame.items():  # or the writer would drop the whole episode later
                check_value(schema[name], item)
        if recorder._clock is None and clock == "append":
            expect_stamps(recorder._writer)
        recorder._schema, recorder._clock = schema, clock
        recorder._work.put(frame)
        recorder._recorded += 1
        self.num_frames += 1
        self._times.append(now)

    @exclusive
    def close(self, *, wait: bool = True) -> None:
        """End the episode. With `wait`, it is safe from a kill when this returns.

        An episode without frames is dropped, and its key is free again.
        """
        recorder = self._recorder
        if recorder._episode is self:
            recorder._check_open(self.key)
            recorder._episode = None
            if not self.num_frames:
                recorder._keys.remove(self.key)
            call = recorder._work.call(partial(recorder._work.end, self._slow_rate()))
            if wait:
                recorder._work.wait_for(call)

    @exclusive
    def discard(self, *, wait: bool = False) -> None:
        """Drop the episode, for example after a failed take. Its key may be recorded again.

        Queued frames are dropped at once, written frames are removed, and nothing is committed.
        With `wait`, a kill after the return recovers nothing of it; otherwise from a moment soon
        after. See `EpisodeWriter.discard`. Raises `DestinationError` for an ended episode; delete
        that with `seqrecord edit delete`.
        """
        recorder = self._check_current()
        recorder._episode = None
        recorder._keys.remove(self.key)
        recorder._recorded -= self.num_frames
        recorder._discarded += self.num_frames
        call = recorder._work.call(recorder._work.discard, drop_frames=True)
        if wait:
            recorder._work.wait_for(call)

    def __enter__(self) -> RecordingEpisode:
        self._exclusive.check_process()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or self._exclusive.is_own:
            self.close()

    def _slow_rate(self) -> dict[str, float]:
        """The measured rate for the metadata, if the frames came more slowly than their fps.

        Faster frames mean nothing: replays, and frames that were collected first.
        """
        if self._fps is None or self._recorder._clock == "frames" or len(self._times) < 2:
            return {}
        step = float(np.median(np.diff(np.frombuffer(self._times))))
        if step <= _SLOW_STEP / self._fps:
            return {}
        rate = float(f"{1 / step:.4g}")
        _logger.warning(
            "%s: episode %s was recorded at %g frames per second (median), its fps is %g; set the "
            "fps to the rate of the loop",
            *(self._recorder._writer.url, self.key, rate, self._fps),
        )
        return {MEASURED_FPS: rate}

    def _check_current(self) -> SeqRecordRecorder:
        self._recorder._check_open(self.key)
        if self._recorder._episode is not self:
            raise DestinationError("the episode has ended", episode=self.key)
        return self._recorder


def _load_modules(codecs: object) -> None:
    """Import what the first frames and their codecs need.

    An import can stop all threads for 0.3 s. In the control loop, frames would come late by that.
    """
    # tests/tools/test_recorder.py::test_codecs_are_imported_before_the_loop
    for name in ("numpy.ma", "numpy.random"):  # which NumPy imports late
        import_module(name)
    names = repr(codecs)
    with contextlib.suppress(MissingPackageError):  # the writer reports it with its feature
        if any(name in names for name in VIDEO_CODECS):
            pyav()
            from seqrecord.video import encoding, group  # noqa: F401 - late, for the same reason
        if any(name in names for name in ("png", "jpeg")):
            import_module("PIL.Image").preinit()


@dataclass(eq=False)
class _Call:
    """A call in the thread; `nbytes` is the size of the frame that it writes, 0 for other calls."""

    do: Callable[[], object]
    nbytes: int = 0
    is_done: bool = False


class _RecordingThread:
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
        self._calls: deque[_Call] = deque()
        self._failure: BaseException | None = None
        self._is_stopped = False
        self._episode: EpisodeWriter | None = None
        self._flush_time: float | None = None  # `None` without unflushed frames
        self._thread = threading.Thread(target=self._run, name="seqrecord-recorder", daemon=True)
        start(self._thread)

    # Called by the recorder.

    def put(self, frame: Frame) -> None:
        """Copy a frame into the queue.

        Raises `QueueFullError` if there is no room, and `DestinationError` after a failure.
        """
        nbytes = _FRAME_BYTES + sum(map(nbytes_of, frame.values()))
        with self._condition:
            self.check()
            if self.queued_bytes + nbytes > self._limit:
                raise QueueFullError(
                    "queue is full, and the frame was not recorded: frames arrive faster than they "
                    "are written; choose faster codecs, such as `fast`, or a larger queue_size",
                    expected=f"{nbytes} bytes free of {self._limit}",
                    got=f"{self._limit - self.queued_bytes} free",
                )
        frame_copy = {name: copied_value(item) for name, item in frame.items()}
        with self._condition:
            if self._failure is None:  # else the next call raises
                self._calls.append(_Call(partial(self._write, frame_copy), nbytes))
                self.queued_frames += 1
                self.queued_bytes += nbytes
                self._condition.notify_all()

    def call(self, function: Callable[[], object], *, drop_frames: bool = False) -> _Call:
        """Call a function after the frames so far; `drop_frames` drops those since the last call.

        Raises `DestinationError` after a failure.
        """
        call = _Call(function)
        with self._condition:
            self.check()
            while drop_frames and self._calls and self._calls[-1].nbytes:
                self.queued_frames -= 1
                self.queued_bytes -= self._calls.pop().nbytes
            self._calls.append(call)
            self._condition.notify_all()
        return call

    def wait_for(self, call: _Call) -> None:
        """Wait until a call is done; raises `DestinationError` after a failure."""
        with self._condition:
            self._condition.wait_for(lambda: call.is_done or self._failure is not None)
        if not call.is_done:
            self.check()

    def check(self) -> None:
        """Raise `DestinationError` after a failure."""
        if (error := self._failure) is not None:
            reason = getattr(error, "message", None) or repr(error)
            raise DestinationError(
                f"recording failed and stopped ({reason}); complete episodes are kept: continue "
                "with resume (--resume)",
                file=getattr(error, "file", None),
            ) from error

    def fail(self, error: BaseException) -> None:
        """Drop all frames and end the thread; `put` raises a `DestinationError` from now on."""
        with self._condition:
            self._failure = self._failure or error
            self._calls.clear()
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
        episode = self._take_episode()
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
        episode = self._take_episode()
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
        flush_time = self._flush_time
        seconds = None if flush_time is None else max(0.0, flush_time - time.monotonic())
        with self._condition:
            self._condition.wait_for(lambda: self._calls or self._failure is not None, seconds)
            call = self._calls.popleft() if self._calls else None
            self.queued_frames -= call is not None and call.nbytes > 0
        if call is not None:
            call.do()
            with self._condition:
                call.is_done = True
                self.queued_bytes -= call.nbytes if self._failure is None else 0
                self._condition.notify_all()
        if self._flush_time is not None and time.monotonic() >= self._flush_time:
            if self._current_episode().flush():
                self.durable_frames = self.written_frames
            self._flush_time = None

    def _write(self, frame: Frame) -> None:
        # Not since `put`: frames that waited long share a flush.
        # tests/tools/test_recorder.py::test_late_frames_are_flushed_together
        if self._flush_time is None:
            self._flush_time = time.monotonic() + _FLUSH_SHARE * self._flush_seconds
        self._current_episode().append(frame)
        self.written_frames += 1

    def _current_episode(self) -> EpisodeWriter:
        assert self._episode is not None, "no episode has begun"
        return self._episode

    def _take_episode(self) -> EpisodeWriter:
        episode, self._episode, self._flush_time = self._current_episode(), None, None
        return episode


def _abandon(work: _RecordingThread, pid: int) -> None:
    if pid == os.getpid():  # a fork lacks the thread, and the queue's lock may be locked for ever
        work.fail(DestinationError("the recorder was not closed"))


def _check_local(destination: StorageLike) -> None:
    """Raise `DestinationError` for a URL: flushed frames must survive a kill and an outage."""
    url = destination.url if isinstance(destination, Storage) else parse_location(destination).shown
    if "://" in url:
        raise DestinationError(
            "a recorder writes to a local disk; record there, and upload the dataset with "
            f"`seqrecord merge FOLDER -o {url}`",
            file=url,
            expected="a local folder",
            got="a URL",
        )


def _check_arguments(queue_size: int | str, flush_seconds: float) -> int:
    """Check the arguments; returns the bytes of the queue."""
    try:
        limit = parse_size(queue_size)
    except ValueError as error:
        raise DestinationError(f"queue_size: {error}", got=repr_of(queue_size, 100)) from None
    if not is_number(flush_seconds) or flush_seconds <= 0:
        raise DestinationError(
            "invalid flush_seconds", expected="seconds, more than 0", got=repr_of(flush_seconds)
        )
    return limit
