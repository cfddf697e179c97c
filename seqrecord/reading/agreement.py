"""Whether the index of a dataset is the one that its record files give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

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
    if _are_equal(stored, rebuilt):
        return []
    found = []
    for episode, key in enumerate(stored.keys.to_pylist()):
        rows = [group.rows_of(episode) for group in stored.groups]
        files = [group.file[some] for group, some in zip(stored.groups, rows, strict=True)]
        if any(footers[file] is None for file in np.unique(np.concatenate(files)).tolist()):
            continue
        other = rebuilt.positions.get(key)
        if other is None or _facts(stored, episode) != _facts(rebuilt, other):
            number, row, names = (*_unlisted(stored, rows, footers), "episode")
        elif (differing := _differing(stored, episode, rebuilt, other, footers)) is None:
            continue
        else:
            number, row, names = differing
        group = stored.groups[number]
        is_lost = _listed(footers, group, number, row) is None
        error = FormatError(
            "a chunk of the index that the record file's footer does not list"
            if is_lost
            else "index and record file do not agree on a chunk",
            file=urls[group.file[row]],
            offset=int(group.offset[row]),
            episode=key,
            got=None if is_lost else f"different {names}",
        )
        found.append(error)
    first = rebuilt.groups[0]
    return found + [
        FormatError(
            "a complete episode that the index does not list; `seqrecord reindex` adds it",
            file=urls[first.file[first.first_chunk[number]]],
            episode=key,
        )
        for key, number in rebuilt.positions.items()
        if key not in stored.positions
    ]


def _are_equal(stored: Index, rebuilt: Index) -> bool:
    """Whether all columns are, as mostly: to look at each episode takes long."""
    pairs = [(stored, rebuilt), *zip(stored.groups, rebuilt.groups, strict=True)]
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for one, other in pairs
        for name, value in vars(one).items()
        if isinstance(value, np.ndarray)
    ) and (stored.keys.equals(rebuilt.keys) and stored.metadata.equals(rebuilt.metadata))


def _facts(index: Index, episode: int) -> tuple[Any, ...]:
    """What is equal in two indexes of an episode, beside what is said of its chunks."""
    return (
        index.num_frames[episode],
        index.fps[episode],
        index.uid(episode),
        index.split[episode],
        index.metadata[episode],
        [group.num_chunks[episode] for group in index.groups],
    )


def _unlisted(
    stored: Index, rows: Sequence[slice], footers: Sequence[Footer | None]
) -> tuple[int, int]:
    """Group and row of the first chunk in these rows that no footer lists, or of the first one."""
    for number, group in enumerate(stored.groups):
        for row in range(rows[number].start, rows[number].stop):
            if _listed(footers, group, number, row) is None:
                return number, row
    return 0, rows[0].start


def _differing(
    stored: Index, episode: int, rebuilt: Index, other: int, footers: Sequence[Footer | None]
) -> tuple[int, int, str] | None:
    """Group and row of an episode's first chunk that differs, and what does.

    It is episode `other` of `rebuilt`, and has as many chunks there.
    """
    for number, (mine, theirs) in enumerate(zip(stored.groups, rebuilt.groups, strict=True)):
        rows, places = mine.rows_of(episode), theirs.rows_of(other)
        each = zip(range(rows.start, rows.stop), range(places.start, places.stop), strict=True)
        for row, place in each:
            first, second = _said(mine, row), _said(theirs, place)
            names = [name for name in first if first[name] != second[name]]
            if "offset" in names:
                one, two = (
                    _listed(footers, mine, number, row),
                    _listed(footers, theirs, number, place),
                )
                if _equal(one, two):
                    names.remove("offset")
            if names:
                return number, row, ", ".join(names)
    return None


def _said(group: GroupIndex, row: int) -> dict[str, Any]:
    """What a chunk table says of a chunk, by what errors call it."""
    return {
        "frames": (group.first_frame[row], group.num_frames[row]),
        "page lengths": group.page_length[row].tolist(),
        "page checksums": group.page_crc32c[row].tolist(),
        "largest frames": group.largest_frame[row].tolist(),
        "missing frames": group.gaps_of(row, row + 1)[["feature", "word", "present"]].tolist(),
        "offset": (group.file[row], group.offset[row]),
    }


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
