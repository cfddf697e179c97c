"""Uploads of a local folder or mount that have not ended, seen by another."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from seqrecord.errors import NotFoundError, StorageError
from seqrecord.storage import LocalStorage, Unfinished
from seqrecord.storage.mounts import MountStorage
from seqrecord.storage.ranges import ByteRange
from tests.storage_contract import DATA, PATH, put


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


def test_only_files_are_listed_with_their_times(storage: LocalStorage) -> None:
    put(storage, "records/a", b"1")
    (storage.root / "records/folder").mkdir()
    (storage.root / "records/.hidden").touch()
    os.utime(storage.root / "records/a", (5, 7))
    assert [(file.path, file.modified) for file in storage.files("records")] == [("records/a", 7.0)]
