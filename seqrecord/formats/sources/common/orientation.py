"""EXIF orientation of images.

Viewers turn such images; depth, masks, flow and cameras may refer to the pixels as stored. The user
decides by `exif=apply` or `exif=ignore`. Encoded images and vectors cannot be turned.
"""

from __future__ import annotations

from pathlib import Path

from seqrecord.errors import SourceError
from seqrecord.store.codecs.exif import turned_shape
from seqrecord.store.codecs.images import ImageHeader
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.text import repr_of

_CHOICES = (None, "apply", "ignore")
_VECTORS = ("flow", "normals")  # their values depend on the orientation


def check_exif(exif: object) -> None:
    """Raise `SourceError` for an invalid value of the option."""
    if exif not in _CHOICES:
        raise SourceError("invalid option exif", expected="apply or ignore", got=repr_of(exif, 50))


def applied_orientation(
    header: ImageHeader, spec: FeatureSpec | None, path: Path, exif: str | None
) -> int:
    """Return the orientation to apply to an image of the feature; 1 leaves it unchanged.

    `spec` is `None` for an image whose pixels encode other values, such as the bytes of depth.
    Raises `SourceError` for an image with an EXIF orientation without a choice by `exif`, and if it
    is to be turned but cannot.
    """
    if (orientation := header.orientation) == 1 or exif == "ignore":
        return 1
    if spec is None or spec.kind in _VECTORS:
        problem = (
            "flow, normals and encoded values cannot be turned by EXIF; set --source-option "
            "exif=ignore"
        )
    elif spec.codec:
        problem = (
            "an image with an EXIF orientation cannot stay encoded or in place; convert without "
            "--keep-encoded (keep_encoded=False), or use the stored pixels by --source-option "
            "exif=ignore"
        )
    elif exif is None:
        problem = (
            "an image has an EXIF orientation; set --source-option exif=apply (pixels as viewers "
            "show them) or exif=ignore (pixels as stored, to which cameras and depth often refer)"
        )
    else:
        return orientation
    raise SourceError(
        problem,
        file=str(path),
        feature=None if spec is None else spec.name,
        expected="EXIF orientation 1",
        got=f"EXIF orientation {orientation}",
    )


def shape_of(header: ImageHeader, exif: str | None, *, is_kept: bool) -> tuple[int, ...]:
    """Return the shape of frames from images like this one."""
    is_turned = exif == "apply" and not is_kept
    return turned_shape(header.shape, header.orientation) if is_turned else header.shape
