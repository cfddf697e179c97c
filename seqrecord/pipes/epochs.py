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
from seqrecord.pipes.distributed import warn_once
from seqrecord.pipes.iterations import AnyPlan, BatchSource, Iteration
from seqrecord.pipes.places import (
    Place,
    continues,
    find_place,
    items_given,
    restore_settings,
    state_at,
    use_settings,
)
from seqrecord.pipes.states import Clip, RemainingEpoch, Sharing, State
from seqrecord.pipes.worker_epochs import Start, Turn, Turns, Worker
from seqrecord.processes.forks import check_fork
from seqrecord.sampling import Shard
from seqrecord.units import MAX_INT, check_integer


class Epochs:
    """A loader's consecutive epochs, and the position in them. Picklable.

    The position is two integers: the epoch, and its number of delivered batches. Every iteration is
    the epoch after the last one begun, complete or not; only `load` and `set_epoch(batches=…)`
    start inside an epoch. One iteration runs at a time: a new one ends the engine of the last. In a
    DataLoader worker an epoch begins when the iterator is created, see `worker_epochs`.
    """

    def __init__(self, loader: BatchSource) -> None:
        self.loader = loader
        self._start = Start()  # of the position's epoch; a plain one once the epoch was begun
        self._is_begun = False  # this epoch, by an iteration of this process or by workers
        self._turn: Turn | None = None  # the workers' turn that has begun it
        self._is_compared = True  # with the turns of other ranks
        self._place: Place | None = None  # in this epoch, of the iteration that was made last
        self._buffering_pipe: str | None = None  # behind this iteration
        self._loaded: State | None = None  # the state that was loaded last
        self._is_assigned = False  # this worker which epoch comes next
        self._made: Iteration | None = None  # the iteration that was made last
        self._last: Iteration | None = None  # the last one begun
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

    def iterate(self, shard: Shard, buffering_pipe: str | None = None) -> Iterator[Clip]:
        """Return the batches of one epoch, or the rest of the loaded one.

        The first `next` begins the epoch. `buffering_pipe` is the class of a pipe behind this one
        that buffers items.

        Raises `StateError` if the loaded state is in the middle of an epoch of other shards,
        without the positions of all of them. In a DataLoader worker the first `next` raises it,
        because a worker with persistent siblings would otherwise die.
        """
        try:
            self._buffering_pipe = buffering_pipe
            self._find_iteration(Sharing.of(shard))
        except SeqRecordError as error:
            if get_worker_info() is None:
                raise
            return map(_failed, [error])
        self._made = iteration = Iteration(self.loader)
        return iteration.clips(partial(self._begin, shard))

    def _find_iteration(self, sharing: Sharing) -> None:
        """Go to the place of a new iteration."""
        if self._last is not None:
            self._last.end()  # its memory must be free before the next one's is taken
        self._catch_up()
        if self._turns.in_worker:
            self._take_turn()
        elif self._is_begun:
            self._go_to(self._start.following)
        if self._buffering_pipe is not None and self._start.batches:
            raise _not_the_chains(self._buffering_pipe, "set_epoch() without batches")
        self._place = self._place_for(sharing)
        loaded = self._loaded if self._start.is_loaded else None
        if loaded is not None and continues(self.loader, loaded, sharing):
            use_settings(self.loader, loaded)

    def _check_agreement(self, place: Place, iteration: str) -> None:
        """Raise `StateError` if another rank begins this iteration at another place."""
        if self.loader.ranks.in_process_group:
            from seqrecord.pipes.agreement import check_agreement  # single processes skip it

            check_agreement(self, self.loader, place, iteration)

    def _begin(
        self, shard: Shard, iteration: Iteration
    ) -> tuple[AnyPlan, RemainingEpoch | None, int]:
        """Begin an iteration: return its plan, the rest of its epoch, and its first batch."""
        if self._made is not iteration:
            raise ClipError("this iteration was ended: another one has begun")
        own = Sharing.of(shard)
        # Without a place, `set_epoch` was called since the iteration was made.
        epoch, batch, sharing, rest = place = self._place or self._place_for(own)
        if get_worker_info() is None:
            self._turns.iterations += 1
            name = f"iteration {self._turns.iterations}"
            self._check_agreement(place, name)
        self._last, self._is_assigned = None, False
        self._start, self._place, self._is_begun = Start(epoch), place, True
        self._publish()
        moved = (sharing.worker or 0) - (own.worker or 0)
        plan = self.loader.plan(epoch, Shard(shard.index + moved, shard.count), rest)
        self._last = iteration
        assert isinstance(batch, int)
        return plan, rest, batch

    def set_epoch(self, epoch: int, batches: int = 0, batch_size: int | None = None) -> None:
        """Set epoch and position of the next iteration; a running one does not change.

        A pending position in this epoch stays if `batches` is 0. The call also applies to an
        iteration that was created but not begun.
        """
        start = _checked(epoch, batches, batch_size)
        self._catch_up()
        if batches or epoch != self._start.epoch or self._is_begun:
            made = None if self._is_begun else self._made
            self._go_to(start)
            self._made = made
        self._is_assigned = get_worker_info() is not None  # for this worker's next iteration
        self._publish()

    def state(
        self,
        shard: Shard,
        *,
        batches: int | None = None,
        batch_size: int | None = None,
        at_end: bool = False,
    ) -> dict[str, Any]:
        """Return the position as JSON.

        After an epoch's end it is the start of the next epoch, unless `at_end` keeps it at the end.
        A DataLoader worker stays at the end, because other workers may still run.

        Args:
            shard: the shard of the next iteration.
            batches: number of batches of the current epoch, over all workers of a rank; the
                position behind them.
            batch_size: clips of each of these batches, if a DataLoader makes them.
            at_end: keep the position at the end of an epoch.

        Raises `StateError` without `batches` if worker processes have the position.
        """
        self._catch_up()
        if self._buffering_pipe is not None and self._is_begun:
            raise _not_the_chains(
                self._buffering_pipe, "the state after set_epoch(), between epochs"
            )
        if batches is not None:
            return self._state_after(shard, _checked(self._start.epoch, batches, batch_size))
        if self._turn is not None:
            raise _in_workers(self._start.epoch)
        place = self._delivered
        if self._loaded is not None and self._start.is_loaded and place is None:
            return self._loaded.to_json()
        sharing = Sharing.of(shard) if place is None else place.sharing
        if self._is_over and not at_end and get_worker_info() is None:
            place = self._place_for(sharing, self._start.following)
        return state_at(self.loader, place or self._place_for(sharing)).to_json()

    def _state_after(self, shard: Shard, after: Start) -> dict[str, Any]:
        """See `state`."""
        workers = 1 if self._turn is None else self._turn.num_workers
        sharing = Sharing(shard.count, workers, None if workers > 1 else 0)
        place = self._place or self._place_for(sharing, self._start._replace(batches=0))
        given, most = items_given(self.loader, after, place.rest, workers)
        batch = tuple(given) if workers > 1 else given[0]
        found = state_at(self.loader, place._replace(batch=batch, sharing=sharing))
        return (found.next_epoch() if given == most else found).to_json()

    def load(self, state: Mapping[str, Any], shard: Shard) -> None:
        """Load a position: the next iteration starts after the delivered batches.

        This epoch and later ones use the settings of the state instead of settings derived from
        memory and defaults, except after a change of ranks or workers inside an epoch. `shard` is
        the shard of the next iteration.

        Raises `StateError` for an invalid state, or a state of another dataset or other settings,
        and `MemoryLimitError` if its settings do not fit; the position then stays unchanged.
        """
        saved = State.parse(state)
        restore_settings(self.loader, saved, shard.count)
        self._go_to(Start(saved.epoch, is_loaded=True))
        self._loaded = saved
        self._is_assigned = get_worker_info() is not None
        self._publish()

    def stats(self) -> dict[str, Any]:
        """Statistics of the last iteration, with its bottleneck as text."""
        done = EngineStats().report() if self._last is None else self._last.report()
        return self.loader.stats(done, self._start.epoch)

    @property
    def _delivered(self) -> Place | None:
        """The place after the delivered batches."""
        place, last = self._place, self._last if self._is_begun else None
        return place if place is None or last is None else place._replace(batch=last.delivered)

    @property
    def _is_over(self) -> bool:
        """Whether an iteration of this process has finished the position's epoch."""
        is_here = self._is_begun and self._turn is None
        return is_here and self._last is not None and self._last.is_complete

    def _go_to(self, start: Start) -> None:
        """Go to a start of an epoch."""
        check_integer("epoch", start.epoch, most=MAX_INT)
        self._start, self._is_begun, self._turn, self._place = start, False, None, None
        self._made, self._is_assigned = None, False

    def _place_for(self, sharing: Sharing, start: Start | None = None) -> Place:
        """The place of an iteration with this sharing. See `find_place`."""
        start = start or self._start
        return find_place(self.loader, self._loaded, start, sharing, is_assigned=self._is_assigned)

    # ---- with worker processes

    def _publish(self) -> None:
        """Publish the next start, and the last loaded state, to workers of later iterations."""
        self._turns.set_next(self._next, None if self._loaded is None else self._loaded.to_json())

    @property
    def _next(self) -> Start:
        """The start of the next iteration, if workers of this process begin it."""
        return self._start.following if self._is_begun else self._start

    def _follow_workers(self) -> None:
        """Go to the epoch that workers have begun since the last publication."""
        if (turn := self._turns.newest()) is not None:
            self._go_to(turn.start)
            self._is_begun, self._turn, self._is_compared = True, turn, False
            self._use(turn.loaded)

    def _catch_up(self) -> None:
        """Follow workers, and compare their epoch with the epoch of other ranks' workers."""
        self._follow_workers()
        turn, is_compared, self._is_compared = self._turn, self._is_compared, True
        if turn is not None and turn.parent == os.getpid() and not is_compared:
            sharing = Sharing(self.loader.ranks.current().count, turn.num_workers, None)
            place = self._place_for(sharing, turn.start._replace(batches=0))
            place = place._replace(batch=turn.start.batches)
            self._check_agreement(place, f"turn {turn.number}")

    def _take_turn(self) -> None:
        """In a worker process, go to the epoch that all workers of its iterator share."""
        check_fork()
        assigned = self._start if self._is_assigned else None
        own = None if self._loaded is None else self._loaded.to_json()
        self._turns.iterations += 1
        worker = Worker.current(self._turns.iterations)
        turn = self._turns.take(worker, self._next, assigned, own)
        if assigned is None:
            self._use(turn.loaded)
            self._go_to(turn.start)
        if (turn.number, worker.iteration, worker.number) == (2, 1, 0):
            _warn_of_new_workers(self.loader, turn.num_workers)

    def _use(self, loaded: object) -> None:
        """Use the settings of a state that another process has loaded.

        A StatefulDataLoader passes a state to the workers of one epoch; the workers of the next
        epoch are copies of the original object, which lacks it.
        """
        if loaded is not None and (saved := State.parse(loaded)) != self._loaded:
            self._loaded = saved
            with suppress(MemoryLimitError):  # then the workers go on without them, too
                use_settings(self.loader, saved)


def _checked(epoch: int, batches: int, batch_size: int | None) -> Start:
    """A start from arguments, checked."""
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


def _not_the_chains(buffering_pipe: str, remedy: str) -> StateError:
    return StateError(
        f"{buffering_pipe} behind this pipe buffers or skips items, so the positions of pipe and "
        "chain differ",
        expected="a pipe with nothing but .map(), .collate(), .batch() and .filter() behind it, "
        f"for it shuffles and shares out by itself; or {remedy}",
    )


def _failed(error: SeqRecordError) -> Clip:
    """Raise the error of an iteration that failed to begin, at its first item."""
    raise error


def _warn_of_new_workers(loader: BatchSource, num_workers: int) -> None:
    """Warn if new workers decode frames that persistent workers would keep."""
    if any(source.planner.decodes_once(num_workers) for source in loader.sources):
        warn_once(
            "new worker processes decode all frames again in every epoch, and the frames fit into "
            "memory_limit: DataLoader(…, persistent_workers=True) keeps them"
        )
