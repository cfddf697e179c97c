"""Bakes light with shadows into one table of brightness per face."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from benchmarks.tartanair.geometry import SKY, Box, Faces, Float32, Room
from benchmarks.tartanair.textures import noise

__all__ = ["bake"]

_STAINS_PER_METRE = 9
_AMBIENT_BY_AXIS = (1.0, 0.85, 1.15)  # so that edges show in the shade


def bake(rng: np.random.Generator, room: Room, faces: Faces, boxes: Sequence[Box]) -> Float32:
    """All faces' tables one after another, rows along v, each where `Faces` says.

    Ambient light fades towards the ground and into corners. A yard has the sun, a hall two lamps.
    """
    stains = 1 + 0.10 * noise(rng, slope=1.5, size=256)
    if room.roofed:
        lamps = rng.uniform((-6, -6, 0), (6, 6, 0), (2, 3))
        lamps[:, 2] = 0.6 - room.height
        ambient, strength = 0.5, 2.2
    else:
        bearing, elevation = rng.uniform(0, 2 * np.pi), rng.uniform(0.5, 1.0)
        lamps = 1e4 * np.array([[np.cos(bearing), np.sin(bearing), -np.tan(elevation)]])
        ambient, strength = 0.42, 0.95
    low = np.array([box.low for box in boxes], np.float32)
    high = np.array([box.high for box in boxes], np.float32)

    tables = []
    for face in range(len(faces)):
        if face == SKY and not room.roofed:
            tables.append(np.ones(1, np.float32))
            continue
        axis = int(faces.axis[face])
        point = _texel_centres(faces, face)
        corner = _clearance(point, low, high) if axis == 2 else np.clip(-point[2] / 0.7, 0, 1)
        table = ambient * _AMBIENT_BY_AXIS[axis] * (0.45 + 0.55 * corner)
        for lamp in lamps.astype(np.float32):
            way = lamp[:, None] - point
            length = np.sqrt((way * way).sum(axis=0))
            slant = way[axis] * faces.side[face] / length
            lit = np.flatnonzero(slant > 0)
            if not len(lit):
                continue
            fade = 9.0 / (4.0 + length[lit] ** 2) if room.roofed else 1.0
            table[lit] += (
                strength * slant[lit] * fade * _visible(point[:, lit], way[:, lit], low, high)
            )
        u, v = (other for other in range(3) if other != axis)
        place = np.floor(point * _STAINS_PER_METRE).astype(np.int64) & 255
        tables.append((table * stains[place[u], place[v]]).astype(np.float32))
    return np.concatenate(tables)


def _texel_centres(faces: Faces, face: int) -> Float32:
    """World points in the order of the table, just above the face: float32 [3, texels]."""
    axis = int(faces.axis[face])
    u, v = (other for other in range(3) if other != axis)
    width, height = int(faces.light_width[face]), int(faces.light_height[face])
    point = np.empty((3, height, width), np.float32)
    point[axis] = faces.level[face] + faces.side[face] * 1e-3
    point[u] = faces.low[face, 0] + (np.arange(width) + 0.5) / faces.light_density[face]
    down = faces.low[face, 1] + (np.arange(height) + 0.5) / faces.light_density[face]
    point[v] = down[:, None]
    return point.reshape(3, -1)


def _clearance(point: Float32, low: Float32, high: Float32) -> Float32:
    """Metres from points to the nearest box that they don't lie on, at most 1."""
    nearest = np.ones(point.shape[1], np.float32)
    around = (low < point.max(axis=1) + 1) & (high > point.min(axis=1) - 1)
    for box in np.flatnonzero(around.all(axis=1)):
        gap = np.maximum(low[box, :, None] - point, point - high[box, :, None])
        np.maximum(gap, 0, out=gap)
        gap *= gap
        distance = np.sqrt(gap[0] + gap[1] + gap[2])
        np.minimum(nearest, np.where(distance > 0.01, distance, 1), out=nearest)
    return nearest


def _visible(point: Float32, way: Float32, low: Float32, high: Float32) -> npt.NDArray[np.bool_]:
    """Whether nothing stands between each point and the light at `point + way`."""
    free = np.ones(point.shape[1], np.bool_)
    end = point + way
    first = np.minimum(point.min(axis=1), end.min(axis=1))
    last = np.maximum(point.max(axis=1), end.max(axis=1))
    between = (low < last) & (high > first)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = 1 / way
        for box in np.flatnonzero(between.all(axis=1)):
            to_low = (low[box, :, None] - point) * inverse
            to_high = (high[box, :, None] - point) * inverse
            entry, leave = np.minimum(to_low, to_high), np.maximum(to_low, to_high)
            begin = np.maximum(np.maximum(entry[0], entry[1]), np.maximum(entry[2], 0))
            finish = np.minimum(np.minimum(leave[0], leave[1]), np.minimum(leave[2], 1))
            free &= ~(begin < finish)
    return free
