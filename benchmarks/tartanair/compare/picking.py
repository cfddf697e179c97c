"""Which rows belong together: those that differ only along some axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.tartanair.loaders.base import Settings

__all__ = ["Row", "best_by_loader", "fastest", "is_plain", "is_shuffled", "ran"]

Row = Mapping[str, Any]


def ran(rows: Iterable[Row]) -> list[Row]:
    """Those with figures."""
    return [row for row in rows if "clips_per_second" in row]


def is_plain(row: Row, *axes: str) -> bool:
    """Whether all but these axes, and the shuffle, are at their defaults."""
    default, settings = Settings(), row["settings"]
    return ("consumer" in axes or row["consumer"] == "touch") and all(
        _as_list(settings[name]) == _as_list(getattr(default, name))
        for name in settings
        if name not in (*axes, "shuffle")
    )


def is_shuffled(row: Row) -> bool:
    return bool(row["settings"]["shuffle"] != "off")


def fastest(rows: Iterable[Row]) -> Row:
    return max(rows, key=lambda row: float(row["clips_per_second"]))


def best_by_loader(rows: Iterable[Row]) -> dict[str, Row]:
    """The fastest row of each loader, in the order of their first rows."""
    by_loader: dict[str, list[Row]] = {}
    for row in rows:
        by_loader.setdefault(row["loader"], []).append(row)
    return {name: fastest(own) for name, own in by_loader.items()}


def _as_list(value: object) -> object:
    """JSON has lists for tuples."""
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
