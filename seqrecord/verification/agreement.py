"""Whether the index and the footers of record files say the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.errors import FormatError, SeqRecordError
from seqrecord.format import EpisodePart, Footer
from seqrecord.index import Index

__all__ = ["Parts", "Unlisted", "compare_footer"]


class Unlisted:
    """Episodes of record files of which the index says nothing.

    They are leftovers of interrupted writes, unless all of an episode's chunks are there. Those of
    the uids `left_out` are not in the dataset since another episode has their key.
    """

    class Part(NamedTuple):
        """`num_chunks` of an episode that one file holds."""

        episode: EpisodePart
        num_chunks: int

    def __init__(self, left_out: Iterable[str] = ()) -> None:
        self._known = set(left_out)
        self._episodes: dict[str, tuple[str, EpisodePart]] = {}
        self._num_chunks: dict[str, int] = {}

    def add(self, path: str, parts: Iterable[Part], listed: Iterable[str] = ()) -> None:
        """Parts found in a record file, and uids of which the index lists chunks in that file.

        Of those, other files may hold copies.
        """
        self._known.update(listed)
        for part, num_chunks in parts:
            if part.uid not in self._episodes or part.num_frames:
                self._episodes[part.uid] = (path, part)
            self._num_chunks[part.uid] = self._num_chunks.get(part.uid, 0) + num_chunks

    def problems(self, url: str) -> list[SeqRecordError]:
        """An error for each episode that is complete."""
        return [
            FormatError(
                "a complete episode that the index does not list; `seqrecord reindex` adds it",
                file=f"{url}/{path}",
                episode=part.key,
            )
            for uid, (path, part) in self._episodes.items()
            if uid not in self._known
            and part.num_frames
            and self._num_chunks[uid] == -(-part.num_frames // part.chunk_frames)
        ]


class Parts:
    """What record files say of episodes, file by file; `reindex` puts together what agrees."""

    def __init__(self) -> None:
        self._said: dict[str, EpisodePart] = {}  # by uid, with a digest of its metadata

    def add(self, episodes: Iterable[EpisodePart]) -> list[FormatError]:
        """Parts of episodes in one record file, and where they contradict what was added before."""
        return [error for part in episodes for error in self._add(part)]

    def _add(self, part: EpisodePart) -> Iterator[FormatError]:
        said = replace(part, metadata=hashlib.sha256(part.metadata.encode()).hexdigest())
        before = self._said.get(part.uid, said)
        if before.num_frames is None:
            before = replace(before, num_frames=said.num_frames)
        self._said[part.uid] = before
        if replace(said, num_frames=said.num_frames or before.num_frames) != before:
            yield FormatError(
                "record files contradict each other about an episode",
                episode=part.key,
                expected="parts of one uid that agree",
                got=f"uid {part.uid}",
            )


def compare_footer(
    footer: Footer, index: Index, rows: npt.NDArray[np.int64]
) -> tuple[list[FormatError], list[Unlisted.Part]]:
    """Whether a record file's footer says what the index says of the file.

    `rows` are the file's rows of the index's chunk table in the order of their offsets. Returns an
    error for each episode that differs, and the parts of episodes that the index does not list.
    """
    if footer.schema.to_json() != index.schema.to_json():
        error = FormatError(
            "a record file of another schema", expected=index.schema, got=footer.schema
        )
        return [error], []
    chunks = footer.chunks
    place = np.searchsorted(chunks["offset"], index.offset[rows])
    there = place < len(chunks)
    there[there] = chunks["offset"][place[there]] == index.offset[rows][there]
    errors = _lacking(index, rows[~there])
    rows, place = rows[there], place[there]
    errors += _differing(footer, index, rows, place)
    unlisted = np.setdiff1d(np.arange(len(chunks)), place)
    owners, counts = np.unique(chunks["episode"][unlisted], return_counts=True)
    parts = [
        Unlisted.Part(footer.episodes[owner], count)
        for owner, count in zip(owners.tolist(), counts.tolist(), strict=True)
    ]
    return errors, parts


def _lacking(index: Index, rows: npt.NDArray[np.int64]) -> list[FormatError]:
    return [
        FormatError(
            "a chunk of the index that the record file's footer does not list",
            offset=int(index.offset[row]),
            episode=key,
        )
        for row, key in _first_of_episodes(index, rows)
    ]


def _differing(
    footer: Footer, index: Index, rows: npt.NDArray[np.int64], place: npt.NDArray[np.int64]
) -> list[FormatError]:
    """`place[i]` is the footer's row of the chunk that is row `rows[i]` of the index."""
    chunks = footer.chunks[place]
    episode = _episode_of(index, rows)
    first_frame = (rows - index.first_chunk[episode]) * index.chunk_frames[episode]
    differs = {
        "first_frame": chunks["first_frame"] != first_frame,
        "num_frames": chunks["num_frames"] != index.frames_per_chunk()[rows],
        "page lengths": (chunks["pages"]["length"] != index.page_length[rows]).any(axis=1),
        "page checksums": (chunks["pages"]["crc32c"] != index.page_crc32c[rows]).any(axis=1),
        "largest frames": (chunks["largest"] != index.largest_frame[rows]).any(axis=1),
        "missing frames": _gaps_differ(footer, index, rows, place),
    }
    pairs, inverse = np.unique(
        np.stack([chunks["episode"].astype(np.int64), episode]), axis=1, return_inverse=True
    )
    same = [_same_episode(footer.episodes[a], index, b) for a, b in pairs.T.tolist()]
    differs["episode"] = ~np.array(same, bool)[inverse.ravel()]
    wrong = np.logical_or.reduce(list(differs.values()))
    errors = []
    for row, key in _first_of_episodes(index, rows[wrong]):
        at = int(np.flatnonzero(rows == row)[0])
        names = [name for name, values in differs.items() if values[at]]
        errors.append(
            FormatError(
                "index and record file do not agree on a chunk",
                offset=int(index.offset[row]),
                episode=key,
                got=f"different {', '.join(names)}",
            )
        )
    return errors


def _same_episode(part: EpisodePart, index: Index, episode: int) -> bool:
    return (
        part.key == index.keys[episode].as_py()
        and part.metadata == index.metadata[episode].as_py()
        and part.chunk_frames == index.chunk_frames[episode]
        and part.num_frames in (None, index.num_frames[episode])
    )


def _gaps_differ(
    footer: Footer, index: Index, rows: npt.NDArray[np.int64], place: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """For each row, whether its validity bitmaps differ from those of the footer."""
    features = len(index.schema)
    own = index.gaps[np.isin(index.gaps["chunk"], rows)]
    by_row = np.argsort(rows)
    own_at = by_row[np.searchsorted(rows[by_row], own["chunk"])] if len(own) else own["chunk"]
    theirs = footer.gaps[np.isin(footer.gaps["chunk"], place)]
    their_at = np.searchsorted(place, theirs["chunk"])
    # A gap is (position in rows, feature) -> bitmap; those that only one side has differ too.
    key = np.concatenate(
        [
            own_at * features + own["feature"].astype(np.int64),
            their_at * features + theirs["feature"].astype(np.int64),
        ]
    ).astype(np.int64)
    bitmap = np.concatenate([own["present"], theirs["present"]])
    entries = np.empty(len(key), [("key", np.int64), ("present", np.uint64)])
    entries["key"], entries["present"] = key, bitmap
    unique, counts = np.unique(entries, return_counts=True)
    differs = np.zeros(len(rows), bool)
    differs[unique["key"][counts == 1] // features] = True
    return differs


def _episode_of(index: Index, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.searchsorted(index.first_chunk, rows, side="right") - 1


def _first_of_episodes(index: Index, rows: npt.NDArray[np.int64]) -> Sequence[tuple[int, str]]:
    """The first of the rows, and the key, of each of their episodes."""
    numbers, first = np.unique(_episode_of(index, rows), return_index=True)
    return [
        (int(rows[at]), str(index.keys[number].as_py()))
        for number, at in zip(numbers.tolist(), first.tolist(), strict=True)
    ]
