"""SeqRecordWriter: packs episodes, frame by frame, into a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqrecord.errors import DestinationError, FormatError, SeqRecordError
from seqrecord.format.manifest import Manifest
from seqrecord.format.text import check_key, encode_metadata
from seqrecord.schema import Schema
from seqrecord.storage import StorageLike, open_storage
from seqrecord.writing.destination import WriteMode, begin, check_mode
from seqrecord.writing.episode_writer import EpisodeWriter
from seqrecord.writing.packing import Packing
from seqrecord.writing.stored_schema import (
    DEFAULT_RECORD_BYTES,
    Codecs,
    Described,
    check_codecs,
    check_described,
    check_fps,
    check_sizes,
)

__all__ = ["SeqRecordWriter"]


class SeqRecordWriter:
    """Writes a dataset, episode by episode. A context manager.

    The dataset exists when the `with` block has ended without an error: record files are finished
    one by one, and the manifest is written last. After an error or a kill, the episodes that had
    ended are kept, and a writer with `mode="resume"` continues after them. After a failure to write
    (a full disk, for example), the failing call raises the error; from then on this writer raises
    `DestinationError` and commits nothing.

    Several writers may write to one destination at the same time, and none touches the files of
    another. The first to commit succeeds; the others raise `ConflictError` when they end, and their
    episodes stay on the storage for `mode="resume"`.

    Args:
        destination: local path or URL of the dataset.
        schema: the features. By default they are those of the first chunk of frames; a `str` is
            text, and `bytes` are bytes.
        features: what is said of features beside their frames, by name:
            `{"depth": {"kind": "depth", "unit": "m"}}`. A kind is a lower-case word, as `image`,
            `depth`, `flow`, `mask`, `segmentation`, `pose`, `action`, `state`, `imu` or `text`, and
            a unit is what the numbers are of, as `m`, `px` or `rad`. Features of the same `group`,
            a number, share chunks; where nobody names one, all features that take less than 4096
            bytes a frame, and text, are one group, and all others one.
        codecs: a codec's name for all features, or by feature name one or a chain of codec
            configurations; features that are not named are `balanced`. Names are the lossless
            presets `raw`, `fast`, `balanced` and `small`, and for images `png`, `jpeg` and
            `jpeg:quality=90`, of which JPEG loses data; and for RGB videos `av1`, `h264`, `hevc`,
            `vp9` and `av1:quality=30,gop=16`, which lose data, and `ffv1`, which does not.
            Overrides the codecs in `schema`. A
            dataset that is added to keeps its own.
        fps: frames a second of the episodes that say nothing of it.
        chunk_frames: frames a chunk, 1 to 65536; by default as many as fit 48 MiB decoded, 32 at
            most; in a group of small features as many as fit 1 MiB, 1024 at most. Where the shape
            of a feature varies, an episode's first frames decide for the episode.
        record_bytes: bytes, or text such as "1GiB", at which a record file is full.
        statistics: keep statistics of the features, which `SeqRecordReader.statistics` has then.
            Where there are episodes that they leave out, there are none: of a dataset that was
            without, or that resume found; `seqrecord stats` computes them.
        mode: `create` a dataset where nothing is, `append` episodes to one, or `resume` an
            interrupted write of either kind: that also brings in all episodes that ended elsewhere
            on the storage and are in no dataset, also those of a writer that is still at work.
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
        features: Described | None = None,
        codecs: Codecs | None = None,
        fps: float | None = None,
        chunk_frames: int | None = None,
        record_bytes: int | str = DEFAULT_RECORD_BYTES,
        statistics: bool = True,
        mode: WriteMode = "create",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_mode(mode)
        self._fps = check_fps(fps)
        nbytes = check_sizes(chunk_frames, record_bytes)
        check_codecs(codecs)
        check_described(features)
        self._closed = False
        self._episode: EpisodeWriter | None = None  # that was begun last
        self._destination = begin(open_storage(destination, storage_options), mode)
        try:
            self._packing = Packing(
                self._destination,
                schema=schema,
                features=features,
                codecs=codecs,
                chunk_frames=chunk_frames,
                record_bytes=nbytes,
                statistics=statistics,
            )
        except BaseException:
            self._destination.release()
            raise

    @property
    def schema(self) -> Schema | None:
        """The features with their codecs, `None` until they are known."""
        schema = self._packing.schema
        return None if schema is None else schema.kept

    @property
    def finished_keys(self) -> frozenset[str]:
        """Keys of the episodes that are there: found at the start, or written since.

        After a failure to write, those whose record files are finished; of the others
        `mode="resume"` finds those that are whole.
        """
        keys, files = self._packing.keys, self._packing.files
        return frozenset(keys if files is None else keys - files.doubtful)

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
        if self._packing.files is not None:
            self._packing.files.check()
        if self._episode is not None and self._episode.is_open:
            raise DestinationError(f"episode {self._episode.key} has not ended", episode=key)
        check_key(key)
        if key in self._packing.keys:
            raise DestinationError(
                "the episode is there already", file=self._destination.storage.url, episode=key
            )
        fps = self._fps if fps is None else check_fps(fps)
        try:
            text = encode_metadata(dict(metadata or {}))
        except FormatError as error:
            raise error.located(episode=key) from error.__cause__
        self._episode = EpisodeWriter(self._packing, key, text, fps)
        return self._episode

    def close(self) -> Manifest:
        """Finish the last record file and commit the dataset.

        Raises `ConflictError`, and commits nothing, if another writer has committed since this one
        began; and `DestinationError` if an episode has not ended, none was written, or a failure to
        write came before.
        """
        url = self._destination.storage.url
        if self._closed:
            raise DestinationError("the writer is closed", file=url)
        if (episode := self._episode) is not None and episode.is_open:
            self.abort()
            raise DestinationError(
                "the writer was closed in the middle of an episode; nothing is committed",
                file=url,
                episode=episode.key,
            )
        try:
            if self._packing.files is not None:
                self._packing.files.close()
            if not self._packing.keys:
                raise DestinationError("no episode was written", file=url)
            return self._packing.commit()
        finally:
            self._release()

    def abort(self) -> None:
        """Stop without committing. Episodes that have ended are kept for `mode="resume"`."""
        if self._closed:
            return
        try:
            if self._episode is not None:
                self._episode.abort()
            if self._packing.files is not None:
                self._packing.files.leave()
        finally:
            self._release()

    def __enter__(self) -> SeqRecordWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            try:
                self.abort()
            except SeqRecordError as second:
                raise second from error
        elif not self._closed:
            self.close()

    def _release(self) -> None:
        self._closed = True
        self._destination.release()
