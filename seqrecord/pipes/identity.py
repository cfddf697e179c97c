"""What tells episodes and clips from others: digests, which states keep, and numbers to draw by."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from seqrecord.chosen import ChosenClips
from seqrecord.clips import IntArray
from seqrecord.format.index import GroupIndex
from seqrecord.grids import numbered
from seqrecord.reading.reader import SeqRecordReader

__all__ = ["ClipNumbers", "digest_of", "groups_of", "identity_of"]

_CHUNKS_AT_ONCE = 1 << 16


def identity_of(dataset: SeqRecordReader, rows: IntArray) -> dict[str, Any]:
    """What tells episodes, by their rows, from others, as JSON; see `ClipSelection.identity`."""
    index = dataset.index
    keys = index.keys.take(rows).to_pylist()
    digest = hashlib.sha256(json.dumps(keys, separators=(",", ":")).encode())
    digest.update(np.ascontiguousarray(index.num_frames[rows], "<i8").data)
    for group in groups_of(dataset):
        wanted = [name for name in group.schema if name in dataset.features]
        columns = [group.schema.position(name) for name in wanted]
        counts = group.num_chunks[rows]
        blocks = np.cumsum(counts) // _CHUNKS_AT_ONCE
        for block in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(blocks)) + 1):
            chunks = _chunks(group, rows[block])
            digest.update(np.ascontiguousarray(group.num_frames[chunks], "<u4").data)
            for table in (group.page_length, group.page_crc32c):
                pages = table[chunks]
                if len(columns) < pages.shape[1]:
                    pages = pages[:, columns]
                digest.update(np.ascontiguousarray(pages, "<u4").data)
        for numbers in _gaps(dataset, group, wanted, rows):
            digest.update(np.ascontiguousarray(numbers, "<u8").data)
    return {
        "count": len(rows),
        "frames": int(index.num_frames[rows].sum()),
        "digest": digest.hexdigest(),
        "dataset": dataset.fingerprint,
    }


def digest_of(chosen: ChosenClips, selected: IntArray) -> str:
    """What tells chosen clips of the selected episodes, and how often they come, from others."""
    digest = hashlib.sha256()
    place = np.searchsorted(selected, chosen.episode)
    for numbers in (chosen.row, place, chosen.start):
        digest.update(np.ascontiguousarray(numbers, "<i8").data)
    digest.update(np.ascontiguousarray(chosen.weight, "<f8").data)
    return digest.hexdigest()


class ClipNumbers:
    """Numbers of the clips of a dataset, by the keys of their episodes. Picklable.

    What is drawn for clips depends on these, and so not on what else the dataset holds.
    """

    def __init__(self, dataset: SeqRecordReader) -> None:
        self._dataset = dataset
        self._known: dict[int, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}

    def of(self, episode: IntArray, start: IntArray) -> IntArray:
        """Of clips by the rows of their episodes and their starts; int64[n] each."""
        return np.array([self._number(row) for row in episode.tolist()], np.int64) + start

    def _number(self, row: int) -> int:
        if row not in self._known:
            key = self._dataset.index.key(row).encode()
            digest = hashlib.blake2b(key, digest_size=7).digest()
            self._known[row] = int.from_bytes(digest, "little")
        return self._known[row]


def groups_of(dataset: SeqRecordReader) -> list[GroupIndex]:
    """The groups of the features that a dataset was opened with, by their numbers."""
    numbers = {spec.group for spec in dataset.features.values()}
    return [dataset.index.groups[number] for number in sorted(numbers)]


def _gaps(
    dataset: SeqRecordReader, group: GroupIndex, wanted: list[str], rows: IntArray
) -> list[IntArray]:
    """Of each gap of these episodes: its place, the chunk in it, feature, presence."""
    columns = [dataset.index.schema.position(name) for name in wanted]
    gaps = group.gaps[np.isin(group.gaps["feature"], columns)]
    chunk = gaps["chunk"].astype(np.int64)
    episode = np.searchsorted(group.first_chunk, chunk, side="right") - 1
    some = np.isin(episode, rows)
    chunk -= group.first_chunk[episode]
    feature = np.searchsorted(columns, gaps["feature"])
    place = np.searchsorted(rows, episode)
    return [numbers[some] for numbers in (place, chunk, feature, gaps["word"], gaps["present"])]


def _chunks(group: GroupIndex, rows: IntArray) -> slice | IntArray:
    """The rows of a chunk table that some episodes have."""
    first, count = group.first_chunk[rows], group.num_chunks[rows]
    if rows[-1] - rows[0] == len(rows) - 1:
        return slice(int(first[0]), int(first[-1] + count[-1]))  # a view, of the mapped file
    owner, place = numbered(count)
    chunks: IntArray = first[owner] + place
    return chunks
