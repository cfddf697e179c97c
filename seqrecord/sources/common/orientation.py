"""EXIF orientation of an episode's images.

The pixels of a single image stream can be turned. Depth, masks, flow and cameras refer to the
pixels as stored. If an episode has any of these, the user decides by `exif=apply` or `exif=ignore`.
Encoded images cannot be turned.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Container, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from seqrecord.codecs.exif import turned_shape
from seqrecord.codecs.images import ImageHeader
from seqrecord.errors import SourceError
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.text import repr_of

_logger = logging.getLogger("seqrecord")

EXIF = "exif"
"""Name of the option."""

_CHOICES = (None, "apply", "ignore")
_VECTORS = ("flow", "normals")  # their values depend on the orientation
_IMAGE_KINDS = (None, "image")
_VECTOR_KINDS = ("action", "state", "timestamp", "reward", "audio", "text")
# Words in the names of files, topics and features: `depth_left`, `/camera/camera_info`, `K.txt`.
_PIXELS = frozenset(
    "depth disparity disp flow mask masks seg segmentation semantic semantics instance "  # noqa: SIM905
    "instances label labels normal normals".split()
)
_CAMERAS = frozenset(
    "pose poses pos quat odometry trajectory groundtruth extrinsic extrinsics intrinsic "  # noqa: SIM905
    "intrinsics k calib calibration camerainfo cameras transforms tf imu".split()
)
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")  # two words in CameraInfo


def check_exif(exif: object) -> None:
    """Raise `SourceError` for an invalid value of the option."""
    if exif not in _CHOICES:
        raise SourceError("invalid option exif", expected="apply or ignore", got=repr_of(exif, 50))


class Orientation:
    """How the images of one episode are turned.

    Args:
        exif: `apply`, `ignore` or `None`. With `None`, images are turned only if `is_alone`, with a
            warning.
        is_alone: returns whether no other file refers to the images' pixels. Called for the first
            image with another EXIF orientation than 1.
    """

    def __init__(self, exif: str | None, is_alone: Callable[[], bool]) -> None:
        self._exif, self._ask = exif, is_alone
        self._is_alone: bool | None = None
        self._warned: set[str] = set()

    def of(self, header: ImageHeader, spec: FeatureSpec, path: Path) -> int:
        """Return the orientation to apply to an image of the feature; 1 leaves it unchanged.

        Raises `SourceError` if the user has to choose.
        """
        found = header.orientation
        if found == 1 or self._exif == "ignore":
            return 1
        facts: dict[str, Any] = {
            "file": str(path),
            "feature": spec.name,
            "got": f"EXIF orientation {found}",
        }
        if spec.codec:
            raise SourceError(
                "an image with an EXIF orientation cannot stay encoded or in place; convert "
                "without --keep-encoded (keep_encoded=False), or use the stored pixels by "
                "--source-option exif=ignore",
                expected="EXIF orientation 1",
                **facts,
            )
        if spec.kind in _VECTORS:
            raise SourceError(
                "flow and normals cannot be turned by EXIF; set --source-option exif=ignore",
                expected="1",
                **facts,
            )
        if self._exif == "apply":
            return found
        if self._is_alone is None:
            self._is_alone = self._ask()
        if not self._is_alone:
            raise SourceError(
                "an image has an EXIF orientation, but other features or cameras refer to it; "
                "set --source-option exif=apply (pixels as viewers show them) or exif=ignore "
                "(pixels as stored)",
                expected="EXIF orientation 1, or exif=",
                **facts,
            )
        if spec.name not in self._warned:
            self._warned.add(spec.name)
            _logger.warning(
                "%s: feature %s: images are turned by EXIF orientation %d; exif=apply confirms it, "
                "exif=ignore keeps the stored pixels",
                *(path, spec.name, found),
            )
        return found


UPRIGHT = Orientation("ignore", lambda: True)
"""For originals without EXIF."""


def shape_of(header: ImageHeader, exif: str | None, *, is_kept: bool) -> tuple[int, ...]:
    """Return the shape of frames from images like this one."""
    is_turned = exif != "ignore" and not is_kept
    return turned_shape(header.shape, header.orientation) if is_turned else header.shape


def is_alone(schema: Schema, beside: Iterable[str] = ()) -> bool:
    """Return whether the schema has a single image feature and no data that refers to its pixels.

    `beside` are names of further files or topics.
    """
    images = [spec for spec in schema.values() if _is_image(spec)]
    others = [spec for spec in schema.values() if not _is_image(spec)]
    return (
        len(images) == 1
        and all(spec.kind in _VECTOR_KINDS or len(spec.shape) < 2 for spec in others)
        and not any(spec.kind in ("pose", "imu", "intrinsics") for spec in others)
        and not any(_has_word(name, _CAMERAS) for name in schema)
        and not any(_has_word(name, _CAMERAS | _PIXELS) for name in beside)
    )


def _has_word(name: str, wanted: Container[str]) -> bool:
    words = [word.lower() for word in _WORDS.findall(name)]
    pairs = ("".join(pair) for pair in pairwise(words))  # camera_info
    return any(word in wanted for word in (*words, *pairs))


def _is_image(spec: FeatureSpec) -> bool:
    return spec.kind in _IMAGE_KINDS and spec.value == "array" and len(spec.shape) in (2, 3)
