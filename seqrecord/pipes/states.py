"""What a saved state says, read from JSON that anyone may have written; and what saves states.

A state has a position and, of each dataset that clips come from, what the order depends on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from functools import lru_cache, partial
from inspect import get_annotations
from types import UnionType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, get_args, get_origin

from seqrecord.errors import ClipError, StateError
from seqrecord.pipes.distributed import Ranks, this_worker
from seqrecord.sampling import Part, PlanSettings
from seqrecord.sampling.elastic import Session
from seqrecord.text import repr_of
from seqrecord.units import SEED_LIMIT

if TYPE_CHECKING:
    from seqrecord.engine.batches import Batch
    from seqrecord.engine.engine import Engine
    from seqrecord.engine.stats import EngineStats
    from seqrecord.engine.trace import Trace

_VERSION = 7
_MAX_PARTS = 1 << 31  # exclusive
_MOST_PENDING = 1 << 10  # epochs of a source
_EPISODES = ("count", "frames", "digest", "dataset")
_SETTINGS = ("batch_size", "num_cursors", "block_frames", "run_frames", "first_block_frames")
_INTEGERS = range(1 << 63)
_BOUNDS = {
    **dict.fromkeys(_SETTINGS, range(1 << 31)),
    "seed": range(1 - SEED_LIMIT, SEED_LIMIT),
    "number": range(1, 1 << 63),
}
"""What integers may be, by the name of their field; others are of `_INTEGERS`."""

Clip: TypeAlias = dict[str, Any]
"""Feature name to tensor [frames, …], or list of tensors; `episode` a key, `start` an int.

A batch of clips is the same with one axis more: tensors [clips, frames, …] or lists of lists,
`episode` a list of keys, `start` int64 [clips]. Texts are lists too.
"""

Sessions: TypeAlias = tuple[Session, ...]
"""Those of an epoch that are over, because the number of ranks or workers has changed."""


@dataclass(frozen=True)
class SourceRemainder:
    """What a dataset goes on with: the rests of epochs that follow each other, then whole epochs.

    `pending` has these epochs with their sessions, ascending, but for epochs without any clip;
    `following` is the first whole epoch.
    """

    pending: tuple[tuple[int, Sessions], ...]
    following: int

    def sessions(self, epoch: int) -> Sessions:
        """Those of an epoch, none of a whole one."""
        return dict(self.pending).get(epoch, ())


@dataclass(frozen=True)
class Remainder:
    """Where epochs go on with other ranks or workers: what these have left of each dataset.

    It is the change of this `number`, in this epoch. Of that a mix had `left` batches in all parts
    together; `None` where it had not begun.
    """

    epoch: int
    left: int | None
    number: int
    sources: tuple[SourceRemainder, ...]


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
    """The settings of what is left of each epoch that is pending; see `SourceRemainder`."""


@dataclass(frozen=True)
class State:
    """A position, and what an epoch's order depends on."""

    epoch: int
    batch: int | tuple[int, ...]
    """Delivered in this epoch, or in what was left of it, by the worker of `sharing`, or by each of
    them."""
    sharing: Sharing
    asked: Mapping[str, Any]
    """What was asked for beside what each source was."""
    sources: tuple[SourceState, ...]
    rest: Remainder | None = None

    def check(self, loader: BatchSource[PlanT]) -> None:
        """Raise `StateError` where it is not of such a loader, and say what differs.

        That of all workers of a rank may be of another `batch_size`, but for a mix.
        """
        now = {**loader.asked(), "sources": len(loader.sources)}
        found = {**self.asked, "sources": len(self.sources)}
        differ = [name for name in {**now, **found} if now.get(name, ...) != found.get(name, ...)]
        expected, got = ({name: said.get(name) for name in differ} for said in (found, now))
        problem = f"it is of another kind of loader, or of another mix: {', '.join(differ)}"
        _check(not differ, problem, repr_of(expected), got)
        is_any = self.is_of_all and not self.asked
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
    def batches(self) -> tuple[int, ...]:
        """`batch` of the worker, or of each of them."""
        return self.batch if isinstance(self.batch, tuple) else (self.batch,)

    @property
    def rests(self) -> tuple[SourceRemainder, ...]:
        """What is left of each source."""
        none = SourceRemainder((), 0)
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
            _check(given <= number, "it is beyond the end of its epoch", f"at most {number}", given)

    def of_rank(self) -> State:
        """The same, of all workers of a rank; `StateError` for one worker of several."""
        problem = "that of one worker does not say how far the others are"
        expected = "the whole state_dict() of the StatefulDataLoader, which has all workers"
        _check(self.is_of_all, problem, expected, self.sharing)
        return self.of_all(self.batches)

    def of_all(self, batches: tuple[int, ...]) -> State:
        """That of all workers of a rank, by what each has delivered; this is one of them."""
        return replace(self, sharing=replace(self.sharing, worker=None), batch=batches)

    def next_epoch(self) -> State:
        """The start of the epoch after this one: a whole one, but for a mix, which goes on."""
        found = replace(self, epoch=self.epoch + 1, batch=(0,) * len(self.batches))
        if self.asked:
            return found
        return replace(found, sources=(replace(self.sources[0], left=()),), rest=None)

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps({"version": _VERSION, **asdict(self)}))
        return found

    @classmethod
    def parse(cls, saved: Any) -> State:
        """Inverse of `to_json`; `StateError` for what no loader has saved."""
        _check(
            isinstance(saved, Mapping) and "version" in saved,
            "no loader has saved it, nor a StatefulDataLoader around a SeqRecordStream",
            "what state_dict() of a loader has returned: a dict of version, epoch, …",
            saved,
        )
        version = saved["version"]
        _check(version == _VERSION and type(version) is int, "another version", _VERSION, version)
        entries = {name: value for name, value in saved.items() if name != "version"}
        state: State = _read(cls, entries, "itself")
        sharing, worker = state.sharing, state.sharing.worker
        _check_parts(sharing.ranks, sharing.workers)
        listed = len(state.batch) if isinstance(state.batch, tuple) else None
        _check(
            listed == (sharing.workers if worker is None else None)
            and (worker or 0) < sharing.workers,
            "a worker or a batch that makes no sense",
            "worker < workers, and its batch; or no worker, and a list of theirs",
            (sharing, state.batch),
        )
        _check(bool(state.sources), "no source", "one at least", [])
        _check(len(state.rests) == len(state.sources), "another rest than its sources")
        for source, rest in zip(state.sources, state.rests, strict=True):
            known = source.episodes.keys() == set(_EPISODES)
            _check(known, "other entries in episodes", _EPISODES, [*source.episodes])
            epochs = [epoch for epoch, _ in rest.pending[: _MOST_PENDING + 1]]
            last = epochs[-1:] or [rest.following - 1]
            _check(
                epochs == sorted(set(epochs))
                and last == [rest.following - 1]
                and len(epochs) == len(source.left) <= _MOST_PENDING,
                "pending epochs that do not follow each other",
                f"{len(source.left)} epochs before {rest.following}, at most {_MOST_PENDING}",
                epochs,
            )
            for _, sessions in rest.pending:
                _check(bool(sessions), "a pending epoch of no sessions", "one at least", sessions)
                for session in sessions:
                    _check_parts(session.ranks, len(session.batches))
        return state


def _read(kind: Any, value: Any, name: str) -> Any:
    """What the JSON `value` of a field is, by the annotation of this; `StateError` for others."""
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    kind = next((one for one in kinds if isinstance(value, _json_of(one)[0])), kinds[0])
    types, called = _json_of(kind)
    _check(isinstance(value, types), f"another type in {name}", called, value)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        _check(value.keys() == hints.keys(), f"other entries in {name}", [*hints], [*value])
        try:
            return kind(**{one: _read(hints[one], value[one], one) for one in hints})
        except ClipError as error:
            raise StateError(f"the saved state's {name} make no sense: {error}") from error
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        kinds = kinds[:1] * len(value) if kinds[-1] is Ellipsis else kinds
        _check(len(kinds) == len(value), f"a list of another length in {name}", len(kinds), value)
        return tuple(_read(one, item, name) for one, item in zip(kinds, value, strict=True))
    if kind is int:
        return _integer(name, value, _BOUNDS.get(name, _INTEGERS))
    return dict(value) if isinstance(value, Mapping) else value


def _json_of(kind: Any) -> tuple[Any, str]:
    """The types that JSON has for a kind, and what they are called."""
    if get_origin(kind) is tuple:
        return (list, tuple), "a list"
    is_dict = get_origin(kind) is Mapping or is_dataclass(kind)
    return (Mapping, "a dict") if is_dict else (kind, kind.__name__)


_hints = lru_cache(partial(get_annotations, eval_str=True))


def _integer(name: str, value: Any, bounds: range) -> int:
    is_right = type(value) is int and value in bounds
    expected = f"an integer of {bounds[0]} to {bounds[-1]}"
    _check(is_right, f"a number out of range in {name}", expected, value)
    return int(value)


def _check_parts(ranks: int, workers: int) -> None:
    """That there may be so many."""
    is_right = 0 < ranks * workers < _MAX_PARTS
    expected = f"at least one of each, and fewer than {_MAX_PARTS} workers in all ranks"
    _check(is_right, "ranks and workers that make no sense", expected, (ranks, workers))


def _check(is_right: bool, problem: str, expected: object = None, got: object = None) -> None:
    """Raise `StateError` for a state that is not right."""
    if not is_right:
        raise StateError(f"the saved state: {problem}", expected=expected, got=repr_of(got))


# ---- StatefulDataLoader


def parse_state(saved: object) -> State:
    """A state of a loader, or of a StatefulDataLoader around one, with workers or without.

    With workers, the StatefulDataLoader's says where each was at its last snapshot, and how many
    batches it has given since. Where it has a `batch_size` of its own, each is counted with as many
    items as its sampler has drawn for a batch.

    Raises `StateError` for what is no such state, and for one from before the first snapshot of a
    StatefulDataLoader with a `batch_size` of its own and `snapshot_every_n_steps` above 1: it does
    not tell that size.
    """
    if isinstance(saved, Mapping) and "_snapshot" in saved:
        return _of_workers(saved)
    if isinstance(saved, Mapping) and "fetcher_state" in saved:
        saved = saved.get("dataset_state")
    return State.parse(saved)


def _of_workers(saved: Mapping[Any, Any]) -> State:
    """That of a StatefulDataLoader with workers: each has a state of its own."""
    workers = _at(saved, "_snapshot", "_worker_snapshots")
    count = max(1, len(workers)) if isinstance(workers, Mapping) else 1
    found, ended = list[State](), list[bool]()
    for number in range(count):
        worker = _at(workers, f"worker_{number}")
        ended.append(_at(worker, "fetcher_state", "fetcher_ended") is True)
        found.append(state := State.parse(_at(worker, "dataset_state")))
        sharing = replace(found[0].sharing, workers=count, worker=number)
        expected = replace(found[0], sharing=sharing, batch=0)
        _check(
            replace(state, batch=0) == expected,
            f"worker {number} is not of the same epoch, ranks and settings as the others",
            (expected.epoch, sharing),
            (state.epoch, state.sharing),
        )
    if saved.get("_iterator_finished") is True:  # the next iteration is of the next epoch
        return found[0].of_all((0,) * count).next_epoch()
    last = _count(range(-1, count), saved, "_snapshot", "_last_yielded_worker_id")
    steps = _count(range(1 << 31), saved, "_steps_since_snapshot")
    size = _items_of_a_step(saved) if steps else 0
    # They give batches in turn, but for those that have no more.
    turn = [i % count for i in range(last + 1, last + 1 + count) if not ended[i % count]]
    given = [state.batches[0] for state in found]
    for place, number in enumerate(turn):
        given[number] += size * len(range(place, steps, len(turn)))
    return found[0].of_all(tuple(given))


def _items_of_a_step(saved: Mapping[Any, Any]) -> int:
    """How many items of the dataset a batch of the StatefulDataLoader has, but for a last one.

    Its sampler has counted both. Where it has none, the loader has no `batch_size` of its own.
    Until torchdata 0.10 the sampler's state was in another entry.
    """
    main = _at(saved, "_snapshot", "_main_snapshot")
    samplers = [_at(main, name) for name in ("_sampler_iter_state", "_index_sampler_state")]
    if samplers == [None, None]:
        return 1
    batches = _count(range(1 << 31), main, "_sampler_iter_yielded")
    samples = next(_at(one, "samples_yielded") for one in samplers if one is not None)
    _check(
        type(samples) is int and 0 < batches <= samples and not samples % batches,
        "it does not tell how many items a batch of the StatefulDataLoader has, and that has given "
        "some since it asked its workers for their states",
        "snapshot_every_n_steps=1, the default; or batch_size=None for the StatefulDataLoader, and "
        "batch_size for the stream",
        {"batches": batches, "items": samples},
    )
    return int(samples) // batches


def _at(saved: Any, *names: str) -> Any:
    """What stands there, or `None`."""
    for name in names:
        saved = saved.get(name) if isinstance(saved, Mapping) else None
    return saved


def _count(bounds: range, saved: Any, *names: str) -> int:
    return _integer(f"{names[-1]} of the StatefulDataLoader", _at(saved, *names), bounds)


def sessions_of(epoch: int, rest: Remainder | None) -> Sessions:
    """The sessions of an epoch that are over, of the only source."""
    return () if rest is None else rest.sources[0].sessions(epoch)


# ---- what has states

PlanT = TypeVar("PlanT", bound="Planned")


class Planned(Protocol):
    """One part of one epoch, as integers."""

    @property
    def num_batches(self) -> int: ...
    @property
    def counts(self) -> dict[str, int]:
        """What statistics say of its clips."""


class Source(Protocol):
    """The order of one dataset's clips, as states save it."""

    @property
    def batch_size(self) -> int | None: ...
    def decodes_once(self, num_workers: int) -> bool:
        """Whether so many workers decode each frame once, if they persist."""

    def state(self, num_parts: int, rest: SourceRemainder | None) -> SourceState:
        """The settings of the order of epochs in so many parts, and of the epochs in `rest`."""

    def check_state(
        self, state: SourceState, rest: SourceRemainder, *, any_batch_size: bool = False
    ) -> None:
        """Raise `StateError` for a state of other clips or another order."""

    def fits_of(self, state: SourceState, num_parts: int, rest: SourceRemainder) -> Any:
        """Memory for the settings of a state, for `keep`."""

    def keep(self, fits: Any) -> None:
        """Use these settings from here on, in place of the chosen ones."""


class BatchSource(Protocol[PlanT]):
    """Plans epochs and runs them. Picklable."""

    goes_on: bool
    """Whether an epoch goes on where the one before has ended: then what ranks or workers had left
    when their number changed is that of all later epochs, else of one."""

    @property
    def ranks(self) -> Ranks:
        """The ranks that share an epoch."""

    @property
    def sources(self) -> Sequence[Source]:
        """The orders of one dataset, or of several."""

    def asked(self) -> Mapping[str, Any]:
        """What was asked for beside what each of the sources was, as JSON."""

    def plan(self, epoch: int, part: Part, rest: Remainder | None = None) -> PlanT:
        """The plan of one part of one epoch, or of what `rest` has of it."""

    def remainder_after(self, state: State) -> Remainder | None:
        """What is left when ranks or workers leave an epoch where a state says.

        Raises `StateError` for a state that does not tell where they all are.
        """

    def check_place(self, state: State) -> None:
        """Raise `StateError` for a state that is of no epoch, or beyond the end of its epoch."""

    def start(
        self, plan: PlanT, rest: Remainder | None, *, batch: int, stats: EngineStats
    ) -> Engine:
        """An engine that runs a plan, of an epoch with this `rest`, from `batch` on."""

    def present(self, batch: Batch, plan: PlanT, number: int) -> list[Clip]:
        """What users get of a batch, the plan's `number`; of several clips the last comes first."""

    def trace(self) -> Trace:
        """The trace of an iteration in this process."""

    def stats(self, done: dict[str, Any], epoch: int) -> dict[str, Any]:
        """What was done in an iteration, with what is known of the clips."""
