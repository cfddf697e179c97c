"""The features and record files of one writer, which its episodes share."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from seqrecord.errors import SchemaError, located
from seqrecord.feature_kinds import doubtful_forms
from seqrecord.schema import Frame, Schema
from seqrecord.statistics.by_feature import Statistics
from seqrecord.statistics.collecting import StatisticsCollector
from seqrecord.writing.destination import Destination
from seqrecord.writing.rates import irregular_note
from seqrecord.writing.record_file import RecordFileWriter
from seqrecord.writing.stored_schema import Codecs, FeatureInfo, infer_schema, stored_schema

STAMP: FeatureInfo = {"timestamp": {"kind": "timestamp", "unit": "s"}}
"""The feature of a recorder with the time of `append`."""

_logger = logging.getLogger("seqrecord")


@dataclass(eq=False)
class DatasetFiles:
    """Begins episodes in the record files of a destination, once the features are known.

    `use` sets the features; otherwise the frames of the first episode determine them. The first
    fields are arguments of `SeqRecordWriter`.

    Attributes:
        schema: the features; `None` until they are known.
        records: the record files; `None` until the features are known.
        keys: keys of complete episodes: found at the destination, or written since.
    """

    destination: Destination
    features: FeatureInfo | None
    codecs: Codecs | None
    chunk_frames: int | None
    max_file_size: int
    statistics: bool
    schema: Schema | None = None
    records: RecordFileWriter | None = None
    _is_stamped: bool = False
    _collector: StatisticsCollector | None = None

    def __post_init__(self) -> None:
        self.keys = {*self.destination.finished}
        self._url = self.destination.storage.url
        self._noted: set[str] = set()  # features with NaN or infinities
        self._ordinal = self.destination.next_ordinal

    @property
    def safe_keys(self) -> frozenset[str]:
        """The `keys` that no failure may have lost."""
        return frozenset(self.keys if self.records is None else self.keys - self.records.at_risk)

    def expect_stamps(self) -> None:
        """Expect `STAMP` in all frames: it decides about no fps."""
        self._is_stamped = True
        self.features = {**(self.features or {}), **STAMP}

    def opened(self, key: str, first: Sequence[Frame]) -> RecordFileWriter:
        """The record files. The `first` frames, of this episode, determine unknown features."""
        if self.records is None:
            with located(SchemaError, episode=key):
                self.use(infer_schema(first, self.features))
        assert self.records is not None
        return self.records

    def begin(self, key: str, *, metadata: str, fps: float | None) -> None:
        """Begin an episode in the `opened` files."""
        assert self.records is not None
        self.records.begin(
            key,
            ordinal=self._ordinal,
            chunk_frames=self.chunk_frames,
            metadata=metadata,
            fps=fps,
            checks_rate=not self._is_stamped,
        )
        self._ordinal += 1

    def end(self, key: str) -> None:
        """Note an ended episode, and log the first NaN or infinity of each feature."""
        self.keys.add(key)
        found = {} if self._collector is None else self._collector.non_finite()
        for name in found.keys() - self._noted:
            self._noted.add(name)
            _logger.warning(
                "%s: feature %s has NaN or infinite values, first in episode %s, frame %d",
                *(self._url, name, found[name].episode, found[name].frame),
            )

    def close(self) -> Statistics | None:
        """Finish the last record file; returns the statistics of all frames."""
        if self.records is not None:
            self.records.close()
            if self.records.irregular:
                _logger.warning("%s: %s", self._url, irregular_note(self.records.irregular))
        return None if self._collector is None else self._collector.statistics()

    def use(self, schema: Schema) -> None:
        """Set the features, with codecs and groups, and start to write."""
        known = self.destination.schema
        self.schema = stored_schema(schema, self.codecs, known, self.features)
        for note in doubtful_forms(self.schema) if known is None else ():
            _logger.warning("%s: %s", self._url, note)
        if self.statistics:
            self._collector = StatisticsCollector(self.schema)
        self.records = RecordFileWriter(
            self.destination.storage,
            self.schema,
            writer=self.destination.writer,
            max_file_size=self.max_file_size,
            statistics=self._collector,
        )
