"""Iteration: what a consumer takes of the batches of one plan, and how far it has come."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

from seqrecord.engine.engine import Engine
from seqrecord.engine.stats import EngineStats
from seqrecord.pipes.clip_loader import Clip

__all__ = ["Iteration"]

_POP = list.pop


class Iteration:
    """Runs a plan from `batch` on. What the engine has made waits here until it is taken.

    Args:
        loader: a `ClipLoader`, or a `MixLoader`.
        plan: one of the loader's, of an epoch with these `stages`.
        batch: the first batch, or single clip.
    """

    def __init__(
        self,
        loader: Any,
        plan: Any,
        stages: Any,
        *,
        batch: int,
    ) -> None:
        self._loader, self._plan = loader, plan
        self._number = batch  # of the batch that is made next
        self._waiting: list[Any] = []  # single clips that nobody has; the last one comes first
        self._is_single = loader.batch_size is None
        self._trace = loader.trace()
        self.stats = EngineStats(trace=self._trace)
        self._engine: Engine | None = loader.start(plan, stages, batch=batch, stats=self.stats)

    @property
    def delivered(self) -> int:
        """The batches of the plan that somebody has got, with those before the first one."""
        return self._number - len(self._waiting)

    @property
    def is_open(self) -> bool:
        """Whether its engine runs."""
        return self._engine is not None

    def clips(self) -> Iterator[Clip]:
        """The batches, or single clips; once."""
        engine, trace = self._engine, self._trace
        assert engine is not None
        try:
            for batch in engine:
                clips = self._made(batch)
                del batch  # so that its memory is the consumer's alone to keep, and the clips' too
                self._number, self._waiting = self._number + len(clips), clips
                try:
                    if not trace.is_on:
                        # No work for each clip: of small ones, a hundred thousand come in a
                        # second.
                        yield from map(_POP, repeat(clips, len(clips)))
                    while clips:
                        with trace.span("consumer"):
                            yield clips.pop()
                except IndexError:  # nothing is left where this iteration was ended
                    if clips:
                        raise
            engine.close()
        finally:
            engine.drop()
            trace.close()
            self._engine = self._plan = None
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
        count = len(self._waiting)
        self._number -= count
        # Without the lock, which a fork may never get: only the consumer counts these.
        self.stats.clips -= count
        self.stats.batches -= count
        self._waiting.clear()

    def report(self) -> dict[str, Any]:
        """What the engine has done, of clips only those that somebody has got."""
        report = self.stats.report()
        report["clips"] -= len(self._waiting)
        report["batches"] -= len(self._waiting)
        return report

    def _made(self, batch: Any) -> list[Any]:
        """What users get of a batch; of several single clips the last one comes first."""
        if not self._is_single or len(batch) == 1:
            return [self._loader.clip(batch, self._plan, self._number)]
        clips: list[Any] = self._loader.singles(batch, self._plan)
        clips.reverse()
        return clips
