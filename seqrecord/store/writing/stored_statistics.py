"""Statistics of a dataset: stored by writers, or computed afterwards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import reduce
from os import PathLike
from typing import Any

from seqrecord.errors import DestinationError, FormatError, NotFoundError
from seqrecord.store.format.manifest import Manifest
from seqrecord.store.format.statistics_file import read_statistics
from seqrecord.store.statistics.by_feature import Statistics
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.opening import open_storage
from seqrecord.store.units import Progress
from seqrecord.store.writing.commits import Version
from seqrecord.store.writing.committing import SmallFiles, commit, read_indexed, recorded

_logger = logging.getLogger("seqrecord")


def merge_statistics(parts: Sequence[Statistics | None]) -> Statistics | None:
    """The merged statistics of all parts; `None` if a part has none."""
    statistics = [part for part in parts if part is not None]
    if not statistics or len(statistics) < len(parts):
        return None
    return reduce(Statistics.merged, statistics)


def stored_statistics(storage: Storage, manifest: Manifest | None) -> Statistics | None:
    """Statistics that a dataset stores, or `None`; see `read_statistics`."""
    if manifest is None or manifest.statistics is None:
        return None
    return read_statistics(storage, manifest.statistics, manifest.schema)


def statistics_of(
    storage: Storage, manifest: Manifest | None, version: Version, addition: Statistics | None
) -> Statistics | None:
    """Statistics of the dataset `version`: the statistics of `manifest`, merged with `addition`.

    `None` if some frames would lack them, if `addition` has no frames, or if it has none of the
    dataset's features: statistics of copied chunks are unknown. If it has some of them, the log
    names the others.
    """
    if addition is None or not addition.num_frames:
        return None
    try:
        previous = stored_statistics(storage, manifest)
    except (NotFoundError, FormatError) as error:
        previous = None
        _logger.warning("%s: statistics dropped: %s", storage.url, error)
    total = addition if previous is None else previous.merged(addition)
    num_frames = int(version.index.num_frames.sum())
    if total.num_frames != num_frames:
        _logger.info(
            "%s: statistics not stored: %d of %d frames lack them; run `seqrecord stats`",
            *(storage.url, num_frames - total.num_frames, num_frames),
        )
        return None
    lost_names = [name for name in previous or () if name not in total]
    if lost_names and not total:
        return None  # `put_version` logs it
    if lost_names:
        _logger.warning(
            "%s: statistics of %s removed because the new frames have none; run `seqrecord stats "
            "--recompute`",
            *(storage.url, ", ".join(lost_names)),
        )
    return total


@recorded
def add_statistics(
    location: str | PathLike[str],
    *,
    only_lacking: bool = False,
    max_frames: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Statistics:
    """Compute a dataset's statistics and store them in place of the old ones.

    Args:
        location: local path or URL of the dataset.
        only_lacking: keep existing statistics, and read only features without any, such as video
            and images that a conversion did not decode. Without such a feature, nothing changes.
        max_frames: as for `Dataset.compute_statistics`.
        progress: as for `Dataset.compute_statistics`.
        storage_options: for the filesystem that serves a URL.

    Raises the errors of `Dataset.compute_statistics` and `seqrecord.open`, and `ConflictError` if
    a writer commits meanwhile; then nothing was changed.

    Example:
        statistics = seqrecord.add_statistics("records/", max_frames=100)
        print(statistics["action"].mean)
    """
    # Imported here: a writer does not need the modules that read frames.
    from seqrecord.store.reading.contents import Contents
    from seqrecord.store.reading.dataset import Dataset

    with closing(open_storage(location, storage_options)) as storage:
        base, manifest, index = read_indexed(storage)
        reader = Dataset(Contents.of(storage, manifest, index))
        existing = reader.statistics if only_lacking else Statistics(0, {})
        names = existing.missing(reader.features)
        if existing and not names:
            return existing
        selection = reader.select(names) if existing else reader
        computed = selection.compute_statistics(max_frames=max_frames, progress=progress)
        statistics = Statistics(reader.num_frames, {**existing, **computed})
        with SmallFiles(storage) as small_files:
            if (file := small_files.put_statistics(statistics)) is None:
                raise DestinationError("statistics are too large to store", file=storage.url)
            commit(small_files, base, replace(manifest, statistics=file))
        return statistics
