"""The table of a store: which frames of runs are in memory, in which rows, and until which clip.

Each run has a line of its own, with a place for each frame of its episode. Lines are pages, which
exist while they have frames that clips will use::

    line of run 0          line of run 1                line of run 2
    |- - - - 4 5 6 7 - - -|- 3 4 5 6 7 8 9 - - - - - -| ...             frames with a use to come
      |___ page 3 ___|___ page 0 ___|___ page 5 ___|

A place has a row, and the number of the last clip of its run that uses the frame. Clips of a run
are used in the order of their numbers, from step to step; so a frame is free when its last clip
has been copied.
"""

from __future__ import annotations

import numpy as np

from seqrecord.loader.clips.tables import IntArray
from seqrecord.store.tables.grids import distinct

NO_ROW = -1
ASKED = -2
"""The frame has a load that has no row yet."""
NO_USE = -1

_PAGE_BITS = 7  # 1.5 KiB: each run in use has a page that is not full, at both ends
_PAGE = 1 << _PAGE_BITS


class FrameTable:
    """See the module.

    Args:
        num_runs: number of runs.

    Attributes:
        row: row of each place, int32[places]; `NO_ROW` or `ASKED`.
        last: number of the last clip that uses each place, int64[places]; `NO_USE`.
    """

    def __init__(self, num_runs: int) -> None:
        self._line = np.full(num_runs, -1, np.int64)  # where the line of each run begins
        self._begins = np.zeros(num_runs, np.int64)  # of lines, ascending,
        self._runs = np.zeros(num_runs, np.int64)  # … and their runs
        self._count = self._end = 0
        self._first = np.zeros(0, np.int64)  # first place of each page of lines, or -1
        self._page = np.zeros(0, np.int64)  # of lines, of each page that exists
        self._free = list[int]()  # pages
        self.row = np.zeros(0, np.int32)
        self.last = np.zeros(0, np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        columns = (self._line, self._begins, self._runs, self._first, self._page)
        return sum(column.nbytes for column in (*columns, self.row, self.last))

    def begin(self, run: IntArray, num_frames: IntArray) -> None:
        """Begin lines for runs of so many frames, int64[n] each, which have none."""
        ends = self._end + np.cumsum(num_frames)
        self._line[run] = ends - num_frames
        new = slice(self._count, self._count + len(run))
        self._begins[new], self._runs[new] = ends - num_frames, run
        self._count, self._end = new.stop, int(ends[-1])
        if (short := (self._end >> _PAGE_BITS) + 1 - len(self._first)) > 0:
            self._first = np.append(self._first, np.full(max(short, len(self._first)), -1))

    def places(self, run: IntArray, frames: IntArray) -> IntArray:
        """Places of frames, int64[n, T], of runs, int64[n]."""
        line = self._line[run][:, None] + frames
        page = line >> _PAGE_BITS
        first = self._first[page]
        if first.size and first.min() < 0:
            self._add(distinct(page[first < 0]))
            first = self._first[page]
        places: IntArray = first + (line & _PAGE - 1)
        return places

    def known(self, run: IntArray, frame: IntArray) -> tuple[IntArray, IntArray]:
        """Which frames of runs, int64[n] each, have a use to come: their indices and places."""
        line = self._line[run] + frame
        first = self._first[line >> _PAGE_BITS]
        index = np.flatnonzero(first >= 0)
        place = first[index] + (line[index] & _PAGE - 1)
        has_use = self.last[place] != NO_USE
        return index[has_use], place[has_use]

    def find(self, place: IntArray) -> tuple[IntArray, IntArray]:
        """Run and frame of places, int64[n] each."""
        line = (self._page[place >> _PAGE_BITS] << _PAGE_BITS) + (place & _PAGE - 1)
        number = np.searchsorted(self._begins[: self._count], line, side="right") - 1
        return self._runs[number], line - self._begins[number]

    def clear(self, place: IntArray) -> None:
        """Frames at these places have no use to come, int64[n]."""
        self.row[place] = NO_ROW
        self.last[place] = NO_USE
        pages = distinct(place >> _PAGE_BITS)
        is_empty = self.last.reshape(-1, _PAGE)[pages].max(axis=1) == NO_USE
        pages = pages[is_empty]
        self._first[self._page[pages]] = -1
        self._free += pages.tolist()

    def _add(self, pages: IntArray) -> None:
        """Add pages of lines, int64[n]."""
        if (short := len(pages) - len(self._free)) > 0:
            count = len(self._page)
            more = max(short, count >> 2)
            self._page = np.append(self._page, np.zeros(more, np.int64))
            self._free += range(count + more - 1, count - 1, -1)
            places = more << _PAGE_BITS
            self.row = np.append(self.row, np.full(places, NO_ROW, np.int32))
            self.last = np.append(self.last, np.full(places, NO_USE))
        new = np.array([self._free.pop() for _ in range(len(pages))])
        self._page[new] = pages
        self._first[pages] = new << _PAGE_BITS


class Rows:
    """The rows of an arena: which are free.

    A cursor has rows of its own, which it takes one after the other, so that frames of a run are
    beside each other; and others where these are taken.

    Args:
        bounds: of the rows of each cursor, ascending.

    Attributes:
        is_free: bool[rows].
        place: of the frame in each row, int32[rows].
    """

    def __init__(self, bounds: list[int]) -> None:
        self._bounds, self._next = bounds, bounds[:-1]
        self._used = np.zeros(max(1, len(bounds) - 1), np.int64)  # rows of each cursor
        self._cursor = np.zeros(bounds[-1], np.int32)  # of each row
        self.is_free = np.ones(bounds[-1], np.bool_)
        self.place = np.full(bounds[-1], -1, np.int32)
        self.num_free = bounds[-1]

    @property
    def nbytes(self) -> int:
        """Bytes of the table of rows."""
        return self._cursor.nbytes + self.is_free.nbytes + self.place.nbytes

    @property
    def num_used(self) -> int:
        """The number of rows that are not free."""
        return len(self.is_free) - self.num_free

    def take(self, cursor: int, count: int, *, ahead: bool) -> IntArray | None:
        """Take rows, int64[count]; `None` if fewer are free. Loads `ahead` leave other cursors
        their own.
        """
        begin, stop = self._bounds[cursor], self._bounds[cursor + 1]
        is_too_many = ahead and self._used[cursor] + count > stop - begin
        if count > self.num_free or is_too_many:
            return None
        first = self._next[cursor]
        if first + count > stop:
            first = begin
        last = first + count
        if last <= stop and self.is_free[first:last].all():
            rows = np.arange(first, last)
            self._next[cursor] = last
        else:
            rows = np.flatnonzero(self.is_free)[:count]
        self.is_free[rows], self._cursor[rows] = False, cursor
        self.num_free -= count
        self._used[cursor] += count
        return rows

    def free(self, rows: IntArray) -> None:
        """Free rows, int64[n]."""
        assert not self.is_free[rows].any(), "a row is freed twice"
        self.is_free[rows] = True
        self.num_free += len(rows)
        self._used -= np.bincount(self._cursor[rows], minlength=len(self._used))
