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

from seqrecord import open_source
from seqrecord.errors import SourceError
from seqrecord.sources import FolderSource, TartanAirSource, inventory_of
from tests.source_faults import check_frames
from tests.source_writers import write_euroc, write_kitti, write_tum
from tests.trees import make_frames, write_junk, write_v1, write_v2


@pytest.mark.parametrize("v2", [False, True])
def test_a_trajectory_under_any_name(tmp_path: Path, v2: bool) -> None:
    frames = make_frames(0, 3, v2=v2)
    for place in ("office_P000", "a/b/c/office", "samples/P7/run", "Easy_P000"):
        root = tmp_path / place.replace("/", "-")
        (write_v2 if v2 else write_v1)(root / place, frames)
        write_junk(root)
        source = open_source(root)
        assert isinstance(source, TartanAirSource)
        [info] = source.episodes()
        assert (info.key, info.metadata["env"]) == (place, None)
        check_frames(source, 0, frames)
        inside = open_source(root / place)
        assert [info.key for info in inside.episodes()] == [Path(place).name]
        check_frames(inside, 0, frames)


def test_a_part_of_the_modalities(tmp_path: Path) -> None:
    for number, kept in enumerate(
        (
            ("depth_lcam_front", "pose_lcam_front"),
            ("flow_lcam_front", "mask_lcam_front"),
            ("seg_rcam_front",),
            ("depth_left", "pose_left"),
            ("flow",),
        )
    ):
        v2, folder = "front" in kept[0], tmp_path / f"{number}" / "x" / "office"
        frames = make_frames(0, 3, v2=v2)
        (write_v2 if v2 else write_v1)(folder, frames)
        for path in folder.iterdir():
            if path.stem not in kept:
                path.unlink() if path.is_file() else shutil.rmtree(path)
        for path in folder.glob("flow/*_mask.npy"):
            path.unlink()
        source = open_source(tmp_path / f"{number}")
        assert isinstance(source, TartanAirSource)
        assert [*source.schema()] == [*kept]
        wanted = [{name: frame[name] for name in kept if name in frame} for frame in frames]
        check_frames(source, 0, wanted)


def test_named_and_unnamed_trajectories_side_by_side(tmp_path: Path) -> None:
    for number, place in enumerate(("env/Easy/P000", "more/kitchen", "env/Easy/P001/again")):
        write_v1(tmp_path / place, make_frames(number, 2))
    assert [info.key for info in open_source(tmp_path).episodes()] == [
        "env/Easy/P000",
        "env/Easy/P001/again",
        "more/kitchen",
    ]


def test_names_alone_claim_no_other_tree(tmp_path: Path) -> None:
    """Of a pose file, or of a folder with other files."""
    for folder in ("left", "image_left"):
        for number in range(3):
            image = tmp_path / folder / "run" / folder / f"{number}.png"
            save(image, np.zeros((4, 5, 3), np.uint8))
    np.savetxt(tmp_path / "left" / "run" / "pose_left.txt", np.zeros((3, 7)))
    for folder, more in (("left", ["pose_left"]), ("image_left", [])):
        source = open_source(tmp_path / folder)
        assert isinstance(source, FolderSource)
        assert [*source.schema()] == ["frame_number", folder, *more]


def test_sequences_are_found_in_order_and_not_inside_of_others(tmp_path: Path) -> None:
    for name, write in (("tum", write_tum), ("euroc", write_euroc), ("kitti", write_kitti)):
        write(tmp_path / name / "data" / "2024" / "my-copy")
        assert type(open_source(tmp_path / name)).__name__.lower() == f"{name}source"
    for name in ("s/02", "s/10", "s/1", "s/1/rgb/inner"):
        write_tum(tmp_path / "all" / name)
    infos = open_source(tmp_path / "all").episodes()
    assert [info.key for info in infos] == ["s/1", "s/02", "s/10"]
    assert [info.key for info in open_source(tmp_path / "all/s/02").episodes()] == ["02"]
    (tmp_path / "all" / "t").mkdir()
    (tmp_path / "all" / "t" / "up").symlink_to(tmp_path / "all")
    with pytest.raises(SourceError, match="leads to a folder above"):
        open_source(tmp_path / "all").schema()


# --- encodings without a known layout ----------------------------------------------------------

U1, U2 = np.uint8, np.uint16
ENCODED: list[tuple[str, str, Any, str]] = [
    ("depth", "000000.png", np.zeros((4, 5, 4), U1), "float32"),
    ("front", "000000_lcam_front_depth.png", np.zeros((4, 5, 4), U1), "BGRA"),
    ("depth", "0.png", np.zeros((4, 5), U2), "without a unit in the files: mm"),
    ("depth", "0.tiff", np.zeros((4, 5), U2), "without a unit"),
    ("depth_cam", "0.png", np.zeros((4, 5, 3), U1), "CARLA"),
    ("depth", "0.png", np.zeros((4, 5), U1), "display"),
    ("disp_occ_0", "0.png", np.zeros((4, 5), U2), "256 a pixel as in KITTI"),
    ("disparities", "0.png", np.zeros((4, 5, 3), U1), "Sintel"),
    ("flow_occ", "0.png", np.zeros((4, 5, 3), U2), "(value - 32768) / 64"),
    ("flow", "0.png", np.zeros((4, 5, 3), U1), "display"),
    ("semantic", "0.png", np.zeros((4, 5, 3), U1), "encode labels"),
    ("normals", "0.png", np.zeros((4, 5, 3), U1), "/ 255 - 1"),
]


def save(path: Path, pixels: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if pixels.dtype == U2 and pixels.ndim == 3:
        path.write_bytes(imagecodecs.png_encode(pixels))
    else:
        Image.fromarray(pixels).save(path)


def test_a_known_encoding_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number, (feature, file, pixels, text) in enumerate(ENCODED):
        for run in "ab":
            save(tmp_path / f"{number}" / run / feature / file, pixels)
            save(tmp_path / f"{number}" / run / "rgb" / "0.png", np.zeros((4, 5, 3), U1))
        source = open_source(tmp_path / f"{number}")
        caplog.clear()
        with caplog.at_level(logging.WARNING, "seqrecord"):
            schema = source.schema()
        if pixels.ndim == 3 and not {"semantic", "normals"} & {feature}:  # channels of codes
            assert schema[feature].kind not in ("depth", "disparity", "flow")
        [message] = [record.getMessage() for record in caplog.records]
        assert f"feature {feature}: " in message
        assert text in message
        [note] = inventory_of(source).notes
        assert text in note
    caplog.clear()
    for feature, pixels in {  # of plain images there is none
        "rgb": np.zeros((4, 5, 3), U1),
        "mask": np.zeros((4, 5), U1),
        "image_left": np.zeros((4, 5, 4), U1),
        "infrared": np.zeros((4, 5), U2),
    }.items():
        save(tmp_path / "plain" / "run" / feature / "0.png", pixels)
    with caplog.at_level(logging.WARNING, "seqrecord"):
        assert inventory_of(open_source(tmp_path / "plain")).notes == ()
    assert not caplog.records


# --- the inventory of TartanAir ----------------------------------------------------------------


def test_the_inventory_of_tartanair(tmp_path: Path) -> None:
    for number, place in enumerate(("house/Data_easy/P000", "house/Data_hard/P001")):
        write_v2(tmp_path / place, make_frames(number, 3, v2=True))
        for i in range(3):
            save(
                tmp_path / place / "depth_lcam_back" / f"{i:06d}_lcam_back_depth.png", np.eye(4) > 0
            )
            (tmp_path / place / "lidar").mkdir(exist_ok=True)
            (tmp_path / place / "lidar" / f"{i:06d}_lcam_front_lidar.ply").write_bytes(b"ply")
        np.save(tmp_path / place / "imu" / "vel_global.npy", np.zeros((20, 3)))
    write_junk(tmp_path)
    source = open_source(tmp_path, cameras=["left"], features=["depth_lcam_front", "imu_acc"])
    found = inventory_of(source)
    assert found.format == "tartanair"
    assert found.reason == (
        "2 trajectories of TartanAir V2, such as house/Data_easy/P000/image_lcam_front"
    )
    assert {each.name: each.place for each in found.features} == {
        "depth_lcam_front": "*/depth_lcam_front/*_lcam_front_depth.png",
        "imu_acc": "*/imu/acc.npy",
    }
    data = {(each.pattern, each.count) for each in found.left_out if each.is_data}
    assert data == {
        ("depth_lcam_back/*_lcam_back_depth.png", 6),
        ("lidar/*_lcam_front_lidar.ply", 6),
        ("imu/vel_global.npy", 2),
    }
    chosen = {each.pattern for each in found.left_out if not each.is_data}
    assert {"feature imu_gyro", "feature image_rcam_front", "feature pose_lcam_front"} <= chosen
    assert "10 frames per second" in found.notes[0]
    easy = inventory_of(open_source(tmp_path, difficulty="Easy"))
    assert ("trajectories", 1) in {(each.pattern, each.count) for each in easy.left_out}


def test_imu_that_fits_no_frames_is_listed(tmp_path: Path) -> None:
    frames = make_frames(0, 3, v2=True)
    write_v2(tmp_path / "office", frames)
    for name in ("acc", "gyro"):
        np.save(tmp_path / "office" / "imu" / f"{name}.npy", np.zeros((7, 3)))
    source = open_source(tmp_path)
    check_frames(source, 0, [{k: v for k, v in f.items() if k[:4] != "imu_"} for f in frames])
    found = inventory_of(source)
    assert {(each.pattern, each.count) for each in found.left_out} == {
        ("imu/acc.npy", 1),
        ("imu/gyro.npy", 1),
    }
