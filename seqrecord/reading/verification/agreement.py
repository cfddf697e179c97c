"""Whether the index of a dataset is the one that its record files give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from seqrecord.errors import FormatError
from seqrecord.format import Footer
from seqrecord.format.index import Index

__all__ = ["disagreements"]


def disagreements(
    stored: Index, rebuilt: Index, footers: Sequence[Footer | None], urls: Sequence[str]
) -> list[FormatError]:
    """An error for each episode of which the two indexes say something else.

    `rebuilt` comes from `footers`, which are those of the record files in the order in which both
    indexes number them; one that cannot be read is `None`, and the stored episodes in its file are
    not compared. `urls` are the files' addresses. The indexes may name different copies of a chunk.
    """
    keys, counterpart = stored.keys.to_pylist(), rebuilt.positions
    other = np.array([counterpart.get(key, -1) for key in keys])
    unread = np.array([footer is None for footer in footers], bool)[stored.file]
    known = ~np.logical_or.reduceat(unread, stored.first_chunk)
    equal = (other >= 0) & known
    for name in ("num_frames", "chunk_frames"):
        equal &= getattr(stored, name) == getattr(rebuilt, name)[other]
    wrong = _differing_chunks(stored, rebuilt, equal, other, footers)
    for episode in np.flatnonzero(known & ~equal):
        rows = range(first := int(stored.first_chunk[episode]), first + stored.num_chunks[episode])
        wrong[next((row for row in rows if _listed(footers, stored, row) is None), first)] = (
            "episode"
        )
    found = []
    for row, names in sorted(wrong.items()):
        lost = _listed(footers, stored, row) is None
        message = (
            "a chunk of the index that the record file's footer does not list"
            if lost
            else "index and record file do not agree on a chunk"
        )
        error = FormatError(
            message,
            file=urls[stored.file[row]],
            offset=int(stored.offset[row]),
            episode=keys[np.searchsorted(stored.first_chunk, row, side="right") - 1],
            got=None if lost else f"different {names}",
        )
        found.append(error)
    return found + [
        FormatError(
            "a complete episode that the index does not list; `seqrecord reindex` adds it",
            file=urls[rebuilt.file[rebuilt.first_chunk[number]]],
            episode=key,
        )
        for key, number in counterpart.items()
        if key not in stored.positions
    ]


def _differing_chunks(
    stored: Index,
    rebuilt: Index,
    episodes: npt.NDArray[np.bool_],
    other: npt.NDArray[np.int64],
    footers: Sequence[Footer | None],
) -> dict[int, str]:
    """What differs in the first chunk that does of each of these episodes, by stored row.

    Episode i of `stored`, where `episodes[i]` is set, is episode `other[i]` of `rebuilt`, and has
    as many chunks.
    """
    episode = np.repeat(np.arange(len(episodes)), stored.num_chunks)
    rows = np.flatnonzero(episodes[episode])
    episode = episode[rows]
    theirs = rows + (rebuilt.first_chunk[other] - stored.first_chunk)[episode]
    metadata = pc.equal(stored.metadata.take(episode), rebuilt.metadata.take(other[episode]))
    differs = {
        "page lengths": (stored.page_length[rows] != rebuilt.page_length[theirs]).any(axis=1),
        "page checksums": (stored.page_crc32c[rows] != rebuilt.page_crc32c[theirs]).any(axis=1),
        "largest frames": (stored.largest_frame[rows] != rebuilt.largest_frame[theirs]).any(axis=1),
        "missing frames": np.zeros(len(rows), bool),
        "offset": (stored.file[rows] != rebuilt.file[theirs])
        | (stored.offset[rows] != rebuilt.offset[theirs]),
        "episode": ~metadata.to_numpy(zero_copy_only=False),
    }
    gaps = np.setxor1d(_gaps(stored, rows), _gaps(rebuilt, theirs))
    differs["missing frames"][gaps["chunk"]] = True
    for at in np.flatnonzero(differs["offset"]):
        differs["offset"][at] = not _copy(footers, stored, rows[at], rebuilt, theirs[at])
    wrong = np.flatnonzero(np.logical_or.reduce(list(differs.values())))
    _, first = np.unique(episode[wrong], return_index=True)
    return {
        int(rows[at]): ", ".join(name for name, values in differs.items() if values[at])
        for at in wrong[first]
    }


def _gaps(index: Index, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """The gaps of these chunks; `chunk` is a position in `rows`."""
    place = np.full(len(index.file), -1)
    place[rows] = np.arange(len(rows))
    gaps: npt.NDArray[Any] = index.gaps[place[index.gaps["chunk"]] >= 0].copy()
    gaps["chunk"] = place[gaps["chunk"]]
    return gaps


def _listed(footers: Sequence[Footer | None], index: Index, row: int) -> Any:
    """The chunk that the footer of the index's file lists at the index's offset; or `None`."""
    footer = footers[index.file[row]]
    if footer is None:
        return None
    at = np.searchsorted(footer.chunks["offset"], index.offset[row])
    there = at < len(footer.chunks) and footer.chunks["offset"][at] == index.offset[row]
    return footer.chunks[at] if there else None


def _copy(
    footers: Sequence[Footer | None], stored: Index, row: int, rebuilt: Index, other: int
) -> bool:
    """Whether the stored index names a chunk that has the same pages as the rebuilt one's."""
    first, second = _listed(footers, stored, row), _listed(footers, rebuilt, other)
    if first is None or second is None:
        return False
    names = [name for name in first.dtype.names if name not in ("episode", "offset")]
    return all(np.array_equal(first[name], second[name]) for name in names)
