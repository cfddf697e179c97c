"""State: a loader's position and the inputs of the order, in memory and as JSON.

The training process owns the position (`epochs`): an epoch, and its number of delivered batches.
DataLoader workers receive it as integers (`worker_starts`). As JSON, `State` is a dict of its
fields and `version`::

    {"version": 8, "epoch": 3, "batch": 120, "ranks": 4, "workers": 1, "worker": 0,
     "segments": [], "shared_arguments": {}, "sources": [{"settings": {…}, "request": {…}, …}]}

`batch` is a list, a number for each worker, if `worker` is `None`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
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

_VERSION = 8
_MAX_SHARDS = 1 << 31  # exclusive
_SETTINGS = ("batch_size", "num_cursors", "block_frames", "run_frames", "first_block_frames")
_INTEGERS = range(1 << 63)
_BOUNDS = {
    **dict.fromkeys(_SETTINGS, range(1 << 31)),
    "seed": range(1 - SEED_LIMIT, SEED_LIMIT),
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
class SourceState:
    """The inputs of the order of a dataset's clips."""

    settings: PlanSettings
    """Settings of whole epochs."""
    request: Json
    """Arguments beside the settings, by name: clips and features."""
    episodes: Json
    """The selected episodes: `count`, `frames`, `digest`; and `dataset`, its fingerprint."""
    rest: PlanSettings | None = None
    """Settings of the rest of an epoch, after its segments."""


@dataclass(frozen=True)
class State:
    """A position, and the inputs of an epoch's order.

    It is the position of worker `worker` of `workers`, on each of `ranks` ranks; `worker=None`
    stands for all workers of a rank. `batch` is the number of delivered batches since the last of
    `segments`. A state without `sources` is the position alone.
    """

    epoch: int
    batch: int | tuple[int, ...]
    ranks: int
    workers: int
    worker: int | None
    segments: Segments = ()
    shared_arguments: Json = field(default_factory=dict)
    """Arguments of a mix; empty for other loaders."""
    sources: tuple[SourceState, ...] = ()

    @classmethod
    def of(cls, shard: Shard) -> State:
        """The start of the shard of this process: of a DataLoader worker, or of all workers."""
        worker, workers = this_worker()
        if shard.count % workers or shard.index % workers != worker:
            worker, workers = 0, 1
        return cls(0, 0, shard.count // workers, workers, worker)

    @property
    def num_shards(self) -> int:
        """The number of shards of the epoch."""
        return self.ranks * self.workers

    @property
    def batches(self) -> tuple[int, ...]:
        """`batch` as a tuple."""
        return self.batch if isinstance(self.batch, tuple) else (self.batch,)

    @property
    def settings(self) -> PlanSettings:
        """The settings of the epoch of the only source."""
        return self.sources[0].rest or self.sources[0].settings

    @property
    def is_begun(self) -> bool:
        """Whether the position is inside an epoch."""
        return any(self.batches) or bool(self.segments)

    @property
    def is_of_all(self) -> bool:
        """Whether the state has the positions of all workers of a rank."""
        return self.worker is None or self.workers == 1

    def of_rank(self) -> State:
        """The state of all workers of a rank; `StateError` for one worker of several."""
        problem = "it has the position of one worker of several"
        expected = "state_dict(batches=…) of the loader, in the process that has the workers"
        _check(self.is_of_all, problem, expected, f"worker {self.worker} of {self.workers}")
        return replace(self, worker=None, batch=self.batches)

    def check_batches(self, most: Iterable[int]) -> None:
        """Raise `StateError` if `batches` exceed `most`, one number for each of them."""
        for given, number in zip(self.batches, most, strict=True):
            _check(given <= number, "it is beyond the end of its epoch", f"at most {number}", given)

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
        has_shards = 0 < self.num_shards < _MAX_SHARDS and (self.worker or 0) < self.workers
        yield "workers", has_shards, f"worker < workers, fewer than {_MAX_SHARDS} in all ranks"
        number = self.workers if self.worker is None else 1
        is_right = isinstance(self.batch, tuple) == (self.worker is None)
        is_right = is_right and len(self.batches) == number
        yield "batch", is_right, "a number of one worker, or a list for all workers"
        yield "sources", bool(self.sources), "at least one"
        rests = [source.rest is not None for source in self.sources]
        is_right = any(self.segments) == any(rests) and (len(rests) == 1 or not any(rests))
        sizes = [one.ranks * len(one.batches) for one in self.segments]
        is_right = is_right and all(0 < size < _MAX_SHARDS for size in sizes)
        yield "segments", is_right, "segments of shards, and settings of the rest"


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
        return tuple(_read(get_args(kind)[0], item, name) for item in value)
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
