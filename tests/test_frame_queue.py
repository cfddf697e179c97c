"""The queue of a recorder: order, bounds, spilling, and what happens where there is no room."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqrecord.errors import QueueFullError
from seqrecord.schema import EncodedImage, Frame
from seqrecord.writing.frame_queue import FrameBuffers, FrameQueue, Task
from tests.services.process import wait_for

NBYTES = 64 << 10
LIMIT = 8 * NBYTES


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


def discarded(queue: FrameQueue) -> None:
    begin, discard, last = (Task(lambda: None) for _ in range(3))
    queue.tell(begin)
    queue.put(frame(20))
    queue.discard(discard)
    assert queue.stats.queued_frames == 20, "only what came after the task before is dropped"
    while queue.take(1) is not begin:
        pass
    assert queue.take(1) is discard
    for number in range(20):
        wait_until_at_rest(queue, LIMIT)
        queue.put(frame(number))
    wait_until_at_rest(queue, LIMIT)
    assert queue.stats.spilled_bytes
    queue.discard(last)
    assert (queue.stats.queued_bytes, queue.stats.spilled_bytes) == (0, 0), "there is room at once"
    assert queue.take(1) is last


@pytest.mark.parametrize(
    "forget", [discarded, lambda queue: queue.fail(OSError()), FrameQueue.close]
)
def test_files_go_with_frames_that_nobody_wants(
    tmp_path: Path, forget: Callable[[FrameQueue], object]
) -> None:
    queue = FrameQueue(LIMIT, "spill", tmp_path)
    for number in range(20):
        wait_until_at_rest(queue, LIMIT)
        queue.put(frame(number))
    wait_until_at_rest(queue, LIMIT)
    assert spilled_files(tmp_path)
    forget(queue)
    assert not spilled_files(tmp_path)
    assert queue.take(0) is None
    queue.close()


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
