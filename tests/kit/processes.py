"""Processes, forks and threads of tests.

| to run | use |
|---|---|
| code that needs torch, in an interpreter of its own | `run_code`: a fork of a prepared process |
| `python -m …`, or code that must import everything itself | `run_python` |
| a function in a fork of the test process | `in_fork`, `Fork`, `killed_at` |
| a function in a process without the test's memory and threads | the fixture `other_process` |
| a program beside the test | `Program` |

A thread of an earlier test may still be in a request that a client repeats until its deadline:
`own_threads` are those of the running test.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import logging
import os
import pickle
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[2]

# --- Interpreters -------------------------------------------------------------------------------

_SERVER = """
import json, os, sys
import fsspec, numcodecs, numpy, PIL.Image, pyarrow, torch, torchdata.nodes, tqdm
import torch.utils.data.datapipes.iter, torchdata.stateful_dataloader

def wait_for_task():
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            return json.loads(line)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

task = wait_for_task()
if task is not None:
    os.environ.clear()
    os.environ.update(task["environment"])
    for number, name in enumerate(["/dev/null", task["out"], task["err"]]):
        os.dup2(os.open(name, os.O_RDWR), number)
    sys.argv = ["-c", *task["arguments"]]
    exec(compile(task["code"], "<string>", "exec"))
"""

_server: subprocess.Popen[str] | None = None


def run_code(
    code: str, *arguments: object, status: int | None = 0, timeout: float = 100
) -> subprocess.CompletedProcess[str]:
    """Run `python -c code arguments` in the project's folder, with torch and others preloaded.

    The process is a fork of a waiting server, has this process's environment variables, and ends
    like a normal interpreter, with `status` unless that is `None`.
    """
    global _server
    if _server is None or _server.poll() is not None:
        _server = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )
        atexit.register(_end, _server)
    assert _server.stdin is not None
    assert _server.stdout is not None
    words = [str(argument) for argument in arguments]
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
        task: dict[str, Any] = {"code": code, "arguments": words}
        task |= {"out": out.name, "err": err.name, "environment": dict(os.environ)}
        _server.stdin.write(json.dumps(task) + "\n")
        _server.stdin.flush()
        if not select.select([_server.stdout], [], [], timeout)[0]:
            _end(_server)
            raise subprocess.TimeoutExpired(["-c", code, *words], timeout, out.read(), err.read())
        got = int(_server.stdout.readline())
        done = subprocess.CompletedProcess(["-c", code, *words], got, out.read(), err.read())
    return _checked(done, status)


def _end(server: subprocess.Popen[str]) -> None:
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    for pipe in (server.stdin, server.stdout):
        if pipe is not None:
            pipe.close()


def run_python(
    *words: object,
    status: int | None = 0,
    timeout: float = 100,
    cwd: Path = ROOT,
    environment: Mapping[str, str] = {},
) -> subprocess.CompletedProcess[str]:
    """Run `python words` in a new interpreter, with this checkout's package and tests.

    `environment` has more variables. It must end with `status`, unless that is `None`.
    """
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        check=False,
    )
    return _checked(done, status)


def _checked(
    done: subprocess.CompletedProcess[str], status: int | None
) -> subprocess.CompletedProcess[str]:
    assert status in (None, done.returncode), f"{done.returncode}: {done.stderr[-3000:]}"
    return done


# --- Forks --------------------------------------------------------------------------------------

_CHANGES = (
    *((os, name) for name in ("write", "fsync", "ftruncate", "open", "link")),
    *((Path, name) for name in ("replace", "unlink", "mkdir", "open")),
)


class Fork:
    """A forked child that runs `work`, and exits with 0, or with 1 if `work` raises.

    With `sign` it gets this signal before its `at`-th call, from 0, of the functions `calls`, pairs
    of owner and name; by default these change the disk. A `with` block ends with its end: it is
    killed if it still runs.

    torch computes in one thread there, as in a worker of its loader: OpenMP's threads are not
    forked, and the first large operation would wait for them.
    """

    def __init__(
        self,
        work: Callable[[], object],
        *,
        sign: int = 0,
        at: int = 0,
        calls: Iterable[tuple[Any, str]] = _CHANGES,
    ) -> None:
        self._code: int | None = None
        self.pid = os.fork()
        if self.pid:
            return
        code = 1
        try:
            if "torch" in sys.modules:
                sys.modules["torch"].set_num_threads(1)
            if sign:
                _signal_at(at, sign, calls)
            work()
            code = 0
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)

    def wait(self) -> int:
        """Wait until it ends; returns its exit code, `-N` if signal N killed it."""
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code

    def is_running(self) -> bool:
        if self._code is None and (found := os.waitpid(self.pid, os.WNOHANG))[0]:
            self._code = os.waitstatus_to_exitcode(found[1])
        return self._code is None

    def is_stopped(self) -> bool:
        """Wait until it ends or is stopped; returns whether it is stopped."""
        status = os.waitpid(self.pid, os.WUNTRACED)[1]
        if not os.WIFSTOPPED(status):
            self._code = os.waitstatus_to_exitcode(status)
        return self._code is None

    def proceed(self) -> int:
        """Let it continue after a stop; returns its exit code."""
        os.kill(self.pid, signal.SIGCONT)
        return self.wait()

    def __enter__(self) -> Fork:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()


def _signal_at(at: int, sign: int, calls: Iterable[tuple[Any, str]]) -> None:
    remaining = at

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal remaining
            if remaining == 0:
                os.kill(os.getpid(), sign)
            remaining -= 1
            return function(*args, **options)

        return call

    for owner, name in calls:
        setattr(owner, name, counted(getattr(owner, name)))


def killed_at(
    at: int, work: Callable[[], object], calls: Iterable[tuple[Any, str]] = _CHANGES
) -> bool:
    """Whether a fork that runs `work` is killed before its `at`-th call; `work` must not raise."""
    code = Fork(work, sign=signal.SIGKILL, at=at, calls=calls).wait()
    assert code in (0, -signal.SIGKILL)
    return code != 0


def in_fork(work: Callable[[], Any], *, timeout: int = 100) -> Any:
    """The result of `work` in a forked child; raises its exception."""
    reader, writer = os.pipe()

    def send() -> None:
        signal.alarm(timeout)
        outcome: tuple[Any, BaseException | None]
        try:
            outcome = work(), None
        except BaseException as error:
            outcome = None, error
        with os.fdopen(writer, "wb") as pipe:
            pickle.dump(outcome, pipe)

    child = Fork(send)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    assert child.wait() == 0, f"the fork ended with {child.wait()}"
    result, error = pickle.loads(data)
    if error is not None:
        raise error
    return result


# --- Programs -----------------------------------------------------------------------------------

_START_SECONDS = 60.0
_POLL_SECONDS = 0.01
_STOP_SECONDS = 10.0


class Program:
    """A running program, whose output goes to the file `log`. It has begun when `ready(program)`.

    It gets SIGTERM when the thread that started it ends, even if the process is killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] = os.environ,
        ready: Callable[[Program], object] = lambda _: True,
    ) -> None:
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
        try:
            wait_for(lambda: bool(ready(self)) or not self.running)
            if not self.running:
                raise RuntimeError(f"{self._process.args!r} ended: {self.output[-2000:]}")
        except BaseException:
            self.stop()
            raise

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, seconds: float = 200) -> int:
        """Wait until it ends; returns its exit code, `-N` if signal N killed it."""
        return self._process.wait(seconds)

    @property
    def output(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def find(self, pattern: str) -> str:
        """The first group of a pattern in the output; empty if it is not there."""
        found = re.search(pattern, self.output)
        return found[1] if found else ""

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


def free_port() -> int:
    """A port of 127.0.0.1 that no process uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(ready: Callable[[], bool], seconds: float = _START_SECONDS) -> None:
    """Poll until `ready()`; `TimeoutError` when it takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not ready after {seconds:g} s")
        time.sleep(_POLL_SECONDS)


# --- Threads ------------------------------------------------------------------------------------

_earlier: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def forget_threads() -> None:
    """Treat all current threads as threads of earlier tests."""
    _earlier.update(threading.enumerate())


def own_threads(*names: str) -> list[threading.Thread]:
    """This test's threads with a name that begins with any of `names`."""
    found = (each for each in threading.enumerate() if each not in _earlier)
    return [each for each in found if each.name.startswith(names)]


def is_own(_record: logging.LogRecord) -> bool:
    """Whether the logging thread is the main one or was started by the running test."""
    mine = threading.current_thread()
    return mine is threading.main_thread() or mine not in _earlier


def join_commits() -> None:
    """Wait until no record file is being committed."""
    for thread in own_threads("seqrecord-commit"):
        thread.join()


@contextlib.contextmanager
def busy_threads(work: Callable[[], object], count: int = 1) -> Iterator[None]:
    """Threads that repeat `work`, so that a fork often finds its locks acquired."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            work()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def be_worker(monkeypatch: pytest.MonkeyPatch, number: int, count: int) -> None:
    """Let `torch.utils.data.get_worker_info` return DataLoader worker `number` of `count`."""
    from torch.utils.data._utils import worker

    info = SimpleNamespace(id=number, num_workers=count)
    monkeypatch.setattr(worker, "_worker_info", info)


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Without collection of reference cycles."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
