"""Statistics of a dataset: kept when it is written, computed for one that has none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import reduce
from os import PathLike
from typing import TYPE_CHECKING, Any

from seqrecord.errors import DestinationError, FormatError, NotFoundError
from seqrecord.format.manifest import Manifest
from seqrecord.format.statistics_file import encode_statistics, read_statistics
from seqrecord.statistics.by_feature import Statistics
from seqrecord.storage import Storage, open_storage
from seqrecord.writing.commits import Version
from seqrecord.writing.committing import commit, read_indexed
from seqrecord.writing.own_files import SmallFiles

if TYPE_CHECKING:
    from seqrecord.reading.compute_statistics import StatisticsProgress

_logger = logging.getLogger("seqrecord")


def merged(parts: Sequence[Statistics | None]) -> Statistics | None:
    """The statistics of all parts together; `None` where one has none."""
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    return reduce(Statistics.merged, known)


def stored_statistics(storage: Storage, manifest: Manifest | None) -> Statistics | None:
    """Those that a dataset has, if it has any; see `read_statistics`."""
    if manifest is None or manifest.statistics is None:
        return None
    return read_statistics(storage, manifest.statistics, manifest.schema)


def statistics_of(
    storage: Storage, manifest: Manifest | None, version: Version, new: Statistics | None
) -> Statistics | None:
    """Those of a dataset that was `manifest` and becomes `version`, of which `new` was written.

    `None` where they would leave out frames, or nothing was written.
    """
    if new is None or not new.num_frames:
        return None
    try:
        old = stored_statistics(storage, manifest)
    except (NotFoundError, FormatError) as error:
        old = None
        _logger.warning("%s: the statistics are not kept: %s", storage.url, error)
    together = new if old is None else old.merged(new)
    num_frames = int(version.index.num_frames.sum())
    if together.num_frames == num_frames:
        return together
    _logger.info(
        "%s: no statistics, for %d of %d frames have none; `seqrecord stats` computes them",
        *(storage.url, num_frames - together.num_frames, num_frames),
    )
    return None


def add_statistics(
    location: str | PathLike[str],
    *,
    only_lacking: bool = False,
    given: Statistics | None = None,
    max_frames: int | None = None,
    num_threads: int | None = None,
    progress: Callable[[StatisticsProgress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Statistics:
    """Compute a dataset's statistics, and put them into it in place of those that are there.

    With `only_lacking` those that are there stay, and only features that have none are read: video
    and images that a conversion has kept as they are. Nothing is changed where there is no such
    feature. With `given`, those of `seqrecord.sources.LeRobotSource(…).statistics` say, nothing is
    read: they take the place of those of the same features. Other arguments are those of
    `Dataset.compute_statistics`. Raises what that and `seqrecord.open` raise, `DestinationError`
    for some that are given of another number of frames, `FormatError` for those of other features,
    and `ConflictError` where a writer commits meanwhile; then nothing was changed.
    """
    # Here, since a writer does without all that reads frames.
    from seqrecord.reading.dataset import Dataset

    with closing(open_storage(location, storage_options)) as storage:
        base, manifest, index = read_indexed(storage)
        reader = Dataset(storage, manifest, index)
        keeps = only_lacking or given is not None
        known = reader.statistics if keeps else Statistics(0, {})
        missing = known.missing(reader.features)
        if given is not None:
            if given.num_frames != reader.num_frames:
                raise DestinationError(
                    "statistics of other frames",
                    file=storage.url,
                    expected=f"of {reader.num_frames} frames",
                    got=f"of {given.num_frames}",
                )
            given.check(reader.features)
            found = given
        elif known and not missing:
            return known
        else:
            chosen = reader.select(missing) if known else reader
            found = chosen.compute_statistics(
                max_frames=max_frames,
                num_threads=num_threads,
                progress=progress,
            )
        statistics = Statistics(reader.num_frames, {**known, **found})
        data = encode_statistics(statistics)
        if data is None:
            raise DestinationError("the statistics are too large to be stored", file=storage.url)
        with SmallFiles(storage) as own:
            file = own.put_index("statistics.json", data)
            commit(own, base, replace(manifest, statistics=file))
        return statistics
