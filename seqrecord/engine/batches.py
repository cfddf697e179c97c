"""Batches, what they are made of, and where they are filled and wait for the consumer."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.clips.grids import followed
from seqrecord.clips.tables import IntArray
from seqrecord.engine.arena import RaggedFrames
from seqrecord.engine.calls import Calls
from seqrecord.engine.crops import Crop
from seqrecord.engine.stats import EngineStats
from seqrecord.errors import ClipError
from seqrecord.processes.threads import ThreadPool
from seqrecord.sampling.plan import Clips

_THREAD_BYTES = 4 << 20  # one more thread for each; one thread copies what is less
_ENDED = "this iteration was ended: another one has begun"

_ArenaT = TypeVar("_ArenaT")


def do_nothing() -> None:
    """`Batch.arrive` on the host."""


@dataclass(frozen=True)
class Batch:
    """Clips as tensors [clips, frames, …] by feature, and where each clip comes from.

    Of texts a list of clips, each a list of `str` or `bytes`. Where several sources fill a batch, a
    slot whose source lacks a feature is 0 there, or `None` in a list of texts.
    """

    features: dict[str, torch.Tensor | RaggedFrames | list[list[Any]]]
    episode: IntArray  # [clips], row of the index of the clip's source
    start: IntArray  # [clips], first frame
    source: IntArray  # [clips], its number
    epoch: IntArray  # [clips], of the source
    place: IntArray  # [clips], in that epoch, see `Clips`
    arrive: Callable[[], object] = do_nothing
    """To be called by the thread that takes the batch, before it uses the features."""

    def __len__(self) -> int:
        return len(self.episode)


class Copy(NamedTuple):
    """Something to copy, without the GIL, in any thread."""

    nbytes: int
    do: Callable[[], None]


class Copiers(Protocol):
    """Threads that copy."""

    num_threads: int

    def copy(self, copies: Iterable[Copy]) -> None:
        """Have copies made."""


@dataclass
class CallThreads:
    """`Copiers` for one call: at most `num_threads` threads, which end with each `copy`."""

    num_threads: int

    def copy(self, copies: Iterable[Copy]) -> None:
        """Make copies. Raises the first error."""
        todo = list(copies)
        paying = 1 + sum(copy.nbytes for copy in todo) // _THREAD_BYTES
        if (threads := min(len(todo), self.num_threads, paying)) <= 1:
            for copy in todo:
                copy.do()
            return
        with ThreadPool(threads, "seqrecord-clips") as pool:
            deque(pool.map(lambda copy: copy.do(), todo), maxlen=0)


def repeats(arrays: Sequence[npt.NDArray[Any]], source: IntArray) -> Iterator[Copy]:
    """Copies of repeated frames: row `i` of each array becomes its row `source[i]`."""
    target = np.flatnonzero(source != np.arange(len(source)))
    source = source[target]
    for begin, end in pairwise(followed(target, source)):
        to, of = (slice(int(rows[begin]), int(rows[end - 1]) + 1) for rows in (target, source))
        for array in arrays:
            yield Copy(array[to].nbytes, partial(np.copyto, array[to], array[of]))


@dataclass(frozen=True, eq=False)
class ClipRows(Generic[_ArenaT]):
    """Where some clips' frames of some of an arena's features are: `rows`, int64 [clips, frames].

    Of features that `crop` has, the batch gets the windows.
    """

    arena: _ArenaT
    rows: IntArray
    features: Sequence[str]
    crop: Crop | None = None


class BatchBuilder(Protocol[_ArenaT]):
    """The memory of a batch while clips are gathered from arenas into it.

    `HostBatchBuilder` and `DeviceBatchBuilder` do so. Clips may come from any arenas that together
    have the features of the batch: those of the groups of a dataset.
    """

    def gather(
        self,
        slots: IntArray,
        sources: Sequence[ClipRows[_ArenaT]],
        copiers: Copiers,
        calls: Calls | None = None,
    ) -> int:
        """Copy clips, from the arenas of their features, to these slots, int64[clips], ascending.

        With `calls`, the batch gets what functions make of the clips. Clips with a feature of
        variable shape come in the order of their slots. When all copies are made that this asks
        for, the rows may be loaded into again. Returns how many bytes that brings to a device.
        """

    def finish(self) -> tuple[dict[str, Any], Callable[[], object]]:
        """The features of the batch, whose clips are all there, in memory that is released when
        they are dropped; and what the thread calls that takes them."""


class OpenBatch:
    """A batch of `size` clips that is being filled, from any thread.

    `missing` is how many of its slots are not filled yet, which the channel counts.

    Args:
        size: clips.
        begin: takes the memory, when the first clip comes.
        lock: so that memory is taken by one thread at a time.
        source: of each slot, int64[size]; by default 0.
    """

    def __init__(
        self,
        size: int,
        begin: Callable[[], BatchBuilder[Any]],
        lock: threading.Lock,
        source: IntArray | None = None,
    ) -> None:
        self.missing = size
        self._source = np.zeros(size, np.int64) if source is None else source
        self._episode, self._start = np.empty(size, np.int64), np.empty(size, np.int64)
        self._epoch, self._place = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self._begin = begin
        self._builder: BatchBuilder[Any] | None = None
        self._lock = lock

    def allocate(self) -> BatchBuilder[Any]:
        """The memory of the batch, from the first call on, which a device may make wait."""
        if self._builder is not None:  # who waits with the lock waits for another batch
            return self._builder
        with self._lock:
            if self._builder is None:
                self._builder = self._begin()
            return self._builder

    def name(self, slots: IntArray, clips: Clips, epoch: int) -> None:
        """Say which clips of an epoch go to these slots, int64[n]."""
        self._episode[slots], self._start[slots] = clips.episode, clips.start
        self._epoch[slots], self._place[slots] = epoch, clips.place

    def finish(self) -> Batch:
        """The batch, all of whose slots are filled."""
        features, arrive = self.allocate().finish()
        of_clips = self._episode, self._start, self._source, self._epoch, self._place
        return Batch(features, *of_clips, arrive)


class ClosedError(Exception):
    """The channel was closed; not for users."""


class Channel:
    """From the runs of plans, which fill batches together, to one consumer.

    At most `slots` batches are being filled or wait. A run opens a batch, by number, and says when
    it has filled slots of it; a batch is delivered when all of its slots are filled, and those
    before it are delivered. `close`, from any thread, makes `open` and `check_open` raise
    `ClosedError`. The time that the consumer waits is counted in `stats`.

    Args:
        begin: a batch to fill, of this number. They come in the order of their numbers.
        first: the number of the first one.
        num_runs: how many runs there are.
    """

    def __init__(
        self,
        slots: int,
        stats: EngineStats,
        begin: Callable[[int], OpenBatch],
        first: int = 0,
        num_runs: int = 1,
    ) -> None:
        # Its lock is reentrant: `close` may be called by a finalizer, inside any other method.
        self._lock = threading.RLock()
        self._opened = threading.Condition(self._lock)  # or may be: what runs wait for
        self._filled = threading.Condition(self._lock)  # what the consumer waits for
        self._slots = slots
        self._stats = stats
        self._begin = begin
        self._next = first  # the batch to open next
        self._num_runs = num_runs  # that have not ended
        self._open: deque[OpenBatch] = deque()
        self._ready: deque[Batch] = deque()
        self._error: BaseException | None = None
        self._ended = False
        self._closed = False
        self._interrupted = False

    def open(self, number: int) -> OpenBatch:
        """A batch to fill, which is not delivered yet, once the consumer has taken enough of those
        before it."""
        with self._lock:
            while number >= self._next:
                self._opened.wait_for(
                    lambda: number < self._next or self._slots or self._closed or self._interrupted
                )
                self.check_open()
                if self._interrupted:
                    raise ClosedError
                if number >= self._next:
                    self._open.append(self._begin(self._next))
                    self._next += 1
                    self._slots -= 1
                    self._opened.notify_all()
            self.check_open()
            return self._open[number - self._next]  # counted from the end

    def fill(self, batch: OpenBatch, count: int) -> None:
        """So many more slots of an open batch are filled; deliver what is whole."""
        with self._lock:
            batch.missing -= count
            while self._open and not self._open[0].missing:
                self._ready.append(self._open.popleft().finish())
                self._filled.notify()

    def take(self, process: int) -> Batch:
        """The next batch, as soon as it is there; its slot is free again.

        For users, whose iteration began in the process of this number. Raises a run's error once,
        after the batches before it; `StopIteration` after the end; and `ClipError` in another
        process, which was forked, and when the channel was closed.
        """
        if os.getpid() != process:
            raise ClipError("an iteration cannot continue in a forked process: begin another")
        begin = perf_counter()
        try:
            return self._take()
        except ClosedError:
            raise ClipError(_ENDED) from None
        finally:
            end = perf_counter()
            self._stats.add_waiting(begin, end)
            self._stats.trace.add("wait for batch", begin, end)

    def _take(self) -> Batch:
        with self._lock:
            self._filled.wait_for(lambda: self._ready or self._ended or self._closed)
            self.check_open()
            if self._ready:
                self._slots += 1
                self._opened.notify_all()
                return self._ready.popleft()
            error, self._error = self._error, None
        if error is None:
            raise StopIteration
        try:
            if isinstance(error, StopIteration):  # of a user's function: it would look like the end
                raise ClipError("StopIteration was raised where no iterator ends") from error
            raise error
        finally:
            del error  # its traceback refers to this frame

    def end(self, error: BaseException | None = None) -> None:
        """A run has ended: after the last one, or one with an error, nothing follows."""
        with self._lock:
            self._num_runs -= 1
            if not self._ended and (error is not None or not self._num_runs):
                self._ended = True
                self._error = None if self._closed else error
                self._begin = _no_batch  # it refers to memory
                self._filled.notify_all()

    def close(self) -> None:
        """Drop what waits, and let both sides know."""
        with self._lock:
            self._closed, self._error = True, None
            self._ready.clear()
            self._open.clear()
            self._opened.notify_all()
            self._filled.notify_all()

    def interrupt(self) -> None:
        """No more batches are opened: `open` raises `ClosedError`."""
        with self._lock:
            self._interrupted = True
            self._opened.notify_all()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def check_open(self) -> None:
        """Raise `ClosedError` when the channel is closed."""
        if self.is_closed:
            raise ClosedError


def _no_batch(number: int) -> OpenBatch:
    raise ClosedError(number)
