"""What a user gives for a feature of a frame, as the bytes that are stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import CodecError, FrameError
from seqrecord.format.pages import Blob, PageCodec
from seqrecord.schema import EncodedImage, FeatureSpec

__all__ = ["Encoder", "check_value", "encoder", "video_encoder"]

Encoder: TypeAlias = "Callable[[npt.ArrayLike | EncodedImage], Blob]"
"""Encodes one frame of one feature. Raises `FrameError` for what does not fit the feature."""


def encoder(codec: PageCodec) -> Encoder:
    """Encodes frames of the feature of `codec`: arrays, `str`, or `bytes` and what is like them."""
    spec = codec.spec
    if spec.value == "array":
        if spec.is_raw and spec.dtype != np.bool_:
            return _raw_encoder(codec)
        return codec.encode_frame
    data_of = _text if spec.value == "text" else _bytes

    def encode(item: Any) -> Blob:
        return codec.encode_frame(np.frombuffer(data_of(spec, item), np.uint8))

    return encode


def video_encoder(spec: FeatureSpec) -> Encoder:
    """Checks frames of video; their blobs are the pixels, which are encoded later, many at once."""

    def check(item: Any) -> Blob:
        array = _fitting(spec, item)
        return Blob(array.astype(spec.dtype, copy=False).tobytes(), array.shape)

    return check


def check_value(spec: FeatureSpec, item: Any) -> None:
    """`FrameError` for a value that a feature cannot hold; no array is encoded to find that out."""
    if spec.value == "array" and (spec.is_video or not isinstance(item, EncodedImage)):
        array = _fitting(spec, item)
        if array.dtype == np.bool_ and array.view(np.uint8).max(initial=0) > 1:
            raise FrameError("a bool that is neither 0 nor 1", feature=spec.name)
        return
    try:
        encoder(PageCodec(spec))(item)
    except CodecError as error:
        raise FrameError(error.message, **error.facts()) from error


def _fitting(spec: FeatureSpec, item: Any) -> npt.NDArray[Any]:
    """An array of the feature's dtype, in either byte order, and shape."""
    array = np.asarray(item)
    if array.dtype.newbyteorder("<") != spec.dtype or not spec.accepts(array.shape):
        raise FrameError(
            "an array does not fit its feature",
            feature=spec.name,
            expected=spec,
            got=f"{array.dtype} {list(array.shape)}",
        )
    return array


def _raw_encoder(codec: PageCodec) -> Encoder:
    """As `PageCodec.encode_frame`, but that an array which is as it is stored is copied at once."""
    dtype = codec.spec.dtype
    shape = tuple(n or 0 for n in codec.spec.shape)

    def encode(item: Any) -> Blob:
        if type(item) is np.ndarray and item.dtype == dtype and item.shape == shape:
            return Blob(item.tobytes(), shape)
        return codec.encode_frame(item)

    return encode


def _text(spec: FeatureSpec, item: object) -> bytes:
    if not isinstance(item, str):
        raise _misfit(spec, "str", item)
    try:
        return item.encode()
    except UnicodeEncodeError as error:
        raise FrameError(
            "text that UTF-8 cannot hold", feature=spec.name, expected="Unicode", got=str(error)
        ) from error


def _bytes(spec: FeatureSpec, item: object) -> bytes:
    if isinstance(item, np.ndarray) and (item.dtype != np.uint8 or item.ndim != 1):
        raise _misfit(spec, "bytes, or uint8 [n]", item)
    if not isinstance(item, (bytes, bytearray, memoryview, np.ndarray)):
        raise _misfit(spec, "bytes", item)
    return bytes(item)


def _misfit(spec: FeatureSpec, expected: str, item: object) -> FrameError:
    got = type(item).__name__
    if isinstance(item, np.ndarray):
        got = f"{item.dtype} {list(item.shape)}"
    return FrameError(
        "a value does not fit its feature", feature=spec.name, expected=expected, got=got
    )
