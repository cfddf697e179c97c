"""State: a loader's position and the inputs of the order, in memory and as JSON.

The training process owns the position (`epochs`): an epoch, and its number of delivered batches.
The rest of a position follows from the plan. As JSON, `State` is a dict of its fields and
`version`::

    {"version": 13, "epoch": 3, "batch": 120, "batch_size": 1, "ranks": 4, "workers": 1,
     "worker": null, "segments": [], "start": null, "since": 0, "shared_arguments": {},
     "sources": [{"settings": {…}, …}]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import lru_cache, partial
from inspect import get_annotations
from itertools import chain
from types import UnionType
from typing import Any, TypeAlias, get_args, get_origin

from seqrecord.errors import ClipError, StateError
from seqrecord.loader.sampling.plan_settings import WHOLE, EpochSegment, MixStart, PlanSettings
from seqrecord.store.text import repr_of
from seqrecord.store.units import MAX_INT, SEED_LIMIT

_VERSION = 13
_LAST_OF_BEFORE = "d6752092"  # the last commit that reads states of versions up to 12
_BOUNDS = {
    **dict.fromkeys(("batch_size", "block_rows"), range(1, 1 << 31)),
    **dict.fromkeys(("num_cursors", "ranks"), range(1, 1 << 24)),
    "aligned": range(WHOLE + 1),
    **dict.fromkeys(("rotation", "group"), range(1 << 24)),
    "workers": range(1, 1 << 16),
    "seed": range(1 - SEED_LIMIT, SEED_LIMIT),
}
"""Valid ranges of integers by field name; others are not negative."""

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
    """The inputs that determine the order of a dataset's clips."""

    settings: PlanSettings
    """Settings of whole epochs."""
    request: Json
    """Arguments beside the settings, by name: clips and features."""
    episodes: Json
    """The selected episodes, see `Contents.identity`; and `dataset`, its fingerprint."""
    rows: int | None = None
    """The rows of a user's table of samples."""
    rest: PlanSettings | None = None
    """Settings for the rest of an epoch, after its segments."""
    normalization: Json = field(default_factory=dict)
    """Mode, offset and scale of normalized features; see `normalizations`."""


@dataclass(frozen=True)
class State:
    """A position, and, if saved, the inputs of the order.

    `batch` batches of `batch_size` items were delivered since the last of `segments`: by all
    all `workers` of `ranks` ranks together, which take turns; or by `worker` alone.
    """

    epoch: int = 0
    batch: int = 0
    batch_size: int = 1
    ranks: int = 0
    """0: the ranks and workers of the next iteration."""
    workers: int = 0
    worker: int | None = None
    """One of several workers, with a state of its own from a StatefulDataLoader."""
    segments: Segments = ()
    start: MixStart | None = None
    """Where the datasets of a mix continued last, before this epoch or at its start."""
    since: int = 0
    """The first epoch with the episodes and samples of `sources`."""
    shared_arguments: Json = field(default_factory=dict)
    """Arguments of a mix; empty for other loaders."""
    sources: tuple[SourceState, ...] = ()

    @property
    def num_shards(self) -> int:
        """The epoch's number of shards."""
        return self.ranks * self.workers

    @property
    def is_saved(self) -> bool:
        """Whether it has the inputs of the order."""
        return bool(self.sources)

    @property
    def following(self) -> State:
        """The start of the next epoch."""
        return State(min(self.epoch + 1, MAX_INT), ranks=self.ranks, workers=self.workers)

    @property
    def segment(self) -> EpochSegment:
        """The segment of the epoch that ends at a saved position."""
        settings = tuple(source.rest or source.settings for source in self.sources)
        place = self.ranks, self.workers, self.batch, self.batch_size
        return EpochSegment(*place, settings, clips=self.clips or 0)

    @property
    def clips(self) -> int | None:
        """The clips of a batch, of a saved position in a mix."""
        clips = self.shared_arguments.get("batch_size")
        return clips if type(clips) is int else None

    def check_of_rank(self) -> None:
        """Raise `StateError` for one worker of several."""
        problem = "it has the position of one worker of several"
        expected = "state_dict(batches=…) of the loader, in the process that has the workers"
        _check(self.worker is None, problem, expected, f"worker {self.worker} of {self.workers}")

    def _check_segments(self) -> None:
        """Raise `StateError` unless segments, and passes over datasets, have settings of each."""
        count, passes = len(self.sources), () if self.start is None else self.start.passes
        is_right = all(len(segment.settings) == count for segment in self.segments)
        is_right &= not passes or (len(passes) == count and all(passes))
        of_passes = chain.from_iterable(one.segments for of_dataset in passes for one in of_dataset)
        is_right &= all(len(one.settings) == 1 and bool(one.rows) for one in of_passes)
        problem = "segments that no loader has saved"
        _check(is_right, problem, f"settings for each of {count} datasets")

    def settings_before(self, dataset: int) -> list[PlanSettings]:
        """The settings of a dataset in finished segments, and in those of its passes."""
        passes = self.start.passes[dataset] if self.start and self.start.passes else ()
        of_passes = chain.from_iterable(one.segments for one in passes)
        return [
            *(segment.settings[dataset] for segment in self.segments),
            *(segment.settings[0] for segment in of_passes),
        ]

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
        is_right, problem = version == _VERSION and type(version) is int, "another version"
        remedy = f"{_VERSION}; or begin with set_epoch(…)"
        if type(version) is int and version < _VERSION:
            remedy += f". Commit {_LAST_OF_BEFORE} is the last that resumes older ones"
        _check(is_right, problem, remedy, version)
        entries = {name: value for name, value in saved.items() if name != "version"}
        state: State = _read(cls, entries, "itself")
        _check(state.is_saved, "sources that no loader has saved", "at least one", state.sources)
        state._check_segments()
        is_right = state.worker is None or state.worker < state.workers > 1
        _check(is_right, "worker that no loader has saved", "worker < workers", state.worker)
        return state


def _read(kind: Any, value: Any, name: str) -> Any:
    """Convert JSON to the type of a field's annotation; `StateError` for invalid JSON."""
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    kind = next((one for one in kinds if isinstance(value, _json_of(one))), kinds[0])
    _check(
        isinstance(value, _json_of(kind)), f"another type in {name}", _json_of(kind).__name__, value
    )
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
        bounds = _BOUNDS.get(name, range(MAX_INT + 1))
        expected, is_right = f"{bounds[0]} to {bounds[-1]}", type(value) is int and value in bounds
        _check(is_right, f"a number out of range in {name}", expected, value)
    return value


def _json_of(kind: Any) -> Any:
    """The JSON type of an annotation."""
    is_dict = get_origin(kind) is Mapping or is_dataclass(kind)
    return dict if is_dict else list if get_origin(kind) is tuple else kind


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
