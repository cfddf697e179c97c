"""Runs tests in a fork of this process, which has imported everything except the package."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import psutil
import pytest

__all__ = ["Outcome", "adopt_orphans", "preload", "run_tests"]

MODULES = (
    "fsspec",
    "numcodecs",
    "numpy",
    "PIL.Image",
    "pyarrow",
    "torch",
    "torch.utils.data.datapipes.iter",
    "torchdata.nodes",
    "torchdata.stateful_dataloader",
    "tqdm",
)

MEMORY = 12 << 30
FILE = 8 << 30
"""Limits in bytes: a change may make the package allocate any amount."""

PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Outcome:
    """Result of a run of tests. `ended` is "passed", "failed" or "time-out".

    `tests` has failure and seconds of each test that ended; `last` is the first failed test, or the
    one running when the process ended, and `message` its error.
    """

    ended: str
    seconds: float
    tests: dict[str, tuple[bool, float]]
    last: str
    message: str


def preload() -> None:
    """Import the available dependencies of the tests once, for all forks."""
    for name in MODULES:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)


def adopt_orphans() -> None:
    """Make this process the parent of its children's orphans, so that it can end them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run_tests(
    tree: Path, tests: Sequence[str], limit: float, *, stop: bool = True, keep: bool = False
) -> Outcome:
    """Run tests of a tree, by name, for at most `limit` seconds, then end all their processes.

    `stop` at the first failure; `keep` compiled modules in the tree.
    """
    folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    start = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            status = _run_pytest(tree, tests, folder, stop, keep)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    handle = os.pidfd_open(pid)
    try:
        ended = bool(select.select([handle], [], [], limit)[0])
    finally:
        os.close(handle)
        _end_all()
        seconds = time.perf_counter() - start
    _, status = os.waitpid(pid, 0)
    outcome = _read_outcome(folder, ended, os.waitstatus_to_exitcode(status), seconds)
    shutil.rmtree(folder, ignore_errors=True)
    return outcome


def _end_all() -> None:
    for _ in range(100):
        running = [
            process
            for process in psutil.Process().children(recursive=True)
            if process.status() != psutil.STATUS_ZOMBIE
        ]
        if not running:
            return
        for process in running:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.01)


def _run_pytest(tree: Path, tests: Sequence[str], folder: Path, stop: bool, keep: bool) -> int:
    """Run pytest in a child process, which exits at once afterwards."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with Path("/dev/null").open() as nothing, (folder / "output").open("w") as output:
        os.dup2(nothing.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    (folder / "tmp").mkdir()
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder / "tmp")
    os.environ["PYTHONPATH"] = str(tree)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if not keep:
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = not keep
    _forget_own_modules(tree)
    os.chdir(tree)
    arguments = ["-q", "--no-header", "-p", "no:cacheprovider", "-o", "timeout=0"]
    arguments += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    arguments += [f"--basetemp={folder}/base", *(["-x"] if stop else []), *tests]
    return int(pytest.main(arguments, plugins=[Reporter(folder / "tests.jsonl")]))


def _forget_own_modules(tree: Path) -> None:
    """Import the package and its tests from the tree; spawned processes must not run main."""
    for name in list(sys.modules):
        if name.partition(".")[0] in ("tests", "seqrecord", "benchmarks", "conftest"):
            del sys.modules[name]
    sys.modules["__main__"] = ModuleType("__main__")
    sys.argv = ["pytest"]
    sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", str(Path.cwd())))]
    importlib.invalidate_caches()


class Reporter:
    """Writes the begin and end of each test at once, since the process may be killed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed: str | None = None
        self._start = 0.0

    def _write(self, **values: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(values) + "\n")

    def pytest_sessionstart(self) -> None:
        # Hypothesis must not shrink failures: only the outcome matters.
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile(
            "mutants", hypothesis.settings.get_profile("few"), phases=phases
        )
        hypothesis.settings.load_profile("mutants")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._failed = None
        self._start = time.perf_counter()
        self._write(begun=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self._failed is None:
            self._failed = _message(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(ended=report.nodeid, failed=_message(report), seconds=0.0)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        seconds = round(time.perf_counter() - self._start, 3)
        self._write(ended=nodeid, failed=self._failed, seconds=seconds)


def _message(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text: str = crash.message if crash is not None else report.longreprtext
    lines = [line for line in text.splitlines() if line.strip()]
    return "" if not lines else (lines[0] if crash is not None else lines[-1])[:1000]


def _read_outcome(folder: Path, ended: bool, status: int, seconds: float) -> Outcome:
    path = folder / "tests.jsonl"
    tests: dict[str, tuple[bool, float]] = {}
    running, last, message = "", "", ""
    for line in path.read_text().splitlines() if path.exists() else []:
        event = json.loads(line)
        if "begun" in event:
            running = event["begun"]
            continue
        failed = event["failed"] is not None
        if failed and not last:
            last, message = event["ended"], event["failed"]
        tests[event["ended"]] = (failed, event["seconds"])
        running = ""
    if not ended:
        return Outcome("time-out", seconds, tests, running or last, "")
    if status != 0 and not last:
        output = (folder / "output").read_text(errors="replace").splitlines()
        last = running
        message = f"exit status {status}: {output[-1] if output else ''}"[:200]
    return Outcome("failed" if status else "passed", seconds, tests, last, message)
