"""A trace as a picture: the arithmetic by brute force, the pixels, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from seqrecord import FormatError, NotFoundError, SeqRecordError, StorageError, draw_timeline
from seqrecord.engine.trace import Trace
from seqrecord.tools.drawing.spans import KINDS, covered, read_spans, union


def write_trace(path: Path, *events: tuple[str, str, float, float], pid: int = 1) -> Path:
    """Thread, name, begin and end in seconds."""
    numbers = {thread: i for i, thread in enumerate(dict.fromkeys(e[0] for e in events), 1)}
    items: list[dict[str, Any]] = [
        {"ph": "X", "name": name, "ts": begin * 1e6, "dur": (end - begin) * 1e6}
        | {"pid": pid, "tid": numbers[thread], "args": {"chunk": 1}}
        for thread, name, begin, end in events
    ]
    items += [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": i, "args": {"name": thread}}
        for thread, i in numbers.items()
    ]
    path.write_text(json.dumps({"traceEvents": items}))
    return path


class Picture:
    """A figure with its pixels: what is where, as its own axes and legend tell."""

    def __init__(self, figure: Figure) -> None:
        [self.axes] = [axes for axes in figure.axes if axes.get_label() == "timeline"]
        [legend] = figure.legends
        names = [text.get_text() for text in legend.get_texts()]
        colours = [patch.get_facecolor() for patch in legend.get_patches()]
        self.colours = {"counter": "#8a909a", **dict(zip(names, colours, strict=True))}
        canvas: Any = FigureCanvasAgg(figure)
        canvas.draw()
        self.pixels = np.asarray(canvas.buffer_rgba())[::-1, :, :3].astype(int)
        self.row = 0.3 * figure.dpi  # the height of a thread's row
        found: list[Any] = figure.findobj(Text)
        self.texts: dict[str, float] = {}  # how far from the top each begins
        for text in found:
            self.texts.setdefault(text.get_text(), -text.get_window_extent().y0)

    def rows(self, kind: str, begin: float | None = None, end: float | None = None) -> float:
        """How many rows of a thread the pixels of a kind fill, in the mean over a time."""
        left, right = self.axes.get_xlim()
        begin, end = left if begin is None else begin, right if end is None else end
        (x0, y0), (x1, y1) = self.axes.transData.transform(
            [(begin, self.axes.get_ylim()[0]), (end, self.axes.get_ylim()[1])]
        )
        # Without the pixels at the borders.
        part = self.pixels[int(y0) : int(y1) + 1, int(x0) + 2 : max(int(x1) - 2, int(x0) + 3)]
        colour = np.array([round(255 * c) for c in to_rgb(self.colours[kind])])
        return float((part == colour).all(axis=-1).sum(axis=0).mean() / self.row)


_SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), st.sampled_from([0, 1, 4, 6])))


@given(_SPANS.filter(bool))
def test_the_innermost_span_counts(
    tmp_path_factory: pytest.TempPathFactory, found: list[tuple[int, int, int]]
) -> None:
    ordered = sorted(((b, b + n, k) for b, n, k in found), key=lambda s: (s[0], -s[1]))
    expected = [-1] * 81
    for begin, end, kind in ordered:  # one that begins later, or ends sooner, is painted over
        expected[begin:end] = [kind] * (end - begin)
    path = tmp_path_factory.getbasetemp() / "t.json"
    write_trace(path, *[("a", KINDS[k], float(b), float(e)) for b, e, k in ordered])
    [track] = read_spans([path]).tracks
    begins = np.rint(track.begin).astype(int) + ordered[0][0]  # a trace begins at 0
    ends = np.rint(track.end).astype(int) + ordered[0][0]
    assert (begins[1:] >= ends[:-1]).all()
    got = [-1] * 81
    for kind, begin, end in zip(track.kind.tolist(), begins, ends, strict=True):
        got[begin:end] = [kind] * (end - begin)
    nested = all(e <= b2 or e2 <= e for b, e, _ in ordered for b2, e2, _ in ordered if b2 >= b)
    assert [k >= 0 for k in got] == [k >= 0 for k in expected]
    if nested:
        assert got == expected


@given(_SPANS, st.integers(1, 15))
def test_shares_against_brute_force(found: list[tuple[int, int, int]], cells: int) -> None:
    busy = np.zeros(900, bool)  # tenths
    for begin, length, _ in found:
        busy[10 * begin : 10 * (begin + length)] = True
    begins = np.array([b for b, _, _ in found], float)
    ends = np.array([b + n for b, n, _ in found], float)
    edges = np.linspace(0, 90, cells * 2 * 3 * 5 + 1)
    fine = np.interp(edges * 10, np.arange(901), np.concatenate([[0], np.cumsum(busy)])) / 10
    half = len(found) // 2
    parts = [(begins[:half], ends[:half]), (begins[half:], ends[half:])]
    got = covered(*union(parts), edges)
    np.testing.assert_allclose(got, np.diff(fine) / np.diff(edges), atol=1e-9)


def test_reading(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "t.json")
    trace.add("wait for batch", 10.0, 11.0)
    trace.add("consumer", 11.0, 14.0)
    trace.add("fetch", 10.5, 11.5, track="load_0", chunk=3)
    trace.add("something else", 13.0, 13.5, track="load_0")
    trace.count("ready", batches=3)
    trace.close()
    found = read_spans([tmp_path / "t.json"])
    assert (found.seconds, found.num_spans, found.lost) == (4.0, 4, 0)
    first, second = found.tracks
    assert [KINDS[k] for k in first.kind] == ["starve", "consumer"]
    assert (first.begin.tolist(), first.end.tolist()) == ([0.0, 1.0], [1.0, 4.0])
    assert (second.name, [KINDS[k] for k in second.kind]) == ("load_0", ["fetch", "other"])
    [counter] = found.counters
    assert (counter.name, counter.values.tolist()) == ("ready batches", [3.0])


def test_reading_a_list_of_events(tmp_path: Path) -> None:
    """The format's other form, with things in it that are of no concern."""
    path = tmp_path / "t.json"
    path.write_text(
        '[{"ph":"B","name":"x"},{"ph":"X","name":"decode","ts":5,"dur":2,"args":{"a":{"b":[1]}}}]'
    )
    [track] = read_spans([path]).tracks
    assert (track.name, track.end.tolist()) == ("thread 0", [2e-6])


def test_the_picture(tmp_path: Path) -> None:
    trace = write_trace(
        tmp_path / "epoch.json",
        ("seqrecord-engine-load_0", "fetch", 100.0, 101.0),
        ("seqrecord-engine-load_0", "decode", 101.0, 102.0),
        ("MainThread", "wait for batch", 100.0, 102.0),
        ("MainThread", "consumer", 102.0, 104.0),
    )
    picture = Picture(draw_timeline(trace))
    seconds = [(0, 1), (1, 2), (2, 3), (3, 4)]
    found = {
        kind: [picture.rows(kind, *second) for second in seconds]
        for kind in ("reading", "decoding", "consumer waits for data", "consumer at work")
    }
    both = 1 + 0.16 / 0.3  # in its thread's row, and in the row of all threads
    assert found["reading"] == pytest.approx([both, 0, 0, 0], abs=0.1)
    assert found["decoding"] == pytest.approx([0, both, 0, 0], abs=0.1)
    assert found["consumer waits for data"] == pytest.approx([1, 1, 0, 0], abs=0.1)
    assert found["consumer at work"] == pytest.approx([0, 0, 1, 1], abs=0.1)
    # From the top down; what is in the legend occurs.
    order = ["epoch.json", "consumer", "any thread", "decoding", "threads", "load 0"]
    assert sorted(order, key=lambda text: picture.texts[text]) == order
    assert {"4 s   ·   4 spans   ·   2 threads and devices", "25 % of the time"} <= set(
        picture.texts
    )
    assert {"50 % busy", "50 % busy, 50 % waits", "0.0 s", "4.0 s"} <= set(picture.texts)
    assert "waiting" not in picture.texts


def test_a_consumer_that_waits_stands_out(tmp_path: Path) -> None:
    trace = write_trace(
        tmp_path / "t.json", ("a", "wait for batch", 0.0, 1.0), ("b", "wait for batch", 0.0, 0.01)
    )
    found: list[Any] = draw_timeline(trace).findobj(Text)
    colours = {text.get_text(): to_hex(text.get_color()) for text in found}
    assert colours["0 % busy, 100 % waits"] != colours["0 % busy, 1 % waits"]


def test_a_part(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.json", ("a", "fetch", 0.0, 1.0), ("a", "decode", 1.0, 2.0))
    last = Picture(draw_timeline(trace, start=1.0))
    assert last.axes.get_xlim() == (1.0, 2.0)
    assert (last.rows("reading"), last.rows("decoding") > 1) == (0, True)
    first = Picture(draw_timeline(trace, stop=1.0))
    assert (first.rows("reading") > 1, first.rows("decoding")) == (True, 0)
    assert "0 to 1 s of 2 s" in " ".join(first.texts)
    for start, stop in [(2.0, None), (1.5, 1.5), (-1.0, 1.0), (float("nan"), None)]:
        with pytest.raises(SeqRecordError, match="not a part of the trace"):
            draw_timeline(trace, start=start, stop=stop)


def test_thousands_of_spans_in_a_pixel(tmp_path: Path) -> None:
    """A quarter of the time decoding, in spans far narrower than a pixel: a quarter of a row."""
    trace = Trace(tmp_path / "t.json")
    for i in range(20_000):
        trace.add("decode", i * 1e-3, i * 1e-3 + 0.25e-3, track="load_0")
    trace.close()
    picture = Picture(draw_timeline(tmp_path / "t.json"))
    assert picture.rows("decoding") == pytest.approx(0.25 * (1 + 0.16 / 0.3), abs=0.05)


def test_a_short_span_shows(tmp_path: Path) -> None:
    trace = write_trace(
        tmp_path / "t.json", ("a", "decode", 0.0, 1000.0), ("b", "fetch", 500.0, 500.000_1)
    )
    assert Picture(draw_timeline(trace)).rows("reading", 499, 501) > 0


def test_spans_that_follow_each_other_are_told_apart(tmp_path: Path) -> None:
    one = write_trace(tmp_path / "1.json", ("a", "gather", 0.0, 2.0))
    two = write_trace(tmp_path / "2.json", ("a", "gather", 0.0, 1.0), ("a", "gather", 1.0, 2.0))
    whole, cut = (Picture(draw_timeline(path)) for path in (one, two))
    around = ("copying into batches", 0.99, 1.01)
    assert cut.rows(*around) < 0.99 * whole.rows(*around)
    assert cut.rows("copying into batches", 0, 0.9) == whole.rows("copying into batches", 0, 0.9)


def test_traces_of_workers_are_drawn_together(tmp_path: Path) -> None:
    one = write_trace(tmp_path / "a.json", ("load_0", "fetch", 0.0, 1.0), pid=7)
    two = write_trace(tmp_path / "b.json", ("load_0", "decode", 1.0, 2.0), pid=8)
    found = read_spans([one, two])
    assert [(track.process, track.begin.tolist()) for track in found.tracks] == [
        (7, [0.0]),
        (8, [1.0]),
    ]
    picture = Picture(draw_timeline([one, two]))
    assert {"load 0 · 7", "load 0 · 8", "a.json, b.json"} <= set(picture.texts)
    assert picture.rows("reading", 0, 1) > 1


def test_more_threads_than_there_is_room_for(tmp_path: Path) -> None:
    many = [(f"load_{i}", "fetch", float(i), i + 1.0) for i in range(300)]
    picture = Picture(draw_timeline(write_trace(tmp_path / "t.json", *many)))
    assert "threads; 252 more are not drawn" in picture.texts
    assert {"load 0", "load 47"} <= set(picture.texts)
    assert "load 48" not in picture.texts


@pytest.mark.parametrize(
    ("seconds", "ticks"),
    [
        (0.0, {"0.0 µs", "1.0 µs"}),
        (1e-9, {"0.0 µs", "1.0 µs"}),
        (0.99e-3, {"0 µs", "100 µs", "900 µs"}),
        (0.5, {"0 ms", "50 ms", "500 ms"}),
        (1.0, {"0.0 s", "0.5 s", "1.0 s"}),
        (86_400.0, {"0 s", "10000 s", "80000 s"}),
    ],
)
def test_any_length(tmp_path: Path, seconds: float, ticks: set[str]) -> None:
    events = [("a", "consumer", 1.0, 1.0 + seconds), ("ü" * 300, "gather", 1.0, 1.0)]
    picture = Picture(draw_timeline(write_trace(tmp_path / "t.json", *events)))
    assert ticks <= set(picture.texts)
    assert any(text.startswith("üüü") and text.endswith("…") for text in picture.texts)


def test_counters(tmp_path: Path) -> None:
    events = [{"ph": "X", "name": "fetch", "ts": 0, "dur": 10}]
    events += [
        {"ph": "C", "name": "resident", "ts": t, "args": {"bytes": v}}
        for t, v in [(2, 50), (5, 100), (8, 0)]
    ]
    (tmp_path / "t.json").write_text(json.dumps(events))
    picture = Picture(draw_timeline(tmp_path / "t.json"))
    times = [(t * 1e-6, (t + 1) * 1e-6) for t in (0.5, 3, 6, 8.5)]
    full = 0.42 / 0.3  # a counter's row is higher
    found = [picture.rows("counter", *time) for time in times]
    assert found == pytest.approx([0, full / 2, full, 0], abs=0.05)
    assert "at most 100 B" in picture.texts


EVENT = '{"ph":"X","name":"decode","ts":5,"dur":2,"pid":1,"tid":1}'


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "not JSON"),
        ("nonsense", "not JSON"),
        (f"[{EVENT}", "not JSON"),
        ("[" * 200_000, "not JSON"),
        (f"[{EVENT.replace('5', '1' * 5000)}]", "not JSON"),
        ("\xff\xfe", "not JSON"),
        ("[]", "without spans"),
        ("17", "without spans"),
        ("{}", "without spans"),
        ('[{"ph":"B","name":"decode","ts":5}]', "without spans"),
        (f"[{EVENT.replace('5', 'NaN')}]", "a number that is none"),
        (f"[{EVENT.replace('5', '1e999')}]", "'ts' is out of range"),
        (f"[{EVENT.replace('5', '1' * 400)}]", "'ts' is out of range"),
        (f"[{EVENT.replace('5', 'null')}]", "'ts' is no number"),
        (f"[{EVENT.replace('5', 'true')}]", "'ts' is no number"),
        (f"[{EVENT.replace('2', '-2')}]", "ends before it begins"),
        (f"[{EVENT.replace('dur', 'd')}]", "'dur' is no number"),
        (
            f"[{EVENT.replace('decode', 'x').replace(chr(34) + 'x' + chr(34), '7')}]",
            "without a name",
        ),
        (f"[{EVENT.replace('1}', '[]}')}]", "process and thread"),
        (f'[{EVENT},{{"ph":"C","name":"c","ts":1}}]', "a counter without values"),
        (f'[{EVENT},{{"ph":"C","name":"c","ts":1,"args":{{"a":"b"}}}}]', "'a' is no number"),
    ],
)
def test_what_is_no_trace(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(FormatError, match=match) as caught:
        draw_timeline(path)
    assert caught.value.file == str(path)
    assert len(str(caught.value)) < 600


def test_too_large(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.json", ("a", "fetch", 0.0, 1.0))
    os.truncate(trace, (256 << 20) + 1)  # a hole: it takes no room
    with pytest.raises(FormatError, match="too large"):
        draw_timeline(trace)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such trace"):
        draw_timeline(tmp_path / "t.json")
    with pytest.raises(StorageError):
        draw_timeline(tmp_path)
