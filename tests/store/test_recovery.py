"""A resume copies complete episodes from unfinished record files, and verifies all bytes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import seqrecord
import seqrecord.types
from seqrecord import SeqRecordWriter
from seqrecord.errors import DestinationError, FormatError, NotFoundError, StorageError
from seqrecord.store.checksum import crc32c
from seqrecord.store.storage.local import LocalStorage
from tests.kit.command_line import main
from tests.kit.datasets import append, contents, write_dataset, write_episodes
from tests.kit.faults import abandon, abandonable
from tests.kit.tiny import TINY, read_all, same_frames, tiny_frames
from tests.store.storage_contract import DATA, PATH, mounted, read_part

SETTINGS: dict[str, Any] = {
    "schema": TINY,
    "features": {"raw": {"group": 0}},  # and the other feature with it
    "codecs": {name: list(spec.codec) for name, spec in TINY.items()},
    "chunk_frames": 2,
}


def write_ended(writer: SeqRecordWriter, *keys: str) -> None:
    write_episodes(writer, dict.fromkeys(keys, tiny_frames()))


def write(folder: Path, *keys: str, is_cut: bool = False, **options: Any) -> None:
    """Episodes as left by a kill; with `is_cut` plus an unfinished one."""
    writer = abandonable(folder, **{**SETTINGS, **options})
    write_ended(writer, *keys)
    if is_cut:
        append(writer.episode("open"), tiny_frames())
    abandon(writer)


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """An unfinished record file with two complete episodes and half of a third."""
    write(tmp_path, "e0", "e1", is_cut=True)
    return tmp_path


def partial(root: Path) -> Path:
    (path,) = (root / "records").glob("*.partial")
    return path


def copies(root: Path) -> list[Path]:
    return list((root / "records").glob("*.seqrec"))


def recovered(root: Path) -> list[str]:
    """Keys that a resume finds; it changes no file and adds complete copies only."""
    before = contents(root)
    writer = SeqRecordWriter(root, mode="resume")
    keys = sorted(writer.completed_episodes)
    writer.abort()
    after = contents(root)
    assert before.items() <= after.items()
    assert all(name.endswith(".seqrec") for name in after.keys() - before.keys())
    return keys


def changed(root: Path, path: Path, data: bytes) -> list[str]:
    """Keys that a resume finds with this file changed; then restores the file."""
    before = path.read_bytes()
    path.write_bytes(data)
    found = recovered(root)
    path.write_bytes(before)
    for copy in copies(root):
        copy.unlink()
    return found


def test_complete_episodes_are_copied_once_by_chunk(cut: Path) -> None:
    for _ in range(2):
        assert recovered(cut) == ["e0", "e1"]
        (copy,) = copies(cut)
        chunks = slice(64, 64 + 576 * 2)
        assert copy.read_bytes()[chunks] == partial(cut).read_bytes()[chunks]
    SeqRecordWriter(cut, mode="resume").close()
    assert same_frames(read_all(cut), {"e0": tiny_frames(), "e1": tiny_frames()})


def test_a_key_committed_by_another_writer_is_not_copied(tmp_path: Path) -> None:
    first = abandonable(tmp_path, **SETTINGS)
    write_dataset(tmp_path, {"e1": [tiny_frames()[0]]}, **SETTINGS)
    write_ended(first, "e0", "e1")
    abandon(first)
    assert recovered(tmp_path) == ["e0", "e1"]
    has_key = [b'"e1"' in path.read_bytes() for path in copies(tmp_path)]
    assert sorted(has_key) == [False, True]  # the copy, and the committed file


def test_pages_and_notes_are_verified(cut: Path, caplog: pytest.LogCaptureFixture) -> None:
    pages = partial(cut)
    data, both = pages.read_bytes(), ["e0", "e1"]
    for offset, found in ((0, []), (12, []), (64, ["e1"]), (640, ["e0"]), (1216, both)):
        caplog.clear()
        assert changed(cut, pages, _flip(offset)(data)) == found
        assert ("incomplete" in caplog.text) == (len(found) == 1)
    notes = pages.with_suffix(".notes")
    first, second = notes.read_bytes().splitlines(keepends=True)
    note: Any = json.loads(second)
    for length in (0, 2, 46, 48, 50, len(note["note"]) // 4 * 2, len(note["note"]) - 2):
        short = json.dumps({**note, "note": note["note"][:length]}).encode() + b"\n"
        assert changed(cut, notes, first + short) == ["e0"], length
    caplog.clear()
    assert changed(cut, notes, first + second[:9]) == ["e0"]  # as cut by a kill
    assert "damaged" not in caplog.text
    assert changed(cut, notes, b"\0" * 9 + first[9:] + second) == []
    assert f"{notes}: damaged; later checkpoints are lost" in caplog.text
    assert changed(cut, notes, first + first + second) == both
    write(cut / "other", "e0")
    header = partial(cut / "other").read_bytes()[:64]
    assert changed(cut, pages, header + data[64:]) == [], "the notes belong to another file"


def test_digests_are_verified(cut: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A copy has the digests of the note, which caches trust."""
    notes = partial(cut).with_suffix(".notes")
    first, second = notes.read_bytes().splitlines(keepends=True)
    entry = json.loads(first)
    note = bytearray.fromhex(entry["note"])
    page = partial(cut).read_bytes()[64:88]  # two frames of `raw`
    digest = hashlib.sha256(page + b"\3" + (2).to_bytes(4, "little")).digest()[:16]
    note[note.index(digest)] ^= 1
    length = int.from_bytes(note[-24:-16], "little")
    note[-16:-12] = crc32c(note[: length + 8]).to_bytes(4, "little")
    changed_note = json.dumps({**entry, "note": note.hex()}).encode() + b"\n"
    assert changed(cut, notes, changed_note + second) == ["e1"]
    assert "episode e0 lost 5 flushed frames" in caplog.text
    assert "a page does not match its digest" in caplog.text


@pytest.mark.parametrize("lost", [0, 1])
def test_an_episode_with_its_first_part_in_a_finished_file(tmp_path: Path, lost: int) -> None:
    """Recovered, with a copy of its last part, if the first part exists."""
    write(tmp_path, "e0", max_file_size=300)
    (finished,) = copies(tmp_path)
    if lost:
        finished.unlink()
    assert recovered(tmp_path) == ["e0"] * (1 - lost)
    assert len(copies(tmp_path)) == 2 * (1 - lost)


def test_an_aborted_episode_leaves_no_bytes(tmp_path: Path) -> None:
    sizes = set()
    for name in ("with", "without"):
        with SeqRecordWriter(tmp_path / name, **SETTINGS) as writer:
            write_ended(writer, "e0")
            if name == "with":
                append(writer.episode("given up"), tiny_frames()).abort()
            write_ended(writer, "e1")
        assert list(read_all(tmp_path / name)) == ["e0", "e1"]
        (file,) = (tmp_path / name / "records").iterdir()
        sizes.add(file.stat().st_size // 64)
    assert len(sizes) == 1


# A damaged record file among valid ones


def _flip(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at:][1:]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[:-5],
    "empty": lambda data: b"",
    "header": _flip(3),
    "file id": _flip(20),
    "footer": _flip(-100),
    "zeros": lambda data: bytes(len(data)),
}


def damage(path: Path, name: str) -> bytes:
    """Damage a file and return its new bytes."""
    damaged = DAMAGES[name](path.read_bytes())
    path.write_bytes(damaged)
    return damaged


def left_by(root: Path, mode: str, *keys: str) -> None:
    """Files of a writer that aborts after these episodes."""
    writer = abandonable(root, mode=mode, **SETTINGS)
    write_ended(writer, *keys)
    writer.abort()


def file_with(root: Path, key: str) -> Path:
    return next(p for p in copies(root) if f'"key":"{key}"'.encode() in p.read_bytes())


@pytest.mark.parametrize(
    ("name", "has_dataset"),
    [
        *(("cut", False), ("empty", True), ("header", False)),
        *(("file id", True), ("footer", False), ("zeros", True)),
    ],
)
def test_a_resume_skips_a_damaged_file_and_recovers_the_others(
    tmp_path: Path, name: str, has_dataset: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """After an interrupted first write, and after an interrupted append."""
    if has_dataset:
        write_dataset(tmp_path, {"committed": tiny_frames()}, **SETTINGS)
    left_by(tmp_path, "append" if has_dataset else "create", "a")
    left_by(tmp_path, "append" if has_dataset else "resume", "b")
    bad = file_with(tmp_path, "a")
    damaged = damage(bad, name)
    with SeqRecordWriter(tmp_path, mode="resume", **SETTINGS) as writer:
        (file,) = writer.damaged_files
        write_ended(writer, "c")
    assert file.path == f"records/{bad.name}"
    assert file.reason
    assert f"damaged record file skipped (not deleted): {tmp_path}/{file}" in caplog.text
    whole = read_all(tmp_path)
    assert set(whole) == {"b", "c", *(["committed"] if has_dataset else [])}
    assert all(same_frames({"x": one}, {"x": tiny_frames()}) for one in whole.values())
    # A reindex skips it too, with or without the manifest.
    for lose in ((), ("manifest.json",)):
        for path in lose:
            (tmp_path / path).unlink()
        seen: list[seqrecord.types.DamagedFile] = []
        seqrecord.reindex(tmp_path, on_damaged=seen.append)
        assert seen == [file]
        assert read_all(tmp_path).keys() == whole.keys()
    assert bad.read_bytes() == damaged
    assert seqrecord.verify(tmp_path, deep=True).ok


@pytest.mark.parametrize("name", ["cut", "footer"])
def test_a_damaged_file_of_the_dataset(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A resume refuses to drop its episodes; a reindex drops and reports them."""
    write_dataset(tmp_path, dict.fromkeys("ab", tiny_frames()), max_file_size=1, **SETTINGS)
    left_by(tmp_path, "append", "c")
    bad = file_with(tmp_path, "a")
    damaged, before = damage(bad, name), (tmp_path / "manifest.json").read_bytes()
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
    assert bad.read_bytes() == damaged
    assert CliRunner().invoke(main, ["reindex", str(tmp_path)]).exit_code == 1
    bad.unlink()
    assert CliRunner().invoke(main, ["reindex", str(tmp_path)]).exit_code == 0


def test_a_damaged_unfinished_file_does_not_hide_others(tmp_path: Path) -> None:
    write(tmp_path, "e0", is_cut=True)
    bad = partial(tmp_path)
    write(tmp_path, "e1", mode="resume")
    expected = damage(bad, "header")
    with SeqRecordWriter(tmp_path, mode="resume", **SETTINGS) as writer:
        [damaged] = writer.damaged_files
    assert damaged.path == f"records/{bad.name.removesuffix('.partial')}"
    assert "e1" in read_all(tmp_path)
    assert bad.read_bytes() == expected


def test_only_damaged_files_are_an_error(tmp_path: Path) -> None:
    left_by(tmp_path, "create", "a")
    (bad,) = copies(tmp_path)
    damage(bad, "cut")
    with pytest.raises(FormatError) as caught:
        seqrecord.reindex(tmp_path)
    assert caught.value.file == str(bad)
    write_dataset(tmp_path, {"a": tiny_frames()}, mode="resume", **SETTINGS)
    assert list(read_all(tmp_path)) == ["a"]


# Unfinished uploads in a local folder or mount, as another process sees them


@pytest.fixture(params=[LocalStorage, mounted])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalStorage]:
    storage = request.param(tmp_path / "set")
    yield storage
    storage.close()


@pytest.fixture
def other(storage: LocalStorage) -> Iterator[LocalStorage]:
    """As in another process."""
    other = type(storage)(storage.root)
    yield other
    other.close()


def test_a_kill_leaves_two_files_until_they_are_removed(
    storage: LocalStorage, other: LocalStorage
) -> None:
    """StorageContract tests their contents."""
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
    remaining = sorted(path.name for path in (storage.root / "records").iterdir())
    assert remaining == ["b.notes", "b.partial"]
    with pytest.raises(NotFoundError):
        found[0].checkpoints()


HALF_NOTES = [b'{"size": 4, "no', b"\xff\n", b'{"size": "x"}\n', b"[]\n", b"1\n"]
HALF_NOTES += [b'{"size": 1e999, "note": ""}\n', b'{"size": -1, "note": ""}\n']


def test_a_cut_note_ends_the_checkpoints(storage: LocalStorage, other: LocalStorage) -> None:
    """A note about missing bytes does too."""
    upload = storage.create(PATH)
    upload.write(b"1234")
    upload.checkpoint(b"good")
    upload.write(b"5678")
    notes = storage.root / f"{PATH}.notes"
    good = notes.read_bytes()
    for tail in HALF_NOTES:
        notes.write_bytes(good + tail + b'{"size": 8, "note": ""}\n')
        assert other.unfinished("records")[0].checkpoints() == [(4, b"good")], tail
    notes.write_bytes(good)
    upload.checkpoint(b"two")
    [found] = other.unfinished("records")
    assert found.checkpoints() == [(4, b"good"), (8, b"two")]
    os.truncate(storage.root / f"{PATH}.partial", 6)
    assert found.checkpoints() == [(4, b"good")]
    with pytest.raises(StorageError, match="ended early"):
        read_part(found, 0, 8)


def test_links_out_of_the_folder_are_not_followed(storage: LocalStorage) -> None:
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
        read_part(a, 0, 1)
    (storage.root / "index").symlink_to(storage.root.parent)
    for listing in (storage.files, storage.unfinished):
        with pytest.raises(StorageError, match="leads out"):
            listing("index")
