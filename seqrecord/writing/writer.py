"""SeqRecordWriter: packs episodes, frame by frame, into a dataset."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from seqrecord.codecs.video.gops import Gop
from seqrecord.errors import (
    DestinationError,
    FormatError,
    FrameError,
    SchemaError,
    SeqRecordError,
    located,
)
from seqrecord.format.manifest import Manifest
from seqrecord.format.text import check_key, encode_metadata
from seqrecord.processes.exclusive import Exclusive, exclusive
from seqrecord.reading.metadata import DamagedFile
from seqrecord.schema import Block, EncodedImage, Frame, Schema
from seqrecord.statistics.collecting import StatisticsCollector
from seqrecord.storage import StorageLike, open_storage
from seqrecord.writing.chunking import CHUNK_BYTES, CHUNK_FRAMES
from seqrecord.writing.destination import Destination, WriteMode, check_mode
from seqrecord.writing.rates import irregular_note
from seqrecord.writing.record_file import RecordFileWriter
from seqrecord.writing.stored_schema import (
    DEFAULT_MAX_FILE_SIZE,
    Codecs,
    FeatureInfo,
    check_codecs,
    check_descriptions,
    check_fps,
    check_sizes,
    infer_schema,
    stored_schema,
)
from seqrecord.writing.values import plain

_logger = logging.getLogger("seqrecord")


class SeqRecordWriter:
    """Writes a dataset, episode by episode. A context manager.

    The dataset exists when the `with` block has ended without an error: record files are finished
    one by one, and the manifest is written last. After an error or a kill, the episodes that had
    ended are kept, and a writer with `mode="resume"` continues after them. After a failure to write
    (a full disk, for example), the failing call raises the error; from then on this writer raises
    `DestinationError` and commits nothing.

    A writer belongs to one process, and to one of its threads at a time: a call in a forked
    process, and one that overlaps a call of another thread, raise `DestinationError` and change
    nothing.

    Several writers may write to one destination at the same time, and none touches the files of
    another. The first to commit succeeds; the others raise `ConflictError` when they end, and their
    episodes stay on the storage for `mode="resume"`.

    Args:
        destination: local path or URL of the dataset.
        schema: the features. By default they are those of the first chunk of frames, each as its
            first value is; a `str` is text, and `bytes` are bytes.
        features: what is said of features beside their frames, by name:
            `{"depth": {"kind": "depth", "unit": "m"}, "points": {"shape": (None, 3)}}`, of which
            `None` is a dimension that varies from frame to frame. A kind is a lower-case word, as
            `image`, `depth`, `flow`, `mask`, `segmentation`, `pose`, `action`, `state`, `imu` or
            `text`, and a unit what the numbers are of, as `m`, `px`, `rad`. Features of a `group`,
            a number, share chunks; where nobody names one, all features that take less than 4096
            bytes a frame, and text, are one group, and all others one.
        codecs: a codec's name for all features, or by feature name one or a chain of codec
            configurations; features that are not named are `balanced`. Names are the lossless
            presets `raw`, `fast`, `balanced` and `small`, and for images `png`, `jpeg` and
            `jpeg:quality=90`, of which JPEG loses data; and for RGB videos `av1`, `h264`, `hevc`,
            `vp9` and `av1:quality=30,gop=16`, which lose data, and `ffv1`, which does not.
            Overrides the codecs in `schema`. A
            dataset that is added to keeps its own.
        fps: frames a second of the episodes without one of their own. An episode keeps its fps only
            if each of its timestamps is within a quarter of a step of `i / fps`, counted from the
            first; otherwise `close` logs a warning. They are the feature of kind `timestamp`, of
            several the one called `timestamp` or `log_time`.
        chunk_frames: frames a chunk, 1 to 65536; by default as many as fit 48 MiB decoded, 32 at
            most; in a group of small features as many as fit 1 MiB, 1024 at most. Where the shape
            of a feature varies, an episode's first frames decide for the episode.
        max_file_size: bytes, or text such as "1GiB", at which a record file is full.
        statistics: keep statistics of the features, which `Dataset.statistics` has then.
            Where there are episodes that they leave out, there are none: of a dataset that was
            without, or that resume found; `seqrecord stats` computes them.
        mode: `create` a dataset where nothing is, `append` episodes to one, or `resume` an
            interrupted write of either kind: that also brings in all episodes that ended elsewhere
            on the storage and are in no dataset, also those of a writer that is still at work. A
            damaged record file is skipped: see `damaged_files`.
        storage_options: for the filesystem that serves `destination`.

    Raises `SchemaError` for codecs, features, fps or sizes that no dataset can have, and for those
    that the features of `schema` cannot; of features that are known later, with the first frames.
    Raises `DestinationError` for another mode, for a destination that `mode` does not fit, and for
    a dataset of which a file is missing or is not the one that the manifest names; then nothing
    was changed.
    """

    def __init__(
        self,
        destination: StorageLike,
        *,
        schema: Schema | None = None,
        features: FeatureInfo | None = None,
        codecs: Codecs | None = None,
        fps: float | None = None,
        chunk_frames: int | None = None,
        max_file_size: int | str = DEFAULT_MAX_FILE_SIZE,
        statistics: bool = True,
        mode: WriteMode = "create",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_mode(mode)
        self._fps = check_fps(fps)
        nbytes = check_sizes(chunk_frames, max_file_size)
        check_codecs(codecs)
        check_descriptions(features)
        self._closed = False
        self._described, self._codecs = features, codecs
        self._chunk_frames, self._max_file_size = chunk_frames, nbytes
        self._keeps_statistics = statistics
        self._collector: StatisticsCollector | None = None
        self._episode: EpisodeWriter | None = None  # that was begun last
        self._schema: Schema | None = None  # as it and `_files` are until the features are known
        self._files: RecordFileWriter | None = None
        self._destination = Destination(open_storage(destination, storage_options), mode)
        self._exclusive = Exclusive("writer", self.url)
        self._keys = set(self._destination.finished)  # of episodes found, or written since
        self._ordinal = self._destination.next_ordinal
        try:
            if schema is not None:
                self._use(schema)
            elif self._destination.schema is not None:
                self._use(self._destination.schema.active)
        except BaseException:
            self._destination.release()
            raise

    @property
    def url(self) -> str:
        """The destination, without credentials."""
        return self._destination.storage.url

    @property
    def schema(self) -> Schema | None:
        """The features with their codecs, `None` until they are known."""
        return None if self._schema is None else self._schema.active

    @property
    def damaged_files(self) -> tuple[DamagedFile, ...]:
        """What `mode="resume"` found damaged. It stays; the other episodes were recovered."""
        return tuple(self._destination.damaged)

    @property
    def completed_episodes(self) -> frozenset[str]:
        """Keys of the episodes that are there: found at the start, or written since.

        After a failure to write, those whose record files are finished; of the others
        `mode="resume"` finds those that are whole.
        """
        return frozenset(self._keys if self._files is None else self._keys - self._files.at_risk)

    @exclusive
    def episode(
        self, key: str, *, metadata: Mapping[str, Any] | None = None, fps: float | None = None
    ) -> EpisodeWriter:
        """Start an episode; use it as a context manager and `append` its frames in order.

        `key` is a clean relative path (`abandonedfactory/Easy/P000`); `metadata` is JSON; `fps` is
        how many frames it has a second, by default the writer's.
        Raises `DestinationError` if the key is there already.
        """
        if self._closed:
            raise DestinationError("the writer is closed", episode=key)
        if self._files is not None:
            self._files.check()
        if self._episode is not None and self._episode.is_open:
            raise DestinationError(f"episode {self._episode.key} has not ended", episode=key)
        check_key(key)
        if key in self._keys:
            raise DestinationError(
                "the episode is there already; skip the keys in writer.completed_episodes, or "
                "choose another key",
                file=self.url,
                episode=key,
            )
        fps = self._fps if fps is None else check_fps(fps)
        with located(FormatError, episode=key):
            text = encode_metadata(dict(metadata or {}))
        self._episode = EpisodeWriter(self, key, text, fps)
        return self._episode

    @exclusive
    def close(self) -> Manifest:
        """Finish the last record file and commit the dataset.

        The index of hundreds of thousands of episodes takes tens of seconds; at level INFO the
        logger `seqrecord` says when that begins.

        Raises `ConflictError`, and commits nothing, if another writer has committed since this one
        began; and `DestinationError` if an episode has not ended, none was written, or a failure to
        write came before.
        """
        if self._closed:
            raise DestinationError("the writer is closed", file=self.url)
        if (episode := self._episode) is not None and episode.is_open:
            self.abort()
            raise DestinationError(
                "the writer was closed in the middle of an episode; nothing is committed",
                file=self.url,
                episode=episode.key,
            )
        try:
            if self._files is not None:
                self._files.close()
                if self._files.irregular:
                    _logger.warning("%s: %s", self.url, irregular_note(self._files.irregular))
            if not self._keys:
                raise DestinationError("no episode was written", file=self.url)
            statistics = None if self._collector is None else self._collector.statistics()
            return self._destination.commit(self._keys, statistics)
        except BaseException as error:
            self._give_up(error)
            raise
        finally:
            self._release()

    @exclusive
    def abort(self) -> None:
        """Stop without committing. Episodes that have ended are kept for `mode="resume"`.

        If none has, all that this writer has written is removed.
        """
        self._abort(None)

    def _abort(self, error: BaseException | None) -> None:
        if self._closed:
            return
        try:
            if self._episode is not None:
                self._episode.abort()
            if self._files is not None:
                self._files.close_after_error()
        finally:
            self._give_up(error)
            self._release()

    def _give_up(self, error: BaseException | None) -> None:
        self._destination.give_up(error, None if self._files is None else self._files.failure)

    def __enter__(self) -> SeqRecordWriter:
        self._exclusive.check_process()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not self._exclusive.is_own:
            return  # a fork that ends; the writer is its parent's
        if error is not None:
            try:
                with self._exclusive:
                    self._abort(error)
            except SeqRecordError as second:
                raise second from error
        elif not self._closed:
            self.close()

    def _release(self) -> None:
        self._closed = True
        self._destination.release()

    def _use(self, schema: Schema) -> None:
        """Store these features, as they were asked for or are in the dataset."""
        self._schema = stored_schema(
            schema, self._codecs, self._destination.schema, self._described
        )
        if self._keeps_statistics:
            self._collector = StatisticsCollector(self._schema)
        self._files = RecordFileWriter(
            self._destination.storage,
            self._schema,
            writer=self._destination.writer,
            max_file_size=self._max_file_size,
            statistics=self._collector,
        )


class EpisodeWriter:
    """One episode being written.

    Leaving its `with` block by an error forgets the episode, but for what was flushed.
    """

    def __init__(self, writer: SeqRecordWriter, key: str, metadata: str, fps: float | None) -> None:
        self.key = key
        self.num_frames = 0
        self.is_open = True
        self._exclusive = writer._exclusive
        self._writer = writer
        self._metadata = metadata
        self._fps = fps
        # Copies of a dataset's first frames, from which its schema is inferred.
        self._pending: list[Frame] = []
        self._pending_bytes = 0
        self._files: RecordFileWriter | None = None
        self._failed = False

    @property
    def storing_seconds(self) -> float:
        """How long the writer has waited for its storage so far."""
        return 0.0 if self._files is None else self._files.storing_seconds

    @exclusive
    def append(self, frame: Frame, *, fast: bool = False) -> None:
        """Add one frame: feature name to array, `str` or `bytes`, or `EncodedImage` for an image
        that stays encoded.

        A feature that the frame lacks is left out. Arrays are stored as they are: raises
        `FrameError` for a wrong dtype or shape, or for a feature that the dataset does not have.
        Any error ends the episode as `abort` does: a dataset holds no recording with a gap in it.
        While the features are not known yet, frames are only collected, and their errors come
        later. With `fast` the frame is encoded in less time into more bytes, as far as its codecs
        can, and is the same when it is read.
        """
        self._check_open()
        with self._forget_on_error():
            if not isinstance(frame, Mapping):
                raise FrameError(
                    "a frame is no dict",
                    episode=self.key,
                    frame=self.num_frames,
                    expected='its arrays by feature, such as {"image": image}',
                    got=type(frame).__name__,
                )
            if not frame:
                raise FrameError(
                    "a frame without any feature; append a frame that has one or more, or skip it",
                    episode=self.key,
                    frame=self.num_frames,
                )
            with located(FrameError, episode=self.key, frame=self.num_frames):
                frame = {name: plain(item, name) for name, item in frame.items()}
            block = Block.of(frame)
            if self._files is not None or self._writer._schema is not None:
                self._begun().append(block, fast=fast)
            else:
                copy = {name: _copied(item) for name, item in frame.items()}
                self._pending.append(copy)
                self._pending_bytes += sum(_nbytes(item) for item in copy.values())
                if len(self._pending) == CHUNK_FRAMES or self._pending_bytes >= CHUNK_BYTES:
                    self._begun()
        self.num_frames += 1

    @exclusive
    def append_video(self, name: str, gops: Iterable[Gop]) -> None:
        """Keep video as it is encoded: the next frames of a feature, which `append` does not get.

        The feature's codec says what the packets are: pass a `schema` with it to the writer. All
        frames of the episode come so, at once or piece by piece, before or after the others are
        appended; when the episode is flushed or ends, there must be as many of them as of the
        others. The packets are not looked at; `seqrecord verify --deep` decodes them. Raises
        `FrameError` for a feature that is no video.
        """
        self._check_open()
        with self._forget_on_error():
            if self._files is None and self._writer._schema is None:
                raise FrameError(
                    "video is kept under a schema: give one to the writer",
                    episode=self.key,
                    feature=name,
                )
            files = self._begun()
            for gop in gops:
                files.append_video(name, gop)

    @exclusive
    def fix_schema(self) -> None:
        """Take the features to be those of the frames so far: from here on frames are encoded as
        they come."""
        self._check_open()
        if self.num_frames:
            with self._forget_on_error():
                self._begun()

    @exclusive
    def flush(self) -> None:
        """Write all frames so far: from here on neither an error nor a kill loses them.

        An episode that is not closed ends at its last flush. Each flush ends the chunks that are
        open, so flush every few seconds rather than after each frame.
        """
        self.fix_schema()
        if self._files is not None:
            with self._forget_on_error():
                self._files.flush()

    @exclusive
    def close(self) -> None:
        """Finish the episode: from here on neither an error nor a kill loses it."""
        self._check_open()
        with self._forget_on_error():
            if self._files is None and not self.num_frames:
                raise FrameError("an episode without frames", episode=self.key)
            self._begun().end()
        self.is_open = False
        self._writer._keys.add(self.key)

    @exclusive
    def abort(self) -> None:
        """Forget the episode, or what of it came after its last flush."""
        if self.is_open:
            self.is_open = False
            if self._files is not None and self._files.drop():
                self._writer._keys.add(self.key)

    @exclusive
    def discard(self) -> None:
        """Forget the episode and all that was flushed of it, as if it had never begun.

        A kill meanwhile leaves either nothing of it, or what was flushed; once this has returned,
        nothing. (A storage that keeps flushes some seconds later forgets them as late.) Its key is
        free again, and so are its bytes in the open record file. A finished record file that holds
        nothing else is removed after the writer's commit, for a resume of another writer may have
        added it to the dataset by now. Does nothing once the episode has ended.
        """
        if self.is_open:
            with self._forget_on_error():
                if self._files is not None:
                    self._files.discard()
            self.is_open = False

    def __enter__(self) -> EpisodeWriter:
        self._exclusive.check_process()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not self._exclusive.is_own:
            return
        if error is not None:
            self.abort()
        elif self.is_open or self._failed:
            self.close()

    def _check_open(self) -> None:
        if not self.is_open:
            why = "was given up after an error" if self._failed else "has ended"
            raise DestinationError(f"the episode {why}", episode=self.key)

    @contextmanager
    def _forget_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._failed = True
            self.abort()
            raise

    def _begun(self) -> RecordFileWriter:
        """The record files, in which the episode has begun; from its frames so far the features
        are inferred, if need be."""
        if self._files is not None:
            return self._files
        writer, pending, self._pending = self._writer, self._pending, []
        if writer._files is None:
            with located(SchemaError, episode=self.key):
                writer._use(infer_schema(pending, writer._described))
        assert writer._files is not None
        self._files = writer._files
        self._files.begin(
            self.key,
            ordinal=writer._ordinal,
            chunk_frames=writer._chunk_frames,
            metadata=self._metadata,
            fps=self._fps,
        )
        writer._ordinal += 1
        for frame in pending:
            self._files.append(Block.of(frame))
        return self._files


def _copied(item: Any) -> Any:
    if isinstance(item, (str, bytes, EncodedImage)):
        return item
    if isinstance(item, (bytearray, memoryview)):
        return bytes(item)
    return np.array(item)


def _nbytes(item: Any) -> int:
    if isinstance(item, EncodedImage):
        return len(item.data)
    return len(item) if isinstance(item, (str, bytes)) else int(np.asarray(item).nbytes)
