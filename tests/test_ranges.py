"""coalesce() against what it promises, on any ranges."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord.storage.ranges import ByteRange, coalesce

_RANGES = st.lists(
    st.builds(lambda a, n: ByteRange(a, a + n), st.integers(0, 60), st.integers(0, 20))
)


@given(_RANGES, st.integers(0, 8), st.integers(0, 40))
def test_coalesce(ranges: list[ByteRange], max_gap: int, max_length: int) -> None:
    reads = coalesce(ranges, max_gap=max_gap, max_length=max_length)
    assert sorted(member for _, members in reads for member in members) == list(range(len(ranges)))
    for read, members in reads:
        inside = [ranges[member] for member in members]
        assert read == ByteRange(min(r.start for r in inside), max(r.stop for r in inside))
        assert read.length <= max(max_length, *(r.length for r in inside))
        # An empty range is a neighbour too.
        first, *others = sorted(inside)
        stops = accumulate((r.stop for r in [first, *others]), max)
        gaps = [b.start - stop for stop, b in zip(stops, others, strict=False)]
        assert all(gap <= max_gap for gap in gaps)
    assert [read.start for read, _ in reads] == sorted(read.start for read, _ in reads)
    # Neighbours stay apart only for a reason.
    for (a, _), (b, _) in pairwise(reads):
        merged = max(a.stop, b.stop) - a.start
        assert b.start - a.stop > max_gap or merged > max_length


@given(_RANGES)
def test_without_limits_it_is_one_read(ranges: list[ByteRange]) -> None:
    reads = coalesce(ranges, max_gap=1000, max_length=1000)
    assert len(reads) == (1 if ranges else 0)


def test_examples() -> None:
    ranges = [ByteRange(100, 110), ByteRange(0, 10), ByteRange(12, 20), ByteRange(5, 8)]
    assert coalesce(ranges, max_gap=2, max_length=20) == [
        (ByteRange(0, 20), [1, 3, 2]),
        (ByteRange(100, 110), [0]),
    ]
    assert coalesce([ByteRange(0, 99)], max_gap=0, max_length=10) == [(ByteRange(0, 99), [0])]
    assert ByteRange(3, 7).length == 4


@pytest.mark.parametrize("bad", [ByteRange(-1, 3), ByteRange(4, 3)])
def test_not_a_range(bad: ByteRange) -> None:
    with pytest.raises(ValueError, match="not a byte range"):
        coalesce([ByteRange(0, 1), bad], max_gap=0, max_length=1)
