"""Which requests fill the buffers of a call: near ranges are one, a long one is several."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from seqrecord.checksum import Buffer
from seqrecord.errors import StorageError, TransientError
from seqrecord.ranges import ByteRange, coalesce
from seqrecord.storage.base import RangeReader, short_read

__all__ = [
    "MAX_GAP",
    "MAX_REQUEST_BYTES",
    "SLOWEST",
    "TIMEOUT_SECONDS",
    "Request",
    "fill",
    "hurried",
    "merge",
    "missing_bytes",
    "split",
]

MAX_REQUEST_BYTES = 16 << 20
MAX_GAP = 256 << 10  # unwanted bytes that cost less than another request
SLOWEST = 64 << 10  # bytes a second
TIMEOUT_SECONDS = 30.0  # without a byte

Request = tuple[ByteRange, list[memoryview]]
"""Bytes of a file, and where they go one after the other: views that are as long together."""


def merge(ranges: Sequence[ByteRange], buffers: Sequence[memoryview]) -> list[Request]:
    """Requests of a call, in file order; bytes that nobody asked for go into memory of their own.

    No request is made longer than `MAX_REQUEST_BYTES` by merging, and ranges that overlap stay
    apart. An empty range needs none.
    """
    wanted = [
        (item, buffer.cast("B"))
        for item, buffer in zip(ranges, buffers, strict=True)
        if item.length > 0
    ]
    requests: list[Request] = []
    for whole, members in coalesce(
        [item for item, _ in wanted], max_gap=MAX_GAP, max_length=MAX_REQUEST_BYTES
    ):
        at, views = whole.start, list[memoryview]()
        for i in members:
            item, view = wanted[i]
            if item.start < at:
                requests += [(wanted[i][0], [wanted[i][1]]) for i in members]
                break
            if item.start > at:
                views.append(memoryview(bytearray(item.start - at)))
            views.append(view)
            at = item.stop
        else:
            requests.append((whole, views))
    return requests


def split(
    ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
) -> list[tuple[list[ByteRange], list[memoryview]]]:
    """The ranges of a call in parts that are one request each, as `merge` makes them.

    A range longer than `MAX_REQUEST_BYTES` is cut into equal pieces. Pure: the views are of the
    given buffers.
    """
    pieces: list[tuple[ByteRange, memoryview]] = []
    for item, buffer in zip(ranges, buffers, strict=True):
        count = -(-item.length // MAX_REQUEST_BYTES)
        if count <= 1:
            pieces.append((item, buffer))
            continue
        view = buffer.cast("B")
        cuts = [item.length * i // count for i in range(count + 1)]
        pieces += [
            (ByteRange(item.start + start, item.start + stop), view[start:stop])
            for start, stop in itertools.pairwise(cuts)
        ]
    parts = coalesce([item for item, _ in pieces], max_gap=MAX_GAP, max_length=MAX_REQUEST_BYTES)
    return [([pieces[i][0] for i in part], [pieces[i][1] for i in part]) for _, part in parts]


def fill(views: Iterable[memoryview], chunks: Iterable[Buffer]) -> int:
    """Copy chunks, none of them empty, into views one after the other; the bytes that came.

    Stops when the views are full. NumPy copies, since it releases the GIL meanwhile.
    """
    targets = iter(views)
    target = np.empty(0, np.uint8)
    total = 0
    for chunk in chunks:
        data = np.frombuffer(chunk, np.uint8)
        while data.size:
            if not target.size:
                view = next(targets, None)
                if view is None:
                    return total
                target = np.frombuffer(view, np.uint8)
            count = min(data.size, target.size)
            np.copyto(target[:count], data[:count])
            data, target = data[count:], target[count:]
            total += count
    return total


def hurried(
    chunks: Iterable[Buffer],
    timeout: float,
    file: str,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Buffer]:
    """The chunks, or a `TransientError` when they come too slowly: another server may be faster.

    That is, when after `timeout` seconds they were fewer than 64 KiB a second.
    """
    start, got = clock(), 0
    for chunk in chunks:
        yield chunk
        got += len(chunk)
        seconds = clock() - start
        if seconds > timeout and got < seconds * SLOWEST:
            raise TransientError(
                f"the body comes too slowly: {got} bytes in {seconds:.0f} s", file=file
            )


def missing_bytes(
    reader: RangeReader, path: str, file: str, item: ByteRange, got: int
) -> StorageError:
    """The error of an answer that held `got` bytes of a range, and was no error itself.

    The file's length tells whether it ends there, or whether another attempt may bring the rest.
    """
    if reader.size(path) < item.stop:
        return short_read(file, item, got)
    return TransientError(
        "an answer was cut",
        file=file,
        offset=item.start,
        expected=f"{item.length} bytes",
        got=f"{got} bytes",
    )
