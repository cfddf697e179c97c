"""draw_timeline: a trace as one figure, threads in rows and time from left to right."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SeqRecordError
from seqrecord.text import counted, number_text, percent
from seqrecord.tools.drawing.picture_files import require_matplotlib
from seqrecord.tools.drawing.spans import (
    KINDS,
    STARVE,
    WAIT,
    Counter,
    Spans,
    Track,
    covered,
    read_spans,
    union,
)
from seqrecord.units import format_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

MEANINGS = {
    "fetch": "reading",
    "decode": "decoding",
    "gather": "copying into batches",
    "device": "copying to the device",
    "consumer": "consumer at work",
    "other": "other work",
    "wait": "waiting",
    "starve": "consumer waits for data",
}
"""What the kinds of spans mean, in the order of `KINDS`."""

_STAGES = ("fetch", "decode", "gather", "device")
_BUSY = tuple(i for i, kind in enumerate(KINDS) if i not in (WAIT, STARVE))

_CELLS = 1905  # a pixel each in a figure as it is made
_MAX_TRACKS = 48
_MAX_COUNTERS = 4
_ALARMING = 0.05  # share of the time that a consumer waits for data
_PREFIX = "seqrecord-engine-"
_ROLES = ("scheduler", "load", "copy", "device")


def draw_timeline(
    trace: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    start: float | None = None,
    stop: float | None = None,
) -> Figure:
    """A trace as a matplotlib figure, which a notebook shows; `figure.savefig` writes it to a file.

    On top the consumer, below it when any thread was reading, decoding or copying, then each
    thread and device. Where more happens than can be shown, a column is filled in proportion:
    half full is half of that time. What a row did of the time that is shown is at its right end.

    Args:
        trace: a file in the Chrome trace format, or several that were written on one machine, such
            as those of DataLoader workers. At most 256 MiB each.
        start, stop: the part to draw, in seconds of the trace; all of it by default.

    Raises `MissingPackageError` without matplotlib, `NotFoundError`, `StorageError`, `FormatError`
    for a file that is no trace, and `SeqRecordError` for a part that is not in it.
    """
    require_matplotlib()
    files = [trace] if isinstance(trace, (str, PathLike)) else list(trace)
    spans = read_spans(files)
    timeline = _timeline_of(spans, *_part(spans.seconds, start, stop))
    from seqrecord.tools.drawing.tracks import draw_tracks  # imports matplotlib

    return draw_tracks(timeline, title=", ".join(Path(fspath(file)).name for file in files))


def _part(seconds: float, start: float | None, stop: float | None) -> tuple[float, float]:
    seconds = max(seconds, 1e-6)
    begin = 0.0 if start is None else start
    end = seconds if stop is None else min(stop, seconds)
    if not 0 <= begin < end:
        raise SeqRecordError(
            "not a part of the trace",
            expected=f"0 <= start < stop, and start below {seconds:.3f} s",
            got=f"{begin:g} s to {end if stop is None else stop:g} s",
        )
    return begin, max(end, begin + 1e-6)


@dataclass(frozen=True)
class Row:
    """A row: by kind what share of each cell it takes [kinds, cells]; a counter's has one kind."""

    name: str
    note: str
    shares: Floats
    seams: Floats  # times in seconds when a span follows another one at once
    alarm: bool = False  # the note is in the colour of a consumer that waits


@dataclass(frozen=True)
class Section:
    """Rows of one sort: consumer, stages, threads or counters."""

    name: str
    rows: list[Row]


@dataclass(frozen=True)
class Timeline:
    """A part of a trace. `edges` [cells + 1] are the times between cells, in seconds."""

    edges: Floats
    facts: list[str]
    sections: list[Section]
    kinds: list[str]  # those that occur


def _timeline_of(spans: Spans, begin: float, end: float) -> Timeline:
    """What is shown of a trace from `begin` to `end`, in seconds."""
    view = _View(spans, np.linspace(begin, end, _CELLS + 1))
    present = {k for track in spans.tracks for k in np.unique(track.kind).tolist()}
    kinds = [kind for k, kind in enumerate(KINDS) if k in present]
    sections = [section for section in view.sections() if section.rows]
    return Timeline(view.edges, _facts(spans, begin, end), sections, kinds)


@dataclass(frozen=True)
class _View:
    spans: Spans
    edges: Floats

    def sections(self) -> Iterator[Section]:
        tracks = sorted(self.spans.tracks, key=_rank)
        consumers = [track for track in tracks if _is_consumer(track)][:_MAX_TRACKS]
        others = [track for track in tracks if not _is_consumer(track)][
            : _MAX_TRACKS - len(consumers)
        ]
        hidden = len(tracks) - len(consumers) - len(others)
        yield Section("consumer", [self.track(track) for track in consumers])
        yield Section("any thread", [self.stage(stage) for stage in _STAGES if self.has(stage)])
        name = f"threads; {hidden} more are not drawn" if hidden else "threads"
        yield Section(name, [self.track(track) for track in others])
        counters = self.spans.counters[:_MAX_COUNTERS]
        yield Section("counters", [self.counter(counter) for counter in counters])

    def track(self, track: Track) -> Row:
        # Disjoint spans: their shares add up to at most 1.
        shares = np.stack([covered(*track.of(kind), self.edges) for kind in range(len(KINDS))])
        waits, starves = shares[WAIT].mean(), shares[STARVE].mean()
        busy = f"{percent(shares[list(_BUSY)].sum(axis=0).mean())} busy"
        waiting = f", {percent(starves + waits)} waits" if starves + waits else ""
        alarm = bool(starves >= _ALARMING)
        return Row(self.name(track), busy + waiting, shares, self.seams(track), alarm)

    def seams(self, track: Track) -> Floats:
        """Where a wide span follows another one so closely that no gap would show."""
        cell = self.edges[1] - self.edges[0]
        follows = (track.begin[1:] - track.end[:-1] < cell) & (track.end - track.begin > 3 * cell)[
            1:
        ]
        begin = track.begin[1:][follows]
        inside: Floats = begin[(begin > self.edges[0]) & (begin < self.edges[-1])]
        return inside

    def stage(self, stage: str) -> Row:
        kind = KINDS.index(stage)
        shares = np.zeros((len(KINDS), len(self.edges) - 1))
        shares[kind] = covered(*union([track.of(kind) for track in self.spans.tracks]), self.edges)
        note = f"{percent(shares[kind].mean())} of the time"
        return Row(MEANINGS[stage], note, shares, np.zeros(0))

    def counter(self, counter: Counter) -> Row:
        values = _highest(counter, self.edges)
        highest = values.max()
        sized = counter.name.endswith("bytes") and highest >= 0
        note = f"at most {format_size(int(highest)) if sized else number_text(highest)}"
        shares = np.clip(values / max(float(highest), 1e-12), 0, 1)[None]
        return Row(counter.name, note, shares, np.zeros(0))

    def has(self, stage: str) -> bool:
        kind = KINDS.index(stage)
        return any((track.kind == kind).any() for track in self.spans.tracks)

    def name(self, track: Track) -> str:
        name = track.name.removeprefix(_PREFIX).replace("_", " ")
        if _is_consumer(track):
            name = "consumer"
        several = len({other.process for other in self.spans.tracks}) > 1
        return f"{name} · {track.process}" if several else name


def _facts(spans: Spans, begin: float, end: float) -> list[str]:
    whole = f"{number_text(spans.seconds)} s"
    if end - begin < 0.999 * spans.seconds:
        whole = f"{number_text(begin)} to {number_text(end)} s of {whole}"
    threads = f"{counted(len(spans.tracks), 'thread')} and devices"
    lost = [f"{spans.lost:,} later spans were not recorded"] if spans.lost else []
    return [whole, counted(spans.num_spans, "span"), threads, *lost]


def _highest(counter: Counter, edges: Floats) -> Floats:
    """The highest value of a counter in each cell between `edges`."""
    before = np.searchsorted(counter.times, edges[:-1], side="right") - 1
    values = np.where(before >= 0, counter.values[before], 0.0)
    cell = np.searchsorted(edges, counter.times, side="right") - 1
    inside = (cell >= 0) & (cell < len(values))
    np.maximum.at(values, cell[inside], counter.values[inside])
    return values


def _rank(track: Track) -> tuple[object, ...]:
    """Consumers first, then the engine's threads from the first stage to the last."""
    role = next((i for i, role in enumerate(_ROLES) if role in track.name), len(_ROLES))
    if (track.kind == KINDS.index("device")).mean() > 0.5:
        role = len(_ROLES) + 1
    numbers = tuple(int(n[:9]) for n in re.findall(r"\d+", track.name))
    return (not _is_consumer(track), track.process, role, numbers, track.name)


def _is_consumer(track: Track) -> bool:
    return bool(np.isin(track.kind, (KINDS.index("consumer"), STARVE)).any())
