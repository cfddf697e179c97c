"""Random access to a dataset: episodes and their frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError, SchemaError, located
from seqrecord.store.areas import STATISTICS, load_entry
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.reading.contents import Contents, Episodes, Verify
from seqrecord.store.reading.filters import BadEpisodes, EpisodeFilter
from seqrecord.store.reading.metadata import load, load_version
from seqrecord.store.reading.notebook import MAX_ROWS, html_card
from seqrecord.store.reading.resizing import Sizes, resized_schema
from seqrecord.store.schema import Schema
from seqrecord.store.statistics.by_feature import Statistics
from seqrecord.store.storage.opening import StorageLike, open_storage
from seqrecord.store.text import repr_of, shown_place
from seqrecord.store.units import Progress, format_size

if TYPE_CHECKING:
    from seqrecord.store.format.inventory import Inventory
    from seqrecord.store.reading.external_files import ExternalFiles, Originals
    from seqrecord.store.reading.text_dictionaries import TextDictionary
    from seqrecord.store.value_kinds import FrameFunction

DatasetLike: TypeAlias = "StorageLike | Dataset"
"""A dataset: local path, URL, or an open `Dataset`."""


def open_packed(
    location: StorageLike,
    *,
    features: Sequence[str] | None = None,
    version: str | None = None,
    verify: Verify = True,
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | PathLike[str] | None = None,
    cache_limit: int | str | None = None,
    originals: Originals = None,
    external_options: Mapping[str, Any] | None = None,
    check_originals: bool = True,
    bad: BadEpisodes | None = None,
) -> Dataset:
    """Open a dataset of record files. `seqrecord.open` also opens originals.

    Reads the manifest and maps the index. Record files are opened by the first read of their
    frames.

    Takes the arguments of `seqrecord.open`, and three more: `external_options`, the `open_storage`
    arguments for external files; `check_originals`, which compares them with their index; `bad`,
    the original's episodes that are not in the dataset.

    Raises `NotFoundError` if the dataset, the version or one of its files is missing,
    `FormatError` for a damaged dataset and `SchemaError` for an unknown feature.
    """
    _check_verify(verify)
    storage = open_storage(location, storage_options, cache_dir=cache_dir, cache_limit=cache_limit)
    externals: ExternalFiles | None = None
    try:
        # Imports for few datasets are here: a first batch imports little (tests/project/
        # test_layers.py::test_a_first_batch_imports_little).
        if version is None:
            manifest, index = load(storage)
        else:
            from seqrecord.store.reading.versions import open_version

            manifest, index = open_version(storage, version)
        if manifest.copied or originals is not None or external_options:
            from seqrecord.store.reading.external_files import open_external_files

            externals = open_external_files(storage, originals, external_options)
            if check_originals and (manifest.copied or originals is not None):
                externals.compare(manifest.copied.lists if manifest.copied else ())
        settings: dict[str, Any] = {"verify": verify, "externals": externals}
        settings |= {} if bad is None else {"bad": bad}
        return Dataset(Contents.of(storage, manifest, index, features, **settings))
    except BaseException:
        if externals is not None:
            externals.close()
        storage.close()
        raise


def refuse_ignored(partner: str, **arguments: object) -> None:
    """Raise `ClipError` for an argument that `partner` would ignore. `None` counts as not given."""
    for name, value in arguments.items():
        if value is not None:
            raise ClipError(f"{name} cannot be combined with {partner}", expected="None", got=name)


class Dataset:
    """A dataset opened for reading. Thread-safe and cheap to pickle.

    Its episodes are a snapshot: a writer's later commits do not change it. Copies in other
    processes (spawned or forked) have the same episodes and open the same index. A deleted index is
    rebuilt from the record files. `close()`, or the end of a `with` block, closes its files; they
    are reopened on demand.

    Example:
        with seqrecord.open("records/") as dataset:
            key, episode = next(iter(dataset.episodes.items()))
            print(key, len(episode), dataset.features)
    """

    def __init__(self, parts: Contents) -> None:
        self.contents = parts
        with located(SchemaError, file=self.url):
            _ = parts.chunks  # raises for unknown codecs

    @property
    def url(self) -> str:
        """Path or URL of the dataset, without credentials."""
        return self.contents.storage.url

    def __len__(self) -> NoReturn:
        """Raise `TypeError`: a dataset has episodes and frames."""
        raise TypeError(
            "a dataset has episodes and frames: len(dataset.episodes), dataset.num_frames; "
            "summarize(dataset, clip=…) counts clips"
        )

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, key: object) -> NoReturn:
        """Raise `TypeError`: episodes are in `episodes`."""
        raise TypeError(
            "a dataset is no sequence of frames or clips: dataset.episodes[key][frame], "
            "dataset.episodes.items(); SeqRecordMapDataset has clips by number"
        )

    @cached_property
    def features(self) -> Schema:
        """Selected features: a mapping from name to `FeatureSpec`, with dtype and shape."""
        return self.contents.features

    @property
    def schema(self) -> Schema:
        """All stored features, selected or not."""
        return self.contents.index.schema

    @property
    def num_frames(self) -> int:
        """Number of frames in all episodes."""
        return self.contents.manifest.num_frames

    @property
    def episodes(self) -> Episodes:
        """Episodes by key, in the order of writing."""
        return Episodes(self.contents)

    @cached_property
    def splits(self) -> dict[str, list[str]]:
        """Episode keys of each split, by split name."""
        index, names = self.contents.index, self.contents.manifest.splits
        numbers = {name: np.flatnonzero(index.split == i) for i, name in enumerate(names)}
        return {name: index.keys_of(rows) for name, rows in numbers.items()}

    @property
    def bad_episodes(self) -> dict[str, str]:
        """Episodes of an original read in place that cannot be read: error by key."""
        return {key: str(error) for key, error in self.contents.bad.errors.items()}

    @property
    def statistics(self) -> Statistics:
        """Mean, standard deviation, extremes and quantiles of each feature; empty if not stored.

        Read on first access. Raises `FormatError` for a damaged file, and `NotFoundError` if
        writers replaced the file twice since the dataset was opened.
        """
        return self.contents.statistics

    @property
    def inventories(self) -> tuple[Inventory, ...]:
        """Reports on the originals, oldest first: format, features, and data left out.

        Empty if no source filled the dataset. Raises the same errors as `statistics`.
        """
        return self.contents.inventories

    @cached_property
    def dictionaries(self) -> dict[str, TextDictionary]:
        """Values of texts by name, such as `task_embedding`; see docs/derive.md.

        Those of which the dataset has the text feature. Each is a mapping from text to value.
        Raises `MissingPackageError` without the part `companions`, unless there are none.
        """
        features = self.features
        places = [
            place
            for place in self.contents.dictionaries
            if place.text in features and features[place.text].value == "text"
        ]
        if not places:
            return {}
        # Few datasets have dictionaries.
        from seqrecord.store.reading.text_dictionaries import open_dictionary

        return {place.name: open_dictionary(place) for place in places}

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the content; independent of record file boundaries and writing order."""
        return self.contents.manifest.fingerprint

    @property
    def version(self) -> str:
        """Id of this version, for the argument `version` of `seqrecord.open`."""
        return self.contents.manifest.commit

    def select(self, features: Sequence[str] | None) -> Dataset:
        """Return the dataset with only these features, in this order; `None` selects all.

        Names of `dictionaries` select these, and their text features.
        """
        return Dataset(self.contents.selected(features))

    def renamed(self, names: Mapping[str, str]) -> Dataset:
        """Return the dataset with features or dictionaries renamed. `names`: present to new names.

        Texts of dictionaries may be features of a dataset that this one will join.

        Raises `SchemaError` for an unknown feature, and for an invalid or duplicate new name.
        """
        contents, schema = self.contents, self.contents.index.schema.active
        of_texts = {place.name for place in contents.dictionaries}
        texts = {place.text for place in contents.dictionaries}
        if features := [name for name in names if name not in of_texts | texts]:
            schema.select(features)
        used_names = {*names.values()} & ((schema.keys() | of_texts) - names.keys())
        if invalid_names := [n for n in names.values() if n in used_names or n.startswith("~")]:
            raise SchemaError(
                "invalid new name of a feature",
                file=self.url,
                expected="an unused name; to swap names, rename both features",
                got=", ".join(invalid_names),
            )
        stored_names = {contents.stored_name(name): renamed for name, renamed in names.items()}
        stored_names |= {p.feature: names[p.name] for p in contents.dictionaries if p.name in names}
        stored_names = {**contents.names, **stored_names}
        renamed: dict[str, Any] = {
            "index": contents.index.renamed(names),
            "features": contents.features.renamed(names),
            "names": stored_names,
            "dictionaries": tuple(place.renamed(names) for place in contents.dictionaries),
        }
        return Dataset(replace(contents, **renamed))

    def resized(self, sizes: Sizes | None) -> Dataset:
        """Return the dataset with frames resized during decoding.

        `sizes` is `(height, width)` by feature, or one size for all images. `None` returns stored
        frames. Raises `ClipError` for a feature that is unknown or cannot be resized.
        """
        if sizes is None:
            schema = Schema([spec.stored for spec in self.features.values()])
            return Dataset(replace(self.contents, features=schema)) if self.contents.sizes else self
        with located(ClipError, file=self.url):
            schema = resized_schema(self.features, sizes)
        return Dataset(replace(self.contents, features=schema))

    def find_episodes(
        self, episodes: EpisodeFilter, split: str | None = None
    ) -> npt.NDArray[np.int64]:
        """Return the numbers of selected episodes, ascending: int64 [n].

        Numbers of an original read in place count its bad episodes, too.

        Raises `ClipError` for an unknown key or split, or if nothing is selected, and `SourceError`
        for episodes of an original that cannot be read.
        """
        return np.sort(self.contents.numbers_of(self.contents.find_episodes(episodes, split)))

    def compute_statistics(
        self,
        *,
        episodes: EpisodeFilter = None,
        split: str | None = None,
        frame_transform: FrameFunction | None = None,
        max_frames: int | None = None,
        num_threads: int | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Statistics:
        """Compute statistics by reading the frames. `seqrecord.add_statistics` stores them.

        Results equal `SeqRecordWriter`'s for the same frames, up to rounding and the error
        bound of quantiles.

        Args:
            episodes: keys, numbers, a glob or a function, as for the loaders; default all.
            split: only episodes of this split.
            frame_transform: as for the loaders. Statistics are computed of its results. Frames with
                missing features are skipped.
            max_frames: approximate number of frames per feature, spread evenly; default all.
            num_threads: default one per core. Each thread needs 32 MiB for decoded frames, or more
                for a larger frame.
            progress: called from the calling thread, in frames processed for all features.

        Raises `ClipError` for unknown episodes or an unknown split, and if `max_frames` or
        `num_threads` is below 1. Errors in reading and in `frame_transform` are passed on.

        Example:
            dataset = seqrecord.open("records/")
            statistics = dataset.compute_statistics(max_frames=1000)
            print(statistics["pose"].mean)
        """
        settings = max_frames, num_threads, progress
        compute: Callable[..., Statistics] = load_entry(STATISTICS)
        return compute(self.contents, episodes, split, frame_transform, *settings)

    def close(self) -> None:
        """Close the dataset's files."""
        for dictionary in vars(self).get("dictionaries", {}).values():
            dictionary.close()
        self.contents.storage.close()
        self.contents.chunks.close()

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        names = [field.name for field in fields(self.contents) if field.name != "index"]
        return _reopen, ({name: getattr(self.contents, name) for name in names},)

    def __repr__(self) -> str:
        features = "".join(f"\n  {spec}" for spec in self.features.values())
        counts = f"{len(self.episodes)} episodes, {self.num_frames} frames"
        return f"Dataset({shown_place(self.url)!r}, {counts}){features}"

    def _repr_html_(self) -> str:
        """HTML for notebooks. Reads no files."""
        keys = self.contents.index.keys[:MAX_ROWS].to_pylist()
        ellipsis = ", …" if len(self.episodes) > len(keys) else ""
        files = self.contents.manifest.record_files
        size = format_size(sum(file.size for file in files))
        facts = [
            ("episodes", f"{len(self.episodes):,}: {', '.join(keys)}{ellipsis}"),
            ("frames", f"{self.num_frames:,}"),
            ("record files", f"{len(files):,}, {size}"),
        ]
        return html_card(shown_place(self.url), facts, self.features.values())


def skipping_bad_episodes(dataset: Dataset) -> Dataset:
    """Return the dataset for `skip_bad_episodes`: selections leave bad episodes out."""
    bad = replace(dataset.contents.bad, are_skipped=True)
    return Dataset(replace(dataset.contents, bad=bad))


def with_attached(dataset: Dataset, companion: object) -> Dataset:
    """Return the dataset with an object of another part, which replaces any with its class."""
    attached = {**dataset.contents.attached, type(companion): companion}
    return Dataset(replace(dataset.contents, attached=attached))


def _check_verify(verify: object) -> None:
    """Raise `ClipError` for a text other than "always"."""
    if isinstance(verify, str) and verify != "always":
        raise ClipError(
            "unknown value of verify", expected='True, False or "always"', got=repr_of(verify)
        )


def _reopen(parts: dict[str, Any]) -> Dataset:
    """Open a pickled dataset in another process, without a second check of the index.

    `parts` are its `Contents` without the index.
    """
    if parts["join"] is not None:
        return Dataset(parts["join"].reopened(parts))
    parts["manifest"], index = load_version(parts["storage"], parts["manifest"])
    return Dataset(Contents(**parts, index=index.renamed(parts["names"])))
