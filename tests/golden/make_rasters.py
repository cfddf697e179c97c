"""Writes tests/golden/rasters by OpenCV 5.0.0; needs `pip install opencv-python-headless`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

FOLDER = Path(__file__).with_name("rasters")


def values() -> npt.NDArray[np.float32]:
    """Values in the files: float32 [5, 7, 3]; depth is the first channel, flow the first two."""
    return ((np.arange(5 * 7 * 3) - 40) / 8).astype(np.float32).reshape(5, 7, 3)


def main() -> None:
    import cv2  # type: ignore[import-not-found, unused-ignore]

    FOLDER.mkdir(exist_ok=True)
    pixels = values()
    cv2.writeOpticalFlow(str(FOLDER / "flow.flo"), np.ascontiguousarray(pixels[..., :2]))
    cv2.imwrite(str(FOLDER / "depth.pfm"), np.ascontiguousarray(pixels[..., 0]))
    cv2.imwrite(str(FOLDER / "normals.pfm"), np.ascontiguousarray(pixels[..., ::-1]))  # BGR


if __name__ == "__main__":
    main()
