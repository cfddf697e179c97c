"""Record files as a writer leaves them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from seqrecord.errors import FormatError
from seqrecord.reading.metadata import read_footer
from seqrecord.storage import LocalStorage
from seqrecord.writing.own_files import new_writer_id, writer_of
from seqrecord.writing.record_file import RecordFileWriter
from tests.tiny import TINY, tiny_frames


def _writer(storage: LocalStorage) -> RecordFileWriter:
    return RecordFileWriter(storage, TINY, writer=new_writer_id(), record_bytes=1 << 20)


def test_dropped_episode_leaves_no_trace(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    writer = _writer(storage)
    for number, ends in enumerate((True, False, True)):
        writer.begin(f"e{number}", ordinal=number, chunk_frames=2, metadata="{}")
        for frame in tiny_frames():
            writer.append(frame)
        if ends:
            writer.end()
        else:
            writer.drop()
    writer.close()
    (path,) = (file.path for file in storage.files("records"))
    footer = read_footer(storage, path)
    assert [part.key for part in footer.episodes] == ["e0", "e2"]
    (chunks,) = footer.chunks
    assert np.all(np.diff(chunks["offset"].astype(int)) <= 3 * 64)


def test_header_of_another_file(tmp_path: Path) -> None:
    paths = []
    for name in ("a", "b"):
        storage = LocalStorage(tmp_path / name)
        writer = _writer(storage)
        writer.begin("e", ordinal=0, chunk_frames=2, metadata="{}")
        writer.append(tiny_frames()[0])
        writer.end()
        writer.close()
        paths.append(tmp_path / name / storage.files("records")[0].path)
    paths[0].write_bytes(paths[1].read_bytes()[:64] + paths[0].read_bytes()[64:])
    with pytest.raises(FormatError, match="different files") as caught:
        read_footer(LocalStorage(tmp_path / "a"), f"records/{paths[0].name}")
    assert caught.value.file == str(paths[0])


def test_files_and_episodes_tell_their_writer(tmp_path: Path) -> None:
    storage, writers = LocalStorage(tmp_path), [new_writer_id() for _ in range(3)]
    for writer in writers:
        files = RecordFileWriter(storage, TINY, writer=writer, record_bytes=1)
        files.begin("e", ordinal=123_456, chunk_frames=2, metadata="{}")
        for frame in tiny_frames():
            files.append(frame)
        files.end()
        files.close()
    paths = [file.path for file in storage.files("records")]
    assert len(paths) == 9
    assert sorted(writer_of(path) or "" for path in paths) == sorted(writers * 3)
    for path in paths:
        footer = read_footer(storage, path)
        assert path == f"records/123456-{footer.file_id}.seqrec"
        assert [part.uid[:16] for part in footer.episodes] == [writer_of(path)]
    assert writer_of("records/other.seqrec") is None
