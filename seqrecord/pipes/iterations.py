"""Iteration: one plan of a loader, run from a place in its epoch on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic

from seqrecord.engine.engine import Engine
from seqrecord.engine.stats import EngineStats
from seqrecord.pipes.states import BatchSource, Clip, PlanT, Remainder

__all__ = ["Iteration"]


class Iteration(Generic[PlanT]):
    """Runs a plan of a loader from a place in its epoch on. What the engine has made waits here
    until it is taken.
    """

    def __init__(
        self, loader: BatchSource[PlanT], plan: PlanT, rest: Remainder | None, batch: int
    ) -> None:
        self._present, self._counts = loader.present, plan.counts
        # Without `even_batches`, another rank may have had a batch more than this one has.
        self._number = batch = min(batch, plan.num_batches)  # of the batch that is made next
        self._waiting: list[Clip] = []  # single clips that nobody has; the last one comes first
        self._forgotten = 0  # … and that nobody will get
        self._trace = loader.trace()
        self._stats = EngineStats(trace=self._trace)
        self._engine: Engine | None
        self._engine = loader.start(plan, rest, batch=batch, stats=self._stats)

    @property
    def delivered(self) -> int:
        """The batches of the plan that somebody has got, with those before the first one."""
        return self._number - self._undelivered

    @property
    def is_open(self) -> bool:
        """Whether its engine runs."""
        return self._engine is not None

    def clips(self, plan: PlanT) -> Iterator[Clip]:
        """The batches, or single clips, of its plan; once."""
        engine, trace = self._engine, self._trace
        assert engine is not None
        try:
            for batch in engine:
                clips = self._present(batch, plan, self._number)
                del batch  # so that its memory is the consumer's alone to keep, and the clips' too
                self._number, self._waiting = self._number + len(clips), clips
                while clips:
                    with trace.span("consumer"):
                        yield clips.pop()
            engine.close()
        finally:
            engine.drop()
            trace.close()
            self._engine = None
            self.forget()

    def end(self) -> None:
        """Free its memory, for another iteration is to begin."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None
            self.forget()
            self._trace.close()

    def forget(self) -> None:
        """Drop what waits: nobody will get it, and nobody has."""
        self._forgotten += len(self._waiting)
        self._waiting.clear()

    def report(self) -> dict[str, Any]:
        """What the engine has done, of clips only those that somebody has got."""
        report = {**self._stats.report(), **self._counts}
        report["clips"] -= self._undelivered
        report["batches"] -= self._undelivered
        return report

    @property
    def _undelivered(self) -> int:
        return self._forgotten + len(self._waiting)
