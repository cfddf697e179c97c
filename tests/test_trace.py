"""The recorder of spans: what it writes, what bounds it, and that it ends well in every case."""

from __future__ import annotations

import gc
import json
import logging
import os
import resource
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import pytest
from torch.utils.data import DataLoader

from seqrecord import EngineOptions, NotFoundError, SeqRecordPipe, StorageError
from seqrecord.engine.trace import Trace, trace_path
from tests.datasets import write_small
from tests.torch_process import run_code


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def events(path: Path, phase: str = "X") -> list[dict[str, Any]]:
    return [e for e in json.loads(path.read_text()) if e["ph"] == phase]


def names(path: Path) -> dict[int, str]:
    """Lane number to thread name."""
    return {e["tid"]: e["args"]["name"] for e in events(path, "M") if e["name"] == "thread_name"}


def test_the_file(tmp_path: Path) -> None:
    path = tmp_path / "epoch.json"
    trace = Trace(path)
    trace.add("decode", 2.0, 2.25, chunk=7, file='a "quoted" name')
    trace.add("wait for batch", 3.0, 3.0000015)
    trace.add("device copy", 3.0, 3.5, track="cuda:0")
    trace.count("resident", bytes=12)
    trace.close()
    assert files(tmp_path) == ["epoch.json"]
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


def test_the_file_of_a_killed_process(tmp_path: Path) -> None:
    """It is JSON after each write; Perfetto also takes an array that was cut off."""
    code = (
        "import os, signal\nfrom seqrecord.engine.trace import Trace\n"
        f"trace = Trace({str(tmp_path / 't.json')!r}, flush=10)\n"
        "for i in range(35): trace.add('decode', float(i), i + 1.0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert run_code(code).returncode == -signal.SIGKILL
    assert files(tmp_path) == ["t.json"]
    assert [event["ts"] for event in events(tmp_path / "t.json")] == [i * 1e6 for i in range(30)]
    assert set(names(tmp_path / "t.json").values()) == {"MainThread"}


def test_the_file_is_json_while_it_is_written(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "t.json", flush=2)
    assert events(tmp_path / "t.json") == []
    for number in range(10):
        trace.add("decode", float(number), number + 1.0)
        assert len(events(tmp_path / "t.json")) == (number + 1) // 2 * 2
    trace.close()


def test_two_traces_of_one_name(tmp_path: Path) -> None:
    """The later one has the file; the other one, which is not over yet, damages nothing."""
    before, after = (Trace(tmp_path / "t.json", flush=2) for _ in range(2))
    for number in range(3):
        before.add("decode", float(number), number + 1.0)
        after.add("gather", float(number), number + 1.0)
    after.close()
    before.close()
    assert {event["name"] for event in events(tmp_path / "t.json")} == {"gather"}


def test_spans_measure(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "t.json")
    before = perf_counter()
    with trace.span("fetch", chunk=1), trace.span("decode"):
        inside = perf_counter()
    with pytest.raises(ZeroDivisionError), trace.span("gather"):
        _ = 1 / 0
    after = perf_counter()
    trace.close()
    decode, fetch, gather = events(tmp_path / "t.json")
    assert [e["name"] for e in (decode, fetch, gather)] == ["decode", "fetch", "gather"]
    assert before * 1e6 - 1 < fetch["ts"] <= decode["ts"] < inside * 1e6 + 1
    assert gather["ts"] + gather["dur"] <= after * 1e6 + 1


def test_off_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trace = Trace()
    with trace.span("fetch", chunk=1) as nothing:
        assert nothing is None
    assert trace.span("a") is trace.span("b"), "nothing is made for a span"
    trace.add("decode", 0.0, 1.0)
    trace.count("resident", bytes=3)
    trace.close()
    assert not trace.is_on
    assert files(tmp_path) == []


def test_many_threads_lose_nothing_and_stay_bounded(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    trace = Trace(path, flush=50)
    most = 0
    together = threading.Barrier(8)

    def work(number: int) -> None:
        nonlocal most
        together.wait()
        for i in range(3000):
            trace.add("decode", float(i), i + 0.5, thread=number)
            most = max(most, trace.num_in_memory)

    with ThreadPoolExecutor(8, "load") as pool:
        list(pool.map(work, range(8)))
    trace.close()
    found = events(path)
    assert len(found) == 8 * 3000
    tracks: dict[int, set[int]] = {}
    for event in found:
        tracks.setdefault(event["tid"], set()).add(event["args"]["thread"])
    assert sorted(names(path).values()) == [f"load_{i}" for i in range(8)]
    assert all(len(threads) == 1 for threads in tracks.values()), "a track is one thread"
    assert {next(iter(threads)) for threads in tracks.values()} == set(range(8))
    assert most <= 4 * 50 + 8


def test_a_thread_that_ended_keeps_its_track(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "t.json")
    for number in range(3):  # the system gives them one and the same number
        thread = threading.Thread(target=trace.add, args=("fetch", 0.0, 1.0), name=f"t{number}")
        thread.start()
        thread.join()
    trace.close()
    assert names(tmp_path / "t.json") == {1: "t0", 2: "t1", 3: "t2"}


def test_no_more_than_so_many(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "t.json", max_spans=10)
    for i in range(25):
        trace.add("decode", float(i), i + 1.0)
    trace.close()
    assert [e["ts"] for e in events(tmp_path / "t.json")] == [i * 1e6 for i in range(10)]
    [lost] = [e for e in events(tmp_path / "t.json", "M") if e["name"] == "process_labels"]
    assert lost["args"] == {"labels": "15 spans lost"}


def test_leaving_the_interpreter_closes(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom seqrecord.engine.trace import Trace\n"
        f"trace = Trace({str(tmp_path / 't.json')!r})\ntrace.add('decode', 0.0, 1.0)\n"
        "raise KeyError('left early')"
    )
    done = run_code(code)
    assert "left early" in done.stderr
    assert len(events(tmp_path / "t.json")) == 1


def test_closing_twice_and_recording_after_it(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "t.json")
    trace.add("decode", 0.0, 1.0)
    trace.close()
    before = (tmp_path / "t.json").read_bytes()
    trace.add("decode", 1.0, 2.0)
    with trace.span("fetch"):
        pass
    trace.close()
    assert (tmp_path / "t.json").read_bytes() == before


def test_closing_inside_of_writing(tmp_path: Path) -> None:
    """As a finalizer does, which may run in the midst of anything."""

    class Closing:
        def __str__(self) -> str:
            trace.close()
            return "closed"

    trace = Trace(tmp_path / "t.json", flush=2)
    value: Any = Closing()
    trace.add("decode", 0.0, 1.0, value=value)
    trace.add("decode", 1.0, 2.0)  # which writes both
    assert not trace.is_on
    assert [e["args"] for e in events(tmp_path / "t.json")] == [{"value": "closed"}, {}]
    assert files(tmp_path) == ["t.json"]


def test_a_fork_writes_nothing(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "t.json")
    trace.add("decode", 0.0, 1.0)
    child = os.fork()
    if not child:
        for i in range(5000):
            trace.add("fetch", float(i), i + 1.0)
        trace.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    trace.close()
    assert [e["name"] for e in events(tmp_path / "t.json")] == ["decode"]
    assert files(tmp_path) == ["t.json"]


def test_a_full_disk_ends_the_trace_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Or a file that may not become larger, which is the same to who writes."""
    trace = Trace(tmp_path / "t.json", flush=100)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, limits[1]))
    try:
        with caplog.at_level(logging.WARNING, "seqrecord"):
            for i in range(4000):
                trace.add("decode", float(i), i + 1.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not trace.is_on
    trace.close()
    [record] = caplog.records
    assert "ended early" in record.getMessage()
    assert "File too large" in record.getMessage()
    assert 100 < len(events(tmp_path / "t.json")) < 4000


def test_no_place_for_it(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="folder of the trace does not exist"):
        Trace(tmp_path / "nowhere" / "t.json")
    with pytest.raises(StorageError, match="a folder has this name"):
        Trace(tmp_path)
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("rank", "worker", "name"),
    [
        ((0, 1), None, "epoch.json"),
        ((0, 1), 0, "epoch.worker0.json"),
        ((1, 2), None, "epoch.rank1.json"),
        ((0, 2), 3, "epoch.rank0.worker3.json"),
    ],
)
def test_a_file_for_each_process(rank: tuple[int, int], worker: int | None, name: str) -> None:
    assert trace_path("runs/epoch.json", rank=rank, worker=worker) == Path("runs") / name


def test_a_span_costs_little(tmp_path: Path) -> None:
    off, on = Trace(), Trace(tmp_path / "t.json")

    def cost(trace: Trace) -> float:
        best = 1.0
        for _ in range(5):
            begin = thread_time()  # however long it waits for a core
            for _ in range(2000):
                trace.add("decode", 0.0, 1.0, chunk=3)
            best = min(best, (thread_time() - begin) / 2000)
        return best

    assert cost(off) < 2e-6
    assert cost(on) < 40e-6
    on.close()


_PARTS = {"fetch", "decode", "gather", "consumer", "wait"}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "records"
    write_small(path, episodes={"a/Easy": 11, "b/Easy": 9}, missing=False)
    return path


def make_pipe(records: Path, trace: Path, **more: Any) -> Any:
    pipe: Any = SeqRecordPipe
    return pipe(
        records,
        clip_len=4,
        batch_size=2,
        seed=0,
        engine=EngineOptions(num_threads=2, trace=trace),
        **more,
    )


def test_an_iteration_is_traced(records: Path, tmp_path: Path) -> None:
    pipe = make_pipe(records, tmp_path / "epoch.json")
    assert files(tmp_path) == []
    for epoch in range(2):
        batches = sum(1 for _ in pipe)
        assert files(tmp_path) == ["epoch.json"]
        found = events(tmp_path / "epoch.json")
        assert {event["cat"] for event in found} >= _PARTS
        count = {name: sum(event["name"] == name for event in found) for name in _names(found)}
        assert count["consumer"] == batches == 7, f"epoch {epoch} alone"
        assert count["wait for batch"] == batches + 1
        assert count["fetch"] >= count["decode"] > 0
    found = events(tmp_path / "epoch.json")
    tracks = names(tmp_path / "epoch.json").values()
    assert "seqrecord-engine-scheduler" in tracks
    assert any(name.startswith("seqrecord-engine-load") for name in tracks)
    consumer = {event["tid"] for event in found if event["cat"] == "consumer"}
    assert {names(tmp_path / "epoch.json")[track] for track in consumer} == {
        threading.current_thread().name
    }


def _names(found: list[dict[str, Any]]) -> set[str]:
    return {event["name"] for event in found}


def test_an_iteration_that_is_left_is_traced(records: Path, tmp_path: Path) -> None:
    pipe = make_pipe(records, tmp_path / "epoch.json")
    iterator = iter(pipe)
    next(iterator)
    next(iterator)
    del iterator
    gc.collect()
    assert files(tmp_path) == ["epoch.json"]
    found = events(tmp_path / "epoch.json")
    assert sum(event["name"] == "consumer" for event in found) == 2


def test_an_iteration_that_fails_is_traced(records: Path, tmp_path: Path) -> None:
    calls: list[int] = []

    def fail(frame: Any) -> Any:
        calls.append(1)
        if len(calls) > 6:
            raise ZeroDivisionError
        return {"image_left": frame["image_left"]}

    pipe = make_pipe(records, tmp_path / "epoch.json", frame_transform=fail)
    with pytest.raises(ZeroDivisionError):
        list(pipe)
    assert files(tmp_path) == ["epoch.json"]
    assert "wait for batch" in _names(events(tmp_path / "epoch.json"))


def test_workers_write_files_of_their_own(records: Path, tmp_path: Path) -> None:
    pipe = make_pipe(records, tmp_path / "epoch.json")
    batches = sum(1 for _ in DataLoader(pipe, batch_size=None, num_workers=2))
    paths = [tmp_path / f"epoch.worker{i}.json" for i in range(2)]
    assert files(tmp_path) == [path.name for path in paths]
    consumed = [sum(e["name"] == "consumer" for e in events(path)) for path in paths]
    assert sum(consumed) == batches == 8
    assert min(consumed) > 0
