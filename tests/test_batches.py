from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord.plan.batches import Batches


@given(st.integers(0, 60), st.integers(1, 9))
def test_batches_are_consecutive_and_full_but_for_the_last(num_clips: int, size: int) -> None:
    batches = Batches(size, num_clips)
    starts = [batches.first_clip(i) for i in range(batches.count + 1)]
    lengths = np.diff(starts).tolist()
    assert (starts[0], starts[-1]) == (0, num_clips)
    assert all(length == size for length in lengths[:-1])
    assert all(1 <= length <= size for length in lengths)
    places = [(i, slot) for i, length in enumerate(lengths) for slot in range(length)]
    batch, slot = batches.places(np.arange(num_clips))
    assert list(zip(batch.tolist(), slot.tolist(), strict=True)) == places


@pytest.mark.parametrize("batch", [-1, 2])
def test_refuses_a_batch_that_is_not_there(batch: int) -> None:
    with pytest.raises(IndexError, match=r"not in \[0, 1\]"):
        Batches(4, 3).first_clip(batch)
