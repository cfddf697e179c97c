"""Whether the index of a dataset is the one that its record files give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from seqrecord.errors import FormatError
from seqrecord.format import Footer
from seqrecord.format.index import GroupIndex, Index

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
    unread = np.array([footer is None for footer in footers], bool)
    known = np.ones(len(keys), bool)
    for group in stored.groups:
        known &= ~np.logical_or.reduceat(unread[group.file], group.first_chunk)
    equal = (other >= 0) & known
    for name in ("num_frames", "fps", "uids", "split"):
        same = getattr(stored, name) == getattr(rebuilt, name)[other]
        equal &= same.all(axis=1) if same.ndim > 1 else same
    equal &= pc.equal(stored.metadata, rebuilt.metadata.take(other.clip(0))).to_numpy(
        zero_copy_only=False
    )
    grids = [
        first.num_chunks == second.num_chunks[other]
        for first, second in zip(stored.groups, rebuilt.groups, strict=True)
    ]
    same_grids = np.logical_and.reduce([equal, *grids])
    wrong: dict[int, tuple[int, int, str]] = {}  # by episode: group, row and what differs
    for number in range(len(stored.groups)):
        for episode, row, names in _differing_chunks(
            stored, rebuilt, number, same_grids, other, footers
        ):
            wrong.setdefault(episode, (number, row, names))
    for episode in np.flatnonzero(known & ~same_grids).tolist():
        wrong[episode] = (*_unlisted(stored, episode, footers), "episode")
    found = []
    for episode, (number, row, names) in sorted(wrong.items()):
        group = stored.groups[number]
        lost = _listed(footers, group, number, row) is None
        message = (
            "a chunk of the index that the record file's footer does not list"
            if lost
            else "index and record file do not agree on a chunk"
        )
        error = FormatError(
            message,
            file=urls[group.file[row]],
            offset=int(group.offset[row]),
            episode=keys[episode],
            got=None if lost else f"different {names}",
        )
        found.append(error)
    first = rebuilt.groups[0]
    return found + [
        FormatError(
            "a complete episode that the index does not list; `seqrecord reindex` adds it",
            file=urls[first.file[first.first_chunk[number]]],
            episode=key,
        )
        for key, number in counterpart.items()
        if key not in stored.positions
    ]


def _unlisted(stored: Index, episode: int, footers: Sequence[Footer | None]) -> tuple[int, int]:
    """Group and row of an episode's first chunk that no footer lists, or of its first one."""
    for number, group in enumerate(stored.groups):
        first = int(group.first_chunk[episode])
        for row in range(first, first + int(group.num_chunks[episode])):
            if _listed(footers, group, number, row) is None:
                return number, row
    return 0, int(stored.groups[0].first_chunk[episode])


def _differing_chunks(
    stored: Index,
    rebuilt: Index,
    number: int,
    episodes: npt.NDArray[np.bool_],
    other: npt.NDArray[np.int64],
    footers: Sequence[Footer | None],
) -> list[tuple[int, int, str]]:
    """Episode, row and what differs of the first chunk of a group that does, of each episode.

    Episode i of `stored`, where `episodes[i]` is set, is episode `other[i]` of `rebuilt`, and has
    as many chunks.
    """
    mine, theirs = stored.groups[number], rebuilt.groups[number]
    episode = np.repeat(np.arange(len(episodes)), mine.num_chunks)
    rows = np.flatnonzero(episodes[episode])
    episode = episode[rows]
    there = rows + (theirs.first_chunk[other] - mine.first_chunk)[episode]
    differs = {
        "frames": (mine.first_frame[rows] != theirs.first_frame[there])
        | (mine.num_frames[rows] != theirs.num_frames[there]),
        "page lengths": (mine.page_length[rows] != theirs.page_length[there]).any(axis=1),
        "page checksums": (mine.page_crc32c[rows] != theirs.page_crc32c[there]).any(axis=1),
        "largest frames": (mine.largest_frame[rows] != theirs.largest_frame[there]).any(axis=1),
        "missing frames": np.zeros(len(rows), bool),
        "offset": (mine.file[rows] != theirs.file[there])
        | (mine.offset[rows] != theirs.offset[there]),
    }
    gaps = np.setxor1d(_gaps(mine, rows), _gaps(theirs, there))
    differs["missing frames"][gaps["chunk"]] = True
    for at in np.flatnonzero(differs["offset"]):
        first = _listed(footers, mine, number, rows[at])
        differs["offset"][at] = not _equal(first, _listed(footers, theirs, number, there[at]))
    wrong = np.flatnonzero(np.logical_or.reduce(list(differs.values())))
    _, first = np.unique(episode[wrong], return_index=True)
    return [
        (
            int(episode[at]),
            int(rows[at]),
            ", ".join(name for name, values in differs.items() if values[at]),
        )
        for at in wrong[first]
    ]


def _gaps(group: GroupIndex, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """The gaps of these chunks; `chunk` is a position in `rows`."""
    place = np.full(len(group.file), -1)
    place[rows] = np.arange(len(rows))
    gaps: npt.NDArray[Any] = group.gaps[place[group.gaps["chunk"]] >= 0].copy()
    gaps["chunk"] = place[gaps["chunk"]]
    return gaps


def _listed(footers: Sequence[Footer | None], group: GroupIndex, number: int, row: int) -> Any:
    """The chunk that the footer of the index's file lists at the index's offset; or `None`."""
    footer = footers[group.file[row]]
    if footer is None:
        return None
    chunks = footer.chunks[number]
    offset = group.offset[row]
    start, stop = (np.searchsorted(chunks["offset"], offset, side) for side in ("left", "right"))
    found = chunks[start:stop]  # more than one where a chunk takes no room
    found = found[found["first_frame"] == group.first_frame[row]] if len(found) > 1 else found
    return found[0] if len(found) else None


def _equal(first: Any, second: Any) -> bool:
    """Whether two footers list the same pages; a chunk that one does not list is `None`."""
    if first is None or second is None:
        return False
    names = [name for name in first.dtype.names if name not in ("episode", "offset")]
    return all(np.array_equal(first[name], second[name]) for name in names)
