"""Rows of a feature whose frames are in an arena's memory, or where mapped files have them.

A row has an address. Addresses are multiples of a unit from the lowest one on, so all rows are one
array whose rows overlap, and one call gathers frames of an arena and of many files::

    addresses   | arena . . . . . . . |      | file . . . . . . |
    frames          a   b                        c   d
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.store.clips.grids import IntArray
from seqrecord.store.processes.forks import PerProcess
from seqrecord.store.storage.mapped_files import MappedFiles

MIN_MAPPED_BYTES = 16 << 10
"""Smaller frames are copied: a call for each would cost more than their memory."""

_ALIGNMENT = 64
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FEW_FILES = 4
_MAX_NUMBERS = 1 << 62  # of an array whose rows overlap; NumPy and torch count them


class _Span(NamedTuple):
    """Addresses that rows may have, the array of all rows, and its words for torch."""

    start: int
    stop: int
    array: npt.NDArray[Any]
    words: torch.Tensor


class PlacedRows:
    """The rows of a feature with frames of one shape; see the module.

    Loads set the addresses of rows, which nobody gathers meanwhile. Thread-safe otherwise.

    Args:
        array: the arena's memory, [rows, …].
    """

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array, self._nbytes = array, array[0].nbytes
        self._unit = math.gcd(_ALIGNMENT, self._nbytes)
        begin = array.ctypes.data
        self._addresses = begin + self._nbytes * np.arange(len(array))
        self._files: dict[int, MappedFiles] = {}  # by address; they stay mapped
        self._span = self._span_of(begin, begin + array.nbytes)
        self._lock = PerProcess(threading.Lock)

    @property
    def are_mapped(self) -> bool:
        """Whether a row has ever been in a mapped file."""
        return bool(self._files)

    def reset(self, rows: IntArray) -> None:
        """Place rows in the arena's memory."""
        self._addresses[rows] = self._array.ctypes.data + self._nbytes * rows

    def place(self, rows: IntArray, addresses: IntArray, files: MappedFiles) -> bool:
        """Place rows in a mapped file; whether that is possible."""
        start, stop = files.memory.ctypes.data, files.memory.ctypes.data + len(files.memory)
        with self._lock.get():
            span = self._span
            if not (span.start <= start and stop <= span.stop):
                start, stop = min(span.start, start), max(span.stop, stop)
                num_rows = (stop - start) // self._unit
                if start % self._unit != addresses[0] % self._unit:
                    return False
                if num_rows * self._nbytes > _MAX_NUMBERS:
                    return False
                self._span = self._span_of(start, stop)
            self._files.setdefault(files.memory.ctypes.data, files)
        self._addresses[rows] = addresses
        return True

    def source(self, rows: IntArray) -> tuple[npt.NDArray[Any], IntArray]:
        """An array, which nobody may write to, and the places of rows in it."""
        span = self._span
        return span.array, (self._addresses[rows] - span.start) // self._unit

    def gather(self, rows: IntArray, out: npt.NDArray[Any]) -> None:
        """Copy rows, int64 [n], to `out` [n, …], which is contiguous. Without the GIL."""
        if not len(rows):
            return
        # Not `numpy.take`: it would first copy an array whose rows overlap.
        span = self._span
        places = torch.from_numpy((self._addresses[rows] - span.start) // self._unit)
        target = torch.from_numpy(out.reshape(len(rows), -1).view(np.uint8)).view(span.words.dtype)
        with _OneThread():
            torch.index_select(span.words, 0, places, out=target)

    def check(self, rows: IntArray) -> None:
        """Raise `StorageError` if a mapped file with any of these rows has become shorter."""
        starts = np.sort(np.fromiter(self._files, np.int64))
        if len(starts) > _FEW_FILES:  # else it takes less time to check all
            numbers = np.unique(np.searchsorted(starts, self._addresses[rows], side="right") - 1)
            starts = starts[numbers[numbers >= 0]]
        for start in starts.tolist():
            self._files[start].check([0])

    def _span_of(self, start: int, stop: int) -> _Span:
        num_rows = (stop - start - self._nbytes) // self._unit + 1
        # Not this object, which has the span.
        owner = self._array, self._files
        rows = np.asarray(_Memory(owner, start, (num_rows, self._nbytes), (self._unit, 1)))
        array = rows.view(self._array.dtype).reshape(num_rows, *self._array.shape[1:])
        words = torch.from_numpy(rows).view(_WORDS[min(self._unit, 8)])
        return _Span(start, stop, array, words)


class _Memory:
    """Memory for an array whose rows overlap; the array keeps `owner`."""

    def __init__(
        self, owner: object, address: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> None:
        self._owner = owner
        self.__array_interface__ = {
            # Not marked as read-only: torch would warn at each tensor.
            "data": (address, False),
            "typestr": "|u1",
            "shape": shape,
            "strides": strides,
            "version": 3,
        }


class _OneThread:
    """Context in which torch starts no threads for a copy in this thread.

    `torch.set_num_threads` would change other threads, too. OpenMP's number is this thread's alone.
    Nothing changes if torch has no OpenMP.
    """

    def __enter__(self) -> None:
        self._num_threads = torch.get_num_threads()  # also sets OpenMP's in a new thread
        if self._num_threads > 1 and (setter := _omp_set_num_threads()) is not None:
            setter(1)

    def __exit__(self, *exception: object) -> None:
        if self._num_threads > 1 and (setter := _omp_set_num_threads()) is not None:
            setter(self._num_threads)


@cache
def _omp_set_num_threads() -> Callable[[int], object] | None:
    # PyDLL: releasing the GIL for it could take milliseconds.
    function: Callable[[int], object] | None
    function = getattr(ctypes.PyDLL(None), "omp_set_num_threads", None)
    return function
