"""Number of cores a process should use. System files are read from a temporary folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

import seqrecord
from seqrecord.store.processes.machine import usable_cores, usable_memory

CGROUP = "sys/fs/cgroup"


@pytest.fixture(autouse=True)
def a_machine_of_96_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    be(monkeypatch, machine=96)
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "MPI_", "MV2_")) or name == "LOCAL_WORLD_SIZE":
            monkeypatch.delenv(name)


def be(monkeypatch: pytest.MonkeyPatch, *, machine: int = 96, allowed: int | None = None) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: machine)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(allowed or machine)))
    monkeypatch.delattr(os, "process_cpu_count", raising=False)


def write(root: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def slurm(tasks: str, **others: str) -> dict[str, str]:
    """Environment of a Slurm task on the second node of a step; the node has 64 cores."""
    node = {"SLURM_NODEID": "1", "SLURM_LOCALID": "0", "SLURM_CPUS_ON_NODE": "64"}
    return {**node, "SLURM_STEP_TASKS_PER_NODE": tasks, **others}


@pytest.mark.parametrize(
    ("environ", "allowed", "expected"),
    [
        ({}, 96, 96),
        ({}, 12, 12),
        ({"LOCAL_WORLD_SIZE": "8"}, 96, 12),
        ({"LOCAL_WORLD_SIZE": "8"}, 12, 12),  # each rank is bound to its own cores
        ({"LOCAL_WORLD_SIZE": "8"}, 24, 12),  # two ranks share cores
        ({"LOCAL_WORLD_SIZE": "1"}, 96, 96),
        ({"LOCAL_WORLD_SIZE": "200"}, 96, 1),
        ({"LOCAL_WORLD_SIZE": "0"}, 96, 96),
        ({"LOCAL_WORLD_SIZE": "many"}, 96, 96),
        ({"WORLD_SIZE": "8", "RANK": "1"}, 96, 96),  # not specific to this machine
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 96, 24),
        ({"MPI_LOCALNRANKS": "4"}, 96, 24),
        ({"LOCAL_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 96, 48),
        (slurm("3,8"), 96, 8),
        (slurm("3,8"), 8, 8),  # bound by Slurm
        (slurm("8(x2)"), 96, 8),
        (slurm("2,4(x3)"), 96, 16),
        (slurm("2"), 96, 96),  # no such node
        (slurm("few"), 96, 96),
        (slurm("1(x2)"), 64, 64),
        (slurm("1(x2)", LOCAL_WORLD_SIZE="4"), 64, 24),  # torchrun in the one task of a node
        (slurm("8(x2)", LOCAL_WORLD_SIZE="8"), 96, 8),  # both set, and equal
    ],
)
def test_ranks_share_the_cores_of_the_machine_or_of_a_slurm_step(
    environ: dict[str, str],
    allowed: int,
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    be(monkeypatch, allowed=allowed)
    assert usable_cores(environ=environ, root=tmp_path) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "400000 100000\n"}, 4),  # own namespace: the group is the root
        ({"cpu.max": "max 100000\n"}, 96),
        ({"cpu.max": "150000 100000\n"}, 1),
        ({"cpu.max": "20000 100000\n"}, 1),
        ({"cpu.max": "nonsense\n"}, 96),
        ({"cpu.max": "400000 0\n"}, 96),
        ({"job/cpu.max": "800000 100000\n", "job/step/cpu.max": "max 100000\n"}, 8),
        ({"job/cpu.max": "800000 100000\n", "job/step/cpu.max": "200000 100000\n"}, 2),
        ({"other/cpu.max": "100000 100000\n"}, 96),
        ({"job/cpuset.cpus.effective": "0-15,64-71\n"}, 24),
        ({"cpuset.cpus.effective": "\n"}, 96),
        ({"job/cpuset.cpus.effective": "3\n"}, 1),
        ({"unified/job/cpu.max": "300000 100000\n"}, 3),
        # cgroup version 1.
        ({"cpu,cpuacct/docker/ab/cpu.cfs_quota_us": "600000\n"}, 6),
        ({"cpu,cpuacct/cpu.cfs_quota_us": "600000\n"}, 6),  # the host's path does not exist
        ({"cpu/docker/ab/cpu.cfs_quota_us": "600000\n"}, 6),  # usually a link
        ({"cpu,cpuacct/cpu.cfs_quota_us": "-1\n"}, 96),
        ({"cpuset/docker/ab/cpuset.cpus": "0-3\n"}, 4),
    ],
)
def test_quotas_and_sets_of_a_cgroup(files: dict[str, str], expected: int, tmp_path: Path) -> None:
    is_old = any("/cpu.cfs" in path or path.endswith(".cpus") for path in files)
    group = "5:cpuset:/docker/ab\n4:cpu,cpuacct:/docker/ab\n0::/\n" if is_old else "0::/job/step\n"
    write(tmp_path, {"proc/self/cgroup": group})
    for path, text in files.items():
        write(tmp_path, {f"{CGROUP}/{path}": text})
        if "quota" in path:
            write(tmp_path, {f"{CGROUP}/{path.replace('quota', 'period')}": "100000\n"})
    assert usable_cores(environ={}, root=tmp_path) == expected
    shared = {"LOCAL_WORLD_SIZE": "2"}
    assert usable_cores(environ=shared, root=tmp_path) == max(1, expected // 2)


def test_pythons_process_cpu_count_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (5, None):  # PYTHON_CPU_COUNT=5
        monkeypatch.setattr(os, "process_cpu_count", lambda count=count: count, raising=False)
        assert usable_cores(environ={}, root=tmp_path) == (count or 1)
    monkeypatch.undo()  # on this machine
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))


def test_nothing_else_counts_cores() -> None:
    package = Path(seqrecord.__file__).parent
    found = {
        path.name
        for path in package.rglob("*.py")
        if "sched_getaffinity" in path.read_text() or "cpu_count" in path.read_text()
    }
    assert found == {"machine.py"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 64),
        ({"proc/self/cgroup": "0::/a/b\n", f"{CGROUP}/a/b/memory.max": f"{8 << 30}\n"}, 8),
        ({"proc/self/cgroup": "0::/a/b\n", f"{CGROUP}/a/memory.max": f"{8 << 30}\n"}, 8),
        ({"proc/self/cgroup": "0::/\n", f"{CGROUP}/memory.max": f"{128 << 30}\n"}, 64),
        ({"proc/self/cgroup": "0::/\n", f"{CGROUP}/memory.max": "max\n"}, 64),
        (
            {
                "proc/self/cgroup": "4:memory:/a\n3:cpu,cpuacct:/a\n",
                f"{CGROUP}/memory/a/memory.limit_in_bytes": f"{4 << 30}\n",
                f"{CGROUP}/cpu/a/memory.limit_in_bytes": f"{1 << 30}\n",
            },
            4,
        ),
    ],
)
def test_memory_of_the_machine_or_its_container(
    files: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`expected` is in GiB."""
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 16 << 20, "SC_PAGE_SIZE": 4096}.get)
    write(tmp_path, files)
    assert usable_memory(root=tmp_path) == expected << 30
