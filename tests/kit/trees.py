"""Small TartanAir trees with random but valid content, and their expected frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import numpy.typing as npt
from PIL import Image

REAL_DATA = Path(__file__).parents[3] / "shared" / "data"
"""Original TartanAir files next to the project, available on some machines only."""

Frames = list[dict[str, npt.NDArray[Any]]]


def make_frames(
    seed: int, num_frames: int, *, v2: bool = False, size: tuple[int, int] = (6, 8)
) -> Frames:
    """Frames of both cameras that a source must return."""
    rng = np.random.default_rng(seed)
    frames: Frames = []
    for index in range(num_frames):
        frame: dict[str, npt.NDArray[Any]] = {}
        for side in ("lcam_front", "rcam_front") if v2 else ("left", "right"):
            depth = rng.uniform(1, 80, size).astype(np.float16).astype(np.float32)
            quaternion = rng.normal(size=4)
            frame[f"image_{side}"] = rng.integers(0, 256, (*size, 3), np.uint8)
            frame[f"depth_{side}"] = depth
            frame[f"seg_{side}"] = rng.integers(0, 256, size, np.uint8)
            frame[f"pose_{side}"] = np.concatenate(
                [rng.normal(size=3), quaternion / np.linalg.norm(quaternion)]
            )
            if index < num_frames - 1 and (v2 or side == "left"):
                suffix = f"_{side}" if v2 else ""
                flow = rng.integers(-32768, 32768, (*size, 2)) / 64  # exact in 16 bits
                frame[f"flow{suffix}"] = flow.astype(np.float32)
                frame[f"mask{suffix}"] = rng.choice([0, 1, 10, 100], size).astype(np.uint8)
        if v2 and index < num_frames - 1:
            frame["imu_acc"] = rng.normal(size=(10, 3))
            frame["imu_gyro"] = rng.normal(size=(10, 3))
        frames.append(frame)
    return frames


def write_v1(folder: Path, frames: Frames, *, first_id: int = 0) -> Path:
    """Write a trajectory of version 1; returns `folder`."""
    for row, frame in enumerate(frames):
        name = f"{first_id + row:06d}"
        pair = f"{name}_{first_id + row + 1:06d}"
        for feature, value in frame.items():
            kind, _, side = feature.partition("_")
            if kind == "image":
                _save_png(folder / feature / f"{name}_{side}.png", value)
            elif kind in ("depth", "seg"):
                _save_npy(folder / feature / f"{name}_{side}_{kind}.npy", value)
            elif kind in ("flow", "mask"):
                _save_npy(folder / "flow" / f"{pair}_{kind}.npy", value)
    _save_poses(folder, frames)
    return folder


def write_v2(folder: Path, frames: Frames, *, first_id: int = 0) -> Path:
    """Write a trajectory of version 2; returns `folder`."""
    for row, frame in enumerate(frames):
        name = f"{first_id + row:06d}"
        pair = f"{name}_{first_id + row + 1:06d}"
        for feature, value in frame.items():
            kind, _, cam = feature.partition("_")
            if kind == "image":
                _save_png(folder / feature / f"{name}_{cam}.png", value)
            elif kind == "seg":
                _save_png(folder / feature / f"{name}_{cam}_seg.png", value)
            elif kind == "depth":
                bgra = value.view(np.uint8).reshape(*value.shape, 4)
                _save_png(folder / feature / f"{name}_{cam}_depth.png", bgra[..., [2, 1, 0, 3]])
            elif kind == "flow":
                x, y = np.moveaxis(value * 64 + 32768, -1, 0)
                rgb = np.stack([frame[f"mask_{cam}"], y, x], axis=-1).astype(np.uint16)
                _save_bytes(
                    folder / feature / f"{pair}_flow.png", bytes(imagecodecs.png_encode(rgb))
                )
    _save_poses(folder, frames)
    for name in ("acc", "gyro"):
        if f"imu_{name}" in frames[0]:
            rows = [frame[f"imu_{name}"] for frame in frames if f"imu_{name}" in frame]
            _save_npy(folder / "imu" / f"{name}.npy", np.concatenate(rows))
    return folder


def write_junk(root: Path) -> None:
    """Put typical files of file managers into every folder below `root`."""
    for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        for name in (".DS_Store", "Thumbs.db", "desktop.ini", "notes.md", "._000000_left.png"):
            _save_bytes(folder / name, b"junk")
        for file in list(folder.glob("0*")):
            _save_bytes(folder / f"._{file.name}", b"junk")
    (root / "__MACOSX").mkdir()


def _save_png(path: Path, pixels: npt.NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def _save_npy(path: Path, array: npt.NDArray[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)


def _save_bytes(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _save_poses(folder: Path, frames: Frames) -> None:
    for feature in [name for name in frames[0] if name.startswith("pose_")]:
        np.savetxt(folder / f"{feature}.txt", np.stack([frame[feature] for frame in frames]))
