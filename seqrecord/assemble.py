"""Builds the index from the footers of record files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqrecord.errors import FormatError
from seqrecord.format import EpisodePart, Footer
from seqrecord.index import Index

__all__ = ["assemble", "complete_episodes"]


def assemble(footers: Sequence[Footer]) -> Index:
    """The index of all episodes that are complete in these record files, in ordinal order.

    Raises `FormatError` for schemas that differ and for two complete episodes of one key or
    one ordinal. Episodes without their last part are left out.
    """
    schema = footers[0].schema if footers else None
    for footer in footers:
        if schema is None or footer.schema.to_json() != schema.to_json():
            raise FormatError(
                "record files of different schemas", expected=schema, got=footer.schema
            )
    complete = sorted(_complete(footers).values(), key=lambda rows: rows.episode.ordinal)
    if schema is None or not complete:
        raise FormatError("no complete episode in any record file")
    _check_unique(complete)
    chunks = np.concatenate([rows.chunks for rows in complete])
    first = np.cumsum([0, *(len(rows.chunks) for rows in complete)])
    gaps = np.concatenate([_shifted(rows.gaps, first[i]) for i, rows in enumerate(complete)])
    parts = [rows.episode for rows in complete]
    return Index(
        schema=schema,
        keys=pa.array([part.key for part in parts], pa.string()),
        metadata=pa.array([part.metadata for part in parts], pa.string()),
        num_frames=np.array([part.num_frames for part in parts], np.int64),
        chunk_frames=np.array([part.chunk_frames for part in parts], np.int64),
        file=np.concatenate([rows.files for rows in complete]).astype(np.uint32),
        offset=chunks["offset"].copy(),
        page_length=chunks["pages"]["length"].copy(),
        page_crc32c=chunks["pages"]["crc32c"].copy(),
        gaps=gaps,
    )


def complete_episodes(footers: Sequence[Footer]) -> dict[str, EpisodePart]:
    """The last parts of all episodes that are complete in these record files, by uid."""
    return {uid: rows.episode for uid, rows in _complete(footers).items()}


@dataclass(frozen=True)
class _Rows:
    """The rows of one complete episode; `gaps` count chunks from the episode's first."""

    episode: EpisodePart
    files: npt.NDArray[np.int64]
    chunks: npt.NDArray[Any]
    gaps: npt.NDArray[Any]


def _complete(footers: Sequence[Footer]) -> dict[str, _Rows]:
    parts: dict[str, list[tuple[int, int]]] = {}
    for file, footer in enumerate(footers):
        for number, part in enumerate(footer.episodes):
            parts.setdefault(part.uid, []).append((file, number))
    joined = {uid: _join(footers, places) for uid, places in parts.items()}
    return {uid: rows for uid, rows in joined.items() if rows is not None}


def _join(footers: Sequence[Footer], parts: Sequence[tuple[int, int]]) -> _Rows | None:
    """An episode's rows from its parts in several files, `None` if it is not complete."""
    pieces = [(file, *_rows_of(footers[file], number)) for file, number in parts]
    pieces = sorted((p for p in pieces if len(p[1])), key=lambda p: int(p[1]["first_frame"][0]))
    finished = [
        part for file, number in parts if (part := footers[file].episodes[number]).num_frames
    ]
    if not pieces or not finished:
        return None
    chunks = np.concatenate([rows for _, rows, _ in pieces])
    episode = finished[0]
    starts = np.arange(0, episode.num_frames or 0, episode.chunk_frames)
    if not np.array_equal(chunks["first_frame"], starts):
        return None
    first = np.cumsum([0, *(len(rows) for _, rows, _ in pieces)])
    return _Rows(
        episode,
        np.concatenate([np.full(len(rows), file) for file, rows, _ in pieces]),
        chunks,
        np.concatenate([_shifted(gaps, first[i]) for i, (_, _, gaps) in enumerate(pieces)]),
    )


def _rows_of(footer: Footer, number: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Chunk and gap rows of an episode in one file; gaps count from the first of the chunks."""
    start, stop = np.searchsorted(footer.chunks["episode"], [number, number + 1])
    of_gaps = slice(*np.searchsorted(footer.gaps["chunk"], [start, stop]))
    return footer.chunks[start:stop], _shifted(footer.gaps[of_gaps], -start)


def _shifted(gaps: npt.NDArray[Any], by: int) -> npt.NDArray[Any]:
    """Gap rows with their chunk numbers moved."""
    moved: npt.NDArray[Any] = gaps.copy()
    moved["chunk"] = gaps["chunk"].astype(np.int64) + by
    return moved


def _check_unique(episodes: Sequence[_Rows]) -> None:
    keys: set[str] = set()
    ordinals: set[int] = set()
    for rows in episodes:
        part = rows.episode
        if part.key in keys or part.ordinal in ordinals:
            raise FormatError(
                "two complete episodes of the same key or ordinal in the record files",
                episode=part.key,
                got=f"ordinal {part.ordinal}",
            )
        keys.add(part.key)
        ordinals.add(part.ordinal)
