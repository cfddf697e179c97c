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
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.formats.sources.common.images import decode_image, load_imagecodecs, read_image
from seqrecord.formats.sources.common.sequences import Column, DecodedFile, Images, image_size
from seqrecord.in_place.files import check_array

CAMERAS = ("left", "right")

IMU_ROWS = 10
"""IMU samples per frame in version 2: 100 Hz at 10 frames per second."""

_Arrays: TypeAlias = tuple[npt.NDArray[Any], ...]
_Decode: TypeAlias = Callable[[Path, "str | None"], _Arrays]

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
    """A folder with one file per frame, or per pair of consecutive frames.

    `decode` returns the arrays of `features`, in that order, where a file is more than an image or
    an array. Its arguments are the file and the source's `exif`.
    """

    folder: str
    pattern: re.Pattern[str]
    features: tuple[str, ...]
    decode: _Decode | None = None

    @property
    def between(self) -> bool:
        """Whether a file belongs to a pair of frames."""
        return self.pattern.groups > 1

    @property
    def shown(self) -> str:
        """Pattern of its files, for messages: `depth_left/*_left_depth.npy`."""
        pattern = self.pattern.pattern.replace(r"(\d+)", "*")
        return f"{self.folder}/{pattern.replace('*_*', '*')}".replace("\\.", ".")

    def columns(self, paths: Sequence[Path | None]) -> dict[str, Column]:
        """Return the columns of `features`; frames without a path lack them."""
        columns: dict[str, Column] = {}
        if self.decode is _flow_png:
            load_imagecodecs()
        decode = self.decode and lru_cache(maxsize=1)(self.decode)  # several features per file
        for place, name in enumerate(self.features):
            items: list[Path | DecodedFile | None] = [*paths]
            dtype, channels, kind, unit = _PIXELS[name.partition("_")[0]]
            if decode is not None:
                items = [path and _coded(path, decode, place, dtype, channels) for path in paths]
            columns[name] = Images(items, kind, unit, form=(dtype, channels))
        return columns


@dataclass(frozen=True)
class TartanAirLayout:
    """One version of TartanAir. `pixels` are in the default order of features.

    `poses` are features, `imu` has file and unit of features. `centre` is the offset, in pixels,
    of the optical axis to the left of and above (W / 2, H / 2). `fps` is `None` if TartanAir does
    not document it.
    """

    version: str
    centre: float
    fps: float | None
    pixels: tuple[PixelFiles, ...]
    poses: tuple[str, ...]
    imu: Mapping[str, tuple[str, str]]
    note: str

    @property
    def names(self) -> frozenset[str]:
        """Folders and files that identify a trajectory of this layout."""
        return frozenset([*(files.folder for files in self.pixels), *self.pose_files])

    @property
    def pose_files(self) -> list[str]:
        return [f"{name}.txt" for name in self.poses]


def camera_of(feature: str) -> str | None:
    """Return the camera of a feature; `None` for an IMU."""
    if feature.endswith(("right", "rcam_front")):
        return "right"
    return None if feature.startswith("imu") else "left"


def _coded(
    path: Path, decode: _Decode, place: int, dtype: str, channels: tuple[int, ...]
) -> DecodedFile:
    """Return the array `place` of a file that `decode` decodes."""
    return DecodedFile(  # encoded values cannot be turned by EXIF
        *(path, dtype, lambda: (*image_size(path, exif=None), *channels)),
        lambda exif: decode(path, exif)[place],
    )


def _pixels(path: Path, exif: str | None, dtype: str, channels: int) -> npt.NDArray[Any]:
    image = decode_image(read_image(path), path, exif=exif)
    check_array(image.dtype, image.shape, dtype, (None, None, channels), path)
    return image


def _depth_png(path: Path, exif: str | None) -> _Arrays:
    # The four bytes of a float are in OpenCV's channel order, BGRA.
    bgra = _pixels(path, exif, "|u1", 4)[..., [2, 1, 0, 3]]
    return (np.ascontiguousarray(bgra).view("<f4")[..., 0],)


def _flow_png(path: Path, exif: str | None) -> _Arrays:
    rgb = _pixels(path, exif, "<u2", 3)
    # In OpenCV's order x, y and mask are blue, green and red.
    mask = rgb[..., 0]
    flow = np.empty((*mask.shape, 2), np.float32)
    flow[...] = rgb[..., :0:-1]
    flow -= 32768
    flow /= 64
    if mask.max() > 255:
        raise SourceError(
            "mask value out of range", file=str(path), expected="0 to 255", got=int(mask.max())
        )
    return flow, mask.astype(np.uint8)


def _pixel_files(cameras: Sequence[str], *kinds: tuple[Any, ...]) -> tuple[PixelFiles, ...]:
    """Return kinds of files: folder, pattern, features and decoder, `CAM` for a camera.

    Kinds without `CAM` are those of the left camera.
    """
    return tuple(
        PixelFiles(
            folder.replace("CAM", camera),
            re.compile(pattern.replace("CAM", camera), re.ASCII),
            tuple(features.replace("CAM", camera).split()),
            *decode,
        )
        for camera in cameras
        for folder, pattern, features, *decode in kinds
        if camera == cameras[0] or "CAM" in folder
    )


LAYOUTS = (
    TartanAirLayout(
        *("V1", 0.0, None),
        _pixel_files(
            CAMERAS,
            ("image_CAM", r"(\d+)_CAM\.png", "image_CAM"),
            ("depth_CAM", r"(\d+)_CAM_depth\.npy", "depth_CAM"),
            ("flow", r"(\d+)_(\d+)_flow\.npy", "flow"),
            ("flow", r"(\d+)_(\d+)_mask\.npy", "mask"),
            ("seg_CAM", r"(\d+)_CAM_seg\.npy", "seg_CAM"),
        ),
        ("pose_left", "pose_right"),
        {},
        "TartanAir V1: frame rate not documented; poses in NED",
    ),
    # The documentation gives 320 for the centre. Depth and poses reproject to the official flow
    # to within its rounding of 1/128 pixel with 319.5 only (with 320 they are 0.04 pixels off).
    TartanAirLayout(
        *("V2", 0.5, 10.0),
        _pixel_files(
            ("lcam_front", "rcam_front"),
            ("image_CAM", r"(\d+)_CAM\.png", "image_CAM"),
            ("depth_CAM", r"(\d+)_CAM_depth\.png", "depth_CAM", _depth_png),
            ("seg_CAM", r"(\d+)_CAM_seg\.png", "seg_CAM"),
            ("flow_CAM", r"(\d+)_(\d+)_flow\.png", "flow_CAM mask_CAM", _flow_png),
        ),
        ("pose_lcam_front", "pose_rcam_front"),
        {"imu_acc": ("acc.npy", "m/s^2"), "imu_gyro": ("gyro.npy", "rad/s")},
        "TartanAir V2: depth PNGs decoded as bytes of float32, flow PNGs as (value - 32768) / 64 "
        "and a mask; 10 frames per second; poses in NED",
    ),
)
