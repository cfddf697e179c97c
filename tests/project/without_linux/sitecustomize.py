"""Python as on macOS: without names of Linux, and without /proc. For processes with it on the path.

The start method of processes is spawn.
"""

from __future__ import annotations

import inspect
import mmap
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

MISSING = {
    os: ("memfd_create", "posix_fallocate", "posix_fadvise", "O_TMPFILE", "O_PATH", "sendfile"),
    mmap: ("MADV_REMOVE",),
}

for module, names in MISSING.items():
    for name in [*names, *(n for n in vars(module) if n.startswith("sched_"))]:
        if hasattr(module, name):
            delattr(module, name)


PACKAGE = f"{os.sep}seqrecord{os.sep}"
TESTS = f"{Path(__file__).resolve().parents[2]}{os.sep}"


def hide_proc(event: str, arguments: tuple[Any, ...]) -> None:
    """Hide /proc from the package; tests and other packages may count descriptors by it."""
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith("/proc"):
        frame = inspect.currentframe()
        frame = None if frame is None else frame.f_back
        while frame is not None and not frame.f_code.co_filename.startswith(TESTS):
            if PACKAGE in frame.f_code.co_filename:
                raise FileNotFoundError(2, "no such file", str(arguments[0]))
            frame = frame.f_back


sys.addaudithook(hide_proc)
multiprocessing.set_start_method("spawn", force=True)
