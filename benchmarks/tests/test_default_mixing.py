"""Default settings mix batches about as well as a full shuffle does, and read little twice."""

from __future__ import annotations

import pytest

from benchmarks.tartanair import default_mixing
from benchmarks.tartanair.default_mixing import CASES, PIXELS, Case, measured

SOME = (2, 8, 16, 128)  # batches of the fast run


@pytest.mark.parametrize("num_parts", [1, 8])
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_batches_are_mixed_well(case: Case, num_parts: int, thorough: bool) -> None:
    for batch_size in case.batch_sizes if thorough else set(SOME) & set(case.batch_sizes):
        found = measured(case, batch_size, num_parts, epochs=3 if thorough else 1)
        assert found.is_good(num_parts), (batch_size, found)
        assert found.nbytes <= 8 << 30


@pytest.mark.parametrize(("num_frames", "num_parts"), [(60, 1), (60, 8), (200, 1), (400, 1)])
def test_short_sets_of_large_frames_are_mixed_well(num_frames: int, num_parts: int) -> None:
    """Whole episodes, or whole parts, are held where cutting them would read too much twice."""
    case = Case("two cameras", (num_frames,) * 20, (8,), (22 * PIXELS,), (16,))
    found = measured(case, 16, num_parts)
    assert found.is_good(num_parts), found
    assert found.nbytes <= 8 << 30


def test_bad_mixing_is_noticed() -> None:
    found = measured(CASES[-1], 8, 1, memory_limit=2 << 30)
    assert not found.is_good(1)
    assert found.nbytes <= 2 << 30


def test_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    default_mixing.main()
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 2 + 2 * sum(len(case.batch_sizes) for case in CASES)
    assert all(row.endswith("| yes |") for row in rows[2:])
