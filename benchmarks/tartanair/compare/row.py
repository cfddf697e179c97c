"""One row in a process of its own: `python -m benchmarks.tartanair.compare.row`, a task on stdin.

The last line that it prints is the result as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.tartanair.compare.prepared import files_of, folder_of, prepare
from benchmarks.tartanair.compare.workloads import TARTANAIR, WORKLOADS
from benchmarks.tartanair.loaders.base import Place, Settings
from benchmarks.tartanair.timing import drop_page_cache

__all__ = ["Task", "warm"]


@dataclass(frozen=True)
class Task:
    """What to do with one cell: `do` is `prepare`, `measure` or `check`."""

    do: str
    loader: str
    settings: Settings
    root: str
    features: tuple[str, ...]
    work: str
    epochs: int = 2
    max_seconds: float = 60.0
    mount: str = ""
    location: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    workload: str = TARTANAIR.name

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Task:
        saved = json.loads(text)
        settings = Settings.of(saved["settings"])
        return cls(**{**saved, "settings": settings, "features": tuple(saved["features"])})

    def storage_options(self) -> dict[str, Any]:
        """The options as `seqrecord` takes them; for blobfile the environment gets its key."""
        if "blobfile_host" not in self.options:
            return dict(self.options)
        from tests.blobfile_pool import blobfile_options

        return blobfile_options(self.options["blobfile_host"], self.options["blobfile_key"])

    def run(self) -> dict[str, Any]:
        """Do it here."""
        work, workload = Path(self.work), WORKLOADS[self.workload]
        loader = workload.loaders()[self.loader]
        recordings = workload.open(Path(self.root), self.features, work)
        if self.do == "prepare":
            seconds = prepare(loader, recordings, work, self.settings)
            return {} if seconds is None else {"prepare_seconds": seconds}
        folder = folder_of(loader, recordings, work, self.settings)
        place = Place(
            Path(self.mount) if self.mount else folder, self.location, self.storage_options()
        )
        if self.do == "check":
            from benchmarks.tartanair.compare.check import check

            elsewhere = place if self.mount or self.location else None
            problems = check(
                loader, recordings, work, self.settings, epochs=self.epochs, place=elsewhere
            )
            return {"problems": problems}
        from benchmarks.tartanair.compare.measure import measure  # torch takes seconds

        cold = self.settings.storage in ("cold", "mount")
        if cold:
            drop_page_cache(files_of(place.folder))
        elif self.settings.storage == "local":
            warm(place.folder)
        clips = recordings.clips(self.settings.clip_len, self.settings.stride)
        began = time.perf_counter()
        return measure(
            loader.open(place, clips, self.settings),
            clips,
            epochs=1 if cold else self.epochs,
            max_seconds=self.max_seconds,
            began=began,
        )


def warm(folder: Path) -> None:
    """Read a folder's files, so that they are in the page cache if they fit."""
    block = bytearray(8 << 20)
    for path in files_of(folder):
        with path.open("rb", buffering=0) as file:
            while file.readinto(block):
                pass


if __name__ == "__main__":
    print(json.dumps(Task.loads(sys.stdin.read()).run()), flush=True)
    os._exit(0)  # some loaders' threads would never let the process end
