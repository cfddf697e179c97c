"""Batches under construction, and the channel that delivers them."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import torch

from seqrecord.errors import ClipError, MemoryLimitError
from seqrecord.loader.clips.frames import ClipKeys
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.engine.arena import RaggedFrames
from seqrecord.loader.engine.stats import EngineStats
from seqrecord.loader.sampling.epoch_plans import Clips
from seqrecord.store.processes.threads import ThreadPool

if TYPE_CHECKING:
    from seqrecord.loader.engine.calls import Calls
    from seqrecord.loader.engine.crops import Crop
    from seqrecord.loader.engine.vectors import VectorSteps

_THREAD_BYTES = 4 << 20  # per additional thread
ENDED = "this iteration has ended: another one has begun"

_ArenaT = TypeVar("_ArenaT")

NO_STEPS: VectorSteps = {}


def do_nothing() -> None:
    """Default of `Batch.arrive`, for batches in host memory."""


@dataclass(frozen=True)
class Batch:
    """A batch: tensors [clips, frames, …] by feature, and the origin of each clip.

    A text feature is a list of clips, each a list of `str` or `bytes`. In a mix, features that a
    clip's source lacks are 0, or `None` in lists of texts.
    """

    features: dict[str, torch.Tensor | RaggedFrames | list[list[Any]]]
    clips: ClipKeys  # in the epoch of the clip's source
    source: IntArray  # [clips], number of the source
    epoch: IntArray  # [clips], of the source
    arrive: Callable[[], object] = do_nothing
    """Must be called by the consuming thread before it uses the features."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Result of `OpenBatch`'s `describe`."""

    def __len__(self) -> int:
        return len(self.source)


class Copy(NamedTuple):
    """A copy that any thread can make without the GIL."""

    nbytes: int
    do: Callable[[], None]


class Copiers(Protocol):
    """Threads that make copies."""

    num_threads: int

    def copy(self, copies: Iterable[Copy]) -> None:
        """Submit copies."""


@dataclass
class CallThreads:
    """`Copiers` with at most `num_threads` threads, which end with each `copy`."""

    num_threads: int

    def copy(self, copies: Iterable[Copy]) -> None:
        """Make all copies. Raises the first error."""
        todo = list(copies)
        paying = 1 + sum(copy.nbytes for copy in todo) // _THREAD_BYTES
        if (threads := min(len(todo), self.num_threads, paying)) <= 1:
            for copy in todo:
                copy.do()
            return
        with ThreadPool(threads, "seqrecord-clips") as pool:
            deque(pool.map(lambda copy: copy.do(), todo), maxlen=0)


@dataclass(eq=False, slots=True)  # frozen ones take three times as long to create
class ClipRows(Generic[_ArenaT]):
    """Arena rows of clips for some features: `rows`, int64 [clips, frames]. Immutable by
    convention.

    The batch receives the windows of features in `crop`.
    """

    arena: _ArenaT
    rows: IntArray
    features: Sequence[str]
    crop: Crop | None = None


@dataclass(frozen=True, eq=False)
class ClipDraws:
    """Draws of clips: windows if there are crops, calls if there are functions."""

    crop: Crop | None = None
    calls: Calls | None = None


NO_DRAWS = ClipDraws()

DrawClips: TypeAlias = Callable[[ClipKeys, Sequence[ClipRows[Any]]], ClipDraws]
"""Draws for clips, with their rows, for the sizes of frames."""


@dataclass(frozen=True)
class BatchForm:
    """The drawn form of a batch: frames of each clip, and height and width of features.

    `frames` is `None` if all batches have the same; so are `sizes` of features that are not there.
    """

    frames: int | None
    sizes: Mapping[str, tuple[int, int]]

    def shape(self, feature: str, length: int, frame: Sequence[int]) -> tuple[int, ...]:
        """The shape of a feature in a clip, from its usual length and shape of a frame."""
        size = self.sizes.get(feature, tuple(frame[:2]))
        return self.frames or length, *size, *frame[2:]


class BatchBuilder(Protocol[_ArenaT]):
    """Memory of a batch while clips are gathered from arenas.

    Implemented by `HostBatchBuilder` and `DeviceBatchBuilder`. The arenas of a dataset's groups
    together have the features of the batch.
    """

    def gather(
        self,
        slots: IntArray,
        sources: Sequence[ClipRows[_ArenaT]],
        copiers: Copiers,
        calls: Calls | None = None,
        vectors: VectorSteps = NO_STEPS,
    ) -> int:
        """Copy clips from arenas to slots, int64[clips], in ascending order.

        With `calls`, the batch receives the results of functions. Steps of `vectors` come last.
        Clips with a feature of variable shape must come in the order of their slots. Rows may be
        overwritten after all submitted copies are made. Returns the number of bytes sent to a
        device.
        """

    def clear(self, feature: str, slots: IntArray) -> None:
        """Fill slots of a feature with a fixed shape with 0."""

    def finish(self) -> tuple[dict[str, Any], Callable[[], object]]:
        """Return the features of the complete batch, and the function `Batch.arrive`.

        The memory is released when the features are deleted.
        """


class OpenBatch:
    """A batch of `size` clips that any thread can fill.

    The channel counts empty slots in `missing`.

    Args:
        size: number of clips.
        begin: allocates the memory, at the first clip.
        lock: serializes allocations.
        frames: frames of each clip, if they vary between batches.
        source: source of each slot, int64[size]. Default: 0.
        ends: frames before the end of each slot, int64[size], if lists of frames come one after
            another.
        describe: makes the columns of the full batch, which has no features yet. Called under
            `lock` by the thread that fills the last slot.
    """

    def __init__(
        self,
        size: int,
        begin: Callable[[], BatchBuilder[Any]],
        lock: threading.Lock,
        source: IntArray | None = None,
        frames: int | None = None,
        describe: Callable[[Batch], Mapping[str, Any]] | None = None,
        ends: IntArray | None = None,
    ) -> None:
        self.missing, self.frames, self.is_complete = size, frames, False
        self.ends = ends
        self._describe, self._columns = describe, dict[str, Any]()
        self._source = np.zeros(size, np.int64) if source is None else source
        self._epoch, self._clips = np.zeros(size, np.int64), ClipKeys.zeros(size)
        self._begin = begin
        self._builder: BatchBuilder[Any] | None = None
        self._lock = lock

    def allocate(self) -> BatchBuilder[Any]:
        """Memory of the batch, allocated by the first call, which may wait for a device."""
        if self._builder is not None:  # the lock may be held for another batch
            return self._builder
        with self._lock:
            if self._builder is None:
                self._builder = self._begin()
            return self._builder

    def name(self, slots: IntArray, clips: Clips, epoch: int) -> None:
        """Record the origin of the clips in slots, int64[n]."""
        self._epoch[slots] = epoch
        for column, named in zip(self._clips, clips.keys, strict=True):
            column[slots] = named

    def complete(self) -> None:
        """Make the columns. All slots must be filled."""
        if self._describe is not None:
            with self._lock:
                self._columns = {**self._describe(Batch({}, *self._origin))}
        self.is_complete = True

    def finish(self) -> Batch:
        """The complete batch."""
        features, arrive = self.allocate().finish()
        return Batch(features, *self._origin, arrive, self._columns)

    @property
    def _origin(self) -> tuple[ClipKeys, IntArray, IntArray]:
        return self._clips, self._source, self._epoch


class ClosedError(Exception):
    """The channel was closed. Not raised to users."""


class Channel:
    """Queue of batches from the thread of an executor to one consumer.

    At most `slots` batches are being filled or are ready. The producer opens a batch by number, and
    reports filled slots. Batches are delivered in order, once they are full.
    `close`, from any thread, makes `open` and `check_open` raise `ClosedError`.

    Args:
        begin: creates the batch with a number; called in ascending order.
        first: number of the first batch.
    """

    def __init__(
        self,
        slots: int,
        stats: EngineStats,
        begin: Callable[[int], OpenBatch],
        first: int = 0,
    ) -> None:
        # Reentrant: a finalizer may call `close` inside any other method.
        self._lock = threading.RLock()
        self._opened = threading.Condition(self._lock)  # producers wait
        self._filled = threading.Condition(self._lock)  # the consumer waits
        self._slots = slots
        self._trace = stats.trace
        self._begin = begin
        self._next = first  # the batch to open next
        self._open: deque[OpenBatch] = deque()
        self._ready: deque[Batch] = deque()
        self._error: BaseException | None = None
        self._ended = False
        self._closed = False
        self._interrupted = False

    def open(self, number: int) -> OpenBatch:
        """Return an open batch. Waits until the consumer has taken enough earlier ones."""
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
            return self._open[number - self._next]  # a negative index

    def fill(self, batch: OpenBatch, count: int) -> None:
        """Count filled slots of an open batch, and deliver complete batches."""
        with self._lock:
            batch.missing -= count
            is_full = not batch.missing
        if is_full:
            batch.complete()  # without the lock: other threads go on
        with self._lock:
            while self._open and self._open[0].is_complete:
                self._ready.append(self._open.popleft().finish())
                self._filled.notify()

    def take(self, process: int) -> Batch | None:
        """Wait for the next batch, and free its slot; `None` after the last batch.

        `process` is the id of the process in which the iteration began. Raises a producer's error
        once, after the batches before it; `ClipError` in a forked process and if the channel is
        closed.
        """
        if os.getpid() != process:
            raise ClipError(
                "an iteration cannot continue in a forked process; start a new one there"
            )
        begin = perf_counter()
        try:
            return self._take()
        except ClosedError:
            raise ClipError(ENDED) from None
        finally:
            self._trace.add("wait for batch", begin, perf_counter())

    def _take(self) -> Batch | None:
        with self._lock:
            self._filled.wait_for(lambda: self._ready or self._ended or self._closed)
            self.check_open()
            if self._ready:
                self._slots += 1
                self._opened.notify_all()
                return self._ready.popleft()
            error, self._error = self._error, None
        if error is None:
            return None
        try:
            if isinstance(error, StopIteration):  # raised by a user function; not the end
                raise ClipError("a user function raised StopIteration") from error
            if isinstance(error, MemoryError):
                raise no_memory(error) from error
            raise error
        finally:
            del error  # its traceback refers to this frame

    def end(self, error: BaseException | None = None) -> None:
        """The producer has ended, with an error, if any."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._error = None if self._closed else error
                self._begin = _no_batch  # releases memory
                self._filled.notify_all()

    def close(self) -> None:
        """Delete all batches and wake both sides."""
        with self._lock:
            self._closed, self._error = True, None
            self._ready.clear()
            self._open.clear()
            self._opened.notify_all()
            self._filled.notify_all()

    def interrupt(self) -> None:
        """Stop opening batches: `open` raises `ClosedError`."""
        with self._lock:
            self._interrupted = True
            self._opened.notify_all()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def check_open(self) -> None:
        """Raise `ClosedError` if the channel is closed."""
        if self._closed:
            raise ClosedError


def _no_batch(number: int) -> OpenBatch:
    raise ClosedError(number)


def no_memory(error: MemoryError) -> MemoryLimitError:
    """The error for an allocation that the system refused."""
    return MemoryLimitError(
        "the system refused memory for frames or batches",
        expected="a smaller memory_limit or batch_size, or fewer workers",
        got=str(error) or "MemoryError",
    )
