"""Flushing: what has been flushed is an episode, whatever comes after it.

An episode whose writer was stopped in it says so; one that ended does not.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import FeatureSpec, Schema, SeqRecordRecorder, SeqRecordWriter, reindex
from seqrecord.errors import ConflictError, DestinationError, FrameError, StorageError
from seqrecord.format.text import MAX_METADATA_LENGTH, mark_truncated, unmark_truncated
from seqrecord.storage import LocalStorage, Upload
from tests.numbered import join_commits
from tests.storage_doubles import FailAt, FaultyStorage, Gate
from tests.tiny import footers_of

SETTINGS: dict[str, Any] = {"codecs": "raw", "chunk_frames": 8}
METADATA = {"robot": "arm"}
CUT = {"robot": "arm", "truncated": True}


def frame(number: int) -> dict[str, Any]:
    """`image`, in one group, and `state` and `note` in another; every third frame has no note."""
    made = {"image": np.full((64, 64), number, "<f4"), "state": np.full(3, number, "<f4")}
    return made if number % 3 == 2 else {**made, "note": f"frame {number}"}


def append(episode: Any, start: int, stop: int) -> None:
    for number in range(start, stop):
        episode.append(frame(number))


def check(root: Path, lengths: dict[str, int]) -> None:
    with seqrecord.open(root) as dataset:
        assert {key: len(episode) for key, episode in dataset.episodes.items()} == lengths
        for episode in dataset.episodes.values():
            for number in range(len(episode)):
                got, want = episode[number], frame(number)
                assert got.keys() == want.keys()
                for name, value in want.items():
                    np.testing.assert_array_equal(got[name], value)
    assert not seqrecord.verify(root).problems


def resume(root: Path) -> frozenset[str]:
    with SeqRecordWriter(root, mode="resume") as writer:
        return writer.completed_episodes


def test_a_flush_ends_the_chunks_that_are_open(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path, **SETTINGS) as writer, writer.episode("a") as episode:
        append(episode, 0, 3)
        episode.flush()
        episode.flush()  # nothing has come since
        append(episode, 3, 14)
        episode.flush()
        append(episode, 14, 24)
    with seqrecord.open(tmp_path) as dataset:
        for group in dataset.contents.index.groups:
            assert group.num_frames.tolist() == [3, 8, 3, 8, 2]
    check(tmp_path, {"a": 24})


def test_flushing_changes_no_frame_and_not_the_number_of_episodes(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path, **SETTINGS, max_file_size=20_000) as writer:
        for key in ("a", "b"):
            with writer.episode(key) as episode:
                episode.flush()  # of no frames
                for number in range(30):
                    append(episode, number, number + 1)
                    if number % 7 == 0:
                        episode.flush()
    check(tmp_path, {"a": 30, "b": 30})
    before = (tmp_path / "manifest.json").read_bytes()
    seqrecord.reindex(tmp_path)
    assert seqrecord.open(tmp_path).fingerprint in before.decode()


def write(folder: Path, steps: str, settings: dict[str, Any]) -> SeqRecordWriter:
    """By steps: `f` for a frame, `F` for a flush, `E` for the end of the episode."""
    writer = SeqRecordWriter(folder, **settings)
    episode = writer.episode("a", metadata=METADATA)
    for number, step in enumerate(steps):
        if step == "f":
            episode.append(frame(steps[:number].count("f")))
        elif step == "F":
            episode.flush()
        else:
            episode.close()
    return writer


def write_and_die(folder: Path, steps: str, settings: dict[str, Any]) -> None:
    kept = write(folder, steps, settings)  # or it would be closed
    os._exit(3 if kept else 1)


@pytest.mark.parametrize(
    ("max_file_size", "gives_up"), [(1 << 30, False), (40_000, False), (1 << 30, True)]
)
@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("fffFE", (3, METADATA)),
        ("fffE", (3, METADATA)),
        ("fFffFffE", (5, METADATA)),
        ("fFfFfFE", (3, METADATA)),
        ("fffffffFE", (7, METADATA)),
        ("fffF", (3, CUT)),
        ("fFfffF", (4, CUT)),
        ("ffffffFff", (6, CUT)),
        ("fffffffFffffffF", (13, CUT)),
        ("fff", None),
    ],
)
def test_a_writer_that_stops(
    tmp_path: Path, steps: str, expected: tuple[int, Any] | None, max_file_size: int, gives_up: bool
) -> None:
    settings: dict[str, Any] = {"codecs": "raw", "chunk_frames": 2, "max_file_size": max_file_size}
    if gives_up:
        write(tmp_path, steps, settings).abort()
    else:
        process = multiprocessing.get_context("fork").Process(
            target=write_and_die, args=(tmp_path, steps, settings)
        )
        process.start()
        process.join()
        assert process.exitcode == 3
    with (
        SeqRecordWriter(tmp_path, mode="resume", **settings) as writer,
        writer.episode("z") as episode,
    ):
        append(episode, 0, 1)
    for rebuild in (lambda _: None, seqrecord.reindex):
        rebuild(tmp_path)
        check(tmp_path, {"z": 1} if expected is None else {"a": expected[0], "z": 1})
        with seqrecord.open(tmp_path) as dataset:
            assert expected is None or dataset.episodes["a"].metadata == expected[1]


@pytest.mark.parametrize("max_file_size", [1, 20_000, 1 << 30])
@pytest.mark.parametrize("error", ["bad frame", "abort", "raised"])
def test_an_error_keeps_what_was_flushed(tmp_path: Path, max_file_size: int, error: str) -> None:
    with SeqRecordWriter(tmp_path, **SETTINGS, max_file_size=max_file_size) as writer:
        episode = writer.episode("a", metadata=METADATA)
        append(episode, 0, 11)
        episode.flush()
        append(episode, 11, 20)
        if error == "bad frame":
            with pytest.raises(FrameError):
                episode.append({"state": np.zeros(4)})
        elif error == "abort":
            episode.abort()
        else:
            with pytest.raises(KeyError), episode:
                raise KeyError
        assert writer.completed_episodes == {"a"}
        with pytest.raises(DestinationError, match="exists already"):
            writer.episode("a")
        with writer.episode("b") as episode:
            append(episode, 0, 9)
    with seqrecord.open(tmp_path) as dataset:
        length = len(dataset.episodes["a"])
        assert dataset.episodes["a"].metadata == CUT
    assert length == 11 if max_file_size == 1 << 30 else 11 <= length <= 20
    check(tmp_path, {"a": length, "b": 9})
    seqrecord.reindex(tmp_path)
    check(tmp_path, {"a": length, "b": 9})


def test_flush_before_the_features_are_known_takes_them_from_what_is_there(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path) as writer, writer.episode("a") as episode:
        append(episode, 0, 2)
        known = [writer.schema is not None]
        episode.flush()
        known.append(writer.schema is not None)
        append(episode, 2, 5)
    assert known == [False, True]
    check(tmp_path, {"a": 5})


def test_a_writer_whose_flushed_part_another_has_committed_loses_nothing(tmp_path: Path) -> None:
    """The second commits what the first had flushed; the episode grows when the rest is found."""
    first = SeqRecordWriter(tmp_path, **SETTINGS)
    episode = first.episode("a")
    append(episode, 0, 11)
    episode.flush()
    assert resume(tmp_path) == {"a"}
    check(tmp_path, {"a": 11})
    append(episode, 11, 30)
    episode.close()
    with pytest.raises(ConflictError):
        first.close()
    check(tmp_path, {"a": 11})
    assert resume(tmp_path) == {"a"}
    check(tmp_path, {"a": 30})
    seqrecord.reindex(tmp_path)
    check(tmp_path, {"a": 30})


@pytest.mark.parametrize(("damaged", "length"), [(0, None), (1, 5), (2, 17)])
def test_a_damaged_chunk_takes_what_comes_after_it(
    tmp_path: Path, damaged: int, length: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine that went down may have lost any page: what was flushed before it is there."""
    writer = SeqRecordWriter(tmp_path, **SETTINGS)
    episode = writer.episode("a")
    offsets = []
    for start, stop in ((0, 5), (5, 17), (17, 20)):
        (*_, size) = (0, *(path.stat().st_size for path in tmp_path.glob("records/*.partial")))
        offsets.append(max(size, 64))
        append(episode, start, stop)
        episode.flush()
    (partial,) = tmp_path.glob("records/*.partial")
    data = bytearray(partial.read_bytes())
    data[offsets[damaged]] ^= 1
    partial.write_bytes(data)
    if length is None:
        with pytest.raises(DestinationError, match="no episode"):
            resume(tmp_path)
        return
    assert resume(tmp_path) == {"a"}
    check(tmp_path, {"a": length})
    assert "incomplete" in caplog.text


def test_each_note_tells_only_of_what_came_since_the_last(tmp_path: Path) -> None:
    """Or an hour of flushes would write as much as its square."""
    writer = SeqRecordWriter(tmp_path, **SETTINGS)
    episode = writer.episode("a")
    for number in range(60):
        append(episode, number, number + 1)
        episode.flush()
    (cut,) = LocalStorage(tmp_path).unfinished("records")
    sizes = [len(note) for _, note in cut.checkpoints()]
    assert len(sizes) == 60
    assert max(sizes) < 2 * sizes[0]
    assert resume(tmp_path) == {"a"}
    check(tmp_path, {"a": 60})


def test_every_file_says_up_to_where_it_was_flushed(tmp_path: Path) -> None:
    with (
        SeqRecordWriter(tmp_path, **SETTINGS, max_file_size=1) as writer,
        writer.episode("a") as episode,
    ):
        append(episode, 0, 4)
        episode.flush()
        append(episode, 4, 9)
    footers = footers_of(tmp_path)
    ends = {part.num_frames for footer in footers.values() for part in footer.episodes}
    assert {4, 9} <= ends
    for footer in footers.values():
        (part,) = footer.episodes
        for rows in footer.chunks:
            assert part.num_frames is None or all(
                rows["first_frame"] + rows["num_frames"] <= part.num_frames
            )


def test_one_that_came_truncated_stays_so(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path) as writer, writer.episode("a", metadata=CUT) as episode:
        for number in range(3):
            append(episode, number, number + 1)
            episode.flush()
    with seqrecord.open(tmp_path) as dataset:
        assert dataset.episodes["a"].metadata == CUT
    check(tmp_path, {"a": 3})


def test_the_mark() -> None:
    marked = mark_truncated('{"z":1}')
    assert marked == '{"truncated":true,"z":1}'
    assert unmark_truncated(marked) == unmark_truncated('{"z":1}') == '{"z":1}'
    long = '{"z":"' + "a" * (MAX_METADATA_LENGTH - 8) + '"}'
    assert mark_truncated(long) == long


# Episodes that are thrown away: nothing of them is committed, whenever a kill comes


SMALL_CHUNKS: dict[str, Any] = {"codecs": "raw", "chunk_frames": 4}


def append_flushing(episode: Any, start: int, stop: int, flush_every: int = 3) -> None:
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
    writer = SeqRecordWriter(storage, max_file_size=max_file_size, **SMALL_CHUNKS)
    with writer.episode("kept") as episode:
        append_flushing(episode, 0, 7)
    episode = writer.episode("a")
    append_flushing(episode, 0, 26, flush_every)
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
        append_flushing(episode, 0, 5)
    with writer.episode("last") as episode:
        append_flushing(episode, 0, 3)
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
    writer = SeqRecordWriter(tmp_path, **SMALL_CHUNKS)
    for _ in range(2):
        episode = writer.episode("a")
        append_flushing(episode, 0, 9)
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
            append_flushing(episode, 0, 2)
    assert lengths(tmp_path) == {"a": 2}


def test_a_file_that_cannot_be_removed_is_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = FaultyStorage(LocalStorage(tmp_path), FailAt("remove", path="records/"))
    writer = SeqRecordWriter(storage, max_file_size=1, **SMALL_CHUNKS)
    with writer.episode("kept") as episode:
        append_flushing(episode, 0, 3)
    episode = writer.episode("a")
    append_flushing(episode, 0, 20)
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
    writer = SeqRecordWriter(tmp_path, max_file_size=1, **SMALL_CHUNKS)
    with writer.episode("kept") as episode:
        append_flushing(episode, 0, 7)
    episode = writer.episode("a")
    append_flushing(episode, 0, 26, 3)
    join_commits()
    SeqRecordWriter(tmp_path, mode="resume").close()
    before = lengths(tmp_path)
    assert before["a"] >= 24
    episode.discard()
    with writer.episode("b") as episode:
        append_flushing(episode, 0, 3)
    with pytest.raises(ConflictError):
        writer.close()
    assert lengths(tmp_path) == before
    assert not seqrecord.verify(tmp_path, deep=True).problems
    SeqRecordWriter(tmp_path, mode="resume").close()
    assert lengths(tmp_path) == {**before, "b": 3}


def test_a_storage_that_fails_breaks_the_writer(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    writer = SeqRecordWriter(storage, **SMALL_CHUNKS)
    with writer.episode("kept") as episode:
        append_flushing(episode, 0, 3)
    episode = writer.episode("a")
    append_flushing(episode, 0, 9)
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
