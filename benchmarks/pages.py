"""Pages of measurements: their documents, the code that they measure, and whether it has changed.

    python -m benchmarks.pages            # names pages whose measured code has changed since
    python -m benchmarks.pages --write    # writes all pages again from their JSON

Measures nothing. `make test-benchmarks` does the first.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.timing import ROOT, digests

__all__ = ["PAGES", "Page", "changes"]

_LOADING = ("seqrecord/store", "seqrecord/loader")
_TIMING = ("benchmarks/timing.py", "benchmarks/reused.py")
_TRAINING = ("__main__", "loaders", "networks", "row", "trainings")


@dataclass(frozen=True)
class Page:
    """A page and its JSON below `benchmarks`, the module whose `page` writes one from the other,
    and the paths whose change makes the figures old."""

    file: str
    data: str
    module: str
    code: tuple[str, ...]
    is_timed: bool = True

    def documents(self) -> list[dict[str, Any]]:
        """The committed document, or one for each workload."""
        document = self.read()
        return [document] if "rows" in document else [*document.values()]

    def read(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((ROOT / "benchmarks" / self.data).read_text())
        return document

    def render(self) -> str:
        """The page that its JSON gives."""
        text: str = importlib.import_module(self.module).page(self.read())
        return text

    @property
    def path(self) -> Path:
        return ROOT / "benchmarks" / self.file


PAGES = [
    Page(
        "tartanair/RESULTS.md",
        "tartanair/results.json",
        "benchmarks.tartanair.compare.results",
        (
            *(*_LOADING, "seqrecord/cloud", *_TIMING, "benchmarks/audio.py", "benchmarks/rgbd.py"),
            *("benchmarks/tartanair/compare", "benchmarks/tartanair/loaders"),
        ),
    ),
    Page(
        "tartanair/CLOUD.md",
        "tartanair/cloud.json",
        "benchmarks.tartanair.cloud",
        (*_LOADING, "seqrecord/cloud", "benchmarks/tartanair/cloud_rows.py"),
    ),
    Page(
        "tartanair/CODECS.md",
        "tartanair/codecs.json",
        "benchmarks.tartanair.codec_table",
        ("seqrecord/store/codecs", "benchmarks/tartanair/codec_table.py"),
    ),
    Page(
        "tartanair/order_training.md",
        "tartanair/order_training.json",
        "benchmarks.tartanair.order_report",
        ("seqrecord/loader/sampling", "benchmarks/tartanair/order_training.py"),
        is_timed=False,
    ),
    Page(
        "training/RESULTS.md",
        "training/results.json",
        "benchmarks.training.__main__",
        (
            *(*_LOADING, "seqrecord/video", "seqrecord/cloud", *_TIMING),
            *(f"benchmarks/training/{name}.py" for name in _TRAINING),
        ),
    ),
    Page(
        "training/DECODED_ONCE.md",
        "training/decoded_once.json",
        "benchmarks.training.decoded_once",
        (
            *(*_LOADING, "seqrecord/frame_cache", "seqrecord/video", *_TIMING),
            "benchmarks/training/epochs.py",
        ),
    ),
    Page(
        "training/SHARED_FRAMES.md",
        "training/shared_frames.json",
        "benchmarks.training.shared_frames",
        (
            *(*_LOADING, "seqrecord/frame_cache", *_TIMING),
            "benchmarks/training/shared_frames.py",
        ),
    ),
    Page(
        "lerobot/RESULTS.md",
        "lerobot/results.json",
        "benchmarks.lerobot.__main__",
        (*_LOADING, "seqrecord/video", *_TIMING, "benchmarks/lerobot"),
    ),
    Page(
        "lerobot/IN_PLACE.md",
        "lerobot/in_place.json",
        "benchmarks.lerobot.in_place",
        (*_LOADING, "seqrecord/video", "seqrecord/in_place", *_TIMING, "benchmarks/lerobot"),
    ),
]


def code_of(file: str) -> tuple[str, ...]:
    """Paths whose change makes a page's figures old."""
    return next(page.code for page in PAGES if page.file == file)


def changes(page: Page, document: Mapping[str, Any]) -> str:
    """What has changed since a document was measured; empty if nothing has."""
    if "code" in document:
        now = digests(document["code"])
        return ", ".join(path for path, digest in document["code"].items() if now[path] != digest)
    command = ["git", "diff", "--name-only", document["commit"].split("-")[0], "HEAD", "--"]
    found = subprocess.run(
        [*command, *page.code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if found.returncode:
        return "unknown: its commit is not in this clone"
    count = len(found.stdout.splitlines())
    return f"{count} files" if count else ""


def _old_pages() -> Iterator[str]:
    for page in PAGES:
        changed = {d["commit"]: what for d in page.documents() if (what := changes(page, d))}
        for commit, what in changed.items():
            yield f"benchmarks/{page.file} was measured at {commit[:12]}; changed since: {what}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write all pages from their JSON")
    options = parser.parse_args(arguments)
    if options.write:
        for page in PAGES:
            page.path.write_text(page.render())
        return
    for line in _old_pages():
        print(line)


if __name__ == "__main__":
    main()
