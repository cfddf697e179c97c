"""Differences between a stored index and the footers of record files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from seqrecord.errors import FormatError
from seqrecord.store.format.footer import Footer
from seqrecord.store.format.index import GroupIndex, Index
from seqrecord.store.format.time_spans import num_time_spans

_Footers: TypeAlias = "Sequence[Footer | None]"


def disagreements(
    stored_index: Index, rebuilt_index: Index, footers: _Footers, urls: Sequence[str]
) -> list[FormatError]:
    """Return an error for each episode that differs between the two indexes.

    `rebuilt_index` was built from `footers`, in the order of both indexes' file numbers. An
    unreadable footer is `None`; episodes stored in its file are not compared. `urls` are the files'
    addresses. The indexes may refer to different copies of a chunk.
    """
    if _are_equal(stored_index, rebuilt_index):
        return []
    errors = []
    for episode, key in enumerate(stored_index.keys.to_pylist()):
        places = _places(stored_index, episode)
        if any(footers[stored_index.groups[number].file[row]] is None for number, row in places):
            continue
        rebuilt_episode = rebuilt_index.positions.get(key)
        values = _episode_values(stored_index, episode)
        if rebuilt_episode is None or values != _episode_values(rebuilt_index, rebuilt_episode):
            lost = (place for place in places if _is_lost(footers, stored_index, *place))
            place, names = next(lost, places[0]), "episode"
        else:
            for place, (_, twin) in zip(
                places, _places(rebuilt_index, rebuilt_episode), strict=True
            ):
                if names := _differences(stored_index, *place, rebuilt_index, twin, footers):
                    break
            else:
                continue
        number, row = place
        group = stored_index.groups[number]
        is_lost = _is_lost(footers, stored_index, number, row)
        error = FormatError(
            "a chunk of the index is missing in the record file's footer"
            if is_lost
            else "index and record file disagree on a chunk",
            file=urls[group.file[row]],
            offset=int(group.offset[row]),
            episode=key,
            got=None if is_lost else f"different {names}",
        )
        errors.append(error)
    first_group = rebuilt_index.groups[0]
    return errors + [
        FormatError(
            "a complete episode is missing in the index; `seqrecord reindex` adds it",
            file=urls[first_group.file[first_group.first_chunk[number]]],
            episode=key,
        )
        for key, number in rebuilt_index.positions.items()
        if key not in stored_index.positions
    ]


def _are_equal(stored_index: Index, rebuilt_index: Index) -> bool:
    """Return whether all columns are equal. Avoids the slow comparison by episode."""
    pairs: list[tuple[Any, Any]] = [
        (stored_index, rebuilt_index),
        *zip(stored_index.groups, rebuilt_index.groups, strict=True),
    ]
    if stored_index.time_spans is not None and rebuilt_index.time_spans is not None:
        pairs.append((stored_index.time_spans, rebuilt_index.time_spans))
    return all(
        np.array_equal(value, getattr(right, name), equal_nan=value.dtype.kind == "f")
        for left, right in pairs
        for name, value in vars(left).items()
        if isinstance(value, np.ndarray)
    ) and (
        stored_index.keys.equals(rebuilt_index.keys)
        and stored_index.metadata.equals(rebuilt_index.metadata)
    )


def _episode_values(index: Index, episode: int) -> tuple[Any, ...]:
    """Return an episode's values that must be equal in both indexes, except for its chunks."""
    return (
        index.num_frames[episode],
        index.fps[episode],
        index.uid(episode),
        index.split[episode],
        index.metadata[episode],
        [group.num_chunks[episode] for group in index.groups],
        _time_spans(index, episode),
    )


def _time_spans(index: Index, episode: int) -> list[str]:
    """Return an episode's time spans, without padding; as text, in which NaN is equal to NaN."""
    if index.time_spans is None:
        return []
    count = num_time_spans(int(index.num_frames[episode]))
    return [str(growth[episode, :, :count].tolist()) for growth in vars(index.time_spans).values()]


def _places(index: Index, episode: int) -> list[tuple[int, int]]:
    """Return group and row of an episode's chunks."""
    row_ranges = ((number, group.rows_of(episode)) for number, group in enumerate(index.groups))
    return [(number, row) for number, rows in row_ranges for row in range(rows.start, rows.stop)]


def _differences(
    stored_index: Index, number: int, row: int, rebuilt_index: Index, twin: int, footers: _Footers
) -> str:
    """Name the differences between a chunk and row `twin` of its group in `rebuilt_index`.

    Empty if equal. Copies may have different offsets.
    """
    values = _chunk_values(stored_index.groups[number], row)
    twin_values = _chunk_values(rebuilt_index.groups[number], twin)
    names = [name for name in values if values[name] != twin_values[name]]
    if "offset" in names:
        footer_row = _footer_row(footers, stored_index, number, row)
        twin_row = _footer_row(footers, rebuilt_index, number, twin)
        if footer_row is not None and twin_row is not None:
            columns = [name for name in footer_row.dtype.names if name not in ("episode", "offset")]
            if all(np.array_equal(footer_row[name], twin_row[name]) for name in columns):
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


def _is_lost(footers: _Footers, index: Index, number: int, row: int) -> bool:
    """Return whether a record file lacks a chunk.

    No file has the chunks without bytes of a group that was added or dropped.
    """
    has_bytes = bool(index.groups[number].page_length[row].any())
    return has_bytes and _footer_row(footers, index, number, row) is None


def _footer_row(footers: _Footers, index: Index, number: int, row: int) -> Any:
    """Return the chunk row in the footer at the index's file and offset, or `None`."""
    group = index.groups[number]
    footer = footers[group.file[row]]
    if footer is None or number >= len(footer.chunks):
        return None
    chunks = footer.chunks[number]
    offset = group.offset[row]
    start, stop = (np.searchsorted(chunks["offset"], offset, side) for side in ("left", "right"))
    matches = chunks[start:stop]  # several if chunks have no bytes
    if len(matches) > 1:
        matches = matches[matches["first_frame"] == group.first_frame[row]]
    return matches[0] if len(matches) else None
