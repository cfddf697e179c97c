"""Small datasets to be mixed; each frame stores its source, episode and number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord import SeqRecordWriter

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
    with SeqRecordWriter(path, codecs=codecs, chunk_frames=4) as writer:
        for episode, length in enumerate(lengths):
            with writer.episode(f"e/{episode}", metadata={"task": f"task {episode}"}) as open_one:
                for frame in range(length):
                    stored: dict[str, Any] = frame_of(source, episode, frame, extra, side)
                    if texts:
                        stored["text"] = f"{source} {episode} {frame}"
                    open_one.append(stored)
    return path


def write_sources(folder: Path) -> Path:
    """Write a source for each of `LENGTHS` below the folder."""
    for number, (name, lengths) in enumerate(LENGTHS.items()):
        write_source(folder / name, number, lengths)
    return folder
