"""Memory of single clips: which lie side by side, and when it is used again."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqrecord.engine.adjacent import AdjacentPool, divide, join
from seqrecord.engine.arena import BufferPool


class Clips:
    """Clips with numbers in them, from a pool that counts the slabs that it makes."""

    def __init__(self) -> None:
        self.slabs: list[int] = []
        self.pool = AdjacentPool(self.make)
        self.count = 0

    def make(self, length: int) -> BufferPool:
        return Counting(self.slabs, (length, 2, 3), np.dtype("i4"), 4)

    def next(self) -> torch.Tensor:
        array = self.pool.acquire()
        array[:] = self.count
        self.count += 1
        return self.pool.lease(array)[0]

    def take(self, count: int) -> list[torch.Tensor]:
        return [self.next() for _ in range(count)]


class Counting(BufferPool):
    def __init__(self, made: list[int], *arguments: Any) -> None:
        super().__init__(*arguments)
        self.made = made

    def _allocate(self) -> Any:
        array = super()._allocate()
        self.made.append(len(array))
        return array


def test_clips_that_nobody_joins_have_memory_of_their_own() -> None:
    clips = Clips()
    kept = clips.take(5)
    assert clips.slabs == [1] * 5
    del kept[1:4]
    clips.take(3)
    assert clips.slabs == [1] * 5


def test_clips_come_to_lie_side_by_side() -> None:
    clips = Clips()
    first = clips.take(4)
    assert join(first) is None
    second = clips.take(4)
    batch = join(second)
    assert batch is not None
    assert batch[:, 0, 0].tolist() == [4, 5, 6, 7]
    assert batch.data_ptr() == second[0].data_ptr()
    assert batch.shape == (4, 2, 3)


def test_a_slab_is_used_again_when_clips_and_batch_are_gone() -> None:
    clips = Clips()
    join(clips.take(4))
    for _ in range(5):
        taken = clips.take(4)
        batch = join(taken)
        del taken
        view = batch[2] if batch is not None else None
        del batch
        assert view is not None
        before = view.clone()
        clips.take(4)
        assert torch.equal(view, before)  # something still refers to its memory
        del view
    assert clips.slabs.count(4) == 2


def test_the_memory_of_shuffled_clips_is_used_again() -> None:
    """Also where a batch drops more of them at once than an engine has in use by itself."""
    clips, size = Clips(), 9
    rng = np.random.default_rng(0)
    buffer = deque(clips.take(size))
    for _ in range(20):
        batch = []
        for _ in range(size):
            buffer.rotate(int(rng.integers(0, size)))
            batch.append(buffer.pop())
            buffer.append(clips.next())
        assert join(batch) is None
    assert len(clips.slabs) <= 3 * size


SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=12)


@given(SIZES, st.integers(0, 3))
def test_what_is_joined_is_what_was_there(sizes: list[int], ahead: int) -> None:
    """Whatever is asked for, a tensor is what the clips were, and clips that live stay so."""
    clips = Clips()
    waiting = deque(clips.take(ahead))  # made by an engine that runs ahead
    kept: list[tuple[int, torch.Tensor]] = []
    number = 0
    for size in sizes:
        waiting.extend(clips.take(size))
        taken = [waiting.popleft() for _ in range(size)]
        batch = join(taken)
        if batch is not None:
            assert batch[:, 0, 0].tolist() == list(range(number, number + size))
            assert batch.is_contiguous()
            kept += [(number + i, row) for i, row in enumerate(batch)]
        kept += [(number + i, clip) for i, clip in enumerate(taken)][::2]
        number += size
        kept = kept[-7:]
        assert all((clip == value).all() for value, clip in kept)


@given(st.integers(2, 5), st.integers(0, 3))
def test_batches_of_one_size_are_joined_before_long(size: int, ahead: int) -> None:
    clips = Clips()
    waiting = deque(clips.take(ahead))
    joined = []
    for _ in range(8):
        waiting.extend(clips.take(size))
        joined.append(join([waiting.popleft() for _ in range(size)]) is not None)
    assert all(joined[4:])


def test_clips_of_a_batch_are_joined_again() -> None:
    pool = BufferPool((4, 2), np.dtype("i4"), 2)
    array = pool.acquire()
    array[:] = np.arange(8).reshape(4, 2)
    rows = divide(pool.lease(array, 3))
    batch = join(rows)
    assert batch is not None
    assert batch.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert batch.data_ptr() == array.ctypes.data
    part = join(rows[1:])
    assert part is not None
    assert part.tolist() == [[2, 3], [4, 5]]
    assert join(rows[::2]) is None
    assert join(rows[::-1]) is None
    address = array.ctypes.data
    del array, batch, part
    assert pool.acquire().ctypes.data != address  # rows refer to it
    del rows
    assert pool.acquire().ctypes.data == address


class Placed:
    """Clips in batches of three: each where it is told to go."""

    size = 3

    def __init__(self, order: list[int | None]) -> None:
        self.order = order

    def find(self, number: int) -> tuple[int, int] | None:
        place = self.order[number]
        return None if place is None else divmod(place, 3)


def test_clips_are_made_where_they_will_be_joined() -> None:
    clips = Clips()
    join(clips.take(2))  # other batches before
    clips.count = 0
    clips.pool.place(Placed([4, 0, None, 5, 2, 3, 1, 6, 7]))
    taken = clips.take(9)
    for wanted in ([1, 6, 4], [5, 0, 3], [7, 8]):
        batch = join([taken[i] for i in wanted])
        assert batch is not None
        assert batch[:, 0, 0].tolist() == wanted
    assert join([taken[2], taken[7], taken[8]]) is None
    assert clips.slabs == [1, 1, 3, 3, 1, 3]
    clips.pool.place(None)
    clips.count = 0
    more = clips.take(3)
    assert not {clip.data_ptr() for clip in more} & {clip.data_ptr() for clip in taken}


@pytest.mark.parametrize(
    "change", [lambda x: x + 0, lambda x: x[:1], lambda x: x.double(), torch.t]
)
def test_others_are_not_joined(change: Any) -> None:
    clips = Clips()
    join(clips.take(2))
    join(clips.take(2))
    for _ in range(2):
        assert join([change(clip) for clip in clips.take(2)]) is None
    assert join([torch.zeros(3), torch.zeros(3)]) is None
    table = torch.zeros(4, 3)
    assert join(list(table)) is None
    assert join([*clips.take(1), table]) is None
