"""The record files of one writer."""

from __future__ import annotations

from seqrecord.reading.metadata import record_sizes
from seqrecord.storage import Storage
from seqrecord.writing.writer_ids import writer_of

__all__ = ["own_sizes"]


def own_sizes(storage: Storage, writer: str) -> dict[str, int]:
    """Paths and sizes of the finished record files of a writer."""
    return {path: n for path, n in record_sizes(storage).items() if writer_of(path) == writer}
