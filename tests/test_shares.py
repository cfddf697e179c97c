"""Shares: after every slot each source has its share, to less than one slot."""

from __future__ import annotations

import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord.pipes.mixing.sources import MixPlan, count_batches
from seqrecord.sampling import Shard
from seqrecord.sampling.shares import Shares, whole_shares

WEIGHTS = st.lists(
    st.one_of(st.integers(1, 60), st.floats(0.01, 100), st.fractions(Fraction(1, 50), 9)),
    min_size=1,
    max_size=9,
)


@given(counts=st.lists(st.integers(1, 90), min_size=1, max_size=10), key=st.integers(0, 1 << 64))
def test_at_every_slot(counts: list[int], key: int) -> None:
    shares, num_slots = Shares(counts, key), 3000
    sources = shares.sources(0, num_slots)
    given_before = np.zeros((num_slots + 1, len(counts)), np.int64)
    given_before[1:] = np.cumsum(sources[:, None] == np.arange(len(counts)), axis=0)

    # |given x total - slots x count| < total, in integers
    slots = np.arange(num_slots + 1)[:, None]
    off = np.abs(given_before * sum(counts) - slots * np.array(counts))
    assert (off < sum(counts)).all()

    assert shares.sources(700, 2300).tolist() == sources[700:2300].tolist()
    assert shares.sources(5, 5).tolist() == []
    for slot in (0, 1, 1023, 1024, 2048, num_slots):
        assert shares.given(slot).tolist() == given_before[slot].tolist()
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


def test_weights_in_words() -> None:
    assert whole_shares([0.7, 0.2, 0.1]) == [7, 2, 1]
    assert whole_shares([2, 4]) == [1, 2]
    assert whole_shares([1e9, 1e-9]) == [65535, 1]
    assert whole_shares([1, 1e-9, 1e-9]) == [65534, 1, 1]


def test_places_are_drawn() -> None:
    orders = {tuple(Shares([5, 3, 2], key).sources(0, 40).tolist()) for key in range(8)}
    assert len(orders) == 8
    shares = Shares([1, 1], 0)
    assert shares.sources(0, 1024).tolist() != shares.sources(1024, 2048).tolist()
    assert pickle.loads(pickle.dumps(shares)).sources(0, 99).tolist() == (
        shares.sources(0, 99).tolist()
    )


def test_a_slot_far_away_is_found_at_once() -> None:
    shares, slot = Shares([3, 1], 1), 10**15
    before = shares.given(slot)
    assert before.sum() == slot
    assert abs(int(before[0]) - slot * 3 // 4) <= 1
    source = int(shares.sources(slot, slot + 1)[0])
    assert shares.slots(source, int(before[source]), int(before[source]) + 1).tolist() == [slot]


@pytest.mark.parametrize("counts", [[1], [1, 1000], [333, 333, 334]])
def test_windows_that_are_narrow_or_wide(counts: list[int]) -> None:
    sources = Shares(counts, 7).sources(0, 3 * sum(counts))
    found = np.bincount(sources, minlength=len(counts))
    assert found.tolist() == [3 * count for count in counts]


@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    batch_size=st.integers(1, 9),
    single_source_batches=st.booleans(),
    epoch=st.integers(0, 40),
)
def test_a_mix_finds_the_places_of_clips(
    counts: list[int], batch_size: int, single_source_batches: bool, epoch: int
) -> None:
    shares, num_batches = Shares(counts, 3), 25
    turn = batch_size if single_source_batches else 1
    plan, following = (
        MixPlan(Shard(), num_batches, batch_size, shares, turn, number * num_batches)
        for number in (epoch, epoch + 1)
    )
    batches = [plan.sources(batch) for batch in range(num_batches)]
    if single_source_batches:
        assert all(len(set(batch.tolist())) == 1 for batch in batches)
    slots, before = np.concatenate(batches), plan.given(0)
    for batch in (0, 1, 7, num_batches):
        found = np.bincount(slots[: batch * batch_size], minlength=len(counts))
        assert (plan.given(batch) - before).tolist() == found.tolist()
    after = plan.given(num_batches)
    assert after.tolist() == following.given(0).tolist()
    for source in range(len(counts)):
        first, clips = int(before[source]), range(after[source] - before[source])
        number, slot = plan.places(source, first, clips, 0)
        own = np.flatnonzero(slots == source)
        assert (number * batch_size + slot).tolist() == own.tolist()
        number, slot = plan.places(source, first, clips[1:3], 1)
        assert (number * batch_size + slot).tolist() == own[1:3].tolist()


@given(
    lengths=st.lists(st.integers(1, 300), min_size=2, max_size=5),
    batch_size=st.integers(1, 20),
    data=st.data(),
)
def test_where_an_epoch_ends(lengths: list[int], batch_size: int, data: st.DataObject) -> None:
    counts = st.lists(st.integers(1, 9), min_size=len(lengths), max_size=len(lengths))
    shares = Shares(data.draw(counts), 1)
    total = sum(shares.counts)
    each = zip(lengths, shares.counts, strict=True)
    slots = [Fraction(length * total, count) for length, count in each]
    first, longest = (
        count_batches(stop, slots, batch_size, 0, 1)
        for stop in ("first_exhausted", "all_exhausted")
    )
    assert first == 1 or (shares.given(first * batch_size) <= lengths).all()
    assert (shares.given(longest * batch_size) >= lengths).all()
    # A batch more would begin a source again, and a batch less would leave out a clip.
    assert (shares.given((first + 1) * batch_size) >= lengths).any()
    assert (shares.given((longest - 1) * batch_size) <= lengths).any()


def test_a_number_of_batches_is_shared_among_workers() -> None:
    found = [count_batches(11, [Fraction(1)], 4, w, 3) for w in range(3)]
    assert found == [4, 4, 3]
