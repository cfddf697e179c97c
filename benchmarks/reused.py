"""What one writes by hand: memory-mapped arrays of frames, copied into reused batches.

`ByHand` needs one `.npy` file per feature with all frames decoded at one size, and delivers one
order: a full shuffle. It has no resume, no limit of memory, and no masks. `Memory` and `filled`
give the readers of other packages the same: batches in memory that is used again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["AHEAD", "ByHand", "Memory", "filled"]

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]

AHEAD = 2  # batches in work, besides the consumer's and the one before it


class Memory:
    """Arrays for batches: new ones or, if `reused`, `num_batches` in turn.

    `frames` has dtype and shape of each feature's clip. The consumer must release a batch before it
    asks for the one after the next.
    """

    def __init__(
        self,
        frames: Mapping[str, tuple[Any, Sequence[int]]],
        batch_size: int,
        *,
        reused: bool,
        num_batches: int = AHEAD + 2,
    ) -> None:
        self.batch_size = batch_size
        self._specs = {n: (dtype, (batch_size, *shape)) for n, (dtype, shape) in frames.items()}
        self._batches = [self._new() for _ in range(num_batches)] if reused else []
        self._numbers = count()  # shared by threads: next() of a count is atomic

    def take(self, size: int) -> dict[str, npt.NDArray[Any]]:
        """Arrays [size, …] for the next batch."""
        batches = self._batches
        batch = batches[next(self._numbers) % len(batches)] if batches else self._new()
        return {name: array[:size] for name, array in batch.items()}

    def _new(self) -> dict[str, npt.NDArray[Any]]:
        return {name: np.empty(shape, dtype) for name, (dtype, shape) in self._specs.items()}


def filled(
    order: Sequence[int],
    batch_size: int,
    memory: Memory,
    fill: Callable[[int, Arrays], object],
    threads: int,
) -> Iterator[tuple[Sequence[int], dict[str, npt.NDArray[Any]]]]:
    """Batches of the samples in `order`: their numbers, and arrays that `fill(number, arrays)`
    filled, one sample at a time, in `threads` threads ahead of the consumer. 0: in the consumer's,
    which always fills the first one, as readers open their files then.
    """
    waiting: deque[tuple[Sequence[int], dict[str, npt.NDArray[Any]], list[Future[object]]]]
    waiting = deque()
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(threads)) if threads else None
        for start in range(0, len(order), batch_size):
            numbers = order[start : start + batch_size]
            batch = memory.take(len(numbers))
            tasks = []
            for place, number in enumerate(numbers):
                row = {name: array[place] for name, array in batch.items()}
                if pool is None or start == place == 0:
                    fill(number, row)
                else:
                    tasks.append(pool.submit(fill, number, row))
            waiting.append((numbers, batch, tasks))
            del batch
            if len(waiting) > (AHEAD if threads else 0):
                yield _done(*waiting.popleft())
        while waiting:
            yield _done(*waiting.popleft())


def _done(
    numbers: Sequence[int], batch: dict[str, npt.NDArray[Any]], tasks: Sequence[Future[object]]
) -> tuple[Sequence[int], dict[str, npt.NDArray[Any]]]:
    for task in tasks:
        task.result()
    return numbers, batch


class ByHand:
    """Shuffled batches of clips of memory-mapped `frames`, in the order of `seed` and epoch.

    `rows` has the rows of each sample by feature: int64 [samples, N]. `threads` copy samples ahead
    into four batches. Without threads, the consumer copies each feature by one `take` into one
    batch, which it must release before it asks for the next one.
    """

    def __init__(
        self,
        frames: Arrays,
        rows: Arrays,
        batch_size: int,
        *,
        threads: int,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        self._frames, self._rows, self._threads = frames, rows, threads
        self._is_run = {name: bool((np.diff(all_) == 1).all()) for name, all_ in rows.items()}
        self._num_samples = len(next(iter(rows.values())))
        self._batch_size, self._drop_last = batch_size, drop_last
        clips = {n: (a.dtype, (rows[n].shape[1], *a.shape[1:])) for n, a in frames.items()}
        num_batches = AHEAD + 2 if threads else 1
        self._memory = Memory(clips, batch_size, reused=True, num_batches=num_batches)
        self._seed, self._epoch = seed, 0

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for _, batch in self.numbered():
            yield batch

    def numbered(self) -> Iterator[tuple[Sequence[int], dict[str, torch.Tensor]]]:
        """Batches with the numbers of their samples."""
        order: list[int]
        order = (
            np.random.default_rng([self._seed, self._epoch]).permutation(self._num_samples).tolist()
        )
        self._epoch += 1
        if self._drop_last:
            order = order[: len(order) // self._batch_size * self._batch_size]
        if self._threads:
            batches = filled(order, self._batch_size, self._memory, self._copy, self._threads)
        else:
            batches = self._taken(order)
        for numbers, arrays in batches:
            yield numbers, {name: torch.from_numpy(array) for name, array in arrays.items()}

    def _taken(
        self, order: Sequence[int]
    ) -> Iterator[tuple[Sequence[int], dict[str, npt.NDArray[Any]]]]:
        for start in range(0, len(order), self._batch_size):
            numbers = order[start : start + self._batch_size]
            batch = self._memory.take(len(numbers))
            for name, frames in self._frames.items():
                rows = self._rows[name][numbers]
                np.take(frames, rows, axis=0, out=batch[name], mode="clip")
            yield numbers, batch

    def _copy(self, sample: int, into: Arrays) -> None:
        for name, frames in self._frames.items():
            rows = self._rows[name][sample]
            if self._is_run[name]:
                np.copyto(into[name], frames[rows[0] : rows[0] + len(rows)])
            else:
                np.take(frames, rows, axis=0, out=into[name], mode="clip")
