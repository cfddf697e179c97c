"""Small SLAM sequences and replay buffers in their authors' layouts."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from tests.kit.source_faults import encoded

__all__ = [
    "Frames",
    "write_buffer",
    "write_euroc",
    "write_kitti",
    "write_samples",
    "write_tar",
    "write_tum",
]

Array = npt.NDArray[Any]
Frames = list[dict[str, Any]]


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


def write_tar(path: Path, files: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def write_samples(path: Path, seed: int = 0, folder: str = "", count: int = 3) -> Frames:
    """Write a WebDataset tar file of `count` samples; returns its frames."""
    rng = np.random.default_rng(seed)
    frames: Frames = []
    files: dict[str, bytes] = {}
    for number in range(count):
        frame = {
            "rgb": rng.integers(0, 256, (16, 16, 3), np.uint8),
            "seg": rng.integers(0, 9, (16, 16), np.uint8),
            "pose": rng.normal(size=(3, 4)),
            "cls": np.int64(number * 7 - 3),
            "json": f'{{"task": "pick {number}"}}',
        }
        stem = f"{folder}{number + 4:06d}"
        for name in ("rgb", "seg"):
            files[f"{stem}.{name}.png"] = encoded(frame[name])
        stream = io.BytesIO()
        np.save(stream, frame["pose"])
        files[f"{stem}.pose.npy"] = stream.getvalue()
        files[f"{stem}.cls"] = b"%d\n" % frame["cls"]
        files[f"{stem}.json"] = str(frame["json"]).encode()
        frames.append({**frame, "frame_number": np.int64(number + 4)})
    write_tar(path, files)
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


def write_buffer(
    store: Any, lengths: Sequence[int] = (4, 2, 7), *, zarr_format: Any = 2, spare: int = 0
) -> dict[str, Any]:
    """Write like ReplayBuffer.save_to_store; returns the arrays."""
    import numcodecs
    import zarr

    rng = np.random.default_rng(sum(lengths))
    ends = np.cumsum(lengths)
    total = int(ends[-1]) + spare
    arrays = {
        "action": rng.normal(size=(total, 2)).astype("<f4"),
        "img": rng.integers(0, 256, (total, 6, 8, 3)).astype("<f4"),
        "keypoint": rng.normal(size=(total, 9, 2)).astype("<f4"),
        "n_contacts": rng.integers(0, 9, (total, 1)).astype("<f8"),
    }
    root = zarr.create_group(store, zarr_format=zarr_format)
    meta, data = root.create_group("meta"), root.create_group("data")
    meta.create_array("episode_ends", data=ends.astype("<i8"), chunks=ends.shape)
    meta.create_array("success", data=ends % 2 == 0, chunks=ends.shape)
    blosc = numcodecs.Blosc(cname="zstd", clevel=5, shuffle=numcodecs.Blosc.BITSHUFFLE)
    for name, array in arrays.items():
        options = {"compressors": blosc} if zarr_format == 2 else {}
        data.create_array(name, data=array, chunks=(3, *array.shape[1:]), **options)
    return arrays
