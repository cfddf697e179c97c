"""Memory of single clips that lie side by side, so that a batch is made of them without copying.

A loader without `batch_size` gives clips one by one, and who consumes them makes batches of, say,
four. The clips of a batch are then made in the rows of one array, a slab::

    clips given   0 1 2 3 | 4 5 6 7 | 8 9
    slabs         a a a a   b b b b   c c . .

How many clips a slab has, and which is its first, is learned from what `join` is asked for: as long
as nobody joins clips, each has memory of its own. Or `Places` tell where clips will be before they
are made, in any order. A slab is used again when the last clip and the last batch on it are gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.engine.arena import BufferPool

__all__ = ["AdjacentPool", "Places", "divide", "join"]

_BATCHES = 3  # whose clips are kept when nobody uses them: a batch of them is dropped at once


def join(clips: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """One tensor [clips, …] on the memory of these, if they lie side by side in one slab.

    Else `None`; where the clips are consecutive ones of a pool, those to come will lie so.
    """
    first = clips[0]
    slab, row = _find(first)
    if slab is None:
        return None
    if row + len(clips) <= len(slab) and _follow_each_other(clips):
        return first.as_strided((len(clips), *first.shape), (first.numel(), *first.stride()))
    if (pool := slab.pool()) is None:
        return None
    if all(clip.shape == first.shape and clip.dtype == first.dtype for clip in clips):
        found = [_find(clip) for clip in clips]
        pool.learn([at.first + i for at, i in found if at is not None and at.pool() is pool])
    return None


def divide(batch: torch.Tensor) -> list[torch.Tensor]:
    """The clips of a leased batch [clips, …], which can be joined again."""
    slab = _slab(batch)
    return list(torch.from_numpy(slab))


class Places(Protocol):
    """Where the clips of an iteration will be joined, which is known before they are made."""

    size: int
    """Clips of a batch."""

    def find(self, number: int) -> tuple[int, int] | None:
        """Batch and row of a clip, by its number in the iteration; `None` if it will be in none.

        For ascending numbers, each as often as there are features.
        """


class AdjacentPool(BufferPool):
    """Arrays of one clip each, of which as many lie side by side as are joined.

    Args:
        make: a pool of slabs of so many clips, arrays [clips, …].
    """

    def __init__(self, make: Callable[[int], BufferPool]) -> None:
        self._make = make
        self._length = 1  # of a slab, clips
        self._slabs = make(1)
        self._origin = 0  # the number of a clip that begins a slab
        self._acquired = 0  # clips, which are numbered so
        self._slab: torch.Tensor | None = None  # the slab of the last clip, if it has rows left
        self._rows: range = range(0)  # the numbers of the clips of that slab
        self._asked = 0  # clips that were joined last, without success
        self._places: Places | None = None
        self._placed = 0  # clips of the iteration
        self._open: dict[int, tuple[torch.Tensor, int]] = {}  # slabs by batch, and their rows left
        self._alone: BufferPool | None = None  # for clips that will be in no batch

    def place(self, places: Places | None) -> None:
        """An iteration begins. Its clips will be joined there; `None` where nobody knows."""
        self._places, self._placed, self._open = places, 0, {}
        if places is not None and places.size != self._length:
            self._slab, self._length, self._slabs = None, places.size, self._make(places.size)

    def acquire(self) -> npt.NDArray[Any]:
        """The row of the next clip: an array [1, …]."""
        number, self._acquired = self._acquired, self._acquired + 1
        tensor = self._next(number) if self._places is None else self._next_of(self._places)
        array = tensor.numpy().view(_Row)
        array.tensor = tensor
        return array

    def lease(self, array: npt.NDArray[Any], count: int | None = None) -> torch.Tensor:
        """The row as a tensor [1, …] on the memory of its slab."""
        assert isinstance(array, _Row), "made by this pool"
        assert array.tensor is not None
        return array.tensor[:count]

    def release(self, array: npt.NDArray[Any]) -> None:
        """Nothing to do: a slab is used again when nothing refers to it any more."""

    def learn(self, numbers: Sequence[int]) -> None:
        """The clips of these numbers are a batch, and did not lie side by side."""
        if self._places is not None:
            return
        count = len(numbers)
        self._slabs.keep(_BATCHES * count // self._length)
        if list(numbers) != list(range(numbers[0], numbers[0] + count)):
            return  # they were shuffled, or others were left out
        # Fewer than before may be the rest of an epoch: they must come twice.
        if count > self._length or (count < self._length and count == self._asked):
            self._length, self._slabs = count, self._make(count)
        self._asked = count
        self._origin = numbers[0] + count

    def _next(self, number: int) -> torch.Tensor:
        """The row of a clip behind that of the one before it."""
        if self._slab is None:
            row = (number - self._origin) % self._length
            self._rows = range(number - row, number - row + self._length)
            self._slab = self._begin(self._rows.start)
        at = number - self._rows.start
        tensor = self._slab[at : at + 1]
        if number + 1 not in self._rows:
            self._slab = None
        return tensor

    def _next_of(self, places: Places) -> torch.Tensor:
        """The row of the next clip, where it will be joined."""
        number, self._placed = self._placed, self._placed + 1
        if (place := places.find(number)) is None:
            if self._alone is None:
                self._alone = self._make(1)
            return self._alone.lease(self._alone.acquire())
        batch, row = place
        slab, left = self._open.pop(batch, (None, self._length))
        if slab is None:
            slab = self._begin(0)
        if left > 1:
            self._open[batch] = slab, left - 1
        return slab[row : row + 1]

    def _begin(self, first: int) -> torch.Tensor:
        """A slab as a tensor [clips, …]. Its first row is that of clip `first`."""
        slab = _slab(self._slabs.lease(self._slabs.acquire()))
        slab.pool, slab.first = weakref.ref(self), first
        return torch.from_numpy(slab)


class _Row(np.ndarray[Any, Any]):
    """The row of one clip."""

    tensor: torch.Tensor | None = None  # of the same memory


class _Slab(np.ndarray[Any, Any]):
    """An array [clips, …] that lives as long as any tensor on it.

    Row 0 is that of clip `first` of `pool`, if it is one's.
    """

    pool: Callable[[], AdjacentPool | None] = staticmethod(lambda: None)
    first: int = 0


_slabs: weakref.WeakValueDictionary[int, _Slab] = weakref.WeakValueDictionary()
"""By the address of their memory, where the storage of tensors on them begins."""


def _slab(lent: torch.Tensor) -> _Slab:
    """The memory of a leased tensor. The storage of a tensor made of it refers to it."""
    slab = lent.numpy().view(_Slab)
    _slabs[lent.data_ptr()] = slab
    return slab


def _follow_each_other(clips: Sequence[torch.Tensor]) -> bool:
    """Whether the memory of each clip begins where that of the one before it ends."""
    first = clips[0]
    address, step, shape, dtype = first.data_ptr(), first.nbytes, first.shape, first.dtype
    for clip in clips:
        if (
            clip.data_ptr() != address
            or clip.shape != shape
            or clip.dtype != dtype
            or clip.requires_grad
            or not clip.is_contiguous()
        ):
            return False
        address += step
    return True


def _find(clip: torch.Tensor) -> tuple[_Slab | None, int]:
    """The slab that a tensor is a row of, and which; `None` for any other tensor."""
    if clip.device.type != "cpu" or clip.requires_grad or not clip.is_contiguous():
        return None, 0
    address = clip.untyped_storage().data_ptr()
    slab = _slabs.get(address)
    if slab is None or not clip.nbytes:
        return None, 0
    row, offset = divmod(clip.data_ptr() - address, clip.nbytes)
    if offset or clip.nbytes * len(slab) != slab.nbytes:
        return None, 0
    return slab, row
