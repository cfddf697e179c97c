"""All rows of the benchmark: what each runs, with which Python."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.lerobot.cell import CELLS, Cell

__all__ = ["DECODERS", "PLACES", "WORKERS", "Job", "Setup", "rows", "trials"]

DECODERS = ("torchcodec", "pyav")
WORKERS = (0, 1, 2, 4)
PLACES = ("warm", "cold", "azurite")

_NO_LEROBOT = "needs lerobot: make lerobot-env"


@dataclass(frozen=True)
class Job:
    """A module of this package and its job, with which Python; or why there is none."""

    module: str = ""
    job: Mapping[str, Any] | None = None
    skipped: str = ""
    python: str = "this"  # or lerobot

    @property
    def text(self) -> str:
        return json.dumps(self.job)


@dataclass(frozen=True)
class Setup:
    """What all rows share."""

    root: Path  # the LeRobot dataset
    records: Path  # that, packed
    scratch: Path  # a folder that conversions may make and remove
    cameras: Sequence[str]
    threads: int
    batch: int
    seconds: float
    memory: str
    has_lerobot: bool
    azurite: Mapping[str, Any] | str  # location and options there, or why not

    def reading(self, **more: Any) -> dict[str, Any]:
        shared = {"threads": self.threads, "batch": self.batch, "seconds": self.seconds}
        return {"root": str(self.root), "cameras": list(self.cameras), **shared, **more}


def trials(setup: Setup) -> dict[str, Job]:
    """LeRobot with each of its settings, by `try/CELL/DECODER/WORKERS`."""
    return {
        f"try/{cell}/{decoder}/{workers}": _theirs(setup, cell, decoder, workers, cold=False)
        for cell in CELLS
        for decoder in DECODERS
        for workers in WORKERS
    }


def rows(setup: Setup, best: Mapping[str, tuple[str, int]]) -> dict[str, Job]:
    """All other rows, those that are compared next to each other; `best` settings by cell."""
    made: dict[str, Job] = {}
    for place in PLACES:
        for cell in CELLS:
            name = f"{cell}/{place}"
            if place == "azurite":
                made[f"lerobot/{name}"] = Job(skipped="reads local files only")
            elif str(cell) not in best:
                made[f"lerobot/{name}"] = Job(skipped=_NO_LEROBOT)
            else:
                decoder, workers = best[str(cell)]
                made[f"lerobot/{name}"] = _theirs(
                    setup, cell, decoder, workers, cold=place == "cold"
                )
            made[f"seqrecord/{name}"] = _ours(setup, cell, place)
    readers = "benchmarks.lerobot.readers"
    for reader in ("torchcodec", "pyav"):
        made[f"{reader}/front"] = Job(readers, setup.reading(does=f"{reader}/front"))
    for reader in ("torchcodec", "dali"):
        for images in dict.fromkeys(cell.images for cell in CELLS):
            job = setup.reading(does=f"{reader}/clips", images=images)
            made[f"{reader}/{images} images"] = Job(readers, job)
    for images in dict.fromkeys(cell.images for cell in CELLS):
        cached = Job("benchmarks.lerobot.cacher", setup.reading(images=images), python="lerobot")
        if not setup.has_lerobot:
            cached = Job(skipped=_NO_LEROBOT)
        made[f"data_cacher/{images} images"] = cached
    folder = {"root": str(setup.root), "folder": str(setup.scratch)}
    made["conversion"] = Job("benchmarks.lerobot.conversion", folder)
    return made


def _theirs(setup: Setup, cell: Cell, decoder: str, workers: int, *, cold: bool) -> Job:
    if not setup.has_lerobot:
        return Job(skipped=_NO_LEROBOT)
    settings = {"decoder": decoder, "workers": workers, "cold": cold}
    job = setup.reading(**asdict(cell), **settings)
    return Job("benchmarks.lerobot.theirs", job, python="lerobot")


def _ours(setup: Setup, cell: Cell, place: str) -> Job:
    at: Mapping[str, Any] = {"location": str(setup.records), "options": None}
    if place == "azurite":
        if isinstance(setup.azurite, str):
            return Job(skipped=setup.azurite)
        at = setup.azurite
    settings = {**at, "memory": setup.memory, "cold": place == "cold"}
    return Job("benchmarks.lerobot.ours", setup.reading(**asdict(cell), **settings))
