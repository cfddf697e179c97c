"""Command line of a benchmark: runs rows selected by patterns; writes raw JSON and a page.

Each result is saved as JSON at once. `--rows` takes patterns of row names. `--resume` keeps rows
measured by the last run in FOLDER; `--keep` keeps its rows outside `--rows`. `--report` writes
the page of the last run and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from benchmarks.timing import Result, Results, commit, machine

__all__ = ["Run", "Suite", "make_parser"]

Run = Callable[[], Result] | str
"""Runs a row in its own process, or is the reason that it cannot run."""

Page = Callable[[Mapping[str, Any]], str]
_SHOWN = 8  # figures per result in the progress output


def make_parser(doc: str | None, *, repeats: int = 3) -> argparse.ArgumentParser:
    """Parser with the arguments common to all benchmarks; `doc` is the module's docstring."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="data and results")
    parser.add_argument("--rows", nargs="*", default=["*"], help="patterns of row names")
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--resume", action="store_true", help="keep the last run's results")
    parser.add_argument("--keep", action="store_true", help="keep results outside --rows")
    parser.add_argument("--report", action="store_true", help="write the last run's page only")
    parser.add_argument("--to", type=Path, help="folder for copies of JSON and page")
    return parser


class Suite:
    """Results of a benchmark's rows, kept in FOLDER/NAME.json after each row.

    `settings` must be the same in a run that `--resume` or `--keep` continues.
    """

    def __init__(
        self, options: argparse.Namespace, settings: Mapping[str, Any], name: str = "results"
    ) -> None:
        self.options = options
        self.folder: Path = options.folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file = f"{name}.json"
        self.document: dict[str, Any] = {"machine": machine(), "commit": commit()}
        self.document |= {"settings": dict(settings), "rows": {}}
        is_continued = options.resume or options.keep
        if options.report or (is_continued and (self.folder / self._file).exists()):
            self._load()

    def _load(self) -> None:
        last = json.loads((self.folder / self._file).read_text())
        if self.options.report:
            self.document = last
            return
        new = self.document
        if (was := last["settings"]) != (now := json.loads(json.dumps(new["settings"]))):
            raise SystemExit(f"settings were {was} and are {now} now: use another folder")
        if new["commit"] not in last["commit"]:
            last["commit"] += f", {new['commit']}"
        again = self.options.keep and not self.options.resume
        rows: Results = {}
        for name, runs in last["rows"].items():
            ran = [run for run in runs if not (run.get("error") or run.get("skipped"))]
            if not (again and self.is_wanted(name)) and (ran or not self.is_wanted(name)):
                rows[name] = ran or runs  # skipped and failed rows run again
        self.document = {**last, "rows": rows}

    @property
    def rows(self) -> Results:
        rows: Results = self.document["rows"]
        return rows

    def is_wanted(self, *names: str) -> bool:
        """Whether `--rows` selects any of these names."""
        patterns = self.options.rows
        return any(fnmatch(name, pattern) for name in names for pattern in patterns)

    def take(self, name: str, run: Callable[[], Result]) -> None:
        """Run a row once and keep its result."""
        result = run()
        self.rows.setdefault(name, []).append(result)
        plain = {n: v for n, v in result.items() if isinstance(v, (int, float, str)) and v}
        shown = {n: plain[n] for n in [*plain][:_SHOWN]}
        print(f"{name}: {shown}", file=sys.stderr, flush=True)
        self.save(self.folder)

    def wanted(self, jobs: Mapping[str, Run]) -> dict[str, Run]:
        """Jobs selected by `--rows`."""
        return {name: job for name, job in jobs.items() if self.is_wanted(name)}

    def take_turns(self, jobs: Mapping[str, Run], repeats: int | None = None) -> None:
        """Run all rows once before repeating any. A string is the reason that a row cannot run."""
        for turn in range(self.options.repeats if repeats is None else repeats):
            for name, run in jobs.items():
                if isinstance(run, str):
                    self.rows[name] = [{"skipped": run}]
                elif len(self.rows.get(name, ())) <= turn:
                    self.take(name, run)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self._file).write_text(json.dumps(self.document, indent=1) + "\n")

    def publish(self, page: Page, title: str = "RESULTS") -> None:
        """Write JSON and TITLE.md into FOLDER and the folder of `--to`, and print the page."""
        text = page(self.document)
        for folder in filter(None, (self.folder, self.options.to)):
            self.save(folder)
            (folder / f"{title}.md").write_text(text)
        print(text)
