"""BatchSource: plans epochs and runs them; Iteration: one of its plans, from a batch on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, Protocol

from seqrecord.engine.batches import Batch
from seqrecord.engine.engine import Engine
from seqrecord.engine.stats import EngineStats
from seqrecord.engine.trace import Trace
from seqrecord.pipes.distributed import Ranks
from seqrecord.pipes.options import LoaderOptions
from seqrecord.pipes.source_orders import SourceOrder
from seqrecord.pipes.states import Clip, RemainingEpoch, State
from seqrecord.sampling import Shard


class AnyPlan(Protocol):
    """One shard of one epoch, as integers."""

    @property
    def num_batches(self) -> int: ...
    @property
    def counts(self) -> dict[str, int]:
        """Statistics of its clips."""


class BatchSource(Protocol):
    """Plans epochs and runs them. Picklable."""

    continues_epochs: bool
    """Whether an epoch continues where the one before has ended: then the clips that ranks or
    workers had left when their number changed come in later epochs, else in the same one."""

    @property
    def batch_size(self) -> int | None:
        """Clips of a batch; `None` for single clips."""

    @property
    def options(self) -> LoaderOptions:
        """The arguments of the loader."""

    @property
    def ranks(self) -> Ranks:
        """The ranks that share an epoch."""

    @property
    def sources(self) -> Sequence[SourceOrder]:
        """The orders of one dataset, or of several."""

    def shared_arguments(self) -> Mapping[str, Any]:
        """The arguments of the order beside those of the sources, as JSON."""

    def plan(self, epoch: int, shard: Shard, rest: RemainingEpoch | None = None) -> AnyPlan:
        """The plan of one shard of one epoch, or of the rest of it."""

    def remainder_after(self, state: State) -> RemainingEpoch | None:
        """The clips left when ranks or workers leave an epoch at the position of a state.

        Raises `StateError` for a state without the positions of all workers.
        """

    def check_place(self, state: State) -> None:
        """Raise `StateError` for a state of no epoch, or beyond the end of its epoch."""

    def start(
        self, plan: Any, rest: RemainingEpoch | None, *, batch: int, stats: EngineStats
    ) -> Engine:
        """An engine that runs a plan, of an epoch with this `rest`, from `batch` on."""

    def to_clips(self, batch: Batch, plan: Any, number: int) -> list[Clip]:
        """A batch for users, the plan's `number`; of several clips the last comes first."""

    def trace(self) -> Trace:
        """The trace of an iteration in this process."""

    def stats(self, done: dict[str, Any], epoch: int) -> dict[str, Any]:
        """The statistics of an iteration, with those of the clips."""


class Iteration:
    """Runs one plan of a source from a batch on. Single clips of an engine's batch wait here until
    they are taken.
    """

    def __init__(self, source: BatchSource) -> None:
        self.delivered = 0  # batches of the plan, with those before the first one
        self.is_complete = False  # … and all of them are delivered
        self._source = source
        self._made = 0  # batches of the plan, with those that wait
        self._waiting: list[Clip] = []  # the last one comes first
        self._counts: dict[str, int] = {}
        self._stats = EngineStats()
        self._engine: Engine | None = None

    @property
    def is_open(self) -> bool:
        """Whether its engine runs."""
        return self._engine is not None

    def clips(
        self, begin: Callable[[Iteration], tuple[AnyPlan, RemainingEpoch | None, int]]
    ) -> Iterator[Clip]:
        """The batches, or single clips; once. `begin` is called by the first `next`, for the plan,
        the rest of its epoch, and its first batch."""
        source = self._source
        plan, rest, batch = begin(self)
        # Without `even_batches`, another rank may have had a batch more than this one has.
        self._made = self.delivered = min(batch, plan.num_batches)
        trace, self._counts = source.trace(), plan.counts
        self._stats = EngineStats(trace=trace)
        engine = self._engine = source.start(plan, rest, batch=self._made, stats=self._stats)
        try:
            for arrays in engine:
                clips = self._waiting = source.to_clips(arrays, plan, self._made)
                del arrays  # the consumer's alone to keep
                self._made += len(clips)
                while clips:
                    self.delivered += 1
                    taken = perf_counter()
                    try:
                        yield clips.pop()
                    finally:
                        if trace.is_on:
                            trace.add("consumer", taken, perf_counter())
            engine.close()
            self.is_complete = True
        finally:
            engine.drop()
            trace.close()
            self._engine = None
            self._waiting.clear()

    def end(self) -> None:
        """Free its memory, as another iteration is to begin."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None
            self._waiting.clear()
            self._stats.trace.close()

    def report(self) -> dict[str, Any]:
        """Statistics of the engine, with the clips and batches that were delivered."""
        report, left = {**self._stats.report(), **self._counts}, self._made - self.delivered
        return {**report, "clips": report["clips"] - left, "batches": report["batches"] - left}
