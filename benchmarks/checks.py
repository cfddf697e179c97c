"""Reasons to refuse a document of measurements.

`faults(document)` names rows that used more CPU than the cores had, rows above their ceiling,
windows that are too short, missing repeats, a tree with changes, and rows of several commits.
Commands refuse to publish such a document, and a test refuses to keep it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from benchmarks.timing import LEAST, METHOD

__all__ = ["ABOVE", "TRIAL", "faults", "minutes_of"]

ABOVE = 0.03  # of a ceiling: neither it nor a row repeats more exactly
TRIAL = "try/"  # rows that only choose settings
_CLOCK = 0.02, 0.1  # share and seconds, of the kernel's count of CPU time


def minutes_of(document: Mapping[str, Any]) -> str:
    """A sentence on how long a page's measurements took."""
    minutes = document.get("minutes", {})
    if not minutes:
        return "Minutes were not recorded."
    words = ", ".join(f"{name} {count:.0f}" for name, count in minutes.items())
    return f"Minutes on this machine: {words}; {sum(minutes.values()):.0f} in all."


def faults(document: Mapping[str, Any]) -> list[str]:
    """Reasons not to publish the document; empty if there are none."""
    return [*_of_commits(document), *_of_rows(document)]


def _of_commits(document: Mapping[str, Any]) -> Iterator[str]:
    if (method := document.get("method")) != METHOD:
        yield f"measured by method {method}, not {METHOD}"
    runs = [run for runs in document["rows"].values() for run in runs]
    commits = {document["commit"], *(run["commit"] for run in runs if "commit" in run)}
    if len(commits) > 1:
        yield f"rows of several commits: {', '.join(sorted(commits))}"
    for commit in sorted(commits):
        if commit == "unknown" or commit.endswith("-dirty") or ", " in commit:
            yield f"not one committed tree: {commit}"


def _of_rows(document: Mapping[str, Any]) -> Iterator[str]:
    share, seconds = _CLOCK
    for name, runs in document["rows"].items():
        measured = [run for run in runs if not (run.get("error") or run.get("skipped"))]
        for run in measured:
            if "num_cores" in run:
                limit = run["num_cores"] * run["seconds"]
                if run["cpu_seconds"] > limit * (1 + share) + seconds:
                    yield f"{name}: {run['cpu_seconds']:.1f} s of CPU in {limit:.1f} s of all cores"
            if not run.get("whole", True) and run["batches"] < LEAST:
                yield f"{name}: a window of {run['batches']} batches"
        shares = [run["share"] for run in measured if "share" in run]
        if shares and median(shares) > 1 + ABOVE:
            yield f"{name}: {median(shares):.2f} of its ceiling"
        if measured and not name.startswith(TRIAL) and len(measured) < document["repeats"]:
            yield f"{name}: {len(measured)} of {document['repeats']} repeats"
