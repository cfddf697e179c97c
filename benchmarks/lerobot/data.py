"""Datasets of the benchmarks: written by LeRobot, packed by seqrecord, or built of links."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.timing import once, size_of
from tests.kit.video_file_data import write_video

__all__ = [
    "CAMERA",
    "LEROBOT",
    "NO_LEROBOT",
    "add_arguments",
    "convert",
    "dataset_at",
    "describe",
    "generate",
    "make_linked",
    "python_environment",
]

LEROBOT = Path(__file__).parents[2] / ".venv" / "lerobot" / "bin" / "python"
NO_LEROBOT = "needs lerobot: make lerobot-env"
CAMERA = "observation.images.front"
_FPS, _SIDE = 10, 64  # of the dataset of links


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of programs that read a LeRobot dataset."""
    parser.add_argument("--root", type=Path, help="a LeRobot dataset (v3.0) with two cameras")
    parser.add_argument("--lerobot", type=Path, default=LEROBOT, help="a Python with lerobot")


def python_environment(folder: Path) -> dict[str, str]:
    """Environment of processes with lerobot, without network requests."""
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    return environment | {"SVT_LOG": "0", "TOKENIZERS_PARALLELISM": "false"}


def generate(root: Path, options: argparse.Namespace, sizes: Iterable[int] = ()) -> None:
    """Write a dataset with LeRobot; `sizes` are arguments of `benchmarks.lerobot.generate`."""
    if not options.lerobot.exists():
        raise SystemExit(f"no {options.lerobot}, which writes the dataset: make lerobot-env")
    command = [str(options.lerobot), "-m", "benchmarks.lerobot.generate", str(root)]
    environment = {**os.environ, **python_environment(root.parent)}
    subprocess.run([*command, *map(str, sizes)], check=True, env=environment)


def dataset_at(options: argparse.Namespace, folder: Path) -> tuple[Path, Path]:
    """The dataset of `options` and its packed copy, created if missing."""
    root = options.root or once(folder / "dataset", partial(generate, options=options))
    return root.resolve(), once(folder / "records", partial(convert, root))


def convert(root: Path, records: Path) -> None:
    """Pack a dataset with the command line, in its own process."""
    command = [sys.executable, "-m", "seqrecord", "write", "--src", str(root)]
    subprocess.run([*command, "--dst", str(records), "--statistics", "none", "--quiet"], check=True)


def describe(root: Path) -> dict[str, Any]:
    """Sizes of a dataset, and the names of its cameras."""
    info = json.loads((root / "meta" / "info.json").read_text())
    cameras = [name for name, spec in info["features"].items() if spec["dtype"] == "video"]
    first = info["features"][cameras[0]]
    return {
        "frames": info["total_frames"],
        "episodes": info["total_episodes"],
        "cameras": len(cameras),
        "names": cameras,
        "shape": first["shape"],
        "codec": first.get("info", {}).get("video.codec", "?"),
        "bytes": size_of(root),
        "frame_bytes": int(np.prod(first["shape"])) * len(cameras),
    }


def make_linked(root: Path, *, episodes: int, files: int, frames: int) -> None:
    """Create a v3.0 dataset with one camera of 64 x 64. Each video or table file contains
    `episodes / files` episodes of `frames` frames. All video files are links to one file.
    """
    each = episodes // files
    names = ["height", "width", "channels"]
    info = {
        "codebase_version": "v3.0",
        "fps": _FPS,
        "total_episodes": each * files,
        "total_frames": each * files * frames,
        "total_tasks": 1,
        "chunks_size": 1000,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": {
            CAMERA: {"dtype": "video", "shape": [_SIDE, _SIDE, 3], "names": names},
            "observation.state": {"dtype": "float32", "shape": [6], "names": None},
            "action": {"dtype": "float32", "shape": [6], "names": None},
            "timestamp": {"dtype": "float32", "shape": [1], "names": None},
            **{
                name: {"dtype": "int64", "shape": [1], "names": None}
                for name in ("frame_index", "episode_index", "index", "task_index")
            },
        },
    }
    (root / "meta").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    pq.write_table(pa.table({"task": ["move"], "task_index": [0]}), root / "meta/tasks.parquet")
    for file in range(files):
        for folder, table in (
            ("data", _rows(file * each, each, frames)),
            ("meta/episodes", _episodes(file, each, frames)),
        ):
            path = root / folder / f"chunk-000/file-{file:03d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table(dict(table)), path)
        path = root / f"videos/{CAMERA}/chunk-000/file-{file:03d}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        if file:
            path.hardlink_to(path.with_name("file-000.mp4"))
        else:
            x = np.arange(_SIDE, dtype=np.uint8)
            images = np.stack([np.tile(x + i, (_SIDE, 1)) for i in range(16)])
            images = np.resize(images[..., None], (each * frames, _SIDE, _SIDE, 3))
            options = {"g": "2", "bf": "0", "preset": "ultrafast"}
            starts = range(0, each * frames, frames)
            write_video(path, images, rate=_FPS, options=options, key_frames=starts)


def _rows(first: int, episodes: int, frames: int) -> Mapping[str, Any]:
    count = episodes * frames
    values = np.random.default_rng(first).normal(size=(2, count, 6)).astype(np.float32)
    inside = np.tile(np.arange(frames), episodes)
    return {
        "observation.state": list(values[0]),
        "action": list(values[1]),
        "timestamp": (inside / _FPS).astype(np.float32),
        "frame_index": inside,
        "episode_index": np.repeat(np.arange(first, first + episodes), frames),
        "index": np.arange(first * frames, first * frames + count),
        "task_index": np.zeros(count, np.int64),
    }


def _episodes(file: int, episodes: int, frames: int) -> Mapping[str, Any]:
    numbers = np.arange(file * episodes, (file + 1) * episodes)
    begin = np.arange(episodes) * frames / _FPS
    here = {"chunk_index": np.zeros(episodes, np.int64), "file_index": np.full(episodes, file)}
    return {
        "episode_index": numbers,
        "tasks": [["move"]] * episodes,
        "length": np.full(episodes, frames),
        "dataset_from_index": numbers * frames,
        "dataset_to_index": (numbers + 1) * frames,
        **{f"data/{name}": values for name, values in here.items()},
        **{f"videos/{CAMERA}/{name}": values for name, values in here.items()},
        f"videos/{CAMERA}/from_timestamp": begin,
        f"videos/{CAMERA}/to_timestamp": begin + frames / _FPS,
    }
