"""Failed writers leave no file before the first complete episode; later ones can be resumed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import seqrecord
from seqrecord import SeqRecordRecorder, SeqRecordWriter, convert
from seqrecord.errors import DestinationError, FrameError, SourceError, StorageError
from seqrecord.storage import LocalStorage
from tests.kit.command_line import main
from tests.kit.datasets import append, resume, write_dataset, write_episodes
from tests.kit.faults import FailAt, FaultyStorage
from tests.kit.made_source import MadeSource, made_frame
from tests.kit.processes import wait_for
from tests.kit.services.places import Place

SCHEMA = MadeSource().schema()
FRAMES = [made_frame("made/000", number) for number in range(6)]
SETTINGS: dict[str, Any] = {"codecs": "raw", "chunk_frames": 2}


def made(error: BaseException, *bad: int, count: int = 2) -> MadeSource:
    """Episodes of six frames, of which some fail at the last frame."""
    return MadeSource((6,) * count, bad=dict.fromkeys(bad, 5), error=error)


def fails(
    error: BaseException, ended: int, frames: Any = FRAMES, **settings: Any
) -> Callable[[Any], None]:
    """A writer that fails in an episode after `frames` and `ended` complete episodes."""

    def write(destination: Any) -> None:
        with SeqRecordWriter(destination, schema=SCHEMA, **SETTINGS, **settings) as writer:
            write_episodes(writer, {f"e{number}": FRAMES[:1] for number in range(ended)})
            with writer.episode("bad") as episode:
                append(episode, frames)
                raise error

    return write


def stays_open(destination: Any) -> None:
    writer = SeqRecordWriter(destination, schema=SCHEMA, **SETTINGS)
    append(writer.episode("bad"), FRAMES)
    writer.close()


def discards(destination: Any) -> None:
    with SeqRecordWriter(destination, schema=SCHEMA, max_file_size=10_000, **SETTINGS) as writer:
        append(writer.episode("bad"), FRAMES, flush_every=1).discard()


def records_nothing(destination: Any) -> None:
    with SeqRecordRecorder(destination, schema=SCHEMA) as recorder:
        recorder.episode("bad")
        raise KeyError("mine")


def aborts_recording(destination: Any) -> None:
    with SeqRecordRecorder(destination, schema=SCHEMA, **SETTINGS, flush_seconds=600) as recorder:
        append(recorder.episode("bad"), FRAMES)
        wait_for(lambda: recorder.stats().written_frames == len(FRAMES))
        recorder.abort()
        raise KeyError("mine")


def converts(error: BaseException, **settings: Any) -> Callable[[Any], None]:
    def write(destination: Any) -> None:
        settings.setdefault("workers", 1)
        convert(made(error, 0), destination, **SETTINGS, **settings)

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
    write_dataset(destination, {"e": FRAMES[:1]}, **SETTINGS)
    assert list(seqrecord.open(destination).episodes) == ["e"]


def test_a_failed_append_does_not_change_the_dataset(tmp_path: Path) -> None:
    def times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}

    write_dataset(tmp_path, {"e": FRAMES[:1]}, **SETTINGS)
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
        with SeqRecordWriter(destination, schema=SCHEMA, **SETTINGS) as writer:
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
            convert(source, tmp_path / "d", executor=pool, **SETTINGS)
        if ended:
            check_resumable(tmp_path / "d", caught.value, ended)
        assert (tmp_path / "d").exists() == bool(ended)
    with pytest.raises(SourceError):  # every worker fails
        convert(made(SourceError("broken"), 0, 1), tmp_path / "e", workers=2, **SETTINGS)
    assert not (tmp_path / "e").exists()
