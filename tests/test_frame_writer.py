"""How old a frame may be that a kill loses: the recorder's thread on a clock that stands still.

Encoding, the disk and the camera take the time that a case says, and nothing else takes any.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest

from seqrecord.schema import Frame
from seqrecord.writing.frame_queue import FrameQueue, Task
from seqrecord.writing.frame_writer import FrameWriter

FRAME_BYTES = 1 << 20
CHUNK_FRAMES = 32


@dataclass
class Machine:
    """A camera, an encoder and a disk, and the clock that they move.

    `unsafe` are the times of frames that a kill would lose, `ages` how old the oldest of them was
    whenever a flush had ended, with the time then.
    """

    frames_per_second: float = 30
    seconds: float = 60
    encode: float = 0.01
    encode_quickly: float = 0.0005
    disk: float = 1e9  # bytes a second
    stall: Callable[[float], float] = lambda now: 0.0  # what a write takes longer
    now: float = 100.0
    put_at: float = 0.0
    is_over: bool = False
    has_ended: bool = False
    num_frames: int = 0
    storing_seconds: float = 0.0
    fast: list[bool] = field(default_factory=list)
    flushes: list[int] = field(default_factory=list)  # frames of each
    ages: list[tuple[float, float]] = field(default_factory=list)
    unsafe: deque[float] = field(default_factory=deque)
    _chunk: float = 0.0

    def __post_init__(self) -> None:
        self.writer = FrameWriter(cast(Any, self), cast(Any, self), 1.0, lambda: self.now)
        count = int(self.frames_per_second * self.seconds)
        self.coming = deque(100.0 + (1 + n) / self.frames_per_second for n in range(count))
        self.tasks = deque([Task(lambda: self.writer.begin("a", {}, None))])

    # The queue

    def take(self, seconds: float | None) -> Frame | Task | None:
        if self.tasks:
            return self.tasks.popleft()
        due = self.coming[0] if self.coming else float("inf")
        if due > self.now and seconds is not None and self.now + seconds < due:
            self.now += seconds
            return None
        if not self.coming:
            self.has_ended = True
            return Task(self.writer.end)
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

    def settle(self) -> None:
        assert self.num_frames == 1

    def close(self) -> None:
        self.flush()

    def abort(self) -> None:
        raise AssertionError("nothing failed")

    def discard(self) -> None:
        raise AssertionError("nothing was discarded")

    def _write(self) -> None:
        took = 0.002 + self._chunk / self.disk + self.stall(self.now)
        self.now += took
        self.storing_seconds += took
        self._chunk = 0.0

    def run(self) -> Machine:
        while not self.has_ended:
            self.writer.step()
        assert self.writer.safe_frames == self.writer.written_frames == self.num_frames
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
        Machine(encode=0.03),  # no time is left
        Machine(encode=0.05),  # longer than frames take to come
        Machine(encode=0.25, encode_quickly=0.01),
        Machine(disk=30 << 20),
        Machine(encode=0.02, stall=lambda now: 0.1),
        Machine(stall=spikes(0.1, 0.25)),
        Machine(encode=0.03, stall=spikes(0.1, 0.2)),
    ],
    ids=["", "few", "many", "full", "slow", "slowest", "disk", "always", "spikes", "spikes-full"],
)
def test_no_frame_that_a_kill_loses_is_older_than_was_asked(machine: Machine) -> None:
    oldest = machine.run().oldest
    assert oldest <= 1.0


def test_flushes_are_few_where_they_are_in_time() -> None:
    """Each ends a chunk: short ones are read at more cost."""
    machine = Machine().run()
    assert np.median(machine.flushes) >= 20
    assert not any(machine.fast)


def test_after_a_long_stall_all_is_safe_again_soon() -> None:
    """Three seconds in which the disk takes nothing: nobody can keep frames then."""
    stalls = deque([120.0])

    def stall(now: float) -> float:
        return 3.0 if stalls and now >= stalls[0] and stalls.popleft() else 0.0

    machine = Machine(encode=0.03, stall=stall).run()
    assert machine.oldest > 3
    assert all(age <= 1.0 for now, age in machine.ages if not 120 <= now <= 124.5)
    assert any(machine.fast)
    assert not any(machine.fast[-900:])


def test_where_the_disk_takes_the_time_frames_do_not_become_more_bytes() -> None:
    """It takes what comes, but not a third more: encoded quickly, frames would wait forever."""
    stalls = deque([120.0])

    def stall(now: float) -> float:
        return 2.0 if stalls and now >= stalls[0] and stalls.popleft() else 0.0

    machine = Machine(encode=0.001, disk=19 << 20, stall=stall).run()
    assert not any(machine.fast[-600:])
    # It begins without knowing the disk, and two seconds' frames take a while to be written.
    assert all(age <= 1.0 for now, age in machine.ages if 104 < now < 120 or now > 135)


def test_a_queue_says_when_a_frame_was_put(tmp_path: Any) -> None:
    now = [5.0]
    queue = FrameQueue(1 << 16, "spill", tmp_path, clock=lambda: now[0])
    for number in range(3):
        now[0] = 5.0 + number
        queue.put({"x": np.zeros(3)})
    for number in range(3):
        assert queue.take(1) is not None
        assert queue.put_at == 5.0 + number
    queue.close()
