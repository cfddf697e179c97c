"""The index: round trip through Arrow, what it derives, and how much of the file it copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord.errors import FormatError
from seqrecord.format import index as index_module
from seqrecord.format.index import NO_SPLIT, GroupIndex, Index
from seqrecord.format.rows import (
    GAP_ROW,
    MAX_INDEX_TEXT,
    decode_table,
    encode_table,
    episodes_schema,
)
from seqrecord.reading.metadata import load
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.storage import LocalStorage
from tests.tiny import write_tiny

_SCHEMA = Schema(
    [FeatureSpec("a", np.dtype("u1"), (2,)), FeatureSpec("b", np.dtype("u1"), (None,), group=1)]
)
_FILES = [256, 512]  # bytes of the record files below


def _index() -> Index:
    """Episodes of 3 and 2 frames. Group 0, of `a`: chunks of 2, 1 and 2 frames; group 1, of `b`: 3
    and 1, 1. Frame 2 lacks `b`."""
    first = GroupIndex(
        schema=_SCHEMA.group(0),
        features=np.array([0]),
        num_chunks=np.array([2, 1], np.int64),
        first_frame=np.array([0, 2, 0], np.uint32),
        num_frames=np.array([2, 1, 2], np.uint32),
        file=np.array([0, 1, 1], np.uint32),
        offset=np.array([64, 64, 256], np.uint64),
        page_length=np.array([[4], [2], [4]], np.uint32),
        page_crc32c=np.array([[1], [3], [5]], np.uint32),
        largest_frame=np.empty((3, 0), np.uint32),
        external=np.zeros(3, np.uint32),
        gaps=np.empty(0, GAP_ROW),
    )
    second = GroupIndex(
        schema=_SCHEMA.group(1),
        features=np.array([1]),
        num_chunks=np.array([1, 2], np.int64),
        first_frame=np.array([0, 0, 1], np.uint32),
        num_frames=np.array([3, 1, 1], np.uint32),
        file=np.array([0, 1, 1], np.uint32),
        offset=np.array([192, 384, 448], np.uint64),
        page_length=np.array([[30], [30], [40]], np.uint32),
        page_crc32c=np.array([[2], [4], [6]], np.uint32),
        largest_frame=np.array([[9], [18], [28]], np.uint32),
        external=np.zeros(3, np.uint32),
        gaps=np.array([(0, 1, 0, 0b011)], GAP_ROW),
    )
    return Index(
        schema=_SCHEMA,
        keys=pa.array(["x", "é/y"], pa.string()),
        uids=np.arange(32, dtype=np.uint8).reshape(2, 16),
        metadata=pa.array(["{}", '{"a":1}'], pa.string()),
        num_frames=np.array([3, 2], np.int64),
        fps=np.array([0, 12.5]),
        split=np.array([NO_SPLIT, 1], np.uint16),
        groups=(first, second),
    )


def _decoded(index: Index, sizes: list[int] | None = None, **options: Any) -> Index:
    options = {"num_splits": 2, **options}
    return Index.decode(_SCHEMA, index.encode(), sizes or [_FILES[0], _FILES[1]], **options)


_COLUMNS = (
    *("num_chunks", "first_frame", "num_frames", "file", "offset", "page_length", "page_crc32c"),
    *("largest_frame", "gaps", "first_chunk", "chunk_frames"),
)


@pytest.mark.parametrize("rows", [-1, -2, -1237, -(1 << 62), -(1 << 63), 1 << 62, (1 << 63) - 1])
def test_tables_of_an_impossible_number_of_rows(rows: int) -> None:
    """The number is nowhere else in the table: all that say how many rows there are agree."""
    count = 1237
    columns: list[Any] = [
        pa.array(map(str, range(count)), pa.string()),
        np.zeros((count, 16), "u1"),
    ]
    columns += [np.zeros(count, dtype) for dtype in ("u4", "f8", "u2")]
    columns += [pa.array(["{}"] * count, pa.string()), np.ones((count, 1), "u4")]
    data = encode_table(episodes_schema(1), columns).to_pybytes()
    number = count.to_bytes(8, "little")
    assert data.count(number) > 5
    changed = data.replace(number, rows.to_bytes(8, "little", signed=True))
    with pytest.raises(FormatError, match="not an Arrow IPC file of one batch") as caught:
        decode_table("episodes", pa.py_buffer(changed), episodes_schema(1))
    assert caught.value.file == "episodes"


@pytest.mark.parametrize("block_pages", [1, 2, 1 << 18])
def test_round_trip(block_pages: int) -> None:
    index = _index()
    again = _decoded(index, block_pages=block_pages)
    assert again.fingerprint() == index.fingerprint()
    assert again.keys.to_pylist() == ["x", "é/y"]
    assert again.episode_metadata(1) == {"a": 1}
    assert again.uid(1) == "101112131415161718191a1b1c1d1e1f"
    assert again.fps.tolist() == [0, 12.5]
    assert again.split.tolist() == [NO_SPLIT, 1]
    assert again.num_frames.tolist() == [3, 2]
    for got, want in zip(again.groups, index.groups, strict=True):
        for name in _COLUMNS:
            assert np.array_equal(getattr(got, name), getattr(want, name)), name
            assert getattr(got, name).dtype == getattr(want, name).dtype, name


def test_what_it_derives() -> None:
    first, second = _index().groups
    assert [first.first_chunk.tolist(), second.first_chunk.tolist()] == [[0, 2], [0, 1]]
    assert [first.chunk_frames.tolist(), second.chunk_frames.tolist()] == [[2, 2], [3, 1]]
    assert _index().positions == {"x": 0, "é/y": 1}
    assert first.present(0, 0) is None
    present = second.present(0, 1)
    assert present is not None
    assert present.tolist() == [True, True, False]
    assert second.present(1, 1) is None
    assert first.chunks_of(0, np.array([2, 0, 1])).tolist() == [1, 0, 0]
    assert second.chunks_of(1, np.array([1, 0])).tolist() == [2, 1]
    assert _index().largest_frames("b", np.array([1])) == 28
    assert _index().lengths("b").tolist() == [30, 30, 40]


@st.composite
def _tables(draw: st.DrawFn) -> tuple[npt.NDArray[np.int64], GroupIndex, list[list[int]]]:
    """Frames of episodes, a chunk table of them, and the lengths of the chunks of each."""
    lengths = draw(
        st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=5), min_size=1, max_size=6)
    )
    rows = [n for episode in lengths for n in episode]
    empty = np.zeros(len(rows), np.uint32)
    table = GroupIndex(
        schema=_SCHEMA.group(0),
        features=np.array([0]),
        num_chunks=np.array([len(episode) for episode in lengths], np.int64),
        first_frame=np.array([sum(e[:i]) for e in lengths for i in range(len(e))], np.uint32),
        num_frames=np.array(rows, np.uint32),
        file=empty,
        offset=64 + 128 * np.arange(len(rows), dtype=np.uint64),
        page_length=2 * np.array(rows, np.uint32)[:, None],
        page_crc32c=empty[:, None],
        largest_frame=np.empty((len(rows), 0), np.uint32),
        external=np.zeros(len(rows), np.uint32),
        gaps=np.empty(0, GAP_ROW),
    )
    return np.array([sum(e) for e in lengths], np.int64), table, lengths


@given(_tables(), st.integers(1, 5))
def test_chunks_of_any_length(
    case: tuple[npt.NDArray[np.int64], GroupIndex, list[list[int]]], block: int
) -> None:
    frames, table, lengths = case
    table.check_frames(frames, lambda: None, block)
    row = 0
    for episode, cut in enumerate(lengths):
        owners = [row + i for i, n in enumerate(cut) for _ in range(n)]
        assert table.chunks_of(episode, np.arange(sum(cut))).tolist() == owners
        assert [table.episode_of(row + i) for i in range(len(cut))] == [episode] * len(cut)
        row += len(cut)
    regular = [e[0] if set(e[:-1]) <= {e[0]} and e[-1] <= e[0] else 0 for e in lengths]
    with mock.patch.object(index_module, "BLOCK_PAGES", block):
        assert table.chunk_frames.tolist() == regular


@given(_tables(), st.integers(1, 5), st.data())
def test_chunks_that_do_not_cover_their_episodes(
    case: tuple[npt.NDArray[np.int64], GroupIndex, list[list[int]]], block: int, data: st.DataObject
) -> None:
    frames, table, _ = case
    name = data.draw(st.sampled_from(["first_frame", "num_frames"]))
    column = getattr(table, name)
    row = data.draw(st.integers(0, len(column) - 1))
    column[row] += np.uint32(data.draw(st.integers(1, 2)))
    with pytest.raises(FormatError):
        table.check_frames(frames, lambda: None, block)


def test_fingerprint_is_of_the_content() -> None:
    index = _index()
    assert index.fingerprint() == (
        "b16c81ea67909a062e5d3140167aa1c051308a24b05d418067ab5d3e6bbfc684"
    ), "a saved state names it: it can't change"
    for name in ("page_crc32c", "page_length", "first_frame", "num_frames"):
        changed = _index()
        getattr(changed.groups[1], name).flat[0] += np.uint32(1)
        assert changed.fingerprint() != index.fingerprint(), name
    changed = _index()
    changed.fps[0] = 1
    assert changed.fingerprint() != index.fingerprint()
    changed.fps[0] = 0
    changed.split[:] = 0
    changed.uids[:] = 0
    for group in changed.groups:
        group.file[:], group.offset[:] = 0, 64
    assert changed.fingerprint() == index.fingerprint(), "how it is cut in files does not count"


def test_large_columns_are_views_of_the_file(tmp_path: Path) -> None:
    _, index = load(LocalStorage(write_tiny(tmp_path / "dataset")))
    for name in ("file", "offset", "first_frame", "num_frames", "page_length", "page_crc32c"):
        array = getattr(index.groups[0], name)
        assert not array.flags.owndata, name
        assert not array.flags.writeable, name


def test_metadata_that_is_broken_names_its_episode() -> None:
    index = _index()
    broken = Index(**{**index.__dict__, "metadata": pa.array(["{", "{}"], pa.string())})
    with pytest.raises(FormatError) as caught:
        broken.episode_metadata(0)
    assert caught.value.episode == "x"


@pytest.mark.parametrize(
    ("file_sizes", "message"),
    [
        (_FILES[:1], "no record file"),
        ([_FILES[0], _FILES[1] - 1], "outside"),
        ([_FILES[0] - 1, _FILES[1]], "outside"),
    ],
)
def test_files_that_are_too_few_or_too_short(file_sizes: list[int], message: str) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        _decoded(_index(), file_sizes)
    assert caught.value.file in ("chunks0", "chunks1")


def test_limit_of_text_is_arrows() -> None:
    assert np.iinfo(np.int32).max == MAX_INDEX_TEXT
