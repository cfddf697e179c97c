"""SeqRecordWriter: packs episodes, frame by frame, into a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.codecs import EncodedImage, image_chain, probe, resolve
from seqrecord.destination import WriteMode, claim
from seqrecord.errors import DestinationError, FrameError, SchemaError, SeqRecordError
from seqrecord.format import MAX_CHUNK_FRAMES
from seqrecord.manifest import Manifest
from seqrecord.record_file import RecordFileWriter
from seqrecord.schema import CodecConfig, FeatureSpec, Schema
from seqrecord.storage import open_storage
from seqrecord.text import check_key, encode_metadata
from seqrecord.version import CREATED_BY

__all__ = [
    "DEFAULT_CODEC",
    "DEFAULT_RECORD_BYTES",
    "Codecs",
    "EpisodeWriter",
    "SeqRecordWriter",
    "apply_codecs",
    "default_chunk_frames",
    "stored_schema",
]

DEFAULT_CODEC = "balanced"
DEFAULT_RECORD_BYTES = 1 << 30

_CHUNK_BYTES = 48 << 20  # decoded; a chunk is the unit of reading, so it bounds readers' memory
_CHUNK_FRAMES = 32  # at most, however small the frames
_UNKNOWN_FRAME_BYTES = 6 << 20  # assumed of a feature with a variable dimension

Codecs: TypeAlias = "str | Mapping[str, str | Sequence[CodecConfig]]"
InputFrame: TypeAlias = "Mapping[str, npt.ArrayLike | EncodedImage]"


class SeqRecordWriter:
    """Writes a dataset, episode by episode. A context manager.

    The dataset exists from the moment that the `with` block ends without an error: record files
    are finished one by one, the manifest comes last. After an error or a kill the episodes that
    had ended are kept, and a writer with `mode="resume"` goes on after them.

    Args:
        destination: local path or URL of the dataset.
        schema: the features. By default they are those of the first chunk of frames.
        codecs: a preset for all features (`raw`, `fast`, `balanced`, `small`), or a preset or a
            chain of codec configurations by feature name; features that are not named are
            `balanced`. Overrides the codecs in `schema`. A dataset that is added to keeps its own.
        chunk_frames: frames a chunk, 1 to 64; by default as many as fit 48 MiB, 32 at most.
        record_bytes: size at which a record file is full.
        mode: `create` a dataset where nothing is, `append` episodes to one, or `resume` an
            interrupted write of either kind.
        storage_options: for the filesystem that serves `destination`.

    Raises `DestinationError` for a destination that `mode` does not fit, and for an episode key
    that is there already.
    """

    def __init__(
        self,
        destination: str | PathLike[str],
        *,
        schema: Schema | None = None,
        codecs: Codecs | None = None,
        chunk_frames: int | None = None,
        record_bytes: int = DEFAULT_RECORD_BYTES,
        mode: WriteMode = "create",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if chunk_frames is not None and not 1 <= chunk_frames <= MAX_CHUNK_FRAMES:
            raise SchemaError(
                "not a number of frames a chunk",
                expected=f"1 to {MAX_CHUNK_FRAMES}",
                got=chunk_frames,
            )
        self._codecs = codecs
        self._chunk_frames = chunk_frames
        self._record_bytes = record_bytes
        self._schema: Schema | None = None
        self._files: RecordFileWriter | None = None
        self._episode: EpisodeWriter | None = None
        self._closed = False
        self._destination = claim(open_storage(destination, storage_options), mode)
        try:
            self._keys = set(self._destination.finished)
            self._ordinal = self._destination.next_ordinal
            stored = self._destination.schema
            if schema is not None:
                self._use(schema)
            elif stored is not None:
                self._use(stored)
        except BaseException:
            self._destination.release()
            raise

    @property
    def schema(self) -> Schema | None:
        """The features with their codecs, `None` until they are known."""
        return self._schema

    @property
    def finished_keys(self) -> frozenset[str]:
        """Keys of the episodes that are there: found at the start, or written since."""
        return frozenset(self._keys)

    def episode(self, key: str, *, metadata: Mapping[str, Any] | None = None) -> EpisodeWriter:
        """Start an episode; use it as a context manager and `append` its frames in order.

        `key` is a clean relative path (`abandonedfactory/Easy/P000`); `metadata` is JSON.
        Raises `DestinationError` if the key is there already.
        """
        if self._closed or self._episode is not None:
            raise DestinationError("the writer is closed, or an episode is still open", episode=key)
        check_key(key)
        if key in self._keys:
            raise DestinationError(
                "the episode is there already", file=self._destination.storage.url, episode=key
            )
        self._episode = EpisodeWriter(self, key, encode_metadata(dict(metadata or {})))
        return self._episode

    def close(self) -> Manifest:
        """Finish the last record file and commit the dataset."""
        if self._closed:
            raise DestinationError("the writer is closed", file=self._destination.storage.url)
        try:
            if self._files is not None:
                self._files.close()
            if not self._keys:
                raise DestinationError("no episode was written", file=self._destination.storage.url)
            return self._destination.commit(CREATED_BY)
        finally:
            self._release()

    def abort(self) -> None:
        """Stop without committing. Episodes that have ended are kept for `mode="resume"`."""
        if self._closed:
            return
        try:
            if self._files is not None:
                self._files.close()
        finally:
            self._release()

    def __enter__(self) -> SeqRecordWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.abort()
        except SeqRecordError as second:
            raise second from error

    def _begin(
        self, key: str, metadata: str, first_frames: Sequence[InputFrame]
    ) -> RecordFileWriter:
        if self._schema is None:
            self._use(_infer_schema(first_frames))
        assert self._files is not None
        assert self._schema is not None
        chunk_frames = self._chunk_frames or default_chunk_frames(self._schema)
        self._files.begin(key, ordinal=self._ordinal, chunk_frames=chunk_frames, metadata=metadata)
        self._ordinal += 1
        return self._files

    def _ended(self, key: str) -> None:
        self._keys.add(key)

    def _release(self) -> None:
        self._closed = True
        self._episode = None
        self._destination.release()

    def _use(self, schema: Schema) -> None:
        self._schema = stored_schema(schema, self._codecs, self._destination.schema)
        self._files = RecordFileWriter(
            self._destination.storage, self._schema, record_bytes=self._record_bytes
        )


class EpisodeWriter:
    """One episode being written. Leaving its `with` block by an error forgets the episode."""

    def __init__(self, writer: SeqRecordWriter, key: str, metadata: str) -> None:
        self.key = key
        self.num_frames = 0
        self._writer = writer
        self._metadata = metadata
        self._pending: list[InputFrame] = []  # frames that wait for the schema to be known
        self._pending_bytes = 0
        self._files: RecordFileWriter | None = None

    def append(self, frame: InputFrame) -> None:
        """Add one frame: feature name to array, or `EncodedImage` for one kept encoded.

        A feature that the frame lacks is left out. Arrays are stored as they are: raises
        `FrameError` for a wrong dtype or shape, or for a feature that the dataset does not have.
        """
        if self._writer._episode is not self:
            raise DestinationError("the episode has ended", episode=self.key)
        if self._files is None and self._writer.schema is not None:
            self._begin()
        if self._files is not None:
            self._files.append(frame)
        else:
            # Callers may fill the same arrays again for their next frame.
            copy = {
                name: item if isinstance(item, EncodedImage) else np.array(item)
                for name, item in frame.items()
            }
            self._pending.append(copy)
            self._pending_bytes += sum(_nbytes(item) for item in copy.values())
            if len(self._pending) == _CHUNK_FRAMES or self._pending_bytes >= _CHUNK_BYTES:
                self._begin()
        self.num_frames += 1

    def close(self) -> None:
        """Finish the episode: from here on neither an error nor a kill loses it."""
        if self._writer._episode is not self:
            raise DestinationError("the episode has ended", episode=self.key)
        try:
            if self.num_frames == 0:
                raise FrameError("an episode without frames", episode=self.key)
            if self._files is None:
                self._begin()
            assert self._files is not None
            self._files.end()
        except BaseException:
            self.abort()
            raise
        self._writer._episode = None
        self._writer._ended(self.key)

    def abort(self) -> None:
        """Forget the episode."""
        if self._writer._episode is self:
            self._writer._episode = None
            if self._files is not None:
                self._files.drop()

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def _begin(self) -> None:
        self._files = self._writer._begin(self.key, self._metadata, self._pending)
        pending, self._pending = self._pending, []
        for frame in pending:
            self._files.append(frame)


def apply_codecs(schema: Schema, codecs: Codecs | None) -> Schema:
    """The schema with the codecs that a writer was asked for, see `SeqRecordWriter`.

    Features that keep encoded images stay as they are unless they are named.
    """
    named = {} if codecs is None or isinstance(codecs, str) else dict(codecs)
    if unknown := [name for name in named if name not in schema]:
        raise SchemaError(
            "a codec for a feature that is not there",
            expected=f"some of {', '.join(schema)}",
            got=", ".join(unknown),
        )
    default = codecs if isinstance(codecs, str) else DEFAULT_CODEC
    return schema.with_codecs(
        {
            spec.name: resolve(
                named.get(spec.name, default), spec.dtype, spec.shape, feature=spec.name
            )
            for spec in schema.values()
            if spec.name in named or not spec.codec or (isinstance(codecs, str) and not _kept(spec))
        }
    )


def stored_schema(schema: Schema, codecs: Codecs | None, stored: Schema | None) -> Schema:
    """The schema to write under: that of the dataset, where there is one, else with its codecs.

    Raises `SchemaError` where the dataset has other features, or other codecs than asked for.
    """
    if stored is None:
        return apply_codecs(schema, codecs)
    if [str(spec) for spec in schema.values()] != [str(spec) for spec in stored.values()]:
        raise SchemaError("the dataset has other features", expected=stored, got=schema)
    if codecs is not None and apply_codecs(schema, codecs).to_json() != stored.to_json():
        raise SchemaError("the dataset has other codecs; leave them out to keep its own")
    return stored


def default_chunk_frames(schema: Schema) -> int:
    """Frames a chunk: the largest power of two up to 32 whose frames decode to 48 MiB or less."""
    nbytes = sum(
        spec.nbytes if spec.is_fixed else max(spec.nbytes, _UNKNOWN_FRAME_BYTES)
        for spec in schema.values()
    )
    fitting = max(1, min(_CHUNK_FRAMES, _CHUNK_BYTES // nbytes))
    return 1 << (fitting.bit_length() - 1)


def _infer_schema(frames: Sequence[InputFrame]) -> Schema:
    """Features in the order in which they appear; dimensions that differ between frames vary."""
    specs: dict[str, FeatureSpec] = {}
    for frame in frames:
        for name, item in frame.items():
            codec: tuple[CodecConfig, ...] = ()
            if isinstance(item, EncodedImage):
                codec = image_chain(item.data)
                header = probe(item.data)
                dtype, shape = header.dtype, header.shape
            else:
                array = np.asarray(item)
                dtype, shape = array.dtype, array.shape
            known = specs.get(name)
            if known is None:
                specs[name] = FeatureSpec(name, dtype, shape, codec)
            elif len(known.shape) == len(shape) and not known.accepts(shape):
                merged = tuple(
                    a if a == b else None for a, b in zip(known.shape, shape, strict=True)
                )
                specs[name] = replace(known, shape=merged)
    return Schema(list(specs.values()))


def _kept(spec: FeatureSpec) -> bool:
    return spec.codec[0].get("id") == "seqrecord.image"


def _nbytes(item: npt.ArrayLike | EncodedImage) -> int:
    return len(item.data) if isinstance(item, EncodedImage) else np.asarray(item).nbytes
