"""Conversion against copying: `python -m benchmarks.lerobot.conversion`, a job on stdin."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.tartanair.compare.prepared import files_of

__all__ = ["convert", "size"]


def convert(root: Path, records: Path) -> None:
    """Pack a dataset by the command line, in a process of its own."""
    command = [sys.executable, "-m", "seqrecord", "write", "--src", str(root)]
    subprocess.run([*command, "--dst", str(records), "--statistics", "none", "--quiet"], check=True)


def size(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in files_of(folder))


def main() -> None:
    """Seconds to copy the files and to convert them, each until it is on the disk."""
    job: dict[str, Any] = json.load(sys.stdin)
    root, to = Path(job["root"]), Path(job["folder"])
    made: dict[str, float] = {}
    for name, do in (("copy_seconds", shutil.copytree), ("convert_seconds", convert)):
        shutil.rmtree(to, ignore_errors=True)
        os.sync()
        begin = time.perf_counter()
        do(root, to)
        os.sync()
        made[name] = time.perf_counter() - begin
    made["bytes"], made["source_bytes"] = size(to), size(root)
    shutil.rmtree(to)
    made["rate_to_copying"] = made["copy_seconds"] / made["convert_seconds"]
    print(json.dumps(made), flush=True)


if __name__ == "__main__":
    main()
