"""Opens a dataset for random access: its episodes, and through them its frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError, SchemaError, located
from seqrecord.format.index import Index
from seqrecord.format.inventory import Inventory
from seqrecord.format.manifest import Manifest
from seqrecord.processes.forks import cached_property
from seqrecord.reading.contents import Contents, Episodes
from seqrecord.reading.episode import html_card
from seqrecord.reading.externals import ExternalFiles, Originals
from seqrecord.reading.filters import EpisodeFilter
from seqrecord.reading.metadata import load, load_version
from seqrecord.reading.resizing import Sizes, resized_schema
from seqrecord.reading.versions import open_version
from seqrecord.schema import Schema
from seqrecord.statistics.by_feature import Statistics
from seqrecord.storage import Storage, StorageLike, open_storage
from seqrecord.text import shown_place
from seqrecord.units import format_size

if TYPE_CHECKING:
    from seqrecord.reading.compute_statistics import StatisticsProgress
    from seqrecord.reading.frames import FrameTransform

_SHOWN_KEYS = 3  # in a notebook

DatasetLike: TypeAlias = "StorageLike | Dataset"
"""A dataset: its local path or URL, or one from `seqrecord.open`."""


def open_packed(
    location: StorageLike,
    *,
    features: Sequence[str] | None = None,
    version: str | None = None,
    verify: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | PathLike[str] | None = None,
    cache_limit: int | str | None = None,
    originals: Originals = None,
    external_options: Mapping[str, Any] | None = None,
    check_originals: bool = True,
) -> Dataset:
    """Open a dataset that is there as record files; `seqrecord.open` opens more.

    Reads the manifest and opens the index; record files are opened when their frames are read.

    Arguments are those of `seqrecord.open`, but `external_options`: those of `open_storage` for the
    files that pages refer to, and `check_originals`: see `ExternalFiles.check_open`.

    Raises `NotFoundError` where there is no dataset, no such version, or not all of its files,
    `FormatError` for a broken one and `SchemaError` for a feature that it does not have.
    """
    storage = open_storage(location, storage_options, cache_dir=cache_dir, cache_limit=cache_limit)
    try:
        manifest, index = load(storage) if version is None else open_version(storage, version)
        externals = ExternalFiles(storage, originals, external_options)
        if check_originals and (manifest.copied or originals is not None):
            externals.check_open(manifest.copied.lists if manifest.copied else ())
        return Dataset(
            storage, manifest, index, features=features, verify=verify, externals=externals
        )
    except BaseException:
        storage.close()
        raise


def refuse_ignored(beside: str, **arguments: object) -> None:
    """Raise `ClipError` for an argument that is given and would be ignored beside something."""
    for name, value in arguments.items():
        if value is not None:
            raise ClipError(f"{name} does not go with {beside}", expected="None", got=name)


class Dataset:
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
        externals: ExternalFiles | None = None,
        sizes: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        externals = externals or ExternalFiles(storage)
        with located(SchemaError, file=storage.url):
            chosen = index.schema.select(features)
        sizes = {name: size for name, size in (sizes or {}).items() if name in chosen}
        if sizes:
            chosen = resized_schema(chosen, sizes)
        self.contents = Contents(
            *(storage, manifest, index, chosen, verify, names or {}, externals, sizes)
        )
        _ = self.contents.chunks  # raises for codecs that are not there

    @property
    def url(self) -> str:
        """Where the dataset lies, without credentials."""
        return self.contents.storage.url

    @property
    def features(self) -> Schema:
        """The features that are read: a mapping of names to `FeatureSpec`, with dtype and shape."""
        return self.contents.features

    @property
    def schema(self) -> Schema:
        """All features that are stored, also those that the dataset was not opened with."""
        return self.contents.index.schema

    @property
    def num_frames(self) -> int:
        """Frames of all episodes."""
        return self.contents.manifest.num_frames

    @property
    def episodes(self) -> Episodes:
        """The episodes: a mapping of keys to `Episode`, in the order in which they were written."""
        return Episodes(self.contents)

    @cached_property
    def splits(self) -> dict[str, list[str]]:
        """The keys of the episodes of each split, in order, by the split's name."""
        index, names = self.contents.index, self.contents.manifest.splits
        numbers = {name: np.flatnonzero(index.split == i) for i, name in enumerate(names)}
        return {name: index.keys.take(rows).to_pylist() for name, rows in numbers.items()}

    @property
    def statistics(self) -> Statistics:
        """Mean, deviation, extremes and quantiles of each feature; empty where nobody kept them.

        They are read when they are first asked for. Raises `FormatError` for a file that is not as
        it should be, and `NotFoundError` where writers have replaced it twice since the dataset was
        opened.
        """
        return self.contents.statistics

    @property
    def inventories(self) -> tuple[Inventory, ...]:
        """The originals that the dataset was packed from, oldest first: format, features, and
        everything that was left out.

        Empty for a dataset that no source has filled. Raises as `statistics` does.
        """
        return self.contents.inventories

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the content; equal datasets have the same, however they were written."""
        return self.contents.manifest.fingerprint

    @property
    def version(self) -> str:
        """The id of this version, by which `seqrecord.open` opens it again."""
        return self.contents.manifest.commit

    def select(self, features: Sequence[str] | None) -> Dataset:
        """The same dataset with only these features, in this order; all of them for `None`."""
        return self._changed(features=features)

    def renamed(self, names: Mapping[str, str]) -> Dataset:
        """The same dataset with other names of some features, by those that they have here.

        Raises `SchemaError` for a feature that is not there, and a name that is no name, or taken.
        """
        of, schema = self.contents, self.contents.index.schema.active
        schema.select([*names])
        taken = {*names.values()} & (schema.keys() - names.keys())
        if wrong := [name for name in names.values() if name in taken or name.startswith("~")]:
            raise SchemaError(
                "a feature cannot have this name",
                file=self.url,
                expected="a name that no feature has; or another one for that feature, too",
                got=", ".join(wrong),
            )
        features = [names.get(name, name) for name in self.features]
        stored = {**of.names, **{of.stored_name(old): new for old, new in names.items()}}
        sizes = {names.get(name, name): size for name, size in of.sizes.items()}
        index = of.index.renamed(names)
        return self._changed(index=index, features=features, names=stored, sizes=sizes)

    def resized(self, sizes: Sizes | None) -> Dataset:
        """The same dataset, which resizes frames as it decodes them: `(height, width)` by feature,
        or one size for all images; `None` for stored frames.

        Raises `ClipError` for a feature that does not exist or that cannot be resized.
        """
        if sizes is None:
            return self._changed(sizes=None) if self.contents.sizes else self
        with located(ClipError, file=self.url):
            chosen = resized_schema(self.features, sizes)
        changed = {n: spec.shape[:2] for n, spec in chosen.items() if spec.stored_shape is not None}
        return self._changed(sizes=changed)

    def _changed(self, **changes: Any) -> Dataset:
        of, same = self.contents, ("storage", "manifest", "index", "verify", "names", "sizes")
        given = {name: getattr(of, name) for name in (*same, "externals")}
        return Dataset(**{**given, "features": list(of.features), **changes})

    def find_episodes(
        self, episodes: EpisodeFilter, split: str | None = None
    ) -> npt.NDArray[np.int64]:
        """Numbers of the episodes that a filter selects, of a split or of all; in order: int64 [n].

        Raises `ClipError` for a key or a split that is not there, or if nothing is selected.
        """
        return self.contents.find_episodes(episodes, split)

    def compute_statistics(
        self,
        *,
        episodes: EpisodeFilter = None,
        split: str | None = None,
        frame_transform: FrameTransform | None = None,
        max_frames: int | None = None,
        num_threads: int | None = None,
        progress: Callable[[StatisticsProgress], None] | None = None,
    ) -> Statistics:
        """The statistics of its frames, which are read; `seqrecord.add_statistics` stores them.

        They are those that `SeqRecordWriter` makes of the same frames, but for rounding, and that a
        quantile may be another within its bound.

        Args:
            episodes: keys, numbers, a glob or a function, as for the loaders; all by default.
            split: only episodes of the split of this name.
            frame_transform: as for the loaders: statistics are of the arrays that it makes of
                frames that lack no feature.
            max_frames: look at about so many frames of each feature, spread evenly; at all by
                default.
            num_threads: threads; one for each core by default. Each holds 32 MiB of frames,
                decoded, or one frame.
            progress: called from this thread.

        Raises `ClipError` for another number of frames or threads than 1 or more, and for episodes
        or a split that are not there; what reading raises, and what `frame_transform` does.
        """
        from seqrecord.reading.compute_statistics import compute_statistics

        return compute_statistics(
            self.contents,
            episodes=episodes,
            split=split,
            frame_transform=frame_transform,
            max_frames=max_frames,
            num_threads=num_threads,
            progress=progress,
        )

    def close(self) -> None:
        """Close the dataset's files."""
        self.contents.storage.close()
        if self.contents.externals is not None:
            self.contents.externals.close()

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        of = self.contents
        return _reopen, (
            *(of.storage, of.manifest, list(of.features), of.verify, of.names),
            *(of.externals, of.sizes),
        )

    def __repr__(self) -> str:
        features = "".join(f"\n  {spec}" for spec in self.features.values())
        counts = f"{len(self.episodes)} episodes, {self.num_frames} frames"
        return f"Dataset({shown_place(self.url)!r}, {counts}){features}"

    def _repr_html_(self) -> str:
        """What a notebook shows. Nothing is read for it."""
        keys = self.contents.index.keys[:_SHOWN_KEYS].to_pylist()
        more = ", …" if len(self.episodes) > len(keys) else ""
        files = self.contents.manifest.record_files
        facts = [
            ("episodes", f"{len(self.episodes):,}: {', '.join(keys)}{more}"),
            ("frames", f"{self.num_frames:,}"),
            ("record files", f"{len(files):,}, {format_size(sum(file.size for file in files))}"),
        ]
        return html_card(shown_place(self.url), facts, self.features.values())


def _reopen(
    storage: Storage,
    manifest: Manifest,
    features: list[str],
    verify: bool,
    names: Mapping[str, str],
    externals: ExternalFiles | None,
    sizes: Mapping[str, tuple[int, int]],
) -> Dataset:
    """A dataset in another process; its index has been verified in the first."""
    manifest, index = load_version(storage, manifest)
    index = index.renamed(names)
    return Dataset(
        *(storage, manifest, index),
        features=features,
        verify=verify,
        names=names,
        externals=externals,
        sizes=sizes,
    )
