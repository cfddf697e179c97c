"""TartanAir trees: every layout, every form of root, every way to be broken."""

from __future__ import annotations

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import ImageFile

from seqrecord import EncodedImage, FeatureSpec, open_source
from seqrecord.errors import SourceError
from seqrecord.sources import TartanAirSource, inventory_of
from tests.source_faults import (
    check_fault,
    check_frames,
    cut,
    edit,
    encoded,
    fault,
    flipped,
    huge_png,
    line,
    npy,
    png_of_few_pixels,
    remove,
    save,
    write,
)
from tests.trees import REAL_DATA, Frames, make_frames, write_junk, write_v1, write_v2

V1_FEATURES = [
    *("image_left", "depth_left", "flow", "mask", "seg_left"),
    *("image_right", "depth_right", "seg_right", "pose_left", "pose_right"),
]


def told(spec: FeatureSpec) -> tuple[str, str | None, str | None]:
    return str(spec).partition(": ")[2], spec.kind, spec.unit


def test_v1(tmp_path: Path) -> None:
    frames = make_frames(0, 4)
    folder = write_v1(tmp_path / "carwelding" / "Easy" / "P004", frames)
    source = TartanAirSource(tmp_path)
    assert inventory_of(source).left_out == ()
    (folder / "image_left" / "000104_right.png").write_bytes(b"not of this camera")
    [info] = source.episodes()
    assert info.key == "carwelding/Easy/P004"
    assert info.num_frames == 4
    assert info.metadata == {
        "dataset": "TartanAir V1",
        "env": "carwelding",
        "difficulty": "Easy",
        "trajectory": "P004",
        "first_frame_id": 0,
        "camera": {"fx": 4.0, "fy": 4.0, "cx": 4.0, "cy": 3.0, "width": 8, "height": 6},
    }
    schema = source.schema()
    assert list(schema) == V1_FEATURES
    assert all(spec.codec == () for spec in schema.values())
    assert told(schema["image_right"]) == ("uint8 [6, 8, 3]", "image", None)
    assert told(schema["depth_left"]) == ("float32 [6, 8]", "depth", "m")
    assert told(schema["flow"]) == ("float32 [6, 8, 2]", "flow", "px")
    assert told(schema["mask"]) == ("uint8 [6, 8]", "mask", None)
    assert told(schema["seg_left"]) == ("uint8 [6, 8]", "segmentation", None)
    assert told(schema["pose_left"]) == ("float64 [7]", "pose", "m")
    assert info.fps is None
    check_frames(source, 0, frames)


def test_v2(tmp_path: Path) -> None:
    frames = make_frames(1, 4, v2=True)
    write_v2(tmp_path / "AbandonedSchool" / "Data_hard" / "P001", frames, first_id=12)
    source = TartanAirSource(tmp_path)
    assert inventory_of(source).left_out == ()
    [info] = source.episodes()
    assert info.key == "AbandonedSchool/Data_hard/P001"
    assert info.metadata["dataset"] == "TartanAir V2"
    assert info.metadata["difficulty"] == "Hard"
    assert info.metadata["first_frame_id"] == 12
    assert set(source.schema()) == set(frames[0])
    assert told(source.schema()["mask_rcam_front"]) == ("uint8 [6, 8]", "mask", None)
    assert told(source.schema()["depth_lcam_front"]) == ("float32 [6, 8]", "depth", "m")
    assert told(source.schema()["imu_acc"]) == ("float64 [10, 3]", "imu", "m/s^2")
    assert told(source.schema()["imu_gyro"]) == ("float64 [10, 3]", "imu", "rad/s")
    assert info.fps == 10
    check_frames(source, 0, frames)


@pytest.mark.parametrize(
    ("root", "keys"),
    [
        (".", ["a/Easy/P000", "a/Hard/P001", "b/Easy/P000", "b/Easy/P002"]),
        ("a", ["a/Easy/P000", "a/Hard/P001"]),
        ("b", ["b/Easy/P000", "b/Easy/P002"]),
        ("b/b", ["b/Easy/P000", "b/Easy/P002"]),
        ("b/b/Easy", ["b/Easy/P000", "b/Easy/P002"]),
        ("a/Hard", ["a/Hard/P001"]),
        ("b/b/Easy/P002", ["b/Easy/P002"]),
    ],
)
def test_every_form_of_root_gives_the_same_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str, keys: list[str]
) -> None:
    for path in ("a/Easy/P000", "a/Hard/P001", "b/b/Easy/P002", "b/b/Easy/P000"):
        write_v1(tmp_path / path, make_frames(len(path), 2))
    write_junk(tmp_path)
    monkeypatch.chdir(tmp_path / root)
    for source in (TartanAirSource("."), TartanAirSource(tmp_path / root)):
        assert [info.key for info in source.episodes()] == keys
        for info in source.episodes():
            assert info.metadata["env"] == info.key.split("/")[0]
            assert len(list(source.frames(info))) == info.num_frames == 2


def test_difficulty(tmp_path: Path) -> None:
    write_v1(tmp_path / "a" / "Easy" / "P000", make_frames(0, 2))
    write_v2(tmp_path / "b" / "Data_hard" / "P000", make_frames(0, 2, v2=True))
    for level in ("Hard", "hard", "Data_hard"):
        assert [i.key for i in TartanAirSource(tmp_path, difficulty=level).episodes()] == [
            "b/Data_hard/P000"
        ]
    with pytest.raises(
        SourceError, match="unknown difficulty; expected: Easy or Hard; got: medium"
    ):
        TartanAirSource(tmp_path, difficulty="medium")
    with pytest.raises(SourceError, match="no Hard TartanAir trajectory found"):
        TartanAirSource(tmp_path / "a", difficulty="Hard").episodes()


def test_cameras_and_features(tmp_path: Path) -> None:
    write_v1(tmp_path / "a" / "Easy" / "P000", make_frames(0, 3))
    left = TartanAirSource(tmp_path, cameras=("left",))
    assert list(left.schema()) == [name for name in V1_FEATURES if "right" not in name]
    right = TartanAirSource(tmp_path, cameras=("right",))
    assert list(right.schema()) == ["image_right", "depth_right", "seg_right", "pose_right"]
    chosen = TartanAirSource(tmp_path, features=["pose_right", "mask"])
    assert list(chosen.schema()) == ["pose_right", "mask"]
    frames = list(chosen.frames(chosen.episodes()[0]))
    assert [list(frame) for frame in frames] == [["pose_right", "mask"]] * 2 + [["pose_right"]]
    with pytest.raises(SourceError, match=r"no such feature; .*seg_left.*; got: seg_right, lidar"):
        TartanAirSource(
            tmp_path, features=["seg_right", "mask", "lidar"], cameras=("left",)
        ).schema()
    with pytest.raises(SourceError, match="unknown camera; expected: left, right or both; got: up"):
        TartanAirSource(tmp_path, cameras=("up",))


def test_an_episode_without_a_folder_lacks_its_features(tmp_path: Path) -> None:
    no_seg: Frames = [
        {name: value for name, value in frame.items() if not name.startswith(("seg", "flow"))}
        for frame in make_frames(6, 3)
    ]
    write_v1(tmp_path / "a" / "Easy" / "P000", no_seg)
    write_v1(tmp_path / "a" / "Easy" / "P001", make_frames(7, 3))
    source = TartanAirSource(tmp_path)
    assert list(source.schema()) == V1_FEATURES
    check_frames(source, 0, no_seg)
    check_frames(source, 1, make_frames(7, 3))
    with pytest.raises(SourceError, match="the trajectory has none of the selected features"):
        list(TartanAirSource(tmp_path, features=["seg_left"]).frames(source.episodes()[0]))


def test_downloads_of_parts_and_of_both_versions(tmp_path: Path) -> None:
    frames = make_frames(8, 3)
    folder = write_v1(tmp_path / "a" / "Easy" / "P000", frames)
    for file in (folder / "flow").glob("*_mask.npy"):
        file.unlink()
    source = TartanAirSource(tmp_path)
    assert list(source.schema()) == [name for name in V1_FEATURES if name != "mask"]
    no_mask = [{k: v for k, v in frame.items() if k != "mask"} for frame in frames]
    check_frames(source, 0, no_mask)
    write_v1(tmp_path / "a" / "Easy" / "P001", frames)
    source = TartanAirSource(tmp_path)
    assert list(source.schema()) == V1_FEATURES
    check_frames(source, 0, no_mask)
    check_frames(source, 1, frames)
    one, two = make_frames(0, 3, size=(4, 6)), make_frames(0, 3, v2=True)
    write_v1(tmp_path / "both" / "a" / "Easy" / "P000", one)
    write_v2(tmp_path / "both" / "b" / "Data_easy" / "P000", two)
    source = TartanAirSource(tmp_path / "both")
    assert set(source.schema()) == {*one[0], *two[0]}
    assert source.schema()["image_left"].shape == (4, 6, 3)
    check_frames(source, 0, one)
    check_frames(source, 1, two)


def test_poses_alone_and_the_same_trajectory_twice(tmp_path: Path) -> None:
    frames = [{"pose_left": frame["pose_left"]} for frame in make_frames(0, 3)]
    (tmp_path / "P000").mkdir()
    write_v1(tmp_path / "P000", frames)
    source = TartanAirSource(tmp_path / "P000")
    assert source.episodes()[0].num_frames == 3
    check_frames(source, 0, frames)
    write_v1(tmp_path / "twice" / "a" / "Easy" / "P000", make_frames(0, 2))
    write_v1(tmp_path / "twice" / "a" / "a" / "Easy" / "P000", make_frames(0, 2))
    with pytest.raises(SourceError, match="duplicate episode key"):
        TartanAirSource(tmp_path / "twice").episodes()


def test_kept_images_are_the_files_bytes(tmp_path: Path) -> None:
    folder = write_v1(tmp_path / "a" / "Easy" / "P000", make_frames(0, 3))
    source = TartanAirSource(tmp_path, features=["image_left", "seg_left"], keep_encoded=True)
    assert source.schema()["image_left"].codec == ({"id": "seqrecord.image", "format": "png"},)
    assert source.schema()["image_left"].shape == (6, 8, 3)
    assert source.schema()["seg_left"].codec == ()
    frames = list(source.frames(source.episodes()[0]))
    files = sorted((folder / "image_left").iterdir())
    assert [f["image_left"] for f in frames] == [EncodedImage(p.read_bytes()) for p in files]
    files[1].write_bytes(files[1].read_bytes()[:-20])
    with pytest.raises(SourceError, match="truncated PNG"):
        list(source.frames(source.episodes()[0]))


@pytest.mark.parametrize("version", ["V1", "V2"])
@pytest.mark.parametrize("folders", ["all", "flow and poses"])
def test_a_flow_to_a_frame_that_was_not_kept(tmp_path: Path, version: str, folders: str) -> None:
    frames = make_frames(0, 5, v2=version == "V2")[:4]
    (write_v2 if version == "V2" else write_v1)(tmp_path / "P000", frames)
    if folders == "flow and poses":
        for folder in (tmp_path / "P000").iterdir():
            if folder.is_dir() and not folder.name.startswith("flow"):
                shutil.rmtree(folder)
        kinds = ("flow", "mask", "pose")
        frames = [{n: f[n] for n in f if n.startswith(kinds)} for f in frames]
    check_frames(TartanAirSource(tmp_path / "P000"), 0, frames)


def test_a_mask_fewer_and_arrays_of_other_orders(tmp_path: Path) -> None:
    frames = make_frames(0, 5)[:4]
    folder = write_v1(tmp_path / "P000", frames)
    del frames[3]["mask"]
    (folder / "flow" / "000003_000004_mask.npy").unlink()
    np.save(folder / DEPTH, np.asfortranarray(frames[2]["depth_left"]))
    with (folder / "depth_left" / "000001_left_depth.npy").open("wb") as stream:
        np.lib.format.write_array(stream, frames[1]["depth_left"], version=(2, 0))
    check_frames(TartanAirSource(tmp_path / "P000"), 0, frames)


# --- ways to be broken -----------------------------------------------------------------------


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

BROKEN = {
    # frame lists
    "image missing": fault(remove(IMAGE), ".", "gap", got="frame 3 after 1"),
    "depth missing": fault(remove(DEPTH), "depth_left", "different frames", got="frame 2 missing"),
    "depth missing at the end": fault(
        remove(ALL_DEPTHS[3]), "depth_left", "different frames", got="frame 3 missing"
    ),
    "image missing at the end": fault(
        *(remove("image_left/000003_left.png"), "depth_left", "different frames"),
        expected="3 files, frames 0 to 2, as in image_left/",
        got="frame 3 too many",
    ),
    "flow missing": fault(
        remove("flow/000001_000002_flow.npy"), "flow", "different frames", got="frame 1 missing"
    ),
    "mask missing": fault(
        remove("flow/000002_000003_mask.npy"), "flow", "different frames", got="frame 2 missing"
    ),
    "flow after the last frame": fault(
        save("flow/000004_000005_flow.npy", NO_FLOW),
        "flow",
        "different frames",
        got="frame 4 too many",
    ),
    "flow over two frames": fault(
        save("flow/000003_000005_flow.npy", NO_FLOW),
        "flow/000003*",
        "not consecutive",
        got="3 and 5",
    ),
    "right images missing at the end": fault(
        *(remove("image_right/000003_right.png"), "image_right", "different frames"),
        got="frame 3 missing",
    ),
    "no depth at all": fault(
        remove(*ALL_DEPTHS), "depth_left", "different frames", got="frame 0 missing"
    ),
    "the same id twice": fault(
        write("image_left/2_left.png", b""),
        "image_left/*2_left.png",
        "two files have the same frame number",
    ),
    # images
    "truncated PNG": fault(cut(IMAGE, -30), IMAGE, "truncated PNG", feature="image_left", frame=2),
    "PNG without its end": fault(cut(IMAGE, -12), IMAGE, "truncated PNG"),
    "PNG cut in its header": fault(cut(IMAGE, 20), IMAGE, "cannot decode"),
    "flipped bit in a PNG": fault(edit(IMAGE, flipped(60)), IMAGE, "checksum", offset=33),
    "PNG with too few pixels": fault(edit(IMAGE, png_of_few_pixels), IMAGE, "cannot decode"),
    "PNG of absurd size": fault(edit(IMAGE, huge_png), IMAGE, "cannot decode|too large"),
    "empty PNG": fault(write(IMAGE, b""), IMAGE, "neither a PNG", got="b''"),
    "text named PNG": fault(write(IMAGE, b"hello" * 20), IMAGE, "neither a PNG"),
    "JPEG named PNG": fault(
        write(IMAGE, encoded(RGB, kind="jpeg")), IMAGE, "file name", expected="png", got="jpeg"
    ),
    "grayscale image": fault(
        write(IMAGE, encoded(RGB[..., 0])), IMAGE, "wrong image mode", expected="RGB", got="L"
    ),
    "palette image": fault(write(IMAGE, encoded(RGB, "P")), IMAGE, "wrong image mode", got="P"),
    "image with alpha": fault(
        write(IMAGE, encoded(RGB, "RGBA")), IMAGE, "wrong image mode", got="RGBA"
    ),
    "image of another size": fault(
        write(IMAGE, encoded(RGB[:4])), IMAGE, "shape", expected=[6, 8, 3], got=[4, 8, 3]
    ),
    "image that is a folder": fault(_make_folder, IMAGE, "cannot read", got="Is a directory"),
    # arrays
    "truncated npy": fault(
        *(cut(DEPTH, -1), DEPTH, "size"),
        expected="320 bytes for float32 [6, 8]",
        got="319 bytes",
        feature="depth_left",
    ),
    "npy with bytes to spare": fault(
        edit(DEPTH, lambda data: data + b"\0"), DEPTH, "size", got="321 bytes"
    ),
    "npy cut in its header": fault(cut(DEPTH, 40), DEPTH, "unsupported npy file"),
    "empty npy": fault(write(DEPTH, b""), DEPTH, "unsupported npy file"),
    "npy of another version": fault(
        edit(DEPTH, lambda data: data[:6] + b"\x09" + data[7:]), DEPTH, "unsupported npy file"
    ),
    "npy of an absurd shape": fault(
        write(DEPTH, npy(DESCR % "(1000000, 1000000, 1000000)")), DEPTH, "size", got="128 bytes"
    ),
    "npy of a negative shape": fault(
        write(DEPTH, npy(DESCR % "(-6, -8)", b"\0" * 192)), DEPTH, "size"
    ),
    "npy header that is code": fault(
        write(DEPTH, npy("__import__('os').system('true')")), DEPTH, "unsupported npy file"
    ),
    "npy of objects": fault(save(DEPTH, np.array([{}, None])), DEPTH, "pickled"),
    "depth in double precision": fault(
        save(DEPTH, np.zeros((6, 8))), DEPTH, "dtype", expected="float32", got="float64"
    ),
    "depth of another size": fault(
        save(DEPTH, NO_FLOW[:, :5, 0]), DEPTH, "shape", expected=[6, 8], got=[6, 5]
    ),
    "flow without a last axis": fault(
        *(save(FLOW, NO_FLOW[..., 0]), FLOW, "shape"), expected=[6, 8, 2], feature="flow", frame=0
    ),
    "mask of signed bytes": fault(
        save(MASK, RGB[..., 0].view("i1")), MASK, "dtype", got="int8", feature="mask"
    ),
    # poses
    "pose file too short": fault(
        line(POSES, 3, ""), POSES, "number of poses differs", got="3 lines", feature="pose_left"
    ),
    "pose with NaN": fault(line(POSES, 1, "0 0 nan 0 0 0 1"), POSES, "row in line 2"),
    "pose of six numbers": fault(
        line("pose_right.txt", 3, "0 0 0 0 0 1"), "pose_right.txt", "row in line 4"
    ),
    "pose of words": fault(line(POSES, 0, "tx ty tz qx qy qz qw"), POSES, "row in line 1"),
    "pose of eight numbers": fault(line(POSES, 2, "0 0 0 0 0 0 1 0"), POSES, "row in line 3"),
    "empty line among poses": fault(line(POSES, 2, ""), POSES, "number of poses differs"),
    "binary pose file": fault(write(POSES, bytes(range(128, 256))), POSES, "not UTF-8 text"),
    "nothing in it": fault(_empty, ".", "without frames"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_v1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """In a program whose Pillow is lenient; that of test_broken_v2 is strict."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    write_v1(tmp_path / "a" / "Easy" / "P000", make_frames(0, 2))
    folder = write_v1(tmp_path / "a" / "Easy" / "P001", make_frames(1, 4))
    BROKEN[name].damage(folder)
    source = TartanAirSource(tmp_path)
    assert [info.key for info in source.episodes()] == ["a/Easy/P000", "a/Easy/P001"]
    check_fault(BROKEN[name], source, "a/Easy/P001", folder)
    assert ImageFile.LOAD_TRUNCATED_IMAGES


def test_threads_are_strict_beside_a_lenient_program(
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


V2_FLOW = "flow_lcam_front/000001_000002_flow.png"
V2_DEPTH = "depth_lcam_front/000001_lcam_front_depth.png"
V2_SEG = "seg_rcam_front/000000_rcam_front_seg.png"

BROKEN_V2 = {
    "depth without alpha": fault(
        *(write(V2_DEPTH, encoded(RGB)), V2_DEPTH, "wrong image mode"),
        expected="RGBA",
        got="RGB",
        feature="depth_lcam_front",
        frame=1,
    ),
    "flow of 8 bits": fault(
        *(write(V2_FLOW, encoded(RGB)), V2_FLOW, "dtype"), got="uint8", feature="flow_lcam_front"
    ),
    "truncated flow": fault(cut(V2_FLOW, -40), V2_FLOW, "truncated PNG"),
    "flow with too few pixels": fault(edit(V2_FLOW, png_of_few_pixels), V2_FLOW, "cannot decode"),
    "imu of another length": fault(
        *(save("imu/acc.npy", np.zeros((29, 3))), "imu/acc.npy", "shape"),
        expected="[30 or 40, 3]",
        got=[29, 3],
        feature="imu_acc",
    ),
    "imu in single precision": fault(
        save("imu/gyro.npy", np.zeros((30, 3), "f4")), "imu/gyro.npy", "dtype", got="float32"
    ),
    "segmentation in colour": fault(
        write(V2_SEG, encoded(RGB)), V2_SEG, "wrong image mode", expected="L", got="RGB"
    ),
}


@pytest.mark.parametrize("name", BROKEN_V2)
def test_broken_v2(tmp_path: Path, name: str) -> None:
    write_v2(tmp_path / "a" / "Data_easy" / "P000", make_frames(0, 2, v2=True))
    folder = write_v2(tmp_path / "a" / "Data_easy" / "P001", make_frames(1, 4, v2=True))
    BROKEN_V2[name].damage(folder)
    check_fault(BROKEN_V2[name], TartanAirSource(tmp_path), "a/Data_easy/P001", folder)


def test_imu_of_the_last_frame_and_masks_above_a_byte(tmp_path: Path) -> None:
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


def test_the_size_comes_from_the_first_sound_image(tmp_path: Path) -> None:
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


def test_flow_needs_imagecodecs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = make_frames(0, 3, v2=True)
    write_v2(tmp_path / "P000", frames)
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    with pytest.raises(SourceError, match="pip install imagecodecs"):
        TartanAirSource(tmp_path / "P000").schema()
    source = TartanAirSource(tmp_path / "P000", features=["depth_lcam_front"])
    expected = [{"depth_lcam_front": frame["depth_lcam_front"]} for frame in frames]
    check_frames(source, 0, expected)


# --- the real thing --------------------------------------------------------------------------

needs_real_data = pytest.mark.skipif(not REAL_DATA.is_dir(), reason=f"no {REAL_DATA}")


@needs_real_data
def test_real_v1() -> None:
    source = open_source(REAL_DATA / "tartanair_v1")
    [info] = source.episodes()
    assert info.key == "abandonedfactory/Easy/P000"
    assert info.metadata["camera"] == {
        "fx": 320.0,
        "fy": 320.0,
        "cx": 320.0,
        "cy": 240.0,
        "width": 640,
        "height": 480,
    }
    assert list(source.schema()) == ["image_left", "depth_left", "flow", "mask", "pose_left"]
    first, last = [_arrays(frame) for frame in source.frames(info)]
    assert set(last) == {"image_left", "depth_left", "pose_left"}
    expected = _reproject(first["depth_left"], first["pose_left"], last["pose_left"], (320, 240))
    assert np.abs(expected - first["flow"]).max() < 2e-6


@needs_real_data
def test_real_v2() -> None:
    source = open_source(REAL_DATA / "tartanair_v2")
    [info] = source.episodes()
    assert info.key == "AbandonedSchool/Data_easy/P000"
    assert info.metadata["camera"] == {
        "fx": 320.0,
        "fy": 320.0,
        "cx": 319.5,
        "cy": 319.5,
        "width": 640,
        "height": 640,
    }
    frames = [_arrays(frame) for frame in source.frames(info)]
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


def _arrays(frame: Any) -> dict[str, npt.NDArray[Any]]:
    return dict(frame)


def _reproject(
    depth: npt.NDArray[Any],
    pose: npt.NDArray[Any],
    next_pose: npt.NDArray[Any],
    centre: tuple[float, float],
    focal: float = 320,
) -> npt.NDArray[np.float64]:
    """Where a camera that moves from one pose to the next sees each pixel's point: flow [H, W, 2].

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
