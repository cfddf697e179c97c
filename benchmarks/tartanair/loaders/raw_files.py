"""The baseline: clips from the original files, each reopened for every frame of every clip.

Works like the dataset's own loader, with Pillow and NumPy, and is the reference for bit-exactness.
It therefore reads the files itself and imports nothing from `seqrecord.sources`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import Dataset

__all__ = ["RawFilesDataset", "file_name"]

Sample = dict[str, Any]


@dataclass(frozen=True)
class _Episode:
    key: str
    folder: Path
    frame_ids: list[int]
    poses: dict[str, npt.NDArray[np.float64]]


class RawFilesDataset(Dataset[Sample]):
    """All clips of a TartanAir tree (V1 or V2), in the order of episode and start.

    `dataset[i]` is `{feature: tensor [clip_len, ...], "episode": key, "start": index}`. A clip
    starts at every `stride`-th frame of an episode and has `clip_len` frames, `dilation` apart.
    Clips with a frame that lacks a feature are skipped: the last frame has no flow and no mask.
    `features` have the names of `seqrecord.sources.TartanAirSource`; default: all features of the
    first episode. Nothing is checked, and only poses stay in memory.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        clip_len: int,
        stride: int = 1,
        dilation: int = 1,
        features: Sequence[str] | None = None,
    ) -> None:
        self.clip_len = clip_len
        self.dilation = dilation
        self._episodes = _find_episodes(Path(root).resolve())
        listings = [_list_files(episode.folder) for episode in self._episodes]
        if features is None:
            first = self._episodes[0]
            features = [name for name in _FILES if file_name(first, name, 0) in listings[0]]
        self.features = tuple(features)
        self._clips = [
            (number, start)
            for number, (episode, listing) in enumerate(zip(self._episodes, listings, strict=True))
            for start in self._starts(episode, listing, stride)
        ]

    def __len__(self) -> int:
        return len(self._clips)

    def places(self) -> list[tuple[str, int]]:
        """Episode and start of every clip."""
        return [(self._episodes[number].key, start) for number, start in self._clips]

    def __getitem__(self, index: int) -> Sample:
        number, start = self._clips[index]
        episode = self._episodes[number]
        rows = range(start, start + self.clip_len * self.dilation, self.dilation)
        sample: Sample = {
            name: torch.from_numpy(np.stack([_read(episode, name, row) for row in rows]))
            for name in self.features
        }
        return {**sample, "episode": episode.key, "start": start}

    def _starts(self, episode: _Episode, listing: set[str], stride: int) -> list[int]:
        num_frames = len(episode.frame_ids)
        complete = [
            all(file_name(episode, name, row) in listing for name in self.features)
            for row in range(num_frames)
        ]
        span = (self.clip_len - 1) * self.dilation + 1
        return [
            start
            for start in range(0, num_frames - span + 1, stride)
            if all(complete[start : start + span : self.dilation])
        ]


# Path of each feature of a frame; `{0}` is the frame's id and `{1}` the next one's.
_FILES = {
    "image_left": "image_left/{0:06d}_left.png",
    "depth_left": "depth_left/{0:06d}_left_depth.npy",
    "flow": "flow/{0:06d}_{1:06d}_flow.npy",
    "mask": "flow/{0:06d}_{1:06d}_mask.npy",
    "seg_left": "seg_left/{0:06d}_left_seg.npy",
    "image_right": "image_right/{0:06d}_right.png",
    "depth_right": "depth_right/{0:06d}_right_depth.npy",
    "seg_right": "seg_right/{0:06d}_right_seg.npy",
    "pose_left": "pose_left.txt",
    "pose_right": "pose_right.txt",
    "image_lcam_front": "image_lcam_front/{0:06d}_lcam_front.png",
    "depth_lcam_front": "depth_lcam_front/{0:06d}_lcam_front_depth.png",
    "seg_lcam_front": "seg_lcam_front/{0:06d}_lcam_front_seg.png",
    "flow_lcam_front": "flow_lcam_front/{0:06d}_{1:06d}_flow.png",
    "mask_lcam_front": "flow_lcam_front/{0:06d}_{1:06d}_flow.png",
    "image_rcam_front": "image_rcam_front/{0:06d}_rcam_front.png",
    "depth_rcam_front": "depth_rcam_front/{0:06d}_rcam_front_depth.png",
    "seg_rcam_front": "seg_rcam_front/{0:06d}_rcam_front_seg.png",
    "flow_rcam_front": "flow_rcam_front/{0:06d}_{1:06d}_flow.png",
    "mask_rcam_front": "flow_rcam_front/{0:06d}_{1:06d}_flow.png",
    "pose_lcam_front": "pose_lcam_front.txt",
    "pose_rcam_front": "pose_rcam_front.txt",
}


def _find_episodes(root: Path) -> list[_Episode]:
    """Folders named P000 with images in them, sorted by key, at any depth below `root`."""
    episodes = []
    for name, subfolders, files in os.walk(root):
        folder = Path(name)
        if re.fullmatch(r"P\d+", folder.name):
            ids = _frame_ids(folder, subfolders)
            subfolders.clear()
            if ids:
                # ENV/Easy/P000, also if the zip files were unpacked to ENV/ENV/Easy/P000.
                key = "/".join(folder.parts[-3:])
                poses = {
                    Path(file).stem: np.loadtxt(folder / file, ndmin=2)
                    for file in files
                    if file in _FILES.values()
                }
                episodes.append(_Episode(key, folder, ids, poses))
    return sorted(episodes, key=lambda episode: episode.key)


def _frame_ids(folder: Path, subfolders: Sequence[str]) -> list[int]:
    for name in ("image_left", "image_lcam_front", "image_right", "image_rcam_front"):
        if name in subfolders:
            files = [path.name for path in (folder / name).iterdir()]
            return sorted(int(f.split("_")[0]) for f in files if re.fullmatch(r"\d+_.*\.png", f))
    return []


def _list_files(folder: Path) -> set[str]:
    """The files of an episode, in the form of `_FILES`."""
    inside = [f"{Path(top).name}/{name}" for top, _, names in os.walk(folder) for name in names]
    return {*inside, *(path.name for path in folder.iterdir())}


def file_name(episode: _Episode, feature: str, row: int) -> str:
    """The file of one frame's feature, below the episode's folder."""
    frame_id = episode.frame_ids[row]
    return _FILES[feature].format(frame_id, frame_id + 1)


def _read(episode: _Episode, feature: str, row: int) -> npt.NDArray[Any]:
    if feature in episode.poses:
        pose: npt.NDArray[np.float64] = episode.poses[feature][row]
        return pose
    path = episode.folder / file_name(episode, feature, row)
    if path.suffix == ".npy":
        array: npt.NDArray[Any] = np.load(path)
        return array
    if feature.startswith(("flow", "mask")):
        return _read_flow_png(path)[feature.startswith("mask")]
    with Image.open(path) as image:
        pixels: npt.NDArray[np.uint8] = np.asarray(image)
    if feature.startswith("depth"):  # a float's bytes as blue, green, red, alpha
        blue_first = np.stack([pixels[..., channel] for channel in (2, 1, 0, 3)], axis=-1)
        depth: npt.NDArray[Any] = blue_first.view("<f4")[..., 0]
        return depth
    return pixels


def _read_flow_png(path: Path) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    import imagecodecs  # Pillow would cut the 16-bit channels to 8

    red, green, blue = np.moveaxis(imagecodecs.png_decode(path.read_bytes()), -1, 0)
    flow = np.stack([blue, green], axis=-1).astype(np.float32)
    return (flow - np.float32(32768)) / np.float32(64), red.astype(np.uint8)
