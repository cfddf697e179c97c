"""What is measured: rendered frames by codec, small images with actions, vectors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import seqrecord
from benchmarks.tartanair.generate import generate
from seqrecord import open_source

__all__ = ["CODECS", "FEATURES", "VECTOR", "make_small", "prepare"]

CODECS = ("raw", "fast", "balanced", "small")
FEATURES = ("image_left", "depth_left", "flow", "mask", "seg_left")
VECTOR = 1600  # int16, as 0.1 s of sound


def prepare(folder: Path, frames: int, codecs: Sequence[str] = CODECS) -> None:
    """Render and pack what is not there yet."""
    tree = folder / "tree"
    if not tree.exists():
        print("rendering", file=sys.stderr)
        generate(tree, episodes=[frames // 4] * 4)
    for codec in codecs:
        if not (folder / codec / "manifest.json").exists():
            print(f"packing {codec}", file=sys.stderr)
            source = open_source(tree, features=FEATURES, cameras=["left"])
            seqrecord.convert(source, folder / codec, codecs=codec)


def make_small(folder: Path) -> None:
    """20,000 small images with 32 actions, and as many vectors, where they are not there yet."""
    rng = np.random.default_rng(0)
    _write(
        folder / "policy",
        lambda: {
            "image": rng.integers(0, 255, (84, 84, 3), np.uint8),
            "actions": rng.normal(size=32).astype("f4"),
        },
    )
    _write(folder / "vectors", lambda: {"vector": rng.integers(-9999, 9999, VECTOR, np.int16)})


def _write(root: Path, frame: Callable[[], dict[str, Any]]) -> None:
    if (root / "manifest.json").exists():
        return
    with seqrecord.SeqRecordWriter(root, codecs="raw") as writer:
        for number in range(40):
            with writer.episode(f"episode-{number:03d}") as episode:
                for _ in range(500):
                    episode.append(frame())
