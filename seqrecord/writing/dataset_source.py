"""A dataset as a source: to be packed again, or appended to another one.

Video and kept images are passed on as they are encoded; all other features are decoded, and encoded
again without loss.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from seqrecord.errors import CodecError, FormatError, NotFoundError, SourceError, StorageError
from seqrecord.format.index import NO_SPLIT
from seqrecord.format.manifest import MANIFEST, MAX_MANIFEST_BYTES
from seqrecord.format.pages import PageCodec
from seqrecord.format.text import parse_json
from seqrecord.format.video_pages import PassthroughPage
from seqrecord.reading.chunks import Chunk, Page
from seqrecord.reading.dataset import Dataset, open_packed
from seqrecord.schema import EncodedImage, FeatureSpec, Frame, Schema
from seqrecord.sources import Account, EpisodeInfo
from seqrecord.sources.inventory import not_selected
from seqrecord.statistics.by_feature import Statistics
from seqrecord.storage import Storage, StorageLike, open_storage
from seqrecord.text import counted
from seqrecord.writing.stored_schema import is_passthrough

_T = TypeVar("_T")


def find_dataset(
    location: StorageLike,
    features: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    is_named: bool = False,
) -> DatasetSource | None:
    """The source of the dataset there, if there is one: its manifest says so.

    With `is_named` it must be one: raises as `seqrecord.open` does.
    """
    if not is_named and not _is_dataset(location, storage_options):
        return None
    return DatasetSource(open_packed(location, features=features, storage_options=storage_options))


@dataclass(frozen=True)
class DatasetSource:
    """The episodes of an open dataset, as they were when it was opened, with its features.

    Those named in `decoded` are not passed on as they are encoded.
    """

    reader: Dataset
    decoded: frozenset[str] = frozenset()

    @property
    def stored(self) -> Schema:
        """The features with their codecs and groups."""
        return self.reader.features

    @property
    def statistics(self) -> Statistics:
        """Those of the dataset's features."""
        known = self.reader.statistics
        return Statistics(known.num_frames, {n: known[n] for n in self.stored if n in known})

    def schema(self) -> Schema:
        """The features, with the codecs of those that are passed on as they are encoded."""
        return Schema(
            [
                replace(spec, codec=spec.codec if self._passes(spec) else (), group=0, added=None)
                for spec in self.stored.values()
            ]
        )

    def fitted(self, schema: Schema) -> DatasetSource:
        """The same, which passes on what `schema` stores in the same codec."""
        others = (
            name for name, spec in self.stored.items() if not is_passthrough(spec, schema[name])
        )
        return replace(self, decoded=frozenset(others))

    def episodes(self) -> Sequence[EpisodeInfo]:
        index, splits = self.reader.contents.index, self.reader.contents.manifest.splits
        return [
            EpisodeInfo(
                key,
                int(index.num_frames[number]),
                index.episode_metadata(number),
                float(index.fps[number]) or None,
                None if index.split[number] == NO_SPLIT else splits[int(index.split[number])],
            )
            for number, key in enumerate(index.keys.to_pylist())
        ]

    def account(self) -> Account:
        """With what was left out when the dataset itself was packed."""
        contents = self.reader.contents
        places = {name: f"feature {contents.stored_name(name)}" for name in self.stored}
        left_out = [
            not_selected(f"feature {name}")
            for name in contents.index.schema.active
            if name not in places
        ]
        notes: list[str] = []
        for known in self.reader.inventories:
            notes.append(f"packed before from {known.format}: {known.reason}")
            reason = f"when {known.format} was packed"
            left_out += [
                replace(each, reason=f"{each.reason}, {reason}", is_data=False)
                for each in known.left_out
            ]
            notes += [f"{note} ({reason})" for note in known.notes]
        reason = f"{MANIFEST} of a dataset of {counted(len(self.reader.episodes), 'episode')}"
        return Account(reason, places, tuple(left_out), tuple(notes))

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        names = [n for n, s in self.stored.items() if not (s.is_video and self._passes(s))]
        groups = dict.fromkeys(self.stored[name].group for name in names)
        columns = [self.values(group, names, info.key) for group in groups]
        rows = zip(range(info.num_frames), *columns, strict=True)
        frames = ({name: v for part in parts for name, v in part.items()} for _, *parts in rows)
        return _located(info.key, frames)

    def videos(self, info: EpisodeInfo) -> dict[str, Iterator[PassthroughPage]]:
        """The pages of video that is passed on as it is encoded."""
        kept = [spec for spec in self.stored.values() if spec.is_video and self._passes(spec)]
        return {spec.name: _located(info.key, self.pages(spec, info.key)) for spec in kept}

    def pages(self, spec: FeatureSpec, key: str) -> Iterator[PassthroughPage]:
        """The pages of a feature that is video in an episode."""
        reader = self.reader.contents.chunks
        for chunk in self._chunks(spec.group, key):
            [page] = (page for page in reader.pages(chunk) if page.feature == spec.name)
            [data] = reader.read([page]) if page.num_present else [memoryview(b"")]
            present = np.ones(chunk.num_frames, bool) if page.present is None else page.present
            yield PassthroughPage(data, present)

    def values(
        self, group: int, names: Collection[str], key: str, frames: Sequence[int] | None = None
    ) -> Iterator[dict[str, Any]]:
        """What each frame of an episode has of these features of a group; holds a chunk at a time.

        With `frames`, which ascend, only these are looked at.
        """
        reader = self.reader.contents.chunks
        for chunk in self._chunks(group, key):
            inside: Sequence[int] = range(chunk.num_frames)
            if frames is not None:
                first, stop = (
                    bisect_left(frames, n) for n in (chunk.first_frame, chunk.stop_frame)
                )
                inside = [frame - chunk.first_frame for frame in frames[first:stop]]
            if not inside:
                continue
            pages = [p for p in reader.pages(chunk) if p.feature in names and p.num_present]
            read = list(zip(pages, reader.read(pages), strict=True))
            for frame in inside:
                there = [(page, data) for page, data in read if page.has(frame)]
                yield {page.feature: self._value(page, data, frame) for page, data in there}

    def _passes(self, spec: FeatureSpec) -> bool:
        return spec.name not in self.decoded and is_passthrough(spec, spec)

    def _value(self, page: Page, data: memoryview, frame: int) -> Any:
        spec = self.stored[page.feature]
        if self._passes(spec):
            place = int(page.positions(frame))
            start, stop = PageCodec(spec).blob_range(page.num_present, place, data)
            return EncodedImage(bytes(data[start:stop]))
        return self.reader.contents.chunks.value_of(page, data, frame)

    def _chunks(self, group: int, key: str) -> Iterator[Chunk]:
        index = self.reader.contents.index
        number, table = index.positions[key], index.groups[group]
        first = int(table.first_chunk[number])
        for row in range(first, first + int(table.num_chunks[number])):
            yield self.reader.contents.chunks.chunk_at(group, row, number)


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
    """The same; what of the episode cannot be read is the original's fault."""
    try:
        yield from items
    except (FormatError, CodecError, NotFoundError) as error:
        raise SourceError(error.message, **{**error.facts(), "episode": key}) from error
