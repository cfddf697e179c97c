"""What a writer and its episodes share: the features, the record files, the keys that are there."""

from __future__ import annotations

from collections.abc import Sequence

from seqrecord.collecting import StatisticsCollector
from seqrecord.errors import SchemaError, located
from seqrecord.format.manifest import Manifest
from seqrecord.schema import Frame, Schema
from seqrecord.version import CREATED_BY
from seqrecord.writing.destination import Destination
from seqrecord.writing.record_file import RecordFileWriter
from seqrecord.writing.stored_schema import Codecs, Described, infer_schema, stored_schema

__all__ = ["Packing"]


class Packing:
    """A dataset being written at a destination; the arguments are those of `SeqRecordWriter`.

    `keys` are those of the episodes that are there: found at the start, or written since. `schema`
    and `files`, into which frames go, are `None` until the features are known.
    """

    def __init__(
        self,
        destination: Destination,
        *,
        schema: Schema | None,
        features: Described | None,
        codecs: Codecs | None,
        chunk_frames: int | None,
        record_bytes: int,
        statistics: bool,
    ) -> None:
        self.destination = destination
        self.keys = set(destination.finished)
        self.schema: Schema | None = None
        self.files: RecordFileWriter | None = None
        self._described, self._codecs = features, codecs
        self._chunk_frames, self._record_bytes = chunk_frames, record_bytes
        self._keeps_statistics = statistics
        self._statistics: StatisticsCollector | None = None
        self._ordinal = destination.next_ordinal
        if schema is not None:
            self._use(schema)
        elif destination.schema is not None:
            self._use(destination.schema.kept)

    def begin(
        self, key: str, metadata: str, fps: float | None, first_frames: Sequence[Frame]
    ) -> RecordFileWriter:
        """Begin an episode of the record files; `first_frames` tell the features, if need be."""
        if self.files is None:
            with located(SchemaError, episode=key):
                self._use(infer_schema(first_frames))
        assert self.files is not None
        self.files.begin(
            key,
            ordinal=self._ordinal,
            chunk_frames=self._chunk_frames,
            metadata=metadata,
            fps=fps,
        )
        self._ordinal += 1
        return self.files

    def commit(self) -> Manifest:
        """Make the episodes of `keys` the dataset, once the record files are closed."""
        collected = None if self._statistics is None else self._statistics.statistics()
        return self.destination.commit(CREATED_BY, self.keys, collected)

    def _use(self, schema: Schema) -> None:
        self.schema = stored_schema(schema, self._codecs, self.destination.schema, self._described)
        if self._keeps_statistics:
            self._statistics = StatisticsCollector(self.schema)
        self.files = RecordFileWriter(
            self.destination.storage,
            self.schema,
            writer=self.destination.writer,
            record_bytes=self._record_bytes,
            statistics=self._statistics,
        )
