"""The index: round trip through Arrow, what it derives, and how much of the file it copies."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from seqrecord.clips.grids import ChunkGrid
from seqrecord.errors import FormatError
from seqrecord.format import index as index_module
from seqrecord.format.edits import (
    Delete,
    Edit,
    Edits,
    Relabel,
    Rename,
    Split,
    encode_edit,
    parse_edit,
)
from seqrecord.format.footer import EpisodePart, Footer, encode_footer, parse_footer
from seqrecord.format.index import NO_SPLIT, GroupIndex, Index
from seqrecord.format.pages import chunk_bytes
from seqrecord.format.rows import (
    GAP_ROW,
    MAX_INDEX_TEXT,
    chunk_row,
    decode_table,
    encode_table,
    episodes_schema,
    gap_rows,
)
from seqrecord.reading.index_building import build_index
from seqrecord.schema import FeatureSpec, Schema
from tests.tiny import loaded, write_tiny

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
        first_frame=np.array([0, 2, 0], np.int32),
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
        first_frame=np.array([0, 0, 1], np.int32),
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
        first_frame=np.array([sum(e[:i]) for e in lengths for i in range(len(e))], np.int32),
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


@given(_tables(), st.integers(1, 5), st.data())
def test_chunks_of_any_length(
    case: tuple[npt.NDArray[np.int64], GroupIndex, list[list[int]]], block: int, data: st.DataObject
) -> None:
    """Also of trimmed episodes: frames of the first and of the last chunk are outside of them."""
    frames, table, lengths = case
    before = [data.draw(st.integers(0, cut[0] - 1)) for cut in lengths]
    stops = [sum(c) - data.draw(st.integers(0, c[-1] - 1)) for c in lengths]
    stops = [max(stop, b + 1) for stop, b in zip(stops, before, strict=True)]
    table.first_frame[:] -= np.repeat(before, table.num_chunks).astype(np.int32)
    frames[:] = np.array(stops) - before
    table.check_frames(frames, lambda: None, block)
    grid = ChunkGrid.given(table.chunk_frames, frames, table.first_chunk, table.first_frame)
    row = 0
    for episode, cut in enumerate(lengths):
        owners = [row + i for i, n in enumerate(cut) for _ in range(n)]
        owners = owners[before[episode] : stops[episode]]
        numbers = np.arange(len(owners))
        assert table.chunks_of(episode, numbers).tolist() == owners
        owner = np.full(len(owners), episode)
        assert grid.row(owner, grid.place(owner, numbers)).tolist() == owners
        start = [owners.index(own) for own in owners]
        assert grid.start(owner, numbers).tolist() == start
        last = [start[n] + owners.count(own) for n, own in enumerate(owners)]
        assert np.minimum(grid.stop(owner, numbers), len(owners)).tolist() == last
        assert [table.episode_of(row + i) for i in range(len(cut))] == [episode] * len(cut)
        row += len(cut)
    regular = [
        e[0] if set(e[:-1]) <= {e[0]} and e[-1] <= e[0] and not b else 0
        for e, b in zip(lengths, before, strict=True)
    ]
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
    # The last chunk of a trimmed episode may be longer.
    assume(name == "first_frame" or row + 1 not in [*table.first_chunk, len(column)])
    column[row] += column.dtype.type(data.draw(st.integers(1, 2)))
    with pytest.raises(FormatError):
        table.check_frames(frames, lambda: None, block)


def test_fingerprint_is_of_the_content() -> None:
    index = _index()
    assert index.fingerprint() == (
        "b16c81ea67909a062e5d3140167aa1c051308a24b05d418067ab5d3e6bbfc684"
    ), "a saved state names it: it can't change"
    for name in ("page_crc32c", "page_length", "first_frame", "num_frames"):
        changed = _index()
        getattr(changed.groups[1], name).flat[0] += 1
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
    _, index = loaded(write_tiny(tmp_path / "dataset"))
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


def test_limit_of_text_is_arrows() -> None:
    assert np.iinfo(np.int32).max == MAX_INDEX_TEXT


# The index of record files

SCHEMA = Schema(
    [
        FeatureSpec("x", np.dtype("u1"), (4,)),
        FeatureSpec("y", np.dtype("u1"), (None,), group=1),
        FeatureSpec("z", np.dtype("u1"), (2,), group=1),
    ]
)


@dataclass(frozen=True)
class Piece:
    """Chunks [start, stop) of an episode in one file; `ends` tells its number of frames."""

    part: EpisodePart
    start: int
    stop: int
    ends: bool


def chunks_of(part: EpisodePart) -> list[tuple[int, int, int]]:
    """Group, first frame and frames of an episode's chunks, as they are finished: of any length."""
    rng, found = random.Random(part.uid), []
    for group in range(2):
        first, total = 0, part.num_frames or 0
        while first < total:
            held = min(rng.choice([1, 2, 2, 3, 70]), total - first)
            found.append((group, first, held))
            first += held
    return sorted(found, key=lambda chunk: (chunk[1] + chunk[2], chunk[0]))


def num_chunks(part: EpisodePart) -> int:
    return len(chunks_of(part))


def footer(file_id: str, pieces: Iterable[Piece]) -> Footer:
    """All frames lack `y`."""
    parts, offset = list[EpisodePart](), 64
    rows: list[list[Any]] = [[], []]
    gaps: list[list[Any]] = [[], []]
    for number, piece in enumerate(pieces):
        part = piece.part
        parts.append(part if piece.ends else replace(part, num_frames=None))
        for group, first, frames in chunks_of(part)[piece.start : piece.stop]:
            schema = SCHEMA.group(group)
            row = np.zeros(1, chunk_row(len(schema), len(schema.variable)))
            row["episode"], row["num_frames"], row["first_frame"] = number, frames, first
            row["offset"] = offset
            crc = random.Random(f"{part.uid} {group} {first}").getrandbits(32)
            if group == 0:
                row["pages"]["length"], row["pages"]["crc32c"] = [4 * frames], [crc]
            else:
                row["pages"]["length"], row["pages"]["crc32c"] = [0, 2 * frames], [0, crc]
                gaps[1].append(gap_rows(len(rows[1]), 1, np.zeros(frames, bool)))
            rows[group].append(row)
            offset += int(chunk_bytes(row["pages"]["length"][0], schema)) // 64 * 64 + 64
    chunks = [
        np.concatenate([np.empty(0, chunk_row(len(group), len(group.variable))), *some])
        for group, some in zip(SCHEMA.groups, rows, strict=True)
    ]
    made = tuple(np.concatenate([np.empty(0, GAP_ROW), *some]) for some in gaps)
    built = Footer(SCHEMA, file_id, tuple(parts), tuple(chunks), made)
    assert encode_footer(parse_footer(encode_footer(built), offset)) == encode_footer(built)
    return built


some_seeds = pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(n, marks=pytest.mark.slow) for n in range(10, 30))]
)


def test_copies_that_differ_are_refused() -> None:
    part = EpisodePart("a", "1" * 32, 0, 5, None, "{}")
    last = num_chunks(part)
    whole = footer("2" * 32, [Piece(part, 0, last, True)])
    copy = footer("3" * 32, [Piece(part, 1, last, True)])
    assert build_index({"a": whole, "b": copy}).files == ("a",)
    copy.chunks[0]["pages"]["crc32c"][-1, 0] += 1
    with pytest.raises(FormatError, match="contradict"):
        build_index({"a": whole, "b": copy})
    with pytest.raises(FormatError, match="the same id"):
        build_index({"a": whole, "b": whole})


@pytest.mark.parametrize("change", ["num_frames", "first_frame"])
def test_chunks_that_overlap_are_refused(change: str) -> None:
    """As of two files of one uid that are cut in two ways: nobody could say which is right."""
    part = EpisodePart("a", "1" * 32, 0, 150, None, "{}")
    last = num_chunks(part)
    first = footer("2" * 32, [Piece(part, 0, last - 2, False)])
    second = footer("3" * 32, [Piece(part, last - 2, last, True)])
    assert build_index({"a": first, "b": second}).index.num_frames.tolist() == [150]
    rows = first.chunks[0]
    if change == "num_frames":
        rows["num_frames"][-1] += 100
    else:
        second.chunks[1]["first_frame"][-1] -= 1
    with pytest.raises(FormatError, match="contradict"):
        build_index({"a": first, "b": second})


def test_an_episode_that_lacks_a_chunk_of_one_group_is_left_out() -> None:
    part = EpisodePart("a", "1" * 32, 0, 150, None, "{}")
    other = EpisodePart("b", "4" * 32, 1, 3, None, "{}")
    for at in range(num_chunks(part)):
        parts = [Piece(part, 0, at, False), Piece(part, at + 1, num_chunks(part), True)]
        held = {
            str(i): footer(f"{i:032x}", [piece])
            for i, piece in enumerate(parts)
            if piece.start < piece.stop
        }
        whole = footer("5" * 32, [Piece(other, 0, num_chunks(other), True)])
        assert build_index({**held, "c": whole}).index.keys.to_pylist() == ["b"]


def test_edits_are_replayed() -> None:
    parts = [EpisodePart(key, key * 32, i, 5, None, "{}") for i, key in enumerate("abcde")]
    whole = footer("f" * 32, [Piece(part, 0, num_chunks(part), True) for part in parts])
    edits: list[Edit] = [
        Split("train", ("a" * 32, "b" * 32, "c" * 32)),
        Split("val", ("b" * 32, "d" * 32)),
        Split(None, ("d" * 32, "9" * 32)),
        Delete(("c" * 32, "8" * 32)),
        Rename({"a" * 32: "e", "e" * 32: "a", "c" * 32: "b", "7" * 32: "d"}),
        Relabel({"b" * 32: '{ "x": 1 }', "d" * 32: "{}"}),
        Rename({"e" * 32: "new/a"}),
    ]
    edits = [again for edit in edits for again in parse_edit(encode_edit([edit]))]
    built = build_index({"x": whole}, edits=Edits.of(edits), splits=("test", "val"))
    assert built.splits == ("test", "val", "train")
    assert built.index.keys.to_pylist() == ["e", "b", "d", "new/a"]
    assert built.index.metadata.to_pylist() == ["{}", '{"x":1}', "{}", "{}"]
    assert built.index.split.tolist() == [2, 1, NO_SPLIT, NO_SPLIT]
    assert [built.index.uid(i) for i in range(4)] == [key * 32 for key in "abde"]
    assert built.duplicates == ()
    with pytest.raises(FormatError, match="no complete episode"):
        build_index({"x": whole}, edits=Edits.of([Delete(tuple(key * 32 for key in "abcde"))]))


@pytest.mark.parametrize(
    "data",
    [
        b"[]",
        b"{}",
        b'{"format":"seqrecord edits","version":2,"edits":[]}',
        b'{"format":"seqrecord edits","version":true,"edits":[]}',
        b'{"format":"seqrecord edits","version":1,"edits":[],"x":1}',
        b'{"format":"seqrecord edits","version":1,"edits":[{"op":"drop","uids":[]}]}',
        b'{"format":"seqrecord edits","version":1,"edits":[{"op":"delete","uids":["a"]}]}',
        b'{"format":"seqrecord edits","version":1,"edits":[{"op":"delete","uids":[],"x":1}]}',
        b'{"format":"seqrecord edits","version":1,"edits":[{"op":"split","uids":[]}]}',
        b'{"format":"seqrecord edits","version":1,"edits":[{"op":"split","split":"/","uids":[]}]}',
        b'{"format":"seqrecord edits","version":1,"edits":[{"op":"rename","uids":[]}]}',
        b'{"format":"seqrecord edits","version":1,"edits":[{"op":"rename","keys":{"a":"b"}}]}',
        b'{"format":"seqrecord edits","version":1,"edits":[{"op":"relabel","metadata":[]}]}',
        b'{"format":"seqrecord edits","version":1,"edits":[{"op":"relabel","keys":{}}]}',
    ],
)
def test_what_is_no_edit(data: bytes) -> None:
    with pytest.raises(FormatError, match="edit"):
        parse_edit(data)


@some_seeds
def test_an_episode_is_as_long_as_the_longest_part_that_is_whole(seed: int) -> None:
    """Each file was flushed at its end, or not; any may be lost. Frame by frame, all groups."""
    rng = random.Random(seed)
    part = EpisodePart("a", f"{seed:032x}", 0, 150, None, "{}")
    # Chunks of both groups end where a file was flushed.
    ends = sorted({*rng.sample(range(1, 150), rng.randint(0, 4)), 150})
    footers: dict[str, Footer] = {}
    held: dict[str, tuple[int, int, bool]] = {}
    for number, (start, stop) in enumerate(pairwise([0, *ends])):
        is_flushed = stop == 150 or rng.random() < 0.6
        path = f"records/{number:05d}.seqrec"
        footers[path] = _of_frames(f"{number:032x}", part, start, stop, is_flushed)
        held[path] = (start, stop, is_flushed)
    for path in rng.sample(list(footers), rng.randint(0, len(footers) - 1)):
        del footers[path], held[path]
    there = {frame for start, stop, _ in held.values() for frame in range(start, stop)}
    lengths = [stop for _, stop, is_flushed in held.values() if is_flushed]
    expected = max((n for n in lengths if set(range(n)) <= there), default=None)
    if expected is None:
        with pytest.raises(FormatError, match="no complete episode"):
            build_index(footers)
        return
    built = build_index(footers)
    assert built.index.num_frames.tolist() == [expected]
    for group in built.index.groups:
        ends_of = group.first_frame.astype(int) + group.num_frames
        assert group.first_frame.tolist() == [0, *ends_of[:-1]]
        assert ends_of[-1] == expected
    _, second = built.index.groups
    assert len(second.gaps) == sum(-(-frames // 64) for frames in second.num_frames.tolist())


def _of_frames(file_id: str, part: EpisodePart, start: int, stop: int, is_flushed: bool) -> Footer:
    """A file of a chunk for each group, of which the frames all lack `y`."""
    rows, offset = [], 64
    for number, group in enumerate(SCHEMA.groups):
        row = np.zeros(1, chunk_row(len(group), len(group.variable)))
        row["num_frames"], row["first_frame"], row["offset"] = stop - start, start, offset
        row["pages"]["length"] = [[4], [0, 2]][number]
        row["pages"]["length"] *= np.uint32(stop - start)
        offset += int(chunk_bytes(row["pages"]["length"][0], group)) // 64 * 64 + 64
        rows.append(row)
    gaps = gap_rows(0, 1, np.zeros(stop - start, bool))
    told = replace(part, num_frames=stop if is_flushed else None)
    built = Footer(SCHEMA, file_id, (told,), tuple(rows), (gaps[:0], gaps))
    return parse_footer(encode_footer(built), offset)


def test_a_chunk_that_crosses_where_an_episode_may_end() -> None:
    part = EpisodePart("a", "1" * 32, 0, 9, None, "{}")
    first = _of_frames("2" * 32, part, 0, 9, True)
    shorter = replace(part, num_frames=5)
    second = replace(first, file_id="3" * 32, episodes=(shorter,))
    assert build_index({"a": first}).index.num_frames.tolist() == [9]
    # The longest part is whole, so the other one does not count.
    assert build_index({"a": first, "b": second}).index.num_frames.tolist() == [9]
    with pytest.raises(FormatError, match="contradict"):
        build_index({"b": second})
