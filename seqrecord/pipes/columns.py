"""What clips tell of themselves beside their features: where they come from, chosen metadata."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import torch

from seqrecord.clips import IntArray
from seqrecord.errors import ClipError
from seqrecord.reading.reader import SeqRecordReader

__all__ = ["RESERVED", "Columns", "SingleClip"]

RESERVED = ("episode", "start")
"""Of every batch; no feature has such a name."""

_MOST_EPISODES = 1 << 14  # whose keys and metadata are in memory, of those that came last
_SHOWN = 10  # names in an error


class SingleClip(dict[str, Any]):
    """A clip of which `collate` makes lists of some values, though they may be numbers."""

    as_lists: frozenset[str] = frozenset()

    @classmethod
    def of(cls, as_lists: frozenset[str], items: Iterable[tuple[str, Any]]) -> SingleClip:
        made = cls(items)
        made.as_lists = as_lists
        return made


class Columns:
    """Makes the columns of batches that are not features. Picklable.

    Raises `ClipError` for metadata that no selected episode has, and where a name is taken.

    Args:
        dataset: of the clips.
        metadata: entries of the episodes' metadata.
        selected: rows of the episodes, int64[n].
        taken: names of features, and of what else clips have.
    """

    def __init__(
        self,
        dataset: SeqRecordReader,
        metadata: Sequence[str],
        selected: IntArray,
        taken: Sequence[str],
    ) -> None:
        self._dataset = dataset
        self._metadata = tuple(metadata)
        self._known: dict[int, tuple[str, list[Any]]] = {}  # key and metadata by row
        if twice := [name for name in self._metadata if name in (*taken, *RESERVED)]:
            raise ClipError(
                "a feature, or what clips tell of themselves, has the name of this metadata",
                file=dataset.url,
                expected="names that are not in clips yet",
                got=", ".join(twice),
            )
        missing, seen = set(self._metadata), set[str]()
        for row in selected.tolist() if missing else ():
            entries = dataset.index.episode_metadata(row)
            missing -= entries.keys()
            if not missing:
                break
            seen |= entries.keys()
        if missing:
            names = sorted(seen)
            more = ", …" if len(names) > _SHOWN else ""
            raise ClipError(
                "no selected episode has this metadata",
                file=dataset.url,
                expected=f"some of {', '.join(names[:_SHOWN])}{more}" if names else "nothing",
                got=", ".join(sorted(missing)),
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}

    def of(
        self, episode: IntArray, start: IntArray, more: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Of a batch: `episode` a list of keys, `start` int64 [clips], then `more` of these, then
        a list for each entry of metadata, `None` where an episode has none of that name.

        The arguments are the rows of the clips' episodes and their first frames, int64[clips].
        """
        facts = [self._known.get(row) or self._facts(row) for row in episode.tolist()]
        keys = [key for key, _ in facts]
        metadata = {
            name: [_own(entries[i]) for _, entries in facts]
            for i, name in enumerate(self._metadata)
        }
        return {"episode": keys, "start": torch.from_numpy(start), **(more or {}), **metadata}

    def single(
        self, features: Mapping[str, Any], columns: Mapping[str, Any], number: int = 0
    ) -> dict[str, Any]:
        """One clip: its features, and what it has of the columns of a batch."""
        alone = {name: column[number] for name, column in columns.items()}
        clip = {**features, **alone, "start": int(alone["start"])}
        if not self._metadata:
            return clip
        return SingleClip.of(frozenset(self._metadata), clip.items())

    def singles(
        self, features: Mapping[str, Sequence[Any]], columns: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """The clips of a batch: as `single`, where each feature is a sequence of clips."""
        values = {**features, **columns, "start": columns["start"].tolist()}
        make = partial(SingleClip.of, frozenset(self._metadata)) if self._metadata else dict
        # No loop in Python: it would take as long again.
        rows = zip(*values.values(), strict=True)
        return list(map(make, map(zip, repeat(tuple(values)), rows)))

    def _facts(self, row: int) -> tuple[str, list[Any]]:
        index, known = self._dataset.index, self._known
        entries = index.episode_metadata(row) if self._metadata else {}
        facts = index.key(row), [entries.get(name) for name in self._metadata]
        if len(known) > _MOST_EPISODES:  # another thread may clear what is looked for here
            known.clear()
        known[row] = facts
        return facts


def _own(value: Any) -> Any:
    """A value that its user may change."""
    return copy.deepcopy(value) if isinstance(value, (dict, list)) else value
