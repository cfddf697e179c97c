"""Tables among the companions of a dataset: which items are tables, and their datasets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from typing import Any, Protocol

from seqrecord.store.areas import TABLES, load_entry
from seqrecord.store.reading.dataset import Dataset, with_attached
from seqrecord.store.storage.url import local_path

TABLE_ENDINGS = (".parquet", ".pq", ".arrow", ".feather", ".ipc")
"""File name endings of tables at URLs, in lower case."""

_PROTOCOLS = ("__arrow_c_stream__", "__arrow_c_array__", "__dataframe__")


def is_table(item: object) -> bool:
    """Return whether a companion is a table, rather than a dataset.

    A local path is a table if it is a file; a URL, or a path where nothing is, if it has one of
    `TABLE_ENDINGS`.
    """
    if isinstance(item, (str, PathLike)):
        text = str(item)
        has_ending = text.partition("?")[0].lower().endswith(TABLE_ENDINGS)
        if "://" in text and not text.lower().startswith("file://"):
            return has_ending
        path = local_path(item, "join")
        return path.is_file() or (has_ending and not path.exists())
    return isinstance(item, Mapping) or any(hasattr(item, name) for name in _PROTOCOLS)


class JoinedTable(Protocol):
    """A table, of which a dataset can be made."""

    @property
    def features(self) -> Sequence[str]:
        """Names of the value columns."""

    def open(self, dataset: Dataset) -> Dataset:
        """Return a dataset with the episodes of `dataset` that the table names.

        They have the keys and lengths of those. Raises `JoinError` for a row that fits no frame.
        """


class MatchedByKey:
    """Attached to datasets whose episodes are known to be those of the same keys."""


def joined_table(
    item: Any, storage_options: Mapping[str, Any] | None
) -> AbstractContextManager[JoinedTable]:
    """Provide a table. Raises `MissingPackageError` without the part `formats`."""
    make: Callable[..., AbstractContextManager[JoinedTable]] = load_entry(TABLES)
    return make(item, storage_options)


def companion_of(item: Dataset | JoinedTable, dataset: Dataset) -> Dataset:
    """Return a companion of `dataset` as a dataset."""
    if isinstance(item, Dataset):
        return item
    return with_attached(item.open(dataset), MatchedByKey())
