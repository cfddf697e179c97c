"""Conversion of frame values to NumPy arrays, without loss."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from seqrecord.errors import FrameError
from seqrecord.store.bfloat16 import as_array
from seqrecord.store.codecs.exif import check_single, orientation_of
from seqrecord.store.schema import EncodedImage, Frame
from seqrecord.store.text import repr_of
from seqrecord.store.value_kinds import object_kind

_AS_THEY_ARE = (np.ndarray, str, bytes, EncodedImage)
_BUFFERS = (str, bytes, bytearray, memoryview, EncodedImage)


def plain(item: Any, feature: str) -> Any:
    """Convert a value for the writer: to an array, text, bytes, or a source's own value.

    Raises `FrameError` for a value whose conversion would lose data: a masked array, or a tensor
    with a gradient, on another device, or of a layout or dtype that NumPy lacks.
    """
    if type(item) in _AS_THEY_ARE or isinstance(item, _BUFFERS):
        return item
    if item is None or not _is_array_like(item):
        return item  # a source's own value, or refused later
    if _is_masked(item):
        raise _refusal(
            "masked array would lose its mask", feature, item,
            "an array: value.filled(0), and np.ma.getmaskarray(value) as a separate feature",
        )  # fmt: skip
    if remedy := _remedy_of_tensor(item) or _remedy_of_picture(item):
        raise _refusal("value needs a conversion to a NumPy array", feature, item, remedy)
    try:
        array = as_array(item)
    except Exception as error:  # from its `__array__`
        remedy = "an array: convert the value with its own library"
        problem, why = "value cannot be converted to a NumPy array", str(error)[:200]
        raise _refusal(
            problem, feature, item, remedy, f": {type(error).__name__}: {why}"
        ) from error
    return array


def plain_frame(frame: Frame) -> Frame:
    """Convert the values of a frame, see `plain`.

    Raises `FrameError` for a frame that is not a dict, or has no features.
    """
    if not isinstance(frame, Mapping):
        raise FrameError(
            "frame is not a dict",
            expected='arrays by feature, such as {"image": image}',
            got=type(frame).__name__,
        )
    if not frame:
        raise FrameError("frame without features; append a frame with at least one, or skip it")
    return {name: plain(item, name) for name, item in frame.items()}


def plain_items(items: Iterable[Any], feature: str) -> list[Any]:
    """Convert the values of several frames, see `plain`; most need no conversion."""
    return [i if type(i) in _AS_THEY_ARE else plain(i, feature) for i in items]


def copied_value(item: Any) -> Any:
    """A copy of a value, unless it is immutable."""
    if isinstance(item, EncodedImage):
        return EncodedImage(bytes(item.data))  # perhaps a bytearray
    kind = None if isinstance(item, np.ndarray) else object_kind(item)
    return np.array(item) if kind is None else kind.copied(item)


def nbytes_of(item: Any) -> int:
    """Size of a value in bytes; of text, its characters."""
    if isinstance(item, EncodedImage):
        return len(item.data)
    return len(item) if isinstance(item, (str, bytes)) else int(np.asarray(item).nbytes)


def _is_array_like(item: Any) -> bool:
    """False for values that only sources yield: references, or blocks of video."""
    return isinstance(item, (np.ndarray, np.generic, list, tuple, int, float, complex)) or any(
        hasattr(item, name) for name in ("__array__", "__array_interface__", "__dlpack__")
    )


def _is_masked(item: Any) -> bool:
    """Whether this is a masked array, or a list with one."""
    if not isinstance(item, (list, tuple)):
        return isinstance(item, np.ma.MaskedArray)
    types = {*map(type, item)}
    if any(issubclass(kind, np.ma.MaskedArray) for kind in types):
        return True
    return not types.isdisjoint((list, tuple)) and any(map(_is_masked, item))


def _remedy_of_tensor(item: Any) -> str:
    """Expression that converts a Torch tensor which NumPy does not accept; empty for other
    values."""
    torch = sys.modules.get("torch")  # writing does not import it
    if torch is None or not isinstance(item, torch.Tensor):
        return ""
    steps = {
        ".detach()": item.requires_grad,
        ".dequantize()": item.is_quantized,
        ".to_dense()": item.layout != torch.strided,
        ".cpu()": item.device.type not in ("cpu", "meta"),
        ".resolve_conj()": item.is_conj(),
        ".resolve_neg()": item.is_neg(),
        ".float()": item.dtype.is_floating_point
        and item.dtype not in (torch.bfloat16, torch.float16, torch.float32, torch.float64),
        ".to(torch.complex64)": item.dtype == getattr(torch, "complex32", None),
    }
    calls = "".join(step for step, is_needed in steps.items() if is_needed)
    if item.device.type == "meta":
        return "a tensor with values, not on the meta device"
    return f"value{calls}" if calls else ""


def _remedy_of_picture(item: Any) -> str:
    """Expression that converts a Pillow image with an orientation or several frames; else empty."""
    pillow = sys.modules.get("PIL.Image")
    if pillow is None or not isinstance(item, pillow.Image):
        return ""
    try:
        check_single(item)
    except ValueError as error:
        return str(error)
    if item.format != "TIFF" and orientation_of(item) != 1:
        return "PIL.ImageOps.exif_transpose(value), or np.asarray(value) for the stored pixels"
    return ""


def _refusal(message: str, feature: str, item: Any, expected: str, reason: str = "") -> FrameError:
    dtype = getattr(item, "dtype", None)
    got = type(item).__name__ + ("" if dtype is None else f" of {repr_of(dtype, 60)}")
    return FrameError(message, feature=feature, expected=expected, got=got + reason)
