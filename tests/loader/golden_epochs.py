"""The golden epochs: `tests/golden/epochs_v2.json` has the batches of loaders of version 2.

`python -m tests.loader.golden_epochs OUT.json` makes it. After a release, never make it again:
another order for the same arguments breaks every run resumed by a later version.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from seqrecord import Budget, RandomCrop, SeqRecordMix, SeqRecordPipe
from seqrecord.samples import dilate, every, one_per_episode, repeat_by, reverse
from tests.kit.datasets import columns, write_dataset

__all__ = ["CASES", "GOLDEN", "batch_digests", "write_records"]

GOLDEN = Path(__file__).parents[1] / "golden" / "epochs_v2.json"
LENGTHS = (5, 160, 23, 9, 64, 40, 131, 17, 3, 88, 52, 7)


def write_records(folder: Path) -> Path:
    """A dataset of episodes of 3 to 160 frames, in chunks of 8."""
    path, rng = folder / "records", np.random.default_rng(7)
    episodes = {
        f"e{number}": columns(
            id=np.arange(length, dtype=np.int64) + 1000 * number,
            image=rng.integers(0, 256, (length, 8, 10), np.uint8),
        )
        for number, length in enumerate(LENGTHS)
    }
    write_dataset(path, episodes, codecs="raw", chunk_frames=8)
    return path


def _lists(step: int) -> dict[str, Any]:
    """Lists of 1 to 12 frames, `step` frames apart."""
    rows = [
        (number, [*range(start, min(start + step * (1 + (start + number) % 12), length), step)])
        for number, length in enumerate(LENGTHS)
        for start in range(0, length, 5)
    ]
    return {"episode": [f"e{number}" for number, _ in rows], "frames": [f for _, f in rows]}


def _starts(stride: int, repeat: int | None = None) -> dict[str, Any]:
    """Every `stride`th start of clips of up to 12 frames."""
    rows = [(n, s) for n, length in enumerate(LENGTHS) for s in range(0, length - 12, stride)]
    tokens = [1 + 7 * place % 30 for place in range(len(rows))]
    names, starts = zip(*((f"e{number}", start) for number, start in rows), strict=True)
    table = {"episode": [*names], "start": [*starts], "tokens": tokens}
    return table if repeat is None else table | {"repeat": [repeat] * len(rows)}


CASES: Mapping[str, dict[str, Any]] = {
    "clips": {"clip_len": 4, "batch_size": 8},
    "files in order": {"clip_len": 4, "batch_size": 8, "shuffle": False, "last_batch": "keep"},
    "long clips, large batches": {"clip_len": 16, "batch_size": 32, "seed": 1},
    "clips apart": {"clip_len": 3, "stride": 5, "batch_size": 4, "last_batch": "drop"},
    "single clips": {"clip_len": 2, "stride": 3, "seed": 2},
    "a rank of three": {"clip_len": 4, "batch_size": 8, "rank": (1, 3)},
    "a rank of eight": {"clip_len": 8, "batch_size": 4, "rank": (6, 8), "seed": 4},
    "little memory": {"clip_len": 8, "batch_size": 4, "memory_limit": "24KB"},
    "windows": {"windows": {"id": (-3, 0, 5)}, "pad": "edge", "batch_size": 8},
    "dilated": {"clip_len": 3, "batch_size": 8, "samples": dilate(1, 2, 3)},
    "one of each episode": {"clip_len": 3, "batch_size": 2, "samples": one_per_episode()},
    "rotating starts": {"clip_len": 3, "batch_size": 8, "samples": every(4, rotate=True)},
    "repeated": {"clip_len": 3, "batch_size": 8, "samples": _starts(5, repeat=3)},
    "repeated, a rank of two": {
        "clip_len": 3,
        "batch_size": 8,
        "samples": _starts(3, repeat=2),
        "rank": (1, 2),
    },
    "repeated by a column": {
        "clip_len": 3,
        "batch_size": 8,
        "samples": [_starts(5), repeat_by("tokens"), dilate(1, 2, 3), reverse(0.5)],
    },
    "lists": {"samples": _lists(3), "batch_size": 6, "ragged": "pad"},
    "packed lists": {"samples": _lists(2), "batch_size": Budget(40, "frames")},
    "padded lists": {
        "samples": _lists(1),
        "batch_size": Budget(40, "frames", padded=True),
        "rank": (0, 2),
    },
    "packed lists, small batches": {"samples": _lists(1), "batch_size": Budget(12, "frames")},
    "padded lists, small batches": {
        "samples": _lists(4),
        "batch_size": Budget(12, "frames", padded=True),
        "rank": (1, 2),
    },
    "tokens, little memory": {
        "windows": {"id": (0, 4, 8)},
        "samples": _starts(4),
        "batch_size": Budget(60, "tokens"),
        "memory_limit": "24KB",
    },
    "repeated, a rank of five": {
        "clip_len": 2,
        "batch_size": 2,
        "samples": _starts(1, repeat=4),
        "rank": (3, 5),
        "memory_limit": "24KB",
    },
    "tokens": {"clip_len": 4, "samples": _starts(2), "batch_size": Budget(90, "tokens")},
    "tokens, apart": {
        "windows": {"id": (0, 4, 8)},
        "samples": _starts(4),
        "batch_size": Budget(60, "tokens"),
        "rank": (2, 3),
    },
    "sequences": {"clip_len": 4, "batch_size": 3, "order": "sequences", "last_batch": "keep"},
}
"""Arguments of loaders by name. All have the feature `id`, seed 3 by default, and NumPy batches."""


def _loaders(path: Path) -> Iterator[tuple[str, Any]]:
    for name, options in CASES.items():
        features = {} if "windows" in options else {"features": ["id"]}
        yield name, SeqRecordPipe(path, **{"seed": 3, "output": "numpy", **features, **options})
    crops: Any = {"features": ["image"], "clip_transform": RandomCrop((4, 4)), "clip_len": 2}
    repeats: Any = {"samples": _starts(7, repeat=2), "batch_size": 8, "output": "numpy"}
    yield "crops of repeated clips", SeqRecordPipe(path, **crops, **repeats)
    sources = {
        "long": SeqRecordPipe(path, clip_len=4, features=["id"]),
        "fewer": SeqRecordPipe(path, clip_len=4, features=["id"], samples=_starts(3, repeat=2)),
    }
    yield "a mix", SeqRecordMix(sources, batch_size=8, seed=9, output="numpy")


def batch_digests(path: Path) -> dict[str, list[list[str]]]:
    """Digests of all batches of two epochs of each loader: of its feature's bytes, in order."""
    epochs = {}
    for name, loader in _loaders(path):
        epochs[name] = [[_digest(batch) for batch in loader] for _ in range(2)]
    return epochs


def _digest(batch: Mapping[str, Any]) -> str:
    values = batch["image"] if "image" in batch else batch["id"]
    parts = values if isinstance(values, list) else [values]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(str(part.shape).encode())
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()[:8]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        text = json.dumps(batch_digests(write_records(Path(folder))), indent=0)
    Path(sys.argv[1]).write_text(text + "\n", "utf-8")
