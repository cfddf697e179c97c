"""Programs that a test starts, and that always end with it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

__all__ = ["Program", "wait_for"]

_START_SECONDS = 60.0
_POLL_SECONDS = 0.01
_STOP_SECONDS = 10.0


class Program:
    """A running program, whose output goes to the file `log`.

    It gets SIGTERM when the thread that started it ends, even if the process is killed.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._log = log
        setpriv = shutil.which("setpriv")
        bound = [setpriv, "--pdeathsig", "TERM", "--"] if setpriv else []
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*bound, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,  # Ctrl-C goes to the tests only, which then stop it
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def output(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready()`, or raise an error with the program's output."""
        wait_for(lambda: ready() or not self.running)
        if not self.running:
            raise RuntimeError(f"{self._process.args!r} ended: {self.output[-2000:]}")

    def kill(self) -> None:
        """Send SIGKILL, and wait until it has ended."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if that does not help."""
        if self.running:
            self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        self.kill()


def wait_for(ready: Callable[[], bool], seconds: float = _START_SECONDS) -> None:
    """Poll until `ready()`; `TimeoutError` when it takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not ready after {seconds:g} s")
        time.sleep(_POLL_SECONDS)
