"""Numbers that tell clips apart, whatever else a dataset holds: what is drawn depends on them."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from seqrecord.clips import IntArray
from seqrecord.reading.reader import SeqRecordReader

__all__ = ["ClipNumbers"]


class ClipNumbers:
    """Numbers of the clips of a dataset, by the keys of their episodes. Picklable."""

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
