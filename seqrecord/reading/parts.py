"""Reads parts of raw pages: only slices that hold wanted frames, each checked by its checksum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from seqrecord.checksum import crc32c
from seqrecord.format.pages import slice_frames
from seqrecord.reading.page import Page, Part
from seqrecord.schema import Schema
from seqrecord.storage import Storage
from seqrecord.storage.ranges import ByteRange, coalesce

__all__ = ["BrokenSlice", "Piece", "fill", "part_pieces"]

_MAX_GAP = 16 << 10  # unwanted bytes of a page that are read along; storages may take more
_BLOCK_BYTES = 2 << 20  # read, then summed while the cache has it


@dataclass(frozen=True, eq=False)
class Piece:
    """Whole slices of a page, from number `first` on, and the memory that they are read into.

    `copies` are the bytes of it that go elsewhere: offset in `memory`, and where to.
    """

    page: Page
    first: int
    slice_bytes: int
    item: ByteRange
    memory: memoryview
    copies: Sequence[tuple[int, memoryview]]

    @property
    def num_slices(self) -> int:
        return -(-self.item.length // self.slice_bytes)

    @property
    def sums(self) -> ByteRange:
        """Where the checksums of the slices lie."""
        assert self.page.sums is not None
        start = self.page.sums + 4 * self.first
        return ByteRange(start, start + 4 * self.num_slices)


class BrokenSlice(NamedTuple):
    """A slice of a page, at an offset in it, that does not match its checksum."""

    page: Page
    offset: int
    expected: int
    actual: int


def part_pieces(parts: Sequence[Part], features: Schema, *, verify: bool) -> list[Piece]:
    """What to read for parts of pages: slices that they fill go straight into their memory.

    Without `verify` every frame is a slice.
    """
    pieces: list[Piece] = []
    scattered: dict[int, list[tuple[Part, ByteRange]]] = {}
    for part in parts:
        spec, page = features[part.page.feature], part.page
        assert page.sums is not None, "not a raw page"
        assert len(part.into) == part.count * spec.nbytes, "the memory does not fit the part"
        if not part.count:
            continue
        position = page.position(part.first)
        assert position is not None, "a frame lacks the feature"
        size = (slice_frames(spec) if verify else 1) * spec.nbytes
        start = position * spec.nbytes
        stop = start + len(part.into)
        if start % size == 0 and (stop % size == 0 or stop == page.stop - page.start):
            item = ByteRange(page.start + start, page.start + stop)
            pieces.append(Piece(page, start // size, size, item, part.into, ()))
        else:
            scattered.setdefault(id(page), []).append((part, ByteRange(start, stop)))
    for members in scattered.values():
        pieces += _gathered(members, features)
    return pieces


def _gathered(members: Sequence[tuple[Part, ByteRange]], features: Schema) -> list[Piece]:
    """Pieces for parts of one page that do not fill their slices; near ones share a piece."""
    page = members[0][0].page
    spec, length = features[page.feature], page.stop - page.start
    size = slice_frames(spec) * spec.nbytes
    whole = [
        ByteRange(start // size * size, min(length, -(-stop // size) * size))
        for _, (start, stop) in members
    ]
    pieces = []
    for item, numbers in coalesce(whole, max_gap=_MAX_GAP, max_length=_BLOCK_BYTES):
        memory = np.empty(item.length, np.uint8).data
        copies = [(members[i][1].start - item.start, members[i][0].into) for i in numbers]
        place = ByteRange(page.start + item.start, page.start + item.stop)
        pieces.append(Piece(page, item.start // size, size, place, memory, copies))
    return pieces


def fill(
    storage: Storage, path: str, pieces: Sequence[Piece], *, verify: bool, in_blocks: bool
) -> BrokenSlice | None:
    """Read pieces of one record file; with `verify`, the first slice that is not as it was written.

    With `in_blocks`, for a local disk, slices are read and summed a few at a time: the processor's
    cache still holds them then.
    """
    sums = [np.empty(piece.num_slices, "<u4") for piece in pieces] if verify else []
    ranges = [piece.sums for piece, _ in zip(pieces, sums, strict=False)]
    buffers = [found.view(np.uint8).data for found in sums]
    if not (verify and in_blocks):
        ranges += [piece.item for piece in pieces]
        buffers += [piece.memory for piece in pieces]
    storage.read_ranges(path, ranges, buffers)
    for piece, expected in zip(pieces, sums, strict=False):
        step = max(1, _BLOCK_BYTES // piece.slice_bytes) if in_blocks else piece.num_slices
        for first in range(0, piece.num_slices, step):
            block = slice(first * piece.slice_bytes, (first + step) * piece.slice_bytes)
            if in_blocks:
                memory, start = piece.memory[block], piece.item.start + block.start
                storage.read_ranges(path, [ByteRange(start, start + len(memory))], [memory])
            for number, sum_ in enumerate(expected[first : first + step].tolist(), first):
                at = number * piece.slice_bytes
                actual = crc32c(piece.memory[at : at + piece.slice_bytes])
                if actual != sum_:
                    offset = piece.item.start + at - piece.page.start
                    return BrokenSlice(piece.page, offset, sum_, actual)
    return None
