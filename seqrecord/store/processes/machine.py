"""Cores and memory that a process may use, limited by containers and shared with other ranks."""

from __future__ import annotations

import functools
import os
import re
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from seqrecord.store.processes.forks import PerProcess

# Number of ranks on this machine: torchrun and Accelerate, Open MPI, MPICH and Intel MPI, MVAPICH.
_LOCAL_RANKS = (
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "MV2_COMM_WORLD_LOCAL_SIZE",
)


def usable_cores(*, environ: Mapping[str, str] | None = None, root: Path | None = None) -> int:
    """Number of cores that this process should use, at least 1.

    The minimum of two numbers: the cores of its affinity mask (`os.process_cpu_count` if
    available), and its share of the machine. The share is the number of cores, or the limit of a
    container (cgroup v2 `cpu.max` and `cpuset.cpus.effective`, or their v1 equivalents), divided
    by the number of ranks on this machine. The environment variables of torchrun, MPI or Slurm
    give that number; the default is 1. Limits of containers are read once per process.

    `root` replaces `/` as the root of system files, for tests.
    """
    environ = os.environ if environ is None else environ
    root = Path("/") if root is None else root
    machine = min([os.cpu_count() or 1, *_core_limits(root)])
    ranks, of_cores = _ranks(environ)
    share = min(machine, of_cores or machine) // ranks
    return max(1, min(_affinity_cores(), share))


def local_ranks() -> int:
    """Number of ranks on this machine, from the same environment as `usable_cores`."""
    return _ranks(os.environ)[0]


def usable_memory(*, root: Path | None = None) -> int:
    """Bytes of memory for all processes of this machine or container together.

    The minimum of physical memory and the cgroup limits (v2 `memory.max`, v1
    `memory.limit_in_bytes`). Limits of containers are read once per process. `root` replaces `/` as
    the root of system files, for tests.
    """
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_memory_limits(root)])


def process_memory() -> int:
    """Bytes of this process's own memory at the first call, without files; 0 if unknown.

    Memory shared with other processes, such as a forked worker's parent, counts in parts (PSS).
    """
    return _process_memory.get()


def peak_memory() -> int:
    """Peak memory of this process in bytes.

    `ru_maxrss` is the last choice: on Linux it may be inherited from the parent process.
    """
    match = re.search(r"^VmHWM: *\t*(\d+) kB$", _text(Path("/proc/self/status")) or "", re.M)
    if match is not None:
        return int(match[1]) << 10
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _anonymous_bytes() -> int:
    match = re.search(r"^Pss_Anon: *(\d+) kB$", _text(Path("/proc/self/smaps_rollup")) or "", re.M)
    return 0 if match is None else int(match[1]) << 10


_process_memory = PerProcess(_anonymous_bytes)


def _affinity_cores() -> int:
    if not hasattr(os, "sched_getaffinity"):  # macOS
        return os.cpu_count() or 1
    count: Callable[[], int | None] = getattr(os, "process_cpu_count", None) or (
        lambda: len(os.sched_getaffinity(0))
    )
    return count() or 1


def _ranks(environ: Mapping[str, str]) -> tuple[int, int | None]:
    """Number of ranks on this machine, and the cores of the Slurm step, `None` without Slurm."""
    launched = next((n for name in _LOCAL_RANKS if (n := _number(environ.get(name)))), None)
    tasks, cores = _slurm_tasks(environ), _number(environ.get("SLURM_CPUS_ON_NODE"))
    # torchrun may start several ranks inside one Slurm task: its number then takes precedence.
    if tasks is not None and cores is not None and launched in (None, tasks):
        return tasks, cores
    return launched or 1, None


def _slurm_tasks(environ: Mapping[str, str]) -> int | None:
    """Tasks of the Slurm step on this node, from a text such as `8(x2),3`; see srun(1)."""
    node, tasks = environ.get("SLURM_NODEID", ""), []
    if "SLURM_LOCALID" not in environ or not node.isdecimal():
        return None
    for part in environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]{1,6})\))?", part)
        if match is None:
            return None
        tasks += [int(match[1])] * int(match[2] or 1)
    return tasks[int(node)] or None if int(node) < len(tasks) else None


@functools.cache
def _core_limits(root: Path) -> list[int]:
    return [limit for limit in _cgroup_limits(root) if limit is not None]


@functools.cache
def _memory_limits(root: Path | None) -> list[int]:
    limits = list[int]()
    for controllers, folder in _groups(Path("/") if root is None else root):
        if not controllers or "memory" in controllers:
            name = "memory.limit_in_bytes" if controllers else "memory.max"
            limit = _number((_text(folder / name) or "").strip())
            limits += [limit] if limit is not None else []
    return limits


def _cgroup_limits(root: Path) -> Iterator[int | None]:
    """Core limits of this process's cgroups, by quotas and CPU sets."""
    for controllers, folder in _groups(root):
        if not controllers:
            yield _quota((_text(folder / "cpu.max") or "").split())
            yield _count(_text(folder / "cpuset.cpus.effective"))
        if "cpu" in controllers:
            files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            yield _quota([(_text(folder / file) or "").strip() for file in files])
        if "cpuset" in controllers:
            yield _count(_text(folder / "cpuset.effective_cpus"))
            yield _count(_text(folder / "cpuset.cpus"))


def _groups(root: Path) -> Iterator[tuple[list[str], Path]]:
    """The cgroups of this process, see cgroups(7): controllers (empty for v2) and folder.

    A container sees its own group as the root, or the path on its host. Therefore all parent
    groups are included; missing folders set no limit.
    """
    mounted = root / "sys" / "fs" / "cgroup"
    for line in (_text(root / "proc" / "self" / "cgroup") or "").splitlines():
        _, _, fields = line.partition(":")
        controllers, _, group = fields.partition(":")
        names = controllers.split(",") if controllers else []
        parts = [part for part in PurePosixPath(group).parts if part not in ("/", "..")]
        for depth in range(len(parts), -1, -1):
            below = Path(*parts[:depth])
            for top in {controllers, *names} if controllers else {"", "unified"}:
                yield names, mounted / top / below


def _quota(words: list[str]) -> int | None:
    """Whole cores of a quota and its period, both in microseconds; at least 1."""
    if len(words) != 2 or not all(word.isdecimal() for word in words) or int(words[1]) == 0:
        return None  # `max` and `-1` mean unlimited
    return max(1, int(words[0]) // int(words[1]))


def _count(text: str | None) -> int | None:
    """Number of cores in a list such as `0-3,8`; see cpuset(7)."""
    count = 0
    for part in (text or "").strip().split(","):
        match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part)
        if match is None:
            return None
        count += int(match[2] or match[1]) - int(match[1]) + 1
    return count if count > 0 else None


def _number(text: str | None) -> int | None:
    """A positive integer, or `None` for any other text."""
    return int(text) or None if text is not None and text.isdecimal() else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text("ascii", "replace")
    except OSError:
        return None
