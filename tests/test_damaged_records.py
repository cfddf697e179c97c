"""Record files that are damaged, and the destinations of recorders."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import seqrecord
from seqrecord import SeqRecordRecorder, SeqRecordWriter
from seqrecord.errors import DestinationError, FormatError
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


def interrupted(folder: Path, count: int = 3) -> list[Path]:
    """Record files of an episode each, that no manifest names."""

    def write() -> None:
        with SeqRecordWriter(folder, max_file_size=1) as writer:
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
                assert writer.completed_episodes == {"e0", "e2"}
        else:
            run("reindex", tmp_path, code=1)  # all else is done
    assert "record file skipped" in caplog.text
    assert str(bad) in caplog.text
    assert keys_of(tmp_path) == ["e0", "e2"]
    assert bad.read_bytes() == data  # it stays
    assert seqrecord.verify(tmp_path, deep=True).ok
    assert one.exists()
    assert three.exists()


def test_a_damaged_file_of_the_dataset_needs_a_reindex(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path, max_file_size=1) as writer:
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
        assert len(writer.completed_episodes) == 3


def interrupted_append(folder: Path) -> set[Path]:
    before = {*(folder / "records").glob("*.seqrec")}

    def write() -> None:
        with SeqRecordWriter(folder, mode="append", max_file_size=1) as writer:
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
        assert writer.completed_episodes == set()
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
