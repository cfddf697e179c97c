"""The published comparison, and rows of ours beside each of its rows.

Microsoft's dataloader-benchmark timed epochs of TartanAir's abandonedfactory with five features:
https://github.com/microsoft/dataloader-benchmark/blob/main/doc/stats.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from benchmarks.tartanair.loaders.base import USUAL, Settings
from benchmarks.timing import markdown, ranged
from seqrecord.store.writing.stored_schema import DEFAULT_CODEC

__all__ = ["LARGE_MEMORY", "Beside", "published_settings", "published_table"]

CLIPS = 15_488  # of an epoch: the frames of abandonedfactory that have all five features
BATCH_SIZE = 32
STORAGES = {"local": "disk, warm", "cold": "disk, cold", "mount": "mount", "blobfile": "blobfile"}
LARGE_MEMORY = "10GiB"  # for batches of 32 clips: 2.7 GB each
_FRAMES = 128  # of the largest batch that fits the usual memory limit

Find: TypeAlias = Callable[[str, Settings], "Mapping[str, Any] | str"]
"""The result of a loader's row with these settings, or the reason that there is none."""


class Beside(NamedTuple):
    """A loader measured here, its settings that differ from the usual, and its storages."""

    loader: str
    note: str
    settings: Mapping[str, Any]
    storages: Sequence[str] = ("local", "cold")

    def tries(self, storage: str) -> list[Settings]:
        """With the published batch size; with workers also the usual one, if that is too large."""
        settings = replace(USUAL, **self.settings, storage=storage)
        sizes = [BATCH_SIZE]
        if settings.workers and settings.clip_len > 1:
            sizes.append(USUAL.batch_size)
        made = [replace(settings, batch_size=size) for size in sizes]
        if self.loader == "seqrecord":
            large = [s.batch_size * s.clip_len > _FRAMES for s in made]
            memory = {True: LARGE_MEMORY, False: settings.memory_limit}
            made = [replace(s, memory_limit=memory[i]) for s, i in zip(made, large, strict=True)]
        return made


class Published:
    """A published row: method, minutes of an epoch or words, workers, shuffle and prefetch."""

    def __init__(self, row: tuple[str, int | str, int, str, str], *beside: Beside) -> None:
        self.row = row
        self.beside = beside


def published_settings() -> Iterator[tuple[str, Settings]]:
    """Loader and settings of every row beside a published one."""
    for row in PUBLISHED:
        for part in row.beside:
            for storage in part.storages:
                for settings in part.tries(storage):
                    yield part.loader, settings


def published_table(find: Find) -> str:
    """Published rows, and ours below each, in minutes of the published epoch at a row's clips/s.

    Of the first epoch, as theirs: later ones may find frames in memory. The largest batch that ran
    is shown, with the median and range of its repeats.
    """
    columns = ["method", "published, min", *(f"here: {name}" for name in STORAGES.values())]
    columns += ["codec", "batch size", "workers", "shuffle", "prefetch"]
    lines = []
    for row in PUBLISHED:
        method, minutes, *theirs = map(str, row.row)
        gap = [""] * (len(STORAGES) + 1)
        lines.append([f"**{method}**", f"**{minutes}**", *gap, str(BATCH_SIZE), *theirs])
        lines += [_line(part, find) for part in row.beside]
    return markdown(columns, lines)


def _line(part: Beside, find: Find) -> list[str]:
    minutes: list[str] = []
    sizes: dict[int, None] = {}
    for storage in STORAGES:
        found = [(s, find(part.loader, s)) for s in part.tries(storage)]
        ran = [(s, row) for s, row in found if not isinstance(row, str)]
        if storage not in part.storages:
            minutes.append("-")
        elif not ran:
            minutes.append(f"not run: {found[-1][1]}")
        else:
            runs = [{"taken": CLIPS / run["first_clips_per_second"]} for run in ran[0][1]["runs"]]
            minutes.append(ranged(runs, "taken", ".1f", 60))
            sizes[ran[0][0].batch_size] = None
    settings = replace(USUAL, **part.settings)
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


_FOUR = {"workers": 4}
_RECORDS = {"codec": DEFAULT_CODEC}
_MEANT = "with its defaults"
_SAME = "with the same settings"
_DEFAULTS = {**_RECORDS, "shuffle": "buffer", "shuffle_buffer": None}
_BUFFER, _IN_ORDER, _FULL = ({**_FOUR, "shuffle": shuffle} for shuffle in ("buffer", "off", "full"))
_LAST = "the published code's last version"
_MOUNTED = ("local", "cold", "mount")
_AZURE = ("blobfile",)

PUBLISHED = (
    Published(
        ("SeqRecord (iter)", 18, 4, "100", "2"),
        Beside("microsoft-seqrecord", _LAST, _BUFFER, _MOUNTED),
        Beside("seqrecord", _SAME, {**_RECORDS, **_BUFFER}, _MOUNTED),
        Beside("seqrecord", _MEANT, _DEFAULTS, _MOUNTED),
    ),
    Published(
        ("SeqRecord (iter)", 13, 6, "100", "2"),
        Beside("microsoft-seqrecord", _LAST, {**_BUFFER, "workers": 6}),
    ),
    Published(
        ("SeqRecord (map)", 32, 4, "no", "2"),
        Beside("seqrecord-map", "", _RECORDS | _IN_ORDER, _MOUNTED),
    ),
    Published(
        ("SeqRecord (map)", 600, 4, "full", "2"), Beside("seqrecord-map", "", _RECORDS | _FULL)
    ),
    Published(
        ("original loader", 44, 4, "no", "1"),
        Beside("original", "", {**_IN_ORDER, "prefetch": 1}, _MOUNTED),
    ),
    Published(
        ("original loader", 50, 4, "full", "1"), Beside("original", "", {**_FULL, "prefetch": 1})
    ),
    Published(
        ("ffcv, single frames", 15, 4, "full", "unknown"),
        Beside("ffcv", "", {**_FULL, "clip_len": 1}),
        Beside("seqrecord", _MEANT, {**_DEFAULTS, "clip_len": 1}),
    ),
    Published(
        ("ffcv, clips of 16", "memory issues", 4, "full", "unknown"),
        Beside("ffcv", "clips as indices of frames", _FULL),
    ),
    Published(
        ("SeqRecord (iter), Azure through blobfile", 45, 4, "100", "2"),
        Beside("seqrecord", _SAME, {**_RECORDS, **_BUFFER}, _AZURE),
        Beside("seqrecord", _MEANT, _DEFAULTS, _AZURE),
    ),
)
