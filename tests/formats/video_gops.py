"""GOPs as the package reads them from video files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from seqrecord.formats.sources.video.files import VideoFile
from seqrecord.formats.sources.video.streams import read_gops, video_spec
from seqrecord.sources import Gop
from tests.video.gops import decode_gops_of


def gops_of(path: Path, times: npt.NDArray[np.float64] | None = None) -> list[Gop]:
    """GOPs of a file that contain the frames at `times`, by default all."""
    with VideoFile(path) as file:
        parts = list(read_gops(file, times))
    return [part for part in parts if isinstance(part, Gop)]


def decode_file_gops(
    path: Path, times: npt.NDArray[np.float64] | None = None
) -> npt.NDArray[np.uint8]:
    """The frames of these GOPs: uint8 [T, H, W, 3]."""
    with VideoFile(path) as file:
        return decode_gops_of(video_spec("a", file), read_gops(file, times))
