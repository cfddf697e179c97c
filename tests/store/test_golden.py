"""Files of format version 1, which every later version must read.

Each dataset `golden/v1/NAME/` has its expected content in `golden/v1/NAME.json`, made from the
frames given to the writer. New names may be added,
existing files must not change.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import seqrecord
from seqrecord.store.format.page_kinds import page_codec
from tests.kit.tiny import copy_dataset, footers_of

_NAMES = (
    *("raw", "fast", "balanced", "small"),
    *("dtypes", "codecs", "variable", "images", "spanning", "measured", "groups", "video", "timed"),
    *("referring", "files", "mixed", "bfloat16"),
    *("changed", "rewritten", "trimmed", "encodings", "videos", "texts"),
)
GOLDEN = Path(__file__).parents[1] / "golden" / "v1"
_FORMAT = Path(__file__).parents[2] / "docs" / "format.md"


def describe(frame: Mapping[str, Any]) -> dict[str, str]:
    """Dtype, shape, first bytes and SHA-256 of all bytes; text and bytes as they are."""
    found = {name: repr(value) for name, value in frame.items()}
    for name, value in frame.items():
        if isinstance(value, np.ndarray):
            data, sha = value.tobytes(), hashlib.sha256(value.tobytes()).hexdigest()
            found[name] = f"{value.dtype.str} {list(value.shape)} {data[:24].hex()} {sha}"
    return found


def _found(root: Path) -> object:
    originals = root / "original"
    with seqrecord.open(root, originals=originals if originals.exists() else None) as dataset:
        episodes = [
            {"key": key, "metadata": e.metadata, "frames": [describe(e[i]) for i in range(len(e))]}
            for key, e in dataset.episodes.items()
        ]
        content = {"features": [*map(str, dataset.features.values())], "episodes": episodes}
        dictionaries = {
            name: {text: describe({"value": value})["value"] for text, value in values.items()}
            for name, values in dataset.dictionaries.items()
        }
        return {**content, "dictionaries": dictionaries} if dictionaries else content


@pytest.mark.parametrize("name", _NAMES)
def test_dataset_reads_as_it_was_written(name: str) -> None:
    assert _found(GOLDEN / name) == json.loads((GOLDEN / f"{name}.json").read_bytes())


@pytest.mark.parametrize("name", _NAMES)
def test_record_files_alone_are_enough(name: str, tmp_path: Path) -> None:
    root = copy_dataset(GOLDEN / name, tmp_path / name)
    fingerprint = seqrecord.open(root).fingerprint
    for path in (root / "manifest.json", *root.glob("index/*")):
        path.unlink()
    assert seqrecord.reindex(root, created_by="test").fingerprint == fingerprint
    assert _found(root) == json.loads((GOLDEN / f"{name}.json").read_bytes())


def _table(root: Path, path: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.ipc.open_file(root / path).read_all().to_pylist()
    return rows


@pytest.mark.parametrize("name", _NAMES)
def test_digests_in_the_index_are_those_of_the_pages(name: str) -> None:
    """Computed from bytes as docs/format.md says, without code of the package."""
    root = GOLDEN / name
    manifest = json.loads((root / "manifest.json").read_bytes())
    tables, gaps = manifest["index"]["chunks"], _table(root, manifest["index"]["gaps"]["path"])
    count = 0
    for group, file in enumerate(tables):
        features = [i for i, one in enumerate(manifest["schema"]) if one["group"] == group]
        for row, chunk in enumerate(_table(root, file["path"])):
            record = (root / manifest["record_files"][chunk["file"]]["path"]).read_bytes()
            at, frames = chunk["offset"], chunk["num_frames"]
            for column, feature in enumerate(features):
                page = record[at : at + chunk["page_length"][column]]
                at += -(-len(page) // 64) * 64
                present = (1 << frames) - 1
                for gap in (g for g in gaps if (g["chunk"], g["feature"]) == (row, feature)):
                    word = 64 * gap["word"]
                    present &= ~(((1 << 64) - 1) << word) | gap["present"] << word
                validity = present.to_bytes(-(-frames // 8), "little")
                digest = hashlib.sha256(page + validity + frames.to_bytes(4, "little")).digest()
                stored = chunk["page_digest"][16 * column : 16 * column + 16]
                assert stored == (digest[:16] if page else bytes(16)), (feature, row)
                count += bool(page)
    assert count > 1


def test_every_golden_dataset_is_tested() -> None:
    """Datasets missing in `_NAMES` would not be read."""
    assert {path.stem for path in GOLDEN.iterdir()} == set(_NAMES)
    total = sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file())
    assert total < 600_000, "golden files stay in the repository"


def test_the_hexdump_of_the_format_is_a_record_file(tmp_path: Path) -> None:
    text = _FORMAT.read_text("utf-8")
    text = text[text.index("## A record file, byte by byte") :]
    lines = re.findall(r"^([0-9a-f]{8})  ((?:[0-9a-f]{2} +){1,16})\|", text, re.M)
    data = bytearray()
    for offset, line in lines:
        assert int(offset, 16) == len(data)
        data += bytes.fromhex(line)
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "a.seqrec").write_bytes(data)
    [footer] = footers_of(tmp_path).values()
    (episode,) = footer.episodes
    assert (episode.key, episode.num_frames, episode.metadata) == ("a/b", 3, "{}")
    (chunk,) = footer.chunks[0]
    start, length = int(chunk["offset"]), int(chunk["pages"]["length"][0])
    frames = np.empty((3, 2), "u1")
    page = memoryview(bytes(data))[start : start + length]
    page_codec(footer.schema["x"]).decode_into(page, 3, frames)
    assert frames.tolist() == [[1, 2], [3, 4], [5, 6]]
    seqrecord.reindex(tmp_path, created_by="test")
    with seqrecord.open(tmp_path) as dataset:
        found = [dataset.episodes["a/b"][i] for i in range(3)]
    assert [frame["x"].tolist() for frame in found] == [[1, 2], [3, 4], [5, 6]]
    assert [frame["y"].tolist() for frame in found if "y" in frame] == [[7], [8, 9]]
