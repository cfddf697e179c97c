"""One integer for a frame of an episode or run: at the limits of both, against pairs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord.clips.grids import MAX_FRAMES, MAX_OWNERS, frame_keys, search_keys, split_keys
from seqrecord.clips.tables import ClipSpec, ClipTable
from seqrecord.errors import ClipError
from seqrecord.format.manifest import MAX_EPISODES
from seqrecord.format.rows import MAX_EPISODE_FRAMES
from seqrecord.sampling.runs import Runs, concatenated_pieces

# Where one of the earlier widths, 33 and 40 bits for a frame, ran out of bits for the owner.
EDGES = (0, 1 << 23, 1 << 24, 1 << 30, MAX_OWNERS - 1)
owners = st.integers(0, MAX_OWNERS - 1) | st.sampled_from(EDGES)
frames = st.integers(0, MAX_FRAMES - 1) | st.sampled_from((0, 1, MAX_FRAMES - 2, MAX_FRAMES - 1))
places = st.tuples(owners, frames)


def key_of(place: tuple[int, int]) -> int:
    return int(frame_keys(*map(np.int64, place)))


@given(st.lists(places, min_size=1, max_size=20))
def test_keys_are_in_the_order_of_owners_and_frames(some: list[tuple[int, int]]) -> None:
    owner, frame = np.array(some, np.int64).T
    keys = frame_keys(owner, frame)
    assert keys.dtype == np.int64
    assert (keys >= 0).all()
    assert [some[i] for i in np.argsort(keys, kind="stable")] == sorted(some)
    assert list(zip(*map(np.ndarray.tolist, split_keys(keys)), strict=True)) == some


@given(places, places)
def test_only_frames_in_a_row_have_keys_in_a_row(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    follows = other == (one[0], one[1] + 1)
    assert (key_of(other) - key_of(one) == 1) == follows
    # Past the end of an owner comes no frame of the next one.
    assert key_of((one[0], MAX_FRAMES)) != key_of(other)


@given(places, owners, st.integers(-(1 << 62), 1 << 62))
def test_what_is_sought_may_lie_outside(place: tuple[int, int], owner: int, frame: int) -> None:
    sought = int(search_keys(np.int64(owner), np.int64(frame)))
    assert (key_of(place) < sought) == (place < (owner, frame))
    assert (key_of(place) > sought) == (place > (owner, frame))


def test_datasets_and_plans_have_no_more_than_keys_hold() -> None:
    assert MAX_EPISODES <= MAX_OWNERS
    assert MAX_EPISODE_FRAMES <= MAX_FRAMES
    zero, one = np.zeros(1, np.int64), np.ones(1, np.int64)
    assert Runs(1, zero, zero, one, zero + MAX_OWNERS - 1).num_clips == 1
    with pytest.raises(ClipError, match="more runs") as caught:
        Runs(1, zero, zero, one, zero + MAX_OWNERS)
    assert (caught.value.expected, caught.value.got) == ("at most 2147483648", 2147483649)


def test_pieces_of_two_episodes_stay_apart() -> None:
    """The first would go on where the second begins, as keys count."""
    zero = np.zeros(0, np.int64)
    table = ClipTable(ClipSpec(1, stride=1 << 30), zero, zero, zero, zero)
    first = frame_keys(np.array([0, 0, 1]), np.array([0, 1 << 31, 0]))
    found = concatenated_pieces(table, first, np.array([2, 2, 1]))
    columns = (found.episode, found.first_start, found.count)
    assert [column.tolist() for column in columns] == [[0, 1], [0, 0], [4, 1]]
