"""Which episodes of a dataset: by keys, a glob, a function of what an episode is, or a split."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError
from seqrecord.format.index import NO_SPLIT, Index
from seqrecord.text import counted, repr_of
from seqrecord.units import is_integer

_SHOWN_KEYS = 3
_SHOWN_NAMES = 10


class EpisodeFacts(dict[str, Any]):
    """An episode's metadata, and beside it what the index says of the episode.

    `key` and `num_frames`; `fps`, and `split`, the name of its split, are `None` where it has none.
    """

    def __init__(self, index: Index, splits: Sequence[str], episode: int) -> None:
        super().__init__(index.episode_metadata(episode))
        split = int(index.split[episode])
        self.key = index.key(episode)
        self.num_frames = int(index.num_frames[episode])
        self.fps = float(index.fps[episode]) or None
        self.split = None if split == NO_SPLIT else splits[split]


EpisodeFilter: TypeAlias = (
    "str | Sequence[str] | Sequence[int] | Callable[[EpisodeFacts], bool] | None"
)
"""Episodes by a glob on keys, by keys, by numbers in the dataset's order, by a function of an
episode's metadata, key and length; `None` for all."""


def find_episodes(
    index: Index,
    splits: Sequence[str],
    episodes: EpisodeFilter,
    *,
    split: str | None = None,
    url: str,
) -> npt.NDArray[np.int64]:
    """Numbers of the episodes that a filter selects, in the dataset's order.

    With `split`, of those in the split of this name; `splits` are the names that the index numbers.
    Raises `ClipError` for a key or a split that is not there, or if nothing is selected.
    """
    inside = np.ones(len(index.num_frames), bool)
    if split is not None:
        if split not in splits:
            raise ClipError(
                "no such split",
                file=url,
                expected=", ".join(splits) or "a dataset with splits: `seqrecord split` makes them",
                got=repr_of(split, 100),
            )
        inside = index.split == splits.index(split)
    numbers: Iterable[int] = np.flatnonzero(inside).tolist()
    if isinstance(episodes, str) and not set(episodes) & set("*?["):
        episodes = [episodes]
    if isinstance(episodes, str):
        match = fnmatch.fnmatchcase
        numbers = (i for key, i in index.positions.items() if match(key, episodes))
    elif callable(episodes):
        numbers = (i for i in numbers if episodes(EpisodeFacts(index, splits, i)))
    elif episodes is not None:
        given: list[Any] = list(episodes)
        by_number = bool(given) and all(map(is_integer, given))
        known: Any = range(len(index.num_frames)) if by_number else index.positions
        unknown = [one for one in given if one not in known]
        if unknown:
            keys = f"the keys of {shown_keys(index)}"
            raise ClipError(
                "no such episode",
                file=url,
                expected=f"numbers of 0 to {len(known) - 1}" if by_number else keys,
                got=", ".join(map(repr_of if by_number else str, unknown[:10])),
            )
        numbers = sorted({int(one) if by_number else known[one] for one in given})
    found = np.fromiter(numbers, np.int64)
    found = found[inside[found]]
    if not len(found):
        asked = _shown(episodes) if split is None else f"{_shown(episodes)} of split {split}"
        raise ClipError(
            "no episode is selected",
            file=url,
            expected=f"some of the keys of {shown_keys(index)}",
            got=asked,
        )
    return found


def shown_keys(index: Index) -> str:
    """How many episodes a dataset has, and the first keys, as text."""
    keys = ", ".join(index.keys[:_SHOWN_KEYS].to_pylist())
    return counted(len(index.num_frames), "episode") + (keys and f", as {keys}")


def _shown(episodes: EpisodeFilter) -> str:
    """The filter in an error: a function by its name, if it has one, and not by its address."""
    if not callable(episodes):
        return "all episodes" if episodes is None else repr_of(episodes)
    name = getattr(episodes, "__name__", "<lambda>")
    return "a function of an episode" if name == "<lambda>" else f"the function {name}"[:200]


def check_metadata(index: Index, episodes: npt.NDArray[np.int64], names: Collection[str]) -> None:
    """Raise `ClipError` for metadata that none of some episodes has, given by their rows."""
    missing, seen = set(names), set[str]()
    for row in episodes.tolist() if names else ():
        seen |= index.episode_metadata(row).keys()
        if missing <= seen:
            return
    if missing := missing - seen:
        more = ", …" if len(seen) > _SHOWN_NAMES else ""
        raise ClipError(
            "no selected episode has this metadata",
            expected=f"some of {', '.join(sorted(seen)[:_SHOWN_NAMES])}{more}"
            if seen
            else "nothing",
            got=", ".join(sorted(missing)),
        )
