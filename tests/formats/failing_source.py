"""Sources whose reading raises errors that no check expects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from seqrecord import FeatureSpec, Schema
from seqrecord.sources import EpisodeInfo, SceneSource
from tests.kit.datasets import encoded


def write_scenes(root: Path, count: int) -> None:
    image = encoded(np.zeros((12, 16, 3), np.uint8))
    for number in range(count):
        folder = root / f"scene{number:02d}"
        folder.mkdir(parents=True)
        (folder / "a.png").write_bytes(image)
        frame = {"file_path": "a.png", "transform_matrix": np.eye(4).tolist()}
        text = json.dumps({"fl_x": 10 + number, "frames": [frame]})
        (folder / "transforms.json").write_text(text)


class FailingSource(SceneSource):
    """Scenes whose reader raises errors, by the number of the scene."""

    errors: ClassVar[dict[int, Exception]] = {}

    def open(self, folder: Path) -> Any:
        number = int(folder.parent.name.removeprefix("scene"))
        if number in self.errors:
            raise self.errors[number]
        return super().open(folder)


def failing(scenes: Path, errors: dict[int, Exception]) -> FailingSource:
    source = FailingSource(scenes)
    FailingSource.errors.clear()
    FailingSource.errors.update(errors)
    return source


class Counting:
    """A user's source whose third episode fails while frames are read."""

    def schema(self) -> Schema:
        return Schema([FeatureSpec("x", np.dtype("<f4"), (2,))])

    def episodes(self) -> list[EpisodeInfo]:
        return [EpisodeInfo(f"e{n}", 3) for n in range(4)]

    def frames(self, info: EpisodeInfo) -> Iterator[dict[str, Any]]:
        for number in range(info.num_frames):
            if (info.key, number) == ("e2", 1):
                raise KeyError("absent")
            yield {"x": np.full(2, number, np.float32)}
