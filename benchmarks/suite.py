"""Command line of a benchmark: runs rows selected by patterns; writes raw JSON and a page.

Each result is saved as JSON at once. `--rows` takes patterns of row names. `--resume` keeps rows
measured by the last run in FOLDER at the same commit; `--keep` keeps its rows outside `--rows`.
`--report` writes the page of the last run and runs nothing. `--to` publishes, unless
`benchmarks.checks` refuses: a tree with changes, missing repeats, rows above their ceiling.
`--draft` publishes without these checks; tests refuse to keep such a page.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.checks import faults
from benchmarks.timing import (
    METHOD,
    REPEATS,
    Result,
    Results,
    commit,
    digests,
    machine,
    reason,
)

__all__ = ["Ceiling", "Run", "Suite", "make_parser"]

Run = Callable[[], Result] | str
"""Runs a row in its own process, or is the reason that it cannot run."""

Ceiling = Callable[[], Mapping[str, float]]
"""Measures the machine's best rates, by the name of the limit."""

Page = Callable[[Mapping[str, Any]], str]
_SHOWN = 8  # figures per result in the progress output


def make_parser(doc: str | None, *, repeats: int = REPEATS) -> argparse.ArgumentParser:
    """Parser with the arguments common to all benchmarks; `doc` is the module's docstring."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="data and results")
    parser.add_argument("--rows", nargs="*", default=["*"], help="patterns of row names")
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--resume", action="store_true", help="keep the last run's results")
    parser.add_argument("--keep", action="store_true", help="keep results outside --rows")
    parser.add_argument("--report", action="store_true", help="write the last run's page only")
    parser.add_argument("--to", type=Path, help="folder for copies of JSON and page")
    parser.add_argument("--draft", action="store_true", help="publish without the checks")
    return parser


class Suite:
    """Results of a benchmark's rows, kept in FOLDER/NAME.json after each row.

    `settings` and the commit must be the same in a run that `--resume` or `--keep` continues.
    `code` are paths of the repository: a page is old if they have changed.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        settings: Mapping[str, Any],
        name: str = "results",
        *,
        code: Iterable[str] = (),
    ) -> None:
        self.options = options
        self.folder: Path = options.folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file = f"{name}.json"
        self.document: dict[str, Any] = {"machine": machine(), "commit": commit()}
        self.document |= {"method": METHOD, "code": digests(code), "repeats": options.repeats}
        self.document |= {"minutes": {}, "settings": dict(settings), "rows": {}}
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
        if (was := last["commit"]) != (now := new["commit"]):
            raise SystemExit(f"results are of commit {was}, not of {now}: use another folder")
        again = self.options.keep and not self.options.resume
        rows: Results = {}
        for name, runs in last["rows"].items():
            if not (again and self.is_wanted(name)):
                rows[name] = [run for run in runs if not reason([run])] or runs
        self.document = {**new, "minutes": last.get("minutes", {}), "rows": rows}
        self.document |= {n: value for n, value in last.items() if n not in self.document}

    @property
    def rows(self) -> Results:
        rows: Results = self.document["rows"]
        return rows

    def is_wanted(self, *names: str) -> bool:
        """Whether `--rows` selects any of these names."""
        patterns = self.options.rows
        return any(fnmatch(name, pattern) for name in names for pattern in patterns)

    def take(self, name: str, run: Callable[[], Result], part: str = "rows") -> None:
        """Run a row once and keep its result; its minutes are added to those of `part`."""
        begin = time.monotonic()
        result = run()
        if "skipped" not in result:
            result = {**result, "commit": self.document["commit"]}
        minutes: dict[str, float] = self.document["minutes"]
        minutes[part] = minutes.get(part, 0.0) + (time.monotonic() - begin) / 60
        self.rows.setdefault(name, []).append(result)
        plain = {n: v for n, v in result.items() if isinstance(v, (int, float, str)) and v}
        shown = {n: plain[n] for n in [*plain][:_SHOWN]}
        print(f"{name}: {shown}", file=sys.stderr, flush=True)
        self.save(self.folder)

    def wanted(self, jobs: Mapping[str, Run]) -> dict[str, Run]:
        """Jobs selected by `--rows`."""
        return {name: job for name, job in jobs.items() if self.is_wanted(name)}

    def take_turns(
        self,
        jobs: Mapping[str, Run],
        repeats: int | None = None,
        *,
        ceiling: Ceiling | None = None,
        part: str = "rows",
    ) -> None:
        """Run all rows once before repeating any. A string is the reason that a row cannot run.

        With `ceiling`, it is measured between rows: before and after each, which keeps the higher
        one. A row that failed is not repeated; `--resume` runs it again.
        """
        between = _Between(ceiling) if ceiling else None
        for name in jobs:
            if reason(self.rows.get(name, ())):
                del self.rows[name]
        for turn in range(self.options.repeats if repeats is None else repeats):
            for name, run in jobs.items():
                if isinstance(run, str):
                    self.rows[name] = [{"skipped": run}]
                elif len(runs := self.rows.get(name, [])) <= turn and not reason(runs):
                    self.take(name, partial(between, run) if between else run, part)
        self.save(self.folder)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self._file).write_text(json.dumps(self.document, indent=1) + "\n")

    def publish(self, page: Page, title: str = "RESULTS") -> None:
        """Write JSON and TITLE.md into FOLDER and the folder of `--to`, and print the page."""
        text = page(self.document)
        is_checked = self.options.to and not self.options.draft
        if is_checked and (reasons := faults(self.document)):
            self.save(self.folder)
            raise SystemExit("not published: " + "; ".join(reasons))
        for folder in filter(None, (self.folder, self.options.to)):
            self.save(folder)
            (folder / f"{title}.md").write_text(text)
        print(text)


class _Between:
    """Runs rows between two measurements of their ceiling, of which the next row has the later."""

    def __init__(self, ceiling: Ceiling) -> None:
        self._ceiling = ceiling
        self._last: Mapping[str, float] | None = None

    def __call__(self, run: Callable[[], Result]) -> Result:
        before = self._last or self._ceiling()
        result = run()
        self._last = after = self._ceiling()
        return {**result, "ceiling": {n: max(rate, after[n]) for n, rate in before.items()}}
