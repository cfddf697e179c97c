"""A recorder's queue: order, limits, spilling to disk, and a full disk."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqrecord.errors import QueueFullError
from seqrecord.schema import EncodedImage, Frame
from seqrecord.writing.frame_queue import FrameQueue, QueueCall
from seqrecord.writing.recording_thread import RecordingThread
from tests.kit.services.process import wait_for

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


def same(got: Frame | QueueCall | None, expected: Frame) -> None:
    assert got is not None
    assert not isinstance(got, QueueCall)
    assert list(got) == list(expected)
    for name, item in expected.items():
        if isinstance(item, (str, bytes, EncodedImage)):
            assert got[name] == item
        else:
            np.testing.assert_array_equal(np.asarray(got[name]), np.asarray(item), strict=True)


def put(queue: FrameQueue, *frames: Frame, limit: int = LIMIT) -> None:
    """Put frames one by one, each after the thread has spilled half of the memory."""
    for each in frames:
        queue.put(each)
        wait_for(lambda: queue.stats.queued_bytes <= limit // 2)


def is_empty(queue: FrameQueue) -> bool:
    if queue.take(0) is not None:
        return False
    stats = queue.stats
    return (stats.queued_frames, stats.queued_bytes, stats.spilled_bytes) == (0, 0, 0)


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(8, 200_000), min_size=1, max_size=40),
    takes=st.lists(st.integers(0, 5), min_size=1, max_size=40),
    file_bytes=st.sampled_from([1, 100_000, 32 << 20]),
)
def test_spilled_frames_keep_their_order_and_time(
    sizes: list[int], takes: list[int], file_bytes: int
) -> None:
    now, expected = 5.0, 0
    queue = FrameQueue(500_000, file_bytes=file_bytes, clock=lambda: now)
    with contextlib.closing(queue):
        for number, size in enumerate(sizes):
            now = 5.0 + number
            put(queue, frame(number, size), limit=500_000)
            is_last = number == len(sizes) - 1
            for _ in range(100 if is_last else takes[number % len(takes)]):
                if expected <= number:
                    same(queue.take(60), frame(expected, sizes[expected]))
                    assert queue.put_at == 5.0 + expected
                    expected += 1
        assert is_empty(queue)


def spilled_files(folder: Path) -> list[int]:
    """Sizes of this process's open, unnamed files in a folder."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(link.readlink()).startswith(f"{folder}/"):
                found.append(link.stat().st_size)
    return found


def test_spill_files_are_deleted_with_their_frames(tmp_path: Path) -> None:
    """Spills five times the memory."""
    queue = FrameQueue(LIMIT, tmp_path, file_bytes=LIMIT)
    put(queue, *map(frame, range(40)))
    assert queue.stats.total_spilled_frames >= 32
    assert queue.stats.spilled_bytes >= 32 * NBYTES
    files = spilled_files(tmp_path)
    assert len(files) > 3
    assert sum(files) >= 32 * NBYTES
    assert not list(tmp_path.iterdir()), "a kill leaves no file"
    for number in range(40):
        same(queue.take(60), frame(number))
        if number == 25:
            assert len(spilled_files(tmp_path)) < len(files)
    assert is_empty(queue)
    assert not spilled_files(tmp_path)
    # Discarded frames.
    begin, discard, last = (QueueCall(lambda: None) for _ in range(3))
    queue.put(frame(0))
    queue.put_call(begin)
    put(queue, *map(frame, range(20)))
    assert spilled_files(tmp_path)
    queue.discard(discard)
    assert queue.stats.queued_frames == 1, "only frames after the previous call are dropped"
    assert queue.take(1) is not begin
    assert [queue.take(1), queue.take(1)] == [begin, discard]
    put(queue, *map(frame, range(20)))
    queue.discard(last)
    assert (queue.stats.queued_bytes, queue.stats.spilled_bytes) == (0, 0), "memory is free at once"
    assert queue.take(1) is last
    queue.close()
    for forget in (lambda queue: queue.fail(OSError()), FrameQueue.close):
        queue = FrameQueue(LIMIT, tmp_path)
        put(queue, *map(frame, range(20)))
        assert spilled_files(tmp_path)
        forget(queue)
        assert not spilled_files(tmp_path)
        assert queue.take(0) is None
        queue.close()


def test_a_failed_spill_is_logged_once_and_retried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "spill"
    folder.mkdir()
    queue = FrameQueue(6 * NBYTES, folder)
    folder.rmdir()  # files cannot be created there
    for number in range(5):
        queue.put(frame(number))
    wait_for(lambda: bool(caplog.records))
    with pytest.raises(QueueFullError, match="No such file or directory"):
        queue.put(frame(9))
    folder.mkdir()
    wait_for(lambda: queue.stats.queued_bytes <= 3 * NBYTES)
    queue.put(frame(5))
    for number in range(6):
        same(queue.take(60), frame(number))
    queue.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_discarding_while_frames_are_spilled_and_taken(tmp_path: Path, thorough: bool) -> None:
    """Counts bytes once and keeps the order for any interleaving of the threads."""
    queue = FrameQueue(6 * NBYTES, tmp_path, file_bytes=2 * NBYTES)
    tasks = [QueueCall(lambda: None) for _ in range(100 if thorough else 20)]
    taken: list[Any] = []

    def take() -> None:
        while (item := queue.take(30)) is not tasks[-1]:
            assert item is not None
            taken.append(item if isinstance(item, QueueCall) else int(np.asarray(item["x"])[0]))

    thread = threading.Thread(target=take)
    thread.start()
    for number, task in enumerate(tasks):
        put(queue, *map(frame, range(100 * number, 100 * number + 5)), limit=6 * NBYTES)
        queue.discard(task) if number % 2 else queue.put_call(task)
    thread.join()
    assert is_empty(queue)
    queue.close()
    assert [item for item in taken if isinstance(item, QueueCall)] == tasks[:-1]
    numbers = [item for item in taken if isinstance(item, int)]
    assert numbers == sorted(set(numbers))
    kept = [100 * number + at for number in range(0, len(tasks), 2) for at in range(5)]
    assert [n for n in numbers if n // 100 % 2 == 0] == kept


# Age of the frames that a kill loses, with a simulated clock

FRAME_BYTES = 1 << 20
CHUNK_FRAMES = 32


@dataclass
class Machine:
    """A camera, an encoder and a disk with a simulated clock.

    `unsafe` has the times of frames that a kill would lose, `ages` the time of each flush and the
    age of its oldest frame.
    """

    frames_per_second: float = 30
    seconds: float = 60
    encode: float = 0.01
    encode_quickly: float = 0.0005
    disk: float = 1e9  # bytes a second
    stall: Callable[[float], float] = lambda now: 0.0  # additional seconds of a write
    now: float = 100.0
    put_at: float = 0.0
    is_over: bool = False
    has_ended: bool = False
    num_frames: int = 0
    storing_seconds: float = 0.0
    fast: list[bool] = field(default_factory=list)
    flushes: list[int] = field(default_factory=list)  # frames per flush
    ages: list[tuple[float, float]] = field(default_factory=list)
    unsafe: deque[float] = field(default_factory=deque)
    _chunk: float = 0.0

    def __post_init__(self) -> None:
        self.writer = RecordingThread(cast(Any, self), cast(Any, self), 1.0, lambda: self.now)
        count = int(self.frames_per_second * self.seconds)
        self.coming = deque(100.0 + (1 + n) / self.frames_per_second for n in range(count))
        self.tasks = deque([QueueCall(lambda: self.writer.begin("a", {}, None))])

    # The queue

    def take(self, seconds: float | None) -> Frame | QueueCall | None:
        if self.tasks:
            return self.tasks.popleft()
        due = self.coming[0] if self.coming else float("inf")
        if due > self.now and seconds is not None and self.now + seconds < due:
            self.now += seconds
            return None
        if not self.coming:
            self.has_ended = True
            return QueueCall(self.writer.end)
        self.now = max(self.now, due)
        self.put_at = self.coming.popleft()
        return {"x": np.zeros(1)}

    def fail(self, error: BaseException) -> None:
        raise error

    # The writer and its episode

    def episode(
        self, key: str, *, metadata: Mapping[str, Any] | None = None, fps: float | None = None
    ) -> Machine:
        assert (key, metadata, fps) == ("a", {}, None)
        return self

    def append(self, frame: Frame, *, fast: bool = False) -> None:
        assert frame
        self.now += self.encode_quickly if fast else self.encode
        self.num_frames += 1
        self.fast.append(fast)
        self.unsafe.append(self.put_at)
        self._chunk += FRAME_BYTES * (0.7 if fast else 0.5)
        if self.num_frames % CHUNK_FRAMES == 0:
            self._write()

    def flush(self) -> None:
        self._write()
        if not self.unsafe:
            return
        self.ages.append((self.now, self.now - self.unsafe[0]))
        self.flushes.append(len(self.unsafe))
        self.unsafe.clear()

    def fix_schema(self) -> None:
        assert self.num_frames == 1

    def close(self, metadata: object = None) -> None:
        del metadata
        self.flush()

    def _write(self) -> None:
        took = 0.002 + self._chunk / self.disk + self.stall(self.now)
        self.now += took
        self.storing_seconds += took
        self._chunk = 0.0

    def run(self) -> Machine:
        while not self.has_ended:
            self.writer.step()
        assert self.writer.durable_frames == self.writer.written_frames == self.num_frames
        return self

    @property
    def oldest(self) -> float:
        return max(age for _, age in self.ages)


def spikes(share: float, seconds: float) -> Callable[[float], float]:
    rng = random.Random(5)
    return lambda now: seconds if rng.random() < share else 0.0


@pytest.mark.parametrize(
    "machine",
    [
        Machine(),
        Machine(frames_per_second=5),
        Machine(frames_per_second=500, encode=0.001),
        Machine(encode=0.03),  # no time to spare
        Machine(encode=0.05),  # slower than the camera
        Machine(encode=0.25, encode_quickly=0.01),
        Machine(disk=30 << 20),
        Machine(encode=0.02, stall=lambda now: 0.1),
        Machine(stall=spikes(0.1, 0.25)),
        Machine(encode=0.03, stall=spikes(0.1, 0.2)),
    ],
    ids=["", "few", "many", "full", "slow", "slowest", "disk", "always", "spikes", "spikes-full"],
)
def test_a_kill_loses_no_frame_older_than_the_limit(machine: Machine) -> None:
    assert machine.run().oldest <= 1.0


def test_no_more_flushes_than_needed() -> None:
    """A flush ends the chunk, and short chunks are slower to read."""
    machine = Machine().run()
    assert np.median(machine.flushes) >= 20
    assert not any(machine.fast)


def stalled(at: float, seconds: float) -> Callable[[float], float]:
    """A disk that stalls once for some seconds, in which no frame becomes durable."""
    stalls = deque([at])
    return lambda now: seconds if stalls and now >= stalls[0] and stalls.popleft() else 0.0


def test_frames_are_durable_in_time_soon_after_a_long_stall() -> None:
    machine = Machine(encode=0.03, stall=stalled(120.0, 3.0)).run()
    assert machine.oldest > 3
    assert all(age <= 1.0 for now, age in machine.ages if not 120 <= now <= 124.5)
    assert any(machine.fast)
    assert not any(machine.fast[-900:])


def test_no_fast_encoding_if_the_disk_is_the_bottleneck() -> None:
    """Fast encoding makes a third more bytes, too many for this disk: the queue would only grow."""
    machine = Machine(encode=0.001, disk=19 << 20, stall=stalled(120.0, 2.0)).run()
    assert not any(machine.fast[-600:])
    # The disk's speed is unknown at first, and a backlog of two seconds takes a while.
    assert all(age <= 1.0 for now, age in machine.ages if 104 < now < 120 or now > 135)
