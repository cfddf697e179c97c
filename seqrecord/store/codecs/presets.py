"""Named codecs: presets, and image codecs with parameters, such as `jpeg:quality=90`.

A preset maps the dtype and frame shape of a feature to a chain. docs/codecs.md has measurements,
benchmarks/tartanair/CODECS.md the alternatives that were tried.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from seqrecord.store.areas import NAMED_CODECS, load_entry
from seqrecord.store.codecs.base import named_parameters
from seqrecord.store.codecs.images import IMAGE
from seqrecord.store.schema import CodecConfig

PRESETS: tuple[str, ...] = ("raw", "fast", "balanced", "small")
"""Names of the presets, from fastest to smallest."""

_IMAGES: dict[str, tuple[CodecConfig, CodecConfig]] = {
    "png": ({"id": IMAGE, "format": "png"}, {}),
    "jpeg": ({"id": IMAGE, "format": "jpeg"}, {"quality": 90}),
    "jpegxl": ({"id": IMAGE, "format": "jpegxl"}, {}),
}
"""By name: the configuration, and the default values of its parameters."""

CODEC_NAMES: tuple[str, ...] = (*PRESETS, *_IMAGES, *NAMED_CODECS)
"""All names of codecs: presets first, those of other parts last."""

_RESTART = 16  # rows; fewer enlarge files, more take longer to sum


def named_chain(
    text: str, dtype: np.dtype[Any], shape: tuple[int | None, ...]
) -> tuple[CodecConfig, ...]:
    """Chain of a codec `NAME` or `NAME:PARAMETER=VALUE,…` for frames of this dtype and shape.

    Values are JSON and not checked here. Raises `ValueError` for an unknown name or parameter.
    """
    name, _, parameter_text = text.partition(":")
    if name not in CODEC_NAMES:
        raise ValueError(f"no codec is named {name[:50]!r}")
    if name in NAMED_CODECS:
        chain: tuple[CodecConfig, ...] = load_entry(NAMED_CODECS[name])(text, dtype, shape)
        return chain
    config, defaults = _IMAGES.get(name, ({}, {}))
    parameters = named_parameters(name, parameter_text, defaults)
    if name in PRESETS:
        return preset_chain(name, dtype, shape)
    return ({**config, **defaults, **parameters},)


def preset_chain(
    name: str, dtype: np.dtype[Any], shape: tuple[int | None, ...]
) -> tuple[CodecConfig, ...]:
    """Chain of a preset for frames of this dtype and shape; `None` is a variable dimension."""
    size = dtype.itemsize * math.prod(n for n in shape if n is not None)
    if name == "raw" or (None not in shape and size < 1024):
        return ()
    if dtype == np.uint8 and _is_grid(shape[:-1]) and shape[-1] == 3:
        return _colour(name)
    if dtype.itemsize == 1:
        return (_BYTES[name],)
    if dtype.kind == "f" and _is_grid(shape[:-1]) and shape[-1] in (2, 3, 4):
        return _flow(name, dtype.itemsize * shape[-1], _PLANES[name])
    if dtype.kind == "f" and _is_grid(shape):
        return _DEPTH[name]
    return (_NUMBERS[name],)


def _colour(name: str) -> tuple[CodecConfig, ...]:
    if name == "fast":
        return ({"id": "lz4", "acceleration": 4},)
    if name == "balanced":
        return (_rows(name), {**_lz4(shuffle=2), "typesize": 2})
    return ({"id": "seqrecord.subtract_green"}, _rows(name), {"id": "zstd", "level": 9})


def _flow(name: str, pixel: int, planes: CodecConfig) -> tuple[CodecConfig, ...]:
    width = {"width": pixel} if pixel in (4, 8) else {}
    # Without a width, neighbours along the flattened array are channels of one pixel.
    columns = {"id": "seqrecord.delta", "axis": None if width else -2, **width}
    return ({**_rows(name), **width}, columns, {"id": "seqrecord.bias"}, planes)


def _rows(name: str) -> CodecConfig:
    """Delta filter along rows, for pixels with channels."""
    restart = {} if name == "small" else {"restart": _RESTART}
    return {"id": "seqrecord.delta", "axis": -3, **restart}


def _lz4(*, shuffle: int = 1) -> CodecConfig:
    return _blosc("lz4hc", 5, shuffle=shuffle)


def _blosc(cname: str, level: int, *, shuffle: int = 1) -> CodecConfig:
    """Blosc with byte planes (`shuffle` 1) or bit planes (2), in blocks of 1 MiB."""
    params = {"cname": cname, "clevel": level, "shuffle": shuffle, "blocksize": 1 << 20}
    return {"id": "blosc", **params}


_LZ4 = _lz4()
_PLANES = {"fast": _LZ4, "balanced": _LZ4, "small": _blosc("zstd", 5)}
_NUMBERS = {**_PLANES, "balanced": _blosc("zstd", 2)}
# Masks, labels and bytes have long runs of equal values: shuffling would separate these.
_BYTES = {**dict.fromkeys(PRESETS, _lz4(shuffle=0)), "small": {"id": "zstd", "level": 9}}
_DEPTH: dict[str, tuple[CodecConfig, ...]] = {
    "fast": (_LZ4,),
    "balanced": (_LZ4,),
    "small": (
        {"id": "seqrecord.delta", "axis": None},
        {"id": "seqrecord.bias"},
        _PLANES["small"],
    ),
}
"""Compressors and chains by preset, for the last step of `preset_chain`'s rules."""


def _is_grid(shape: tuple[int | None, ...]) -> bool:
    """Whether the last two dimensions are large enough for an image's height and width."""
    return len(shape) >= 2 and all(n is None or n >= 16 for n in shape[-2:])
