"""What all parts of RESULTS.md are made of: rows in groups, tables, facts and figures in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.tartanair.compare.picking import Row, ran, rate
from benchmarks.tartanair.compare.report import reasons_table, table, wrong_table
from benchmarks.tartanair.loaders.base import USUAL, Settings

__all__ = [
    "best_other",
    "counted",
    "facts",
    "grouped",
    "picture",
    "reasons_text",
    "shown_table",
]


def facts(results: Mapping[str, Any]) -> dict[str, str]:
    """On what machine, of what code and of which data results are."""
    episodes, rows = results["episodes"], results["rows"]
    return {
        "machine": results["machine"],
        "commits": ", ".join(sorted({f"`{row['commit']}`" for row in ran(rows)})) or "none",
        "frames": f"{sum(episodes):,}",
        "episodes": counted(len(episodes), "episode"),
        "lengths": _range(episodes),
        "size": _size(sum(episodes) * results["frame_bytes"]),
    }


def grouped(
    rows: Sequence[Row], kinds: Mapping[str, Callable[[Row], bool]]
) -> dict[str, list[Row]]:
    """Each row in the first group that it belongs to, else in `rest`; fastest first."""
    groups: dict[str, list[Row]] = {name: [] for name in (*kinds, "rest")}
    for row in sorted(rows, key=rate, reverse=True):
        name = next((name for name, belongs in kinds.items() if belongs(row)), "rest")
        groups[name].append(row)
    return groups


def shown_table(rows: Sequence[Row], base: Settings = USUAL) -> str:
    """`table`, or that there is none."""
    return table(rows, base) if ran(rows) else "No row ran."


def reasons_text(rows: Sequence[Row]) -> str:
    """Why rows did not run, and which gave wrong clips; empty if there are none."""
    return "\n\n".join(filter(None, [reasons_table(rows), wrong_table(rows)]))


def picture(name: str, words: str) -> str:
    """A plot, with what it shows in words."""
    return f"![{words}](plots/{name}.png)"


def best_other(best: Mapping[str, Row]) -> str | None:
    """The first that is not ours."""
    return next((name for name in best if not name.startswith("seqrecord")), None)


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
