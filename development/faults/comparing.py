"""What tests notice, as text, beside an earlier run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import comb
from typing import Any

from development.faults.trying import NOTICED

__all__ = ["chance", "summary"]

OUTCOMES = ("noticed", "time-out", "unnoticed", "not covered", "gone")

LEVEL = 0.05
"""Differences that chance makes less often than this are named."""


def chance(lost: int, gained: int) -> float:
    """How often chance makes a difference at least as large (exact test of McNemar, two-sided).

    `lost` faults were noticed before only, `gained` ones now only. By chance, each of them is lost
    or gained with the same probability.
    """
    count, less = lost + gained, min(lost, gained)
    tail = sum(comb(count, number) for number in range(less + 1)) / (1 << count)
    return min(1.0, 2 * tail)


def summary(
    rows: Sequence[dict[str, Any]], total: int, before: Sequence[dict[str, Any]] = ()
) -> str:
    """Counts by room, time-outs, and the faults that one of the two runs noticed."""
    lines = [f"{len(rows)} of {total} faults tried"]
    heads = ["", *OUTCOMES]
    lines += [f"{heads[0]:24}" + "".join(f"{head:>13}" for head in heads[1:])]
    for room in [*sorted({row["room"] for row in rows}), "all"]:
        counts = Counter(row["outcome"] for row in rows if room in (row["room"], "all"))
        lines.append(f"{room:24}" + "".join(f"{counts[outcome]:13}" for outcome in OUTCOMES))
    for row in rows:
        if row["outcome"] == "time-out":
            lines.append(f"time-out: {row['id']} by {row['test']}")
    if before:
        lines += _compared(rows, before)
    return "\n".join(lines) + "\n"


def _compared(rows: Sequence[dict[str, Any]], before: Sequence[dict[str, Any]]) -> list[str]:
    earlier = {row["id"]: row for row in before if row["outcome"] != "gone"}
    pairs = [
        (earlier[row["id"]], row)
        for row in rows
        if row["outcome"] != "gone" and row["id"] in earlier
    ]
    noticed_before = {old["id"] for old, _ in pairs if old["outcome"] in NOTICED}
    noticed_now = {row["id"] for _, row in pairs if row["outcome"] in NOTICED}
    lost, gained = noticed_before - noticed_now, noticed_now - noticed_before
    probability = chance(len(lost), len(gained))
    verdict = "beyond" if probability < LEVEL else "within"
    counts = f"noticed before: {len(noticed_before)}, now: {len(noticed_now)}"
    lines = [
        f"of {len(pairs)} faults in both runs, {counts}; lost: {len(lost)}, gained: {len(gained)}",
        f"{verdict} chance: a difference as large has a probability of {probability:.3g}",
    ]
    for old, _ in pairs:
        if old["id"] in lost:
            lines.append(f"lost: {old['id']} {old['room']}, noticed before by {old['test']}")
    return lines
