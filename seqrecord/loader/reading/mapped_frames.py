"""Raw frames where they lie: places in mapped record files.

A frame is touched and its checksum compared once per process, before its first use, and again after
somebody may have written to its file. Forks share the marks of checked frames: the version of the
file, see `MappedFiles.check`. A frame that lacks the feature is at place 0, where zeros are::

    memory      | zeros | record file 0 ................ | record file 1 ..
    a page                 | frame 0 | frame 1 | frame 3 |
    places      0          place(0)  place(1)  place(3)        place(2) = 0
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from seqrecord.errors import FormatError, SeqRecordError
from seqrecord.loader.reading.mapped_files import STATE_NUMBERS, MappedFiles, can_map
from seqrecord.store.checksum import crc32c
from seqrecord.store.format.index import GroupIndex
from seqrecord.store.format.pages import page_offsets
from seqrecord.store.format.rows import WORD, absent_frames
from seqrecord.store.processes.forks import PerProcess
from seqrecord.store.reading.contents import Contents
from seqrecord.store.reading.raw_frames import FrameRun, RawFrames
from seqrecord.store.schema import FeatureSpec, Schema
from seqrecord.store.storage.base import Storage, mapped_path_of
from seqrecord.store.tables.grids import IntArray, distinct, frame_keys, run_bounds

MIN_FRAME_BYTES = 16 << 10
"""Smaller frames are copied to rows: their pages of memory would have other features, too."""

_MAPPED: WeakKeyDictionary[Contents, Mapping[int, MappedFrames]] = WeakKeyDictionary()
_MAX_STARTS = 1 << 20  # chunks of which the starts of pages are in memory
_MAX_ABSENT = 1 << 20  # frames without the feature, whose numbers are in memory


class MappedRecords:
    """Record files of a dataset, each mapped at its first use. Thread-safe.

    Attributes:
        files: see `MappedFiles`; the zeros at its start are as long as the largest frame.
        versions: the version of each file, int64 [files], shared by forks; 0 before its first map.
        num_changes: how often this process has found a new version.
    """

    def __init__(self, files: MappedFiles, paths: Sequence[str]) -> None:
        self.files = files
        self._paths = paths  # of the disk
        self.are_mapped = np.zeros(len(paths), np.bool_)  # in this process
        shared = mmap.mmap(-1, max(1, 8 * STATE_NUMBERS * len(paths)))
        self._states = np.frombuffer(shared, np.int64)[: STATE_NUMBERS * len(paths)]
        self._states = self._states.reshape(len(paths), STATE_NUMBERS)
        self.versions = self._states[:, -1]
        self._seen = dict[int, int]()
        self.num_changes = 0
        self._lock = PerProcess(threading.Lock)

    @classmethod
    def of(
        cls,
        storage: Storage,
        files: Mapping[str, int],
        are_used: Sequence[bool],
        zero_bytes: int,
    ) -> MappedRecords | None:
        """Reserve addresses for the used ones of `files`, sizes by path; `None` if one of these
        cannot be mapped.
        """
        paths, sizes = [], []
        for (path, size), is_used in zip(files.items(), are_used, strict=True):
            local_path = mapped_path_of(storage, path) if is_used else ""
            if local_path is None or (is_used and not can_map(local_path)):
                return None
            paths.append(local_path)
            sizes.append(size if is_used else 0)
        mapped_files = MappedFiles.reserve(sizes, zero_bytes)
        return None if mapped_files is None else cls(mapped_files, paths)

    def map(self, number: int) -> None:
        """Map a record file, if it is not mapped yet."""
        if not self.are_mapped[number]:
            with self._lock.get():
                if not self.are_mapped[number]:
                    # A shorter one is an error of the frames that it lacks.
                    self.files.map(number, self._paths[number], may_be_short=True)
                    # Forks may have checked frames before somebody wrote to it.
                    self._seen[number] = self.files.check(number, self._states[number])
                    self.are_mapped[number] = True

    def check_all(self) -> None:
        """Find new versions of the mapped files. Raises as `check`."""
        for number in np.flatnonzero(self.are_mapped).tolist():
            self._check(number)

    def check(self, *places: IntArray) -> None:
        """Find new versions of the files with any of these places.

        Raises `StorageError` if one has become shorter.
        """
        starts = self.files.places
        numbers: Iterable[int] = range(len(starts))
        if len(starts) > 1:
            files = [np.searchsorted(starts, part.ravel(), side="right") - 1 for part in places]
            numbers = distinct(np.concatenate(files)).tolist() if files else ()
        for number in numbers:
            if number >= 0 and self.are_mapped[number]:
                self._check(number)

    def _check(self, number: int) -> None:
        version = self.files.check(number, self._states[number])
        if self._seen[number] != version:
            self._seen[number] = version
            self.num_changes += 1


class MappedFrames:
    """Raw frames of one group in mapped record files. Thread-safe.

    Args:
        records: the record files of the dataset.
        raw: reader of the group's raw frames.
        table: chunk table of the group.
        specs: the features to map, see `mappable`.
        verify: whether checksums are compared.

    Arrays of frames are int64 [n] each: rows of the chunk table, and frames counted from the start
    of their chunk.
    """

    def __init__(
        self,
        records: MappedRecords,
        raw: RawFrames,
        table: GroupIndex,
        specs: Mapping[str, FeatureSpec],
        *,
        verify: bool,
    ) -> None:
        self.records, self.specs = records, specs
        self._raw, self.table, self._verify = raw, table, verify
        self._columns = {name: table.schema.position(name) for name in specs}
        self._absent = {n: _absent_keys(table, column) for n, column in self._columns.items()}
        self._first = np.cumsum(table.num_frames, dtype=np.int64) - table.num_frames
        self._starts: dict[str, IntArray] = {}
        # Shared, so that a fork checks nothing again; touched where frames are checked.
        marks = mmap.mmap(-1, max(1, 2 * int(table.num_frames.sum(dtype=np.int64))))
        self._marks = np.frombuffer(marks, np.uint16)  # versions of the checked bytes

    @property
    def memory(self) -> npt.NDArray[np.uint8]:
        """The reserved memory that places refer to."""
        return self.records.files.memory

    @property
    def nbytes(self) -> int:
        """Bytes of all frames."""
        return len(self._marks) * sum(spec.nbytes for spec in self.specs.values())

    def places(self, feature: str, chunk: IntArray, frame: IntArray) -> IntArray:
        """First byte of each frame in `memory`, int64 of the arrays' shape."""
        if (starts := self._starts.get(feature)) is not None:
            start = starts[chunk]
        elif len(self.table.offset) > _MAX_STARTS:
            start = self._page_starts(feature, chunk)
        else:  # most of the time of a single clip would be spent here
            starts = self._page_starts(feature, np.arange(len(self.table.offset)))
            start = self._starts.setdefault(feature, starts)[chunk]
        nbytes, absent = self.specs[feature].nbytes, self._absent[feature]
        if not len(absent):
            return np.asarray(start + frame * nbytes, np.int64)
        position, is_absent = self._positions(absent, chunk, frame)
        return np.where(is_absent, 0, start + position * nbytes)

    def _page_starts(self, feature: str, chunk: IntArray) -> IntArray:
        """First byte of a feature's page in `memory`, for each chunk."""
        table = self.table
        start: IntArray = page_offsets(table.page_length[chunk])[..., self._columns[feature]]
        start += table.offset[chunk].astype(np.int64)
        return start + self.records.files.places[table.file[chunk]]

    def _positions(
        self, absent: IntArray, chunk: IntArray, frame: IntArray
    ) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """Positions in the page, and whether frames lack the feature."""
        keys = frame_keys(chunk, frame)
        place = np.searchsorted(absent, keys)
        is_absent = absent[np.minimum(place, len(absent) - 1)] == keys
        num_before = place - np.searchsorted(absent, frame_keys(chunk, np.zeros_like(frame)))
        return frame - num_before, is_absent

    def are_checked(self, chunk: IntArray, frame: IntArray) -> npt.NDArray[np.bool_]:
        """Whether frames were checked, and their files are mapped; bool [n]."""
        # A fork shares marks, but not the files that its parent has mapped since.
        file = self.table.file[chunk]
        is_checked: npt.NDArray[np.bool_] = (
            self._marks[self._first[chunk] + frame] == self.records.versions[file]
        )
        return is_checked & self.records.are_mapped[file]

    def load(self, chunk: IntArray, frame: IntArray) -> int:
        """Touch frames, which ascend in each chunk, and check new ones. Without the GIL.

        Returns the number of bytes checked. Raises `ChecksumError`, `FormatError` and
        `StorageError` as `RawFrames.read`.
        """
        nbytes = 0
        for a, b in pairwise(run_bounds(frame, constant=chunk)):
            row, start = int(chunk[a]), int(frame[a])
            try:
                nbytes += self._load_run(row, start, start + b - a)
            except SeqRecordError as error:
                raise error.located(**self._raw.place_of(row)) from error.__cause__
        return nbytes

    def _load_run(self, row: int, start: int, stop: int) -> int:
        """Load the frames `[start, stop)` of a chunk."""
        table, files = self.table, self.records.files
        number, first = int(table.file[row]), int(self._first[row])
        self.records.map(number)
        starts, sums = self._raw.places(row)
        version, marks = self.records.versions[number], self._marks[first + start : first + stop]
        is_checked = bool((marks == version).all())
        ranges = {}
        for name, column in self._columns.items():
            begin, end = self._range(name, row, start, stop)
            if end > begin:
                ranges[name] = begin, end
                if not is_checked:  # probably not in the page cache: all features at once
                    files.read_ahead(number, starts[column] + begin, starts[column] + end)
        for name, (begin, end) in ranges.items():
            place = starts[self._columns[name]]
            if not is_checked:  # once: a second call would look up all pages again
                begin, end = self._whole_slices(row, name, begin, end)
            files.touch(number, place + begin, place + end)
        if is_checked:
            return 0
        for name, (begin, end) in ranges.items():
            column = self._columns[name]
            if not self._is_right(row, name, begin, end, starts[column], sums[column]):
                self._raise(row, name, start, stop)
        marks[:] = version
        return sum(
            end - begin + self._num_sums(row, name, begin, end) * 4
            for name, (begin, end) in ranges.items()
        )

    def _whole_slices(self, row: int, name: str, begin: int, end: int) -> tuple[int, int]:
        """The slices with bytes `[begin, end)` of a page, whose checksums are compared."""
        column = self._columns[name]
        length, size = int(self.table.page_length[row, column]), self._raw.slice_bytes[column]
        if not self._verify or not size or not self._num_sums(row, name, begin, end):
            return begin, end
        return begin // size * size, max(end, min(-(-end // size) * size, length))

    def _num_sums(self, row: int, name: str, begin: int, end: int) -> int:
        """Checksums of slices with bytes `[begin, end)` of a page; none for a whole page."""
        column = self._columns[name]
        if end - begin == int(self.table.page_length[row, column]):
            return 0
        size = self._raw.slice_bytes[column]
        return -(-end // size) - begin // size

    def _range(self, name: str, row: int, start: int, stop: int) -> tuple[int, int]:
        """Bytes of a page with the frames `[start, stop)` of a chunk."""
        nbytes = self.specs[name].nbytes
        if not len(absent := self._absent[name]):
            return start * nbytes, stop * nbytes
        ends = np.array([start, stop])
        begin, end = self._positions(absent, np.full_like(ends, row), ends)[0].tolist()
        return begin * nbytes, end * nbytes

    def _is_right(self, row: int, name: str, begin: int, end: int, page: int, sums: int) -> bool:
        """Whether the frames in bytes `[begin, end)` of a page match their checksums.

        `page` and `sums` are the offsets of the page and its checksums in the file.
        """
        table, column, files = self.table, self._columns[name], self.records.files
        length, number = int(table.page_length[row, column]), int(table.file[row])
        if length % self.specs[name].nbytes or end > length:
            return False
        if not self._verify:
            return True
        memory = memoryview(files.memory.data)[int(files.places[number]) :]
        if end - begin == length:
            return crc32c(memory[page + begin : page + end]) == int(table.page_crc32c[row, column])
        size = self._raw.slice_bytes[column]
        first, last = begin // size, -(-end // size)
        files.touch(number, sums + 4 * first, sums + 4 * last)
        stored = np.frombuffer(memory[sums + 4 * first : sums + 4 * last], "<u4").tolist()
        starts = range(page + first * size, page + last * size, size)
        return all(
            crc32c(memory[start : min(start + size, page + length)]) == value
            for start, value in zip(starts, stored, strict=True)
        )

    def _raise(self, row: int, name: str, start: int, stop: int) -> None:
        """Read wrong frames, so that the error names their place."""
        spec = self.specs[name]
        shape: tuple[int, ...] = spec.shape  # type: ignore[assignment]
        frames = np.empty((stop - start, *shape), spec.dtype)
        self._raw.read([FrameRun(row, start, stop - start, 0)], {name: frames}, exact=True)
        problem = "a mapped page differs from its record file; it was replaced"
        raise self._raw.located(FormatError(problem), row, name)


def mapped_frames(contents: Contents) -> Mapping[int, MappedFrames]:
    """Return the raw frames of a dataset that are mapped, by group.

    Empty without any, and with `verify="always"`. Loaders of one dataset share them.
    """
    if (frames := _MAPPED.get(contents)) is None:
        frames = _MAPPED.setdefault(contents, _map_frames(contents))
    return frames


def _map_frames(contents: Contents) -> dict[int, MappedFrames]:
    chunks, groups, manifest = contents.chunks, contents.index.groups, contents.manifest
    features = dict[int, dict[str, FeatureSpec]]()
    if contents.verify != "always":
        for number, raw in enumerate(chunks.raw):
            if specs := mappable(raw, groups[number], contents.features):
                features[number] = specs
    if not features:
        return {}
    is_used = np.zeros(len(manifest.record_files), np.bool_)
    for number in features:
        is_used |= np.bincount(groups[number].file, minlength=len(is_used)) > 0
    files = {file.path: file.size for file in manifest.record_files}
    zero_bytes = max(spec.nbytes for specs in features.values() for spec in specs.values())
    records = MappedRecords.of(contents.storage, files, is_used.tolist(), zero_bytes)
    if records is None:
        return {}
    verify = bool(contents.verify)
    return {
        n: MappedFrames(records, chunks.raw[n], groups[n], specs, verify=verify)
        for n, specs in features.items()
    }


def mappable(raw: RawFrames, table: GroupIndex, features: Schema) -> dict[str, FeatureSpec]:
    """The features of a group that can be mapped.

    Raw pages on a local disk, in their stored size, whose frames have `MIN_FRAME_BYTES` or more.
    Not bools: their bytes are checked when they are copied.
    """
    specs: dict[str, FeatureSpec] = {}
    for name in features:
        spec = raw.specs.get(name)
        if spec is None or not raw.is_local or features[name] is not spec:
            continue
        if spec.dtype == np.bool_ or spec.nbytes < MIN_FRAME_BYTES:
            continue
        if _num_absent_words(table, table.schema.position(name)) * WORD <= _MAX_ABSENT:
            specs[name] = spec
    return specs


def _num_absent_words(table: GroupIndex, column: int) -> int:
    return int(np.count_nonzero(table.gaps["feature"] == table.features[column]))


def _absent_keys(table: GroupIndex, column: int) -> IntArray:
    """Keys of the frames that lack a feature, see `frame_keys`: ascending int64 [n]."""
    gaps = table.gaps[table.gaps["feature"] == table.features[column]]
    gap, bit = absent_frames(gaps, table.num_frames)
    chunk = gaps["chunk"].astype(np.int64)[gap]
    return frame_keys(chunk, WORD * gaps["word"].astype(np.int64)[gap] + bit)
