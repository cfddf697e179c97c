"""The published comparison, and the cells of ours that stand beside each of its rows.

Microsoft's dataloader-benchmark timed epochs of TartanAir's abandonedfactory with five features:
https://github.com/microsoft/dataloader-benchmark/blob/main/doc/stats.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.tartanair.compare.cell import Cell
from benchmarks.tartanair.loaders.base import Loader, Settings
from benchmarks.tartanair.timing import markdown
from seqrecord.writing.stored_schema import DEFAULT_CODEC

__all__ = [
    "BATCH_SIZE",
    "CLIPS",
    "LARGE_MEMORY",
    "TABLES",
    "Counterpart",
    "Published",
    "Table",
    "batch_sizes",
    "published_grid",
    "scaled_minutes",
    "table_text",
]

CLIPS = 15_488  # of an epoch; abandonedfactory has so many frames with all five features
BATCH_SIZE = 32

Row = Mapping[str, Any]

_FRAMES = 128  # of a batch that our usual memory limit has room for
LARGE_MEMORY = "10GiB"  # for batches of 32 clips: 2.7 GB each


@dataclass(frozen=True)
class Counterpart:
    """A loader of ours with what differs from the defaults, to stand beside a published row."""

    loader: str
    note: str
    settings: Mapping[str, Any]

    def cells(self, base: Settings, storage: str) -> list[Cell]:
        """The same with the published batch size, and with ours where that does not fit."""
        settings = replace(base, **self.settings, storage=storage)
        sizes = [BATCH_SIZE] if settings.clip_len == 1 else [BATCH_SIZE, base.batch_size]
        return [
            Cell(self.loader, _with_batches(self.loader, settings, size))
            for size in dict.fromkeys(sizes)
        ]


@dataclass(frozen=True)
class Published:
    """A published row: minutes of an epoch, or in words what came instead."""

    method: str
    minutes: int | str
    workers: int
    shuffle: str
    prefetch: str
    beside: Sequence[Counterpart]


@dataclass(frozen=True)
class Table:
    """A published table, and the storages of ours that stand beside it with their names."""

    title: str
    where: str
    storages: Mapping[str, str]
    rows: Sequence[Published] = field(repr=False)


def scaled_minutes(row: Row) -> float:
    """Of the published epoch, at a row's clips a second."""
    return CLIPS / float(row["clips_per_second"]) / 60


def published_grid(loaders: Mapping[str, Loader], base: Settings) -> list[Cell]:
    """Every cell that stands beside a published row."""
    cells = [
        cell
        for table in TABLES
        for row in table.rows
        for counterpart in row.beside
        if counterpart.loader in loaders
        for storage in table.storages
        for cell in counterpart.cells(base, storage)
    ]
    return list(dict.fromkeys(cells))


def table_text(table: Table, rows: Mapping[str, Row], base: Settings) -> str:
    """Published rows, and below each ours, as Markdown. `rows` are by their cells' keys.

    Ours are in minutes of the published epoch, with the largest batch that ran.
    """
    columns = ["method", "published, min", *(f"here: {name}" for name in table.storages.values())]
    columns += ["codec", "batch size", "workers", "shuffle", "prefetch"]
    lines = []
    for published in table.rows:
        settings = [
            "",
            str(BATCH_SIZE),
            str(published.workers),
            published.shuffle,
            published.prefetch,
        ]
        lines.append(
            [
                f"**{published.method}**",
                f"**{published.minutes}**",
                *[""] * len(table.storages),
                *settings,
            ]
        )
        lines += [_beside(part, table, rows, base) for part in published.beside]
    return markdown(columns, lines)


def batch_sizes(rows: Mapping[str, Row], base: Settings) -> tuple[dict[int, set[str]], set[str]]:
    """The batch sizes of ours that the tables show, each with the loaders that have it, and why
    larger ones did not run."""
    sizes: dict[int, set[str]] = {}
    reasons = set()
    for table in TABLES:
        for part in (part for row in table.rows for part in row.beside):
            for cells in (part.cells(base, storage) for storage in table.storages):
                if cell := _ran(cells, rows):
                    sizes.setdefault(cell.settings.batch_size, set()).add(cell.loader)
                    larger = [rows.get(c.key, {}) for c in cells[: cells.index(cell)]]
                    reasons |= {str(r.get("skipped") or r.get("error")) for r in larger if r}
    return sizes, reasons


def _beside(part: Counterpart, table: Table, rows: Mapping[str, Row], base: Settings) -> list[str]:
    found = [_ran(part.cells(base, storage), rows) for storage in table.storages]
    minutes = [
        "not run" if cell is None else _digits(scaled_minutes(rows[cell.key])) for cell in found
    ]
    settings = replace(base, **part.settings)
    sizes = {cell.settings.batch_size: None for cell in found if cell is not None}
    shuffle = {"off": "no", "full": "full", "buffer": str(settings.shuffle_buffer or "default")}
    return [
        f"`{part.loader}`{part.note and ', '}{part.note}",
        "",
        *minutes,
        settings.codec if "codec" in part.settings else "its own",
        ", ".join(map(str, sizes)) or "-",
        str(settings.workers),
        shuffle[settings.shuffle],
        str(settings.prefetch) if settings.workers else "-",
    ]


def _ran(cells: Sequence[Cell], rows: Mapping[str, Row]) -> Cell | None:
    return next((c for c in cells if "clips_per_second" in rows.get(c.key, {})), None)


def _with_batches(loader: str, settings: Settings, size: int) -> Settings:
    settings = replace(settings, batch_size=size)
    if loader == "seqrecord" and size * settings.clip_len > _FRAMES:
        return replace(settings, memory_limit=LARGE_MEMORY)
    return settings


def _digits(minutes: float) -> str:
    return f"{minutes:.0f}" if minutes >= 10 else f"{minutes:.2g}"


_FOUR = {"workers": 4}
_RECORDS = {"codec": DEFAULT_CODEC}
_MEANT = "as it is meant to be used"
_DEFAULTS = {**_RECORDS, "shuffle": "buffer", "shuffle_buffer": None}
_OURS = (
    Counterpart("seqrecord", "with the same settings", {**_RECORDS, **_FOUR, "shuffle": "buffer"}),
    Counterpart("seqrecord", _MEANT, _DEFAULTS),
)
_MAP = {
    shuffle: (Counterpart("seqrecord-map", "", {**_RECORDS, **_FOUR, "shuffle": shuffle}),)
    for shuffle in ("off", "full")
}
_ITER = Counterpart(
    "microsoft-seqrecord", "the published code's last version", {**_FOUR, "shuffle": "buffer"}
)
_ORIGINAL = {
    shuffle: (Counterpart("original", "", {**_FOUR, "shuffle": shuffle, "prefetch": 1}),)
    for shuffle in ("off", "full")
}
_SINGLE = (
    Counterpart("ffcv", "", {**_FOUR, "clip_len": 1, "shuffle": "full"}),
    Counterpart("seqrecord", _MEANT, {**_DEFAULTS, "clip_len": 1}),
)
_CLIPS_OF_FFCV = (Counterpart("ffcv", "clips as indices of frames", {**_FOUR, "shuffle": "full"}),)

TABLES: tuple[Table, ...] = (
    Table(
        "One machine",
        "a virtual machine, Standard NC6s v3 (6 cores, 112 GiB), data through blobfuse",
        {"local": "disk, warm", "cold": "disk, cold", "mount": "mount"},
        (
            Published("SeqRecord (iter)", 18, 4, "100", "2", (_ITER, *_OURS)),
            Published(
                "SeqRecord (iter)",
                13,
                6,
                "100",
                "2",
                (replace(_ITER, settings={"workers": 6, "shuffle": "buffer"}),),
            ),
            Published("SeqRecord (map)", 32, 4, "no", "2", _MAP["off"]),
            Published("SeqRecord (map)", 600, 4, "full", "2", _MAP["full"]),
            Published("original loader", 44, 4, "no", "1", _ORIGINAL["off"]),
            Published("original loader", 50, 4, "full", "1", _ORIGINAL["full"]),
            Published("ffcv, single frames", 15, 4, "full", "unknown", _SINGLE),
            Published("ffcv, clips of 16", "memory issues", 4, "full", "unknown", _CLIPS_OF_FFCV),
        ),
    ),
    Table(
        "A cluster",
        "Azure ML, Standard NC6s v3; how data was fetched and cached there is not known",
        {"mount": "mount"},
        (
            Published("SeqRecord (iter)", 18, 4, "100", "2", (_ITER, *_OURS)),
            Published("original loader", 50, 4, "no", "1", _ORIGINAL["off"]),
            Published("original loader", 360, 4, "full", "1", _ORIGINAL["full"]),
            Published("ffcv, single frames", 10, 4, "quasi-random", "unknown", _SINGLE),
        ),
    ),
    Table(
        "Straight from Azure",
        "the same virtual machine, blobs read through blobfile",
        {"blobfile": "blobfile", "obstore": "obstore", "adlfs": "adlfs"},
        (Published("SeqRecord (iter)", 45, 4, "100", "2", _OURS),),
    ),
)
