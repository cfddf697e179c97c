"""Clips a second of this loader beside what memory can copy.

    python -m benchmarks.tartanair.throughput FOLDER --to benchmarks/tartanair/throughput

Renders a tree and packs it where FOLDER lacks them. Each row of the table runs in a process of its
own, all rows once before any of them twice; one timing loop serves all.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.suite import Suite, make_parser
from benchmarks.tartanair.throughput.measure import level
from benchmarks.tartanair.throughput.rows import ROWS, make_small, pack
from benchmarks.timing import Result, Results, markdown, median, number, run_job

__all__ = ["page", "share_of"]

_LEVELS = ("slow", "fast")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--frames", type=int, default=640, help="in four episodes")
    options = parser.parse_args()
    suite = Suite(options, {"frames": options.frames, "repeats": options.repeats})
    if not options.report:
        pack(suite.folder, options.frames)
        make_small(suite.folder)
        module = "benchmarks.tartanair.throughput.measure"
        jobs = {name: {"row": name, "folder": str(suite.folder)} for name in ROWS}
        made = {name: partial(run_job, module, job, 1800) for name, job in jobs.items()}
        suite.take_turns(suite.wanted(made))
    suite.publish(page)


def page(document: Mapping[str, Any]) -> str:
    """The published page."""
    template = Path(__file__).with_name("template.md").read_text()
    settings = document["settings"]
    return template.format(**document, **settings, table=_table(document["rows"]))


def _table(results: Results) -> str:
    """A line for each row: medians of its epochs, and of its runs."""
    columns = ["row", "clips/s", "of", "share", "wanted", "bytes read", "by the kernel"]
    columns += ["frames decoded", "first batch s", "peak MB"]
    lines = []
    for name, runs in results.items():
        row = ROWS[name]
        share = share_of(results, name, row.of)
        text = number(share, ".2f")
        missed = share is not None and row.wanted is not None and share < row.wanted
        ratios = [runs[-1].get(key) for key in ("bytes_ratio", "system_ratio", "frames_ratio")]
        lines.append(
            [
                name,
                f"{statistics.median(_rates(runs, None)):.4g}",
                row.of,
                f"**{text}**" if missed else text,
                number(row.wanted, "g"),
                *(number(ratio, ".3f") for ratio in ratios),
                number(median(runs, "first_batch_seconds"), ".2f"),
                number(median(runs, "peak_memory_bytes"), ".0f", 1e6),
            ]
        )
    return markdown(columns, lines)


def share_of(results: Results, name: str, other: str) -> float | None:
    """A row's median rate by another's, of epochs at the same level of the machine.

    Where both levels were met, the mean of the two shares.
    """
    shares = []
    for at in _LEVELS:
        rates = [list(_rates(results.get(row, ()), at)) for row in (name, other)]
        if all(rates):
            mine, its = map(statistics.median, rates)
            shares.append(mine / its)
    return statistics.mean(shares) if shares else None


def _rates(runs: Sequence[Result], at: str | None) -> Iterator[float]:
    for run in runs:
        for rate, before, after in run["epochs"]:
            if at is None or level(before, after) == at:
                yield rate


if __name__ == "__main__":
    main()
