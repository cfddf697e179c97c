"""Epochs: where a loader is, which can be saved and taken up again."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

from seqrecord.engine import Engine
from seqrecord.engine.stats import EngineStats
from seqrecord.errors import ClipError, StateError
from seqrecord.pipes.loader import Clip, ClipLoader
from seqrecord.plan import Split

__all__ = ["Epochs"]

_STATE_VERSION = 1
_STATE_KEYS = {"version", "epoch", "batch", "split", "fingerprint"}
_MAX_INTEGER = 1 << 63  # exclusive
_MAX_SPLITS = 1 << 31  # exclusive


class Epochs:
    """A loader's epochs, one after the other, and the position in them. Picklable.

    The position is two integers: the epoch, and how many of its batches were delivered. Every
    iteration is of the epoch after the one that was begun before, whether that was left early or
    not; only after `load` one goes on inside an epoch. One iteration runs at a time: a new one
    ends the engine of the one before.
    """

    def __init__(self, loader: ClipLoader) -> None:
        self.loader = loader
        self._epoch = 0
        self._batch = 0  # delivered; more than 0 only in an epoch that was begun, or loaded
        self._split: Split | None = None  # of the batches counted
        self._begun = False  # batches of this epoch were asked for
        self._ended = False  # … and there are no more
        self._offered = False  # an iteration of this epoch was made, and maybe not begun
        self._iteration: object = None  # the one that moves the position
        self._engine: Engine | None = None
        self._stats = EngineStats()
        self._dropped = 0  # clips of the split that `drop_last` leaves out
        self._repeated = 0  # clips of the split that another one gives too

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_engine": None, "_iteration": None}

    @property
    def current(self) -> int:
        """The epoch that runs, or if none does the next one."""
        return self._epoch + (self._begun and self._engine is None)

    def iterate(self, split: Split, threads: int | None = None) -> Iterator[Clip]:
        """The batches of one epoch, or those that are left of the one that was loaded.

        The epoch counts as begun with the first `next`. Raises `StateError` when a state was
        loaded that is in the middle of an epoch of other splits.
        """
        if self._engine is not None:
            self._engine.close()  # its memory must be free before the next one's is taken
            self._engine = None
            self._stats.trace.close()
        if self._begun or self._is_over(split):
            self.set_epoch(self._epoch + 1)
        if self._batch and self._split != split:
            assert self._split is not None, "batches were counted of some split"
            raise StateError(
                "the saved state is in the middle of an epoch that was split otherwise",
                expected=f"part {split.index} of {split.count}",
                got=f"part {self._split.index} of {self._split.count}",
            )
        self._split, self._offered = split, True
        self._iteration = iteration = object()
        return self._run(iteration, split, threads)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch, from its start; one that runs goes on as it is."""
        try:
            epoch = operator.index(epoch)
        except TypeError:
            epoch = -1
        if not 0 <= epoch < _MAX_INTEGER:
            raise ClipError("not an epoch", expected=f"an integer of 0 to {_MAX_INTEGER - 1}")
        self._epoch, self._batch, self._split = epoch, 0, None
        self._begun = self._ended = self._offered = False
        self._iteration = None

    def skip_epochs(self, count: int) -> None:
        """So many epochs were run elsewhere."""
        if count:
            self.set_epoch(self._epoch + count + self._begun)

    def state(self, split: Split, *, in_worker: bool = False) -> dict[str, Any]:
        """The position, as JSON; `split` names the part where no iteration has.

        After an epoch's end that is the start of the next one. But a DataLoader's worker may have
        come to the end of its part while others have not: there it is the end.
        """
        part = self._split or split
        over = self._ended and not in_worker
        return {
            "version": _STATE_VERSION,
            "epoch": self._epoch + over,
            "batch": 0 if over else self._batch,
            "split": [part.index, part.count],
            "fingerprint": self.loader.fingerprint(part.count),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take up a position: the next iteration goes on right after the batches delivered.

        Raises `StateError` for a state of another dataset, of other settings, or of no loader;
        the position is then as it was.
        """
        epoch, batch, split = _parse(state)
        try:
            fingerprint = self.loader.fingerprint(split.count)
            if state["fingerprint"] != fingerprint:
                raise StateError(
                    "the saved state is of another dataset or of other settings",
                    file=self.loader.selection.dataset.url,
                    expected=fingerprint,
                    got=state["fingerprint"][:64],
                )
            num_batches = self.loader.plan(epoch, split).num_batches
        except ClipError as error:
            raise StateError(f"the saved state is of no epoch: {error}") from error
        if batch > num_batches:
            raise StateError(
                "the saved state is beyond the end of its epoch",
                expected=f"at most {num_batches} batches",
                got=batch,
            )
        self.set_epoch(epoch)
        self._batch, self._split = batch, split

    def stats(self) -> dict[str, Any]:
        """What the last iteration has done so far, and what holds it up, in words."""
        clips = self.loader.clips(self._epoch)
        return {
            **self._stats.report(),
            "clips_incomplete": clips.num_incomplete,
            "clips_dropped": self._dropped,
            "clips_repeated": self._repeated,
            "episodes_too_short": clips.num_short_episodes,
        }

    def _run(self, iteration: object, split: Split, threads: int | None) -> Iterator[Clip]:
        if self._iteration is not iteration:
            raise ClipError("this iteration was ended: another one has begun")
        self._begun = True
        plan = self.loader.plan(self._epoch, split)
        trace = self.loader.trace()
        self._stats = EngineStats(trace=trace)
        self._dropped, self._repeated = plan.num_dropped, plan.num_repeated
        engine = self.loader.start(plan, batch=self._batch, threads=threads, stats=self._stats)
        self._engine = engine
        try:
            for batch in engine:
                clip = self.loader.clip(batch)
                del batch  # so that its memory is the consumer's alone to keep
                if self._iteration is iteration:
                    self._batch += 1
                with trace.span("consumer"):
                    yield clip
                del clip
            engine.close()
            if self._iteration is iteration:
                self._ended = True
        finally:
            engine.drop()
            trace.close()
            if self._engine is engine:
                self._engine = None

    def _is_over(self, split: Split) -> bool:
        """Whether a position was loaded where no batch is left, and an iteration offered since.

        A DataLoader makes one iteration when it takes up a state and, if that was of an epoch that
        had ended, another one for the next epoch.
        """
        if not (self._offered and self._batch and self._split == split):
            return False
        return self._batch == self.loader.plan(self._epoch, split).num_batches


def _parse(state: object) -> tuple[int, int, Split]:
    """Epoch, batch and split of a state; `StateError` for what no loader has saved."""
    if not isinstance(state, Mapping) or set(state) != _STATE_KEYS:
        raise StateError(
            "not a state of a seqrecord loader",
            expected=f"a dict of {', '.join(sorted(_STATE_KEYS))}",
            got=_shown(state),
        )
    if state["version"] != _STATE_VERSION or isinstance(state["version"], bool):
        raise StateError(
            "a state of another version", expected=_STATE_VERSION, got=_shown(state["version"])
        )
    if not isinstance(state["fingerprint"], str):
        raise StateError("a state's fingerprint is not text", got=_shown(state["fingerprint"]))
    split = state["split"]
    if not isinstance(split, (list, tuple)) or len(split) != 2:
        raise StateError("a state's split is not two integers", got=_shown(split))
    index, count = _integer("split", split[0]), _integer("split", split[1])
    if not index < count < _MAX_SPLITS:
        raise StateError(
            "a state's split makes no sense", expected="index < count", got=_shown(split)
        )
    return _integer("epoch", state["epoch"]), _integer("batch", state["batch"]), Split(index, count)


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MAX_INTEGER:
        raise StateError(
            f"a state's {name} is out of range",
            expected=f"an integer of 0 to {_MAX_INTEGER - 1}",
            got=_shown(value),
        )
    return value


def _shown(value: object) -> str:
    try:
        return repr(value)[:200]
    except ValueError:  # an integer of more digits than Python likes to print
        return f"a {type(value).__name__} too long to show"
