"""Epochs: the position of a loader, which can be set, saved and loaded, and moves by iterations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from multiprocessing import current_process
from multiprocessing.context import get_spawning_popen
from typing import Any

from torch.utils.data import get_worker_info

from seqrecord.engine.stats import EngineStats
from seqrecord.errors import ClipError, SeqRecordError, StateError
from seqrecord.pipes.distributed import warn_once
from seqrecord.pipes.iterations import AnyPlan, BatchSource, Iteration
from seqrecord.pipes.places import (
    continues,
    find_place,
    items_given,
    restore_settings,
    state_at,
    use_settings,
)
from seqrecord.pipes.states import Clip, Segments, State
from seqrecord.pipes.worker_starts import Start, WorkerStarts
from seqrecord.processes.forks import check_fork
from seqrecord.sampling import Shard
from seqrecord.units import MAX_INT, check_integer


class Epochs:
    """A loader's consecutive epochs, and the position in them. Picklable.

    The position is two integers: the epoch, and its number of delivered batches. Every iteration of
    this process is the epoch after the last one begun, complete or not; only `load` and
    `set_epoch(batches=…)` start inside an epoch. One iteration runs at a time: a new one ends the
    engine of the last. For DataLoader workers see `worker_starts`.
    """

    def __init__(self, loader: BatchSource) -> None:
        self.loader = loader
        self._start = Start()  # of the position's epoch; a plain one once the epoch was begun
        self._is_begun = False  # this epoch, by an iteration of this process or by workers
        self._num_workers = 0  # that have begun it
        self._place: State | None = None  # in this epoch, of the iteration that was made last
        self._buffering_pipe: str | None = None  # behind this iteration
        self._loaded: State | None = None  # the state that was loaded last
        self._is_assigned = False  # this worker its next epoch, by a call in it
        self._made: Iteration | None = None  # the iteration that was made last
        self._last: Iteration | None = None  # the last one begun
        self._workers = WorkerStarts()
        self._followed = 0  # the generation of the start that workers have begun last

    def __getstate__(self) -> dict[str, Any]:
        self._follow_workers()
        copied = {**self.__dict__, "_place": self._delivered, "_made": None, "_last": None}
        if self._is_over:
            copied |= {"_is_begun": False, "_start": self._start.following, "_place": None}
        if get_spawning_popen() is None:
            del copied["_workers"]
        return copied

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "_workers" not in state:
            self._workers, self._followed = WorkerStarts(), 0
            self._workers.publish(self._next)

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
        without the positions of all of them; and in a worker, if the order depends on an epoch that
        was not set. In a DataLoader worker the first `next` raises it, because a worker with
        persistent siblings would otherwise die.
        """
        try:
            self._buffering_pipe = buffering_pipe
            self._find_iteration(State.of(shard))
        except SeqRecordError as error:
            if get_worker_info() is None:
                raise
            return map(_failed, [error])
        self._made = iteration = Iteration(self.loader)
        return iteration.clips(partial(self._begin, shard))

    def _find_iteration(self, own: State) -> None:
        """Go to the place of a new iteration."""
        if self._last is not None:
            self._last.end()  # its memory must be free before the next one's is taken
        if self._workers.in_worker:
            self._take_start()
        else:
            self._follow_workers()
            if self._is_begun:
                self._go_to(self._start.following)
        if self._buffering_pipe is not None and self._start.batches:
            raise _not_the_chains(self._buffering_pipe, "set_epoch() without batches")
        self._place = self._place_for(own)
        loaded = self._loaded if self._start.is_loaded else None
        if loaded is not None and continues(self.loader, loaded, own):
            use_settings(self.loader, loaded)

    def _begin(self, shard: Shard, iteration: Iteration) -> tuple[AnyPlan, Segments, int]:
        """Begin an iteration: return its plan, the segments before it, and its first batch."""
        if self._made is not iteration:
            raise ClipError("this iteration was ended: another one has begun")
        own = State.of(shard)
        # Without a place, `set_epoch` was called since the iteration was made.
        place = self._place or self._place_for(own)
        self._last, self._is_assigned = None, False
        self._start, self._place, self._is_begun = Start(place.epoch), place, True
        self._num_workers = 0
        if self._workers.in_worker:
            self._workers.begin(place.epoch)
        self._workers.publish(self._next)
        moved = (place.worker or 0) - (own.worker or 0)
        shard = replace(shard, index=shard.index + moved)
        plan = self.loader.plan(place.epoch, shard, place.segments)
        self._last = iteration
        return plan, place.segments, place.batches[0]

    def set_epoch(self, epoch: int, batches: int = 0, batch_size: int | None = None) -> None:
        """Set epoch and position of the next iteration; a running one does not change.

        A pending position in this epoch stays if `batches` is 0. The call also applies to an
        iteration that was created but not begun.
        """
        start = _checked(epoch, batches, batch_size)
        self._follow_workers()
        if batches or epoch != self._start.epoch or self._is_begun:
            made = None if self._is_begun else self._made
            self._go_to(start)
            self._made = made
        self._is_assigned = get_worker_info() is not None  # for this worker's next iteration
        self._workers.publish(self._start._replace(is_set=True))

    def announce(self) -> None:
        """Called by torch when a DataLoader around a pipe begins an iteration, once or twice, and
        again in new workers, which are daemons.
        """
        if not current_process().daemon:
            self._follow_workers()
            start = self._next._replace(is_automatic=True)
            if start != self._workers.start:
                self._workers.publish(start)

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
        self._follow_workers()
        if self._buffering_pipe is not None and self._is_begun:
            raise _not_the_chains(
                self._buffering_pipe, "the state after set_epoch(), between epochs"
            )
        if batches is not None:
            return self._state_after(shard, _checked(self._start.epoch, batches, batch_size))
        if self._num_workers and not self._workers.in_worker:
            raise StateError(
                "the position is in a DataLoader's worker processes",
                expected="state_dict(batches=…), with the batches that the training has taken in "
                "this epoch; or a torchdata StatefulDataLoader around a SeqRecordIterableDataset "
                "or mix",
                got=f"state_dict() while workers run, or have run, epoch {self._start.epoch}",
            )
        place = self._delivered
        if self._loaded is not None and self._start.is_loaded and place is None:
            return self._loaded.to_json()
        own = State.of(shard) if place is None else replace(place, segments=(), batch=0)
        if self._is_over and not at_end and get_worker_info() is None:
            place = self._place_for(own, self._start.following)
        return state_at(self.loader, place or self._place_for(own)).to_json()

    def shared_position(self, shard: Shard) -> dict[str, Any]:
        """The position as JSON; with workers, the start of the epoch that they have begun last."""
        self._follow_workers()
        return self._state_after(shard, self._start) if self._num_workers else self.state(shard)

    def _state_after(self, shard: Shard, after: Start) -> dict[str, Any]:
        """See `state`."""
        workers = max(1, self._num_workers)
        own = State(0, 0, shard.count, workers, None if workers > 1 else 0)
        place = self._place or self._place_for(own, self._start._replace(batches=0))
        place = replace(own, epoch=place.epoch, segments=place.segments)
        after = after._replace(epoch=place.epoch)
        given, most = items_given(self.loader, after, place.segments, workers)
        if given == most:
            place, given = replace(place, epoch=place.epoch + 1, segments=()), [0] * workers
        batch = tuple(given) if workers > 1 else given[0]
        return state_at(self.loader, replace(place, batch=batch)).to_json()

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
        if get_worker_info() is not None:
            self._is_assigned = True
            if self._workers.in_worker and not self._differs_from_set(saved.epoch):
                self._workers.begin(saved.epoch)  # also if the state is at an epoch's end
        self._workers.publish(self._start._replace(is_set=True), is_new_state=True)

    def stats(self) -> dict[str, Any]:
        """Statistics of the last iteration, with its bottleneck as text."""
        done = EngineStats().report() if self._last is None else self._last.report()
        return self.loader.stats(done, self._start.epoch)

    @property
    def _next(self) -> Start:
        """The start of the next iteration."""
        return self._start.following if self._is_begun else self._start

    @property
    def _delivered(self) -> State | None:
        """The position after the delivered batches."""
        place, last = self._place, self._last if self._is_begun else None
        return place if place is None or last is None else replace(place, batch=last.delivered)

    @property
    def _is_over(self) -> bool:
        """Whether an iteration of this process has finished the position's epoch."""
        is_here = self._is_begun and not self._num_workers
        return is_here and self._last is not None and self._last.is_complete

    def _go_to(self, start: Start) -> None:
        """Go to a start of an epoch."""
        check_integer("epoch", start.epoch, most=MAX_INT)
        self._start, self._is_begun, self._num_workers, self._place = start, False, 0, None
        self._made, self._is_assigned = None, False

    def _place_for(self, own: State, start: Start | None = None) -> State:
        """The position of an iteration of these workers. See `find_place`."""
        start = start or self._start
        return find_place(self.loader, self._loaded, start, own, is_assigned=self._is_assigned)

    # ---- with worker processes

    def _follow_workers(self) -> None:
        """In the training process, go to the published start if workers have begun it."""
        if self._workers.in_worker or self._followed == self._workers.generation:
            return
        if (begun := self._workers.begun()) is not None:
            epoch, num_workers = begun
            self._go_to(self._workers.start._replace(epoch=epoch))
            self._is_begun, self._num_workers = True, num_workers
            self._followed = self._workers.generation

    def _take_start(self) -> None:
        """In a worker process, go to the start that the training process has set."""
        check_fork()
        start, is_used, is_second = self._workers.take()
        if self._is_assigned:
            if self._differs_from_set(self._start.epoch):
                self._is_assigned = False  # the next iteration has the epoch that was set
                raise StateError(
                    "set_epoch and a state loaded in workers have different epochs",
                    expected=f"set_epoch({self._start.epoch}) before this iteration",
                    got=f"set_epoch({start.epoch})",
                )
        elif is_used and not start.is_automatic and self.loader.differs_by_epoch:
            raise StateError(
                "an iteration in DataLoader workers needs its epoch",
                expected="set_epoch(epoch) of the dataset before each iteration over the "
                "DataLoader; with Lightning a Callback whose on_train_epoch_end(trainer, module) "
                "calls set_epoch(trainer.current_epoch + 1); or a SeqRecordPipe, which counts",
                got=f"a second iteration of epoch {start.epoch}",
            )
        else:
            self._go_to(start)
        if is_second:
            _warn_of_new_workers(self.loader)

    def _differs_from_set(self, epoch: int) -> bool:
        """In a worker, whether the training process has called `set_epoch` with another epoch."""
        start = self._workers.start
        return start.is_set and not start.is_loaded and start.epoch != epoch


def _checked(epoch: int, batches: int, batch_size: int | None) -> Start:
    """A start from arguments, checked."""
    return Start(
        check_integer("epoch", epoch, least=0, most=MAX_INT),
        check_integer("batches", batches, least=0, most=MAX_INT),
        1 if batch_size is None else check_integer("batch_size", batch_size, least=1, most=MAX_INT),
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


def _warn_of_new_workers(loader: BatchSource) -> None:
    """Warn if new workers decode frames that persistent workers would keep."""
    info = get_worker_info()
    assert info is not None
    if any(source.planner.decodes_once(info.num_workers) for source in loader.sources):
        warn_once(
            "new worker processes decode all frames again in every epoch, and the frames fit into "
            "memory_limit: DataLoader(…, persistent_workers=True) keeps them"
        )
