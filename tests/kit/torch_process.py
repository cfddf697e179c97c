"""Processes with torch preloaded: an import takes seconds, a fork almost no time."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["run_code"]

ROOT = Path(__file__).parents[2]

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
    code: str, *arguments: object, timeout: float = 100
) -> subprocess.CompletedProcess[str]:
    """Run `python -c code arguments` in the project's folder, with torch and others preloaded.

    The process is a fork of a waiting server, has this process's environment variables, and ends
    like a normal interpreter.
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
        status = int(_server.stdout.readline())
        return subprocess.CompletedProcess(["-c", code, *words], status, out.read(), err.read())


def _end(server: subprocess.Popen[str]) -> None:
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    for pipe in (server.stdin, server.stdout):
        if pipe is not None:
            pipe.close()
