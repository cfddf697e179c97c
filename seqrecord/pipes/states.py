"""What a saved state says, read from JSON that anyone may have written.

A state has a position and, of each dataset that clips come from, what the order depends on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, get_args, get_type_hints

from seqrecord.errors import ClipError, StateError
from seqrecord.integers import SEED_LIMIT
from seqrecord.pipes.batch_source import BatchSource, PlanT, Rest, SourceRest, Stages
from seqrecord.pipes.distributed import this_worker
from seqrecord.sampling import Part, PlanSettings
from seqrecord.sampling.rest import Stage
from seqrecord.text import counted, repr_of

__all__ = ["Sharing", "SourceState", "State", "check_number", "parse_state"]

_VERSION = 4
_KEYS = ("version", "epoch", "batch", "ranks", "workers", "worker", "asked", "rest", "sources")
_NUMBERS = ("epoch", "ranks", "workers")
_REST = ("epoch", "left", "number")
_SOURCE = ("settings", "request", "episodes", "following", "pending")
_PENDING = ("epoch", "stages", "settings")
_STAGE = ("ranks", "batches", "settings", "by_clip")
_EPISODES = ("count", "frames", "digest", "dataset")
_MAX_INTEGER = 1 << 63  # exclusive
_MAX_PARTS = 1 << 31  # exclusive
_MAX_SETTING = 1 << 31  # exclusive
_MOST_PENDING = 1 << 10  # epochs of a source


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
class SourceState:
    """What the order of a dataset's clips depends on."""

    settings: PlanSettings
    """Of whole epochs."""
    request: Mapping[str, Any]
    """What was asked for beside the settings: clips and features, by the name of the argument."""
    episodes: Mapping[str, Any]
    """How many, of how many frames, digests of them and of the dataset that they are in."""
    left: tuple[PlanSettings, ...] = ()
    """The settings of what is left of each epoch that is pending; see `SourceRest`."""


@dataclass(frozen=True)
class State:
    """A position, and what an epoch's order depends on."""

    epoch: int
    batches: tuple[int, ...]
    """Delivered in this epoch, or in what was left of it, by the worker of `sharing`, or by each of
    them."""
    sharing: Sharing
    asked: Mapping[str, Any]
    """What was asked for beside what each source was."""
    sources: tuple[SourceState, ...]
    rest: Rest | None = None

    @classmethod
    def of(
        cls,
        loader: BatchSource[PlanT],
        epoch: int,
        batch: int,
        sharing: Sharing,
        rest: Rest | None,
    ) -> State:
        """That of a loader, of which `sharing` has given so many batches of an epoch."""
        rests = (None,) * len(loader.sources) if rest is None else rest.sources
        pairs = zip(loader.sources, rests, strict=True)
        sources = tuple(source.state(sharing.num_parts, own) for source, own in pairs)
        return cls(epoch, (batch,), sharing, loader.asked(), sources, rest)

    def check(self, loader: BatchSource[PlanT]) -> None:
        """Raise `StateError` where it is not of such a loader, and say what differs.

        That of all workers of a rank may be of another `batch_size`, but for a mix.
        """
        now, found = loader.asked(), self.asked
        differ = [name for name in {**now, **found} if name not in found or name not in now]
        if differ or len(self.sources) != len(loader.sources):
            raise StateError(
                "the saved state is of another kind of loader, or of other sources",
                expected="one of SeqRecordMix, of as many sources"
                if now
                else "one of SeqRecordStream, SeqRecordPipe or SeqRecordNode",
                got=f"{counted(len(self.sources), 'source')}, and {repr_of(list(found))}",
            )
        if differ := [name for name in now if found[name] != now[name]]:
            raise StateError(
                f"the saved state is of another mix: {', '.join(differ)}",
                expected=", ".join(f"{name}={repr_of(now[name])}" for name in differ),
                got=", ".join(f"{name}={repr_of(found[name])}" for name in differ),
            )
        is_any = self.is_of_all and not now
        for source, said, rest in zip(loader.sources, self.sources, self.rests, strict=True):
            source.check_state(said, rest, any_batch_size=is_any)

    def has_batches_of(self, loader: BatchSource[PlanT]) -> bool:
        """Whether it counts batches of the size that a loader has."""
        pairs = zip(loader.sources, self.sources, strict=True)
        return all(source.batch_size == said.settings.batch_size for source, said in pairs)

    def use_settings(self, loader: BatchSource[PlanT]) -> None:
        """Keep these settings for parts of this number; none of them where one does not fit, nor
        for batches of another size.

        Raises `MemoryLimitError`, which says the least that would do.
        """
        if not self.has_batches_of(loader):
            return
        each = zip(loader.sources, self.sources, self.rests, strict=True)
        count = self.sharing.num_parts
        found = [(source, source.fits_of(said, count, rest)) for source, said, rest in each]
        for source, fits in found:
            source.keep(fits)

    @property
    def rests(self) -> tuple[SourceRest, ...]:
        """What is left of each source."""
        none = SourceRest((), 0)
        return (none,) * len(self.sources) if self.rest is None else self.rest.sources

    @property
    def is_of_all(self) -> bool:
        """Whether it says where all workers of a rank are."""
        return self.sharing.worker is None or self.sharing.workers == 1

    @property
    def is_begun(self) -> bool:
        """Whether it is inside an epoch."""
        return any(self.batches) or self.rest is not None

    def check_batches(self, most: Iterable[int]) -> None:
        """Raise `StateError` for more batches than there are: `most` for each of `batches`."""
        for given, number in zip(self.batches, most, strict=True):
            if given > number:
                raise StateError(
                    "the saved state is beyond the end of its epoch",
                    expected=f"at most {number} batches",
                    got=given,
                )

    def of_rank(self) -> State:
        """The same, of all workers of a rank; `StateError` for one worker of several."""
        if not self.is_of_all:
            raise StateError(
                "the state of one worker does not say how far the others are",
                expected="the whole state_dict() of the StatefulDataLoader, which has those of all "
                "its workers",
                got=self.sharing,
            )
        return self.of_all(self.batches)

    def of_all(self, batches: tuple[int, ...]) -> State:
        """That of all workers of a rank, by what each has delivered; this is one of them."""
        return replace(self, sharing=replace(self.sharing, worker=None), batches=batches)

    def next_epoch(self) -> State:
        """The start of the epoch after this one: a whole one, but for a mix, which goes on."""
        batches = (0,) * len(self.batches)
        sources = self.sources if self.asked else (replace(self.sources[0], left=()),)
        rest = self.rest if self.asked else None
        return replace(self, epoch=self.epoch + 1, batches=batches, sources=sources, rest=rest)

    def at_worker(self, worker: int, workers: int) -> State:
        """The same with no batch delivered, of a worker of so many."""
        sharing = Sharing(self.sharing.ranks, workers, worker)
        return replace(self, sharing=sharing, batches=(0,))

    def to_json(self) -> dict[str, Any]:
        sharing, rest = self.sharing, self.rest
        return {
            "version": _VERSION,
            "epoch": self.epoch,
            "batch": list(self.batches) if sharing.worker is None else self.batches[0],
            "ranks": sharing.ranks,
            "workers": sharing.workers,
            "worker": sharing.worker,
            "asked": dict(self.asked),
            "rest": None if rest is None else {name: getattr(rest, name) for name in _REST},
            "sources": [
                {
                    "settings": asdict(source.settings),
                    "request": dict(source.request),
                    "episodes": dict(source.episodes),
                    "following": own.following,
                    "pending": [
                        {
                            "epoch": epoch,
                            "stages": [
                                {**asdict(stage), "batches": list(stage.batches)}
                                for stage in stages
                            ],
                            "settings": asdict(settings),
                        }
                        for (epoch, stages), settings in zip(own.pending, source.left, strict=True)
                    ],
                }
                for source, own in zip(self.sources, self.rests, strict=True)
            ],
        }

    @classmethod
    def parse(cls, state: object) -> State:
        """Inverse of `to_json`; `StateError` for what no loader has saved."""
        if not isinstance(state, Mapping) or "version" not in state:
            raise StateError(
                "not a state of a seqrecord loader, nor of a StatefulDataLoader around a "
                "SeqRecordStream",
                expected="what state_dict() of a loader has returned: a dict of version, epoch, …",
                got=repr_of(state),
            )
        if type(state["version"]) is not int or state["version"] != _VERSION:
            raise StateError(
                "a state of another version", expected=_VERSION, got=repr_of(state["version"])
            )
        _check_keys("a state", state, _KEYS)
        epoch, ranks, workers = (_integer(name, state[name]) for name in _NUMBERS)
        batches, worker = state["batch"], state["worker"]
        if worker is not None:
            batches, worker = [batches], _integer("worker", worker)
        batches, sharing = _integers("batch", batches), Sharing(ranks, workers, worker)
        known = len(batches) == workers if worker is None else worker < workers
        if not known or not 0 < sharing.num_parts < _MAX_PARTS:
            raise StateError(
                "a state's ranks and workers make no sense",
                expected="worker < workers, or a batch of each of them, and fewer than "
                f"{_MAX_PARTS} in all ranks",
                got=f"{repr_of(sharing)}, batch {repr_of(state['batch'])}",
            )
        found = [_parse_source(source) for source in _list("sources", state["sources"])]
        if not found:
            raise StateError("a state of no source", expected="one at least", got="none")
        rest = state["rest"]
        if rest is not None:
            _check_keys("a state's rest", rest, _REST)
            left = None if rest["left"] is None else _integer("left", rest["left"])
            number = check_number("a state's number", rest["number"], _MAX_INTEGER, least=1)
            sources = tuple(own for _, own in found)
            rest = Rest(_integer("epoch", rest["epoch"]), left, number, sources)
        elif any(own != SourceRest((), 0) for _, own in found):
            raise StateError("a state's rest makes no sense", expected="a dict", got=None)
        asked = _check_keys("what a state was asked for", state["asked"])
        return cls(epoch, batches, sharing, asked, tuple(one for one, _ in found), rest)


def _parse_source(saved: object) -> tuple[SourceState, SourceRest]:
    saved = _check_keys("a state's source", saved, _SOURCE)
    items, following = _list("pending", saved["pending"]), _integer("following", saved["following"])
    pending, left = list[tuple[int, Stages]](), list[PlanSettings]()
    for item in items[:_MOST_PENDING]:
        _check_keys("a state's pending epoch", item, _PENDING)
        stages = tuple(map(_parse_stage, _list("stages", item["stages"])))
        if not stages:
            raise StateError("a pending epoch of a state has no stages", got=repr_of(item))
        pending.append((_integer("epoch", item["epoch"]), stages))
        left.append(_parse_settings(item["settings"]))
    epochs = [epoch for epoch, _ in pending]
    if epochs != list(range(following - len(items), following)):
        raise StateError(
            "a state's pending epochs do not follow each other",
            expected=f"{len(items)} epochs before {following}, at most {_MOST_PENDING}",
            got=repr_of(epochs),
        )
    request = _check_keys("a state's request", saved["request"])
    episodes = _check_keys("a state's episodes", saved["episodes"], _EPISODES)
    source = SourceState(_parse_settings(saved["settings"]), request, episodes, tuple(left))
    return source, SourceRest(tuple(pending), following)


def _parse_stage(saved: object) -> Stage:
    saved = _check_keys("a state's stage", saved, _STAGE)
    ranks, batches = _integer("ranks", saved["ranks"]), _integers("batches", saved["batches"])
    if not 0 < ranks * len(batches) < _MAX_PARTS or type(saved["by_clip"]) is not bool:
        raise StateError(
            "the ranks and workers of a state's stage make no sense",
            expected=f"at least one of each, and fewer than {_MAX_PARTS} workers in all ranks",
            got=f"{repr_of(ranks)} ranks of {len(batches)}, by_clip {repr_of(saved['by_clip'])}",
        )
    return Stage(ranks, batches, _parse_settings(saved["settings"]), saved["by_clip"])


def _parse_settings(saved: object) -> PlanSettings:
    names = [field.name for field in fields(PlanSettings)]
    saved = _check_keys("a state's settings", saved, names)
    for name, hint in get_type_hints(PlanSettings).items():
        value, kinds = saved[name], get_args(hint) or (hint,)
        most = SEED_LIMIT if name == "seed" else _MAX_SETTING
        if type(value) not in kinds or (isinstance(value, int) and abs(value) >= most):
            raise StateError(f"a state's {name} makes no sense", got=repr_of(value))
    try:
        return PlanSettings(**saved)
    except ClipError as error:
        raise StateError(f"a state's settings make no sense: {error}") from error


def check_number(what: str, value: object, limit: int, *, least: int = 0) -> int:
    """An integer of `least` to `limit` - 1; `StateError` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < limit:
        raise StateError(
            f"{what} is out of range",
            expected=f"an integer of {least} to {limit - 1}",
            got=repr_of(value),
        )
    return value


def _check_keys(what: str, found: object, names: Iterable[str] | None = None) -> Mapping[str, Any]:
    """A dict, of these entries if they are given; `StateError` for anything else."""
    if not isinstance(found, Mapping) or (names is not None and set(found) != set(names)):
        raise StateError(
            f"{what} of other entries than it should have",
            expected="a dict" if names is None else ", ".join(names),
            got=repr_of(list(found) if isinstance(found, Mapping) else found),
        )
    return found


def _list(name: str, value: object) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise StateError(f"a state's {name} is no list", expected="a list", got=repr_of(value))
    return value


def _integer(name: str, value: object) -> int:
    return check_number(f"a state's {name}", value, _MAX_INTEGER)


def _integers(name: str, value: object) -> tuple[int, ...]:
    return tuple(_integer(name, number) for number in _list(name, value))


# What torchdata calls the entries of a StatefulDataLoader's state; until 0.10 it had the sampler's
# in another one.
_SNAPSHOT, _WORKERS, _STEPS = "_snapshot", "_worker_snapshots", "_steps_since_snapshot"
_LAST, _FINISHED = "_last_yielded_worker_id", "_iterator_finished"
_MAIN, _SAMPLED = "_main_snapshot", "_sampler_iter_yielded"
_SAMPLERS = "_sampler_iter_state", "_index_sampler_state"
_SAMPLES = "samples_yielded"
_DATASET, _FETCHER, _ENDED = "dataset_state", "fetcher_state", "fetcher_ended"
_MAX_STEPS = 1 << 31  # exclusive
_MAX_WORKERS = 1 << 20


def parse_state(saved: object) -> State:
    """A state of a loader, or of a StatefulDataLoader around one, with workers or without.

    With workers, the StatefulDataLoader's says where each was at its last snapshot, and how many
    batches it has given since. Where it has a `batch_size` of its own, each is counted with as many
    items as its sampler has drawn for a batch.

    Raises `StateError` for what is no such state, and for one from before the first snapshot of a
    StatefulDataLoader with a `batch_size` of its own and `snapshot_every_n_steps` above 1: it does
    not tell that size.
    """
    if isinstance(saved, Mapping) and _SNAPSHOT in saved:
        return _of_workers(saved)
    if isinstance(saved, Mapping) and _FETCHER in saved:
        return State.parse(saved.get(_DATASET))
    return State.parse(saved)


def _of_workers(saved: Mapping[Any, Any]) -> State:
    """That of a StatefulDataLoader with workers: each has a state of its own."""
    snapshot = _dict(saved[_SNAPSHOT])
    workers = _dict(snapshot.get(_WORKERS))
    found, ended = list[State](), list[bool]()
    for number in range(max(1, min(len(workers), _MAX_WORKERS))):
        worker = _dict(workers.get(f"worker_{number}"))
        ended.append(_dict(worker.get(_FETCHER)).get(_ENDED) is True)
        found.append(State.parse(worker.get(_DATASET)))
        expected, state = found[0].at_worker(number, len(workers)), found[-1]
        if state.sharing != expected.sharing or state.at_worker(number, len(workers)) != expected:
            raise StateError(
                f"the state of worker {number} is not of the same epoch, ranks and settings as the "
                "others'",
                expected=f"epoch {expected.epoch}, {expected.sharing}",
                got=f"epoch {state.epoch}, {state.sharing}",
            )
    if saved.get(_FINISHED) is True:  # the next iteration is of the next epoch
        return found[0].of_all((0,) * len(found)).next_epoch()
    last = _number(snapshot, _LAST, len(found), least=-1)
    steps = _number(saved, _STEPS, _MAX_STEPS)
    size = _items_of_a_step(snapshot) if steps else 0
    more = _turns(last + 1, ended, steps)
    given = (state.batches[0] + size * turns for state, turns in zip(found, more, strict=True))
    return found[0].of_all(tuple(given))


def _items_of_a_step(snapshot: Mapping[Any, Any]) -> int:
    """How many items of the dataset a batch of the StatefulDataLoader has, but for a last one.

    Its sampler has counted both. Where it has none, the loader has no `batch_size` of its own.
    """
    main = _dict(snapshot.get(_MAIN))
    sampler = next((main[name] for name in _SAMPLERS if main.get(name) is not None), None)
    if sampler is None:
        return 1
    batches = _number(main, _SAMPLED, _MAX_STEPS)
    samples = _dict(sampler).get(_SAMPLES)
    if not batches or type(samples) is not int or samples % batches or samples < batches:
        raise StateError(
            "the state of the StatefulDataLoader does not tell how many items a batch of it has, "
            "and it has given some since it asked its workers for their states",
            expected="snapshot_every_n_steps=1, the default; or batch_size=None for the "
            "StatefulDataLoader, and batch_size for the stream",
            got=f"{batches} batches of {repr_of(samples)} items",
        )
    return samples // batches


def _turns(first: int, ended: list[bool], steps: int) -> list[int]:
    """How many of the next batches each worker gives: in turn, but for those that have no more."""
    turn = [i % len(ended) for i in range(first, first + len(ended))]
    turn = [i for i in turn if not ended[i]]
    given = [0] * len(ended)
    for place, worker in enumerate(turn):
        given[worker] = len(range(place, steps, len(turn)))
    return given


def _dict(value: object) -> Mapping[Any, Any]:
    """The value, or an empty one in the place of what is no dict."""
    return value if isinstance(value, Mapping) else {}


def _number(saved: Mapping[Any, Any], name: str, limit: int, *, least: int = 0) -> int:
    return check_number(f"a StatefulDataLoader's {name}", saved.get(name), limit, least=least)
