"""A dataset of texts, bytes and arrays of varying shapes, and what clips of it must hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seqrecord import FeatureSpec, Schema, SeqRecordWriter

__all__ = ["LENGTHS", "METADATA", "check_clip", "clips_in", "frame", "write_values"]

LENGTHS = (17, 5, 2, 12)
"""Frames of the episodes `e/0`, `e/1`, …"""

METADATA: Sequence[Mapping[str, Any]] = (
    {"task": "stack", "rate": 3, "tags": ["a", {"b": 1}]},
    {"task": "pour", "rate": 2.5},
    {"task": "wait", "tags": []},
    {"task": None, "rate": True},
)

U1, F4 = np.dtype("u1"), np.dtype("<f4")
SCHEMA = Schema(
    [
        FeatureSpec("image", U1, (4, 5, 3), kind="image"),
        FeatureSpec("text", U1, (None,), group=1, value="text"),
        FeatureSpec("imu", F4, (None, 6), group=1),
        FeatureSpec("blob", U1, (None,), group=1, value="bytes"),
        FeatureSpec("grid", np.dtype("<u2"), (None, 2, None), group=1),
        FeatureSpec("id", np.dtype("<i8"), (2,), group=1),
    ]
)


def frame(episode: int, number: int) -> dict[str, Any]:
    """What is stored."""
    rng = np.random.default_rng([episode, number])
    rows, columns = 1 + number % 3, (episode + number) % 4
    return {
        "image": rng.integers(0, 256, (4, 5, 3), np.uint8),
        "text": "" if number % 7 == 3 else f"e{episode} Ürümqi 乌鲁木齐 🙂 " * (1 + number % 3),
        "imu": rng.normal(size=((episode + number) % 5, 6)).astype(F4),
        "blob": rng.bytes((3 * number) % 8),
        "grid": rng.integers(1, 60_000, (rows, 2, columns), np.uint16),
        "id": np.array([episode, number]),
    }


def write_values(path: Path, **options: Any) -> Path:
    """Write the dataset, in chunks of 4 frames and several record files."""
    with SeqRecordWriter(
        path, schema=SCHEMA, chunk_frames=4, record_bytes=4000, **options
    ) as writer:
        for number, length in enumerate(LENGTHS):
            with writer.episode(f"e/{number}", metadata=dict(METADATA[number])) as episode:
                for i in range(length):
                    episode.append(frame(number, i))
    return path


def check_clip(
    clip: Mapping[str, Any], length: int, forms: Mapping[str, Any], *, dilation: int = 1
) -> tuple[str, int]:
    """Assert that a clip's features are those of its frames; `forms` as of `ragged`."""
    key, start = clip["episode"], clip["start"]
    frames = [frame(int(key[2:]), start + i * dilation) for i in range(length)]
    for name in SCHEMA:
        if name not in clip:
            continue
        got, expected = clip[name], [item[name] for item in frames]
        if name in ("text", "blob"):
            assert got == expected
        elif name in ("image", "id"):
            np.testing.assert_array_equal(got.cpu().numpy(), np.stack(expected))
        elif (form := forms.get(name, "list")) == "list":
            assert [tensor.cpu().numpy().tolist() for tensor in got] == [
                e.tolist() for e in expected
            ]
            assert all(tensor.cpu().numpy().dtype == expected[0].dtype for tensor in got)
        elif form == "nested":
            assert got.is_nested
            assert [part.tolist() for part in got.unbind()] == [e.tolist() for e in expected]
        else:
            _check_padded(got, clip[f"{name}_mask"], expected, form)
    return key, start


def _check_padded(
    got: torch.Tensor, mask: torch.Tensor, expected: list[Any], sizes: tuple[int, ...]
) -> None:
    varies = (0,) if expected[0].ndim == 2 else (0, 2)
    assert got.shape[0] == mask.shape[0] == len(expected)
    assert mask.dtype == torch.bool
    assert tuple(mask.shape[1:]) == sizes == tuple(got.shape[1 + axis] for axis in varies)
    for array, true, want in zip(got.numpy(), mask.numpy(), expected, strict=True):
        inside = tuple(slice(want.shape[axis]) for axis in varies)
        np.testing.assert_array_equal(array[tuple(map(slice, want.shape))], want)
        assert np.count_nonzero(array) == np.count_nonzero(want), "zeros behind the frame"
        assert true[inside].all()
        assert true.sum() == np.prod([want.shape[axis] for axis in varies])


def clips_in(
    batch: Mapping[str, Any], length: int, nested: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The clips of a batch."""
    count = len(batch["episode"])
    clips: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, column in batch.items():
        if name in nested:
            parts = column.unbind()
            assert len(parts) == count * length
            for i, clip in enumerate(clips):
                mine = parts[i * length : (i + 1) * length]
                clip[name] = torch.nested.as_nested_tensor(list(mine), layout=torch.jagged)
            continue
        assert len(column) == count
        for i, clip in enumerate(clips):
            clip[name] = int(column[i]) if name == "start" else column[i]
    return clips
