"""A dataset of one record file below 1.5 KB, and tools to change its parts and their checksums.

Nothing here is validated: the tests need invalid files with correct checksums.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import seqrecord
from seqrecord import FeatureSpec, Schema
from seqrecord.store.checksum import crc32c
from seqrecord.store.format.footer import TAIL_BYTES, Footer, parse_footer, parse_tail
from seqrecord.store.format.index import Index
from seqrecord.store.format.manifest import Manifest
from seqrecord.store.format.pages import page_digest, slice_table
from seqrecord.store.format.rows import GAP_ROW, chunk_row, features_of, present_frames
from tests.kit.datasets import write_dataset

Frames = dict[str, list[dict[str, Any]]]

KEY = "env/P0"
TINY = Schema(
    [
        FeatureSpec("raw", np.dtype("<u2"), (2, 3)),
        FeatureSpec("blob", np.dtype("<f4"), (None,), ({"id": "zstd", "level": 1},)),
    ]
)


def tiny_frames() -> list[dict[str, npt.NDArray[Any]]]:
    """Five frames; frame 2 has no `blob`."""
    frames: list[dict[str, npt.NDArray[Any]]] = []
    for i in range(5):
        frame: dict[str, npt.NDArray[Any]] = {"raw": np.arange(6, dtype="<u2").reshape(2, 3) + i}
        if i != 2:
            frame["blob"] = np.full(i + 1, -0.0 if i == 3 else i, "<f4")
        frames.append(frame)
    return frames


def write_tiny(root: Path, *, max_file_size: int = 1 << 20) -> Path:
    """Write the dataset: one episode in chunks of two frames. A small limit gives a file each."""
    codecs = {name: list(spec.codec) for name, spec in TINY.items()}
    write_dataset(
        root,
        {KEY: tiny_frames()},
        metadata={KEY: {"place": "Zürich"}},
        schema=TINY,
        features={"raw": {"group": 0}},  # the other feature joins the same group
        codecs=codecs,
        chunk_frames=2,
        max_file_size=max_file_size,
    )
    return root


def copy_dataset(source: Path, target: Path) -> Path:
    """Copy the format's files, with the same names."""
    for file in (
        *source.glob("*.json"),
        *source.glob("*/*.arrow"),
        *source.glob("*/*.seqrec"),
        *source.glob("edits/*.json"),
        *source.glob("externals/*.json"),
        *source.glob("original/*"),
    ):
        copy = target / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    for dictionary in source.glob("dictionaries/*"):
        copy_dataset(dictionary, target / dictionary.relative_to(source))
    return target


def record_path(root: Path) -> Path:
    """The first record file."""
    return min((root / "records").glob("*.seqrec"))


def loaded(root: Any, **options: Any) -> tuple[Manifest, Index]:
    """Manifest and index of a dataset; `options` are passed to `seqrecord.open`."""
    with seqrecord.open(root, **options) as dataset:
        return dataset.contents.manifest, dataset.contents.index


def footers_of(root: Path) -> dict[str, Footer]:
    """The footers of all finished record files, by path."""
    found = {}
    for path in sorted((root / "records").glob("*.seqrec")):
        data = path.read_bytes()
        start, _ = parse_tail(data[-TAIL_BYTES:], len(data))
        found[f"records/{path.name}"] = parse_footer(data[start:], start)
    return found


def read_all(location: Any, **options: Any) -> Frames:
    """Every frame of every episode by single reads; `options` are passed to `seqrecord.open`."""
    with seqrecord.open(location, **options) as dataset:
        frames: Frames = {}
        for key, episode in dataset.episodes.items():
            assert isinstance(episode.metadata, dict)
            frames[key] = [episode[i] for i in range(len(episode))]
        return frames


def same_frames(a: Frames, b: Frames) -> bool:
    """Whether both are equal to the last bit."""

    def bits(frames: Frames) -> list[Any]:
        return [
            (key, i, name, array.dtype.str, array.shape, array.tobytes())
            if isinstance(array, np.ndarray)
            else (key, i, name, array)  # text or bytes
            for key, episode in frames.items()
            for i, frame in enumerate(episode)
            for name, array in frame.items()
        ]

    return bits(a) == bits(b)


def check_frames(frames: Frames, expected: Frames) -> None:
    """Assert that both have the same episodes in order, and frames of equal values and gaps.

    Unlike in `same_frames`, dtypes may differ, and the error names the place.
    """
    assert [*frames] == [*expected]
    for key, episode in expected.items():
        for number, (frame, values) in enumerate(zip(frames[key], episode, strict=True)):
            assert {*frame} == {*values}, (key, number)
            for name, value in values.items():
                np.testing.assert_array_equal(frame[name], value, err_msg=f"{key} {number} {name}")


def merged_frames(*parts: Frames) -> Frames:
    """Frames of the same episodes, with the features of all parts."""
    return {
        key: [
            {name: value for frame in frames for name, value in frame.items()}
            for frames in zip(*(part[key] for part in parts), strict=True)
        ]
        for key in parts[0]
    }


@dataclass
class RecordParts:
    """The parts of a record file; `joined` returns the file with correct checksums.

    `text` replaces the JSON of `head`, `json_length` the length stored before it, and `length` the
    footer's length in the tail.
    """

    header: bytearray  # without its checksum
    pages: bytearray  # everything between header and footer
    head: Any
    groups: list[npt.NDArray[Any]]  # chunk rows
    gaps: npt.NDArray[Any]
    version: int = 1
    text: bytes | None = None
    json_length: int | None = None
    length: int | None = None

    @property
    def chunks(self) -> npt.NDArray[Any]:
        """The chunk rows of the first group."""
        return self.groups[0]

    @chunks.setter
    def chunks(self, rows: npt.NDArray[Any]) -> None:
        self.groups[0] = rows

    def joined(self) -> bytes:
        text = self.text
        if text is None:
            text = json.dumps(self.head, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 4) % 8)
        size = len(text) if self.json_length is None else self.json_length
        rows = b"".join(array.tobytes() for array in (*self.groups, self.gaps))
        body = struct.pack("<I", size) + text + rows
        length = struct.pack("<Q", len(body) if self.length is None else self.length)
        header = bytes(self.header) + struct.pack("<I", crc32c(self.header))
        tail = length + struct.pack("<II", crc32c(body, length), self.version) + header[:8]
        return header + bytes(self.pages) + body + tail

    def sign_pages(self) -> None:
        """Recompute the checksums and digests of all pages, and the checksums of slices."""
        columns = zip(self.groups, self.schema.groups, features_of(self.schema), strict=True)
        for rows, group, features in columns:
            for number, chunk in enumerate(rows):
                at, pages, frames = int(chunk["offset"]) - 64, [], int(chunk["num_frames"])
                for page, feature in zip(chunk["pages"], features.tolist(), strict=True):
                    length = int(page["length"])
                    pages.append(bytes(self.pages[at : at + length]))
                    page["crc32c"] = crc32c(pages[-1])
                    some = (self.gaps["chunk"] == number) & (self.gaps["feature"] == feature)
                    present = present_frames(self.gaps[some], frames)
                    digest = page_digest(pages[-1], frames, present)
                    page["digest"] = np.frombuffer(digest, np.uint8)
                    at += -(-length // 64) * 64
                table = slice_table(group, pages)
                self.pages[at : at + len(table)] = table

    @property
    def schema(self) -> Schema:
        return Schema.from_json(self.head["schema"])


def split_record(data: bytes) -> RecordParts:
    """Split a record file into its parts."""
    length, _, version = struct.unpack_from("<QII", data, len(data) - 24)
    start = len(data) - 24 - length
    (size,) = struct.unpack_from("<I", data, start)
    head = json.loads(data[start + 4 : start + 4 + size])
    at = start + 4 + size
    groups = []
    for group, count in zip(
        Schema.from_json(head["schema"]).groups, head["num_chunks"], strict=True
    ):
        groups.append(
            np.frombuffer(data, chunk_row(len(group), len(group.variable)), count, at).copy()
        )
        at += groups[-1].nbytes
    gaps = np.frombuffer(data, GAP_ROW, head["num_gaps"], at).copy()
    return RecordParts(bytearray(data[:60]), bytearray(data[64:start]), head, groups, gaps, version)


def change_record(root: Path, change: Callable[[RecordParts], object]) -> None:
    """Change the first record file; its checksums stay correct."""
    path = record_path(root)
    parts = split_record(path.read_bytes())
    change(parts)
    path.write_bytes(parts.joined())


def change_manifest(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest; its checksum stays correct. `change` may return another text."""
    path = root / "manifest.json"
    value = json.loads(path.read_bytes())
    del value["crc32c"]
    text = change(value)
    if not isinstance(text, bytes):
        text = json.dumps(value, indent=1).removesuffix("\n}").encode()
    path.write_bytes(sign_manifest(text))


def sign_manifest(text: bytes) -> bytes:
    """A manifest's text with a correct checksum; the given text lacks only this last key."""
    return text + b',\n "crc32c": "%08x"\n}\n' % crc32c(text)


def change_table(root: Path, table: str, change: Callable[[pa.Table], pa.Table | bytes]) -> None:
    """Change a table of the index; the checksums of table and manifest stay correct."""
    manifest = json.loads((root / "manifest.json").read_bytes())
    with pa.ipc.open_file((root / index_entry(manifest, table)["path"]).read_bytes()) as reader:
        changed = change(reader.read_all())
    if not isinstance(changed, bytes):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, changed.schema) as writer:
            for batch in changed.to_batches():
                writer.write_batch(batch)
        changed = sink.getvalue().to_pybytes()
    replace_table(root, table, changed)


def replace_table(root: Path, table: str, data: bytes) -> None:
    """Replace a table of the index by `data`."""
    manifest = json.loads((root / "manifest.json").read_bytes())
    (root / index_entry(manifest, table)["path"]).write_bytes(data)
    entry = {"size": len(data), "crc32c": f"{crc32c(data):08x}"}
    change_manifest(root, lambda value: index_entry(value, table).update(entry))


def index_entry(manifest: dict[str, Any], table: str) -> dict[str, Any]:
    """Manifest entry of a table of the index; "chunks0" belongs to the first group."""
    index = manifest["index"]
    if table.startswith("chunks"):
        entry: dict[str, Any] = index["chunks"][int(table.removeprefix("chunks"))]
        return entry
    found: dict[str, Any] = index[table]
    return found
