"""Failed writers leave no file before the first complete episode; later ones can be resumed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import seqrecord
from seqrecord import FeatureSpec, Schema, SeqRecordRecorder, SeqRecordWriter, convert
from seqrecord.errors import DestinationError, FrameError, SourceError, StorageError
from seqrecord.sources import EpisodeInfo
from seqrecord.storage import LocalStorage
from tests.kit.command_line import main
from tests.kit.datasets import write_dataset
from tests.kit.faults import FailAt, FaultyStorage
from tests.kit.processes import wait_for
from tests.kit.services.places import Place

SCHEMA = Schema([FeatureSpec("x", np.dtype(np.float64), (1000,))])
FRAMES = 6
SETTINGS: dict[str, Any] = {"codecs": "raw", "chunk_frames": 2}


def frame(number: int) -> dict[str, Any]:
    return {"x": np.full(1000, float(number))}


class Source:
    """Episodes e0, e1, …; the `bad` ones fail at the last frame."""

    def __init__(self, bad: str, error: BaseException, count: int = 2) -> None:
        self.bad, self.error, self.count = bad, error, count

    def schema(self) -> Schema:
        return SCHEMA

    def episodes(self) -> list[EpisodeInfo]:
        return [EpisodeInfo(f"e{number}", FRAMES) for number in range(self.count)]

    def frames(self, episode: EpisodeInfo) -> Iterator[dict[str, Any]]:
        for number in range(FRAMES):
            if episode.key in self.bad.split() and number == FRAMES - 1:
                if isinstance(self.error, SystemExit):
                    os.kill(os.getpid(), signal.SIGKILL)
                raise self.error
            yield frame(number)


def add(episode: Any, frames: int = FRAMES) -> Any:
    """Append this number of frames and return the episode."""
    for number in range(frames):
        episode.append(frame(number))
    return episode


def fails(
    error: BaseException, ended: int, frames: int = FRAMES, **settings: Any
) -> Callable[[Any], None]:
    """A writer that fails in an episode after `frames` frames and `ended` complete episodes."""

    def write(destination: Any) -> None:
        with SeqRecordWriter(destination, schema=SCHEMA, **SETTINGS, **settings) as writer:
            for number in range(ended):
                with writer.episode(f"e{number}") as episode:
                    add(episode, 1)
            with writer.episode("bad") as episode:
                add(episode, frames)
                raise error

    return write


def misfits(destination: Any) -> None:
    with SeqRecordWriter(destination, schema=SCHEMA, **SETTINGS) as writer:
        add(writer.episode("bad")).append({"y": 3})


def stays_open(destination: Any) -> None:
    writer = SeqRecordWriter(destination, schema=SCHEMA, **SETTINGS)
    add(writer.episode("bad"))
    writer.close()


def discards(destination: Any) -> None:
    with SeqRecordWriter(destination, schema=SCHEMA, max_file_size=10_000, **SETTINGS) as writer:
        episode = writer.episode("bad")
        for number in range(FRAMES):
            episode.append(frame(number))
            episode.flush()
        episode.discard()


def records_nothing(destination: Any) -> None:
    with SeqRecordRecorder(destination, schema=SCHEMA) as recorder:
        recorder.episode("bad")
        raise KeyError("mine")


def aborts_recording(destination: Any) -> None:
    with SeqRecordRecorder(destination, schema=SCHEMA, **SETTINGS, flush_seconds=600) as recorder:
        add(recorder.episode("bad"))
        wait_for(lambda: recorder.stats().written_frames == FRAMES)
        recorder.abort()
        raise KeyError("mine")


def converts(error: BaseException, **settings: Any) -> Callable[[Any], None]:
    def write(destination: Any) -> None:
        settings.setdefault("workers", 1)
        convert(Source("e0", error), destination, **SETTINGS, **settings)

    return write


EARLY: dict[str, Callable[[Any], None]] = {
    "a user's error": fails(KeyError("mine"), 0),
    "before the first frame": fails(KeyError("mine"), 0, frames=0),
    "an interrupt, full record files": fails(KeyboardInterrupt(), 0, max_file_size=10_000),
    "a mismatched frame": misfits,
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
    with SeqRecordWriter(destination, **SETTINGS) as writer, writer.episode("e") as episode:
        add(episode, 1)
    with seqrecord.open(destination) as dataset:
        assert list(dataset.episodes) == ["e"]


def test_a_failed_append_does_not_change_the_dataset(tmp_path: Path) -> None:
    def times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}

    writer = SeqRecordWriter(tmp_path, schema=SCHEMA, **SETTINGS)
    with writer, writer.episode("e") as episode:
        add(episode, 1)
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
    with SeqRecordWriter(destination, mode="resume") as writer:
        assert writer.completed_episodes == keys


def fails_between(destination: Any) -> None:
    with SeqRecordWriter(destination, schema=SCHEMA, **SETTINGS) as writer:
        for key in ("e0", "e1"):
            with writer.episode(key) as episode:
                add(episode, 1)
        raise KeyError("mine")


def test_a_later_failure_keeps_all_episodes_and_names_resume(tmp_path: Path) -> None:
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
    with seqrecord.open(made) as dataset:
        assert list(dataset.episodes) == ["a", "b"]


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
    write_dataset(url, {"e": [frame(0)]}, storage_options=options)


@pytest.mark.slow  # starts processes
@pytest.mark.parametrize("error", [SourceError("broken"), SystemExit()])
def test_failed_and_killed_workers(tmp_path: Path, error: BaseException) -> None:
    """The first source has only the failing episode, so no episode is complete."""
    message = "a worker died before|broken"
    for source, ended in ((Source("e0", error, count=1), set()), (Source("e1", error), {"e0"})):
        pool = ProcessPoolExecutor(1, get_context("forkserver"))
        with pool, pytest.raises((SourceError, DestinationError), match=message) as caught:
            convert(source, tmp_path / "d", executor=pool, **SETTINGS)
        if ended:
            check_resumable(tmp_path / "d", caught.value, ended)
        assert (tmp_path / "d").exists() == bool(ended)
    with pytest.raises(SourceError):  # every worker fails
        convert(Source("e0 e1", SourceError("broken")), tmp_path / "e", workers=2, **SETTINGS)
    assert not (tmp_path / "e").exists()
