"""Opens a dataset with its companions: other datasets, and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from os import PathLike
from typing import Any

from seqrecord.companions.joined_tables import JoinedTable, companion_of, is_table, joined_table
from seqrecord.companions.joining import check_requested_names, check_texts, join_datasets
from seqrecord.errors import ClipError, SchemaError
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.reading.opening import Check, Companion, Missing, is_url, open_checked
from seqrecord.store.storage.base import Storage
from seqrecord.store.text import repr_of


def open_with_companions(
    open_base: Callable[[Sequence[str] | None], Dataset],
    join: Sequence[Companion] | Companion,
    *,
    features: Sequence[str] | None = None,
    missing: Missing = "error",
    check: Check = "pages",
    skip_bad_episodes: bool = False,
    **options: Any,
) -> Dataset:
    """Open the companions of a dataset, and join it with them; see `open_joined`."""
    companions = _companions(join)
    if not companions:
        return open_base(features)
    with ExitStack() as opened_datasets, ExitStack() as opened_tables:

        def opened_companion(item: Any) -> Dataset | JoinedTable:
            if isinstance(item, Dataset):
                return item
            arguments = options if is_url(item) else {"verify": options.get("verify", True)}
            if is_table(item):
                table = joined_table(item, arguments.get("storage_options"))
                return opened_tables.enter_context(table)
            companion = open_checked(item, skip_bad_episodes, **arguments)
            opened_datasets.callback(companion.close)
            return companion

        members = [opened_companion(item) for item in companions]
        base_features, companion_names = features, list[str]()
        if features is not None:
            companion_names = [name for member in members for name in _value_names(member)]
            base_features = [name for name in features if name not in companion_names] or None
        try:
            base = open_base(base_features)
        except SchemaError as error:  # a name that no dataset has
            if companion_names:
                error.expected = f"{error.expected}, {', '.join(companion_names)}"
            raise
        opened_datasets.callback(base.close)
        if features is not None:
            check_requested_names(base, companion_names, features)
        datasets = []
        for member in members:
            datasets.append(companion_of(member, base))
            if not isinstance(member, Dataset):
                opened_datasets.callback(datasets[-1].close)
        dataset = join_datasets(base, datasets, missing=missing, check=check)
        check_texts(dataset, datasets, features)
        dataset = dataset.select(features)
        opened_datasets.pop_all()
        return dataset


def _value_names(companion: Dataset | JoinedTable) -> Sequence[str]:
    """The names of a companion's features and dictionaries."""
    if isinstance(companion, Dataset):
        return companion.contents.value_names
    return companion.features


def _companions(join: Sequence[Companion] | Companion) -> Sequence[Any]:
    """The companions in an argument, which may be only one."""
    is_single = isinstance(join, str | PathLike | Dataset | Storage) or is_table(join)
    if not is_single and not isinstance(join, Iterable):
        expected = "a list of datasets and tables: paths, URLs or objects"
        raise ClipError("join is not valid", expected=expected, got=repr_of(join, 100))
    companions: Any = [join] if is_single else join
    return list(companions)
