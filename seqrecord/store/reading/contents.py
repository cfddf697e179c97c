"""Internal parts of an open dataset, and its mapping of episodes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import EpisodeKeyError, SchemaError, located
from seqrecord.store.format.index import Index
from seqrecord.store.format.manifest import Manifest
from seqrecord.store.format.statistics_file import read_statistics
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.reading.chunks import ChunkReader
from seqrecord.store.reading.episode import Episode
from seqrecord.store.reading.filters import BadEpisodes, EpisodeFilter, find_episodes, shown_keys
from seqrecord.store.reading.metadata import read_edits
from seqrecord.store.reading.resizing import resized_schema
from seqrecord.store.schema import Schema
from seqrecord.store.statistics.by_feature import Statistics
from seqrecord.store.storage.base import Storage
from seqrecord.store.tables.grids import ragged_arange
from seqrecord.store.tables.table_places import EpisodeNames
from seqrecord.store.text import repr_of, shown_place

if TYPE_CHECKING:
    from seqrecord.store.format.inventory import Inventory
    from seqrecord.store.reading.external_files import ExternalFiles

Verify: TypeAlias = bool | Literal["always"]
"""Checksums of pages: compared at each read, never, or always, so that no frame is mapped."""

_EPISODES_AT_ONCE = 1 << 12  # episodes hashed together
_MAX_PARTS, _MARK = 128, 4  # of an identity's marks: parts, and hexadecimal digits of each


class _IdentityGroup(NamedTuple):
    """A group of features as an identity has it: columns of its pages, numbers of its features in
    the schema, and their missing frames.
    """

    number: int
    columns: Sequence[int]
    features: Sequence[int]
    gaps: npt.NDArray[Any]


class JoinedDatasets(Protocol):
    """The datasets of a joined one, see `companions.joining`. Picklable."""

    @property
    def members(self) -> Sequence[Contents]:
        """The contents of each, beginning with the dataset of the episodes."""

    @property
    def companion_places(self) -> Sequence[str]:
        """Places of the companions: datasets and tables."""

    def statistics(self) -> Statistics:
        """Return the statistics of all features."""

    def reopened(self, fields: dict[str, Any]) -> Contents:
        """Return the joined contents, with these `fields` of a pickled dataset."""


@dataclass(frozen=True)
class DictionaryPlace:
    """Where the values of a feature's texts are stored, see `Manifest.dictionaries`.

    Attributes:
        name: present name of the values.
        text: present name of the text feature.
        feature: name of the values in `storage`.
        storage: files with the values.
        verify: whether checksums of its pages are checked.
    """

    name: str
    text: str
    feature: str
    storage: Storage
    verify: Verify = True

    def renamed(self, names: Mapping[str, str]) -> DictionaryPlace:
        """Return the place under new names."""
        name, text = (names.get(present, present) for present in (self.name, self.text))
        return replace(self, name=name, text=text)


@dataclass(frozen=True, eq=False)
class Contents:
    """Internal parts of an open dataset.

    `manifest` and `index` are a snapshot from the opening. `features` are the selected features.
    `verify` enables checksums of pages. `names` maps stored names to present ones, for renamed
    features. `externals` are the referenced files, if they may be at other places than their
    lists say. `bad` are episodes of an original that the index leaves out, and the numbers of the
    others. `attached` are objects of other parts, by class: datasets made of this one have them
    too, also in other processes.
    `join` are the datasets of a joined one, whose manifest and index are in memory only.
    `dictionaries` are the selected values of texts, and `implied` the features of texts that only
    these select.
    """

    storage: Storage
    manifest: Manifest
    index: Index
    features: Schema
    verify: Verify = True
    names: Mapping[str, str] = field(default_factory=dict)
    externals: ExternalFiles | None = None
    bad: BadEpisodes = field(default_factory=BadEpisodes)
    attached: Mapping[type[Any], Any] = field(default_factory=dict)
    join: JoinedDatasets | None = None
    dictionaries: tuple[DictionaryPlace, ...] = ()
    implied: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        storage: Storage,
        manifest: Manifest,
        index: Index,
        features: Sequence[str] | None = None,
        **fields: Any,
    ) -> Contents:
        """The contents with the named features (default: all), and other fields."""
        return cls(storage, manifest, index, index.schema.active, **fields).selected(features)

    def selected(self, features: Sequence[str] | None) -> Contents:
        """The contents with the named features, or all.

        Names of dictionaries select these, and their text features.
        """
        has_dictionaries = self.join is not None or self.manifest.dictionaries
        dictionaries = self.all_dictionaries if has_dictionaries else ()
        implied = frozenset[str]()
        if dictionaries and features is not None and not isinstance(features, str):
            texts = {place.name: place.text for place in dictionaries}
            dictionaries = tuple(place for place in dictionaries if place.name in features)
            implied = frozenset(place.text for place in dictionaries).difference(features)
            features = [*dict.fromkeys(texts.get(name, name) for name in features)]
        with located(SchemaError, file=self.storage.url):
            schema = self.index.schema.select(features)
        sizes = {name: size for name, size in self.sizes.items() if name in schema}
        features_of_sizes = resized_schema(schema, sizes)
        return replace(self, features=features_of_sizes, dictionaries=dictionaries, implied=implied)

    @property
    def all_dictionaries(self) -> tuple[DictionaryPlace, ...]:
        """The values of texts, selected or not; of a joined dataset, those selected in members."""
        if self.join is not None:
            places = [place for member in self.join.members for place in member.dictionaries]
        else:
            from seqrecord.store.storage.folder import in_folder  # few datasets have some

            places = [
                DictionaryPlace(
                    *(entry.name, entry.text, entry.name),
                    *(in_folder(self.storage, entry.folder), self.verify),
                )
                for entry in self.manifest.dictionaries
            ]
        return tuple(place.renamed(self.names) for place in places)

    @property
    def value_names(self) -> list[str]:
        """The names of the selected features and dictionaries."""
        return [*self.features, *(place.name for place in self.dictionaries)]

    @property
    def sizes(self) -> dict[str, Any]:
        """Height and width, two integers, of the features that are resized, by name."""
        specs = self.features.items()
        return {name: spec.shape[:2] for name, spec in specs if spec.stored_shape is not None}

    def stored_name(self, feature: str) -> str:
        """Return a feature's name in the record files."""
        return next((old for old, new in self.names.items() if new == feature), feature)

    def by_present_names(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values of features by present names, from values by stored names.

        Without the value of a feature that the dataset lacks, if another one has its name now.
        """
        replaced = {*self.names.values()} - self.names.keys()
        return {
            self.names.get(name, name): value
            for name, value in values.items()
            if name not in replaced
        }

    def camera_of(self, metadata: Mapping[str, Any]) -> Any:
        """Return an episode's metadata `camera`, with `by_present_names` of its cameras."""
        camera = metadata.get("camera")
        if not self.names or not isinstance(camera, Mapping):
            return camera
        cameras = {name: value for name, value in camera.items() if isinstance(value, Mapping)}
        shared = {name: value for name, value in camera.items() if name not in cameras}
        return shared | self.by_present_names(cameras)

    @cached_property
    def chunks(self) -> ChunkReader:
        """Reader for the chunks of the selected features."""
        paths = [file.path for file in self.manifest.record_files]
        return ChunkReader(
            *(self.storage, paths, self.index, self.features),
            verify=bool(self.verify),
            externals=self.externals,
        )

    @cached_property
    def statistics(self) -> Statistics:
        """See `Dataset.statistics`."""
        if self.join is not None:
            statistics = self.join.statistics()
        elif (file := self.manifest.statistics) is None:
            return Statistics(0, {}, lacking=self.storage.url)
        else:
            statistics = read_statistics(self.storage, file, self.manifest.schema)
        features = {self.names.get(name, name): feature for name, feature in statistics.items()}
        return Statistics(statistics.num_frames, features)

    @cached_property
    def inventories(self) -> tuple[Inventory, ...]:
        """See `Dataset.inventories`."""
        if (file := self.manifest.inventory) is None:
            return ()
        # Not with every first batch.
        from seqrecord.store.format.inventory import read_inventories

        return read_inventories(self.storage, file)

    @cached_property
    def trims(self) -> Mapping[str, tuple[int, int]]:
        """Frames `[start, stop)` of the record files, by uid of a trimmed episode."""
        if not self.manifest.edits:
            return {}
        return read_edits(self.storage, self.manifest.edits).frames

    def identity(self, episodes: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Return a JSON identity of episodes, given by row.

        The digest covers keys, lengths, and pages of the features. Other
        episodes in the dataset, positions, and paths of referenced files do not change it.
        `marks` has four digits of the digest after each of up to 128 equal parts of the episodes:
        where they differ tells which episodes have changed.
        """
        parts = identity_parts(len(episodes))
        digests = self._digests_after(episodes, parts)
        return {
            "count": len(episodes),
            "frames": int(self.index.num_frames[episodes].sum()),
            "digest": digests[-1],
            "marks": "".join(digest[:_MARK] for digest in digests),
            "dataset": self.manifest.fingerprint,
        }

    def differing_episodes(
        self, episodes: npt.NDArray[np.int64], identity: Mapping[str, Any]
    ) -> tuple[int, int] | None:
        """Return the places [first, stop) of the first episodes that differ from an identity.

        One of them does; the last place may be `len(episodes)`. `None` if nothing differs, or the
        identity has no marks.
        """
        count, marks = identity.get("count"), identity.get("marks")
        if not isinstance(count, int) or not 0 < count < 1 << 40 or not isinstance(marks, str):
            return None
        parts = identity_parts(count)
        begins = [0, *parts[:-1]]
        comparable = [stop for stop in parts if stop <= len(episodes)]
        digests = self._digests_after(episodes, comparable) if comparable else []
        for place, (first, stop) in enumerate(zip(begins, parts, strict=True)):
            mark = marks[place * _MARK : (place + 1) * _MARK]
            if place >= len(digests) or digests[place][:_MARK] != mark:
                return first, stop
        return None

    def _digests_after(self, episodes: npt.NDArray[np.int64], stops: Sequence[int]) -> list[str]:
        """The digests of the first episodes, up to each of `stops`, which ascend."""
        digest, digests, groups = hashlib.sha256(), [], self._identity_groups()
        for part in np.split(episodes[: stops[-1]], stops[:-1]):
            for batch in np.array_split(part, 1 + len(part) // _EPISODES_AT_ONCE):
                self._update_identity(digest, batch, groups)
            digests.append(digest.hexdigest())
        return digests

    def _update_identity(
        self, digest: Any, episodes: npt.NDArray[np.int64], groups: Sequence[_IdentityGroup]
    ) -> None:
        """Add keys, lengths and pages of some episodes to a digest."""
        index = self.index
        keys = "\n".join(index.keys_of(episodes)).encode()  # which have no line breaks
        update_digest(digest, "<i8", np.array([len(episodes), len(keys)]))
        digest.update(keys)
        update_digest(digest, "<i8", index.num_frames[episodes])
        for number, columns, features, gaps in groups:
            group = index.groups[number]
            first_chunk, num_chunks = group.first_chunk[episodes], group.num_chunks[episodes]
            owner, place = ragged_arange(num_chunks)
            chunks = first_chunk[owner] + place
            pages = self.chunks.digests(number, chunks)
            update_digest(digest, "<u4", group.num_frames[chunks])
            update_digest(digest, "u1", pages[:, columns])
            first_frames = group.first_frame[first_chunk]
            if (first_frames < 0).any():  # of trimmed episodes
                update_digest(digest, "<i4", first_frames)
            if not len(gaps):
                continue
            gap_chunk = gaps["chunk"].astype(np.int64)
            begin, end = np.searchsorted(gap_chunk, (first_chunk, first_chunk + num_chunks))
            owner, place = ragged_arange(end - begin)
            if len(owner):
                rows = gaps[begin[owner] + place]
                feature = np.searchsorted(features, rows["feature"])
                bitmaps = rows["chunk"] - first_chunk[owner], feature, rows["word"], rows["present"]
                update_digest(digest, "<u8", end - begin, *bitmaps)

    def _identity_groups(self) -> list[_IdentityGroup]:
        """The groups of the selected features."""
        groups = list[_IdentityGroup]()
        for number in sorted({spec.group for spec in self.features.values()}):
            group = self.index.groups[number]
            columns = [group.schema.position(n) for n in group.schema if n in self.features]
            places = [self.index.schema.position(n) for n in group.schema if n in self.features]
            gaps = group.gaps[np.isin(group.gaps["feature"], places)]
            groups.append(_IdentityGroup(number, columns, places, gaps))
        return groups

    def find_episodes(
        self, episodes: EpisodeFilter, split: str | None = None
    ) -> npt.NDArray[np.int64]:
        """Return the rows of selected episodes, ascending: int64 [n].

        Raises the errors of `Dataset.find_episodes`.
        """
        return find_episodes(
            self.index,
            self.manifest.splits,
            self.bad.check(episodes, split),
            split=split,
            url=self.storage.url,
            bad=self.bad,
        )

    def numbers_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the numbers by which selections name episodes: int64 [n]."""
        numbers = self.bad.numbers
        return rows if numbers is None else np.asarray(numbers, np.int64)[rows]

    @property
    def episode_names(self) -> EpisodeNames:
        """The names by which tables refer to the episodes."""
        return self.bad.names(self.index)


class Episodes(Mapping[str, "Episode"]):
    """A dataset's episodes by key, in the order of writing.

    Example:
        episodes = seqrecord.open("records/").episodes
        for key, episode in episodes.items():
            print(key, len(episode), episode.fps, episode.metadata)
    """

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._index = contents.index

    def __getitem__(self, key: str) -> Episode:
        position = self._index.positions.get(key)
        if position is None:
            raise EpisodeKeyError(
                "unknown episode key",
                file=self._contents.storage.url,
                expected=f"a key of {shown_keys(self._index)}",
                got=repr_of(key),
            )
        return Episode(self._contents.chunks, self._index, position)

    def __contains__(self, key: object) -> bool:
        return key in self._index.positions

    def __iter__(self) -> Iterator[str]:
        return iter(self._index.positions)

    def __len__(self) -> int:
        return len(self._index.num_frames)

    def __repr__(self) -> str:
        return f"Episodes({len(self)} of {shown_place(self._contents.storage.url)!r})"


def identity_parts(count: int) -> list[int]:
    """Where parts of `count` episodes end whose digests an identity marks."""
    num_parts = min(count, _MAX_PARTS)
    return [part * count // num_parts for part in range(1, num_parts + 1)]


def update_digest(digest: Any, dtype: str, *arrays: npt.NDArray[Any]) -> None:
    """Add arrays, converted to `dtype`, to a digest."""
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype).data)
