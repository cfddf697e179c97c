"""Kinds of recordings, each with its loaders and the systems of published comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import audio, rgbd
from benchmarks.tartanair.compare.recordings import Recordings
from benchmarks.tartanair.generate import generate as generate_tree
from benchmarks.tartanair.loaders import arrays, records, streams
from benchmarks.tartanair.loaders.base import BASELINE, USUAL, Loader, Settings

__all__ = ["AUDIO", "RGBD", "TARTANAIR", "WORKLOADS", "System", "Workload"]


@dataclass(frozen=True)
class System:
    """A system that has a row of its own in a table: a loader with changed settings."""

    label: str
    loader: str
    note: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One kind of recordings.

    `generate(root, episodes)` writes recordings of these numbers of frames, and
    `open(root, features)` finds them again. Rows have the settings `base` unless they say
    otherwise.
    """

    name: str
    generate: Callable[[Path, Sequence[int]], object]
    open: Callable[[Path, Sequence[str]], Recordings]
    rows: Sequence[Loader]
    base: Settings
    episodes: Sequence[int]
    systems: Sequence[System]

    @property
    def loaders(self) -> dict[str, Loader]:
        """By name: the baseline and ours first."""
        ordered = sorted(self.rows, key=lambda row: (row.name != BASELINE, "seqr" not in row.name))
        return {loader.name: loader for loader in ordered}


def _generate_tree(root: Path, episodes: Sequence[int]) -> None:
    generate_tree(root, episodes=episodes)


_RGB = {"features": ("image_left",)}
TARTANAIR = Workload(
    name="tartanair",
    generate=_generate_tree,
    open=Recordings.open,
    rows=[*records.LOADERS, *arrays.LOADERS, *streams.LOADERS],
    base=USUAL,
    episodes=[52] * 4,  # 36 batches
    systems=[
        System("mount", "seqrecord", "rclone's FUSE mount of Azurite", {"storage": "mount"}),
        System("adlfs", "seqrecord", "Azurite", {"storage": "adlfs"}),
        System("our client", "seqrecord", "Azurite", {"storage": "azurite"}),
        System("blobfile", "seqrecord", "Azurite", {"storage": "blobfile"}),
        System("video, RGB alone", "video", "H.264 by PyAV, lossy", _RGB),
        System("seqrecord, RGB alone", "seqrecord", "lossless, for comparison", _RGB),
    ],
)
AUDIO = Workload(
    name="audio",
    generate=audio.generate,
    open=audio.AudioRecordings.open,
    rows=audio.LOADERS,
    base=Settings(features=(audio.FEATURE,), clip_len=1, batch_size=32, training="autoencoder"),
    episodes=[100] * 64,
    systems=[
        System("DataLoader, torchaudio", "torchaudio"),
        System("DataLoader, soundfile", "soundfile", "decodes WAV as torchaudio's backend did"),
        System("DataLoader, Python's wave", "original"),
        System("DALI, WAV files", "dali-wav"),
        System("DALI, numbered NumPy files", "dali-files"),
        System("DALI, external source", "dali-source", "the same, read by Python"),
        System("by hand", "by-hand", "memmap, reused batches"),
        System("NumPy memmap", "memmap"),
        System("TensorDict memmap", "tensordict"),
        System("WebDataset, NumPy files", "webdataset", "tars of 100 samples"),
        System("WebDataset, read by DALI", "dali-webdataset", "the same tars"),
        System("HDF5", "hdf5"),
        System(
            "S3-compatible store, WebDataset",
            "webdataset",
            "the same tars by curl from moto, in AIStore's place",
            {"storage": "s3"},
        ),
        System("S3-compatible store, seqrecord", "seqrecord", "from moto", {"storage": "s3"}),
        System("seqrecord", "seqrecord"),
        System("seqrecord-map", "seqrecord-map"),
    ],
)
RGBD = Workload(
    name="rgbd",
    generate=rgbd.generate,
    open=rgbd.RgbdRecordings.open,
    rows=rgbd.LOADERS,
    base=Settings(features=(rgbd.IMAGE, rgbd.DEPTH), training="unet"),
    episodes=[60] * 4,  # 45 batches
    systems=[
        System("original files", "original"),
        System("by hand", "by-hand", "memmap of resized frames, reused batches"),
        System("LRU cache", "lru-cache", f"of {rgbd.CACHED_FRAMES} resized frames"),
        System("memmap", "memmap", "raw frames"),
        System("LMDB", "lmdb", "raw frames"),
        System("WebDataset", "webdataset", "JPEG and PNG, each frame resized once"),
        System("seqrecord", "seqrecord", "raw frames, each resized once"),
        System("seqrecord, encoded", "seqrecord-encoded", "JPEG and PNG, each frame resized once"),
        System("seqrecord, per clip", "seqrecord-per-clip", "raw frames, resized for every clip"),
    ],
)
WORKLOADS = {workload.name: workload for workload in (TARTANAIR, AUDIO, RGBD)}
