"""From clips, sizes and a memory limit to settings: what an engine then has is within the limit."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord.errors import MemoryLimitError
from seqrecord.sampling import ClipStats, EpochPlan, PlanSettings, Shard
from seqrecord.sampling.memory import FrameSizes, MemoryPlan, MemoryRequest
from tests.clip_cases import Case, cases

CONSUMER = 2  # batches that the consumer has


def taken(fitted: MemoryPlan, plan: EpochPlan, *, fixed: bool) -> int:
    """The bytes that an engine of this plan may have at a time, which can hold what it must."""
    held = [group.max_resident_frames for group in plan.groups]
    memory, sizes = fitted.memory(held, fixed=fixed), fitted.sizes
    for rows, frames in zip(memory.num_rows, held, strict=True):
        assert rows >= frames
    together = fitted.clips_at_once(memory, 32)
    batches = memory.prefetch + CONSUMER
    chunks = memory.max_loads + memory.max_read_ahead
    batches *= together
    return sizes.held(memory.num_rows) + batches * sizes.batch + chunks * sizes.chunk


@given(
    cases(),
    st.booleans(),
    st.none() | st.integers(1, 5),
    st.none() | st.integers(1, 6),
    st.integers(1, 9),
    st.integers(0, 200),
    st.integers(0, 50_000),
    st.booleans(),
)
def test_takes_no_more_than_the_limit_or_says_the_least_that_does(
    case: Case,
    shuffle: bool,
    batch_size: int | None,
    num_cursors: int | None,
    frame: int,
    chunk: int,
    more: int,
    fixed: bool,
) -> None:
    if not case.table.num_clips:
        return
    wanted = PlanSettings(shuffle=shuffle, batch_size=batch_size)
    sizes = FrameSizes((frame,), chunk, frame * (batch_size or 1) * case.spec.length)
    stats = ClipStats.of(case.table, case.episodes)
    request = MemoryRequest(stats, wanted, sizes, 2, num_cursors, url="a dataset")

    with pytest.raises(MemoryLimitError, match=r"at least \d+ bytes") as refused:
        request.plan_memory(1)
    found = re.search(r"at least (\d+) bytes", str(refused.value))
    assert found is not None
    least = int(found[1])
    with pytest.raises(MemoryLimitError, match=f"a dataset.*at least {least} bytes"):
        request.plan_memory(least - 1)
    for limit in (least, least + more):
        made = request.plan_memory(limit)
        plan = EpochPlan(case.table, case.episodes, made.settings, shard=Shard(1, 2))
        assert taken(made, plan, fixed=fixed) <= limit
        # A state with these settings needs no more.
        same = request.plan_given(made.settings, limit)
        assert (same.settings, same.max_arena) == (made.settings, made.max_arena)
        assert taken(same, plan, fixed=fixed) <= limit
