"""The queue of a recorder: order, bounds, spilling, and what happens where there is no room."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqrecord.errors import DestinationError, QueueFullError
from seqrecord.schema import EncodedImage, Frame
from seqrecord.writing.frame_queue import FrameBuffers, FrameQueue, Task
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


def same(got: Frame | Task | None, expected: Frame) -> None:
    assert got is not None
    assert not isinstance(got, Task)
    assert list(got) == list(expected)
    for name, item in expected.items():
        if isinstance(item, (str, bytes, EncodedImage)):
            assert got[name] == item
        else:
            array = np.asarray(got[name])
            assert array.dtype == np.asarray(item).dtype
            np.testing.assert_array_equal(array, np.asarray(item))


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
    task = Task(lambda: None)
    queue.tell(task)
    for number in range(20):
        same(queue.take(1), {"x": np.full(1000, float(number))})
    assert queue.take(1) is task
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
    file_bytes=st.sampled_from([1, 100_000, 32 << 20]),
)
def test_what_was_spilled_comes_in_its_turn(
    sizes: list[int], takes: list[int], file_bytes: int
) -> None:
    limit = 500_000
    queue = FrameQueue(limit, "spill", file_bytes=file_bytes)
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


def spilled_files(folder: Path) -> list[int]:
    """Bytes of the files without a name that this process has open in a folder."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(link.readlink()).startswith(f"{folder}/"):
                found.append(link.stat().st_size)
    return found


def test_ten_times_the_memory_is_spilled_and_files_go_with_their_frames(tmp_path: Path) -> None:
    limit = 8 * NBYTES
    queue = FrameQueue(limit, "spill", tmp_path, file_bytes=limit)
    for number in range(80):
        wait_until_at_rest(queue, limit)
        queue.put(frame(number))
    wait_until_at_rest(queue, limit)
    assert queue.stats.total_spilled_frames >= 72
    assert queue.stats.spilled_bytes >= 72 * NBYTES
    files = spilled_files(tmp_path)
    assert len(files) > 5
    assert sum(files) >= 72 * NBYTES
    assert not list(tmp_path.iterdir()), "a kill leaves no file"
    for number in range(80):
        same(queue.take(60), frame(number))
        if number == 40:
            assert len(spilled_files(tmp_path)) < len(files)
    assert queue.take(0) is None
    assert not spilled_files(tmp_path)
    queue.close()


def test_files_go_with_frames_that_nobody_wants(tmp_path: Path) -> None:
    limit = 8 * NBYTES
    for forget in (
        lambda queue: (queue.discard(Task(lambda: None)), queue.take(0)),
        lambda queue: queue.fail(OSError()),
        lambda queue: queue.close(),
    ):
        queue = FrameQueue(limit, "spill", tmp_path)
        for number in range(20):
            wait_until_at_rest(queue, limit)
            queue.put(frame(number))
        wait_until_at_rest(queue, limit)
        assert spilled_files(tmp_path)
        forget(queue)
        assert not spilled_files(tmp_path)
        queue.close()


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
    folder = tmp_path / "spill"
    folder.mkdir()
    queue = FrameQueue(limit, "spill", folder)
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
        queue.tell(Task(lambda: None))
    assert queue.is_over
    assert queue.take(None) is None
    queue.close()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_known_at_once(tmp_path: Path) -> None:
    with pytest.raises(DestinationError, match="cannot spill"):
        FrameQueue(1000, "spill", tmp_path / "no")


def test_frames_that_wait_are_dropped_up_to_the_task_before(tmp_path: Path) -> None:
    limit = 8 * NBYTES
    queue = FrameQueue(limit, "spill", tmp_path)
    begin, begin_again, discard = (Task(lambda: None) for _ in range(3))
    queue.put(frame(0))
    queue.tell(begin)
    for number in range(1, 60):
        wait_until_at_rest(queue, limit)
        queue.put(frame(number))
    wait_until_at_rest(queue, limit)
    assert queue.stats.spilled_bytes
    queue.discard(discard)
    stats = queue.stats
    assert (stats.queued_frames, stats.spilled_bytes) == (1, 0)
    assert stats.queued_bytes < 2 * NBYTES
    queue.tell(begin_again)
    queue.put(frame(60))
    same(queue.take(1), frame(0))
    assert [queue.take(1) for _ in range(3)] == [begin, discard, begin_again]
    assert not spilled_files(tmp_path)
    same(queue.take(1), frame(60))
    assert queue.take(0) is None
    assert queue.stats.queued_bytes == 0
    queue.close()


def test_discarding_while_frames_are_spilled_and_taken(tmp_path: Path) -> None:
    """Whatever the threads are at, bytes are counted once, and order holds."""
    limit = 6 * NBYTES
    queue = FrameQueue(limit, "spill", tmp_path, file_bytes=2 * NBYTES)
    tasks = [Task(lambda: None) for _ in range(100)]
    taken: list[Any] = []

    def take() -> None:
        while (item := queue.take(30)) is not tasks[-1]:
            assert item is not None
            taken.append(item if isinstance(item, Task) else int(np.asarray(item["x"])[0]))

    thread = threading.Thread(target=take)
    thread.start()
    for number, task in enumerate(tasks):
        for at in range(5):
            wait_until_at_rest(queue, limit)
            queue.put(frame(100 * number + at))
        queue.discard(task) if number % 2 else queue.tell(task)
    thread.join()
    assert queue.take(0) is None
    stats = queue.stats
    assert (stats.queued_frames, stats.queued_bytes, stats.spilled_bytes) == (0, 0, 0)
    queue.close()
    assert [item for item in taken if isinstance(item, Task)] == tasks[:-1]
    numbers = [item for item in taken if isinstance(item, int)]
    assert numbers == sorted(set(numbers))
    assert {n for n in numbers if n // 100 % 2 == 0} == {
        100 * number + at for number in range(0, 100, 2) for at in range(5)
    }
