"""Builds the index from the footers of record files, whoever wrote them, in whatever order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqrecord.errors import FormatError
from seqrecord.format import EpisodePart, Footer
from seqrecord.format.index import Index, check_text
from seqrecord.schema import Schema

__all__ = ["BuiltIndex", "LostEpisode", "build_index", "complete_episodes"]


@dataclass(frozen=True)
class LostEpisode:
    """A complete episode that is not in the index, since another one has its key.

    `files` are the paths of all record files that hold a piece of it.
    """

    uid: str
    key: str
    files: frozenset[str]


@dataclass(frozen=True)
class BuiltIndex:
    """An index, and the paths of the record files that it uses in the order of its numbers."""

    index: Index
    files: tuple[str, ...]
    next_ordinal: int  # that of the last episode, and one
    lost: tuple[LostEpisode, ...]


def build_index(
    footers: Mapping[str, Footer],
    committed: Collection[str] = (),
    left_out: Collection[str] = (),
) -> BuiltIndex:
    """The index of all episodes that are complete in these record files, by (ordinal, uid).

    `footers` are by path. `committed` are the paths that a manifest names, and `left_out` the uids
    of episodes in them that are not in its dataset: all other episodes that are complete in them
    are. Of several episodes of one key that of the dataset wins, else the one of the smallest uid.
    Of several copies of a chunk the one in a file of the dataset is taken, else that of the file of
    the smallest id. So the result depends on neither the order of the files nor that of their
    writers. Files are numbered in the order in which the episodes use them. Episodes that lack a
    part are left out.

    Raises `FormatError` for schemas or file ids that clash, and for parts of an episode that
    contradict each other; it names the file.
    """
    schema = _common_schema(footers.items())
    _check_ids(footers)
    paths = sorted(footers, key=lambda path: (path not in committed, footers[path].file_id))
    complete = _complete([footers[path] for path in paths])
    in_dataset = np.array([path in committed for path in paths], bool)
    left_out = frozenset(left_out)
    rank = {
        uid: (uid in left_out or not in_dataset[rows.files].all(), uid)
        for uid, rows in complete.items()
    }
    winners: dict[str, str] = {}
    for uid in sorted(complete, key=rank.__getitem__):
        winners.setdefault(complete[uid].episode.key, uid)
    if schema is None or not winners:
        raise FormatError(
            "no complete episode in any record file; `seqrecord write --resume` continues an "
            "interrupted write"
        )
    chosen = [complete[uid] for uid in winners.values()]
    chosen.sort(key=lambda rows: (rows.episode.ordinal, rows.episode.uid))
    index, used = _index_of(schema, chosen)
    return BuiltIndex(
        index=index,
        files=tuple(paths[number] for number in used),
        next_ordinal=chosen[-1].episode.ordinal + 1,
        lost=tuple(
            LostEpisode(uid, rows.episode.key, frozenset(paths[number] for number in rows.pieces))
            for uid, rows in complete.items()
            if winners[rows.episode.key] != uid
        ),
    )


def complete_episodes(footers: Sequence[tuple[str, Footer]]) -> dict[str, EpisodePart]:
    """The last parts of all episodes that are complete in these record files, by uid.

    Footers come with the paths of their files, of which there may be several: what is known of a
    file that is not finished. Raises `FormatError` as `build_index` does, but for file ids.
    """
    _common_schema(footers)
    return {uid: rows.episode for uid, rows in _complete([f for _, f in footers]).items()}


@dataclass(frozen=True)
class _Rows:
    """The rows of one complete episode; `gaps` count chunks from the episode's first.

    `files` says where each chunk is, `pieces` where any piece of the episode is.
    """

    episode: EpisodePart
    files: npt.NDArray[np.int64]
    chunks: npt.NDArray[Any]
    gaps: npt.NDArray[Any]
    pieces: tuple[int, ...]


def _index_of(schema: Schema, episodes: Sequence[_Rows]) -> tuple[Index, list[int]]:
    """The index, and the numbers of the files that it uses, in the order of their first use."""
    parts = [rows.episode for rows in episodes]
    keys, metadata = [part.key for part in parts], [part.metadata for part in parts]
    check_text(*(sum(len(text.encode()) for text in texts) for texts in (keys, metadata)))
    chunks = np.concatenate([rows.chunks for rows in episodes])
    first = np.cumsum([0, *(len(rows.chunks) for rows in episodes)])
    gaps = np.concatenate([_shifted(rows.gaps, first[i]) for i, rows in enumerate(episodes)])
    found, at, file = np.unique(
        np.concatenate([rows.files for rows in episodes]), return_index=True, return_inverse=True
    )
    order = np.argsort(at)
    index = Index(
        schema=schema,
        keys=pa.array(keys, pa.string()),
        metadata=pa.array(metadata, pa.string()),
        num_frames=np.array([part.num_frames for part in parts], np.int64),
        chunk_frames=np.array([part.chunk_frames for part in parts], np.int64),
        file=np.argsort(order)[file].astype(np.uint32),
        offset=chunks["offset"].copy(),
        page_length=chunks["pages"]["length"].copy(),
        page_crc32c=chunks["pages"]["crc32c"].copy(),
        largest_frame=chunks["largest"].astype(np.uint32),
        gaps=gaps,
    )
    return index, found[order].tolist()


def _complete(footers: Sequence[Footer]) -> dict[str, _Rows]:
    parts: dict[str, list[tuple[int, int]]] = {}
    for file, footer in enumerate(footers):
        for number, part in enumerate(footer.episodes):
            parts.setdefault(part.uid, []).append((file, number))
    joined = {uid: _join(footers, places) for uid, places in parts.items()}
    return {uid: rows for uid, rows in joined.items() if rows is not None}


def _join(footers: Sequence[Footer], parts: Sequence[tuple[int, int]]) -> _Rows | None:
    """An episode's rows from its parts in several files, `None` if one is not there.

    Of copies of a chunk the first is taken; they must be equal.
    """
    described = [footers[file].episodes[number] for file, number in parts]
    episode = next((part for part in described if part.num_frames is not None), described[0])
    if any(
        part.num_frames not in (None, episode.num_frames)
        or replace(part, num_frames=episode.num_frames) != episode
        for part in described
    ):
        raise _contradiction(episode)
    pieces = [_Piece(file, *_rows_of(footers[file], number)) for file, number in parts]
    file, chunks, gaps = pieces[0]
    files = np.full(len(chunks), file)
    if len(pieces) > 1:
        files, chunks, gaps = _gathered(pieces, episode)
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
    return _Rows(episode, files, chunks, gaps, tuple(file for file, _ in parts))


class _Piece(NamedTuple):
    """An episode's chunk and gap rows in one file; gaps count from the first of the chunks."""

    file: int
    chunks: npt.NDArray[Any]
    gaps: npt.NDArray[Any]


def _gathered(
    pieces: Sequence[_Piece], episode: EpisodePart
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any], npt.NDArray[Any]]:
    """The file of each chunk, the chunks and their gaps, front to back; of copies the first."""
    chunks = np.concatenate([piece.chunks for piece in pieces])
    _, chosen, copy_of = np.unique(chunks["first_frame"], return_index=True, return_inverse=True)
    same = [name for name in chunks.dtype.names or () if name not in ("episode", "offset")]
    if len(chosen) < len(chunks) and (chunks[same] != chunks[chosen][copy_of][same]).any():
        raise _contradiction(episode)
    first = np.cumsum([0, *(len(piece.chunks) for piece in pieces)])
    gaps = np.concatenate([_shifted(piece.gaps, first[i]) for i, piece in enumerate(pieces)])
    place = np.full(len(chunks), -1)
    place[chosen] = np.arange(len(chosen))
    gaps = gaps[place[gaps["chunk"]] >= 0]
    gaps["chunk"] = place[gaps["chunk"]]
    files = np.concatenate([np.full(len(piece.chunks), piece.file) for piece in pieces])
    return files[chosen], chunks[chosen], gaps[np.argsort(gaps["chunk"], kind="stable")]


def _contradiction(episode: EpisodePart) -> FormatError:
    return FormatError(
        "record files contradict each other about an episode",
        episode=episode.key,
        expected="parts of one uid that agree, and copies of a chunk that are equal",
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


def _common_schema(footers: Iterable[tuple[str, Footer]]) -> Schema | None:
    schema: Schema | None = None
    for path, footer in footers:
        schema = schema or footer.schema
        if footer.schema != schema:
            pairs = zip_longest(schema.to_json(), footer.schema.to_json())
            want, got = next((want, got) for want, got in pairs if want != got)
            raise FormatError(
                "record files of different schemas", file=path, expected=want or "no more", got=got
            )
    return schema


def _check_ids(footers: Mapping[str, Footer]) -> None:
    by_id: dict[str, str] = {}
    for path, footer in footers.items():
        if (other := by_id.setdefault(footer.file_id, path)) != path:
            raise FormatError("two record files of one id: one is a copy", file=path, got=other)
