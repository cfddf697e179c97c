"""Writers used after a fork or by two threads at once raise errors and damage nothing."""

from __future__ import annotations

import gc
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import seqrecord
from seqrecord import SeqRecordRecorder, SeqRecordWriter
from seqrecord.errors import DestinationError
from seqrecord.store.storage.local import LocalStorage
from tests.kit.datasets import NUMBERED, append, frame, lengths_of, numbered, write_episodes
from tests.kit.faults import CreateGate, FaultyStorage
from tests.kit.processes import in_fork, wait_for

SETTINGS: dict[str, Any] = {"schema": NUMBERED, "codecs": "raw"}


def files(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_size for p in folder.rglob("*") if p.is_file()}


def check(folder: Path, lengths: dict[str, int]) -> None:
    """The dataset has episodes of these lengths, with correct frames."""
    assert lengths_of(folder) == lengths
    assert seqrecord.verify(folder, deep=True).ok


Calls = dict[str, Callable[[Any, Any], object]]

COMMON: Calls = {
    "append": lambda writer, episode: episode.append(frame("a", 3)),
    "end": lambda writer, episode: episode.close(),
    "discard": lambda writer, episode: episode.discard(),
    "leave the episode": lambda writer, episode: episode.__exit__(None, None, None),
    "enter the episode": lambda writer, episode: episode.__enter__(),
    "episode": lambda writer, episode: writer.episode("c"),
    "close": lambda writer, episode: writer.close(),
    "abort": lambda writer, episode: writer.abort(),
    "leave": lambda writer, episode: writer.__exit__(None, None, None),
    "enter": lambda writer, episode: writer.__enter__(),
}
CALLS_OF: dict[Any, Calls] = {
    SeqRecordWriter: {
        **COMMON,
        "flush": lambda writer, episode: episode.flush(),
        "append video": lambda writer, episode: episode.append_video("x", []),
        "forget": lambda writer, episode: episode.abort(),
    },
    SeqRecordRecorder: {**COMMON, "stats": lambda writer, episode: writer.stats()},
}


@pytest.mark.parametrize("kind", CALLS_OF)
def test_a_forked_writer_refuses_every_call_and_changes_nothing(tmp_path: Path, kind: Any) -> None:
    with kind(tmp_path, chunk_frames=2, **SETTINGS) as writer:
        write_episodes(writer, {"a": 5})
        episode = append(writer.episode("b"), numbered("b", 3))
        wait_until_flushed(writer, episode, 8)
        before = files(tmp_path)

        calls = CALLS_OF[kind].values()
        results = in_fork(lambda: [result_of(call, writer, episode) for call in calls])
        for name, text in zip(CALLS_OF[kind], results, strict=True):
            assert text.startswith("DestinationError: the "), name
            for part in ("belongs to another process", f"process {os.getpid()}", str(tmp_path)):
                assert part in text, name
        assert files(tmp_path) == before
        episode.append(frame("b", 3))
        episode.close()
    check(tmp_path, {"a": 5, "b": 4})


def result_of(call: Callable[[Any, Any], object], writer: Any, episode: Any) -> str:
    try:
        return f"returned {call(writer, episode)}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def wait_until_flushed(writer: Any, episode: Any, count: int) -> None:
    if isinstance(writer, SeqRecordWriter):
        episode.flush()
    else:
        wait_for(lambda: writer.stats().durable_frames >= count)


@pytest.mark.parametrize("kind", CALLS_OF)
def test_a_fork_that_leaves_the_with_block_changes_nothing(tmp_path: Path, kind: Any) -> None:
    """At the block's end, by an error, by `sys.exit`, and by garbage collection."""
    writer = kind(tmp_path, chunk_frames=2, **SETTINGS)
    episode = append(writer.episode("a"), numbered("a", 5))
    wait_until_flushed(writer, episode, 5)

    def leave(error: BaseException | None) -> None:
        nonlocal writer, episode
        try:
            with ExitStack() as block:  # entered before the fork
                block.push(writer)
                block.push(episode)
                if error is not None:
                    raise error
        finally:
            del writer, episode
            gc.collect()

    before = files(tmp_path)
    with pytest.raises(DestinationError, match="belongs to another process"):
        in_fork(lambda: leave(None))
    for error in (KeyError("mine"), SystemExit(3)):
        with pytest.raises(type(error), match=str(error)):
            in_fork(lambda error=error: leave(error))  # type: ignore[misc]
    assert files(tmp_path) == before
    with writer, episode:
        episode.append(frame("a", 5))
    check(tmp_path, {"a": 6})


@pytest.mark.parametrize("kind", CALLS_OF)
def test_a_writer_is_not_pickled(tmp_path: Path, kind: Any) -> None:
    with kind(tmp_path) as writer, writer.episode("a") as episode:
        for each in (writer, episode):
            with pytest.raises(DestinationError, match="cannot be sent to another process"):
                pickle.dumps(each)
        episode.append(frame("a", 0))


# ---- threads


@pytest.fixture
def gate() -> Iterator[CreateGate]:
    gate = CreateGate()
    yield gate
    gate.opened.set()


class Waiting:
    """A value of a frame that becomes an array when the gate opens."""

    def __init__(self, gate: CreateGate) -> None:
        self.gate = gate

    def __array__(self, *args: Any, **options: Any) -> Any:
        self.gate.reached.set()
        self.gate.opened.wait(60)
        return frame("a", 0)["x"]


@pytest.mark.parametrize("where", ["storage", "frame"])
def test_overlapping_calls_of_two_threads_are_refused(
    tmp_path: Path, gate: CreateGate, where: str
) -> None:
    local = LocalStorage(tmp_path)
    storage = FaultyStorage(local, gate) if where == "storage" else local
    writer = SeqRecordWriter(storage, chunk_frames=1, **SETTINGS)
    episode = writer.episode("a")
    first = frame("a", 0) if where == "storage" else {"x": Waiting(gate)}
    failures: list[BaseException] = []

    def append() -> None:
        try:
            episode.append(first)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=append)
    thread.start()
    assert gate.reached.wait(60)
    calls = {n: c for n, c in CALLS_OF[SeqRecordWriter].items() if not n.startswith("enter")}
    for name, call in calls.items():
        with pytest.raises(DestinationError, match="used by two threads") as caught:
            call(writer, episode)
        assert "one call at a time" in str(caught.value.expected), name
        assert caught.value.file == str(tmp_path)
    gate.opened.set()
    thread.join()
    assert not failures
    episode.append(frame("a", 1))
    episode.close()
    writer.close()
    check(tmp_path, {"a": 2})


def test_overlapping_calls_of_a_recorder_are_refused(tmp_path: Path, gate: CreateGate) -> None:
    storage = FaultyStorage(LocalStorage(tmp_path), gate)
    recorder = SeqRecordRecorder(storage, chunk_frames=1, **SETTINGS)
    episode = recorder.episode("a")
    episode.append(frame("a", 0))
    assert gate.reached.wait(60)
    entered = threading.Event()

    def close() -> None:
        entered.set()
        episode.close()

    thread = threading.Thread(target=close)
    thread.start()
    assert entered.wait(60)
    while True:  # until the other thread's call has started
        try:
            recorder.episode("b").discard()
        except DestinationError as error:
            if "used by two threads" in str(error):
                break
    for name, call in COMMON.items():
        if not name.startswith("enter"):
            with pytest.raises(DestinationError, match="used by two threads"):
                call(recorder, episode)
    assert recorder.stats().recorded_frames == 1  # from any thread, at any time
    gate.opened.set()
    thread.join()
    recorder.close()
    check(tmp_path, {"a": 1})


@pytest.mark.parametrize("kind", CALLS_OF)
def test_a_writer_may_be_used_by_threads_in_turn(tmp_path: Path, kind: Any) -> None:
    writer = kind(tmp_path, schema=NUMBERED)
    steps: list[Callable[[], object]] = [
        lambda: episodes.append(writer.episode("a")),
        *(lambda n=number: episodes[0].append(frame("a", n)) for number in range(5)),
        lambda: episodes[0].close(),
        lambda: writer.close(),
    ]
    episodes: list[Any] = []
    for step in steps:
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
    check(tmp_path, {"a": 5})
