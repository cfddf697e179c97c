"""What benchmarks share: rows in processes of their own, all once before any of them twice."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = [
    "Result",
    "Results",
    "drop_page_cache",
    "machine",
    "markdown",
    "median",
    "run_rows",
    "share",
    "touch",
]

PAGE = 4096

Result = dict[str, Any]
Results = dict[str, list[Result]]


def run_rows(
    module: str,
    arguments: Sequence[str],
    names: Iterable[str],
    repeats: int,
    *,
    shown: str,
    count: Callable[[], int] | None = None,
) -> Results:
    """What `python -m MODULE ARGUMENTS --one NAME` prints last, as JSON, for each row and repeat.

    The value `shown` of each is reported while they run. By how much `count()` grows meanwhile
    becomes the result's `counted`.
    """
    results: Results = {name: [] for name in names}
    for _ in range(repeats):
        for name, runs in results.items():
            before = count() if count else 0
            command = [sys.executable, "-m", module, *arguments, "--one", name]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            runs.append(json.loads(output.splitlines()[-1]))
            if count:
                runs[-1]["counted"] = count() - before
            print(f"{name}: {shown} {runs[-1].get(shown, float('nan')):.4g}", file=sys.stderr)
    return results


def touch(array: Any) -> int:
    """Read one byte of every page of a tensor or array."""
    flat = np.asarray(array).reshape(-1).view(np.uint8)
    return int(flat[::PAGE].max())


def drop_page_cache(paths: Iterable[Path]) -> None:
    """Ask the kernel to drop these files from the page cache."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # of a mount that is read-only
                os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def median(runs: Iterable[Result], key: str) -> float | None:
    """Of the runs that have the key; `None` where none has it."""
    values = [run[key] for run in runs if key in run]
    return statistics.median(values) if values else None


def share(value: float | None, limit: float | None) -> str:
    """`value / limit` as text, empty where one is unknown."""
    return f"{value / limit:.2f}" if value is not None and limit else ""


def markdown(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table."""
    rows = [columns, ["---"] * len(columns), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
