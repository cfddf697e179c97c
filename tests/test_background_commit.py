"""A full record file is committed by a thread while the next one is written."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import SeqRecordWriter
from seqrecord.errors import AccessError, DestinationError, NotFoundError
from seqrecord.storage import LocalStorage
from seqrecord.storage.ranges import check_wanted
from tests.own_threads import own_threads
from tests.services.process import wait_for
from tests.storage_doubles import Failure, FaultyStorage, Operation

SETTINGS: dict[str, Any] = {"codecs": "raw", "chunk_frames": 1, "max_file_size": 1000}
FRAMES_A_FILE = 2
REFUSED = AccessError("access is refused, as asked", file="some.seqrec")


def frame(number: int) -> dict[str, Any]:
    return {"x": np.full(700, number, np.uint8)}


def threads() -> list[threading.Thread]:
    return own_threads("seqrecord-commit")


class Commits:
    """What commits of record files do, by number; and what was done, in order."""

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


def fail() -> Failure:
    return REFUSED


def writer_of(folder: Path, commits: Commits, **options: Any) -> SeqRecordWriter:
    return SeqRecordWriter(FaultyStorage(LocalStorage(folder), commits), **SETTINGS, **options)


def write(writer: SeqRecordWriter, key: str, count: int) -> None:
    with writer.episode(key) as episode:
        for number in range(count):
            episode.append(frame(number))


def test_the_next_file_is_written_while_one_is_committed(tmp_path: Path) -> None:
    written = threading.Event()

    def commit() -> Failure:
        assert written.wait(60)
        return None

    commits = Commits(commit)
    with writer_of(tmp_path, commits) as writer:
        write(writer, "a", FRAMES_A_FILE)
        write(writer, "b", FRAMES_A_FILE)  # in the second file
        assert commits.done == ["create 0", "commit 0", "create 1"]
        assert not list((tmp_path / "records").glob("*.seqrec"))
        written.set()
    assert threads() == []
    with seqrecord.open(tmp_path) as dataset:
        assert list(dataset.episodes) == ["a", "b"]


def test_one_file_is_committed_at_a_time(tmp_path: Path) -> None:
    now = threading.Lock()

    def commit() -> Failure:
        assert now.acquire(blocking=False), "two at a time"
        threading.Event().wait(0.01)
        now.release()
        return None

    commits = Commits(*[commit] * 6)
    with writer_of(tmp_path, commits) as writer:
        for number in range(6):
            write(writer, f"{number}", FRAMES_A_FILE)
    for number in range(2, 6):
        committed = commits.done.index(f"commit {number - 2}")
        assert committed < commits.done.index(f"commit {number - 1}")
        # The file after the next is begun when this one is there.
        assert committed < commits.done.index(f"create {number}")


CALLS: dict[str, Callable[[SeqRecordWriter, Any], object]] = {
    "append": lambda writer, episode: episode.append(frame(0)),
    "end": lambda writer, episode: episode.close(),
    "close": lambda writer, episode: (episode.abort(), writer.close()),
    "next episode": lambda writer, episode: (episode.abort(), writer.episode("next")),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_fails_is_raised_by_the_next_call(tmp_path: Path, call: str) -> None:
    failing = threading.Event()

    def commit() -> Failure:
        assert failing.wait(60)
        return REFUSED

    writer = writer_of(tmp_path, Commits(commit))
    write(writer, "a", FRAMES_A_FILE)
    episode = writer.episode("b")
    episode.append(frame(0))
    failing.set()
    wait_for(lambda: threads() == [])
    with pytest.raises(AccessError) as caught:
        CALLS[call](writer, episode)
    assert caught.value is REFUSED
    assert writer.completed_episodes == frozenset()
    if call != "close":
        with pytest.raises(DestinationError, match=r"access is refused.*--resume"):
            writer.episode("more")
        with pytest.raises(DestinationError, match=r"access is refused.*--resume"):
            writer.close()
    with pytest.raises(NotFoundError):
        seqrecord.open(tmp_path)
    with SeqRecordWriter(tmp_path, mode="resume") as resumed:
        assert resumed.completed_episodes == {"a"}


def test_what_fails_after_the_last_call_is_raised_by_close(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, Commits(lambda: None, fail))
    for key in "ab":
        write(writer, key, FRAMES_A_FILE)
    assert writer.completed_episodes == {"a", "b"}
    with pytest.raises(AccessError):
        writer.close()
    assert writer.completed_episodes == {"a"}
    assert threads() == []


def test_an_episode_has_ended_when_its_earlier_files_are_there(tmp_path: Path) -> None:
    """Or a kill could lose the begin of what was said to be durable."""
    ending = threading.Event()

    def commit() -> Failure:
        assert ending.wait(60)
        return REFUSED

    writer = writer_of(tmp_path, Commits(commit))
    episode = writer.episode("a")
    for number in range(FRAMES_A_FILE + 1):
        episode.append(frame(number))
    ending.set()
    with pytest.raises(AccessError):
        episode.close()
    assert writer.completed_episodes == frozenset()
    writer.abort()
    with SeqRecordWriter(tmp_path, mode="resume") as resumed:
        assert resumed.completed_episodes == frozenset()
        write(resumed, "a", 1)


# The thread's end


def interrupt() -> None:
    """As Ctrl-C does."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def hang() -> Failure:
    """As a server that is gone: tried again until nobody wants it any more."""
    while True:
        check_wanted("some.seqrec")
        threading.Event().wait(0.001)


def test_it_ends_with_a_writer_that_is_collected(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, Commits(hang))
    write(writer, "a", FRAMES_A_FILE)
    write(writer, "b", 1)
    assert len(threads()) == 1
    del writer
    gc.collect()
    wait_for(lambda: threads() == [])


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_it_ends_with_a_block_that_is_left(tmp_path: Path, error: type[BaseException]) -> None:
    finishing = threading.Event()

    def commit() -> Failure:
        assert finishing.wait(60)
        return None

    def run() -> None:
        with writer_of(tmp_path, Commits(commit)) as writer:
            write(writer, "a", FRAMES_A_FILE)
            with writer.episode("b") as episode:
                episode.append(frame(0))
                finishing.set()
                raise error

    with pytest.raises(error):
        run()
    assert threads() == []
    with SeqRecordWriter(tmp_path, mode="resume") as resumed:
        assert resumed.completed_episodes == {"a"}


def test_an_interrupt_while_a_commit_is_waited_for_breaks_nothing(tmp_path: Path) -> None:
    waiting, interrupted = threading.Event(), threading.Event()

    def commit() -> Failure:
        assert waiting.wait(60)
        interrupt()
        assert interrupted.wait(60)
        return None

    writer = writer_of(tmp_path, Commits(commit))
    write(writer, "a", FRAMES_A_FILE)
    write(writer, "b", FRAMES_A_FILE)

    def run() -> None:
        waiting.set()
        write(writer, "c", 1)  # in a third file

    with pytest.raises(KeyboardInterrupt):
        run()
    interrupted.set()
    write(writer, "d", 1)
    writer.close()
    with seqrecord.open(tmp_path) as dataset:
        assert list(dataset.episodes) == ["a", "b", "d"]


def test_a_storage_that_hangs_is_left(tmp_path: Path) -> None:
    closing = threading.Event()

    def commit() -> Failure:
        assert closing.wait(60)
        interrupt()
        return hang()

    writer = writer_of(tmp_path, Commits(commit))
    write(writer, "a", FRAMES_A_FILE)
    write(writer, "b", 1)

    def run() -> None:
        closing.set()
        writer.close()

    with pytest.raises(KeyboardInterrupt):
        run()
    assert threads() == []
    with pytest.raises(DestinationError, match="closed"):
        writer.close()
    with SeqRecordWriter(tmp_path, mode="resume") as resumed:
        assert resumed.completed_episodes == {"a", "b"}
