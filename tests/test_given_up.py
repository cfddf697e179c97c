"""Writers that fail: before an episode has ended nothing is left, later all stays for a resume."""

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
from tests.command_line import main
from tests.places import Place
from tests.services.process import wait_for
from tests.storage_doubles import FailAt, FaultyStorage

SCHEMA = Schema([FeatureSpec("x", np.dtype(np.float64), (1000,))])
FRAMES = 6
SETTINGS: dict[str, Any] = {"codecs": "raw", "chunk_frames": 2}


def frame(number: int) -> dict[str, Any]:
    return {"x": np.full(1000, float(number))}


class Source:
    """Episodes e0, e1, …; those that are `bad` fail after some frames."""

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
    """The episode, with so many frames."""
    for number in range(frames):
        episode.append(frame(number))
    return episode


def fails(
    error: BaseException, ended: int, frames: int = FRAMES, **settings: Any
) -> Callable[[Any], None]:
    """A writer that fails after so many frames of an episode, behind so many others."""

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


def is_left_open(destination: Any) -> None:
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


def gives_up_recording(destination: Any) -> None:
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
    "an error of the user's": fails(KeyError("mine"), 0),
    "before the first frame": fails(KeyError("mine"), 0, frames=0),
    "an interrupt, full record files": fails(KeyboardInterrupt(), 0, max_file_size=10_000),
    "a frame that does not fit": misfits,
    "closed amid an episode": is_left_open,
    "discarded": discards,
    "a recorder without frames": records_nothing,
    "a recorder that gives up": gives_up_recording,
    "a bad source": converts(SourceError("broken")),
    "an interrupted source, full record files": converts(KeyboardInterrupt(), max_file_size=10_000),
    "a defect of a source": converts(ZeroDivisionError("mine")),
}


@pytest.mark.parametrize("name", EARLY)
def test_a_failure_before_an_episode_has_ended_leaves_nothing(tmp_path: Path, name: str) -> None:
    destination = tmp_path
    for number, existing in enumerate(("", "there", "there/d")):  # of the folders
        root = tmp_path / str(number)
        (root / existing).mkdir(parents=True)
        destination = root / "there" / "d"
        before = sorted(root.rglob("*"))
        with pytest.raises(BaseException) as caught:
            EARLY[name](destination)
        assert sorted(root.rglob("*")) == before
        said = [str(caught.value), *getattr(caught.value, "__notes__", ())]
        assert "are kept" not in "".join(said)
    with SeqRecordWriter(destination, **SETTINGS) as writer, writer.episode("e") as episode:
        add(episode, 1)
    with seqrecord.open(destination) as dataset:
        assert list(dataset.episodes) == ["e"]


def test_a_dataset_that_was_to_grow_is_as_it_was(tmp_path: Path) -> None:
    def times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}

    writer = SeqRecordWriter(tmp_path, schema=SCHEMA, **SETTINGS)
    with writer, writer.episode("e") as episode:
        add(episode, 1)
    before = times()
    for error, write in (
        (DestinationError, EARLY["a bad source"]),  # a dataset is there already
        (KeyError, fails(KeyError("mine"), 0, mode="append")),
        (SourceError, converts(SourceError("broken"), mode="append")),
    ):
        with pytest.raises(error):
            write(tmp_path)
    assert times() == before
    assert (tmp_path / "records").is_dir()


def check_resumable(destination: Path, error: BaseException, keys: set[str]) -> None:
    said = "".join([str(error), *getattr(error, "__notes__", ())])
    assert "--resume" in said or not hasattr(error, "add_note")
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


def test_a_later_failure_leaves_all_and_names_resume(tmp_path: Path) -> None:
    errors = (KeyError("mine"), KeyboardInterrupt(), FrameError("mine"))
    for number, write in enumerate((fails_between, *(fails(error, 2) for error in errors))):
        with pytest.raises((KeyError, KeyboardInterrupt, FrameError)) as caught:
            write(tmp_path / str(number))
        check_resumable(tmp_path / str(number), caught.value, {"e0", "e1"})


def test_an_index_that_fails_later_names_resume(tmp_path: Path) -> None:
    """`convert(in_place=True)` and `seqrecord index` continue an index, too."""
    root, made = tmp_path / "originals", tmp_path / "index"
    for key in ("a", "b"):
        (root / key / "image").mkdir(parents=True)
        for number in range(3):
            np.save(root / key / "image" / f"{number:06d}.npy", np.full((99, 99), number, "f4"))
    made.mkdir()
    (made / "index").touch()  # so that no table can be written, after the record files
    with pytest.raises(StorageError, match="--resume"):
        convert(seqrecord.open_source(root), made, in_place=True, workers=1)
    (made / "index").unlink()
    result = CliRunner().invoke(main, ["index", str(root), "-o", str(made), "--resume"])
    assert result.exit_code == 0, result.output
    with seqrecord.open(made) as dataset:
        assert list(dataset.episodes) == ["a", "b"]


def test_a_storage_that_fails(tmp_path: Path) -> None:
    """What it does not take cannot be kept; what it does not remove stays."""
    local = LocalStorage(tmp_path / "d")
    full, stuck = (FaultyStorage(local, FailAt(each, onwards=True)) for each in ("write", "remove"))
    with pytest.raises(StorageError, match="write"):
        fails(KeyError("mine"), 0)(full)
    assert not (tmp_path / "d").exists()
    with pytest.raises(KeyError):
        fails(KeyError("mine"), 0, max_file_size=10_000)(stuck)
    assert (tmp_path / "d").exists()


@pytest.mark.parametrize("place", ["gs"], indirect=True)
def test_a_bucket(place: Place) -> None:
    url, options = place.at(place.host)
    for name in ("an error of the user's", "full record files"):
        error = fails(KeyError("mine"), 0, storage_options=options, max_file_size=10_000)
        with pytest.raises(KeyError):
            error(url)
        assert place.names() == [], name
    with SeqRecordWriter(url, storage_options=options) as writer, writer.episode("e") as episode:
        episode.append(frame(0))


@pytest.mark.slow  # processes are started
@pytest.mark.parametrize("error", [SourceError("broken"), SystemExit()])
def test_workers_that_fail_or_are_killed(tmp_path: Path, error: BaseException) -> None:
    """No episode has ended in the first: none is longer than the one that fails."""
    said = "a worker died before|broken"
    for source, ended in ((Source("e0", error, count=1), set()), (Source("e1", error), {"e0"})):
        pool = ProcessPoolExecutor(1, get_context("forkserver"))
        with pool, pytest.raises((SourceError, DestinationError), match=said) as caught:
            convert(source, tmp_path / "d", executor=pool, **SETTINGS)
        if ended:
            check_resumable(tmp_path / "d", caught.value, ended)
        assert (tmp_path / "d").exists() == bool(ended)
    with pytest.raises(SourceError):  # of workers of which each fails
        convert(Source("e0 e1", SourceError("broken")), tmp_path / "e", workers=2, **SETTINGS)
    assert not (tmp_path / "e").exists()
