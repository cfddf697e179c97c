"""Differences between a stored index and the footers of record files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from seqrecord.errors import FormatError
from seqrecord.store.format.footer import Footer
from seqrecord.store.format.index import GroupIndex, Index

_Footers: TypeAlias = "Sequence[Footer | None]"


def disagreements(
    stored: Index, rebuilt: Index, footers: _Footers, urls: Sequence[str]
) -> list[FormatError]:
    """Return an error for each episode that differs between the two indexes.

    `rebuilt` was built from `footers`, in the order of both indexes' file numbers. An unreadable
    footer is `None`; episodes stored in its file are not compared. `urls` are the files'
    addresses. The indexes may refer to different copies of a chunk.
    """
    if _are_equal(stored, rebuilt):
        return []
    found = []
    for episode, key in enumerate(stored.keys.to_pylist()):
        places = _places(stored, episode)
        if any(footers[stored.groups[number].file[row]] is None for number, row in places):
            continue
        other = rebuilt.positions.get(key)
        if other is None or _episode_values(stored, episode) != _episode_values(rebuilt, other):
            lost = (place for place in places if _footer_row(footers, stored, *place) is None)
            place, names = next(lost, places[0]), "episode"
        else:
            for place, (_, twin) in zip(places, _places(rebuilt, other), strict=True):
                if names := _differing(stored, *place, rebuilt, twin, footers):
                    break
            else:
                continue
        number, row = place
        group = stored.groups[number]
        is_lost = _footer_row(footers, stored, number, row) is None
        error = FormatError(
            "a chunk of the index is missing in the record file's footer"
            if is_lost
            else "index and record file disagree on a chunk",
            file=urls[group.file[row]],
            offset=int(group.offset[row]),
            episode=key,
            got=None if is_lost else f"different {names}",
        )
        found.append(error)
    first = rebuilt.groups[0]
    return found + [
        FormatError(
            "a complete episode is missing in the index; `seqrecord reindex` adds it",
            file=urls[first.file[first.first_chunk[number]]],
            episode=key,
        )
        for key, number in rebuilt.positions.items()
        if key not in stored.positions
    ]


def _are_equal(stored: Index, rebuilt: Index) -> bool:
    """Return whether all columns are equal. Avoids the slow comparison by episode."""
    pairs = [(stored, rebuilt), *zip(stored.groups, rebuilt.groups, strict=True)]
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for one, other in pairs
        for name, value in vars(one).items()
        if isinstance(value, np.ndarray)
    ) and (stored.keys.equals(rebuilt.keys) and stored.metadata.equals(rebuilt.metadata))


def _episode_values(index: Index, episode: int) -> tuple[Any, ...]:
    """Return an episode's values that must be equal in both indexes, except for its chunks."""
    return (
        index.num_frames[episode],
        index.fps[episode],
        index.uid(episode),
        index.split[episode],
        index.metadata[episode],
        [group.num_chunks[episode] for group in index.groups],
    )


def _places(index: Index, episode: int) -> list[tuple[int, int]]:
    """Return group and row of all chunks of an episode."""
    each = ((number, group.rows_of(episode)) for number, group in enumerate(index.groups))
    return [(number, row) for number, rows in each for row in range(rows.start, rows.stop)]


def _differing(
    stored: Index, number: int, row: int, rebuilt: Index, other: int, footers: _Footers
) -> str:
    """Name the differences between a chunk and row `other` of its group in `rebuilt`.

    Empty if equal. Copies may have different offsets.
    """
    first, second = (
        _chunk_values(stored.groups[number], row),
        _chunk_values(rebuilt.groups[number], other),
    )
    names = [name for name in first if first[name] != second[name]]
    if "offset" in names:
        one = _footer_row(footers, stored, number, row)
        two = _footer_row(footers, rebuilt, number, other)
        if one is not None and two is not None:
            same = [name for name in one.dtype.names if name not in ("episode", "offset")]
            if all(np.array_equal(one[name], two[name]) for name in same):
                names.remove("offset")
    return ", ".join(names)


def _chunk_values(group: GroupIndex, row: int) -> dict[str, Any]:
    """Return a chunk's values by their names in errors."""
    return {
        "frames": (group.first_frame[row], group.num_frames[row]),
        "page lengths": group.page_length[row].tolist(),
        "page checksums": group.page_crc32c[row].tolist(),
        "page digests": group.page_digest[row].tolist(),
        "largest frames": group.largest_frame[row].tolist(),
        "external bytes": group.external[row],
        "missing frames": group.gaps_of(row, row + 1)[["feature", "word", "present"]].tolist(),
        "offset": (group.file[row], group.offset[row]),
    }


def _footer_row(footers: _Footers, index: Index, number: int, row: int) -> Any:
    """Return the chunk row in the footer at the index's file and offset, or `None`."""
    group = index.groups[number]
    footer = footers[group.file[row]]
    if footer is None:
        return None
    chunks = footer.chunks[number]
    offset = group.offset[row]
    start, stop = (np.searchsorted(chunks["offset"], offset, side) for side in ("left", "right"))
    found = chunks[start:stop]  # several if chunks have no bytes
    found = found[found["first_frame"] == group.first_frame[row]] if len(found) > 1 else found
    return found[0] if len(found) else None
