"""`open_source`: the source of a dataset or of originals."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from seqrecord.errors import SourceError
from seqrecord.sources.base import Source
from seqrecord.sources.common.remote import is_url
from seqrecord.sources.registry import DATASET, OptionError, open_original
from seqrecord.storage import StorageLike


def open_source(
    path: StorageLike,
    *,
    format: str | None = None,  # noqa: A002 - the option's name on the command line
    features: Sequence[str] | None = None,
    keep_encoded: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Source:
    """The source of the episodes at `path`.

    Args:
        path: a folder or file of originals, or a dataset: a path of this machine, a URL, or an
            open storage.
        format: the name of its format, of those in docs/reference/sources.md or of an installed
            package. By default the one that fits what lies there.
        features: names of the features to read, in that order; by default all.
        keep_encoded: leave PNG and JPEG images as they are; a dataset's are always left so.
        storage_options: of a URL, as for `seqrecord.open`.
        options: what only some formats take, such as TartanAir's `cameras` and `difficulty`;
            `None` means that an option is not given.

    Raises `SourceError` where no format fits, or more than one, which lists what was tried; for a
    format that is unknown or does not fit; and for an option that the format does not take.
    """
    given = {name: value for name, value in options.items() if value is not None}
    is_remote = is_url(path) or not isinstance(path, (str, os.PathLike))
    if storage_options and not is_remote:
        raise SourceError("storage_options are of a URL alone", file=str(path))
    if format in (None, DATASET):
        from seqrecord.writing.dataset_source import find_dataset  # the command line needs it late

        dataset = find_dataset(path, features, storage_options, is_named=format is not None)
        if dataset is not None:
            for name in given:
                raise OptionError(
                    f"{name} cannot be chosen for the format {DATASET}: leave it out", got=name
                )
            return dataset
    return open_original(
        path,
        format=format,
        features=features,
        keep_encoded=keep_encoded,
        storage_options=storage_options,
        options=given,
    )
