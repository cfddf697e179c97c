"""Iteration: what a consumer takes of the batches of one plan, and how far it has come."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import repeat
from operator import length_hint
from typing import Any

from seqrecord.engine.engine import Engine
from seqrecord.engine.stats import EngineStats
from seqrecord.pipes.clip_loader import Clip
from seqrecord.pipes.collated import Collated
from seqrecord.pipes.made_clips import ClipsToCome
from seqrecord.pipes.shuffled import ShuffledBatches

__all__ = ["Iteration"]

_POP = list.pop


class Iteration:
    """Runs a plan from `batch` on. What the engine has made waits here until it is taken.

    Args:
        loader: a `ClipLoader`, or a `MixLoader`.
        plan: one of the loader's, of an epoch with these `stages`.
        batch: the first batch, or single clip.
        shuffled, collated: see `Epochs.iterate`.
    """

    def __init__(
        self,
        loader: Any,
        plan: Any,
        stages: Any,
        *,
        batch: int,
        shuffled: ShuffledBatches | None,
        collated: Collated | None,
    ) -> None:
        self._loader, self._plan = loader, plan
        self._number = batch  # of the batch that is made next
        self._waiting: list[Any] = []  # made, and nobody has them; the last one comes first
        self._to_come: ClipsToCome | None = None  # single clips that are given before they are made
        self._numbers: Iterator[int] = iter(())  # of those that nobody has got
        self._is_single = loader.batch_size is None
        self._is_collated = collated is not None
        self._trace = loader.trace()
        self.stats = EngineStats(trace=self._trace)
        more = {"shuffled": shuffled, "collated": collated}  # never of a mix, which takes none
        more = {name: value for name, value in more.items() if value is not None}
        self._engine: Engine | None = loader.start(
            plan, stages, batch=batch, stats=self.stats, **more
        )

    @property
    def delivered(self) -> int:
        """The batches of the plan that somebody has got, with those before the first one."""
        return self._number - len(self._waiting) - length_hint(self._numbers)

    @property
    def is_open(self) -> bool:
        """Whether its engine runs."""
        return self._engine is not None

    def clips(self) -> Iterator[Clip]:
        """The batches, or single clips; once."""
        engine, trace = self._engine, self._trace
        assert engine is not None
        try:
            if engine.is_placed:
                # No work for each clip: of small ones, a hundred thousand come in a second.
                yield from zip(repeat(to_come := self._begin_clips(engine)), self._numbers)
                to_come.finish()
                self._to_come = None  # somebody has all
            for batch in engine:
                clips = self._made(batch)
                del batch  # so that its memory is the consumer's alone to keep, and the clips' too
                self._number, self._waiting = self._number + len(clips), clips
                try:
                    if not trace.is_on:
                        # No work for each clip here either.
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

    def _begin_clips(self, engine: Engine) -> ClipsToCome:
        """The single clips of an engine that makes them in another order, for `collate` alone."""
        count = self._plan.num_batches - self._number
        self._number, self._numbers = self._number + count, iter(range(count))
        made = partial(self._loader.made, plan=self._plan)
        self._to_come = to_come = ClipsToCome(engine, made)
        return to_come

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
        self.stats.clips -= self._clips_waiting
        self.stats.batches -= self._clips_waiting if self._is_single else count
        self._waiting.clear()
        if self._to_come is not None:
            self._to_come.clear()

    def report(self) -> dict[str, Any]:
        """What the engine has done, of clips only those that somebody has got."""
        report = self.stats.report()
        report["clips"] -= self._clips_waiting
        report["batches"] -= self._clips_waiting if self._is_single else len(self._waiting)
        return report

    @property
    def _clips_waiting(self) -> int:
        if self._is_single:
            return len(self._waiting) + (0 if self._to_come is None else len(self._to_come))
        return sum(len(batch["start"]) for batch in self._waiting)

    def _made(self, batch: Any) -> list[Any]:
        """What users get of a batch, the last one first."""
        loader, plan, number = self._loader, self._plan, self._number
        if len(batch) == plan.first_clip(number + 1) - plan.first_clip(number):
            return [loader.clip(batch, plan, number)]
        clips: list[Any]
        if not self._is_single:
            clips = loader.batches(batch, plan, number)
        else:
            clips = (loader.rows if self._is_collated else loader.singles)(batch, plan)
        clips.reverse()
        return clips
