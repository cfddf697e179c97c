"""Where TartanAir V1 and V2 keep each modality, and in which encoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.tartanair.camera import FloatArray, Intrinsics
from benchmarks.tartanair.png import encode_png
from benchmarks.tartanair.render import Rendering

__all__ = ["CAMERAS", "LAYOUTS", "MODALITIES", "Layout"]

MODALITIES = ("image", "depth", "seg", "flow", "mask", "pose")
CAMERAS = ("left", "right")

_FLOW_STEPS = 64  # V2's flow: steps to a pixel
_FLOW_ZERO = 32768


class Layout(Protocol):
    """Writes one episode's files. `frame` is the number in a file's name."""

    def intrinsics(self, height: int, width: int) -> Intrinsics: ...

    def folder(self, root: Path, env: str, difficulty: str, episode: int) -> Path: ...

    def write_frame(
        self,
        folder: Path,
        camera: str,
        frame: int,
        rendering: Rendering,
        modalities: frozenset[str],
    ) -> None:
        """Image, depth and segmentation, those of them that are asked for."""

    def write_flow(
        self,
        folder: Path,
        frame: int,
        flow: npt.NDArray[np.float32],
        mask: npt.NDArray[np.uint8],
        modalities: frozenset[str],
    ) -> None:
        """Flow and mask of the left camera from this frame to the next."""

    def write_poses(self, folder: Path, camera: str, poses: FloatArray) -> None: ...


class _V1:
    """`ENV/Easy/P000/image_left/000000_left.png`, and NPY for all that is no image."""

    def intrinsics(self, height: int, width: int) -> Intrinsics:
        return Intrinsics.v1(height, width)

    def folder(self, root: Path, env: str, difficulty: str, episode: int) -> Path:
        return root / env / difficulty / f"P{episode:03d}"

    def write_frame(
        self,
        folder: Path,
        camera: str,
        frame: int,
        rendering: Rendering,
        modalities: frozenset[str],
    ) -> None:
        stem = f"{frame:06d}_{camera}"
        if "image" in modalities:
            image = encode_png(rendering.rgb, row_filter="paeth", compress=False)
            _write(folder / f"image_{camera}" / f"{stem}.png", image)
        if "depth" in modalities:
            _save(folder / f"depth_{camera}" / f"{stem}_depth.npy", rendering.depth)
        if "seg" in modalities:
            _save(folder / f"seg_{camera}" / f"{stem}_seg.npy", rendering.seg)

    def write_flow(
        self,
        folder: Path,
        frame: int,
        flow: npt.NDArray[np.float32],
        mask: npt.NDArray[np.uint8],
        modalities: frozenset[str],
    ) -> None:
        stem = f"{frame:06d}_{frame + 1:06d}"
        if "flow" in modalities:
            _save(folder / "flow" / f"{stem}_flow.npy", flow)
        if "mask" in modalities:
            _save(folder / "flow" / f"{stem}_mask.npy", mask)

    def write_poses(self, folder: Path, camera: str, poses: FloatArray) -> None:
        np.savetxt(folder / f"pose_{camera}.txt", poses)


class _V2:
    """`ENV/Data_easy/P000/image_lcam_front/000000_lcam_front.png`, and PNG for everything."""

    def intrinsics(self, height: int, width: int) -> Intrinsics:
        return Intrinsics.v2(height, width)

    def folder(self, root: Path, env: str, difficulty: str, episode: int) -> Path:
        return root / env / f"Data_{difficulty.lower()}" / f"P{episode:03d}"

    def write_frame(
        self,
        folder: Path,
        camera: str,
        frame: int,
        rendering: Rendering,
        modalities: frozenset[str],
    ) -> None:
        name = _v2_camera(camera)
        stem = f"{frame:06d}_{name}"
        if "image" in modalities:
            _write(folder / f"image_{name}" / f"{stem}.png", _compressed(rendering.rgb))
        if "depth" in modalities:
            # OpenCV reads blue, green, red, alpha: these are the float's four bytes in order.
            little = rendering.depth.astype("<f4").view(np.uint8).reshape(*rendering.depth.shape, 4)
            pixels = little[..., [2, 1, 0, 3]]
            _write(folder / f"depth_{name}" / f"{stem}_depth.png", _compressed(pixels))
        if "seg" in modalities:
            _write(folder / f"seg_{name}" / f"{stem}_seg.png", _compressed(rendering.seg))

    def write_flow(
        self,
        folder: Path,
        frame: int,
        flow: npt.NDArray[np.float32],
        mask: npt.NDArray[np.uint8],
        modalities: frozenset[str],
    ) -> None:
        if "flow" not in modalities:
            return
        # Blue, green, red are flow along u, flow along v and the mask.
        pixels = np.empty((*mask.shape, 3), np.uint16)
        steps = np.rint(flow * np.float32(_FLOW_STEPS)) + _FLOW_ZERO
        pixels[..., 2:0:-1] = np.clip(steps, 0, 65535)
        pixels[..., 0] = mask
        name = f"{frame:06d}_{frame + 1:06d}_flow.png"
        _write(folder / "flow_lcam_front" / name, _compressed(pixels))

    def write_poses(self, folder: Path, camera: str, poses: FloatArray) -> None:
        np.savetxt(folder / f"pose_{_v2_camera(camera)}.txt", poses)


LAYOUTS: dict[str, Layout] = {"v1": _V1(), "v2": _V2()}


def _v2_camera(camera: str) -> str:
    return f"{camera[0]}cam_front"


def _compressed(pixels: npt.NDArray[Any]) -> bytes:
    return encode_png(pixels, row_filter="sub", compress=True)


def _save(path: Path, array: npt.NDArray[Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    np.save(path, array, allow_pickle=False)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
