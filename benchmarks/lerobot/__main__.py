"""Compare LeRobot and seqrecord on one dataset. Each row runs in its own process; rows alternate.

    python -m benchmarks.lerobot FOLDER [--lerobot PYTHON] [--rows …] [--to FOLDER]

Writes a LeRobot dataset into FOLDER unless it exists (or reads `--root`), packs it, and runs all
rows once before repeating any. LeRobot first runs with each decoder and number of workers; its
fastest settings count for each cell. `make lerobot-env` creates the default Python of `--lerobot`;
without it, LeRobot's rows are skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.checks import ABOVE, TRIAL, minutes_of
from benchmarks.lerobot.cell import CELLS, Cell
from benchmarks.lerobot.data import (
    NO_LEROBOT,
    add_arguments,
    dataset_at,
    describe,
    python_environment,
)
from benchmarks.pages import code_of
from benchmarks.suite import Run, Suite, make_parser
from benchmarks.timing import Result, Results, markdown, median, number, quotient, reason, run_job
from benchmarks.timing import warm as read_files
from benchmarks.training.trainings import write_arrays

__all__ = ["best_settings", "figures", "main", "page", "parse"]

DECODERS = ("torchcodec", "pyav")
WORKERS = (0, 1, 2, 4)
_UINT8 = tuple(cell for cell in CELLS if cell.numbers == "uint8")
PLACES = {"warm": CELLS, "cold": _UINT8, "azurite": _UINT8}
"""Cells by location of the files. Elsewhere than in the page cache, floats differ by the conversion
only."""
_PACKAGES = ("lerobot", "torch", "torchcodec", "av")
_CLIPS, _FRAMES = "clips_per_second", "frames_per_second"
_FRONT = ("torchcodec/front", "pyav/front")


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    suite = Suite(options, {}) if options.report else run(options)
    if options.to and not options.draft and (failed := failed_trials(suite.rows)):
        raise SystemExit(f"not published: LeRobot was not timed at its best, {'; '.join(failed)}")
    suite.publish(page)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_arguments(parser)
    parser.add_argument("--seconds", type=float, default=8, help="measured time per row, at least")
    parser.add_argument("--batch", type=int, default=8, help="clips")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--memory", default="2GiB", help="memory_limit of seqrecord")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> Suite:
    """Measure all rows."""
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    root, records = dataset_at(options, folder)
    names = ("batch", "seconds", "threads", "memory", "repeats")
    settings: dict[str, Any] = {name: getattr(options, name) for name in names}
    settings |= {"versions": _versions(options.lerobot), "dataset": describe(root)}
    suite = Suite(options, settings, code=code_of("lerobot/RESULTS.md"))
    wanted = suite.is_wanted(*(f"seqrecord/{cell}/azurite" for cell in CELLS))
    with _azurite(folder, records, wanted=wanted) as azurite:
        cameras = settings["dataset"]["names"]
        rows = Rows(options, root, records, cameras, azurite)
        suite.take_turns(suite.wanted(rows.trials()), 1)
        suite.take_turns(suite.wanted(rows.others(best_settings(suite.rows))))
    return suite


@dataclass(frozen=True)
class Rows:
    """All rows by name. `azurite`: location and options, or the reason it is unavailable."""

    options: argparse.Namespace
    root: Path
    records: Path
    cameras: Sequence[str]
    azurite: Mapping[str, Any] | str

    def trials(self) -> dict[str, Run]:
        """LeRobot with each decoder and number of workers, by `try/CELL/DECODER/WORKERS`."""
        return {
            f"{TRIAL}{cell}/{decoder}/{workers}": self._theirs(cell, decoder, workers)
            for cell in CELLS
            for decoder in DECODERS
            for workers in WORKERS
        }

    def others(self, best: Mapping[str, tuple[str, int]]) -> dict[str, Run]:
        """All other rows, compared rows adjacent; `best`: LeRobot's fastest settings by cell."""
        made: dict[str, Run] = {}
        for place, cells in PLACES.items():
            for cell in cells:
                theirs: Run = NO_LEROBOT
                if place == "azurite":
                    theirs = "reads local files only"
                elif str(cell) in best:
                    theirs = self._theirs(cell, *best[str(cell)], cold=place == "cold")
                made[f"lerobot/{cell}/{place}"] = theirs
                made[f"by hand/{cell}/{place}"] = self._by_hand(cell, place)
                made[f"seqrecord/{cell}/{place}"] = self._ours(cell, place)
        readers: dict[str, Any] = {"root": str(self.root), "cameras": list(self.cameras)}
        readers |= {"threads": self.options.threads, "seconds": self.options.seconds}
        for name in _FRONT:
            job = {**readers, "do": "front", "reader": name.split("/")[0]}
            made[name] = self._job("readers", job)
        for images in dict.fromkeys(cell.images for cell in CELLS):
            job = {**readers, "do": "clips", "images": images, "batch": self.options.batch}
            made[f"torchcodec/{images} images"] = self._job("readers", job)
        to = self.options.folder.resolve() / "scratch"
        job = {"do": "convert", "root": str(self.root), "to": str(to)}
        return {**made, "conversion": self._job("ours", job)}

    def _clips(self, cell: Cell, **more: Any) -> dict[str, Any]:
        shared = {name: getattr(self.options, name) for name in ("batch", "threads", "seconds")}
        return {"cell": asdict(cell), "cameras": list(self.cameras), **shared, **more}

    def _theirs(self, cell: Cell, decoder: str, workers: int, *, cold: bool = False) -> Run:
        if not self.options.lerobot.exists():
            return NO_LEROBOT
        settings = {"decoder": decoder, "workers": workers, "cold": cold}
        job = self._clips(cell, root=str(self.root), **settings)
        return self._job("theirs", job, python=self.options.lerobot)

    def _ours(self, cell: Cell, place: str) -> Run:
        at: Mapping[str, Any] = {"location": str(self.records), "options": None}
        if place == "azurite":
            if isinstance(self.azurite, str):
                return self.azurite
            at = self.azurite
        settings = {"do": "clips", "memory": self.options.memory, "cold": place == "cold"}
        return self._job("ours", self._clips(cell, **settings, **at))

    def _by_hand(self, cell: Cell, place: str) -> Run:
        if place == "azurite":
            return "reads local files only"
        arrays = self.options.folder.resolve() / "arrays"
        settings = {"do": "by hand", "folder": str(arrays), "cold": place == "cold"}
        job = self._job("ours", self._clips(cell, **settings))

        def take() -> Result:
            found = {"originals": self.root, "records": self.records, "arrays": arrays}
            write_arrays("act", found)
            read_files(arrays)
            result: Result = job() if callable(job) else {"skipped": job}
            return result

        return take

    def _job(self, module: str, job: dict[str, Any], python: Path | str = sys.executable) -> Run:
        def take() -> Result:
            for place in (self.root, self.records):
                read_files(place)
            return run_job(
                f"benchmarks.lerobot.{module}",
                job,
                120 + 8 * self.options.seconds,
                python=python,
                environment=python_environment(self.options.folder.resolve()),
            )

        return take


@contextmanager
def _azurite(folder: Path, records: Path, *, wanted: bool) -> Iterator[Mapping[str, Any] | str]:
    """Location and options of the records in Azurite, or the reason it is unavailable."""
    if not wanted:
        yield "not asked for"
        return
    from benchmarks.tartanair.cloud_services import serve
    from tests.kit.services import need_azurite

    try:
        need_azurite()
    except BaseException as error:  # pytest's skip exception
        yield str(error)
        return
    home = folder / "azurite"
    shutil.rmtree(home, ignore_errors=True)
    try:
        with serve(home, ("azurite",)) as services:
            services["azurite"].cloud.upload(records, "records")
            yield services["azurite"].place("records")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _versions(python: Path) -> dict[str, str]:
    """Versions of lerobot and its decoders in its environment."""
    if not python.exists():
        return {}
    code = "import sys, json; from importlib.metadata import version; "
    code += "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    output = subprocess.check_output([str(python), "-c", code, *_PACKAGES], text=True)
    found: dict[str, str] = json.loads(output)
    return found


# ---- the page


class Figure(NamedTuple):
    """A figure and its target, a minimum if `least`, else a maximum."""

    name: str
    value: float | None
    target: float
    least: bool = True

    @property
    def is_reached(self) -> bool | None:
        if self.value is None:
            return None
        return self.value >= self.target if self.least else self.value <= self.target


def best_settings(results: Results) -> dict[str, tuple[str, int]]:
    """LeRobot's fastest decoder and number of workers, by cell."""
    best: dict[str, tuple[float, str, int]] = {}
    for name, runs in results.items():
        if name.startswith(TRIAL) and (rate := median(runs, _CLIPS)) is not None:
            _, cell, decoder, workers = name.split("/")
            best[cell] = max(best.get(cell, (0.0, "", 0)), (rate, decoder, int(workers)))
    return {cell: (decoder, workers) for cell, (_, decoder, workers) in best.items()}


def failed_trials(results: Results) -> list[str]:
    """Trials of LeRobot that failed, and why: it may be faster with their settings."""
    trials = {name: runs for name, runs in results.items() if name.startswith(TRIAL)}
    errors = [
        (name, run["error"]) for name, runs in trials.items() for run in runs if "error" in run
    ]
    return [f"{name}: {error}" for name, error in errors]


def figures(document: Mapping[str, Any]) -> Iterator[Figure]:
    """Figures of medians."""
    results: Results = document["rows"]
    for images, target in ((16, 40), (2, 10)):
        name = f"windows of {images} images and 16 actions, uint8: clips/s to LeRobot's"
        yield Figure(name, quotient(*_both(results, f"{Cell(images)}/warm")), target)
    name = "2 images: frames decoded/s to decoding front to back on all cores"
    yield Figure(name, quotient(_decoding(results), _front(results)), 0.8)
    conversion = results.get("conversion", [])
    stored = quotient(median(conversion, "bytes"), median(conversion, "source_bytes"))
    yield Figure("bytes on disk to the source's", stored, 1.02, least=False)
    settings = document["settings"]
    dataset = settings["dataset"]
    each = [
        run["video_frames_decoded"] / dataset["cameras"] / dataset["frames"]
        for images in (16, 2)
        for run in results.get(f"seqrecord/{Cell(images)}/warm", [])
        if run.get("clips", 0) > dataset["frames"] - settings["batch"]  # a whole epoch
    ]
    yield Figure("frames decoded for each frame", max(each, default=None), 1.05, least=False)
    name = "conversion: rate to copying the files"
    yield Figure(name, median(conversion, "rate_to_copying"), 0.5)


def page(document: Mapping[str, Any]) -> str:
    """The published page."""
    settings, results = document["settings"], document["rows"]
    dataset = settings["dataset"]
    versions = ", ".join(f"{name} {number}" for name, number in settings["versions"].items())
    height, width, _ = dataset["shape"]
    values = {
        **dataset,
        **settings,
        "duration": minutes_of(document),
        "versions": versions or "none: no row of it ran",
        "frames": f"{dataset['frames']:,}",
        "height": height,
        "width": width,
        "size": f"{dataset['bytes'] / 1e6:.1f}",
        "raw": f"{dataset['frames'] * dataset['frame_bytes'] / 1e6:.0f}",
        "figures": _figures(document),
        "limits": _limits(document),
        "clips": _clips(results),
        "readers": _readers(results),
        "conversion": _conversion(results.get("conversion", [])),
        "trials": _trials(results),
        "reasons": _reasons(results),
    }
    return Path(__file__).with_name("template.md").read_text().format(**{**document, **values})


def _figures(document: Mapping[str, Any]) -> str:
    lines = []
    for figure in figures(document):
        shown = number(figure.value)
        if figure.is_reached is False:
            shown = f"**{shown}**"
        lines.append([figure.name, f"{'>=' if figure.least else '<='} {figure.target:g}", shown])
    return markdown(["figure", "to reach", "reached"], lines)


def _clips(results: Results) -> str:
    lines = []
    best = best_settings(results)
    for place, cells in PLACES.items():
        for cell in cells:
            ours, theirs = _both(results, f"{cell}/{place}")
            hand = median(results.get(f"by hand/{cell}/{place}", []), _CLIPS)
            settings = best.get(str(cell)) if theirs else None
            runs = [results.get(f"{who}/{cell}/{place}", []) for who in ("lerobot", "seqrecord")]
            lines.append(
                [
                    str(cell),
                    place,
                    number(theirs),
                    "{}, {} workers".format(*settings) if settings else "",
                    number(hand),
                    number(ours),
                    number(quotient(ours, theirs)),
                    *(number(median(each, "peak_memory_bytes"), ".0f", 1e6) for each in runs),
                    str(runs[1][-1].get("bottleneck", "")).split(":")[0] if runs[1] else "",
                ]
            )
    columns = ["clips", "files", "LeRobot, clips/s", "with", "by hand, clips/s"]
    columns += ["seqrecord, clips/s", "ratio"]
    return markdown([*columns, "LeRobot, peak MB", "seqrecord, peak MB", "bound by"], lines)


def _limits(document: Mapping[str, Any]) -> str:
    """Clips/s of decoding and copying alone, and measured clips/s, unless they are above both."""
    results, dataset = document["rows"], document["settings"]["dataset"]
    lines, above = [], list[str]()
    for images in (16, 2):
        ours, theirs = _both(results, f"{Cell(images)}/warm")
        copying = median(results.get(f"by hand/{Cell(images)}/warm", []), _CLIPS)
        decoding = quotient(_front(results), dataset["cameras"])
        both = 1 / (1 / copying + 1 / decoding) if copying and decoding else None
        share = quotient(ours, both)
        if share is not None and share > 1 + ABOVE:
            above.append(f"{Cell(images)}")
            continue
        values = [decoding, copying, both, ours, share, quotient(both, theirs)]
        lines.append([f"{Cell(images)}", *map(number, values)])
    columns = ["clips", "decoding", "copying", "both", "seqrecord, clips/s", "share of both"]
    table = markdown([*columns, "ratio at both"], lines)
    return table + (f"\n\nLeft out, above their limits: {', '.join(above)}." if above else "")


def _readers(results: Results) -> str:
    front = {"seqrecord, 2 images": _decoding(results)}
    front |= {name.split("/")[0]: median(results.get(name, []), _FRAMES) for name in _FRONT}
    lines = [[name, "front to back", number(value), ""] for name, value in front.items()]
    for name, runs in results.items():
        if name.endswith(" images"):
            reader, windows = name.split("/")
            lines.append([reader, f"clips of {windows}", "", number(median(runs, _CLIPS))])
    return markdown(["reader", "task", "frames/s", "clips/s"], lines)


def _conversion(runs: Sequence[Result]) -> str:
    copied, converted = median(runs, "copy_seconds"), median(runs, "convert_seconds")
    if copied is None or converted is None:
        return "Conversion was not run."
    return (
        f"Conversion took {converted:.2f} s, and copying the files {copied:.2f} s, each until all "
        f"was on the disk; the conversion runs in a new process."
    )


def _trials(results: Results) -> str:
    lines = []
    for name, runs in results.items():
        if name.startswith(TRIAL) and "skipped" not in runs[-1]:
            _, cell, decoder, workers = name.split("/")
            lines.append([cell, decoder, workers, number(median(runs, _CLIPS)) or reason(runs)])
    columns = ["clips", "decoder", "workers", "clips/s"]
    return markdown(columns, lines) if lines else "None was tried."


def _reasons(results: Results) -> str:
    lines = [[name, reason(runs)] for name, runs in results.items() if reason(runs)]
    return markdown(["row", "why"], lines) if lines else "All rows ran."


def _both(results: Results, name: str) -> tuple[float | None, float | None]:
    """Clips per second of seqrecord and LeRobot."""
    ours, theirs = (
        median(results.get(f"{w}/{name}", []), _CLIPS) for w in ("seqrecord", "lerobot")
    )
    return ours, theirs


def _decoding(results: Results) -> float | None:
    """Frames per second decoded by seqrecord, on the row dominated by decoding."""
    runs = [run for run in results.get(f"seqrecord/{Cell(2)}/warm", []) if "clips" in run]
    rates = [{"rate": run["video_frames_decoded"] / run["seconds"]} for run in runs]
    return median(rates, "rate")


def _front(results: Results) -> float | None:
    """Frames per second of the fastest front-to-back reader."""
    rates = [median(results.get(name, []), _FRAMES) for name in _FRONT]
    return max((rate for rate in rates if rate is not None), default=None)


if __name__ == "__main__":
    main()
