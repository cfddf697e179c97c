"""Decoded frames on a local disk, for later epochs, processes and trainings.

A file of a `CacheFolder` has the frames of one feature in one chunk; integers are little-endian::

    place   what decoding depends on beside the page: shapes, codec, versions of libraries
    path    digest of the page: of the episode's uid and the page's checksum
    file    CRC32C of each frame of the chunk, before trimming │ to 4 KiB │ the frames

A frame is written before its CRC32C; 0 or another value means that it is absent. So processes that
are killed, or fill the same file, need no lock. Entries stay valid when a dataset is appended to,
edited or indexed again. Frames that are absent are decoded: the cache changes no value, order or
state, and its errors fail no read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.checksum import crc32c
from seqrecord.clips.grids import IntArray, run_bounds
from seqrecord.codecs.images import IMAGE
from seqrecord.errors import LocationError
from seqrecord.format.index import Index
from seqrecord.format.references import Reference
from seqrecord.reading.array_specs import ArraySpec
from seqrecord.reading.chunks import ChunkReader
from seqrecord.reading.resizing import is_smooth
from seqrecord.schema import FeatureSpec
from seqrecord.storage.cache_folder import (
    CacheBusyError,
    CacheFolder,
    CacheKey,
    CacheReadOnlyError,
)
from seqrecord.storage.open_files import with_descriptor

_REVISION = 1  # of this package's decoding and resizing: raise it if pixels change
_PACKAGES = ("av", "imagecodecs", "numcodecs", "numpy", "pillow")
_IMAGES = ("png", "jpeg", "any", "jpegxl")  # decoding others costs less than writing
_PATIENCE_SECONDS = 1.0  # for the lock of the folder
_PAUSE_SECONDS = 600.0  # without adding, if the folder is full
_ALIGNMENT = 4096
_MOST_PAGES = 1 << 12  # whose keys are remembered

_Bools = npt.NDArray[np.bool_]
_logger = logging.getLogger("seqrecord")


class _Frames(NamedTuple):
    """Frames `[first, first + number)` of a file with `total` frames of `nbytes` bytes."""

    key: CacheKey
    total: int
    nbytes: int
    first: int
    number: int

    @property
    def size(self) -> int:
        """Size of the file."""
        return self._head + self.total * self.nbytes

    @property
    def start(self) -> int:
        """Position of the first of the frames."""
        return self._head + self.first * self.nbytes

    @property
    def _head(self) -> int:
        return -(-4 * self.total // _ALIGNMENT) * _ALIGNMENT

    def sums_in(self, fd: int) -> npt.NDArray[np.uint32]:
        """Stored checksums of the frames; 0 for absent ones."""
        sums = np.zeros(self.number, "<u4")
        os.preadv(fd, [sums.view(np.uint8).data], 4 * self.first)
        return sums


class FrameFolder:
    """A folder on a local disk with decoded frames of any datasets, up to a limit in bytes.

    Thread-safe and picklable; copies count as one user of the folder. Frames that were not used
    since `since`, a time in nanoseconds, make room for others; default: now. If none is left,
    nothing is added for ten minutes.

    Errors of the disk are logged once and end the use of the folder, or only its filling.
    """

    def __init__(self, path: Path, limit: int, since: int | None = None) -> None:
        self.path, self.limit = path, limit
        self._since = time.time_ns() if since is None else since
        options: dict[str, Any] = {"patience": _PATIENCE_SECONDS, "keep_since": self._since}
        self._folder = CacheFolder(path, limit, **options)
        self._is_used = self._is_filled = True
        self._paused_until = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return FrameFolder, (self.path, self.limit, self._since)

    @property
    def is_filling(self) -> bool:
        """Whether frames are added: not after errors, nor while the folder is full."""
        return self._is_used and self._is_filled and time.monotonic() >= self._paused_until

    def read(self, file: _Frames, out: memoryview) -> _Bools:
        """Read frames into `out`; returns which were there, bool[frames]."""
        with self._errors(), self._opened(file) as fd:
            sums = file.sums_in(fd)
            found: _Bools = sums != 0
            if found.any() and os.preadv(fd, [out], file.start) == len(out):
                for i in np.flatnonzero(found).tolist():
                    frame = out[i * file.nbytes : (i + 1) * file.nbytes]
                    found[i] = (crc32c(frame) or 1) == sums[i]
                with contextlib.suppress(OSError):  # read-only disk
                    os.utime(fd)
                return found
        return np.zeros(file.number, np.bool_)

    def covers(self, file: _Frames) -> bool:
        """Whether all frames are there, without a look at them."""
        sums = np.zeros(file.number, np.uint32)
        with self._errors(), self._opened(file) as fd:
            sums = file.sums_in(fd)
        return bool(sums.all())

    def add(self, file: _Frames, data: memoryview) -> None:
        """Add frames, unless they do not fit."""
        if not self.is_filling:
            return
        with self._errors(is_adding=True):
            if (fd := self._folder.open_slots(file.key, file.size)) is not None:
                try:
                    self._write(file, data, fd)
                finally:
                    os.close(fd)
        if self._folder.is_full:
            self._folder.is_full = False
            self._paused_until = time.monotonic() + _PAUSE_SECONDS

    def _write(self, file: _Frames, data: memoryview, fd: int) -> None:
        size = file.nbytes
        frames = (data[at : at + size] for at in range(0, len(data), size))
        sums = np.array([crc32c(frame) or 1 for frame in frames], "<u4")
        for part, at in ((data, file.start), (sums.view(np.uint8).data, 4 * file.first)):
            while part:
                written = os.pwrite(fd, part, at)
                part, at = part[written:], at + written

    @contextlib.contextmanager
    def _opened(self, file: _Frames) -> Iterator[int]:
        """A file for reading; an empty one if there is none, or if the folder is not used."""
        path: Path | str = self._folder.slots_path(file.key, file.size)
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe fails
        try:
            fd = with_descriptor(lambda: os.open(path if self._is_used else os.devnull, flags))
        except (FileNotFoundError, NotADirectoryError):
            fd = os.open(os.devnull, flags)
        try:
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _errors(self, *, is_adding: bool = False) -> Iterator[None]:
        """Log errors of the block once, and end the use of the folder or its filling."""
        try:
            yield
        except CacheBusyError:
            pass
        except (OSError, LocationError) as error:
            was_filled, self._is_filled = self._is_filled, False
            is_ours = isinstance(error, OSError) and self._folder.path.is_dir()
            self._is_used &= is_adding and is_ours
            if was_filled and not isinstance(error, CacheReadOnlyError):
                what = "not filled any more" if self._is_used else "not used"
                _logger.warning("%s: the frame cache is %s: %s", self.path, what, error)


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

    def __init__(self, cache: FrameFolder, index: Index, reader: ChunkReader) -> None:
        self._cache, self._index, self._reader = cache, index, reader
        self.features: dict[int, list[str]] = {}
        """Names of the features, or results, of each group that has any."""
        self._kept: dict[str, _Kept] = {}
        self._known: dict[tuple[int, str], tuple[CacheKey, list[Reference]]] = {}
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
            self._cache.covers(file)
            for name in self.features[group]
            for _, file in self._runs(name, chunk, frame, frame, is_checked=True)
        )

    def read(
        self, name: str, chunk: IntArray, frame: IntArray, out: npt.NDArray[Any], rows: IntArray
    ) -> _Bools:
        """Read frames into rows of `out`; returns which were there, bool[n].

        `chunk` are rows of the chunk table, `frame` numbers in the episode; int64[n] each.
        """
        found = ~self._present([name], chunk, frame)
        out[rows[found]] = 0  # as decoding leaves frames without the feature
        for some, file in self._runs(name, chunk, frame, rows):
            found[some] = self._cache.read(file, _bytes(out, rows, some))
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
            for some, file in self._runs(name, chunk, frame, rows, is_checked=True):
                self._cache.add(file, _bytes(out, rows, some))

    def _runs(
        self,
        name: str,
        chunk: IntArray,
        frame: IntArray,
        rows: IntArray,
        *,
        is_checked: bool = False,
    ) -> list[tuple[slice, _Frames]]:
        """Runs of consecutive frames and rows, as slices, and their places in the cache.

        Without the frames that lack the feature.
        """
        kept, runs = self._kept[name], []
        table = self._index.groups[kept.group]
        first, present = frame - table.first_frame[chunk], self._present([name], chunk, frame)
        for begin, stop in pairwise(run_bounds(frame, rows, same=2 * chunk + present)):
            if not present[begin]:
                continue
            key, references = self._page(kept, int(chunk[begin]), name)
            for reference in () if is_checked else references:
                self._reader.external.files.check(reference)
            total = int(table.num_frames[chunk[begin]])
            file = _Frames(key, total, kept.nbytes, int(first[begin]), stop - begin)
            runs.append((slice(begin, stop), file))
        return runs

    def _present(self, names: list[str], chunk: IntArray, frame: IntArray) -> _Bools:
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

    def _page(self, kept: _Kept, row: int, name: str) -> tuple[CacheKey, list[Reference]]:
        """The key of a chunk's frames, and references to the external files that they need."""
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
            found = CacheKey(kept.place, pages.hexdigest()), references
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
