"""Training scripts, each run as a job of several processes, that report their clips.

A script prints one line of JSON: for each of its loaders, a list of the clips' names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = [
    *("CLIPS", "PATIENCE", "Found", "check_equal", "check_once", "finish"),
    *("report", "start"),
]

PATIENCE = 350.0
"""Seconds: torch is imported often; ranks that wait for each other would do so for 1800."""

CLIPS: dict[str, Any] = {"clip_len": 3, "features": ["id"], "batch_size": 4}
"""Options for the dataset of `tests.kit.clip_data`: 67 clips, not divisible by 2 or 3 ranks."""

Found = dict[str, Any]
"""Clips of one rank: for each loader the clips of each item, [items][clips][key, start]."""


def start(command: Sequence[str], **environment: str) -> subprocess.Popen[str]:
    """Start `python …`, with this checkout's package and tests, and with loopback for gloo."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        assert name not in os.environ, "the tests themselves run as a rank"
    root = Path(__file__).parents[3]
    more = {"PYTHONPATH": str(root), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **more, **environment},
    )


def finish(processes: Sequence[subprocess.Popen[str]], timeout: float = PATIENCE) -> list[Found]:
    """Wait for the processes; returns one line of JSON for each rank. All must succeed in time."""
    outputs: list[tuple[str, str]] = []
    try:
        outputs += [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
    assert [process.returncode for process in processes] == [0] * len(processes), outputs
    lines = [line for output, _ in outputs for line in output.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def report(found: Found) -> None:
    """Print this rank's clips in one write, so that ranks can share a pipe."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def check_once(found: Sequence[Found], total: int) -> None:
    """Assert that each loader returned every clip once, in all ranks together."""
    assert all(part.keys() == found[0].keys() for part in found)
    for name in found[0]:
        clips = _clips(found, name)
        assert len(clips) == len(set(clips)) == total, (name, len(clips), len(set(clips)), total)


def check_equal(found: Sequence[Found], name: str, total: int, parts: int) -> None:
    """Assert equal numbers of steps in all ranks, and no duplicate clips but padding."""
    sizes = [sorted(map(len, part[name])) for part in found]
    assert all(size == sizes[0] for size in sizes), sizes
    clips = _clips(found, name)
    assert len(set(clips)) == total
    assert len(clips) == -(-total // parts) * parts


def _clips(found: Sequence[Found], name: str) -> list[tuple[str, int]]:
    return [tuple(clip) for part in found for item in part[name] for clip in item]
