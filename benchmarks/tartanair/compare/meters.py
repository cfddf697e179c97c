"""What a process tree takes: memory with what is shared counted once, CPU seconds, bytes read."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

__all__ = ["MemoryWatch", "Usage", "memory", "usage"]

INTERVAL = 0.2  # seconds; a look at a few GiB takes some milliseconds


@dataclass
class Memory:
    """Bytes: of the tree's own, of files mapped by it, and of shared memory, each counted once."""

    own: int = 0
    shared: int = 0
    mapped: int = 0

    @property
    def total(self) -> int:
        """Without mapped files, which are page cache that the kernel may take back."""
        return self.own + self.shared


@dataclass
class Usage:
    """CPU seconds, bytes asked of `read` calls, bytes that came from a disk; all so far."""

    cpu_seconds: float = 0.0
    bytes_requested: int = 0
    bytes_from_disk: int = 0

    def since(self, before: Usage) -> dict[str, float]:
        return {name: value - getattr(before, name) for name, value in asdict(self).items()}


def memory(pid: int) -> Memory:
    """Of a process and its children now: proportional set sizes, of which shares sum to one."""
    now = Memory()
    for process in _tree(pid):
        with contextlib.suppress(OSError, psutil.Error):
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]:
                name, _, value = line.partition(":")
                if name in _PARTS:
                    part = _PARTS[name]
                    setattr(now, part, getattr(now, part) + int(value.split()[0]) * 1024)
    return now


_PARTS = {"Pss_Anon": "own", "Pss_Shmem": "shared", "Pss_File": "mapped"}


def usage(pid: int) -> Usage:
    """Of a process and its children, also those that have ended and been waited for."""
    total = Usage()
    for process in _tree(pid):
        with contextlib.suppress(OSError, psutil.Error):
            times = process.cpu_times()
            total.cpu_seconds += times.user + times.system
            total.cpu_seconds += times.children_user + times.children_system
            counters = dict(
                line.split(": ")
                for line in Path(f"/proc/{process.pid}/io").read_text().splitlines()
            )
            total.bytes_requested += int(counters["rchar"])
            total.bytes_from_disk += int(counters["read_bytes"])
    return total


def _tree(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


class MemoryWatch:
    """Looks at another process's tree from time to time and keeps the highest."""

    def __init__(self, pid: int) -> None:
        self.peak = 0
        self.peak_mapped = 0
        self._pid = pid
        self._over = threading.Event()

    def _look(self) -> None:
        while not self._over.wait(INTERVAL):
            now = memory(self._pid)
            self.peak = max(self.peak, now.total)
            self.peak_mapped = max(self.peak_mapped, now.mapped)

    @contextlib.contextmanager
    def watching(self) -> Iterator[MemoryWatch]:
        thread = threading.Thread(target=self._look)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()
