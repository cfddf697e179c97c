"""Epochs: the position of a loader, which can be set, saved and loaded, and moves by iterations."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import Any, Generic

from torch.utils.data import get_worker_info

from seqrecord.engine.stats import EngineStats
from seqrecord.errors import ClipError, MemoryLimitError, SeqRecordError, StateError
from seqrecord.pipes.agreement import check_ranks_agree
from seqrecord.pipes.distributed import say_once, this_worker
from seqrecord.pipes.iterations import Iteration
from seqrecord.pipes.places import Place, continues, find_place, is_over, items_given, state_at
from seqrecord.pipes.states import BatchSource, Clip, PlanT, Sharing, State
from seqrecord.pipes.worker_epochs import Start, Turns
from seqrecord.processes.forks import check_fork
from seqrecord.sampling import Part
from seqrecord.units import MAX_INT, check_integer


class Phase(Enum):
    """How far the epoch of a position is."""

    WAITING = "nobody has begun it"
    RUNNING = "an iteration of this process has begun it"
    ENDED = "an iteration of this process has given all of it"
    IN_WORKERS = "worker processes have begun it"


class Epochs(Generic[PlanT]):
    """A loader's epochs, one after the other, and the position in them. Picklable.

    The position is two integers: the epoch, and how many of its batches were delivered. Every
    iteration is of the epoch after the one that was begun before, whether that was left early or
    not; only after `load` or `set_epoch(batches=…)` one starts inside an epoch. One iteration runs
    at a time: a new one ends the engine of the one before. In a DataLoader's worker an epoch begins
    when an iteration is made, see `worker_epochs`.
    """

    def __init__(self, loader: BatchSource[PlanT]) -> None:
        self.loader = loader
        self._phase = Phase.WAITING
        self._place = Place(Start())
        self._loaded: State | None = None  # the state that was loaded last
        self._is_told = False  # this worker which epoch comes next
        self._offer: object = None  # stands for the iteration that was made last
        self._last: Iteration[PlanT] | None = None  # the one that was begun last
        self._turns = Turns()
        self._workers = 1  # that have begun the position's epoch

    def __getstate__(self) -> dict[str, Any]:
        self._follow_workers()
        place = replace(self._place, batch=self._delivered)
        return {**self.__dict__, "_place": place, "_offer": None, "_last": None}

    @property
    def current(self) -> int:
        """The epoch that runs, or if none does the next one; that too while worker processes run.

        For them it is the one after that which they have begun last.
        """
        self._follow_workers()
        is_open = self._last is not None and self._last.is_open
        return self._place.epoch + (self.is_begun and not is_open)

    @property
    def is_begun(self) -> bool:
        """Whether the epoch that the position is in was begun."""
        return self._phase is not Phase.WAITING

    @property
    def is_inside(self) -> bool:
        """Whether the next iteration begins after batches that `set_epoch` was given."""
        return not self.is_begun and self._place.start.batches > 0

    def iterate(self, part: Part) -> Iterator[Clip]:
        """The batches of one epoch, or those that are left of the one that was loaded.

        The epoch counts as begun with the first `next`. Raises `StateError` when a state was
        loaded that is in the middle of an epoch of other parts, and does not tell where they all
        are; in a DataLoader's worker with the first `next`, for one that goes on with another epoch
        would die of it.
        """
        try:
            return self._begin(part)
        except SeqRecordError as error:
            if get_worker_info() is None:
                raise
            return map(_failed, [error])

    def _begin(self, part: Part) -> Iterator[Clip]:
        """See `iterate`."""
        if self._last is not None:
            self._last.end()  # its memory must be free before the next one's is taken
        sharing = Sharing.of(part)
        self._follow_workers()
        if self._turns.in_worker:
            self._take_turn()
        elif self.is_begun or is_over(self.loader, self._place, sharing, part):
            self._go_to(Start(self._place.epoch + 1))
        self._place = place = self._place_for(sharing)
        loaded = self._loaded
        if loaded is not None and place.start.is_loaded and continues(self.loader, loaded, sharing):
            loaded.use_settings(self.loader)
        self._offer = offer = object()
        return self._run(offer, part)

    def set_epoch(self, epoch: int, batches: int = 0, batch_size: int | None = None) -> None:
        """The next iteration is of this epoch, after so many of its batches; one that runs does not
        change.

        The position in this epoch stays, if it was not yet begun and no `batches` are given. An
        iteration that was made and not yet begun is of this epoch too.
        """
        start = _checked(epoch, batches, batch_size)
        self._follow_workers()
        if batches or epoch != self._place.epoch or self.is_begun:
            offer = None if self.is_begun else self._offer
            self._go_to(start)
            self._offer = offer
        self._is_told = get_worker_info() is not None  # it holds for this worker's next iteration
        self._publish()

    def state(
        self,
        part: Part,
        *,
        batches: int | None = None,
        batch_size: int | None = None,
        at_end: bool = False,
    ) -> dict[str, Any]:
        """The position, as JSON; `part` says whose, where no iteration has. With `batches`, that
        after so many of the epoch that was begun last, on all workers of a rank together.

        After an epoch's end that is the start of the next one, unless `at_end` keeps it at the
        end. A DataLoader's worker stays there, for others may not have come to their end.

        Raises `StateError` where worker processes have the position, and `batches` are not given.
        """
        self._follow_workers()
        if batches is not None:
            return self._state_after(part, _checked(self._place.epoch, batches, batch_size))
        place, batch = self._place, self._delivered
        if self._phase is Phase.IN_WORKERS:
            raise _no_position(place.epoch)
        if self._loaded is not None and place.start.is_loaded and place.sharing is None:
            return self._loaded.to_json()
        sharing, epoch = place.sharing or Sharing.of(part), place.epoch
        is_over = self._phase is Phase.ENDED and not at_end and get_worker_info() is None
        if is_over or place.sharing is None:
            place = self._place_for(sharing)
            batch = place.batch
        if is_over:
            epoch, batch = epoch + 1, 0
        rest = None if place.rest is None or epoch < place.rest.epoch else place.rest
        return state_at(self.loader, epoch, batch, sharing, rest).to_json()

    def _state_after(self, part: Part, after: Start) -> dict[str, Any]:
        """See `state`."""
        workers = self._workers if self._phase is Phase.IN_WORKERS else 1
        sharing = Sharing(part.count, workers, None if workers > 1 else 0)
        place = self._place
        if place.sharing is None:
            place = self._place_for(sharing, replace(place.start, batches=0))
        given, most = items_given(self.loader, after, place.rest, workers)
        batch = tuple(given) if workers > 1 else given[0]
        found = state_at(self.loader, place.epoch, batch, sharing, place.rest)
        return (found.next_epoch() if given == most else found).to_json()

    def load(self, state: Mapping[str, Any], part: Part) -> None:
        """Load a position: the next iteration starts right after the batches delivered.

        This epoch and those after it have the settings that the state says, where memory and
        defaults would have chosen others; but for what is left of an epoch that goes on with other
        ranks or workers, and for the epochs after it, they are chosen anew. `part` is the one that
        an iteration would have.

        Raises `StateError` for a state of another dataset, of other settings, or of no loader, and
        `MemoryLimitError` for one whose settings do not fit; the position is then as it was.
        """
        saved = State.parse(state)
        saved.settle(self.loader, part.count)
        self._go_to(Start(saved.epoch, is_loaded=True))
        self._loaded = saved
        self._is_told = get_worker_info() is not None
        self._publish()

    def stats(self) -> dict[str, Any]:
        """What the last iteration has done so far, and what limits it, in words."""
        done = EngineStats().report() if self._last is None else self._last.report()
        return self.loader.stats(done, self._place.epoch)

    def _run(self, offer: object, part: Part) -> Iterator[Clip]:
        if self._offer is not offer:
            raise ClipError("this iteration was ended: another one has begun")
        place = self._place
        if place.sharing is None:  # `set_epoch` was called meanwhile
            place = self._place_for(Sharing.of(part))
        if get_worker_info() is None:
            self._turns.iterations += 1
            name = f"iteration {self._turns.iterations}"
            check_ranks_agree(self, self.loader, place, place.batch, name)
        self._last, self._is_told = None, False
        self._place = replace(place, start=Start(place.epoch))
        self._phase = Phase.RUNNING
        self._publish()
        assert place.sharing is not None
        moved = (place.sharing.worker or 0) - (Sharing.of(part).worker or 0)
        plan = self.loader.plan(place.epoch, Part(part.index + moved, part.count), place.rest)
        self._last = iteration = Iteration(self.loader, plan, place.rest, place.batch)
        yield from iteration.clips(plan)
        if self._last is iteration and self._phase is Phase.RUNNING:
            self._phase = Phase.ENDED

    @property
    def _delivered(self) -> int:
        """Batches of the position's epoch, or of what was left of it, that somebody has got."""
        is_here = self._phase in (Phase.RUNNING, Phase.ENDED) and self._last is not None
        return self._last.delivered if self._last is not None and is_here else self._place.batch

    def _go_to(self, start: Start) -> None:
        """To a start of an epoch."""
        check_integer("epoch", start.epoch, most=MAX_INT)
        self._phase, self._place = Phase.WAITING, Place(start)
        self._offer, self._is_told = None, False

    def _place_for(self, sharing: Sharing, start: Start | None = None) -> Place:
        """The place of an iteration that shares the epoch so. See `find_place`."""
        start = start or self._place.start
        return find_place(self.loader, self._loaded, start, sharing, is_told=self._is_told)

    # ---- with worker processes

    @property
    def _next(self) -> Start:
        """Where the next iteration begins, if workers of this process begin it."""
        following = Start(min(self._place.epoch + 1, MAX_INT))
        return following if self.is_begun else self._place.start

    def _publish(self) -> None:
        """Give workers of later iterations the next start, and the state that was loaded last."""
        self._turns.set_next(self._next, None if self._loaded is None else self._loaded.to_json())

    def _follow_workers(self) -> None:
        """Go to the epoch that workers have begun since this process published last."""
        if (turn := self._turns.newest()) is None:
            return
        self._go_to(turn.start)
        self._phase, self._workers = Phase.IN_WORKERS, turn.num_workers
        self._use(turn.loaded)
        if turn.parent == os.getpid():
            sharing = Sharing(self.loader.ranks.current().count, turn.num_workers, None)
            place = self._place_for(sharing, replace(turn.start, batches=0))
            batch, iteration = turn.start.batches, f"turn {turn.number}"
            check_ranks_agree(self, self.loader, place, batch, iteration)

    def _take_turn(self) -> None:
        """In a worker process: to the epoch that all workers of its iterator begin."""
        check_fork()
        told = self._place.start if self._is_told else None
        own = None if self._loaded is None else self._loaded.to_json()
        turn = self._turns.take(self._next, told, own)
        if told is None:
            self._use(turn.loaded)
            self._go_to(turn.start)
        if (turn.number, self._turns.iterations, this_worker()[0]) == (2, 1, 0):
            _warn_of_new_workers(self.loader, turn.num_workers)

    def _use(self, loaded: object) -> None:
        """Keep the settings of a state that another process has loaded.

        A StatefulDataLoader gives a state to one epoch's workers; those of the next epoch start as
        copies of an object that has not got it.
        """
        if loaded is not None and (saved := State.parse(loaded)) != self._loaded:
            self._loaded = saved
            with suppress(MemoryLimitError):  # then the workers go on without them, too
                saved.use_settings(self.loader)


def _checked(epoch: int, batches: int, batch_size: int | None) -> Start:
    """A start that somebody gives."""
    return Start(
        check_integer("epoch", epoch, least=0, most=MAX_INT),
        check_integer("batches", batches, least=0, most=MAX_INT),
        1 if batch_size is None else check_integer("batch_size", batch_size, least=1, most=MAX_INT),
    )


def _no_position(epoch: int) -> StateError:
    return StateError(
        "the position is in a DataLoader's worker processes, which this process cannot see",
        expected="state_dict(batches=…), with the number of batches that the training has taken in "
        "this epoch; or torchdata's StatefulDataLoader(SeqRecordIterableDataset(…) or "
        "SeqRecordMix(…), batch_size=None, …), whose state_dict() has it",
        got=f"a state_dict() asked for while workers run, or have run, epoch {epoch}",
    )


def _failed(error: SeqRecordError) -> Clip:
    """The first item of an iteration that could not begin."""
    raise error


def _warn_of_new_workers(loader: BatchSource[Any], num_workers: int) -> None:
    """Log a warning where workers are started anew that would else have all frames."""
    if any(source.decodes_once(num_workers) for source in loader.sources):
        say_once(
            "new worker processes decode all frames again in every epoch, and the frames fit into "
            "memory_limit: DataLoader(…, persistent_workers=True) keeps them"
        )
