"""TartanAir: layouts, roots, damaged files; supported layouts at any depth."""

from __future__ import annotations

import logging
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageFile

from seqrecord import open_source
from seqrecord.errors import MissingPackageError, SourceError
from seqrecord.sources import FolderSource, TartanAirSource, inventory_of
from tests.formats.format_cases.sequences import write_euroc, write_kitti, write_tum
from tests.formats.image_data import huge_png, npy, png_of_few_pixels
from tests.kit.datasets import encoded
from tests.kit.source_faults import (
    Damage,
    check_faults,
    check_frames,
    cut,
    edit,
    fault,
    flipped,
    frames_of,
    line,
    remove,
    save,
    write,
)
from tests.kit.trees import REAL_DATA, Frames, make_frames, write_junk, write_v1, write_v2

V1_FEATURES = [
    *("image_left", "depth_left", "flow", "mask", "seg_left"),
    *("image_right", "depth_right", "seg_right", "pose_left", "pose_right"),
]


def test_v1(tmp_path: Path) -> None:
    frames = make_frames(0, 4)
    folder = write_v1(tmp_path / "carwelding" / "Easy" / "P004", frames)
    source = TartanAirSource(tmp_path)
    assert inventory_of(source).left_out == ()
    (folder / "image_left" / "000104_right.png").write_bytes(b"not of this camera")
    [info] = source.episodes()
    assert (info.key, info.num_frames, info.fps) == ("carwelding/Easy/P004", 4, None)
    assert info.metadata == {
        "dataset": "TartanAir V1",
        "env": "carwelding",
        "difficulty": "Easy",
        "trajectory": "P004",
        "first_frame_id": 0,
        "camera": {"fx": 4.0, "fy": 4.0, "cx": 4.0, "cy": 3.0, "width": 8, "height": 6},
    }
    assert len(list(source.frames(info))) == 4


def test_v2(tmp_path: Path) -> None:
    frames = make_frames(1, 4, v2=True)
    write_v2(tmp_path / "AbandonedSchool" / "Data_hard" / "P001", frames, first_id=12)
    source = TartanAirSource(tmp_path)
    assert inventory_of(source).left_out == ()
    [info] = source.episodes()
    assert (info.key, info.fps) == ("AbandonedSchool/Data_hard/P001", 10)
    facts = {"dataset": "TartanAir V2", "difficulty": "Hard", "first_frame_id": 12}
    assert facts.items() <= dict(info.metadata).items()
    check_frames(source, 0, frames)


def test_every_form_of_root_gives_the_same_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("a/Easy/P000", "a/Hard/P001", "b/b/Easy/P002", "b/b/Easy/P000"):
        write_v1(tmp_path / path, make_frames(len(path), 2))
    write_junk(tmp_path)
    of_a, of_b = ["a/Easy/P000", "a/Hard/P001"], ["b/Easy/P000", "b/Easy/P002"]
    for root, keys in (
        *((".", of_a + of_b), ("a", of_a), ("b", of_b), ("b/b", of_b), ("b/b/Easy", of_b)),
        *(("a/Hard", of_a[1:]), ("b/b/Easy/P002", of_b[1:])),
    ):
        monkeypatch.chdir(tmp_path / root)
        for source in (TartanAirSource("."), TartanAirSource(tmp_path / root)):
            infos = source.episodes()
            assert [info.key for info in infos] == keys
            assert all(info.metadata["env"] == info.key.split("/")[0] for info in infos)
            assert [len(list(source.frames(info))) for info in infos] == [2] * len(keys)


def test_difficulties_cameras_and_features_can_be_selected(tmp_path: Path) -> None:
    write_v1(tmp_path / "a" / "Easy" / "P000", make_frames(0, 3))
    write_v2(tmp_path / "b" / "Data_hard" / "P000", make_frames(0, 2, v2=True))
    for level in ("Hard", "hard", "Data_hard"):
        [info] = TartanAirSource(tmp_path, difficulty=level).episodes()
        assert info.key == "b/Data_hard/P000"
    left = TartanAirSource(tmp_path / "a", cameras=("left",))
    assert list(left.schema()) == [name for name in V1_FEATURES if "right" not in name]
    right = TartanAirSource(tmp_path / "a", cameras=("right",))
    assert list(right.schema()) == ["image_right", "depth_right", "seg_right", "pose_right"]
    right = TartanAirSource(tmp_path / "b", cameras=("right",))
    assert {name.split("_", 1)[1] for name in right.schema()} == {"rcam_front", "acc", "gyro"}
    chosen = TartanAirSource(tmp_path / "a", features=["pose_right", "mask"])
    assert list(chosen.schema()) == ["pose_right", "mask"]
    frames = list(chosen.frames(chosen.episodes()[0]))
    assert [list(frame) for frame in frames] == [["pose_right", "mask"]] * 2 + [["pose_right"]]
    wrong = ["seg_right", "mask", "lidar"]
    for match, options in (
        ("expected: Easy or Hard; got: medium", {"difficulty": "medium"}),
        ("no Hard TartanAir trajectory found", {"difficulty": "Hard"}),
        ("seg_left, pose_left; got: seg_right, lidar", {"features": wrong, "cameras": ("left",)}),
        ("expected: left, right or both; got: up", {"cameras": ("up",)}),
    ):
        with pytest.raises(SourceError, match=match):
            TartanAirSource(tmp_path / "a", **options).schema()


def without(frames: Frames, *kinds: str) -> Frames:
    return [{n: value for n, value in f.items() if not n.startswith(kinds)} for f in frames]


def test_partial_downloads_and_both_versions(tmp_path: Path) -> None:
    frames, others, two = make_frames(6, 3), make_frames(7, 3), make_frames(0, 3, v2=True)
    no_mask, no_seg = without(frames, "mask"), without(others, "seg", "flow")
    folder = write_v1(tmp_path / "a" / "Easy" / "P000", frames)
    for file in (folder / "flow").glob("*_mask.npy"):
        file.unlink()
    source = TartanAirSource(tmp_path)
    assert list(source.schema()) == [name for name in V1_FEATURES if name != "mask"]
    check_frames(source, 0, no_mask)
    write_v1(tmp_path / "a" / "Easy" / "P001", no_seg)
    write_v1(tmp_path / "a" / "Easy" / "P002", frames)
    write_v2(tmp_path / "b" / "Data_easy" / "P000", two)
    source = TartanAirSource(tmp_path)
    assert set(source.schema()) == {*V1_FEATURES, *two[0]}
    for number, want in enumerate((no_mask, no_seg, frames, two)):
        check_frames(source, number, want)
    with pytest.raises(SourceError, match="no frames of the selected features"):
        list(TartanAirSource(tmp_path, features=["seg_left"]).frames(source.episodes()[1]))


def test_poses_alone_and_the_same_trajectory_twice(tmp_path: Path) -> None:
    frames = [{"pose_left": frame["pose_left"]} for frame in make_frames(0, 3)]
    (tmp_path / "P000").mkdir()
    write_v1(tmp_path / "P000", frames)
    check_frames(TartanAirSource(tmp_path / "P000"), 0, frames)
    for place in ("a/Easy/P000", "a/a/Easy/P000"):
        write_v1(tmp_path / "twice" / place, make_frames(0, 2))
    with pytest.raises(SourceError, match="duplicate episode key"):
        TartanAirSource(tmp_path / "twice").episodes()


def test_kept_images_are_checked(tmp_path: Path) -> None:
    folder = write_v1(tmp_path / "a" / "Easy" / "P000", make_frames(0, 3))
    source = TartanAirSource(tmp_path, features=["image_left", "seg_left"], keep_encoded=True)
    files = sorted((folder / "image_left").iterdir())
    files[1].write_bytes(files[1].read_bytes()[:-20])
    with pytest.raises(SourceError, match="truncated PNG"):
        list(source.frames(source.episodes()[0]))


@pytest.mark.parametrize("v2", [False, True])
def test_a_flow_to_a_missing_frame_is_read(tmp_path: Path, v2: bool) -> None:
    frames = make_frames(0, 5, v2=v2)[:4]
    (write_v2 if v2 else write_v1)(tmp_path / "P000", frames)
    check_frames(TartanAirSource(tmp_path / "P000"), 0, frames)
    for folder in (tmp_path / "P000").iterdir():
        if folder.is_dir() and not folder.name.startswith("flow"):
            shutil.rmtree(folder)
    kinds = ("flow", "mask", "pose")
    frames = [{n: f[n] for n in f if n.startswith(kinds)} for f in frames]
    check_frames(TartanAirSource(tmp_path / "P000"), 0, frames)


def test_one_mask_fewer_and_other_array_orders(tmp_path: Path) -> None:
    frames = make_frames(0, 5)[:4]
    folder = write_v1(tmp_path / "P000", frames)
    del frames[3]["mask"]
    (folder / "flow" / "000003_000004_mask.npy").unlink()
    np.save(folder / DEPTH, np.asfortranarray(frames[2]["depth_left"]))
    with (folder / "depth_left" / "000001_left_depth.npy").open("wb") as stream:
        np.lib.format.write_array(stream, frames[1]["depth_left"], version=(2, 0))
    check_frames(TartanAirSource(tmp_path / "P000"), 0, frames)


# --- damaged files ---------------------------------------------------------------------------


def _make_folder(folder: Path) -> None:
    (folder / IMAGE).unlink()
    (folder / IMAGE).mkdir()


def _empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


IMAGE = "image_left/000002_left.png"
DEPTH = "depth_left/000002_left_depth.npy"
ALL_DEPTHS = [f"depth_left/00000{i}_left_depth.npy" for i in range(4)]
POSES = "pose_left.txt"
FLOW, MASK = "flow/000000_000001_flow.npy", "flow/000001_000002_mask.npy"
RGB = np.zeros((6, 8, 3), np.uint8)
NO_FLOW = np.zeros((6, 8, 2), np.float32)
DESCR = "{'descr': '<f4', 'fortran_order': False, 'shape': %s, }"

_AS_IN = "different frames"
_ARRAY = {"expected": "320 bytes for float32 [6, 8]", "got": "319 bytes", "feature": "depth_left"}
BROKEN = [
    # frame lists
    fault(remove(IMAGE), ".", "gap", got="frame 3 after 1"),
    fault(remove(DEPTH), "depth_left", _AS_IN, got="frame 2 missing"),
    fault(remove(ALL_DEPTHS[3]), "depth_left", _AS_IN, got="frame 3 missing"),
    fault(
        *(remove("image_left/000003_left.png"), "depth_left", _AS_IN),
        expected="3 files, frames 0 to 2, as in image_left/",
        got="frame 3 too many",
    ),
    fault(remove("flow/000001_000002_flow.npy"), "flow", _AS_IN, got="frame 1 missing"),
    fault(remove("flow/000002_000003_mask.npy"), "flow", _AS_IN, got="frame 2 missing"),
    fault(save("flow/000004_000005_flow.npy", NO_FLOW), "flow", _AS_IN, got="frame 4 too many"),
    fault(save("flow/000003_000005_flow.npy", NO_FLOW), "flow/000003*", "consecutive", got="and 5"),
    fault(remove("image_right/000003_right.png"), "image_right", _AS_IN, got="frame 3 missing"),
    fault(remove(*ALL_DEPTHS), "depth_left", _AS_IN, got="frame 0 missing"),
    fault(write("image_left/2_left.png", b""), "image_left/*2_left.png", "same frame number"),
    # images
    fault(cut(IMAGE, -30), IMAGE, "truncated PNG", feature="image_left", frame=2),
    fault(cut(IMAGE, -12), IMAGE, "truncated PNG"),
    fault(cut(IMAGE, 20), IMAGE, "cannot decode"),
    fault(edit(IMAGE, flipped(60)), IMAGE, "checksum", offset=33),
    fault(edit(IMAGE, png_of_few_pixels), IMAGE, "cannot decode"),
    fault(edit(IMAGE, huge_png), IMAGE, "cannot decode|too large"),
    fault(write(IMAGE, b""), IMAGE, "neither a PNG", got="b''"),
    fault(write(IMAGE, b"hello" * 20), IMAGE, "neither a PNG"),
    fault(write(IMAGE, encoded(RGB, kind="jpeg")), IMAGE, "file name", expected="png", got="jpeg"),
    fault(write(IMAGE, encoded(RGB[..., 0])), IMAGE, "dtype or shape", got="uint8 [6, 8]"),
    fault(write(IMAGE, encoded(RGB, "RGBA")), IMAGE, "dtype or shape", got="uint8 [6, 8, 4]"),
    fault(write(IMAGE, encoded(RGB[:4])), IMAGE, "dtype or shape", got="uint8 [4, 8, 3]"),
    fault(_make_folder, IMAGE, "cannot read", got="Is a directory"),
    # arrays
    fault(cut(DEPTH, -1), DEPTH, "size", **_ARRAY),
    fault(edit(DEPTH, lambda data: data + b"\0"), DEPTH, "size", got="321 bytes"),
    fault(cut(DEPTH, 40), DEPTH, "unsupported npy file"),
    fault(write(DEPTH, b""), DEPTH, "unsupported npy file"),
    fault(edit(DEPTH, lambda data: data[:6] + b"\x09" + data[7:]), DEPTH, "unsupported npy file"),
    fault(write(DEPTH, npy(DESCR % f"({10**6}, {10**6})")), DEPTH, "size", got="128 bytes"),
    fault(write(DEPTH, npy(DESCR % "(-6, -8)", b"\0" * 192)), DEPTH, "size"),
    fault(write(DEPTH, npy("__import__('os').system('true')")), DEPTH, "unsupported npy file"),
    fault(save(DEPTH, np.array([{}, None])), DEPTH, "pickled"),
    fault(save(DEPTH, np.zeros((6, 8))), DEPTH, "dtype", expected="float32", got="float64"),
    fault(save(DEPTH, NO_FLOW[:, :5, 0]), DEPTH, "shape", expected=[6, 8], got=[6, 5]),
    fault(save(FLOW, NO_FLOW[..., 0]), FLOW, "shape", expected=[6, 8, 2], feature="flow", frame=0),
    fault(save(MASK, RGB[..., 0].view("i1")), MASK, "dtype", got="int8", feature="mask"),
    # poses
    fault(line(POSES, 3, ""), POSES, "number of poses", got="3 lines", feature="pose_left"),
    fault(line(POSES, 1, "0 0 nan 0 0 0 1"), POSES, "row in line 2"),
    fault(line("pose_right.txt", 3, "0 0 0 0 0 1"), "pose_right.txt", "row in line 4"),
    fault(line(POSES, 0, "tx ty tz qx qy qz qw"), POSES, "row in line 1"),
    fault(line(POSES, 2, "0 0 0 0 0 0 1 0"), POSES, "row in line 3"),
    fault(line(POSES, 2, ""), POSES, "number of poses differs"),
    fault(write(POSES, bytes(range(128, 256))), POSES, "not UTF-8 text"),
    fault(_empty, ".", "without frames"),
]


def test_broken_v1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Pillow's LOAD_TRUNCATED_IMAGES; test_broken_v2 runs without it."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    sound = write_v1(tmp_path / "sound", make_frames(1, 4))
    check_faults(BROKEN, sound, tmp_path / "a/Easy", TartanAirSource)
    assert ImageFile.LOAD_TRUNCATED_IMAGES


def test_threads_refuse_truncated_images_in_a_lenient_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    for name in ("P000", "P001"):
        write_v1(tmp_path / name, make_frames(0, 4))
    edit(IMAGE, png_of_few_pixels)(tmp_path / "P000")
    source = TartanAirSource(tmp_path, features=["image_left"])
    infos = source.episodes()

    def read(number: int) -> bool:
        try:
            return len(list(source.frames(infos[number % 2]))) == 4
        except SourceError:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, range(100))) == [False, True] * 50
    assert ImageFile.LOAD_TRUNCATED_IMAGES


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("depth_left/000000_left_depth.npy", save("", np.zeros((6, 8)))),
        ("depth_left/000000_left_depth.npy", save("", np.zeros((6, 8, 3), "f4"))),
        (FLOW, save("", np.zeros((6, 8, 3), "f4"))),
        ("image_left/000000_left.png", write("", encoded(RGB[..., 0]))),
    ],
)
def test_a_first_file_of_another_form_does_not_change_the_schema(
    tmp_path: Path, file: str, change: Damage
) -> None:
    frames = make_frames(0, 4)
    for number in range(2):
        write_v1(tmp_path / f"a/Easy/P00{number}", frames)
    schema = TartanAirSource(tmp_path).schema()
    change(tmp_path / "a/Easy/P000" / file)
    source = TartanAirSource(tmp_path)
    assert source.schema() == schema
    check_frames(source, 1, frames)
    alone = TartanAirSource(tmp_path / "a/Easy/P000")
    for read in (alone.schema, lambda: [*source.frames(source.episodes()[0])]):
        with pytest.raises(SourceError, match=rf"(wrong|differ).*{file}.*P000; feature: "):
            read()


V2_FLOW = "flow_lcam_front/000001_000002_flow.png"
V2_DEPTH = "depth_lcam_front/000001_lcam_front_depth.png"
V2_SEG = "seg_rcam_front/000000_rcam_front_seg.png"

_V2_DEPTH = {"expected": "'any', 4]", "got": "3]", "feature": "depth_lcam_front", "frame": 1}
BROKEN_V2 = [
    fault(write(V2_DEPTH, encoded(RGB)), V2_DEPTH, "wrong shape", **_V2_DEPTH),
    fault(write(V2_FLOW, encoded(RGB)), V2_FLOW, "dtype", got="uint8", feature="flow_lcam_front"),
    fault(cut(V2_FLOW, -40), V2_FLOW, "truncated PNG"),
    fault(edit(V2_FLOW, png_of_few_pixels), V2_FLOW, "cannot decode"),
    fault(save("imu/gyro.npy", np.zeros((30, 3), "f4")), "imu/gyro.npy", "dtype", got="float32"),
    fault(write(V2_SEG, encoded(RGB)), V2_SEG, "dtype or shape", got="uint8 [6, 8, 3]"),
]


def test_broken_v2(tmp_path: Path) -> None:
    sound = write_v2(tmp_path / "sound", make_frames(1, 4, v2=True))
    check_faults(BROKEN_V2, sound, tmp_path / "a/Data_easy", TartanAirSource)


def test_imu_of_the_last_frame_masks_above_a_byte_and_flow_without_imagecodecs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = make_frames(0, 4, v2=True)
    frames[3]["imu_gyro"] = np.ones((10, 3))
    write_v2(tmp_path / "P000", frames)
    check_frames(TartanAirSource(tmp_path / "P000"), 0, frames)
    for frame in frames[:3]:
        frame["mask_lcam_front"] = frame["mask_lcam_front"].astype(np.uint16) + 200
    write_v2(tmp_path / "P001", frames)
    source = TartanAirSource(tmp_path / "P001")
    with pytest.raises(SourceError, match=r"mask value out of range.*; got: 300"):
        list(source.frames(source.episodes()[0]))
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    with pytest.raises(MissingPackageError, match="pip install imagecodecs"):
        TartanAirSource(tmp_path / "P000").schema()
    source = TartanAirSource(tmp_path / "P000", features=["depth_lcam_front"])
    check_frames(source, 0, [{"depth_lcam_front": frame["depth_lcam_front"]} for frame in frames])


def test_the_size_is_read_from_the_first_valid_image(tmp_path: Path) -> None:
    frames = make_frames(1, 3)
    folder = write_v1(tmp_path / "a" / "Easy" / "P000", make_frames(0, 3))
    write_v1(tmp_path / "a" / "Easy" / "P001", frames)
    for kind in ("image_left", "image_right"):
        next(iter(sorted((folder / kind).iterdir()))).write_bytes(b"")
    source = TartanAirSource(tmp_path, features=["image_left"])
    assert source.schema()["image_left"].shape == (6, 8, 3)
    check_frames(source, 1, [{"image_left": frame["image_left"]} for frame in frames])
    (folder.parent / "P001").rename(tmp_path / "P001")
    for file in folder.rglob("*.*"):
        if file.suffix in (".png", ".npy"):
            file.write_bytes(b"")
    with pytest.raises(SourceError, match=r"the file is empty; file: .*image_left"):
        TartanAirSource(tmp_path / "a").schema()


# --- real data -------------------------------------------------------------------------------

needs_real_data = pytest.mark.skipif(not REAL_DATA.is_dir(), reason=f"no {REAL_DATA}")


CAMERA = {"fx": 320.0, "fy": 320.0}


@needs_real_data
def test_real_v1() -> None:
    source = open_source(REAL_DATA / "tartanair_v1")
    [info] = source.episodes()
    assert info.key == "abandonedfactory/Easy/P000"
    camera = {**CAMERA, "cx": 320.0, "cy": 240.0, "width": 640, "height": 480}
    assert info.metadata["camera"] == camera
    assert list(source.schema()) == ["image_left", "depth_left", "flow", "mask", "pose_left"]
    first, last = frames_of(source)
    assert set(last) == {"image_left", "depth_left", "pose_left"}
    expected = _reproject(first["depth_left"], first["pose_left"], last["pose_left"], (320, 240))
    assert np.abs(expected - first["flow"]).max() < 2e-6


@needs_real_data
def test_real_v2() -> None:
    source = open_source(REAL_DATA / "tartanair_v2")
    [info] = source.episodes()
    assert info.key == "AbandonedSchool/Data_easy/P000"
    camera = {**CAMERA, "cx": 319.5, "cy": 319.5, "width": 640, "height": 640}
    assert info.metadata["camera"] == camera
    frames = frames_of(source)
    assert len(frames) == 3
    for one, two in pairwise(frames):
        depth = one["depth_lcam_front"]
        assert 1 < depth.min() < np.median(depth) < 10  # a room, in metres
        assert set(np.unique(one["mask_lcam_front"])) <= {0, 1, 10, 100}
        centre = (319.5, 319.5)
        expected = _reproject(depth, one["pose_lcam_front"], two["pose_lcam_front"], centre)
        # Flow is rounded to 1/64.
        assert np.abs(expected - one["flow_lcam_front"]).max() < 1 / 128 + 1e-4


# --- helpers ---------------------------------------------------------------------------------


def _reproject(
    depth: npt.NDArray[Any],
    pose: npt.NDArray[Any],
    next_pose: npt.NDArray[Any],
    centre: tuple[float, float],
    focal: float = 320,
) -> npt.NDArray[np.float64]:
    """Expected flow [H, W, 2] of a camera that moves from one pose to the next.

    Poses are NED: x forward, y right, z down; images have x right, y down, z forward.
    """
    y, x = np.indices(depth.shape)
    z = depth.astype(np.float64)
    points = np.stack([z, (x - centre[0]) / focal * z, (y - centre[1]) / focal * z], axis=-1)
    world = points @ _rotation(pose[3:]).T + pose[:3]
    seen = (world - next_pose[:3]) @ _rotation(next_pose[3:])
    u = seen[..., 1] / seen[..., 0] * focal + centre[0]
    v = seen[..., 2] / seen[..., 0] * focal + centre[1]
    return np.stack([u - x, v - y], axis=-1)


def _rotation(quaternion: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    x, y, z, w = quaternion / np.linalg.norm(quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


# --- supported layouts in renamed folders ------------------------------------------------------


@pytest.mark.parametrize("v2", [False, True])
def test_a_trajectory_with_any_name_is_found(tmp_path: Path, v2: bool) -> None:
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


def test_trajectories_with_few_modalities(tmp_path: Path) -> None:
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


def test_names_alone_do_not_identify_tartanair(tmp_path: Path) -> None:
    """A pose file, or a folder with other files."""
    for folder in ("left", "image_left"):
        for number in range(3):
            image = tmp_path / folder / "run" / folder / f"{number}.png"
            save_image(image, np.zeros((4, 5, 3), np.uint8))
    np.savetxt(tmp_path / "left" / "run" / "pose_left.txt", np.zeros((3, 7)))
    for folder, more in (("left", ["pose_left"]), ("image_left", [])):
        source = open_source(tmp_path / folder)
        assert isinstance(source, FolderSource)
        assert [*source.schema()] == ["frame_number", folder, *more]


def test_sequences_are_found_in_order_and_not_in_other_sequences(tmp_path: Path) -> None:
    for name, layout in (("tum", write_tum), ("euroc", write_euroc), ("kitti", write_kitti)):
        layout(tmp_path / name / "data" / "2024" / "my-copy")
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


# --- encodings in plain folders ----------------------------------------------------------------

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


def save_image(path: Path, pixels: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if pixels.dtype == U2 and pixels.ndim == 3:
        path.write_bytes(imagecodecs.png_encode(pixels))
    else:
        Image.fromarray(pixels).save(path)


def test_an_unusual_encoding_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number, (feature, file, pixels, text) in enumerate(ENCODED):
        for run in "ab":
            save_image(tmp_path / f"{number}" / run / feature / file, pixels)
            save_image(tmp_path / f"{number}" / run / "rgb" / "0.png", np.zeros((4, 5, 3), U1))
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
    for feature, pixels in {  # plain images have none
        "rgb": np.zeros((4, 5, 3), U1),
        "mask": np.zeros((4, 5), U1),
        "image_left": np.zeros((4, 5, 4), U1),
        "infrared": np.zeros((4, 5), U2),
    }.items():
        save_image(tmp_path / "plain" / "run" / feature / "0.png", pixels)
    with caplog.at_level(logging.WARNING, "seqrecord"):
        assert inventory_of(open_source(tmp_path / "plain")).notes == ()
    assert not caplog.records


# --- the inventory of TartanAir ----------------------------------------------------------------


def test_the_inventory_of_tartanair(tmp_path: Path) -> None:
    for number, place in enumerate(("house/Data_easy/P000", "house/Data_hard/P001")):
        write_v2(tmp_path / place, make_frames(number, 3, v2=True))
        for i in range(3):
            save_image(
                tmp_path / place / "depth_lcam_back" / f"{i:06d}_lcam_back_depth.png", np.eye(4) > 0
            )
            (tmp_path / place / "lidar").mkdir(exist_ok=True)
            (tmp_path / place / "lidar" / f"{i:06d}_lcam_front_lidar.ply").write_bytes(b"ply")
        np.save(tmp_path / place / "imu" / "vel_global.npy", np.zeros((20, 3)))
    write_junk(tmp_path)
    source = open_source(tmp_path, cameras=["left"], features=["depth_lcam_front", "imu_acc"])
    found = inventory_of(source)
    assert found.format == "tartanair"
    assert found.reason.startswith("2 sequences: ENV/Easy/P000/image_left/000000_left.png")
    assert {each.name: each.place for each in found.features} == {
        "depth_lcam_front": "depth_lcam_front/*_lcam_front_depth.png",
        "imu_acc": "imu/acc.npy",
    }
    data = {(each.pattern, each.count) for each in found.left_out if each.is_data}
    assert data == {
        ("house/*/*/depth_lcam_back/*_lcam_back_depth.png", 6),
        ("house/*/*/lidar/*_lcam_front_lidar.ply", 6),
        ("house/*/*/imu/vel_global.npy", 2),
    }
    chosen = {each.pattern: each.reason for each in found.left_out if not each.is_data}
    for name in ("imu_gyro", "image_rcam_front", "pose_lcam_front"):
        assert chosen[f"feature {name}"] == "not selected by features= or cameras="
    assert "10 frames per second" in found.notes[0]
    easy = inventory_of(open_source(tmp_path, difficulty="Easy"))
    assert ("trajectories", 1) in {(each.pattern, each.count) for each in easy.left_out}


def test_imu_of_a_wrong_length_is_listed(tmp_path: Path) -> None:
    frames = make_frames(0, 3, v2=True)
    write_v2(tmp_path / "office", frames)
    for name in ("acc", "gyro"):
        np.save(tmp_path / "office" / "imu" / f"{name}.npy", np.zeros((7, 3)))
    source = open_source(tmp_path)
    check_frames(source, 0, [{k: v for k, v in f.items() if k[:4] != "imu_"} for f in frames])
    found = inventory_of(source)
    assert {(each.pattern, each.count) for each in found.left_out} == {
        ("office/imu/acc.npy", 1),
        ("office/imu/gyro.npy", 1),
    }
