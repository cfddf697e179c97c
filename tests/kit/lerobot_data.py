"""Content of tests/golden/sources/lerobot_*.zip, written by lerobot's own writer; changes of it.

`tests.golden.make_lerobot` makes the files. A table is changed by a function of the table:

>>> rewrite(root / ROWS, column("timestamp", at(6, 0.0)))
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FPS = 10
ROWS = "data/chunk-000/file-000.parquet"
LISTED = "meta/episodes/chunk-000/file-000.parquet"

FEATURES: dict[str, dict[str, Any]] = {
    "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "grip"]},
    "action": {"dtype": "float64", "shape": (2,), "names": {"motors": ["a", "b"]}},
    "observation.image": {
        "dtype": "image",
        "shape": (6, 8, 3),
        "names": ["height", "width", "channel"],
    },
    "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    "tactile": {"dtype": "int16", "shape": (2, 4), "names": None},
    "note": {"dtype": "string", "shape": (1,), "names": None},
}


def episodes() -> list[list[dict[str, Any]]]:
    """Frames of three episodes with their tasks, as passed to lerobot."""
    rng = np.random.default_rng(0)
    plan = [(5, ["pick"]), (3, ["place", "pick"]), (7, ["place"])]
    return [
        [
            {
                "observation.state": rng.normal(size=3).astype(np.float32),
                "action": rng.normal(size=2),
                "observation.image": rng.integers(0, 256, (6, 8, 3), np.uint8),
                "next.reward": np.array([i / 2], np.float32),
                "next.done": np.array([i == length - 1]),
                "tactile": rng.integers(-300, 300, (2, 4)).astype(np.int16),
                "note": f"frame {i} of {number}",
                "task": tasks[min(i // 2, len(tasks) - 1)],
            }
            for i in range(length)
        ]
        for number, (length, tasks) in enumerate(plan)
    ]


def write_dataset(
    root: Path,
    features: dict[str, dict[str, Any]],
    recorded: Iterable[Iterable[dict[str, Any]]],
    *,
    file_sizes: dict[str, float] | None = None,
    **options: Any,
) -> None:
    """Write a dataset by lerobot; `file_sizes` are settings of v3.0."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    dataset = LeRobotDataset.create("a/test", fps=FPS, root=root, features=features, **options)
    if file_sizes and hasattr(dataset.meta, "update_chunk_settings"):
        dataset.meta.update_chunk_settings(**file_sizes)
    takes_task = "task" in inspect.signature(dataset.add_frame).parameters  # 0.3
    for frames in recorded:
        for each in frames:
            frame = {"task": "look", **each}
            more = {"task": frame.pop("task")} if takes_task else {}
            dataset.add_frame(frame, **more)
        dataset.save_episode()
    if hasattr(dataset, "finalize"):
        dataset.finalize()


def write_v21(
    root: Path, columns: Mapping[str, Any], features: Mapping[str, Any], length: int
) -> Path:
    """Write version 2.1: one episode of `length` frames, in a table that may have more."""
    count = len(next(iter(columns.values())))
    order = np.arange(count) if count < 1000 else np.zeros(count, "i8")  # small when compressed
    zeros = np.zeros(count, "i8")
    table = {"episode_index": zeros, "frame_index": order, "task_index": zeros, **columns}
    (root / "meta").mkdir(parents=True)
    (root / "data").mkdir()
    info = {
        "codebase_version": "v2.1", "fps": FPS, "features": features, "chunks_size": 1000,
        "data_path": "data/{episode_index:06d}.parquet", "video_path": None,
    }  # fmt: skip
    listed = {"episode_index": 0, "tasks": ["look"], "length": length}
    (root / "meta" / "info.json").write_text(json.dumps(info))
    (root / "meta" / "tasks.jsonl").write_text('{"task_index": 0, "task": "look"}\n')
    (root / "meta" / "episodes.jsonl").write_text(json.dumps(listed))
    rows = pa.table({**table, "timestamp": order.astype("f4")})
    pq.write_table(rows, root / "data" / "000000.parquet", row_group_size=1 << 30)
    return root


def edit_info(root: Path, **changes: Any) -> None:
    """Change values in `meta/info.json`."""
    path = root / "meta/info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table], **options: Any) -> None:
    """Write a changed table; `options` are those of `pyarrow.parquet.write_table`."""
    pq.write_table(change(pq.read_table(path)), path, **options)


def column(name: str, change: Callable[[list[Any]], list[Any]]) -> Callable[[pa.Table], pa.Table]:
    """Replace the values of a column; its type stays."""

    def changed(table: pa.Table) -> pa.Table:
        place = table.column_names.index(name)
        values = change(table.column(name).to_pylist())
        return table.set_column(place, name, pa.array(values, table.schema.types[place]))

    return changed


def at(row: int, value: Any) -> Callable[[list[Any]], list[Any]]:
    """Replace the value of a row."""
    return lambda values: [*values[:row], value, *values[row + 1 :]]
