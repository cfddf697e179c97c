"""Files of the first release, which every later one must read: golden/make_v1.py made them."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord.format.footer import Footer
from seqrecord.format.index import NO_SPLIT
from seqrecord.format.pages import PageCodec
from seqrecord.format.video_pages import parse_video_page
from seqrecord.reading.metadata import load, read_footer
from seqrecord.storage import LocalStorage
from seqrecord.writing.commits import reindex
from tests.golden.make_v1 import GOLDEN, describe_frame
from tests.tiny import copy_dataset

_NAMES = (
    *("raw", "fast", "balanced", "small"),
    *("dtypes", "codecs", "variable", "images", "spanning", "measured", "groups", "video", "timed"),
    *("referring", "files", "mixed"),
    *("changed", "rewritten", "trimmed"),
)
_FORMAT = Path(__file__).parents[1] / "docs" / "format.md"


def _expected(name: str) -> object:
    path = GOLDEN / f"{name}.json"
    assert path.is_file(), f"a golden file is missing: {path}"
    return json.loads(path.read_text(encoding="utf-8"))


def _found(root: Path) -> object:
    originals = root / "original"
    with seqrecord.open(root, originals=originals if originals.exists() else None) as dataset:
        return {
            "features": [str(spec) for spec in dataset.features.values()],
            "episodes": [
                {
                    "key": key,
                    "metadata": episode.metadata,
                    "frames": [describe_frame(episode[i]) for i in range(len(episode))],
                }
                for key, episode in dataset.episodes.items()
            ],
        }


def _footers(root: Path) -> list[Footer]:
    storage = LocalStorage(root)
    return [read_footer(storage, file.path) for file in storage.files("records")]


@pytest.mark.parametrize("name", _NAMES)
def test_dataset_reads_as_it_was_written(name: str) -> None:
    assert _found(GOLDEN / name) == _expected(name)


@pytest.mark.parametrize("name", _NAMES)
def test_record_files_alone_are_enough(name: str, tmp_path: Path) -> None:
    root = copy_dataset(GOLDEN / name, tmp_path / name)
    fingerprint = load(LocalStorage(root))[0].fingerprint
    for path in (root / "manifest.json", *root.glob("index/*")):
        path.unlink()
    assert reindex(root, created_by="test").fingerprint == fingerprint
    assert _found(root) == _expected(name)


def test_nothing_else_is_there() -> None:
    """A golden dataset that no test names would be read by no test."""
    assert {path.stem for path in GOLDEN.iterdir()} == set(_NAMES)


def test_golden_files_hold_what_they_are_for() -> None:
    _, spanning = load(LocalStorage(GOLDEN / "spanning"))
    files = [
        len(np.unique(table.file[first : first + count]))
        for table in spanning.groups
        for first, count in zip(table.first_chunk, table.num_chunks, strict=True)
    ]
    assert max(files) > 1, "an episode crosses record files"
    assert any(len(table.gaps) for table in spanning.groups)
    parts = [
        part
        for file in LocalStorage(GOLDEN / "spanning").files("records")
        for part in read_footer(LocalStorage(GOLDEN / "spanning"), file.path).episodes
    ]
    assert any(part.num_frames is None for part in parts)
    _, groups = load(LocalStorage(GOLDEN / "groups"))
    assert [len(table.schema) for table in groups.groups] == [1, 2, 1]
    assert all(table.chunk_frames[0] == 0 for table in groups.groups), "chunks of any length"
    assert max(table.gaps["word"].max(initial=0) for table in groups.groups) > 0
    with seqrecord.open(GOLDEN / "groups") as dataset:
        assert [episode.fps for episode in dataset.episodes.values()] == [12.5, None, None]
        assert (dataset.contents.manifest.splits, dataset.contents.index.split.tolist()) == (
            ("train", "val"),
            [0, 1, NO_SPLIT],
        )
        assert dataset.features["pose"].unit == "m"
        assert isinstance(dataset.episodes["a"][1]["task"], str)
    manifest, changed = load(LocalStorage(GOLDEN / "changed"))
    assert [spec.is_dropped for spec in changed.schema.values()].count(True) == 2
    assert changed.schema["gone"].added is not None
    assert len({len(f.schema) for f in _footers(GOLDEN / "changed")}) == 3
    dropped = [all(s.is_dropped for s in table.schema.values()) for table in changed.groups]
    assert dropped.count(True) == 1, "a group of which nothing is left, beside one of which some is"
    assert len(manifest.edits) == 3
    _, rewritten = load(LocalStorage(GOLDEN / "rewritten"))
    beside = rewritten.groups[0]
    assert [spec.is_dropped for spec in beside.schema.values()] == [False, True]
    assert (beside.page_length > 0).any(axis=0).tolist() == [True, False]
    (footer,) = _footers(GOLDEN / "rewritten")
    assert [part.key for part in footer.episodes] == ["a", "bb"]
    assert [len(rows) > 0 for rows in footer.chunks] == [True, True]
    assert not footer.chunks[1]["pages"]["length"].any()
    time_spans = seqrecord.open(GOLDEN / "timed").contents.index.time_spans
    assert time_spans is not None
    assert time_spans.least.shape == (3, 2, 2)
    assert np.isnan(time_spans.least[1]).all(), "an episode of one frame"
    assert np.isnan(time_spans.least[2, 1]).all(), "a frame has no timestamp"
    assert time_spans.least[0].tolist() == [[0.5, 1.5], [40, 85]]
    assert time_spans.most[0].tolist() == [[1.0, 1.5], [50, 95]]
    with seqrecord.open(GOLDEN / "measured") as dataset:
        chains = json.dumps([spec.codec for spec in dataset.features.values()])
        depth = dataset.episodes["env/P001"][0]["depth_balanced"]
    for setting in ('"axis": null', '"restart": 16', '"width": 8', '"typesize": 2'):
        assert setting in chains
    (file,) = (GOLDEN / "measured" / "records").iterdir()
    plane = depth.reshape(-1).view("u1")[::4].tobytes()
    assert plane in file.read_bytes(), "a plane that Blosc would encode is stored"
    assert len(zlib.compress(plane)) < len(plane)
    _, video = load(LocalStorage(GOLDEN / "video"))
    assert [table.num_frames.tolist() for table in video.groups] == [[6, 6, 1], [7, 6], [6, 6, 1]]
    (file,) = (GOLDEN / "video" / "records").iterdir()
    start, length = int(video.groups[1].offset[0]), int(video.groups[1].page_length[0, 0])
    page = memoryview(file.read_bytes())[start : start + length]
    order = parse_video_page(page, 7, "kept").order.tolist()
    assert sorted(order) == [-1, -1, *range(7)]
    assert order != sorted(order)
    _, mixed = load(LocalStorage(GOLDEN / "mixed"))
    (file,) = (GOLDEN / "mixed" / "records").iterdir()
    configs: list[Any] = []
    lengths = mixed.groups[0].page_length[:, 0]
    for start, length in zip(mixed.groups[0].offset, lengths, strict=True):
        page = memoryview(file.read_bytes())[int(start) : int(start + length)]
        configs.append(parse_video_page(page, 3 if configs else 5, "image").config)
    assert [config and config.codec for config in configs] == [None, "ffv1"]
    total = sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file())
    assert total < 400_000, "they are kept for ever"


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
    footer = read_footer(LocalStorage(tmp_path), "records/a.seqrec")
    (episode,) = footer.episodes
    assert (episode.key, episode.num_frames, episode.metadata) == ("a/b", 3, "{}")
    (chunk,) = footer.chunks[0]
    start, length = int(chunk["offset"]), int(chunk["pages"]["length"][0])
    frames = np.empty((3, 2), "u1")
    page = memoryview(bytes(data))[start : start + length]
    PageCodec(footer.schema["x"]).decode_into(page, 3, frames)
    assert frames.tolist() == [[1, 2], [3, 4], [5, 6]]
    reindex(tmp_path, created_by="test")
    with seqrecord.open(tmp_path) as dataset:
        found = [dataset.episodes["a/b"][i] for i in range(3)]
    assert [frame["x"].tolist() for frame in found] == [[1, 2], [3, 4], [5, 6]]
    assert [frame["y"].tolist() for frame in found if "y" in frame] == [[7], [8, 9]]
