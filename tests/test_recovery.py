"""A resume copies whole episodes from what a kill leaves of a record file; it believes nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import seqrecord
import seqrecord.types
from seqrecord import SeqRecordWriter
from seqrecord.errors import DestinationError, FormatError, NotFoundError, StorageError
from seqrecord.storage import LocalStorage, Unfinished
from seqrecord.storage.mounts import MountStorage
from seqrecord.storage.ranges import ByteRange
from tests.abandoned import abandon, abandonable
from tests.command_line import main
from tests.numbered import contents
from tests.storage_contract import DATA, PATH
from tests.tiny import TINY, read_all, same_frames, tiny_frames

SETTINGS: dict[str, Any] = {
    "schema": TINY,
    "features": {"raw": {"group": 0}},  # and the other with it
    "codecs": {name: list(spec.codec) for name, spec in TINY.items()},
    "chunk_frames": 2,
}


def write_ended(writer: SeqRecordWriter, *keys: str) -> None:
    for key in keys:
        with writer.episode(key) as episode:
            for frame in tiny_frames():
                episode.append(frame)


def write(folder: Path, *ends: bool, max_file_size: int = 1 << 20) -> None:
    """Episodes e0, e1, …, of which the last may not end, as a kill leaves them."""
    writer = abandonable(folder, max_file_size=max_file_size, **SETTINGS)
    write_ended(writer, *(f"e{number}" for number in range(sum(ends))))
    if not all(ends):
        episode = writer.episode("open")
        for frame in tiny_frames():
            episode.append(frame)
    abandon(writer)


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


def recovered(root: Path) -> list[str]:
    """Keys of what a resume finds, which changes nothing and leaves whole copies."""
    before = contents(root)
    writer = SeqRecordWriter(root, mode="resume")
    keys = sorted(writer.completed_episodes)
    writer.abort()
    after = contents(root)
    assert before.items() <= after.items()
    assert all(name.endswith(".seqrec") for name in after.keys() - before.keys())
    return keys


def num_copies(root: Path) -> int:
    return len(list((root / "records").glob("*.seqrec")))


def test_what_had_ended_is_copied_once_chunk_by_chunk(cut: Path) -> None:
    for _ in range(2):
        assert recovered(cut) == ["e0", "e1"]
        (copy,) = (cut / "records").glob("*.seqrec")
        lies = slice(64, 64 + 576 * 2)
        assert copy.read_bytes()[lies] == partial(cut).read_bytes()[lies]
    SeqRecordWriter(cut, mode="resume").close()
    assert same_frames(read_all(cut), {"e0": tiny_frames(), "e1": tiny_frames()})


def test_a_key_that_another_has_committed_is_not_copied(tmp_path: Path) -> None:
    first = abandonable(tmp_path, **SETTINGS)
    with SeqRecordWriter(tmp_path, **SETTINGS) as other, other.episode("e1") as episode:
        episode.append(tiny_frames()[0])
    write_ended(first, "e0", "e1")
    abandon(first)
    assert recovered(tmp_path) == ["e0", "e1"]
    held = [b'"e1"' in path.read_bytes() for path in (tmp_path / "records").glob("*.seqrec")]
    assert sorted(held) == [False, True]  # the copy, and what is committed


@pytest.mark.parametrize(
    ("offset", "found"),
    [(0, []), (12, []), (64, ["e1"]), (576 + 64, ["e0"]), (576 * 2 + 64, ["e0", "e1"])],
)
def test_no_page_is_believed(
    cut: Path, offset: int, found: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    data = bytearray(partial(cut).read_bytes())
    data[offset] ^= 1
    partial(cut).write_bytes(data)
    assert recovered(cut) == found
    assert ("incomplete" in caplog.text) == (len(found) == 1)


def test_any_cut_note(cut: Path) -> None:
    lines = notes(cut).read_bytes().splitlines(keepends=True)
    note: Any = json.loads(lines[1])
    for length in (0, 2, 46, 48, 50, len(note["note"]) // 4 * 2, len(note["note"]) - 2):
        for path in (cut / "records").glob("*.seqrec"):
            path.unlink()
        short = json.dumps({**note, "note": note["note"][:length]}).encode() + b"\n"
        notes(cut).write_bytes(lines[0] + short)
        assert recovered(cut) == ["e0"], length


def test_a_damaged_note_before_others_is_logged(
    cut: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A kill cuts the last note only."""
    lines = notes(cut).read_bytes().splitlines(keepends=True)
    notes(cut).write_bytes(lines[0] + lines[1][:9])
    assert recovered(cut) == ["e0"]
    assert "damaged" not in caplog.text
    notes(cut).write_bytes(b"\0" * 9 + lines[0][9:] + lines[1])
    for path in (cut / "records").glob("*.seqrec"):
        path.unlink()
    assert recovered(cut) == []
    assert f"{notes(cut)}: damaged; later checkpoints are lost" in caplog.text


def test_a_note_twice(cut: Path) -> None:
    lines = notes(cut).read_bytes().splitlines(keepends=True)
    notes(cut).write_bytes(lines[0] + lines[0] + lines[1])
    assert recovered(cut) == ["e0", "e1"]


def test_notes_of_another_file(cut: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    write(other, True)
    data = partial(cut).read_bytes()
    partial(cut).write_bytes(partial(other).read_bytes()[:64] + data[64:])
    assert recovered(cut) == []


@pytest.mark.parametrize("lost", [0, 1])
def test_an_episode_whose_first_part_is_in_a_finished_file(tmp_path: Path, lost: int) -> None:
    """It is recovered, and its last part copied, if the first is there."""
    write(tmp_path, True, max_file_size=300)
    assert num_copies(tmp_path) == 1
    for path in list((tmp_path / "records").glob("*.seqrec"))[:lost]:
        path.unlink()
    assert recovered(tmp_path) == ["e0"] * (1 - lost)
    assert num_copies(tmp_path) == 2 * (1 - lost)


def test_an_episode_that_is_given_up_leaves_no_bytes(tmp_path: Path) -> None:
    sizes = set()
    for name in ("with", "without"):
        with SeqRecordWriter(tmp_path / name, **SETTINGS) as writer:
            write_ended(writer, "e0")
            if name == "with":
                with writer.episode("given up") as episode:
                    for frame in tiny_frames():
                        episode.append(frame)
                    episode.abort()
            write_ended(writer, "e1")
        assert list(read_all(tmp_path / name)) == ["e0", "e1"]
        (file,) = (tmp_path / name / "records").iterdir()
        sizes.add(file.stat().st_size // 64)
    assert len(sizes) == 1


# A damaged record file, and others that are whole


def _cut(data: bytes) -> bytes:
    return data[:-5]


def _flip(at: int) -> Any:
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGES: dict[str, Any] = {
    "cut": _cut,
    "empty": lambda data: b"",
    "header": _flip(3),
    "file id": _flip(20),
    "footer": _flip(-100),
    "zeros": lambda data: bytes(len(data)),
}


def damage(path: Path, name: str) -> bytes:
    """Damages a file; its bytes are then these."""
    damaged: bytes = DAMAGES[name](path.read_bytes())
    path.write_bytes(damaged)
    return damaged


@pytest.mark.parametrize("name", DAMAGES)
def test_a_resume_skips_a_damaged_file_and_recovers_the_others(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a first write, and of one that was to append."""
    for root, has_dataset in ((tmp_path / "first", False), (tmp_path / "appended", True)):
        if has_dataset:
            with SeqRecordWriter(root, **SETTINGS) as writer:
                write_ended(writer, "there")
        committed = set(root.glob("records/*.seqrec"))
        writer = abandonable(root, mode="append" if has_dataset else "create", **SETTINGS)
        write_ended(writer, "a")
        writer.abort()
        writer = abandonable(root, mode="append" if has_dataset else "resume", **SETTINGS)
        write_ended(writer, "b")
        writer.abort()
        loose = [p for p in root.glob("records/*.seqrec") if p not in committed]
        assert len(loose) == 2
        (bad,) = (p for p in loose if b'"key":"a"' in p.read_bytes())
        left = damage(bad, name)
        caplog.clear()
        with SeqRecordWriter(root, mode="resume", **SETTINGS) as writer:
            (file,) = writer.damaged_files
            write_ended(writer, "c")
        assert file.path == f"records/{bad.name}"
        assert file.reason
        assert f"damaged record file skipped (not deleted): {root}/{file}" in caplog.text
        assert bad.read_bytes() == left
        whole = read_all(root)
        assert set(whole) == {"b", "c", *(["there"] if has_dataset else [])}
        assert all(same_frames({"x": one}, {"x": tiny_frames()}) for one in whole.values())
        # And so does a reindex, with or without what tells of the dataset.
        for lose in ((), ("manifest.json",)):
            for path in lose:
                (root / path).unlink()
            seen: list[seqrecord.types.DamagedFile] = []
            seqrecord.reindex(root, on_damaged=seen.append)
            assert seen == [file]
            assert read_all(root).keys() == whole.keys()
        assert bad.read_bytes() == left
        assert seqrecord.verify(root, deep=True).ok


@pytest.mark.parametrize("name", ["cut", "footer"])
def test_a_damaged_file_of_the_dataset(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A resume would drop its episodes, and refuses; a reindex is asked to, and says which."""
    with SeqRecordWriter(tmp_path, max_file_size=1, **SETTINGS) as writer:
        write_ended(writer, "a", "b")
    writer = abandonable(tmp_path, mode="append", **SETTINGS)
    write_ended(writer, "c")
    writer.abort()
    (bad, *_) = (p for p in tmp_path.glob("records/*.seqrec") if b'"key":"a"' in p.read_bytes())
    left, before = damage(bad, name), (tmp_path / "manifest.json").read_bytes()
    with pytest.raises(DestinationError, match="seqrecord reindex") as caught:
        SeqRecordWriter(tmp_path, mode="resume")
    assert caught.value.file == str(bad)
    assert (tmp_path / "manifest.json").read_bytes() == before
    done = CliRunner().invoke(main, ["reindex", str(tmp_path)])
    assert done.exit_code == 1
    assert "2 episodes" in done.stdout
    assert f"records/{bad.name}" in done.stderr
    assert "1 episode lost with damaged record files: a" in caplog.text
    assert read_all(tmp_path).keys() == {"b", "c"}
    assert bad.read_bytes() == left
    assert CliRunner().invoke(main, ["reindex", str(tmp_path)]).exit_code == 1
    bad.unlink()
    assert CliRunner().invoke(main, ["reindex", str(tmp_path)]).exit_code == 0


def test_an_unfinished_file_that_is_damaged_hides_no_other(tmp_path: Path) -> None:
    write(tmp_path, True, False)
    bad = partial(tmp_path)
    writer = abandonable(tmp_path, mode="resume", **SETTINGS)
    write_ended(writer, "e1")
    abandon(writer)
    left = damage(bad, "header")
    with SeqRecordWriter(tmp_path, mode="resume", **SETTINGS) as writer:
        assert [file.path for file in writer.damaged_files] == [
            f"records/{bad.name.removesuffix('.partial')}"
        ]
    assert "e1" in read_all(tmp_path)
    assert bad.read_bytes() == left


def test_nothing_but_damaged_files_is_an_error(tmp_path: Path) -> None:
    writer = abandonable(tmp_path, **SETTINGS)
    write_ended(writer, "a")
    writer.abort()
    (bad,) = tmp_path.glob("records/*.seqrec")
    damage(bad, "cut")
    with pytest.raises(FormatError) as caught:
        seqrecord.reindex(tmp_path)
    assert caught.value.file == str(bad)
    with SeqRecordWriter(tmp_path, mode="resume", **SETTINGS) as writer:
        write_ended(writer, "a")
    assert list(read_all(tmp_path)) == ["a"]


# Uploads of a local folder or mount that have not ended, seen by another


@pytest.fixture(params=[LocalStorage, MountStorage])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalStorage]:
    storage = request.param(tmp_path / "set")
    yield storage
    storage.close()


@pytest.fixture
def other(storage: LocalStorage) -> Iterator[LocalStorage]:
    """Of another process, say."""
    other = type(storage)(storage.root)
    yield other
    other.close()


def read(found: Unfinished, start: int, stop: int) -> bytes:
    buffer = bytearray(stop - start)
    found.read_ranges([ByteRange(start, stop)], [memoryview(buffer)])
    return bytes(buffer)


def test_a_kill_leaves_two_files_until_they_are_removed(
    storage: LocalStorage, other: LocalStorage
) -> None:
    """What is in them, StorageContract tests."""
    names = ["records/b", "records/a"]
    for name in names:
        upload = storage.create(name)
        upload.write(DATA)
        upload.checkpoint(b"note")
    storage.close()
    found = other.unfinished("records")
    assert [each.path for each in found] == sorted(names)
    partial = storage.root / "records/a.partial"
    assert abs(found[0].modified - partial.stat().st_mtime) < 1e-3
    for _ in range(2):
        found[0].remove()
        assert [each.path for each in other.unfinished("records")] == ["records/b"]
    there = sorted(path.name for path in (storage.root / "records").iterdir())
    assert there == ["b.notes", "b.partial"]
    with pytest.raises(NotFoundError):
        found[0].checkpoints()


@pytest.mark.parametrize(
    "tail",
    [
        *(b'{"size": 4, "no', b"\xff\n", b'{"size": "x"}\n', b"[]\n", b"1\n"),
        *(b'{"size": 1e999, "note": ""}\n', b'{"size": -1, "note": ""}\n'),
    ],
)
def test_half_a_note_ends_the_checkpoints(
    storage: LocalStorage, other: LocalStorage, tail: bytes
) -> None:
    upload = storage.create(PATH)
    upload.write(b"12345678")
    upload.checkpoint(b"good")
    with (storage.root / f"{PATH}.notes").open("ab") as file:
        file.write(tail + b'{"size": 8, "note": ""}\n')
    assert other.unfinished("records")[0].checkpoints() == [(8, b"good")]


def test_a_note_of_bytes_that_are_not_there_does_not_count(
    storage: LocalStorage, other: LocalStorage
) -> None:
    upload = storage.create(PATH)
    upload.write(b"1234")
    upload.checkpoint(b"one")
    upload.write(b"5678")
    upload.checkpoint(b"two")
    os.truncate(storage.root / f"{PATH}.partial", 6)
    [found] = other.unfinished("records")
    assert found.checkpoints() == [(4, b"one")]
    with pytest.raises(StorageError, match="ended early"):
        read(found, 0, 8)


def test_links_that_lead_out_are_not_followed(storage: LocalStorage) -> None:
    secret = storage.root.parent / "secret"
    secret.write_bytes(b'{"size": 1, "note": ""}\n')
    folder = storage.root / "records"
    folder.mkdir(parents=True)
    (folder / "a.partial").symlink_to(secret)
    (folder / "b.partial").write_bytes(b"1234")
    (folder / "b.notes").symlink_to(secret)
    (folder / "c.partial").write_bytes(b"1234")
    os.mkfifo(folder / "c.notes")
    a, b, c = storage.unfinished("records")
    for found in (a, b, c):
        with pytest.raises(StorageError, match=found.path):
            found.checkpoints()
    with pytest.raises(StorageError, match="leads out"):
        read(a, 0, 1)
    (storage.root / "index").symlink_to(storage.root.parent)
    for listing in (storage.files, storage.unfinished):
        with pytest.raises(StorageError, match="leads out"):
            listing("index")
