"""How much more two threads copy than one, here and now.

Two virtual CPUs may be two physical cores, or share one, and that may change while a benchmark
runs. It decides how fast memory is copied. So the speed of copying is measured before and after
every epoch, and an epoch is compared only with epochs of the same level of speed.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

__all__ = ["Scaling", "level"]

NBYTES = 48 << 20  # of a buffer: more than caches hold
SECONDS = 0.1
FAST = 1.4  # times as much as one thread


def level(before: float, after: float) -> str | None:
    """`fast` or `slow`; `None` if it changed in between."""
    if (before > FAST) != (after > FAST):
        return None
    return "fast" if before > FAST else "slow"


class Scaling:
    """Asks a process of its own, whose memory is not the benchmark's."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @classmethod
    @contextmanager
    def start(cls) -> Iterator[Scaling]:
        """Start the process, and end it with the block."""
        command = [sys.executable, "-m", __spec__.name]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            yield cls(process)
            assert process.stdin is not None
            process.stdin.close()

    def now(self) -> float:
        """What two threads copy by what one copies; takes about a quarter of a second."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def main() -> None:
    buffers = [(np.ones(NBYTES, np.uint8), np.ones(NBYTES, np.uint8)) for _ in range(2)]
    for _ in sys.stdin:
        one = _copied(buffers[:1])
        print(_copied(buffers) / one, flush=True)


def _copied(buffers: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """Copies a second, a thread for each pair of buffers."""
    counts = [0] * len(buffers)
    stop = time.perf_counter() + SECONDS

    def work(number: int) -> None:
        source, target = buffers[number]
        while time.perf_counter() < stop:
            np.copyto(target, source)
            counts[number] += 1

    begin = time.perf_counter()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(buffers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - begin)


if __name__ == "__main__":
    main()
