"""What a writer leaves of its own when it fails."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from seqrecord.errors import SeqRecordError
from seqrecord.format import RECORDS
from seqrecord.format.manifest import read_manifest
from seqrecord.reading.record_footers import record_sizes
from seqrecord.storage import Storage
from seqrecord.writing.commits import tidy
from seqrecord.writing.destination import writer_of

__all__ = ["own_sizes", "undone"]


def own_sizes(storage: Storage, writer: str) -> dict[str, int]:
    """Paths and sizes of the finished record files of a writer."""
    return {path: n for path, n in record_sizes(storage).items() if writer_of(path) == writer}


@contextlib.contextmanager
def undone(storage: Storage, writer: str) -> Iterator[None]:
    """If the block raises, remove the record files of a writer unless the manifest names them."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(SeqRecordError):
            named = {file.path for file in read_manifest(storage).record_files}
            for upload in storage.unfinished(RECORDS):
                if writer_of(upload.path) == writer:
                    upload.remove()
            tidy(storage, own_sizes(storage, writer).keys() - named)
        raise
