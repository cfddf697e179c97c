"""The page of results: a table for each training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mode
from typing import Any

from benchmarks.tartanair.timing import Result, Results, markdown, median, share
from benchmarks.training.loaders import LOADERS
from benchmarks.training.row import ALONE, LITTLE, MOST, SKIPPED
from benchmarks.training.trainings import TRAININGS

__all__ = ["page"]

_COLUMNS = (  # heading, figure, what it is multiplied with, format
    ("steps/s", "steps_per_second", 1.0, ".2f"),
    ("waiting, %", "waiting", 100.0, ".0f"),
    ("own work / alone", "slower", 1.0, ".2f"),
    ("alone, ms", "alone", 1e3, ".1f"),
    ("95th percentile, ms", "p95", 1e3, ".1f"),
    ("without a core, %", "queued", 100.0, ".0f"),
    ("first batch, s", "first_batch_seconds", 1.0, ".2f"),
    ("peak MB", "peak_memory_bytes", 1e-6, ".0f"),
    ("CPU ms a sample", "cpu_seconds_per_sample", 1e3, ".2f"),
    ("kB read a sample", "bytes_per_sample", 1e-3, ".1f"),
    ("cores busy", "cores", 1.0, ".2f"),
)


def page(document: Mapping[str, Any]) -> str:
    """The tables, and what their columns are."""
    results: Results = document["rows"]
    settings = document["settings"]
    tables: list[str] = []
    shown: set[str] = set()
    for name, training in TRAININGS.items():
        rows = {row: runs for row, runs in results.items() if row.startswith(f"{name}/")}
        shown |= {row.split("/")[2].partition(" +")[0] for row in rows}
        if rows:
            columns = (
                *("step", "place", "loader", "of the most"),
                *(c[0] for c in _COLUMNS),
                "limited by",
            )
            what = (
                f"{training.what[0].upper()}{training.what[1:]}; {training.batch} samples a step."
            )
            table = markdown(columns, _lines(rows))
            reasons = "".join(f"\n- `{row}`: {reason}" for row, reason in _reasons(rows))
            gap = "\n\nNot measured:\n" if reasons else ""
            tables.append(f"## {name}\n\n{what}\n\n{table}{gap}{reasons}")
    template = Path(__file__).with_name("template.md").read_text()
    return template.format(
        machine=document["machine"],
        commit=document["commit"],
        tables="\n\n".join(tables),
        loaders="\n".join(f"- `{n}`: {LOADERS[n].note}." for n in LOADERS if n in shown),
        skipped=SKIPPED,
        little=f"{100 * LITTLE:.0f} %",
        most=f"{100 * MOST:.0f} %",
        alone=f"{ALONE * settings['seconds']:.1f}",
        **settings,
    )


def _lines(rows: Results) -> Iterator[list[str]]:
    """Of the rows that were measured, steps and places together."""
    figures = {row: [run for run in runs if "steps" in run] for row, runs in rows.items()}
    for row, runs in figures.items():
        if not runs:
            continue
        training, step, loader, place = row.split("/")
        most = median(figures.get(f"{training}/{step}/no loader/warm", []), "steps_per_second")
        values = [_value(runs, *column[1:]) for column in _COLUMNS]
        reached = share(median(runs, "steps_per_second"), most)
        limits = [run["limit"] for run in runs if "limit" in run]
        yield [step, place, loader, reached, *values, mode(limits) if limits else ""]


def _value(runs: list[Result], key: str, factor: float, form: str) -> str:
    value = median(runs, key)
    return "" if value is None else format(factor * value, form)


def _reasons(rows: Results) -> Iterator[tuple[str, str]]:
    """Why a row has no figures, or fewer than others."""
    for row, runs in rows.items():
        for run in runs:
            if reason := run.get("skipped") or run.get("error"):
                yield row, reason
