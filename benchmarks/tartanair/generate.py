"""Generate episodes with the look, compression ratio and file layout of TartanAir V1.

    python -m benchmarks.tartanair.generate DEST --frames 60 --episodes 2

Images are rendered from a scene of textured boxes along a smooth camera path. Flow and mask follow
exactly from depth and pose, like the real data. The same arguments write the same bytes.
"""

from __future__ import annotations

import argparse
import functools
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from benchmarks.tartanair.camera import Intrinsics, camera_path, flow_mask, reproject
from benchmarks.tartanair.render import Rendering, render
from benchmarks.tartanair.scene import RING, Scene

__all__ = ["MODALITIES", "generate"]

MODALITIES = ("image", "depth", "seg", "flow", "mask", "pose")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("dest", type=Path)
    parser.add_argument("--frames", type=int, default=60, help="per episode")
    parser.add_argument("--episodes", type=int, default=2)
    options = parser.parse_args()
    for folder in generate(options.dest, episodes=[options.frames] * options.episodes):
        print(folder)


def generate(
    root: Path,
    *,
    env: str = "abandonedfactory",
    episodes: Sequence[int],
    height: int = 480,
    width: int = 640,
    seed: int = 0,
    modalities: Sequence[str] = MODALITIES,
) -> list[Path]:
    """Write one episode of the left camera for each number of frames in `episodes`.

    Returns the episodes' folders, `root/env/Easy/P000` and so on. Flow and mask are one fewer than
    frames. An odd `seed` gives a hall, an even one a yard. All episodes of a seed show one scene.

    Raises `FileExistsError` if an episode's folder exists.
    """
    scene, intrinsics = _scene(seed), Intrinsics.v1(height, width)
    folders = [root / env / "Easy" / f"P{number:03d}" for number in range(len(episodes))]
    with tqdm(total=sum(episodes), unit="frame", delay=0.5) as progress:
        for number, (folder, frames) in enumerate(zip(folders, episodes, strict=True)):
            folder.mkdir(parents=True)
            path = camera_path(frames, seed=seed, episode=number, radius=RING)
            if "pose" in modalities:
                np.savetxt(folder / "pose_left.txt", path)
            before: Rendering | None = None
            for index in range(frames):
                seen = render(scene, path[index], intrinsics)
                files: dict[str, tuple[str, npt.NDArray[Any]]] = {
                    "image": (f"image_left/{index:06d}_left.png", seen.rgb),
                    "depth": (f"depth_left/{index:06d}_left_depth.npy", seen.depth),
                    "seg": (f"seg_left/{index:06d}_left_seg.npy", seen.seg),
                }
                if before is not None and not {"flow", "mask"}.isdisjoint(modalities):
                    moved = reproject(before.depth, path[index - 1], path[index], intrinsics)
                    stem = f"flow/{index - 1:06d}_{index:06d}"
                    files["flow"] = f"{stem}_flow.npy", moved.flow
                    files["mask"] = f"{stem}_mask.npy", flow_mask(moved, seen.depth)
                for name in files.keys() & set(modalities):
                    _write(folder / files[name][0], files[name][1])
                before = seen
                progress.update()
    return folders


@functools.lru_cache(maxsize=4)
def _scene(seed: int) -> Scene:
    return Scene.from_seed(seed)


def _write(path: Path, array: npt.NDArray[Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".png":
        path.write_bytes(_png(array))
    else:
        np.save(path, array, allow_pickle=False)


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """PNG of [H, W, 3] like V1's: Paeth-filtered and stored without compression.

    This determines the decoding cost, so benchmarks on generated files need the same.
    """
    height, width, channels = pixels.shape
    rows = np.ascontiguousarray(pixels).reshape(height, -1)
    lines = np.empty((height, 1 + rows.shape[1]), np.uint8)
    lines[:, 0] = 4
    np.subtract(rows, _paeth(rows, channels), out=lines[:, 1:])
    deflate = zlib.compressobj(0)
    body = deflate.compress(lines.data) + deflate.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", body), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)


def _paeth(rows: npt.NDArray[np.uint8], step: int) -> npt.NDArray[np.uint8]:
    """Each byte's prediction: whichever of left, up and corner is nearest to left + up - corner."""
    padded = np.zeros((rows.shape[0] + 1, rows.shape[1] + step), np.int16)
    padded[1:, step:] = rows
    left, up, corner = padded[1:, :-step], padded[:-1, step:], padded[:-1, :-step]
    to_left, to_up = up - corner, left - corner
    to_corner = np.abs(to_left + to_up)
    np.abs(to_left, out=to_left)
    np.abs(to_up, out=to_up)
    vertical = np.where(to_up <= to_corner, up, corner)
    use_left = (to_left <= to_up) & (to_left <= to_corner)
    return np.where(use_left, left, vertical).astype(np.uint8)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


if __name__ == "__main__":
    main()
