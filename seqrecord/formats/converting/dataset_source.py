"""Datasets as sources: for conversion, appending and merging.

A chunk is copied without decoding if the target stores its group in the same codecs; of a trimmed
episode, its first and last chunk are cut, also without decoding. Single encoded images are copied
too if their group changes. Other features are decoded and encoded again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from seqrecord.errors import (
    CodecError,
    ConflictError,
    DestinationError,
    FormatError,
    NotFoundError,
    SourceError,
    StorageError,
)
from seqrecord.formats.converting.dictionary_copies import copy_dictionaries
from seqrecord.store.areas import DATASET
from seqrecord.store.format.inventory import Inventory
from seqrecord.store.format.manifest import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    CopiedFiles,
    Dictionary,
)
from seqrecord.store.format.page_kinds import page_codec, page_kind
from seqrecord.store.format.references import EXTERNALS, MAX_LIST_BYTES
from seqrecord.store.format.text import parse_json
from seqrecord.store.format.time_spans import clock_of, timestamp_features
from seqrecord.store.originals.inventory import Account, not_selected
from seqrecord.store.originals.protocol import EpisodeInfo
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.reading.contents import DictionaryPlace
from seqrecord.store.reading.dataset import Dataset, open_packed
from seqrecord.store.reading.measured_rates import read_seconds
from seqrecord.store.reading.opening import open as open_dataset
from seqrecord.store.reading.pages import Chunk, Page
from seqrecord.store.schema import Block, EncodedImage, FeatureSpec, Frame, Schema
from seqrecord.store.statistics.by_feature import Statistics
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.opening import StorageLike, open_storage
from seqrecord.store.text import counted
from seqrecord.store.writing.chunking import StoredChunk
from seqrecord.store.writing.edit_files import batched
from seqrecord.store.writing.record_file import Times
from seqrecord.store.writing.stored_schema import has_same_pages, is_passthrough
from seqrecord.store.writing.stored_statistics import merge_statistics

_READ_BYTES = 16 << 20  # of pages per read, or one chunk

_T = TypeVar("_T")


def find_dataset(
    location: StorageLike,
    features: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    is_named: bool = False,
) -> DatasetSource | None:
    """The source of the dataset at a location; `None` if there is no manifest.

    With `is_named`, raises as `seqrecord.open` does instead.
    """
    if not is_named and not _is_dataset(location, storage_options):
        return None
    return DatasetSource(open_packed(location, features=features, storage_options=storage_options))


def joined_dataset(
    location: StorageLike,
    features: Sequence[str] | None,
    storage_options: Mapping[str, Any] | None,
    **joining: Any,
) -> DatasetSource:
    """The source of a dataset, or of an original in place, with its companions."""
    return DatasetSource(
        open_dataset(location, features=features, storage_options=storage_options, **joining)
    )


WriteSource: TypeAlias = "Callable[[DatasetSource, Storage], object]"
"""Writes a source to a destination, as `convert` does."""

CopiedChunk: TypeAlias = "tuple[StoredChunk, Mapping[str, Times]]"
"""A chunk, and its timestamps by feature."""


@dataclass(frozen=True)
class DatasetSource:
    """The episodes of an open dataset, as of when it was opened, with its features.

    `prefix` is put before episode keys. Features in `decoded` are decoded. With `keeps_references`,
    a copied page still refers to its external file; otherwise it gets the bytes of that file.
    """

    format_name: ClassVar[str] = DATASET
    has_empty_frames: ClassVar[bool] = True

    reader: Dataset
    decoded: frozenset[str] = frozenset()
    prefix: str = ""
    keeps_references: bool = False
    target: Schema | None = None
    copied: Mapping[int, int] = field(default_factory=dict)
    """For each group of `target` whose chunks are copied: its group in this dataset, by number."""

    @property
    def stored(self) -> Schema:
        """The features with their codecs and groups."""
        return self.reader.features

    @property
    def statistics(self) -> Statistics:
        """Statistics of the selected features, as far as the dataset has them."""
        stored_statistics = self.reader.statistics
        feature_statistics = Statistics(
            stored_statistics.num_frames,
            {n: stored_statistics[n] for n in self.stored if n in stored_statistics},
        )
        return (
            feature_statistics.rekeyed(lambda key: self.prefix + key)
            if self.prefix
            else feature_statistics
        )

    def copy_texts(self, storage: Storage, write: WriteSource) -> list[Dictionary]:
        """Copy the selected values of texts to a destination; returns their dictionaries."""
        return _copy_texts(self.reader.contents.dictionaries, storage, write)

    def schema(self) -> Schema:
        """The features as this source yields them: with a codec only for encoded frames."""
        return Schema(
            [
                replace(spec, codec=spec.codec if self._passes(spec) else (), group=0, added=None)
                for spec in self.stored.values()
            ]
        )

    @property
    def undecoded_features(self) -> frozenset[str]:
        """The features whose chunks are copied."""
        if self.target is None:
            return frozenset()
        return frozenset(name for number in self.copied for name in self.target.group(number))

    def fitted(
        self, schema: Schema, chunk_frames: int | None = None, changed: Collection[str] = ()
    ) -> DatasetSource:
        """The source for a target of this schema: it copies chunks that are stored in the same
        codecs, unless they have values that are `changed`.

        With `chunk_frames` the lengths of chunks change, except for video.
        """
        stored_features = self.stored
        decoded_names = (
            name for name, spec in stored_features.items() if not is_passthrough(spec, schema[name])
        )
        copied_groups = {}
        for number in range(schema.num_groups):
            specs = [spec for spec in schema.group(number).values() if not spec.is_dropped]
            groups = {stored_features[spec.name].group for spec in specs}
            is_same = all(has_same_pages(stored_features[spec.name], spec) for spec in specs)
            is_rechunked = chunk_frames is not None and all(
                page_kind(spec).shares_chunks for spec in specs
            )
            is_same = is_same and {spec.name for spec in specs}.isdisjoint(changed)
            if len(groups) == 1 and is_same and not is_rechunked:
                copied_groups[number] = groups.pop()
        return replace(self, decoded=frozenset(decoded_names), target=schema, copied=copied_groups)

    def decoding_video(self) -> DatasetSource:
        """The source with decoded frames of video, for sources that copy no chunks."""
        video_names = {name for name, spec in self.stored.items() if spec.is_video}
        return replace(self, decoded=self.decoded | video_names)

    def episodes(self) -> Sequence[EpisodeInfo]:
        index, splits = self.reader.contents.index, self.reader.contents.manifest.splits
        return [
            EpisodeInfo(
                self.prefix + key,
                int(index.num_frames[number]),
                index.episode_metadata(number),
                float(index.fps[number]) or None,
                index.split_of(number, splits),
            )
            for number, key in enumerate(index.keys.to_pylist())
        ]

    @property
    def inventories(self) -> None:
        """None: `account` includes the dataset's inventories."""

    def copy_lists(self, storage: Storage) -> CopiedFiles | None:
        """Copy the lists of external files if pages keep their references; returns the copied
        files."""
        contents = self.reader.contents
        copied_files = contents.manifest.copied
        has_references = copied_files is not None or any(
            group.external.any() for group in contents.index.groups
        )
        if not has_references or not self.keeps_references:
            return None
        for file in contents.storage.files(EXTERNALS):
            data, _ = contents.storage.read_whole(file.path, MAX_LIST_BYTES)
            with suppress(ConflictError):  # the same list is there already
                storage.put(file.path, data, expected=None)
        return copied_files

    def has(self, key: str) -> bool:
        """Whether the dataset has an episode of this key, prefix included."""
        dataset_key = key[len(self.prefix) :]
        return key.startswith(self.prefix) and dataset_key in self.reader.contents.index.positions

    def account(self) -> Account:
        """Account of the dataset, with the data left out when it was packed itself."""
        contents = self.reader.contents
        places = {name: f"feature {contents.stored_name(name)}" for name in self.stored}
        left_out = [
            not_selected(f"feature {name}")
            for name in contents.index.schema.active
            if name not in places
        ]
        notes: list[str] = []
        for inventory in self.reader.inventories:
            notes.append(f"packed before from {inventory.format}: {inventory.reason}")
            reason = f"when {inventory.format} was packed"
            left_out += [
                replace(row, reason=f"{row.reason}, {reason}", is_data=False)
                for row in inventory.left_out
            ]
            notes += [f"{note} ({reason})" for note in inventory.notes]
        reason = f"{MANIFEST} of a dataset of {counted(len(self.reader.episodes), 'episode')}"
        return Account(reason, places, tuple(left_out), tuple(notes))

    def blocks(self, info: EpisodeInfo) -> Iterator[Block]:
        """The episode's frames; `info.num_frames` empty frames if all chunks are copied."""
        if self.copied and self.undecoded_features >= self.stored.keys():
            yield Block(info.num_frames, {})
        else:
            yield from map(Block.of, self.frames(info))

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        """The episode's frames, without the features whose chunks are copied."""
        return _located(info.key, self.frames_of(self._key(info)))

    def chunks(self, info: EpisodeInfo) -> Iterator[CopiedChunk]:
        """The episode's copied chunks, in the order in which a writer completes them."""
        return _located(info.key, self._copied_chunks(self._key(info)))

    def timestamps(self, info: EpisodeInfo) -> npt.NDArray[np.float64] | None:
        """The frames' timestamps in seconds, float64 [frames], of a feature that is not selected.

        NaN for frames without. `None` if the dataset has none, and for its own `fps`, which was
        compared with them when it was written.
        """
        episodes, key = self._clock.episodes, self._key(info)
        if info.fps == episodes[key].fps:
            return None
        [seconds] = _located(info.key, map(read_seconds, [episodes[key]]))
        return seconds

    @cached_property
    def _clock(self) -> Dataset:
        """The dataset with its timestamps only, if it has any."""
        clock = clock_of(self.reader.schema)
        return self.reader if clock is None else self.reader.select([clock])

    def pages(self, feature: str, key: str) -> Iterator[tuple[int, memoryview]]:
        """For each chunk of a feature in an episode, its number of frames and its page's bytes."""
        reader = self.reader.contents.chunks
        for chunk in self._chunks(self.stored[feature].group, key):
            [page] = (page for page in reader.pages(chunk) if page.feature == feature)
            data, shown = memoryview(b""), reader.visible_frames(chunk)
            if page.num_present:
                data = reader.cut(page, reader.read([page])[0], shown)
            yield len(shown), data

    def frames_of(self, key: str) -> Iterator[Frame]:
        """The frames of the dataset's episode `key`, as `frames`. Memory: a chunk of each group."""
        copied = self.undecoded_features
        names = [name for name in self.stored if name not in copied]
        groups = dict.fromkeys(self.stored[name].group for name in names)
        length = self.reader.contents.index.num_frames[self.reader.contents.index.positions[key]]
        rows = zip(
            range(length), *(self._values(group, names, key) for group in groups), strict=True
        )
        return ({name: v for part in parts for name, v in part.items()} for _, *parts in rows)

    def _values(self, group: int, names: Collection[str], key: str) -> Iterator[dict[str, Any]]:
        """The group's values of these features, for each frame of an episode, by name."""
        reader = self.reader.contents.chunks
        for chunk in self._chunks(group, key):
            pages = [p for p in reader.pages(chunk) if p.feature in names and p.num_present]
            page_data = list(zip(pages, reader.read(pages), strict=True))
            for frame in reader.visible_frames(chunk):
                present_pages = [(page, data) for page, data in page_data if page.has(frame)]
                yield {page.feature: self._value(page, data, frame) for page, data in present_pages}

    def _copied_chunks(self, key: str) -> Iterator[CopiedChunk]:
        reader, target = self.reader.contents.chunks, self.target
        assert target is not None, "not fitted"
        copied_chunks = [
            (chunk, number, {p.feature: p for p in reader.pages(chunk) if p.feature in names})
            for number, group in self.copied.items()
            for names in [target.group(number).keys()]
            for chunk in self._chunks(group, key)
        ]
        copied_chunks.sort(key=lambda row: (row[0].stop_frame, row[1]))
        for batch in batched(copied_chunks, lambda row: _nbytes(row[2]), _READ_BYTES):
            for (_, is_whole), items in groupby(batch, self._read_unit):
                chunks = [*items]
                pages = [
                    page
                    for *_, page_map in chunks
                    for page in page_map.values()
                    if page.num_present
                ]
                page_data = reader.read(pages, resolve=not (is_whole and self.keeps_references))
                data = dict(zip(pages, page_data, strict=True))
                for chunk, number, chunk_pages in chunks:
                    yield self._copied_chunk(chunk, number, chunk_pages, data)

    def _read_unit(self, row: tuple[Chunk, int, Mapping[str, Page]]) -> tuple[str, bool]:
        """Equal for chunks that are read together: file, and whether no frame is hidden."""
        chunk = row[0]
        return chunk.path, len(
            self.reader.contents.chunks.visible_frames(chunk)
        ) == chunk.num_frames

    def _copied_chunk(
        self, chunk: Chunk, number: int, pages: Mapping[str, Page], data: Mapping[Page, memoryview]
    ) -> CopiedChunk:
        """A chunk of the target's group `number`, with empty pages for dropped features."""
        assert self.target is not None, "not fitted"
        specs, reader = self.target.group(number), self.reader.contents.chunks
        shown = reader.visible_frames(chunk)
        shown_slice, is_whole = slice(shown.start, shown.stop), len(shown) == chunk.num_frames
        gaps, largest_bytes, external, times = {}, [], 0, {}
        no_frames = np.zeros(chunk.num_frames, bool)
        empty_page = Page("", chunk, 0, 0, 0, b"", present=no_frames, max_nbytes=0, sums=None)
        for name in specs:
            page = pages.get(name, empty_page)
            if page.present is not None:
                gaps[self.target.position(name)] = page.present[shown_slice]
            if is_whole and self.keeps_references:
                external += page.external
        for spec in specs.variable:
            page = pages.get(spec.name, empty_page)
            nbytes = page.max_nbytes or 0
            if page in data and not is_whole:
                nbytes = self._largest_shown(page, data[page], shown) * spec.dtype.itemsize
            largest_bytes.append(nbytes)
        for name in timestamp_features(specs):
            if (page := pages[name]) in data:
                frames = np.array([*filter(page.has, shown)], np.int64)
                values = np.empty(len(frames), specs[name].dtype)
                out = values.reshape(-1, *specs[name].shape)
                reader.decode(page, data[page], frames.tolist(), out)
                times[name] = (values, chunk.first_frame + frames)
        parts = [
            reader.cut(page, data[page], shown)
            if (page := pages.get(name, empty_page)) in data
            else b""
            for name in specs
        ]
        span = range(chunk.first_frame + shown.start, chunk.first_frame + shown.stop)
        places = [self.target.position(name) for name in specs]
        stored_chunk = StoredChunk.of(
            number, specs, places, span, gaps, parts, largest_bytes, external
        )
        return stored_chunk, times

    def _largest_shown(self, page: Page, data: memoryview, shown: range) -> int:
        """Number of elements in the largest shown frame of a page with variable shapes."""
        shapes = self.reader.contents.chunks.shapes(page, data)
        counts = (math.prod(shapes[int(page.positions(i))]) for i in shown if page.has(i))
        return max(counts, default=0)

    def _key(self, info: EpisodeInfo) -> str:
        return info.key[len(self.prefix) :]

    def _passes(self, spec: FeatureSpec) -> bool:
        return spec.name not in self.decoded and is_passthrough(spec, spec)

    def _value(self, page: Page, data: memoryview, frame: int) -> Any:
        spec = self.stored[page.feature]
        if self._passes(spec):
            place = int(page.positions(frame))
            start, stop = page_codec(spec).offsets(data, page.num_present)[place : place + 2]
            return EncodedImage(bytes(data[start:stop]))
        return self.reader.contents.chunks.value_of(page, data, frame)

    def _chunks(self, group: int, key: str) -> Iterator[Chunk]:
        index = self.reader.contents.index
        number, table = index.positions[key], index.groups[group]
        first_row = int(table.first_chunk[number])
        for row in range(first_row, first_row + int(table.num_chunks[number])):
            yield self.reader.contents.chunks.chunk_at(group, row, number)


@dataclass(frozen=True)
class MergedSource:
    """The episodes of several datasets, in order, with the features of the first."""

    has_empty_frames: ClassVar[bool] = True

    parts: tuple[DatasetSource, ...]

    @property
    def stored(self) -> Schema:
        """The features of the first dataset with their codecs and groups."""
        return self.parts[0].stored

    @property
    def statistics(self) -> Statistics:
        """Merged statistics; empty if a dataset lacks them."""
        statistics = merge_statistics([part.statistics or None for part in self.parts])
        return statistics or Statistics(0, {})

    @property
    def inventories(self) -> tuple[Inventory, ...]:
        """The inventories of all datasets."""
        return tuple(inventory for part in self.parts for inventory in part.reader.inventories)

    def copy_texts(self, storage: Storage, write: WriteSource) -> list[Dictionary]:
        """As `DatasetSource.copy_texts`, for all datasets."""
        places = [place for part in self.parts for place in part.reader.contents.dictionaries]
        return _copy_texts(places, storage, write)

    @property
    def undecoded_features(self) -> frozenset[str]:
        """The features whose chunks are copied from all datasets."""
        return frozenset.intersection(*(part.undecoded_features for part in self.parts))

    def fitted(
        self, schema: Schema, chunk_frames: int | None = None, changed: Collection[str] = ()
    ) -> MergedSource:
        """As `DatasetSource.fitted`."""
        parts = (part.fitted(schema, chunk_frames, changed) for part in self.parts)
        return MergedSource(tuple(parts))

    def decoding_video(self) -> MergedSource:
        """As `DatasetSource.decoding_video`."""
        return MergedSource(tuple(part.decoding_video() for part in self.parts))

    def schema(self) -> Schema:
        """Schema of the first dataset."""
        return self.parts[0].schema()

    def episodes(self) -> Sequence[EpisodeInfo]:
        """Episodes of all datasets. Raises `DestinationError` for two of the same key."""
        infos: dict[str, EpisodeInfo] = {}
        for part in self.parts:
            for info in part.episodes():
                if infos.setdefault(info.key, info) is not info:
                    raise DestinationError(
                        "two datasets have an episode with the same key; give one dataset a prefix "
                        "(--prefix), or rename the episode (`seqrecord edit rename`)",
                        file=self._part(info).reader.url,
                        episode=info.key,
                        got=part.reader.url,
                    )
        return [*infos.values()]

    def copy_lists(self, storage: Storage) -> CopiedFiles | None:
        """As `DatasetSource.copy_lists`, for all datasets.

        Nothing can be appended later: several originals have no common content id.
        """
        copied_files = [part.copy_lists(storage) for part in self.parts]
        lists = dict.fromkeys(name for files in copied_files if files for name in files.lists)
        return CopiedFiles(tuple(lists)) if lists else None

    def account(self) -> Account:
        """Account of the first dataset; `inventories` has the others."""
        return self.parts[0].account()

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        """As `DatasetSource.frames`."""
        return self._part(info).frames(info)

    def blocks(self, info: EpisodeInfo) -> Iterator[Block]:
        """As `DatasetSource.blocks`."""
        return self._part(info).blocks(info)

    def chunks(self, info: EpisodeInfo) -> Iterator[CopiedChunk]:
        """As `DatasetSource.chunks`."""
        return self._part(info).chunks(info)

    def _part(self, info: EpisodeInfo) -> DatasetSource:
        return next(part for part in self.parts if part.has(info.key))


def _nbytes(pages: Mapping[str, Page]) -> int:
    return sum(page.nbytes for page in pages.values())


def _is_dataset(location: StorageLike, storage_options: Mapping[str, Any] | None) -> bool:
    try:
        storage = open_storage(location, storage_options)
        try:
            value = parse_json(storage.read_whole(MANIFEST, MAX_MANIFEST_BYTES)[0])
        finally:
            if not isinstance(location, Storage):
                storage.close()
    except (StorageError, FormatError):
        return False
    return isinstance(value, dict) and value.get("format") == "seqrecord"


def _located(key: str, items: Iterator[_T]) -> Iterator[_T]:
    """The same items; errors about the episode are raised as `SourceError`."""
    try:
        yield from items
    except (FormatError, CodecError, NotFoundError) as error:
        raise SourceError(error.message, **{**error.context(), "episode": key}) from error


def _copy_texts(
    places: Sequence[DictionaryPlace], storage: Storage, write: WriteSource
) -> list[Dictionary]:
    def copy(dataset: Dataset, folder: Storage) -> None:
        write(DatasetSource(dataset), folder)

    return copy_dictionaries(places, storage, copy)
