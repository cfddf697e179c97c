"""Originals of one episode at given times, in the formats that have times beside their features."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from seqrecord import export, open_source
from seqrecord.sources import Source
from tests.formats.format_cases.mcap import CAMERA, START
from tests.formats.format_cases.scenes import save
from tests.formats.format_cases.webdataset import write_tar
from tests.kit.bags import image, joints, write_mcap
from tests.kit.datasets import columns, encoded, noise, write_dataset

_SECONDS = 1_305_031_102  # of the first frame

REGULAR = [0.1 * n for n in range(9)]
GAP = [0.0, 0.1, 0.2, 0.3, 1.4, 1.5, 1.6, 1.7, 1.8]  # in seconds, with a cut before frame 4


@dataclass(frozen=True)
class TimedOriginal:
    """`write(root, times)` writes it; `features` are some without the timestamps."""

    write: Callable[[Path, Sequence[float]], None]
    features: Sequence[str]
    options: Mapping[str, Any] = field(default_factory=dict)

    def opened(self, root: Path) -> Source:
        return open_source(root, features=self.features, **self.options)


def write_folders(root: Path, times: Sequence[float]) -> None:
    for feature in ("rgb", "depth"):
        folder = root / "e" / feature
        folder.mkdir(parents=True)
        for n, time in enumerate(times):
            name = _SECONDS * 10**9 + round(time * 1e9)
            np.save(folder / f"{name}.npy", np.full((4, 5), n, np.float32))


def _records(root: Path, times: Sequence[float]) -> None:
    stamped = {"timestamp": {"kind": "timestamp", "unit": "s"}}
    write_dataset(root, {"e": columns(x=range(len(times)), timestamp=times)}, features=stamped)


def _exported(root: Path, times: Sequence[float]) -> None:
    records = root.with_name(f"{root.name}-records")
    _records(records, times)
    export.to_files(records, None, root)


def _tar(root: Path, times: Sequence[float]) -> None:
    images = noise(len(times), 4, 5, 3)
    files = {f"{_SECONDS + t:.6f}.rgb.png": encoded(images[n]) for n, t in enumerate(times)}
    write_tar(root / "e.tar", files)


def _bag(root: Path, times: Sequence[float]) -> None:
    root.mkdir()
    images, messages = noise(len(times), 4, 6, 3), list[Any]()
    for n, time in enumerate(times):
        stamp = START + round(time * 1e9)
        messages.append((CAMERA, stamp, image(images[n], "rgb8")))
        messages.append(("/joint_states", stamp, joints(["a"], [float(n)], [1.0])))
    write_mcap(root / "e.mcap", messages)


def _scene(root: Path, times: Sequence[float]) -> None:
    frames: list[Any] = []
    for n, time in enumerate(times):
        name = f"images/{_SECONDS + time:.6f}.png"
        save(root / "e" / name, np.full((8, 12, 3), n, np.uint8))
        frames.append({"file_path": name, "transform_matrix": np.eye(4).tolist()})
    content = {"fl_x": 10.0, "w": 12, "h": 8, "frames": frames}
    (root / "e" / "transforms.json").write_text(json.dumps(content))


def _tum(root: Path, times: Sequence[float]) -> None:
    shapes: dict[str, tuple[int, ...]] = {"rgb": (4, 5, 3), "depth": (4, 5)}
    for name, shape in shapes.items():
        rows = []
        for n, time in enumerate(times):
            pixels = np.full(shape, n, np.uint8 if name == "rgb" else np.uint16)
            save(root / "e" / name / f"{n}.png", pixels)
            rows.append(f"{_SECONDS + time:.6f} {name}/{n}.png\n")
        (root / "e" / f"{name}.txt").write_text("".join(rows))


def _kitti(root: Path, times: Sequence[float]) -> None:
    folder = root / "sequences" / "00"
    for n in range(len(times)):
        save(folder / "image_0" / f"{n:06d}.png", np.full((4, 5), n, np.uint8))
    (folder / "times.txt").write_text("".join(f"{time:e}\n" for time in times))


TIMED = {
    "folders": TimedOriginal(write_folders, ["rgb"]),
    "exported": TimedOriginal(_exported, ["x"]),
    "webdataset": TimedOriginal(_tar, ["rgb"]),
    "mcap": TimedOriginal(_bag, ["joint_states.position"], {"clock": CAMERA}),
    "scenes": TimedOriginal(_scene, ["image", "pose"]),
    "tum": TimedOriginal(_tum, ["image", "depth"]),
    "kitti": TimedOriginal(_kitti, ["image_0"]),
    "dataset": TimedOriginal(_records, ["x"]),
}
