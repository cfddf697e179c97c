"""Throughput of clips from object stores, compared with local disk and the client alone.

    python -m benchmarks.tartanair.cloud FOLDER [--to FOLDER]

Renders and packs a tree unless FOLDER has them, starts Azurite and moto (S3), and runs each row in
its own process, all rows once before repeating any. Half of the cores run the services and their
proxies, the other half the row, also if it reads from local disk.

A row's name is BY/PLACE/ACTION. A place is the local disk, a service that our client reads, or
another reader of Azurite: adlfs, blobfile, or rclone's FUSE mount. `epoch` has a consumer that
takes 50 ms per batch; `far` adds a latency of 60 ms and a limit of 80 MB/s per connection. `stream`
is an epoch with a consumer that only reads the batches; `narrow` adds a limit of 1 Gbit/s for all
connections; `count` goes through a proxy that counts requests. `client` is obstore alone: its
`stream` and `narrow` fetch the same record files. `open` opens a large index; `write-raw` and
`write-balanced` write frames from memory.

Results are cloud.json and CLOUD.md in FOLDER and the folder of `--to`.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.checks import minutes_of
from benchmarks.pages import code_of
from benchmarks.suite import Suite, make_parser
from benchmarks.tartanair.cloud_services import (
    MOUNT,
    READERS,
    Service,
    cpu_seconds,
    make_index,
    readers,
    serve,
)
from benchmarks.tartanair.generate import generate
from benchmarks.timing import (
    ROOT,
    Result,
    Results,
    markdown,
    median,
    number,
    once,
    quotient,
    run_job,
)

__all__ = ["figures", "page"]

SETTINGS = {"clip_len": 16, "batch_size": 4, "memory_limit": "2GiB"}
CONSUMER_SECONDS = 0.05
RECORD_BYTES = {"azurite": None, "moto": 64 << 20}  # None: the default
WRITES = {"raw": 1, "balanced": 2}  # factor of the number of frames, by codecs
CLIENT_THREADS = {"stream": [2, 8, 16], "narrow": [8]}
READER_ACTIONS = {
    **dict.fromkeys(READERS, ("epoch", "far", "stream", "count", "open")),
    MOUNT: ("epoch", "stream", "open"),  # its requests are rclone's
}
FRAME_BYTES = 480 * 640 * (3 + 4 + 8 + 1 + 1)  # of all features except poses
_ROWS = "benchmarks.tartanair.cloud_rows"
_TIME_LIMIT = 3600


@dataclass(frozen=True)
class Row:
    """A row's job, run by `cloud_rows`."""

    job: Mapping[str, Any]
    counted: Service | None = None
    writes: tuple[Service | None, Path] | None = None


@dataclass(frozen=True)
class Setup:
    """Packed datasets in a folder, and the services that store them."""

    folder: Path
    services: Mapping[str, Service]
    readers: Mapping[str, Service]
    index: str
    write_frames: int

    def records(self, service: str) -> Path:
        return self.folder / f"records-{service}"


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--frames", type=int, default=640, help="to render, in four episodes")
    parser.add_argument("--index-frames", type=int, default=100_000_000, help="of the large index")
    parser.add_argument("--write-frames", type=int, default=160)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    azurite = ROOT / "tests" / "kit" / "services" / "node_modules" / "azurite" / "package.json"
    settings = {
        **SETTINGS,
        "consumer_seconds": CONSUMER_SECONDS,
        "services": {
            "azurite": str(json.loads(azurite.read_text())["version"]),
            "moto": version("moto"),
        },
        "frames": options.frames,
        "index_frames": options.index_frames,
        "write_frames": {codecs: n * options.write_frames for codecs, n in WRITES.items()},
        "cores": {"rows": len(cores) // 2 or 1, "services": len(cores) - len(cores) // 2},
    }
    suite = Suite(options, settings, "cloud", code=code_of("tartanair/CLOUD.md"))
    if not options.report:
        tree = suite.folder / "tree"
        once(tree, lambda root: generate(root, episodes=[options.frames // 4] * 4))
        index = f"index-{options.index_frames}"
        _pack(suite.folder, index, options.index_frames)
        with _halves() as own, _serving(suite.folder, index, options.write_frames) as setup:
            made = rows(setup, own)
            jobs = suite.wanted({name: partial(_run, row) for name, row in made.items()})
            suite.take_turns(jobs)
    suite.publish(page, "CLOUD")


def rows(setup: Setup, cores: Sequence[int] = ()) -> dict[str, Row]:
    """All rows, compared rows adjacent."""
    made: dict[str, Row] = {}

    def add(name: str, action: str, *, arguments: Any, **more: Any) -> None:
        made[name] = Row({"action": action, "cores": list(cores), **arguments}, **more)

    waiting = {**SETTINGS, "consumer": CONSUMER_SECONDS}
    writers: dict[str, Service | None] = {"local": None, **setup.services}
    places = {**writers, **setup.readers}
    for action, settings in (
        ("epoch", waiting),
        ("far", waiting),
        ("stream", SETTINGS),
        ("narrow", SETTINGS),
        ("count", {**SETTINGS, "epochs": 1}),
    ):
        for name, service in places.items():
            if action not in READER_ACTIONS.get(name, (action,)):
                continue
            if service:
                place = service.place("records", action) | {"is_mount": name == MOUNT}
            elif action in ("epoch", "stream"):
                place = {"location": str(setup.records("azurite")), "options": None}
            else:
                continue
            add(
                f"seqrecord/{name}/{action}",
                "epoch",
                arguments={**place, **settings},
                counted=service if action == "count" else None,
            )
        for name, service in setup.services.items() if action in CLIENT_THREADS else ():
            store = service.cloud.store(service.host(action))
            objects = _objects(setup.records(name))
            arguments = {"store": store, "objects": objects, "threads": CLIENT_THREADS[action]}
            add(f"client/{name}/{action}", "client", arguments=arguments)
    written = setup.folder / "written"
    for codecs, times in WRITES.items():
        frames = times * setup.write_frames
        job = {"records": str(setup.records("azurite")), "codecs": codecs, "frames": frames}
        for name, service in writers.items():
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


def _run(row: Row) -> Result:
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
    environment = {"AWS_DEFAULT_REGION": "us-east-1"}
    result = run_job(_ROWS, job, _TIME_LIMIT, environment=environment)
    spent = [now - then for now, then in zip(_spent(), spent, strict=True)]
    busy = _busy(before, psutil.cpu_times())
    seconds = (time.perf_counter() - start) * (os.cpu_count() or 1)
    result["service_cpu_seconds"] = spent[1]
    result["others"] = max(0.0, (busy - sum(spent)) / seconds)
    if row.counted:
        result["counted"] = row.counted.proxy.requests - counted
    if row.writes:
        shutil.rmtree(row.writes[1] / written, ignore_errors=True)
        if row.writes[0]:
            row.writes[0].cloud.remove(written)
    return result


def _spent() -> list[float]:
    """CPU seconds so far of ended rows, this process and the services."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return [ended.ru_utime + ended.ru_stime, cpu_seconds()]


def _busy(before: Any, after: Any) -> float:
    """CPU seconds of all processes on this machine."""
    idle = ("idle", "iowait", "guest", "guest_nice")  # Linux includes guest time in user time
    names = [name for name in after._fields if name not in idle]
    return float(sum(getattr(after, name) - getattr(before, name) for name in names))


@contextmanager
def _halves() -> Iterator[list[int]]:
    """Pin this process and the services to half of the cores; yields the other half."""
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    os.sched_setaffinity(0, cores[half:])
    try:
        yield cores[:half] or cores
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def _serving(folder: Path, index: str, write_frames: int) -> Iterator[Setup]:
    home = folder / "services"
    shutil.rmtree(home, ignore_errors=True)
    try:
        with serve(home) as services:
            setup = Setup(folder, services, {}, index, write_frames)
            for name, service in services.items():
                service.cloud.upload(setup.records(name), "records")
                service.cloud.upload(folder / index, "index")
            with readers(services["azurite"], home / "rclone") as others:
                yield replace(setup, readers=others)
    finally:
        shutil.rmtree(home, ignore_errors=True)
        shutil.rmtree(folder / "written", ignore_errors=True)


def _pack(folder: Path, index: str, index_frames: int) -> None:
    """Pack the missing datasets."""
    for service, max_file_size in RECORD_BYTES.items():
        records = folder / f"records-{service}"
        if not (records / "manifest.json").exists():
            job = {"tree": str(folder / "tree"), "to": str(records), "max_file_size": max_file_size}
            run_job(_ROWS, {"action": "pack", **job}, _TIME_LIMIT)
    if not (folder / index / "manifest.json").exists():
        make_index(folder / index, index_frames)


# ---- the page

_Value = Callable[[str], float | None]
_NAMES = {
    "azurite": "Azurite",
    "moto": "moto (S3)",
    "local": "local disk",
    "mount": "Azurite by rclone's mount",
    "adlfs": "Azurite by adlfs",
    "blobfile": "Azurite by blobfile",
}
_FIRST_BATCH = "first batch, s"


class Figure(NamedTuple):
    """A figure by place; `target` is a minimum if `least`, else a maximum."""

    name: str
    values: Mapping[str, float]
    target: float | None = None
    least: bool = False

    def is_reached(self, place: str) -> bool:
        value = self.values[place]
        if self.target is None:
            return True
        return value >= self.target if self.least else value <= self.target


def figures(results: Results) -> Iterator[Figure]:
    """Figures of the measured rows, from medians."""
    places = list(dict.fromkeys(name.split("/")[1] for name in results))
    rate = "bytes_per_second"

    def get(place: str, action: str, key: str, by: str = "seqrecord") -> float | None:
        return median(results.get(f"{by}/{place}/{action}", ()), key)

    def of(action: str, key: str, unit: float = 1) -> _Value:
        return lambda place: quotient(get(place, action, key), unit)

    def of_client(row: str) -> _Value:
        return lambda place: quotient(get(place, row, rate), get(place, row, rate, by="client"))

    def of_local(row: str, other: str) -> _Value:
        local = get("local", other, "seconds")
        return lambda p: None if p == "local" else quotient(get(p, row, "seconds"), local)

    def requests(place: str) -> float | None:
        return quotient(get(place, "count", "counted"), get(place, "count", "bytes"), 1 << 30)

    loader, local = "bytes/s of the loader / of the client alone", "epoch / epoch from local disk"
    opened, first = "large index opened", "first_batch_seconds"
    table: list[tuple[Any, ...]] = [
        (f"behind 1 Gbit/s: {loader}", of_client("narrow"), 0.95, True),
        (f"at full speed: {loader}", of_client("stream")),
        (f"at full speed: {local}", of_local("stream", "stream")),
        (local, of_local("epoch", "epoch"), 1.10),
        (f"60 ms away: {local}", of_local("far", "epoch"), 1.10),
        (_FIRST_BATCH, of("epoch", first), 1.0),
        ("60 ms away: first batch, s", of("far", first)),
        ("requests / GiB", requests, 160),
        (f"{opened}, s", of("open", "seconds"), 2.0),
        (f"{opened}, peak MB", of("open", "peak_memory_bytes", 1e6), 200),
        ("written, raw: MB/s of frames", of("write-raw", rate, 1e6)),
        ("written, raw: rate / of the client alone", of_client("write-raw")),
        ("written, raw: seconds / to local disk", of_local("write-raw", "write-raw")),
        ("written, balanced: MB/s of frames", of("write-balanced", rate, 1e6)),
        (
            "written, balanced: seconds / to local disk",
            of_local("write-balanced", "write-balanced"),
        ),
    ]
    for name, value, *target in table:
        found = {place: each for place in places if (each := value(place)) is not None}
        if found:
            yield Figure(name, found, *target)


def page(document: Mapping[str, Any]) -> str:
    """The published page."""
    settings, rows = document["settings"], document["rows"]
    template = Path(__file__).with_name("cloud_template.md").read_text()
    others = max(run.get("others", 0.0) for runs in rows.values() for run in runs)
    values = {
        **settings,
        **settings["services"],
        "duration": minutes_of(document),
        "rest": settings["cores"]["services"],
        "cores": settings["cores"]["rows"],
        "consumer": f"{settings['consumer_seconds'] * 1000:.0f}",
        "write_frames": ", ".join(
            f"{n} {codecs}" for codecs, n in settings["write_frames"].items()
        ),
        "repeats": max(map(len, rows.values())),
        "others": f"{others:.0%}",
        "figures": _figures(rows),
        "first_batches": _first_batches(rows),
        "all_rows": _all_rows(rows),
    }
    return template.format(**{**document, **values})


def _figures(results: Results) -> str:
    found = list(figures(results))
    places = list(dict.fromkeys(place for figure in found for place in figure.values))
    columns = ["figure", "to reach", *(_NAMES[place] for place in places)]
    lines = []
    for figure in found:
        sign = ">=" if figure.least else "<="
        line = [figure.name, "" if figure.target is None else f"{sign} {figure.target:g}"]
        for place in places:
            value = figure.values.get(place)
            is_exact = figure.name.count(" / ") or (figure.target or 10) < 10
            shown = number(value, ".3f" if is_exact else "")
            is_short = value is not None and not figure.is_reached(place)
            line.append(f"**{shown}**" if is_short else shown)
        lines.append(line)
    return markdown(columns, lines)


def _first_batches(results: Results) -> str:
    """Why first batches miss their target; empty if none does."""
    figure = next((each for each in figures(results) if each.name == _FIRST_BATCH), None)
    parts = []
    for place in figure.values if figure else ():
        runs = results[f"seqrecord/{place}/epoch"]
        nbytes, rate = median(runs, "first_batch_bytes"), "bytes_per_second"
        streamed = median(results.get(f"seqrecord/{place}/stream", ()), rate)
        seconds = quotient(nbytes, streamed)
        if figure and not figure.is_reached(place) and seconds is not None:
            parts.append(
                f"{_NAMES[place]}: {number(median(runs, 'opening_seconds'))} s to open, "
                f"{number(nbytes, '.0f', 1e6)} MB, which take {number(seconds)} s at the rate of "
                "its `stream`"
            )
    if not parts:
        return ""
    return (
        "\n**First batches that take longer** wait for the first block of every cursor, from which "
        f"batches are mixed, and for what is read ahead meanwhile. {'; '.join(parts)}.\n"
    )


_COLUMNS = (
    ("s", "seconds", ".2f", 1.0),
    ("clips/s", "clips_per_second", ".1f", 1.0),
    ("MB/s", "bytes_per_second", ".0f", 1e6),
    ("threads", "threads", ".0f", 1.0),
    ("requests", "counted", ".0f", 1.0),
    ("retries", "retries", ".0f", 1.0),
    ("first batch s", "first_batch_seconds", ".2f", 1.0),
    ("CPU s", "cpu_seconds", ".1f", 1.0),
    ("services' CPU s", "service_cpu_seconds", ".1f", 1.0),
    ("peak MB", "peak_memory_bytes", ".0f", 1e6),
)


def _all_rows(results: Results) -> str:
    lines = []
    for name, runs in results.items():
        if not runs:  # not measured yet
            continue
        cells = [number(median(runs, key), form, unit) for _, key, form, unit in _COLUMNS]
        lines.append([name, *cells, str(runs[-1].get("bottleneck", ""))])
    return markdown(["row", *(column for column, *_ in _COLUMNS), "bottleneck"], lines)


if __name__ == "__main__":
    main()
