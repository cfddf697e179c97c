"""Episodes of an original that its index leaves out, because reading them fails."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from seqrecord.errors import SourceError
from seqrecord.reading.filters import EpisodeDescription, EpisodeFilter
from seqrecord.text import counted
from seqrecord.units import is_integer

_SHOWN_KEYS = 5


class _BadEpisode(EpisodeDescription):
    """The facts of an episode that is not in an index."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        dict.__init__(self, facts["metadata"])
        self.key, self.num_frames = facts["key"], facts["num_frames"]
        self.fps, self.split = facts["fps"], facts["split"]
        self.message, self.context = facts["message"], facts["context"]


@dataclass(frozen=True)
class BadEpisodes:
    """The episodes that an index leaves out. `are_skipped`: the user agreed (`skip_bad_episodes`).

    `records` are JSON texts, one for each episode.
    """

    records: tuple[str, ...] = ()
    are_skipped: bool = False

    @classmethod
    def of(cls, bad: Iterable[tuple[Any, SourceError]]) -> BadEpisodes:
        """Return the record of episodes, each a source's `EpisodeInfo`, and errors."""
        facts = [
            {
                **{n: getattr(info, n) for n in ("key", "num_frames", "fps", "split")},
                "metadata": dict(info.metadata),
                "message": error.message,
                "context": error.context(),
            }
            for info, error in bad
        ]
        return cls(tuple(json.dumps(each, default=str) for each in facts))

    @property
    def reasons(self) -> dict[str, str]:
        """Error by episode key."""
        return {one.key: str(_error(one)) for one in map(_parsed, self.records)}

    def skipped(self) -> BadEpisodes:
        """Return a copy whose episodes no selection refuses."""
        return replace(self, are_skipped=True)

    def errors(self) -> list[SourceError]:
        """Return the error of each episode."""
        return [_error(one) for one in map(_parsed, self.records)]

    def check(self, episodes: EpisodeFilter = None, split: str | None = None) -> None:
        """Raise `SourceError` if the selection contains an episode that is left out.

        Numbers count: they could be those of other episodes once all are readable.
        """
        if self.are_skipped:
            return
        every = map(_parsed, self.records)
        found = [one for one in every if _is_selected(one, episodes, split)]
        if found:
            keys = ", ".join(one.key for one in found[:_SHOWN_KEYS])
            more = ", …" if len(found) > _SHOWN_KEYS else ""
            first = found[0]
            raise SourceError(
                f"{counted(len(found), 'selected episode')} cannot be read: {keys}{more}; select "
                "others (episodes= of a loader), or leave these out (skip_bad_episodes=True; for "
                "commands `seqrecord index SRC -o DST --skip-bad-episodes`, and DST). The first "
                f"error: {first.message}",
                **{"episode": first.key, **first.context},
            )

    def without(self, episodes: EpisodeFilter) -> EpisodeFilter:
        """Return the selection without keys of episodes that are left out."""
        if not self.records or callable(episodes) or isinstance(episodes, str | None):
            return episodes
        left_out = self.reasons.keys()
        kept: Any = [one for one in episodes if one not in left_out]
        return kept or episodes


def _parsed(record: str) -> _BadEpisode:
    return _BadEpisode(json.loads(record))


def _error(one: _BadEpisode) -> SourceError:
    return SourceError(one.message, **{"episode": one.key, **one.context})


def _is_selected(one: _BadEpisode, episodes: EpisodeFilter, split: str | None) -> bool:
    if split is not None and one.split != split:
        return False
    if isinstance(episodes, str):
        return one.key == episodes or fnmatchcase(one.key, episodes)
    if callable(episodes):
        return bool(episodes(one))
    if episodes is None:
        return True
    return any(is_integer(each) or each == one.key for each in episodes)
