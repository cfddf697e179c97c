"""The manifest: literal text, round trip, and that it is put in place at once or not at all."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seqrecord.checksum import crc32c
from seqrecord.errors import FormatError, NotFoundError, StorageError
from seqrecord.manifest import (
    MAX_MANIFEST_BYTES,
    IndexFile,
    Manifest,
    RecordFile,
    commit_manifest,
    read_manifest,
)
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.storage import LocalStorage
from tests.storage_doubles import CountingStorage

_MANIFEST = Manifest(
    schema=Schema([FeatureSpec("a", np.dtype("<f4"), (None, 2), ({"id": "zstd", "level": 1},))]),
    record_files=(RecordFile("records/00000-ab.seqrec", 1234, "0" * 32),),
    index={
        name: IndexFile(f"index/{name}.arrow", 10, "0000abcd")
        for name in ("episodes", "chunks", "gaps")
    },
    num_episodes=1,
    num_frames=2,
    fingerprint="0" * 64,
    created_by="test",
)

_TEXT = """{
 "format": "seqrecord",
 "version": 1,
 "created_by": "test",
 "num_episodes": 1,
 "num_frames": 2,
 "fingerprint": "0000000000000000000000000000000000000000000000000000000000000000",
 "schema": [
  {
   "name": "a",
   "dtype": "<f4",
   "shape": [
    null,
    2
   ],
   "codec": [
    {
     "id": "zstd",
     "level": 1
    }
   ]
  }
 ],
 "index": {
  "episodes": {
   "path": "index/episodes.arrow",
   "size": 10,
   "crc32c": "0000abcd"
  },
  "chunks": {
   "path": "index/chunks.arrow",
   "size": 10,
   "crc32c": "0000abcd"
  },
  "gaps": {
   "path": "index/gaps.arrow",
   "size": 10,
   "crc32c": "0000abcd"
  }
 },
 "record_files": [
  {
   "path": "records/00000-ab.seqrec",
   "size": 1234,
   "file_id": "00000000000000000000000000000000"
  }
 ]"""


def test_text() -> None:
    text = _TEXT.encode()
    assert _MANIFEST.encode() == text + b',\n "crc32c": "%08x"\n}\n' % crc32c(text)
    assert Manifest.parse(_MANIFEST.encode()) == _MANIFEST
    assert json.loads(_MANIFEST.encode())["version"] == 1


def test_other_text_of_the_same_values() -> None:
    """Only the end is fixed: another writer may lay its JSON out as it likes."""
    value = json.loads(_TEXT + "}")
    text = json.dumps(dict(reversed(value.items()))).removesuffix("}").encode()
    assert Manifest.parse(text + b',\n "crc32c": "%08x"\n}\n' % crc32c(text)) == _MANIFEST


def test_commit(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    with pytest.raises(NotFoundError, match="no dataset here"):
        read_manifest(storage)
    commit_manifest(storage, _MANIFEST)
    assert read_manifest(storage) == _MANIFEST
    commit_manifest(storage, replace(_MANIFEST, num_frames=3))
    storage.close()
    assert read_manifest(storage).num_frames == 3
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_what_no_reader_would_take_is_not_committed(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    commit_manifest(storage, _MANIFEST)
    bad = replace(_MANIFEST, record_files=(RecordFile("records/a b.seqrec", 1, "0" * 32),))
    with pytest.raises(FormatError, match="bad path"):
        commit_manifest(storage, bad)
    assert read_manifest(storage) == _MANIFEST


def test_failed_commit_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path)
    commit_manifest(storage, _MANIFEST)

    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match="No space"):
        commit_manifest(storage, replace(_MANIFEST, num_frames=3))
    assert read_manifest(storage) == _MANIFEST
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


class _Committing(LocalStorage):
    """Commits another manifest after each look at the size of the one that is there.

    Size and bytes are two requests, as they are where no file stays open.
    """

    def __init__(self, root: Path, manifests: list[Manifest]) -> None:
        super().__init__(root)
        self._manifests = manifests

    def size(self, path: str) -> int:
        size = super().size(path)
        if self._manifests:
            commit_manifest(LocalStorage(self.root), self._manifests.pop(0))
            self.close()
        return size


@pytest.mark.parametrize("commits", [1, 2])
@pytest.mark.parametrize("names", [("ab", "b" * 90), ("b" * 90, "ab")], ids=["longer", "shorter"])
def test_a_commit_between_size_and_bytes(
    names: tuple[str, str], commits: int, tmp_path: Path
) -> None:
    old, new = (
        replace(_MANIFEST, record_files=(RecordFile(f"records/{name}.seqrec", 1, "0" * 32),))
        for name in names
    )
    commit_manifest(LocalStorage(tmp_path), old)
    found = read_manifest(_Committing(tmp_path, [new, old][:commits]))
    assert found == (new if commits == 1 else old)


def test_a_broken_manifest_is_read_twice_and_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(_MANIFEST.encode()[:-30])
    storage = CountingStorage(LocalStorage(tmp_path))
    with pytest.raises(FormatError, match="not valid JSON"):
        read_manifest(storage)
    assert storage.sizes["manifest.json"] == 2


def test_a_huge_manifest_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(MAX_MANIFEST_BYTES + 1)
    with pytest.raises(FormatError, match="too large") as caught:
        read_manifest(LocalStorage(tmp_path))
    assert caught.value.file == str(tmp_path / "manifest.json")
