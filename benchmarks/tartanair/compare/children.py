"""Runs tasks in processes of their own, with a limit on their time, and watches their memory."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.tartanair.compare.meters import MemoryWatch
from benchmarks.tartanair.compare.row import Task

__all__ = ["run_job", "run_task"]


def run_task(task: Task, time_limit: float) -> dict[str, Any]:
    """The task's result, or `{"error": why there is none}`; with `peak_memory_bytes`."""
    command = [sys.executable, "-m", Task.__module__]
    return run_job(
        command, task.dumps(), time_limit, hide=lambda said: _without_secrets(said, task)
    )


def run_job(
    command: Sequence[str],
    job: str,
    time_limit: float,
    *,
    environment: Mapping[str, str] | None = None,
    hide: Callable[[str], str] = str,
) -> dict[str, Any]:
    """What a command prints last, as JSON, or `{"error": why it does not}`; with its peak memory.

    It gets `job` on stdin: arguments could be seen by others, with credentials. `hide` takes these
    out of what it says of an error.
    """
    with tempfile.TemporaryFile("w+") as job_file, tempfile.TemporaryFile("w+") as errors:
        job_file.write(job)
        job_file.seek(0)
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                command,
                stdin=job_file,
                stdout=output,
                stderr=errors,
                start_new_session=True,
                env=environment,
            )
            watch = MemoryWatch(process.pid)
            begin = time.monotonic()
            try:
                with watch.watching():
                    status = process.wait(time_limit)
            except subprocess.TimeoutExpired:
                return {"error": f"not done after {time_limit:.0f} s"}
            finally:
                with contextlib.suppress(ProcessLookupError):  # its workers too
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(0)
            errors.seek(0)
            if status != 0:
                return {"error": _reason(hide(errors.read())) or f"ended with status {status}"}
            try:
                result: dict[str, Any] = json.loads(_last_line(output.read()))
            except ValueError:
                return {"error": "ended without a result"}
            return {
                **result,
                "process_seconds": time.monotonic() - begin,
                "peak_memory_bytes": watch.peak,
                "peak_mapped_bytes": watch.peak_mapped,
            }


def _without_secrets(text: str, task: Task) -> str:
    """The text without the key of the task's account, and without signatures."""
    for key in re.findall("AccountKey=([^;]+)", task.options.get("connection_string", "")):
        text = text.replace(key, "…")
    return re.sub(r"(sig=)[^&\s'\"]+", r"\1…", text)


def _reason(text: str) -> str:
    """The last line that names an exception, or the last of all."""
    named = [line for line in text.splitlines() if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return (named[-1] if named else _last_line(text))[:500]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
