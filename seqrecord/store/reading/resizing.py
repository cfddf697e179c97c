"""Features whose frames are resized during decoding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError
from seqrecord.store.codecs.base import MAX_BUFFER_BYTES, thread_buffer
from seqrecord.store.codecs.resizing import resize_into
from seqrecord.store.feature_kinds import has_pixels, is_flow, is_image, known_kind
from seqrecord.store.schema import FeatureSpec, Schema
from seqrecord.store.text import repr_of
from seqrecord.store.units import is_integer

Sizes: TypeAlias = "Mapping[str, tuple[int, int]] | tuple[int, int]"
"""(height, width) by feature, or one size for all images."""

_KINDS = ("image", "depth", "mask", "segmentation", "normals")  # values independent of the size


def resized_schema(schema: Schema, sizes: Sizes) -> Schema:
    """Return the schema with resized shapes.

    Raises `ClipError` for a feature that is unknown or cannot be resized, and for a single size if
    no feature is an image.
    """
    if not isinstance(sizes, Mapping):
        sizes = dict.fromkeys(images_of(schema), sizes)
        if not sizes:
            raise ClipError(
                "resize has one size for all images, but no feature is an image",
                expected='a dict by feature, such as {"depth": (224, 224)}',
                got=", ".join(f"{name} of kind {spec.kind}" for name, spec in schema.items()),
            )
    if unknown := [name for name in sizes if name not in schema]:
        raise ClipError(
            "resize= names a feature that is not read",
            expected=f"some of {', '.join(schema)}",
            got=", ".join(unknown),
        )
    for name, value in sizes.items():
        size: Any = value
        is_size = isinstance(size, tuple | list) and len(size) == 2
        if not is_size or not all(is_integer(side) and side >= 1 for side in size):
            raise ClipError(
                "resize is no height and width",
                feature=name,
                expected="height and width in pixels: resize=(H, W)",
                got=repr_of(size, 50),
            )
    return Schema(
        [_resize_spec(s, sizes[s.name]) if s.name in sizes else s for s in schema.values()]
    )


def images_of(schema: Schema) -> list[str]:
    """Names of the features that one size for all images applies to."""
    return [name for name, spec in schema.items() if is_smooth(spec)]


def resize_frame(spec: FeatureSpec, frame: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """Resize a stored frame into `out`, which has the shape of `spec`."""
    resize_into(frame, out, smooth=is_smooth(spec))


def temporary_frame(shape: Sequence[int], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return memory for a stored frame, possibly reused by the thread's next call."""
    count = math.prod(shape)
    if count * dtype.itemsize > MAX_BUFFER_BYTES:
        return np.empty(shape, dtype)
    return thread_buffer("stored", count, dtype).reshape(shape)


def is_smooth(spec: FeatureSpec) -> bool:
    """Whether resizing interpolates the frames of a feature."""
    return is_image(spec, known_kind(spec.name, spec, spec.kind))


def _resize_spec(spec: FeatureSpec, size: tuple[int, int]) -> FeatureSpec:
    stored = spec.stored
    kind = known_kind(stored.name, stored, stored.kind)
    expected = f"features [height, width, …] of kind {', '.join(_KINDS)}, or without a kind"
    is_refused = not has_pixels(stored) or stored.dtype.kind not in "biuf"
    if kind in ("flow", "disparity") or is_flow(stored.name, stored, kind):
        is_refused = True
        expected += f"; clip_transform={{{stored.name!r}: Resize({size})}} scales the values, too"
    elif kind is not None and kind not in _KINDS:
        is_refused = True
    elif is_image(stored, kind) and not np.can_cast(stored.dtype, np.float32):
        is_refused = True
        expected = f"images of up to 16 bits, or float32; clip_transform={{{stored.name!r}: "
        expected += f"Resize({size})}} resizes others"
    if is_refused:
        raise ClipError(
            "frames of this feature cannot be resized during decoding",
            feature=stored.name,
            expected=expected,
            got=f"kind {kind}, {str(stored).partition(': ')[2]}",
        )
    return replace(stored, shape=(*size, *stored.shape[2:]), stored_shape=stored.shape)
