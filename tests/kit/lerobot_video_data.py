"""LeRobot datasets with video: written by lerobot, and made here in the same layout.

tests/golden/sources/lerobot_video_*.zip were written and read by lerobot 0.4.4 (v3.0) and 0.3.3
(v2.1): AV1; in v3.0 several episodes share a file. `frames.npz` has lerobot's image of every row of
every episode, as means of blocks of 8 x 8 pixels. `tests.golden.make_lerobot` makes them.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.kit.lerobot_data import FPS

CAMERAS = ("observation.images.front", "observation.images.wrist")
LENGTHS = (5, 4, 7)
BLOCK = 8
_NAMES = ["height", "width", "channels"]
_GOLDEN = Path(__file__).parents[1] / "golden" / "sources"


def unpack(folder: Path, name: str = "lerobot_v3") -> Path:
    """Unpack a golden original into a folder of its name."""
    with zipfile.ZipFile(_GOLDEN / f"{name}.zip") as archive:
        archive.extractall(folder / name)
    return folder / name


def block_means(images: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """float32 [T, H / 8, W / 8, 3] of [T, H, W, 3]."""
    count, height, width, _ = images.shape
    blocks = images.reshape(count, height // BLOCK, BLOCK, width // BLOCK, BLOCK, 3)
    means: npt.NDArray[np.float32] = blocks.mean((2, 4), dtype=np.float32)
    return means


def with_video(
    root: Path,
    lengths: Sequence[int],
    name: str = CAMERAS[0],
    *,
    forced: bool = True,
    **options: Any,
) -> npt.NDArray[np.uint8]:
    """Add a video feature to a dataset of tests/kit/lerobot_data.py; returns PyAV's decoded frames.

    `options` are passed to `write_video`. In v3.0 one file has the frames of all episodes; with
    `forced` each episode begins with a keyframe.
    """
    from tests.kit.video_file_data import HEIGHT, WIDTH, decoded, pictures, write_video

    options = {"rate": FPS, "options": {"g": "4"}, **options}
    paths = declare_video(root, lengths, name, [HEIGHT, WIDTH, 3])
    ends = np.cumsum(lengths).tolist()
    if len(paths) == 1:
        cuts = [0, *ends[:-1]] if forced else []
        write_video(paths[0], pictures(ends[-1]), key_frames=cuts, **options)
    else:
        for path, length, end in zip(paths, lengths, ends, strict=True):
            write_video(path, pictures(length, end - length), **options)
    return np.concatenate([decoded(path)[1] for path in paths])


def declare_video(
    root: Path, lengths: Sequence[int], name: str, shape: Sequence[int], **more: Any
) -> list[Path]:
    """Declare in `meta/` that a feature is video at `FPS`; returns the paths of its files: one for
    all episodes in v3.0, one per episode in v2.1. `more` are further entries of the feature.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    info = json.loads((root / "meta/info.json").read_text())
    info["features"][name] = {"dtype": "video", "shape": list(shape), "names": _NAMES, **more}
    if info["codebase_version"] == "v3.0":
        info["video_path"] = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
        paths = [root / f"videos/{name}/chunk-000/file-000.mp4"]
        columns = {
            "chunk_index": [0] * len(lengths),
            "file_index": [0] * len(lengths),
            "from_timestamp": (np.cumsum([0, *lengths])[:-1] / FPS).tolist(),
        }
        table_path = root / "meta/episodes/chunk-000/file-000.parquet"
        table = pq.read_table(table_path)
        for column, values in columns.items():
            table = table.append_column(f"videos/{name}/{column}", pa.array(values))
        pq.write_table(table, table_path)
    else:
        info["video_path"] = (
            "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
        )
        paths = [root / f"videos/chunk-000/{name}/episode_{i:06d}.mp4" for i in range(len(lengths))]
    paths[0].parent.mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    return paths
