"""A trace as a picture: the arithmetic by brute force, the pixels, and what is refused."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from seqrecord import FormatError, NotFoundError, SeqRecordError, StorageError, draw_timeline
from seqrecord.drawing import spans as spans_module
from seqrecord.drawing.spans import KINDS, covered, read_spans, union
from seqrecord.drawing.timeline import _COLOURS, _TRACK
from seqrecord.engine.trace import Trace

WIDTH = 1600  # so that units are pixels


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


def pixels(path: Path) -> npt.NDArray[np.uint8]:
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def share(picture: npt.NDArray[np.uint8], kind: str, columns: slice = slice(None)) -> int:
    """Pixels of a kind's colour."""
    return int((picture[:, columns] == _COLOURS[kind]).all(axis=-1).sum())


_SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), st.sampled_from([0, 1, 4, 6])))


@given(_SPANS.filter(bool))
def test_the_innermost_span_counts(found: list[tuple[int, int, int]]) -> None:
    ordered = sorted(((b, b + n, k) for b, n, k in found), key=lambda s: (s[0], -s[1]))
    expected = [-1] * 80
    for begin, end, kind in ordered:  # one that begins later, or ends sooner, is painted over
        expected[begin:end] = [kind] * (end - begin)
    kinds, begins, ends = spans_module._flat([(k, float(b), float(e)) for b, e, k in ordered])
    assert (begins[1:] >= ends[:-1]).all()
    got = [-1] * 80
    for kind, begin, end in zip(kinds.tolist(), begins.tolist(), ends.tolist(), strict=True):
        got[int(begin) : int(end)] = [kind] * int(end - begin)
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
    trace.add("fetch", 10.5, 11.5, lane="load_0", chunk=3)
    trace.add("something else", 13.0, 13.5, lane="load_0")
    trace.count("ready", batches=3)
    trace.close()
    found = read_spans([tmp_path / "t.json"])
    assert (found.seconds, found.num_spans, found.lost) == (4.0, 4, 0)
    first, second = found.lanes
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
    [lane] = read_spans([path]).lanes
    assert (lane.name, lane.end.tolist()) == ("thread 0", [2e-6])


def test_the_picture(tmp_path: Path) -> None:
    trace = write_trace(
        tmp_path / "epoch.json",
        ("seqrecord-engine-load_0", "fetch", 100.0, 101.0),
        ("seqrecord-engine-load_0", "decode", 101.0, 102.0),
        ("MainThread", "wait for batch", 100.0, 102.0),
        ("MainThread", "consumer", 102.0, 104.0),
    )
    assert draw_timeline(trace, tmp_path / "t.png", max_width=WIDTH) == tmp_path / "t.png"
    picture = pixels(tmp_path / "t.png")
    assert picture.shape[1] == WIDTH
    left, right = 166, 1436
    quarter = (right - left) / 4
    cuts = [left + round(i * quarter) for i in range(5)]
    columns = [slice(a + 2, b - 2) for a, b in pairwise(cuts)]
    widths = [column.stop - column.start for column in columns]
    lane, thin = 30, 16
    got = [[share(picture[:-50], kind, c) for c in columns] for kind in ("fetch", "decode")]
    # In its thread's lane, and in the row of all threads.
    assert got == [[widths[0] * (lane + thin), 0, 0, 0], [0, widths[1] * (lane + thin), 0, 0]]
    # The last rows are the legend.
    starves = [share(picture[:-50], "starve", c) for c in columns]
    assert starves == [widths[0] * lane, widths[1] * lane, 0, 0]
    works = [share(picture[:-50], "consumer", c) for c in columns]
    assert works == [0, 0, widths[2] * lane, widths[3] * lane]
    rows = (picture == _COLOURS["consumer"]).all(axis=-1)[:-50].any(axis=1).nonzero()[0]
    loads = (picture == _COLOURS["fetch"]).all(axis=-1)[:-50].any(axis=1).nonzero()[0]
    assert rows.max() < loads.min(), "the consumer is on top"
    # Gaps show: the loading thread did nothing in the second half.
    assert (picture[loads.max() - 5, columns[3]] == _TRACK).all()


def test_a_part(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.json", ("a", "fetch", 0.0, 1.0), ("a", "decode", 1.0, 2.0))
    path = tmp_path / "t.png"
    draw_timeline(trace, path, start=1.0, max_width=WIDTH)
    bare = slice(0, -50)
    assert not share(pixels(path)[bare], "fetch")
    draw_timeline(trace, path, stop=1.0, max_width=WIDTH)
    assert not share(pixels(path)[bare], "decode")
    for start, stop in [(2.0, None), (1.5, 1.5), (-1.0, 1.0), (float("nan"), None)]:
        with pytest.raises(SeqRecordError, match="not a part of the trace"):
            draw_timeline(trace, path, start=start, stop=stop)


def test_thousands_of_spans_in_a_pixel(tmp_path: Path) -> None:
    """A quarter of the time decoding, in spans far narrower than a pixel: a quarter of a lane."""
    trace = Trace(tmp_path / "t.json")
    for i in range(100_000):
        trace.add("decode", i * 1e-3, i * 1e-3 + 0.25e-3, lane="load_0")
    trace.close()
    draw_timeline(tmp_path / "t.json", tmp_path / "t.png", max_width=WIDTH)
    picture = pixels(tmp_path / "t.png")[:-50]
    columns = slice(200, 1400)
    full = (30 + 16) * 1200
    assert share(picture, "decode", columns) / full == pytest.approx(0.25, abs=0.03)


def test_a_short_span_shows(tmp_path: Path) -> None:
    trace = write_trace(
        tmp_path / "t.json", ("a", "decode", 0.0, 1000.0), ("b", "fetch", 500.0, 500.000_1)
    )
    draw_timeline(trace, tmp_path / "t.png")
    assert share(pixels(tmp_path / "t.png")[:-50], "fetch") >= 2


def test_traces_of_workers_are_drawn_together(tmp_path: Path) -> None:
    one = write_trace(tmp_path / "a.json", ("load_0", "fetch", 0.0, 1.0), pid=7)
    two = write_trace(tmp_path / "b.json", ("load_0", "decode", 1.0, 2.0), pid=8)
    found = read_spans([one, two])
    assert [(lane.process, lane.begin.tolist()) for lane in found.lanes] == [(7, [0.0]), (8, [1.0])]
    draw_timeline([one, two], tmp_path / "t.png")
    assert share(pixels(tmp_path / "t.png"), "fetch") > 1000


def test_more_threads_than_there_is_room_for(tmp_path: Path) -> None:
    many = [(f"load_{i}", "fetch", float(i), i + 1.0) for i in range(300)]
    draw_timeline(write_trace(tmp_path / "t.json", *many), tmp_path / "t.png", max_width=WIDTH)
    assert pixels(tmp_path / "t.png").shape[0] < 2500


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e-3, 86_400.0])
@pytest.mark.parametrize("width", [1, 641, 2400])
def test_any_length_and_width(tmp_path: Path, seconds: float, width: int) -> None:
    events = [("a", "consumer", 1.0, 1.0 + seconds), ("ü" * 300, "gather", 1.0, 1.0)]
    trace = write_trace(tmp_path / "t.json", *events)
    draw_timeline(trace, tmp_path / "t.png", max_width=width)
    assert pixels(tmp_path / "t.png").shape[1] == max(width, 640)


def test_counters(tmp_path: Path) -> None:
    events = [{"ph": "X", "name": "fetch", "ts": 0, "dur": 10}]
    events += [
        {"ph": "C", "name": "resident", "ts": t, "args": {"bytes": v}}
        for t, v in [(2, 50), (5, 100), (8, 0)]
    ]
    (tmp_path / "t.json").write_text(json.dumps(events))
    draw_timeline(tmp_path / "t.json", tmp_path / "t.png", max_width=WIDTH)
    picture = pixels(tmp_path / "t.png")[:-50]
    heights = (picture == (138, 144, 154)).all(axis=-1)[-48:].sum(axis=0)
    at = [166 + round(t / 10 * 1270) for t in (1, 3, 6, 9)]
    assert [heights[x] for x in at] == [0, 21, 42, 0]


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
        draw_timeline(path, tmp_path / "t.png")
    assert caught.value.file == str(path)
    assert len(str(caught.value)) < 600
    assert not (tmp_path / "t.png").exists()


def test_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = write_trace(tmp_path / "t.json", ("a", "fetch", 0.0, 1.0))
    monkeypatch.setattr(spans_module, "_MAX_BYTES", 50)
    with pytest.raises(FormatError, match="too large"):
        draw_timeline(trace, tmp_path / "t.png")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such trace"):
        draw_timeline(tmp_path / "t.json", tmp_path / "t.png")
    with pytest.raises(StorageError):
        draw_timeline(tmp_path, tmp_path / "t.png")
