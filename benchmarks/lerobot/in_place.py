"""A LeRobot dataset read in place, beside the packed one and LeRobot's own classes.

    python -m benchmarks.lerobot.in_place FOLDER [--root DATASET] [--rows …] [--to FOLDER]

The dataset of `python -m benchmarks.lerobot FOLDER` is used, and made if it is not there. Each run
is a process of its own; runs that are compared take turns. Results are FOLDER/in_place.json and, in
the folder of `--to`, in_place.json and IN_PLACE.md. `--report` runs nothing and writes these of the
last run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from benchmarks.lerobot.__main__ import LEROBOT, dataset_at, python_environment
from benchmarks.lerobot.cell import Cell, drop
from benchmarks.lerobot.conversion import size
from benchmarks.lerobot.linked import make_linked
from benchmarks.tartanair.compare.children import run_job
from benchmarks.tartanair.compare.report import commit
from benchmarks.tartanair.compare.row import warm
from benchmarks.tartanair.timing import Result, Results, machine, markdown, median

__all__ = ["main", "page"]

CELLS = {"warm": (16, 2), "cold": (2,), "s3": (2,), "hub": (2,)}
"""Images of a camera in a clip, by where the files lie."""

WAYS = ("in place", "packed")
CLASSES = {"LeRobotDataset": "pyav", "LeRobotDataset, torchcodec": "torchcodec"}
CLASSES |= {"StreamingLeRobotDataset": "streaming"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    options = _parse(arguments)
    folder = options.folder.resolve()
    saved = folder / "in_place.json"
    document = json.loads(saved.read_text()) if options.report else _run(options, folder)
    text = page(document)
    if options.to:
        options.to.mkdir(parents=True, exist_ok=True)
        shutil.copy(saved, options.to)
        (options.to / "IN_PLACE.md").write_text(text)
    print(text)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--root", type=Path, help="a LeRobot dataset (v3.0) with two cameras")
    parser.add_argument("--lerobot", type=Path, default=LEROBOT, help="a Python that has lerobot")
    parser.add_argument("--seconds", type=float, default=10, help="of a run's measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8, help="clips")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--memory", default="2GiB", help="memory_limit of seqrecord")
    parser.add_argument("--linked", type=int, nargs=3, default=(10_000, 100, 100))
    parser.add_argument("--rows", nargs="*", default=["*"], help="patterns of their names")
    parser.add_argument("--report", action="store_true", help="of the last run; run nothing")
    parser.add_argument("--to", type=Path)
    return parser.parse_args(arguments)


class _Runs:
    """Runs rows and keeps their results, in a file after each of them."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.results: Results = {}
        self.document: dict[str, Any] = {"rows": self.results}
        self.home = folder / "home"  # in which the dataset has an index

    def is_wanted(self, name: str) -> bool:
        return any(fnmatch(name, pattern) for pattern in self.options.rows)

    def take(
        self,
        name: str,
        module: str,
        job: Mapping[str, Any],
        *,
        home: Path | None = None,
        python: Path | None = None,
    ) -> None:
        """One run of a row, in a process whose user's indexes lie in `home`."""
        if not self.is_wanted(name):
            return
        own = {**os.environ, "SEQRECORD_HOME": str(home or self.home)}
        if module == "theirs":
            own |= python_environment(self.folder)
        result = run_job(
            [str(python or sys.executable), "-m", f"benchmarks.lerobot.{module}"],
            json.dumps(job),
            900 + 8 * self.options.seconds,
            environment=own,
        )
        self.results.setdefault(name, []).append(result)
        print(f"{name}: {result}", file=sys.stderr, flush=True)
        (self.folder / "in_place.json").write_text(json.dumps(self.document, indent=1) + "\n")


def _run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The document of a run, which is also saved after each row."""
    folder.mkdir(parents=True, exist_ok=True)
    root, records = dataset_at(options, folder)
    info = json.loads((root / "meta" / "info.json").read_text())
    cameras = [name for name, what in info["features"].items() if what["dtype"] == "video"]
    runs = _Runs(options, folder)
    names = ("batch", "seconds", "threads", "memory", "repeats", "linked")
    runs.document |= {
        "machine": machine(),
        "commit": commit(),
        "dataset": {"frames": info["total_frames"], "cameras": len(cameras), "bytes": size(root)},
        "settings": {name: getattr(options, name) for name in names},
    }
    shared = {"cameras": cameras, "threads": options.threads, "batch": options.batch}
    reading = {**shared, "seconds": options.seconds, "memory": options.memory, "cold": False}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        _index(runs, root, Path(scratch))
        _first(runs, root, records, reading, Path(scratch))
    with ExitStack() as stack:
        for place, sizes in CELLS.items():
            cells = [Cell(images, 16, "uint8") for images in sizes]
            ways = [f"{way}/{cell}/{place}" for way in WAYS for cell in cells]
            if not any(map(runs.is_wanted, ways)):
                continue
            at = stack.enter_context(_PLACES[place](folder, root, records))
            for turn in range(options.repeats):
                for cell in cells:
                    for way in WAYS if turn % 2 else WAYS[::-1]:
                        job = {**reading, **asdict(cell), "cold": place == "cold", **at[way]["job"]}
                        before = _counts(at[way])
                        name = f"{way}/{cell}/{place}"
                        runs.take(name, "ours", job)
                        if before and name in runs.results:
                            counts = {n: v - before[n] for n, v in _counts(at[way]).items()}
                            runs.results[name][-1].update(counts)
    (folder / "in_place.json").write_text(json.dumps(runs.document, indent=1) + "\n")
    return runs.document


def _index(runs: _Runs, root: Path, scratch: Path) -> None:
    """Indexes of the dataset, and of one that consists of links."""
    tiny, linked = scratch / "tiny", scratch / "linked"
    make_linked(tiny, episodes=2, files=1, frames=4)
    roots = {"index/dataset": root}
    if runs.is_wanted("index/linked"):
        episodes, files, frames = runs.options.linked
        make_linked(linked, episodes=episodes, files=files, frames=frames)
        roots["index/linked"] = linked
    for turn in range(runs.options.repeats):
        for name, at in roots.items():
            job = {"root": str(at), "tiny": str(tiny), "cold": True}
            runs.take(name, "indexing", job, home=scratch / f"{name}-{turn}")


def _first(runs: _Runs, root: Path, records: Path, reading: dict[str, Any], scratch: Path) -> None:
    """First batches from files that are not in the page cache, and bytes that samples take."""
    cell = Cell(2, 16, "float")
    job = {**reading, **asdict(cell), "options": None, "root": str(root), "workers": 0}
    for turn in range(runs.options.repeats):
        for name, location in (("nothing", root), ("index", root), ("packed", records)):
            drop(str(location))
            home = scratch / f"first-{turn}"  # empty at first
            ours = {**job, "location": str(location)}
            runs.take(f"first/{name}", "ours", ours, home=home)
        for name, decoder in CLASSES.items():
            if runs.options.lerobot.exists():
                drop(str(root))
                theirs = {**job, "decoder": decoder}
                runs.take(f"first/{name}", "theirs", theirs, python=runs.options.lerobot)
            elif runs.is_wanted(f"first/{name}"):
                runs.results[f"first/{name}"] = [{"skipped": "needs lerobot: make lerobot-env"}]


@contextmanager
def _local(_folder: Path, root: Path, records: Path) -> Iterator[dict[str, Any]]:
    for place in (root, records):
        warm(place)
    yield {
        way: {"job": {"location": str(place), "options": None}}
        for way, place in zip(WAYS, (root, records), strict=True)
    }


@contextmanager
def _s3(folder: Path, root: Path, records: Path) -> Iterator[dict[str, Any]]:
    """moto's server, behind a proxy that counts requests."""
    from benchmarks.tartanair.cloud_services import serve

    with tempfile.TemporaryDirectory(dir=folder) as home, serve(Path(home), ("moto",)) as services:
        moto = services["moto"]
        moto.cloud.upload(root, "original")
        moto.cloud.upload(records, "records")
        yield {
            way: {"job": moto.place(what, "count"), "proxy": moto.proxy}
            for way, what in zip(WAYS, ("original", "records"), strict=True)
        }


@contextmanager
def _hub(_folder: Path, root: Path, records: Path) -> Iterator[dict[str, Any]]:
    """The stub of the Hub, one for each of both."""
    from tests.hub_stub import HubStub

    with HubStub(root, "a/original") as one, HubStub(records, "a/packed") as other:
        yield {
            way: {
                "job": {"location": hub.url, "options": {"endpoint": hub.endpoint}},
                "hub": hub,
            }
            for way, hub in zip(WAYS, (one, other), strict=True)
        }


_PLACES = {"warm": _local, "cold": _local, "s3": _s3, "hub": _hub}


def _counts(at: Mapping[str, Any]) -> dict[str, int]:
    """Requests, and bytes where the server counts them, so far."""
    if "proxy" in at:
        return {"requests": at["proxy"].requests}
    if "hub" in at:
        return {"requests": sum(at["hub"].counts.values()), "sent": at["hub"].sent}
    return {}


def page(document: Mapping[str, Any]) -> str:
    """The published page."""
    dataset, settings = document["dataset"], document["settings"]
    episodes, files, frames = settings["linked"]
    return _PAGE.format(
        machine=document["machine"],
        commit=document["commit"],
        frames=f"{dataset['frames']:,}",
        cameras=dataset["cameras"],
        size=f"{dataset['bytes'] / 1e6:.1f}",
        linked=f"{episodes:,} episodes of {frames} frames in {files} files",
        **{name: settings[name] for name in ("batch", "memory", "threads", "seconds", "repeats")},
        index=_indexes(document),
        clips=_clips(document),
        first=_firsts(document),
    )


_PAGE = """\
# LeRobot's data in place

<!-- Written by `python -m benchmarks.lerobot.in_place`; change in_place.py. -->

By `make lerobot-env` and `python -m benchmarks.lerobot.in_place FOLDER --to benchmarks/lerobot`,
which writes this page; raw results are in [in_place.json](in_place.json).

- Machine: {machine}. Commit: {commit}.
- Data: {frames} frames, {cameras} cameras, {size} MB, written by LeRobot; {linked}, which are links
  to one.
- Clips of 16 or 2 images of each camera and 16 actions, one for each frame, shuffled, in batches of
  {batch}. seqrecord has {threads} threads and `memory_limit` {memory}; after an epoch of another
  pipe its first epoch is timed from the beginning. Medians of {repeats} runs, each a process of its
  own; what is compared took turns, and a ratio is the median of those of the turns.
- All rows are of epochs in which frames are decoded. Frames that fit into `memory_limit` are
  [decoded in the first epoch only](../training/DECODED_ONCE.md).

## Making an index

{index}

Files were dropped from the page cache. `read`: bytes that were asked of files, to those of the
dataset (of links, each counts). `again`: the next opening, which finds the index.

## In place and packed

{clips}

`warm`: files are in the page cache; `cold`: they were dropped from it; `s3`: moto's server on the
same machine; `hub`: a stub of the Hub on the same machine. Images decoded are of all cameras, of
epochs that came to their end in three times {seconds:g} s. Requests are of a whole run: opening,
and about two epochs.

## The first batch, and bytes read

{first}

Clips of 2 images and 16 actions as floats, no worker processes, files not in the page cache. The
first batch is timed from opening the dataset, with what LeRobot imports then. MB a clip: bytes
asked of files, of seqrecord in the timed epoch, of the others after the first two batches.
StreamingLeRobotDataset keeps 100 samples for its shuffle (its default of 1000 would take 15 GB);
it fills that before the first batch.
"""


def _indexes(document: Mapping[str, Any]) -> str:
    sizes = {"index/dataset": document["dataset"]["bytes"]}
    lines = []
    for name in ("index/dataset", "index/linked"):
        runs = document["rows"].get(name, [])
        read, whole = median(runs, "bytes_requested"), sizes.get(name)
        lines.append(
            [
                name.split("/")[1],
                _number(median(runs, "episodes"), ",.0f"),
                _number(median(runs, "seconds"), ".2f"),
                _number(median(runs, "again_seconds"), ".2f"),
                _number(read, ".2f", 1e6),
                _number(read, ".1%", whole) if whole else "",
                _number(median(runs, "peak_memory_bytes"), ".0f", 1e6),
            ]
        )
    columns = ["dataset", "episodes", "s", "again, s", "read, MB", "read, share", "peak MB"]
    return markdown(columns, lines)


def _clips(document: Mapping[str, Any]) -> str:
    lines = []
    for place, sizes in CELLS.items():
        for images in sizes:
            name = f"{Cell(images, 16, 'uint8')}/{place}"
            one, other = (_each(document, f"{way}/{name}") for way in WAYS)
            why = [run.get("error", "") for run in (*one, *other) if "error" in run]
            rates = [median(runs, "clips_per_second") for runs in (one, other)]
            lines.append(
                [
                    name.split("/")[0],
                    place,
                    *(_number(rate, ".1f") for rate in rates),
                    _number(_ratio(one, other, "clips_per_second"), ".3f"),
                    _number(_ratio(one, other, "cpu_seconds_each"), ".3f"),
                    *(_number(median(runs, "decoded_each"), ".3f") for runs in (one, other)),
                    _number(_ratio(one, other, "decoded_each"), ".3f"),
                    *(_number(median(runs, "requests"), ".0f") for runs in (one, other)),
                    *(
                        _number(median(runs, "peak_memory_bytes"), ".0f", 1e6)
                        for runs in (one, other)
                    ),
                    why[0].replace("|", "/")[:100] if why else "",
                ]
            )
    both = ["{}, clips/s", "{}, decoded a clip", "{}, requests", "{}, peak MB"]
    rate, decoded, requests, peak = ([what.format(way) for way in WAYS] for what in both)
    columns = ["clips", "files", *rate, "ratio (>= 0.97)", "ratio of CPU time a clip", *decoded]
    columns.append("ratio (<= 1.03)")
    return markdown([*columns, *requests, *peak, "why not"], lines)


def _each(document: Mapping[str, Any], name: str) -> list[Result]:
    """The runs of a row, with CPU time a clip, and images decoded a clip where an epoch ended."""
    made = []
    whole = document["dataset"]["frames"] - document["settings"]["batch"]
    for run in document["rows"].get(name, []):
        more = {}
        if run.get("clips"):
            more["cpu_seconds_each"] = run["cpu_seconds"] / run["clips"]
            if run["clips"] > whole:
                more["decoded_each"] = run["video_frames_decoded"] / run["clips"]
        made.append({**run, **more})
    return made


def _firsts(document: Mapping[str, Any]) -> str:
    names = {"nothing": "seqrecord, no index", "index": "seqrecord, an index"}
    names |= {"packed": "seqrecord, packed", **{name: name for name in CLASSES}}
    lines = []
    for name, shown in names.items():
        runs = document["rows"].get(f"first/{name}", [])
        first = median(runs, "opening_seconds") or median(runs, "first_batch_seconds")
        each = [{"each": run["bytes_requested"] / run["clips"]} for run in runs if run.get("clips")]
        said = [run.get("skipped") or run.get("error") for run in runs]
        why = next((text for text in said if text), "")
        lines.append(
            [
                shown,
                _number(first, ".2f"),
                _number(median(runs, "clips_per_second"), ".1f"),
                _number(median(each, "each"), ".4f", 1e6),
                _number(median(runs, "peak_memory_bytes"), ".0f", 1e6),
                why.replace("|", "/")[:100],
            ]
        )
    columns = ["by", "first batch, s", "clips/s", "read, MB a clip", "peak MB", "why not"]
    return markdown(columns, lines)


def _ratio(one: Sequence[Result], other: Sequence[Result], key: str) -> float | None:
    """The median of the ratios of each turn."""
    pairs = zip(one, other, strict=False)
    ratios = [a[key] / b[key] for a, b in pairs if a.get(key) and b.get(key)]
    return statistics.median(ratios) if ratios else None


def _number(value: float | None, form: str, unit: float = 1) -> str:
    return "" if value is None else format(value / unit, form)


if __name__ == "__main__":
    main()
