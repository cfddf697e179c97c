"""Episodes exported as a Rerun recording, read back by Rerun."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from seqrecord.errors import ClipError, DestinationError
from seqrecord.types import Progress
from seqrecord.viewer import view_rerun
from tests.kit.command_line import run
from tests.kit.datasets import write_dataset

pytestmark = pytest.mark.usefixtures("rerun")

LENGTHS = {"kitchen/0": 5, "kitchen/1": 3, "lab/0": 18}
FLOW_GAP = 4  # the frame without flow in each episode


def frame_of(key: str, number: int) -> dict[str, Any]:
    rng = np.random.default_rng([len(key), number])
    frame: dict[str, Any] = {
        "image": rng.integers(0, 256, (24, 32, 3), np.uint8),
        "depth": rng.uniform(1, 5, (24, 32)).astype("f4"),
        "flow": rng.normal(size=(24, 32, 2)).astype("f4"),
        "mask": rng.integers(0, 3, (24, 32), np.uint8),
        "pose": np.array([number, 0, 1, 0, 0, 0, 1], "f8"),
        "action": np.arange(3, dtype="f4") + number,
        "task": f"step {number}",
    }
    if number == FLOW_GAP:
        del frame["flow"]
    return frame


@pytest.fixture(scope="module")
def rerun() -> None:
    """Skip the tests without rerun, whose import takes half a second."""
    pytest.importorskip("rerun", reason="pip install rerun-sdk")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rerun") / "records"
    features: dict[str, Any] = {"depth": {"unit": "m"}, "mask": {"kind": "segmentation"}}
    episodes = {key: [frame_of(key, i) for i in range(n)] for key, n in LENGTHS.items()}
    metadata = {key: {"robot": "arm"} for key in LENGTHS}
    write_dataset(folder, episodes, metadata=metadata, fps=10, features=features)
    return folder


def chunks(path: Path) -> Iterator[tuple[str, list[str], list[Any]]]:
    """Entities with names and columns of some of their rows."""
    try:
        from rerun.chunk import RrdReader
    except ImportError:  # older versions have a single table
        from rerun.dataframe import load_recording  # type: ignore[import-not-found]

        table = load_recording(path).view(index="frame", contents="/**").select().read_all()
        times = [name for name in table.column_names if not name.startswith("/")]
        for entity in {name.split(":")[0] for name in table.column_names} - {*times}:
            own = [name for name in table.column_names if name.startswith(f"{entity}:")]
            part = table.filter(pc.is_valid(table[own[0]])).select([*times, *own])
            yield entity.lstrip("/"), part.column_names, part.columns
        return
    for chunk in RrdReader(path).stream().to_chunks():
        if not chunk.is_static:
            batch = chunk.to_record_batch()
            yield str(chunk.entity_path).lstrip("/"), batch.schema.names, batch.columns


def read(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Rows of each entity in order of frames; columns without their archetypes' names."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for entity, names, arrays in chunks(path):
        columns = {
            name.split(":")[-1]: each.cast(pa.int64()) if pa.types.is_temporal(each.type) else each
            for name, each in zip(names, arrays, strict=True)
        }
        for row in pa.table(columns).to_pylist():
            rows[entity].append({n: value for n, value in row.items() if value not in (None, [])})
    for each in rows.values():
        each.sort(key=lambda row: row.get("frame", -1))
    return rows


def test_all_episodes_are_on_one_timeline(records: Path, tmp_path: Path) -> None:
    path = tmp_path / "all.rrd"
    reports: list[Progress] = []
    count = sum(LENGTHS.values())
    assert view_rerun(records, save=path, progress=reports.append) == count
    assert reports == [Progress(number, count) for number in range(1, count + 1)]
    rows = read(path)
    whole = [(key, number) for key, length in LENGTHS.items() for number in range(length)]
    assert [row["frame"] for row in rows["image"]] == list(range(len(whole)))
    for i, (key, number) in enumerate(whole):
        want = frame_of(key, number)
        np.testing.assert_array_equal(np.ravel(rows["image"][i]["buffer"]), want["image"].ravel())
        depth = np.ravel(rows["depth"][i]["buffer"]).astype(np.uint8).view("<f4")
        np.testing.assert_array_equal(depth, want["depth"].ravel())
        assert rows["depth"][i]["meter"] == [1.0]
        labels = np.ravel(rows["mask"][i]["buffer"]).astype(np.uint8).view("<u2")
        np.testing.assert_array_equal(labels, want["mask"].ravel())
        assert rows["world/pose"][i]["translation"] == [[float(number), 0.0, 1.0]]
        assert rows["action"][i]["scalars"] == [float(number + k) for k in range(3)]
        assert rows["task"][i]["text"] == [want["task"]]
        assert ("buffer" in rows["flow"][i]) == (number != FLOW_GAP)
        assert rows["image"][i]["seconds"] == pytest.approx(i * 1e8)  # nanoseconds
    begins = [rows["episode"][i]["frame"] for i in range(len(LENGTHS))]
    assert begins == [0, 5, 8]
    assert rows["episode"][1]["text"] == ["kitchen/1\nrobot: arm"]


def test_selected_frames_of_selected_episodes(records: Path, tmp_path: Path) -> None:
    path = tmp_path / "some.rrd"
    command = ("view", records, "kitchen/*", "--rerun", "--save", path, "--features", "image,pose")
    done = run(*command)
    assert done.stdout == f"{path}: 8 frames\n"
    assert "8/8 frames" in done.stderr
    rows = read(path)
    assert {"image", "world/pose", "episode"} <= set(rows)
    assert "depth" not in rows
    poses = [row["translation"][0][0] for row in rows["world/pose"]]
    assert poses == [0, 1, 2, 3, 4, 0, 1, 2]
    assert run(*command, "--quiet").stderr == ""
    assert view_rerun(records, "kitchen/*", features=["pose"], save=path) == 8
    with pytest.raises(ClipError):
        view_rerun(records, ["nobody"], save=tmp_path / "x.rrd")
    with pytest.raises(DestinationError):
        view_rerun(records, save=tmp_path / "no" / "folder" / "x.rrd")
    for options in (("--save", "x.rrd"), ("--rerun", "--start", "3")):
        run("view", records, *options, code=2)
