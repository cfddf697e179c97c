"""Writes the golden datasets `encodings` and `videos`: every image format and video codec.

`python -m tests.golden.make_encodings` writes new ones; committed files must not change. The
descriptions are of decoded frames, which must equal the arrays given where the codec has no loss.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import seqrecord
from tests.store.test_golden import GOLDEN, describe

_IMAGES = ("any", "jpegxl", "npy")
_VIDEOS = ("av1", "hevc", "vp9")
_LOSSLESS = ("jpegxl",)
_NUM_FRAMES = 4


def _image_frames() -> list[dict[str, Any]]:
    y, x = np.mgrid[:10, :12]
    frames = []
    for number in range(_NUM_FRAMES):
        values = (7 * x + 11 * y + 13 * number)[..., None] * np.array([1, 2, 3])
        image = (values % 256).astype(np.uint8)
        depth = (values[..., 0] / 8).astype(np.float32)
        png = io.BytesIO()
        Image.fromarray(image).save(png, "PNG" if number % 2 else "JPEG")
        npy = io.BytesIO()
        np.save(npy, depth)
        frames.append(
            {
                "any": seqrecord.EncodedImage(png.getvalue()),
                "jpegxl": image,
                "npy": seqrecord.EncodedImage(npy.getvalue()),
            }
        )
    return frames


def _video_frames() -> list[dict[str, Any]]:
    y, x = np.mgrid[:64, :64]
    frames = []
    for number in range(_NUM_FRAMES):
        planes = [128 + 100 * np.sin((x + 3 * number) / 9), 2 * x + y / 2, 3 * y % 256]
        image = np.stack(planes, -1).clip(0, 255).astype(np.uint8)
        frames.append(dict.fromkeys(_VIDEOS, image))
    return frames


def write(folder: Path) -> None:
    """Write both datasets and their descriptions into `folder`."""
    image_codecs: dict[str, Any] = {
        name: [{"id": "seqrecord.image", "format": name}] for name in _IMAGES
    }
    datasets: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
        "encodings": (image_codecs, _image_frames()),
        "videos": ({name: name for name in _VIDEOS}, _video_frames()),
    }
    for name, (codecs, frames) in datasets.items():
        with (
            seqrecord.SeqRecordWriter(folder / name, codecs=codecs) as writer,
            writer.episode("e") as episode,
        ):
            for frame in frames:
                episode.append(frame)
        with seqrecord.open(folder / name) as dataset:
            decoded = [dataset.episodes["e"][i] for i in range(_NUM_FRAMES)]
            for given, stored in zip(frames, decoded, strict=True):
                for feature in given.keys() & {*_LOSSLESS}:
                    np.testing.assert_array_equal(given[feature], stored[feature])
            content = {
                "features": [*map(str, dataset.features.values())],
                "episodes": [{"key": "e", "metadata": {}, "frames": [*map(describe, decoded)]}],
            }
        (folder / f"{name}.json").write_text(f"{json.dumps(content, indent=1)}\n")


if __name__ == "__main__":
    write(GOLDEN)
