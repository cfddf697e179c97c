"""timeline: a trace as one picture, threads in rows and time from left to right."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from seqrecord.drawing.spans import (
    KINDS,
    STARVE,
    WAIT,
    Counter,
    Lane,
    Spans,
    covered,
    read_spans,
    union,
)
from seqrecord.drawing.theme import (
    BACKGROUND,
    DIM,
    LINE,
    TEXT,
    font,
    number_text,
    shortened,
    text_width,
)
from seqrecord.errors import SeqRecordError
from seqrecord.storage import local_path
from seqrecord.units import format_size
from seqrecord.wording import counted

__all__ = ["draw_timeline"]

Colour = tuple[int, int, int]

# Okabe and Ito's palette, which colour-blind people tell apart: https://jfly.uni-koeln.de/color/
_COLOURS: dict[str, Colour] = {
    "fetch": (86, 180, 233),
    "decode": (230, 159, 0),
    "gather": (0, 158, 115),
    "device": (204, 121, 167),
    "consumer": (240, 228, 66),
    "other": (160, 166, 176),
    "wait": (72, 78, 90),
    "starve": (213, 94, 0),
}
_MEANINGS = {
    "fetch": "reading",
    "decode": "decoding",
    "gather": "copying into batches",
    "device": "copying to the device",
    "consumer": "consumer at work",
    "other": "other work",
    "wait": "waiting",
    "starve": "consumer waits for data",
}
_STAGES = ("fetch", "decode", "gather", "device")
_BUSY = tuple(i for i, kind in enumerate(KINDS) if i not in (WAIT, STARVE))

_TRACK = (31, 34, 40)  # of a lane where nothing happens
_MAX_LANES = 48
_MAX_COUNTERS = 4
_LEAST_WIDTH = 640
_ALARMING = 0.05  # share of the time that a consumer waits for data
_PREFIX = "seqrecord-engine-"
_ROLES = ("conductor", "load", "copy", "device")


def draw_timeline(
    trace: str | PathLike[str] | Sequence[str | PathLike[str]],
    path: str | PathLike[str],
    *,
    max_width: int = 2400,
    start: float | None = None,
    stop: float | None = None,
) -> Path:
    """Write a picture of a trace to `path`, as PNG; returns it.

    On top the consumer, below it when any thread was reading, decoding or copying, then each
    thread and device. Where more happens than a pixel can show, a column is filled in proportion:
    half full is half of that time. What a row did of the time that is shown is at its right end.

    Args:
        trace: a file in the Chrome trace format, or several that were written on one machine, such
            as those of DataLoader workers. At most 256 MiB each.
        path: the picture; one that is there is replaced.
        max_width: pixels, at least 640.
        start, stop: the part to draw, in seconds of the trace; all of it by default.

    Raises `NotFoundError`, `StorageError`, `FormatError` for a file that is no trace, and
    `SeqRecordError` for a part that is not in it.
    """
    target = local_path(path, "the picture")
    files = [trace] if isinstance(trace, (str, PathLike)) else list(trace)
    spans = read_spans(files)
    begin, end = _part(spans.seconds, start, stop)
    title = ", ".join(Path(fspath(file)).name for file in files)
    picture = _Picture(spans, title, begin, end, max(max_width, _LEAST_WIDTH)).draw()
    picture.save(target, format="png")
    return target


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
class _Row:
    """A row of the picture: by kind what share of each pixel it takes [kinds, pixels]."""

    name: str
    note: str
    shares: npt.NDArray[np.float64]
    seams: npt.NDArray[np.int64]  # pixels where a span follows another one at once
    thin: bool = False
    alarm: bool = False  # the note is in the colour of a starving consumer


class _Picture:
    """Lays out and draws. Lengths are in units that grow with the width."""

    def __init__(self, spans: Spans, title: str, begin: float, end: float, width: int) -> None:
        self._unit = unit = width / 1600
        self._spans = spans
        self._title = title
        self._begin, self._end = begin, end
        self._width = width
        self._margin = round(16 * unit)
        self._small, self._large = round(13 * unit), round(20 * unit)
        self._left = self._margin + round(150 * unit)
        self._right = width - self._margin - round(148 * unit)
        self._pixels = self._right - self._left
        self._edges = np.linspace(begin, end, self._pixels + 1)

    def draw(self) -> Image.Image:
        lanes = sorted(self._spans.lanes, key=_rank)
        consumers = [lane for lane in lanes if _is_consumer(lane)]
        others = [lane for lane in lanes if not _is_consumer(lane)]
        room = max(0, _MAX_LANES - len(consumers[:_MAX_LANES]))
        hidden = len(lanes) - len(consumers[:_MAX_LANES]) - len(others[:room])
        threads = [self._lane(lane) for lane in others[:room]]
        sections = [
            ("", [self._lane(lane) for lane in consumers[:_MAX_LANES]]),
            ("any thread", [self._stage(stage) for stage in _STAGES if self._has(stage)]),
            (f"threads; {hidden} more are not drawn" if hidden else "threads", threads),
        ]
        sections = [(name, rows) for name, rows in sections if rows]
        counters = self._spans.counters[:_MAX_COUNTERS]
        unit = self._unit
        top = round(64 * unit)
        axis = round(24 * unit)
        height = top + axis + round(52 * unit)
        height += sum(self._height(row) for _, rows in sections for row in rows)
        height += sum(self._heading(name) for name, _ in sections)
        height += (self._heading("counters") + round(46 * unit) * len(counters)) * bool(counters)
        image = Image.new("RGB", (self._width, height), BACKGROUND)
        draw = ImageDraw.Draw(image)
        self._draw_header(draw)
        self._draw_axis(draw, top, height - round(48 * unit))
        y = top + axis
        for name, rows in sections:
            y = self._draw_section(draw, name, y)
            for row in rows:
                self._draw_row(image, draw, row, y)
                y += self._height(row)
        if counters:
            y = self._draw_section(draw, "counters", y)
            for counter in counters:
                self._draw_counter(image, draw, counter, y)
                y += round(46 * unit)
        self._draw_legend(draw, y + round(26 * unit))
        return image

    # Rows

    def _lane(self, lane: Lane) -> _Row:
        shares = np.stack(
            [covered(*lane.of(kind), self._edges) for kind in range(len(KINDS))]
        )  # disjoint spans: their shares add up to at most 1
        seams = self._seams(lane)
        waits, starves = shares[WAIT].mean(), shares[STARVE].mean()
        alarm = starves >= _ALARMING
        busy = f"{_percent(shares[list(_BUSY)].sum(axis=0).mean())} busy"
        waiting = f", {_percent(starves + waits)} waits" if starves + waits else ""
        return _Row(self._lane_name(lane), busy + waiting, shares, seams, alarm=alarm)

    def _seams(self, lane: Lane) -> npt.NDArray[np.int64]:
        """Pixels where a wide span follows another one so closely that no gap would show."""
        pixel = self._seconds / self._pixels
        follows = (lane.begin[1:] - lane.end[:-1] < pixel) & (lane.end - lane.begin > 3 * pixel)[1:]
        begin = lane.begin[1:][follows]
        begin = begin[(begin >= self._begin) & (begin < self._end)]
        return ((begin - self._begin) / pixel).astype(np.int64)

    def _stage(self, stage: str) -> _Row:
        kind = KINDS.index(stage)
        begin, end = union([lane.of(kind) for lane in self._spans.lanes])
        shares = np.zeros((len(KINDS), self._pixels))
        shares[kind] = covered(begin, end, self._edges)
        note = f"{_percent(shares[kind].mean())} of the time"
        return _Row(_MEANINGS[stage], note, shares, np.zeros(0, np.int64), thin=True)

    def _has(self, stage: str) -> bool:
        kind = KINDS.index(stage)
        return any((lane.kind == kind).any() for lane in self._spans.lanes)

    def _lane_name(self, lane: Lane) -> str:
        name = lane.name.removeprefix(_PREFIX).replace("_", " ")
        if _is_consumer(lane):
            name = "consumer"
        several = len({other.process for other in self._spans.lanes}) > 1
        return f"{name} · {lane.process}" if several else name

    def _height(self, row: _Row) -> int:
        return round((20 if row.thin else 34) * self._unit)

    def _heading(self, name: str) -> int:
        return round((26 if name else 6) * self._unit)

    @property
    def _seconds(self) -> float:
        return self._end - self._begin

    # Drawing

    def _draw_header(self, draw: ImageDraw.ImageDraw) -> None:
        unit, margin = self._unit, self._margin
        title = shortened(self._title, self._width / 2, self._large)
        draw.text((margin, 30 * unit), title, TEXT, font(self._large), anchor="ls")
        spans = self._spans
        whole = f"{number_text(spans.seconds)} s"
        if self._seconds < 0.999 * spans.seconds:
            whole = f"{number_text(self._begin)} to {number_text(self._end)} s of {whole}"
        facts = [
            whole,
            counted(spans.num_spans, "span"),
            f"{counted(len(spans.lanes), 'thread')} and devices",
        ]
        if spans.lost:
            facts.append(f"{spans.lost:,} later spans were not recorded")
        text = "   ·   ".join(facts)
        draw.text((margin, 52 * unit), text, DIM, font(self._small), anchor="ls")

    def _draw_section(self, draw: ImageDraw.ImageDraw, name: str, y: int) -> int:
        below = y + self._heading(name)
        if name:
            place = (self._margin, below - 6 * self._unit)
            draw.text(place, name, DIM, font(self._small), anchor="ls")
        return below

    def _draw_row(self, image: Image.Image, draw: ImageDraw.ImageDraw, row: _Row, y: int) -> None:
        height = self._height(row) - max(2, round(4 * self._unit))
        image.paste(Image.fromarray(_columns(row, height)), (self._left, y))
        colour = _COLOURS["starve"] if row.alarm else TEXT
        self._draw_texts(draw, row.name, row.note, y + height / 2, colour)

    def _draw_texts(
        self, draw: ImageDraw.ImageDraw, name: str, note: str, y: float, colour: Colour
    ) -> None:
        gap = 8 * self._unit
        fitting = shortened(name, self._left - self._margin - gap, self._small)
        draw.text((self._margin, y), fitting, TEXT, font(self._small), anchor="lm")
        draw.text((self._right + gap, y), note, colour, font(self._small), anchor="lm")

    def _draw_counter(
        self, image: Image.Image, draw: ImageDraw.ImageDraw, counter: Counter, y: int
    ) -> None:
        height = round(42 * self._unit)
        values = _highest(counter, self._edges)
        most = max(float(values.max()), 1e-12)
        rows = np.arange(height, 0, -1)[:, None] / height
        filled = rows <= np.clip(values / most, 0, 1)
        pixels = np.where(filled[..., None], DIM, _TRACK).astype(np.uint8)
        image.paste(Image.fromarray(pixels), (self._left, y))
        highest = values.max()
        sized = counter.name.endswith("bytes") and highest >= 0
        note = f"at most {format_size(int(highest)) if sized else number_text(highest)}"
        self._draw_texts(draw, counter.name, note, y + height / 2, TEXT)

    def _draw_axis(self, draw: ImageDraw.ImageDraw, top: int, bottom: int) -> None:
        line = max(1, round(self._unit))
        for time, text in _ticks(self._begin, self._end, self._pixels / (90 * self._unit)):
            x = self._left + (time - self._begin) / self._seconds * self._pixels
            draw.line((x, top + 20 * self._unit, x, bottom), LINE, line)
            place = (x, top + 14 * self._unit)
            draw.text(place, text, DIM, font(self._small), anchor="ms")

    def _draw_legend(self, draw: ImageDraw.ImageDraw, y: int) -> None:
        x, unit = float(self._left), self._unit
        present = {KINDS[k] for lane in self._spans.lanes for k in np.unique(lane.kind).tolist()}
        for kind in KINDS:
            if kind in present:
                side = 12 * unit
                draw.rectangle((x, y - side / 2, x + side, y + side / 2), _COLOURS[kind])
                x += side + 6 * unit
                draw.text((x, y), _MEANINGS[kind], TEXT, font(self._small), anchor="lm")
                x += text_width(_MEANINGS[kind], self._small) + 22 * unit


def _columns(row: _Row, height: int) -> npt.NDArray[np.uint8]:
    """A row's pixels, uint8 [height, pixels, 3]: each column is filled from below, by kind."""
    pixels = np.empty((height, row.shares.shape[1], 3), np.uint8)
    pixels[:] = _TRACK
    # What takes any time at all shows.
    sizes = np.where(row.shares > 0, np.maximum(np.rint(row.shares * height), 1), 0)
    tops = np.minimum(np.cumsum(sizes, axis=0), height)
    from_below = np.arange(height, 0, -1)[:, None]
    drawn = np.zeros((height, row.shares.shape[1]), bool)
    for kind, top in zip(KINDS, tops, strict=True):
        mine = (from_below <= top) & ~drawn
        pixels[mine] = _COLOURS[kind]
        drawn |= mine
    pixels[:, row.seams] = pixels[:, row.seams] * 0.6
    return pixels


def _highest(counter: Counter, edges: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
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


def _ticks(begin: float, end: float, most: float) -> list[tuple[float, str]]:
    """At most so many round times of `begin` to `end`, in seconds, and what to write there."""
    least = (end - begin) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999)
    units = ((1.0, "s"), (1e3, "ms"), (1e6, "µs"))
    scale, name = next((unit for unit in units if end * unit[0] >= 1), units[-1])
    decimals = max(0, -math.floor(math.log10(step * scale) + 1e-9))
    numbers = range(math.ceil(begin / step - 1e-6), math.floor(end / step + 1e-6) + 1)
    return [(n * step, f"{n * step * scale:.{decimals}f} {name}") for n in numbers]
