"""A full record file is committed by a thread while the next one is written."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import seqrecord
from seqrecord import SeqRecordWriter
from seqrecord.errors import AccessError, DestinationError, NotFoundError
from seqrecord.store.storage.local import LocalStorage
from seqrecord.store.storage.ranges import check_wanted
from tests.kit.datasets import append, columns, noise, write_episodes
from tests.kit.faults import Failure, FaultyStorage, Operation
from tests.kit.processes import own_threads, wait_for

SETTINGS: dict[str, Any] = {"codecs": "raw", "chunk_frames": 1, "max_file_size": 1000}
FRAMES = columns(x=noise(3, 700))
FILE = FRAMES[:2]  # fill a record file
REFUSED = AccessError("access is refused, as asked", file="some.seqrec")


class Commits:
    """Runs an action at each commit of a record file, and logs the operations in order."""

    def __init__(self, *actions: Callable[[], Failure]) -> None:
        self.actions = list(actions)
        self.done: list[str] = []
        self.paths: list[str] = []

    def __call__(self, operation: Operation, path: str, number: int) -> Failure:
        if not path.startswith("records/"):
            return None
        if operation == "create":
            self.paths.append(path)
        if operation in ("create", "commit"):
            self.done.append(f"{operation} {self.paths.index(path)}")
        if operation == "commit" and self.actions:
            return self.actions.pop(0)()
        return None


def delayed_commit(*then: Callable[[], Failure]) -> tuple[threading.Event, Callable[[], Failure]]:
    """An event, and a commit that waits for it and then runs the actions."""
    may_continue = threading.Event()

    def commit() -> Failure:
        assert may_continue.wait(60)
        return [None, *(do() for do in then)][-1]

    return may_continue, commit


def writer_of(folder: Path, *actions: Callable[[], Failure]) -> tuple[SeqRecordWriter, Commits]:
    commits = Commits(*actions)
    return SeqRecordWriter(FaultyStorage(LocalStorage(folder), commits), **SETTINGS), commits


def resumed_keys(folder: Path) -> set[str]:
    """Episodes that a resume finds in a dataset without a commit."""
    with pytest.raises(NotFoundError):
        seqrecord.open(folder)
    writer = SeqRecordWriter(folder, mode="resume")
    writer.abort()
    return set(writer.completed_episodes)


def test_the_next_file_is_written_while_one_is_committed(tmp_path: Path) -> None:
    written, commit = delayed_commit()
    writer, commits = writer_of(tmp_path, commit)
    with writer:
        write_episodes(writer, {"a": FILE, "b": FILE})  # in two files
        assert commits.done == ["create 0", "commit 0", "create 1"]
        assert not list((tmp_path / "records").glob("*.seqrec"))
        written.set()
    assert own_threads("seqrecord-commit") == []
    assert list(seqrecord.open(tmp_path).episodes) == ["a", "b"]


def test_one_file_is_committed_at_a_time(tmp_path: Path) -> None:
    now = threading.Lock()

    def commit() -> Failure:
        assert now.acquire(blocking=False), "two at a time"
        threading.Event().wait(0.01)
        now.release()
        return None

    writer, commits = writer_of(tmp_path, *[commit] * 6)
    with writer:
        write_episodes(writer, dict.fromkeys("012345", FILE))
    for number in range(2, 6):
        committed = commits.done.index(f"commit {number - 2}")
        assert committed < commits.done.index(f"commit {number - 1}")
        # The file after the next is begun once this one is committed.
        assert committed < commits.done.index(f"create {number}")


CALLS: dict[str, Callable[[SeqRecordWriter, Any], object]] = {
    "append": lambda writer, episode: episode.append(FRAMES[0]),
    "end": lambda writer, episode: episode.close(),
    "close": lambda writer, episode: (episode.abort(), writer.close()),
    "next episode": lambda writer, episode: (episode.abort(), writer.episode("next")),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_failed_commit_is_raised_by_the_next_call(tmp_path: Path, call: str) -> None:
    failing, commit = delayed_commit(lambda: REFUSED)
    writer, _ = writer_of(tmp_path, commit)
    write_episodes(writer, {"a": FILE})
    episode = writer.episode("b")
    episode.append(FRAMES[0])
    failing.set()
    wait_for(lambda: own_threads("seqrecord-commit") == [])
    with pytest.raises(AccessError) as caught:
        CALLS[call](writer, episode)
    assert caught.value is REFUSED
    assert writer.completed_episodes == frozenset()
    for action in () if call == "close" else (lambda: writer.episode("more"), writer.close):
        with pytest.raises(DestinationError, match=r"access is refused.*--resume"):
            action()
    assert resumed_keys(tmp_path) == {"a"}


def test_a_commit_that_fails_last_is_raised_by_close(tmp_path: Path) -> None:
    writer, _ = writer_of(tmp_path, lambda: None, lambda: REFUSED)
    write_episodes(writer, {"a": FILE, "b": FILE})
    assert writer.completed_episodes == {"a", "b"}
    with pytest.raises(AccessError):
        writer.close()
    assert writer.completed_episodes == {"a"}
    assert own_threads("seqrecord-commit") == []


def test_an_episode_ends_after_its_earlier_files_are_committed(tmp_path: Path) -> None:
    """Otherwise a kill could lose the first frames of a completed episode."""
    ending, commit = delayed_commit(lambda: REFUSED)
    writer, _ = writer_of(tmp_path, commit)
    episode = append(writer.episode("a"), FRAMES)
    ending.set()
    with pytest.raises(AccessError):
        episode.close()
    assert writer.completed_episodes == frozenset()
    writer.abort()
    assert resumed_keys(tmp_path) == set()


# The thread's end


def interrupt() -> Failure:
    """Like Ctrl-C."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)
    return None


def hang() -> Failure:
    """Like an unreachable server: retried until the result is unwanted."""
    while True:
        check_wanted("some.seqrec")
        threading.Event().wait(0.001)


def interrupted(*calls: Callable[[], object]) -> None:
    with pytest.raises(KeyboardInterrupt):
        [call() for call in calls]


def test_the_thread_ends_when_its_writer_is_collected(tmp_path: Path) -> None:
    writer, _ = writer_of(tmp_path, hang)
    write_episodes(writer, {"a": FILE, "b": FRAMES[:1]})
    assert len(own_threads("seqrecord-commit")) == 1
    del writer
    gc.collect()
    wait_for(lambda: own_threads("seqrecord-commit") == [])


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_the_thread_ends_when_the_block_raises(tmp_path: Path, error: type[BaseException]) -> None:
    finishing, commit = delayed_commit()

    def run() -> None:
        with writer_of(tmp_path, commit)[0] as writer:
            write_episodes(writer, {"a": FILE})
            with writer.episode("b") as episode:
                episode.append(FRAMES[0])
                finishing.set()
                raise error

    with pytest.raises(error):
        run()
    assert own_threads("seqrecord-commit") == []
    assert resumed_keys(tmp_path) == {"a"}


def test_an_interrupt_while_waiting_for_a_commit_breaks_nothing(tmp_path: Path) -> None:
    was_interrupted, wait = delayed_commit()
    waiting, commit = delayed_commit(interrupt, wait)
    writer, _ = writer_of(tmp_path, commit)
    write_episodes(writer, {"a": FILE, "b": FILE})
    third = {"c": FRAMES[:1]}
    interrupted(waiting.set, lambda: write_episodes(writer, third))  # in a third file
    was_interrupted.set()
    write_episodes(writer, {"d": FRAMES[:1]})
    writer.close()
    assert list(seqrecord.open(tmp_path).episodes) == ["a", "b", "d"]


def test_an_interrupted_close_does_not_wait_for_a_hanging_storage(tmp_path: Path) -> None:
    closing, commit = delayed_commit(interrupt, hang)
    writer, _ = writer_of(tmp_path, commit)
    write_episodes(writer, {"a": FILE, "b": FRAMES[:1]})
    interrupted(closing.set, writer.close)
    assert own_threads("seqrecord-commit") == []
    with pytest.raises(DestinationError, match="closed"):
        writer.close()
    assert resumed_keys(tmp_path) == {"a", "b"}
