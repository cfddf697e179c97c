"""Clips that lie side by side, and when their memory is used again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from seqrecord.engine.adjacent import divide, join
from seqrecord.engine.pools import BufferPool


def test_clips_of_a_batch_are_joined_again() -> None:
    pool = BufferPool((4, 2), np.dtype("i4"), 2)
    array = pool.acquire()
    array[:] = np.arange(8).reshape(4, 2)
    rows = divide(pool.lease(array, 3))
    batch = join(rows)
    assert batch is not None
    assert batch.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert batch.data_ptr() == array.ctypes.data
    part = join(rows[1:])
    assert part is not None
    assert part.tolist() == [[2, 3], [4, 5]]
    assert join(rows[::2]) is None
    assert join(rows[::-1]) is None
    address = array.ctypes.data
    del array, batch, part
    assert pool.acquire().ctypes.data != address  # rows refer to it
    del rows
    assert pool.acquire().ctypes.data == address


@pytest.mark.parametrize(
    "change", [lambda x: x + 0, lambda x: x[:1], lambda x: x.double(), torch.t]
)
def test_others_are_not_joined(change: Any) -> None:
    pool = BufferPool((4, 2, 3), np.dtype("i4"), 2)
    clips = divide(pool.lease(pool.acquire()))
    assert join(clips) is not None
    assert join([change(clip) for clip in clips[:2]]) is None
    numbers = BufferPool((4, 2, 3), np.dtype("c8"), 2)
    several = divide(numbers.lease(numbers.acquire()))
    assert join(several) is not None
    assert join([clip.conj() for clip in several]) is None
    assert join([torch.zeros(3), torch.zeros(3)]) is None
    table = torch.zeros(4, 3)
    assert join(list(table)) is None
    assert join([clips[0], table]) is None
