"""Joins the parts of an episode that several record files hold.

A record file says which features it was written with. Those of the dataset continue these: some may
have been dropped since, and others added behind them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.codecs.video.gops import MAX_GOP_FRAMES
from seqrecord.errors import FormatError
from seqrecord.format import EpisodePart, Footer
from seqrecord.format.rows import GAP_ROW, MAX_CHUNK_FRAMES, WORD, chunk_row, features_of
from seqrecord.format.text import whole_metadata
from seqrecord.schema import Schema

__all__ = ["Piece", "Rows", "absent_chunks", "complete_rows", "conformed", "shifted"]

_logger = logging.getLogger("seqrecord")


class Piece(NamedTuple):
    """An episode's chunk and gap rows of one group; gaps count from the first of the chunks.

    `files` says where each chunk is.
    """

    files: npt.NDArray[np.int64]
    chunks: npt.NDArray[Any]
    gaps: npt.NDArray[Any]


@dataclass(frozen=True)
class Rows:
    """The rows of one complete episode, by group. `pieces` are the files of any piece of it.

    Of these `telling` say how many frames it has.
    """

    episode: EpisodePart
    groups: tuple[Piece, ...]
    pieces: tuple[int, ...]
    telling: tuple[int, ...]


def complete_rows(footers: Sequence[Footer], schema: Schema | None) -> dict[str, Rows]:
    """All episodes that are complete in these record files, by uid. `schema` is the dataset's."""
    if schema is None:
        return {}
    parts: dict[str, list[tuple[int, int]]] = {}
    for file, footer in enumerate(footers):
        for number, part in enumerate(footer.episodes):
            parts.setdefault(part.uid, []).append((file, number))
    groups = list(zip(schema.groups, features_of(schema), strict=True))
    joined = {uid: _join(footers, places, groups) for uid, places in parts.items()}
    return {uid: rows for uid, rows in joined.items() if rows is not None}


def _join(
    footers: Sequence[Footer],
    parts: Sequence[tuple[int, int]],
    schemas: Sequence[tuple[Schema, npt.NDArray[np.int64]]],
) -> Rows | None:
    """An episode's rows from its parts in several files, `None` if one is not there.

    `schemas` are the groups of the dataset, with the places of their features. All frames lack a
    group that was dropped, and one that was added of which there is no chunk. The episode is as
    long as the longest of its parts that is whole. Of copies of a chunk the first is taken; they
    must be equal.
    """
    described = [footers[file].episodes[number] for file, number in parts]
    lengths = {part.num_frames for part in described if part.num_frames is not None}
    episode = _common(described, max(lengths, default=None))
    groups: dict[int, Piece] = {}
    for group, (schema, _) in enumerate(schemas):
        if all(spec.is_dropped for spec in schema.values()):
            continue
        pieces = [
            _rows_of(footers[file], file, number, group)
            for file, number in parts
            if group < len(footers[file].chunks)
        ]
        if any(len(piece.chunks) for piece in pieces):
            groups[group] = pieces[0] if len(pieces) == 1 else _gathered(pieces, episode, schema)
        elif not _may_lack(footers, parts, group, schema):
            return None
    for length in sorted(lengths, reverse=True) if groups else ():
        first = {group: _first_frames(rows, length, episode) for group, rows in groups.items()}
        if None not in first.values():
            found = {group: rows for group, rows in first.items() if rows is not None}
            at = next(iter(found.values()))  # what has no chunks is absent in those of this group
            whole = tuple(
                found[group]
                if group in found
                else Piece(*absent_chunks(at.files, at.chunks, schema, features))
                for group, (schema, features) in enumerate(schemas)
            )
            files = tuple(file for file, _ in parts)
            says = [part.num_frames == length for part in described]
            telling = tuple(file for file, is_told in zip(files, says, strict=True) if is_told)
            # Of what says so, what ends it is whole; a flush there says that it is truncated.
            ends = [part for part in described if part.num_frames == length]
            metadata = {part.metadata for part in ends}
            chosen = episode.metadata if episode.metadata in metadata else ends[0].metadata
            lags = tuple(sorted({item[0]: item for part in ends for item in part.lags}.values()))
            episode = replace(episode, num_frames=length, metadata=chosen, lags=lags)
            return Rows(episode, whole, files, telling)
    return None


def _may_lack(
    footers: Sequence[Footer], parts: Sequence[tuple[int, int]], group: int, schema: Schema
) -> bool:
    """Whether an episode may be whole without a chunk of this group: one that was added later."""
    written = [
        footers[file]
        for file, number in parts
        if footers[file].file_id[:16] == footers[file].episodes[number].uid[:16]
    ]
    return next(iter(schema.values())).added is not None and not any(
        group < len(footer.chunks) for footer in written
    )


def _common(parts: Sequence[EpisodePart], num_frames: int | None) -> EpisodePart:
    """What parts of an episode have in common, with this number of frames.

    They may differ in that, and so in lags, and in whether they say that the episode is truncated.
    """
    texts = {part.metadata for part in parts}
    whole = {whole_metadata(text) for text in texts} if len(texts) > 1 else texts
    metadata = next(iter(texts & whole or whole))
    episode = replace(parts[0], num_frames=num_frames, metadata=metadata, lags=())
    same = {replace(part, num_frames=num_frames, metadata=metadata, lags=()) for part in parts}
    if len(whole) > 1 or len(same) > 1:
        raise _contradiction(episode)
    return episode


def _first_frames(rows: Piece, num_frames: int, episode: EpisodePart) -> Piece | None:
    """The chunks, in the order of their frames, of the first frames; `None` if one is not there.

    Chunks may neither overlap nor hold frames on both sides of that end.
    """
    first = rows.chunks["first_frame"].astype(np.int64)
    stop = int(np.searchsorted(first, num_frames))
    ends = np.concatenate(([0], first + rows.chunks["num_frames"]))
    if (first < ends[:-1]).any() or ends[stop] > num_frames:
        raise _contradiction(episode)
    if ends[stop] < num_frames or not np.array_equal(first[:stop], ends[:stop]):
        return None
    if stop == len(first):
        return rows
    gaps = rows.gaps[: np.searchsorted(rows.gaps["chunk"], stop)]
    return Piece(rows.files[:stop], rows.chunks[:stop], gaps)


def _gathered(pieces: Sequence[Piece], episode: EpisodePart, schema: Schema) -> Piece:
    """The chunks of one group of an episode in all files, front to back; of copies the first.

    Copies are equal but for features that were dropped: `schema` is that of the group.
    """
    chunks = np.concatenate([piece.chunks for piece in pieces])
    _, chosen, copy_of = np.unique(chunks["first_frame"], return_index=True, return_inverse=True)
    if len(chosen) < len(chunks):
        compared = _comparable(chunks, schema)
        if (compared != compared[chosen][copy_of]).any():
            raise _contradiction(episode)
    first = np.cumsum([0, *(len(piece.chunks) for piece in pieces)])
    gaps = np.concatenate([shifted(piece.gaps, first[i]) for i, piece in enumerate(pieces)])
    place = np.full(len(chunks), -1)
    place[chosen] = np.arange(len(chosen))
    gaps = gaps[place[gaps["chunk"]] >= 0]
    gaps["chunk"] = place[gaps["chunk"]]
    files = np.concatenate([piece.files for piece in pieces])
    order = np.argsort(gaps["chunk"], kind="stable")
    return Piece(files[chosen], chunks[chosen], gaps[order])


def _comparable(chunks: npt.NDArray[Any], schema: Schema) -> npt.NDArray[Any]:
    """The chunk rows without their places, and without pages of features that were dropped."""
    rows: npt.NDArray[Any] = chunks.copy()
    rows["episode"], rows["offset"] = 0, 0
    for column, spec in enumerate(schema.values()):
        if spec.is_dropped:
            rows["pages"][:, column] = 0
    for column, spec in enumerate(schema.variable):
        if spec.is_dropped:
            rows["largest"][:, column] = 0
    return rows


def _contradiction(episode: EpisodePart) -> FormatError:
    return FormatError(
        "record files contradict each other about an episode",
        episode=episode.key,
        expected="parts of one uid that agree, and copies of a chunk that are equal",
        got=f"uid {episode.uid}",
    )


def _rows_of(footer: Footer, file: int, number: int, group: int) -> Piece:
    """Chunk and gap rows of an episode in one file; gaps count from the first of the chunks."""
    chunks, gaps = footer.chunks[group], footer.gaps[group]
    start, stop = np.searchsorted(chunks["episode"], [number, number + 1])
    of_gaps = slice(*np.searchsorted(gaps["chunk"], [start, stop]))
    rows = chunks[start:stop]
    return Piece(np.full(len(rows), file), rows, shifted(gaps[of_gaps], -start))


def shifted(gaps: npt.NDArray[Any], by: int) -> npt.NDArray[Any]:
    """Gap rows with their chunk numbers moved."""
    moved: npt.NDArray[Any] = gaps.copy()
    moved["chunk"] = gaps["chunk"].astype(np.int64) + by
    return moved


def conformed(
    footers: Sequence[tuple[str, Footer]],
    schema: Schema | None = None,
    committed: Collection[str] = (),
) -> tuple[Schema | None, list[tuple[str, Footer]]]:
    """The schema of a dataset, and those of its record files that are of it, with their paths.

    Without `schema` it is the longest of those files that have chunks of the first group. What an
    interrupted edit has left of a feature that is in no dataset is left out, and named in the log:
    a file without chunks of the first group that is not `committed`. Raises `FormatError` for any
    other file whose schema the dataset's does not continue.
    """
    if schema is None:
        whole = [footer.schema for _, footer in footers if len(footer.chunks[0])]
        schema = max(whole, key=len, default=footers[0][1].schema if footers else None)
    if schema is None:
        return None, []
    found = []
    for path, footer in footers:
        if schema.continues(footer.schema):
            found.append((path, _renamed(footer, schema)))
        elif len(footer.chunks[0]) or path in committed:
            pairs = zip_longest(schema.values(), footer.schema.values())
            want, got = next((want, got) for want, got in pairs if want != got)
            raise FormatError(
                "record files of different schemas",
                file=path,
                expected=want.to_json() if want else "no more",
                got=got.to_json() if got else None,
            )
        else:
            _logger.warning("%s: left out: of a feature that was not added to the end", path)
    return schema, found


def _renamed(footer: Footer, schema: Schema) -> Footer:
    """The footer with lags of the features that are still there; a name may be another's now."""
    now = dict(zip(footer.schema, schema, strict=False))
    if all(name == new for name, new in now.items()):
        return footer
    episodes = [
        replace(part, lags=tuple((name, lags) for name, lags in part.lags if now[name] == name))
        for part in footer.episodes
    ]
    return replace(footer, episodes=tuple(episodes))


def absent_chunks(
    files: npt.NDArray[np.int64],
    chunks: npt.NDArray[Any],
    schema: Schema,
    features: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any], npt.NDArray[Any]]:
    """Files, chunk rows and gap rows of a group of which no frame of an episode has a feature.

    They lie, and end, where those of another group do: these are its `chunks`, in `files`. `schema`
    is that of the absent group, and `features` are the places of its features.
    """
    most = MAX_GOP_FRAMES if any(s.is_video for s in schema.values()) else MAX_CHUNK_FRAMES
    held = chunks["num_frames"].astype(np.int64)
    pieces = -(-held // most)
    source = np.repeat(np.arange(len(chunks)), pieces)
    within = (np.arange(len(source)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * most
    rows = np.zeros(len(source), chunk_row(len(schema), len(schema.variable)))
    rows["offset"] = chunks["offset"][source]
    rows["first_frame"] = chunks["first_frame"][source] + within
    rows["num_frames"] = np.minimum(held[source] - within, most)
    words = -(-rows["num_frames"].astype(np.int64) // WORD)
    count = words * len(features)
    gaps = np.zeros(int(count.sum()), GAP_ROW)
    chunk = np.repeat(np.arange(len(rows)), count)
    at = np.arange(len(gaps)) - np.repeat(np.cumsum(count) - count, count)
    gaps["chunk"] = chunk
    gaps["feature"] = features[at // words[chunk]] if len(at) else 0
    gaps["word"] = at % words[chunk]
    return files[source], rows, gaps
