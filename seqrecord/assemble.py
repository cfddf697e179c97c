"""Builds the index from the footers of record files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqrecord.errors import FormatError
from seqrecord.format import EpisodePart, Footer
from seqrecord.index import MAX_INDEX_TEXT, Index
from seqrecord.schema import Schema

__all__ = ["assemble", "complete_episodes"]


def assemble(footers: Mapping[str, Footer]) -> tuple[Index, list[str]]:
    """The index of all episodes that are complete in these record files, in ordinal order.

    `footers` are by path; the second value is the paths of the files that the index uses, in the
    order in which it numbers them. Episodes without one of their parts are left out.

    Raises `FormatError` for schemas or file ids that clash, parts of an episode that contradict
    each other, and two complete episodes of one key or one ordinal; it names the file.
    """
    paths = list(footers)
    schema = _common_schema(footers)
    complete = sorted(
        _complete(list(footers.values())).values(), key=lambda rows: rows.episode.ordinal
    )
    if schema is None or not complete:
        raise FormatError(
            "no complete episode in any record file; an interrupted `seqrecord write` goes on with "
            "--resume"
        )
    _check_unique(complete, paths)
    _check_text(complete)
    chunks = np.concatenate([rows.chunks for rows in complete])
    first = np.cumsum([0, *(len(rows.chunks) for rows in complete)])
    gaps = np.concatenate([_shifted(rows.gaps, first[i]) for i, rows in enumerate(complete)])
    used, file = np.unique(np.concatenate([rows.files for rows in complete]), return_inverse=True)
    parts = [rows.episode for rows in complete]
    index = Index(
        schema=schema,
        keys=pa.array([part.key for part in parts], pa.string()),
        metadata=pa.array([part.metadata for part in parts], pa.string()),
        num_frames=np.array([part.num_frames for part in parts], np.int64),
        chunk_frames=np.array([part.chunk_frames for part in parts], np.int64),
        file=file.astype(np.uint32),
        offset=chunks["offset"].copy(),
        page_length=chunks["pages"]["length"].copy(),
        page_crc32c=chunks["pages"]["crc32c"].copy(),
        largest_frame=chunks["largest"].astype(np.uint32),
        gaps=gaps,
    )
    return index, [paths[number] for number in used]


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
    """An episode's rows from its parts in several files, `None` if one is not there."""
    described = [footers[file].episodes[number] for file, number in parts]
    finished = [part for part in described if part.num_frames is not None]
    episode = finished[0] if finished else described[0]
    if len(finished) > 1 or any(
        replace(part, num_frames=episode.num_frames) != episode for part in described
    ):
        raise _contradiction(episode)
    pieces = [(file, *_rows_of(footers[file], number)) for file, number in parts]
    pieces.sort(key=lambda piece: int(piece[1]["first_frame"][0]))
    chunks = np.concatenate([rows for _, rows, _ in pieces])
    # Counted before anything of that length is made: a file may say any number of frames.
    num_frames = episode.num_frames
    if num_frames is None or len(chunks) < -(-num_frames // episode.chunk_frames):
        return None
    starts = np.arange(len(chunks)) * episode.chunk_frames
    sizes = np.minimum(episode.chunk_frames, num_frames - starts)
    if not (
        np.array_equal(chunks["first_frame"], starts)
        and np.array_equal(chunks["num_frames"], sizes)
    ):
        raise _contradiction(episode)
    first = np.cumsum([0, *(len(rows) for _, rows, _ in pieces)])
    return _Rows(
        episode,
        np.concatenate([np.full(len(rows), file) for file, rows, _ in pieces]),
        chunks,
        np.concatenate([_shifted(gaps, first[i]) for i, (_, _, gaps) in enumerate(pieces)]),
    )


def _contradiction(episode: EpisodePart) -> FormatError:
    return FormatError(
        "record files contradict each other about an episode; is one of them a copy?",
        episode=episode.key,
        expected="parts of one uid that agree and together hold each frame once",
        got=f"uid {episode.uid}",
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


def _common_schema(footers: Mapping[str, Footer]) -> Schema | None:
    schema: Schema | None = None
    by_id: dict[str, str] = {}
    for path, footer in footers.items():
        schema = schema or footer.schema
        if footer.schema != schema:
            pairs = zip_longest(schema.to_json(), footer.schema.to_json())
            want, got = next((want, got) for want, got in pairs if want != got)
            raise FormatError(
                "record files of different schemas", file=path, expected=want or "no more", got=got
            )
        if (other := by_id.setdefault(footer.file_id, path)) != path:
            raise FormatError("two record files of one id: one is a copy", file=path, got=other)
    return schema


def _check_unique(episodes: Sequence[_Rows], paths: Sequence[str]) -> None:
    keys: set[str] = set()
    ordinals: set[int] = set()
    for rows in episodes:
        part = rows.episode
        if part.key in keys or part.ordinal in ordinals:
            raise FormatError(
                "two complete episodes of the same key or ordinal in the record files",
                file=paths[rows.files[0]],
                episode=part.key,
                got=f"ordinal {part.ordinal}",
            )
        keys.add(part.key)
        ordinals.add(part.ordinal)


def _check_text(episodes: Sequence[_Rows]) -> None:
    """The episode table holds all metadata, and all keys, as one string each."""
    for name in ("key", "metadata"):
        length = sum(len(getattr(rows.episode, name).encode()) for rows in episodes)
        if length > MAX_INDEX_TEXT:
            raise FormatError(
                f"too much {name} text for one dataset",
                expected=f"at most {MAX_INDEX_TEXT} bytes",
                got=f"{length} bytes in {len(episodes)} episodes",
            )
