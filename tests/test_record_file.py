"""Sealing what a kill leaves of a record file: whole episodes are kept, nothing is believed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from seqrecord.errors import FormatError
from seqrecord.format import Footer, encode_footer
from seqrecord.record_file import RecordFileWriter
from seqrecord.record_reading import read_footer
from seqrecord.sealing import seal
from seqrecord.storage import LocalStorage
from tests.tiny import TINY, tiny_frames


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """A record file of two finished episodes and half of a third, as a kill leaves it."""
    storage = LocalStorage(tmp_path)
    writer = RecordFileWriter(storage, TINY, record_bytes=1 << 20)
    for number in range(3):
        writer.begin(f"e{number}", ordinal=number, chunk_frames=2, metadata="{}")
        for frame in tiny_frames():
            writer.append(frame)
        if number < 2:
            writer.end()
    return tmp_path


def _path(root: Path) -> str:
    (path,) = LocalStorage(root).interrupted("records")
    return path


def _notes(root: Path) -> Path:
    return root / (_path(root) + ".notes")


def _keys(footer: Footer | None) -> list[str]:
    return [part.key for part in footer.episodes] if footer else []


def test_seal_keeps_what_had_ended(cut: Path) -> None:
    storage, path = LocalStorage(cut), _path(cut)
    sealed = seal(storage, path)
    assert _keys(sealed) == ["e0", "e1"]
    assert sealed is not None
    assert encode_footer(read_footer(storage, path)) == encode_footer(sealed)
    assert storage.interrupted("records") == []


@pytest.mark.parametrize(
    ("offset", "kept"),
    [(0, []), (12, []), (64, []), (384 + 64, ["e0"]), (384 * 2 + 64, ["e0", "e1"])],
)
def test_seal_believes_no_page(cut: Path, offset: int, kept: list[str]) -> None:
    path = _path(cut)
    partial = cut / (path + ".partial")
    data = bytearray(partial.read_bytes())
    data[offset] ^= 1
    partial.write_bytes(data)
    assert _keys(seal(LocalStorage(cut), path)) == kept
    if not kept:
        assert not list((cut / "records").iterdir())


def test_seal_of_any_cut_note(cut: Path) -> None:
    lines = _notes(cut).read_bytes().splitlines(keepends=True)
    note = json.loads(lines[1])
    partial = cut / (_path(cut) + ".partial")
    data, path = partial.read_bytes(), _path(cut)
    for length in (0, 2, 46, 48, 50, len(note["note"]) // 4 * 2, len(note["note"]) - 2):
        for name in (cut / "records").iterdir():
            name.unlink()
        partial.write_bytes(data)
        short = json.dumps({**note, "note": note["note"][:length]}).encode() + b"\n"
        Path(f"{cut / path}.notes").write_bytes(lines[0] + short)
        assert _keys(seal(LocalStorage(cut), path)) == ["e0"], length


def test_seal_of_notes_that_do_not_go_on(cut: Path) -> None:
    lines = _notes(cut).read_bytes().splitlines(keepends=True)
    _notes(cut).write_bytes(lines[0] + lines[0] + lines[1])
    assert _keys(seal(LocalStorage(cut), _path(cut))) == ["e0"]


def test_seal_of_a_note_of_another_file(
    cut: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = _path(cut)
    partial = cut / (path + ".partial")
    data = bytearray(partial.read_bytes())
    other = RecordFileWriter(
        storage := LocalStorage(tmp_path_factory.mktemp("other")), TINY, record_bytes=1 << 20
    )
    other.begin("x", ordinal=0, chunk_frames=2, metadata="{}")
    other.append(tiny_frames()[0])
    (name,) = storage.interrupted("records") or [""]
    assert name == "", "nothing is written before a chunk is full"
    other.append(tiny_frames()[1])
    (name,) = storage.interrupted("records")
    data[:64] = (Path(storage.url) / (name + ".partial")).read_bytes()[:64]
    partial.write_bytes(data)
    assert seal(LocalStorage(cut), path) is None


def test_dropped_episode_leaves_no_trace(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    writer = RecordFileWriter(storage, TINY, record_bytes=1 << 20)
    for number, ends in enumerate((True, False, True)):
        writer.begin(f"e{number}", ordinal=number, chunk_frames=2, metadata="{}")
        for frame in tiny_frames():
            writer.append(frame)
        if ends:
            writer.end()
        else:
            writer.drop()
    writer.close()
    (path,) = storage.list_files("records")
    footer = read_footer(storage, path)
    assert _keys(footer) == ["e0", "e2"]
    assert np.all(np.diff(footer.chunks["offset"].astype(int)) <= 128)


def test_header_of_another_file(tmp_path: Path) -> None:
    paths = []
    for name in ("a", "b"):
        storage = LocalStorage(tmp_path / name)
        writer = RecordFileWriter(storage, TINY, record_bytes=1 << 20)
        writer.begin("e", ordinal=0, chunk_frames=2, metadata="{}")
        writer.append(tiny_frames()[0])
        writer.end()
        writer.close()
        paths.append(tmp_path / name / storage.list_files("records")[0])
    paths[0].write_bytes(paths[1].read_bytes()[:64] + paths[0].read_bytes()[64:])
    with pytest.raises(FormatError, match="different files") as caught:
        read_footer(LocalStorage(tmp_path / "a"), f"records/{paths[0].name}")
    assert caught.value.file == str(paths[0])
