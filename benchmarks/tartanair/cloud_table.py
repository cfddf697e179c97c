"""The results of the benchmark of storages as Markdown: all rows, then the figures to reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks.tartanair.timing import Results, markdown, median, share

__all__ = ["AZURE", "NARROW", "PLACES", "Figure", "figures", "tables"]

AZURE = ("obstore", "adlfs", "blobfile")
PLACES = ("local", "mount", *AZURE)
NARROW = ("local", "obstore")  # places behind a line of 1 Gbit/s

_GIB = 1 << 30


class Figure(NamedTuple):
    """What was reached, and what is to be: at most the target, or at least where `least`."""

    what: str
    value: float
    target: float
    least: bool = False

    @property
    def is_reached(self) -> bool:
        return self.value >= self.target if self.least else self.value <= self.target


def tables(document: Mapping[str, Any]) -> str:
    """Both tables, with machine and settings above them."""
    settings = ", ".join(f"{name} {value}" for name, value in document.items() if name != "rows")
    return f"{settings}\n\n{_all_rows(document['rows'])}\n\n{_figures(document['rows'])}"


def figures(results: Results) -> Iterator[Figure]:
    """Those whose rows were run, each of medians."""

    def get(row: str, key: str) -> float | None:
        return median(results.get(row, ()), key)

    def ratio(what: str, row: str, other: str, key: str, target: float) -> Iterator[Figure]:
        value, limit = get(row, key), get(other, key)
        if value is not None and limit:
            yield Figure(what, value / limit, target, key == "bytes_per_second")

    rate = "bytes_per_second"
    for place in PLACES[1:]:
        what = f"{place}: bytes/s while streaming / fetching alone"
        yield from ratio(what, f"stream-{place}", f"raw-{place}", rate, 0.85)
        what = f"{place}: the same with clips that do not overlap"
        yield from ratio(what, f"stream-apart-{place}", f"raw-{place}", rate, 0.85)
    for place in NARROW:
        what = f"{place}, behind 1 Gbit/s: bytes/s while streaming / fetching alone"
        yield from ratio(what, f"stream-narrow-{place}", f"raw-narrow-{place}", rate, 0.85)
    what = "mount: bytes/s while streaming / dd"
    yield from ratio(what, "stream-mount", "dd-mount", "bytes_per_second", 0.85)
    for place in PLACES[1:]:
        what = f"{place}: epoch / from local disk"
        yield from ratio(what, place, "local", "seconds", 1.10)
        what = f"{place}, 60 ms away: epoch / from local disk"
        yield from ratio(what, f"far-{place}", "local", "seconds", 1.10)
    for place in PLACES:
        counted, nbytes = get(f"count-{place}", "counted"), get(f"count-{place}", "bytes")
        if counted is not None and nbytes:
            yield Figure(f"{place}: requests / GiB", counted / nbytes * _GIB, 160)
    for place in PLACES[1:]:
        if (first := get(place, "first_batch_seconds")) is not None:
            yield Figure(f"{place}: first batch, cold, s", first, 1.0)
    for place in PLACES:
        seconds = get(f"open-{place}", "seconds")
        memory = get(f"open-{place}", "peak_memory_bytes")
        if seconds is not None and memory is not None:
            yield Figure(f"{place}: large index opened, s", seconds, 2.0)
            yield Figure(f"{place}: large index opened, peak MB", memory / 1e6, 200)


def _figures(results: Results) -> str:
    columns = ["figure", "value", "to reach", "reached"]
    lines = [
        [
            figure.what,
            f"{figure.value:.2f}",
            f"{'>=' if figure.least else '<='} {figure.target:g}",
            "yes" if figure.is_reached else "NO",
        ]
        for figure in figures(results)
    ]
    return markdown(columns, lines)


def _all_rows(results: Results) -> str:
    columns = ["row", "s", "clips/s", "of local", "MB/s", "threads", "requests", "retries"]
    columns += ["first batch s", "processors busy", "peak MB", "bottleneck"]
    local = median(results.get("local", ()), "clips_per_second")
    lines = []
    for name, runs in results.items():

        def text(key: str, form: str, unit: float = 1, runs: Any = runs) -> str:
            value = median(runs, key)
            return "" if value is None else format(value / unit, form)

        lines.append(
            [
                name,
                text("seconds", ".2f"),
                text("clips_per_second", ".1f"),
                share(median(runs, "clips_per_second"), local),
                text("bytes_per_second", ".0f", 1e6),
                text("threads", ".0f"),
                text("counted" if name.startswith("count-") else "requests", ".0f"),
                text("retries", ".0f"),
                text("first_batch_seconds", ".2f"),
                text("busy", ".0%"),
                text("peak_memory_bytes", ".0f", 1e6),
                str(runs[-1].get("bottleneck", "")),
            ]
        )
    return markdown(columns, lines)
