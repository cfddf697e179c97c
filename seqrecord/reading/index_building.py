"""Builds the index from the footers of record files, whoever wrote them, in whatever order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqrecord.errors import FormatError
from seqrecord.format import EpisodePart, Footer
from seqrecord.format.edits import Edits
from seqrecord.format.index import NO_SPLIT, GroupIndex, Index, check_text
from seqrecord.format.rows import features_of
from seqrecord.format.text import whole_metadata
from seqrecord.lags import EpisodeLags, with_lags
from seqrecord.reading.absent import absent_chunks, conformed
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
    """An index, and the paths of the record files that it uses in the order of its numbers.

    `splits` are the names that it numbers.
    """

    index: Index
    files: tuple[str, ...]
    next_ordinal: int  # that of the last episode, and one
    lost: tuple[LostEpisode, ...]
    splits: tuple[str, ...]


def build_index(
    footers: Mapping[str, Footer],
    committed: Collection[str] = (),
    left_out: Collection[str] = (),
    edits: Edits | None = None,
    splits: Sequence[str] = (),
) -> BuiltIndex:
    """The index of all episodes that are complete in these record files, by (ordinal, uid).

    `footers` are by path. `committed` are the paths that a manifest names, and `left_out` the uids
    of episodes in them that are not in its dataset: all other episodes that are complete in them
    are, but for those that `edits` have deleted. Their keys and metadata are those that `edits`
    say, if any. Of several episodes of one key that of the dataset
    wins, else the one of the smallest uid. Of several copies of a chunk the one in a file of the
    dataset is taken, else that of the file of the smallest id. So the result depends on neither the
    order of the files nor that of their writers. Files are numbered in the order in which the
    episodes use them. Episodes that lack a part are left out. The names of `splits` keep their
    numbers; those that only `edits` name follow. The features are those that `edits` say, if any.

    Raises `FormatError` for schemas or file ids that clash, and for parts of an episode that
    contradict each other; it names the file.
    """
    edits = edits or Edits()
    schema, fitting = conformed(list(footers.items()), edits.schema, committed)
    footers = dict(fitting)
    _check_ids(footers)
    paths = sorted(footers, key=lambda path: (path not in committed, footers[path].file_id))
    complete = _complete([footers[path] for path in paths], schema)
    for uid in edits.deleted:
        complete.pop(uid, None)
    for uid in (edits.keys.keys() | edits.metadata.keys()) & complete.keys():
        rows = complete[uid]
        episode = replace(
            rows.episode,
            key=edits.keys.get(uid, rows.episode.key),
            metadata=edits.metadata.get(uid, rows.episode.metadata),
        )
        complete[uid] = replace(rows, episode=episode)
    in_dataset = np.array([path in committed for path in paths], bool)
    left_out = frozenset(left_out)
    rank = {
        uid: (
            uid in left_out or not all(in_dataset[group.files].all() for group in rows.groups),
            uid,
        )
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
    names = tuple(dict.fromkeys((*splits, *edits.names)))
    index, used = _index_of(
        schema, chosen, [edits.splits.get(r.episode.uid) for r in chosen], names
    )
    return BuiltIndex(
        index=index,
        files=tuple(paths[number] for number in used),
        next_ordinal=chosen[-1].episode.ordinal + 1,
        lost=tuple(
            LostEpisode(uid, rows.episode.key, frozenset(paths[number] for number in rows.pieces))
            for uid, rows in complete.items()
            if winners[rows.episode.key] != uid
        ),
        splits=names,
    )


def complete_episodes(
    footers: Sequence[tuple[str, Footer]], schema: Schema | None = None
) -> dict[str, EpisodePart]:
    """The last parts of all episodes that are complete in these record files, by uid.

    `schema` is that of the dataset, if there is one. Footers come with the paths of their files, of
    which there may be several: what is known of a file that is not finished. Raises `FormatError`
    as `build_index` does, but for file ids.
    """
    schema, fitting = conformed(footers, schema)
    return {uid: rows.episode for uid, rows in _complete([f for _, f in fitting], schema).items()}


class _Piece(NamedTuple):
    """An episode's chunk and gap rows of one group; gaps count from the first of the chunks.

    `files` says where each chunk is.
    """

    files: npt.NDArray[np.int64]
    chunks: npt.NDArray[Any]
    gaps: npt.NDArray[Any]


@dataclass(frozen=True)
class _Rows:
    """The rows of one complete episode, by group. `pieces` are the files of any piece of it."""

    episode: EpisodePart
    groups: tuple[_Piece, ...]
    pieces: tuple[int, ...]


def _index_of(
    schema: Schema,
    episodes: Sequence[_Rows],
    splits: Sequence[str | None],
    names: Sequence[str],
) -> tuple[Index, list[int]]:
    """The index, and the numbers of the files that it uses, in the order of their first use."""
    parts = [rows.episode for rows in episodes]
    keys, metadata = [part.key for part in parts], [part.metadata for part in parts]
    check_text(*(sum(len(text.encode()) for text in texts) for texts in (keys, metadata)))
    used = _used_files(episodes)
    number = np.zeros(max(used) + 1, np.uint32)
    number[used] = np.arange(len(used))
    groups = tuple(
        _group_of(group, features, [rows.groups[at] for rows in episodes], number)
        for at, (group, features) in enumerate(zip(schema.groups, features_of(schema), strict=True))
    )
    place: dict[str | None, int] = {name: at for at, name in enumerate(names)}
    place[None] = NO_SPLIT
    index = Index(
        schema=schema,
        keys=pa.array(keys, pa.string()),
        uids=np.frombuffer(bytes.fromhex("".join(p.uid for p in parts)), "u1").reshape(-1, 16),
        metadata=pa.array(metadata, pa.string()),
        num_frames=np.array([part.num_frames for part in parts], np.int64),
        fps=np.array([part.fps or 0 for part in parts], np.float64),
        split=np.array([place[name] for name in splits], np.uint16),
        groups=groups,
        lags=_lags_of(parts, with_lags(schema)),
    )
    return index, used


def _lags_of(parts: Sequence[EpisodePart], timestamps: Sequence[str]) -> EpisodeLags | None:
    if not timestamps:
        return None
    rows = [[dict(part.lags).get(name) for name in timestamps] for part in parts]
    return EpisodeLags.of(rows, len(timestamps), max(part.num_frames or 1 for part in parts))


def _used_files(episodes: Sequence[_Rows]) -> list[int]:
    """The numbers of the files that episodes have chunks in, in the order of their first use."""
    pieces = [group.files for rows in episodes for group in rows.groups]
    found, at = np.unique(np.concatenate(pieces), return_index=True)
    order: list[int] = found[np.argsort(at)].tolist()
    return order


def _group_of(
    schema: Schema,
    features: npt.NDArray[np.int64],
    episodes: Sequence[_Piece],
    number: npt.NDArray[np.uint32],
) -> GroupIndex:
    """The chunk table of one group; `number` are the new numbers of the files."""
    counts = np.array([len(rows.chunks) for rows in episodes], np.int64)
    first = np.cumsum(counts) - counts
    chunks = np.concatenate([rows.chunks for rows in episodes])
    gaps = [_shifted(rows.gaps, int(at)) for rows, at in zip(episodes, first, strict=True)]
    return GroupIndex(
        schema=schema,
        features=features,
        num_chunks=counts,
        first_frame=chunks["first_frame"].copy(),
        num_frames=chunks["num_frames"].copy(),
        file=number[np.concatenate([rows.files for rows in episodes])],
        offset=chunks["offset"].copy(),
        page_length=chunks["pages"]["length"].copy(),
        page_crc32c=chunks["pages"]["crc32c"].copy(),
        largest_frame=chunks["largest"].astype(np.uint32),
        gaps=np.concatenate(gaps),
    )


def _complete(footers: Sequence[Footer], schema: Schema | None) -> dict[str, _Rows]:
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
) -> _Rows | None:
    """An episode's rows from its parts in several files, `None` if one is not there.

    `schemas` are the groups of the dataset, with the places of their features. All frames lack a
    group that was dropped, and one that was added of which there is no chunk. The episode is as
    long as the longest of its parts that is whole. Of copies of a chunk the first is taken; they
    must be equal.
    """
    described = [footers[file].episodes[number] for file, number in parts]
    lengths = {part.num_frames for part in described if part.num_frames is not None}
    episode = _common(described, max(lengths, default=None))
    groups: dict[int, _Piece] = {}
    for group, (schema, _) in enumerate(schemas):
        if all(spec.is_dropped for spec in schema.values()):
            continue
        pieces = [
            _rows_of(footers[file], file, number, group)
            for file, number in parts
            if group < len(footers[file].chunks)
        ]
        if any(len(piece.chunks) for piece in pieces):
            groups[group] = pieces[0] if len(pieces) == 1 else _gathered(pieces, episode)
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
                else _Piece(*absent_chunks(at.files, at.chunks, schema, features))
                for group, (schema, features) in enumerate(schemas)
            )
            files = tuple(file for file, _ in parts)
            # Of what says so, what ends it is whole; a flush there says that it is truncated.
            ends = [part for part in described if part.num_frames == length]
            metadata = {part.metadata for part in ends}
            chosen = episode.metadata if episode.metadata in metadata else ends[0].metadata
            lags = tuple(sorted({item[0]: item for part in ends for item in part.lags}.values()))
            episode = replace(episode, num_frames=length, metadata=chosen, lags=lags)
            return _Rows(episode, whole, files)
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


def _first_frames(rows: _Piece, num_frames: int, episode: EpisodePart) -> _Piece | None:
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
    return _Piece(rows.files[:stop], rows.chunks[:stop], gaps)


def _gathered(pieces: Sequence[_Piece], episode: EpisodePart) -> _Piece:
    """The chunks of one group of an episode in all files, front to back; of copies the first."""
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
    files = np.concatenate([piece.files for piece in pieces])
    order = np.argsort(gaps["chunk"], kind="stable")
    return _Piece(files[chosen], chunks[chosen], gaps[order])


def _contradiction(episode: EpisodePart) -> FormatError:
    return FormatError(
        "record files contradict each other about an episode",
        episode=episode.key,
        expected="parts of one uid that agree, and copies of a chunk that are equal",
        got=f"uid {episode.uid}",
    )


def _rows_of(footer: Footer, file: int, number: int, group: int) -> _Piece:
    """Chunk and gap rows of an episode in one file; gaps count from the first of the chunks."""
    chunks, gaps = footer.chunks[group], footer.gaps[group]
    start, stop = np.searchsorted(chunks["episode"], [number, number + 1])
    of_gaps = slice(*np.searchsorted(gaps["chunk"], [start, stop]))
    rows = chunks[start:stop]
    return _Piece(np.full(len(rows), file), rows, _shifted(gaps[of_gaps], -start))


def _shifted(gaps: npt.NDArray[Any], by: int) -> npt.NDArray[Any]:
    """Gap rows with their chunk numbers moved."""
    moved: npt.NDArray[Any] = gaps.copy()
    moved["chunk"] = gaps["chunk"].astype(np.int64) + by
    return moved


def _check_ids(footers: Mapping[str, Footer]) -> None:
    by_id: dict[str, str] = {}
    for path, footer in footers.items():
        if (other := by_id.setdefault(footer.file_id, path)) != path:
            raise FormatError("two record files of one id: one is a copy", file=path, got=other)
