"""What gives batches, as `ClipLoader` and `MixLoader` do: all that epochs know of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from seqrecord.sampling.rest import Stage

if TYPE_CHECKING:
    from seqrecord.engine.batches import Batch
    from seqrecord.engine.engine import Engine
    from seqrecord.engine.stats import EngineStats
    from seqrecord.engine.trace import Trace
    from seqrecord.pipes.distributed import Ranks
    from seqrecord.pipes.planner import Planner
    from seqrecord.pipes.states import State
    from seqrecord.sampling import Part

__all__ = [
    "BatchSource",
    "Clip",
    "PlanT",
    "Planned",
    "Rest",
    "SourceRest",
    "Stages",
]

Clip: TypeAlias = dict[str, Any]
"""Feature name to tensor [frames, …], or list of tensors; `episode` a key, `start` an int.

A batch of clips is the same with one axis more: tensors [clips, frames, …] or lists of lists,
`episode` a list of keys, `start` int64 [clips]. Texts are lists too.
"""

Stages: TypeAlias = tuple[Stage, ...]
"""Those of an epoch that are over, because the number of ranks or workers has changed."""


@dataclass(frozen=True)
class SourceRest:
    """What a dataset goes on with: the rests of epochs that follow each other, then whole epochs.

    `pending` has these epochs with their stages, `following` is the first whole epoch.
    """

    pending: tuple[tuple[int, Stages], ...]
    following: int

    def stages(self, epoch: int) -> Stages:
        """Those of an epoch, none of a whole one."""
        return dict(self.pending).get(epoch, ())


@dataclass(frozen=True)
class Rest:
    """Where epochs go on with other ranks or workers: what these have left of each dataset.

    It is the change of this `number`, in this epoch. Of that a mix had `left` batches in all parts
    together; `None` where it had not begun.
    """

    epoch: int
    left: int | None
    number: int
    sources: tuple[SourceRest, ...]


PlanT = TypeVar("PlanT", bound="Planned")


class Planned(Protocol):
    """One part of one epoch, as integers."""

    @property
    def num_batches(self) -> int: ...
    @property
    def counts(self) -> dict[str, int]:
        """What statistics say of its clips."""


class BatchSource(Protocol[PlanT]):
    """Plans epochs and runs them. Picklable."""

    ranks: Ranks
    goes_on: bool
    """Whether an epoch goes on where the one before has ended: then what ranks or workers had left
    when their number changed is that of all later epochs, else of one."""

    @property
    def sources(self) -> Sequence[Planner]:
        """What clips come from: one dataset, or several."""

    def asked(self) -> Mapping[str, Any]:
        """What was asked for beside what each of the sources was, as JSON."""

    def plan(self, epoch: int, part: Part, rest: Rest | None = None) -> PlanT:
        """The plan of one part of one epoch, or of what `rest` has of it."""

    def rest_after(self, state: State) -> Rest | None:
        """What is left when ranks or workers leave an epoch where a state says.

        Raises `StateError` for a state that does not tell where they all are.
        """

    def check_place(self, state: State) -> None:
        """Raise `StateError` for a state that is of no epoch, or beyond the end of its epoch."""

    def start(self, plan: PlanT, rest: Rest | None, *, batch: int, stats: EngineStats) -> Engine:
        """An engine that runs a plan, of an epoch with this `rest`, from `batch` on."""

    def present(self, batch: Batch, plan: PlanT, number: int) -> list[Clip]:
        """What users get of a batch, the plan's `number`; of several clips the last comes first."""

    def trace(self) -> Trace:
        """The trace of an iteration in this process."""

    def stats(self, done: dict[str, Any], epoch: int) -> dict[str, Any]:
        """What was done in an iteration, with what is known of the clips."""
