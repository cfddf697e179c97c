"""The index: round trip through Arrow, what it derives, and how much of the file it copies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from seqrecord.errors import FormatError
from seqrecord.format.index import MAX_INDEX_TEXT, Index
from seqrecord.format.rows import GAP_ROW
from seqrecord.reading.metadata import load
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.storage import LocalStorage
from tests.tiny import write_tiny

_SCHEMA = Schema(
    [FeatureSpec("a", np.dtype("u1"), (2,)), FeatureSpec("b", np.dtype("u1"), (None,))]
)


def _index() -> Index:
    """Episodes of 3 and 2 frames in chunks of 2 and 8: rows 0, 1 and 2. Frame 2 lacks `b`."""
    return Index(
        schema=_SCHEMA,
        keys=pa.array(["x", "é/y"], pa.string()),
        metadata=pa.array(["{}", '{"a":1}'], pa.string()),
        num_frames=np.array([3, 2], np.int64),
        chunk_frames=np.array([2, 8], np.int64),
        file=np.array([0, 1, 1], np.uint32),
        offset=np.array([64, 64, 256], np.uint64),
        page_length=np.array([[4, 30], [2, 0], [4, 40]], np.uint32),
        page_crc32c=np.array([[1, 2], [3, 0], [5, 6]], np.uint32),
        largest_frame=np.array([[9], [0], [20]], np.uint32),
        gaps=np.array([(1, 1, 0)], GAP_ROW),
    )


def test_round_trip() -> None:
    index = _index()
    again = Index.decode(_SCHEMA, index.encode(), [192, 384])
    assert again.fingerprint() == index.fingerprint()
    assert again.keys.to_pylist() == ["x", "é/y"]
    assert again.episode_metadata(1) == {"a": 1}
    for name in ("num_frames", "chunk_frames", "file", "offset", "page_length", "page_crc32c"):
        assert np.array_equal(getattr(again, name), getattr(index, name)), name
        assert getattr(again, name).dtype == getattr(index, name).dtype, name
    assert again.gaps.tolist() == [(1, 1, 0)]


def test_what_it_derives() -> None:
    index = _index()
    assert index.num_chunks.tolist() == [2, 1]
    assert index.first_chunk.tolist() == [0, 2]
    assert index.frames_per_chunk().tolist() == [2, 1, 2]
    assert index.positions == {"x": 0, "é/y": 1}
    assert [index.present(row, 1, n) for row, n in ((0, 2), (1, 1), (2, 2))] == [0b11, 0, 0b11]


def test_fingerprint_is_of_the_content() -> None:
    index = _index()
    assert index.fingerprint() == (
        "b39a9cf3d269827f6e8004ec9bc01bae011c0249b38f7a376924bea7ef1dd111"
    ), "a saved state names it: it can't change"
    changed = _index()
    changed.page_crc32c[0, 0] += np.uint32(1)
    assert changed.fingerprint() != index.fingerprint()
    moved = _index()
    moved.file[:], moved.offset[:] = 0, [64, 192, 256]
    assert moved.fingerprint() == index.fingerprint(), "how it is cut in files does not count"


def test_large_columns_are_views_of_the_file(tmp_path: Path) -> None:
    _, index = load(LocalStorage(write_tiny(tmp_path / "dataset")))
    for name in ("file", "offset", "page_length", "page_crc32c"):
        array = getattr(index, name)
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
        ([192], "no record file"),
        ([192, 383], "outside"),
        ([191, 384], "outside"),
        ([], "no record"),
    ],
)
def test_files_that_are_too_few_or_too_short(file_sizes: list[int], message: str) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        Index.decode(_SCHEMA, _index().encode(), file_sizes)
    assert caught.value.file == "chunks"


def test_limit_of_text_is_arrows() -> None:
    assert np.iinfo(np.int32).max == MAX_INDEX_TEXT
