"""Counts what an epoch reads, from index and plan alone: array arithmetic, nothing is read.

The choices are those of `reading.raw_frames`, `reading.chunks` and `storage.ranges`: raw pages are
read from a local disk in slices, all others whole, and nearby ranges are one request.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.clips.grids import MAX_FRAMES, frame_keys, numbered
from seqrecord.clips.tables import IntArray
from seqrecord.engine.engine import Job, whole_chunks
from seqrecord.engine.stores import FrameRows, loads_of_round
from seqrecord.format.index import GroupIndex
from seqrecord.format.pages import ALIGNMENT, num_slices, slice_frames
from seqrecord.format.references import HEAD_BYTES, named_file
from seqrecord.reading.amount import Amount
from seqrecord.reading.raw_frames import MAX_GAP, PADDING, PART_BYTES, SPARED_REMOTE
from seqrecord.sampling import Loads
from seqrecord.schema import FeatureSpec
from seqrecord.storage import Storage
from seqrecord.storage.parallel import parallel_of, requests_by_file
from seqrecord.storage.ranges import ByteRange

_COLUMNS = ("cursor", "run", "episode", "chunk", "first", "count")

_Range: TypeAlias = tuple[IntArray, IntArray]
"""Bytes `[start, stop)` of a page, of each chunk; int64[chunks]."""


class LoadCounter:
    """Counts the loads of a job's plan, which one process does.

    With `rows`, of each group of the plan, frames stay in memory: none is loaded twice.
    """

    def __init__(self, job: Job, rows: Sequence[FrameRows]) -> None:
        self._job, self._plan, self._rows = job, job.plan, rows
        self._contents, self._whole = job.dataset.contents, whole_chunks(job)
        self._tables = self._contents.index.groups
        self._has_path = self._contents.storage.local_path("any name") is not None
        self._last: dict[tuple[int, str], IntArray] = {}  # of each cursor's last load
        self._asked: dict[int, npt.NDArray[np.bool_]] = {}  # rows or chunks that were loaded
        self._used: dict[int, IntArray] = {}
        self._keys: dict[int, IntArray] = {}  # of chunks, by group
        self._files: set[object] = set()  # that were read

    def epoch(self) -> Amount:
        """All loads."""
        total = Amount()
        for loads in self._plan.loads():
            for place, some in enumerate(loads):
                total += self._count(place, some)
        return total

    def first_batch(self) -> Amount:
        """Those that the plan's first batch needs."""
        plan, total, get = self._plan, Amount(), attrgetter("group", *_COLUMNS)
        left = plan.first_clip(min(1, plan.num_batches))
        for current in plan.rounds() if left else ():
            waiting = loads_of_round(current, plan.groups, self._job.clip_frames.num_frames)
            needed = [get(load) for use, load in waiting if use < left]
            table = np.array(needed, np.int64).reshape(-1, 7).T
            for place, group in enumerate(plan.groups):
                total += self._count(place, Loads(*table[1:, table[0] == group.group]))
            left -= len(current.clips)
            if left <= 0:
                break
        return total

    def _count(self, place: int, loads: Loads) -> Amount:
        """Loads of the group at a place of the plan, those of a cursor in their order."""
        group, stored = self._plan.groups[place], self._job.clip_frames.stored
        table, step = self._tables[group.group], group.window.frame_step
        if self._rows:
            loads = self._missing(place, loads, step)
        begin = table.first_frame[loads.chunk].astype(np.int64)
        episode, first = stored(loads.episode, loads.first)
        _, last = stored(loads.episode, loads.first + (loads.count - 1) * step)
        runs = np.where(last - first < loads.count, 1, loads.count)
        is_new, reached = np.ones(len(loads), np.bool_), begin
        if group.in_pieces and not self._rows:  # the chunk stays open for the cursor's next load
            key = frame_keys(loads.run, loads.chunk)
            is_new = self._before(place, "chunk", loads.cursor, key) != key
            before = self._before(place, "reached", loads.cursor, last + 1)
            reached = np.where(is_new, begin, before)
        read = (loads.chunk, first - begin, last - begin, runs)
        total = self._read(group.group, *(column[is_new] for column in read))
        if self._job.frame_transform is not None:
            for other in {spec.group for spec in self._contents.features.values()} - {group.group}:
                a, b = self._chunks(other, episode, first), self._chunks(other, episode, last)
                a += ~is_new & (a == self._before(place, f"{other}", loads.cursor, b))
                owner, inside = numbered(b - a + 1)
                total += self._read(other, a[owner] + inside, *np.zeros((3, len(owner)), np.int64))
        frames = int(loads.count.sum()) if place == self._plan.leading else 0
        is_video = any(spec.is_video for spec in table.schema.values())
        return total + Amount(0, 0, frames, int((last + 1 - reached).sum()) * is_video)

    def _missing(self, place: int, loads: Loads, step: int) -> Loads:
        """What loads still bring where frames stay in memory; see `AllFrames`."""
        group, rows = self._plan.groups[place].group, self._rows[place]
        cursor, run, episode, chunk, first, count = vars(loads).values()
        if group in self._whole:  # at once, all frames of a chunk from the first to the last used
            if place not in self._used:
                self._used[place] = self._find_used(place, group)
                self._asked[place] = np.zeros(len(self._used[place][0]), np.bool_)
            (low, high), asked = self._used[place], self._asked[place]
            _, some = np.unique(chunk, return_index=True)
            some = np.sort(some[~asked[chunk[some]]])
            asked[chunk] = True
            first = low[chunk] + (first - low[chunk]) % step
            count = -(-(high[chunk] - first) // step)
        else:
            if place not in self._asked:
                self._asked[place] = np.zeros(rows.num_rows, np.bool_)
            asked = self._asked[place]
            owner, inside = numbered(count)
            frame = first[owner] + inside * step
            row = frame + rows.shift(episode[owner], frame)
            _, index = np.unique(row, return_index=True)
            index = np.sort(index[~asked[row[index]]])
            asked[row] = True
            some, head = np.unique(owner[index], return_index=True)
            first[some], count[some] = frame[index[head]], np.diff(head, append=len(index))
        return Loads(*(c[some] for c in (cursor, run, episode, chunk, first, count)))

    def _find_used(self, place: int, group: int) -> IntArray:
        """The frames `[low, high)` from the first to the last that the plan uses of each chunk of a
        group; int64[2, chunks]."""
        table, (episode, begin, stop) = self._tables[group], self._plan.used(place)
        first = self._chunks(group, episode, begin)
        owner, inside = numbered(self._chunks(group, episode, stop - 1) - first + 1)
        row, end = first[owner] + inside, table.first_frame + table.num_frames.astype(np.int64)
        bounds = np.array([[MAX_FRAMES], [0]]).repeat(len(end), axis=1)
        np.minimum.at(bounds[0], row, np.maximum(begin[owner], table.first_frame[row]))
        np.maximum.at(bounds[1], row, np.minimum(stop[owner], end[row]))
        return bounds

    def _chunks(self, group: int, episode: IntArray, frame: IntArray) -> IntArray:
        """The rows of the chunks of a group that have these frames."""
        if group not in self._keys:
            owner, _ = numbered(self._tables[group].num_chunks)
            self._keys[group] = frame_keys(owner, self._tables[group].first_frame.astype(np.int64))
        at = np.searchsorted(self._keys[group], frame_keys(episode, frame), side="right")
        found: IntArray = at - 1
        return found

    def _before(self, place: int, name: str, cursor: IntArray, value: IntArray) -> IntArray:
        """The values of each cursor's load before, int64[loads]; -1 of its first one."""
        last = self._last.setdefault((place, name), np.full(self._plan.num_cursors, -1))
        order = np.argsort(cursor, kind="stable")
        before = np.empty_like(value)
        before[order] = np.roll(value[order], 1)
        heads = order[np.flatnonzero(np.diff(cursor[order], prepend=-1))]
        before[heads] = last[cursor[heads]]
        last[cursor[order]] = value[order]
        return before

    def _read(
        self, group: int, row: IntArray, first: IntArray, last: IntArray, runs: IntArray
    ) -> Amount:
        """Frames `first` to `last`, in so many runs, of chunks of a group, each read alone."""
        table = self._tables[group]
        length = table.page_length[row].astype(np.int64)
        room = -(-length // ALIGNMENT) * ALIGNMENT
        start = table.offset[row].astype(np.int64)[:, None] + np.cumsum(room, axis=1) - room
        sums = start[:, -1] + room[:, -1]
        is_local, specs = self._contents.chunks.is_local, table.schema.values()
        chosen = [spec for spec in specs if spec.name in self._contents.features]
        in_slices = self._job.frame_transform is None and (
            is_local or all(spec.is_raw for spec in chosen)
        )
        pages, slices, tables = list[_Range](), list[_Range](), list[_Range]()
        for spec, begin, size in zip(specs, start.T, length.T, strict=True):
            if spec in chosen and spec.is_raw and in_slices:
                low, high, checked = self._slices(spec, size, first, last, runs)
                slices.append((begin + low, begin + high))
                tables.append((sums + checked[0], sums + checked[1]))
            elif spec in chosen:
                pages.append((begin, begin + size))
            if spec.is_raw:
                sums = sums + 4 * num_slices(spec, size // spec.nbytes)
        total, storage = Amount(), self._contents.storage
        if by_file := requests_by_file(storage):
            new = set(np.unique(table.file[row]).tolist()) - self._files
            total += Amount(by_file * len(new))
            self._files |= new
        if is_local or not self._has_path:
            total += _requested(storage, [*slices, *tables], PADDING)
            total += _requested(storage, pages, ALIGNMENT - 1)
        if chosen and table.external[row].any():
            total += self._referred(table, row, start[:, 0])
        return total

    def _referred(self, table: GroupIndex, row: IntArray, start: IntArray) -> Amount:
        """What pages that begin at `start` read of other files, which they name in their heads."""
        contents, total = self._contents, Amount()
        externals, paths = contents.externals, contents.manifest.record_files
        assert externals is not None
        for at in np.flatnonzero(table.external[row]).tolist():
            chunk, begin, head = row[at], int(start[at]), np.empty(HEAD_BYTES, np.uint8).data
            place = ByteRange(begin, begin + HEAD_BYTES)
            contents.storage.read_ranges(paths[table.file[chunk]].path, [place], [head])
            name = named_file(head)
            file = externals.file_of(*name)
            storage = externals.serving(file)
            size = np.array([table.external[chunk]], np.int64)
            read = _requested(storage, [(np.zeros_like(size), size)], 0)
            if parallel_of(storage) is not None and not file.size:  # a folder: each frame is a file
                read = Amount(2 * int(table.num_frames[chunk]), read.bytes)
            elif parallel_of(storage) is not None and name not in self._files:  # it is compared
                read += Amount(1)
            self._files.add(name)
            total += read
        return total

    def _slices(
        self, spec: FeatureSpec, length: IntArray, first: IntArray, last: IntArray, runs: IntArray
    ) -> tuple[IntArray, IntArray, IntArray]:
        """What is read of raw pages, `[low, high)` in bytes, and of the checksums of their slices;
        see `RawFrames._pieces`."""
        size, nbytes = slice_frames(spec) if self._contents.verify else 1, spec.nbytes
        held = length // nbytes
        low = np.minimum(first // size * size, held)
        high = np.minimum(-(-(last + 1) // size) * size, held)
        wanted = np.where(runs > 1, np.minimum(runs * size, high - low), high - low)
        least = np.maximum(wanted * nbytes, SPARED_REMOTE)
        if self._has_path:
            least = (runs + 1) * PART_BYTES
        is_whole = length - wanted * nbytes < least
        apart = ((last - first) // np.maximum(runs - 1, 1) - size) * nbytes > MAX_GAP
        high = np.where(is_whole, held, low + np.where(apart, wanted, high - low))
        low = np.where(is_whole, 0, low)
        checked = np.where(is_whole, 0, 4 * np.array([low // size, -(-high // size)]))
        return low * nbytes, high * nbytes, checked


def _requested(storage: Storage, ranges: Sequence[_Range], gap: int) -> Amount:
    """The requests of calls that each read some ranges of a file, in their order; and their bytes,
    with gaps of at most so many bytes between ranges."""
    if not ranges:
        return Amount()
    parallel = parallel_of(storage)
    gap, most = (gap, 1 << 62) if parallel is None else (parallel.max_gap, parallel.max_bytes)
    requests, nbytes = 0, 0
    begin = reached = np.full(len(ranges[0][0]), -(1 << 62))
    for start, stop in ranges:
        some, cuts = stop > start, -(-(stop - start) // most)
        piece = (stop - start) // np.maximum(cuts, 1)
        joins = some & (start - reached <= gap) & (start + piece - begin <= most)
        requests += int((cuts - joins).sum())
        nbytes += int((stop - np.where(joins, reached, start))[some].sum())
        fresh = np.where(cuts > 1, stop - piece, np.where(joins, begin, start))
        begin, reached = np.where(some, fresh, begin), np.where(some, stop, reached)
    return Amount(requests if parallel else 0, nbytes)
