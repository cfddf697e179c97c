"""The package without system calls that only Linux has, and without /proc, as on macOS."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kit.processes import run_code, run_python

ROOT = Path(__file__).parents[2]
WITHOUT = Path(__file__).parent / "without_linux"


MAIN_PATH = """
import runpy, sys
folder, without = sys.argv[1:]
runpy.run_path(without)
import os
assert not hasattr(os, "sched_getaffinity")
import numpy as np, seqrecord
from seqrecord import export
from seqrecord.store.processes.machine import peak_memory, process_memory
from seqrecord.store.processes.machine import usable_cores, usable_memory
from tests.kit.command_line import run

with seqrecord.SeqRecordWriter(folder + "/a", codecs={"image": "fast", "video": "av1"}) as writer:
    for key in ("one", "two"):
        with writer.episode(key) as episode:
            for i in range(8):
                image = np.full((64, 64, 3), i, np.uint8)
                episode.append({"image": image, "video": image, "x": np.array([i], np.float32)})
export.to_files(folder + "/a", None, folder + "/files")
run("write", "--src", folder + "/files", "--dst", folder + "/b", "--workers", 1)
run("verify", folder + "/b", "--deep")
for name in "ab":
    pipe = seqrecord.SeqRecordPipe(folder + "/" + name, clip_len=4, batch_size=2)
    starts = [start for batch in pipe for start in batch["start"].tolist()]
    assert sorted(starts) == sorted([*range(5)] * 2), starts
report = seqrecord.bench(folder + "/a", clip_len=4, batch_size=2)
assert report.peak_memory > 0
assert usable_cores() >= 1 and usable_memory() > 0 and process_memory() == 0
"""


def test_main_path(tmp_path: Path) -> None:
    """Write, export, convert, verify, load and bench, in one process."""
    assert run_code(MAIN_PATH, tmp_path, WITHOUT / "sitecustomize.py").stderr == ""


FILES = (
    *("test_writer.py", "test_storage.py", "test_pipes.py", "test_index.py", "test_put.py"),
    *("test_convert.py", "test_two_writers.py", "test_engine.py"),
)
USE_LINUX = "worker"  # forked with objects that cannot be pickled


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_and_tests_of_the_core(tmp_path: Path) -> None:
    """All processes are spawned, without these names."""
    environment = {"PYTHONPATH": os.pathsep.join([str(WITHOUT), str(ROOT)])}
    demo = ["-m", "benchmarks.tartanair.demo", str(tmp_path / "demo"), "--frames", "20"]
    files = [str(file) for name in FILES for file in (ROOT / "tests").rglob(name)]
    assert len(files) == len(FILES)
    tests = ["-m", "pytest", "-q", "--one-case", "--hypothesis-profile=least", *files]
    tests += ["-k", f"not ({USE_LINUX})"]
    for command in (demo, [*tests, "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "t")]):
        run_python(*command, timeout=900, environment=environment)
