"""Decoded frames on a local disk, for later epochs, processes and trainings.

An entry of a `CacheFolder` has the frames of one feature in one chunk::

    place   what decoding depends on beside the page: shapes, codec, versions of libraries
    name    digest of the page: of the episode's uid and the page's checksum
    slots   the frames of the chunk, before trimming

Entries stay valid when a dataset is appended to, edited or indexed again. Frames that are absent
are decoded: the cache changes no value, order or state, and its errors fail no read.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.clips.grids import IntArray, run_bounds
from seqrecord.codecs.images import IMAGE
from seqrecord.format.index import Index
from seqrecord.format.references import Reference
from seqrecord.reading.array_specs import ArraySpec
from seqrecord.reading.chunks import ChunkReader
from seqrecord.reading.resizing import is_smooth
from seqrecord.schema import FeatureSpec
from seqrecord.storage.cache_folder import Bools, CacheEntry, CacheFolder

_REVISION = 1  # of this package's decoding and resizing: raise it if pixels change
_PACKAGES = ("av", "imagecodecs", "numcodecs", "numpy", "pillow")
_IMAGES = ("png", "jpeg", "any", "jpegxl")  # decoding others costs less than writing
_PATIENCE_SECONDS = 1.0  # for the lock of the folder
_PAUSE_SECONDS = 600.0  # without adding, if the folder is full
_MOST_PAGES = 1 << 12  # whose keys are remembered


def frame_folder(path: Path, limit: int) -> CacheFolder:
    """A folder on a local disk with decoded frames of any datasets, up to a limit in bytes.

    Frames that were not used since this call make room for others. If none is left, nothing is
    added for ten minutes.
    """
    since = time.time_ns()
    return CacheFolder(
        path, limit, patience=_PATIENCE_SECONDS, pause=_PAUSE_SECONDS, keep_since=since
    )


class _Kept(NamedTuple):
    """Group of a cached name, bytes of a frame, place in the cache, and its source features."""

    group: int
    nbytes: int
    place: str
    sources: list[str]


class CachedFrames:
    """The frames of a dataset in a cache, by group and name. Thread-safe.

    Of video, encoded images and resized features, if all frames have the same shape; or results of
    a frame transform. External files are checked as if they were read.
    """

    def __init__(self, cache: CacheFolder, index: Index, reader: ChunkReader) -> None:
        self._cache, self._index, self._reader = cache, index, reader
        self.features: dict[int, list[str]] = {}
        """Names of the features, or results, of each group that has any."""
        self._kept: dict[str, _Kept] = {}
        self._known: dict[tuple[int, str], tuple[CacheEntry, list[Reference]]] = {}
        self._results: dict[Any, CachedFrames] = {}
        for name, spec in reader.features.items():
            if is_costly(spec):
                self._take(name, _Kept(spec.group, spec.nbytes, _place(spec), [name]))
        others = {spec.group for name, spec in reader.features.items() if name not in self._kept}
        self._whole = self.features.keys() - others  # groups of which all features are here

    def of_results(
        self, leading: int, specs: Mapping[str, ArraySpec], key: str | None
    ) -> CachedFrames | None:
        """The results of the frame transform `key` in the same cache, by the leading group.

        `None` without a key, if a result is no array, or if some frame lacks a feature.
        """
        features = self._reader.features
        are_arrays = all(spec.is_fixed and spec.value == "array" for spec in specs.values())
        has_gaps = any(self._reader.raw[spec.group].has_gaps for spec in features.values())
        if key is None or not are_arrays or has_gaps:
            return None
        known = leading, key, *specs.items()
        if (found := self._results.get(known)) is not None:
            return found
        found = CachedFrames(self._cache, self._index, self._reader)
        found.features, found._whole = {}, {leading}
        places = {n: [_place(s), s.value, s.kind, s.unit] for n, s in features.items()}
        for name, spec in specs.items():
            facts = [key, name, spec.dtype.str, spec.shape, places]
            place = "transformed frames " + json.dumps(facts)
            found._take(name, _Kept(leading, spec.nbytes, place, [*features]))
        return self._results.setdefault(known, found)

    def _take(self, name: str, kept: _Kept) -> None:
        self.features.setdefault(kept.group, []).append(name)
        self._kept[name] = kept

    def covers(self, group: int, chunk: IntArray, frame: IntArray) -> bool:
        """Whether all features of these frames of a group seem to be there."""
        return group in self._whole and all(
            self._cache.covers(entry, first, some.stop - some.start)
            for name in self.features[group]
            for some, entry, _, first in self._runs(name, chunk, frame, frame, is_checked=True)
        )

    def read(
        self, name: str, chunk: IntArray, frame: IntArray, out: npt.NDArray[Any], rows: IntArray
    ) -> Bools:
        """Read frames into rows of `out`; returns which were there, bool[n].

        `chunk` are rows of the chunk table, `frame` numbers in the episode; int64[n] each.
        """
        found = ~self._present([name], chunk, frame)
        out[rows[found]] = 0  # as decoding leaves frames without the feature
        for some, entry, _, first in self._runs(name, chunk, frame, rows):
            start = first * entry.slot_bytes
            found[some] = self._cache.read(entry, start, _bytes(out, rows, some))
        return found

    def add(
        self, name: str, chunk: IntArray, frame: IntArray, out: npt.NDArray[Any], rows: IntArray
    ) -> None:
        """Add decoded frames, from rows of `out`, except if they lack a feature of the group."""
        if self._cache.is_filling:
            group, features = self._kept[name].group, self._reader.features.items()
            names = [name, *(n for n, s in features if s.group == group)]
            whole = self._present(names, chunk, frame)
            chunk, frame, rows = chunk[whole], frame[whole], rows[whole]
            runs = self._runs(name, chunk, frame, rows, is_checked=True)
            for some, entry, total, first in runs:
                data, size = _bytes(out, rows, some), entry.slot_bytes
                slots = {first + i: data[i * size :][:size] for i in range(len(data) // size)}
                self._cache.add(entry, total * size, slots)

    def _runs(
        self,
        name: str,
        chunk: IntArray,
        frame: IntArray,
        rows: IntArray,
        *,
        is_checked: bool = False,
    ) -> list[tuple[slice, CacheEntry, int, int]]:
        """Runs of consecutive frames and rows, without the frames that lack the feature.

        Each with its slice, entry, number of frames in the entry, and first frame there.
        """
        kept, runs = self._kept[name], []
        table = self._index.groups[kept.group]
        first, present = frame - table.first_frame[chunk], self._present([name], chunk, frame)
        for begin, stop in pairwise(run_bounds(frame, rows, same=2 * chunk + present)):
            if not present[begin]:
                continue
            entry, references = self._page(kept, int(chunk[begin]), name)
            for reference in () if is_checked else references:
                self._reader.external.files.check(reference)
            total = int(table.num_frames[chunk[begin]])
            runs.append((slice(begin, stop), entry, total, int(first[begin])))
        return runs

    def _present(self, names: list[str], chunk: IntArray, frame: IntArray) -> Bools:
        """Whether frames have all these features of a group, bool[n]; a transform needs all."""
        found, group = np.ones(len(frame), np.bool_), self._kept[names[0]].group
        table = self._index.groups[group]
        if not self._reader.raw[group].has_gaps:
            return found
        for begin, stop in pairwise(run_bounds(same=chunk)):
            row = int(chunk[begin])
            for name in names:
                if (there := table.present(row, table.schema.position(name))) is not None:
                    found[begin:stop] &= there[frame[begin:stop] - table.first_frame[row]]
        return found

    def _page(self, kept: _Kept, row: int, name: str) -> tuple[CacheEntry, list[Reference]]:
        """The entry of a chunk's frames, and references to the external files that they need."""
        if (found := self._known.get((row, name))) is None:
            if len(self._known) >= _MOST_PAGES:
                self._known.clear()
            pages, references = hashlib.sha256(), []
            for feature in kept.sources:
                for other in self._chunks_beside(
                    kept.group, row, self._reader.features[feature].group
                ):
                    page, needed = self._identity(*other, feature)
                    pages.update(b"%d %b" % (len(page), page))
                    references += needed
            found = CacheEntry(kept.place, pages.hexdigest(), kept.nbytes), references
            self._known[row, name] = found
        return found

    def _identity(self, group: int, row: int, feature: str) -> tuple[bytes, list[Reference]]:
        """Bytes that identify the content of a page, also in a changed dataset; its references."""
        table = self._index.groups[group]
        if table.external[row]:
            pages = self._reader.pages(self._reader.chunk_at(group, row))
            [page] = (page for page in pages if page.feature == feature)
            [data] = self._reader.read([page], resolve=False)
            found, reference = self._reader.external.identity(page, data)
            return found, [reference]
        place = row, table.schema.position(feature)
        facts = int(table.page_crc32c[place]), int(table.page_length[place])
        uid = self._index.uid(table.episode_of(row))
        return json.dumps([uid, *facts, int(table.num_frames[row])]).encode(), []

    def _chunks_beside(self, group: int, row: int, other: int) -> Iterator[tuple[int, int]]:
        """Number and row of each chunk in group `other` that has frames of a chunk."""
        table, others = self._index.groups[group], self._index.groups[other]
        first, episode = int(table.first_frame[row]), table.episode_of(row)
        ends = np.array([max(first, 0), first + int(table.num_frames[row]) - 1])
        begin, last = others.chunks_of(episode, ends).tolist()
        yield from ((other, each) for each in range(begin, last + 1))


def is_costly(spec: FeatureSpec) -> bool:
    """Whether decoding frames, of a fixed shape, costs several times as much as writing them."""
    is_image = any(c["id"] == IMAGE and c.get("format") in _IMAGES for c in spec.codec)
    is_costly = spec.is_video or is_image or spec.stored_shape not in (None, spec.shape)
    return is_costly and spec.is_fixed and spec.value == "array"


def _place(spec: FeatureSpec) -> str:
    """Text of everything that determines decoded frames, beside their page."""
    stored = spec.stored
    facts = {
        "dtype": spec.dtype.str,
        "shape": spec.shape,
        "stored": stored.shape,
        "smooth": is_smooth(spec),
        "codec": stored.codec,
        "revision": _REVISION,
        "libraries": {package: _version(package) for package in _PACKAGES},
    }
    return "decoded frames " + json.dumps(facts, sort_keys=True, default=dict)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _bytes(out: npt.NDArray[Any], rows: IntArray, some: slice) -> memoryview:
    """Memory of consecutive rows."""
    first, count = int(rows[some.start]), some.stop - some.start
    return out[first : first + count].reshape(-1).view(np.uint8).data
