"""Opens a dataset for random access: its episodes, and through them its frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.clips.grids import ChunkGrid
from seqrecord.clips.tables import (
    ClipSpec,
    ClipTable,
    EpisodeTable,
    MissingFrames,
    enumerate_clips,
    missing_from_bitmaps,
)
from seqrecord.errors import ClipError, EpisodeKeyError, SchemaError
from seqrecord.forks import cached_property
from seqrecord.format.index import Index
from seqrecord.format.manifest import Manifest
from seqrecord.format.statistics import read_statistics
from seqrecord.reading.chunks import ChunkReader
from seqrecord.reading.episode import Episode, html_card
from seqrecord.reading.filters import EpisodeFilter, find_episodes, shown_keys
from seqrecord.reading.metadata import load, load_version
from seqrecord.schema import Schema
from seqrecord.statistics.by_feature import Statistics
from seqrecord.storage import Storage, StorageLike, open_storage
from seqrecord.text import repr_of
from seqrecord.units import format_size

__all__ = [
    "DatasetLike",
    "Episode",
    "Episodes",
    "SeqRecordReader",
    "open_dataset",
    "opened",
    "reader_of",
    "refuse_ignored",
]

_SHOWN_KEYS = 3  # in a notebook

DatasetLike: TypeAlias = "StorageLike | SeqRecordReader"
"""A dataset: its local path or URL, or a reader from `seqrecord.open`."""


def open_dataset(
    location: StorageLike,
    *,
    features: Sequence[str] | None = None,
    verify: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | PathLike[str] | None = None,
    cache_limit: int | str | None = None,
) -> SeqRecordReader:
    """Open a dataset for reading; `seqrecord.open` is this function.

    Reads the manifest and opens the index; record files are opened when their frames are read.

    Args:
        location: local path or URL.
        features: names of the features to read; all by default. No bytes of others are read.
        verify: check every page that is read against its checksum. Without it, single frames are
            read alone instead of with their page.
        storage_options: for the filesystem that serves `location`.
        cache_dir: a folder of a local disk that keeps what is read from a remote dataset, so that
            it is read from there the next time. Processes may share it. Off by default.
        cache_limit: the most that the folder may hold: bytes, or text such as "200GiB". What was
            not used for the longest time is removed first. Needed with `cache_dir`.

    Raises `NotFoundError` where there is no dataset, `FormatError` for a broken one and
    `SchemaError` for a feature that it does not have.
    """
    storage = open_storage(location, storage_options, cache_dir=cache_dir, cache_limit=cache_limit)
    try:
        manifest, index = load(storage)
        return SeqRecordReader(storage, manifest, index, features=features, verify=verify)
    except BaseException:
        storage.close()
        raise


def reader_of(
    dataset: DatasetLike, *, features: Sequence[str] | None = None, **options: Any
) -> SeqRecordReader:
    """The reader of a dataset with these features; one that is open is used as it was opened.

    `options` are those of `open_dataset`, and `None` for its defaults. Raises `ClipError` for one
    that does not go with an open dataset, and whatever `open_dataset` raises.
    """
    if isinstance(dataset, SeqRecordReader):
        refuse_ignored("an open dataset", **options)
        return dataset if features is None else dataset.select(features)
    given = {name: value for name, value in options.items() if value is not None}
    return open_dataset(dataset, features=features, **given)


def opened(
    dataset: DatasetLike,
    *,
    features: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> AbstractContextManager[SeqRecordReader]:
    """`reader_of` for a `with` block, which closes what was opened for it."""
    reader = reader_of(dataset, features=features, storage_options=storage_options)
    return nullcontext(reader) if isinstance(dataset, SeqRecordReader) else reader


def refuse_ignored(beside: str, **arguments: object) -> None:
    """Raise `ClipError` for an argument that is given and would be ignored beside something."""
    for name, value in arguments.items():
        if value is not None:
            raise ClipError(f"{name} does not go with {beside}", expected="None", got=name)


class SeqRecordReader:
    """A dataset opened for reading. Safe to use from many threads; cheap to pickle.

    It keeps the episodes that it was opened with, whatever a writer appends. A copy in another
    process, spawned or forked, has the same episodes and opens the same index; if that is gone, the
    index is built again from the record files. Closing the dataset, or leaving its `with` block,
    closes its files; using it again opens them again.
    """

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        index: Index,
        *,
        features: Sequence[str] | None = None,
        verify: bool = True,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self._names = names or {}  # by stored names, those that the index has
        try:
            self.features: Schema = index.schema.select(features)
        except SchemaError as error:
            raise error.located(file=storage.url) from None
        self.storage = storage
        """Where the dataset lies."""
        self.url = storage.url
        """Where that is, without credentials."""
        self.manifest = manifest
        """The manifest as it was when the dataset was opened."""
        self.num_frames = manifest.num_frames
        """Frames of all episodes."""
        self.fingerprint = manifest.fingerprint
        """SHA-256 of the content; equal datasets have the same, however they were written."""
        self.index = index
        """The tables of all episodes and chunks."""
        self._verify = verify
        paths = [file.path for file in manifest.record_files]
        self._chunks = ChunkReader(storage, paths, index, self.features, verify=verify)
        self.episodes = Episodes(index, self._chunks, url=storage.url)

    @cached_property
    def statistics(self) -> Statistics:
        """Mean, deviation, extremes and quantiles of each feature; empty where nobody kept them.

        They are read when they are first asked for. Raises `FormatError` for a file that is not as
        it should be, and `NotFoundError` where writers have replaced it twice since the dataset was
        opened.
        """
        if (file := self.manifest.statistics) is None:
            return Statistics(0, {}, lacking=self.url)
        found, names = read_statistics(self.storage, file, self.manifest.schema), self._names
        return Statistics(found.num_frames, {names.get(n, n): one for n, one in found.items()})

    @cached_property
    def episode_table(self) -> EpisodeTable:
        """The integers of the episodes, for clips and plans."""
        num_frames, grids = self.index.num_frames, []
        for number in sorted({spec.group for spec in self.features.values()}):
            table = self.index.groups[number]
            places = (table.chunk_frames, num_frames, table.first_chunk, table.first_frame)
            grids.append(ChunkGrid.given(*places, group=number))
        return EpisodeTable(num_frames, tuple(grids))

    def select(self, features: Sequence[str] | None) -> SeqRecordReader:
        """The same dataset with only these features, in this order; all of them for `None`."""
        of = self.storage, self.manifest, self.index
        return SeqRecordReader(*of, features=features, verify=self._verify, names=self._names)

    def renamed(self, names: Mapping[str, str]) -> SeqRecordReader:
        """The same dataset with other names of some features, by those that they have here.

        Raises `SchemaError` for a feature that is not there, and a name that is no name, or taken.
        """
        features, schema = [names.get(name, name) for name in self.features], self.index.schema.kept
        schema.select([*names])
        taken = {*names.values()} & (schema.keys() - names.keys())
        if wrong := [name for name in names.values() if name in taken or name.startswith("~")]:
            raise SchemaError(
                "a feature cannot have this name",
                file=self.url,
                expected="a name that no feature has; or another one for that feature, too",
                got=", ".join(wrong),
            )
        stored = {**self._names, **{self.stored_name(old): new for old, new in names.items()}}
        of = self.storage, self.manifest, self.index.renamed(names)
        return SeqRecordReader(*of, features=features, verify=self._verify, names=stored)

    def stored_name(self, feature: str) -> str:
        """The name that a feature is stored by."""
        return next((old for old, new in self._names.items() if new == feature), feature)

    def chunk_reader(self) -> ChunkReader:
        """Reads the chunks of this dataset's features."""
        return self._chunks

    def find_episodes(
        self, episodes: EpisodeFilter, split: str | None = None
    ) -> npt.NDArray[np.int64]:
        """Numbers of the episodes that a filter selects, of a split or of all; in order.

        Raises `ClipError` for a key or a split that is not there, or if nothing is selected.
        """
        return find_episodes(self.index, self.manifest.splits, episodes, split=split, url=self.url)

    def clips(self, spec: ClipSpec, episodes: EpisodeFilter = None) -> ClipTable:
        """All clips of the selected episodes whose frames have all of this dataset's features."""
        selected = self.find_episodes(episodes)
        return enumerate_clips(spec, self.episode_table, selected, self.missing_frames())

    def missing_frames(self) -> MissingFrames:
        """The frames that lack one of this dataset's features."""
        index, found = self.index, []
        columns = [index.schema.position(name) for name in self.features]
        for grid in self.episode_table.groups:
            gaps = index.groups[grid.group].gaps
            gaps = gaps[np.isin(gaps["feature"], columns)]
            chunk, word = gaps["chunk"].astype(np.int64), gaps["word"].astype(np.int64)
            found.append((chunk, word, gaps["present"]))
        return missing_from_bitmaps(self.episode_table, found)

    def close(self) -> None:
        """Close the dataset's files."""
        self.storage.close()

    def __enter__(self) -> SeqRecordReader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"features": list(self.features), "verify": self._verify}
        return _reopen, (self.storage, self.manifest, self._names, options)

    def __repr__(self) -> str:
        features = "".join(f"\n  {spec}" for spec in self.features.values())
        counts = f"{len(self.episodes)} episodes, {self.num_frames} frames"
        return f"SeqRecordReader({self.url!r}, {counts}){features}"

    def _repr_html_(self) -> str:
        """What a notebook shows. Nothing is read for it."""
        keys = self.index.keys[:_SHOWN_KEYS].to_pylist()
        more = ", …" if len(self.episodes) > len(keys) else ""
        size = sum(file.size for file in self.manifest.record_files)
        facts = [
            ("episodes", f"{len(self.episodes):,}: {', '.join(keys)}{more}"),
            ("frames", f"{self.num_frames:,}"),
            ("record files", f"{len(self.manifest.record_files):,}, {format_size(size)}"),
        ]
        return html_card(self.url, facts, self.features.values())


class Episodes(Mapping[str, "Episode"]):
    """A dataset's episodes by key, in the order in which they were written."""

    def __init__(self, index: Index, chunks: ChunkReader, *, url: str) -> None:
        # Not of the dataset, which refers to this: its files are closed as soon as it is dropped.
        self._index = index
        self._chunks = chunks
        self._url = url

    def __getitem__(self, key: str) -> Episode:
        position = self._index.positions.get(key)
        if position is None:
            raise EpisodeKeyError(
                "no episode of this key",
                file=self._url,
                expected=f"a key of {shown_keys(self._index)}",
                got=repr_of(key),
            )
        return Episode(self._chunks, self._index, position)

    def __contains__(self, key: object) -> bool:
        return key in self._index.positions

    def __iter__(self) -> Iterator[str]:
        return iter(self._index.positions)

    def __len__(self) -> int:
        return len(self._index.num_frames)

    def __repr__(self) -> str:
        return f"Episodes({len(self)} of {self._url!r})"


def _reopen(
    storage: Storage, manifest: Manifest, names: Mapping[str, str], options: dict[str, Any]
) -> SeqRecordReader:
    """A dataset in another process; its index has been verified in the first."""
    manifest, index = load_version(storage, manifest)
    return SeqRecordReader(storage, manifest, index.renamed(names), names=names, **options)
