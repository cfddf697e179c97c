"""Epochs: the position of a loader, which can be saved and loaded, and what moves it."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from multiprocessing.context import get_spawning_popen
from typing import Any, Generic

from torch.utils.data import get_worker_info

from seqrecord.engine.engine import Engine
from seqrecord.engine.stats import EngineStats
from seqrecord.errors import ClipError, MemoryLimitError, SeqRecordError, StateError
from seqrecord.pipes.distributed import find_starting, say_once
from seqrecord.pipes.states import BatchSource, Clip, PlanT, Remainder, Sharing, State, parse_state
from seqrecord.pipes.worker_epochs import SharedEpochs, group_given, own_group
from seqrecord.processes.forks import PerProcess, at_fork, check_fork
from seqrecord.sampling import Part
from seqrecord.units import MOST, check_integer


class Phase(Enum):
    """How far the epoch of a position is."""

    WAITING = "nobody has begun it"
    RUNNING = "an iteration of this process has begun it"
    ENDED = "an iteration of this process has given all of it"
    IN_WORKERS = "worker processes have begun it"


@dataclass(frozen=True)
class Place:
    """Where the iteration begins that is made next, or was made last."""

    epoch: int = 0
    is_loaded: bool = False  # the place is that of the state that was loaded last
    sharing: Sharing | None = None  # of the iteration, once it was made; so are the next two
    rest: Remainder | None = None
    batch: int = 0


class Epochs(Generic[PlanT]):
    """A loader's epochs, one after the other, and the position in them. Picklable.

    The position is two integers: the epoch, and how many of its batches were delivered. Every
    iteration is of the epoch after the one that was begun before, whether that was left early or
    not; only after `load` one starts inside an epoch. One iteration runs at a time: a new one
    ends the engine of the one before.

    Copies in a DataLoader's worker processes and the object that they are copies of know by a
    record which epoch was begun last, see `worker_epochs`. In the worker processes an epoch begins
    when an iteration is made. All other copies are independent.
    """

    def __init__(self, loader: BatchSource[PlanT]) -> None:
        self.loader = loader
        self._phase = Phase.WAITING
        self._place = Place()
        self._loaded: State | None = None  # the state that was loaded last
        self._is_told = False  # this worker which epoch comes next
        self._offer: object = None  # stands for the iteration that was made last
        self._last: Iteration[PlanT] | None = None  # the one that was begun last
        self._shared: SharedEpochs | None = None  # with worker processes
        self._turns = 0  # that this worker has begun
        _alive[self] = None

    def __getstate__(self) -> dict[str, Any]:
        self._follow_workers()
        # A copy for a process that is being started shares the record; other copies do not.
        if starts := get_spawning_popen() is not None:
            self.share()
        shared, place = self._shared if starts else None, self._place
        of_copy = {"_place": replace(place, batch=self._delivered), "_shared": shared}
        return {**self.__dict__, **of_copy, "_offer": None, "_last": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _alive[self] = None

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
        if self._is_copy:
            self._begin_with_others()
        elif self.is_begun or self._is_over(sharing, part):
            self._go_to(self._place.epoch + 1)
        self._place = place = self._place_for(sharing)
        if self._loaded is not None and place.is_loaded and self._continues(self._loaded, sharing):
            self._loaded.use_settings(self.loader)
        self._offer = offer = object()
        return self._run(offer, part)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch, from its start; one that runs does not change.

        If a position in this epoch was loaded, and not yet begun, it stays. An iteration that was
        made and not yet begun is of this epoch too.
        """
        epoch = check_integer("epoch", epoch, least=0, most=MOST)
        self._follow_workers()
        if epoch != self._place.epoch or self.is_begun:
            offer = None if self.is_begun else self._offer
            self._go_to(epoch)
            self._offer = offer
        self._is_told = get_worker_info() is not None  # it holds for this worker's next iteration
        self._publish()

    def state(self, part: Part, *, at_end: bool = False) -> dict[str, Any]:
        """The position, as JSON; `part` says whose, where no iteration has.

        After an epoch's end that is the start of the next one, unless `at_end` keeps it at the
        end. A DataLoader's worker stays there, for others may not have come to their end.

        Raises `StateError` where worker processes have the position.
        """
        self._follow_workers()
        place, batch = self._place, self._delivered
        if self._phase is Phase.IN_WORKERS:
            raise StateError(
                "the position is in a DataLoader's worker processes, which this process cannot see",
                expected="torchdata's StatefulDataLoader(SeqRecordStream(…) or SeqRecordMix(…), "
                "batch_size=None, …), whose state_dict() has it; or num_workers=0, for this loader "
                "has threads of its own",
                got=f"a state_dict() asked for while workers run, or have run, epoch {place.epoch}",
            )
        if self._loaded is not None and place.is_loaded and place.sharing is None:
            return self._loaded.to_json()
        sharing, epoch = place.sharing or Sharing.of(part), place.epoch
        is_over = self._phase is Phase.ENDED and not at_end and get_worker_info() is None
        if is_over or place.sharing is None:
            place = self._place_for(sharing)
        if is_over:
            epoch, batch = epoch + 1, 0
        rest = None if place.rest is None or epoch < place.rest.epoch else place.rest
        rests = (None,) * len(self.loader.sources) if rest is None else rest.sources
        pairs = zip(self.loader.sources, rests, strict=True)
        sources = tuple(source.state(sharing.num_parts, own) for source, own in pairs)
        return State(epoch, batch, sharing, self.loader.asked(), sources, rest).to_json()

    def load(self, state: Mapping[str, Any], part: Part) -> None:
        """Load a position: the next iteration starts right after the batches delivered.

        This epoch and those after it have the settings that the state says, where memory and
        defaults would have chosen others; but for what is left of an epoch that goes on with other
        ranks or workers, and for the epochs after it, they are chosen anew. `part` is the one that
        an iteration would have.

        Raises `StateError` for a state of another dataset, of other settings, or of no loader, and
        `MemoryLimitError` for one whose settings do not fit; the position is then as it was.
        """
        saved = parse_state(state)
        saved.check(self.loader)
        is_same = saved.sharing.num_parts == part.count
        if saved.is_begun or is_same or self.loader.goes_on:
            self.loader.check_place(saved)
            try:
                saved.use_settings(self.loader)
            except MemoryLimitError:
                if is_same:
                    raise  # else this memory need not do for parts of that number
        self._take_up(saved)
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
        self._last, self._is_told = None, False
        self._place, self._phase = replace(place, is_loaded=False), Phase.RUNNING
        self._publish()
        plan = self.loader.plan(place.epoch, part, place.rest)
        self._last = iteration = Iteration(self.loader, plan, place)
        yield from iteration.clips(plan)
        if self._last is iteration and self._phase is Phase.RUNNING:
            self._phase = Phase.ENDED

    @property
    def _delivered(self) -> int:
        """Batches of the position's epoch, or of what was left of it, that somebody has got."""
        is_here = self._phase in (Phase.RUNNING, Phase.ENDED) and self._last is not None
        return self._last.delivered if self._last is not None and is_here else self._place.batch

    def _go_to(self, epoch: int) -> None:
        """To the start of an epoch."""
        epoch = check_integer("epoch", epoch, most=MOST)
        self._phase, self._place = Phase.WAITING, Place(epoch)
        self._offer, self._is_told = None, False

    def _take_up(self, saved: State) -> None:
        """To the place of a state."""
        self._go_to(saved.epoch)
        self._loaded, self._place = saved, Place(saved.epoch, is_loaded=True)

    def _place_for(self, sharing: Sharing) -> Place:
        """The place, for an iteration that shares the epoch so.

        Raises `StateError` where other parts have begun the epoch, of which too little is known.
        """
        base, place, rest, batch = self._loaded, self._place, None, 0
        if base is not None and (place.is_loaded or self.loader.goes_on):
            worker, rest = base.sharing.worker, base.rest
            is_own = not place.is_loaded or worker in (None, sharing.worker)
            if not (is_own and self._continues(base, sharing)):
                rest = self.loader.remainder_after(base)
            elif place.is_loaded:
                batch = base.batches[0 if worker is not None else sharing.worker or 0]
        return replace(place, sharing=sharing, rest=rest, batch=batch)

    def _continues(self, saved: State, sharing: Sharing) -> bool:
        """Whether `sharing` goes on with the plans that a state is of."""
        of_all = replace(sharing, worker=None) == replace(saved.sharing, worker=None)
        return of_all and saved.has_batches_of(self.loader)

    def _is_over(self, sharing: Sharing, part: Part) -> bool:
        """Whether a position was loaded where no batch is left, and an iteration made since.

        A loader makes one iteration when it loads a state and, if that was of an epoch that had
        ended, another one for the next epoch.
        """
        place = self._place
        if not (place.is_loaded and (place.batch or place.rest) and place.sharing == sharing):
            return False
        return place.batch >= self.loader.plan(place.epoch, part, place.rest).num_batches

    # ---- with worker processes

    def share(self) -> None:
        """Have a record that goes to processes which this one starts."""
        self._follow_workers()
        with _lock.get():
            if get_worker_info() is None and self._own is None:
                self._shared = SharedEpochs()
                self._publish()
        if (own := self._own) is not None and (group := group_given(self)) is not None:
            own.allot(group)
            self._warn_of_new_workers()

    def _warn_of_new_workers(self) -> None:
        """Log a warning where workers are started anew that would else have all frames."""
        loader = None if (starting := find_starting()) is None else starting[1]
        if loader is None or loader.persistent_workers or not self.current:
            return
        with suppress(SeqRecordError):  # raised where an iteration begins
            if any(source.decodes_once(loader.num_workers) for source in self.loader.sources):
                say_once(
                    "new worker processes decode all frames again in every epoch, and the frames "
                    "fit into memory_limit: DataLoader(…, persistent_workers=True) keeps them"
                )

    @property
    def _own(self) -> SharedEpochs | None:
        """The record, if it is of this process's workers: each that has some has its own."""
        shared = self._shared
        return shared if shared is not None and shared.owner == os.getpid() else None

    @property
    def _is_copy(self) -> bool:
        """Whether this is the copy that a worker process has of another process's object."""
        if get_worker_info() is None:
            return False
        check_fork()
        return self._shared is not None and self._own is None

    def _publish(self) -> None:
        """Tell workers of later iterations which epoch is next, and in what place it begins."""
        if (own := self._own) is not None:
            loaded = None if self._loaded is None else self._loaded.to_json()
            is_next = self._place.is_loaded and not self.is_begun
            own.set_next(self._place.epoch + self.is_begun, loaded if is_next else None, loaded)

    def _follow_workers(self) -> None:
        """Go to the epoch that workers have begun since this process published last."""
        epoch, loaded = (None, None) if (own := self._own) is None else own.begun()
        if epoch is not None:
            self._go_to(epoch)
            self._phase = Phase.IN_WORKERS
            self._use(loaded)

    def _begin_with_others(self) -> None:
        """In a worker process: to the epoch that all workers of its group begin."""
        assert self._shared is not None
        self._turns += 1
        told = self._place.epoch if self._is_told else None
        own = None if self._loaded is None else self._loaded.to_json()
        epoch, state, loaded = self._shared.begin(own_group(), self._turns, told, own)
        if told is None:
            self._use(loaded)
            self._go_to(epoch)
            if state is not None:
                self._take_up(State.parse(state))

    def _use(self, loaded: object) -> None:
        """Keep the settings of a state that another process has loaded.

        A StatefulDataLoader gives a state to one epoch's workers; those of the next epoch start as
        copies of an object that has not got it.
        """
        if loaded is not None and (saved := State.parse(loaded)) != self._loaded:
            self._loaded = saved
            with suppress(MemoryLimitError):  # then the workers go on without them, too
                saved.use_settings(self.loader)


class Iteration(Generic[PlanT]):
    """Runs a plan of a loader from a place in its epoch on. What the engine has made waits here
    until it is taken.
    """

    def __init__(self, loader: BatchSource[PlanT], plan: PlanT, place: Place) -> None:
        self._present, self._counts = loader.present, plan.counts
        # Without `equal`, another rank may have had a batch more than this one has.
        self._number = batch = min(place.batch, plan.num_batches)  # of the batch that is made next
        self._waiting: list[Clip] = []  # single clips that nobody has; the last one comes first
        self._forgotten = 0  # … and that nobody will get
        self._trace = loader.trace()
        self._stats = EngineStats(trace=self._trace)
        self._engine: Engine | None
        self._engine = loader.start(plan, place.rest, batch=batch, stats=self._stats)

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


def _failed(error: SeqRecordError) -> Clip:
    """The first item of an iteration that could not begin."""
    raise error


_alive: weakref.WeakKeyDictionary[Epochs[Any], None] = weakref.WeakKeyDictionary()
_lock = PerProcess(threading.Lock)  # of records that are made


def share_all() -> None:
    """Give all loaders of this process a record, which its forks then share."""
    for epochs in _living():
        epochs.share()


def _living() -> list[Epochs[Any]]:
    # Another thread may make one meanwhile, which the list of references does not mind.
    return [epochs for one in _alive.keyrefs() if (epochs := one()) is not None]


def _after_in_child() -> None:
    """An iteration does not continue in a forked process, nor with what it has at hand."""
    for epochs in _living():
        if epochs._last is not None:
            epochs._last.forget()


at_fork(before=share_all, after_in_child=_after_in_child)
