"""Manifests and indexes of large datasets, without their record files or with few."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seqrecord import FeatureSpec, Schema
from seqrecord.store.checksum import crc32c
from seqrecord.store.format.index import NO_SPLIT, GroupIndex, Index
from seqrecord.store.format.manifest import (
    IndexFile,
    Manifest,
    RecordFile,
    put_manifest,
    read_tagged,
)
from seqrecord.store.format.pages import ALIGNMENT, chunk_bytes
from seqrecord.store.format.rows import GAP_ROW
from seqrecord.store.storage.local import LocalStorage
from tests.kit.tiny import loaded

_ZSTD = ({"id": "zstd", "level": 1},)
_SCHEMA = Schema(
    [
        FeatureSpec("image_left", np.dtype("u1"), (480, 640, 3), _ZSTD),
        FeatureSpec("depth_left", np.dtype("<f4"), (480, 640), _ZSTD),
        FeatureSpec("flow", np.dtype("<f4"), (480, 640, 2), _ZSTD),
        FeatureSpec("mask", np.dtype("u1"), (480, 640), _ZSTD),
        FeatureSpec("pose", np.dtype("<f4"), (7,)),
    ]
)
_PAGE_BYTES = (300_000, 40_000, 700_000, 2_000)  # minimum per chunk; the maximum is twice as much
_RECORD_BYTES = 1 << 30


def write_big_index(
    root: Path, *, episodes: int, frames: int, chunk_frames: int, seed: int = 0
) -> Manifest:
    """Episodes of `frames` frames and five features; the last frame has no flow and no mask."""
    rng = np.random.default_rng(seed)
    chunks = -(-frames // chunk_frames)
    in_chunk = np.full((episodes, chunks), chunk_frames, np.int64)
    in_chunk[:, -1] = frames - (chunks - 1) * chunk_frames
    lengths = np.empty((episodes * chunks, len(_SCHEMA)), np.uint32)
    for column, least in enumerate(_PAGE_BYTES):
        lengths[:, column] = rng.integers(least, 2 * least, len(lengths))
    lengths[:, -1] = in_chunk.reshape(-1) * _SCHEMA["pose"].nbytes
    last = np.arange(episodes) * chunks + chunks - 1
    present = (1 << (int(in_chunk[0, -1]) - 1)) - 1
    if not present:
        lengths[last, 2:4] = 0
    gaps = np.array([(row, column, 0, present) for row in last for column in (2, 3)], GAP_ROW)
    size: npt.NDArray[np.int64] = -(-chunk_bytes(lengths, _SCHEMA) // ALIGNMENT) * ALIGNMENT
    file = (np.cumsum(size) // _RECORD_BYTES).astype(np.uint32)
    begin = (np.cumsum(size) - size)[np.searchsorted(file, np.arange(file[-1] + 1))]
    offset = 64 + np.cumsum(size) - size - begin[file]
    ends = np.zeros(len(begin), np.int64)
    np.maximum.at(ends, file, offset + size)
    group = GroupIndex(
        schema=_SCHEMA,
        features=np.arange(len(_SCHEMA)),
        num_chunks=np.full(episodes, chunks, np.int64),
        first_frame=np.tile(np.arange(chunks, dtype=np.int32) * np.int32(chunk_frames), episodes),
        num_frames=in_chunk.reshape(-1).astype(np.uint32),
        file=file,
        offset=offset.astype(np.uint64),
        page_length=lengths,
        page_crc32c=rng.integers(0, 2**32, lengths.shape, dtype=np.uint32),
        page_digest=rng.integers(0, 256, (*lengths.shape, 16), dtype=np.uint8),
        largest_frame=np.empty((len(lengths), 0), np.uint32),
        external=np.zeros(len(lengths), np.uint32),
        gaps=gaps,
    )
    index = Index(
        schema=_SCHEMA,
        keys=pa.array([f"env{i // 100}/Easy/P{i:06}" for i in range(episodes)], pa.string()),
        uids=rng.integers(0, 256, (episodes, 16), np.uint8),
        metadata=pa.array(['{"difficulty":"Easy"}'] * episodes, pa.string()),
        num_frames=np.full(episodes, frames, np.int64),
        fps=np.full(episodes, 30.0),
        split=np.full(episodes, NO_SPLIT, np.uint16),
        groups=(group,),
    )
    manifest = Manifest(
        schema=_SCHEMA,
        record_files=tuple(
            RecordFile(f"records/{i:05}-{i:08x}.seqrec", int(end), f"{i:032x}")
            for i, end in enumerate(ends)
        ),
        index=put_tables(root, index),
        num_episodes=episodes,
        num_frames=episodes * frames,
        fingerprint="0" * 64,
        created_by="test",
    )
    (root / "manifest.json").write_bytes(manifest.encode())
    return manifest


def repeat_episodes(root: Path, count: int) -> None:
    """Let the index have `count` episodes: those of the dataset in turn, without metadata.

    Their keys are numbers of eight digits. The dataset has equal episodes of one chunk each.
    """
    storage = LocalStorage(root)
    manifest, old = loaded(root)
    _, tag = read_tagged(storage)
    rows = np.arange(count) % len(old.keys)
    [group] = old.groups
    columns = [f.name for f in fields(group) if f.name not in ("schema", "features", "gaps")]
    index = Index(
        schema=old.schema,
        keys=pc.utf8_lpad(pa.array(np.arange(count)).cast(pa.string()), 8, "0"),
        uids=np.arange(2 * count).view(np.uint8).reshape(-1, 16),
        metadata=pa.repeat("{}", count),
        num_frames=old.num_frames[rows],
        fps=old.fps[rows],
        split=old.split[rows],
        groups=(replace(group, **{name: getattr(group, name)[rows] for name in columns}),),
    )
    # Opening a dataset of so few bytes with so many chunks would fail.
    files = (*manifest.record_files, RecordFile("records/absent.seqrec", 1 << 40, "f" * 32))
    counts: dict[str, Any] = {"num_episodes": count, "num_frames": int(index.num_frames.sum())}
    made = replace(manifest, record_files=files, index=put_tables(root, index), **counts)
    put_manifest(storage, made, expected=tag)


def put_tables(root: Path, index: Index) -> dict[str, IndexFile]:
    """Write the tables of an index; returns their manifest entries."""
    (root / "index").mkdir(parents=True, exist_ok=True)
    tables = {}
    for name, data in index.encode().items():
        path = f"index/abcdef-{name}.arrow"
        (root / path).write_bytes(data)
        tables[name] = IndexFile(path, data.size, f"{crc32c(memoryview(data)):08x}")
    return tables
