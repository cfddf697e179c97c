"""The statistics file of a dataset: JSON in its index folder, which the manifest names."""

from __future__ import annotations

import json

from seqrecord.checksum import crc32c
from seqrecord.errors import ChecksumError, FormatError
from seqrecord.format.manifest import IndexFile
from seqrecord.format.text import parse_json
from seqrecord.schema import Schema
from seqrecord.statistics import Statistics
from seqrecord.storage import Storage

__all__ = ["MAX_STATISTICS_BYTES", "encode_statistics", "read_statistics"]

MAX_STATISTICS_BYTES = 1 << 27


def encode_statistics(statistics: Statistics) -> bytes | None:
    """The file's bytes; `None` where they are more than a reader takes."""
    data = json.dumps(statistics.to_json(), indent=1, allow_nan=False).encode() + b"\n"
    return data if len(data) <= MAX_STATISTICS_BYTES else None


def read_statistics(storage: Storage, file: IndexFile, schema: Schema) -> Statistics:
    """The statistics of a dataset of this schema. Trusts nothing.

    Raises `NotFoundError` if the file is gone, `FormatError` if it is not what the manifest says or
    does not fit the schema.
    """
    path = f"{storage.url}/{file.path}"
    if file.size > MAX_STATISTICS_BYTES:
        raise FormatError(
            "the statistics are too large",
            file=path,
            expected=f"at most {MAX_STATISTICS_BYTES} bytes",
            got=file.size,
        )
    data, _ = storage.read_whole(file.path, MAX_STATISTICS_BYTES)
    if len(data) != file.size:
        raise FormatError(
            "the statistics are not as long as the manifest says",
            file=path,
            expected=file.size,
            got=len(data),
        )
    if (actual := f"{crc32c(data):08x}") != file.crc32c:
        raise ChecksumError(
            "the statistics do not match their checksum",
            file=path,
            offset=0,
            expected=f"CRC32C {file.crc32c}",
            got=actual,
        )
    try:
        statistics = Statistics.from_json(parse_json(data))
        statistics.check(schema)
    except FormatError as error:
        raise error.located(file=path) from error.__cause__
    return statistics
