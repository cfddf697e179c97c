"""What a camera sees of a `Scene`: colour, depth and segmentation."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.tartanair.camera import FloatArray, Intrinsics
from benchmarks.tartanair.casting import Hits, Rays, camera_rays, cast
from benchmarks.tartanair.geometry import SKY, Faces, Float32
from benchmarks.tartanair.scene import Scene
from benchmarks.tartanair.textures import texture_table

__all__ = ["Rendering", "render"]

_SKY_RADIUS = 40_000.0  # metres; the real engine's sky sphere is about this far
_SOFTNESS = 1.0  # 2 halves the detail of all textures
_GRAIN = 0.4  # of 255; with the softness it sets how well frames compress
_HAZE = 1 / 140.0  # per metre
_HAZE_COLOUR = {False: (214.0, 214.0, 210.0), True: (60.0, 56.0, 50.0)}
_EXPOSURE = 1.15
_GRAIN_MARGIN = 64

_Int32 = npt.NDArray[np.int32]


class Rendering(NamedTuple):
    rgb: npt.NDArray[np.uint8]  # [H, W, 3]
    depth: npt.NDArray[np.float32]  # [H, W], metres along the optical axis; float16's values
    seg: npt.NDArray[np.uint8]  # [H, W], one number per object


def render(scene: Scene, pose: FloatArray, intrinsics: Intrinsics) -> Rendering:
    """What a camera at `pose` sees. Pure: the film grain is drawn from the pose, too."""
    rays = camera_rays(intrinsics)
    hits = cast(scene.room, scene.faces, pose, intrinsics)
    depth = hits.distance
    if not scene.room.roofed:
        depth = np.where(hits.face == SKY, np.float32(_SKY_RADIUS) / rays.length, depth)
    return Rendering(
        _shade(scene, hits, rays, intrinsics, pose),
        depth.astype(np.float16).astype(np.float32),
        scene.faces.label[hits.face],
    )


@functools.lru_cache(maxsize=4)
def _film(intrinsics: Intrinsics) -> tuple[Float32, Float32]:
    """Brightness towards the corners [H, W], and grain [3, H + margin, W + margin]."""
    rng = np.random.default_rng(0x6A1)
    vignette = _EXPOSURE * camera_rays(intrinsics).length ** np.float32(-0.5)
    shape = (intrinsics.height + _GRAIN_MARGIN, intrinsics.width + _GRAIN_MARGIN)
    grain = rng.standard_normal((1, *shape)) * 0.8 + rng.standard_normal((3, *shape)) * 0.6
    return vignette.astype(np.float32), (grain * _GRAIN).astype(np.float32)


def _shade(
    scene: Scene, hits: Hits, rays: Rays, intrinsics: Intrinsics, pose: FloatArray
) -> npt.NDArray[np.uint8]:
    texel = _textures(scene.faces, hits, rays, intrinsics)
    light = _light(scene, hits)
    vignette, grain = _film(intrinsics)
    light *= vignette
    clear = np.exp(hits.distance * np.float32(-_HAZE))
    light *= clear
    clear -= 1
    clear *= -vignette
    # The grain's table is shifted by an amount drawn from the pose, so that it moves with time.
    shift = zlib.crc32(np.ascontiguousarray(pose, np.float64).tobytes())
    down, across = shift % _GRAIN_MARGIN, (shift >> 8) % _GRAIN_MARGIN
    height, width = light.shape
    rgb = np.empty((height, width, 3), np.uint8)
    for channel, haze in enumerate(_HAZE_COLOUR[scene.room.roofed]):
        value = texel[channel]
        value *= scene.faces.tint[:, channel][hits.face]
        value *= light
        value += clear * np.float32(haze)
        value += grain[channel, down : down + height, across : across + width]
        np.clip(value, 0, 255, out=value)
        rgb[..., channel] = value
    return rgb


def _textures(faces: Faces, hits: Hits, rays: Rays, intrinsics: Intrinsics) -> list[Float32]:
    """Red, green and blue of the textures at the hits, [H, W] each."""
    table = texture_table()
    scale = faces.texels_per_metre[hits.face]
    # Texels per pixel, squared, and stretched by how slanted the surface is seen.
    footprint = hits.distance * scale
    footprint *= np.float32(1 / intrinsics.fx)
    footprint *= footprint
    footprint *= hits.slant
    footprint *= rays.length
    footprint *= np.float32(2 * _SOFTNESS**2)
    exponent = (footprint.view(np.int32) >> 23) - 127  # log2
    levels = len(table.shift)
    level = np.clip(exponent >> 1, 0, levels - 1)
    shift = table.shift[level]
    # The face's number moves the texture, so that equal boxes do not look the same.
    u = hits.u * scale
    u += hits.face * np.float32(61)
    v = hits.v * scale
    reduction = np.exp2(-np.arange(levels, dtype=np.float32))[level]
    u *= reduction
    v *= reduction
    start = table.start[faces.material].ravel()[hits.face * levels + level]
    return _bilinear(
        lambda row, column: table.texels[start + (row << shift) + column].view(np.uint8),
        v,
        u,
        wrap=(1 << shift) - 1,
    )


def _bilinear(
    fetch: Callable[[_Int32, _Int32], npt.NDArray[np.uint8]], v: Float32, u: Float32, wrap: _Int32
) -> list[Float32]:
    """Mix the four texels around `v, u`; `fetch` gives their bytes as [H, 4 W]."""
    u -= 0.5
    v -= 0.5
    below, left = np.floor(v), np.floor(u)
    v -= below
    u -= left
    row, column = below.astype(np.int32), left.astype(np.int32)
    row_next, column_next = (row + 1) & wrap, (column + 1) & wrap
    row &= wrap
    column &= wrap
    corners = [
        fetch(row, column),
        fetch(row, column_next),
        fetch(row_next, column),
        fetch(row_next, column_next),
    ]
    mixed = []
    for channel in range(3):
        a, b, c, d = (corner[:, channel::4].astype(np.float32) for corner in corners)
        b -= a
        b *= u
        a += b
        d -= c
        d *= u
        c += d
        c -= a
        c *= v
        a += c
        mixed.append(a)
    return mixed


def _light(scene: Scene, hits: Hits) -> Float32:
    """The baked light at the hits, interpolated."""
    faces, face = scene.faces, hits.face
    density = faces.light_density[face]
    width, height = faces.light_width[face], faces.light_height[face]
    start = faces.light_start[face]
    u = (hits.u - faces.low[:, 0][face]) * density - np.float32(0.5)
    v = (hits.v - faces.low[:, 1][face]) * density - np.float32(0.5)
    np.clip(u, 0, width - 1, out=u)
    np.clip(v, 0, height - 1, out=v)
    column, row = u.astype(np.int32), v.astype(np.int32)
    u -= column
    v -= row
    index = row * width
    index += column
    index += start
    right = (column + 1 < width).astype(np.int32)
    down = width * (row + 1 < height)
    above: Float32 = scene.light[index]
    above += u * (scene.light[index + right] - above)
    index += down
    under = scene.light[index]
    under += u * (scene.light[index + right] - under)
    under -= above
    under *= v
    above += under
    return above
