"""Small originals whose images, arrays and video are referenced rather than copied by an index."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from PIL import Image

from tests.kit.lerobot_video_data import unpack
from tests.kit.trees import make_frames, write_v1
from tests.kit.video_file_data import pictures, write_video

__all__ = ["folders", "hdf5", "lerobot", "tartanair", "videos", "webdataset", "zarr_buffer"]

_RNG = np.random.default_rng(5)


def tartanair(root: Path, num_frames: int = 3) -> Path:
    for number, name in enumerate(("P000", "P001")):
        write_v1(root / "office/Easy" / name, make_frames(number, num_frames, size=(8, 12)))
    return root


def folders(root: Path, num_frames: int = 4) -> Path:
    for number in range(num_frames):
        for name in ("a", "b"):
            for feature in ("rgb", "mask", "depth", "state"):
                (root / name / feature).mkdir(parents=True, exist_ok=True)
            pixels = _RNG.integers(0, 256, (8, 12, 3), np.uint8)
            Image.fromarray(pixels).save(root / name / "rgb" / f"{number}.jpg")
            if number != 2:  # a missing file
                Image.fromarray(pixels[..., 0]).save(root / name / "mask" / f"{number}.png")
            depth = (_RNG.random((40, 50)) * 9).astype(">f4")
            np.save(root / name / "depth" / f"{number}.npy", depth)
            np.save(root / name / "state" / f"{number}.npy", depth[0, :3])  # small, so copied
    for name in ("a", "b"):
        np.save(root / name / "action.npy", _RNG.random((num_frames, 3), np.float32))
    return root


def webdataset(root: Path, num_frames: int = 4) -> Path:
    """Two shards, one episode each."""
    folders(root / "loose", num_frames)
    for shard in "ab":
        with tarfile.open(root / f"{shard}.tar", "w") as tar:
            for number in range(num_frames):
                for path in sorted((root / "loose" / shard).rglob(f"{number}.*")):
                    tar.add(path, f"{number:04d}.{path.parent.name}{path.suffix}")
    shutil.rmtree(root / "loose")
    return root


def lerobot(root: Path, version: str = "v3") -> Path:
    return unpack(root, f"lerobot_video_{version}")


def videos(root: Path) -> Path:
    root.mkdir(exist_ok=True)
    for number, name in enumerate("ab"):
        write_video(root / f"{name}.mp4", pictures(6 - number, 30 * number))
    return root


def hdf5(root: Path) -> Path:
    root.mkdir(parents=True)
    for name in ("a", "b"):
        with h5py.File(root / f"{name}.hdf5", "w") as file:
            images = _RNG.integers(0, 256, (4, 48, 64, 3), np.uint8)
            chunks = (2, 48, 64, 3) if name == "a" else None
            file.create_dataset("observations/images/top", data=images, chunks=chunks)
            file["observations/qpos"] = np.zeros((4, 3), np.float32)
            file["action"] = np.zeros((4, 3), np.float32)
    return root


def zarr_buffer(root: Path, zarr_format: int) -> Path:
    """Two episodes; a file per chunk: one frame in version 2, four frames in version 3."""
    import zarr

    group = zarr.open_group(root / "a.zarr", mode="w", zarr_format=zarr_format)
    options: dict[str, Any] = {"compressors": None}
    images = _RNG.integers(0, 256, (11, 40, 50, 3), np.uint8)
    chunks = (1 if zarr_format == 2 else 4, 40, 50, 3)
    group.create_array("data/img", data=images, chunks=chunks, **options)
    group.create_array("data/action", data=_RNG.random((11, 2)), chunks=(4, 2))
    group.create_array("meta/episode_ends", data=np.array([5, 11]), chunks=(2,))
    return root
