"""A walled yard or hall full of boxes, as a pure function of a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.tartanair.furniture import RING, furnish, tint
from benchmarks.tartanair.geometry import Faces, Float32, Room, Surface
from benchmarks.tartanair.lighting import bake

__all__ = ["RING", "Scene"]


@dataclass(frozen=True, eq=False)
class Scene:
    """All that a camera can see. Cameras walk on a ring of radius `RING` around its centre."""

    room: Room
    faces: Faces
    light: Float32  # brightness, all faces' tables one after another

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
