"""Byte ranges, and the pure planner that merges them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["ByteRange", "coalesce"]


class ByteRange(NamedTuple):
    """Bytes `[start, stop)` of a file."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


def coalesce(
    ranges: Sequence[ByteRange], *, max_gap: int, max_length: int
) -> list[tuple[ByteRange, list[int]]]:
    """Merge ranges of one file that lie close together into fewer, longer reads.

    Two neighbours are merged when at most `max_gap` unwanted bytes lie between them and the whole
    stays within `max_length` bytes; a single range longer than that stays whole. Returns the reads
    in file order, each with the positions in `ranges` of those that it covers. Pure: no I/O, and
    the thresholds have no defaults, so that one caller owns them.

    Raises `ValueError` for a range that is not `0 <= start <= stop`.
    """
    for item in ranges:
        if not 0 <= item.start <= item.stop:
            raise ValueError(f"not a byte range: {item}")
    reads: list[tuple[ByteRange, list[int]]] = []
    for position in sorted(range(len(ranges)), key=lambda i: ranges[i]):
        item = ranges[position]
        if reads:
            (start, stop), members = reads[-1]
            merged = ByteRange(start, max(stop, item.stop))
            if item.start - stop <= max_gap and (merged.length <= max_length or item.stop <= stop):
                members.append(position)
                reads[-1] = (merged, members)
                continue
        reads.append((item, [position]))
    return reads
