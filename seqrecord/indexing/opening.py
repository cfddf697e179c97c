"""Opens what lies at a place: a dataset, or an original that is read where it lies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqrecord.clips.tables import ClipSpec
from seqrecord.errors import NotFoundError
from seqrecord.reading.dataset import Dataset, DatasetLike, open_packed, refuse_ignored
from seqrecord.reading.externals import ExternalFiles, Originals
from seqrecord.storage import LocalStorage, StorageLike, open_storage

if TYPE_CHECKING:  # imported where they are used: `open` does without
    from seqrecord.reading.summary import Summary
    from seqrecord.reading.verify import VerifyProgress, VerifyReport


def open(  # noqa: A001 - `seqrecord.open`, as `gzip.open`
    location: StorageLike,
    *,
    features: Sequence[str] | None = None,
    version: str | None = None,
    verify: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | PathLike[str] | None = None,
    cache_limit: int | str | None = None,
    originals: Originals = None,
    tolerance: float | None = None,
) -> Dataset:
    """Open a dataset for reading; `seqrecord.open` is this function.

    Reads the manifest and opens the index; record files are opened when their frames are read.
    Where no dataset lies but a LeRobot dataset or a folder of video, these are read as they lie:
    their index is made in the folder `SEQRECORD_HOME`, by default the platform's for caches, and
    found there again.

    Args:
        location: local path or URL.
        features: names of the features to read; all by default. No bytes of others are read.
        version: the id of an earlier version, as `Dataset.version` or `seqrecord info --versions`
            has it; by default the dataset as it is.
        verify: check every page that is read against its checksum. Without it, single frames are
            read alone instead of with their page.
        storage_options: for the filesystem that serves `location`.
        cache_dir: a folder of a local disk that keeps what is read from a remote dataset, so that
            it is read from there the next time. Processes may share it. Off by default.
        cache_limit: the most that the folder may hold: bytes, or text such as "200GiB". What was
            not used for the longest time is removed first. Needed with `cache_dir`.
        originals: the place of the original files of an index now: a local path or URL, or, of an
            index of several originals, a dict from each old root to its new place. Sizes of all
            files, and checksums of samples of 16 files of each root, are compared. By default the
            place at which you indexed them.
        tolerance: of a LeRobot dataset that is read as it lies, how far from its row's time a frame
            may be, in seconds; by default 0.1 ms. Records have their frames already.

    Files from which an index copied values are looked at, once per process: see docs/in-place.md.

    Raises `NotFoundError` where there is neither, no such version, or not all of its files,
    `FormatError` for a broken dataset, `SourceError` for a broken original, and for a `tolerance`
    of one that is no LeRobot dataset, `ClipError` for `originals` of what is an original itself and
    `SchemaError` for a feature that it does not have.
    """
    return _open(
        location,
        storage_options,
        tolerance,
        features=features,
        version=version,
        verify=verify,
        cache_dir=cache_dir,
        cache_limit=cache_limit,
        originals=originals,
    )


def open_unchecked(
    location: StorageLike,
    *,
    features: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """As `open`, without a look at an index's originals: to show it, not to read it."""
    return _open(location, storage_options, None, features=features, check_originals=False)


def _open(
    location: StorageLike,
    storage_options: Mapping[str, Any] | None,
    tolerance: float | None,
    *,
    features: Sequence[str] | None = None,
    version: str | None = None,
    verify: bool = True,
    cache_dir: str | PathLike[str] | None = None,
    cache_limit: int | str | None = None,
    originals: Originals = None,
    check_originals: bool = True,
) -> Dataset:
    options: dict[str, Any] = {
        "storage_options": storage_options,
        "cache_dir": cache_dir,
        "cache_limit": cache_limit,
    }
    try:
        return open_packed(
            location,
            features=features,
            version=version,
            verify=verify,
            originals=originals,
            check_originals=check_originals,
            **options,
        )
    except NotFoundError as error:
        if version is not None:
            raise
        chosen = {} if tolerance is None else {"tolerance": tolerance}
        folder = _index_of(location, storage_options, error, **chosen)
    refuse_ignored("an original that is read where it lies", originals=originals)
    # The index was compared with the original just now.
    return open_packed(
        folder, features=features, verify=verify, external_options=options, check_originals=False
    )


def dataset_of(
    dataset: DatasetLike, *, features: Sequence[str] | None = None, **options: Any
) -> Dataset:
    """An open dataset with these features; one that is open is used as it was opened.

    `options` are those of `open`, and `None` for its defaults. Raises `ClipError` for one
    that does not go with an open dataset, and whatever `open` raises.
    """
    if isinstance(dataset, Dataset):
        refuse_ignored("an open dataset", **options)
        return dataset if features is None else dataset.select(features)
    given = {name: value for name, value in options.items() if value is not None}
    return open(dataset, features=features, **given)


def opened(
    dataset: DatasetLike,
    *,
    features: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> AbstractContextManager[Dataset]:
    """`dataset_of` for a `with` block, which closes what was opened for it; of stored frames."""
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
        clip: which clips to count, if any.
        features: names of the features that are described, and that clips must have; by default
            those that the dataset was opened with, or all. Record files are counted whole.
        storage_options: for the filesystem that serves the dataset's URL.

    Raises what `seqrecord.open` raises.
    """
    from seqrecord.reading.summary import summarize

    options: dict[str, Any] = {"features": features, "storage_options": storage_options}
    if isinstance(dataset, Dataset):
        return summarize(dataset_of(dataset, **options), clip=clip)
    with open_unchecked(dataset, **options) as reader:
        return summarize(reader, clip=clip)


def verify(
    dataset: DatasetLike,
    *,
    deep: bool = False,
    num_threads: int | None = None,
    progress: Callable[[VerifyProgress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> VerifyReport:
    """Read everything of a dataset and report all that is wrong.

    Checks manifest and index, each record file's header and footer and that they agree with them,
    the checksums of every page and of its slices, and that files which pages refer to are as they
    were indexed. A broken index is reported and replaced by what the record files say, so that
    their pages are checked all the same. Memory: the index, the same index built from the record
    files, and a chunk per thread.

    That there was no problem is recorded in `verified.json` beside the manifest, if that can be
    written in one step (by fsspec it cannot); `summarize` and the next `verify` say when it was.
    Nothing else is written.

    Args:
        dataset: local path or URL, or an open dataset, of which what lies there now is read too,
            through its cache if it has one.
        deep: decode every frame of every feature as well.
        num_threads: by default one for each core.
        progress: called from this thread, after every chunk.
        storage_options: for the filesystem that serves the dataset's URL.

    Raises `NotFoundError` where there is no dataset, and `StorageError` if its manifest cannot be
    read, or the storage does not answer any more; what is wrong beyond that is in the report, in an
    order that does not depend on threads.
    """
    from seqrecord.reading.verify import verify

    checks: dict[str, Any] = {"deep": deep, "num_threads": num_threads, "progress": progress}
    if isinstance(dataset, Dataset):
        refuse_ignored("an open dataset", storage_options=storage_options)
        return verify(dataset.contents.storage, dataset.contents.externals, **checks)
    with closing(open_storage(dataset, storage_options)) as storage:
        try:
            return verify(storage, **checks)
        except NotFoundError as error:
            folder = _index_of(dataset, storage_options, error)
    storage = LocalStorage(folder)
    with closing(ExternalFiles(storage, None, {"storage_options": storage_options})) as externals:
        return verify(storage, externals, **checks)


def _index_of(
    location: StorageLike,
    storage_options: Mapping[str, Any] | None,
    error: NotFoundError,
    **options: Any,
) -> Path:
    """The folder of the index of the original there; `error` where none lies there."""
    # Here, for what finds originals takes longer to import than what opens datasets.
    from seqrecord.indexing.originals import find_index

    folder = find_index(location, storage_options, **options)
    if folder is None:
        raise error
    return folder
