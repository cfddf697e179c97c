"""Tileable procedural textures with mip levels, in one flat table for integer lookups."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["MATERIALS", "SIZE", "TextureTable", "noise", "texture_table"]

SIZE = 1024  # texels along one side of level 0
_LEVELS = 9
_QUARTER = np.float32(0.25)
_Plane = npt.NDArray[np.float32]
_Rgb = npt.NDArray[np.floating[Any]]

MATERIALS = ("brick", "concrete", "planks", "metal", "ground", "plaster", "window", "clouds")


@dataclass(frozen=True)
class TextureTable:
    """All materials and levels: texel `(row, column)` of material m, level l is at
    `start[m, l] + (row << shift[l]) + column`, with both taken modulo `1 << shift[l]`.
    """

    texels: npt.NDArray[np.uint32]  # bytes R, G, B, 0 of each texel
    start: npt.NDArray[np.int32]  # [materials, levels]
    shift: npt.NDArray[np.int32]  # [levels], log2 of the side


def noise(
    rng: np.random.Generator, *, slope: float, stretch: float = 1.0, size: int = SIZE
) -> _Plane:
    """Tileable noise with amplitude `1 / frequency**slope`, zero mean and unit variance.

    `stretch` above 1 draws it out along the rows' direction (downwards), as wood grain is.
    """
    rows = np.fft.fftfreq(size)[:, None] * size * stretch
    columns = np.fft.rfftfreq(size) * size
    frequency = np.hypot(rows, columns)
    frequency[0, 0] = np.inf
    spectrum = np.fft.rfft2(rng.standard_normal((size, size))) / frequency**slope
    plane = np.fft.irfft2(spectrum, s=(size, size))
    return np.asarray(plane / plane.std(), np.float32)


@functools.cache
def texture_table() -> TextureTable:
    """The table of all `MATERIALS`, the same in every scene: scenes tint them."""
    texels: list[npt.NDArray[np.uint32]] = []
    start = np.empty((len(MATERIALS), _LEVELS), np.int32)
    position = 0
    for material, name in enumerate(MATERIALS):
        rgb = _PAINTERS[name](np.random.default_rng([0x7E87, material]))
        for level in range(_LEVELS):
            start[material, level] = position
            texels.append(_pack(rgb))
            position += texels[-1].size
            rgb = (rgb[::2, ::2] + rgb[1::2, ::2] + rgb[::2, 1::2] + rgb[1::2, 1::2]) * _QUARTER
    shift = np.arange(10, 10 - _LEVELS, -1, dtype=np.int32)
    return TextureTable(np.concatenate(texels), start, shift)


def _pack(rgb: _Rgb) -> npt.NDArray[np.uint32]:
    packed = np.zeros((*rgb.shape[:2], 4), np.uint8)
    packed[..., :3] = np.clip(rgb, 0, 255)
    texels: npt.NDArray[np.uint32] = packed.view(np.uint32).ravel()
    return texels


def _grid() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    return np.arange(SIZE)[:, None], np.arange(SIZE)[None, :]


def _paint(
    base: tuple[float, float, float], *layers: tuple[_Plane, tuple[int, int, int]]
) -> npt.NDArray[np.float32]:
    """A base colour plus planes, each times its own colour."""
    rgb = np.empty((SIZE, SIZE, 3), np.float32)
    rgb[:] = base
    for plane, colour in layers:
        rgb += plane[..., None] * np.array(colour, np.float32)
    return rgb


def _brick(rng: np.random.Generator) -> _Rgb:
    rows, columns = _grid()
    course = rows // 16
    across = columns + (course % 2) * 24 + (course * 7) % 5
    brick = (across // 48) % 21
    tone = rng.standard_normal((SIZE // 16, 21)).astype(np.float32)[course, brick]
    warm = rng.standard_normal((SIZE // 16, 21)).astype(np.float32)[course, brick]
    rgb = _paint(
        (128, 84, 62),
        (tone, (24, 18, 14)),
        (warm, (10, 0, -8)),
        (noise(rng, slope=1.3), (10, 9, 8)),
        (noise(rng, slope=0.6), (12, 11, 10)),
    )
    joint = (rows % 16 < 2) | (across % 48 < 2)
    shadow = (rows % 16 == 15) | (across % 48 == 47)
    mortar = 96 + 10 * noise(rng, slope=0.7)[..., None]
    return np.where(joint[..., None], mortar, np.where(shadow[..., None], rgb * 0.6, rgb))


def _concrete(rng: np.random.Generator) -> _Rgb:
    rows, columns = _grid()
    streaks = noise(rng, slope=1.2, stretch=0.15)
    rgb = _paint(
        (132, 128, 120),
        (noise(rng, slope=1.5), (16, 16, 15)),
        (streaks, (8, 8, 9)),
        (noise(rng, slope=0.5), (9, 9, 9)),
    )
    pores = noise(rng, slope=0.4) > 2.6
    seam = (rows % 512 < 3) | (columns % 512 < 3)
    return np.where((seam | pores)[..., None], rgb * 0.55, rgb)


def _planks(rng: np.random.Generator) -> _Rgb:
    rows, columns = _grid()
    plank = columns // 64
    tone = rng.standard_normal(SIZE // 64).astype(np.float32)[plank] + np.zeros_like(rows)
    grain = noise(rng, slope=0.9, stretch=9.0)
    rgb = _paint(
        (134, 104, 72),
        (tone.astype(np.float32), (16, 13, 10)),
        (grain, (20, 17, 13)),
        (noise(rng, slope=0.5), (6, 6, 5)),
        (noise(rng, slope=1.5), (8, 8, 8)),
    )
    nails = ((rows % 256 - 20) ** 2 + (columns % 64 - 14) ** 2) < 9
    gap = columns % 64 < 3
    return np.where(gap[..., None], rgb * 0.3, np.where(nails[..., None], rgb * 0.45, rgb))


def _metal(rng: np.random.Generator) -> _Rgb:
    _, columns = _grid()
    ridges = np.sin(2 * np.pi * columns / 32).astype(np.float32) + np.zeros((SIZE, 1), np.float32)
    rgb = _paint(
        (120, 130, 136),
        (ridges, (22, 22, 22)),
        (noise(rng, slope=1.4), (9, 9, 9)),
        (noise(rng, slope=0.5), (6, 6, 6)),
    )
    blotches = noise(rng, slope=1.5, stretch=0.6) + 0.25 * noise(rng, slope=0.6)
    rust = np.clip((blotches - 0.9) * 2.5, 0, 0.85)[..., None]
    rusty = _paint((104, 58, 30), (noise(rng, slope=0.6), (18, 13, 9)), (ridges, (12, 8, 6)))
    return rgb * (1 - rust) + rusty * rust


def _ground(rng: np.random.Generator) -> _Rgb:
    rgb = _paint(
        (118, 106, 90),
        (noise(rng, slope=1.6), (14, 12, 9)),
        (noise(rng, slope=0.45), (15, 14, 13)),
    )
    pebbles = np.clip(noise(rng, slope=1.0) - 1.4, 0, 1)[..., None]
    cracks = np.abs(noise(rng, slope=1.7)) < 0.02
    return np.where(cracks[..., None], rgb * 0.5, rgb + 60 * pebbles)


def _plaster(rng: np.random.Generator) -> _Rgb:
    rgb = _paint(
        (172, 162, 140),
        (noise(rng, slope=1.5), (12, 12, 12)),
        (noise(rng, slope=0.55), (7, 7, 7)),
    )
    peeled = noise(rng, slope=1.7) + 0.12 * noise(rng, slope=0.8) > 1.1
    edge = peeled & ~np.roll(peeled, (2, 2), (0, 1))
    bare = _paint((122, 108, 92), (noise(rng, slope=0.6), (16, 14, 12)))
    return np.where(edge[..., None], rgb * 0.5, np.where(peeled[..., None], bare, rgb))


def _window(rng: np.random.Generator) -> _Rgb:
    rows, columns = _grid()
    pane = rng.standard_normal((8, 8)).astype(np.float32)[rows // 128, columns // 128]
    sheen = (((rows % 128) + (columns % 128)) / 128 - 1).astype(np.float32)
    rgb = _paint(
        (46, 58, 70),
        (pane, (10, 13, 17)),
        (sheen, (10, 13, 18)),
        (noise(rng, slope=1.6), (8, 9, 10)),
        (noise(rng, slope=0.5), (4, 4, 4)),
    )
    bar = (rows % 128 < 12) | (columns % 128 < 12)
    frame = _paint((128, 124, 112), (noise(rng, slope=0.7), (12, 11, 9)))
    return np.where(bar[..., None], frame, rgb)


def _clouds(rng: np.random.Generator) -> _Rgb:
    cover = np.clip(noise(rng, slope=1.8) * 0.4 + 0.4, 0, 1)
    return _paint((112, 150, 196), (cover, (118, 86, 46)))


_PAINTERS = {
    "brick": _brick,
    "concrete": _concrete,
    "planks": _planks,
    "metal": _metal,
    "ground": _ground,
    "plaster": _plaster,
    "window": _window,
    "clouds": _clouds,
}
