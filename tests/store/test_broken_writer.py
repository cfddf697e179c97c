"""After a failed write nothing is committed, and a resume finds all complete episodes."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import seqrecord
from seqrecord import SeqRecordRecorder, SeqRecordWriter, convert
from seqrecord.edit import clean
from seqrecord.errors import DestinationError, FrameError, SeqRecordError, SourceError, StorageError
from seqrecord.store.storage.local import LocalStorage
from seqrecord.store.storage.opening import open_storage
from tests.kit.command_line import main
from tests.kit.datasets import append, lengths_of, numbered, resume, write_dataset, write_episodes
from tests.kit.faults import FailAt, FaultyStorage, abandon, small_writer
from tests.kit.made_source import MadeSource, made_frame
from tests.kit.processes import wait_for
from tests.kit.services.places import Place

KEYS = [f"e{number}" for number in range(6)]
EPISODES = dict.fromkeys(KEYS, 5)
SETTINGS: dict[str, Any] = {"codecs": "raw", "chunk_frames": 2, "max_file_size": 500}
FULL = StorageError("No space left on device", file="some.seqrec")


def write_skipping_failures(storage: Any, **options: Any) -> tuple[SeqRecordWriter, list[str]]:
    """Run a script that skips failing episodes; return the open writer and the finished keys."""
    writer = small_writer(storage, **(SETTINGS | options))
    ended = []
    for key, length in EPISODES.items():
        with contextlib.suppress(SeqRecordError):
            write_episodes(writer, {key: length})
            ended.append(key)
    return writer, ended


def check_resumes(storage: Any, ended: Iterable[str]) -> None:
    with SeqRecordWriter(storage, mode="resume", **SETTINGS) as writer:
        assert writer.completed_episodes >= set(ended)
        write_episodes(writer, {key: 5 for key in KEYS if key not in writer.completed_episodes})
    assert lengths_of(storage) == EPISODES
    if isinstance(storage, Path):
        clean(storage, older_than=0)
        assert lengths_of(storage) == EPISODES
        suffixes = {path.suffix for path in storage.rglob("*") if path.is_file()}
        assert suffixes == {".seqrec", ".arrow", ".json"}


# Record files


SKIPS = [*(("write", n) for n in (0, 1, 9, 17)), ("commit", 0), ("commit", 1)]
SKIPS += [("create", 0), ("create", 1)]


@pytest.mark.parametrize(
    ("operation", "number", "onwards"),
    [
        pytest.param(*skip, onwards, marks=() if onwards == row % 2 else pytest.mark.slow)
        for row, skip in enumerate(SKIPS)
        for onwards in (True, False)
    ],
)
def test_no_commit_after_a_failed_write_even_if_the_script_skips_episodes(
    tmp_path: Path, operation: Any, number: int, onwards: bool
) -> None:
    fault = FailAt(operation, number, path="records/", error=FULL, onwards=onwards)
    writer, ended = write_skipping_failures(FaultyStorage(LocalStorage(tmp_path), fault))
    assert ended == KEYS[: len(ended)], "no episode finishes after the failure"
    assert set(ended) >= writer.completed_episodes
    with pytest.raises(DestinationError, match=r"No space left.*--resume") as caught:
        writer.episode("more")
    assert caught.value.__cause__ is FULL
    assert caught.value.file == FULL.file
    with pytest.raises(DestinationError, match=r"No space left.*--resume"):
        writer.close()
    assert not lengths_of(tmp_path)
    check_resumes(tmp_path, ended)


@pytest.mark.parametrize(("operation", "number"), [("commit", 1), ("write", 26)])
def test_a_resume_finds_all_finished_keys(memory_url: str, operation: Any, number: int) -> None:
    """And perhaps more: complete ones in the file that failed."""
    fault = FailAt(operation, number, path="records/", onwards=operation == "write")
    writer, ended = write_skipping_failures(FaultyStorage(open_storage(memory_url), fault))
    keys = writer.completed_episodes
    assert ended == KEYS[: len(ended)]
    assert set() < keys < set(ended)
    with pytest.raises(DestinationError):
        writer.close()
    assert writer.completed_episodes == keys
    with SeqRecordWriter(memory_url, mode="resume") as resumed:
        assert keys <= resumed.completed_episodes <= set(ended)
    check_resumes(memory_url, keys)


@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt()])
def test_with_statements_propagate_the_original_error(tmp_path: Path, error: BaseException) -> None:
    def fault(operation: Any, path: str, number: int) -> None:
        if operation == "commit" and number == 1:
            raise error

    writer = SeqRecordWriter(FaultyStorage(LocalStorage(tmp_path), fault), **SETTINGS)

    def run() -> None:
        with writer:
            write_episodes(writer, EPISODES)

    with pytest.raises(type(error)) as caught:
        run()
    assert caught.value is error
    with pytest.raises(DestinationError):
        writer.close()
    check_resumes(tmp_path, writer.completed_episodes)


@pytest.mark.parametrize(
    ("name", "code"), [("write", errno.ENOSPC), ("fsync", errno.EIO), ("replace", errno.EIO)]
)
def test_one_failed_system_call_prevents_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    owner: Any = Path if name == "replace" else os
    real = getattr(owner, name)
    failed: list[str] = []

    def fail(*args: Any, **options: Any) -> Any:
        target = args[1] if name == "replace" else Path(f"/proc/self/fd/{args[0]}").readlink()
        is_first = ".seqrec" in str(target) and not failed
        if is_first and list((tmp_path / "records").glob("*.seqrec")):
            failed.append(name)
            raise OSError(code, os.strerror(code))
        return real(*args, **options)

    monkeypatch.setattr(owner, name, fail)
    writer, ended = write_skipping_failures(tmp_path)
    assert failed
    with pytest.raises(DestinationError, match=os.strerror(code)) as caught:
        writer.close()
    assert str(tmp_path) in (caught.value.file or "")
    assert not lengths_of(tmp_path)
    check_resumes(tmp_path, ended)


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_resume_with_read_errors_loses_nothing(tmp_path: Path, number: int) -> None:
    writer, ended = write_skipping_failures(tmp_path, max_file_size=10_000)
    abandon(writer)
    (partial,) = (tmp_path / "records").glob("*.partial")
    before = partial.read_bytes()
    fault = FailAt("read", number, path="records/")
    with pytest.raises(StorageError, match="fails as asked"):
        SeqRecordWriter(FaultyStorage(LocalStorage(tmp_path), fault), mode="resume")
    assert partial.read_bytes() == before
    check_resumes(tmp_path, ended)


# The commit


COMMITS = [
    *((o, t) for o in ("create", "write", "commit") for t in ("-episodes", "-chunks", "-gaps")),
    ("put", "manifest"),
]


@pytest.mark.parametrize(
    ("operation", "path", "append"),
    [
        pytest.param(*step, append, marks=() if append == row % 2 else pytest.mark.slow)
        for row, step in enumerate(COMMITS)
        for append in (True, False)
    ],
)
def test_a_failed_commit_keeps_the_previous_dataset(
    tmp_path: Path, operation: Any, path: str, append: bool
) -> None:
    old = {"old": 1} if append else {}
    if append:
        write_dataset(tmp_path, old, codecs="raw")
    storage = FaultyStorage(LocalStorage(tmp_path), FailAt(operation, path=path, error=FULL))
    writer, ended = write_skipping_failures(storage, mode="append" if append else "create")
    assert ended == KEYS
    tables = {each.name for each in (tmp_path / "index").glob("*")}
    with pytest.raises(StorageError, match="No space left"):
        writer.close()
    if operation != "put":  # a manifest may name them after a failed put
        assert {each.name for each in (tmp_path / "index").glob("*")} == tables
    assert writer.completed_episodes >= set(KEYS)
    assert lengths_of(tmp_path) == old
    SeqRecordWriter(tmp_path, mode="resume").close()
    assert lengths_of(tmp_path) == {**old, **EPISODES}


@pytest.mark.parametrize("folder", ["records", "index", ""])
def test_a_failed_folder_sync_is_an_error_unless_unsupported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    real = os.fsync

    def fail(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink() == (tmp_path / name / folder).resolve():
            raise OSError(code, os.strerror(code))
        real(fd)

    monkeypatch.setattr(os, "fsync", fail)
    for code in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):  # filesystems without sync of folders
        name = str(code)
        assert write_skipping_failures(tmp_path / name)[0].close().num_episodes == len(KEYS)
    code, name = errno.EIO, ""
    with pytest.raises(StorageError, match=os.strerror(errno.EIO)):
        write_skipping_failures(tmp_path)[0].close()
    monkeypatch.undo()
    check_resumes(tmp_path, [])


def test_files_that_cannot_be_removed_do_not_undo_the_commit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = FaultyStorage(LocalStorage(tmp_path), FailAt("remove", onwards=True))
    with SeqRecordWriter(storage, codecs="raw", chunk_frames=1, max_file_size=1) as writer:
        append(writer.episode("given up"), numbered("given up", 40)).abort()
        write_episodes(writer, {"a": 1})
    assert "fails as asked" in caplog.text
    assert lengths_of(tmp_path) == {"a": 1}
    clean(tmp_path, older_than=0)
    assert len(list((tmp_path / "records").iterdir())) == 1


# Conversions


@pytest.mark.parametrize(
    ("operation", "workers"),
    [
        ("write", 1),
        *(
            pytest.param(operation, workers, marks=pytest.mark.slow)
            for operation, workers in (("commit", 1), ("create", 1), ("write", 2), ("commit", 2))
        ),
    ],
)
def test_skip_bad_episodes_does_not_skip_storage_errors(
    tmp_path: Path, operation: Any, workers: int
) -> None:
    small: dict[str, Any] = {"chunk_frames": 4, "max_file_size": 60_000}
    expected = convert(MadeSource(), tmp_path / "whole", workers=1, **small).manifest.fingerprint
    folder = tmp_path / "d"
    fault = FailAt(operation, 2 if operation == "write" else 0, path="records/", error=FULL)
    with pytest.raises(StorageError, match="No space left"):
        convert(
            MadeSource(),
            FaultyStorage(LocalStorage(folder), fault),
            workers=workers,
            skip_bad_episodes=True,
            **small,
        )
    assert not lengths_of(folder)
    report = convert(MadeSource(), folder, mode="resume", workers=1, **small)
    assert report.manifest.fingerprint == expected


# Writers that were given up


SCHEMA = MadeSource().schema()
FRAMES = [made_frame("made/000", number) for number in range(6)]
SHORT_CHUNKS: dict[str, Any] = {"codecs": "raw", "chunk_frames": 2}


def made(error: BaseException, *bad: int, count: int = 2) -> MadeSource:
    """Episodes of six frames, of which some fail at the last frame."""
    return MadeSource((6,) * count, bad=dict.fromkeys(bad, 5), error=error)


def fails(
    error: BaseException, ended: int, frames: Any = FRAMES, **settings: Any
) -> Callable[[Any], None]:
    """A writer that fails in an episode after `frames` and `ended` complete episodes."""

    def write(destination: Any) -> None:
        with SeqRecordWriter(destination, schema=SCHEMA, **SHORT_CHUNKS, **settings) as writer:
            write_episodes(writer, {f"e{number}": FRAMES[:1] for number in range(ended)})
            with writer.episode("bad") as episode:
                append(episode, frames)
                raise error

    return write


def stays_open(destination: Any) -> None:
    writer = SeqRecordWriter(destination, schema=SCHEMA, **SHORT_CHUNKS)
    append(writer.episode("bad"), FRAMES)
    writer.close()


def discards(destination: Any) -> None:
    with SeqRecordWriter(
        destination, schema=SCHEMA, max_file_size=10_000, **SHORT_CHUNKS
    ) as writer:
        append(writer.episode("bad"), FRAMES, flush_every=1).discard()


def records_nothing(destination: Any) -> None:
    with SeqRecordRecorder(destination, schema=SCHEMA) as recorder:
        recorder.episode("bad")
        raise KeyError("mine")


def aborts_recording(destination: Any) -> None:
    with SeqRecordRecorder(
        destination, schema=SCHEMA, **SHORT_CHUNKS, flush_seconds=600
    ) as recorder:
        append(recorder.episode("bad"), FRAMES)
        wait_for(lambda: recorder.stats().written_frames == len(FRAMES))
        recorder.abort()
        raise KeyError("mine")


def converts(error: BaseException, **settings: Any) -> Callable[[Any], None]:
    def write(destination: Any) -> None:
        settings.setdefault("workers", 1)
        convert(made(error, 0), destination, **SHORT_CHUNKS, **settings)

    return write


EARLY: dict[str, Callable[[Any], None]] = {
    "a user's error": fails(KeyError("mine"), 0),
    "before the first frame": fails(KeyError("mine"), 0, []),
    "an interrupt, full record files": fails(KeyboardInterrupt(), 0, max_file_size=10_000),
    "a mismatched frame": fails(KeyError("mine"), 0, [*FRAMES, {"y": 3}]),
    "closed during an episode": stays_open,
    "discarded": discards,
    "a recorder without frames": records_nothing,
    "an aborted recorder": aborts_recording,
    "a bad source": converts(SourceError("broken")),
    "an interrupted source, full record files": converts(KeyboardInterrupt(), max_file_size=10_000),
    "a bug in a source": converts(ZeroDivisionError("mine")),
}


@pytest.mark.parametrize("name", EARLY)
def test_a_failure_in_the_first_episode_leaves_no_file(tmp_path: Path, name: str) -> None:
    destination = tmp_path
    for number, existing in enumerate(("", "parent", "parent/d")):  # existing folders
        root = tmp_path / str(number)
        (root / existing).mkdir(parents=True)
        destination = root / "parent" / "d"
        before = sorted(root.rglob("*"))
        with pytest.raises(BaseException) as caught:
            EARLY[name](destination)
        assert sorted(root.rglob("*")) == before
        message = [str(caught.value), *getattr(caught.value, "__notes__", ())]
        assert "are kept" not in "".join(message)
    write_dataset(destination, {"e": FRAMES[:1]}, **SHORT_CHUNKS)
    assert list(seqrecord.open(destination).episodes) == ["e"]


def test_a_failed_append_does_not_change_the_dataset(tmp_path: Path) -> None:
    def times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}

    write_dataset(tmp_path, {"e": FRAMES[:1]}, **SHORT_CHUNKS)
    before = times()
    for error, write in (
        (DestinationError, EARLY["a bad source"]),  # the dataset exists already
        (KeyError, fails(KeyError("mine"), 0, mode="append")),
        (SourceError, converts(SourceError("broken"), mode="append")),
    ):
        with pytest.raises(error):
            write(tmp_path)
    assert times() == before
    assert (tmp_path / "records").is_dir()


def check_resumable(destination: Path, error: BaseException, keys: set[str]) -> None:
    message = "".join([str(error), *getattr(error, "__notes__", ())])
    assert "--resume" in message or not hasattr(error, "add_note")
    with pytest.raises(DestinationError, match="--resume"):
        SeqRecordWriter(destination)
    assert resume(destination) == keys


def test_a_later_failure_keeps_all_episodes_and_names_resume(tmp_path: Path) -> None:
    def fails_between(destination: Any) -> None:
        with SeqRecordWriter(destination, schema=SCHEMA, **SHORT_CHUNKS) as writer:
            write_episodes(writer, dict.fromkeys(("e0", "e1"), FRAMES[:1]))
            raise KeyError("mine")

    errors = (KeyError("mine"), KeyboardInterrupt(), FrameError("mine"))
    for number, write in enumerate((fails_between, *(fails(error, 2) for error in errors))):
        with pytest.raises((KeyError, KeyboardInterrupt, FrameError)) as caught:
            write(tmp_path / str(number))
        check_resumable(tmp_path / str(number), caught.value, {"e0", "e1"})


def test_a_failed_index_names_resume(tmp_path: Path) -> None:
    """`convert(in_place=True)` and `seqrecord index` can be resumed, too."""
    root, made = tmp_path / "originals", tmp_path / "index"
    for key in ("a", "b"):
        (root / key / "image").mkdir(parents=True)
        for number in range(3):
            np.save(root / key / "image" / f"{number:06d}.npy", np.full((99, 99), number, "f4"))
    made.mkdir()
    (made / "index").touch()  # prevents writing tables, after the record files
    with pytest.raises(StorageError, match="--resume"):
        convert(seqrecord.open_source(root), made, in_place=True, workers=1)
    (made / "index").unlink()
    result = CliRunner().invoke(main, ["index", str(root), "-o", str(made), "--resume"])
    assert result.exit_code == 0, result.output
    assert list(seqrecord.open(made).episodes) == ["a", "b"]


def test_storages_that_fail_to_write_or_remove(tmp_path: Path) -> None:
    """Failed writes leave no file; files that cannot be removed stay."""
    local = LocalStorage(tmp_path / "d")
    full, stuck = (FaultyStorage(local, FailAt(each, onwards=True)) for each in ("write", "remove"))
    with pytest.raises(StorageError, match="write"):
        fails(KeyError("mine"), 0)(full)
    assert not (tmp_path / "d").exists()
    with pytest.raises(KeyError):
        fails(KeyError("mine"), 0, max_file_size=10_000)(stuck)
    assert (tmp_path / "d").exists()


@pytest.mark.parametrize("place", ["gs"], indirect=True)
def test_a_failure_leaves_no_object_in_a_bucket(place: Place) -> None:
    url, options = place.at(place.host)
    for name in ("a user's error", "full record files"):
        error = fails(KeyError("mine"), 0, storage_options=options, max_file_size=10_000)
        with pytest.raises(KeyError):
            error(url)
        assert place.names() == [], name
    write_dataset(url, {"e": FRAMES[:1]}, storage_options=options)


@pytest.mark.slow  # starts processes
@pytest.mark.parametrize("error", [SourceError("broken"), SystemExit()])
def test_failed_and_killed_workers(tmp_path: Path, error: BaseException) -> None:
    """The first source has only the failing episode, so no episode is complete."""
    message = "a worker died before|broken"
    for source, ended in ((made(error, 0, count=1), set()), (made(error, 1), {"made/000"})):
        pool = ProcessPoolExecutor(1, get_context("forkserver"))
        with pool, pytest.raises((SourceError, DestinationError), match=message) as caught:
            convert(source, tmp_path / "d", executor=pool, **SHORT_CHUNKS)
        if ended:
            check_resumable(tmp_path / "d", caught.value, ended)
        assert (tmp_path / "d").exists() == bool(ended)
    with pytest.raises(SourceError):  # every worker fails
        convert(made(SourceError("broken"), 0, 1), tmp_path / "e", workers=2, **SHORT_CHUNKS)
    assert not (tmp_path / "e").exists()
