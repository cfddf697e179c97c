"""Fills a room with boxes drawn at random: goods, posts, windows, doors, beams, distant houses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from benchmarks.tartanair.geometry import Box, Room, Surface

__all__ = ["RING", "furnish", "tint"]

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
    """Stacks in the middle, stacks and posts outside the ring; those that would block it don't."""
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
