"""What a process may use of its machine: cores, shared with the other ranks here, and memory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

# How many ranks there are on this machine: torchrun's and Accelerate's, Open MPI's, MPICH's and
# Intel's, MVAPICH's.
_LOCAL_RANKS = (
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "MV2_COMM_WORLD_LOCAL_SIZE",
)


def usable_cores(*, environ: Mapping[str, str] | None = None, root: Path | None = None) -> int:
    """How many cores this process should use, at least 1.

    That is the smaller one of two numbers: the cores that it may run on (its affinity, or
    `os.process_cpu_count` where Python has it), and its share of the machine. The share is the
    machine's cores, or those that a container's CPU set or quota allows (cgroup v2 `cpu.max` and
    `cpuset.cpus.effective`, and their counterparts of v1), divided by the ranks on this machine.
    torchrun, MPI or Slurm say in the environment how many ranks there are; else there is one.

    `root` is the folder in which the system's files are, for tests.
    """
    environ = os.environ if environ is None else environ
    root = Path("/") if root is None else root
    limits = [limit for limit in _cgroup_limits(root) if limit is not None]
    machine = min([os.cpu_count() or 1, *limits])
    ranks, of_cores = _ranks(environ)
    share = min(machine, of_cores or machine) // ranks
    return max(1, min(_allowed(), share))


def local_ranks(*, environ: Mapping[str, str] | None = None) -> int:
    """How many ranks there are on this machine, as `usable_cores` finds them."""
    return _ranks(os.environ if environ is None else environ)[0]


def usable_memory(*, root: Path | None = None) -> int:
    """The bytes that the processes of this machine may have together: its memory, or what the
    container's groups allow (cgroup v2 `memory.max`, v1 `memory.limit_in_bytes`).

    `root` is the folder in which the system's files are, for tests.
    """
    root = Path("/") if root is None else root
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for controllers, folder in _groups(root):
        if not controllers or "memory" in controllers:
            name = "memory.limit_in_bytes" if controllers else "memory.max"
            limit = _number((_text(folder / name) or "").strip())
            limits += [limit] if limit is not None else []
    return min(limits)


def _allowed() -> int:
    if not hasattr(os, "sched_getaffinity"):  # macOS
        return os.cpu_count() or 1
    count: Callable[[], int | None] = getattr(os, "process_cpu_count", None) or (
        lambda: len(os.sched_getaffinity(0))
    )
    return count() or 1


def _ranks(environ: Mapping[str, str]) -> tuple[int, int | None]:
    """Ranks on this machine; and of how many cores, where Slurm says how many the step has."""
    said = next((n for name in _LOCAL_RANKS if (n := _number(environ.get(name)))), None)
    tasks, cores = _slurm_tasks(environ), _number(environ.get("SLURM_CPUS_ON_NODE"))
    # Ranks that torchrun starts inside one task of Slurm's are torchrun's.
    if tasks is not None and cores is not None and said in (None, tasks):
        return tasks, cores
    return said or 1, None


def _slurm_tasks(environ: Mapping[str, str]) -> int | None:
    """Tasks of this step of Slurm's on this node, of a text such as `8(x2),3`: see srun(1)."""
    node, tasks = environ.get("SLURM_NODEID", ""), []
    if "SLURM_LOCALID" not in environ or not node.isdecimal():
        return None
    for part in environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        found = re.fullmatch(r"([0-9]+)(?:\(x([0-9]{1,6})\))?", part)
        if found is None:
            return None
        tasks += [int(found[1])] * int(found[2] or 1)
    return tasks[int(node)] or None if int(node) < len(tasks) else None


def _cgroup_limits(root: Path) -> Iterator[int | None]:
    """Cores by each quota and CPU set of the groups that this process is in."""
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
    """The groups that this process is in, as cgroups(7) has them: the controllers of each, none for
    v2, and a folder of its files.

    A container may see its own group as the root, or the path that its host sees: so all groups
    above are there too, and what is not there limits nothing.
    """
    mounted = root / "sys" / "fs" / "cgroup"
    for line in (_text(root / "proc" / "self" / "cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        names = controllers.split(",") if controllers else []
        parts = [part for part in PurePosixPath(group).parts if part not in ("/", "..")]
        for depth in range(len(parts), -1, -1):
            below = Path(*parts[:depth])
            for top in {controllers, *names} if controllers else {"", "unified"}:
                yield names, mounted / top / below


def _quota(words: list[str]) -> int | None:
    """Whole cores of a quota and its period, in microseconds; at least 1."""
    if len(words) != 2 or not all(word.isdecimal() for word in words) or int(words[1]) == 0:
        return None  # `max` and `-1` are none
    return max(1, int(words[0]) // int(words[1]))


def _count(text: str | None) -> int | None:
    """How many there are in a list such as `0-3,8`: see cpuset(7)."""
    count = 0
    for part in (text or "").strip().split(","):
        found = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part)
        if found is None:
            return None
        count += int(found[2] or found[1]) - int(found[1]) + 1
    return count if count > 0 else None


def _number(text: str | None) -> int | None:
    """A positive number, or `None` for what is none."""
    return int(text) or None if text is not None and text.isdecimal() else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text("ascii", "replace")
    except OSError:
        return None
