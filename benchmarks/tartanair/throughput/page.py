"""The page of results."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.tartanair.throughput.rows import ROWS
from benchmarks.tartanair.throughput.scaling import level
from benchmarks.tartanair.timing import Result, Results, markdown

__all__ = ["page", "share_of", "table"]

_LEVELS = ("slow", "fast")


def page(document: Mapping[str, Any]) -> str:
    """The published page."""
    template = Path(__file__).with_name("template.md").read_text()
    return template.format(**{**document, "table": table(document["rows"])})


def table(results: Results) -> str:
    """A line for each row: medians of its epochs, and of its runs."""
    columns = (
        "row",
        "clips/s",
        "of",
        "share",
        "wanted",
        "bytes read",
        "by the kernel",
        "frames decoded",
        "first batch s",
        "peak MB",
    )
    lines = []
    for name, runs in results.items():
        row = ROWS[name]
        share = share_of(results, name, row.of)
        missed = share is not None and row.wanted is not None and share < row.wanted
        text = "" if share is None else f"{share:.2f}"
        lines.append(
            [
                name,
                f"{statistics.median(rate for rate, _ in _epochs(runs, None)):.4g}",
                row.of,
                f"**{text}**" if missed else text,
                "" if row.wanted is None else f"{row.wanted:g}",
                *(_ratio(runs[-1], key) for key in ("bytes_ratio", "system_ratio", "frames_ratio")),
                f"{statistics.median(run['first_batch_seconds'] for run in runs):.2f}",
                f"{statistics.median(run['peak_memory_bytes'] for run in runs) / 1e6:.0f}",
            ]
        )
    return markdown(columns, lines)


def share_of(results: Results, name: str, other: str) -> float | None:
    """A row's median rate by another's, of epochs at the same level of the machine.

    Where both levels were met, the mean of the two shares.
    """
    shares = []
    for at in _LEVELS:
        rates = [[rate for rate, _ in _epochs(results.get(row, ()), at)] for row in (name, other)]
        if all(rates):
            mine, its = map(statistics.median, rates)
            shares.append(mine / its)
    return statistics.mean(shares) if shares else None


def _epochs(runs: Sequence[Result], at: str | None) -> Iterator[tuple[float, str | None]]:
    for run in runs:
        for rate, before, after in run["epochs"]:
            found = level(before, after)
            if at is None or found == at:
                yield rate, found


def _ratio(result: Result, key: str) -> str:
    return f"{result[key]:.3f}" if key in result else ""
