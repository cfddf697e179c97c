"""The manifest: literal text, round trip, and that it is put in place at once or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seqrecord.checksum import crc32c
from seqrecord.errors import FormatError, NotFoundError
from seqrecord.format import manifest
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.storage import LocalStorage

_MANIFEST = manifest.Manifest(
    schema=Schema([FeatureSpec("a", np.dtype("<f4"), (None, 2), ({"id": "zstd", "level": 1},))]),
    record_files=(manifest.RecordFile("records/00000-ab.seqrec", 1234, "0" * 32),),
    index={
        name: manifest.IndexFile(f"index/{name}.arrow", 10, "0000abcd")
        for name in ("episodes", "chunks0", "gaps")
    },
    num_episodes=1,
    num_frames=2,
    fingerprint="0" * 64,
    created_by="test",
    splits=("train", "val"),
    statistics=manifest.IndexFile("index/ab-statistics.json", 3, "00000001"),
    edits=(manifest.IndexFile("edits/00000000-ab.json", 4, "00000002"),),
    next_ordinal=7,
    left_out=("1" * 32,),
    removed=("records/00003-cd.seqrec",),
    commit="a" * 32,
    earlier_commits=("b" * 32, "c" * 32),
    superseded=("index/old-gaps.arrow", "index/old-statistics.json"),
)

_VALUE = {
    "format": "seqrecord",
    "version": 1,
    "created_by": "test",
    "num_episodes": 1,
    "num_frames": 2,
    "next_ordinal": 7,
    "fingerprint": "0" * 64,
    "schema": [
        {"name": "a", "dtype": "<f4", "shape": [None, 2], "codec": [{"id": "zstd", "level": 1}]}
        | {"group": 0, "kind": None, "unit": None, "value": "array"}
    ],
    "index": {
        "episodes": {"path": "index/episodes.arrow", "size": 10, "crc32c": "0000abcd"},
        "gaps": {"path": "index/gaps.arrow", "size": 10, "crc32c": "0000abcd"},
        "chunks": [{"path": "index/chunks0.arrow", "size": 10, "crc32c": "0000abcd"}],
    },
    "record_files": [{"path": "records/00000-ab.seqrec", "size": 1234, "file_id": "0" * 32}],
    "splits": ["train", "val"],
    "statistics": {"path": "index/ab-statistics.json", "size": 3, "crc32c": "00000001"},
    "edits": [{"path": "edits/00000000-ab.json", "size": 4, "crc32c": "00000002"}],
    "left_out": ["1" * 32],
    "removed": ["records/00003-cd.seqrec"],
    "commit": "a" * 32,
    "earlier_commits": ["b" * 32, "c" * 32],
    "superseded": ["index/old-gaps.arrow", "index/old-statistics.json"],
}


@pytest.mark.parametrize("indent", [1, None])
def test_text(indent: int | None) -> None:
    """Only the end is fixed: another writer may lay its JSON out as it likes."""
    text = json.dumps(_VALUE, indent=indent).removesuffix("}").rstrip().encode()
    text += b',\n "crc32c": "%08x"\n}\n' % crc32c(text)
    assert manifest.Manifest.parse(text) == _MANIFEST
    assert indent is None or _MANIFEST.encode() == text


def test_commit(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    with pytest.raises(NotFoundError, match="no dataset here"):
        manifest.read_manifest(storage)
    manifest.put_manifest(storage, _MANIFEST, expected=None)
    assert manifest.read_manifest(storage) == _MANIFEST
    _, tag = manifest.read_tagged(storage)
    manifest.put_manifest(storage, replace(_MANIFEST, num_frames=3), expected=tag)
    storage.close()
    assert manifest.read_manifest(storage).num_frames == 3
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_what_no_reader_would_take_is_not_committed(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    manifest.put_manifest(storage, _MANIFEST, expected=None)
    bad = replace(_MANIFEST, record_files=(manifest.RecordFile("records/a b.seqrec", 1, "0" * 32),))
    with pytest.raises(FormatError, match="bad path"):
        manifest.put_manifest(storage, bad, expected=manifest.read_tagged(storage)[1])
    assert manifest.read_manifest(storage) == _MANIFEST


def test_a_huge_manifest_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(manifest.MAX_MANIFEST_BYTES + 1)
    with pytest.raises(FormatError, match="too large") as caught:
        manifest.read_manifest(LocalStorage(tmp_path))
    assert caught.value.file == str(tmp_path / "manifest.json")
