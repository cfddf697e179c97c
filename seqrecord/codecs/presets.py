"""Presets: names for chains that depend on a feature's dtype and frame shape.

docs/codecs.md has the measurements that the choices come from, and says what else was tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["PRESETS", "CodecConfig", "preset_chain"]

CodecConfig = Mapping[str, Any]
"""A codec as its JSON configuration: `{"id": "zstd", "level": 1}`."""

PRESETS: tuple[str, ...] = ("raw", "fast", "balanced", "small")
"""Names of chains that depend on dtype and shape, from the fastest to the smallest."""

_RESTART = 16  # rows: fewer make larger files, more take longer to sum


def preset_chain(
    name: str, dtype: np.dtype[Any], shape: tuple[int | None, ...]
) -> tuple[CodecConfig, ...]:
    """The chain that a preset means for frames of this dtype and shape; `None` varies."""
    size = dtype.itemsize * math.prod(n for n in shape if n is not None)
    if name == "raw" or (None not in shape and size < 1024):
        return ()
    if dtype == np.uint8 and _is_grid(shape[:-1]) and shape[-1] == 3:
        return _colour(name)
    if dtype.itemsize == 1:  # masks, labels, bytes: whole runs repeat
        return ({"id": "zstd", "level": 9} if name == "small" else _lz4(shuffle=0),)
    planes = _blosc("zstd", 5) if name == "small" else _lz4()
    if dtype.kind == "f" and _is_grid(shape[:-1]) and shape[-1] in (2, 3, 4):
        return _flow(name, dtype.itemsize * shape[-1], planes)
    if dtype.kind == "f" and _is_grid(shape):  # depth
        columns = {"id": "seqrecord.delta", "axis": None}
        return (columns, {"id": "seqrecord.bias"}, planes) if name == "small" else (planes,)
    return (_blosc("zstd", 2) if name == "balanced" else planes,)


def _colour(name: str) -> tuple[CodecConfig, ...]:
    if name == "fast":
        return ({"id": "lz4", "acceleration": 4},)
    if name == "balanced":
        return (_rows(name), {**_lz4(shuffle=2), "typesize": 2})
    return ({"id": "seqrecord.subtract_green"}, _rows(name), {"id": "zstd", "level": 9})


def _flow(name: str, pixel: int, planes: CodecConfig) -> tuple[CodecConfig, ...]:
    width = {"width": pixel} if pixel in (4, 8) else {}
    # Without a width, neighbours along the flattened array would be channels of one pixel.
    columns = {"id": "seqrecord.delta", "axis": None if width else -2, **width}
    return ({**_rows(name), **width}, columns, {"id": "seqrecord.bias"}, planes)


def _rows(name: str) -> CodecConfig:
    """Differences from the row above, of pixels with channels."""
    restart = {} if name == "small" else {"restart": _RESTART}
    return {"id": "seqrecord.delta", "axis": -3, **restart}


def _lz4(*, shuffle: int = 1) -> CodecConfig:
    return _blosc("lz4hc", 5, shuffle=shuffle)


def _blosc(cname: str, level: int, *, shuffle: int = 1) -> CodecConfig:
    """Blosc with byte planes (`shuffle` 1) or bit planes (2), in blocks of 1 MiB."""
    params = {"cname": cname, "clevel": level, "shuffle": shuffle, "blocksize": 1 << 20}
    return {"id": "blosc", **params}


def _is_grid(shape: tuple[int | None, ...]) -> bool:
    """Whether the last two axes are long enough to be an image's height and width."""
    return len(shape) >= 2 and all(n is None or n >= 16 for n in shape[-2:])
