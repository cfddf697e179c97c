"""Byte ranges: merging, splitting into requests, and cancellation; no I/O."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from seqrecord.errors import StorageError

MAX_REQUEST_BYTES = 16 << 20
MAX_GAP = 256 << 10  # unwanted bytes that take less time than another request


class ByteRange(NamedTuple):
    """Bytes `[start, stop)` of a file."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


ReadRequest = tuple[list[ByteRange], list[memoryview]]
"""Adjacent ranges in file order, with a view for each: one request of a client."""


def coalesce(
    ranges: Sequence[ByteRange], *, max_gap: int, max_length: int
) -> list[tuple[ByteRange, list[int]]]:
    """Merge nearby ranges of one file into fewer, longer reads.

    Merges neighbours with at most `max_gap` unwanted bytes between them, up to `max_length` bytes
    in total; a longer single range is not split. Returns the reads in file order, each with the
    indices of its ranges. Thresholds have no defaults here, so that one caller defines them.

    Raises `ValueError` unless each range has `0 <= start <= stop`.

    Example:
        from seqrecord.store.storage.ranges import ByteRange, coalesce
        reads = coalesce([ByteRange(0, 10), ByteRange(12, 20)], max_gap=4, max_length=100)
        assert reads == [(ByteRange(0, 20), [0, 1])]
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
    """Plan the requests that fill the buffers of a read, in file order.

    Splits a range longer than `max_bytes` into equal pieces. Merges neighbours with at most
    `max_gap` unwanted bytes between them, up to `max_bytes` in total; unwanted bytes go to extra
    memory. Overlapping ranges become separate requests, and empty ranges none. Views refer to the
    given buffers.
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
    """Context manager: cancels storage requests in this context once `condition()` is true.

    A cancelled request soon raises `StorageError` in place of retrying until its deadline. Requests
    from other contexts continue. The condition is called often, by any thread.
    """
    outer = _is_unwanted.get()
    token = _is_unwanted.set(lambda: condition() or outer())
    try:
        yield
    finally:
        _is_unwanted.reset(token)


def is_unwanted() -> bool:
    """Whether this thread's requests were cancelled; see `unwanted_if`."""
    return _is_unwanted.get()()


def check_wanted(file: str) -> None:
    """Raise `StorageError` if this thread's requests were cancelled; see `unwanted_if`."""
    if is_unwanted():
        raise StorageError("cancelled, because its result is no longer needed", file=file)
