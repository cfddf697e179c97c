"""The queue of a recorder: order, bounds, spilling, and what happens where there is no room."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqrecord.errors import DestinationError, QueueFullError
from seqrecord.schema import EncodedImage, Frame
from seqrecord.writing.frame_queue import Control, FrameBuffers, FramePlan, FrameQueue
from tests.services.process import wait_for

NBYTES = 64 << 10


def frame(number: int, nbytes: int = NBYTES) -> dict[str, Any]:
    return {
        "x": np.full(nbytes // 8, number, np.int64),
        "y": np.asfortranarray(np.arange(6, dtype="<f4").reshape(2, 3) + number),
        "text": f"frame {number} ü",
        "blob": bytes([number % 256, 0]),
        "image": EncodedImage(b"\x89PNG" + bytes(number % 5)),
        "nothing": np.empty((0, 3), np.uint8),
        "scalar": np.float32(number),
    }


def same(got: Frame | Control | None, expected: Frame) -> None:
    assert got is not None
    assert not isinstance(got, Control)
    assert list(got) == list(expected)
    for name, item in expected.items():
        if isinstance(item, (str, bytes, EncodedImage)):
            assert got[name] == item
        else:
            array = np.asarray(got[name])
            assert array.dtype == np.asarray(item).dtype
            np.testing.assert_array_equal(array, np.asarray(item))


def test_a_frame_is_packed_and_unpacked() -> None:
    plan = FramePlan(frame(3))
    memory = np.full(plan.nbytes + 10, 255, np.uint8)
    same(plan.pack(memory).unpack(), frame(3))


def test_memory_is_used_again_where_it_fits() -> None:
    pool = FrameBuffers(1000)
    one, two = pool.take(100), pool.take(700)
    pool.give(one)
    assert pool.take(101) is not one
    assert pool.take(50) is not one
    assert pool.take(90) is one
    pool.give(two)
    pool.give(pool.take(500))  # both are more than the limit: the older one goes
    assert pool.take(650) is not two


def test_frames_come_in_order_and_are_copies() -> None:
    queue = FrameQueue(10 << 20, "raise")
    array = np.zeros(1000)
    for number in range(20):
        array[:] = number
        assert queue.put({"x": array})
    word = Control()
    queue.tell(word)
    for number in range(20):
        same(queue.take(1), {"x": np.full(1000, float(number))})
    assert queue.take(1) is word
    assert queue.take(0.01) is None
    assert queue.stats.queued_bytes == 0
    queue.close()


def test_where_memory_is_full_raise_says_so_and_goes_on() -> None:
    queue = FrameQueue(3 * NBYTES, "raise")
    assert queue.put(frame(0))
    assert queue.put(frame(1))
    with pytest.raises(QueueFullError, match="the queue is full; expected"):
        queue.put(frame(2))
    same(queue.take(1), frame(0))
    same(queue.take(1), frame(1))  # the first frame's room is free from now on
    assert queue.put(frame(3))
    same(queue.take(1), frame(3))
    assert queue.stats.dropped_frames == 0
    queue.close()


def test_where_memory_is_full_drop_counts() -> None:
    queue = FrameQueue(3 * NBYTES, "drop")
    assert [queue.put(frame(number)) for number in range(5)] == [True, True, False, False, False]
    same(queue.take(1), frame(0))
    same(queue.take(1), frame(1))
    assert queue.take(0) is None
    assert queue.stats.dropped_frames == 3
    queue.close()


def wait_until_at_rest(queue: FrameQueue, limit: int) -> None:
    """Until the thread has spilled what it should: memory is at most half full."""
    wait_for(lambda: queue.stats.queued_bytes <= limit // 2)


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(8, 200_000), min_size=1, max_size=40),
    takes=st.lists(st.integers(0, 5), min_size=1, max_size=40),
    segment=st.sampled_from([1, 100_000, 32 << 20]),
)
def test_what_was_spilled_comes_in_its_turn(
    sizes: list[int], takes: list[int], segment: int
) -> None:
    limit = 500_000
    queue = FrameQueue(limit, "spill", segment_bytes=segment)
    try:
        expected = 0
        for number, size in enumerate(sizes):
            wait_until_at_rest(queue, limit)
            assert queue.put(frame(number, size))
            for _ in range(min(takes[number % len(takes)], number + 1 - expected)):
                same(queue.take(60), frame(expected, sizes[expected]))
                expected += 1
        while expected < len(sizes):
            same(queue.take(60), frame(expected, sizes[expected]))
            expected += 1
        assert queue.take(0) is None
        stats = queue.stats
        assert (stats.queued_frames, stats.queued_bytes, stats.spilled_bytes) == (0, 0, 0)
    finally:
        queue.close()


def test_ten_times_the_memory_is_spilled_and_files_go_with_their_frames(tmp_path: Path) -> None:
    limit = 8 * NBYTES
    queue = FrameQueue(limit, "spill", tmp_path)
    for number in range(80):
        wait_until_at_rest(queue, limit)
        queue.put(frame(number))
    wait_until_at_rest(queue, limit)
    assert queue.stats.total_spilled_frames >= 72
    assert queue.stats.spilled_bytes >= 72 * NBYTES
    assert list(tmp_path.rglob("*.frames"))
    for number in range(80):
        same(queue.take(60), frame(number))
    assert queue.take(0) is None
    assert not list(tmp_path.rglob("*.frames"))
    queue.close()
    assert not list(tmp_path.iterdir())


def test_a_thread_takes_while_another_puts(tmp_path: Path) -> None:
    limit = 8 * NBYTES
    queue = FrameQueue(limit, "spill", tmp_path)
    failures: list[BaseException] = []

    def take() -> None:
        try:
            for number in range(300):
                same(queue.take(30), frame(number))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    for number in range(300):
        wait_until_at_rest(queue, limit)
        queue.put(frame(number))
    thread.join()
    queue.close()
    assert not failures
    assert queue.stats.queued_frames == 0


def test_a_disk_that_takes_nothing_is_said_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limit = 6 * NBYTES
    queue = FrameQueue(limit, "spill", tmp_path)
    (folder,) = tmp_path.iterdir()
    folder.rmdir()  # no file can be made there
    for number in range(5):
        queue.put(frame(number))
    wait_for(lambda: bool(caplog.records))
    with pytest.raises(QueueFullError, match="No such file or directory"):
        queue.put(frame(9))
    folder.mkdir()
    wait_until_at_rest(queue, limit)
    queue.put(frame(5))
    for number in range(6):
        same(queue.take(60), frame(number))
    queue.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_after_a_failure_putting_raises_it_and_nothing_is_taken(tmp_path: Path) -> None:
    queue = FrameQueue(8 * NBYTES, "spill", tmp_path)
    queue.put(frame(0))
    queue.fail(OSError("the disk burns"))
    for _ in range(2):
        with pytest.raises(DestinationError, match="the disk burns"):
            queue.put(frame(1))
    with pytest.raises(DestinationError, match="the disk burns"):
        queue.tell(Control())
    assert queue.is_over
    assert queue.take(None) is None
    queue.close()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_known_at_once(tmp_path: Path) -> None:
    with pytest.raises(DestinationError, match="cannot spill"):
        FrameQueue(1000, "spill", tmp_path / "no")
