"""Tables among the companions of a dataset: which items are tables, and their datasets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

from seqrecord.store.areas import TABLES, load_entry
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.storage.url import local_path

TABLE_ENDINGS = (".parquet", ".pq", ".arrow", ".feather", ".ipc")
"""File name endings of tables at URLs, in lower case."""

_PROTOCOLS = ("__arrow_c_stream__", "__arrow_c_array__", "__dataframe__")


def is_table(item: object) -> bool:
    """Return whether a companion is a table, rather than a dataset.

    A local path is a table if it is a file, a URL if it has one of `TABLE_ENDINGS`.
    """
    if isinstance(item, (str, PathLike)):
        text = str(item)
        if "://" in text and not text.lower().startswith("file://"):
            return text.partition("?")[0].lower().endswith(TABLE_ENDINGS)
        return local_path(item, "join").is_file()
    return isinstance(item, Mapping) or any(hasattr(item, name) for name in _PROTOCOLS)


def open_table(
    table: Any, dataset: Dataset, storage_options: Mapping[str, Any] | None = None
) -> Dataset:
    """Open a table as a dataset of the episodes that it names, with their keys and lengths.

    Raises `MissingPackageError` without the part `formats`, and `ClipError` for a table that cannot
    be read, or with a row that fits no frame.
    """
    open_companion: Callable[..., Dataset] = load_entry(TABLES)
    return open_companion(table, dataset, storage_options)
