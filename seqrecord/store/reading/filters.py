"""Episode selection by keys, glob, numbers, function or split; episodes that cannot be selected."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError, SourceError
from seqrecord.store.format.index import Index
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.tables.table_places import EpisodeNames, LeftOutEpisode
from seqrecord.store.text import counted, first_of, repr_of
from seqrecord.store.units import are_names, check, is_integer

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
"""Selects episodes: a key, a glob on keys, keys, numbers in dataset order, or a function of
`EpisodeInfo`; `None` selects all. The key of an episode is no glob. Numbers of an original read in
place count its bad episodes.
"""


def find_episodes(
    index: Index,
    splits: Sequence[str],
    episodes: EpisodeFilter,
    *,
    split: str | None = None,
    url: str,
    bad: BadEpisodes | None = None,
) -> npt.NDArray[np.int64]:
    """Return the rows of selected episodes, ascending: int64 [n].

    `split` restricts the selection to a split. `splits` are the split names, in the order of the
    index's numbers. `bad` has the numbers of episodes, by default those of their rows. Raises
    `ClipError` for an unknown key or split, or if nothing is selected.
    """
    is_in_split = np.ones(len(index.num_frames), bool)
    if split is not None:
        if split not in splits:
            raise ClipError(
                "unknown split",
                file=url,
                expected=", ".join(splits) or "a dataset with splits: `seqrecord split` makes them",
                got=repr_of(split, 100),
            )
        is_in_split = index.split == splits.index(split)
    choice, names = _choice_of(episodes), (bad or BadEpisodes()).names(index)
    rows = np.fromiter(choice.rows(_Candidates(index, splits, is_in_split, names, url)), np.int64)
    rows = rows[is_in_split[rows]]
    if not len(rows):
        raise ClipError(
            "the selection has no episode",
            file=url,
            expected=f"some of the keys of {shown_keys(index)}",
            got=f"{choice}" if split is None else f"{choice} of split {split}",
        )
    return rows


@dataclass(frozen=True)
class _Candidates:
    """Episodes to choose from; `is_in_split`, bool [n], marks those of the requested split."""

    index: Index
    splits: Sequence[str]
    is_in_split: npt.NDArray[np.bool_]
    names: EpisodeNames
    url: str


class _Choice(Protocol):
    """A kind of `EpisodeFilter`. `str` describes it in errors."""

    def rows(self, candidates: _Candidates) -> Iterable[int]:
        """Return the rows of chosen episodes, ascending; some may be outside of the split."""

    def has(self, record: Mapping[str, Any]) -> bool:
        """Return whether an episode that an index leaves out might be chosen.

        `record` is one of `BadEpisodes.records`.
        """


class _All:
    def rows(self, candidates: _Candidates) -> Iterable[int]:
        rows: list[int] = np.flatnonzero(candidates.is_in_split).tolist()
        return rows

    def has(self, record: Mapping[str, Any]) -> bool:  # noqa: ARG002 - of every choice
        return True

    def __str__(self) -> str:
        return "all episodes"


class _Glob(NamedTuple):
    """A pattern; the key of an episode is that episode, whatever it would match."""

    pattern: str

    def rows(self, candidates: _Candidates) -> Iterable[int]:
        positions, match = candidates.index.positions, fnmatch.fnmatchcase
        if self.pattern in positions:
            return [positions[self.pattern]]
        return (row for key, row in positions.items() if match(key, self.pattern))

    def has(self, record: Mapping[str, Any]) -> bool:
        key = record["key"]
        return bool(key == self.pattern or fnmatch.fnmatchcase(key, self.pattern))

    def __str__(self) -> str:
        return repr_of(self.pattern)


class _Function(NamedTuple):
    function: Callable[[EpisodeDescription], bool]

    def rows(self, candidates: _Candidates) -> Iterable[int]:
        index, splits = candidates.index, candidates.splits
        numbers = np.flatnonzero(candidates.is_in_split).tolist()
        return (n for n in numbers if self.function(EpisodeDescription(index, splits, n)))

    def has(self, record: Mapping[str, Any]) -> bool:
        description = EpisodeDescription.__new__(EpisodeDescription)
        description.update(record["metadata"])
        vars(description).update({name: record[name] for name in _DESCRIBED})
        return bool(self.function(description))

    def __str__(self) -> str:
        """Name the function, without its address."""
        name = getattr(self.function, "__name__", "<lambda>")
        return "a function of an episode" if name == "<lambda>" else f"the function {name}"[:200]


@dataclass(frozen=True)
class _List:
    """Keys, or numbers in dataset order."""

    episodes: Sequence[str] | Sequence[int]

    @cached_property
    def _names(self) -> frozenset[str | int]:
        return frozenset(self.episodes)

    def rows(self, candidates: _Candidates) -> Iterable[int]:
        index, names = candidates.index, list[Any](self.episodes)
        rows: Any = index.positions
        population: Any = rows
        expected = f"the keys of {shown_keys(index)}"
        if by_number := bool(names) and all(map(is_integer, names)):
            rows, population = candidates.names.rows, range(len(candidates.names.rows))
            expected = f"numbers of 0 to {len(rows) - 1}"
            if num_left_out := len(candidates.names.left_out):
                expected += f", without {counted(num_left_out, 'episode')} left out"
        if unknown := [name for name in names if name not in population or rows[name] < 0]:
            raise ClipError(
                "unknown episode",
                file=candidates.url,
                expected=expected,
                got=", ".join(map(repr_of if by_number else str, unknown[:10])),
            )
        return sorted({int(rows[name]) for name in names})

    def has(self, record: Mapping[str, Any]) -> bool:
        return not self._names.isdisjoint((record["key"], record["number"]))

    def __str__(self) -> str:
        return repr_of(self.episodes)


def check_filter(name: str, value: Any) -> Any:
    """Return keys, numbers, a glob, or a function; raise `ClipError` for another value."""
    is_list = isinstance(value, Collection) and getattr(value, "ndim", 1) == 1
    is_right = isinstance(value, str) or callable(value) or are_names(value)
    is_right = is_right or (is_list and all(map(is_integer, value)))
    expected = "a list of keys or of numbers, a glob, or a function of an episode's metadata"
    return check(name, value, is_right, expected)


def _choice_of(episodes: EpisodeFilter) -> _Choice:
    if episodes is None:
        return _All()
    check_filter("episodes", episodes)
    if isinstance(episodes, str):
        return _Glob(episodes) if {*episodes} & {*"*?["} else _List([episodes])
    return _Function(episodes) if callable(episodes) else _List(episodes)


def _left_out(record: Mapping[str, Any], num_frames: int | None) -> LeftOutEpisode:
    return LeftOutEpisode(record["number"], record["key"], num_frames, record["metadata"])


def _listed_length(record: Mapping[str, Any]) -> int | None:
    """The number of frames of a bad episode, which only LeRobot datasets list beside the data.

    `None` if unknown: sources without a length, and rows of it that are damaged, say 1.
    """
    is_listed = "episode_index" in record["metadata"] and record["num_frames"] > 1
    return record["num_frames"] if is_listed else None


def shown_keys(index: Index) -> str:
    """Describe a dataset's episodes: their number and the first keys."""
    keys = ", ".join(index.keys[:_SHOWN_KEYS].to_pylist())
    return counted(len(index.num_frames), "episode") + (keys and f", as {keys}")


def check_metadata(index: Index, episodes: npt.NDArray[np.int64], names: Collection[str]) -> None:
    """Raise `ClipError` for metadata names absent from all selected episodes."""
    absent_names, metadata_names = set(names), set[str]()
    for row in episodes.tolist() if names else ():
        metadata_names |= index.episode_metadata(row).keys()
        if absent_names <= metadata_names:
            return
    if absent_names := absent_names - metadata_names:
        raise ClipError(
            "no selected episode has this metadata",
            expected=f"some of {first_of(sorted(metadata_names), _SHOWN_NAMES)}"
            if metadata_names
            else "nothing",
            got=", ".join(sorted(absent_names)),
        )


@dataclass(frozen=True)
class BadEpisodes:
    """Episodes of an original that a dataset leaves out, and the numbers of the others.

    `records` are JSON objects, one for each episode that cannot be read. `dropped` are others, in
    no selection, with key, number, length and metadata at least. `numbers` are those of the
    dataset's episodes in the original; `None` for 0, 1, … With `are_skipped`
    (`skip_bad_episodes=True`), selections may contain episodes that are left out.
    """

    records: Sequence[Mapping[str, Any]] = ()
    are_skipped: bool = False
    dropped: Sequence[Mapping[str, Any]] = ()
    numbers: Sequence[int] | None = None

    @classmethod
    def of(
        cls,
        bad: Iterable[tuple[Any, SourceError]],
        dropped: Iterable[Any],
        original_keys: Sequence[str],
        keys: Sequence[str],
    ) -> BadEpisodes:
        """Return the record of bad episodes, each a source's `EpisodeInfo`, and their errors.

        `dropped` are infos of others that are left out. `original_keys` are the keys of all the
        original's episodes in its order, `keys` those of the dataset.
        """
        places = {key: number for number, key in enumerate(original_keys)}

        def facts(info: Any) -> dict[str, Any]:
            values = {name: getattr(info, name) for name in _DESCRIBED}
            return {**values, "metadata": dict(info.metadata), "number": places[info.key]}

        records = [
            {**facts(info), "message": error.message, "context": error.context()}
            for info, error in bad
        ]
        numbers = [places[key] for key in keys]
        return cls(
            json.loads(json.dumps(records, default=str)),
            dropped=json.loads(json.dumps([facts(info) for info in dropped], default=str)),
            numbers=None if numbers == [*range(len(original_keys))] else numbers,
        )

    @property
    def left_out(self) -> list[Mapping[str, Any]]:
        """Records of all episodes that are left out."""
        return [*self.records, *self.dropped]

    @property
    def errors(self) -> dict[str, SourceError]:
        """Error by episode key."""
        return {
            record["key"]: SourceError(
                record["message"], **{"episode": record["key"], **record["context"]}
            )
            for record in self.records
        }

    def names(self, index: Index) -> EpisodeNames:
        """Return the names by which tables and selections refer to the episodes of an index."""
        return EpisodeNames(
            index.keys,
            index.num_frames,
            index.metadata,
            None if self.numbers is None else np.asarray(self.numbers, np.int64),
            [
                *(_left_out(record, _listed_length(record)) for record in self.records),
                *(_left_out(record, record["num_frames"]) for record in self.dropped),
            ],
        )

    def taken(self, index: Index, rows: npt.NDArray[np.int64]) -> BadEpisodes:
        """Return the record for a dataset of the episodes `rows` of `index`, ascending."""
        count = len(index.num_frames)
        if len(rows) == count:
            return self
        numbers = range(count) if self.numbers is None else self.numbers
        dropped = [
            {
                "key": index.key(row),
                "num_frames": int(index.num_frames[row]),
                "metadata": index.episode_metadata(row),
                "number": numbers[row],
            }
            for row in np.setdiff1d(np.arange(count), rows).tolist()
        ]
        return replace(
            self,
            dropped=[*self.dropped, *dropped],
            numbers=[numbers[row] for row in rows.tolist()],
        )

    def check(self, episodes: EpisodeFilter = None, split: str | None = None) -> EpisodeFilter:
        """Raise `SourceError` if the selection contains an episode that cannot be read.

        Returns the selection, with `are_skipped` without keys and numbers of left out episodes.
        """
        if not self.left_out:
            return episodes
        if self.are_skipped and not (callable(episodes) or isinstance(episodes, str | None)):
            left_out = {record[name] for record in self.left_out for name in ("key", "number")}
            readable: Any = [episode for episode in episodes if episode not in left_out]
            return readable or episodes
        records, choice = () if self.are_skipped else self.records, _choice_of(episodes)
        if split is not None:
            records = [record for record in records if record["split"] == split]
        if bad_keys := [record["key"] for record in records if choice.has(record)]:
            keys, first_error = first_of(bad_keys, _SHOWN_BAD), self.errors[bad_keys[0]]
            raise SourceError(
                f"{counted(len(bad_keys), 'selected episode')} cannot be read: {keys}; select "
                "others (episodes= of a loader, --dataset.episodes of lerobot-train), or leave "
                "these out (skip_bad_episodes=True of a loader or seqrecord.open; for commands "
                "`seqrecord index SRC -o DST --skip-bad-episodes`, and DST). The first error: "
                f"{first_error.message}",
                **first_error.context(),
            )
        return episodes
