"""Epochs: the position of a loader, which can be saved and loaded."""

from __future__ import annotations

import json
import operator
import os
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import repeat
from multiprocessing.context import get_spawning_popen
from typing import Any

from torch.utils.data import get_worker_info

from seqrecord.engine.engine import Engine
from seqrecord.engine.stats import EngineStats
from seqrecord.errors import ClipError, MemoryLimitError, StateError
from seqrecord.pipes.clip_loader import Clip, ClipLoader
from seqrecord.pipes.collated import Collated
from seqrecord.pipes.consumers import look_at_consumer
from seqrecord.pipes.shuffled import ShuffledBatches
from seqrecord.pipes.states import Sharing, Stages, State, parse_settings
from seqrecord.pipes.worker_epochs import WorkerEpochs
from seqrecord.sampling import Part
from seqrecord.sampling.rest import Stage

__all__ = ["Epochs", "share_all", "sharing_of"]

_MAX_EPOCH = (1 << 63) - 1
_POP = list.pop


class Epochs:
    """A loader's epochs, one after the other, and the position in them. Picklable.

    The position is two integers: the epoch, and how many of its batches were delivered. Every
    iteration is of the epoch after the one that was begun before, whether that was left early or
    not; only after `load` one starts inside an epoch. One iteration runs at a time: a new one
    ends the engine of the one before.

    Copies in a DataLoader's worker processes and the object that they are copies of know by a
    counter which epoch was begun last. In the worker processes an epoch begins when an iteration
    is made. All other copies are independent.
    """

    def __init__(self, loader: ClipLoader) -> None:
        self.loader = loader
        self._epoch = 0
        self._stages: Stages = ()  # of the epoch, that are over
        self._batch = 0  # delivered in this stage, with those in `_counted`
        self._sharing: Sharing | None = None  # of the batches counted
        self._saved: State | None = None  # the position that was loaded, until it is begun
        self._begun = False  # batches of this epoch were asked for
        self._ended = False  # … and there are no more
        self._offered = False  # an iteration of this epoch was made, and maybe not begun
        self._loaded: int | None = None  # the process that loaded this position, until it is begun
        self._in_workers = False  # it is they who have begun this epoch
        self._iteration: object = None  # the one that moves the position
        self._engine: Engine | None = None
        self._waiting: list[Any] = []  # clips that the engine has given, and nobody has
        self._counted: list[Any] = []  # those of them that are in `_batch`
        self._stats = EngineStats()
        self._counts = {"clips_dropped": 0, "clips_repeated": 0}  # of the part, see `Plan.counts`
        self._workers = WorkerEpochs()
        _alive.add(self)

    def __getstate__(self) -> dict[str, Any]:
        self._follow_workers()
        # A copy for a process that is being started shares the counter; other copies do not.
        counter = None
        if get_spawning_popen() is not None:
            self.share()
            counter = self._workers.counter
        return {
            **self.__dict__,
            "_batch": self._delivered,
            "_engine": None,
            "_waiting": [],
            "_counted": [],
            "_iteration": None,
            "_workers": WorkerEpochs(counter, self._workers.note),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _alive.add(self)

    @property
    def current(self) -> int:
        """The epoch that runs, or if none does the next one; that too while worker processes run.

        For them it is the one after that which they have begun last.
        """
        self._follow_workers()
        return self._epoch + (self._begun and self._engine is None)

    @property
    def is_begun(self) -> bool:
        """Whether this process has begun the epoch that the position is in, or has ended it."""
        return self._begun

    def iterate(
        self,
        part: Part,
        shuffled: ShuffledBatches | None = None,
        collated: Collated | None = None,
    ) -> Iterator[Clip]:
        """The batches of one epoch, or those that are left of the one that was loaded.

        `shuffled` is where its single clips will be, if that is known; `collated` is there if
        nobody but `collate` takes them: small ones are then rows of batches, see `made_clips`.

        The epoch counts as begun with the first `next`. Raises `StateError` when a state was
        loaded that is in the middle of an epoch of other parts, and does not tell where they all
        are.
        """
        if self._engine is not None:
            self._engine.close()  # its memory must be free before the next one's is taken
            self._engine = None
            self._drop_waiting()
            self._stats.trace.close()
        sharing = sharing_of(part)
        look_at_consumer(self, self.loader)
        self._follow_workers()
        loaded = self._epoch if self._loaded == os.getpid() else None
        if (epoch := self._workers.begin(loaded)) is not None:
            self._begin_with_others(epoch, loaded)
        elif self._begun or self._is_over(sharing, part):
            self._go_to(self._epoch + 1)
        self._stages, self._batch = self._position(sharing)
        if self._saved is not None and self._continues(self._saved, sharing):
            self.loader.use_state(self._saved)
        self._sharing, self._offered = sharing, True
        self._iteration = iteration = object()
        return self._run(iteration, part, sharing, shuffled, collated)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch, from its start; one that runs does not change.

        If a position in this epoch was loaded, and not yet begun, it stays. An iteration that was
        made and not yet begun is of this epoch too.
        """
        try:
            epoch = operator.index(epoch)
        except TypeError:
            epoch = -1
        _check_epoch(epoch)
        self._follow_workers()
        if epoch != self._epoch or self._begun:
            iteration = None if self._begun else self._iteration
            self._go_to(epoch)
            self._iteration = iteration
        if get_worker_info() is not None:
            self._loaded = os.getpid()  # it holds for this worker's next iteration
        self._publish()

    def state(self, part: Part, *, at_end: bool = False) -> dict[str, Any]:
        """The position, as JSON; `part` says whose, where no iteration has.

        After an epoch's end that is the start of the next one, unless `at_end` keeps it at the
        end. A DataLoader's worker stays there, for others may not have come to their end.

        Raises `StateError` where worker processes have the position.
        """
        self._check_position("SeqRecordStream")
        if self._saved is not None and self._sharing is None:
            return self._saved.to_json()
        sharing = self._sharing or sharing_of(part)
        over = self._ended and not at_end and get_worker_info() is None
        epoch, stages = (self._epoch + 1, ()) if over else (self._epoch, self._stages)
        return State(
            epoch=epoch,
            batch=0 if over else self._delivered,
            sharing=sharing,
            stages=stages,
            settings=self.loader.settings(sharing.num_parts, epoch, stages),
            later=self.loader.settings(sharing.num_parts) if stages else None,
            request=self.loader.request(),
            episodes=self.loader.selection.identity,
        ).to_json()

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
        self.loader.check_state(saved)
        num_parts, begun, note = saved.sharing.num_parts, any(saved.batches), b""
        if begun or saved.stages or num_parts == part.count:
            self._check_batches(saved)
            if saved.settings.batch_size == self.loader.batch_size:
                try:
                    self.loader.use_state(saved)
                    said = {"num_parts": num_parts, "settings": asdict(saved.usual)}
                    note = json.dumps(said).encode()
                except MemoryLimitError:
                    if num_parts == part.count:
                        raise  # else this memory need not do for parts of that number
        self._go_to(saved.epoch)
        self._saved, self._workers.note = saved, note
        self._loaded = os.getpid()
        self._publish()

    def stats(self) -> dict[str, Any]:
        """What the last iteration has done so far, and what limits it, in words."""
        clips = self.loader.clips(self._epoch)
        report = self._stats.report()
        if self.loader.batch_size is None:
            report["clips"] -= len(self._waiting)
            report["batches"] -= len(self._waiting)
        return {
            **report,
            "clips_incomplete": clips.num_incomplete,
            **self._counts,
            "clips_outside": clips.num_outside,
            "times_without_frame": self.loader.selection.times_without_frame,
            "episodes_too_short": clips.num_short_episodes,
            **self.loader.left_out(self._epoch),
        }

    def _run(
        self,
        iteration: object,
        part: Part,
        sharing: Sharing,
        shuffled: ShuffledBatches | None,
        collated: Collated | None,
    ) -> Iterator[Any]:
        if self._iteration is not iteration:
            raise ClipError("this iteration was ended: another one has begun")
        self._begun, self._loaded, self._sharing, self._saved = True, None, sharing, None
        self._publish()
        stages = {"stages": self._stages} if self._stages else {}
        plan = self.loader.plan(self._epoch, part, **stages)
        # Without `equal`, another rank may have had a batch more than this one has.
        self._batch = min(self._batch, plan.num_batches)
        trace = self.loader.trace()
        self._stats = stats = EngineStats(trace=trace)
        self._counts = plan.counts
        more: dict[str, Any] = {**stages}
        if shuffled is not None:  # never of a mix, whose loader does not take it
            more["shuffled"] = shuffled
        if collated is not None:
            more["collated"] = collated
        engine = self.loader.start(plan, **more, batch=self._batch, stats=stats)
        self._engine = engine
        clips: list[Any] = []
        is_single = self.loader.batch_size is None
        try:
            number = self._batch
            for batch in engine:
                if not (is_single and len(batch) > 1):
                    clips = [self.loader.clip(batch, plan, number)]
                elif collated is None:
                    clips = self.loader.singles(batch, plan)
                else:
                    clips = self.loader.rows(batch, plan)
                del batch  # so that its memory is the consumer's alone to keep, and the clips' too
                number += len(clips)
                clips.reverse()
                self._waiting = clips
                if self._iteration is iteration:
                    self._batch, self._counted = number, clips
                try:
                    if not trace.is_on:
                        # No work for each clip: of small ones there are 100,000 a second.
                        yield from map(_POP, repeat(clips, len(clips)))
                    while clips:
                        with trace.span("consumer"):
                            yield clips.pop()
                except IndexError:  # nothing is left where this iteration was ended
                    if clips:
                        raise
            engine.close()
            if self._iteration is iteration:
                self._ended = True
        finally:
            engine.drop()
            trace.close()
            if self._engine is engine:
                self._engine = None
            if self._waiting is clips:
                self._drop_waiting()

    @property
    def _delivered(self) -> int:
        """Batches of this stage that somebody has got."""
        return self._batch - len(self._counted)

    def _drop_waiting(self) -> None:
        """Forget clips that nobody will get, and that nobody has got them."""
        count = len(self._waiting)
        if self._counted is self._waiting:
            self._batch -= count
        if self.loader.batch_size is None:
            # Without the lock, which a fork may never get: only the consumer counts these.
            self._stats.clips -= count
            self._stats.batches -= count
        self._waiting.clear()

    def _go_to(self, epoch: int) -> None:
        """To the start of an epoch."""
        _check_epoch(epoch)
        self._epoch, self._stages, self._batch, self._sharing = epoch, (), 0, None
        self._counted = []
        self._begun = self._ended = self._offered = self._in_workers = False
        self._iteration = self._loaded = self._saved = None

    def _join(self, epoch: int) -> None:
        """To an epoch that other processes begin, at the place in it that was loaded.

        Workers that are started while others iterate already have that place too.
        """
        saved = self._saved if epoch == self._epoch else None
        self._go_to(epoch)
        self._saved = saved

    def _position(self, sharing: Sharing) -> tuple[Stages, int]:
        """The stages that are over, and batches delivered in the one that goes on for `sharing`.

        Raises `StateError` where other parts have begun that one, of which too little is known.
        """
        saved = self._saved
        if saved is None:
            if self._batch and self._sharing != sharing:
                raise StateError(
                    "the saved state is in the middle of an epoch that other ranks or workers "
                    "share",
                    expected=sharing,
                    got=self._sharing,
                )
            return self._stages, self._batch
        if not any(saved.batches):
            return saved.stages, 0
        if self._continues(saved, sharing):
            worker = sharing.worker if saved.sharing.worker is None else 0
            return saved.stages, saved.batches[worker or 0]
        of_all = saved.of_rank()
        stage = Stage(of_all.sharing.ranks, of_all.batches, of_all.settings)
        return (*saved.stages, stage), 0

    def _continues(self, saved: State, sharing: Sharing) -> bool:
        """Whether `sharing` goes on with the plan that a state is of."""
        if saved.sharing.worker is None:
            sharing = replace(sharing, worker=None)
        return saved.sharing == sharing and saved.settings.batch_size == self.loader.batch_size

    def _is_over(self, sharing: Sharing, part: Part) -> bool:
        """Whether a position was loaded where no batch is left, and an iteration offered since.

        A loader makes one iteration when it loads a state and, if that was of an epoch that had
        ended, another one for the next epoch.
        """
        if not (self._offered and (self._batch or self._stages) and self._sharing == sharing):
            return False
        stages = {"stages": self._stages} if self._stages else {}
        return self._delivered >= self.loader.plan(self._epoch, part, **stages).num_batches

    def _check_position(self, kind: str) -> None:
        """Raise `StateError` where worker processes have the position; `kind` can be resumed so."""
        self._follow_workers()
        if self._in_workers:
            raise StateError(
                "the position is in a DataLoader's worker processes, which this process cannot see",
                expected=f"torchdata's StatefulDataLoader({kind}(…), batch_size=None, …), whose "
                "state_dict() has it; or num_workers=0, for this loader has threads of its own",
                got=f"a state_dict() asked for while workers run, or have run, epoch {self._epoch}",
            )

    def _check_batches(self, state: State) -> None:
        num_batches = self.loader.most_batches(state)
        if max(state.batches) > num_batches:
            raise StateError(
                "the saved state is beyond the end of its epoch",
                expected=f"at most {num_batches} batches",
                got=max(state.batches),
            )

    # ---- with worker processes

    def share(self) -> None:
        """Have a counter that goes to processes which this one starts."""
        look_at_consumer(self, self.loader)
        self._follow_workers()
        self._workers.share(self._epoch + self._begun)

    def _publish(self) -> None:
        """Tell workers of later iterations which epoch is next."""
        self._workers.publish(self._epoch + self._begun)

    def _follow_workers(self) -> None:
        """Go to the epoch that workers have begun since this process published last."""
        if (epoch := self._workers.begun()) is not None:
            self._join(epoch)
            self._begun = self._in_workers = True
            self._take_note()

    def _begin_with_others(self, epoch: int, loaded: int | None) -> None:
        """In a worker process: to the epoch that all workers begin, `loaded` where it was here."""
        if loaded is None:
            self._take_note()
        if self._begun or epoch != self._epoch:
            self._join(epoch)
        self._loaded = None

    def _take_note(self) -> None:
        """Keep the settings of a state that workers have loaded, and that they have left a note of.

        A StatefulDataLoader gives a state to one epoch's workers; those of the next epoch start as
        copies of an object that has not got it.
        """
        if (note := self._workers.new_note()) is not None:
            self._use_note(note)
            self._workers.note = note

    def _use_note(self, note: bytes) -> None:
        said = json.loads(note)
        self.loader.use_settings(parse_settings(said["settings"]), said["num_parts"])


def sharing_of(part: Part) -> Sharing:
    """Who has a part: this process, or this worker of a DataLoader."""
    worker = get_worker_info()
    return Sharing.of(part, worker.id, worker.num_workers) if worker else Sharing.of(part, 0, 1)


def _check_epoch(epoch: int) -> None:
    if not 0 <= epoch <= _MAX_EPOCH:
        raise ClipError("not an epoch", expected=f"an integer of 0 to {_MAX_EPOCH}")


_alive: weakref.WeakSet[Epochs] = weakref.WeakSet()


def share_all() -> None:
    """Give all loaders of this process a counter, which its forks then share."""
    for epochs in list(_alive):
        epochs.share()


def _end_in_fork() -> None:
    """An iteration does not continue in a forked process, nor with what it has at hand."""
    for epochs in list(_alive):
        epochs._drop_waiting()


os.register_at_fork(before=share_all, after_in_child=_end_in_fork)
