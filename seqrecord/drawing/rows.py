"""What a timeline shows: rows of shares of time, and what is said of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqrecord.drawing.spans import (
    KINDS,
    STARVE,
    WAIT,
    Counter,
    Lane,
    Spans,
    covered,
    union,
)
from seqrecord.units import format_size
from seqrecord.wording import counted, number_text

__all__ = ["MEANINGS", "Row", "Section", "Timeline", "timeline_of"]

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
_MAX_LANES = 48
_MAX_COUNTERS = 4
_ALARMING = 0.05  # share of the time that a consumer waits for data
_PREFIX = "seqrecord-engine-"
_ROLES = ("conductor", "load", "copy", "device")


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


def timeline_of(spans: Spans, begin: float, end: float) -> Timeline:
    """What is shown of a trace from `begin` to `end`, in seconds."""
    view = _View(spans, np.linspace(begin, end, _CELLS + 1))
    present = {k for lane in spans.lanes for k in np.unique(lane.kind).tolist()}
    kinds = [kind for k, kind in enumerate(KINDS) if k in present]
    sections = [section for section in view.sections() if section.rows]
    return Timeline(view.edges, _facts(spans, begin, end), sections, kinds)


@dataclass(frozen=True)
class _View:
    spans: Spans
    edges: Floats

    def sections(self) -> Iterator[Section]:
        lanes = sorted(self.spans.lanes, key=_rank)
        consumers = [lane for lane in lanes if _is_consumer(lane)][:_MAX_LANES]
        others = [lane for lane in lanes if not _is_consumer(lane)][: _MAX_LANES - len(consumers)]
        hidden = len(lanes) - len(consumers) - len(others)
        yield Section("consumer", [self.lane(lane) for lane in consumers])
        yield Section("any thread", [self.stage(stage) for stage in _STAGES if self.has(stage)])
        name = f"threads; {hidden} more are not drawn" if hidden else "threads"
        yield Section(name, [self.lane(lane) for lane in others])
        counters = self.spans.counters[:_MAX_COUNTERS]
        yield Section("counters", [self.counter(counter) for counter in counters])

    def lane(self, lane: Lane) -> Row:
        # Disjoint spans: their shares add up to at most 1.
        shares = np.stack([covered(*lane.of(kind), self.edges) for kind in range(len(KINDS))])
        waits, starves = shares[WAIT].mean(), shares[STARVE].mean()
        busy = f"{_percent(shares[list(_BUSY)].sum(axis=0).mean())} busy"
        waiting = f", {_percent(starves + waits)} waits" if starves + waits else ""
        alarm = bool(starves >= _ALARMING)
        return Row(self.name(lane), busy + waiting, shares, self.seams(lane), alarm)

    def seams(self, lane: Lane) -> Floats:
        """Where a wide span follows another one so closely that no gap would show."""
        cell = self.edges[1] - self.edges[0]
        follows = (lane.begin[1:] - lane.end[:-1] < cell) & (lane.end - lane.begin > 3 * cell)[1:]
        begin = lane.begin[1:][follows]
        inside: Floats = begin[(begin > self.edges[0]) & (begin < self.edges[-1])]
        return inside

    def stage(self, stage: str) -> Row:
        kind = KINDS.index(stage)
        shares = np.zeros((len(KINDS), len(self.edges) - 1))
        shares[kind] = covered(*union([lane.of(kind) for lane in self.spans.lanes]), self.edges)
        note = f"{_percent(shares[kind].mean())} of the time"
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
        return any((lane.kind == kind).any() for lane in self.spans.lanes)

    def name(self, lane: Lane) -> str:
        name = lane.name.removeprefix(_PREFIX).replace("_", " ")
        if _is_consumer(lane):
            name = "consumer"
        several = len({other.process for other in self.spans.lanes}) > 1
        return f"{name} · {lane.process}" if several else name


def _facts(spans: Spans, begin: float, end: float) -> list[str]:
    whole = f"{number_text(spans.seconds)} s"
    if end - begin < 0.999 * spans.seconds:
        whole = f"{number_text(begin)} to {number_text(end)} s of {whole}"
    threads = f"{counted(len(spans.lanes), 'thread')} and devices"
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


def _rank(lane: Lane) -> tuple[object, ...]:
    """Consumers first, then the engine's threads from the first stage to the last."""
    role = next((i for i, role in enumerate(_ROLES) if role in lane.name), len(_ROLES))
    if (lane.kind == KINDS.index("device")).mean() > 0.5:
        role = len(_ROLES) + 1
    numbers = tuple(int(n[:9]) for n in re.findall(r"\d+", lane.name))
    return (not _is_consumer(lane), lane.process, role, numbers, lane.name)


def _is_consumer(lane: Lane) -> bool:
    return bool(np.isin(lane.kind, (KINDS.index("consumer"), STARVE)).any())


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
