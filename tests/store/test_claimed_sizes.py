"""Claimed sizes: compared with the real sizes before memory is allocated."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seqrecord
from seqrecord import FeatureSpec, FormatError, SeqRecordWriter, open_source
from seqrecord.errors import SourceError
from seqrecord.store.format.footer import MAX_FOOTER_BYTES, parse_footer
from seqrecord.store.format.manifest import (
    MAX_MANIFEST_BYTES,
    MAX_RECORD_FILES,
    Manifest,
    RecordFile,
    read_manifest,
)
from seqrecord.store.format.page_kinds import MAX_CHUNK_FRAMES
from seqrecord.store.format.rows import chunk_row, most_table_bytes
from seqrecord.store.format.text import MAX_JSON_DEPTH, MAX_METADATA_LENGTH, parse_json
from seqrecord.store.json_object import MAX_JSON_VALUES
from seqrecord.store.reading.index_building import absent_chunks
from seqrecord.store.reading.metadata import map_file
from seqrecord.store.storage.base import StorageWrapper
from seqrecord.store.storage.local import LocalStorage
from tests.kit.clip_data import peak_of
from tests.kit.command_line import run
from tests.kit.lerobot_data import write_v21
from tests.kit.lerobot_video_data import unpack
from tests.kit.tiny import (
    change_manifest,
    change_table,
    index_entry,
    loaded,
    sign_manifest,
    split_record,
    write_tiny,
)

_HUGE = 1 << 43  # 8 TiB


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "dataset")


def _refused(call: Callable[[], object]) -> int:
    def refused() -> None:
        with pytest.raises(FormatError):
            call()

    return peak_of(refused)


def _stretch(path: Path, size: int) -> None:
    """Extend a file to `size`, without bytes on the disk."""
    try:
        os.truncate(path, size)
    except OSError as error:
        pytest.skip(f"no sparse files of {size} bytes here: {error}")


@pytest.mark.parametrize("table", ["episodes", "chunks0", "gaps"])
def test_an_index_of_8_tib(table: str, root: Path) -> None:
    path = index_entry(json.loads((root / "manifest.json").read_bytes()), table)["path"]
    _stretch(root / path, _HUGE)
    problems: list[Any] = []
    for in_manifest in (False, True):
        problems.clear()
        if in_manifest:
            change_manifest(root, lambda value: index_entry(value, table).update(size=_HUGE))
        assert _refused(lambda: loaded(root)) < 10 << 20
        assert peak_of(lambda: problems.extend(seqrecord.verify(root).problems)) < 20 << 20
        [problem] = problems
        assert problem.file == f"{root}/{path}"
        assert str(problem.got) == str(_HUGE)


def test_an_index_may_be_as_long_as_its_rows_need(root: Path) -> None:
    """The manifest's number of frames limits the size of the index."""
    path = index_entry(json.loads((root / "manifest.json").read_bytes()), "chunks0")["path"]
    _stretch(root / path, 100 << 30)

    def change(value: dict[str, Any]) -> None:
        index_entry(value, "chunks0").update(size=100 << 30)
        value["num_frames"] = value["record_files"][0]["size"] = 1 << 62

    change_manifest(root, change)
    with pytest.raises(FormatError, match="too large"):
        loaded(root)


def test_no_room_for_a_copy_of_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A remote dataset's index does not fit into the folder of temporary files."""
    (tmp_path / "a").write_bytes(b"")
    _stretch(tmp_path / "a", _HUGE)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(seqrecord.StorageError, match=r"no room .*TMPDIR"):
        map_file(StorageWrapper(LocalStorage(tmp_path)), "a", 1 << 62, checksum=True)


@given(
    lengths=st.lists(st.integers(1, MAX_CHUNK_FRAMES), min_size=1, max_size=20),
    num_absent=st.integers(1, 100),
    kind=st.sampled_from(["dropped", "added", "video"]),
)
def test_an_index_may_have_chunks_that_no_record_file_has(
    lengths: list[int], num_absent: int, kind: str
) -> None:
    """Groups were dropped as a whole or added; the other feature has one byte a frame."""
    kept = FeatureSpec("kept", np.dtype("u1"), ())
    absent = [FeatureSpec(f"~{1 + i}", np.dtype("u1"), (), group=1) for i in range(num_absent)]
    if kind == "added":
        absent = [FeatureSpec("new", np.dtype("u1"), (None,), group=1, added="0" * 16)]
    elif kind == "video":
        codec = ({"id": "video", "codec": "av1", "pixel_format": "yuv420p"},)
        absent = [FeatureSpec("~1", np.dtype("u1"), (64, 64, 3), codec, group=1)]
    schema = seqrecord.Schema([kept, *absent])
    chunks = np.zeros(len(lengths), chunk_row(1, 0))
    chunks["num_frames"] = lengths
    chunks["first_frame"] = np.cumsum(lengths) - lengths
    files = np.zeros(len(lengths), np.int64)
    _, rows, gaps = absent_chunks(files, chunks, schema.group(1), np.arange(1, len(schema)))
    ends = np.cumsum(rows["num_frames"], dtype=np.int64)
    assert ends[-1] == sum(lengths)
    assert rows["first_frame"].tolist() == [0, *ends[:-1].tolist()]

    max_file_size = chunks.nbytes + sum(-(-n // 64) * 64 for n in lengths)
    most = most_table_bytes(schema, 1, sum(lengths), max_file_size)
    around = most_table_bytes(schema, 0, 0, 0)["gaps"]
    width = 20 + 8 * len(absent) + 4 * (kind == "added")
    assert around + len(rows) * width <= most["chunks1"]
    assert around + gaps.nbytes <= most["gaps"]


@pytest.mark.slow  # the fast test: test_values_are_counted_before_they_are_made
def test_a_manifest_of_small_values_only(root: Path) -> None:
    for item in (b'{"a":0}', b"{}", b"1.5", b"[]", b'{"a":{"b":{}}}', b"-9", b'"\\\\"'):
        count = (MAX_MANIFEST_BYTES - 1000) // (len(item) + 1)
        text = b'{\n "record_files": [' + b",".join([item] * count) + b"]"
        data = sign_manifest(text)
        assert len(data) <= MAX_MANIFEST_BYTES
        (root / "manifest.json").write_bytes(data)
        assert _refused(lambda: read_manifest(LocalStorage(root))) < 5 * len(data)


@pytest.mark.slow  # 32 MB of text
def test_the_largest_manifest_is_read(root: Path) -> None:
    files = tuple(
        RecordFile(f"records/{i:05d}-{i:012x}.seqrec", (1 << 30) + i, f"{i:032x}")
        for i in range(MAX_RECORD_FILES)
    )
    large = replace(loaded(root)[0], record_files=files)
    data = large.encode()
    assert len(data) <= MAX_MANIFEST_BYTES
    assert Manifest.parse(data) == large


def test_values_are_counted_before_they_are_made() -> None:
    """Brackets and commas in strings do not count."""
    text = json.dumps({"a": '[{",' * 300_000, "b\\": '\\"[\\'}).encode()
    assert parse_json(text)["b\\"] == '\\"[\\'
    with pytest.raises(FormatError, match="compressed by gzip"):
        parse_json(gzip.compress(b"{}"))
    for item in (b"[]", b"{}", b"0", b'"\\""'):
        text = b"[" + (item + b",") * MAX_JSON_VALUES + item + b"]"
        with pytest.raises(FormatError, match="too many values"):
            parse_json(text)


def test_levels_of_nesting() -> None:
    for left, inner in product(("[", '{"a":'), ("", "1", "{}", '{"a":1}')):
        levels = MAX_JSON_DEPTH - inner.count("{")
        right = "]" if left == "[" else "}"
        value = inner if inner or left == "[" else "0"
        parse_json(left * levels + value + right * levels)
        with pytest.raises(FormatError, match="nested too deeply"):
            parse_json(left * (levels + 1) + value + right * (levels + 1))


def test_footers_that_claim_too_much(root: Path) -> None:
    """One has only small values, the other is longer than the limit."""
    [path] = (root / "records").iterdir()
    parts = split_record(path.read_bytes())
    start = 64 + len(parts.pages)
    parts.text = b'{"episodes":[' + b"{}," * (2 * MAX_JSON_VALUES) + b"{}]}"
    data = parts.joined()[start:]
    assert _refused(lambda: parse_footer(data, start)) < 5 * len(data)
    parts = split_record(path.read_bytes())
    parts.length = MAX_FOOTER_BYTES + 64
    tail = parts.joined()[-24:]
    path.write_bytes(b"")
    _stretch(path, 64 + MAX_FOOTER_BYTES + 64)
    with path.open("ab") as file:
        file.write(tail)
    assert _refused(lambda: seqrecord.reindex(root)) < 10 << 20


@pytest.mark.slow  # 50 MB of metadata
def test_a_record_file_ends_before_its_footer_is_too_long(tmp_path: Path) -> None:
    """Long metadata of many short episodes: no footer exceeds the limit of readers."""
    text = '"' * (MAX_METADATA_LENGTH // 2 - 20)  # each takes two characters
    with SeqRecordWriter(tmp_path / "x") as writer:
        for number in range(50):
            metadata = {"text": text}
            with writer.episode(f"e{number}", metadata=metadata) as episode:
                episode.append({"a": np.array(number)})
    files = list((tmp_path / "x" / "records").iterdir())
    assert len(files) > 2
    assert all(file.stat().st_size < MAX_FOOTER_BYTES for file in files)
    with seqrecord.open(tmp_path / "x") as dataset:
        assert [int(e[0]["a"]) for e in dataset.episodes.values()] == list(range(50))
        assert dataset.episodes["e7"].metadata == {"text": text}


def test_pages_that_no_file_can_hold(root: Path) -> None:
    """Index and manifest claim a page of 4 GiB; the record file is short."""

    def change(table: Any) -> Any:
        lengths = table.column("page_length").to_pylist()
        lengths[0][1] = 2**32 - 1
        field = table.schema.field("page_length")
        at = table.schema.get_field_index("page_length")
        return table.set_column(at, field, pa.array(lengths, field.type))

    change_table(root, "chunks0", change)
    change_manifest(root, lambda value: value["record_files"][0].update(size=1 << 40))

    def read() -> None:
        with seqrecord.open(root) as dataset:
            dataset.episodes["env/P0"][0]

    assert _refused(read) < 10 << 20


def test_notes_of_8_tib(tmp_path: Path) -> None:
    """A killed writer's notes are read up to the first invalid note."""
    writer = SeqRecordWriter(tmp_path / "x")
    with writer.episode("a") as episode:
        episode.append({"a": np.arange(3)})
    shutil.copytree(tmp_path / "x", tmp_path / "y")
    writer.abort()
    [notes] = (tmp_path / "y" / "records").glob("*.notes")
    _stretch(notes, _HUGE)

    def resume() -> None:
        with SeqRecordWriter(tmp_path / "y", mode="resume") as again:
            assert again.completed_episodes == {"a"}

    assert peak_of(resume) < 300 << 20
    assert len(seqrecord.open(tmp_path / "y").episodes) == 1


def test_a_table_of_more_rows_than_meta_lists(tmp_path: Path) -> None:
    """Of run lengths, a few kilobytes; and a row of more numbers than is declared."""

    def refused(source: Any, match: str) -> None:
        with pytest.raises(SourceError, match=match):
            list(source.frames(source.episodes()[0]))

    wide = pa.array([[0.0] * 1_000_000, *([[0.0, 0.0]] * 4)], pa.list_(pa.float32()))
    for size, values, match in (
        (1, np.zeros(2_000_000, "f4"), r"more rows than .*expected: 5 rows; got: 2000000"),
        (2, wide, r"more numbers than info.json declares; .*at most 10"),
    ):
        features = {"action": {"dtype": "float32", "shape": [size], "names": None}}
        source = open_source(write_v21(tmp_path / f"{size}", {"action": values}, features, 5))
        before = pa.total_allocated_bytes()
        assert peak_of(partial(refused, source, match)) < 10 << 20
        assert pa.default_memory_pool().bytes_allocated() <= before + (10 << 20)


def test_a_table_of_meta_of_more_rows_than_declared(tmp_path: Path) -> None:
    root = unpack(tmp_path, "lerobot_video_v3")
    for name in ("meta/episodes/chunk-000/file-000.parquet", "meta/tasks.parquet"):
        whole = (root / name).read_bytes()
        row = pq.read_table(root / name).slice(0, 1)
        pq.write_table(pa.concat_tables([row] * 2000).combine_chunks(), root / name)
        with pytest.raises(SourceError, match=r"more rows than meta/info\.json.*got: 2000"):
            seqrecord.open(root)
        assert "more rows than" in run("doctor", root, code=1).stdout
        (root / name).write_bytes(whole)


@pytest.mark.slow  # decodes 300 MB
def test_a_text_that_is_stored_once(tmp_path: Path) -> None:
    """Many rows are decoded in batches of at most 256 MiB."""
    features = {"note": {"dtype": "string", "shape": [1], "names": None}}
    count, text = 500, "x" * (1 << 20)
    notes = pa.array([text] * count)  # which parquet stores once
    source = open_source(write_v21(tmp_path, {"note": notes}, features, count), features=["note"])
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    for frame in islice(source.frames(source.episodes()[0]), 300):
        assert frame["note"] == text
        assert pool.bytes_allocated() - before < 400 << 20
