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
from tests.storage_contract import DATA, PATH, get, put


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


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_being_written_can_be_seen_and_is_not_disturbed(
    storage: LocalStorage, other: LocalStorage
) -> None:
    assert other.unfinished("records") == []
    put(storage, "records/done", b"done")
    upload = storage.create(PATH)
    upload.write(DATA[:500])
    upload.checkpoint(b"one")
    upload.write(DATA[500:900])
    before = snapshot(storage.root)
    [found] = other.unfinished("records")
    assert found.path == PATH
    assert found.checkpoints() == [(500, b"one")]
    assert read(found, 100, 500) == DATA[100:500]
    assert [each.path for each in other.files("records")] == ["records/done"]
    assert snapshot(storage.root) == before
    assert abs(found.modified - (storage.root / f"{PATH}.partial").stat().st_mtime) < 1e-3
    upload.write(DATA[900:1000])
    upload.checkpoint(b"two")
    assert found.checkpoints() == [(500, b"one"), (1000, b"two")]
    upload.commit()
    with pytest.raises(NotFoundError):
        found.checkpoints()
    assert other.unfinished("records") == []
    assert get(other, PATH) == DATA[:1000]


def test_what_a_kill_has_left_can_be_read_and_removed(
    storage: LocalStorage, other: LocalStorage
) -> None:
    names = ["records/b", "records/a"]
    for name in names:
        pid = os.fork()
        if pid == 0:
            upload = storage.create(name)
            upload.write(DATA)
            upload.checkpoint(b"note")
            os._exit(0)
        os.waitpid(pid, 0)
    found = other.unfinished("records")
    assert [each.path for each in found] == ["records/a", "records/b"]
    for each in found:
        assert each.checkpoints() == [(len(DATA), b"note")]
        assert read(each, 0, len(DATA)) == DATA
    found[0].remove()
    found[0].remove()
    assert [each.path for each in other.unfinished("records")] == ["records/b"]
    assert sorted(path.name for path in (storage.root / "records").iterdir()) == [
        "b.notes",
        "b.partial",
    ]


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


def test_files_have_their_size_and_time(storage: LocalStorage) -> None:
    assert storage.files("records") == []
    put(storage, "records/b", b"12")
    put(storage, "records/a", b"1")
    (storage.root / "records/folder").mkdir()
    (storage.root / "records/.hidden").touch()
    os.utime(storage.root / "records/a", (5, 7))
    first, second = storage.files("records")
    assert (first.path, first.size, first.modified) == ("records/a", 1, 7.0)
    assert (second.path, second.size) == ("records/b", 2)
