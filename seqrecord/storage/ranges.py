"""Byte ranges, how several become the reads or the requests of a call, and whether anybody still
wants what is read; no I/O."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from seqrecord.errors import StorageError

MAX_REQUEST_BYTES = 16 << 20
MAX_GAP = 256 << 10  # unwanted bytes that cost less than another request


class ByteRange(NamedTuple):
    """Bytes `[start, stop)` of a file."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


ReadRequest = tuple[list[ByteRange], list[memoryview]]
"""Ranges that touch each other, in file order, and a view for each: a client makes one request."""


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


def plan(
    ranges: Sequence[ByteRange],
    buffers: Sequence[memoryview],
    *,
    max_gap: int = MAX_GAP,
    max_bytes: int = MAX_REQUEST_BYTES,
) -> list[ReadRequest]:
    """The requests that fill the buffers of a call, in file order.

    A range longer than `max_bytes` is cut into equal pieces. Neighbours with at most `max_gap`
    unwanted bytes between them are one request if it stays within `max_bytes`; the unwanted bytes
    go into memory of their own. Ranges that overlap are requests apart, and an empty range needs
    none. Pure: no I/O, and the views are of the given buffers.
    """
    parts: list[ReadRequest] = []
    for item, view in sorted(_pieces(ranges, buffers, max_bytes), key=lambda piece: piece[0]):
        if parts:
            items, views = parts[-1]
            gap = item.start - items[-1].stop
            if 0 <= gap <= max_gap and item.stop - items[0].start <= max_bytes:
                if gap:
                    items.append(ByteRange(items[-1].stop, item.start))
                    views.append(memoryview(bytearray(gap)))
                items.append(item)
                views.append(view)
                continue
        parts.append(([item], [view]))
    return parts


def _pieces(
    ranges: Sequence[ByteRange], buffers: Sequence[memoryview], max_bytes: int
) -> Iterator[tuple[ByteRange, memoryview]]:
    for item, buffer in zip(ranges, buffers, strict=True):
        if not item.length:
            continue
        view, count = buffer.cast("B"), -(-item.length // max_bytes)
        cuts = [item.length * i // count for i in range(count + 1)]
        for start, stop in itertools.pairwise(cuts):
            yield ByteRange(item.start + start, item.start + stop), view[start:stop]


_is_unwanted: ContextVar[Callable[[], bool]] = ContextVar("is_unwanted", default=lambda: False)


@contextmanager
def unwanted_if(condition: Callable[[], bool]) -> Iterator[None]:
    """In this context, requests to a storage are cancelled once `condition()` is true.

    A cancelled request raises `StorageError` soon, instead of being repeated until its deadline.
    Requests of other users of the storage continue. Any thread may call the condition, and often.
    """
    outer = _is_unwanted.get()
    token = _is_unwanted.set(lambda: condition() or outer())
    try:
        yield
    finally:
        _is_unwanted.reset(token)


def check_wanted(file: str) -> None:
    """Raise `StorageError` if nobody waits for what this thread reads or writes."""
    if _is_unwanted.get()():
        raise StorageError("given up, since nobody waits for it any more", file=file)
