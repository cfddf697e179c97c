"""`open_source`: opens a dataset or an original as a source."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from seqrecord.errors import SourceError
from seqrecord.formats.sources.registry import OptionError, open_original
from seqrecord.in_place.remote import is_url
from seqrecord.store.areas import DATASET
from seqrecord.store.originals.protocol import Source
from seqrecord.store.storage.opening import StorageLike

if TYPE_CHECKING:  # slow imports
    from seqrecord.store.reading.opening import Check, Companion, Missing


def open_source(
    path: StorageLike,
    *,
    format: str | None = None,  # noqa: A002 - the option's name on the command line
    features: Sequence[str] | None = None,
    keep_encoded: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    join: Sequence[Companion] | Companion = (),
    missing: Missing = "error",
    check: Check = "pages",
    **options: Any,
) -> Source:
    """Open the episodes at `path` as a source.

    Args:
        path: folder or file of an original, or a dataset: local path, URL, or an open storage.
        format: format name, see docs/reference/sources.md, or a format of an installed package.
            Default: detected.
        features: names of the features to read, in that order; default all.
        keep_encoded: keep PNG and JPEG images encoded. A dataset's are always kept.
        storage_options: for a URL, as in `seqrecord.open`.
        join: companions, as for `seqrecord.open`. `path` is then a dataset, or an original that can
            be read in place.
        missing: as for `seqrecord.open`.
        check: as for `seqrecord.open`.
        options: arguments of single formats, such as TartanAir's `cameras` and `difficulty`;
            `None` counts as not given.

    Raises `SourceError` if no format matches, or several do, with a list of the attempts; for an
    unknown or wrong `format`; and for an option unknown to the format, or that companions exclude.

    Example:
        source = seqrecord.open_source("records/")
        print(source.schema())
    """
    format_options = {name: value for name, value in options.items() if value is not None}
    is_remote = is_url(path) or not isinstance(path, (str, os.PathLike))
    if storage_options and not is_remote:
        raise SourceError("storage_options apply to URLs only", file=str(path))
    if join:
        from seqrecord.formats.converting.dataset_source import joined_dataset  # slow import

        excluded_options = {"format": format, "keep_encoded": keep_encoded, **format_options}
        for name, value in excluded_options.items():
            if value:
                raise OptionError(f"{name} cannot be combined with join (--join)", got=name)
        joining: dict[str, Any] = {"join": join, "missing": missing, "check": check}
        return joined_dataset(path, features, storage_options, **joining)
    if format in (None, DATASET):
        from seqrecord.formats.converting.dataset_source import find_dataset  # slow import

        dataset = find_dataset(path, features, storage_options, is_named=format is not None)
        if dataset is not None:
            for name in format_options:
                raise OptionError(
                    f"{name} does not apply to the format {DATASET}: remove it", got=name
                )
            return dataset
    return open_original(
        path,
        format=format,
        features=features,
        keep_encoded=keep_encoded,
        storage_options=storage_options,
        options=format_options,
    )
