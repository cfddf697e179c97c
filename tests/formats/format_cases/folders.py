"""Folders of images and arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.formats.cases import Case, Episodes


def write_folders(folder: Path) -> Episodes:
    """Images, arrays of one frame and of one episode; frame 2 has no mask."""
    rng, found = np.random.default_rng(5), Episodes()
    for name in "ab":
        action = rng.random((4, 3), np.float32)
        found[name] = []
        for feature in ("rgb", "mask", "depth", "state"):
            (folder / name / feature).mkdir(parents=True, exist_ok=True)
        np.save(folder / name / "action.npy", action)
        for number in range(4):
            pixels = rng.integers(0, 256, (8, 12, 3), np.uint8)
            path = folder / name / "rgb" / f"{number}.jpg"
            Image.fromarray(pixels).save(path)
            frame: dict[str, Any] = {"action": action[number], "frame_number": np.int64(number)}
            frame["rgb"] = np.asarray(Image.open(path))
            frame["depth"] = rng.random((40, 50), np.float32) * 9
            frame["state"] = frame["depth"][0, :3]  # small, so copied by an index
            np.save(folder / name / "depth" / f"{number}.npy", frame["depth"].astype(">f4"))
            np.save(folder / name / "state" / f"{number}.npy", frame["state"])
            if number != 2:
                frame["mask"] = pixels[..., 0]
                Image.fromarray(frame["mask"]).save(folder / name / "mask" / f"{number}.png")
            found[name].append(frame)
    return found


CASES = {
    "folders": Case(
        source="FolderSource",
        write=write_folders,
        bad="b",
        file="b/rgb/2.jpg",
        options={"sparse": "mask"},
        kept={"rgb": "jpeg"},
        referred={"depth": "npy", "mask": "png", "rgb": "jpeg"},
        inventory="""
format    folders: 2 episode folders, such as a with */action.npy
feature   action  float32 [3]  action  from */action.npy
feature   depth  float32 [40, 50]  depth  from */depth/*.npy
feature   frame_number  int64 []  frame_number  from file names
feature   mask  uint8 [8, 12]  mask  from */mask/*.png
feature   rgb  uint8 [8, 12, 3]  image  from */rgb/*.jpg
feature   state  float32 [3]  state  from */state/*.npy
""",
    )
}
