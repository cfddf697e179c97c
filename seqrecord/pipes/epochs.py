"""Epochs: the position of a loader, which can be set, saved and loaded, and moves by iterations."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from torch.utils.data import get_worker_info

from seqrecord.engine.stats import EngineStats
from seqrecord.errors import ClipError, MemoryLimitError, SeqRecordError, StateError
from seqrecord.pipes.distributed import say_once
from seqrecord.pipes.iterations import BatchSource, Iteration, Planned
from seqrecord.pipes.places import (
    Place,
    check_agreement,
    continues,
    find_place,
    items_given,
    settle,
    state_at,
    use_settings,
)
from seqrecord.pipes.states import Clip, Remainder, Sharing, State
from seqrecord.pipes.worker_epochs import Start, Turn, Turns, Worker
from seqrecord.processes.forks import check_fork
from seqrecord.sampling import Part
from seqrecord.units import MAX_INT, check_integer


class Epochs:
    """A loader's epochs, one after the other, and the position in them. Picklable.

    The position is two integers: the epoch, and how many of its batches were delivered. Every
    iteration is of the epoch after the one that was begun before, whether that was left early or
    not; only after `load` or `set_epoch(batches=…)` one starts inside an epoch. One iteration runs
    at a time: a new one ends the engine of the one before. In a DataLoader's worker an epoch begins
    when an iteration is made, see `worker_epochs`.
    """

    def __init__(self, loader: BatchSource) -> None:
        self.loader = loader
        self._start = Start()  # of the position's epoch; a plain one once the epoch was begun
        self._is_begun = False  # this epoch, by an iteration of this process or by workers
        self._turn: Turn | None = None  # the workers' turn that has begun it
        self._is_compared = True  # this turn with those of other ranks
        self._place: Place | None = None  # in this epoch, of the iteration that was made last
        self._holder: str | None = None  # the pipe behind this iteration that holds items
        self._loaded: State | None = None  # the state that was loaded last
        self._is_told = False  # this worker which epoch comes next
        self._made: Iteration | None = None  # the iteration that was made last
        self._last: Iteration | None = None  # the one that was begun last
        self._turns = Turns()

    def __getstate__(self) -> dict[str, Any]:
        self._follow_workers()
        copied = {**self.__dict__, "_place": self._delivered, "_made": None, "_last": None}
        if self._is_over:
            copied |= {"_is_begun": False, "_start": self._start.following, "_place": None}
        return copied

    @property
    def current(self) -> int:
        """The epoch that runs, or if none does the next one; that too while worker processes run.

        For them it is the one after that which they have begun last.
        """
        self._follow_workers()
        is_open = self._last is not None and self._last.is_open
        return self._start.epoch + (self._is_begun and not is_open)

    def iterate(self, part: Part, holder: str | None = None) -> Iterator[Clip]:
        """The batches of one epoch, or those that are left of the one that was loaded; `holder` is
        the class of a pipe behind this one that holds items.

        The epoch counts as begun with the first `next`. Raises `StateError` when a state was
        loaded that is in the middle of an epoch of other parts, and lacks the positions of some; in
        a DataLoader's worker with the first `next`, for a worker that continues with another epoch
        would die of it.
        """
        try:
            self._holder = holder
            self._find_iteration(Sharing.of(part))
        except SeqRecordError as error:
            if get_worker_info() is None:
                raise
            return map(_failed, [error])
        self._made = iteration = Iteration(self.loader)
        return iteration.clips(partial(self._begin, part))

    def _find_iteration(self, sharing: Sharing) -> None:
        """Go to the place of a new iteration."""
        if self._last is not None:
            self._last.end()  # its memory must be free before the next one's is taken
        self._catch_up()
        if self._turns.in_worker:
            self._take_turn()
        elif self._is_begun:
            self._go_to(self._start.following)
        if self._holder is not None and self._start.batches:
            raise _not_the_chains(self._holder, "set_epoch() without batches")
        self._place = self._place_for(sharing)
        loaded = self._loaded if self._start.is_loaded else None
        if loaded is not None and continues(self.loader, loaded, sharing):
            use_settings(self.loader, loaded)

    def _begin(self, part: Part, iteration: Iteration) -> tuple[Planned, Remainder | None, int]:
        """Begin an iteration: its plan, the rest of its epoch, and its first batch."""
        if self._made is not iteration:
            raise ClipError("this iteration was ended: another one has begun")
        own = Sharing.of(part)
        # Without a place, `set_epoch` was called since the iteration was made.
        epoch, batch, sharing, rest = place = self._place or self._place_for(own)
        if get_worker_info() is None:
            self._turns.iterations += 1
            name = f"iteration {self._turns.iterations}"
            check_agreement(self, self.loader, place, name)
        self._last, self._is_told = None, False
        self._start, self._place, self._is_begun = Start(epoch), place, True
        self._publish()
        moved = (sharing.worker or 0) - (own.worker or 0)
        plan = self.loader.plan(epoch, Part(part.index + moved, part.count), rest)
        self._last = iteration
        assert isinstance(batch, int)
        return plan, rest, batch

    def set_epoch(self, epoch: int, batches: int = 0, batch_size: int | None = None) -> None:
        """The next iteration is of this epoch, after so many of its batches; one that runs does not
        change.

        The position in this epoch stays, if it was not yet begun and no `batches` are given. An
        iteration that was made and not yet begun is of this epoch too.
        """
        start = _checked(epoch, batches, batch_size)
        self._catch_up()
        if batches or epoch != self._start.epoch or self._is_begun:
            made = None if self._is_begun else self._made
            self._go_to(start)
            self._made = made
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
        """The position, as JSON; `part` is that of an iteration to come. With `batches`, the
        position after so many of the epoch that was begun last, on all workers of a rank together.

        After an epoch's end that is the start of the next one, unless `at_end` keeps it at the
        end. A DataLoader's worker stays there, for others may not have come to their end.

        Raises `StateError` where worker processes have the position, and `batches` are not given.
        """
        self._catch_up()
        if self._holder is not None and self._is_begun:
            raise _not_the_chains(self._holder, "the state after set_epoch(), between epochs")
        if batches is not None:
            return self._state_after(part, _checked(self._start.epoch, batches, batch_size))
        if self._turn is not None:
            raise _in_workers(self._start.epoch)
        place = self._delivered
        if self._loaded is not None and self._start.is_loaded and place is None:
            return self._loaded.to_json()
        sharing = Sharing.of(part) if place is None else place.sharing
        if self._is_over and not at_end and get_worker_info() is None:
            place = self._place_for(sharing, self._start.following)
        return state_at(self.loader, place or self._place_for(sharing)).to_json()

    def _state_after(self, part: Part, after: Start) -> dict[str, Any]:
        """See `state`."""
        workers = 1 if self._turn is None else self._turn.num_workers
        sharing = Sharing(part.count, workers, None if workers > 1 else 0)
        place = self._place or self._place_for(sharing, self._start._replace(batches=0))
        given, most = items_given(self.loader, after, place.rest, workers)
        batch = tuple(given) if workers > 1 else given[0]
        found = state_at(self.loader, place._replace(batch=batch, sharing=sharing))
        return (found.next_epoch() if given == most else found).to_json()

    def load(self, state: Mapping[str, Any], part: Part) -> None:
        """Load a position: the next iteration starts right after the batches delivered.

        This epoch and those after it have the settings of the state, where memory and defaults
        would have chosen others; but for the rest of an epoch that other ranks or workers continue,
        and for the epochs after it, they are chosen anew. `part` is that of an iteration to come.

        Raises `StateError` for a state of another dataset, of other settings, or of no loader, and
        `MemoryLimitError` for one whose settings do not fit; the position is then as it was.
        """
        saved = State.parse(state)
        settle(self.loader, saved, part.count)
        self._go_to(Start(saved.epoch, is_loaded=True))
        self._loaded = saved
        self._is_told = get_worker_info() is not None
        self._publish()

    def stats(self) -> dict[str, Any]:
        """Statistics of the last iteration, with its bottleneck in words."""
        done = EngineStats().report() if self._last is None else self._last.report()
        return self.loader.stats(done, self._start.epoch)

    @property
    def _delivered(self) -> Place | None:
        """The place behind the batches that somebody has got."""
        place, last = self._place, self._last if self._is_begun else None
        return place if place is None or last is None else place._replace(batch=last.delivered)

    @property
    def _is_over(self) -> bool:
        """Whether an iteration of this process has given all of the position's epoch."""
        is_here = self._is_begun and self._turn is None
        return is_here and self._last is not None and self._last.is_complete

    def _go_to(self, start: Start) -> None:
        """To a start of an epoch."""
        check_integer("epoch", start.epoch, most=MAX_INT)
        self._start, self._is_begun, self._turn, self._place = start, False, None, None
        self._made, self._is_told = None, False

    def _place_for(self, sharing: Sharing, start: Start | None = None) -> Place:
        """The place of an iteration that shares the epoch so. See `find_place`."""
        start = start or self._start
        return find_place(self.loader, self._loaded, start, sharing, is_told=self._is_told)

    # ---- with worker processes

    def _publish(self) -> None:
        """Give workers of later iterations the next start, and the state that was loaded last."""
        self._turns.set_next(self._next, None if self._loaded is None else self._loaded.to_json())

    @property
    def _next(self) -> Start:
        """Where the next iteration begins, if workers of this process begin it."""
        return self._start.following if self._is_begun else self._start

    def _follow_workers(self) -> None:
        """Go to the epoch that workers have begun since this process published last."""
        if (turn := self._turns.newest()) is not None:
            self._go_to(turn.start)
            self._is_begun, self._turn, self._is_compared = True, turn, False
            self._use(turn.loaded)

    def _catch_up(self) -> None:
        """Follow workers, and compare their epoch with that of other ranks' workers."""
        self._follow_workers()
        turn, is_compared, self._is_compared = self._turn, self._is_compared, True
        if turn is not None and turn.parent == os.getpid() and not is_compared:
            sharing = Sharing(self.loader.ranks.current().count, turn.num_workers, None)
            place = self._place_for(sharing, turn.start._replace(batches=0))
            place = place._replace(batch=turn.start.batches)
            check_agreement(self, self.loader, place, f"turn {turn.number}")

    def _take_turn(self) -> None:
        """In a worker process: to the epoch that all workers of its iterator begin."""
        check_fork()
        told = self._start if self._is_told else None
        own = None if self._loaded is None else self._loaded.to_json()
        self._turns.iterations += 1
        worker = Worker.current(self._turns.iterations)
        turn = self._turns.take(worker, self._next, told, own)
        if told is None:
            self._use(turn.loaded)
            self._go_to(turn.start)
        if (turn.number, worker.iteration, worker.number) == (2, 1, 0):
            _warn_of_new_workers(self.loader, turn.num_workers)

    def _use(self, loaded: object) -> None:
        """Keep the settings of a state that another process has loaded.

        A StatefulDataLoader gives a state to one epoch's workers; those of the next epoch start as
        copies of an object that has not got it.
        """
        if loaded is not None and (saved := State.parse(loaded)) != self._loaded:
            self._loaded = saved
            with suppress(MemoryLimitError):  # then the workers go on without them, too
                use_settings(self.loader, saved)


def _checked(epoch: int, batches: int, batch_size: int | None) -> Start:
    """A start that somebody gives."""
    return Start(
        check_integer("epoch", epoch, least=0, most=MAX_INT),
        check_integer("batches", batches, least=0, most=MAX_INT),
        1 if batch_size is None else check_integer("batch_size", batch_size, least=1, most=MAX_INT),
    )


def _in_workers(epoch: int) -> StateError:
    return StateError(
        "the position is in a DataLoader's worker processes",
        expected="state_dict(batches=…), with the batches that the training has taken in this "
        "epoch; or a torchdata StatefulDataLoader around a SeqRecordIterableDataset or mix",
        got=f"state_dict() while workers run, or have run, epoch {epoch}",
    )


def _not_the_chains(holder: str, remedy: str) -> StateError:
    return StateError(
        f"the {holder} behind this pipe holds items, or skips some, so the position of this pipe "
        "is not that of the chain",
        expected="a pipe with nothing but .map(), .collate(), .batch() and .filter() behind it, "
        f"for it shuffles and shares out by itself; or {remedy}",
    )


def _failed(error: SeqRecordError) -> Clip:
    """The first item of an iteration that could not begin."""
    raise error


def _warn_of_new_workers(loader: BatchSource, num_workers: int) -> None:
    """Log a warning where workers are started anew that would else have all frames."""
    if any(source.planner.decodes_once(num_workers) for source in loader.sources):
        say_once(
            "new worker processes decode all frames again in every epoch, and the frames fit into "
            "memory_limit: DataLoader(…, persistent_workers=True) keeps them"
        )
