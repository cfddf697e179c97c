"""What a saved state says, read from JSON that anyone may have written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args, get_type_hints

from seqrecord.errors import ClipError, StateError
from seqrecord.sampling import Part, PlanSettings
from seqrecord.text import counted

__all__ = ["Sharing", "State", "parse_settings", "shown"]

_VERSION = 2
_KEYS = (
    "version",
    "epoch",
    "batch",
    "ranks",
    "workers",
    "worker",
    "settings",
    "request",
    "episodes",
)
_EPISODES = ("count", "frames", "digest", "dataset")
_MAX_INTEGER = 1 << 63  # exclusive
_MAX_PARTS = 1 << 31  # exclusive
_MAX_SETTING = 1 << 31  # exclusive; a seed may be larger


@dataclass(frozen=True)
class Sharing:
    """Worker `worker` of `workers`, of any of `ranks` ranks: their positions are the same."""

    ranks: int
    workers: int
    worker: int

    @classmethod
    def of(cls, part: Part, worker: int, workers: int) -> Sharing:
        """That of a part which a rank's worker has, or which all of its workers have."""
        if part.count % workers or part.index % workers != worker:
            worker, workers = 0, 1
        return cls(part.count // workers, workers, worker)

    @property
    def num_parts(self) -> int:
        """Of the epoch, in all."""
        return self.ranks * self.workers

    def __str__(self) -> str:
        ranks, workers = counted(self.ranks, "rank"), counted(self.workers, "worker")
        return f"worker {self.worker} of {workers} in {ranks}"


@dataclass(frozen=True)
class State:
    """A position, and what an epoch's order depends on."""

    epoch: int
    batch: int
    sharing: Sharing
    settings: PlanSettings
    request: Mapping[str, Any]
    """What was asked for beside the settings: clips and features, by the name of the argument."""
    episodes: Mapping[str, Any]
    """How many, of how many frames, digests of them and of the dataset that they are in."""

    def to_json(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "epoch": self.epoch,
            "batch": self.batch,
            "ranks": self.sharing.ranks,
            "workers": self.sharing.workers,
            "worker": self.sharing.worker,
            "settings": dict(vars(self.settings)),
            "request": dict(self.request),
            "episodes": dict(self.episodes),
        }

    @classmethod
    def parse(cls, state: object) -> State:
        """Inverse of `to_json`; `StateError` for what no loader has saved."""
        if not isinstance(state, Mapping) or "version" not in state:
            raise StateError(
                "not a state of a seqrecord loader",
                expected=f"a dict of {', '.join(_KEYS)}",
                got=shown(state),
            )
        if state["version"] != _VERSION or isinstance(state["version"], bool):
            raise StateError(
                "a state of another version", expected=_VERSION, got=shown(state["version"])
            )
        _check_keys("a state", state, _KEYS)
        numbers = {name: _integer(name, state[name]) for name in _KEYS[1:6]}
        sharing = Sharing(numbers["ranks"], numbers["workers"], numbers["worker"])
        if not sharing.worker < sharing.workers or not 0 < sharing.num_parts < _MAX_PARTS:
            raise StateError(
                "a state's ranks and workers make no sense",
                expected=f"worker < workers, and fewer than {_MAX_PARTS} in all ranks",
                got=shown(sharing),
            )
        for name in ("request", "episodes"):
            if not isinstance(state[name], Mapping):
                raise StateError(f"a state's {name} is no dict", got=shown(state[name]))
        _check_keys("a state's episodes", state["episodes"], _EPISODES)
        return cls(
            numbers["epoch"],
            numbers["batch"],
            sharing,
            parse_settings(state["settings"]),
            state["request"],
            state["episodes"],
        )


def parse_settings(saved: object) -> PlanSettings:
    """Settings of a plan from JSON; `StateError` for what are none."""
    names = [field.name for field in fields(PlanSettings)]
    if not isinstance(saved, Mapping):
        raise StateError("a state's settings are no dict", got=shown(saved))
    _check_keys("a state's settings", saved, names)
    for name, hint in get_type_hints(PlanSettings).items():
        value, kinds = saved[name], get_args(hint) or (hint,)
        if type(value) not in kinds or (
            isinstance(value, int) and name != "seed" and abs(value) >= _MAX_SETTING
        ):
            raise StateError(f"a state's {name} makes no sense", got=shown(value))
    try:
        return PlanSettings(**saved)
    except ClipError as error:
        raise StateError(f"a state's settings make no sense: {error}") from error


def _check_keys(what: str, found: Mapping[Any, Any], names: Any) -> None:
    if set(found) != set(names):
        raise StateError(
            f"{what} of other entries than it should have",
            expected=", ".join(names),
            got=shown(list(found)),
        )


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MAX_INTEGER:
        raise StateError(
            f"a state's {name} is out of range",
            expected=f"an integer of 0 to {_MAX_INTEGER - 1}",
            got=shown(value),
        )
    return value


def shown(value: object) -> str:
    """A value from a state, for a message."""
    try:
        return repr(value)[:200]
    except ValueError:  # an integer of more digits than Python likes to print
        return f"a {type(value).__name__} too long to show"
