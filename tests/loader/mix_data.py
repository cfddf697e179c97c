"""Small datasets to be mixed; each frame stores its source, episode and number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.kit.datasets import write_dataset

LENGTHS = {"a": (13, 9, 20), "b": (12, 5), "c": (7,)}
"""Episode lengths of the sources of `write_sources`."""


def frame_of(
    source: int, episode: int, frame: int, extra: Sequence[str] = (), side: int = 6
) -> dict[str, npt.NDArray[Any]]:
    """The stored frame: `where` is source, episode and frame; `image` is random by these."""
    rng = np.random.default_rng([source, episode, frame])
    arrays: dict[str, npt.NDArray[Any]] = {
        "image": rng.integers(0, 256, (side, 8, 3), np.uint8),
        "where": np.array([source, episode, frame]),
    }
    return arrays | {name: np.full(3, 100 * episode + frame + 1, "f4") for name in extra}


def write_source(
    path: Path,
    source: int,
    lengths: Sequence[int],
    *,
    extra: Sequence[str] = (),
    texts: bool = False,
    side: int = 6,
    codecs: str | Mapping[str, str] = "raw",
) -> Path:
    """Write episodes `e/0`, `e/1`, … of these lengths."""
    episodes: dict[str, list[Any]] = {}
    for episode, length in enumerate(lengths):
        frames: list[Any] = [frame_of(source, episode, i, extra, side) for i in range(length)]
        if texts:
            frames = [{**f, "text": f"{source} {episode} {i}"} for i, f in enumerate(frames)]
        episodes[f"e/{episode}"] = frames
    metadata = {key: {"task": f"task {number}"} for number, key in enumerate(episodes)}
    write_dataset(path, episodes, metadata=metadata, codecs=codecs, chunk_frames=4)
    return path


def write_sources(folder: Path) -> Path:
    """Write a source for each of `LENGTHS` below the folder."""
    for number, (name, lengths) in enumerate(LENGTHS.items()):
        write_source(folder / name, number, lengths)
    return folder
