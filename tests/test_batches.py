from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord.plan.batches import Batches, count_batches


@given(st.integers(0, 200), st.integers(1, 9), st.integers(2, 9), st.booleans())
def test_every_split_has_as_many_batches_and_none_is_empty(
    total: int, num_splits: int, size: int, drop_last: bool
) -> None:
    shares = {total // num_splits, -(-total // num_splits)}
    if 0 in shares and total and not drop_last:
        return  # fewer clips than splits: EpochPlan refuses that
    made = [
        count_batches(share, total, num_splits, size=size, drop_last=drop_last) for share in shares
    ]
    assert len({batches.count for batches in made}) == 1
    for share, batches in zip(shares, made, strict=True):
        starts = [batches.first_clip(i) for i in range(batches.count + 1)]
        lengths = np.diff(starts).tolist()
        assert starts[0] == 0
        assert starts[-1] == batches.num_clips == share - batches.num_dropped
        assert all(1 <= length <= size for length in lengths)
        assert all(length == size for length in lengths[: None if drop_last else -2])
        assert drop_last or not batches.num_dropped
        places = [(i, slot) for i, length in enumerate(lengths) for slot in range(length)]
        batch, slot = batches.places(np.arange(batches.num_clips))
        assert list(zip(batch.tolist(), slot.tolist(), strict=True)) == places


def test_one_clip_short_shares_the_last_two_batches() -> None:
    long = count_batches(9, 17, 2, size=4, drop_last=False)
    short = count_batches(8, 17, 2, size=4, drop_last=False)
    assert [long.first_clip(i) for i in range(4)] == [0, 4, 8, 9]
    assert [short.first_clip(i) for i in range(4)] == [0, 4, 6, 8]


def test_batches_of_one_may_differ_by_one() -> None:
    counts = [count_batches(n, 17, 2, size=1, drop_last=False).count for n in (8, 9)]
    assert counts == [8, 9]
    assert count_batches(9, 17, 2, size=1, drop_last=True) == Batches(1, 8, 8, 1, 1)


@pytest.mark.parametrize("batch", [-1, 2])
def test_refuses_a_batch_that_is_not_there(batch: int) -> None:
    with pytest.raises(IndexError, match=r"not in \[0, 1\]"):
        count_batches(3, 3, 1, size=4, drop_last=False).first_clip(batch)
