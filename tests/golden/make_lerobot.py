"""Makes tests/golden/sources/lerobot_*.zip, in an environment with lerobot.

`python -m tests.golden.make_lerobot KIND FOLDER`, then zip the folder. KIND is `plain` (lerobot
0.4.4 for version 3.0, 0.3.3 for 2.1), `video` (the same) or `depth` (0.6.1; its folder `images` is
a zip of its own). Leave out `stats.json` and, except with video, `images/` of datasets.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tests.kit.lerobot_data import FEATURES, episodes, write_dataset
from tests.kit.lerobot_depth_data import DEPTH, IMAGE, write_depth_images
from tests.kit.lerobot_depth_data import write as write_depth
from tests.kit.lerobot_video_data import CAMERAS, LENGTHS, block_means

_HEIGHT, _WIDTH = 32, 48


def plain(root: Path) -> None:
    write_dataset(root, FEATURES, episodes(), use_videos=False, robot_type="arm")


def _frame(number: int, i: int) -> dict[str, Any]:
    y, x = np.mgrid[:_HEIGHT, :_WIDTH]
    frame: dict[str, Any] = {"observation.state": np.array([number, i], np.float32)}
    for camera, name in enumerate(CAMERAS):
        colours = [40 * number + 3 * x, 30 * i + 2 * y, 120 * camera + x + y]
        frame[name] = np.clip(np.stack(colours, -1), 0, 255).astype(np.uint8)
    return frame


def with_video(root: Path) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    image = {
        "dtype": "video",
        "shape": (_HEIGHT, _WIDTH, 3),
        "names": ["height", "width", "channels"],
    }
    state = {"dtype": "float32", "shape": (2,), "names": ["x", "y"]}
    features = {**dict.fromkeys(CAMERAS, image), "observation.state": state}
    write_dataset(root, features, ([_frame(n, i) for i in range(k)] for n, k in enumerate(LENGTHS)))
    dataset = LeRobotDataset("a/test", root=root, video_backend="pyav")
    rows = [dataset[i] for i in range(len(dataset))]
    means: dict[str, Any] = {
        name: block_means(np.stack([row[name].permute(1, 2, 0).numpy() for row in rows]) * 255)
        for name in CAMERAS
    }
    np.savez_compressed(root / "frames.npz", **means)


def with_depth(root: Path) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    frames: dict[str, Any] = {}
    for name, place in zip(DEPTH, write_depth(root), strict=True):
        read = LeRobotDataset("a/test", root=place, depth_output_unit="m")
        frames[name] = np.concatenate([read[i][name].numpy() for i in range(len(read))])
    np.savez_compressed(root / "frames.npz", **frames)
    images: dict[str, Any] = {}
    for dtype, unit in product(("u2", "f4"), ("mm", "m")):
        if not (place := root / "images" / dtype).exists():
            write_depth_images(place, dtype)
        read = LeRobotDataset("a/test", root=place, depth_output_unit=unit)
        images[f"{dtype} {unit}"] = np.stack([read[i][IMAGE].numpy() for i in range(len(read))])
    np.savez_compressed(root / "images" / "frames.npz", **images)


if __name__ == "__main__":
    {"plain": plain, "video": with_video, "depth": with_depth}[sys.argv[1]](Path(sys.argv[2]))
