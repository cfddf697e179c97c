"""The rows of the table: data, loader, and the row that each is compared with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import seqrecord
from benchmarks.tartanair.generate import generate
from benchmarks.tartanair.throughput.limits import VECTOR, copying, taking
from benchmarks.timing import once
from seqrecord import open_source

__all__ = ["ROWS", "Row", "Streaming", "make_small", "pack"]

CODECS = ("raw", "fast", "balanced")
FEATURES = ("image_left", "depth_left", "flow", "mask", "seg_left")
CLIP_LEN = 16
BATCH_SIZE = 4
MEMORY_LIMIT = "6GiB"
_MIX_BATCHES = 144  # of an epoch: as many as one of the datasets has
_POLICY_BATCH = 256
_VECTORS, _2MIB, _32MIB = 10, 64, 1024  # frames of a clip, clips of a batch

Batches = Iterable[Mapping[str, Any]]


# ---- data


def pack(folder: Path, frames: int, codecs: Sequence[str] = CODECS) -> None:
    """Render a tree and pack it with each codec, unless they are there."""
    tree = once(folder / "tree", lambda root: generate(root, episodes=[frames // 4] * 4))
    for codec in codecs:
        if not (folder / codec / "manifest.json").exists():
            print(f"packing {codec}", file=sys.stderr)
            source = open_source(tree, features=FEATURES, cameras=["left"])
            seqrecord.convert(source, folder / codec, codecs=codec)


def make_small(folder: Path) -> None:
    """20,000 small images with 32 actions, and as many vectors, unless they are there."""
    rng = np.random.default_rng(0)

    def policy() -> dict[str, Any]:
        image = rng.integers(0, 255, (84, 84, 3), np.uint8)
        return {"image": image, "actions": rng.normal(size=32).astype("f4")}

    def vector() -> dict[str, Any]:
        return {"vector": rng.integers(-9999, 9999, VECTOR, np.int16)}

    for name, frame in (("policy", policy), ("vectors", vector)):
        if (folder / name / "manifest.json").exists():
            continue
        with seqrecord.SeqRecordWriter(folder / name, codecs="raw") as writer:
            for number in range(40):
                with writer.episode(f"episode-{number:03d}") as episode:
                    for _ in range(500):
                        episode.append(frame())


# ---- rows


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        make: of the folder, what makes an epoch.
        of: the row that its rate is compared with.
        wanted: at least this share of it.
        is_cold: the files are dropped from the page cache before each epoch.
    """

    make: Callable[[Path], Callable[[], Batches]]
    of: str = ""
    wanted: float | None = None
    is_cold: bool = False


class Streaming:
    """A loader of ours as something that makes an epoch when called."""

    def __init__(self, loader: Any, datasets: Iterable[seqrecord.Dataset]) -> None:
        self._loader, self._datasets = loader, list(datasets)

    def __call__(self) -> Batches:
        batches: Batches = iter(self._loader)
        return batches

    def stats(self) -> dict[str, Any]:
        """Of the last epoch; how much was read and decoded, to what there is in all."""
        stats = self._loader.stats()
        there = sum(
            int(dataset.contents.index.lengths(name).sum(dtype=np.int64))
            for dataset in self._datasets
            for name in dataset.features
        )
        frames = sum(dataset.num_frames for dataset in self._datasets)
        return {
            "bytes_read": stats["bytes_read"],
            "bytes_ratio": stats["bytes_read"] / there,
            "frames_ratio": stats["frames_decoded"] / frames,
            "bottleneck": stats["bottleneck"],
        }


def _pipe(records: str, folder: Path, **options: Any) -> Streaming:
    dataset = seqrecord.open(folder / records)
    arguments = {
        "clip_len": None if "windows" in options else CLIP_LEN,
        "batch_size": BATCH_SIZE,
        "memory_limit": MEMORY_LIMIT,
        **options,
    }
    return Streaming(seqrecord.SeqRecordPipe(dataset, **arguments), [dataset])


def _mix(folder: Path, *, codecs: Iterable[str]) -> Streaming:
    datasets = {codec: seqrecord.open(folder / codec) for codec in codecs}
    sources = {
        codec: seqrecord.SeqRecordIterableDataset(dataset, clip_len=CLIP_LEN)
        for codec, dataset in datasets.items()
    }
    options: dict[str, Any] = {
        "batch_size": BATCH_SIZE,
        "memory_limit": MEMORY_LIMIT,
        "stopping_strategy": _MIX_BATCHES,
    }
    mix = seqrecord.SeqRecordMix(sources, **options)
    return Streaming(mix, datasets.values())


def _streaming(records: str, **options: Any) -> Callable[[Path], Streaming]:
    return partial(_pipe, records, **options)


_SIDE = 224  # of a window
_CROP: dict[str, Any] = {"clip_transform": seqrecord.RandomCrop(_SIDE)}
_IMAGE: dict[str, Any] = {"features": ["image_left"]}
_POLICY: dict[str, Any] = {"batch_size": _POLICY_BATCH}
_WINDOWS: dict[str, Any] = {"windows": {"image": [-1, 0], "actions": range(CLIP_LEN)}, **_POLICY}
_SMALL_BATCH: dict[str, Any] = {"clip_len": _VECTORS, "batch_size": _2MIB}
_LARGE_BATCH: dict[str, Any] = {"clip_len": _VECTORS, "batch_size": _32MIB}

ROWS = {
    "copy": Row(copying("raw", CLIP_LEN, BATCH_SIZE)),
    "raw": Row(_streaming("raw"), "copy"),
    "fast": Row(_streaming("fast"), "copy"),
    "balanced": Row(_streaming("balanced"), "copy"),
    "raw-2GiB": Row(_streaming("raw", memory_limit="2GiB"), "copy"),
    "raw-in-order": Row(_streaming("raw", shuffle=False), "copy"),
    "raw-cold": Row(_streaming("raw"), "copy", is_cold=True),
    "balanced-cold": Row(_streaming("balanced"), "copy", is_cold=True),
    "image": Row(_streaming("raw", **_IMAGE), "copy"),
    "crops-copy": Row(copying("raw", CLIP_LEN, BATCH_SIZE, side=_SIDE), "raw"),
    "crops-read-copy": Row(copying("raw", CLIP_LEN, BATCH_SIZE, side=_SIDE, reads=True), "raw"),
    "crops": Row(_streaming("raw", **_CROP), "raw", wanted=4),
    "crops-balanced": Row(_streaming("balanced", **_CROP), "balanced"),
    "mix": Row(partial(_mix, codecs=("raw", "fast", "balanced")), "balanced"),
    "stride-16-copy": Row(copying("raw", CLIP_LEN, BATCH_SIZE, stride=16)),
    "stride-16": Row(_streaming("raw", stride=16), "stride-16-copy"),
    "stride-16-balanced": Row(_streaming("balanced", stride=16), "stride-16-copy"),
    "sequences": Row(_streaming("raw", stride=16, order="sequences"), "stride-16"),
    "policy-copy": Row(copying("policy", CLIP_LEN, _POLICY_BATCH)),
    "policy": Row(_streaming("policy", **_POLICY), "policy-copy"),
    "policy-windows": Row(_streaming("policy", **_WINDOWS), "policy"),
    "take-2MiB": Row(taking(_VECTORS, _2MIB)),
    "vectors-2MiB": Row(_streaming("vectors", **_SMALL_BATCH), "take-2MiB", wanted=0.5),
    "take-32MiB": Row(taking(_VECTORS, _32MIB)),
    "vectors-32MiB": Row(_streaming("vectors", **_LARGE_BATCH), "take-32MiB", wanted=0.85),
}
