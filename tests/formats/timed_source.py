"""A source with timestamps and gaps between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqrecord import FeatureSpec, Schema
from seqrecord.sources import EpisodeInfo
from seqrecord.store.schema import Block

TIMES = {
    "a": [0.0, 0.1, 0.2, 1.3, 1.4, 9.0],  # cut before frames 3 and 5
    "b": [5.0, 5.1, 5.2],
    "c": [7.0, 7.1, 3.0, 3.1],  # the clock was set back
}
CUTS = {"a": [0, 3, 5, 6], "b": [0, 3], "c": [0, 2, 4]}


@dataclass(frozen=True)
class Recording:
    """A source with timestamps in a feature, in blocks of `block` frames."""

    features: tuple[str, ...] | None = None
    block: int = 1
    kind: str | None = "timestamp"
    unit: str | None = "ms"
    wrong: int = -1  # frame of `c` without a timestamp

    def schema(self) -> Schema:
        specs = [
            FeatureSpec("x", np.dtype("<i4"), (2,)),
            FeatureSpec("word", np.dtype("u1"), (None,), value="text"),
            FeatureSpec("t", np.dtype("<f8"), (), kind=self.kind, unit=self.unit),
        ]
        return Schema([s for s in specs if self.features is None or s.name in self.features])

    def episodes(self) -> Sequence[EpisodeInfo]:
        return [EpisodeInfo(k, len(t), {"of": k}, 10.0, "train") for k, t in TIMES.items()]

    def frames(self, info: EpisodeInfo) -> Iterator[Any]:
        for block in self.blocks(info):
            yield from block.frames()

    def blocks(self, info: EpisodeInfo) -> Iterator[Block]:
        names = self.schema()
        for start in range(0, info.num_frames, self.block):
            rows = range(start, min(start + self.block, info.num_frames))
            columns: dict[str, Any] = {
                "x": np.array([[i, -i] for i in rows], "<i4"),
                "word": [f"{info.key} {i}" for i in rows],
                "t": np.array(TIMES[info.key])[rows] * 1000,
            }
            if self.wrong in rows and info.key == "c":
                del columns["t"]
            yield Block(len(rows), {n: c for n, c in columns.items() if n in names})


@dataclass(frozen=True)
class Timed(Recording):
    """A source with timestamps from a method only."""

    features: tuple[str, ...] | None = ("x", "word")

    def timestamps(self, info: EpisodeInfo) -> Any:
        return np.array(TIMES[info.key])
