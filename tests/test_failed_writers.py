"""Writers that fail, are forked or shared by threads, and record files that are damaged."""

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import EpisodeInfo, FeatureSpec, Schema, SeqRecordRecorder, SeqRecordWriter
from seqrecord.errors import DestinationError, FormatError, SourceError
from tests.command_line import run

FRAME = {"x": np.zeros(1000)}


def files_of(folder: Path) -> list[str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(str(path.relative_to(folder)) for path in found)


def add(writer: SeqRecordWriter, key: str, count: int = 3) -> None:
    with writer.episode(key) as episode:
        for number in range(count):
            episode.append({"x": np.full(1000, number, float)})


def keys_of(folder: Path) -> list[str]:
    with seqrecord.open(folder) as dataset:
        return [*dataset.episodes]


# --- a writer that fails before any episode ended leaves nothing -----------------------------


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyboardInterrupt()], ids=type)
@pytest.mark.parametrize("frames", [0, 3, 700])
def test_a_writer_that_fails_at_once_leaves_nothing(
    tmp_path: Path, frames: int, error: BaseException
) -> None:
    def write() -> None:
        with (
            SeqRecordWriter(tmp_path / "r", record_bytes=1 << 20) as writer,
            writer.episode("a") as episode,
        ):
            for _ in range(frames):  # of several record files
                episode.append({"x": np.random.default_rng(0).random(1000)})
            raise error

    with pytest.raises(type(error)):
        write()
    assert files_of(tmp_path) == []
    with SeqRecordWriter(tmp_path / "r") as writer:  # which is not refused
        add(writer, "a")
    assert keys_of(tmp_path / "r") == ["a"]


def test_a_writer_that_fails_later_keeps_its_episodes(tmp_path: Path) -> None:
    def write() -> None:
        with SeqRecordWriter(tmp_path) as writer:
            add(writer, "a")
            raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        write()
    with pytest.raises(DestinationError, match=r"go on with resume \(--resume\)"):
        SeqRecordWriter(tmp_path)
    with SeqRecordWriter(tmp_path, mode="resume") as writer:
        assert writer.finished_keys == {"a"}


def test_a_flushed_episode_is_kept(tmp_path: Path) -> None:
    def write() -> None:
        with SeqRecordWriter(tmp_path) as writer, writer.episode("a") as episode:
            episode.append(FRAME)
            episode.flush()
            raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        write()
    with SeqRecordWriter(tmp_path, mode="resume") as writer:
        assert writer.finished_keys == {"a"}


def test_an_append_that_fails_leaves_the_dataset_as_it_was(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path) as writer:
        add(writer, "a")
    before = files_of(tmp_path)

    def write() -> None:
        with SeqRecordWriter(tmp_path, mode="append") as writer, writer.episode("b") as episode:
            episode.append(FRAME)
            raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        write()
    assert files_of(tmp_path) == before


@dataclass(frozen=True)
class Broken:
    """Four episodes, of which some fail in the middle."""

    bad: tuple[str, ...]
    error: type[BaseException] = SourceError

    def schema(self) -> Schema:
        return Schema([FeatureSpec("x", np.dtype("<f8"), (1000,))])

    def episodes(self) -> Sequence[EpisodeInfo]:
        return [EpisodeInfo(key, 400) for key in "abcd"]

    def frames(self, info: EpisodeInfo) -> Iterator[dict[str, Any]]:
        rng = np.random.default_rng(0)
        for number in range(info.num_frames):
            if info.key in self.bad and number == 390:
                raise self.error("broken")
            yield {"x": rng.random(1000)}


@pytest.mark.parametrize("error", [SourceError, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("record_bytes", [1 << 20, 1 << 30])
def test_a_conversion_that_fails_at_once_leaves_nothing(
    tmp_path: Path, error: type[BaseException], record_bytes: int
) -> None:
    options: dict[str, Any] = {"workers": 1, "record_bytes": record_bytes}
    with pytest.raises(error):
        seqrecord.convert(Broken(("a",), error), tmp_path / "r", **options)
    assert files_of(tmp_path) == []
    seqrecord.convert(Broken(()), tmp_path / "r", **options)
    assert keys_of(tmp_path / "r") == ["a", "b", "c", "d"]


def test_a_conversion_that_fails_later_names_resume(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="--resume"):
        seqrecord.convert(Broken(("c",)), tmp_path, workers=1)
    seqrecord.convert(Broken(()), tmp_path, workers=1, mode="resume")
    assert keys_of(tmp_path) == ["a", "b", "c", "d"]


@pytest.mark.slow
def test_a_conversion_of_workers_that_fails_at_once_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        seqrecord.convert(Broken(("a", "b", "c", "d")), tmp_path / "r", workers=2)
    assert files_of(tmp_path) == []


# --- forks and threads -------------------------------------------------------------------------


def in_fork(work: Callable[[], object]) -> str:
    """The error of `work` in a forked process, as text."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        text = "nothing"
        try:
            work()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        finally:
            os.write(write, text.encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        found = stream.read().decode()
    os.waitpid(pid, 0)
    return found


@pytest.mark.parametrize("what", ["append", "episode", "close", "abort", "with", "flush", "del"])
def test_a_fork_cannot_use_its_parents_writer(tmp_path: Path, what: str) -> None:
    writer = SeqRecordWriter(tmp_path)
    add(writer, "a")
    episode = writer.episode("b")
    episode.append(FRAME)

    def leave() -> None:
        with writer:
            pass

    calls: dict[str, Callable[[], object]] = {
        "append": lambda: episode.append(FRAME),
        "flush": episode.flush,
        "episode": lambda: writer.episode("c"),
        "close": writer.close,
        "abort": writer.abort,
        "with": leave,
        "del": lambda: writer.__dict__.clear(),
    }
    found = in_fork(calls[what])
    if what == "del":
        assert found == "nothing"
    else:
        assert found.startswith("DestinationError: the writer belongs to another process")
        assert f"process {os.getpid()}" in found
    episode.append(FRAME)
    episode.close()
    add(writer, "c")
    writer.close()
    assert seqrecord.verify(tmp_path, deep=True).ok
    assert keys_of(tmp_path) == ["a", "b", "c"]


def test_an_error_of_a_fork_leaves_the_parents_writer_alone(tmp_path: Path) -> None:
    writer = SeqRecordWriter(tmp_path)
    add(writer, "a")

    def fail() -> None:
        with writer, writer.episode("b"):
            raise ValueError("a bug of the child")

    assert "DestinationError" in in_fork(fail)
    writer.close()
    assert keys_of(tmp_path) == ["a"]


def test_a_fork_cannot_use_its_parents_recorder(tmp_path: Path) -> None:
    with SeqRecordRecorder(tmp_path) as recorder:
        episode = recorder.episode("a")
        episode.append(FRAME)
        calls: list[Callable[[], object]] = [
            lambda: episode.append(FRAME),
            lambda: recorder.episode("b"),
            recorder.stats,
            recorder.close,
            recorder.abort,
        ]
        for call in calls:
            assert "the recorder belongs to another process" in in_fork(call)
        episode.append(FRAME)
        episode.close()
    assert seqrecord.open(tmp_path).num_frames == 2


def test_a_writer_is_not_pickled(tmp_path: Path) -> None:
    writer = SeqRecordWriter(tmp_path)
    with pytest.raises(DestinationError, match="cannot be sent to another process"):
        pickle.dumps(writer)
    writer.abort()


def test_calls_of_two_threads_at_once_are_refused(tmp_path: Path) -> None:
    class Waits:
        def __init__(self) -> None:
            self.reached, self.may = threading.Event(), threading.Event()

        def __array__(self, *args: Any, **options: Any) -> Any:
            self.reached.set()
            self.may.wait(10)
            return np.zeros(1000)

    schema = Schema([FeatureSpec("x", np.dtype("<f8"), (1000,))])
    writer = SeqRecordWriter(tmp_path, schema=schema)
    add(writer, "a")
    episode, value = writer.episode("b"), Waits()
    thread = threading.Thread(target=lambda: episode.append({"x": value}))
    thread.start()
    assert value.reached.wait(10)
    for call in (lambda: episode.append(FRAME), writer.close, lambda: writer.episode("c")):
        with pytest.raises(DestinationError, match="used by two threads at the same time"):
            call()
    value.may.set()
    thread.join()
    episode.append(FRAME)  # handed back to this thread
    episode.close()
    writer.close()
    assert seqrecord.verify(tmp_path, deep=True).ok
    assert seqrecord.open(tmp_path).num_frames == 5


def test_a_writer_is_handed_to_another_thread(tmp_path: Path) -> None:
    writer = SeqRecordWriter(tmp_path)
    for key in "abc":
        thread = threading.Thread(target=add, args=(writer, key))
        thread.start()
        thread.join()
    writer.close()
    assert keys_of(tmp_path) == ["a", "b", "c"]


# --- damaged record files ------------------------------------------------------------------------


def interrupted(folder: Path, count: int = 3) -> list[Path]:
    """Record files of an episode each, that no manifest names."""

    def write() -> None:
        with SeqRecordWriter(folder, record_bytes=1) as writer:
            for number in range(count):
                add(writer, f"e{number}")
            raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        write()
    found = sorted((folder / "records").glob("*.seqrec"))
    assert len(found) == count
    return found


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "tail": lambda data: data[:-5] + bytes(5),
    "head": lambda data: bytes(8) + data[8:],
    "footer": lambda data: data[:-60] + bytes([data[-60] ^ 1]) + data[-59:],
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("command", ["resume", "reindex"])
def test_a_damaged_record_file_does_not_hide_the_others(
    tmp_path: Path, damage: str, command: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, bad, three = interrupted(tmp_path)
    data = DAMAGES[damage](bad.read_bytes())
    bad.write_bytes(data)
    with caplog.at_level(logging.WARNING, "seqrecord"):
        if command == "resume":
            with SeqRecordWriter(tmp_path, mode="resume") as writer:
                assert writer.finished_keys == {"e0", "e2"}
        else:
            run("reindex", tmp_path, code=1)  # all else is done
    assert "record file left out" in caplog.text
    assert str(bad) in caplog.text
    assert keys_of(tmp_path) == ["e0", "e2"]
    assert bad.read_bytes() == data  # it stays
    assert seqrecord.verify(tmp_path, deep=True).ok
    assert one.exists()
    assert three.exists()


def test_a_damaged_file_of_the_dataset_needs_a_reindex(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path, record_bytes=1) as writer:
        for key in "abc":
            add(writer, key)
    left = interrupted_append(tmp_path)
    bad = next(path for path in sorted((tmp_path / "records").glob("*.seqrec")) if path not in left)
    bad.write_bytes(bad.read_bytes()[:-5] + bytes(5))
    with pytest.raises(DestinationError, match="`seqrecord reindex`") as caught:
        SeqRecordWriter(tmp_path, mode="resume")
    assert caught.value.file == str(bad)
    run("reindex", tmp_path, code=1)  # all else is done
    assert len(keys_of(tmp_path)) == 3
    with SeqRecordWriter(tmp_path, mode="resume") as writer:
        assert len(writer.finished_keys) == 3


def interrupted_append(folder: Path) -> set[Path]:
    before = {*(folder / "records").glob("*.seqrec")}

    def write() -> None:
        with SeqRecordWriter(folder, mode="append", record_bytes=1) as writer:
            add(writer, "d")
            raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        write()
    return {*(folder / "records").glob("*.seqrec")} - before


def test_nothing_but_damaged_record_files(tmp_path: Path) -> None:
    for path in interrupted(tmp_path):
        path.write_bytes(b"")
    with pytest.raises(FormatError):
        seqrecord.reindex(tmp_path)
    with SeqRecordWriter(tmp_path, mode="resume") as writer:
        assert writer.finished_keys == set()
        add(writer, "again")
    assert keys_of(tmp_path) == ["again"]


# --- recorders ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    ["s3://bucket/demos", "az://container/demos", "memory://demos", "hf://datasets/a/b"],
)
def test_a_recorder_takes_no_url(url: str) -> None:
    with pytest.raises(DestinationError, match="`seqrecord merge FOLDER -o ") as caught:
        SeqRecordRecorder(url)
    assert "demos" in str(caught.value) or "hf://" in str(caught.value)


def test_a_recorder_takes_no_remote_storage(memory_url: str) -> None:
    from seqrecord.storage import open_storage

    with pytest.raises(DestinationError, match="writes to a local disk"):
        SeqRecordRecorder(open_storage(memory_url))


def test_a_recording_is_uploaded_by_merge(tmp_path: Path, memory_url: str) -> None:
    with SeqRecordRecorder(tmp_path / "demos") as recorder, recorder.episode("a") as episode:
        episode.append(FRAME)
    run("merge", tmp_path / "demos", "-o", memory_url)
    with seqrecord.open(memory_url) as dataset:
        assert dataset.num_frames == 1
