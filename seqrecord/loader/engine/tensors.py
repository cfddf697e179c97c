"""Tensors on the memory of NumPy arrays, also of bfloat16, which NumPy lacks."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.store.bfloat16 import BFLOAT16, numbers_of


@cache
def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Torch's dtype. Raises `TypeError` or `ValueError` if torch has none."""
    return tensor_of(np.empty(0, dtype)).dtype


def as_bits(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """View words of bfloat16 as integers, which torch takes; other arrays are unchanged."""
    return array.view(np.int16) if array.dtype == BFLOAT16 else array


def tensor_of(array: npt.NDArray[Any]) -> torch.Tensor:
    """Make a tensor on an array's memory."""
    return tensor_of_bits(as_bits(array), array.dtype)


def tensor_of_bits(bits: npt.NDArray[Any], dtype: np.dtype[Any]) -> torch.Tensor:
    """Make a tensor on the memory of `bits`: an array of this dtype, after `as_bits`.

    The tensor keeps the object `bits`. The view of an array does not keep that array: NumPy lets
    it refer to the array's base.
    """
    tensor = torch.from_numpy(bits)
    return tensor.view(torch.bfloat16) if dtype == BFLOAT16 else tensor


def array_of(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """View a tensor on the host as an array; bfloat16 as words."""
    if tensor.dtype != torch.bfloat16:
        array: npt.NDArray[Any] = tensor.numpy()
        return array
    bits: npt.NDArray[Any] = tensor.view(torch.int16).numpy()
    return bits.view(BFLOAT16)


def user_array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """View a tensor on the host as an array; bfloat16 becomes float32 in new memory."""
    return numbers_of(array_of(tensor))
