"""Lists as text, and how rows of two lists belong together, against brute force."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord.errors import SourceError
from seqrecord.sources.text_tables import (
    associate,
    check_rising,
    nearest,
    rows_of,
    sample_bounds,
    table,
)

# Seconds since 1970 as TUM writes them, in steps that float64 does not hold exactly.
TIMES = st.lists(st.integers(0, 60), max_size=12).map(
    lambda steps: np.array([1305031102.17 + 0.005 * step for step in sorted(steps)], np.float64)
)


def as_associate_py(
    first: dict[float, int], second: dict[float, int], within: float
) -> list[tuple[int, int]]:
    """What TUM's script is documented to do: all pairs, closest first, each time used once."""
    pairs = sorted((abs(a - b), a, b) for a in first for b in second if abs(a - b) < within)
    left, right = set(first), set(second)
    matches = []
    for _, a, b in pairs:
        if a in left and b in right:
            left.remove(a)
            right.remove(b)
            matches.append((a, b))
    return [(first[a], second[b]) for a, b in sorted(matches)]


@given(TIMES, TIMES)
def test_associate(first: np.ndarray, second: np.ndarray) -> None:
    as_dicts = [{time: row for row, time in enumerate(times.tolist())} for times in (first, second)]
    one, other = associate(first, second, 0.02)
    want = as_associate_py(as_dicts[0], as_dicts[1], 0.02)
    assert list(zip(one.tolist(), other.tolist(), strict=True)) == want


@given(TIMES, TIMES)
def test_nearest(times: np.ndarray, others: np.ndarray) -> None:
    rows, there = nearest(times, others, 0.011)
    assert len(rows) == len(there) == len(times)
    for time, row, is_there in zip(times, rows, there, strict=True):
        distances = np.abs(others - time)
        assert is_there == bool(len(others) and distances.min() <= 0.011)
        if len(others):
            assert distances[row] == distances.min()


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=8, unique=True).map(sorted),
    st.lists(st.integers(-5, 90), max_size=30).map(sorted),
)
def test_samples_belong_to_the_frame_before_them(times: list[int], samples: list[int]) -> None:
    bounds = sample_bounds(np.array(times), np.array(samples, np.int64))
    end = times[-1] + (times[-1] - times[-2] if len(times) > 1 else 0)
    for frame, (start, stop) in enumerate(pairwise(bounds)):
        upto = [*times[1:], end][frame]
        want = [sample for sample in samples if times[frame] <= sample < upto]
        assert samples[start:stop] == want


def test_rows_and_tables(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes(b"#timestamp [ns],x\r\n\r\n1403636579763555584,0.5\r\n  7 , -1e3 # 2\n")
    rows = rows_of(path, ",")
    assert [number for number, _ in rows] == [3, 4]
    whole = table(path, rows, 1, int)
    assert whole.tolist() == [[1403636579763555584], [7]]
    assert table(path, rows, 2)[1].tolist() == [7, -1000]
    with pytest.raises(SourceError, match=r"a bad row in line 3; .*expected: 3 finite numbers"):
        table(path, rows, 3)
    for bad in (b"1 nan", b"1 x", b"1", b"inf 1"):
        path.write_bytes(bad)
        with pytest.raises(SourceError, match="a bad row in line 1"):
            table(path, rows_of(path), 2)
    path.write_bytes(b"99999999999999999999")
    with pytest.raises(SourceError, match="a number that is too large"):
        table(path, rows_of(path), 1, int)
    path.write_bytes(b"1 \xff")
    with pytest.raises(SourceError, match=r"a list that is not text; .*offset: 2"):
        rows_of(path)
    assert table(path, [], 3).shape == (0, 3)


def test_times_that_go_back(tmp_path: Path) -> None:
    check_rising(np.array([1.0, 1.0, 2.0]), tmp_path)
    with pytest.raises(SourceError, match=r"timestamps that go back; .*frame: 2; .*got: 1.5"):
        check_rising(np.array([1.0, 2.0, 1.5]), tmp_path)
