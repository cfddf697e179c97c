"""Ray casting of a `Scene` with NumPy: colour, depth, segmentation."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.tartanair.camera import FloatArray, Intrinsics, optical_rotation
from benchmarks.tartanair.scene import FIRST_BOX_FACE, GROUND, SKY, Faces, Float32, Room, Scene
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
    """Render the view from `pose`. Deterministic: the film grain depends on the pose only."""
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
    # The grain's table is shifted by a function of the pose, so that it moves with time.
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
    # Texels per pixel, squared, and stretched by the slant of the surface.
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
    # The face's number moves the texture, so that equal boxes look different.
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


# ---- casting: which face each pixel sees first, where, and how far away

_NEAR = 0.05  # metres

_Index = npt.NDArray[np.intp]


class Rays(NamedTuple):
    """The ray through each pixel, in optical axes, with z = 1."""

    x: Float32  # [W]
    y: Float32  # [H]
    length: Float32  # [H, W]


class Hits(NamedTuple):
    """First hit of each pixel's ray, [H, W] each."""

    distance: Float32  # along a ray whose optical z is 1, so this is the depth
    face: _Index
    u: Float32  # metres along the face's two axes
    v: Float32
    slant: Float32  # 1 / |component of the ray along the face's normal|


@functools.lru_cache(maxsize=4)
def camera_rays(intrinsics: Intrinsics) -> Rays:
    x = (np.arange(intrinsics.width) - intrinsics.cx) / intrinsics.fx
    y = (np.arange(intrinsics.height) - intrinsics.cy) / intrinsics.fy
    length = np.sqrt(1 + x**2 + y[:, None] ** 2)
    return Rays(x.astype(np.float32), y.astype(np.float32), length.astype(np.float32))


def cast(room: Room, faces: Faces, pose: FloatArray, intrinsics: Intrinsics) -> Hits:
    """The room first, then each box face over it within its bounding window."""
    rays = camera_rays(intrinsics)
    turn = optical_rotation(pose).astype(np.float32)
    origin = np.asarray(pose[:3], np.float32)
    direction = [
        turn[axis, 0] * rays.x + (turn[axis, 1] * rays.y + turn[axis, 2])[:, None]
        for axis in range(3)
    ]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = [1 / component for component in direction]
        hits = _cast_room(room, origin, direction, inverse)
        for face, window in _windows(faces, turn, origin, intrinsics):
            _cast_face(faces, face, window, origin, direction, inverse, hits)
    return hits


def _cast_room(
    room: Room, origin: Float32, direction: list[Float32], inverse: list[Float32]
) -> Hits:
    """The ground, the four walls seen from inside, and the roof or sky."""
    to_x, to_y = (
        np.where(direction[axis] > 0, half - origin[axis], half + origin[axis])
        * np.abs(inverse[axis])
        for axis, half in enumerate((np.float32(room.half_x), np.float32(room.half_y)))
    )
    on_x = to_x < to_y
    distance = np.minimum(to_x, to_y)
    z = distance * direction[2] + origin[2]
    on_wall = (z <= 0) & (z >= -room.height)
    down = direction[2] > 0
    level = np.where(down, -origin[2], np.float32(room.ceiling) - origin[2])
    distance = np.where(on_wall, distance, np.minimum(level * inverse[2], 1e4))
    x = distance * direction[0] + origin[0]
    y = distance * direction[1] + origin[1]
    on_x &= on_wall
    face = np.where(
        on_wall,
        np.where(on_x, 2 + (direction[0] > 0), 4 + (direction[1] > 0)),
        np.where(down, GROUND, SKY),
    )
    normal = np.where(on_wall, np.where(on_x, inverse[0], inverse[1]), inverse[2])
    return Hits(
        distance,
        face.astype(np.intp, copy=False),
        np.where(on_x, y, x),
        np.where(on_wall, z, y),
        np.abs(normal),
    )


def _windows(
    faces: Faces, turn: Float32, origin: Float32, intrinsics: Intrinsics
) -> list[tuple[int, tuple[slice, slice]]]:
    """The box faces that are turned to the camera, each with its bounding window of pixels."""
    toward = (origin[faces.axis] - faces.level) * faces.side > 0
    toward[:FIRST_BOX_FACE] = False
    chosen = np.flatnonzero(toward)
    corners = _corners(faces, chosen) - origin
    seen = corners @ turn  # optical axes, [faces, 4, 3]
    following = np.roll(seen, -1, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Where an edge crosses the near plane; both ends of an edge that does not.
        share = (_NEAR - seen[..., 2:]) / (following[..., 2:] - seen[..., 2:])
        crossing = seen + share * (following - seen)
        crosses = (seen[..., 2] < _NEAR) != (following[..., 2] < _NEAR)
        points = np.concatenate([seen, crossing], axis=1)
        valid = np.concatenate([seen[..., 2] >= _NEAR, crosses], axis=1)
        column = points[..., 0] / points[..., 2] * intrinsics.fx + intrinsics.cx
        row = points[..., 1] / points[..., 2] * intrinsics.fy + intrinsics.cy
    bounds = []
    for value, size in ((column, intrinsics.width), (row, intrinsics.height)):
        first = np.where(valid, value, np.inf).min(axis=1)
        last = np.where(valid, value, -np.inf).max(axis=1)
        bounds.append(np.clip(np.ceil(first - 0.01), 0, size).astype(np.int64))
        bounds.append(np.clip(np.floor(last + 0.01) + 1, 0, size).astype(np.int64))
    left, right, top, bottom = bounds
    return [
        (int(chosen[n]), (slice(int(top[n]), int(bottom[n])), slice(int(left[n]), int(right[n]))))
        for n in np.flatnonzero((left < right) & (top < bottom))
    ]


def _corners(faces: Faces, chosen: _Index) -> Float32:
    """The corners in order around each face: float32 [faces, 4, 3]."""
    low, high, axis = faces.low[chosen], faces.high[chosen], faces.axis[chosen]
    u = np.stack([low[:, 0], high[:, 0], high[:, 0], low[:, 0]], axis=1)
    v = np.stack([low[:, 1], low[:, 1], high[:, 1], high[:, 1]], axis=1)
    level = np.broadcast_to(faces.level[chosen, None], u.shape)
    arranged = np.stack([np.stack([level, u, v]), np.stack([u, level, v]), np.stack([u, v, level])])
    return np.asarray(arranged[axis, :, np.arange(len(axis))].transpose(0, 2, 1))


def _cast_face(
    faces: Faces,
    face: int,
    window: tuple[slice, slice],
    origin: Float32,
    direction: list[Float32],
    inverse: list[Float32],
    hits: Hits,
) -> None:
    """Overwrite the hits behind this face."""
    axis = int(faces.axis[face])
    first, second = (other for other in range(3) if other != axis)
    normal = inverse[axis][window]
    distance = (faces.level[face] - origin[axis]) * normal
    u = distance * direction[first][window]
    u += origin[first]
    v = distance * direction[second][window]
    v += origin[second]
    hit = distance < hits.distance[window]
    hit &= distance > _NEAR
    hit &= u >= faces.low[face, 0]
    hit &= u <= faces.high[face, 0]
    hit &= v >= faces.low[face, 1]
    hit &= v <= faces.high[face, 1]
    np.copyto(hits.distance[window], distance, where=hit)
    np.copyto(hits.face[window], face, where=hit)
    np.copyto(hits.u[window], u, where=hit)
    np.copyto(hits.v[window], v, where=hit)
    np.copyto(hits.slant[window], np.abs(normal), where=hit)
