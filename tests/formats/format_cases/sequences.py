"""TUM RGB-D, EuRoC and KITTI sequences in their authors' layouts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from tests.formats.cases import Case, Episodes, Frames

Array = npt.NDArray[Any]


def _image(path: Path, pixels: Array) -> Array:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


def _lines(path: Path, header: str, rows: Any, separator: str = " ", end: str = "\n") -> None:
    text = [*filter(None, [header]), *(separator.join(map(str, row)) for row in rows)]
    path.write_bytes(end.join([*text, ""]).encode())


def _csv(path: Path, header: str, stamps: list[int], values: Array) -> None:
    rows = [[stamp, *row.tolist()] for stamp, row in zip(stamps, values, strict=True)]
    _lines(path, header, rows, ",", "\r\n")


def write_tum(folder: Path, seed: int = 0) -> Frames:
    """Six colour and five depth images; returns the frames matched by associate.py."""
    rng = np.random.default_rng(seed)
    base = 1305031102.0
    colour = [0.0, 0.033, 0.066, 0.099, 0.150, 0.200]
    depth = [-0.016, 0.031, 0.0655, 0.1185, 0.300]  # 0.099 and 0.1185 are 19.5 ms apart
    rgb: list[Array] = []
    deep: list[Array] = []
    for name, times, images in (("rgb", colour, rgb), ("depth", depth, deep)):
        rows = []
        for time in times:
            stamp = f"{base + time:.6f}"
            pixels: Array = rng.integers(0, 65536, (6, 8)).astype(np.uint16)
            if name == "rgb":
                pixels = rng.integers(0, 256, (6, 8, 3), np.uint8)
            images.append(_image(folder / name / f"{stamp}.png", pixels))
            rows.append((stamp, f"{name}/{stamp}.png"))
        _lines(folder / f"{name}.txt", "# images\n# timestamp filename", rows)
    truth = [
        (f"{base + 0.01 * i + 0.0045:.4f}", *rng.normal(size=7).round(4)) for i in range(2, 12)
    ]
    _lines(folder / "groundtruth.txt", "# timestamp tx ty tz qx qy qz qw", truth)
    samples = [(f"{base + 0.002 * i:.6f}", *rng.normal(size=3).round(6)) for i in range(-5, 80)]
    _lines(folder / "accelerometer.txt", "# timestamp ax ay az", samples)
    frames = []
    for number, pose in ((0, 0), (1, 1), (2, 4), (3, 7)):
        frame: dict[str, Any] = {"image": rgb[number], "depth": deep[number]}
        frame |= {"timestamp": base + colour[number], "depth_timestamp": base + depth[number]}
        if number:
            frame["pose"] = np.array(truth[pose][1:], np.float64)
        now = round(1000 * colour[number])  # ms; the next image comes 33 ms later
        first, last = (5 + -(-ms // 2) for ms in (now, now + 33))
        frame["accelerometer"] = np.array(samples[first:last], np.float64)
        frames.append(frame)
    return frames


def write_euroc(folder: Path, seed: int = 0, *, state: bool = True) -> Frames:
    """Five frames of two cameras; the second one lacks an image and has an extra one."""
    rng = np.random.default_rng(seed)
    base, step = 1403636579763555584, 50_000_000
    mav = folder / "mav0"
    frames: Frames = [{"timestamp": np.int64(base + i * step)} for i in range(5)]
    for camera, numbers in (("cam0", range(5)), ("cam1", (0, 1, 3, 4, 5))):
        rows = []
        for i in numbers:
            stamp = base + i * step
            pixels = rng.integers(0, 256, (6, 8), np.uint8)
            _image(mav / camera / "data" / f"{stamp}.png", pixels)
            if i < 5:
                frames[i][f"image_{camera}"] = pixels
            rows.append((stamp, f"{stamp}.png"))
        _lines(mav / camera / "data.csv", "#timestamp [ns],filename", rows, ",", "\r\n")
    for camera, focal in (("cam0", 458.654), ("cam1", 457.587)):
        (mav / camera / "sensor.yaml").write_text(
            f"# General sensor definitions.\nsensor_type: camera\ncomment: VI-Sensor {camera}\n\n"
            "T_BS:\n  cols: 4\n  rows: 4\n  data: [0.01, -0.99, 0.004, -0.02,\n"
            "         0.99, 0.01, 0.025, -0.06,\n        -0.02, 0.004, 0.99, 0.009,\n"
            "         0.0, 0.0, 0.0, 1.0]\n\nrate_hz: 20\nresolution: [8, 6]\n"
            f"camera_model: pinhole\nintrinsics: [{focal}, 457.296, 3.5, 2.5] #fu, fv, cu, cv\n"
            "distortion_model: radial-tangential\n"
            "distortion_coefficients: [-0.28340811, 0.07395907, 0.00019359, 1.76187114e-05]\n"
        )
    (mav / "imu0").mkdir()
    (mav / "imu0" / "sensor.yaml").write_text(
        "sensor_type: imu\nT_BS:\n  cols: 4\n  rows: 4\n"
        "  data: [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0]\n"
        "rate_hz: 200\n\n# inertial sensor noise model parameters (static)\n"
        "gyroscope_noise_density: 1.6968e-04     # [ rad / s / sqrt(Hz) ]\n"
        "accelerometer_random_walk: 3.0000e-3    # [ m / s^3 / sqrt(Hz) ]\n"
    )
    stamps = [base + i * 5_000_000 for i in range(-3, 60)]
    imu = rng.normal(size=(len(stamps), 6))
    _csv(mav / "imu0" / "data.csv", "#timestamp [ns],w_RS_S_x [rad s^-1]", stamps, imu)
    for i, frame in enumerate(frames):
        frame["imu"] = imu[3 + 10 * i : 13 + 10 * i]
        frame["imu_timestamp"] = np.array(stamps[3 + 10 * i : 13 + 10 * i])
    name = "state_groundtruth_estimate0" if state else "mocap0"
    (mav / name).mkdir()
    truth_stamps = [base + 45_000_000 + i * 5_000_000 for i in range(40)]
    truth = rng.normal(size=(len(truth_stamps), 16 if state else 7))
    _csv(mav / name / "data.csv", "#timestamp, p_RS_R_x [m]", truth_stamps, truth)
    for i in range(1, 5):
        row = truth[1 + 10 * (i - 1)]
        frames[i]["pose"] = row[[0, 1, 2, 4, 5, 6, 3]]
        if state:
            frames[i] |= {"velocity": row[7:10], "imu_bias": row[10:16]}
    return frames


def write_kitti(
    root: Path, name: str = "00", seed: int = 0, size: tuple[int, int] = (6, 20)
) -> Frames:
    rng = np.random.default_rng(seed)
    folder = root / "sequences" / name
    frames: Frames = []
    for i in range(3):
        frame: dict[str, Any] = {"timestamp": np.float64(0.1037 * i)}
        for camera in range(4):
            shape = (*size, 3) if camera > 1 else size
            pixels = rng.integers(0, 256, shape, np.uint8)
            frame[f"image_{camera}"] = _image(folder / f"image_{camera}" / f"{i:06d}.png", pixels)
        frame["velodyne"] = rng.normal(size=(5 + i, 4)).astype("<f4")
        (folder / "velodyne").mkdir(exist_ok=True)
        frame["velodyne"].tofile(folder / "velodyne" / f"{i:06d}.bin")
        frame["pose"] = rng.normal(size=(3, 4))
        frames.append(frame)
    _lines(folder / "times.txt", "", [[f"{f['timestamp']:e}"] for f in frames])
    (root / "poses").mkdir(exist_ok=True)
    _lines(
        root / "poses" / f"{name}.txt",
        "",
        [[repr(float(x)) for x in f["pose"].ravel()] for f in frames],
    )
    keys = ("P0", "P1", "P2", "P3", "Tr")
    matrix = "7.18e+02 0 6.07e+02 0 0 7.18e+02 1.85e+02 0 0 0 1 0"
    (folder / "calib.txt").write_text("".join(f"{key}: {matrix}\n" for key in keys))
    return frames


def _tum(folder: Path) -> Episodes:
    """With files of no feature; the second sequence has an empty table."""
    found = {name: write_tum(folder / name, i) for i, name in enumerate(("freiburg1_a", "office"))}
    for name in found:
        (folder / name / "calibration.txt").write_text("517.3 516.5 318.6 255.3")
    image = folder / "freiburg1_a/rgb/1305031102.000000.png"
    shutil.copy(image, image.with_name("1305031109.000000.png"))
    (folder / "evaluation.json").write_text("{}")
    (folder / "office/accelerometer.txt").write_text("# timestamp ax ay az\n")
    for frame in found["office"]:
        del frame["accelerometer"]
    return found


def _euroc(folder: Path) -> Episodes:
    """With files of no feature; the second sequence has an empty table and an unknown camera."""
    found = {name: write_euroc(folder / name, i) for i, name in enumerate("ab")}
    for name in found:
        (folder / name / "mav0/leica0").mkdir()
        # Rows as a table of `Folders` counts them: without comments and empty lines.
        text = "#timestamp,x,y,z\n\n  # paused\n% resumed\n1,2,3,4"
        (folder / name / "mav0/leica0/data.csv").write_text(text)
        (folder / name / "mav0/body.yaml").write_text("comment: none")
    (folder / "b/mav0/imu0/data.csv").write_text("#timestamp\n")
    (folder / "b/mav0/cam1/sensor.yaml").unlink()
    for frame in found["b"]:
        del frame["imu"], frame["imu_timestamp"]
    return found


def _kitti(folder: Path) -> Episodes:
    """With files of no feature; the second sequence has no camera."""
    found = {name: write_kitti(folder, name, i) for i, name in enumerate(("00", "01"))}
    (folder / "sequences/00/oxts").mkdir()
    np.savetxt(folder / "sequences/00/oxts/000000.txt", [1, 2])
    (folder / "poses/12.txt").write_text("")
    (folder / "sequences/01/calib.txt").unlink()
    return found


CASES = {
    "tum": Case(
        source="TumSource",
        write=_tum,
        bad="office",
        file="office/rgb/1305031102.033000.png",
        kept={"image": "png"},
        referred={"image": "png", "depth": "png"},
        inventory="""
format    tum: 2 sequences: SEQUENCE/rgb.txt with rgb/, depth.txt with depth/, groundtruth.txt
feature   image  uint8 [6, 8, 3]  image  from rgb/*
feature   depth  uint16 [6, 8]  depth, 1/5000 m  from depth/*
feature   depth_timestamp  float64 []  timestamp, s  from depth.txt
feature   timestamp  float64 []  timestamp, s  from rgb.txt
feature   pose  float64 [7]  pose, m  from groundtruth.txt
feature   accelerometer  float64 [?, 4]  imu  from accelerometer.txt
left out  evaluation.json: 1 file, no reader
left out  freiburg1_a/calibration.txt: 1 file, no reader
left out  freiburg1_a/rgb/1305031109.000000.png: 1 file, an image that belongs to no feature
left out  office/calibration.txt: 1 file, no reader
note      4 rgb without depth
note      2 depth without rgb
note      2 frames without pose
note      5 accelerometer before first frame
note      14 accelerometer after last frame
note      camera assumed: freiburg1's, named by the path (1 of 2 sequences)
note      unit of depth assumed: 1/5000 m (2 of 2 sequences)
note      camera unknown: neither the header of rgb.txt nor the path names freiburg1 to 3 (1 of 2 sequences)
note      accelerometer.txt is empty (1 of 2 sequences)
""",  # noqa: E501
    ),
    "euroc": Case(
        source="EurocSource",
        write=_euroc,
        bad="b",
        file="b/mav0/cam1/data/1403636579813555584.png",
        fps=20,
        referred={"image_cam0": "png", "image_cam1": "png"},
        inventory="""
format    euroc: 2 sequences: SEQUENCE/mav0/cam0/data.csv
feature   image_cam0  uint8 [6, 8]  image  from mav0/cam0/*
feature   image_cam1  uint8 [6, 8]  image  from mav0/cam1/*
feature   timestamp  int64 []  timestamp, ns  from mav0/cam0/data.csv
feature   imu  float64 [?, 6]  imu, rad/s, m/s^2  from mav0/imu0/*
feature   imu_timestamp  int64 [?]  timestamp, ns  from mav0/imu0/*
feature   pose  float64 [7]  pose, m  from mav0/state_groundtruth_estimate0/*
feature   velocity  float64 [3]  state, m/s  from mav0/state_groundtruth_estimate0/*
feature   imu_bias  float64 [6]  state, rad/s, m/s^2  from mav0/state_groundtruth_estimate0/*
left out  */mav0/body.yaml: 2 files, no reader
left out  */mav0/leica0/data.csv: 2 files, no reader
note      2 frames without cam1
note      2 cam1 without frame
note      3 imu before first frame
note      10 imu after last frame
note      2 frames without pose
note      camera cam1 unknown: no known pinhole camera in its sensor.yaml (1 of 2 sequences)
note      imu0/data.csv is empty (1 of 2 sequences)
""",
    ),
    "kitti": Case(
        source="KittiSource",
        write=_kitti,
        bad="01",
        file="sequences/01/image_3/000001.png",
        kept={"image_2": "png", "image_3": "png"},
        referred={f"image_{camera}": "png" for camera in range(4)},
        inventory="""
format    kitti: 2 sequences: sequences/00/times.txt with image_0/, image_2/ or velodyne/; poses/00.txt
feature   image_0  uint8 [6, 20]  image  from image_0/*
feature   image_1  uint8 [6, 20]  image  from image_1/*
feature   image_2  uint8 [6, 20, 3]  image  from image_2/*
feature   image_3  uint8 [6, 20, 3]  image  from image_3/*
feature   velodyne  float32 [?, 4]  points, m  from velodyne/*
feature   timestamp  float64 []  timestamp, s  from times.txt
feature   pose  float64 [3, 4]  pose, m  from poses/*.txt
left out  poses/12.txt: 1 file, no reader
left out  sequences/00/oxts/000000.txt: 1 file, no reader
note      camera unknown: no P0 in calib.txt (1 of 2 sequences)
""",  # noqa: E501
    ),
}
