"""What of a chunk is read straight into rows, without a copy: raw pages, and parts of them.

A page is read whole where all of its frames go into rows, and in part where few of them do::

    page        | f f f f f f f f |     | f f f f f f f f |
    wanted        w w w w w w w w             w     w
    rows          r r r r r r r r             r     r
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.engine.arena import Place, Rows
from seqrecord.reading.chunks import Page, Part
from seqrecord.schema import Schema

__all__ = [
    "Direct",
    "Slice",
    "find_slices",
    "parts_of",
    "spares",
    "whole_pages",
]

# Raw pages of at least so many bytes are read straight into their rows. Smaller ones are read
# together with their neighbours and copied; where every request costs, all but large ones are.
_LEAST_WHOLE = 64 << 10
_LEAST_WHOLE_REMOTE = 8 << 20
# Parts of a page are read where that spares at least half of it, and so many bytes.
_LEAST_SPARED = 256 << 10
_LEAST_SPARED_REMOTE = 8 << 20
_SPARED_BY_PART = 64 << 10  # … for each of them: what is read in the time that one more part takes


class Slice(NamedTuple):
    """Frames `[first, first + length)` of a load go into rows `[row, row + length)`."""

    target: Rows
    first: int
    row: int
    length: int


@dataclass(frozen=True, eq=False)
class Direct:
    """What is read straight into rows: whole pages by feature, and parts of others."""

    whole: Mapping[str, Sequence[memoryview]]
    parts: Sequence[Part]

    @property
    def features(self) -> set[str]:
        return {*self.whole, *(part.page.feature for part in self.parts)}


def find_slices(places: Sequence[Place], wanted: npt.NDArray[np.bool_]) -> list[Slice]:
    """The wanted frames of the places, as slices of consecutive frames and rows, by frame.

    Rows mostly follow each other, but for one place where a ring begins anew.
    """
    found = []
    for place in places:
        some = wanted[place.frames]
        frames, rows = place.frames[some], place.rows[some]
        breaks = np.flatnonzero((np.diff(frames) != 1) | (np.diff(rows) != 1)) + 1
        edges = [0, *breaks.tolist(), len(frames)]
        for start, stop in pairwise(edges):
            if start < stop:
                found.append(
                    Slice(place.target, int(frames[start]), int(rows[start]), stop - start)
                )
    return sorted(found, key=lambda item: item.first)


def whole_pages(
    pages: Iterable[Page], features: Schema, places: Sequence[Place], *, is_local: bool
) -> dict[str, list[memoryview]]:
    """Rows that whole raw pages can be read into as they are, by feature.

    The places are of a load that brings all frames of the chunk.
    """
    found: dict[str, list[memoryview]] = {}
    slices: list[Slice] = []
    least = _LEAST_WHOLE if is_local else _LEAST_WHOLE_REMOTE
    for page in pages:
        spec, size, count = features[page.feature], page.stop - page.start, page.chunk.num_frames
        if not spec.is_raw or size < least or size != page.num_present * spec.nbytes:
            continue
        start, stop = _span(page)
        if stop - start != page.num_present:
            continue
        slices = slices or find_slices(places, np.ones(count, bool))
        if sum(item.length for item in slices) != count:
            break
        parts = [
            item.target[page.feature][
                item.row + max(0, start - item.first) : item.row
                + min(item.length, stop - item.first)
            ]
            for item in slices
            if item.first < stop and item.first + item.length > start
        ]
        found[page.feature] = [memoryview(p.reshape(-1).view(np.uint8)) for p in parts]
    return found


def parts_of(
    pages: Iterable[Page],
    features: Schema,
    inside: npt.NDArray[np.int64],
    slices: Sequence[Slice],
    *,
    is_local: bool,
) -> list[Part]:
    """Parts of raw pages that are read into rows, where these are a small part of their pages.

    `inside` are a load's frames, counted from the chunk's first. Those of `slices` have all
    features of the pages.
    """
    count = sum(item.length for item in slices)
    found: list[Part] = []
    edges: list[list[tuple[int, int]]] = []  # of each slice: where its frames follow each other
    for item in slices:
        frames = inside[item.first : item.first + item.length]
        breaks = (np.flatnonzero(np.diff(frames) != 1) + 1).tolist()
        edges.append(list(pairwise([0, *breaks, item.length])))
    num_parts = sum(map(len, edges))
    for page in pages:
        spec, size = features[page.feature], page.stop - page.start
        wanted = count * spec.nbytes if spec.is_raw else size
        if size != page.num_present * spec.nbytes:
            continue
        if not spares(size, wanted, num_parts, is_local=is_local):
            continue
        for item, bounds in zip(slices, edges, strict=True):
            rows = item.target[page.feature][item.row : item.row + item.length]
            for start, stop in bounds:
                first = int(inside[item.first + start])
                found.append(Part.of(page, first, rows[start:stop]))
    return found


def spares(size: int, wanted: int, num_parts: int, *, is_local: bool) -> bool:
    """Whether to read parts of a page takes less time than to read all of it; sizes in bytes."""
    least = _LEAST_SPARED if is_local else _LEAST_SPARED_REMOTE
    return size - wanted >= max(least, wanted, num_parts * _SPARED_BY_PART)


def _span(page: Page) -> tuple[int, int]:
    """From the first to past the last frame of the chunk that a page has; it has some."""
    if page.present is None:
        return 0, page.chunk.num_frames
    some = np.flatnonzero(page.present)
    return int(some[0]), int(some[-1]) + 1
