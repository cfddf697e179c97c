"""Builds the index from the footers of record files, whoever wrote them, in whatever order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqrecord.errors import FormatError
from seqrecord.format import EpisodePart, Footer
from seqrecord.format.edits import Edits
from seqrecord.format.index import NO_SPLIT, GroupIndex, Index, check_text
from seqrecord.format.rows import features_of
from seqrecord.lags import EpisodeLags, with_lags
from seqrecord.reading.episode_parts import Piece, Rows, complete_rows, conformed, shifted
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

    Behind these are those that have no chunk in it, but alone say how many frames an episode has:
    its last chunk is of a group that was dropped. `splits` are the names that it numbers.
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
    complete = complete_rows([footers[path] for path in paths], schema)
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
        files=tuple(paths[number] for number in (*used, *_telling(chosen, used))),
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
    return {
        uid: rows.episode for uid, rows in complete_rows([f for _, f in fitting], schema).items()
    }


def _index_of(
    schema: Schema, episodes: Sequence[Rows], splits: Sequence[str | None], names: Sequence[str]
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


def _used_files(episodes: Sequence[Rows]) -> list[int]:
    """The numbers of the files that episodes have chunks in, in the order of their first use."""
    pieces = [group.files for rows in episodes for group in rows.groups]
    found, at = np.unique(np.concatenate(pieces), return_index=True)
    order: list[int] = found[np.argsort(at)].tolist()
    return order


def _telling(episodes: Sequence[Rows], used: Sequence[int]) -> list[int]:
    """The numbers of other files without which nothing would say how long an episode is."""
    known = dict.fromkeys(used)
    for rows in episodes:
        if known.keys().isdisjoint(rows.telling):
            known[rows.telling[0]] = None
    return list(known)[len(used) :]


def _group_of(
    schema: Schema,
    features: npt.NDArray[np.int64],
    episodes: Sequence[Piece],
    number: npt.NDArray[np.uint32],
) -> GroupIndex:
    """The chunk table of one group; `number` are the new numbers of the files."""
    counts = np.array([len(rows.chunks) for rows in episodes], np.int64)
    first = np.cumsum(counts) - counts
    chunks = np.concatenate([rows.chunks for rows in episodes])
    gaps = [shifted(rows.gaps, int(at)) for rows, at in zip(episodes, first, strict=True)]
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


def _check_ids(footers: Mapping[str, Footer]) -> None:
    by_id: dict[str, str] = {}
    for path, footer in footers.items():
        if (other := by_id.setdefault(footer.file_id, path)) != path:
            raise FormatError("two record files of one id: one is a copy", file=path, got=other)
