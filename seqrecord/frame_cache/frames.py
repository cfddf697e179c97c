"""Decoded frames on a local disk, for later epochs, processes and trainings.

The files of `frame_cache.files` have the frames of a record file's chunks::

    place     what decoding depends on beside the page: shapes, codec, versions of libraries
    identity  of the page
    slots     the frames of the chunk, before trimming

The identity of an encoded page in a record file is its digest in the index: a lookup reads no page.
Whoever adds frames computes the digest of the bytes that were decoded, and adds nothing if it
differs. So an index cannot put frames under another page's identity, and equal pages of copies of a
record file share frames, also after an edit or a new index. Hashing would cost a large part of
resizing a raw page, so the identity of a raw page is its place in a record file and the state of
this file: path, size, times, inode, or e-tag. So it is for the files to which a reference refers;
their state before they were read must be the one when frames are added.

Frames that are absent are decoded: the cache changes no value, order or state, and its errors fail
no read.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.frame_cache.files import FrameEntry, FrameFiles
from seqrecord.loader.engine.frame_readers import CachedRows, FrameReader, RowPlaces, is_costly
from seqrecord.loader.frames.array_specs import ArraySpec
from seqrecord.store.format.index import GroupIndex, Index
from seqrecord.store.format.page_kinds import page_kind
from seqrecord.store.processes.forks import PerProcess
from seqrecord.store.reading.chunks import ChunkReader, has_digest
from seqrecord.store.reading.contents import Contents
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.reading.pages import Page
from seqrecord.store.reading.resizing import is_smooth
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.storage.cache_folder import Bools, CacheFolder, hash_of_place
from seqrecord.store.tables.grids import IntArray, run_bounds

if TYPE_CHECKING:
    from seqrecord.store.format.references import Reference

_REVISION = 1  # of this package's decoding and resizing: raise it if pixels change
_PACKAGES = ("av", "imagecodecs", "numcodecs", "numpy", "pillow")
_PATIENCE_SECONDS = 1.0  # for the lock of the folder
_PAUSE_SECONDS = 600.0  # without adding, if the folder is full
_MOST_PAGES = 1 << 12  # whose keys are remembered
_TAG_DIGITS = 16  # of a record file's digest in the names of files


class FrameFolder(FrameReader):
    """A folder on a local disk with decoded frames of any datasets, up to a limit in bytes.

    A loader attaches it to its dataset. Frames that were not used since it was opened make room for
    others, but not frames of a dataset that this process has read since. If none is left, nothing
    is added for ten minutes. Thread-safe. Picklable.
    """

    def __init__(self, path: Path, limit: int) -> None:
        since = time.time_ns()
        folder = CacheFolder(
            path, limit, patience=_PATIENCE_SECONDS, pause=_PAUSE_SECONDS, keep_since=since
        )
        self._cache = FrameFiles(folder)
        self._frames = PerProcess(weakref.WeakKeyDictionary[Contents, CachedFrames])

    @property
    def is_filling(self) -> bool:
        """Whether frames are added: not in a pause after an error, or with a full folder."""
        return self._cache.folder.is_filling

    def frames_of(self, dataset: Dataset) -> CachedFrames | None:
        """The frames of a dataset; `None` if its pages are not checked, for others trust frames."""
        contents, frames = dataset.contents, self._frames.get()
        if not contents.verify:
            return None
        if (cached_frames := frames.get(contents)) is None:
            files = contents.manifest.record_files
            tags = [hashlib.sha256(f.file_id.encode()).hexdigest()[:_TAG_DIGITS] for f in files]
            cached_frames = CachedFrames(self._cache, contents.index, contents.chunks, tags)
            cached_frames = frames.setdefault(contents, cached_frames)
        return cached_frames


class _CachedFeature(NamedTuple):
    """Group of a cached name, bytes of a frame, place in the cache, and its source features."""

    group: int
    nbytes: int
    place: str
    sources: list[str]


class PageKey(NamedTuple):
    """A page that an entry depends on: group, row of the chunk table and feature."""

    group: int
    row: int
    feature: str


class _Sources(NamedTuple):
    """What an entry depends on.

    `identity` is what the index determines. Digests identify the `hashed`
    pages, states of files the `raw` pages and the `references`.
    """

    identity: str
    hashed: list[PageKey]
    raw: list[PageKey]
    references: list[Reference]


class CachedFrames:
    """The frames of a dataset in a cache, by group and name. Thread-safe.

    Of video, encoded images and resized features, if all frames have the same shape; or results of
    a frame transform. External files are checked as if they were read.
    """

    def __init__(
        self, cache: FrameFiles, index: Index, reader: ChunkReader, tags: Sequence[str]
    ) -> None:
        self._cache, self._index, self._reader = cache, index, reader
        self._tags = tags  # of the record files, in names of files of the cache
        self.features: dict[int, list[str]] = {}
        """Names of the features, or results, of each group that has any."""
        self._cached_features: dict[str, _CachedFeature] = {}
        self._last_use = time.time_ns()
        _register(self)
        self._known: dict[tuple[int, str], _Sources] = {}
        self._frame_counts: dict[tuple[str, int], int] = {}  # by place and record file
        self._results: dict[Any, CachedFrames] = {}
        for name, spec in reader.features.items():
            if is_costly(spec):
                self._take(name, _CachedFeature(spec.group, spec.nbytes, _place(spec), [name]))
        uncached_groups = {
            spec.group
            for name, spec in reader.features.items()
            if name not in self._cached_features
        }
        # Groups of which all features are here.
        self._whole = self.features.keys() - uncached_groups

    def of_results(
        self, leading: int, specs: Mapping[str, ArraySpec], key: str | None
    ) -> CachedFrames | None:
        """The results of the frame transform `key` in the same cache, by the leading group.

        `None` without a key, if a result is no array, or if some frame lacks a feature.
        """
        features = self._reader.features
        sizes = [spec.value_kind.constant_nbytes(spec) for spec in specs.values()]
        has_gaps = any(self._reader.raw[spec.group].has_gaps for spec in features.values())
        if key is None or None in sizes or has_gaps:
            return None
        identity = leading, key, *specs.items()
        if (results := self._results.get(identity)) is not None:
            return results
        results = CachedFrames(self._cache, self._index, self._reader, self._tags)
        results.features, results._whole = {}, {leading}
        places = {n: [_place(s), s.value, s.kind, s.unit] for n, s in features.items()}
        for name, spec in specs.items():
            facts = [key, name, spec.dtype.str, spec.shape, places]
            place = "transformed frames " + json.dumps(facts)
            results._take(name, _CachedFeature(leading, spec.nbytes, place, [*features]))
        return self._results.setdefault(identity, results)

    def _take(self, name: str, cached_feature: _CachedFeature) -> None:
        self.features.setdefault(cached_feature.group, []).append(name)
        self._cached_features[name] = cached_feature

    @property
    def num_changes(self) -> int:
        """See `DecodedFrames`."""
        return self._cache.num_changes

    def find_changes(self) -> None:
        """See `DecodedFrames`."""
        self._cache.find_changes()

    def covers(self, group: int, chunk: IntArray, frame: IntArray) -> bool:
        """Whether a group's features seem to be there for these frames."""
        return group in self._whole and all(
            (entry := self._entry(name, row)) is not None
            and self._cache.covers(entry, slot, part.stop - part.start)
            for name in self.features[group]
            for part, row, slot in self._runs(name, chunk, frame, frame)
        )

    def read(
        self,
        name: str,
        chunk: IntArray,
        frame: IntArray,
        out: npt.NDArray[Any],
        rows: IntArray,
        places: RowPlaces | None = None,
    ) -> CachedRows:
        """Read frames into rows of `out`, or place the rows in mapped files, if there are `places`.

        `chunk` are rows of the chunk table, `frame` numbers in the episode; int64[n] each.
        """
        absent, read = ~self._present([name], chunk, frame), np.zeros(len(frame), np.bool_)
        out[rows[absent]] = 0  # as decoding leaves frames without the feature
        in_memory = np.ones(len(frame), np.bool_)
        entries: dict[int, FrameEntry | None] = {}
        for part, row, slot in self._runs(name, chunk, frame, rows):
            if row not in entries:
                for reference in self._sources(name, row).references:
                    self._reader.external.files.check(reference)
                entries[row] = self._entry(name, row)
            if (entry := entries[row]) is not None:
                run = self._read_mapped(entry, slot, rows[part], places)
                if run is None:
                    run = self._cache.read(entry, slot, _bytes(out, rows, part))
                else:
                    in_memory[part] = ~run
                read[part] = run
        if places is not None:  # not before: other threads may copy rows that stay where they are
            places.reset(rows[in_memory])
        return CachedRows(read, absent | read, entries)

    def _read_mapped(
        self, entry: FrameEntry, slot: int, rows: IntArray, places: RowPlaces | None
    ) -> Bools | None:
        """Place rows where a mapped file has consecutive frames from `slot` on.

        Returns which were there, bool[n]; `None` if they cannot be mapped.
        """
        if places is None or (mapped := self._cache.locate(entry, slot, len(rows))) is None:
            return None
        is_there: Bools = mapped.addresses != 0
        addresses = mapped.addresses[is_there]
        if len(addresses) and not places.place(rows[is_there], addresses, mapped.file):
            return None
        return is_there

    def add(
        self,
        name: str,
        chunk: IntArray,
        frame: IntArray,
        out: npt.NDArray[Any],
        rows: IntArray,
        entries: Mapping[int, FrameEntry | None],
        pages: Iterable[tuple[Page, memoryview]],
    ) -> None:
        """Add decoded frames, from rows of `out`, except if they lack a feature of the group.

        `entries` are from `read`, before anything was decoded. `pages` were decoded, and have their
        bytes in the record file.
        """
        if not self._cache.folder.is_filling:
            return
        decoded = {PageKey(p.chunk.group, p.chunk.row, p.feature): (p, data) for p, data in pages}
        group, features = self._cached_features[name].group, self._reader.features.items()
        names = [name, *(n for n, s in features if s.group == group)]
        whole = self._present(names, chunk, frame)
        chunk, frame, rows = chunk[whole], frame[whole], rows[whole]
        sound: dict[int, bool] = {}
        for part, row, slot in self._runs(name, chunk, frame, rows):
            if (entry := entries.get(row)) is None:
                continue
            if row not in sound:
                sound[row] = self._is_sound(name, row, entry, decoded)
            if sound[row]:
                self._cache.add(entry, slot, _bytes(out, rows, part), self._protected)

    def _is_sound(
        self,
        name: str,
        row: int,
        entry: FrameEntry,
        decoded: Mapping[PageKey, tuple[Page, memoryview]],
    ) -> bool:
        """Whether frames that were decoded belong to an entry that was looked up before."""
        for key in self._sources(name, row).hashed:
            if key not in decoded:
                return False
            page, data = decoded[key]
            if "has_digest" not in page.memo:
                page.memo["has_digest"] = has_digest(page, data)
            if not page.memo["has_digest"]:
                return False
        return self._entry(name, row) == entry  # files are still the same

    def _runs(
        self, name: str, chunk: IntArray, frame: IntArray, rows: IntArray
    ) -> list[tuple[slice, int, int]]:
        """Runs of consecutive frames and rows, without the frames that lack the feature.

        Each with its slice, chunk row, and first frame in the chunk.
        """
        runs = []
        table = self._index.groups[self._cached_features[name].group]
        slot, present = frame - table.first_frame[chunk], self._present([name], chunk, frame)
        for begin, stop in pairwise(run_bounds(frame, rows, constant=2 * chunk + present)):
            if present[begin]:
                runs.append((slice(begin, stop), int(chunk[begin]), int(slot[begin])))
        return runs

    def _present(self, names: list[str], chunk: IntArray, frame: IntArray) -> Bools:
        """Whether frames have all these features of a group, bool[n]; a transform needs all."""
        present, group = np.ones(len(frame), np.bool_), self._cached_features[names[0]].group
        table = self._index.groups[group]
        if not self._reader.raw[group].has_gaps:
            return present
        for begin, stop in pairwise(run_bounds(constant=chunk)):
            row = int(chunk[begin])
            for name in filter(table.schema.__contains__, names):
                if (has_feature := _present_frames(table, row, name)) is not None:
                    present[begin:stop] &= has_feature[frame[begin:stop] - table.first_frame[row]]
        return present

    def _entry(self, name: str, row: int) -> FrameEntry | None:
        """The entry of a chunk's frames; `None` if a file that it depends on has no identity."""
        self._last_use = time.time_ns()
        cached_feature, sources = self._cached_features[name], self._sources(name, row)
        states = [self._reader.file_state(page.group, page.row) for page in sources.raw]
        for reference in sources.references:
            states += self._reader.external.files.states(reference)
        if None in states:
            return None
        identity = hashlib.sha256(f"{sources.identity}{json.dumps(states)}".encode()).digest()
        table = self._index.groups[cached_feature.group]
        file, num_slots = int(table.file[row]), int(table.num_frames[row])
        place, nbytes = cached_feature.place, cached_feature.nbytes
        file_slots = self._file_slots(place, file)
        return FrameEntry(place, identity, nbytes, num_slots, self._tags[file], file_slots)

    def _file_slots(self, place: str, file: int) -> int:
        """The frames of a record file in a place: of all features with equal frames."""
        if (count := self._frame_counts.get((place, file))) is None:
            groups = [f.group for f in self._cached_features.values() if f.place == place]
            tables = [self._index.groups[group] for group in groups]
            count = sum(int(table.num_frames[table.file == file].sum()) for table in tables)
            self._frame_counts[place, file] = count
        return count

    def _sources(self, name: str, row: int) -> _Sources:
        """What the entry of a chunk's frames depends on."""
        if (sources := self._known.get((row, name))) is None:
            if len(self._known) >= _MOST_PAGES:
                self._known.clear()
            sources = self._known[row, name] = self._sources_of(self._cached_features[name], row)
        return sources

    def _sources_of(self, cached_feature: _CachedFeature, row: int) -> _Sources:
        digest, table = hashlib.sha256(), self._index.groups[cached_feature.group]
        sources = _Sources("", [], [], [])
        for feature in cached_feature.sources:
            source_table = self._index.groups[self._reader.features[feature].group]
            for key in self._pages_beside(cached_feature.group, row, feature):
                column = source_table.schema.position(feature)
                # Equal pages may meet at another offset in another dataset.
                shift = int(source_table.first_frame[key.row]) - int(table.first_frame[row])
                facts = [shift, source_table.page_digest[key.row, column].tobytes().hex()]
                reference = self._reader.reference(key.group, key.row, feature)
                if reference is not None:
                    sources.references.append(reference)
                elif page_kind(source_table.schema[feature]).in_slices:
                    present = _present_frames(source_table, key.row, feature)
                    bits = "" if present is None else np.packbits(present).tobytes().hex()
                    numbers = (
                        source_table.offset,
                        source_table.num_frames,
                        source_table.page_length[:, column],
                    )
                    facts += [bits, *(int(column[key.row]) for column in numbers)]
                    sources.raw.append(key)
                else:
                    sources.hashed.append(key)
                digest.update(json.dumps(facts).encode())
        return sources._replace(identity=digest.hexdigest())

    def _protected(self, place: str, names: list[str]) -> Bools:
        """Whether files, in the folder of a place, are of datasets in use, bool[n].

        See `CacheFolder`. In use are this dataset and all datasets that this process has read since
        the cache was opened: otherwise sources of a mix would evict one another.
        """
        is_in_use, since = np.zeros(len(names), np.bool_), self._cache.folder.keep_since
        for user in _users_of(self._cache):
            if user is self or user._last_use >= since:
                is_in_use |= user._has_files(place, names)
        return is_in_use

    def _has_files(self, place: str, names: list[str]) -> Bools:
        """Whether files, in the folder of a place, are of this dataset, bool[n]."""
        places = {hash_of_place(feature.place) for feature in self._cached_features.values()}
        tags = {*self._tags} if place in places else set()
        return np.array([name[:_TAG_DIGITS] in tags for name in names], np.bool_)

    def _pages_beside(self, group: int, row: int, feature: str) -> Iterator[PageKey]:
        """The pages of a feature that have frames of a chunk."""
        other_group = self._reader.features[feature].group
        table, other_table = self._index.groups[group], self._index.groups[other_group]
        start, episode = int(table.first_frame[row]), table.episode_of(row)
        ends = np.array([max(start, 0), start + int(table.num_frames[row]) - 1])
        begin, last_chunk = other_table.chunks_of(episode, ends).tolist()
        yield from (
            PageKey(other_group, number, feature) for number in range(begin, last_chunk + 1)
        )


_users: weakref.WeakSet[CachedFrames] = weakref.WeakSet()
_users_lock = PerProcess(threading.Lock)


def _register(user: CachedFrames) -> None:
    with _users_lock.get():
        _users.add(user)


def _users_of(cache: FrameFiles) -> list[CachedFrames]:
    """The users of a folder in this process."""
    with _users_lock.get():
        return [user for user in _users if user._cache.folder.path == cache.folder.path]


def _present_frames(table: GroupIndex, row: int, name: str) -> Bools | None:
    """Which frames of a chunk have a feature of its group, bool[frames]; `None` if all have it."""
    return table.present(row, int(table.features[table.schema.position(name)]))


def _place(spec: FeatureSpec) -> str:
    """Text of everything that determines decoded frames, beside their page."""
    stored_spec = spec.stored
    facts = {
        "dtype": spec.dtype.str,
        "shape": spec.shape,
        "stored": stored_spec.shape,
        "smooth": is_smooth(spec),
        "codec": stored_spec.codec,
        "revision": _REVISION,
        "libraries": {package: _version(package) for package in _PACKAGES},
    }
    return "decoded frames " + json.dumps(facts, sort_keys=True, default=dict)


@cache
def _version(package: str) -> str | None:
    try:
        metadata = distribution(package)
    except PackageNotFoundError:
        return None
    # Its parser reads the long description, too: 2 ms for a package, in each new process.
    line = re.search(r"^Version: *(\S+)$", metadata.read_text("METADATA") or "", re.MULTILINE)
    return metadata.version if line is None else line[1]


def _bytes(out: npt.NDArray[Any], rows: IntArray, part: slice) -> memoryview:
    """Memory of consecutive rows."""
    start, count = int(rows[part.start]), part.stop - part.start
    return out[start : start + count].reshape(-1).view(np.uint8).data
