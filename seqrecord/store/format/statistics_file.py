"""The statistics file of a dataset: JSON in its index folder, named by the manifest."""

from __future__ import annotations

import json

from seqrecord.errors import FormatError, located
from seqrecord.store.format.manifest import IndexFile, read_named
from seqrecord.store.format.text import parse_json
from seqrecord.store.schema import Schema
from seqrecord.store.statistics.by_feature import Statistics
from seqrecord.store.storage.base import Storage

MAX_STATISTICS_BYTES = 1 << 27


def encode_statistics(statistics: Statistics) -> bytes | None:
    """Encode the file; `None` if it would exceed `MAX_STATISTICS_BYTES`."""
    data = json.dumps(statistics.to_json(), indent=1, allow_nan=False).encode() + b"\n"
    return data if len(data) <= MAX_STATISTICS_BYTES else None


def read_statistics(storage: Storage, file: IndexFile, schema: Schema) -> Statistics:
    """Read and validate the statistics of a dataset with this schema.

    Raises `NotFoundError` if the file is missing. Raises `FormatError` if it differs from the
    manifest's entry or does not match the schema.
    """
    data = read_named(storage, file, "a file of statistics", MAX_STATISTICS_BYTES)
    with located(FormatError, file=f"{storage.url}/{file.path}"):
        statistics = Statistics.from_json(parse_json(data))
        statistics.check(schema)
    return statistics
