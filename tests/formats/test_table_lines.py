"""Tables of known formats: each line is a row, a comment, blank, or an error with its number."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqrecord import open_source
from seqrecord.sources import inventory_of
from tests.formats.format_cases.scenes import write_arkitscenes
from tests.formats.format_cases.sequences import write_euroc, write_kitti, write_tum
from tests.kit.source_faults import check_refused
from tests.kit.trees import make_frames, write_v1, write_v2

Write = Callable[[Path], Any]
TABLES: dict[str, tuple[Write, str, str]] = {
    "TUM, images": (write_tum, "rgb.txt", "#"),
    "TUM, poses": (write_tum, "groundtruth.txt", "#"),
    "TUM, acceleration": (write_tum, "accelerometer.txt", "#"),
    "EuRoC, images": (write_euroc, "cam0/data.csv", "#"),
    "EuRoC, samples": (write_euroc, "imu0/data.csv", "#"),
    "EuRoC, poses": (write_euroc, "state_groundtruth_estimate0/data.csv", "#"),
    "KITTI, poses": (write_kitti, "poses/*.txt", "#"),
    "KITTI, calibration": (write_kitti, "calib.txt", "#"),
    "ARKitScenes": (write_arkitscenes, "lowres_wide.traj", "#"),
    "TartanAir": (lambda folder: write_v1(folder, make_frames(0, 4)), "pose_left.txt", "#"),
}


def table_of(root: Path, name: str) -> Path:
    return sorted(root.rglob(name))[0]


def edited(root: Path, name: str, change: Callable[[str], str]) -> int:
    """Change a table; returns its number of lines."""
    path = table_of(root, name)
    text = change(path.read_text())
    path.write_text(text)
    return len(text.splitlines())


def cut_last(text: str) -> str:
    """The last line without three quarters, and without a newline."""
    head, _, last = text.rstrip("\n").rpartition("\n")
    return f"{head}\n{last[: len(last) // 4]}"


@pytest.mark.parametrize("case", TABLES)
def test_lines_that_are_no_rows(tmp_path: Path, case: str) -> None:
    write, name, mark = TABLES[case]
    write(tmp_path / "a" / "x")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    whole = open_source(tmp_path / "a")
    counts = [info.num_frames for info in whole.episodes()]
    # Comments, blank lines and a last line without a newline change nothing.
    edited(tmp_path / "b", name, lambda text: f"{mark} more\n\n{text.rstrip()}")
    same = open_source(tmp_path / "b")
    assert [info.num_frames for info in same.episodes()] == counts
    assert sum(1 for info in same.episodes() for _ in same.frames(info)) == sum(counts)
    shutil.rmtree(tmp_path / "b")
    for change in (
        cut_last,
        lambda text: f"{text.rstrip()}\n// more",
        lambda text: f"{text.rstrip()}\n% more",
    ):
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        line = edited(tmp_path / "b", name, change)
        source = open_source(tmp_path)
        bad = [info.key for info in source.episodes() if info.num_frames == 0]
        assert len(bad) == 1
        check_refused(source, bad, f"invalid row in line {line};")
        shutil.rmtree(tmp_path / "b")


def test_imu_of_another_length_is_noted(tmp_path: Path) -> None:
    """The note has both lengths."""
    write_v2(tmp_path / "P000", make_frames(0, 3, v2=True))
    path = tmp_path / "P000" / "imu" / "acc.npy"
    np.save(path, np.load(path)[:-1])
    source = open_source(tmp_path / "P000")
    assert "imu_acc" not in source.schema()
    assert "imu_gyro" in source.schema()
    [note] = [note for note in inventory_of(source).notes if "acc.npy" in note]
    assert "[19, 3], expected [20, 3] or [30, 3]" in note
