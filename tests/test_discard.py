"""Episodes that are thrown away: nothing of them is committed, whenever a kill comes."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import FeatureSpec, Schema, SeqRecordRecorder, SeqRecordWriter
from seqrecord.errors import ConflictError, DestinationError, StorageError
from seqrecord.storage import LocalStorage, Upload
from seqrecord.writing.commits import reindex
from tests.numbered import join_commits
from tests.storage_doubles import FailAt, FaultyStorage, Gate

SETTINGS: dict[str, Any] = {"codecs": "raw", "chunk_frames": 4}


def append(episode: Any, start: int, stop: int, flush_every: int = 3) -> None:
    for number in range(start, stop):
        episode.append({"x": np.full((20, 30, 3), number, np.uint8), "y": np.float32(number)})
        if flush_every and number % flush_every == 2:
            episode.flush()


def lengths(root: Path) -> dict[str, int]:
    with seqrecord.open(root) as dataset:
        found = {key: len(episode) for key, episode in dataset.episodes.items()}
        for episode in dataset.episodes.values():
            np.testing.assert_array_equal(episode[:]["y"], np.arange(len(episode)))
            np.testing.assert_array_equal(episode[:]["x"][:, 0, 0, 0], np.arange(len(episode)))
    return found


class Photographed(LocalStorage):
    """A storage of which copies are made before and after each of its steps, while it is told to.

    They are what kills at these moments leave.
    """

    def __init__(self, root: Path, copies: Path) -> None:
        super().__init__(root)
        self.copies, self.is_on, self._lock = copies, False, threading.Lock()
        self.count = 0

    def photograph(self) -> None:
        with self._lock:
            if self.is_on:
                target = self.copies / f"{self.count:03d}"
                shutil.copytree(self.root, target, ignore_dangling_symlinks=True)
                self.count += 1

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def do(*args: Any) -> Any:
            self.photograph()
            result = function(*args)
            self.photograph()
            return result

        return do

    def create(self, path: str) -> Upload:
        upload = super().create(path)
        for name in ("write", "checkpoint", "rewind", "abort"):
            setattr(upload, name, self.around(getattr(upload, name)))
        return upload

    def remove(self, path: str) -> None:
        self.around(super().remove)(path)


@pytest.mark.parametrize(
    ("max_file_size", "flush_every"),
    [(1, 0), (1, 3), (9_000, 0), (9_000, 3), (9_000, 5), (1 << 30, 5)],
)
def test_a_discarded_episode_is_nowhere_whatever_the_files(
    tmp_path: Path, max_file_size: int, flush_every: int
) -> None:
    """One that had ended before stays; a kill amid discarding leaves all flushed, or nothing."""
    storage = Photographed(tmp_path / "d", tmp_path / "copies")
    writer = SeqRecordWriter(storage, max_file_size=max_file_size, **SETTINGS)
    with writer.episode("kept") as episode:
        append(episode, 0, 7)
    episode = writer.episode("a")
    append(episode, 0, 26, flush_every)
    flushed = {0: 0, 3: 24, 5: 23}[flush_every]
    storage.is_on = True
    episode.discard()
    storage.photograph()
    storage.is_on = False
    join_commits()
    sizes = [path.stat().st_size for path in (tmp_path / "d/records").glob("*.[ps]*")]
    # What shares a file with another episode, twice a file's size and a chunk at most, may stay.
    left = 2 * max_file_size + 4 * 2000 if max_file_size < 1 << 30 else 0
    assert sum(sizes) < 7 * 2000 + left + 4096 * len(sizes)
    with pytest.raises(DestinationError, match="has ended"):
        episode.append({})
    # Kills, then and now.
    assert storage.count >= 1
    found = []
    for number in range(storage.count):
        copy = storage.copies / f"{number:03d}"
        SeqRecordWriter(copy, mode="resume").close()
        found.append(lengths(copy))
        assert found[-1].pop("kept") == 7
        assert found[-1] == {} or found[-1]["a"] >= flushed
    assert found[-1] == {}
    assert all(found[i] or not found[i + 1] for i in range(len(found) - 1)), "it came back"
    # The same key again, and the writer as if nothing had been.
    assert "a" not in writer.completed_episodes
    with writer.episode("a") as episode:
        append(episode, 0, 5)
    with writer.episode("last") as episode:
        append(episode, 0, 3)
        episode.discard()
        episode.discard()  # it has been
    writer.close()
    with seqrecord.open(tmp_path / "d") as dataset:
        statistics = dataset.statistics
    assert statistics.num_frames == 12
    assert statistics["y"].max[0] == 6
    assert lengths(tmp_path / "d") == {"kept": 7, "a": 5}
    assert not seqrecord.verify(tmp_path / "d", deep=True).problems
    reindex(tmp_path / "d")
    assert lengths(tmp_path / "d") == {"kept": 7, "a": 5}


def test_nothing_is_left_where_all_was_discarded(tmp_path: Path) -> None:
    writer = SeqRecordWriter(tmp_path, **SETTINGS)
    for _ in range(2):
        episode = writer.episode("a")
        append(episode, 0, 9)
        episode.discard()
    with pytest.raises(DestinationError, match="no episode was written"):
        writer.close()
    assert not list(tmp_path.glob("records/*"))


def test_discarding_before_the_features_are_known(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path) as writer:
        episode = writer.episode("a")
        episode.append({"other": np.zeros(3)})
        episode.discard()
        with writer.episode("a") as episode:
            append(episode, 0, 2)
    assert lengths(tmp_path) == {"a": 2}


def test_a_file_that_cannot_be_removed_is_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = FaultyStorage(LocalStorage(tmp_path), FailAt("remove", path="records/"))
    writer = SeqRecordWriter(storage, max_file_size=1, **SETTINGS)
    with writer.episode("kept") as episode:
        append(episode, 0, 3)
    episode = writer.episode("a")
    append(episode, 0, 20)
    episode.discard()
    assert "cannot be removed" not in caplog.text
    writer.close()
    assert "cannot be removed" in caplog.text
    assert lengths(tmp_path) == {"kept": 3}
    with SeqRecordWriter(tmp_path, mode="resume"):  # nor is it recovered
        pass
    assert lengths(tmp_path) == {"kept": 3}
    reindex(tmp_path)
    assert lengths(tmp_path) == {"kept": 3}


def test_what_a_resume_has_added_meanwhile_stays(tmp_path: Path) -> None:
    """It removed finished files of its own, which the manifest named by then."""
    writer = SeqRecordWriter(tmp_path, max_file_size=1, **SETTINGS)
    with writer.episode("kept") as episode:
        append(episode, 0, 7)
    episode = writer.episode("a")
    append(episode, 0, 26, 3)
    join_commits()
    SeqRecordWriter(tmp_path, mode="resume").close()
    before = lengths(tmp_path)
    assert before["a"] >= 24
    episode.discard()
    with writer.episode("b") as episode:
        append(episode, 0, 3)
    with pytest.raises(ConflictError):
        writer.close()
    assert lengths(tmp_path) == before
    assert not seqrecord.verify(tmp_path, deep=True).problems
    SeqRecordWriter(tmp_path, mode="resume").close()
    assert lengths(tmp_path) == {**before, "b": 3}


def test_a_storage_that_fails_breaks_the_writer(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    writer = SeqRecordWriter(storage, **SETTINGS)
    with writer.episode("kept") as episode:
        append(episode, 0, 3)
    episode = writer.episode("a")
    append(episode, 0, 9)
    (notes,) = tmp_path.glob("records/*.notes")
    data = notes.read_bytes()
    notes.unlink()
    notes.mkdir()
    with pytest.raises(StorageError):
        episode.discard()
    notes.rmdir()
    notes.write_bytes(data)
    with pytest.raises(DestinationError, match="failed before"):
        writer.episode("b")
    with pytest.raises(DestinationError, match="failed before"):
        writer.close()
    SeqRecordWriter(tmp_path, mode="resume").close()
    assert lengths(tmp_path) == {"kept": 3, "a": 9}


# The recorder


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[SeqRecordRecorder]:
    schema = Schema([FeatureSpec("x", np.dtype(np.int64), ())])
    with SeqRecordRecorder(tmp_path, schema=schema, flush_seconds=0.01) as recorder:
        yield recorder


@pytest.mark.parametrize("wait", [True, False])
def test_a_take_that_failed_is_recorded_again(
    tmp_path: Path, recorder: SeqRecordRecorder, wait: bool
) -> None:
    takes = []
    for take in range(3):
        takes.append(recorder.episode("demo/1", metadata={"take": take}))
        with takes[-1] as episode:
            for number in range(20 + take):
                episode.append({"x": number})
            if take < 2:
                episode.discard(wait=wait)
                with pytest.raises(DestinationError, match="has ended"):
                    episode.append({"x": 0})
    with pytest.raises(DestinationError, match="has ended"):
        takes[-1].discard()
    stats = recorder.stats()
    assert (stats.recorded_frames, stats.discarded_frames) == (22, 41)
    assert (stats.written_frames, stats.durable_frames) == (22, 22)
    recorder.episode("demo/2").discard()
    recorder.close()
    with pytest.raises(DestinationError, match="is closed"):
        takes[-1].discard()
    with seqrecord.open(tmp_path) as dataset:
        assert list(dataset.episodes) == ["demo/1"]
        assert dataset.episodes["demo/1"].metadata == {"take": 2}
        np.testing.assert_array_equal(dataset.episodes["demo/1"][:]["x"], np.arange(22))


def test_discarding_waits_for_nothing(tmp_path: Path) -> None:
    gate = Gate()
    storage = FaultyStorage(LocalStorage(tmp_path), gate)
    with SeqRecordRecorder(storage, codecs="raw", chunk_frames=1) as recorder:
        episode = recorder.episode("a")
        for number in range(50):
            episode.append({"x": number})
        assert gate.reached.wait(60)
        episode.discard()
        assert recorder.stats().queued_frames == 0
        with recorder.episode("a") as episode:
            episode.append({"x": 7})
            gate.opened.set()
    with seqrecord.open(tmp_path) as dataset:
        assert dataset.episodes["a"][:]["x"].tolist() == [7]
