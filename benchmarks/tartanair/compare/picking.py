"""Which rows belong together: those that differ only along some axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from benchmarks.tartanair.loaders.base import USUAL, Settings

__all__ = [
    "Row",
    "best_by_loader",
    "best_by_workers",
    "fastest",
    "is_plain",
    "ran",
    "rate",
]

Row = Mapping[str, Any]


def ran(rows: Iterable[Row]) -> list[Row]:
    """Those with figures."""
    return [row for row in rows if "clips_per_second" in row]


def is_plain(row: Row, *axes: str, base: Settings = USUAL) -> bool:
    """Whether it is shuffled, and all else but these axes is as in `base`."""
    settings = Settings.of(row["settings"])
    return settings.shuffle != "off" and all(
        getattr(settings, field.name) == getattr(base, field.name)
        for field in fields(Settings)
        if field.name not in (*axes, "shuffle")
    )


def rate(row: Row) -> float:
    """Clips a second; 0 if it did not run."""
    return float(row.get("clips_per_second", 0))


def fastest(rows: Iterable[Row]) -> Row:
    return max(rows, key=rate)


def best_by_loader(rows: Iterable[Row]) -> dict[str, Row]:
    """The fastest row of each loader, in the order of their first rows."""
    by_loader: dict[str, list[Row]] = {}
    for row in rows:
        by_loader.setdefault(row["loader"], []).append(row)
    return {name: fastest(own) for name, own in by_loader.items()}


def best_by_workers(rows: Iterable[Row], base: Settings = USUAL) -> dict[str, Row]:
    """The shuffled row of each loader with its best number of workers, else as in `base`; the
    best first."""
    best = best_by_loader(row for row in ran(rows) if is_plain(row, "workers", base=base))
    return dict(sorted(best.items(), key=lambda item: -rate(item[1])))
