"""An episode that its writer was stopped in says so; one that ended does not."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import SeqRecordWriter
from seqrecord.errors import FrameError
from seqrecord.format.text import MAX_METADATA_LENGTH, mark_truncated, unmark_truncated

METADATA = {"robot": "arm"}
CUT = {"robot": "arm", "truncated": True}


def frame(number: int) -> dict[str, Any]:
    return {"x": np.full((64, 64), number, np.float32)}


def found(folder: Path) -> dict[str, tuple[int, dict[str, Any]]]:
    """Frames and metadata of each episode, whose frames are those that were written."""
    with seqrecord.open(folder) as dataset:
        for episode in dataset.episodes.values():
            values = episode[:]["x"]
            assert isinstance(values, np.ndarray)
            np.testing.assert_array_equal(values[:, 0, 0], np.arange(len(episode)))
        return {key: (len(item), item.metadata) for key, item in dataset.episodes.items()}


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
        write(tmp_path / "d", steps, settings).abort()
    else:
        process = multiprocessing.get_context("fork").Process(
            target=write_and_die, args=(tmp_path / "d", steps, settings)
        )
        process.start()
        process.join()
        assert process.exitcode == 3
    with (
        SeqRecordWriter(tmp_path / "d", mode="resume", **settings) as writer,
        writer.episode("z") as episode,
    ):
        episode.append(frame(0))
    episodes = found(tmp_path / "d")
    assert episodes.pop("z") == (1, {})
    assert episodes == ({} if expected is None else {"a": expected})
    seqrecord.reindex(tmp_path / "d")
    assert found(tmp_path / "d") == {**episodes, "z": (1, {})}
    assert seqrecord.verify(tmp_path / "d", deep=True).ok


def test_an_error_after_a_flush(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path / "d") as writer:
        episode = writer.episode("a", metadata=METADATA)
        for number in range(3):
            episode.append(frame(number))
        episode.flush()
        with pytest.raises(FrameError):
            episode.append({"x": np.zeros(3)})
    assert found(tmp_path / "d") == {"a": (3, CUT)}


def test_one_that_came_truncated_stays_so(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path / "d") as writer, writer.episode("a", metadata=CUT) as episode:
        for number in range(3):
            episode.append(frame(number))
            episode.flush()
    assert found(tmp_path / "d") == {"a": (3, CUT)}


def test_the_mark() -> None:
    marked = mark_truncated('{"z":1}')
    assert marked == '{"truncated":true,"z":1}'
    assert unmark_truncated(marked) == unmark_truncated('{"z":1}') == '{"z":1}'
    long = '{"z":"' + "a" * (MAX_METADATA_LENGTH - 8) + '"}'
    assert mark_truncated(long) == long
