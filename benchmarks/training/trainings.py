"""The four trainings: their samples, and their data in each format."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

import seqrecord
from benchmarks.lerobot.data import dataset_at
from benchmarks.tartanair.generate import generate
from benchmarks.tartanair.loaders.streams import npy
from benchmarks.timing import once
from benchmarks.training import networks
from seqrecord import open_source

__all__ = [
    "ACTIONS",
    "SHARDS",
    "TRAININGS",
    "Training",
    "arguments_of",
    "cut",
    "pack_for_s3",
    "prepare",
    "resized",
    "write_arrays",
]

SHARDS = 8  # tars of cut samples
ACTIONS = 50  # of a sample of ACT
_TREES = {
    "tree": (480, 640, 1),
    "small": (96, 128, 3),
}  # height, width, factor of frames
_FEATURES = ("image_left", "depth_left", "pose_left")
_RECORD_BYTES = 64 << 20
_S3_RECORD_BYTES = 4 << 20  # moto copies the whole file for each range: 30 ms CPU of 64 MiB, 2 of 4


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training: `batch` samples a step, clips of `features` of a tree or a LeRobot dataset.

    WebDataset shuffles in a buffer of `buffer` samples.
    """

    note: str
    data: str
    network: Callable[[Mapping[str, Any]], nn.Module]
    batch: int
    buffer: int
    features: Sequence[str] = ()
    clip_len: int = 0
    stride: int = 1


TRAININGS = {
    "odometry": Training(
        note="An odometry network on pairs of frames of 480x640",
        data="tree",
        network=networks.Odometry,
        batch=8,
        buffer=100,
        features=("image_left", "pose_left"),
        clip_len=2,
    ),
    "depth": Training(
        note="A video-depth network on clips of 16 frames of 480x640, one at every 8th frame",
        data="tree",
        network=networks.DepthOfVideo,
        batch=2,
        buffer=12,
        features=("image_left", "depth_left"),
        clip_len=16,
        stride=8,
    ),
    "world": Training(
        note="A recurrent world model on sequences of 32 frames of 96x128, one at every 8th frame",
        data="small",
        network=networks.WorldModel,
        batch=4,
        buffer=100,
        features=("image_left", "pose_left"),
        clip_len=32,
        stride=8,
    ),
    "act": Training(
        note=f"ACT on a LeRobot dataset: a picture of each camera, the state, {ACTIONS} actions",
        data="lerobot",
        network=networks.Act,
        batch=8,
        buffer=100,
    ),
}


def arguments_of(training: Training, originals: Path) -> dict[str, Any]:
    """Arguments of seqrecord for the training's samples."""
    if training.data in _TREES:
        return {
            "features": list(training.features),
            "clip_len": training.clip_len,
            "stride": training.stride,
        }
    info = json.loads((originals / "meta" / "info.json").read_text())
    cameras = [name for name, spec in info["features"].items() if spec["dtype"] == "video"]
    now = dict.fromkeys([*cameras, "observation.state"], range(1))
    windows = {**now, "action": range(ACTIONS)}
    return {"features": list(windows), "windows": windows, "pad": "edge"}


def prepare(name: str, folder: Path, options: argparse.Namespace) -> dict[str, Path]:
    """Create missing forms of the training's data below the folder, and an example batch.

    `originals` is a TartanAir tree or a LeRobot dataset, `records` its packed copy; `cut`, `s3` and
    `arrays` are the outputs of `cut`, `pack_for_s3` and `write_arrays`, `example` is one batch.
    """
    training = TRAININGS[name]
    found = {"cut": folder / f"cut-{name}", "example": folder / f"example-{name}.pt"}
    found["s3"] = folder / f"records-s3-{training.data}"
    found["arrays"] = folder / f"arrays-{name}"
    if training.data in _TREES:
        found["originals"] = folder / training.data
        found["records"] = folder / f"records-{training.data}"
        height, width, times = _TREES[training.data]
        frames = [times * options.frames // 4] * 4
        render = partial(generate, episodes=frames, height=height, width=width)
        once(found["originals"], partial(render, modalities=("image", "depth", "pose")))
        once(found["records"], partial(_pack, training, found["originals"], _RECORD_BYTES))
    else:
        found["originals"], found["records"] = dataset_at(options, folder)
    arguments = arguments_of(training, found["originals"])
    if not found["example"].exists():
        samples = seqrecord.SeqRecordMapDataset(found["records"], **arguments)
        example = seqrecord.collate([samples[i] for i in range(training.batch)])
        torch.save({n: v for n, v in example.items() if torch.is_tensor(v)}, found["example"])
    return found


def cut(
    name: str, found: Mapping[str, Path], form: str = "cut", size: tuple[int, int] | None = None
) -> None:
    """Write the training's samples into tars, in a random order, unless they exist.

    Arrays are .npy files; images from video are JPEG of quality 95, scaled to `size` if given.
    """
    once(found[form], partial(_cut, TRAININGS[name], found, size))


def write_arrays(name: str, found: Mapping[str, Path], size: tuple[int, int] | None = None) -> None:
    """Write the training's frames as one .npy file per feature, unless they exist; images at
    `size`, if given. `ends` has the last frame of each frame's episode.
    """
    once(found["arrays"], partial(_write_arrays, TRAININGS[name], found, size))


def resized(arguments: Mapping[str, Any], size: tuple[int, int] | None) -> dict[str, Any]:
    """Arguments of seqrecord, with images of this size."""
    cameras = [name for name in arguments["features"] if "image" in name]
    return {**arguments, "resize": dict.fromkeys(cameras, size)} if size else {**arguments}


def pack_for_s3(name: str, found: Mapping[str, Path]) -> None:
    """Pack the training's originals into the small record files of S3, unless they exist."""
    once(found["s3"], partial(_pack, TRAININGS[name], found["originals"], _S3_RECORD_BYTES))


def _pack(training: Training, originals: Path, max_file_size: int, to: Path) -> None:
    options: dict[str, Any] = {}
    if training.data in _TREES:
        options = {"features": _FEATURES, "cameras": ["left"]}
    source = open_source(originals, **options)
    seqrecord.convert(source, to, codecs="balanced", max_file_size=max_file_size)


def _write_arrays(
    training: Training, found: Mapping[str, Path], size: tuple[int, int] | None, to: Path
) -> None:
    to.mkdir()
    arguments = resized(arguments_of(training, found["originals"]), size)
    with seqrecord.open(found["records"], features=arguments["features"]) as whole:
        dataset = whole.resized(arguments["resize"]) if size else whole
        lengths = [len(episode) for episode in dataset.episodes.values()]
        np.save(to / "ends.npy", np.repeat(np.cumsum(lengths) - 1, lengths))
        for name, spec in dataset.features.items():
            shape = (sum(lengths), *(side or 0 for side in spec.shape))
            array = np.lib.format.open_memmap(to / f"{name}.npy", "w+", spec.dtype, shape)
            for episode, stop in zip(dataset.episodes.values(), np.cumsum(lengths), strict=True):
                array[stop - len(episode) : stop] = episode[:][name]


def _cut(
    training: Training, found: Mapping[str, Path], size: tuple[int, int] | None, to: Path
) -> None:
    import webdataset

    to.mkdir()
    arguments = resized(arguments_of(training, found["originals"]), size)
    samples = seqrecord.SeqRecordMapDataset(found["records"], **arguments)
    order = np.random.default_rng(0).permutation(len(samples))
    for shard, numbers in enumerate(np.array_split(order, SHARDS)):
        with webdataset.TarWriter(str(to / f"{shard:06d}.tar")) as tar:
            for number in numbers.tolist():
                files: dict[str, Any] = {"__key__": f"{number:08d}"}
                for name, value in samples[number].items():
                    if not torch.is_tensor(value) or value.ndim == 0:
                        continue
                    is_video = training.data not in _TREES and value.ndim == 4
                    kind = "jpg" if is_video else "npy"
                    array = value.numpy()
                    files[f"{name}.{kind}"] = _jpeg(array[0]) if is_video else npy(array)
                tar.write(files)


def _jpeg(image: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=95)
    return file.getvalue()
