"""Tar files of WebDataset."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tests.formats.cases import Case, Episodes, Frames
from tests.kit.datasets import encoded


def write_tar(path: Path, files: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def write_samples(path: Path, seed: int = 0, folder: str = "", count: int = 3) -> Frames:
    """Write a WebDataset tar file of `count` samples; returns its frames."""
    rng = np.random.default_rng(seed)
    frames: Frames = []
    files: dict[str, bytes] = {}
    for number in range(count):
        frame = {
            "rgb": rng.integers(0, 256, (16, 16, 3), np.uint8),
            "seg": rng.integers(0, 9, (16, 16), np.uint8),
            "pose": rng.normal(size=(3, 4)),
            "depth": rng.random((40, 50), np.float32),
            "cls": np.int64(number * 7 - 3),
            "json": f'{{"task": "pick {number}"}}',
        }
        stem = f"{folder}{number + 4:06d}"
        for name in ("rgb", "seg"):
            files[f"{stem}.{name}.png"] = encoded(frame[name])
        for name in ("pose", "depth"):
            stream = io.BytesIO()
            np.save(stream, frame[name])
            files[f"{stem}.{name}.npy"] = stream.getvalue()
        files[f"{stem}.cls"] = b"%d\n" % frame["cls"]
        files[f"{stem}.json"] = str(frame["json"]).encode()
        frames.append({**frame, "frame_number": np.int64(number + 4)})
    write_tar(path, files)
    return frames


def _tars(folder: Path) -> Episodes:
    return {
        "a/run_2": write_samples(folder / "a.tar", 0, "run_2/"),
        "more/b": write_samples(folder / "more" / "b.tar", 1, count=4),
    }


CASES = {
    "webdataset": Case(
        source="WebDatasetSource",
        write=_tars,
        bad="more/b",
        file="more/b.tar",
        kept={"rgb": "png"},
        inventory="""
format    webdataset: 2 tar files of samples KEY.FIELD
feature   rgb  uint8 [16, 16, 3]  image  from *.tar/*.rgb.png
feature   seg  uint8 [16, 16]  segmentation  from *.tar/*.seg.png
feature   pose  float64 [3, 4]  from *.tar/*.pose.npy
feature   depth  float32 [40, 50]  depth  from *.tar/*.depth.npy
feature   cls  int64 []  from *.tar/*.cls
feature   json  text []  text  from *.tar/*.json
feature   frame_number  int64 []  frame_number
""",
    )
}
