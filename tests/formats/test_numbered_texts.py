"""Numbers of texts in a table of the original: the text is stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqrecord
from seqrecord import open_source
from seqrecord.edit import merge_datasets, rename_episodes
from seqrecord.errors import SchemaError, SourceError
from seqrecord.export import to_lerobot
from tests.kit.lerobot_data import ROWS, edit_info, rewrite
from tests.kit.lerobot_video_data import unpack

CUBE = {0: "pick the cube", 1: "place the cube"}
TOWEL = {1: "fold the towel", 0: "fetch the towel"}
STEPS = {0: "approach", 1: "grasp"}


def with_tasks(root: Path, tasks: Mapping[int, str]) -> list[str]:
    """Replace the table of tasks; returns the text of each row."""
    table = pa.table({"task_index": list(tasks), "task": list(tasks.values())})
    pq.write_table(table, root / "meta/tasks.parquet")
    return [tasks[number] for number in pq.read_table(root / ROWS)["task_index"].to_pylist()]


def with_column(root: Path, name: str, numbers: list[int]) -> None:
    """Add a column of numbers."""
    rewrite(root / ROWS, lambda table: table.append_column(name, pa.array(numbers)))
    features = json.loads((root / "meta/info.json").read_text())["features"]
    number = {"dtype": "int64", "shape": [1], "names": None}
    edit_info(root, features={**features, name: number})


def texts(dataset: seqrecord.Dataset, name: str) -> dict[str, list[str]]:
    """The texts of each episode's frames."""
    return {key: list(episode[:][name]) for key, episode in dataset.episodes.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packed")


@pytest.fixture(scope="module")
def packed(folder: Path) -> dict[str, dict[str, list[str]]]:
    """Tasks of the frames of two datasets in `folder` with different task numbers."""
    wanted = {}
    for name, tasks in (("cube", CUBE), ("towel", TOWEL)):
        root = unpack(folder / f"{name}-source")
        rows = iter(with_tasks(root, tasks))
        source = open_source(root)
        seqrecord.convert(source, folder / name, workers=1)
        keys = {info.key: f"{name}/{info.key}" for info in source.episodes()}
        rename_episodes(folder / name, keys)
        wanted[name] = {
            keys[info.key]: [next(rows) for _ in range(info.num_frames)]
            for info in source.episodes()
        }
    return wanted


def test_merged_datasets_keep_their_tasks(
    folder: Path, tmp_path: Path, packed: dict[str, dict[str, list[str]]]
) -> None:
    merge_datasets([folder / "cube", folder / "towel"], tmp_path / "all")
    with seqrecord.open(tmp_path / "all") as dataset:
        assert "task_index" not in dataset.features
        merged = texts(dataset, "task")
        assert merged == packed["cube"] | packed["towel"]
    # An export renumbers the tasks of both.
    exported = to_lerobot(tmp_path / "all", tmp_path / "exported")
    table = pq.read_table(exported / "meta/tasks.parquet").to_pydict()
    [column] = [name for name in table if name != "task_index"]
    assert set(table[column]) == {*CUBE.values(), *TOWEL.values()}
    named = dict(zip(table["task_index"], table[column], strict=True))
    numbers = pq.read_table(exported / ROWS)["task_index"].to_pylist()
    assert [named[number] for number in numbers] == [t for tasks in merged.values() for t in tasks]


def test_mixed_datasets_keep_their_tasks(
    folder: Path, packed: dict[str, dict[str, list[str]]]
) -> None:
    mix = seqrecord.SeqRecordMix(
        {name: seqrecord.SeqRecordIterableDataset(folder / name, clip_len=2) for name in packed},
        batch_size=3,
        stopping_strategy="all_exhausted",
    )
    seen = set()
    for batch in mix:
        assert "task_index" not in batch
        for name, key, start, tasks in zip(
            batch["dataset"], batch["episode"], batch["start"].tolist(), batch["task"], strict=True
        ):
            assert list(tasks) == packed[name][key][start : start + 2]
            seen.add((key, start))
    lengths = {key: len(tasks) for of_one in packed.values() for key, tasks in of_one.items()}
    assert seen == {(key, start) for key, count in lengths.items() for start in range(count - 1)}


def test_subtasks(tmp_path: Path) -> None:
    root = unpack(tmp_path)
    numbers = [i % 2 for i in range(15)]
    with_column(root, "subtask_index", numbers)
    assert "subtask_index" in open_source(root).schema()  # no table of subtasks
    table = pa.table({"subtask_index": list(STEPS), "subtask": list(STEPS.values())})
    pq.write_table(table, root / "meta/subtasks.parquet")
    source = open_source(root)
    assert "subtask_index" not in source.schema()
    seqrecord.convert(source, tmp_path / "records", workers=1)
    with seqrecord.open(tmp_path / "records") as dataset:
        found = [text for frames in texts(dataset, "subtask").values() for text in frames]
    assert found == [STEPS[number] for number in numbers]
    rewrite(
        root / ROWS,
        lambda rows: rows.set_column(
            rows.column_names.index("subtask_index"), "subtask_index", pa.array([7] * 15)
        ),
    )
    with pytest.raises(SourceError, match=r"unknown subtask number; .*got: subtask_index 7"):
        list(open_source(root).frames(source.episodes()[0]))


def test_annotations_of_gr00t(tmp_path: Path) -> None:
    root, name = unpack(tmp_path), "annotation.human.validity"
    with_tasks(root, {**CUBE, 2: "valid"})
    with_column(root, name, [2] * 14 + [0])
    assert str(open_source(root).schema()[name]) == f"{name}: int64 []"  # not defined by LeRobot
    (root / "meta/modality.json").write_text(json.dumps({"annotation": {"human.validity": {}}}))
    source = open_source(root, features=("action", name))
    assert str(source.schema()[name]) == f"{name}: text"
    frames: list[dict[str, Any]] = [
        dict(frame) for info in source.episodes() for frame in source.frames(info)
    ]
    assert [frame[name] for frame in frames] == ["valid"] * 14 + ["pick the cube"]


def test_a_stored_task_number_is_not_exported(tmp_path: Path) -> None:
    """It would be silently replaced by another number."""
    with (
        seqrecord.SeqRecordWriter(tmp_path / "records") as writer,
        writer.episode("a", fps=10) as episode,
    ):
        episode.append({"task_index": np.int64(3), "x": np.float32(0)})
    with pytest.raises(SchemaError, match="LeRobot reserves the name"):
        to_lerobot(tmp_path / "records", tmp_path / "out")
    to_lerobot(tmp_path / "records", tmp_path / "out", features=["x"])
