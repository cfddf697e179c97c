"""Compare a LeRobot dataset read in place with its packed copy and LeRobot's own classes.

    python -m benchmarks.lerobot.in_place FOLDER [--root DATASET] [--rows …] [--to FOLDER]

Uses the dataset of `python -m benchmarks.lerobot FOLDER` and creates it if missing. Each run is a
process of its own; compared runs alternate. Results are in_place.json and IN_PLACE.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.checks import minutes_of
from benchmarks.lerobot.cell import Cell
from benchmarks.lerobot.data import (
    NO_LEROBOT,
    add_arguments,
    dataset_at,
    describe,
    make_linked,
    python_environment,
)
from benchmarks.pages import code_of
from benchmarks.suite import Suite, make_parser
from benchmarks.timing import (
    Result,
    drop_page_cache,
    markdown,
    median,
    number,
    reason,
    run_job,
    warm,
)

__all__ = ["page"]

CELLS = {"warm": (16, 2), "cold": (2,), "s3": (2,), "hub": (2,)}
"""Images per camera in a clip, by location of the files."""

WAYS = ("in place", "packed")
CLASSES = {"LeRobotDataset": "pyav", "LeRobotDataset, torchcodec": "torchcodec"}
CLASSES |= {"StreamingLeRobotDataset": "streaming"}
_READING = ("batch", "threads", "seconds", "memory")


def main() -> None:
    options = _parse()
    suite = Suite(options, {}, "in_place") if options.report else _run(options)
    suite.publish(page, "IN_PLACE")


def _parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_arguments(parser)
    parser.add_argument("--seconds", type=float, default=8, help="measured time per run")
    parser.add_argument("--batch", type=int, default=8, help="clips")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--memory", default="2GiB", help="memory_limit of seqrecord")
    parser.add_argument("--linked", type=int, nargs=3, default=(10_000, 100, 100))
    return parser.parse_args()


def _run(options: argparse.Namespace) -> Suite:
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    root, records = dataset_at(options, folder)
    settings = {name: getattr(options, name) for name in (*_READING, "repeats", "linked")}
    settings["dataset"] = describe(root)
    suite = Suite(options, settings, "in_place", code=code_of("lerobot/IN_PLACE.md"))
    cameras = settings["dataset"]["names"]
    reading = {"cameras": cameras, **{name: settings[name] for name in _READING}}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        _index(suite, root, Path(scratch))
        _first(suite, root, records, reading, Path(scratch))
    with ExitStack() as stack:
        for place, sizes in CELLS.items():
            cells = [Cell(images) for images in sizes]
            if not suite.is_wanted(*(f"{way}/{cell}/{place}" for way in WAYS for cell in cells)):
                continue
            at = stack.enter_context(_PLACES[place](folder, root, records))
            for turn in range(options.repeats):
                for cell in cells:
                    for way in WAYS if turn % 2 else WAYS[::-1]:
                        job = {"do": "clips", **reading, "cell": asdict(cell), **at[way]["job"]}
                        job["cold"] = place == "cold"
                        take = partial(_counted, at[way], partial(_take, suite, "ours", job))
                        _take_wanted(suite, f"{way}/{cell}/{place}", take)
    return suite


def _take(
    suite: Suite,
    module: str,
    job: Mapping[str, Any],
    *,
    home: Path | None = None,
    python: Path | str = sys.executable,
) -> Result:
    """Run a row once, in a process that stores indexes in `home`."""
    environment = {"SEQRECORD_HOME": str(home or suite.folder / "home")}
    if module == "theirs":
        environment |= python_environment(suite.folder)
    return run_job(
        f"benchmarks.lerobot.{module}",
        job,
        900 + 8 * suite.options.seconds,
        python=python,
        environment=environment,
    )


def _take_wanted(suite: Suite, name: str, take: Callable[[], Result]) -> None:
    if suite.is_wanted(name):
        suite.take(name, take)


def _counted(at: Mapping[str, Any], take: Any) -> Result:
    """Run a row; adds its requests and, if the server counts them, its bytes."""

    def counts() -> dict[str, int]:
        if "proxy" in at:
            return {"requests": at["proxy"].requests}
        if "hub" in at:
            return {"requests": sum(at["hub"].counts.values()), "sent": at["hub"].sent}
        return {}

    before = counts()
    result: Result = take()
    return result | {name: value - before[name] for name, value in counts().items()}


def _index(suite: Suite, root: Path, scratch: Path) -> None:
    """Index the dataset, and a dataset built of links."""
    tiny, linked = scratch / "tiny", scratch / "linked"
    make_linked(tiny, episodes=2, files=1, frames=4)
    roots = {"index/dataset": root}
    if suite.is_wanted("index/linked"):
        episodes, files, frames = suite.options.linked
        make_linked(linked, episodes=episodes, files=files, frames=frames)
        roots["index/linked"] = linked
    for turn in range(suite.options.repeats):
        for name, at in roots.items():
            job = {"do": "index", "root": str(at), "tiny": str(tiny)}
            take = partial(_take, suite, "ours", job, home=scratch / f"{name}-{turn}")
            _take_wanted(suite, name, take)


def _first(
    suite: Suite, root: Path, records: Path, reading: Mapping[str, Any], scratch: Path
) -> None:
    """First batches from files outside the page cache, and bytes read per sample."""
    job = {**reading, "cell": asdict(Cell(2, 16, "float")), "cold": False}
    python = suite.options.lerobot

    def dropped(place: Path, module: str, job: Mapping[str, Any], **more: Any) -> Result:
        drop_page_cache(place)
        return _take(suite, module, job, **more)

    for turn in range(suite.options.repeats):
        home = scratch / f"first-{turn}"  # empty at first
        for name, place in (("nothing", root), ("index", root), ("packed", records)):
            ours = {**job, "do": "clips", "location": str(place), "options": None}
            _take_wanted(suite, f"first/{name}", partial(dropped, place, "ours", ours, home=home))
        for name, decoder in CLASSES.items():
            theirs = {n: value for n, value in job.items() if n != "memory"}
            theirs |= {"root": str(root), "decoder": decoder, "workers": 0}
            take = partial(dropped, root, "theirs", theirs, python=python)
            if not python.exists():
                take = partial(dict, skipped=NO_LEROBOT)
            _take_wanted(suite, f"first/{name}", take)


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
            way: {"job": moto.place(name, "count"), "proxy": moto.proxy}
            for way, name in zip(WAYS, ("original", "records"), strict=True)
        }


@contextmanager
def _hub(_folder: Path, root: Path, records: Path) -> Iterator[dict[str, Any]]:
    """Two stubs of the Hub: for the dataset in place and the packed one."""
    from tests.kit.services.hub_stub import HubStub

    with HubStub(root, "a/original") as one, HubStub(records, "a/packed") as other:
        yield {
            way: {"job": {"location": hub.url, "options": {"endpoint": hub.endpoint}}, "hub": hub}
            for way, hub in zip(WAYS, (one, other), strict=True)
        }


_PLACES = {"warm": _local, "cold": _local, "s3": _s3, "hub": _hub}


# ---- the page


def page(document: Mapping[str, Any]) -> str:
    """The published page."""
    settings = document["settings"]
    dataset = settings["dataset"]
    episodes, files, frames = settings["linked"]
    values = {
        **settings,
        "duration": minutes_of(document),
        "frames": f"{dataset['frames']:,}",
        "cameras": dataset["cameras"],
        "size": f"{dataset['bytes'] / 1e6:.1f}",
        "linked": f"{episodes:,} episodes of {frames} frames in {files} files",
        "index": _indexes(document),
        "clips": _clips(document),
        "first": _firsts(document),
    }
    template = Path(__file__).with_name("in_place_template.md").read_text()
    return template.format(**{**document, **values})


def _indexes(document: Mapping[str, Any]) -> str:
    sizes = {"index/dataset": document["settings"]["dataset"]["bytes"]}
    lines = []
    for name in ("index/dataset", "index/linked"):
        runs = document["rows"].get(name, [])
        read, whole = median(runs, "bytes_requested"), sizes.get(name)
        lines.append(
            [
                name.split("/")[1],
                number(median(runs, "episodes"), ",.0f"),
                number(median(runs, "seconds"), ".2f"),
                number(median(runs, "again_seconds"), ".2f"),
                number(read, ".2f", 1e6),
                number(read, ".1%", whole) if whole else "",
                number(median(runs, "peak_memory_bytes"), ".0f", 1e6),
            ]
        )
    columns = ["dataset", "episodes", "s", "again, s", "read, MB", "read, share", "peak MB"]
    return markdown(columns, lines)


def _clips(document: Mapping[str, Any]) -> str:
    lines = []
    for place, sizes in CELLS.items():
        for images in sizes:
            name = f"{Cell(images)}/{place}"
            both = [_each(document, f"{way}/{name}") for way in WAYS]

            def medians(key: str, form: str, unit: float = 1, both: Any = both) -> list[str]:
                return [number(median(runs, key), form, unit) for runs in both]

            lines.append(
                [
                    *name.split("/"),
                    *medians("clips_per_second", ".1f"),
                    number(_ratio(both, "clips_per_second"), ".3f"),
                    number(_ratio(both, "cpu_seconds_each"), ".3f"),
                    *medians("decoded_each", ".3f"),
                    number(_ratio(both, "decoded_each"), ".3f"),
                    *medians("requests", ".0f"),
                    *medians("peak_memory_bytes", ".0f", 1e6),
                    reason([*both[0], *both[1]])[:100],
                ]
            )
    shown = ["{}, clips/s", "{}, decoded a clip", "{}, requests", "{}, peak MB"]
    rate, decoded, requests, peak = ([text.format(way) for way in WAYS] for text in shown)
    columns = ["clips", "files", *rate, "ratio (>= 0.97)", "ratio of CPU time a clip", *decoded]
    return markdown([*columns, "ratio (<= 1.03)", *requests, *peak, "why not"], lines)


def _each(document: Mapping[str, Any], name: str) -> list[Result]:
    """Runs of a row, with CPU time per clip and, for whole epochs, images decoded per clip."""
    made = []
    settings = document["settings"]
    whole = settings["dataset"]["frames"] - settings["batch"]
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
        lines.append(
            [
                shown,
                number(first, ".2f"),
                number(median(runs, "clips_per_second"), ".1f"),
                number(median(each, "each"), ".4f", 1e6),
                number(median(runs, "peak_memory_bytes"), ".0f", 1e6),
                reason(runs)[:100],
            ]
        )
    columns = ["by", "first batch, s", "clips/s", "read, MB a clip", "peak MB", "why not"]
    return markdown(columns, lines)


def _ratio(both: Sequence[Sequence[Result]], key: str) -> float | None:
    """Median of the ratios by repeat, of whole epochs: the begin of one has another rate."""
    pairs = [pair for pair in zip(*both, strict=False) if all("decoded_each" in x for x in pair)]
    ratios = [a[key] / b[key] for a, b in pairs if a.get(key) and b.get(key)]
    return statistics.median(ratios) if ratios else None


if __name__ == "__main__":
    main()
