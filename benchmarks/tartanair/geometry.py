"""What a scene is made of: a walled room, axis-aligned boxes, and their faces in columns.

World axes are NED: x and y span the ground (z = 0), z points down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.tartanair.textures import MATERIALS

__all__ = ["FIRST_BOX_FACE", "GROUND", "SKY", "Box", "Faces", "Float32", "Room", "Surface"]

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
    light_start: npt.NDArray[np.int32]  # where its table of light begins in `Scene.light`
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
        """The room's six faces and all of the boxes', but for those that stand on the ground."""
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
        if axis != 2 or box.high[2] < 0:  # nothing sees what stands on the ground
            rows.append(_Row(axis, 1.0, box.high[axis], low, high, box.surface, thing))
    return rows
