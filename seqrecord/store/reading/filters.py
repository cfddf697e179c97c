"""Episode selection by keys, glob, numbers, function or split; episodes that cannot be selected."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError, SourceError
from seqrecord.store.format.index import Index
from seqrecord.store.text import counted, first_of, repr_of
from seqrecord.store.units import is_integer

_SHOWN_KEYS = 3
_SHOWN_BAD = 5
_SHOWN_NAMES = 10
_DESCRIBED = ("key", "num_frames", "fps", "split")


class EpisodeDescription(dict[str, Any]):
    """An episode's metadata as a dict, with index values as attributes.

    Attributes: `key`, `num_frames`, `fps` (`None` if unknown) and `split` (name, or `None`).

    Example:
        long = lambda episode: episode.num_frames >= 16
        print(seqrecord.open("records/").find_episodes(long))
    """

    def __init__(self, index: Index, splits: Sequence[str], episode: int) -> None:
        super().__init__(index.episode_metadata(episode))
        self.key = index.key(episode)
        self.num_frames = int(index.num_frames[episode])
        self.fps = float(index.fps[episode]) or None
        self.split = index.split_of(episode, splits)


EpisodeFilter: TypeAlias = (
    "str | Sequence[str] | Sequence[int] | Callable[[EpisodeDescription], bool] | None"
)
"""Selects episodes: a glob on keys, keys, numbers in dataset order, or a function of
`EpisodeInfo`; `None` selects all.
"""


def find_episodes(
    index: Index,
    splits: Sequence[str],
    episodes: EpisodeFilter,
    *,
    split: str | None = None,
    url: str,
) -> npt.NDArray[np.int64]:
    """Return the numbers of selected episodes, ascending: int64 [n].

    `split` restricts the selection to a split. `splits` are the split names, in the order of the
    index's numbers. Raises `ClipError` for an unknown key or split, or if nothing is selected.
    """
    inside = np.ones(len(index.num_frames), bool)
    if split is not None:
        if split not in splits:
            raise ClipError(
                "unknown split",
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
        numbers = (i for i in numbers if episodes(EpisodeDescription(index, splits, i)))
    elif episodes is not None:
        given: list[Any] = list(episodes)
        by_number = bool(given) and all(map(is_integer, given))
        known: Any = range(len(index.num_frames)) if by_number else index.positions
        unknown = [one for one in given if one not in known]
        if unknown:
            keys = f"the keys of {shown_keys(index)}"
            raise ClipError(
                "unknown episode",
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
            "the selection has no episode",
            file=url,
            expected=f"some of the keys of {shown_keys(index)}",
            got=asked,
        )
    return found


def shown_keys(index: Index) -> str:
    """Describe a dataset's episodes: their number and the first keys."""
    keys = ", ".join(index.keys[:_SHOWN_KEYS].to_pylist())
    return counted(len(index.num_frames), "episode") + (keys and f", as {keys}")


def _shown(episodes: EpisodeFilter) -> str:
    """Describe the filter in an error. A function is shown by name, without its address."""
    if not callable(episodes):
        return "all episodes" if episodes is None else repr_of(episodes)
    name = getattr(episodes, "__name__", "<lambda>")
    return "a function of an episode" if name == "<lambda>" else f"the function {name}"[:200]


def check_metadata(index: Index, episodes: npt.NDArray[np.int64], names: Collection[str]) -> None:
    """Raise `ClipError` for metadata names absent from all selected episodes."""
    missing, seen = set(names), set[str]()
    for row in episodes.tolist() if names else ():
        seen |= index.episode_metadata(row).keys()
        if missing <= seen:
            return
    if missing := missing - seen:
        raise ClipError(
            "no selected episode has this metadata",
            expected=f"some of {first_of(sorted(seen), _SHOWN_NAMES)}" if seen else "nothing",
            got=", ".join(sorted(missing)),
        )


@dataclass(frozen=True)
class BadEpisodes:
    """Episodes of an original that an index leaves out; `records` are JSON objects, one for each.

    With `are_skipped` (`skip_bad_episodes=True`), selections may contain them.
    """

    records: Sequence[Mapping[str, Any]] = ()
    are_skipped: bool = False

    @classmethod
    def of(cls, bad: Iterable[tuple[Any, SourceError]]) -> BadEpisodes:
        """Return the record of episodes, each a source's `EpisodeInfo`, and errors."""
        facts = [
            {
                **{name: getattr(info, name) for name in _DESCRIBED},
                "metadata": dict(info.metadata),
                "message": error.message,
                "context": error.context(),
            }
            for info, error in bad
        ]
        return cls(json.loads(json.dumps(facts, default=str)))

    @property
    def errors(self) -> dict[str, SourceError]:
        """Error by episode key."""
        return {
            one["key"]: SourceError(one["message"], **{"episode": one["key"], **one["context"]})
            for one in self.records
        }

    def check(self, episodes: EpisodeFilter = None, split: str | None = None) -> EpisodeFilter:
        """Raise `SourceError` if the selection contains an episode that is left out.

        Numbers count: they could select other episodes once all are readable. Returns the
        selection, with `are_skipped` without keys of these episodes.
        """
        left_out = self.errors
        if self.are_skipped and not (callable(episodes) or isinstance(episodes, str | None)):
            kept: Any = [one for one in episodes if one not in left_out]
            return kept or episodes
        every = () if self.are_skipped else self.records
        found = [one["key"] for one in every if _is_selected(one, episodes, split)]
        if found:
            keys, first = first_of(found, _SHOWN_BAD), left_out[found[0]]
            raise SourceError(
                f"{counted(len(found), 'selected episode')} cannot be read: {keys}; select "
                "others (episodes= of a loader, --dataset.episodes of lerobot-train), or leave "
                "these out (skip_bad_episodes=True of a loader or seqrecord.open; for commands "
                "`seqrecord index SRC -o DST --skip-bad-episodes`, and DST). The first error: "
                f"{first.message}",
                **first.context(),
            )
        return episodes


def _is_selected(one: Mapping[str, Any], episodes: EpisodeFilter, split: str | None) -> bool:
    key = one["key"]
    if split is not None and one["split"] != split:
        return False
    if isinstance(episodes, str):
        return bool(key == episodes or fnmatch.fnmatchcase(key, episodes))
    if callable(episodes):
        described = EpisodeDescription.__new__(EpisodeDescription)
        described.update(one["metadata"])
        vars(described).update({name: one[name] for name in _DESCRIBED})
        return bool(episodes(described))
    return episodes is None or any(is_integer(each) or each == key for each in episodes)
