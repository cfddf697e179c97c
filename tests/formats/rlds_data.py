"""Content of tests/golden/sources/rlds.zip, written by TensorFlow Datasets.

To make it again, in an environment with tensorflow-datasets 4.9.10 and tensorflow 2.20:
`python -m tests.formats.rlds_data FOLDER`, then zip the files in FOLDER/arm/1.0.0.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

SPLITS = {"train": (4, 2), "val": (3,)}
"""Episode lengths by split."""


def episodes(split: str) -> list[dict[str, Any]]:
    """Episodes of a split, as passed to TFDS."""
    rng = np.random.default_rng([*SPLITS].index(split))
    return [
        {
            "steps": [_step(rng, i, length, number) for i in range(length)],
            "episode_metadata": {
                "file_path": f"/data/{split}/{number}.h5",
                "success": number % 2 == 0,
                "weight": 0.25 * number,
            },
        }
        for number, length in enumerate(SPLITS[split])
    ]


def _step(rng: np.random.Generator, number: int, length: int, episode: int) -> dict[str, Any]:
    flat = np.full((16, 24, 3), rng.integers(40, 200, 3), np.uint8)  # JPEG hardly changes it
    return {
        "observation": {
            "image": flat,
            "wrist": rng.integers(0, 256, (6, 8, 3), np.uint8),
            "depth": rng.integers(0, 65536, (6, 8, 1), np.uint16),
            "state": rng.normal(size=3).astype(np.float32),
            "tactile": rng.integers(-300, 300, (2, 4)).astype(np.int16),
        },
        "action": rng.normal(size=2).astype(np.float32).astype(np.float64),
        "reward": np.float32(number / 2),
        "is_first": number == 0,
        "is_last": number == length - 1,
        "count": np.int64(-(10**12)) * number,
        "language_instruction": f"do {episode}" if number < 3 else "",
    }


def main(root: Path) -> None:
    import tensorflow_datasets as tfds

    kinds = tfds.features

    class Arm(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            png = {"encoding_format": "png"}
            observation = {
                "image": kinds.Image(shape=(16, 24, 3), encoding_format="jpeg"),
                "wrist": kinds.Image(shape=(6, 8, 3), **png),
                "depth": kinds.Image(shape=(6, 8, 1), dtype=np.uint16, **png),
                "state": kinds.Tensor(shape=(3,), dtype=np.float32),
                "tactile": kinds.Tensor(shape=(2, 4), dtype=np.int16, encoding="zlib"),
            }
            step = {
                "observation": observation,
                "action": kinds.Tensor(shape=(2,), dtype=np.float64),
                "reward": kinds.Scalar(np.float32),
                "is_first": kinds.Scalar(np.bool_),
                "is_last": kinds.Scalar(np.bool_),
                "count": kinds.Scalar(np.int64),
                "language_instruction": kinds.Text(),
            }
            about = {
                "file_path": kinds.Text(),
                "success": kinds.Scalar(np.bool_),
                "weight": kinds.Scalar(np.float32),
            }
            features = {"steps": kinds.Dataset(step), "episode_metadata": about}
            return tfds.core.DatasetInfo(
                builder=self,
                features=kinds.FeaturesDict(features),
                disable_shuffling=True,  # for a reproducible order
            )

        def _split_generators(self, manager: Any) -> Any:
            return {split: enumerate(episodes(split)) for split in SPLITS}

        def _generate_examples(self, split: str) -> Any:
            raise NotImplementedError

    Arm(data_dir=root).download_and_prepare()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
