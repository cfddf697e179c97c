"""Pictures of a page: frames as small colored tiles, and an episode's tiles as one sprite."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, features

from seqrecord.store.text import number_text
from seqrecord.tools.viewer.kinds import NEUTRAL, Kind, flow_colours
from seqrecord.tools.viewer.scales import (
    depth_range,
    is_logarithmic,
    label_colours,
    longest_flow,
    value_range,
)

Array = npt.NDArray[Any]
Tile = npt.NDArray[np.uint8]

PICTURE_KINDS = frozenset({"picture", "depth", "labels", "scale", "flow"})

SPRITE_COLUMNS = 8
_MAX_SIDE = 2_000  # of a tile: WebP has at most 16,383 pixels a side
_FORMAT = "WEBP" if features.check("webp") else "JPEG"
_QUALITIES = (75, 55, 35, 20)
_LEGEND_PIXELS = 128

# 17 evenly spaced colors of matplotlib's `inferno`, which is in the public domain (CC0).
_RAMP = np.array(
    [(0, 0, 4), (11, 7, 36), (33, 12, 74), (61, 9, 101), (87, 16, 110), (113, 25, 110),
     (138, 34, 106), (163, 44, 97), (188, 55, 84), (210, 70, 68), (228, 90, 49), (241, 115, 29),
     (249, 142, 9), (252, 172, 17), (249, 203, 53), (242, 234, 105), (252, 255, 164)],
    np.float32,
)  # fmt: skip


@dataclass(frozen=True)
class PictureScale:
    """Maps frames of a feature to colors, the same in all episodes of a page.

    `low` and `high` are the ends of the scale; `high` alone is the length of flow with full color.
    """

    kind: Kind
    low: float = 0.0
    high: float = 0.0
    unit: str | None = None
    is_cut: bool = False

    @classmethod
    def of(cls, kind: Kind, frames: Sequence[Array], unit: str | None) -> PictureScale:
        """Fit the scale to a sample of the feature's frames."""
        if kind == "depth":
            low, high, is_cut = depth_range(frames)
            return cls(kind, low, high, unit, is_cut)
        if kind == "scale":
            return cls(kind, *value_range(frames), unit)
        return cls(kind, 0.0, longest_flow(frames) if kind == "flow" else 0.0, unit)

    def colours(self, frame: Array) -> Tile:
        """Colors of a frame: uint8 [H, W, 3]."""
        if self.kind == "flow":
            return flow_colours(frame, self.high)
        if self.kind == "labels":
            return label_colours(frame)
        if self.kind in ("depth", "scale"):
            return self._ramp(np.asarray(frame, np.float32))
        picture = np.asarray(frame)
        if picture.ndim == 2:
            picture = picture[..., None]
        return np.ascontiguousarray(np.broadcast_to(picture[..., :3], (*picture.shape[:2], 3)))

    def legend(self) -> dict[str, Any] | None:
        """The scale as an image from low to high and its labels; `None` for colors as they are."""
        if self.kind not in ("depth", "scale", "flow"):
            return None
        unit = f" {self.unit}" if self.unit else ""
        if self.kind == "flow":
            across, down = np.meshgrid(*[np.linspace(-1, 1, _LEGEND_PIXELS)] * 2)
            wheel = flow_colours(np.stack([across, down], axis=-1), 1.0)
            wheel[np.hypot(across, down) > 1] = 255
            labels = ["white: no motion", f"full color: {number_text(self.high)}{unit} a frame"]
            return {"src": data_url(wheel), "labels": labels, "wheel": True}
        steps = np.linspace(0, 1, _LEGEND_PIXELS)
        is_log = self.kind == "depth" and is_logarithmic(self.low, self.high)
        middle = math.sqrt(self.low * self.high) if is_log else (self.low + self.high) / 2
        values = [number_text(value) + unit for value in (self.low, middle, self.high)]
        values[2] += " and more" if self.is_cut else ""
        strip = self._shade(steps)[None].repeat(8, axis=0)
        return {"src": data_url(strip), "labels": values, "wheel": False}

    def _ramp(self, frame: npt.NDArray[np.float32]) -> Tile:
        is_known = np.isfinite(frame)
        low, high = self.low, self.high if self.high > self.low else self.low + 1
        if self.kind == "depth":
            is_known &= frame > 0
            if is_logarithmic(low, high):
                frame = np.log(np.where(is_known, frame, low))
                low, high = math.log(low), math.log(high)
        share = (np.where(is_known, frame, low) - low) / (high - low)
        tile = self._shade(share)
        tile[~is_known] = NEUTRAL
        return tile

    def _shade(self, share: Array) -> Tile:
        """Colors at places on the scale, from 0 to 1; near depths are bright."""
        share = np.clip(share, 0, 1) * (len(_RAMP) - 1)
        if self.kind == "depth":
            share = len(_RAMP) - 1 - share
        below = np.minimum(share.astype(np.intp), len(_RAMP) - 2)
        part = (share - below)[..., None]
        mixed = _RAMP[below] * (1 - part) + _RAMP[below + 1] * part
        shades: Tile = (mixed + 0.5).astype(np.uint8)
        return shades


def resized(tile: Tile, size: tuple[int, int], *, smooth: bool) -> Tile:
    """Resize a tile to height and width."""
    if tile.shape[:2] == size:
        return tile
    image = Image.fromarray(tile)
    method = Image.Resampling.BOX if smooth else Image.Resampling.NEAREST
    return np.asarray(image.resize(size[::-1], method))


def tile_size(height: int, width: int, pixels: int) -> tuple[int, int]:
    """Height and width of a tile with at most so many pixels, without enlarging."""
    side = max(1, height, width)
    factor = min(1.0, _MAX_SIDE / side, math.sqrt(pixels / max(1, height * width)))
    return max(1, round(height * factor)), max(1, round(width * factor))


def pixel_bytes(tiles: Sequence[Tile]) -> float:
    """Size of a pixel if these pictures are an encoded sprite in the page."""
    sizes = [len(encoded_url(data)) for tile in tiles if (data := encode_sprite([tile], 1 << 30))]
    pixels = sum(tile.shape[0] * tile.shape[1] for tile in tiles)
    return float(max(sum(sizes) / max(pixels, 1), 0.01))


def encode_sprite(tiles: Sequence[Tile], limit: int) -> bytes | None:
    """Encode tiles of one size side by side, in rows of 8, in at most `limit` bytes.

    Lowers the quality as necessary; `None` if that does not suffice.
    """
    height, width = tiles[0].shape[:2]
    columns = min(SPRITE_COLUMNS, len(tiles))
    rows = -(-len(tiles) // columns)
    sprite = np.zeros((rows * height, columns * width, 3), np.uint8)
    for i, tile in enumerate(tiles):
        y, x = divmod(i, columns)
        sprite[y * height : (y + 1) * height, x * width : (x + 1) * width] = tile
    image = Image.fromarray(sprite)
    for quality in _QUALITIES:
        file = io.BytesIO()
        image.save(file, _FORMAT, quality=quality, **({"method": 2} if _FORMAT == "WEBP" else {}))
        if file.tell() <= limit:
            return file.getvalue()
    return None


SPRITE_SUFFIX = f".{_FORMAT.lower()}"


def encoded_url(data: bytes) -> str:
    """A `data:` URL of an encoded sprite."""
    return f"data:image/{_FORMAT.lower()};base64,{base64.b64encode(data).decode()}"


def data_url(picture: Tile) -> str:
    """A `data:` URL of a small picture, lossless."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
