"""Arithmetic of crops and flips, against brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seqrecord import CenterCrop, ClipError, HorizontalFlip, RandomCrop, RandomResizedCrop
from seqrecord.store.cameras.crop_windows import CropWindows

STEP = st.one_of(
    st.builds(RandomCrop, st.tuples(st.integers(1, 4), st.integers(1, 4))),
    st.builds(CenterCrop, st.tuples(st.integers(1, 4), st.integers(1, 4))),
    st.builds(HorizontalFlip, st.sampled_from([0, 0.5, 1])),
)


@given(st.lists(STEP, min_size=1, max_size=5), st.integers(0, 5), st.integers(0, 1 << 40))
@example([HorizontalFlip(1), RandomCrop((5, 4)), HorizontalFlip(1)], 0, 0)
def test_a_chain_applies_its_steps_in_order(steps: list[Any], epoch: int, clip: int) -> None:
    frame = np.arange(9 * 7).reshape(9, 7)
    windows, seen = CropWindows.whole(np.array([9]), np.array([7])), frame
    rng = np.random.default_rng([epoch, clip])
    try:
        for step in steps:
            draws = rng.random((step.num_draws, 1))
            windows = step.apply(windows, draws)
            if isinstance(step, HorizontalFlip):
                seen = seen[:, ::-1] if draws[0, 0] < step.p else seen
                continue
            size = step.size(*seen.shape)
            room = [have - want for have, want in zip(seen.shape, size, strict=True)]
            at = [n // 2 for n in room]
            if isinstance(step, RandomCrop):
                at = [int(draw * (n + 1)) for draw, n in zip(draws[:, 0], room, strict=True)]
            seen = seen[at[0] : at[0] + size[0], at[1] : at[1] + size[1]]
    except ClipError:
        return
    top, left, height, width = (
        int(one[0]) for one in (windows.top, windows.left, windows.height, windows.width)
    )
    found = frame[top : top + height, left : left + width]
    np.testing.assert_array_equal(found[:, ::-1] if windows.flipped[0] else found, seen)


@pytest.mark.parametrize("ratio", [(0.75, 1.25), (3.0, 4.0), (0.01, 100)])
def test_areas_and_ratios_of_resized_crops(ratio: tuple[float, float]) -> None:
    height, width, count = 300, 400, 4000
    step = RandomResizedCrop(8, (0.1, 0.6), ratio)
    sides = np.full(count, height), np.full(count, width)
    draws = np.random.default_rng(0).random((step.num_draws, count))
    windows = step.apply(CropWindows.whole(*sides), draws)
    assert (windows.top >= 0).all()
    assert (windows.left >= 0).all()
    assert (windows.top + windows.height <= height).all()
    assert (windows.left + windows.width <= width).all()
    found = windows.width / windows.height
    assert ratio[0] * 0.9 < found.min()
    assert found.max() < ratio[1] * 1.1
    area = windows.height * windows.width / (height * width)
    if ratio == (3.0, 4.0):  # more than 4/9 of the frame does not fit
        assert area.max() < 0.46
    else:
        assert np.quantile(area, 0.5) == pytest.approx(0.35, abs=0.02)
        assert (area.min(), area.max()) == pytest.approx((0.1, 0.6), abs=0.02)
