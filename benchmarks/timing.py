"""Shared by all benchmarks: row processes, CPU and memory meters, tables.

The method of all tables: a window is a whole epoch, or at least `LEAST` batches after the first
`SKIPPED`; CPU seconds are those of the window, divided by its batches and never scaled; rows
alternate, `REPEATS` times, and a table has their median and range.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

__all__ = [
    "LEAST",
    "METHOD",
    "PAGE",
    "REPEATS",
    "SKIPPED",
    "MemoryWatch",
    "Result",
    "Results",
    "answer",
    "commit",
    "commit_of_code",
    "digests",
    "drop_page_cache",
    "files_of",
    "machine",
    "markdown",
    "median",
    "number",
    "once",
    "quotient",
    "ranged",
    "reason",
    "relation",
    "run_job",
    "size_of",
    "source_of",
    "touch",
    "usage",
    "warm",
]

METHOD = 2  # of this module; documents of another one are refused
REPEATS = 5
SKIPPED = 5  # batches before a window that is no whole epoch
LEAST = 30  # batches in such a window

PAGE = 4096
ROOT = Path(__file__).parents[1]
_INTERVAL = 0.2  # seconds between samples of a process tree's memory

Result = dict[str, Any]
Results = dict[str, list[Result]]


# ---- the machine and the code


def machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def commit() -> str:
    """The checked out commit; ends in `-dirty` if files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.check_output(command, cwd=ROOT, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def commit_of_code() -> str:
    """Like `commit`, but pages that a command has written do not make it `-dirty`."""
    found = commit()
    command = ["git", "diff", "--quiet", "HEAD", "--", "*.py"]
    is_clean = found != "unknown" and not subprocess.run(command, cwd=ROOT, check=False).returncode
    return found.removesuffix("-dirty") if is_clean else found


def digests(paths: Iterable[str]) -> dict[str, str]:
    """A digest of the Python files at or below each path of the repository."""
    found: dict[str, str] = {}
    for path in paths:
        place = ROOT / path
        files = [place] if place.is_file() else sorted(place.rglob("*.py"))
        content = hashlib.sha256()
        for file in files:
            if "tests" not in file.relative_to(ROOT).parts:
                content.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes() + b"\0")
        found[path] = content.hexdigest()[:16]
    return found


# ---- row processes


def run_job(
    module: str,
    job: Mapping[str, Any],
    time_limit: float,
    *,
    python: Path | str = sys.executable,
    environment: Mapping[str, str] | None = None,
) -> Result:
    """The result of `answer` in `python -m MODULE`, or `{"error": reason}`; with its peak memory.

    The job is passed on stdin, as arguments are visible to other users. Child processes are killed.
    """
    with contextlib.ExitStack() as stack:
        given, output, errors = (
            stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3)
        )
        json.dump(job, given)
        given.seek(0)
        process = subprocess.Popen(
            [str(python), "-m", module],
            stdin=given,
            stdout=output,
            stderr=errors,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        )
        watch = MemoryWatch(process.pid)
        try:
            with watch.watching():
                status = process.wait(time_limit)
        except subprocess.TimeoutExpired:
            return {"error": f"not done after {time_limit:.0f} s"}
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for file in (output, errors):
            file.seek(0)
        if status != 0:
            lines = [line.strip() for line in errors.read().splitlines() if line.strip()]
            named = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
            return {"error": (named or lines or [f"ended with status {status}"])[-1][:500]}
        try:
            result: Result = json.loads(output.read().splitlines()[-1])
        except (IndexError, ValueError):
            return {"error": "ended without a result"}
    return {"peak_memory_bytes": watch.peak, "peak_mapped_bytes": watch.peak_mapped, **result}


def answer(measure: Callable[..., Result]) -> None:
    """Call `measure` with the job on stdin as keyword arguments, print its result, end."""
    with contextlib.redirect_stdout(sys.stderr):
        result = measure(**json.load(sys.stdin))
    print(json.dumps(result), flush=True)
    os._exit(0)  # some loaders' threads never end


def reason(runs: Iterable[Result]) -> str:
    """Reason that a row was skipped or failed; empty if it ran."""
    reasons = (run.get("skipped") or run.get("error") for run in runs)
    return str(next(filter(None, reasons), "")).replace("|", "/")


# ---- meters


@dataclass
class Usage:
    """CPU seconds, bytes requested by `read` calls, bytes from a disk; totals since the start."""

    cpu_seconds: float = 0.0
    bytes_requested: int = 0
    bytes_from_disk: int = 0

    def since(self, before: Usage) -> dict[str, float]:
        return {name: value - getattr(before, name) for name, value in asdict(self).items()}


def usage(pid: int | None = None) -> Usage:
    """Usage of a process, by default this one, and its children, including ended ones."""
    total = Usage()
    for process in _tree(os.getpid() if pid is None else pid):
        with contextlib.suppress(OSError, psutil.Error):
            times = process.cpu_times()
            # `cpu_times` counts in ticks of 10 ms, as long as a small window.
            own = time.process_time() if process.pid == os.getpid() else sum(times[:2])
            total.cpu_seconds += own + sum(times[2:4])
            text = Path(f"/proc/{process.pid}/io").read_text()
            counters = dict(line.split(": ") for line in text.splitlines())
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
    """Peak memory of a process tree, sampled. Proportional set sizes: shared pages count once.

    `peak` excludes mapped files, which are page cache; `peak_mapped` counts only these.
    """

    def __init__(self, pid: int) -> None:
        self.peak = 0
        self.peak_mapped = 0
        self._pid = pid
        self._over = threading.Event()

    def look(self) -> None:
        """Take one sample."""
        sizes: dict[str, int] = {}
        for process in _tree(self._pid):
            with contextlib.suppress(OSError, psutil.Error):
                text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
                for line in text.splitlines()[1:]:
                    name, _, value = line.partition(":")
                    if name.startswith("Pss_"):
                        sizes[name] = sizes.get(name, 0) + int(value.split()[0]) * 1024
        self.peak = max(self.peak, sizes.get("Pss_Anon", 0) + sizes.get("Pss_Shmem", 0))
        self.peak_mapped = max(self.peak_mapped, sizes.get("Pss_File", 0))

    def _look(self) -> None:
        while not self._over.wait(_INTERVAL):
            self.look()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        thread = threading.Thread(target=self._look)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()


def source_of(stats: Mapping[str, Any], *, is_raw: bool) -> str:
    """Where the frames of our last epoch came from, by the loader's statistics."""
    decoded = "read once an epoch" if is_raw else "decoded once an epoch"
    names = {
        "cached": stats.get("frames_from_cache", 0),
        "mapped": stats.get("frames_mapped", 0),
        decoded: stats["frames_decoded"],
    }
    sources = [name for name, count in names.items() if count]
    if stats.get("features_resident") and stats.get("features_redecoded"):
        sources.insert(0, "resident in part")
    return ", ".join(sources) or "resident"


def touch(array: Any) -> int:
    """Read one byte of every page of a tensor or array."""
    flat = np.asarray(array).reshape(-1).view(np.uint8)
    return int(flat[::PAGE].max())


# ---- files


def files_of(folder: Path) -> Iterator[Path]:
    """All files below a folder; follows links to folders."""
    for top, _, names in os.walk(folder, followlinks=True):
        yield from (Path(top) / name for name in names)


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in files_of(folder))


def warm(folder: Path) -> None:
    """Read a folder's files into the page cache."""
    block = bytearray(8 << 20)
    for path in files_of(folder):
        with path.open("rb", buffering=0) as file:
            while file.readinto(block):
                pass


def drop_page_cache(folder: Path) -> None:
    """Ask the kernel to drop a folder's files from the page cache."""
    for path in files_of(folder):
        fd = os.open(path, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # read-only file system
                os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def once(path: Path, make: Callable[[Path], object]) -> Path:
    """Create a folder unless it exists; it is renamed to `path` when complete."""
    if not path.exists():
        making = path.with_name(f"{path.name}.making")
        shutil.rmtree(making, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        make(making)
        making.rename(path)
    return path


# ---- numbers and tables


def median(runs: Iterable[Result], key: str) -> float | None:
    """Median over the runs that have the key; `None` if none has it."""
    values = [run[key] for run in runs if key in run]
    return statistics.median(values) if values else None


def ranged(runs: Sequence[Result], key: str, form: str = "", unit: float = 1) -> str:
    """Median over the runs, and their lowest and highest value: `5.0 (4.8 to 5.1)`."""
    values = [run[key] for run in runs if key in run]
    middle = number(median(runs, key), form, unit)
    if len(values) < 2:
        return middle
    low, high = (number(value, form, unit) for value in (min(values), max(values)))
    return f"{middle} ({low} to {high})"


def relation(ours: Iterable[Result], theirs: Iterable[Result], key: str) -> str:
    """`ahead`, `behind` or `level`, where higher is ahead.

    Rows are level if their ranges overlap; of single runs, if they differ by less than a tenth.
    """
    one, other = ([run[key] for run in runs if key in run] for runs in (ours, theirs))
    margin = 1.1 if min(len(one), len(other)) < 2 else 1.0
    if min(one) > max(other) * margin:
        return "ahead"
    return "behind" if max(one) * margin < min(other) else "level"


def quotient(one: float | None, other: float | None, unit: float = 1) -> float | None:
    """`one / other * unit`; `None` if either is unknown."""
    return None if one is None or not other else one / other * unit


def number(value: float | None, form: str = "", unit: float = 1) -> str:
    """`value / unit` in a format, by default with about two digits; empty if it is unknown."""
    if value is None:
        return ""
    return format(value / unit, form or (".2f" if value < 10 else ".0f"))


def markdown(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table."""
    rows = [columns, ["---"] * len(columns), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
