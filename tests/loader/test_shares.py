"""Shares: after every slot each source is within one slot of its share."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from types import FrameType

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from seqrecord.loader.sampling.shares import Shares, whole_shares

WEIGHTS = st.lists(
    st.one_of(st.integers(1, 60), st.floats(0.01, 100), st.fractions(Fraction(1, 50), 9)),
    min_size=1,
    max_size=9,
)


@given(counts=st.lists(st.integers(1, 90), min_size=1, max_size=10), key=st.integers(0, 1 << 64))
@example([1, 1000], 7)
def test_shares_at_every_slot(counts: list[int], key: int) -> None:
    shares, num_slots = Shares(counts, key), 3000
    sources = shares.sources(0, num_slots)
    counts_before = np.zeros((num_slots + 1, len(counts)), np.int64)
    counts_before[1:] = np.cumsum(sources[:, None] == np.arange(len(counts)), axis=0)

    # |count before x total - slots x count| < total, in integers
    slots = np.arange(num_slots + 1)[:, None]
    off = np.abs(counts_before * sum(counts) - slots * np.array(counts))
    assert (off < sum(counts)).all()

    assert shares.sources(700, 2300).tolist() == sources[700:2300].tolist()
    assert shares.sources(5, 5).tolist() == []
    for slot in (0, 1, 1023, 1024, 2048, num_slots):
        assert shares.given(slot).tolist() == counts_before[slot].tolist()
    for source in range(len(counts)):
        own = np.flatnonzero(sources == source)
        assert shares.slots(source, 0, len(own)).tolist() == own.tolist()
        assert shares.slots(source, len(own) // 3, len(own) // 2).tolist() == (
            own[len(own) // 3 : len(own) // 2].tolist()
        )


@given(weights=WEIGHTS)
def test_weights_become_whole_numbers(weights: list[float | Fraction]) -> None:
    counts = whole_shares(weights)
    exact = [Fraction(str(weight)) for weight in weights]
    ratios = [weight / sum(exact) * sum(counts) for weight in exact]
    assert sum(counts) <= 1 << 16
    assert all(count >= 1 for count in counts)
    if sum(counts) < 1 << 16:
        assert counts == ratios
    elif min(ratios) >= 1:
        assert all(abs(count - ratio) < 1 for count, ratio in zip(counts, ratios, strict=True))
    for given_weights, expected in (
        ([0.7, 0.2, 0.1], [7, 2, 1]),
        ([2, 4], [1, 2]),
        ([1e9, 1e-9], [65535, 1]),
        ([1, 1e-9, 1e-9], [65534, 1, 1]),
    ):
        assert whole_shares(given_weights) == expected


def test_the_order_differs_by_key_and_block() -> None:
    orders = {tuple(Shares([5, 3, 2], key).sources(0, 40).tolist()) for key in range(8)}
    assert len(orders) == 8
    shares = Shares([1, 1], 0)
    assert shares.sources(0, 1024).tolist() != shares.sources(1024, 2048).tolist()
    assert pickle.loads(pickle.dumps(shares)).sources(0, 99).tolist() == (
        shares.sources(0, 99).tolist()
    )


def test_a_distant_slot_is_found_fast() -> None:
    shares, slot = Shares([3, 1], 1), 10**15
    before = shares.given(slot)
    assert before.sum() == slot
    assert abs(int(before[0]) - slot * 3 // 4) <= 1
    source = int(shares.sources(slot, slot + 1)[0])
    assert shares.slots(source, int(before[source]), int(before[source]) + 1).tolist() == [slot]


def test_each_period_is_computed_once() -> None:
    """For the threads of all sources, within a bound."""
    counts, drawn = [3] * 20, list[int]()

    def watch(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code.co_name == "hash64":
            drawn.append(frame.f_locals["key"])

    shares = Shares(counts, 1)
    threading.setprofile(watch)
    try:
        with ThreadPoolExecutor(4) as pool:
            for begin in range(0, 27_000, 5400):  # 100 periods, of 54 slots for each source
                some = range(len(counts))
                found = list(pool.map(lambda i, a=begin: shares.slots(i, a, a + 5400), some))
                slots = 20 * begin + np.arange(108_000)
                assert np.array_equal(np.sort(np.concatenate(found)), slots)
    finally:
        threading.setprofile(None)
    assert len(drawn) == len(set(drawn))
