"""Layouts of TartanAir trajectories: folders, file names and encodings.

::

    V1  ENV/Easy/P000/                         V2  ENV/Data_easy/P000/
        image_left/000000_left.png                 image_lcam_front/000000_lcam_front.png
        depth_left/000000_left_depth.npy           depth_lcam_front/000000_lcam_front_depth.png
        seg_left/000000_left_seg.npy               seg_lcam_front/000000_lcam_front_seg.png
        flow/000000_000001_flow.npy                flow_lcam_front/000000_000001_flow.png
        flow/000000_000001_mask.npy                    (its red channel is the mask)
        pose_left.txt                              pose_lcam_front.txt
                                                   imu/acc.npy, imu/gyro.npy

The same for `right` and `rcam_front`; version 1 has flow for the left camera only. References:
https://github.com/castacks/tartanair_tools/blob/master/data_type.md and
https://github.com/castacks/tartanairpy/blob/main/docs/modalities.rst.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.originals.files import check_array, read_bytes
from seqrecord.schema import CodecConfig, FeatureSpec
from seqrecord.sources.common.array_files import array_header, read_array
from seqrecord.sources.common.images import decode_image, image_header, kept_config
from seqrecord.sources.common.orientation import applied_orientation, shape_of

CAMERAS = ("left", "right")

IMU_ROWS = 10
"""IMU samples per frame in version 2: 100 Hz at 10 frames per second."""

Size = tuple[int, int]
"""Height and width in pixels."""

Reader = Callable[[Path, Size, Sequence[FeatureSpec], "str | None"], "tuple[npt.NDArray[Any], ...]"]

_PIXELS: Mapping[str, tuple[str, tuple[int, ...], str, str | None]] = {
    "image": ("|u1", (3,), "image", None),
    "depth": ("<f4", (), "depth", "m"),
    "flow": ("<f4", (2,), "flow", "px"),
    "mask": ("|u1", (), "mask", None),
    "seg": ("|u1", (), "segmentation", None),
}
"""dtype, channels, kind and unit by the first word of TartanAir's names."""


@dataclass(frozen=True)
class PixelFiles:
    """A folder with one file per frame, or per pair of consecutive frames if `between`.

    `features` have shape [?, ?] or [?, ?, channels]. `read` returns their arrays in that order and
    raises `SourceError`.
    """

    folder: str
    pattern: re.Pattern[str]
    camera: str
    features: tuple[FeatureSpec, ...]
    read: Reader
    between: bool = False

    @property
    def shown(self) -> str:
        """Pattern of its file names, for messages: `*_left_depth.npy`."""
        pattern = self.pattern.pattern.replace(r"(\d+)", "*")
        return pattern.replace("*_*", "*").replace("\\.", ".")

    @property
    def is_image(self) -> bool:
        return self.read is _read_rgb

    def kept(self, exif: str | None) -> tuple[CodecConfig, ...]:
        """Return the codec of files that can be referenced; empty for the others."""
        formats: dict[Reader, str] = {_read_rgb: "png", _read_seg_png: "png", _read_npy: "npy"}
        return (kept_config(formats[self.read], exif),) if self.read in formats else ()

    @property
    def needs_imagecodecs(self) -> bool:
        return self.read is _read_flow_png

    def size(self, path: Path, exif: str | None) -> Size:
        """Return height and width from a file's header. Raises `SourceError` if it is invalid."""
        if path.suffix == ".npy":
            header = array_header(path)
            want = self.features[0]
            shape = header.shape
            check_array(header.dtype, shape, want.dtype, (*shape[:2], *_channels(want)), path)
        else:
            shape = shape_of(image_header(path), exif, is_kept=False)
        return shape[0], shape[1]


@dataclass(frozen=True)
class TartanAirLayout:
    """One version of TartanAir. `pixels` are in the default order of features.

    `centre` is the offset, in pixels, of the optical axis to the left of and above (W / 2, H / 2).
    `fps` is `None` if TartanAir does not document it.
    """

    version: str
    centre: float
    fps: float | None
    pixels: tuple[PixelFiles, ...]
    poses: tuple[tuple[FeatureSpec, str, str], ...]  # feature, camera, file
    imu: tuple[tuple[str, str, str], ...]  # feature, file in imu/, unit

    @property
    def names(self) -> frozenset[str]:
        """Folders and files that identify a trajectory of this layout."""
        return frozenset(
            [files.folder for files in self.pixels] + [file for *_, file in self.poses]
        )


def check_rgb(
    data: bytes, path: Path, size: Size, spec: FeatureSpec, exif: str | None
) -> npt.NDArray[Any]:
    """Decode an encoded image, which must be 8-bit RGB."""
    return _decoded(data, path, "RGB", "|u1", size, spec, exif)


def _decoded(
    data: bytes,
    path: Path,
    mode: str,
    dtype: str,
    size: Size,
    spec: FeatureSpec,
    exif: str | None,
) -> npt.NDArray[Any]:
    image = decode_image(
        data, path, mode, size, turn=lambda header: applied_orientation(header, spec, path, exif)
    )
    check_array(image.dtype, image.shape, dtype, image.shape, path)
    return image


def _read_npy(
    path: Path, size: Size, features: Sequence[FeatureSpec], _: str | None
) -> tuple[Any, ...]:
    return (read_array(path, features[0].dtype, (*size, *_channels(features[0]))),)


def _channels(spec: FeatureSpec) -> tuple[int, ...]:
    return tuple(length for length in spec.shape if length is not None)


def _read_rgb(
    path: Path, size: Size, features: Sequence[FeatureSpec], exif: str | None
) -> tuple[Any, ...]:
    return (check_rgb(read_bytes(path), path, size, features[0], exif),)


def _read_depth_png(
    path: Path, size: Size, features: Sequence[FeatureSpec], exif: str | None
) -> tuple[Any, ...]:
    rgba = _decoded(read_bytes(path), path, "RGBA", "|u1", size, features[0], exif)
    # The four bytes of a float are in OpenCV's channel order, BGRA.
    bgra = rgba[..., [2, 1, 0, 3]]
    return (np.ascontiguousarray(bgra).view("<f4")[..., 0],)


def _read_seg_png(
    path: Path, size: Size, features: Sequence[FeatureSpec], exif: str | None
) -> tuple[Any, ...]:
    return (_decoded(read_bytes(path), path, "L", "|u1", size, features[0], exif),)


def _read_flow_png(
    path: Path, size: Size, features: Sequence[FeatureSpec], exif: str | None
) -> tuple[Any, ...]:
    rgb = _decoded(read_bytes(path), path, "RGB", "<u2", size, features[0], exif)
    # In OpenCV's order x, y and mask are blue, green and red.
    mask = rgb[..., 0]
    flow = np.empty((*size, 2), np.float32)
    flow[...] = rgb[..., :0:-1]
    flow -= 32768
    flow /= 64
    if mask.max() > 255:
        raise SourceError(
            "mask value out of range", file=str(path), expected="0 to 255", got=int(mask.max())
        )
    return flow, mask.astype(np.uint8)


def _per_frame(modality: str, side: str, camera: str, ending: str, read: Reader) -> PixelFiles:
    pattern = re.compile(rf"(\d+)_{camera}{ending}", re.ASCII)
    name = f"{modality}_{camera}"
    return PixelFiles(name, pattern, side, (_pixels(modality, name),), read)


def _between(
    folder: str, side: str, ending: str, features: tuple[FeatureSpec, ...], read: Reader
) -> PixelFiles:
    pattern = re.compile(rf"(\d+)_(\d+)_{ending}", re.ASCII)
    return PixelFiles(folder, pattern, side, features, read, between=True)


def _pixels(modality: str, name: str) -> FeatureSpec:
    dtype, channels, kind, unit = _PIXELS[modality]
    return FeatureSpec(name, np.dtype(dtype), (None, None, *channels), kind=kind, unit=unit)


def _poses(cameras: Mapping[str, str]) -> tuple[tuple[FeatureSpec, str, str], ...]:
    names = [(f"pose_{camera}", side) for side, camera in cameras.items()]
    return tuple(
        (FeatureSpec(name, np.dtype("<f8"), (7,), kind="pose", unit="m"), side, f"{name}.txt")
        for name, side in names
    )


def _v1() -> TartanAirLayout:
    pixels: list[PixelFiles] = []
    for side in CAMERAS:
        pixels.append(_per_frame("image", side, side, r"\.png", _read_rgb))
        pixels.append(_per_frame("depth", side, side, r"_depth\.npy", _read_npy))
        for modality in ("flow", "mask") if side == "left" else ():
            features = (_pixels(modality, modality),)
            pixels.append(_between("flow", side, rf"{modality}\.npy", features, _read_npy))
        pixels.append(_per_frame("seg", side, side, r"_seg\.npy", _read_npy))
    return TartanAirLayout(
        "V1", 0.0, None, tuple(pixels), _poses({side: side for side in CAMERAS}), ()
    )


def _v2() -> TartanAirLayout:
    pixels: list[PixelFiles] = []
    cameras = {side: f"{side[0]}cam_front" for side in CAMERAS}
    for side, camera in cameras.items():
        pixels.append(_per_frame("image", side, camera, r"\.png", _read_rgb))
        pixels.append(_per_frame("depth", side, camera, r"_depth\.png", _read_depth_png))
        pixels.append(_per_frame("seg", side, camera, r"_seg\.png", _read_seg_png))
        both = (_pixels("flow", f"flow_{camera}"), _pixels("mask", f"mask_{camera}"))
        pixels.append(_between(f"flow_{camera}", side, r"flow\.png", both, _read_flow_png))
    imu = (("imu_acc", "acc.npy", "m/s^2"), ("imu_gyro", "gyro.npy", "rad/s"))
    # The documentation gives 320 for the centre. Depth and poses reproject to the official flow
    # to within its rounding of 1/128 pixel with 319.5 only (with 320 they are 0.04 pixels off).
    return TartanAirLayout("V2", 0.5, 10.0, tuple(pixels), _poses(cameras), imu)


LAYOUTS = (_v1(), _v2())
