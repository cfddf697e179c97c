"""`BatchSource`, which plans and runs epochs, and `Iteration`, one run of a plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from seqrecord.loader.engine.batches import Batch
from seqrecord.loader.engine.engine import Engine
from seqrecord.loader.engine.stats import EngineStats, Trace
from seqrecord.loader.pipes.collating import make_numpy
from seqrecord.loader.pipes.distributed import Ranks
from seqrecord.loader.pipes.options import LoaderOptions
from seqrecord.loader.pipes.source_orders import SourceOrder
from seqrecord.loader.pipes.states import Clip, Segments, State
from seqrecord.loader.sampling.bounds import PlanSettings
from seqrecord.loader.sampling.runs import Shard


class AnyPlan(Protocol):
    """One shard of one epoch, as integers."""

    @property
    def num_batches(self) -> int: ...
    @property
    def counts(self) -> dict[str, int]:
        """Statistics of its clips."""


class BatchSource(Protocol):
    """Plans epochs and runs them. Picklable."""

    @property
    def differs_by_epoch(self) -> bool:
        """Whether order, clips or draws depend on the epoch."""

    @property
    def options(self) -> LoaderOptions:
        """The arguments of the loader."""

    @property
    def batch_size(self) -> int | None:
        """The clips of the largest batch; `None` for single clips."""

    @property
    def ranks(self) -> Ranks:
        """The ranks that share an epoch."""

    @property
    def sources(self) -> Sequence[SourceOrder]:
        """The order of each dataset."""

    def shared_arguments(self, epoch: int) -> Mapping[str, Any]:
        """The arguments that determine the order up to an epoch, beside the arguments of each
        source, as JSON.
        """

    def plan(
        self,
        epoch: int,
        shard: Shard,
        segments: Segments = (),
        *settings: PlanSettings | None,
    ) -> AnyPlan:
        """The plan of one shard of one epoch, or of the rest of it after `segments`; with the
        `settings` of each dataset, whatever memory they need.
        """

    def after_change(self, state: State) -> State:
        """The position of a state inside an epoch on other ranks, workers or batch sizes."""

    def in_excerpts_of(self, state: State) -> BatchSource:
        """The loader whose frame lists have the excerpts of a state; itself, if it has them.

        Raises `MemoryLimitError` if they do not fit.
        """

    def start(self, plan: Any, segments: Segments, *, batch: int, stats: EngineStats) -> Engine:
        """Start an engine for a plan, of an epoch after these `segments`, at `batch`."""

    def to_clips(self, batch: Batch, plan: Any, number: int) -> list[Clip]:
        """Convert batch `number` of the plan to items for users; single clips in reverse order."""

    def trace(self) -> Trace:
        """The trace of an iteration in this process."""

    def stats(self, done: dict[str, Any], epoch: int) -> dict[str, Any]:
        """Extend the statistics of an iteration by clip counts."""


class Iteration:
    """Runs a plan from a batch on. Buffers single clips of an engine's batch."""

    def __init__(self, source: BatchSource) -> None:
        self.delivered = 0  # batches of the plan, with those before the first one
        self.is_complete = False  # … and complete
        self._source = source
        self._made = 0  # batches of the plan, including waiting ones
        self._waiting: list[Clip] = []  # the last one comes first
        self._counts: dict[str, int] = {}
        self._stats = EngineStats()
        self._engine: Engine | None = None  # whose threads may run
        self.is_open = False  # whether it may return batches

    def clips(self, begin: Callable[[Iteration], tuple[AnyPlan, Segments, int]]) -> Iterator[Clip]:
        """Yield the batches, or single clips; once.

        The first `next` calls `begin`, which returns the plan, the segments before it, and the
        first batch.
        """
        source, begun = self._source, time.perf_counter()
        plan, segments, batch = begin(self)
        # With `last_batch="keep"`, another rank may have had a batch more than this one has.
        self._made = self.delivered = min(batch, plan.num_batches)
        trace, self._counts = source.trace(), plan.counts
        self._stats = EngineStats(trace=trace, begun=begun)
        engine = self._engine = source.start(plan, segments, batch=self._made, stats=self._stats)
        self.is_open = True
        try:
            resumed = begun  # all time inside `next` is waiting
            for arrays in engine:
                clips = self._waiting = source.to_clips(arrays, plan, self._made)
                for clip in clips if source.options.output == "numpy" else ():
                    make_numpy(clip)
                del arrays  # the consumer's alone to keep
                self._made += len(clips)
                while clips:
                    self.delivered += 1
                    taken = time.perf_counter()
                    self._stats.add_waiting(resumed, taken)
                    try:
                        yield clips.pop()
                    finally:
                        resumed = time.perf_counter()
                        if trace.is_on:
                            trace.add("consumer", taken, resumed)
            engine.close()
            self._stats.add_waiting(resumed, time.perf_counter())
            self.is_complete = True
        finally:
            engine.drop()  # a finalizer waits for a while only; `end` waits for the rest
            trace.close()
            self.is_open = False
            self._waiting.clear()

    def end(self) -> None:
        """Free the memory, before another iteration begins."""
        if self._engine is not None:
            self._engine.close()
            self._engine, self.is_open = None, False
            self._waiting.clear()
            self._stats.trace.close()

    def report(self) -> dict[str, Any]:
        """Statistics of the engine, with the delivered clips and batches."""
        report, left = {**self._stats.report(), **self._counts}, self._made - self.delivered
        return {**report, "clips": report["clips"] - left, "batches": report["batches"] - left}
