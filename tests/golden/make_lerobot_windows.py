"""Makes lerobot_windows.npz: LeRobot's output for `delta_timestamps` of its own dataset.

The dataset is sources/lerobot_v3.zip. In an environment with lerobot 0.4.4:
`python -m tests.golden.make_lerobot_windows OUT.npz`. Images are converted back to uint8 [H, W, C].
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

WINDOWS: dict[str, list[float]] = {
    "observation.image": [-0.1, 0.0],
    "observation.state": [-0.3, 0.0, 0.2, 0.1],
    "action": [i / 10 for i in range(16)],
    "tactile": [-9.0, 9.0],
    "next.done": [0.1],
}


def main(out: str) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    source = Path(__file__).parent / "sources" / "lerobot_v3.zip"
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(source).extractall(folder)
        root = next(Path(folder).rglob("meta")).parent
        dataset = LeRobotDataset("me/test", root=root, delta_timestamps=WINDOWS)
        items = [dataset[number] for number in range(len(dataset))]
    arrays: dict[str, Any] = {
        name: np.stack([item[name].numpy() for item in items])
        for feature in WINDOWS
        for name in (feature, f"{feature}_is_pad")
    }
    image = arrays["observation.image"]
    arrays["observation.image"] = np.round(np.moveaxis(image, 2, -1) * 255).astype(np.uint8)
    for name in ("episode_index", "frame_index", "next.reward"):
        arrays[name] = np.stack([item[name].numpy() for item in items])
    np.savez_compressed(out, **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
