"""Write a LeRobot dataset with lerobot:
`python -m benchmarks.lerobot.generate ROOT [EPISODES FRAMES HEIGHT WIDTH]`.

Two cameras, in lerobot's default AV1 encoding. Defaults: ten episodes of 252 frames, 480 x 640
pixels.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

EPISODES, FRAMES, HEIGHT, WIDTH, FPS = 10, 252, 480, 640, 30
CAMERAS = ("observation.images.front", "observation.images.wrist")


def generate(
    root: Path,
    episodes: int = EPISODES,
    frames: int = FRAMES,
    height: int = HEIGHT,
    width: int = WIDTH,
) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    image = {
        "dtype": "video",
        "shape": (height, width, 3),
        "names": ["height", "width", "channels"],
    }
    joints = {"dtype": "float32", "shape": (6,), "names": [f"joint_{i}" for i in range(6)]}
    dataset = LeRobotDataset.create(
        "seqrecord/benchmark",
        fps=FPS,
        root=root,
        features={**dict.fromkeys(CAMERAS, image), "observation.state": joints, "action": joints},
    )
    rng = np.random.default_rng(0)
    scene = _scene(rng, height + 200, width + 400)
    for episode in range(episodes):
        for i in range(frames):
            frame: dict[str, Any] = {
                "observation.state": rng.normal(size=6).astype(np.float32),
                "action": rng.normal(size=6).astype(np.float32),
                "task": "move",
            }
            for camera, name in enumerate(CAMERAS):
                x, y = (3 * i + 17 * episode + 90 * camera) % 300, (i + 5 * episode) % 150
                frame[name] = scene[y : y + height, x : x + width].copy()
                at = 4 * i % (width - 80)
                frame[name][10:70, at : at + 80] = 250, 20 * episode, 90 * camera
            dataset.add_frame(frame)
        dataset.save_episode()
    dataset.finalize()


def _scene(
    rng: np.random.Generator, height: int, width: int
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Smooth colours with film grain, larger than a frame: cameras move over it."""
    coarse = Image.fromarray(rng.integers(0, 255, (height // 16, width // 16, 3), np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)) // 2
    scene: np.ndarray[Any, np.dtype[np.uint8]] = smooth + rng.integers(
        0, 16, (height, width, 3), np.uint8
    )
    return scene


if __name__ == "__main__":
    generate(Path(sys.argv[1]), *map(int, sys.argv[2:]))
