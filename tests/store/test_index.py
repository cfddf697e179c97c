"""The index: round trip through Arrow, derived columns, and views of the file."""

from __future__ import annotations

import random
from dataclasses import replace
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

from seqrecord import FeatureSpec, Schema
from seqrecord.errors import FormatError
from seqrecord.store.format import index as index_module
from seqrecord.store.format.arrow import read_batch
from seqrecord.store.format.edits import (
    Delete,
    Edit,
    Edits,
    Relabel,
    Rename,
    Split,
    encode_edit,
    parse_edit,
)
from seqrecord.store.format.footer import EpisodePart, Footer, encode_footer, parse_footer
from seqrecord.store.format.index import NO_SPLIT, GroupIndex, Index
from seqrecord.store.format.pages import chunk_bytes
from seqrecord.store.format.rows import (
    GAP_ROW,
    MAX_INDEX_TEXT,
    chunk_row,
    encode_table,
    episodes_schema,
    gap_rows,
)
from seqrecord.store.reading.index_building import build_index
from seqrecord.store.tables.grids import ChunkGrid
from tests.kit.tiny import loaded, write_tiny

_SCHEMA = Schema(
    [FeatureSpec("a", np.dtype("u1"), (2,)), FeatureSpec("b", np.dtype("u1"), (None,), group=1)]
)


def _table(group: int, num_chunks: Any, first_frame: Any, num_frames: Any, **more: Any) -> Any:
    """A chunk table of one feature: by default chunks of `a` without bytes, in one file."""
    count = len(num_frames)
    columns: dict[str, Any] = {
        "file": np.zeros(count, np.uint32),
        "offset": 64 + 128 * np.arange(count, dtype=np.uint64),
        "page_length": 2 * np.array(num_frames, np.uint32),
        "page_crc32c": np.zeros(count, np.uint32),
        "largest_frame": np.empty((count, 0), np.uint32),
        **{name: np.array(column, np.uint32) for name, column in more.items() if name != "gaps"},
        "gaps": np.array(more.get("gaps", []), GAP_ROW),
    }
    columns["page_digest"] = np.resize(columns["page_crc32c"].astype("u1"), (count, 1, 16))
    for name in ("page_length", "page_crc32c"):
        columns[name] = columns[name].reshape(count, 1)
    columns["offset"] = columns["offset"].astype(np.uint64)
    return GroupIndex(
        schema=_SCHEMA.group(group),
        features=np.array([group]),
        num_chunks=np.array(num_chunks, np.int64),
        first_frame=np.array(first_frame, np.int32),
        num_frames=np.array(num_frames, np.uint32),
        external=np.zeros(count, np.uint32),
        **columns,
    )


def _index() -> Index:
    """Episodes of 3 and 2 frames. Group 0 (`a`): chunks of 2, 1 and 2 frames; group 1 (`b`): 3
    and 1, 1. Frame 2 lacks `b`."""
    first: dict[str, Any] = {"file": [0, 1, 1], "offset": [64, 64, 256], "page_length": [4, 2, 4]}
    second: dict[str, Any] = {"file": [0, 1, 1], "offset": [192, 384, 448]}
    second |= {"page_length": [30, 30, 40], "largest_frame": [[9], [18], [28]]}
    second |= {"gaps": [(0, 1, 0, 0b011)]}
    return Index(
        schema=_SCHEMA,
        keys=pa.array(["x", "é/y"], pa.string()),
        uids=np.arange(32, dtype=np.uint8).reshape(2, 16),
        metadata=pa.array(["{}", '{"a":1}'], pa.string()),
        num_frames=np.array([3, 2], np.int64),
        fps=np.array([0, 12.5]),
        split=np.array([NO_SPLIT, 1], np.uint16),
        groups=(
            _table(0, [2, 1], [0, 2, 0], [2, 1, 2], page_crc32c=[1, 3, 5], **first),
            _table(1, [1, 2], [0, 0, 1], [3, 1, 1], page_crc32c=[2, 4, 6], **second),
        ),
    )


_COLUMNS = (
    *("num_chunks", "first_frame", "num_frames", "file", "offset", "page_length", "page_crc32c"),
    *("page_digest", "largest_frame", "gaps", "first_chunk", "chunk_frames"),
)


def test_tables_of_an_impossible_number_of_rows() -> None:
    """Every copy of the number of rows is changed; no other value of the table equals it."""
    count = 1237
    columns: list[Any] = [
        pa.array(map(str, range(count)), pa.string()),
        np.zeros((count, 16), "u1"),
        *(np.zeros(count, dtype) for dtype in ("u4", "f8", "u2")),
        pa.array(["{}"] * count, pa.string()),
        np.ones((count, 1), "u4"),
    ]
    schema = episodes_schema(1)
    data = encode_table(schema, dict(zip(schema.names, columns, strict=True))).to_pybytes()
    number = count.to_bytes(8, "little")
    assert data.count(number) > 5
    for rows in (-1, -2, -1237, -(1 << 62), -(1 << 63), 1 << 62, (1 << 63) - 1):
        changed = data.replace(number, rows.to_bytes(8, "little", signed=True))
        with pytest.raises(FormatError, match="not an Arrow IPC file of one batch"):
            read_batch(pa.py_buffer(changed), episodes_schema(1))


@pytest.mark.parametrize("block_pages", [1, 2, 1 << 18])
def test_round_trip(block_pages: int) -> None:
    index = _index()
    sizes = [256, 512]  # of the record files
    tables = index.encode()
    again = Index.decode(_SCHEMA, tables, sizes, num_splits=2, block_pages=block_pages)
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


def test_derived_columns_and_lookups() -> None:
    first, second = _index().groups
    assert [first.first_chunk.tolist(), second.first_chunk.tolist()] == [[0, 2], [0, 1]]
    assert [first.chunk_frames.tolist(), second.chunk_frames.tolist()] == [[2, 2], [3, 1]]
    assert _index().positions == {"x": 0, "é/y": 1}
    present = second.present(0, 1)
    assert present is not None
    assert present.tolist() == [True, True, False]
    assert first.present(0, 0) is second.present(1, 1) is None
    assert first.chunks_of(0, np.array([2, 0, 1])).tolist() == [1, 0, 0]
    assert second.chunks_of(1, np.array([1, 0])).tolist() == [2, 1]
    assert _index().largest_frames("b", np.array([1])) == 28
    assert _index().lengths("b").tolist() == [30, 30, 40]
    broken = replace(_index(), metadata=pa.array(["{", "{}"], pa.string()))
    with pytest.raises(FormatError) as caught:
        broken.episode_metadata(0)
    assert caught.value.episode == "x"
    assert np.iinfo(np.int32).max == MAX_INDEX_TEXT, "the limit of text is Arrow's"


@st.composite
def _tables(draw: st.DrawFn) -> tuple[npt.NDArray[np.int64], GroupIndex, list[list[int]]]:
    """Frames of episodes, their chunk table, and the lengths of each episode's chunks."""
    lengths = draw(
        st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=5), min_size=1, max_size=6)
    )
    first = [sum(episode[:i]) for episode in lengths for i in range(len(episode))]
    table = _table(0, list(map(len, lengths)), first, [n for e in lengths for n in e])
    return np.array([sum(e) for e in lengths], np.int64), table, lengths


@given(_tables(), st.integers(1, 5), st.data())
def test_chunks_of_any_length(
    case: tuple[npt.NDArray[np.int64], GroupIndex, list[list[int]]], block: int, data: st.DataObject
) -> None:
    """Also in trimmed episodes, which exclude frames of their first and last chunk."""
    frames, table, lengths = case
    before = [data.draw(st.integers(0, cut[0] - 1)) for cut in lengths]
    stops = [sum(c) - data.draw(st.integers(0, c[-1] - 1)) for c in lengths]
    stops = [max(stop, b + 1) for stop, b in zip(stops, before, strict=True)]
    table.first_frame[:] -= np.repeat(before, table.num_chunks).astype(np.int32)
    frames[:] = np.array(stops) - before
    table.check_frames(frames, lambda: None, block)
    grid = ChunkGrid.from_lengths(table.chunk_frames, frames, table.first_chunk, table.first_frame)
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


def test_fingerprint_depends_on_content_only() -> None:
    index = _index()
    assert index.fingerprint() == (
        "3d62c8c6d0525336acb2c7de965bdd59541c29174cbde487d6f589337618ca57"
    ), "it can't change: saved states contain it"
    for name in ("page_digest", "first_frame", "num_frames"):
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
    assert changed.fingerprint() == index.fingerprint(), "the division into files does not count"


def test_large_columns_are_views_of_the_file(tmp_path: Path) -> None:
    _, index = loaded(write_tiny(tmp_path / "dataset"))
    for name in ("file", "offset", "first_frame", "num_frames", "page_length", "page_crc32c"):
        array = getattr(index.groups[0], name)
        assert not array.flags.owndata, name
        assert not array.flags.writeable, name


# The index of record files

SCHEMA = Schema(
    [
        FeatureSpec("x", np.dtype("u1"), (4,)),
        FeatureSpec("y", np.dtype("u1"), (None,), group=1),
        FeatureSpec("z", np.dtype("u1"), (2,), group=1),
    ]
)

Chunks = list[tuple[int, int, int]]


def part_of(key: str, num_frames: int, uid: str = "1", ordinal: int = 0) -> EpisodePart:
    return EpisodePart(key, uid * 32, ordinal, num_frames, None, "{}")


def chunks_of(part: EpisodePart) -> Chunks:
    """Group, first frame and frames of an episode's chunks, in order of completion."""
    rng, found = random.Random(part.uid), []
    for group in range(2):
        first, total = 0, part.num_frames or 0
        while first < total:
            count = min(rng.choice([1, 2, 2, 3, 70]), total - first)
            found.append((group, first, count))
            first += count
    return sorted(found, key=lambda chunk: (chunk[1] + chunk[2], chunk[0]))


def footer(file_id: str, *pieces: tuple[EpisodePart, Chunks, bool]) -> Footer:
    """Chunks of episodes; the last may end its episode. `y` is missing in all frames."""
    parts, offset = list[EpisodePart](), 64
    rows: list[list[Any]] = [[], []]
    gaps: list[list[Any]] = [[], []]
    for number, (part, chunks, ends) in enumerate(pieces):
        parts.append(part if ends else replace(part, num_frames=None))
        for group, first, frames in chunks:
            schema = SCHEMA.group(group)
            row = np.zeros(1, chunk_row(len(schema), len(schema.variable)))
            row["episode"], row["num_frames"], row["first_frame"] = number, frames, first
            row["offset"] = offset
            crc = random.Random(f"{part.uid} {group} {first}").getrandbits(32)
            row["pages"]["length"] = [4 * frames] if group == 0 else [0, 2 * frames]
            row["pages"]["crc32c"] = [crc] if group == 0 else [0, crc]
            if group == 1:
                gaps[1].append(gap_rows(len(rows[1]), 1, np.zeros(frames, bool)))
            rows[group].append(row)
            offset += int(chunk_bytes(row["pages"]["length"][0], schema)) // 64 * 64 + 64
    made = [
        np.concatenate([np.empty(0, chunk_row(len(group), len(group.variable))), *some])
        for group, some in zip(SCHEMA.groups, rows, strict=True)
    ]
    bits = tuple(np.concatenate([np.empty(0, GAP_ROW), *some]) for some in gaps)
    built = Footer(SCHEMA, file_id * (32 // len(file_id)), tuple(parts), tuple(made), bits)
    assert encode_footer(parse_footer(encode_footer(built), offset)) == encode_footer(built)
    return built


def keys_of(footers: dict[str, Footer], **options: Any) -> list[str]:
    found: list[str] = build_index(footers, **options).index.keys.to_pylist()
    return found


def test_copies_of_chunks() -> None:
    """Different copies are refused, and a file of unneeded copies is not listed."""
    part = part_of("a", 5)
    whole = footer("2", (part, chunks_of(part), True))
    copy = footer("3", (part, chunks_of(part)[1:], True))
    assert build_index({"a": whole, "b": copy}).files == ("a",)
    copy.chunks[0]["pages"]["crc32c"][-1, 0] += 1
    with pytest.raises(FormatError, match="contradict"):
        build_index({"a": whole, "b": copy})
    with pytest.raises(FormatError, match="the same id"):
        build_index({"a": whole, "b": whole})


def test_chunks_that_overlap_are_refused() -> None:
    """For example in two files of one uid with different chunks: either may be right."""
    part = part_of("a", 150)
    for change in ("num_frames", "first_frame"):
        first = footer("2", (part, chunks_of(part)[:-2], False))
        second = footer("3", (part, chunks_of(part)[-2:], True))
        assert build_index({"a": first, "b": second}).index.num_frames.tolist() == [150]
        if change == "num_frames":
            first.chunks[0]["num_frames"][-1] += 100
        else:
            second.chunks[1]["first_frame"][-1] -= 1
        with pytest.raises(FormatError, match="contradict"):
            build_index({"a": first, "b": second})
    # A chunk that crosses a possible end of its episode.
    both: Chunks = [(0, 0, 9), (1, 0, 9)]
    first = footer("2", (part_of("a", 9), both, True))
    second = replace(first, file_id="3" * 32, episodes=(part_of("a", 5),))
    # The longest part is complete, so the other one does not count.
    assert build_index({"a": first, "b": second}).index.num_frames.tolist() == [9]
    with pytest.raises(FormatError, match="contradict"):
        build_index({"b": second})


def test_an_episode_with_a_missing_chunk_of_one_group_is_skipped() -> None:
    part, other = part_of("a", 150), part_of("b", 3, "4", 1)
    chunks, whole = chunks_of(part), footer("5", (other, chunks_of(other), True))
    for at in range(len(chunks)):
        pieces = ((part, chunks[:at], False), (part, chunks[at + 1 :], True))
        parts = {str(i): footer(str(i), piece) for i, piece in enumerate(pieces) if piece[1]}
        assert keys_of({**parts, "c": whole}) == ["b"]


def test_an_index_has_the_files_that_discard_its_episodes() -> None:
    """From its own files it is rebuilt without them."""
    flushed: Chunks = [(0, 0, 9), (1, 0, 9)]
    later: Chunks = [(0, 9, 3)]
    lost, other = part_of("b", 9, "4", 1), part_of("c", 9, "5", 2)
    files = {"x": footer("2", (part_of("a", 9), flushed, True), (lost, flushed, True))}
    files["y"] = footer("3", (replace(lost, is_discarded=True), later, False))
    files["z"] = footer("6", (replace(other, is_discarded=True), later, False))
    built = build_index(files)
    assert built.files == ("x", "y")
    assert keys_of({path: files[path] for path in built.files}) == ["a"]


@pytest.mark.parametrize("is_regular", [True, False])
def test_an_episode_has_the_rate_of_its_longest_complete_part(is_regular: bool) -> None:
    """Timestamps contradict the fps in the other one, which lacks a chunk."""
    part, chunks = replace(part_of("a", 9), fps=10.0), [(0, 0, 9), (1, 0, 9)]
    longer_part = replace(part, num_frames=20, fps=None if is_regular else part.fps)
    part = replace(part, fps=part.fps if is_regular else None)
    first = footer("2", (part, chunks, True))
    second = footer("3", (longer_part, [(0, 12, 8), (1, 12, 8)], True))
    index = build_index({"a": first, "b": second}).index
    assert (index.num_frames.tolist(), index.fps.tolist()) == ([9], [10.0 * is_regular])


def test_edits_are_replayed() -> None:
    parts = [part_of(key, 5, key, i) for i, key in enumerate("abcde")]
    files = {"x": footer("f", *((part, chunks_of(part), True) for part in parts))}
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
    built = build_index(files, edits=Edits.of(edits), splits=("test", "val"))
    assert built.splits == ("test", "val", "train")
    assert built.index.keys.to_pylist() == ["e", "b", "d", "new/a"]
    assert built.index.metadata.to_pylist() == ["{}", '{"x":1}', "{}", "{}"]
    assert built.index.split.tolist() == [2, 1, NO_SPLIT, NO_SPLIT]
    assert [built.index.uid(i) for i in range(4)] == [key * 32 for key in "abde"]
    assert built.duplicates == ()
    with pytest.raises(FormatError, match="no complete episode"):
        build_index(files, edits=Edits.of([Delete(tuple(key * 32 for key in "abcde"))]))


def test_invalid_edits_are_refused() -> None:
    def file(edits: str, version: str = "1", more: str = "") -> bytes:
        text = f'{{"format":"seqrecord edits","version":{version},"edits":[{edits}]{more}}}'
        return text.encode()

    files = [b"[]", b"{}", file("", "2"), file("", "true"), file("", more=',"x":1')]
    files += map(
        file,
        (
            '{"op":"drop","uids":[]}',
            '{"op":"delete","uids":["a"]}',
            '{"op":"delete","uids":[],"x":1}',
            '{"op":"split","uids":[]}',
            '{"op":"split","split":"/","uids":[]}',
            '{"op":"rename","uids":[]}',
            '{"op":"rename","keys":{"a":"b"}}',
            '{"op":"relabel","metadata":[]}',
            '{"op":"relabel","keys":{}}',
            '{"op":"texts","dictionaries":[]}',
            '{"op":"texts","dictionaries":{"a":1}}',
        ),
    )
    for data in files:
        with pytest.raises(FormatError, match="edit"):
            parse_edit(data)


@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(n, marks=pytest.mark.slow) for n in range(10, 30))]
)
def test_an_episode_has_the_length_of_its_longest_complete_part(seed: int) -> None:
    """Each file was flushed at its end or not; any may be lost. Compared frame by frame."""
    rng = random.Random(seed)
    # A flush ends the chunks of both groups.
    ends = sorted({*rng.sample(range(1, 150), rng.randint(0, 4)), 150})
    footers: dict[str, Footer] = {}
    kept: dict[str, tuple[int, int, bool]] = {}
    for number, (start, stop) in enumerate(pairwise([0, *ends])):
        is_flushed = stop == 150 or rng.random() < 0.6
        path = f"records/{number:05d}.seqrec"
        chunks: Chunks = [(group, start, stop - start) for group in (0, 1)]
        footers[path] = footer(str(number), (part_of("a", stop), chunks, is_flushed))
        kept[path] = (start, stop, is_flushed)
    for path in rng.sample(list(footers), rng.randint(0, len(footers) - 1)):
        del footers[path], kept[path]
    frames = {frame for start, stop, _ in kept.values() for frame in range(start, stop)}
    lengths = [stop for _, stop, is_flushed in kept.values() if is_flushed]
    expected = max((n for n in lengths if set(range(n)) <= frames), default=None)
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
