"""The benchmark's arithmetic: epochs are compared with those at the same level of the machine."""

from __future__ import annotations

import pytest

from benchmarks.tartanair.scaling import Scaling, level
from benchmarks.tartanair.throughput import mean, share_of


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [(1.1, 1.2, "slow"), (1.8, 1.7, "fast"), (1.1, 1.8, None), (1.8, 1.1, None)],
)
def test_level(before: float, after: float, expected: str | None) -> None:
    assert level(before, after) == expected


def test_shares_are_of_the_same_level() -> None:
    results = {
        "copy-2": [{"epochs": [(100.0, 1.1, 1.1), (200.0, 1.8, 1.8), (7.0, 1.1, 1.8)]}],
        "raw": [{"epochs": [(90.0, 1.1, 1.1)]}, {"epochs": [(100.0, 1.8, 1.8), (7.0, 1.8, 1.1)]}],
    }
    assert share_of(results, "raw", "copy-2", "slow") == pytest.approx(0.9)
    assert share_of(results, "raw", "copy-2", "fast") == pytest.approx(0.5)
    assert share_of({"raw": results["raw"]}, "raw", "copy-2", "fast") is None
    assert mean([0.9, 0.5]) == pytest.approx(0.7)
    assert mean([None, 0.5]) == 0.5
    assert mean([None, None]) is None


def test_scaling_is_asked_of_another_process() -> None:
    with Scaling.start() as scaling:
        assert [scaling.now() > 0 for _ in range(2)] == [True, True]
