"""Steps of vectors while gathering: normalization, and placement in a longer axis.

The values of a source's clips in a batch are one array, so a step takes a few calls of NumPy
or torch per batch, whatever the number of clips::

    rows [clips, frames, D]  ->  (x - offset) / scale  ->  batch [clips, frames, size], 0 elsewhere
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.loader.frames.array_specs import ArraySpec
from seqrecord.store.bfloat16 import numbers_of
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.tables.grids import IntArray

if TYPE_CHECKING:
    from seqrecord.loader.frames.normalization import Normalization

_BLOCK_BYTES = 4 << 20  # of clips at a time


@dataclass(frozen=True, eq=False)
class VectorStep:
    """Normalization and placement of one feature. Picklable.

    Attributes:
        given: spec of a frame before the step: [D], or [T, D] of a kept window.
        places: index in batches for each of the D values in the last axis; `None`: as stored,
            without a mask.
        size: length of the last axis in batches, if there are `places`.
        normalization: applied before the placement.
    """

    given: ArraySpec
    places: tuple[int, ...] | None = None
    size: int = 0
    normalization: Normalization | None = None

    @property
    def made(self) -> ArraySpec:
        """Spec of a frame in batches."""
        shape = self.given.shape if self.places is None else (*self.given.shape[:-1], self.size)
        dtype = self.given.dtype if self.normalization is None else np.dtype(np.float32)
        return replace(self.given, dtype=dtype, shape=shape)

    @property
    def is_padding(self) -> npt.NDArray[np.bool_] | None:
        """Places in batches without a value of the source, bool [size]; `None` if not placed."""
        if self.places is None:
            return None
        is_padding = np.ones(self.size, np.bool_)
        is_padding[list(self.places)] = False
        return is_padding

    def __str__(self) -> str:
        texts = []
        if self.normalization is not None:
            texts.append(self.normalization.mode)
        if self.places is not None:
            count = len(self.places)
            is_start = self.places == tuple(range(count))
            texts.append(f"{count} values at {'the start' if is_start else [*self.places]}")
        return ", ".join(texts)

    @property
    def is_moved(self) -> bool:
        """Whether values move, or zeros are added."""
        return self.places is not None and self.places != tuple(range(self.size))

    @cached_property
    def numbers(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
        """Offset and scale in the dtype of the computation: float64 if float32 is not exact."""
        if self.normalization is None:
            return None
        dtype_of_source = self.given.value_kind.number_dtype(self.given)
        assert dtype_of_source is not None, "vectors are numbers"
        dtype = np.result_type(dtype_of_source, np.float32)
        offset, two = (
            self.normalization.offset.astype(dtype),
            self.normalization.scale.astype(dtype),
        )
        return (offset, two) if self.given.shape else (offset[0], two[0])

    def blocks(self, rows: IntArray) -> Iterator[slice]:
        """Split clips, rows int64[clips, frames], so that temporary memory is bounded."""
        nbytes = rows.shape[1] * max(self.given.nbytes, self.made.nbytes)
        count = max(1, _BLOCK_BYTES // max(1, nbytes))
        yield from (slice(start, start + count) for start in range(0, len(rows), count))

    def write(self, values: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Write the result for `values`, [..., D], to `out`, [..., size]."""
        if self.numbers is not None:
            values = np.subtract(numbers_of(values), self.numbers[0])
            values /= self.numbers[1]
        if not self.is_moved:
            np.copyto(out, values, "same_kind")
            return
        assert self.places is not None
        count = len(self.places)
        if self.places == tuple(range(count)):
            np.copyto(out[..., :count], values, "same_kind")
            out[..., count:] = 0
        else:
            out[...] = 0
            out[..., self._index] = values

    @cached_property
    def _index(self) -> npt.NDArray[np.int64]:
        return np.array(self.places, np.int64)

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Constants for `on_device`."""
        constants = [] if self.numbers is None else [np.array(values) for values in self.numbers]
        return [*constants, self._index] if self.is_moved else constants

    def on_device(self, values: torch.Tensor, constants: list[torch.Tensor]) -> torch.Tensor:
        """Compute the result for `values`, [..., D], in new memory, with uploaded `arrays`."""
        if self.numbers is not None:
            offset, scale = constants[:2]
            values = values.to(offset.dtype).sub(offset).div(scale).to(torch.float32)
        if not self.is_moved:
            return values
        bits = values.view(bits_of(values))
        placed = bits.new_zeros((*bits.shape[:-1], self.size))
        return placed.index_copy_(-1, constants[-1], bits).view(values.dtype)


def bits_of(values: torch.Tensor) -> torch.dtype:
    """Integer dtype to view a tensor as: not every device can index other dtypes."""
    return _BITS[values.element_size()]


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

VectorSteps: TypeAlias = Mapping[str, VectorStep]
"""Steps by feature."""
