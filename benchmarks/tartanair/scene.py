"""A walled yard or hall full of boxes, as a pure function of a seed, with baked light.

World axes are NED: x and y span the ground (z = 0), z points down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.tartanair.textures import MATERIALS, noise

__all__ = ["FIRST_BOX_FACE", "GROUND", "RING", "SKY", "Faces", "Float32", "Room", "Scene"]

GROUND, SKY = 0, 1  # the first two faces; the walls follow: -x, +x, -y, +y
FIRST_BOX_FACE = 6

_TEXELS_PER_METRE = 256.0
_LIGHT_TEXELS_PER_METRE = 14.0

Float32 = npt.NDArray[np.float32]
_Vector = tuple[float, float, float]


@dataclass(frozen=True)
class Surface:
    """A material, tinted; `scale` above 1 draws its texture larger."""

    material: str
    tint: _Vector = (1.0, 1.0, 1.0)
    scale: float = 1.0


@dataclass(frozen=True)
class Box:
    """An axis-aligned box; metres."""

    low: _Vector
    high: _Vector
    surface: Surface


@dataclass(frozen=True)
class Room:
    """Four walls at -half_x, +half_x, -half_y and +half_y; metres."""

    half_x: float
    half_y: float
    height: float
    roofed: bool

    @property
    def ceiling(self) -> float:
        """The z of the roof, or of the clouds."""
        return -self.height if self.roofed else -60.0


@dataclass(frozen=True)
class Faces:
    """Axis-aligned rectangles. `u, v` are the two axes other than `axis`, in order."""

    axis: npt.NDArray[np.int64]  # the normal's axis
    side: Float32  # the normal's sign
    level: Float32  # metres along the axis
    low: Float32  # [faces, 2], metres along u, v
    high: Float32
    material: npt.NDArray[np.int64]
    tint: Float32  # [faces, 3]
    texels_per_metre: Float32
    label: npt.NDArray[np.uint8]  # segmentation: a number from 1 for each wall, box and so on
    light_start: npt.NDArray[np.int32]  # offset of its light table in `Scene.light`
    light_width: npt.NDArray[np.int32]  # texels of that table along u
    light_height: npt.NDArray[np.int32]
    light_density: Float32  # texels per metre

    @classmethod
    def of(
        cls,
        rng: np.random.Generator,
        room: Room,
        ground: Surface,
        roof: Surface,
        walls: Surface,
        boxes: Sequence[Box],
    ) -> Faces:
        """The room's six faces and all faces of the boxes, except bottoms on the ground."""
        x, y = room.half_x, room.half_y
        rows = [
            _Row(2, -1.0, 0.0, (-x, -y), (x, y), ground, 0),
            _Row(2, 1.0, room.ceiling, (-x, -y), (x, y), roof, 1),
        ]
        for axis, side in ((0, 1.0), (0, -1.0), (1, 1.0), (1, -1.0)):
            distance, reach = (x, y) if axis == 0 else (y, x)
            low, high = (-reach, -room.height), (reach, 0.0)
            rows.append(_Row(axis, side, -side * distance, low, high, walls, len(rows)))
        for number, box in enumerate(boxes, start=len(rows)):
            rows += _rows_of(box, number)
        return cls._from_rows(rng, rows, lit_sky=room.roofed)

    @classmethod
    def _from_rows(cls, rng: np.random.Generator, rows: list[_Row], *, lit_sky: bool) -> Faces:
        low = np.array([row.low for row in rows], np.float32)
        high = np.array([row.high for row in rows], np.float32)
        scale = np.array([row.surface.scale for row in rows], np.float32)
        density = np.where(scale > 1, 1.0, _LIGHT_TEXELS_PER_METRE).astype(np.float32)
        shape = np.maximum(np.ceil((high - low) * density[:, None]), 1).astype(np.int32)
        if not lit_sky:
            shape[SKY] = 1
        end = np.cumsum(shape.prod(axis=1, dtype=np.int64))
        labels = rng.permutation(255) + 1
        return cls(
            axis=np.array([row.axis for row in rows]),
            side=np.array([row.side for row in rows], np.float32),
            level=np.array([row.level for row in rows], np.float32),
            low=low,
            high=high,
            material=np.array([MATERIALS.index(row.surface.material) for row in rows]),
            tint=np.array([row.surface.tint for row in rows], np.float32),
            texels_per_metre=(_TEXELS_PER_METRE / scale).astype(np.float32),
            label=labels[[row.thing % 255 for row in rows]].astype(np.uint8),
            light_start=np.concatenate([[0], end[:-1]]).astype(np.int32),
            light_width=shape[:, 0].copy(),
            light_height=shape[:, 1].copy(),
            light_density=density,
        )

    def __len__(self) -> int:
        return len(self.axis)


@dataclass(frozen=True)
class _Row:
    axis: int
    side: float
    level: float
    low: tuple[float, float]
    high: tuple[float, float]
    surface: Surface
    thing: int


def _rows_of(box: Box, thing: int) -> list[_Row]:
    rows = []
    for axis in range(3):
        u, v = (other for other in range(3) if other != axis)
        low, high = (box.low[u], box.low[v]), (box.high[u], box.high[v])
        rows.append(_Row(axis, -1.0, box.low[axis], low, high, box.surface, thing))
        if axis != 2 or box.high[2] < 0:  # bottoms on the ground are invisible
            rows.append(_Row(axis, 1.0, box.high[axis], low, high, box.surface, thing))
    return rows


# ---- furniture

RING = 5.6  # metres, radius of the ring around the centre that cameras walk on
_FREE = (4.15, 7.05)  # metres from the centre that no box touches

_GOODS = ("planks", "metal", "concrete", "planks", "plaster", "brick")


def furnish(rng: np.random.Generator, room: Room) -> list[Box]:
    """Boxes inside the room, along its walls, and under its roof or beyond its walls."""
    boxes = [*_goods(rng, room), *_wall_fittings(rng, room)]
    boxes.extend(_beams(room) if room.roofed else _houses(rng))
    return boxes


def tint(rng: np.random.Generator, spread: float) -> tuple[float, float, float]:
    """A factor for each of red, green and blue, about 1."""
    grey = rng.uniform(1 - spread, 1 + spread)
    red, green, blue = grey * rng.uniform(1 - spread / 2, 1 + spread / 2, 3)
    return float(red), float(green), float(blue)


def _goods(rng: np.random.Generator, room: Room) -> Iterator[Box]:
    """Stacks in the middle, stacks and posts outside the ring; none of them block it."""
    for _ in range(14):
        angle, distance = rng.uniform(0, 2 * np.pi), rng.uniform(0, 3.4)
        size = rng.uniform((0.4, 0.4, 0.4), (2.4, 2.4, 2.6))
        yield from _stack(rng, room, _around(angle, distance), size)
    highest = min(room.height - 0.8, 3.4)
    for number in range(50):
        place = rng.uniform((-room.half_x, -room.half_y), (room.half_x, room.half_y))
        if number < 40:
            size = rng.uniform((0.4, 0.4, 0.4), (3.0, 3.0, highest))
        else:
            size = np.array([0.16, 0.16, room.height * rng.uniform(0.6, 0.95)])
        yield from _stack(rng, room, place, size)


def _stack(
    rng: np.random.Generator,
    room: Room,
    place: npt.NDArray[np.float64],
    size: npt.NDArray[np.float64],
) -> Iterator[Box]:
    low, high = place - size[:2] / 2, place + size[:2] / 2
    nearest = np.hypot(*np.clip(0.0, low, high))
    farthest = np.hypot(*np.maximum(np.abs(low), np.abs(high)))
    outside = np.maximum(np.abs(low), np.abs(high)) > (room.half_x, room.half_y)
    if outside.any() or (farthest > _FREE[0] and nearest < _FREE[1]):
        return
    yield _box(low, high, -size[2], 0.0, Surface(str(rng.choice(_GOODS)), tint(rng, 0.3)))
    if rng.uniform() < 0.45:  # a smaller one on top
        low, high = low + rng.uniform(0.1, 0.3) * size[:2], high - rng.uniform(0.1, 0.3) * size[:2]
        top = -size[2] - rng.uniform(0.3, 1.0)
        yield _box(low, high, top, -size[2], Surface(str(rng.choice(_GOODS)), tint(rng, 0.3)))


def _wall_fittings(rng: np.random.Generator, room: Room) -> Iterator[Box]:
    """Pillars with windows, doors or nothing between them, and a pipe along each wall."""
    for axis, side in ((0, -1), (0, 1), (1, -1), (1, 1)):
        wall, reach = (room.half_x, room.half_y) if axis == 0 else (room.half_y, room.half_x)
        place = -reach + rng.uniform(0.3, 1.2)
        while place < reach - 2.6:
            brick = Surface("brick", tint(rng, 0.15))
            yield _on_wall(axis, side, wall, (place, place + 0.4), (-room.height, 0), 0.22, brick)
            start, stop = place + 0.7, place + 0.4 + rng.uniform(1.6, 2.6)
            kind = rng.choice(["window", "door", "bare"], p=[0.5, 0.25, 0.25])
            if kind == "window":
                top = -rng.uniform(2.4, min(3.4, room.height - 0.3))
                panes, sill = Surface("window", tint(rng, 0.3)), Surface("concrete")
                ledge = (start - 0.1, stop + 0.1)
                yield _on_wall(axis, side, wall, (start, stop), (top, -0.9), 0.07, panes)
                yield _on_wall(axis, side, wall, ledge, (-0.9, -0.78), 0.2, sill)
            elif kind == "door":
                leaf = Surface(str(rng.choice(["metal", "planks"])), tint(rng, 0.3))
                yield _on_wall(axis, side, wall, (start, stop), (-2.3, 0), 0.08, leaf)
            place = stop + rng.uniform(0.1, 0.6)
        level = -rng.uniform(2.5, room.height - 0.4)
        pipe = Surface("metal", tint(rng, 0.3))
        yield _on_wall(axis, side, wall, (-reach, reach), (level - 0.14, level), 0.3, pipe)


def _beams(room: Room) -> Iterator[Box]:
    for x in np.arange(-room.half_x + 1.5, room.half_x - 1, 3.0):
        low, high = np.array([x - 0.15, -room.half_y]), np.array([x + 0.15, room.half_y])
        rusty = Surface("metal", (0.6, 0.55, 0.5))
        yield _box(low, high, -room.height, -room.height + 0.45, rusty)


def _houses(rng: np.random.Generator) -> Iterator[Box]:
    for _ in range(9):
        place = _around(rng.uniform(0, 2 * np.pi), rng.uniform(26, 60))
        size = rng.uniform((6, 6, 7), (14, 14, 24))
        material = str(rng.choice(["window", "brick", "concrete", "plaster"]))
        surface = Surface(material, tint(rng, 0.25), scale=2.0)
        yield _box(place - size[:2] / 2, place + size[:2] / 2, -size[2], 0.0, surface)


def _on_wall(
    axis: int,
    side: int,
    wall: float,
    along: tuple[float, float],
    z: tuple[float, float],
    depth: float,
    surface: Surface,
) -> Box:
    """A box that stands out from a wall by `depth`."""
    low, high = np.empty(2), np.empty(2)
    low[axis], high[axis] = sorted((side * wall, side * (wall - depth)))
    low[1 - axis], high[1 - axis] = along
    return _box(low, high, *z, surface)


def _box(
    low: npt.NDArray[np.float64],
    high: npt.NDArray[np.float64],
    top: float,
    bottom: float,
    surface: Surface,
) -> Box:
    return Box(
        (float(low[0]), float(low[1]), float(top)),
        (float(high[0]), float(high[1]), float(bottom)),
        surface,
    )


def _around(angle: float, distance: float) -> npt.NDArray[np.float64]:
    return distance * np.array([np.cos(angle), np.sin(angle)])


# ---- light

_STAINS_PER_METRE = 9
_AMBIENT_BY_AXIS = (1.0, 0.85, 1.15)  # so that edges show in the shade


def bake(rng: np.random.Generator, room: Room, faces: Faces, boxes: Sequence[Box]) -> Float32:
    """Light tables of all faces, concatenated, rows along v; `Faces` has their offsets.

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
    """Metres from points to the nearest box that they do not touch, at most 1."""
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
    """Whether no box is between each point and the light at `point + way`."""
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


# ---- scene


@dataclass(frozen=True, eq=False)
class Scene:
    """Room, boxes and light. Cameras walk on a ring of radius `RING` around its centre."""

    room: Room
    faces: Faces
    light: Float32  # brightness, tables of all faces concatenated

    @classmethod
    def from_seed(cls, seed: int) -> Scene:
        """An odd seed gives a hall, an even one a yard open to the sky."""
        rng = np.random.default_rng([seed, 0x5CE7E])
        roofed = seed % 2 == 1
        half_x, half_y = rng.uniform(9.0, 12.0, 2)
        height = rng.uniform(4.5, 6.0) if roofed else rng.uniform(3.2, 6.5)
        room = Room(float(half_x), float(half_y), float(height), roofed)
        boxes = furnish(rng, room)
        walls = Surface(str(rng.choice(["brick", "brick", "plaster", "concrete"])), tint(rng, 0.12))
        ground = Surface("ground", tint(rng, 0.15))
        if roofed:
            roof = Surface("planks", (0.7, 0.7, 0.7), scale=1.5)
        else:
            roof = Surface("clouds", scale=80.0)
        faces = Faces.of(rng, room, ground, roof, walls, boxes)
        return cls(room, faces, bake(rng, room, faces, boxes))
