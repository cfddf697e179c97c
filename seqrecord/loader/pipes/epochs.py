"""Epochs: the position of a loader, which can be set, saved and loaded, and moves by iterations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from multiprocessing import current_process
from multiprocessing.context import get_spawning_popen
from typing import Any

from torch.utils.data import get_worker_info

from seqrecord.errors import ClipError, SeqRecordError, StateError
from seqrecord.loader.engine.run import Run
from seqrecord.loader.engine.stats import EngineStats
from seqrecord.loader.pipes.distributed import warn_once
from seqrecord.loader.pipes.growing_loader import (
    AnyPlan,
    GrowingLoader,
    Loader,
    continued,
)
from seqrecord.loader.pipes.shared_rows import share_before_forks
from seqrecord.loader.pipes.states import Clip, State
from seqrecord.loader.pipes.worker_starts import SharedState, WorkerStarts
from seqrecord.loader.sampling.runs import Shard
from seqrecord.store.processes.forks import check_fork
from seqrecord.store.units import MAX_INT, check_integer


class Epochs:
    """A loader's consecutive epochs, and the position in them. Picklable.

    Every iteration of this process is the epoch after the last one begun, complete or not; only
    `load` and `set_epoch(batches=…)` start inside an epoch. One iteration runs at a time: a new one
    ends the engine of the last. For DataLoader workers see `worker_starts`.
    """

    def __init__(self, loader: Loader) -> None:
        self._loaders = GrowingLoader(loader)
        self._position = State()  # where the next iteration begins, or the last one began
        self._is_begun = False  # the position, by an iteration of this process or by workers
        self._num_workers = 0  # that have begun it
        self._is_assigned = False  # this worker its next epoch, by a call in it
        self._conflict: StateError | None = None  # of the next iteration, with `set_epoch`
        self._buffering_pipe: str | None = None  # behind this iteration
        self._num_made = 0  # iterations
        self._last: Run | None = None  # of the iteration that was begun last
        self._workers = WorkerStarts(self._position)
        self._of_workers = SharedState()
        share_before_forks(self)

    def __getstate__(self) -> dict[str, Any]:
        self._follow_workers()
        copied = {**self.__dict__, "_position": self._current, "_last": None}
        if self._is_over:
            copied |= {"_is_begun": False, "_position": self._position.following}
        if get_spawning_popen() is None:
            del copied["_workers"], copied["_of_workers"]
        return copied

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "_workers" not in state:
            self._workers, self._of_workers = WorkerStarts(self._next), SharedState()
        share_before_forks(self)

    @property
    def loader(self) -> Loader:
        """The loader of the dataset as it was opened."""
        return self._loaders.latest

    def loader_in(self, epoch: int) -> Loader:
        """The loader of an epoch: if a loaded state has fewer episodes, of these in its epochs."""
        return self._loaders.at(epoch)

    def share(self) -> None:
        """Share the starts of iterations with workers that this process starts."""
        self._follow_workers()
        self._workers.row.share()

    @property
    def current(self) -> int:
        """The epoch that runs, or if none does the next one; that too while worker processes run.

        For them it is the one after that which they have begun last.
        """
        self._follow_workers()
        is_open = self._last is not None and self._last.is_open
        return self._position.epoch + (self._is_begun and not is_open)

    def iterate(
        self,
        shard: Shard,
        buffering_pipe: str | None = None,
        stateless_dataset: str | None = None,
    ) -> Iterator[Clip]:
        """Return the batches of one epoch, or the rest of the loaded one.

        The first `next` begins the epoch. `buffering_pipe` is the class of a pipe behind this one
        that buffers items, and `stateless_dataset` that of a StatefulDataLoader's dataset around
        this loader, which has no state.

        Raises `StateError` in a worker, and under a `stateless_dataset`, if the order depends on an
        epoch that was not set. In a worker the first `next` raises it, because a worker with
        persistent siblings would otherwise die. `next` also raises it if `set_epoch` and the loaded
        state have different epochs.
        """
        try:
            self._buffering_pipe = buffering_pipe
            if (conflict := self._conflict) is not None:
                self._conflict = None  # the next iteration has the epoch that was set
                return map(_failed, [conflict])
            if self._last is not None:
                self._last.end()  # its memory must be free before the next one's is taken
            if self._workers.row.in_worker:
                self._take_start()
            else:
                self._follow_workers()
                self._go_to(self._next)
            if buffering_pipe is not None and self._position.batch and not self._position.is_saved:
                raise _not_the_chains(buffering_pipe, "set_epoch() without batches")
            is_set = self._workers.is_set and self._workers.start.epoch == self._position.epoch
            if stateless_dataset is not None and self.loader.differs_by_epoch and not is_set:
                raise _no_state_of(stateless_dataset)
        except SeqRecordError as error:
            if get_worker_info() is None:
                raise
            return map(_failed, [error])
        self._num_made += 1
        clips = self._clips(shard, self._num_made)
        if not self._workers.row.in_worker:
            return clips
        return self._workers.watch(clips, alone=self.loader.differs_by_epoch)

    def _clips(self, shard: Shard, number: int) -> Iterator[Clip]:
        """Begin an iteration, by its number, and yield its batches."""
        stats = EngineStats()  # all time from here on counts
        if self._num_made != number:
            raise ClipError("this iteration was ended: another one has begun")
        position, plan, worker, batch = self._planned(self._position, shard)
        alone = worker if shard.workers > 1 else None
        self._position = replace(position, batch=batch, batch_size=1, worker=alone, sources=())
        self._is_begun, self._num_workers, self._is_assigned = True, 0, False
        self._last = None  # until there is one
        if self._workers.row.in_worker:
            self._workers.begin(position.epoch, alone=self.loader.differs_by_epoch)
        self._workers.publish(self._next)
        loader = self._loaders.at(position.epoch)
        if (earlier := self._loaders.earlier) is not None and loader is not earlier:
            earlier.forget_frames()
        self._last = run = loader.run(plan, batch=batch, stats=stats)
        yield from run

    def set_epoch(self, epoch: int, batches: int = 0, batch_size: int | None = None) -> None:
        """Set epoch and position of the next iteration; a running one does not change.

        A pending position in this epoch is kept if `batches` is 0. The call also applies to an
        iteration that was created but not begun.
        """
        start = _placed(
            State(check_integer("epoch", epoch, least=0, most=MAX_INT)), batches, batch_size
        )
        self._follow_workers()
        if batches or epoch != self._position.epoch or self._is_begun:
            self._go_to(start)
        self._is_assigned = get_worker_info() is not None  # for this worker's next iteration
        self._workers.publish(self._position, is_set=True)

    def set_loader(self, make: Callable[[], Loader]) -> None:
        """Use the loader that `make` returns from the next epoch on.

        Raises `StateError` inside an epoch, without a call of `make`, which plans.
        """
        self._follow_workers()
        if (self._last is not None and self._last.is_open) or self._next.batch:
            expected, got = "a call between epochs", f"a position in epoch {self._next.epoch}"
            raise StateError("set_samples inside an epoch", expected=expected, got=got)
        self._use_of_workers()  # the normalization of a state stays, although samples change
        self._loaders = GrowingLoader(make(), self._next.epoch)
        self._go_to(self._next)  # the end of an epoch of other samples is no position
        self._workers.publish(self._position, is_new_state=True)

    def announce(self) -> None:
        """Called by torch when a DataLoader around a pipe begins an iteration, once or twice, and
        again in new workers, which are daemons.
        """
        if not current_process().daemon:
            self._follow_workers()
            if self._next != self._workers.start:
                self._workers.publish(self._next)

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
        A DataLoader worker remains at the end, because other workers may still run.

        Args:
            shard: the shard of the next iteration.
            batches: number of batches in the current epoch, over all workers of a rank; the
                position behind them.
            batch_size: clips in each of these batches, if a DataLoader makes them.
            at_end: keep the position at the end of an epoch.

        Raises `StateError` without `batches` if worker processes have the position.
        """
        self._follow_workers()
        if not self._workers.row.in_worker:
            self._use_of_workers()
        if self._buffering_pipe is not None and self._is_begun:
            raise _not_the_chains(
                self._buffering_pipe, "the state after set_epoch(), between epochs"
            )
        if batches is None and self._num_workers and not self._workers.row.in_worker:
            raise StateError(
                "the position is in a DataLoader's worker processes",
                expected="state_dict(batches=…), with the batches that the training has taken in "
                "this epoch; or a torchdata StatefulDataLoader around a SeqRecordIterableDataset "
                "or mix",
                got=f"state_dict() while workers run, or have run, epoch {self._position.epoch}",
            )
        if batches is None and self._position.is_saved:
            return self._position.to_json()
        position = self._here(shard)
        is_over = self._is_over and not at_end and get_worker_info() is None
        if batches is not None:
            position = _placed(replace(position, worker=None), batches, batch_size)
            given, most = self._loaders.returned(position, shard.rank)
            is_over = given == most
        return self._loaders.to_json(position.following if is_over else position)

    def shared_position(self, shard: Shard, *, at_end: bool = False) -> dict[str, Any]:
        """The position as JSON; with workers, the start of the epoch that they have begun last."""
        self._follow_workers()
        if self._num_workers:
            return self._loaders.to_json(self._here(shard))
        return self.state(shard, at_end=at_end)

    def run_of(self, epoch: int, shard: Shard) -> State:
        """The run that has an epoch: the position, with the inputs of its order.

        Raises `StateError` for an epoch before its first one with the same episodes.
        """
        check_integer("epoch", epoch, least=0, most=MAX_INT)
        self._use_of_workers()
        self._loaders.check_epoch(epoch)
        return State.parse(self.shared_position(shard, at_end=True))

    def load(
        self,
        state: Mapping[str, Any],
        shard: Shard,
        *,
        at_start: bool = False,
        at_end: bool = False,
    ) -> None:
        """Load a position: the next iteration starts after the delivered batches.

        The last call of `load` and `set_epoch` counts. With `at_start`, a loader around this one
        calls it as its iteration starts, after any call of the user: then, as in workers, the
        iteration raises `StateError` if `set_epoch` has set another epoch. With `at_end`, a state
        at the end of its epoch is no position in it: the set epoch is kept.

        This epoch and later ones use the settings of the state instead of settings derived from
        memory and defaults, except after a change of ranks or workers inside an epoch. `shard` is
        the shard of the next iteration.

        Raises `StateError` for an invalid state, or a state of another dataset or other settings,
        and `MemoryLimitError` if its settings do not fit; the position is then unchanged.
        """
        saved, in_worker = State.parse(state), get_worker_info() is not None
        if not in_worker:
            saved.check_of_rank()
        # Workers of a StatefulDataLoader load states of their own: one of them may be at the start.
        is_inside = bool(saved.batch or saved.segments or get_worker_info() is not None)
        loaders = self._loaders.of_state(saved, is_inside=is_inside)
        loaders.check(saved)
        loaders = loaders.normalized_by(saved)
        if at_start and not in_worker:
            self._follow_workers()
            if not self._is_begun and self._workers.differs_from_set(saved.epoch):
                if not (at_end and loaders.is_at_end(saved, shard)):
                    self._conflict = differing_epochs(saved.epoch, self._workers.start.epoch)
                return
        loaders.keep_settings(saved, shard.count)
        loaders.note()
        self._loaders = loaders
        self._of_workers.loaded(state)
        self._go_to(saved)
        self._is_assigned = in_worker
        if self._workers.row.in_worker and not self._workers.differs_from_set(saved.epoch):
            # A StatefulDataLoader that loads a state of a finished iteration starts the next
            # workers as soon as these have loaded it, and stops these before their first batch.
            _, plan, _, batch = self._planned(saved, shard)
            self._workers.begin_state(saved.epoch, is_over=batch >= plan.num_batches)
        self._workers.publish(saved, is_set=True, is_new_state=True)

    def stats(self) -> dict[str, Any]:
        """Statistics of the last iteration, with its bottleneck as text."""
        done = EngineStats().report() if self._last is None else self._last.report()
        epoch = self._position.epoch
        return self._loaders.at(epoch).stats(done, epoch)

    @property
    def _next(self) -> State:
        """The start of the next iteration."""
        return self._position.following if self._is_begun else self._position

    @property
    def _running(self) -> Run | None:
        """The run of this process that has begun the position."""
        return self._last if self._is_begun and not self._num_workers else None

    @property
    def _current(self) -> State:
        """The position after the batches that this process has delivered."""
        run = self._running
        return self._position if run is None else replace(self._position, batch=run.delivered)

    @property
    def _is_over(self) -> bool:
        """Whether an iteration of this process has finished the position's epoch."""
        return self._running is not None and self._running.is_complete

    def _go_to(self, position: State) -> None:
        """Go to the start of the next iteration."""
        self._position, self._is_begun, self._num_workers = position, False, 0
        self._is_assigned = False

    def _here(self, shard: Shard) -> State:
        """The current position, for the ranks and workers that have begun it or would begin it."""
        if self._is_begun and not self._num_workers:
            return self._current
        loader, workers = self._loaders.at(self._position.epoch), self._num_workers or shard.workers
        return continued(loader, self._position, shard.rank.count, workers)

    def _planned(self, position: State, shard: Shard) -> tuple[State, AnyPlan, int, int]:
        """The position, plan, worker and first batch of the iteration that begins at a position.

        Inside an epoch, worker 0 continues the shard whose turn is next, because a DataLoader
        requests its batch first, and so on.
        """
        own, workers = shard.index % shard.workers, shard.workers
        loader = self._loaders.at(position.epoch)
        position = continued(loader, position, shard.rank.count, workers)
        batch, worker = position.batch, own if position.worker is None else position.worker
        if position.worker is None and batch:
            given, most = self._loaders.returned(position, shard.rank)
            behind = [i for i, n in enumerate(given) if n < min(most[i], max(given))]
            worker = (own + behind[0] if behind else own) % workers
            batch = given[worker]
        shard = shard.rank.divided(workers)[worker]
        loader = self._loaders.at(position.epoch)
        return position, loader.plan(position.epoch, shard, position.segments), worker, batch

    def _use_of_workers(self) -> None:
        """Use the loaders and settings of the state that a StatefulDataLoader has passed to its
        workers, but not its position.
        """
        if (state := self._of_workers.take()) is not None:
            saved, shard = State.parse(state), self.loader.orders[0].ranks.shard()
            loaders = self._loaders.of_state(saved, is_inside=True)
            self._loaders = loaders.normalized_by(saved)
            self._loaders.keep_settings(saved, shard.count)

    # ---- with worker processes

    def _follow_workers(self) -> None:
        """In the training process, go to the start that workers have begun last."""
        workers = self._workers
        if (begun := workers.follow()) is not None:
            start, num_workers = begun
            self._go_to(start)
            self._is_begun, self._num_workers = True, num_workers
        if workers.is_inherited:
            workers.publish(self._next, is_set=workers.is_set and not self._is_begun)

    def _take_start(self) -> None:
        """In a worker process, go to the start that the training process has set."""
        check_fork()
        self._use_of_workers()
        is_second = self._workers.take()
        if self._is_assigned:
            if self._workers.differs_from_set(self._position.epoch):
                self._is_assigned = False  # the next iteration has the epoch that was set
                raise differing_epochs(self._position.epoch, self._workers.start.epoch)
        else:
            self._go_to(self._workers.next_start(differs_by_epoch=self.loader.differs_by_epoch))
        if is_second:
            _warn_of_new_workers(self.loader)


def _placed(position: State, batches: int, batch_size: int | None) -> State:
    """The position behind a number of batches in its epoch; arguments are checked."""
    batch = check_integer("batches", batches, least=0, most=MAX_INT)
    size = 1 if batch_size is None else batch_size
    size = check_integer("batch_size", size, least=1, most=(1 << 31) - 1)
    return replace(position, batch=batch, batch_size=size)


def _not_the_chains(buffering_pipe: str, remedy: str) -> StateError:
    return StateError(
        f"{buffering_pipe} behind this pipe buffers or skips items, so the positions of pipe and "
        "chain differ",
        expected="a pipe with nothing but .map(), .collate(), .batch() and .filter() behind it, "
        f"for it shuffles and shares out by itself; or {remedy}",
    )


def _no_state_of(dataset: str) -> StateError:
    return StateError(
        "a StatefulDataLoader saves no epoch of a loader inside a dataset without a state, and "
        "would resume in another epoch",
        expected=f"methods state_dict and load_state_dict of {dataset} that call those of the "
        "loader; or set_epoch(epoch) of the loader before each iteration; or a DataLoader",
        got=f"StatefulDataLoader({dataset}(…))",
    )


def differing_epochs(saved: int, epoch: int) -> StateError:
    """The error of an iteration for which `set_epoch` and a loaded state disagree."""
    return StateError(
        "set_epoch and a state that a StatefulDataLoader or node has loaded have different epochs",
        expected=f"set_epoch({saved}), or no call, before the iteration that resumes",
        got=f"set_epoch({epoch})",
    )


def _failed(error: SeqRecordError) -> Clip:
    """Raise the error of an iteration that failed to begin, at its first item."""
    try:
        raise error
    finally:
        del error  # its traceback refers to this frame


def _warn_of_new_workers(loader: Loader) -> None:
    """Warn if new workers decode frames that persistent workers would keep."""
    info = get_worker_info()
    assert info is not None
    if any(order.decodes_once(info.num_workers) for order in loader.orders):
        warn_once(
            "new worker processes decode all frames again in every epoch, and the frames fit into "
            "memory_limit: DataLoader(…, persistent_workers=True) keeps them"
        )
