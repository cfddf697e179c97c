"""TUM RGB-D, EuRoC and KITTI sequences, in files as documented by their authors."""

from __future__ import annotations

import functools
import re
import resource
import shutil
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import seqrecord
from seqrecord import EncodedImage, convert, open_source
from seqrecord.errors import SourceError
from seqrecord.sources import EurocSource, KittiSource, TumSource, inventory_of, undistorted
from tests.formats.format_cases.sequences import write_euroc, write_kitti, write_tum
from tests.kit.datasets import encoded
from tests.kit.source_faults import (
    Damage,
    check_faults,
    check_frames,
    cut,
    edit,
    fault,
    remove,
    write,
)
from tests.kit.tiny import read_all


def test_metadata_of_tum(tmp_path: Path) -> None:
    write_tum(tmp_path / "freiburg1" / "xyz")
    source = open_source(tmp_path)
    [info] = source.episodes()
    assert info.key == "freiburg1/xyz"
    assert info.metadata == {
        "dataset": "TUM RGB-D",
        "camera": {
            "fx": 517.3,
            "fy": 516.5,
            "cx": 318.6,
            "cy": 255.3,
            "width": 640,
            "height": 480,
            "distortion_model": "opencv",
            "distortion_coefficients": [0.2624, -0.9531, -0.0054, 0.0026, 1.1633],
        },
        "depth_per_metre": 5000,
        "rgb_without_depth": 2,
        "depth_without_rgb": 1,
        "frames_without_pose": 1,
        "accelerometer_before_first_frame": 5,
        "accelerometer_after_last_frame": 14,
    }
    assert open_source(tmp_path / "freiburg1" / "xyz").episodes()[0].key == "xyz"


def test_cameras_of_tum(tmp_path: Path) -> None:
    """By the path, or by the header of rgb.txt, which has priority."""
    names = {"rgbd_dataset_freiburg2_desk": 520.9, "freiburg3/rgbd_office": 535.4, "office": None}
    for name in [*names, "freiburg1/xyz"]:
        write_tum(tmp_path / name)
    path = tmp_path / "freiburg1/xyz/rgb.txt"
    header = "# file: 'rgbd_dataset_freiburg3_office.bag'\n"
    path.write_text(header + path.read_text())
    source = TumSource(tmp_path)
    found = {info.key: info.metadata.get("camera", {}).get("fx") for info in source.episodes()}
    assert found == {**names, "freiburg1/xyz": 535.4}
    assert any("freiburg3's, named by the header" in note for note in source.account().notes)


# Seconds since 1970 as in TUM files, in steps that float64 does not represent exactly.
SECONDS = st.lists(st.integers(0, 60), min_size=1, max_size=12).map(
    lambda steps: [1305031102.17 + 0.005 * step for step in sorted(steps)]
)


def as_associate_py(first: list[float], second: list[float], within: float) -> list[Any]:
    """TUM's documented association: all pairs, closest first, each time used once."""
    pairs = sorted((abs(a - b), a, b) for a in first for b in second if abs(a - b) < within)
    left, right, matches = set(first), set(second), []
    for _, a, b in pairs:
        if a in left and b in right:
            left.remove(a)
            right.remove(b)
            matches.append((a, b))
    return sorted(matches)


def listed(path: Path, rows: list[str]) -> None:
    path.write_text("\n".join(["# a list", *rows]))


@given(SECONDS, SECONDS, SECONDS)
def test_associated_times_match_brute_force_over_all_pairs(
    tmp_path_factory: pytest.TempPathFactory,
    colour: list[float],
    depth: list[float],
    samples: list[float],
) -> None:
    """Depth by TUM's rule; samples belong to the previous frame."""
    root = tmp_path_factory.getbasetemp() / "tum"
    if not root.exists():
        write_tum(root)
        for path in root.glob("*.txt"):
            path.unlink()
    one, other = (next((root / name).iterdir()) for name in ("rgb", "depth"))
    listed(root / "rgb.txt", [f"{t!r} rgb/{one.name}" for t in colour])
    listed(root / "depth.txt", [f"{t!r} depth/{other.name}" for t in depth])
    listed(root / "accelerometer.txt", [f"{t!r} 1 2 3" for t in samples])
    for name, key in (("depth_timestamp", "depth"), ("accelerometer", "accelerometer")):
        source = TumSource(root, features=["timestamp", name])
        pairs = as_associate_py(colour, depth, 0.02)
        end = colour[-1] + (colour[-1] - colour[-2] if len(colour) > 1 else 0)
        bounds = [*colour, end]
        inside = [t for t in samples if colour[0] <= t < end]
        if not (pairs if key == "depth" else inside):
            with pytest.raises(SourceError, match="no row matches a frame"):
                source.schema()
            continue
        frames: list[Any] = list(source.frames(source.episodes()[0]))
        if key == "depth":
            got = [(float(f["timestamp"]), float(f["depth_timestamp"])) for f in frames]
            assert got == pairs
        else:
            found = [[*f[name][:, 0]] if name in f else [] for f in frames]
            expected = [[t for t in samples if a <= t < b] for a, b in pairwise(bounds)]
            assert found == expected


# --- lists and tables: separators, columns, times ---------------------------------------------


def test_separators_are_detected_from_the_file(tmp_path: Path) -> None:
    expected = write_tum(tmp_path)
    paths = [tmp_path / f"{name}.txt" for name in ("rgb", "depth", "groundtruth")]
    texts = [path.read_text().splitlines() for path in paths]
    for separator in ("\t", ",", " , ", ";"):
        for path, (head, *lines) in zip(paths, texts, strict=True):
            rows = [line.replace(" ", separator) for line in lines]
            path.write_text("\n".join([f"\ufeff{head}", *rows]), "utf-8")
        check_frames(TumSource(tmp_path, features=[*expected[1]]), 0, expected)


TUM_TRUTH = "1305031102.1 1.5 2.25 3.5 0.0 0.0 0.0 1.0"
OTHER_TIMES = (
    r"no row matches a frame; .*--features.* from 1305031102.0 to 1305031102.2 s; got: 1 rows"
)
TABLES = [  # a table's rows, and the error
    (TUM_TRUTH.replace(".", ","), "decimal comma in line 1"),
    (f"{TUM_TRUTH}\n{TUM_TRUTH.replace('1.5', '1,5')}", "decimal comma in line 2"),
    (TUM_TRUTH.replace(".", ",").replace(" ", "; "), "decimal comma in line 1"),
    (TUM_TRUTH.replace(".", ",").replace(" ", ","), "line 1; .*got: 16 columns"),
    (f"{TUM_TRUTH} 7", "line 1; .*a timestamp and 7 numbers; got: 9 columns"),
    (f"{TUM_TRUTH}\n{TUM_TRUTH[:-4]}", "line 2; .*7 finite numbers; got: 6 columns"),
    (TUM_TRUTH.replace(" ", ",").replace("2.25", ""), "invalid row in line 1"),
    (f"t x y z a b c d\n{TUM_TRUTH}", "invalid row in line 1"),  # a header without #
    (TUM_TRUTH.replace("1305031102", "1311868164"), OTHER_TIMES),
]


def test_a_mismatched_table_is_refused(tmp_path: Path) -> None:
    write_tum(tmp_path / "a")
    (tmp_path / "a/depth.txt").unlink()
    write_tum(tmp_path / "b")
    table = tmp_path / "a/groundtruth.txt"
    for text, match in TABLES:
        table.write_text(text)
        source = TumSource(tmp_path)
        bad, good = source.episodes()
        with pytest.raises(SourceError, match=match) as caught:
            list(source.frames(bad))
        assert caught.value.file == str(table)
        assert len(list(source.frames(good))) == 4
    other = TumSource(tmp_path, features=["image"])
    assert [info.num_frames for info in other.episodes()] == [6, 6]


def _shifted(path: Path, seconds: int) -> None:
    """Shift a table's times: nanoseconds in a CSV, else seconds."""
    later = seconds * (10**9 if path.suffix == ".csv" else 1)
    text = re.sub(r"(?m)^\d+", lambda found: str(int(found[0]) + later), path.read_text())
    path.write_text(text)


def test_tables_without_matching_times_images_or_columns_are_refused(tmp_path: Path) -> None:
    write_tum(tmp_path / "tum")
    write_euroc(tmp_path / "euroc")
    write_kitti(tmp_path / "kitti")
    for name, table, feature in (
        ("tum", "depth.txt", "depth"),
        ("tum", "accelerometer.txt", "accelerometer"),
        ("euroc", "mav0/cam1/data.csv", "image_cam1"),
        ("euroc", "mav0/imu0/data.csv", "imu"),
        ("euroc", "mav0/state_groundtruth_estimate0/data.csv", "pose"),
    ):
        path = tmp_path / name / table
        original = path.read_bytes()
        _shifted(path, 5000)
        with pytest.raises(SourceError, match=f"no row matches a frame; .*{feature}") as caught:
            open_source(tmp_path / name).schema()
        assert caught.value.file == str(path)
        image = "image_cam0" if name == "euroc" else "image"
        assert open_source(tmp_path / name, features=[image]).episodes()[0].num_frames > 4
        path.write_bytes(original)
    kitti, tum = tmp_path / "kitti", tmp_path / "tum"
    poses = (kitti / "poses/00.txt").read_text().splitlines()
    numbered = "\n".join(f"{n} {row}" for n, row in enumerate(poses))
    for path, text, options, match in (
        (tum / "rgb.txt", "# timestamp filename\n", {}, "empty list of images; .*rgb.txt"),
        (tum / "rgb.txt", "1305031102.0 rgb/no.png\n", {"features": ["image"]}, "cannot read"),
        (tum / "rgb.txt", "1305031102.0 rgb/a\0.png\n", {"features": ["image"]}, "null byte"),
        (tum / "depth.txt", "# timestamp filename\n", {}, "empty list of images; .*depth.txt"),
        (tum / "depth.txt", "1305031102.0 depth/no.png\n", {"features": ["depth"]}, "cannot read"),
        (kitti / "poses/00.txt", numbered, {}, "12 finite numbers; got: 13 columns"),
        (kitti / TIMES, "0 0.0\n1 0.1\n2 0.2\n", {}, r"line 1; .*got: 2 columns"),
    ):
        original = path.read_bytes()
        path.write_text(text)
        root = kitti if kitti in path.parents else tum
        with pytest.raises(SourceError, match=match):
            open_source(root, format=root.name, **options).schema()  # type: ignore[arg-type]
        path.write_bytes(original)


def test_unselected_and_missing_features_drop_no_frames(tmp_path: Path) -> None:
    write_tum(tmp_path)
    source = TumSource(tmp_path, features=["image", "pose"])
    [info] = source.episodes()
    assert info.num_frames == 6
    assert "rgb_without_depth" not in info.metadata
    frames = list(source.frames(info))
    assert ["pose" in frame for frame in frames] == [False, True, True, True, False, False]
    assert TumSource(tmp_path, features=["depth"]).episodes()[0].num_frames == 4
    with pytest.raises(SourceError, match="names among image, timestamp, depth"):
        TumSource(tmp_path, features=["dept"]).schema()
    for name in ("depth.txt", "groundtruth.txt", "accelerometer.txt"):
        (tmp_path / name).unlink()
    source = TumSource(tmp_path, keep_encoded=True)
    assert list(source.schema()) == ["image", "timestamp"]
    frames = list(source.frames(source.episodes()[0]))
    assert len(frames) == 6
    data = (tmp_path / "rgb" / "1305031102.000000.png").read_bytes()
    assert frames[0]["image"] == EncodedImage(data)


def test_cameras_of_euroc(tmp_path: Path) -> None:
    """Pinhole cameras have intrinsics; other models are skipped."""
    write_euroc(tmp_path / "src")
    # Without poses: T_BS of these files is rounded, and no rotation.
    source = open_source(tmp_path / "src", features=["image_cam0", "image_cam1"])
    seqrecord.convert(source, tmp_path / "records", workers=1)
    options: dict[str, Any] = {"clip_len": 1, "batch_size": 1, "camera": True}
    options["clip_transform"] = seqrecord.CenterCrop((4, 6))
    for cameras in (["image_cam0"], ["image_cam0", "image_cam1"]):
        pipe = seqrecord.SeqRecordPipe(tmp_path / "records", features=cameras, **options)
        batch = next(iter(pipe))
        assert [name for name in batch if name.endswith("_K")] == [f"{n}_K" for n in cameras]
        matrix = np.array([[458.654, 0, 2.5], [0, 457.296, 1.5], [0, 0, 1]], np.float32)
        np.testing.assert_array_equal(batch["image_cam0_K"], matrix[None, None])
    yaml = tmp_path / "src" / YAML
    text = yaml.read_text()
    for old, new in (("pinhole", "omni"), ("[8, 6]", "[8]"), ("[458.654,", "[")):
        yaml.write_text(text.replace(old, new))
        camera = EurocSource(tmp_path / "src").episodes()[0].metadata["camera"]
        assert [*camera] == ["image_cam1"]
    for path in (tmp_path / "src").rglob("cam?/sensor.yaml"):
        path.unlink()
    assert "camera" not in EurocSource(tmp_path / "src").episodes()[0].metadata


@pytest.mark.parametrize("state", [True, False])
def test_euroc(tmp_path: Path, state: bool) -> None:
    expected = write_euroc(tmp_path / "MH_01_easy", state=state)
    source = open_source(tmp_path)
    [info] = source.episodes()
    assert (info.key, info.fps) == ("MH_01_easy", 20)
    imu, cameras = info.metadata["imu"], info.metadata["cameras"]
    np.testing.assert_array_equal(imu.pop("T_BS"), np.eye(4))
    assert np.array(cameras["cam0"].pop("T_BS"))[1].tolist() == [0.99, 0.01, 0.025, -0.06]
    assert [*cameras] == ["cam0", "cam1"]
    common: dict[str, Any] = {"fy": 457.296, "cx": 3.5, "cy": 2.5, "width": 8, "height": 6}
    coefficients = [-0.28340811, 0.07395907, 0.00019359, 1.76187114e-05]
    common |= {"distortion_model": "opencv", "distortion_coefficients": coefficients}
    assert info.metadata == {
        "dataset": "EuRoC",
        "camera": {
            f"image_{name}": {**common, "fx": focal}
            for name, focal in (("cam0", 458.654), ("cam1", 457.587))
        },
        "cameras": {
            "cam0": {
                "sensor_type": "camera",
                "comment": "VI-Sensor cam0",
                "rate_hz": 20.0,
                "resolution": [8.0, 6.0],
                "camera_model": "pinhole",
                "intrinsics": [458.654, 457.296, 3.5, 2.5],
                "distortion_model": "radial-tangential",
                "distortion_coefficients": coefficients,
            },
            "cam1": cameras["cam1"],
        },
        "imu": {
            "sensor_type": "imu",
            "rate_hz": 200.0,
            "gyroscope_noise_density": 1.6968e-4,
            "accelerometer_random_walk": 0.003,
        },
        "frames_without_cam1": 1,
        "cam1_without_frame": 1,
        "imu_before_first_frame": 3,
        "imu_after_last_frame": 10,
        "frames_without_pose": 1,
    }
    check_frames(source, 0, expected)
    for root in ("MH_01_easy", "MH_01_easy/mav0"):
        one = open_source(tmp_path / root)
        assert one.episodes()[0].key == "MH_01_easy"
        assert len(list(one.frames(one.episodes()[0]))) == 5


def test_kitti(tmp_path: Path) -> None:
    root = tmp_path / "dataset"
    expected = [write_kitti(root, "00"), write_kitti(root, "11", 1, (7, 20))]
    (root / "poses" / "11.txt").unlink()  # as in the evaluation sequences
    source = open_source(tmp_path)
    assert [info.key for info in source.episodes()] == ["00", "11"]
    assert str(source.schema()["image_2"]) == "image_2: uint8 [?, 20, 3]"
    check_frames(source, 0, expected[0])
    check_frames(source, 1, [{k: v for k, v in f.items() if k != "pose"} for f in expected[1]])
    camera = {"fx": 718.0, "fy": 718.0, "cx": 607.0, "cy": 185.0, "width": 20, "height": 7}
    assert source.episodes()[1].metadata["camera"] == camera
    assert list(source.episodes()[1].metadata["calibration"]) == ["P0", "P1", "P2", "P3", "Tr"]
    for number, path in enumerate((root, root / "sequences", root / "sequences" / "00")):
        source = open_source(path, features=["image_0", "pose"])
        assert source.episodes()[0].key == "00"
        convert(source, tmp_path / f"{number}", in_place=True, codecs="raw", workers=1)
        found = read_all(tmp_path / f"{number}")["00"]
        assert [f["pose"].tolist() for f in found] == [f["pose"].tolist() for f in expected[0]]


@pytest.mark.parametrize("chosen", [["pose"], ["timestamp"], ["velodyne"], ["pose", "image_2"]])
def test_the_camera_of_kitti_is_independent_of_features(tmp_path: Path, chosen: list[str]) -> None:
    write_kitti(tmp_path)
    [whole] = open_source(tmp_path).episodes()
    part: Any = open_source(tmp_path, features=chosen)
    assert whole.metadata["camera"]["width"] == 20
    assert part.episodes()[0].metadata == whole.metadata
    assert not any("camera" in note for note in inventory_of(part).notes)
    image = tmp_path / "sequences" / "00" / "image_0" / "000000.png"
    assert (str(image) in part.copied_files()) == ("image_2" not in chosen)


def test_a_camera_of_kitti_without_images(tmp_path: Path) -> None:
    """Broken images of features that are not selected are ignored."""
    write_kitti(tmp_path)
    folder, chosen = tmp_path / "sequences" / "00", ["pose", "velodyne"]
    expected = open_source(tmp_path).episodes()[0].metadata["camera"]
    for camera in range(4):
        [info] = open_source(tmp_path, features=chosen).episodes()
        assert info.metadata["camera"] == expected
        (folder / f"image_{camera}" / "000000.png").write_bytes(b"\x89PNG")
    for exists in (True, False):
        source = KittiSource(tmp_path, features=chosen)
        [info] = source.episodes()
        assert "camera" not in info.metadata
        assert "camera unknown: no image has its size (1 of 1 sequence)" in source.account().notes
        assert len(list(source.frames(info))) == 3
        for camera in range(4 if exists else 0):
            shutil.rmtree(folder / f"image_{camera}")


def test_cameras_of_kitti_with_different_intrinsics(tmp_path: Path) -> None:
    """Colour images of half the size, with matrices of their own; others have P0."""
    write_kitti(tmp_path)
    folder = tmp_path / "sequences" / "00"
    grey = {"fx": 20.0, "fy": 20.0, "cx": 9.5, "cy": 2.5, "width": 20, "height": 6}
    colour = {"fx": 10.0, "fy": 10.0, "cx": 4.5, "cy": 1.0, "width": 10, "height": 3}
    lines = {
        "P0": "20 0 9.5 0 0 20 2.5 0 0 0 1 0",
        "P1": "20 0 9.5 -7 0 20 2.5 0 0 0 1 0",  # a baseline alone
        "P2": "10 0 4.5 0 0 10 1 0 0 0 1 0",
        "P3": "10 0 4.5 -3 0 10 1 0 0 0 1 0",
    }

    def cameras(*names: str) -> Any:
        text = "".join(f"{name}: {lines[name]}\n" for name in names)
        (folder / "calib.txt").write_text(text)
        [info] = open_source(tmp_path).episodes()
        for chosen in (["image_2"], ["pose"], ["image_3", "image_0"]):
            [part] = open_source(tmp_path, features=chosen).episodes()
            assert part.metadata == info.metadata
        return info.metadata["camera"]

    assert cameras("P0", "P1") == grey
    for path in folder.glob("image_[23]/*.png"):
        path.write_bytes(encoded(np.zeros((3, 10, 3), np.uint8)))
    by_image = {"image_0": grey, "image_1": grey, "image_2": colour, "image_3": colour}
    assert cameras(*lines) == cameras("P0", "P2", "P3") == by_image
    assert cameras("P2") == {"image_2": colour}


@pytest.mark.parametrize("chosen", [["pose"], ["image_cam0", "timestamp"], ["imu"]])
def test_sensors_of_euroc_are_independent_of_features(tmp_path: Path, chosen: list[str]) -> None:
    """A broken description matters only if a feature of its sensor is selected."""
    write_euroc(tmp_path)
    truth = tmp_path / "mav0" / "state_groundtruth_estimate0" / "sensor.yaml"
    truth.write_text("sensor_type: visual-inertial\nT_BS: [" + "1.0, " * 15 + "1.0]\n")
    [whole], [part] = (open_source(tmp_path, features=f).episodes() for f in (None, chosen))
    for name in ("cameras", "camera", "imu", "ground_truth"):
        assert part.metadata[name] == whole.metadata[name]
    assert part.fps == whole.fps
    sensors = {"cameras": "cam1", "imu": "imu0", "ground_truth": truth.parent.name}
    for sensor in sensors.values():
        (tmp_path / "mav0" / sensor / "sensor.yaml").write_text("rate_hz: .inf\n")
    with pytest.raises(SourceError, match="rate_hz"):
        open_source(tmp_path).episodes()
    if chosen == ["image_cam0", "timestamp"]:
        [part] = open_source(tmp_path, features=chosen).episodes()
        assert [*part.metadata["cameras"]] == ["cam0"]
        assert not {"imu", "ground_truth"} & part.metadata.keys()


# --- broken sequences ------------------------------------------------------------------------


def _back(file: str) -> Damage:
    """Swap a list's last two lines."""

    def change(data: bytes) -> bytes:
        lines = data.decode().splitlines()
        return "\n".join([*lines[:-2], lines[-1], lines[-2]]).encode()

    return edit(file, change)


def _replace(file: str, old: str, new: str) -> Damage:
    return edit(file, lambda data: data.replace(old.encode(), new.encode(), 1))


STAMP = "1403636579813555584"
RGB, DEPTH = "rgb/1305031102.033000.png", "depth/1305031102.065500.png"
CAM0, CAM1 = (f"mav0/cam{i}/data/{STAMP}.png" for i in (0, 1))
CSV, YAML, TIMES = "mav0/cam0/data.csv", "mav0/cam0/sensor.yaml", "sequences/00/times.txt"
CALIB = "sequences/00/calib.txt"
IMAGE, SCAN = "sequences/00/image_3/000001.png", "sequences/00/velodyne/000001.bin"

BROKEN = {
    "tum": [
        fault(cut(RGB, -7), RGB, "truncated", frame=1),
        fault(remove(DEPTH), DEPTH, "cannot read", frame=2),
        fault(_back("rgb.txt"), "rgb.txt", "not ascending"),
        fault(_replace("groundtruth.txt", "0.", "nan"), "groundtruth.txt", "invalid row"),
        fault(_replace("depth.txt", "depth/", "../depth/"), "depth.txt", "row in line 3"),
    ],
    "euroc": [
        fault(cut(CAM1, -7), CAM1, "truncated", frame=1),
        fault(remove(CAM0), CAM0, "cannot read", frame=1),
        fault(_back("mav0/imu0/data.csv"), "mav0/imu0/data.csv", "not ascending"),
        fault(_replace(CSV, f",{STAMP}", f",../{STAMP}"), CSV, "row in line 3"),
        fault(_replace(CSV, f"{STAMP},", "1.5,"), CSV, "row in line 3"),
        fault(_replace(CSV, f"{STAMP},", "99999999999999999999,"), CSV, "too large"),
        fault(_replace(CSV, f"{STAMP},", f"{'9' * 400},"), CSV, "row in line 3"),
        fault(_replace(CSV, f"{STAMP},", f"{'9' * 5000},"), CSV, "row in line 3"),
        fault(edit(CSV, lambda data: data + b"1 \xff"), CSV, "not UTF-8 text"),
        fault(_replace(YAML, "rate_hz: 20", "rate_hz: .inf"), YAML, "rate_hz"),
        fault(_replace(YAML, "data: [0.01,", "data: ["), YAML, "T_BS"),
    ],
    "kitti": [
        fault(cut(IMAGE, -7), IMAGE, "truncated", frame=1),
        fault(remove(IMAGE), "sequences/00/image_3", "times.txt", frame=1, got="2 files"),
        fault(
            write("sequences/00/image_3/1.png", b""),
            "sequences/00/image_3",
            "times.txt",
            got="4 files",
        ),
        fault(cut(SCAN, -7), SCAN, "truncated", frame=1),
        fault(_replace("poses/00.txt", "\n", "\n1 2 3\n"), "poses/00.txt", "invalid row"),
        fault(_back(TIMES), TIMES, "not ascending"),
        fault(_replace(CALIB, "P1:", "P0:"), CALIB, "invalid row in line 2"),
    ],
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_sequences_are_refused(tmp_path: Path, kind: str) -> None:
    make: Any = {"tum": write_tum, "euroc": write_euroc, "kitti": write_kitti}[kind]
    make(tmp_path / "original")
    opened = functools.partial(open_source, format=kind)
    check_faults(BROKEN[kind], tmp_path / "original", tmp_path / "broken", opened)


# YAML: values of YAML 1.2, tags of OpenCV, budgets of aliases and levels


CAMERA: dict[str, Any] = {
    "sensor_type": "camera",
    "T_BS": {"cols": 4, "rows": 4, "data": [1.0, 0, 0, 0.07, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]},
    "rate_hz": 20,
    "resolution": [32, 24],
    "camera_model": "pinhole",
    "intrinsics": [30.0, 30.5, 16.0, 12.0],
    "distortion_model": "radial-tangential",
    "distortion_coefficients": [-0.28, 0.07, 0.0002, 2e-05],
}
FLOW = yaml.safe_dump(CAMERA, default_flow_style=None)
BLOCK = yaml.safe_dump(CAMERA, default_flow_style=False)
POSE = "T_BS: [[1, 0, 0, 0.07], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]\n"
WITHOUT_POSE = yaml.safe_dump({k: v for k, v in CAMERA.items() if k != "T_BS"})
SAME = {
    "flow": FLOW,
    "block": BLOCK,
    "both": WITHOUT_POSE + yaml.safe_dump({"T_BS": CAMERA["T_BS"]}, default_flow_style=False),
    "rows of a matrix": WITHOUT_POSE + POSE,
    "OpenCV": "%YAML:1.0\n---\n" + FLOW.replace("T_BS:", "T_BS: !!opencv-matrix"),
    "OpenCV, without ---": "%YAML:1.0\n" + BLOCK,
    "YAML 1.2": "%YAML 1.2\n---\n" + BLOCK,
    "floats of YAML 1.2": BLOCK.replace("2.0e-05", "2e-5").replace("- 0.0002", "- +2e-4"),
    "aliases": BLOCK.replace("- 30.0\n", "- &f 30.0\n").replace("rate_hz: 20", "rate_hz: 2e1"),
    "comments": "# camera\n" + FLOW.replace("rate_hz: 20", "rate_hz: 20 # of: all"),
    "carriage returns": FLOW.replace("\n", "\r\n"),
    "below a name": "cam0:\n" + "".join(f"  {line}\n" for line in FLOW.splitlines()),
    "a byte order mark": "\ufeff" + FLOW,
}
BAD = {
    "cut in a list": (FLOW[: FLOW.index("2.0e-05")], "invalid YAML in line"),
    "cut before the last number": (BLOCK[: BLOCK.index("- 30.5")] + "]", "invalid YAML in line"),
    "text": ("a camera\n", "not a description"),
    "twelve numbers": (WITHOUT_POSE + "T_BS: {data: [1, 2, 3]}\n", "invalid T_BS"),
    "a missing number": (FLOW.replace("2.0e-05]", "]").replace("rate_hz: 20", "rate_hz:"), "rate"),
    "a word": (FLOW.replace("30.5", "x"), "invalid intrinsics"),
    "not a number": (FLOW.replace("30.5", ".nan"), "invalid intrinsics"),
    "one key twice": (FLOW + "rate_hz: 30\n", "twice"),
    "two documents": (FLOW + "---\na: 1\n", "a second document"),
    "a tab": (FLOW + "a:\n\t- 1\n", "invalid YAML in line"),
}


@pytest.mark.parametrize(
    ("name", "is_distorted", "model"),
    [
        ("radtan", True, "opencv"),
        ("Radial-Tangential", True, "opencv"),
        ("equidistant", True, "opencv_fisheye"),
        ("equi", True, "opencv_fisheye"),
        ("kannala_brandt4", True, "opencv_fisheye"),
        ("equidistant", False, "opencv_fisheye"),
        ("radtan", False, None),
        ("none", False, None),
        ("fov", True, ""),
        ("", True, ""),
    ],
)
def test_distortion_models_of_euroc(
    tmp_path: Path, name: str, is_distorted: bool, model: str | None
) -> None:
    """Coefficients of an unknown model are no pinhole without distortion."""
    coefficients = [-0.28, 0.07, 0.0002, 2e-05] if is_distorted else [0.0] * 4
    changed = {"distortion_model": name, "distortion_coefficients": coefficients}
    write_sequence(tmp_path / "a", yaml.safe_dump({**CAMERA, **changed}))
    source = open_source(tmp_path)
    [info] = source.episodes()
    if model == "":
        assert "camera" not in info.metadata
        assert any("camera cam0 unknown" in note for note in inventory_of(source).notes)
        return
    camera: Any = info.metadata["camera"]["image_cam0"]
    assert camera.get("distortion_model") == model


def test_an_undistorted_camera_is_of_the_images(tmp_path: Path) -> None:
    """Images of half the size of their camera are refused, not warped by another lens."""
    write_sequence(tmp_path / "whole", FLOW)
    write_sequence(tmp_path / "half", FLOW.replace("[32, 24]", "[64, 48]"))
    whole, half = (undistorted(open_source(tmp_path / name)) for name in ("whole", "half"))
    assert len(list(whole.frames(whole.episodes()[0]))) == 1
    with pytest.raises(
        SourceError,
        match=r"another image size.*image_cam0.*expected: height 48 and width 64; got: height 24",
    ):
        list(half.frames(half.episodes()[0]))


def test_frames_without_the_selected_image_are_undistorted(tmp_path: Path) -> None:
    """As they are packed otherwise: of an original, split at gaps, or of a dataset."""
    for camera, numbers in (("cam0", range(4)), ("cam1", (0, 1, 3))):
        folder = tmp_path / "a" / "mav0" / camera
        (folder / "data").mkdir(parents=True)
        rows = ["#timestamp [ns],filename"]
        for number in numbers:
            image = encoded(np.full((24, 32), 10 * number, np.uint8))
            (folder / "data" / f"{number}.png").write_bytes(image)
            rows.append(f"{number * 50_000_000},{number}.png")
        (folder / "data.csv").write_text("\n".join([*rows, ""]))
        (folder / "sensor.yaml").write_text(FLOW)
    source = open_source(tmp_path / "a", features=["image_cam1"])
    convert(source, tmp_path / "distorted", workers=1)
    convert(undistorted(source), tmp_path / "original", workers=1)
    convert(undistorted(source), tmp_path / "split", split_at_gaps=1.0, workers=1)
    convert(undistorted(open_source(tmp_path / "distorted")), tmp_path / "dataset", workers=1)
    for name in ("distorted", "original", "split", "dataset"):
        [frames] = read_all(tmp_path / name).values()
        assert ["image_cam1" in frame for frame in frames] == [True, True, False, True], name


def test_images_of_one_time_are_all_read(tmp_path: Path) -> None:
    """In their order, and those of other cameras beside them."""
    for camera, levels in (("cam0", (10, 20, 30)), ("cam1", (40, 50, 60))):
        folder = tmp_path / "a" / "mav0" / camera
        (folder / "data").mkdir(parents=True)
        for level in levels:
            image = encoded(np.full((24, 32), level, np.uint8))
            (folder / "data" / f"{level}.png").write_bytes(image)
        rows = [f"{time},{level}.png" for time, level in zip((1, 1, 2), levels, strict=True)]
        (folder / "data.csv").write_text("\n".join(["#timestamp [ns],filename", *rows, ""]))
    source = open_source(tmp_path)
    [info] = source.episodes()
    frames: list[Any] = list(source.frames(info))
    assert [int(frame["image_cam0"][0, 0]) for frame in frames] == [10, 20, 30]
    assert [int(frame["image_cam1"][0, 0]) for frame in frames] == [40, 50, 60]
    assert info.metadata["cam1_without_frame"] == 0


def write_sequence(root: Path, text: str) -> None:
    camera = root / "mav0" / "cam0"
    (camera / "data").mkdir(parents=True)
    (camera / "data" / "1.png").write_bytes(encoded(np.zeros((24, 32), np.uint8)))
    (camera / "data.csv").write_text("#timestamp [ns],filename\n1,1.png\n")
    (camera / "sensor.yaml").write_bytes(text.encode())


@pytest.mark.parametrize("case", SAME)
def test_descriptions_of_one_camera(tmp_path: Path, case: str) -> None:
    write_sequence(tmp_path / "a", SAME[case])
    [info] = open_source(tmp_path).episodes()
    [camera] = info.metadata["cameras"].values()
    expected = {**CAMERA, "T_BS": np.reshape(CAMERA["T_BS"]["data"], (4, 4)).tolist()}
    assert camera == expected
    assert info.fps == 20
    assert info.metadata["camera"]["image_cam0"]["fy"] == 30.5


@pytest.mark.parametrize("case", BAD)
def test_other_descriptions_of_a_camera(tmp_path: Path, case: str) -> None:
    text, match = BAD[case]
    write_sequence(tmp_path / "a", text)
    with pytest.raises(SourceError, match=match) as caught:
        open_source(tmp_path).episodes()
    assert caught.value.file == str(tmp_path / "a" / "mav0" / "cam0" / "sensor.yaml")


def bomb(levels: int) -> str:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for number in range(levels):
        old, new = chr(97 + number), chr(98 + number)
        lines.append(f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]")
    return "\n".join(lines) + "\n"


BOMBS = {
    "aliases": bomb(20),
    "a recursive alias": "a: &a [*a]\n",
    "levels": "a: " + "[" * 100_000,
    "levels of blocks": "".join(f"{' ' * n}a:\n" for n in range(700)),
    "values": "a: [" + "[]," * 300_000 + "]",
    "keys": "".join(f"k{n}:\n" for n in range(80_000)) + "a: [" + "1," * 200_000 + "]",
}


SLOW = ("values", "keys")


@pytest.mark.parametrize(
    "case", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in BOMBS]
)
def test_budget_of_a_small_file(tmp_path: Path, case: str) -> None:
    write_sequence(tmp_path / "a", BOMBS[case])
    begin, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(SourceError, match="invalid YAML"):
        open_source(tmp_path).episodes()
    # The slowest case: mean 0.6 s, standard deviation 0.04 s on a busy machine.
    assert time.process_time() - begin < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10
