"""A tiny dataset with missing frames, variable shapes, many codecs and several files."""

from __future__ import annotations

import io
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

import seqrecord
from seqrecord import Dataset, EncodedImage, FeatureSpec, Schema, SeqRecordWriter

__all__ = [
    "EPISODES",
    "HEIGHT",
    "WIDTH",
    "SmallFrame",
    "damage",
    "flip",
    "nth_chunk",
    "nth_page",
    "small_frames",
    "small_schema",
    "write_small",
]

HEIGHT, WIDTH = 32, 40

EPISODES: Mapping[str, int] = {"alpha/Easy/P000": 11, "alpha/Easy/P001": 5, "beta/Hard/P000": 1}
"""Keys and frame counts, in the order of writing."""

SmallFrame = dict[str, "npt.NDArray[Any]"]


def small_schema() -> Schema:
    """Features in stored order; `photo` stores PNG files, `note` has a variable shape."""
    png = ({"id": "seqrecord.image", "format": "png"},)
    return Schema(
        [
            FeatureSpec("image_left", np.dtype("u1"), (HEIGHT, WIDTH, 3)),
            FeatureSpec("depth_left", np.dtype("<f4"), (HEIGHT, WIDTH)),
            FeatureSpec("flow", np.dtype("<f4"), (HEIGHT, WIDTH, 2)),
            FeatureSpec("mask", np.dtype("u1"), (HEIGHT, WIDTH)),
            FeatureSpec("range", np.dtype("<u2"), (None, WIDTH)),
            FeatureSpec("photo", np.dtype("u1"), (HEIGHT, WIDTH, 3), png),
            FeatureSpec("note", np.dtype("u1"), (None,)),
            FeatureSpec("pose", np.dtype("<f8"), (7,)),
            FeatureSpec("step", np.dtype("<i8"), ()),
        ]
    )


def small_frames(seed: int, num_frames: int, *, missing: bool = True) -> list[SmallFrame]:
    """Decoded frames that a reader must return.

    With `missing`, the last frame has no `flow` and no `mask`, and every fifth no `note`.
    """
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32)
    frames: list[SmallFrame] = []
    for i in range(num_frames):
        depth = (5 + y + np.sin(x / 5 + i)).astype(np.float32)
        depth[0, :4] = [np.nan, np.inf, -0.0, 1e4]
        image = np.stack([x * 7 + i, y * 9, x + y], axis=-1).astype(np.uint8)
        frame = {
            "image_left": image ^ rng.integers(0, 4, image.shape, np.uint8),
            "depth_left": depth,
            "flow": np.stack([x / 8 - i, y / 8], axis=-1),
            "mask": ((x > 20) * 100 + (y > 20) * 10).astype(np.uint8),
            "range": rng.integers(0, 60_000, (3 + i % 4, WIDTH), np.uint16),
            "photo": np.ascontiguousarray(image[::-1]),
            "note": np.frombuffer(f"frame {i}".encode(), np.uint8),
            "pose": rng.normal(size=7),
            "step": np.array(1000 * seed + i, np.int64),
        }
        if missing and i == num_frames - 1:
            del frame["flow"], frame["mask"]
        if missing and i % 5 == 4:
            del frame["note"]
        frames.append(frame)
    return frames


def write_small(
    path: str | PathLike[str],
    *,
    episodes: Mapping[str, int] = EPISODES,
    codecs: Any = None,
    missing: bool = True,
    chunk_frames: int = 4,
    max_file_size: int = 30_000,
    mode: Any = "create",
) -> dict[str, list[SmallFrame]]:
    """Write the dataset with one group of features; returns the decoded frames by episode.

    Three episodes of 11, 5 and 1 frames in chunks of 4, in several record files; the first
    episode spans more than one.
    """
    written = {}
    with SeqRecordWriter(
        path,
        schema=small_schema() if mode == "create" else None,
        features={"step": {"group": 0}},  # the other features join the same group
        codecs=codecs,
        chunk_frames=chunk_frames,
        max_file_size=max_file_size,
        mode=mode,
    ) as writer:
        for number, (key, num_frames) in enumerate(episodes.items()):
            written[key] = small_frames(number, num_frames, missing=missing)
            metadata = {"difficulty": key.split("/")[1], "number": number, "place": "Ürümqi"}
            with writer.episode(key, metadata=metadata) as episode:
                for frame in written[key]:
                    episode.append({**frame, "photo": _png(frame["photo"])})
    return written


def nth_chunk(dataset: Dataset, episode: int, number: int, *, group: int = 0) -> Any:
    """Chunk `number` of an episode, both counted from 0."""
    row = int(dataset.contents.index.groups[group].first_chunk[episode]) + number
    return dataset.contents.chunks.chunk_at(group, row, episode)


def nth_page(dataset: Dataset, feature: str, episode: int, number: int) -> Any:
    """Page of a feature in chunk `number` of an episode, both counted from 0."""
    chunk = nth_chunk(dataset, episode, number, group=dataset.features[feature].group)
    pages = dataset.contents.chunks.pages(chunk)
    return next(page for page in pages if page.feature == feature)


def damage(root: Path, feature: str, episode: int, number: int, *, at: int = 5) -> Any:
    """Flip a bit of the page's byte `at`; a second call restores it."""
    with seqrecord.open(root) as dataset:
        page = nth_page(dataset, feature, episode, number)
    flip(root / page.chunk.path, page.start + at)
    return page


def flip(file: Path, at: int) -> None:
    """Flip a bit of the file's byte `at`."""
    with file.open("r+b") as opened:
        opened.seek(at)
        [byte] = opened.read(1)
        opened.seek(at)
        opened.write(bytes([byte ^ 1]))


def _png(image: npt.NDArray[Any]) -> EncodedImage:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "png")
    return EncodedImage(file.getvalue())
