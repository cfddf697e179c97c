"""Opens a dataset, or an original in place."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from seqrecord.errors import NotFoundError, SourceError
from seqrecord.store.areas import COMPANIONS, IN_PLACE, load_entry
from seqrecord.store.clip_spec import ClipSpec
from seqrecord.store.reading.contents import Verify
from seqrecord.store.reading.dataset import (
    Dataset,
    DatasetLike,
    open_packed,
    refuse_ignored,
    skipping_bad_episodes,
)
from seqrecord.store.reading.filters import BadEpisodes
from seqrecord.store.storage.opening import StorageLike

if TYPE_CHECKING:  # not needed by `open`
    from seqrecord.store.reading.external_files import Originals
    from seqrecord.store.reading.summary import Summary

Companion: TypeAlias = "DatasetLike | Mapping[str, Any] | Any"
"""More features of a dataset's episodes: a dataset or a table."""

_HUB_NAME = r"(?:huggingface\.co/)?(?:datasets/)?([\w-][\w.-]*/[\w.-]+(?:@[\w.-]+)?)/?"

Missing: TypeAlias = Literal["error", "drop", "pad"]
"""What happens to episodes without a partner in a companion."""

Check: TypeAlias = Literal["pages", "lengths"]
"""What must be equal in partners: the pages that values were computed from, or the lengths."""


def open(  # noqa: A001 - `seqrecord.open`, as `gzip.open`
    location: StorageLike,
    *,
    features: Sequence[str] | None = None,
    version: str | None = None,
    verify: Verify = True,
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | PathLike[str] | None = None,
    cache_limit: int | str | None = None,
    originals: Originals = None,
    tolerance: float | None = None,
    language: Mapping[str, str] | None = None,
    skip_bad_episodes: bool = False,
    join: Sequence[Companion] | Companion = (),
    missing: Missing = "error",
    check: Check = "pages",
) -> Dataset:
    """Open a dataset for reading. This is `seqrecord.open`.

    Reads the manifest and maps the index. Record files are opened by the first read of their
    frames. A LeRobot dataset, or a folder of videos, is opened in place: its index is created in
    the folder `SEQRECORD_HOME` (by default the platform's cache folder), and reused by later calls.

    Args:
        location: local path or URL.
        features: names of the features to read; default all. No bytes of others are read.
        version: id of an earlier version, from `Dataset.version` or `seqrecord info --versions`;
            default the current version.
        verify: check the checksum of every page read. Raw frames of a local disk that are mapped
            are checked once per process: `"always"` maps none and checks each read.
        storage_options: for the filesystem of `location`.
        cache_dir: local folder with a cache of a remote dataset. Processes may share it. Default
            none.
        cache_limit: maximum size of the cache: bytes, or text such as "200GiB". Least recently
            used data is removed first. Required with `cache_dir`.
        originals: present location of an index's original files: local path or URL, or a dict from
            each old root to its new location if there are several. Sizes of all files, and
            checksums in 16 files per root, are compared. Default: their location when indexed.
        tolerance: for a LeRobot dataset in place, the maximum difference between the times of a
            frame and its row, in seconds; default 0.1 ms, and jitter is accepted with a warning.
            Not for datasets of record files.
        language: for a LeRobot dataset in place, text features by resolvers of its language
            columns: `{"subtask": "active_at(t, style=subtask)"}`, see `LeRobotSource`.
        skip_bad_episodes: leave out episodes of an original that cannot be read;
            `Dataset.bad_episodes` has the errors. By default an original with such episodes is
            refused. Features that cannot be read are left out unless `features` names them.
        join: more features of the same episodes, *companions*: paths or URLs of datasets and
            Parquet or Arrow tables, open datasets, and tables of Arrow, pandas or Polars; see
            docs/join.md. `features` may name theirs. `storage_options` and the cache
            are for URLs among them, too.
        missing: for episodes without a partner in a companion: `"error"`, `"drop"` to leave them
            out, `"pad"` to keep them without its features.
        check: what partners must have in common: `"pages"`, the frames that a companion was
            computed from, where it stores that; `"lengths"`, the number of frames, with a WARNING
            for episodes of which only their keys are equal, too.

    Files whose values an index copied are compared once per process: see docs/in-place.md.

    Raises `NotFoundError` if there is neither dataset nor original, and if the version or a file is
    missing. Raises `FormatError` for a damaged dataset, `SourceError` for a damaged original, or
    for `tolerance` or `language` with an original that is not a LeRobot dataset. Raises `ClipError`
    for `originals` with an original and `language` without one, and `SchemaError` for an unknown
    feature, or one of two datasets that are joined. Raises `JoinError` for datasets that do not fit
    together.

    Example:
        with seqrecord.open("records/", features=["pose"]) as dataset:
            for key, episode in dataset.episodes.items():
                print(key, episode[0:4]["pose"].shape)
    """
    options: dict[str, Any] = {"tolerance": tolerance, "language": language, "version": version}
    options |= {"cache_dir": cache_dir, "cache_limit": cache_limit, "originals": originals}
    settings = {"storage_options": storage_options, "verify": verify}

    remote = {"cache_dir": cache_dir, "cache_limit": cache_limit, **settings}
    if isinstance(join, (tuple, Set, Generator)):
        join = list(join)
    if not is_url(location) and any(map(is_url, join if isinstance(join, list) else [join])):
        options |= {"cache_dir": None, "cache_limit": None}
        settings = {"verify": verify}

    def open_base(names: Sequence[str] | None) -> Dataset:
        return open_checked(location, skip_bad_episodes, features=names, **settings, **options)

    return open_joined(
        open_base,
        join,
        features=features,
        missing=missing,
        check=check,
        skip_bad_episodes=skip_bad_episodes,
        **remote,
    )


def open_joined(
    open_base: Callable[[Sequence[str] | None], Dataset],
    join: Sequence[Companion] | Companion,
    *,
    features: Sequence[str] | None = None,
    missing: Missing = "error",
    check: Check = "pages",
    skip_bad_episodes: bool = False,
    **options: Any,
) -> Dataset:
    """Open the companions of a dataset, and join it with them; see `open`.

    `open_base` opens the dataset with the named features. `options` are arguments for companions;
    without `verify`, they are for URLs only. Raises `MissingPackageError` for companions without
    the part `companions`.
    """
    if isinstance(join, (list, tuple)) and not join:
        return open_base(features)
    open_with_companions: Callable[..., Dataset] = load_entry(COMPANIONS)
    return open_with_companions(
        open_base,
        join,
        features=features,
        missing=missing,
        check=check,
        skip_bad_episodes=skip_bad_episodes,
        **options,
    )


def is_url(location: object) -> bool:
    """Whether a dataset or table is at a URL."""
    return isinstance(location, str) and "://" in location


def open_checked(location: StorageLike, skip_bad_episodes: bool, **options: Any) -> Dataset:
    """Like `open`, without companions."""
    dataset = _open(location, **options)
    if skip_bad_episodes:
        return skipping_bad_episodes(dataset)
    try:
        dataset.contents.bad.check()
    except BaseException:
        dataset.close()
        raise
    return dataset


@dataclass(frozen=True)
class FoundIndex:
    """Folder of an original's index, and the parts of the original that it leaves out.

    `unreadable` are features, with the reasons.
    """

    folder: Path
    bad: BadEpisodes
    unreadable: Mapping[str, str]


def open_unchecked(
    location: StorageLike,
    *,
    features: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Like `open`, without a check of originals; for summaries."""
    dataset = _open(location, storage_options, features=features, check_originals=False)
    return skipping_bad_episodes(dataset)


def _open(
    location: StorageLike,
    storage_options: Mapping[str, Any] | None = None,
    tolerance: float | None = None,
    language: Mapping[str, str] | None = None,
    *,
    features: Sequence[str] | None = None,
    version: str | None = None,
    verify: Verify = True,
    **options: Any,
) -> Dataset:
    """Like `open`; selections of bad episodes are refused later, by `Dataset.find_episodes`.

    `options` are more arguments of `open_packed`.
    """
    options["storage_options"] = storage_options
    try:
        packed = open_packed(location, features=features, version=version, verify=verify, **options)
    except NotFoundError as error:
        if hub_url := _hub_url(location):
            error.expected = f"{hub_url}, for a dataset on the Hugging Face Hub"
        if version is not None:
            raise
        settings: dict[str, Any] = {"tolerance": tolerance, "language": language}
        non_defaults = {name: value for name, value in settings.items() if value is not None}
        index = index_of_original(
            location, storage_options, error, features=features, **non_defaults
        )
    else:
        if language is not None:
            packed.close()
        refuse_ignored("a dataset of record files", language=language)
        return packed
    refuse_ignored("an original read in place", originals=options.pop("originals", None))
    # Its index has just been compared with the original.
    options.pop("check_originals", None)
    return open_packed(
        index.folder,
        features=features,
        verify=verify,
        external_options=options,
        check_originals=False,
        bad=index.bad,
    )


def _hub_url(location: StorageLike) -> str | None:
    """Return the URL of a location in the form ORG/NAME, which other libraries take."""
    name = os.fspath(location) if isinstance(location, str | PathLike) else ""
    match = re.fullmatch(_HUB_NAME, name, re.ASCII)
    if match is None or os.path.lexists(match[1].partition("/")[0]):
        return None  # a path below a folder that is there
    return f"hf://datasets/{match[1]}"


def dataset_of(
    dataset: DatasetLike, *, features: Sequence[str] | None = None, **options: Any
) -> Dataset:
    """Return `dataset`, opened if necessary, with these features.

    `options` are arguments of `open`, `None` for defaults. Raises `ClipError` for an option that an
    open dataset would ignore, and the errors of `open`. Later, `find_episodes` raises those about
    bad episodes.
    """
    if isinstance(dataset, Dataset):
        refuse_ignored("an open dataset", **options)
        return dataset if features is None else dataset.select(features)
    non_defaults = {name: value for name, value in options.items() if value is not None}
    return _open(dataset, features=features, **non_defaults)


def opened(
    dataset: DatasetLike,
    *,
    features: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> AbstractContextManager[Dataset]:
    """Like `dataset_of`, for a `with` block that closes only a dataset it opened.

    Frames are not resized.
    """
    reader = dataset_of(dataset, features=features, storage_options=storage_options).resized(None)
    return nullcontext(reader) if isinstance(dataset, Dataset) else reader


def summarize(
    dataset: DatasetLike,
    *,
    clip: ClipSpec | None = None,
    features: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Summary:
    """Count a dataset's episodes, frames, bytes and, with `clip`, its clips.

    Args:
        dataset: local path or URL, or an open dataset.
        clip: clips to count, if any.
        features: features to describe and required in clips; default all, or those selected in an
            open dataset. Record files are counted whole.
        storage_options: for the filesystem of the dataset's URL.

    Raises the errors of `seqrecord.open`.

    Example:
        summary = seqrecord.summarize("records/")
        print(summary.num_episodes, summary.num_frames)
    """
    # Here, because it imports ten modules that `open` does not need.
    from seqrecord.store.reading.summary import summarize

    options: dict[str, Any] = {"features": features, "storage_options": storage_options}
    if isinstance(dataset, Dataset):
        return summarize(dataset_of(dataset, **options), clip=clip)
    with open_unchecked(dataset, **options) as reader:
        return summarize(reader, clip=clip)


def index_of_original(
    location: StorageLike,
    storage_options: Mapping[str, Any] | None,
    error: NotFoundError,
    *,
    features: Sequence[str] | None = None,
    **options: Any,
) -> FoundIndex:
    """Return the original's index; raise `error` if there is no original.

    If the index of all features lacks an episode or one of `features`, the result is an index of
    only `features`: the episode may be readable without the others.
    """
    find_index: Callable[..., FoundIndex | None] = load_entry(IN_PLACE)
    try:
        index = find_index(location, storage_options, **options)
    except SourceError:
        if features is None:
            raise
    else:
        if index is None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame
        if not features or not (index.bad.records or index.unreadable.keys() & {*features}):
            return index
    feature_index = find_index(
        location, storage_options, features=tuple(sorted({*features})), **options
    )
    assert feature_index is not None  # the same original
    return feature_index
