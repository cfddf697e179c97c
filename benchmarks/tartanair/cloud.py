"""How fast clips come from object stores, beside local disk and the client alone.

    python -m benchmarks.tartanair.cloud FOLDER [--repeats 3] [--to FOLDER]

Renders a tree and packs it where FOLDER lacks them, starts Azurite and moto (S3), and runs each row
in a process of its own, all rows once before any of them twice. Half of the machine's cores are for
the services and what lies before them, the other half for the row, whatever it reads: so a row has
as much of the machine when it reads from local disk.

A row's name is BY/PLACE/WHAT. `epoch` has a consumer that is away for 50 ms with each batch;
`far` is that as if 60 ms away with 80 MB/s a connection. `stream` is an epoch with a consumer that
only looks, `narrow` the same behind a line of 1 Gbit/s for all connections; `count` goes through a
proxy that counts requests. `stream` and `narrow` by `client` are obstore alone, which fetches the
same record files. `open` opens a large index, `write-raw` and `write-balanced` write frames that
are in memory.

Results go to FOLDER/cloud.json, and with `--to` as cloud.json and CLOUD.md to that folder.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from benchmarks.tartanair.cloud_services import SERVICES, Service, cpu_seconds, make_index, serve
from benchmarks.tartanair.cloud_table import page, tables
from benchmarks.tartanair.compare.report import commit
from benchmarks.tartanair.throughput.data import prepare
from benchmarks.tartanair.timing import Results, machine

__all__ = ["Row", "main", "rows"]

SETTINGS = {"clip_len": 16, "batch_size": 4, "memory_limit": "2GiB"}
CONSUMER_SECONDS = 0.05
RECORD_BYTES = {"azurite": None, "moto": 64 << 20}  # None: the default
WRITES = {"raw": 1, "balanced": 2}  # times so many frames, by codecs
CLIENT_THREADS = {"stream": [2, 8, 16], "narrow": [8]}
FRAME_BYTES = 480 * 640 * (3 + 4 + 8 + 1 + 1)  # of all features but poses
QUIET = 0.1  # share of the machine that others may take
ATTEMPTS = 2  # at a row beside which others took more

_ROOT = Path(__file__).parents[2]
_ROWS = Path(__file__).with_name("cloud_rows.py")


@dataclass(frozen=True)
class Row:
    """A row's job, as `cloud_rows` takes it."""

    job: Mapping[str, Any]
    counted: Service | None = None
    writes: tuple[Service | None, Path] | None = None


@dataclass(frozen=True)
class Setup:
    """Packed datasets in a folder, and the services that hold them."""

    folder: Path
    services: Mapping[str, Service]
    index: str
    write_frames: int

    def records(self, service: str) -> Path:
        return self.folder / f"records-{service}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--frames", type=int, default=640, help="in four episodes, if rendered")
    parser.add_argument("--index-frames", type=int, default=100_000_000, help="of the large index")
    parser.add_argument("--write-frames", type=int, default=160)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", nargs="*", default=["*"], help="patterns of their names")
    parser.add_argument("--services", nargs="*", choices=SERVICES, default=list(SERVICES))
    parser.add_argument("--quiet", type=float, default=0.0, help="seconds to wait for, at most")
    parser.add_argument("--to", type=Path, help="write cloud.json and CLOUD.md there")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    prepare(folder, arguments.frames, [])
    index = f"index-{arguments.index_frames}"
    _pack(folder, index, arguments.index_frames)
    document = {
        "machine": machine(),
        "commit": commit(),
        "services": {"azurite": _azurite_version(), "moto": version("moto")},
        "settings": {**SETTINGS, "consumer_seconds": CONSUMER_SECONDS},
        "frames": arguments.frames,
        "index_frames": arguments.index_frames,
        "write_frames": {codecs: n * arguments.write_frames for codecs, n in WRITES.items()},
    }
    with (
        _halves() as cores,
        _serving(folder, index, arguments.services, arguments.write_frames) as setup,
    ):
        chosen = {
            name: row
            for name, row in rows(setup, cores).items()
            if any(fnmatch(name, pattern) for pattern in arguments.rows)
        }
        document["cores"] = {"rows": len(cores), "services": len(os.sched_getaffinity(0))}
        results: Results = {name: [] for name in chosen}
        document["rows"] = results
        for _ in range(arguments.repeats):
            for name, row in chosen.items():
                results[name].append(_measured(name, row, quiet=arguments.quiet))
                _save(folder, document)
    if arguments.to:
        _save(arguments.to, document)
        (arguments.to / "CLOUD.md").write_text(page(document))
    print(tables(document))


def rows(setup: Setup, cores: Sequence[int] = ()) -> dict[str, Row]:
    """All rows, those that are compared next to each other."""
    made: dict[str, Row] = {}

    def add(name: str, action: str, *, arguments: Any, **more: Any) -> None:
        made[name] = Row({"action": action, "cores": list(cores), **arguments}, **more)

    waiting = {**SETTINGS, "consumer": CONSUMER_SECONDS}
    places: dict[str, Service | None] = {"local": None, **setup.services}
    for what, settings in (
        ("epoch", waiting),
        ("far", waiting),
        ("stream", SETTINGS),
        ("narrow", SETTINGS),
        ("count", {**SETTINGS, "epochs": 1}),
    ):
        for name, service in places.items():
            if service:
                place = service.place("records", what)
            elif what in ("epoch", "stream"):
                place = {"location": str(setup.records("azurite")), "options": None}
            else:
                continue
            add(
                f"seqrecord/{name}/{what}",
                "epoch",
                arguments={**place, **settings},
                counted=service if what == "count" else None,
            )
        for name, service in setup.services.items() if what in CLIENT_THREADS else ():
            store = service.cloud.store(service.host(what))
            objects = _objects(setup.records(name))
            arguments = {"store": store, "objects": objects, "threads": CLIENT_THREADS[what]}
            add(f"client/{name}/{what}", "client", arguments=arguments)
    written = setup.folder / "written"
    for codecs, times in WRITES.items():
        frames = times * setup.write_frames
        job = {"records": str(setup.records("azurite")), "codecs": codecs, "frames": frames}
        for name, service in places.items():
            row = f"seqrecord/{name}/write-{codecs}"
            add(row, "write", arguments=job, writes=(service, written))
    for name, service in setup.services.items():
        nbytes = setup.write_frames * FRAME_BYTES
        whole: Any = {"store": service.cloud.store(service.host("")), "nbytes": nbytes}
        add(f"client/{name}/write-raw", "client-write", arguments=whole, writes=(service, written))
    here = {"location": str(setup.folder / setup.index), "options": None}
    for name, service in places.items():
        at = service.place("index") if service else here
        add(f"seqrecord/{name}/open", "open", arguments=at)
    return made


def _objects(records: Path) -> list[tuple[str, int]]:
    files = sorted(records.rglob("*.seqrec"))
    return [(f"records/{path.relative_to(records)}", path.stat().st_size) for path in files]


def _measured(name: str, row: Row, *, quiet: float) -> dict[str, Any]:
    """A row's result; of several attempts, the one beside which others took the least."""
    best: dict[str, Any] = {}
    for _ in range(ATTEMPTS if quiet else 1):
        _wait_for_quiet(quiet)
        result = _run(row)
        if not best or result["others"] < best["others"]:
            best = result
        if best["others"] <= QUIET:
            break
    print(f"{name}: {best['seconds']:.3f} s, others {best['others']:.0%}", file=sys.stderr)
    return best


def _run(row: Row) -> dict[str, Any]:
    job = dict(row.job)
    written = ""
    if row.writes:
        service, folder = row.writes
        written = f"written-{time.monotonic_ns()}"
        here = {"location": str(folder / written), "options": None}
        if job["action"] == "client-write":
            job["name"] = f"{written}/object"
        else:
            job |= service.place(written) if service else here
    counted = row.counted.proxy.requests if row.counted else 0
    before, spent, start = psutil.cpu_times(), _spent(), time.perf_counter()
    output = _call([str(_ROWS), json.dumps(job)])
    spent = [now - then for now, then in zip(_spent(), spent, strict=True)]
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    cores = os.cpu_count() or 1
    all_of_it = _busy(before, psutil.cpu_times())
    seconds = (time.perf_counter() - start) * cores
    result["service_cpu_seconds"] = spent[1]
    result["others"] = max(0.0, (all_of_it - sum(spent)) / seconds)
    if row.counted:
        result["counted"] = row.counted.proxy.requests - counted
    if row.writes:
        shutil.rmtree(row.writes[1] / written, ignore_errors=True)
        if row.writes[0]:
            row.writes[0].cloud.remove(written)
    return result


def _spent() -> list[float]:
    """Processor seconds so far of rows that have ended, and of this process and the services."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return [ended.ru_utime + ended.ru_stime, cpu_seconds()]


def _busy(before: Any, after: Any) -> float:
    """Processor seconds that anything on this machine has taken."""
    idle = ("idle", "iowait", "guest", "guest_nice")  # Linux counts a guest's time as its user's
    names = [name for name in after._fields if name not in idle]
    return float(sum(getattr(after, name) - getattr(before, name) for name in names))


def _wait_for_quiet(seconds: float) -> None:
    """Until nothing else takes more than `QUIET` of the machine, for at most so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        before, ours, start = psutil.cpu_times(), cpu_seconds(), time.perf_counter()
        time.sleep(0.5)
        others = _busy(before, psutil.cpu_times()) - (cpu_seconds() - ours)
        if others <= QUIET * (time.perf_counter() - start) * (os.cpu_count() or 1):
            return


@contextmanager
def _halves() -> Iterator[list[int]]:
    """This process and the services keep to half of the cores; the other half, for the rows."""
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    os.sched_setaffinity(0, cores[half:])
    try:
        yield cores[:half] or cores
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def _serving(folder: Path, index: str, names: Sequence[str], write_frames: int) -> Iterator[Setup]:
    home = folder / "services"
    shutil.rmtree(home, ignore_errors=True)
    try:
        with serve(home, tuple(names)) as services:
            setup = Setup(folder, services, index, write_frames)
            for name, service in services.items():
                service.cloud.upload(setup.records(name), "records")
                service.cloud.upload(folder / index, "index")
            yield setup
    finally:
        shutil.rmtree(home, ignore_errors=True)
        shutil.rmtree(folder / "written", ignore_errors=True)


def _pack(folder: Path, index: str, index_frames: int) -> None:
    """Pack what is not there yet."""
    for service, max_file_size in RECORD_BYTES.items():
        records = folder / f"records-{service}"
        if not (records / "manifest.json").exists():
            print(f"packing {records}", file=sys.stderr)
            job = {"tree": str(folder / "tree"), "to": str(records), "max_file_size": max_file_size}
            _call([str(_ROWS), json.dumps({"action": "pack", **job})])
    if not (folder / index / "manifest.json").exists():
        make_index(folder / index, index_frames)


def _call(arguments: Sequence[str]) -> str:
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "AWS_DEFAULT_REGION": "us-east-1"}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=environment, cwd=_ROOT
    ).stdout


def _azurite_version() -> str:
    package = _ROOT / "tests" / "services" / "node_modules" / "azurite" / "package.json"
    return str(json.loads(package.read_text())["version"])


def _save(folder: Path, document: Mapping[str, Any]) -> None:
    (folder / "cloud.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
