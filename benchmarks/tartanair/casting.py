"""Ray casting with NumPy: which face each pixel sees first, where, and how far away."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.tartanair.camera import FloatArray, Intrinsics, optical_rotation
from benchmarks.tartanair.geometry import FIRST_BOX_FACE, GROUND, SKY, Faces, Float32, Room

__all__ = ["Hits", "Rays", "camera_rays", "cast"]

_NEAR = 0.05  # metres

_Index = npt.NDArray[np.intp]


class Rays(NamedTuple):
    """The ray through each pixel, in optical axes, with z = 1."""

    x: Float32  # [W]
    y: Float32  # [H]
    length: Float32  # [H, W]


class Hits(NamedTuple):
    """What each pixel's ray hits first, [H, W] each."""

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
    """Overwrite the hits that lie behind this face."""
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
