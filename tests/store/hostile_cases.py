"""Malformed datasets with correct checksums, one per row, each with its expected error.

`python -m tests.store.hostile_cases ROOT` runs all cases under a memory limit, and prints those
without the expected error.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from seqrecord import FeatureSpec, Schema, reindex
from seqrecord.errors import (
    ChecksumError,
    CodecError,
    FormatError,
    NotFoundError,
    SchemaError,
    SeqRecordError,
    StorageError,
    VersionError,
)
from seqrecord.store.codecs.base import numcodecs
from tests.kit import tiny
from tests.kit.datasets import write_dataset

Change = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """A change to a good dataset, and the error expected when the copy is opened and read."""

    name: str
    change: Change
    match: str = ""
    error: type[SeqRecordError] = FormatError


def failure(case: Case, good: Path, root: Path) -> str | None:
    """Describe a wrong or missing error of a changed copy of `good`, made in `root`."""
    tiny.copy_dataset(good, root)
    try:
        case.change(root)
        tiny.read_all(root)
    except SeqRecordError as error:
        names_file = case.error is not SchemaError and case.name != "metadata of the index"
        is_right = type(error) is case.error and case.match in str(error) and "\n" not in str(error)
        if is_right and (not names_file or str(root.parent) in str(error.file)):
            return None
        return f"{case.name}: {error!r}"
    except Exception:
        return f"{case.name}: {traceback.format_exc()}"
    return f"{case.name}: not refused"


def _record(change: Callable[[tiny.RecordParts], object]) -> Change:
    """Change the record file, then rebuild index and manifest."""

    def apply(root: Path) -> None:
        tiny.change_record(root, change)
        reindex(root, created_by="test")

    return apply


def _head(**values: Any) -> Change:
    return _record(lambda parts: parts.head.update(values))


def _spec(**values: Any) -> Change:
    return _record(lambda parts: parts.head["schema"][0].update(values))


def _codec(**values: Any) -> Change:
    return _record(lambda parts: parts.head["schema"][1].update(codec=[values]))


def _part(**values: Any) -> Change:
    return _record(lambda parts: parts.head["episodes"][0].update(values))


def _another(**values: Any) -> Change:
    return _record(lambda parts: parts.head["episodes"].append(parts.head["episodes"][0] | values))


def _replaced(old: str, new: str) -> Change:
    """Change the footer's JSON as text."""

    def change(parts: tiny.RecordParts) -> None:
        text = json.dumps(parts.head)
        assert old in text
        parts.text = text.replace(old, new, 1).encode("utf-8", "surrogatepass")

    return _record(change)


def _chunk(row: int, field: str, value: int, page: int | None = None) -> Change:
    """Set a number of a chunk row, or of a page in it. `largest` of `blob`: 8, 16 and 20 bytes."""

    def change(parts: tiny.RecordParts) -> None:
        chunk = parts.chunks[row]
        (chunk if page is None else chunk["pages"][page])[field] = value

    return _record(change)


def _no_frame(parts: tiny.RecordParts) -> None:
    """The second chunk has no `blob`, but a largest frame of it."""
    parts.gaps["present"] = 0
    parts.chunks[1]["pages"][1]["length"] = 0


def _without_first(parts: tiny.RecordParts) -> None:
    parts.chunks = parts.chunks[1:]
    parts.gaps["chunk"] -= 1
    parts.head["num_chunks"] = [2]


def _not_utf8(root: Path) -> None:
    """A dataset with one frame of text that is not UTF-8."""
    shutil.rmtree(root)
    schema = Schema([FeatureSpec("text", np.dtype("u1"), (None,))])
    write_dataset(
        root, {tiny.KEY: [{"text": np.frombuffer(b"abcd", "u1")}]}, schema=schema, codecs="raw"
    )

    def change(parts: tiny.RecordParts) -> None:
        parts.head["schema"][0]["value"] = "text"
        parts.pages[parts.pages.index(b"abcd")] = 0xFF
        parts.sign_pages()

    tiny.change_record(root, change)
    reindex(root, created_by="test")


def _edits(data: bytes, crc: int | None = None) -> Change:
    """Add an edits file to the manifest; the index is rebuilt."""

    def apply(root: Path) -> None:
        path = root / "edits" / "a.json"
        path.parent.mkdir()
        path.write_bytes(data)
        sum_ = f"{crc32c(data) if crc is None else crc:08x}"
        entry = {"path": "edits/a.json", "size": len(data), "crc32c": sum_}
        tiny.change_manifest(root, lambda value: value.update(edits=[entry]))
        reindex(root, created_by="test")

    return apply


def _edit(op: str, **values: Any) -> Change:
    return _edits(_file_of({"op": op, **values}))


def _file_of(*edits: Any, version: int = 1) -> bytes:
    return json.dumps({"format": "seqrecord edits", "version": version, "edits": edits}).encode()


def _gaps(*rows: tuple[int, int, int, int]) -> Change:
    """Gap rows of chunk, feature, word and present frames."""

    def change(parts: tiny.RecordParts) -> None:
        parts.gaps = np.array(list(rows), parts.gaps.dtype)
        parts.head["num_gaps"] = len(rows)

    return _record(change)


def _set(**values: Any) -> Change:
    return _record(lambda parts: parts.__dict__.update(values))


def _page(change: Callable[[bytearray], bytearray]) -> Change:
    """Change the first page of `blob`: two frames of one and two floats."""

    def apply(parts: tiny.RecordParts) -> None:
        start, length = 64, int(parts.chunks[0]["pages"][1]["length"])
        page = change(parts.pages[start : start + length])
        parts.chunks[0]["pages"][1]["length"] = len(page)
        shapes = struct.unpack_from("<2I", page, 12)
        parts.chunks[0]["largest"][0] = min(4 * max(shapes), 1 << 30)
        assert len(page) <= 128
        parts.pages[start : start + 64] = page.ljust(-(-len(page) // 64) * 64, b"\0")
        moved = (len(parts.pages) + 63) // 64 * 64 - len(parts.pages)
        assert moved == 0
        if len(page) > 64:
            parts.chunks["offset"][1:] += 64
        parts.sign_pages()

    return _record(apply)


def _words(page: bytearray, at: int, *values: int) -> bytearray:
    struct.pack_into(f"<{len(values)}I", page, 4 * at, *values)
    return page


def _blobs(*blobs: bytes, shapes: tuple[int, int] = (1, 2)) -> bytearray:
    ends = np.cumsum([20, *map(len, blobs)]).astype("<u4").tobytes()
    return bytearray(ends + struct.pack("<2I", *shapes) + b"".join(blobs))


def _zstd(count: int) -> bytes:
    return bytes(numcodecs.zstd.compress(np.zeros(count, "<f4").tobytes(), 1))


def _shaped(size: int) -> Change:
    return _page(lambda _: _blobs(_zstd(1), _zstd(2), shapes=(1, size)))


def _manifest_with(**values: Any) -> Change:
    return _manifest(lambda value: value.update(values))


def _manifest(change: Callable[[dict[str, Any]], object]) -> Change:
    return lambda root: tiny.change_manifest(root, change)


def _double(value: dict[str, Any], key: str) -> None:
    value[key] *= 2


def _exchange(index: dict[str, Any]) -> None:
    index["gaps"] = index["chunks"][0]


def _gaps_file(**values: Any) -> Change:
    return _manifest(lambda value: value["index"]["gaps"].update(values))


def _entry(**values: Any) -> Change:
    return _manifest(lambda value: value["record_files"][0].update(values))


def _table(name: str, change: Callable[[pa.Table], pa.Table | bytes]) -> Change:
    return lambda root: tiny.change_table(root, name, change)


def _column(table: str, name: str, values: list[Any]) -> Change:
    """Replace a column of an index table; type and nullability stay."""

    def change(old: pa.Table) -> pa.Table:
        field = old.schema.field(name)
        columns = [
            pa.array(values, field.type) if other == name else old.column(other)
            for other in old.column_names
        ]
        return pa.Table.from_arrays(columns, schema=old.schema)

    return _table(table, change)


_chunks = partial(_column, "chunks0")


def _arrow(table: pa.Table, batches: int = 1, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for _ in range(batches):
            writer.write_batch(table.to_batches()[0])
    return bytes(sink.getvalue().to_pybytes())


def _bomb(table: pa.Table) -> bytes:
    """A compressed buffer that declares an exabyte."""
    data = bytearray(_arrow(table, compression="zstd"))
    at = data.index(b"\x28\xb5\x2f\xfd") - 8  # the declared size precedes each
    data[at : at + 8] = (1 << 60).to_bytes(8, "little")
    return bytes(data)


def _nullable(table: pa.Table) -> pa.Table:
    return pa.table(table.to_pydict(), pa.schema([f.with_nullable(True) for f in table.schema]))


def _without_schema(table: pa.Table) -> bytes:
    """A file whose first message is the record batch."""
    data = _arrow(table)
    (size,) = struct.unpack_from("<i", data, 12)
    return data[:8] + data[16 + size :]


def _twice_the_schema(table: pa.Table) -> bytes:
    """A file with two messages and no record batch."""
    data = _arrow(table, 0)
    (size,) = struct.unpack_from("<i", data, 12)
    return data[: 16 + size] + data[8:]


def _second_file(change: Callable[[tiny.RecordParts], object], name: str = "x.seqrec") -> Change:
    """A changed copy of the record file."""

    def apply(root: Path) -> None:
        path = tiny.record_path(root)
        good = path.read_bytes()
        tiny.change_record(root, change)
        (path.parent / name).write_bytes(path.read_bytes())
        path.write_bytes(good)
        reindex(root, created_by="test")

    return apply


def _other_id(parts: tiny.RecordParts) -> None:
    parts.header[12:28] = bytes(16)
    parts.head["file_id"] = "0" * 32


def _other_episode(parts: tiny.RecordParts, **values: Any) -> None:
    _other_id(parts)
    parts.head["episodes"][0].update({"uid": "1" * 32, "ordinal": 7, "key": "other"} | values)


def _other_schema(parts: tiny.RecordParts) -> None:
    _other_episode(parts)
    parts.head["schema"][0]["name"] = "x"


def _contradict(**values: Any) -> Change:
    def change(parts: tiny.RecordParts) -> None:
        _other_id(parts)
        parts.head["episodes"][0].update(values)

    return _second_file(change)


def _link(root: Path, name: str = "") -> None:
    """Move a file or folder, by default the record file, out of the dataset; leave a link."""
    inside = root / name if name else tiny.record_path(root)
    outside = root.parent / f"outside-{root.name}"
    outside.mkdir()
    shutil.move(inside, outside / inside.name)
    inside.symlink_to(outside / inside.name)


def _replace(root: Path, make: Callable[[Path], object]) -> None:
    path = tiny.record_path(root)
    path.unlink()
    make(path)


def _linked_reindex(root: Path) -> None:
    _link(root)
    reindex(root, created_by="test")


def _small(path: str) -> dict[str, Any]:
    return {"path": path, "size": 1, "crc32c": "0" * 8}


def _dictionary(name: str, text: str = "task") -> dict[str, str]:
    return {"name": name, "text": text}


_DEEP, _DEEP_70 = ("[" * depth + "]" * depth for depth in (100_000, 70))
_UID = "a" * 32
_FEATURE = {key: value for key, value in tiny.TINY["raw"].to_json().items() if key != "name"}
_MANY = [{"name": f"f{i}", **_FEATURE} for i in range(1025)]

_FOOTER = [
    Case(
        "head is a list",
        _record(lambda p: p.__dict__.update(head=[p.head])),
        "right keys",
    ),
    Case("head lacks a key", _record(lambda p: p.head.pop("num_gaps")), "right keys"),
    Case("head has another key", _head(extra=1), "right keys"),
    Case("key twice", _replaced("{", '{"num_gaps": 0, '), "duplicate key"),
    Case("NaN", _replaced('"num_gaps": 1', '"num_gaps": NaN'), "NaN"),
    Case("1e999", _replaced('"num_gaps": 1', '"num_gaps": 1e999'), "1e999"),
    Case("huge integer", _replaced('_gaps": 1', '_gaps": 1' + "0" * 9999), "JSON"),
    Case("deep nesting", _replaced('"num_gaps": 1', f'"num_gaps": {_DEEP}'), "JSON"),
    Case("nesting just too deep", _replaced('gaps": 1', f'gaps": {_DEEP_70}'), "too deeply"),
    Case("half a surrogate pair", _replaced("env/P0", "env/\\udc80"), "JSON"),
    Case("not UTF-8", _replaced("env/P0", "env/\udc80"), "JSON"),
    Case("JSON is empty", _set(json_length=0), "does not fit"),
    Case("JSON longer than the footer", _set(json_length=2**32 - 1), "does not fit"),
    Case("rows not aligned", _set(json_length=5), "multiple of 8"),
    Case("footer length 1", _set(length=1), "footer length"),
    Case("footer length 2**63", _set(length=2**63), "footer length"),
    Case("footer longer than the file", _set(length=64 * 1024 - 24), "footer length"),
    Case("footer of version 2", _set(version=2), "version", error=VersionError),
    Case("file id", _head(file_id="../" * 8), "file_id"),
    Case("file id of another file", _head(file_id="0" * 32), "different files"),
    Case("2**31 chunks", _head(num_chunks=[2**31]), "do not fill"),
    Case("-1 chunks", _head(num_chunks=[-1]), "impossible counts"),
    Case("true chunks", _head(num_chunks=[True]), "impossible counts"),
    Case("chunks of two groups", _head(num_chunks=[3, 0]), "bad num_chunks"),
    Case("1e9 gaps", _head(num_gaps=10**9), "do not fill"),
]

_NAMES: dict[str, list[Any]] = {
    "kind": ["", "A", "a" * 33],
    "unit": ["\x1b[2J", "", 1],
    "value": ["pickle", None],
}
_SCHEMA = [
    Case("schema is no list", _head(schema={}), "not a list"),
    Case("no feature", _head(schema=[]), "number of"),
    Case("1025 features", _head(schema=_MANY), "number of"),
    Case("feature twice", _head(schema=[{"name": "a", **_FEATURE}] * 2), "twice"),
    Case("feature has another key", _spec(extra=1), "right keys"),
    Case("feature named ../x", _spec(name="../x"), "feature name"),
    Case("feature named 1", _spec(name=1), "not text"),
    Case("feature name of 129", _spec(name="a" * 129), "feature name"),
    Case("dropped feature of place 1", _spec(name="~1"), "by its place"),
    Case("added by null", _spec(added=None), "writer that added it"),
    Case("added by 15 digits", _spec(added="a" * 15), "writer that added it"),
    *(
        Case(f"dtype {dtype}", _spec(dtype=dtype), "dtype")
        for dtype in ("O", "|O", "V8", "|S4", ">u2", "u2", "<M8[s]", "<f16", "2<u2", "u1,u1", 1)
    ),
    *(
        Case(f"shape {shape}", _spec(shape=shape))
        for shape in ([2**31], [2**31 - 1] * 2, [2**16, 2**16, None], [0], [-1], [True], [1.0], "2")
    ),
    *(
        Case(f"group {group}", _spec(group=group), "group")
        for group in (1, 256, -1, True, None, 0.0)
    ),
    *(
        Case(f"{name} {value!r}", _spec(**{name: value}), name)
        for name, values in _NAMES.items()
        for value in values
    ),
    Case("text of a fixed shape", _spec(value="text"), "text and bytes"),
    Case("nine dimensions", _spec(shape=[1] * 9), "dimensions"),
    Case("five codecs", _spec(codec=[{"id": "zstd"}] * 5), "codecs"),
    Case("codec without id", _spec(codec=[{"level": 1}]), "id"),
    # Codecs are looked up when a feature is read: other features stay readable.
    Case("codec pickle", _codec(id="pickle"), "pickle", SchemaError),
    Case("codec level 10**9", _codec(id="zstd", level=10**9), "zstd", SchemaError),
]

_KEYS = "", ".", "../x", "/x", "x/", "a//b", "a/../b", "a\\b", "a\0", "a\x9b", "é" * 513, 1
_NUMBERS: dict[str, list[Any]] = {
    "ordinal": [-1, 2**53, True],
    "num_frames": [0, 2**31, 5.0],
    "fps": [0, -1.5, True, "30", 10**400],
}
_EPISODES = [
    Case("episodes are no list", _head(episodes={}), "bad episodes"),
    Case("no episode", _head(episodes=[]), "out of order"),
    Case("episode without a chunk", _another(uid="1" * 32), "no chunk"),
    Case("uid twice", _another(), "twice"),
    Case("episode is no object", _head(episodes=[1]), "right keys"),
    Case("episode has another key", _part(extra=1), "right keys"),
    Case("time spans of no timestamp", _part(time_spans={"x": ""}), "not timestamps"),
    Case("time spans are a list", _part(time_spans=[]), "not timestamps"),
    Case("discarded with a length", _part(discarded=True), "discarded episode"),
    Case("discarded is false", _part(discarded=False, num_frames=None), "discarded episode"),
    *(Case(f"episode key {key!r:.20}", _part(key=key), "episode key") for key in _KEYS),
    Case("uid", _part(uid="x" * 32), "uid"),
    *(
        Case(f"{name} {value}", _part(**{name: value}), name)
        for name, values in _NUMBERS.items()
        for value in values
    ),
    Case("2**31 - 1 frames", _part(num_frames=2**31 - 1), "no complete episode"),
    Case("an end that is missing", _part(num_frames=None), "no complete episode"),
    Case("metadata is an object", _part(metadata={}), "metadata"),
    Case("metadata is a list", _part(metadata="[]"), "not a JSON object"),
    Case("metadata is no JSON", _part(metadata="{"), "JSON"),
    Case("metadata is deep", _part(metadata='{"a":' + _DEEP + "}"), "JSON"),
    Case("metadata is long", _part(metadata=" " * (1 << 20) + "{}"), "metadata"),
]

_CHUNKS = [
    Case("chunk of no episode", _chunk(2, "episode", 1), "out of order"),
    Case("chunk of 0 frames", _chunk(0, "num_frames", 0), "number of frames"),
    Case("chunk of 65537 frames", _chunk(0, "num_frames", 65537), "number of frames"),
    Case("last chunk too long", _chunk(2, "num_frames", 2), "beyond the end"),
    Case("chunk too long", _chunk(0, "num_frames", 3), "does not follow"),
    Case("chunk inside another", _chunk(1, "first_frame", 1), "does not follow"),
    Case("chunk twice", _chunk(1, "first_frame", 0), "does not follow"),
    Case("chunk far away", _chunk(2, "first_frame", 2**32 - 2), "beyond the end"),
    Case("first chunk is missing", _record(_without_first), "no complete episode"),
    Case("a reference of no video", _chunk(0, "external", 1), "allows none"),
    Case("chunk not aligned", _chunk(0, "offset", 65), "wrong offset"),
    Case("chunk in the header", _chunk(0, "offset", 0), "wrong offset"),
    Case("chunk after the end", _chunk(2, "offset", 1 << 40), "outside its file"),
    Case("chunk at 2**64 - 64", _chunk(2, "offset", 2**64 - 64), "outside its file"),
    Case("chunks at one place", _chunk(1, "offset", 64), "overlap"),
    Case("chunks out of order", _chunk(1, "offset", 512), "order of their offsets"),
    Case("chunks overlap", _chunk(1, "offset", 128), "overlap"),
    Case("chunk over slice checksums", _chunk(1, "offset", 192), "overlap"),
    Case("raw page of 0 bytes", _chunk(0, "length", 0, 0), "length"),
    Case("raw page too long", _chunk(0, "length", 25, 0), "length"),
    Case("page of 0 bytes", _chunk(0, "length", 0, 1), "length"),
    Case("page of less than its table", _chunk(0, "length", 19, 1), "length"),
    Case("page of 2**32 - 1 bytes", _chunk(2, "length", 2**32 - 1, 1), "outside its file"),
    Case("largest frame of 2**40 bytes", _chunk(0, "largest", 2**40), "impossible"),
    Case("largest frame of half an element", _chunk(0, "largest", 6), "impossible"),
    Case("largest frame of a page of no frames", _record(_no_frame), "impossible"),
    Case("largest frame too small", _chunk(0, "largest", 4), "differs in size"),
    Case("largest frame too large", _chunk(0, "largest", 12), "differs in size"),
    Case("bitmap of no chunk", _gaps((3, 0, 0, 1)), "no chunk"),
    Case("bitmap of no feature", _gaps((0, 2, 0, 1)), "no feature"),
    Case("bitmap of word 1", _gaps((1, 1, 1, 0)), "longer than its chunk"),
    Case("bitmap too long", _gaps((1, 1, 0, 0b110)), "longer than its chunk"),
    Case("bitmap of all frames", _gaps((1, 1, 0, 0b11)), "lacks nothing"),
    Case("bitmaps twice", _gaps((1, 1, 0, 0b10), (1, 1, 0, 0b10)), "out of order"),
    Case("bitmap of no frame", _gaps((1, 1, 0, 0)), "length"),
    Case("bitmap that is missing", _gaps((1, 0, 0, 0b10)), "length"),
]

_HEADER = [
    Case("header of version 2", _record(lambda p: p.header.__setitem__(8, 2)), error=VersionError),
    Case("reserved header bytes", _record(lambda p: p.header.__setitem__(40, 1)), "reserved"),
]

_PAGES = [
    Case("frame decodes to more", _page(lambda p: _blobs(_zstd(1), _zstd(3))), error=CodecError),
    Case("frame decodes to less", _page(lambda p: _blobs(_zstd(1), _zstd(1))), error=CodecError),
    Case("frame is no zstd", _page(lambda p: _blobs(_zstd(1), b"garbage")), error=CodecError),
    Case("frame of 64 MiB", _shaped(2**24), error=CodecError),
    Case("frame of more", _shaped(2**28 + 1), "shape"),
    Case("frame of shape 0", _page(lambda p: _words(p, 3, 0)), error=CodecError),
    Case("first offset", _page(lambda p: _words(p, 0, 12)), "offsets"),
    Case("offsets fall", _page(lambda p: _words(p, 1, 19)), "offsets"),
    Case("offset 2**32 - 1", _page(lambda p: _words(p, 1, 2**32 - 1)), "offsets"),
]

_FILES = [
    Case("text is not UTF-8", _not_utf8, "not UTF-8", error=CodecError),
    Case("edits are a list", _edits(b"[]"), "file of edits"),
    Case("edits are no JSON", _edits(b"{"), "JSON"),
    Case("edits of version 2", _edits(_file_of(version=2)), "bad version"),
    Case("edit of another op", _edit("drop", uids=[]), "an edit"),
    Case("uid of an edit", _edit("delete", uids=[1]), "an edit"),
    Case("key of an edit", _edit("rename", keys={_UID: "../x"}), "episode key"),
    Case("metadata of an edit", _edit("relabel", metadata={_UID: "[]"}), "a JSON object"),
    *(
        Case(f"frames {frames} of an edit", _edit("trim", frames={_UID: frames}), "start and stop")
        for frames in ([1, 1], [-1, 1], [0, 2147483648], [0, True], [0.0, 1], 7)
    ),
    Case("schema of an edit", _edit("features", schema=[{"name": "x"}]), "schema"),
    Case("dictionary of an edit", _edit("texts", dictionaries={"../x": "task"}), "an edit"),
    Case("text feature of an edit", _edit("texts", dictionaries={"x": "../y"}), "an edit"),
    Case("edits of a reset", _edit("reset", edits=["../x.json"], left_out=[]), "bad edits"),
    Case("record files of a reset", _edit("reset", edits=[], left_out=["x"]), "bad left_out"),
    Case("features of an edit", _edit("features", schema=_MANY[:1]), "schemas"),
    Case("edits that are damaged", _edits(_file_of(), 0), "checksum", error=ChecksumError),
    Case("record file twice", _second_file(lambda p: None), "record files with the same id"),
    Case("name of a record file", _second_file(_other_episode, "a b.seqrec"), "name"),
    Case("parts of other keys", _contradict(key="other"), "contradict"),
    Case("schemas differ", _second_file(_other_schema), "schemas"),
    Case("record file is a link", _link, "out of the folder", StorageError),
    *(
        Case(
            f"{name.partition('.')[0]} is a link", partial(_link, name=name), "out of", StorageError
        )
        for name in ("records", "index", "manifest.json")
    ),
    Case("record file is a folder", partial(_replace, make=Path.mkdir), "", StorageError),
    Case("record file is a pipe", partial(_replace, make=os.mkfifo), "", StorageError),
    Case("link at reindex", _linked_reindex, "out of the folder", StorageError),
    Case("record file is gone", lambda r: tiny.record_path(r).unlink(), "", NotFoundError),
]

_COMMITS = [f"{i:032x}" for i in range(101)]
_MANIFEST = [
    Case("manifest is a list", _manifest(lambda v: b'[{\n "a": 1'), "JSON"),
    Case("manifest of another format", _manifest_with(format="x")),
    Case("manifest of version 2", _manifest_with(version=2), error=VersionError),
    Case("manifest of version 1.0", _manifest_with(version=1.0), error=VersionError),
    Case("manifest of version true", _manifest_with(version=True), error=VersionError),
    Case("manifest has another key", _manifest_with(x=1), "right keys"),
    Case("manifest lacks a key", _manifest(lambda v: v.pop("schema")), "right keys"),
    Case("manifest is deep", _manifest(lambda v: b'{\n "a": ' + _DEEP.encode()), "JSON"),
    *(
        Case(f"record path {path}", _entry(path=path), "bad path")
        for path in (
            *(
                "../../etc/x.seqrec",
                "/etc/x.seqrec",
                "records/../x.seqrec",
                "records/a/b.seqrec",
                7,
            ),
            *("records/.x.seqrec", "records/x.txt", "records/x.seqrec\n", "x.seqrec"),
        )
    ),
    *(
        Case(f"record size {size}", _entry(size=size), "bad size")
        for size in (-1, 2**63, 1.5, True, None, 10**100)
    ),
    Case("record size too small", _entry(size=128), "outside its"),
    Case("record file id", _entry(file_id="x"), "bad file_id"),
    Case("record file has another key", _entry(x=1), "right keys"),
    Case("record file is no object", _manifest_with(record_files=[1])),
    Case("no record file", _manifest_with(record_files=[]), "record_files"),
    Case("record file listed twice", _manifest(lambda v: _double(v, "record_files")), "duplicate"),
    Case("10**6 record files", _manifest_with(record_files=[1] * 10**6), "too many"),
    Case("frames miscounted", _manifest_with(num_frames=6), "differs from the manifest"),
    Case("episodes miscounted", _manifest_with(num_episodes=2), "differs from the manifest"),
    Case("2**31 episodes", _manifest_with(num_episodes=2**31), "num_episodes"),
    Case("fingerprint", _manifest_with(fingerprint="x"), "fingerprint"),
    Case("created_by", _manifest_with(created_by="\x1b[2J"), "created_by"),
    Case("next_ordinal 2**60", _manifest_with(next_ordinal=1 << 60)),
    Case("left_out is an object", _manifest_with(left_out={}), "list"),
    Case("uid in left_out", _manifest_with(left_out=[1]), "left_out"),
    Case("splits twice", _manifest_with(splits=["a", "a"]), "duplicate split"),
    Case("split ../x", _manifest_with(splits=["../x"]), "splits"),
    Case("4097 splits", _manifest_with(splits=[f"s{i}" for i in range(4097)]), "splits"),
    Case("dictionary ../x", _manifest_with(dictionaries=[_dictionary("../x")]), "name"),
    Case("dictionary of no feature", _manifest_with(dictionaries=[_dictionary("x", "")]), "text"),
    Case("dictionary twice", _manifest_with(dictionaries=[_dictionary("x")] * 2), "duplicate"),
    Case("no dictionaries", _manifest_with(dictionaries=[]), "dictionaries"),
    Case("dictionaries null", _manifest_with(dictionaries=None), "dictionaries"),
    Case("statistics path", _manifest_with(statistics=_small("records/x.json")), "bad path"),
    Case("inventory path", _manifest_with(inventory=_small("index/x.arrow")), "bad path"),
    Case("inventory null", _manifest_with(inventory=None), "a file in the manifest"),
    Case("edits path", _manifest_with(edits=[_small("x.json")]), "path"),
    Case("two chunk tables", _manifest(lambda v: _double(v["index"], "chunks")), "bad chunks"),
    Case("removed path", _manifest_with(removed=["a"]), "removed"),
    Case("command", _manifest_with(command="\x1b[2J"), "command"),
    Case("commit", _manifest_with(commit="A" * 32), "bad commit"),
    Case("101 earlier commits", _manifest_with(earlier_commits=_COMMITS), "earlier_commits"),
    Case("a commit twice", _manifest(lambda v: v.update(earlier_commits=[v["commit"]])), "commit"),
    Case("superseded path", _manifest_with(superseded=["records/a.seqrec"]), "superseded"),
    Case("one feature less", _manifest(lambda v: v["schema"].pop()), "columns"),
    Case("other dtype", _manifest(lambda v: v["schema"][0].update(dtype="<u4")), "length"),
    Case("index path", _gaps_file(path="../x.arrow"), "bad path"),
    Case("index size", _gaps_file(size=2**62), "wrong length"),
    Case("index checksum", _gaps_file(crc32c="00000000"), "checksum", ChecksumError),
    Case("table is missing", _manifest(lambda v: v["index"].pop("gaps")), "right keys"),
    Case("tables exchanged", _manifest(lambda v: _exchange(v["index"])), "columns"),
]

_INDEX = [
    Case("no Arrow file", _table("gaps", lambda t: b"x" * 100), "Arrow"),
    Case("more than fits", _table("gaps", lambda t: bytes(5 << 20)), "an index file is too large"),
    Case("empty table file", _table("gaps", lambda t: b""), "Arrow"),
    Case("only magic", _table("gaps", lambda t: b"ARROW1\0\0"), "Arrow"),
    Case("a batch before the schema", _table("gaps", _without_schema), "not a schema"),
    Case("two schemas", _table("gaps", _twice_the_schema), "not a record batch"),
    Case("two batches", _table("gaps", lambda t: _arrow(t, 2)), "batch"),
    Case("no batch", _table("gaps", lambda t: _arrow(t, 0)), "batch"),
    Case("lz4 buffers", _table("chunks0", lambda t: _arrow(t, compression="lz4")), "compressed"),
    Case("an exabyte of zstd", _table("chunks0", _bomb), "compressed"),
    Case("column is missing", _table("gaps", lambda t: t.drop_columns(["present"])), "columns"),
    Case("columns may be null", _table("gaps", _nullable), "columns"),
    Case("more gaps than words", _table("gaps", lambda t: t.take([0] * 7)), "more rows"),
    Case("a null", _column("gaps", "present", [None]), "nulls"),
    Case("a null page", _chunks("page_length", [[1, None]] * 3), "nulls"),
    Case("fewer chunks", _table("chunks0", lambda t: t.slice(0, 2)), "does not fit"),
    *(
        Case(f"num_chunks {count}", _column("episodes", "num_chunks", [[count]]), match)
        for count, match in ((0, "num_chunks"), (6, "num_chunks"), (4, "does not fit"))
    ),
    *(
        Case(f"fps {fps}", _column("episodes", "fps", [fps]), "impossible fps")
        for fps in (-1.0, float("nan"), float("inf"))
    ),
    Case("split 0 of 0", _column("episodes", "split", [0]), "an unknown split"),
    *(
        Case(f"{name} {numbers}", _chunks(name, numbers), match)
        for name, numbers, match in (
            ("first_frame", [1, 2, 4], "does not follow"),
            ("first_frame", [0, 3, 4], "does not follow"),
            ("first_frame", [-2, 2, 4], "does not follow"),
            ("first_frame", [-1, 1, 3], "do not end"),
            ("num_frames", [2, 2, 2], "wrong length"),
            ("num_frames", [2, 1, 1], "does not follow"),
            ("num_frames", [0, 2, 1], "impossible number of frames"),
            ("num_frames", [65537, 2, 1], "impossible number of frames"),
        )
    ),
    Case("no episodes", _table("episodes", lambda t: t.slice(0, 0))),
    Case("2**31 - 1 frames in it", _column("episodes", "num_frames", [2**31 - 1]), "do not end"),
    Case("2**31 frames in it", _column("episodes", "num_frames", [2**31]), "impossible num_frames"),
    Case("0 frames in the index", _column("episodes", "num_frames", [0]), "num_frames"),
    *(
        Case(f"index key {key!r:.20}", _column("episodes", "key", [key]), "episode key")
        for key in ("", "../x", "/x", "a\\b", "a\n", "a\x9b", "a" * 1025, "é" * 513)
    ),
    Case("metadata of the index", _column("episodes", "metadata", ["[]"]), "JSON object"),
    Case("file 1 of 1", _chunks("file", [0, 0, 1]), "no record file"),
    Case("offset 2**63", _chunks("offset", [64, 256, 2**63]), "outside its"),
    Case("offset 2**64 - 64", _chunks("offset", [64, 256, 2**64 - 64]), "outside its"),
    Case("offset 0", _chunks("offset", [0, 256, 448]), "outside its"),
    Case("offset 65", _chunks("offset", [65, 256, 448]), "wrong offset"),
    Case("pages of 2**32 - 1 bytes", _chunks("page_length", [[2**32 - 1] * 2] * 3), "outside its"),
    Case("raw page of the index", _chunks("page_length", [[12, 64]] * 3), "length"),
    Case("page checksum", _chunks("page_crc32c", [[0, 0]] * 3), "page", ChecksumError),
    Case("chunks exchanged", _chunks("offset", [256, 64, 448]), "page", ChecksumError),
    Case("largest frame of the index", _chunks("largest_frame", [[8], [16], [24]]), "differs"),
    Case("bitmap of the index", _column("gaps", "chunk", [3]), "no chunk"),
]

CASES = [
    *_FOOTER, *_SCHEMA, *_EPISODES, *_CHUNKS, *_HEADER, *_PAGES, *_FILES, *_MANIFEST, *_INDEX,
]  # fmt: skip
"""All cases."""


def main(folder: Path) -> None:
    good = tiny.write_tiny(folder / "good")
    tiny.read_all(good)  # imports all lazily imported modules
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + (192 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    failures = [failure(case, good, folder / str(n)) for n, case in enumerate(CASES)]
    print(*filter(None, failures), f"{len(CASES)} cases", sep="\n")  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
