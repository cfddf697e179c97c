"""Writes colmap.zip: models of COLMAP and projections of points, by pycolmap 4.2.1.

Needs `pip install 'pycolmap==4.2.1'`; the tests read the files without it. Model `KIND_text` and
`KIND_binary` have an image for each camera model.
"""

from __future__ import annotations

import importlib
import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_name("colmap.zip")
SIZE = (96, 72)
_PINHOLE, _FISHEYE, _RADIAL = [88.0, 90.0, 46.3, 37.2], [60.0, 61.0, 46.3, 37.2], [-0.12, 0.03]
CAMERAS: dict[str, dict[str, list[float]]] = {
    "perspective": {
        "SIMPLE_PINHOLE": _PINHOLE[1:],
        "PINHOLE": _PINHOLE,
        "SIMPLE_RADIAL": [*_PINHOLE[1:], -0.12],
        "RADIAL": [*_PINHOLE[1:], *_RADIAL],
        "OPENCV": [*_PINHOLE, *_RADIAL, 0.002, -0.003],
        "FULL_OPENCV": [*_PINHOLE, *_RADIAL, 0.002, -0.003, 0.01, 0.02, -0.01, 0.004],
    },
    "fisheye": {
        "OPENCV_FISHEYE": [*_FISHEYE, 0.02, -0.01, 0.003, -0.001],
        "SIMPLE_RADIAL_FISHEYE": [*_FISHEYE[1:], 0.02],
        "RADIAL_FISHEYE": [*_FISHEYE[1:], 0.02, -0.01],
    },
}


def write(folder: Path) -> None:
    """Write the models below `folder`, and `expected.json`: points, and pixels by image."""
    colmap: Any = importlib.import_module("pycolmap")
    rng = np.random.default_rng(7)
    points = rng.normal(size=(20, 3)) * 0.7
    pixels: dict[str, Any] = {}
    for kind, cameras in CAMERAS.items():
        model, names = colmap.Reconstruction(), [*cameras]
        for number, (name, params) in enumerate(cameras.items(), 1):
            camera = colmap.Camera(
                model=name, width=SIZE[0], height=SIZE[1], params=params, camera_id=number
            )
            model.add_camera_with_trivial_rig(camera)
        for i in rng.permutation(len(names)).tolist():
            turn = rng.normal(size=4) * (0.15, 0.15, 0.15, 0) + (0, 0, 0, 1)  # x, y, z, w
            rotation = colmap.Rotation3d(turn / np.linalg.norm(turn))
            pose = colmap.Rigid3d(rotation, np.array([0.1 * i, -0.2, 4.0]))
            image = colmap.Image(
                name=f"{names[i].lower()}.png", camera_id=i + 1, image_id=9 * i + 9
            )
            found = np.array([model.camera(i + 1).img_from_cam(pose * point) for point in points])
            image.points2D = colmap.Point2DList([colmap.Point2D(xy) for xy in found[:i]])
            model.add_image_with_trivial_frame(image, pose)
            pixels[image.name] = found.tolist()
        for end, method in (("binary", model.write_binary), ("text", model.write_text)):
            place = folder / f"{kind}_{end}" / "sparse" / "0"
            place.mkdir(parents=True)
            method(str(place))
    (folder / "expected.json").write_text(json.dumps({"points": points.tolist(), "pixels": pixels}))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(FILE, "w", 8) as archive:
        write(Path(folder))
        for path in sorted(Path(folder).rglob("*.*")):
            archive.write(path, path.relative_to(folder))


if __name__ == "__main__":
    main()
