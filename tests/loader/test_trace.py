"""The recorder of spans: its file, its limits, and how it ends in every case."""

from __future__ import annotations

import gc
import json
import logging
import os
import resource
import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import pytest
from torch.utils.data import DataLoader

from seqrecord import EngineOptions, NotFoundError, SeqRecordPipe, StorageError
from seqrecord.errors import DestinationError
from seqrecord.loader.engine.traces import Trace, trace_path
from tests.kit.datasets import write_small, written_once
from tests.kit.processes import Fork, in_fork, run_code


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.json"


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def events(path: Path, phase: str = "X") -> list[dict[str, Any]]:
    return [e for e in json.loads(path.read_text()) if e["ph"] == phase]


def starts(path: Path) -> list[float]:
    """Start times of the spans in seconds."""
    return [event["ts"] / 1e6 for event in events(path)]


def names(path: Path) -> dict[int, str]:
    """Thread names by lane number."""
    return {e["tid"]: e["args"]["name"] for e in events(path, "M") if e["name"] == "thread_name"}


def add(trace: Trace, count: int, first: int = 0, name: str = "decode") -> None:
    for number in range(first, first + count):
        trace.add(name, float(number), number + 1.0)


def test_the_file(path: Path) -> None:
    trace = Trace(path)
    trace.add("decode", 2.0, 2.25, chunk=7, file='a "quoted" name')
    trace.add("wait for batch", 3.0, 3.0000015)
    trace.add("device copy", 3.0, 3.5, track="cuda:0")
    trace.count("resident", bytes=12)
    trace.close()
    assert files(path.parent) == ["t.json"]
    keys = ("name", "cat", "ts", "dur", "tid", "args")
    assert [tuple(event[key] for key in keys) for event in events(path)] == [
        ("decode", "decode", 2e6, 250_000.0, 1, {"chunk": 7, "file": 'a "quoted" name'}),
        ("wait for batch", "wait", 3e6, 1.5, 1, {}),
        ("device copy", "device", 3e6, 500_000.0, 2, {}),
    ]
    assert {event["pid"] for event in events(path)} == {os.getpid()}
    [counter] = events(path, "C")
    assert (counter["name"], counter["args"]) == ("resident", {"bytes": 12})
    assert names(path) == {1: threading.current_thread().name, 2: "cuda:0"}
    # Calls after `close` are ignored.
    before = path.read_bytes()
    add(trace, 1)
    with trace.span("fetch"):
        pass
    trace.close()
    assert path.read_bytes() == before


def test_the_file_of_a_killed_process(path: Path) -> None:
    """JSON after each flush; Perfetto also accepts an unterminated array."""

    def traced() -> None:
        trace = Trace(path, flush=10)
        add(trace, 35)
        os.kill(os.getpid(), signal.SIGKILL)

    assert Fork(traced).wait() == -signal.SIGKILL
    assert starts(path) == [*range(30)]
    assert set(names(path).values()) == {threading.current_thread().name}


def test_the_file_is_complete_at_interpreter_exit(path: Path) -> None:
    code = (
        "import sys\nfrom seqrecord.loader.engine.traces import Trace\ntrace = Trace(sys.argv[1])\n"
    )
    code += "trace.add('decode', 0.0, 1.0)\nraise KeyError('left early')"
    assert "left early" in run_code(code, path, status=1).stderr
    assert len(events(path)) == 1


def test_the_file_is_json_while_it_is_written(path: Path) -> None:
    trace = Trace(path, flush=2)
    for number in range(10):
        assert len(events(path)) == number // 2 * 2
        add(trace, 1, number)
    # A later trace of the same name replaces the file; the earlier one does not damage it.
    after = Trace(path, flush=2)
    add(after, 3, name="gather")
    add(trace, 3)
    after.close()
    trace.close()
    assert {event["name"] for event in events(path)} == {"gather"}


def test_spans_measure(path: Path) -> None:
    trace = Trace(path)
    before = perf_counter()
    with trace.span("fetch", chunk=1), trace.span("decode"):
        inside = perf_counter()
    with pytest.raises(ZeroDivisionError), trace.span("gather"):
        _ = 1 / 0
    after = perf_counter()
    trace.close()
    decode, fetch, gather = events(path)
    assert [e["name"] for e in (decode, fetch, gather)] == ["decode", "fetch", "gather"]
    assert before * 1e6 - 1 < fetch["ts"] <= decode["ts"] < inside * 1e6 + 1
    assert gather["ts"] + gather["dur"] <= after * 1e6 + 1


def test_off_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trace = Trace()
    with trace.span("fetch", chunk=1) as nothing:
        assert nothing is None
    assert trace.span("a") is trace.span("b"), "no object is created for a span"
    add(trace, 1)
    trace.count("resident", bytes=3)
    trace.close()
    assert not trace.is_on
    assert files(tmp_path) == []


def test_threads_lose_nothing(path: Path) -> None:
    trace = Trace(path, flush=50)
    together = threading.Barrier(8)

    def work(number: int) -> None:
        together.wait()
        for i in range(1000):
            trace.add("decode", float(i), i + 0.5, thread=number)

    with ThreadPoolExecutor(8, "load") as pool:
        list(pool.map(work, range(8)))
    for number in range(3):  # the system reuses one thread id
        thread = threading.Thread(target=add, args=(trace, 1), name=f"t{number}")
        thread.start()
        thread.join()
    trace.close()
    *found, _, _, _ = events(path)
    assert len(found) == 8 * 1000
    tracks = {(event["tid"], event["args"]["thread"]) for event in found}
    assert len(tracks) == len(dict(tracks)) == len(dict(map(reversed, tracks))) == 8  # type: ignore[arg-type]
    assert sorted(names(path).values()) == [*(f"load_{i}" for i in range(8)), "t0", "t1", "t2"]


def test_max_spans_limits_the_file(path: Path) -> None:
    trace = Trace(path, max_spans=10)
    add(trace, 25)
    trace.close()
    assert starts(path) == [*range(10)]
    [lost] = [e for e in events(path, "M") if e["name"] == "process_labels"]
    assert lost["args"] == {"labels": "15 spans lost"}


def test_closing_during_a_write(path: Path) -> None:
    """As by a finalizer, which may run at any time."""

    class Closing:
        def __str__(self) -> str:
            trace.close()
            return "closed"

    trace = Trace(path, flush=2)
    value: Any = Closing()
    trace.add("decode", 0.0, 1.0, value=value)
    trace.add("decode", 1.0, 2.0)  # writes both
    assert not trace.is_on
    assert [e["args"] for e in events(path)] == [{"value": "closed"}, {}]
    assert files(path.parent) == ["t.json"]


def test_a_fork_writes_nothing(path: Path) -> None:
    trace = Trace(path)
    add(trace, 1)

    def in_child() -> None:
        add(trace, 5000, name="fetch")
        trace.close()

    in_fork(in_child)
    trace.close()
    assert [e["name"] for e in events(path)] == ["decode"]
    assert files(path.parent) == ["t.json"]


def test_a_full_disk_ends_the_trace_only(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file size limit causes the same error."""
    trace = Trace(path, flush=100)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, limits[1]))
    try:
        with caplog.at_level(logging.WARNING, "seqrecord"):
            add(trace, 4000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not trace.is_on
    trace.close()
    [record] = caplog.records
    assert "ended early" in record.getMessage()
    assert "File too large" in record.getMessage()
    assert 100 < len(events(path)) < 4000


def test_trace_paths(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="folder of the trace does not exist"):
        Trace(tmp_path / "nowhere" / "t.json")
    with pytest.raises(StorageError, match="is no trace"):
        Trace(tmp_path)
    assert files(tmp_path) == []
    thesis, link = tmp_path / "thesis.json", tmp_path / "link.json"
    link.symlink_to(thesis)
    os.mkfifo(tmp_path / "fifo")
    for content in ('[\n{"ph":"M","name":"x"}]', "x"):
        thesis.write_text(content)
        for existing in (thesis, link, tmp_path / "fifo"):
            with pytest.raises(DestinationError, match=r"is no trace.*choose another path"):
                Trace(existing)
        assert thesis.read_text() == content
    assert files(tmp_path) == ["fifo", "link.json", "thesis.json"]
    thesis.write_text("")  # for example by `tempfile`
    for _ in range(2):
        Trace(thesis).close()
        assert events(thesis, "M")
    for rank, worker, name in (  # one file per process
        ((0, 1), None, "epoch.json"),
        ((0, 1), 0, "epoch.worker0.json"),
        ((1, 2), None, "epoch.rank1.json"),
        ((0, 2), 3, "epoch.rank0.worker3.json"),
    ):
        assert trace_path("runs/epoch.json", rank=rank, worker=worker) == Path("runs") / name


def test_the_cost_of_a_span(path: Path) -> None:
    for trace, most in ((Trace(), 2e-6), (Trace(path), 40e-6)):
        best = 1.0
        for _ in range(5):
            begin = thread_time()  # without time spent waiting for a core
            for _ in range(2000):
                trace.add("decode", 0.0, 1.0, chunk=3)
            best = min(best, (thread_time() - begin) / 2000)
        assert best < most  # means 0.14 and 3.4 µs, standard deviations 0.03 and 0.3 µs
        trace.close()


# ---- traces of an iteration


records = written_once(write_small, episodes={"a/Easy": 11, "b/Easy": 9}, missing=False)


def make_pipe(records: Path, trace: Path, **more: Any) -> Any:
    engine = EngineOptions(num_threads=2, trace=trace)
    return SeqRecordPipe(records, clip_len=4, batch_size=2, seed=0, engine=engine, **more)


def test_an_iteration_is_traced(records: Path, path: Path) -> None:
    pipe = make_pipe(records, path)
    assert files(path.parent) == []
    for epoch in range(2):
        batches = sum(1 for _ in pipe)
        assert files(path.parent) == ["t.json"]
        found = events(path)
        assert {e["cat"] for e in found} >= {"fetch", "decode", "gather", "consumer", "wait"}
        count = Counter(event["name"] for event in found)
        assert count["consumer"] == batches == 7, f"epoch {epoch} alone"
        assert count["wait for batch"] == batches + 1
        assert count["fetch"] >= count["decode"] > 0
    tracks = names(path)
    assert "seqrecord-engine-scheduler" in tracks.values()
    assert any(name.startswith("seqrecord-engine-load") for name in tracks.values())
    consumer = {tracks[event["tid"]] for event in events(path) if event["cat"] == "consumer"}
    assert consumer == {threading.current_thread().name}
    # An iteration stopped early
    iterator = iter(pipe)
    next(iterator)
    next(iterator)
    del iterator
    gc.collect()
    assert sum(event["name"] == "consumer" for event in events(path)) == 2


def test_names_of_spans(records: Path, path: Path) -> None:
    """The names, categories and arguments of a run with one thread, as first recorded."""
    engine = EngineOptions(num_threads=1, trace=path)
    list(SeqRecordPipe(records, clip_len=4, batch_size=2, seed=0, engine=engine))
    found = [event for event in json.loads(path.read_text()) if event["ph"] != "M"]
    kinds = {(e["ph"], e["name"], e.get("cat"), *e["args"]) for e in found}
    assert kinds == {
        ("C", "resident", None, "bytes"),
        ("X", "consumer", "consumer"),
        ("X", "decode", "decode", "chunk", "frames"),
        ("X", "fetch", "fetch", "chunk"),
        ("X", "gather", "gather", "clips"),
        ("X", "wait for batch", "wait"),
        ("X", "wait for consumer", "wait", "batch"),
        ("X", "wait for copies", "wait"),
        ("X", "wait for loads", "wait"),
    }
    count = Counter(event["name"] for event in found)
    assert [count[name] for name in ("fetch", "decode", "gather")] == [11, 6, 7]
    engine_threads = {"seqrecord-engine-load_0", "seqrecord-engine-scheduler"}
    assert {*names(path).values()} == {threading.current_thread().name, *engine_threads}


def test_a_failed_iteration_is_traced(records: Path, path: Path) -> None:
    calls: list[int] = []

    def fail(frame: Any) -> Any:
        calls.append(1)
        if len(calls) > 6:
            raise ZeroDivisionError
        return {"image_left": frame["image_left"]}

    with pytest.raises(ZeroDivisionError):
        list(make_pipe(records, path, frame_transform=fail))
    assert files(path.parent) == ["t.json"]
    assert "wait for batch" in {event["name"] for event in events(path)}


def test_each_worker_writes_its_own_file(records: Path, tmp_path: Path) -> None:
    pipe = make_pipe(records, tmp_path / "epoch.json")
    batches = sum(1 for _ in DataLoader(pipe, batch_size=None, num_workers=2))
    paths = [tmp_path / f"epoch.worker{i}.json" for i in range(2)]
    assert files(tmp_path) == [path.name for path in paths]
    consumed = [sum(e["name"] == "consumer" for e in events(path)) for path in paths]
    assert sum(consumed) == batches == 8
    assert min(consumed) > 0
