"""A resume copies whole episodes from what a kill leaves of a record file; it believes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seqrecord.format import EpisodePart
from seqrecord.reading.metadata import read_footers
from seqrecord.storage import LocalStorage
from seqrecord.writing.own_files import new_writer_id, writer_of
from seqrecord.writing.record_file import RecordFileWriter
from seqrecord.writing.recovery import recover
from tests.tiny import TINY, tiny_frames


def write(folder: Path, *ends: bool, record_bytes: int = 1 << 20) -> str:
    """Episodes e0, e1, …, of which some end, as a kill leaves them; the writer's id."""
    id_ = new_writer_id()
    writer = RecordFileWriter(LocalStorage(folder), TINY, writer=id_, record_bytes=record_bytes)
    for number, does_end in enumerate(ends):
        writer.begin(f"e{number}", ordinal=number, chunk_frames=2, metadata="{}")
        for frame in tiny_frames():
            writer.append(frame)
        if does_end:
            writer.end()
    return id_


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """A record file of two finished episodes and half of a third, as a kill leaves it."""
    write(tmp_path, True, True, False)
    return tmp_path


def partial(root: Path) -> Path:
    (path,) = (root / "records").glob("*.partial")
    return path


def notes(root: Path) -> Path:
    return partial(root).with_suffix(".notes")


def recovered(
    root: Path, committed: tuple[str, ...] = ()
) -> tuple[list[str], dict[str, EpisodePart]]:
    """Keys of what is recovered, and it by uid; the copies of a resume hold just that."""
    storage, writer = LocalStorage(root), new_writer_id()
    sizes = {file.path: file.size for file in storage.files("records")}
    before = {path: path.read_bytes() for path in (root / "records").iterdir()}
    unfinished = [cut for cut in storage.unfinished("records") if cut.path not in sizes]
    whole = recover(storage, read_footers(storage, sizes), unfinished, committed, writer)
    assert {path: path.read_bytes() for path in before} == before, "nothing is changed or removed"
    new = {file.path: file.size for file in storage.files("records") if file.path not in sizes}
    assert {writer_of(path) for path in new} <= {writer}
    assert not list((root / "records").glob(f"*-{writer}*.partial"))
    copied = {part.uid for f in read_footers(storage, new).values() for part in f.episodes}
    assert copied <= set(whole)
    return sorted(part.key for part in whole.values()), whole


def test_what_had_ended_is_kept(cut: Path) -> None:
    assert recovered(cut)[0] == ["e0", "e1"]
    again = recovered(cut)
    assert again[0] == ["e0", "e1"]
    assert len(list((cut / "records").glob("*.seqrec"))) == 1, "what was copied is not copied again"


def test_what_is_committed_is_not_copied(cut: Path) -> None:
    assert recovered(cut, ("e1",))[0] == ["e0"]


def test_a_copy_is_the_same_chunks(cut: Path) -> None:
    recovered(cut)
    storage = LocalStorage(cut)
    ((path, footer),) = read_footers(
        storage, {file.path: file.size for file in storage.files("records")}
    ).items()
    assert [part.num_frames for part in footer.episodes] == [5, 5]
    assert [len(gaps) for gaps in footer.gaps] == [2]
    data = (cut / path).read_bytes()
    assert data[64 : 64 + 576 * 2] == partial(cut).read_bytes()[64 : 64 + 576 * 2]


@pytest.mark.parametrize(
    ("offset", "kept"),
    [(0, []), (12, []), (64, ["e1"]), (576 + 64, ["e0"]), (576 * 2 + 64, ["e0", "e1"])],
)
def test_no_page_is_believed(
    cut: Path, offset: int, kept: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    data = bytearray(partial(cut).read_bytes())
    data[offset] ^= 1
    partial(cut).write_bytes(data)
    assert recovered(cut)[0] == kept
    assert ("not whole" in caplog.text) == (len(kept) == 1)


def test_any_cut_note(cut: Path) -> None:
    lines = notes(cut).read_bytes().splitlines(keepends=True)
    note: Any = json.loads(lines[1])
    for length in (0, 2, 46, 48, 50, len(note["note"]) // 4 * 2, len(note["note"]) - 2):
        for path in (cut / "records").glob("*.seqrec"):
            path.unlink()
        short = json.dumps({**note, "note": note["note"][:length]}).encode() + b"\n"
        notes(cut).write_bytes(lines[0] + short)
        assert recovered(cut)[0] == ["e0"], length


def test_a_note_twice(cut: Path) -> None:
    lines = notes(cut).read_bytes().splitlines(keepends=True)
    notes(cut).write_bytes(lines[0] + lines[0] + lines[1])
    assert recovered(cut)[0] == ["e0", "e1"]


def test_notes_of_another_file(cut: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    write(other, True)
    data = bytearray(partial(cut).read_bytes())
    data[:64] = partial(other).read_bytes()[:64]
    partial(cut).write_bytes(data)
    assert recovered(cut)[0] == []


@pytest.mark.parametrize("lost", [0, 1])
def test_an_episode_whose_first_part_is_in_a_finished_file(tmp_path: Path, lost: int) -> None:
    """It is recovered, and its last part copied, if the first is there."""
    write(tmp_path, True, record_bytes=300)
    assert len(list((tmp_path / "records").glob("*.seqrec"))) == 1
    for path in list((tmp_path / "records").glob("*.seqrec"))[:lost]:
        path.unlink()
    assert recovered(tmp_path)[0] == ["e0"] * (1 - lost)
    assert len(list((tmp_path / "records").glob("*.seqrec"))) == 2 * (1 - lost)


def test_nothing_had_ended(tmp_path: Path) -> None:
    write(tmp_path, False)
    assert recovered(tmp_path)[0] == []
    assert not list((tmp_path / "records").glob("*.seqrec"))
