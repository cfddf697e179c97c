"""What a saved state says, read from JSON that anyone may have written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias, get_args, get_type_hints

from seqrecord.errors import ClipError, StateError
from seqrecord.integers import SEED_LIMIT
from seqrecord.pipes.distributed import this_worker
from seqrecord.sampling import Part, PlanSettings
from seqrecord.sampling.rest import Stage
from seqrecord.text import counted, repr_of

__all__ = [
    "Sharing",
    "Stages",
    "State",
    "check_keys",
    "check_number",
    "parse_settings",
    "parse_stages",
    "stages_to_json",
]

Stages: TypeAlias = tuple[Stage, ...]
"""Those of an epoch that are over, because the number of ranks or workers has changed."""

_VERSION = 3
_KEYS = (
    "version",
    "epoch",
    "batch",
    "ranks",
    "workers",
    "worker",
    "stages",
    "settings",
    "later",
    "request",
    "episodes",
)
_NUMBERS = ("epoch", "ranks", "workers")
_STAGE = ("ranks", "batches", "settings")
_EPISODES = ("count", "frames", "digest", "dataset")
_MAX_INTEGER = 1 << 63  # exclusive
_MAX_PARTS = 1 << 31  # exclusive
_MAX_SETTING = 1 << 31  # exclusive


@dataclass(frozen=True)
class Sharing:
    """Worker `worker` of `workers`, of any of `ranks` ranks: their positions are the same.

    Without a `worker`, all workers of a rank.
    """

    ranks: int
    workers: int
    worker: int | None

    @classmethod
    def of(cls, part: Part) -> Sharing:
        """That of a part which this process has: a DataLoader's worker, or all of its workers."""
        worker, workers = this_worker()
        if part.count % workers or part.index % workers != worker:
            worker, workers = 0, 1
        return cls(part.count // workers, workers, worker)

    @property
    def num_parts(self) -> int:
        """Of the epoch, in all."""
        return self.ranks * self.workers

    def __str__(self) -> str:
        ranks, workers = counted(self.ranks, "rank"), counted(self.workers, "worker")
        if self.worker is None:
            return f"{workers} in each of {ranks}"
        return f"worker {self.worker} of {workers} in {ranks}"


@dataclass(frozen=True)
class State:
    """A position, and what an epoch's order depends on."""

    epoch: int
    batch: int
    """Delivered in this stage of the epoch, by the worker of `sharing`."""
    sharing: Sharing
    settings: PlanSettings
    request: Mapping[str, Any]
    """What was asked for beside the settings: clips and features, by the name of the argument."""
    episodes: Mapping[str, Any]
    """How many, of how many frames, digests of them and of the dataset that they are in."""
    of_workers: tuple[int, ...] | None = None
    """Batches delivered by each of a rank's workers, where `sharing` is of all; else `batch`."""
    stages: Stages = ()
    later: PlanSettings | None = None
    """The settings of later epochs, where `stages` make those of this one differ."""

    @property
    def batches(self) -> tuple[int, ...]:
        """Delivered by the worker of `sharing`, or by each of them."""
        return self.of_workers or (self.batch,)

    @property
    def usual(self) -> PlanSettings:
        """The settings of whole epochs."""
        return self.later or self.settings

    def of_rank(self) -> State:
        """The same, of all workers of a rank; `StateError` for one worker of several."""
        if self.sharing.worker is None:
            return self
        if self.sharing.workers > 1:
            raise StateError(
                "the state of one worker does not say how far the others are",
                expected="the whole state of the StatefulDataLoader, which has those of all its "
                "workers, as seqrecord.elastic_state(loader.state_dict())",
                got=self.sharing,
            )
        return self.of_all((self.batch,))

    def of_all(self, batches: tuple[int, ...]) -> State:
        """That of all workers of a rank, by what each has delivered; this is one of them."""
        sharing = replace(self.sharing, worker=None)
        return replace(self, sharing=sharing, batch=0, of_workers=batches)

    def at_worker(self, worker: int, workers: int) -> State:
        """The same with no batch delivered, of a worker of so many."""
        return replace(self, sharing=Sharing(self.sharing.ranks, workers, worker), batch=0)

    def next_epoch(self) -> State:
        """The same in the epoch after this one, whose settings are the usual ones."""
        settings = self.usual
        return replace(self, epoch=self.epoch + 1, stages=(), settings=settings, later=None)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "epoch": self.epoch,
            "batch": self.batch if self.of_workers is None else list(self.of_workers),
            "ranks": self.sharing.ranks,
            "workers": self.sharing.workers,
            "worker": self.sharing.worker,
            "stages": stages_to_json(self.stages),
            "settings": dict(vars(self.settings)),
            "later": None if self.later is None else dict(vars(self.later)),
            "request": dict(self.request),
            "episodes": dict(self.episodes),
        }

    @classmethod
    def parse(cls, state: object) -> State:
        """Inverse of `to_json`; `StateError` for what no loader has saved."""
        if not isinstance(state, Mapping) or "version" not in state:
            raise StateError(
                "not a state of a seqrecord loader",
                expected="what state_dict() of a loader has returned: a dict of version, epoch, …",
                got=repr_of(state),
            )
        if type(state["version"]) is not int or state["version"] != _VERSION:
            raise StateError(
                "a state of another version", expected=_VERSION, got=repr_of(state["version"])
            )
        check_keys("a state", state, _KEYS)
        epoch, ranks, workers = (_integer(name, state[name]) for name in _NUMBERS)
        worker = batch = of_workers = None
        if state["worker"] is None:
            of_workers = _integers("batch", state["batch"])
        else:
            worker, batch = (_integer(name, state[name]) for name in ("worker", "batch"))
        sharing = Sharing(ranks, workers, worker)
        known = len(of_workers or ()) == workers if worker is None else worker < workers
        if not known or not 0 < sharing.num_parts < _MAX_PARTS:
            raise StateError(
                "a state's ranks and workers make no sense",
                expected="worker < workers, or a batch of each of them, and fewer than "
                f"{_MAX_PARTS} in all ranks",
                got=f"{repr_of(sharing)}, batch {repr_of(state['batch'])}",
            )
        if not isinstance(state["request"], Mapping):
            raise StateError("a state's request is no dict", got=repr_of(state["request"]))
        check_keys("a state's episodes", state["episodes"], _EPISODES)
        stages, later = parse_stages(state["stages"]), state["later"]
        if bool(stages) != (later is not None):
            raise StateError(
                "a state's later makes no sense",
                expected="the settings of later epochs where there are stages, else None",
                got=repr_of(later),
            )
        return cls(
            epoch,
            batch or 0,
            sharing,
            parse_settings(state["settings"]),
            state["request"],
            state["episodes"],
            of_workers,
            stages,
            None if later is None else parse_settings(later),
        )


def stages_to_json(stages: Stages) -> list[dict[str, Any]]:
    """Inverse of `parse_stages`."""
    return [
        {
            "ranks": stage.ranks,
            "batches": list(stage.batches),
            "settings": dict(vars(stage.settings)),
        }
        for stage in stages
    ]


def parse_stages(saved: object) -> Stages:
    """Stages from JSON; `StateError` for what are none."""
    if not isinstance(saved, (list, tuple)):
        raise StateError("a state's stages are no list", got=repr_of(saved))
    stages = []
    for item in saved:
        check_keys("a state's stage", item, _STAGE)
        ranks, batches = _integer("ranks", item["ranks"]), _integers("batches", item["batches"])
        if not 0 < ranks * len(batches) < _MAX_PARTS:
            raise StateError(
                "the ranks and workers of a state's stage make no sense",
                expected=f"at least one of each, and fewer than {_MAX_PARTS} workers in all ranks",
                got=f"{repr_of(ranks)} ranks of {len(batches)}",
            )
        stages.append(Stage(ranks, batches, parse_settings(item["settings"])))
    return tuple(stages)


def parse_settings(saved: object) -> PlanSettings:
    """Settings of a plan from JSON; `StateError` for what are none."""
    names = [field.name for field in fields(PlanSettings)]
    saved = check_keys("a state's settings", saved, names)
    for name, hint in get_type_hints(PlanSettings).items():
        value, kinds = saved[name], get_args(hint) or (hint,)
        most = SEED_LIMIT if name == "seed" else _MAX_SETTING
        if type(value) not in kinds or (isinstance(value, int) and abs(value) >= most):
            raise StateError(f"a state's {name} makes no sense", got=repr_of(value))
    try:
        return PlanSettings(**saved)
    except ClipError as error:
        raise StateError(f"a state's settings make no sense: {error}") from error


def check_keys(what: str, found: object, names: Iterable[str]) -> Mapping[str, Any]:
    """A dict of these entries; `StateError` for anything else."""
    if not isinstance(found, Mapping) or set(found) != set(names):
        raise StateError(
            f"{what} of other entries than it should have",
            expected=", ".join(names),
            got=repr_of(list(found) if isinstance(found, Mapping) else found),
        )
    return found


def check_number(what: str, value: object, limit: int, *, least: int = 0) -> int:
    """An integer of `least` to `limit` - 1; `StateError` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < limit:
        raise StateError(
            f"{what} is out of range",
            expected=f"an integer of {least} to {limit - 1}",
            got=repr_of(value),
        )
    return value


def _integer(name: str, value: object) -> int:
    return check_number(f"a state's {name}", value, _MAX_INTEGER)


def _integers(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)):
        raise StateError(
            f"a state's {name} is no list", expected="a number for each worker", got=repr_of(value)
        )
    return tuple(_integer(name, number) for number in value)
