"""Flushing: what has been flushed is an episode, whatever comes after it.

An episode whose writer was stopped in it says so; one that ended does not.
"""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import SeqRecordWriter
from seqrecord.errors import ConflictError, DestinationError, FrameError
from seqrecord.format.text import MAX_METADATA_LENGTH, mark_truncated, unmark_truncated
from seqrecord.storage import LocalStorage
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


@pytest.mark.parametrize("gives_up", [False, True], ids=["killed", "gives up"])
@pytest.mark.parametrize("max_file_size", [1 << 30, 40_000], ids=["one file", "several files"])
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
