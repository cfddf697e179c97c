"""Opens a dataset for random access: its episodes, and through them its frames."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.catalog import load, load_version
from seqrecord.chunks import ChunkReader
from seqrecord.clips import (
    ClipSpec,
    ClipTable,
    EpisodeTable,
    MissingFrames,
    enumerate_clips,
    missing_from_bitmaps,
)
from seqrecord.episode import Episode, FrameArray
from seqrecord.errors import ClipError
from seqrecord.html_card import html_card
from seqrecord.index import Index
from seqrecord.manifest import Manifest
from seqrecord.schema import Schema
from seqrecord.storage import Storage, StorageLike, open_storage
from seqrecord.units import format_size

__all__ = ["Dataset", "Episode", "EpisodeFilter", "Episodes", "FrameArray", "open_dataset"]

_SHOWN_KEYS = 3  # in a notebook

EpisodeFilter: TypeAlias = "str | Sequence[str] | Callable[[Mapping[str, Any]], bool] | None"
"""Episodes by a glob on keys, by keys, by a predicate on their metadata; `None` for all."""


def open_dataset(
    location: StorageLike,
    *,
    features: Sequence[str] | None = None,
    verify: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | PathLike[str] | None = None,
    cache_limit: int | str | None = None,
) -> Dataset:
    """Open a dataset for reading; `seqrecord.open` is this function.

    Reads the manifest and opens the index; record files are opened when their frames are read.

    Args:
        location: local path or URL.
        features: names of the features to read; all by default. No bytes of others are read.
        verify: check every page that is read against its checksum. Without it, single frames are
            read alone instead of with their page.
        storage_options: for the filesystem that serves `location`.
        cache_dir: a folder of a local disk in which what is read of a remote dataset is kept, so
            that it is read from there the next time, by whoever names this folder. Off by default.
        cache_limit: bytes, or text such as "200GiB", that the folder may take; what was not used
            for longest makes room. Needed with `cache_dir`.

    Raises `NotFoundError` where there is no dataset, `FormatError` for a broken one and
    `SchemaError` for a feature that it does not have.
    """
    storage = open_storage(location, storage_options, cache_dir=cache_dir, cache_limit=cache_limit)
    try:
        manifest, index = load(storage)
        return Dataset(storage, manifest, index, features=features, verify=verify)
    except BaseException:
        storage.close()
        raise


class Dataset:
    """A dataset opened for reading. Safe to use from many threads; cheap to pickle.

    It goes on with what it has opened, whatever a writer appends. A copy in another process,
    spawned or forked, is of the same episodes and opens the same index; where that is gone, it is
    built anew from the record files. Closing the dataset, or leaving its `with` block, closes its
    files; it opens them again when it is used again.
    """

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        index: Index,
        *,
        features: Sequence[str] | None = None,
        verify: bool = True,
    ) -> None:
        self.features: Schema = manifest.schema.select(features)
        self.episodes = Episodes(self)
        self._storage = storage
        self._manifest = manifest
        self._index = index
        self._verify = verify
        self._chunks = ChunkReader(storage, manifest, index, self.features, verify=verify)

    @property
    def url(self) -> str:
        """Where the dataset lies, without credentials."""
        return self._storage.url

    @property
    def num_frames(self) -> int:
        """Frames of all episodes."""
        return self._manifest.num_frames

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the content; equal datasets have the same, however they were written."""
        return self._manifest.fingerprint

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    @property
    def index(self) -> Index:
        return self._index

    @property
    def storage(self) -> Storage:
        return self._storage

    @property
    def episode_table(self) -> EpisodeTable:
        """The integers of the episodes, for clips and plans."""
        index = self._index
        return EpisodeTable(index.num_frames, index.chunk_frames, index.first_chunk)

    def select(self, features: Sequence[str] | None) -> Dataset:
        """The same dataset with only these features, in this order; all of them for `None`."""
        return Dataset(
            self._storage, self._manifest, self._index, features=features, verify=self._verify
        )

    def chunk_reader(self) -> ChunkReader:
        """Reads the chunks of this dataset's features."""
        return self._chunks

    def find_episodes(self, episodes: EpisodeFilter) -> npt.NDArray[np.int64]:
        """Numbers of the episodes that a filter selects, in the dataset's order.

        Raises `ClipError` for a key that is not there, or if nothing is selected.
        """
        index = self._index
        if episodes is None:
            return np.arange(len(index.num_frames))
        if isinstance(episodes, str):
            found = [i for key, i in index.positions.items() if fnmatch.fnmatchcase(key, episodes)]
        elif callable(episodes):
            every = range(len(index.num_frames))
            found = [i for i in every if episodes(index.episode_metadata(i))]
        else:
            unknown = [key for key in episodes if key not in index.positions]
            if unknown:
                raise ClipError("no such episode", file=self.url, got=", ".join(unknown[:10]))
            found = sorted({index.positions[key] for key in episodes})
        if not found:
            raise ClipError("no episode is selected", file=self.url, got=repr(episodes)[:200])
        return np.array(found, np.int64)

    def clips(self, spec: ClipSpec, episodes: EpisodeFilter = None) -> ClipTable:
        """All clips of the selected episodes whose frames have all of this dataset's features."""
        selected = self.find_episodes(episodes)
        return enumerate_clips(spec, self.episode_table, selected, self.missing_frames())

    def missing_frames(self) -> MissingFrames:
        """The frames that lack one of this dataset's features."""
        index = self._index
        columns = [index.schema.position(name) for name in self.features]
        gaps = index.gaps[np.isin(index.gaps["feature"], columns)]
        return missing_from_bitmaps(
            self.episode_table, gaps["chunk"].astype(np.int64), gaps["present"]
        )

    def close(self) -> None:
        self._storage.close()

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._storage, self._manifest, list(self.features), self._verify)

    def __repr__(self) -> str:
        features = "".join(f"\n  {spec}" for spec in self.features.values())
        return (
            f"Dataset({self.url!r}, {len(self.episodes)} episodes, {self.num_frames} frames)"
            f"{features}"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows. Nothing is read for it."""
        keys = self._index.keys[:_SHOWN_KEYS].to_pylist()
        more = ", …" if len(self.episodes) > len(keys) else ""
        size = sum(file.size for file in self._manifest.record_files)
        facts = [
            ("episodes", f"{len(self.episodes):,}: {', '.join(keys)}{more}"),
            ("frames", f"{self.num_frames:,}"),
            ("record files", f"{len(self._manifest.record_files):,}, {format_size(size)}"),
        ]
        return html_card(self.url, facts, self.features.values())


class Episodes(Mapping[str, "Episode"]):
    """A dataset's episodes by key, in the order in which they were written."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __getitem__(self, key: str) -> Episode:
        index = self._dataset.index
        return Episode(self._dataset.chunk_reader(), index, index.positions[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._dataset.index.positions)

    def __len__(self) -> int:
        return len(self._dataset.index.num_frames)

    def __repr__(self) -> str:
        return f"Episodes({len(self)} of {self._dataset.url!r})"


def _reopen(storage: Storage, manifest: Manifest, features: list[str], verify: bool) -> Dataset:
    """A dataset in another process; its index has been verified in the first."""
    manifest, index = load_version(storage, manifest)
    return Dataset(storage, manifest, index, features=features, verify=verify)
