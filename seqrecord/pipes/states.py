"""Saved states: the position and, for each dataset, the inputs of the order. Parsed from untrusted
JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass, replace
from functools import lru_cache, partial
from inspect import get_annotations
from types import UnionType
from typing import Any, TypeAlias, get_args, get_origin

from seqrecord.errors import ClipError, StateError
from seqrecord.pipes.distributed import this_worker
from seqrecord.sampling import PlanSettings, Shard
from seqrecord.sampling.elastic import EpochSegment
from seqrecord.text import repr_of
from seqrecord.units import SEED_LIMIT

_VERSION = 7
_MAX_SHARDS = 1 << 31  # exclusive
_MOST_PENDING = 1 << 10  # epochs of a source
_SETTINGS = ("batch_size", "num_cursors", "block_frames", "run_frames", "first_block_frames")
_INTEGERS = range(1 << 63)
_BOUNDS = {
    **dict.fromkeys(_SETTINGS, range(1 << 31)),
    "seed": range(1 - SEED_LIMIT, SEED_LIMIT),
    "number": range(1, 1 << 63),
}
"""Valid ranges of integers by field name; `_INTEGERS` for other fields."""

Clip: TypeAlias = dict[str, Any]
"""A clip: feature name to tensor [frames, …], or list of tensors; `episode` a key, `start` an int.

A batch has one axis more: tensors [clips, frames, …] or lists of lists, `episode` a list of keys,
`start` int64 [clips]. Texts are lists too.
"""

Json: TypeAlias = Mapping[str, Any]

Segments: TypeAlias = tuple[EpochSegment, ...]
"""The finished segments of an epoch in which the number of ranks or workers changed."""


@dataclass(frozen=True)
class RemainingSource:
    """The remaining epochs of a dataset: consecutive partial epochs, then whole ones.

    `pending` has the partial epochs with their segments, ascending, without epochs that have no
    clip left; `following` is the first whole epoch.
    """

    pending: tuple[tuple[int, Segments], ...]
    following: int

    def segments(self, epoch: int) -> Segments:
        """The segments of an epoch; none for a whole one."""
        return dict(self.pending).get(epoch, ())

    def is_of(self, num_settings: int) -> bool:
        """Whether the epochs are consecutive, and match this number of settings."""
        epochs = [epoch for epoch, _ in self.pending]
        segments = [segment for _, some in self.pending for segment in some]
        return (
            len(epochs) == num_settings <= _MOST_PENDING
            and epochs == sorted(set(epochs))
            and epochs[-1:] in ([], [self.following - 1])
            and all(some for _, some in self.pending)
            and all(_is_valid_sharing(one.ranks, len(one.batches)) for one in segments)
        )


@dataclass(frozen=True)
class RemainingEpoch:
    """The remaining clips of each dataset after a change of ranks or workers.

    It is change number `number`, in epoch `epoch`. In a mix, `left` batches of that epoch remained
    in all shards together; `None` if it had not begun.
    """

    epoch: int
    left: int | None
    number: int
    sources: tuple[RemainingSource, ...]


@dataclass(frozen=True)
class Sharing:
    """The share of an epoch at a position: worker `worker` of `workers` on each of `ranks` ranks.

    All ranks have the same position. `worker=None` stands for all workers of a rank.
    """

    ranks: int
    workers: int
    worker: int | None

    @classmethod
    def of(cls, shard: Shard) -> Sharing:
        """The sharing of this process's shard: of a DataLoader worker, or of all workers."""
        worker, workers = this_worker()
        if shard.count % workers or shard.index % workers != worker:
            worker, workers = 0, 1
        return cls(shard.count // workers, workers, worker)

    @property
    def num_shards(self) -> int:
        """The number of shards of the epoch."""
        return self.ranks * self.workers


@dataclass(frozen=True)
class Episodes:
    """The selected episodes of a source: numbers and digests."""

    count: int
    frames: int
    digest: str
    dataset: str  # a digest of the dataset that they are in

    def __str__(self) -> str:
        count, frames, digest = map(repr_of, (self.count, self.frames, self.digest))
        return f"{count} episodes of {frames} frames, digest {digest}"


@dataclass(frozen=True)
class SourceState:
    """The inputs of the order of a dataset's clips."""

    settings: PlanSettings
    """Settings of whole epochs."""
    request: Json
    """Arguments beside the settings, by name: clips and features."""
    episodes: Episodes
    left: tuple[PlanSettings, ...] = ()
    """Settings of each pending epoch; see `RemainingSource`."""


@dataclass(frozen=True)
class State:
    """A position, and the inputs of an epoch's order."""

    epoch: int
    batch: int | tuple[int, ...]
    """Delivered batches of this epoch, or of its rest: of the worker of `sharing`, or of each
    worker.
    """
    sharing: Sharing
    shared_arguments: Json
    """Arguments of a mix; empty for other loaders."""
    sources: tuple[SourceState, ...]
    rest: RemainingEpoch | None = None

    @property
    def batches(self) -> tuple[int, ...]:
        """`batch` as a tuple."""
        return self.batch if isinstance(self.batch, tuple) else (self.batch,)

    @property
    def rests(self) -> tuple[RemainingSource, ...]:
        """The remaining epochs of each source."""
        none = RemainingSource((), 0)
        return (none,) * len(self.sources) if self.rest is None else self.rest.sources

    @property
    def is_of_all(self) -> bool:
        """Whether the state has the positions of all workers of a rank."""
        return self.sharing.worker is None or self.sharing.workers == 1

    @property
    def is_begun(self) -> bool:
        """Whether the position is inside an epoch."""
        return any(self.batches) or self.rest is not None

    def check_batches(self, most: Iterable[int]) -> None:
        """Raise `StateError` if `batches` exceed `most`, one number for each of them."""
        for given, number in zip(self.batches, most, strict=True):
            _check(given <= number, "it is beyond the end of its epoch", f"at most {number}", given)

    def of_rank(self) -> State:
        """The state of all workers of a rank; `StateError` for one worker of several."""
        problem = "it has the position of one worker of several"
        expected = "state_dict(batches=…) of the loader, in the process that has the workers"
        _check(self.is_of_all, problem, expected, self.sharing)
        return replace(self, sharing=replace(self.sharing, worker=None), batch=self.batches)

    def next_epoch(self) -> State:
        """The start of the next epoch: a whole one, except in a mix, which continues."""
        start = 0 if isinstance(self.batch, int) else (0,) * len(self.batch)
        found = replace(self, epoch=self.epoch + 1, batch=start)
        if self.shared_arguments:
            return found
        return replace(found, sources=(replace(self.sources[0], left=()),), rest=None)

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps({"version": _VERSION, **asdict(self)}))
        return found

    @classmethod
    def parse(cls, saved: Any) -> State:
        """Inverse of `to_json`. Raises `StateError` for invalid JSON."""
        _check(
            isinstance(saved, Mapping) and "version" in saved,
            "no loader has saved it",
            "the result of a loader's state_dict(): a dict of version, epoch, …. Load the "
            "state of a StatefulDataLoader to that, with as many workers; for other numbers save "
            "state_dict(batches=…) of the loader in it",
            saved,
        )
        version = saved["version"]
        _check(version == _VERSION and type(version) is int, "another version", _VERSION, version)
        entries = {name: value for name, value in saved.items() if name != "version"}
        state: State = _read(cls, entries, "itself")
        for name, is_right, expected in state._rules():
            _check(is_right, f"{name} that no loader has saved", expected, getattr(state, name))
        return state

    def _rules(self) -> Iterator[tuple[str, bool, str]]:
        """Yield entries that must be consistent: name, whether it is, and the expected form."""
        sharing, worker = self.sharing, self.sharing.worker
        is_valid = _is_valid_sharing(sharing.ranks, sharing.workers)
        is_valid = is_valid and (worker or 0) < sharing.workers
        yield "sharing", is_valid, f"worker < workers, fewer than {_MAX_SHARDS} in all ranks"
        is_right = isinstance(self.batch, tuple) == (worker is None)
        is_right = is_right and len(self.batches) == (sharing.workers if worker is None else 1)
        yield "batch", is_right, "a number of one worker, or a list for all workers"
        lefts = [len(source.left) for source in self.sources]
        yield "sources", 0 < len(lefts) == len(self.rests), "at least one, and as many in rest"
        is_right = all(map(RemainingSource.is_of, self.rests, lefts))
        yield "rest", is_right, "epochs that follow each other, each with its segments"


def _read(kind: Any, value: Any, name: str) -> Any:
    """Convert JSON to the type of a field's annotation; `StateError` for invalid JSON."""
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
        bounds = _BOUNDS.get(name, _INTEGERS)
        expected, is_right = f"{bounds[0]} to {bounds[-1]}", type(value) is int and value in bounds
        _check(is_right, f"a number out of range in {name}", expected, value)
    return dict(value) if isinstance(value, Mapping) else value


def _json_of(kind: Any) -> tuple[Any, str]:
    """The JSON types of an annotation, and their name in errors."""
    if get_origin(kind) is tuple:
        return (list, tuple), "a list"
    is_dict = get_origin(kind) is Mapping or is_dataclass(kind)
    return (Mapping, "a dict") if is_dict else (kind, kind.__name__)


_hints = lru_cache(partial(get_annotations, eval_str=True))


def _is_valid_sharing(ranks: int, workers: int) -> bool:
    """Whether the number of shards is in range."""
    return 0 < ranks * workers < _MAX_SHARDS


def check_same(
    problem: str, saved: Json, now: Json, names: Iterable[str], url: str | None = None
) -> None:
    """Raise `StateError` if some of these entries differ between a saved state and a loader."""
    differ = [name for name in names if now.get(name, ...) != saved.get(name, ...)]
    if differ:
        expected, got = (
            ", ".join(f"{n}={repr_of(one.get(n))}" for n in differ) for one in (saved, now)
        )
        raise StateError(f"{problem}: {', '.join(differ)}", file=url, expected=expected, got=got)


def _check(is_right: bool, problem: str, expected: object = None, got: object = None) -> None:
    """Raise `StateError` for an invalid state."""
    if not is_right:
        raise StateError(f"the saved state: {problem}", expected=expected, got=repr_of(got))


def segments_of(epoch: int, rest: RemainingEpoch | None) -> Segments:
    """The finished segments of an epoch, of the only source."""
    return () if rest is None else rest.sources[0].segments(epoch)
