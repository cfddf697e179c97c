"""TIFF files of every byte order, compression, predictor and layout, from known pixels."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import imagecodecs
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

RAW, LZW, DEFLATE, PACKBITS = 1, 5, 8, 32773
"""Values of the tag Compression."""

_KINDS = {"u": 1, "i": 2, "f": 3}
_COMPRESS: dict[int, Any] = {
    RAW: bytes,
    LZW: imagecodecs.lzw_encode,
    DEFLATE: zlib.compress,
    PACKBITS: imagecodecs.packbits_encode,
}


def tiff_file(
    pixels: Array,
    order: str = "<",
    *,
    compression: int = RAW,
    predictor: int = 1,
    has_planes: bool = False,
    rows: int | None = None,
    tile: int | None = None,
    **more: Sequence[int],
) -> bytes:
    """A file of pixels [H, W] or [H, W, C], in strips of `rows` or square tiles of a side.

    `more` are other tags by number, `t338=[0]`; an empty list leaves the tag out.
    """
    whole = pixels.reshape(*pixels.shape[:2], -1)
    height, width, channels = whole.shape
    planes = [whole[..., i : i + 1] for i in range(channels)] if has_planes else [whole]
    parts = [part for plane in planes for part in _parts(plane, rows, tile)]
    blobs = [bytes(_COMPRESS[compression](_predicted(p, predictor, order))) for p in parts]
    blobs = [blob + b"\0" * (len(blob) % 2) for blob in blobs]
    offsets = (8 + np.cumsum([0, *map(len, blobs)])).tolist()
    sizes = [len(blob) for blob in blobs]
    tags: dict[int, list[int]] = {
        256: [width],
        257: [height],
        258: [8 * pixels.itemsize] * channels,
        259: [compression],
        262: [2 if channels > 2 else 1],
        277: [channels],
        284: [1 + has_planes],
        317: [predictor],
        339: [_KINDS[pixels.dtype.kind]] * channels,
    }
    if tile is None:
        tags |= {273: offsets[:-1], 278: [rows or height], 279: sizes}
    else:
        tags |= {322: [tile], 323: [tile], 324: offsets[:-1], 325: sizes}
    tags |= {338: [2]} if channels in (2, 4) else {}
    tags |= {int(name[1:]): [*values] for name, values in more.items()}
    tags = {tag: values for tag, values in tags.items() if values}
    return _joined(b"".join(blobs), tags, order)


def _parts(plane: Array, rows: int | None, tile: int | None) -> list[Array]:
    height, width = plane.shape[:2]
    if tile is None:
        rows = rows or height
        return [plane[y : y + rows] for y in range(0, height, rows)]
    padded = np.pad(plane, [(0, -height % tile), (0, -width % tile), (0, 0)])
    places = [(y, x) for y in range(0, height, tile) for x in range(0, width, tile)]
    return [padded[y : y + tile, x : x + tile] for y, x in places]


def _predicted(part: Array, predictor: int, order: str) -> bytes:
    part = np.ascontiguousarray(part)
    if predictor == 1:
        return part.astype(part.dtype.newbyteorder(order)).tobytes()  # type: ignore[arg-type]
    if predictor == 2:
        numbers = part.view(f"u{part.itemsize}")
        numbers = np.concatenate([numbers[:, :1], numbers[:, 1:] - numbers[:, :-1]], axis=1)
        return numbers.astype(numbers.dtype.newbyteorder(order)).tobytes()  # type: ignore[arg-type]
    height, width, channels = part.shape
    planes = part.astype(part.dtype.newbyteorder(">")).view("u1")
    planes = planes.reshape(height, width * channels, -1).transpose(0, 2, 1).reshape(height, -1)
    left, right = planes[:, :channels], planes[:, channels:] - planes[:, :-channels]
    return np.concatenate([left, right], axis=1).tobytes()


def _joined(body: bytes, tags: dict[int, list[int]], order: str) -> bytes:
    place = 8 + len(body)
    entries, far, after = b"", b"", place + 2 + 12 * len(tags) + 4
    for tag, numbers in sorted(tags.items()):
        value = struct.pack(f"{order}{len(numbers)}I", *numbers)
        code = 4
        if tag not in (273, 279, 324, 325):
            value, code = struct.pack(f"{order}{len(numbers)}H", *numbers), 3
        if len(value) > 4:
            value, far = (
                struct.pack(f"{order}I", after + len(far)),
                far + value + b"\0" * (len(value) % 4),
            )
        entries += struct.pack(f"{order}HHI", tag, code, len(numbers)) + value.ljust(4, b"\0")
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", place)
    return head + body + struct.pack(f"{order}H", len(tags)) + entries + b"\0\0\0\0" + far
