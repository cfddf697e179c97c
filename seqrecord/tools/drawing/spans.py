"""What is in a trace file, as arrays: when each thread did what. Nothing in it is trusted.

Reads Google's "Trace Event Format", which `seqrecord.engine.trace` writes: complete events "X",
counters "C" and the threads' names "M"; others are passed over.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from seqrecord.errors import FormatError, NotFoundError, StorageError
from seqrecord.storage import local_path

Floats = npt.NDArray[np.float64]

KINDS = ("fetch", "decode", "gather", "device", "consumer", "other", "wait", "starve")
"""What a span is about: the first word of its name. `starve` is a consumer that waits."""

WAIT, STARVE = KINDS.index("wait"), KINDS.index("starve")
_OTHER = KINDS.index("other")

_STARVING = "wait for batch"
_MAX_BYTES = 256 << 20  # of a file; a million spans take half of it
_MAX_MICROSECONDS = 1e16  # three centuries
_MAX_NAME = 100


@dataclass(frozen=True)
class Track:
    """A thread, or a device: spans that don't overlap, in order, in seconds of the trace.

    `kind` [n] are places in `KINDS`. A span that lies in another one is cut out of that.
    """

    process: int
    name: str
    kind: npt.NDArray[np.int64]
    begin: Floats
    end: Floats

    def of(self, *kinds: int) -> tuple[Floats, Floats]:
        """Begin and end of the spans of some kinds."""
        mine = np.isin(self.kind, kinds)
        return self.begin[mine], self.end[mine]


@dataclass(frozen=True)
class Counter:
    """From each of `times` on, in seconds of the trace, the counter had one of `values`."""

    name: str
    times: Floats
    values: Floats


@dataclass(frozen=True)
class Spans:
    """All of a trace. It begins at 0 and takes so many seconds; `lost` spans were not recorded."""

    tracks: tuple[Track, ...]
    counters: tuple[Counter, ...]
    seconds: float
    num_spans: int
    lost: int


def read_spans(paths: Sequence[str | PathLike[str]]) -> Spans:
    """The spans of traces that were written on one machine, such as DataLoader workers'.

    Raises `NotFoundError`, `StorageError`, and `FormatError` for what is no trace: broken JSON,
    times that are no numbers, more than 256 MiB, no span at all.
    """
    found = _Found()
    for path in paths:
        found.read(path)
    if not found.num_spans:
        raise FormatError("a trace without spans", file=", ".join(fspath(path) for path in paths))
    return found.spans()


def covered(begin: Floats, end: Floats, edges: Floats) -> Floats:
    """The share of each cell between `edges` [n + 1] that ordered, disjoint spans cover: [n]."""
    if not len(begin):
        return np.zeros(len(edges) - 1)
    done = np.concatenate([[0.0], np.cumsum(end - begin)])
    last = np.searchsorted(begin, edges)  # spans that begin before an edge
    over = np.where(last > 0, np.maximum(end[last - 1] - edges, 0.0), 0.0)
    shares: Floats = np.diff(done[last] - over) / np.diff(edges)
    return np.clip(shares, 0.0, 1.0)


def union(spans: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Disjoint spans, in order, of the times when any of these lasts."""
    begin = np.concatenate([np.zeros(0), *(span[0] for span in spans)])
    end = np.concatenate([np.zeros(0), *(span[1] for span in spans)])
    order = np.argsort(begin, kind="stable")
    begin, latest = begin[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], begin[1:] > latest[:-1]])[: len(begin)]
    return begin[first], latest[np.concatenate([first[1:], [True]])[: len(begin)]]


class _Found:
    """Collects events. Each is checked, and made small, as soon as it is parsed."""

    def __init__(self) -> None:
        self._file = ""
        self._spans: dict[tuple[int, int], list[tuple[int, float, float]]] = {}
        self._names: dict[tuple[int, int], str] = {}
        self._counters: dict[str, list[tuple[float, float]]] = {}
        self._lost = 0
        self.num_spans = 0

    def read(self, path: str | PathLike[str]) -> None:
        local = local_path(path, "a trace")
        self._file = fspath(path)
        text = self._text(local)
        try:
            whole = json.loads(text, object_hook=self._take, parse_constant=self._refuse_constant)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"a trace that is not JSON: {error}", file=self._file) from error
        if isinstance(whole, dict) and isinstance(whole.get("otherData"), dict):
            lost = whole["otherData"].get("lost")
            self._lost += lost if type(lost) is int and lost > 0 else 0

    def spans(self) -> Spans:
        first = min(begin for spans in self._spans.values() for _, begin, _ in spans)
        last = max(end for spans in self._spans.values() for _, _, end in spans)
        tracks = []
        for (process, thread), spans in self._spans.items():
            kind, begin, end = _flat(spans)
            name = self._names.get((process, thread), f"thread {thread}")
            tracks.append(Track(process, name, kind, (begin - first) / 1e6, (end - first) / 1e6))
        counters = []
        for name, pairs in self._counters.items():
            series = np.array(sorted(pairs), float).reshape(-1, 2)
            counters.append(Counter(name, (series[:, 0] - first) / 1e6, series[:, 1]))
        seconds = (last - first) / 1e6
        return Spans(tuple(tracks), tuple(counters), seconds, self.num_spans, self._lost)

    def _text(self, path: Path) -> bytes:
        try:
            with path.open("rb") as file:
                text = file.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            raise NotFoundError("no such trace", file=self._file) from None
        except OSError as error:
            reason = error.strerror or error
            raise StorageError(f"a trace cannot be read: {reason}", file=self._file) from error
        if len(text) > _MAX_BYTES:
            raise FormatError(
                "a trace too large to draw", file=self._file, expected=f"at most {_MAX_BYTES} bytes"
            )
        return text

    def _take(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """An object of the file, from the innermost out; an event leaves nothing behind."""
        phase = event.get("ph")
        if phase == "X":
            self._take_span(event)
        elif phase == "C":
            self._take_counter(event)
        elif phase == "M":
            args = event.get("args")
            if event.get("name") == "thread_name" and isinstance(args, dict):
                self._names[self._place(event)] = self._name(args)
        else:
            return event
        return None

    def _take_span(self, event: dict[str, Any]) -> None:
        begin = self._number(event, "ts")
        length = self._number(event, "dur")
        if length < 0:
            self._refuse("a span that ends before it begins", got=length)
        place, name = self._place(event), self._name(event)
        self._spans.setdefault(place, []).append((_kind(name), begin, begin + length))
        self.num_spans += 1

    def _take_counter(self, event: dict[str, Any]) -> None:
        time, name, args = self._number(event, "ts"), self._name(event), event.get("args")
        if not isinstance(args, dict):
            self._refuse("a counter without values", got=args)
        for key in args:
            value = self._number(args, key, math.inf)
            self._counters.setdefault(f"{name} {key}"[:_MAX_NAME], []).append((time, value))

    def _place(self, event: dict[str, Any]) -> tuple[int, int]:
        process, thread = event.get("pid", 0), event.get("tid", 0)
        if type(process) is not int or type(thread) is not int:
            self._refuse("numbers of process and thread that are none", got=(process, thread))
        return process, thread

    def _name(self, event: dict[str, Any]) -> str:
        name = event.get("name")
        if not isinstance(name, str):
            self._refuse("an event without a name", got=name)
        # Nothing unprintable gets into a picture, nor onto a terminal.
        return "".join(c if c.isprintable() else "?" for c in name[:_MAX_NAME])

    def _number(self, event: dict[str, Any], key: str, most: float = _MAX_MICROSECONDS) -> float:
        value = event.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self._refuse(f"{key[:_MAX_NAME]!r} is no number", got=value)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not abs(number) < most:
            self._refuse(f"{key[:_MAX_NAME]!r} is out of range", got=number)
        return number

    def _refuse_constant(self, text: str) -> NoReturn:
        self._refuse("a number that is none", got=text)

    def _refuse(self, message: str, got: object) -> NoReturn:
        raise FormatError(f"not a trace: {message}", file=self._file, got=repr(got)[:_MAX_NAME])


def _kind(name: str) -> int:
    word = name.split(" ", 1)[0]
    if name == _STARVING:
        return STARVE
    return KINDS.index(word) if word in KINDS else _OTHER


def _flat(
    spans: list[tuple[int, float, float]],
) -> tuple[npt.NDArray[np.int64], Floats, Floats]:
    """Kind, begin and end of disjoint spans: where several last, it is the one begun last."""
    spans.sort(key=lambda span: (span[1], -span[2]))
    table = np.array(spans, float).reshape(-1, 3)
    if (table[1:, 1] < table[:-1, 2]).any():
        table = np.array(_cut(spans), float).reshape(-1, 3)
    return table[:, 0].astype(np.int64), table[:, 1], table[:, 2]


def _cut(spans: list[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
    pieces: list[tuple[int, float, float]] = []
    open_spans: list[tuple[int, float]] = []
    at = 0.0

    def close_until(time: float) -> None:
        nonlocal at
        while open_spans and open_spans[-1][1] <= time:
            kind, end = open_spans.pop()
            if at < end:
                pieces.append((kind, at, end))
                at = end

    for kind, begin, end in spans:
        close_until(begin)
        if open_spans and at < begin:
            pieces.append((open_spans[-1][0], at, begin))
        at = begin
        open_spans.append((kind, end))
    close_until(math.inf)
    return pieces
