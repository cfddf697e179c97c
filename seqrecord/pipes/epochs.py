"""Epochs: the position of a loader, which can be saved and loaded."""

from __future__ import annotations

import json
import operator
import os
import threading
import weakref
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from multiprocessing.context import get_spawning_popen
from typing import Any

from torch.utils.data import get_worker_info

from seqrecord.engine.stats import EngineStats
from seqrecord.errors import ClipError, MemoryLimitError, SeqRecordError, StateError
from seqrecord.forks import at_fork
from seqrecord.pipes.clip_loader import Clip, ClipLoader
from seqrecord.pipes.iteration import Iteration
from seqrecord.pipes.states import Sharing, Stages, State, parse_settings
from seqrecord.pipes.worker_epochs import Begun, WorkerEpochs
from seqrecord.pipes.worker_groups import is_given, join_group, starting_group
from seqrecord.sampling import Part
from seqrecord.sampling.rest import Stage

__all__ = ["Epochs", "packed", "share_all"]

_MAX_EPOCH = (1 << 63) - 1


class Epochs:
    """A loader's epochs, one after the other, and the position in them. Picklable.

    The position is two integers: the epoch, and how many of its batches were delivered. Every
    iteration is of the epoch after the one that was begun before, whether that was left early or
    not; only after `load` one starts inside an epoch. One iteration runs at a time: a new one
    ends the engine of the one before.

    Copies in a DataLoader's worker processes and the object that they are copies of know by a
    counter which epoch was begun last, see `worker_epochs`. In the worker processes an epoch begins
    when an iteration is made. All other copies are independent.
    """

    def __init__(self, loader: ClipLoader) -> None:
        self.loader = loader
        self._epoch = 0
        self._stages: Stages = ()  # of the epoch, that are over
        self._batch = 0  # delivered in this stage before `_moving`
        self._sharing: Sharing | None = None  # of the batches counted
        self._saved: State | None = None  # the position that was loaded, until it is begun
        self._begun = False  # batches of this epoch were asked for
        self._ended = False  # … and there are no more
        self._offered = False  # an iteration of this epoch was made, and maybe not begun
        self._loaded: int | None = None  # the process that loaded this position, until it is begun
        self._in_workers = False  # it is they who have begun this epoch
        self._offer: object = None  # stands for the iteration that was made last
        self._moving: Iteration | None = None  # it, once it is begun: it moves the position
        self._last: Iteration | None = None  # the one that was begun last
        self._counts = {"clips_dropped": 0, "clips_repeated": 0}  # of the part, see `Plan.counts`
        self._workers = WorkerEpochs()
        _alive.add(self)

    def __getstate__(self) -> dict[str, Any]:
        self._follow_workers()
        # A copy for a process that is being started shares the counter; other copies do not.
        if starts := get_spawning_popen() is not None:
            with _starting:
                self.share()
        return {
            **self.__dict__,
            "_batch": self._delivered,
            "_offer": None,
            "_moving": None,
            "_last": None,
            "_workers": self._workers.copy(shared=starts),
            "_group": starting_group() if starts else None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        join_group(state.pop("_group"))
        self.__dict__.update(state)
        _alive.add(self)

    @property
    def current(self) -> int:
        """The epoch that runs, or if none does the next one; that too while worker processes run.

        For them it is the one after that which they have begun last.
        """
        self._follow_workers()
        is_open = self._last is not None and self._last.is_open
        return self._epoch + (self._begun and not is_open)

    @property
    def is_begun(self) -> bool:
        """Whether this process has begun the epoch that the position is in, or has ended it."""
        return self._begun

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
            return _failed(error)

    def _begin(self, part: Part) -> Iterator[Clip]:
        """See `iterate`."""
        if self._last is not None:
            self._last.end()  # its memory must be free before the next one's is taken
        sharing = Sharing.of(part)
        self._follow_workers()
        loaded = self._epoch if self._loaded == os.getpid() else None
        if (begun := self._workers.begin(loaded)) is not None:
            self._begin_with_others(begun, loaded, part)
        elif self._begun or self._is_over(sharing, part):
            self._go_to(self._epoch + 1)
        self._stages, self._batch = self._position(sharing)
        if self._saved is not None and self._continues(self._saved, sharing):
            self.loader.use_state(self._saved)
        self._sharing, self._offered = sharing, True
        self._offer = offer = object()
        return self._run(offer, part, sharing)

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
            offer = None if self._begun else self._offer
            self._go_to(epoch)
            self._offer = offer
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
        sharing = self._sharing or Sharing.of(part)
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
            self.loader.check_batches(saved)
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
        self._workers.keep(packed(saved))
        self._publish()

    def stats(self) -> dict[str, Any]:
        """What the last iteration has done so far, and what limits it, in words."""
        clips = self.loader.clips(self._epoch)
        return {
            **self._report(),
            "clips_incomplete": clips.num_incomplete,
            **self._counts,
            "clips_outside": clips.num_outside,
            "times_without_frame": self.loader.selection.times_without_frame,
            "episodes_too_short": clips.num_short_episodes,
            **self.loader.left_out(self._epoch),
        }

    def _run(self, offer: object, part: Part, sharing: Sharing) -> Iterator[Clip]:
        if self._offer is not offer:
            raise ClipError("this iteration was ended: another one has begun")
        self._begun, self._loaded, self._sharing, self._saved = True, None, sharing, None
        self._publish()
        plan = self.loader.plan(self._epoch, part, self._stages)
        # Without `equal`, another rank may have had a batch more than this one has.
        self._batch = min(self._batch, plan.num_batches)
        self._counts = plan.counts
        self._last = self._moving = iteration = Iteration(
            self.loader, plan, self._stages, batch=self._batch
        )
        yield from iteration.clips()
        if self._moving is iteration:
            self._ended = True

    @property
    def _delivered(self) -> int:
        """Batches of this stage that somebody has got."""
        return self._batch if self._moving is None else self._moving.delivered

    def _report(self) -> dict[str, Any]:
        """What the last iteration has done."""
        return EngineStats().report() if self._last is None else self._last.report()

    def _go_to(self, epoch: int) -> None:
        """To the start of an epoch."""
        _check_epoch(epoch)
        self._epoch, self._stages, self._batch, self._sharing = epoch, (), 0, None
        self._begun = self._ended = self._offered = self._in_workers = False
        self._offer = self._moving = self._loaded = self._saved = None

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
        return self._batch >= self.loader.plan(self._epoch, part, self._stages).num_batches

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

    # ---- with worker processes

    def share(self) -> None:
        """Have a counter that goes to processes which this one starts."""
        self._follow_workers()
        self._workers.share(self._epoch + self._begun, at_state=self._is_at_state)
        if (group := starting_group()) is not None and is_given(self):
            self._workers.allot(group)

    def _publish(self) -> None:
        """Tell workers of later iterations which epoch is next."""
        self._workers.publish(self._epoch + self._begun, at_state=self._is_at_state)

    @property
    def _is_at_state(self) -> bool:
        """Whether the position is one that was loaded, and not begun."""
        return self._saved is not None and not self._begun

    def _follow_workers(self) -> None:
        """Go to the epoch that workers have begun since this process published last."""
        if (epoch := self._workers.begun()) is not None:
            self._join(epoch)
            self._begun = self._in_workers = True
            self._take_note()

    def _begin_with_others(self, begun: Begun, loaded: int | None, part: Part) -> None:
        """In a worker process: to the epoch that all workers begin, `loaded` where it was here."""
        if loaded is None:
            self._take_note()
        if begun.state is not None:
            self.load(json.loads(zlib.decompress(begun.state)), part)
        elif self._begun or begun.epoch != self._epoch:
            self._join(begun.epoch)
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


def _failed(error: SeqRecordError) -> Iterator[Clip]:
    """An iteration that could not begin: a generator, so that the first `next` says so."""
    for problem in (error,):
        raise problem
    yield {}


def packed(saved: Any) -> bytes:
    """A state as bytes, for other processes."""
    return zlib.compress(json.dumps(saved.to_json(), separators=(",", ":")).encode(), 9)


def _check_epoch(epoch: int) -> None:
    if not 0 <= epoch <= _MAX_EPOCH:
        raise ClipError("not an epoch", expected=f"an integer of 0 to {_MAX_EPOCH}")


_alive: weakref.WeakSet[Epochs] = weakref.WeakSet()
_starting = threading.Lock()  # threads start processes one after the other


def share_all() -> None:
    """Give all loaders of this process a counter, which its forks then share."""
    with ExitStack() as stack:  # each, also where another one fails
        for epochs in _living():
            stack.callback(epochs.share)


def _living() -> list[Epochs]:
    while True:
        with suppress(RuntimeError):  # another thread has made one meanwhile
            return list(_alive)


def _before_fork() -> None:
    _starting.acquire()  # until the process is forked: it gets nothing that is half done
    share_all()


def _after_in_child() -> None:
    """An iteration does not continue in a forked process, nor with what it has at hand."""
    global _starting
    _starting = threading.Lock()
    for epochs in _living():
        if epochs._last is not None:
            epochs._last.forget()


at_fork(
    before=_before_fork, after_in_parent=lambda: _starting.release(), after_in_child=_after_in_child
)
