"""Known layouts at any depth and under other names, and files of a known encoding without one."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pytest
from PIL import Image

from seqrecord.errors import SourceError
from seqrecord.sources import Folders, Kitti, TartanAir, Tum, inventory_of, open_source
from tests.source_faults import check_frames
from tests.source_writers import write_euroc, write_kitti, write_tum
from tests.trees import make_frames, write_junk, write_v1, write_v2


@pytest.mark.parametrize("place", ["office_P000", "a/b/c/office", "samples/P7/run", "Easy_P000"])
@pytest.mark.parametrize("v2", [False, True])
def test_a_trajectory_under_any_name(tmp_path: Path, place: str, v2: bool) -> None:
    frames = make_frames(0, 3, v2=v2)
    (write_v2 if v2 else write_v1)(tmp_path / place, frames)
    write_junk(tmp_path)
    source = open_source(tmp_path)
    assert isinstance(source, TartanAir)
    [info] = source.episodes()
    assert info.key == place
    assert info.metadata["env"] is None
    check_frames(source, 0, frames)
    inside = open_source(tmp_path / place)
    assert [info.key for info in inside.episodes()] == [Path(place).name]
    check_frames(inside, 0, frames)


@pytest.mark.parametrize(
    "kept",
    [
        ("depth_lcam_front", "pose_lcam_front"),
        ("flow_lcam_front", "mask_lcam_front"),
        ("seg_rcam_front",),
        ("depth_left", "pose_left"),
        ("flow",),
    ],
    ids=str,
)
def test_a_part_of_the_modalities(tmp_path: Path, kept: tuple[str, ...]) -> None:
    v2 = not any(name in ("depth_left", "flow") for name in kept)
    frames = make_frames(0, 3, v2=v2)
    (write_v2 if v2 else write_v1)(tmp_path / "x" / "office", frames)
    for path in (tmp_path / "x" / "office").iterdir():
        if path.stem not in kept and not (path.stem == "flow" and "mask" in kept):
            path.unlink() if path.is_file() else shutil.rmtree(path)
    for path in (tmp_path / "x" / "office").glob("flow/*_mask.npy"):
        path.unlink()
    source = open_source(tmp_path)
    assert isinstance(source, TartanAir)
    assert [*source.schema()] == [*kept]
    wanted = [{name: frame[name] for name in kept if name in frame} for frame in frames]
    check_frames(source, 0, wanted if kept != ("flow",) else wanted)


def test_named_and_unnamed_trajectories_side_by_side(tmp_path: Path) -> None:
    for number, place in enumerate(("env/Easy/P000", "more/kitchen", "env/Easy/P001/again")):
        write_v1(tmp_path / place, make_frames(number, 2))
    assert [info.key for info in open_source(tmp_path).episodes()] == [
        "env/Easy/P000",
        "env/Easy/P001/again",
        "more/kitchen",
    ]


def test_a_pose_file_alone_claims_no_other_tree(tmp_path: Path) -> None:
    (tmp_path / "run" / "left").mkdir(parents=True)
    for number in range(3):
        Image.fromarray(np.zeros((4, 5, 3), np.uint8)).save(
            tmp_path / "run" / "left" / f"{number}.png"
        )
    np.savetxt(tmp_path / "run" / "pose_left.txt", np.zeros((3, 7)))
    source = open_source(tmp_path)
    assert isinstance(source, Folders)
    assert [*source.schema()] == ["frame_number", "left", "pose_left"]


def test_folders_of_these_names_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "run" / "image_left").mkdir(parents=True)
    for number in range(3):
        path = tmp_path / "run" / "image_left" / f"{number}.png"
        Image.fromarray(np.zeros((4, 5, 3), np.uint8)).save(path)
    assert isinstance(open_source(tmp_path), Folders)


@pytest.mark.parametrize("name", ["tum", "euroc", "kitti"])
def test_sequences_deep_in_a_tree(tmp_path: Path, name: str) -> None:
    place = tmp_path / "data" / "2024" / "my-copy"
    {"tum": write_tum, "euroc": write_euroc, "kitti": write_kitti}[name](place)
    assert type(open_source(tmp_path)).__name__.lower() == name
