"""Writers that a test kills: `python -m tests.store.killed_writer` forks one for each job.

A job is a line of JSON; see `Writers`. The forking process has imported all modules but obstore,
which does not survive a fork, so that many kills take little time.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seqrecord import SeqRecordWriter
from seqrecord.store.reading.index_building import complete_episodes
from seqrecord.store.reading.metadata import read_footers
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.opening import open_storage
from tests.kit.made_source import MadeSource
from tests.kit.services.fault_proxy import FaultProxy, Request
from tests.kit.services.places import with_short_waits

SETTINGS: dict[str, Any] = {"chunk_frames": 2, "max_file_size": 30_000}


@dataclass
class Killer:
    """Kills a process at its `number`-th request, from 0, before or `after` the service handles it.

    Pass `through(proxy)` as `started` of `Writers.run`.
    """

    number: int
    after: bool
    _pid: int = 0
    _seen: int = 0
    _last: int = -1
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def through(self, proxy: FaultProxy) -> Callable[[int], None]:
        def started(pid: int) -> None:
            self._pid = pid
            proxy.reset()
            proxy.fault, proxy.acted = self._fault, self._acted

        return started

    def _fault(self, request: Request) -> str | None:
        with self._lock:
            seen, self._seen = self._seen, self._seen + 1
        if seen < self.number:
            return None
        if self.after and seen == self.number:
            self._last = request.number
            return None
        self._kill()
        return "reset"

    def _acted(self, number: int) -> None:
        if number == self._last:
            self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)


class Writers:
    """A process that forks writers; call `close`."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.store.killed_writer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def run(self, job: dict[str, Any], started: Callable[[int], None]) -> tuple[bool, list[str]]:
        """Run a job; returns whether it finished, and its output. Calls `started` with its pid.

        A job has a `url`, storage `options`, `lengths` and a `mode`: it writes the missing episodes
        of `MadeSource(lengths)`, flushes each after its last frame, and prints its key after a read
        with the storage options `straight` has found it stored.
        """
        self._send(json.dumps(job))
        started(int(self._receive()))
        self._send("go")
        printed: list[str] = []
        while not (line := self._receive()).startswith("ended"):
            printed.append(line.strip())
        status = int(line.split()[1])
        assert status in (0, signal.SIGKILL), f"the writer failed: {status}"
        return status == 0, printed

    def close(self) -> None:
        self._server.communicate(timeout=200)

    def _send(self, line: str) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(f"{line}\n")
        self._server.stdin.flush()

    def _receive(self) -> str:
        assert self._server.stdout is not None
        return self._server.stdout.readline()


def _write(job: dict[str, Any]) -> None:
    source = MadeSource(job["lengths"])
    straight = open_storage(job["url"], job["straight"])
    with SeqRecordWriter(
        with_short_waits(open_storage(job["url"], job["options"])),
        schema=source.schema(),
        mode=job["mode"],
        **SETTINGS,
    ) as writer:
        for info in source.episodes():
            if info.key in writer.completed_episodes:
                continue
            with writer.episode(info.key, metadata=info.metadata) as episode:
                for frame in source.frames(info):
                    episode.append(frame)
                assert episode.flush()
                assert info.key in _stored(straight)
                os.write(1, f"{info.key}\n".encode())


def _stored(storage: Storage) -> set[str]:
    """Keys of complete episodes in finished record files."""
    sizes = {file.path: file.size for file in storage.files("records")}
    footers = read_footers(storage, sizes)
    return {part.key for part in complete_episodes([*footers.items()]).values()}


def _serve() -> None:
    while line := sys.stdin.readline():
        job = json.loads(line)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            with contextlib.suppress(KeyboardInterrupt):
                os.read(reading, 1)
                try:
                    _write(job)
                    code = 0
                except Exception as error:  # printed; the exit status reports it, too
                    sys.stderr.write(f"{type(error).__name__}: {error}\n")
                    sys.stderr.flush()
            os._exit(code)
        os.write(1, f"{pid}\n".encode())
        sys.stdin.readline()
        os.write(writing, b"!")
        _, status = os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)
        os.write(1, f"ended {status}\n".encode())


if __name__ == "__main__":
    _serve()
