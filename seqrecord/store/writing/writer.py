"""SeqRecordWriter: packs episodes, frame by frame, into a dataset."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from seqrecord.errors import (
    DestinationError,
    FormatError,
    FrameError,
    SchemaError,
    SeqRecordError,
    located,
)
from seqrecord.store.feature_kinds import doubtful_forms
from seqrecord.store.format.manifest import Manifest
from seqrecord.store.format.text import check_key, encode_metadata, metadata_entries, parse_metadata
from seqrecord.store.processes.exclusive import Exclusive, exclusive
from seqrecord.store.reading.metadata import DamagedFile
from seqrecord.store.schema import Block, Frame, Schema
from seqrecord.store.statistics.collecting import StatisticsCollector
from seqrecord.store.storage.base import upload_limits_of
from seqrecord.store.storage.opening import StorageLike, open_storage
from seqrecord.store.writing.chunking import CHUNK_BYTES, CHUNK_FRAMES
from seqrecord.store.writing.destination import Destination, WriteMode, check_mode
from seqrecord.store.writing.rates import irregular_notes
from seqrecord.store.writing.record_file import RecordFileWriter
from seqrecord.store.writing.stored_schema import (
    Codecs,
    FeatureInfo,
    check_codecs,
    check_descriptions,
    check_fps,
    check_schema,
    check_sizes,
    infer_schema,
    stored_schema,
)
from seqrecord.store.writing.values import copied_value, nbytes_of, plain_frame

STAMP: FeatureInfo = {"timestamp": {"kind": "timestamp", "unit": "s"}}
"""The feature of a recorder with the time of `append`."""

_logger = logging.getLogger("seqrecord")


class SeqRecordWriter:
    """Writes a dataset, episode by episode. A context manager.

    The dataset exists once the `with` block ends without an error: record files are finished one by
    one, and the manifest is written last. After an error or a kill, ended episodes are kept, and a
    writer with `mode="resume"` continues after them. On an object store, a kill or a failed upload
    loses the episodes of the last record files, see `EpisodeWriter.flush`. If the storage fails (a
    full disk, for example), the call raises the error; later calls raise `DestinationError`, and
    nothing is committed.

    A writer belongs to one process, and to one thread at a time: a call in a forked process, or
    during a call of another thread, raises `DestinationError` and changes nothing.

    Several writers may write to one destination at the same time, each into files of its own. The
    first to commit succeeds; the others raise `ConflictError` at the end, and their episodes are
    kept on the storage for `mode="resume"`.

    Args:
        destination: local path or URL of the dataset.
        schema: the features. By default they are inferred from the first chunk of frames, each from
            its first value; `str` becomes text, and `bytes` bytes.
        features: properties of features by name: `{"depth": {"kind": "depth", "unit": "m"},
            "points": {"shape": (None, 3)}}`. `None` is a dimension that varies from frame to frame.
            A kind is a lower-case word such as `image`, `depth`, `flow`, `mask`, `segmentation`,
            `pose`, `action`, `state`, `imu` or `text`; a unit is for example `m`, `px` or `rad`.
            Features with the same `group`, a number, share chunks; by default text and features
            below 4096 bytes per frame are one group, and all others another.
        codecs: a codec name for all features, or by feature a name or a chain of codec
            configurations; other features are `balanced`. Lossless presets: `raw`, `fast`,
            `balanced` and `small`. Images: `png`, and with loss `jpeg` and `jpeg:quality=90`. RGB
            video: `ffv1`, and with loss `av1`, `h264`, `hevc`, `vp9` and `av1:quality=30,gop=16`.
            Overrides the codecs in `schema`. An existing dataset keeps its codecs.
        fps: frames per second of episodes without their own. An episode keeps its fps only if its
            timestamps agree: their mean rate within 5 %, no step above 1.5 frame periods, and none
            back; otherwise `close` logs a warning. Timestamps are the feature of kind `timestamp`;
            if there are several, the feature `timestamp` or `log_time`.
        chunk_frames: frames per chunk, 1 to 65536. By default as many as fit 48 MiB decoded, at
            most 32; for groups of small features as many as fit 1 MiB, at most 1024. If a feature's
            shape varies, the first frames of each episode decide.
        max_file_size: bytes, or text such as "1GiB", at which a record file is full. By default
            1 GiB, and 256 MiB on an object store.
        statistics: collect statistics for `Dataset.statistics`. They are not stored if some
            episodes lack them: episodes of an older dataset without statistics, or recovered ones.
            Then run `seqrecord stats`. They also serve a warning about the first NaN or infinity
            of an action, a state, a pose, IMU values or similar floats.
        mode: `create` a dataset in an empty place, `append` episodes to one, or `resume` an
            interrupted write of either kind. A resume also adds all ended episodes of other writers
            on the storage, even of running ones. It skips damaged record files, see
            `damaged_files`.
        storage_options: for the filesystem that serves `destination`.

    Raises `SchemaError` for invalid codecs, features, fps or sizes, and for codecs that do not fit
    `schema`; without a schema, with the first frames. Raises `DestinationError` for an unknown
    mode, for a destination that does not fit `mode`, and for a dataset with a missing or replaced
    file; then nothing was changed.

    Example:
        with seqrecord.SeqRecordWriter("new-records/", codecs={"image": "png"}, fps=10) as writer:
            with writer.episode("kitchen/0001", metadata={"task": "stack"}) as episode:
                for number in range(20):
                    image = np.full((48, 64, 3), number, np.uint8)
                    episode.append({"image": image, "action": np.zeros(7, np.float32)})
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
        max_file_size: int | str | None = None,
        statistics: bool = True,
        mode: WriteMode = "create",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_mode(mode)
        self._fps = check_fps(fps)
        self._chunk_frames = chunk_frames
        self._max_file_size = check_sizes(chunk_frames, max_file_size)
        check_schema(schema)
        check_codecs(codecs)
        # As they are now: they are used with the first frames.
        self._codecs = {**codecs} if isinstance(codecs, Mapping) else codecs
        self._features = check_descriptions(features)
        self._has_statistics = statistics
        self._is_closed = False
        self._episode: EpisodeWriter | None = None  # the last one
        self._schema: Schema | None = None  # until the features are known
        self._records: RecordFileWriter | None = None  # until the features are known
        self._collector: StatisticsCollector | None = None
        self._noted: set[str] = set()  # features with NaN or infinities
        self._destination = Destination(open_storage(destination, storage_options), mode)
        limits = upload_limits_of(self._destination.storage)
        self._began = None if limits is None else limits.clock()
        self._keys = {*self._destination.finished}  # of complete episodes
        self._ordinal = self._destination.next_ordinal
        self._exclusive = Exclusive("writer", self.url)
        try:
            if schema is None and self._destination.schema is not None:
                schema = self._destination.schema.active
            if schema is not None:
                self._use(schema)
        except BaseException:
            self._destination.release()
            raise

    @property
    def url(self) -> str:
        """The destination, without credentials."""
        return self._destination.storage.url

    @property
    def schema(self) -> Schema | None:
        """The features with their codecs; `None` until they are known."""
        return None if self._schema is None else self._schema.active

    @property
    def damaged_files(self) -> tuple[DamagedFile, ...]:
        """Files that `mode="resume"` found damaged.

        They are not deleted; the other episodes were recovered.
        """
        return tuple(self._destination.damaged)

    @property
    def completed_episodes(self) -> frozenset[str]:
        """Keys of complete episodes: found at the start, or written since.

        After a failed write, only episodes in finished record files; `mode="resume"` finds the
        other complete ones.
        """
        return frozenset(
            self._keys if self._records is None else self._keys - self._records.at_risk
        )

    @exclusive
    def episode(
        self, key: str, *, metadata: Mapping[str, Any] | None = None, fps: float | None = None
    ) -> EpisodeWriter:
        """Start an episode; use it as a context manager and `append` its frames in order.

        `key` is a clean relative path (`abandonedfactory/Easy/P000`), `metadata` is JSON, and `fps`
        is the frame rate, by default the writer's. Raises `DestinationError` if the key exists
        already.
        """
        if self._is_closed:
            raise DestinationError("the writer is closed", episode=key)
        if self._records is not None:
            self._records.check()
        if self._episode is not None and self._episode.is_open:
            raise DestinationError(f"episode {self._episode.key} has not ended", episode=key)
        check_key(key)
        if key in self._keys:
            raise DestinationError(
                "episode exists already; skip the keys in writer.completed_episodes, or choose "
                "another key",
                file=self.url,
                episode=key,
            )
        fps = self._fps if fps is None else check_fps(fps)
        with located(FormatError, episode=key):
            text = encode_metadata(metadata_entries(metadata))
        self._episode = EpisodeWriter(self, key, text, fps)
        return self._episode

    @exclusive
    def close(self) -> Manifest:
        """Finish the last record file and commit the dataset.

        With more than 100,000 episodes this takes tens of seconds; the logger `seqrecord` reports
        its start at level INFO.

        Raises `ConflictError`, and commits nothing, if another writer has committed since this one
        began. Raises `DestinationError` if an episode is open, no episode was written, or an
        earlier write failed.
        """
        if self._is_closed:
            raise DestinationError("the writer is closed", file=self.url)
        if (episode := self._episode) is not None and episode.is_open:
            self.abort()
            raise DestinationError(
                "writer was closed in the middle of an episode; nothing is committed",
                file=self.url,
                episode=episode.key,
            )
        try:
            if self._records is not None:
                self._records.close()
                for note in irregular_notes(self._records.irregular):
                    _logger.warning("%s: %s", self.url, note)
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
        """Stop without a commit. Ended episodes are kept for `mode="resume"`.

        If no episode has ended, all files of this writer are removed.
        """
        self._abort(None)

    def _abort(self, error: BaseException | None) -> None:
        if self._is_closed:
            return
        try:
            if self._episode is not None:
                self._episode.abort()
            if self._records is not None:
                self._records.close_after_error()
        finally:
            self._give_up(error)
            self._release()

    def _give_up(self, error: BaseException | None) -> None:
        cause = None if self._records is None else self._records.failure
        self._destination.give_up(error, cause)

    def __reduce__(self) -> tuple[object, ...]:
        return self._exclusive.__reduce__()

    def __enter__(self) -> SeqRecordWriter:
        self._exclusive.check_process()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not self._exclusive.is_own:
            return  # the writer belongs to the parent of this fork
        if error is not None:
            try:
                with self._exclusive:
                    self._abort(error)
            except SeqRecordError as second:
                raise second from error
        elif not self._is_closed:
            self.close()

    def _release(self) -> None:
        self._is_closed, self._episode = True, None  # the episode refers to this writer
        self._destination.release()

    def _use(self, schema: Schema) -> None:
        """Set the features, with codecs and groups, and start to write."""
        dataset_schema = self._destination.schema
        self._schema = stored_schema(schema, self._codecs, dataset_schema, self._features)
        for note in doubtful_forms(self._schema) if dataset_schema is None else ():
            _logger.warning("%s: %s", self.url, note)
        if self._has_statistics:
            self._collector = StatisticsCollector(self._schema)
        self._records = RecordFileWriter(
            self._destination.storage,
            self._schema,
            writer=self._destination.writer,
            max_file_size=self._max_file_size,
            statistics=self._collector,
            began=self._began,
        )

    def _begin(self, episode: EpisodeWriter, frames: Sequence[Frame]) -> RecordFileWriter:
        """Begin an episode in the record files; its first `frames` determine unknown features."""
        if self._records is None:
            with located(SchemaError, episode=episode.key):
                self._use(infer_schema(frames, self._features))
        assert self._records is not None
        self._records.begin(
            episode.key,
            ordinal=self._ordinal,
            chunk_frames=self._chunk_frames,
            metadata=episode._metadata,
            fps=episode._fps,
        )
        self._ordinal += 1
        return self._records

    def _end(self, key: str) -> None:
        """Note an ended episode, and log the first NaN or infinity of each feature."""
        self._keys.add(key)
        non_finite = {} if self._collector is None else self._collector.non_finite()
        for name in non_finite.keys() - self._noted:
            self._noted.add(name)
            _logger.warning(
                "%s: feature %s has NaN or infinite values, first in episode %s, frame %d",
                *(self.url, name, non_finite[name].episode, non_finite[name].frame),
            )


class EpisodeWriter:
    """One episode being written.

    If its `with` block raises, the episode is dropped, except its flushed frames.
    """

    def __init__(
        self,
        writer: SeqRecordWriter,
        key: str,
        metadata: str,
        fps: float | None,
    ) -> None:
        self.key = key
        self.num_frames = 0
        self.is_open = True
        self._writer, self._exclusive = writer, writer._exclusive
        self._metadata = metadata
        self._fps = fps
        # Copies of a dataset's first frames, for the schema.
        self._pending_frames: list[Frame] = []
        self._pending_bytes = 0
        self._records: RecordFileWriter | None = None  # from the first stored frame on
        self._failed = False

    @exclusive
    def append(self, frame: Frame) -> None:
        """Add one frame: by feature an array, `str` or `bytes`, or an `EncodedImage`.

        An `EncodedImage` is kept encoded. The frame may lack features. Raises `FrameError` for a
        wrong dtype or shape, and for a feature that the dataset lacks. Any error ends the episode
        as `abort` does, so that no recording has a gap. Until the features are known, frames are
        only collected, and errors come later.
        """
        self._check_open()
        with self._forget_on_error():
            with located(SchemaError, episode=self.key, frame=self.num_frames):
                block = Block.of(frame := plain_frame(frame))
            if self._records is not None or self._writer._schema is not None:
                self._open_records().append(block)
            else:
                copy = {name: copied_value(item) for name, item in frame.items()}
                self._pending_frames.append(copy)
                self._pending_bytes += sum(map(nbytes_of, copy.values()))
                if len(self._pending_frames) == CHUNK_FRAMES or self._pending_bytes >= CHUNK_BYTES:
                    self._open_records()
        self.num_frames += 1

    @exclusive
    def append_video(self, name: str, gops: Iterable[Any]) -> None:
        """Append encoded video: the next frames of a feature, which `append` then does not get.

        `gops` yields `Gop`. The writer's `schema` must have the feature with the codec of the
        packets, or each `Gop` has a `config` of its own. All frames of the episode come this way,
        at once or piece by piece, before or after the other features; a flush and the end need
        equal numbers of frames. Packets are not decoded here; `seqrecord
        verify --deep` decodes them. Raises `FrameError` if the feature is not video.
        """
        self._check_open()
        with self._forget_on_error():
            if self._records is None and self._writer._schema is None:
                raise FrameError(
                    "encoded video needs a schema: pass one to the writer",
                    episode=self.key,
                    feature=name,
                )
            records = self._open_records()
            for gop in gops:
                records.append_video(name, gop)

    @exclusive
    def flush(self) -> bool:
        """Write all frames so far: an error loses none of them, and after `True` a kill neither.

        On a local disk the result is always `True`. On an object store a kill loses the open record
        file. If 60 s or 64 MiB have passed since the last record file ended, or since the writer
        began, the flush ends the file, waits until it is stored with all ended episodes and the
        frames so far, and returns `True`. Otherwise it makes no request, and returns `False` unless
        all of these are stored already; a later flush or the writer's `close` stores them.

        An episode that is not closed ends at its last flush. Each flush ends the open chunks, so
        flush every few seconds rather than after each frame.
        """
        self._check_open()
        with self._forget_on_error():
            if self.num_frames or self._records is not None:
                return self._open_records().flush()
            records = self._writer._records
            return records is None or records.store()

    @exclusive
    def close(self, metadata: Mapping[str, Any] | None = None) -> None:
        """End the episode: from here on no error loses it, and on a local disk no kill.

        On an object store a kill loses it until its record file is stored: when the file is full,
        at the writer's `close`, or at a `flush` of a later episode that returns `True`.

        `metadata` are more entries, for example whether the task succeeded. Raises `FormatError`
        if they cannot be stored; the episode remains open.
        """
        self._check_open()
        text = None
        if metadata:
            with located(FormatError, episode=self.key):
                entries = parse_metadata(self._metadata)
                text = encode_metadata({**entries, **metadata_entries(metadata)})
        with self._forget_on_error():
            if self._records is None and not self.num_frames:
                raise FrameError("episode has no frames", episode=self.key)
            self._open_records().end(text)
        self.is_open = False
        self._writer._end(self.key)

    @exclusive
    def abort(self) -> None:
        """Drop the episode, or its frames after the last flush."""
        if self.is_open:
            self.is_open = False
            if self._records is not None and self._records.drop():
                self._writer._keys.add(self.key)

    @exclusive
    def discard(self) -> None:
        """Drop the episode with all flushed frames, as if it had never begun.

        After a kill during the call, the episode is dropped or ends at its last flush. After the
        return it is dropped: on an object store, a small record file marks it if a flush had
        returned `True`. The key is free again, and so are its bytes in the open record file. A
        finished record file with nothing else is removed after the writer's commit, since a resume
        of another writer may have added it to the dataset. Does nothing for an ended episode.
        """
        if self.is_open:
            with self._forget_on_error():
                if self._records is not None:
                    self._records.discard()
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
            why = "was dropped after an error" if self._failed else "has ended"
            raise DestinationError(f"the episode {why}", episode=self.key)

    @contextmanager
    def _forget_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._failed = True
            self.abort()
            raise

    def _open_records(self) -> RecordFileWriter:
        """The record files, in which the episode has begun; infers the features if needed."""
        if self._records is None:
            frames, self._pending_frames = self._pending_frames, []
            self._records = self._writer._begin(self, frames)
            for frame in frames:
                self._records.append(Block.of(frame))
        return self._records


def expect_stamps(writer: SeqRecordWriter) -> None:
    """Expect `STAMP` in all frames of a writer."""
    writer._features = {**(writer._features or {}), **STAMP}
