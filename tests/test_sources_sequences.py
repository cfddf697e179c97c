"""TUM RGB-D, EuRoC and KITTI sequences, in files as their authors describe them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import seqrecord
from seqrecord import EncodedImage, convert
from seqrecord.errors import SourceError
from seqrecord.sources import FoundSource, open_source
from seqrecord.sources.euroc import Euroc
from seqrecord.sources.kitti import Kitti
from seqrecord.sources.tum import Tum

Array = npt.NDArray[Any]
Frames = list[dict[str, Any]]

# --- trees -----------------------------------------------------------------------------------


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
    """Six colour and five depth images; the frames that associate.py makes of them."""
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
    """Five frames of two cameras; the second one lacks an image and has one more."""
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
    (mav / "cam0" / "sensor.yaml").write_text(
        "# General sensor definitions.\nsensor_type: camera\ncomment: VI-Sensor cam0\n\nT_BS:\n"
        "  cols: 4\n  rows: 4\n  data: [0.01, -0.9,\n         0.9, 0.01]\n\nrate_hz: 20\n"
        "resolution: [752, 480]\ncamera_model: pinhole\n"
        "intrinsics: [458.654, 457.296, 367.215, 248.375] #fu, fv, cu, cv\n"
    )
    (mav / "imu0").mkdir()
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


def check_frames(source: FoundSource, number: int, want: Frames, *, without: str = "") -> None:
    info = source.episodes()[number]
    frames = [dict(frame) for frame in source.frames(info)]
    assert len(frames) == len(want) == info.num_frames
    for got, frame in zip(frames, want, strict=True):
        got.pop(without, None)
        assert got.keys() == frame.keys()
        for name, value in frame.items():
            np.testing.assert_array_equal(got[name], value)
            assert np.asarray(got[name]).dtype == source.schema()[name].dtype


# --- formats ---------------------------------------------------------------------------------


def test_tum(tmp_path: Path) -> None:
    want = write_tum(tmp_path / "freiburg1" / "xyz")
    source = open_source(tmp_path)
    assert isinstance(source, Tum)
    [info] = source.episodes()
    assert info.key == "freiburg1/xyz"
    assert info.metadata == {
        "dataset": "TUM RGB-D",
        "depth_per_metre": 5000,
        "rgb_without_depth": 2,
        "depth_without_rgb": 1,
        "frames_without_pose": 1,
    }
    assert [str(spec) for spec in source.schema().values()] == [
        "image: uint8 [6, 8, 3]",
        "depth: uint16 [6, 8]",
        "depth_timestamp: float64 []",
        "timestamp: float64 []",
        "pose: float64 [7]",
        "accelerometer: float64 [?, 4]",
    ]
    assert {(s.name, s.kind, s.unit) for s in source.schema().values()} == {
        ("image", "image", None),
        ("depth", "depth", "1/5000 m"),
        ("depth_timestamp", "timestamp", "s"),
        ("timestamp", "timestamp", "s"),
        ("pose", "pose", "m"),
        ("accelerometer", "imu", None),
    }
    check_frames(source, 0, want, without="accelerometer")
    frames = [dict(frame) for frame in source.frames(info)]
    samples = np.concatenate([frame["accelerometer"] for frame in frames])
    inside = np.arange(0, 0.132, 0.002) + 1305031102  # 0.099 and the 33 ms before it, again
    np.testing.assert_allclose(samples[:, 0] - 1305031102, inside - 1305031102, atol=1e-6)
    assert open_source(tmp_path / "freiburg1" / "xyz").episodes()[0].key == "xyz"


def test_tum_without_depth_and_poses(tmp_path: Path) -> None:
    write_tum(tmp_path)
    for name in ("depth.txt", "groundtruth.txt", "accelerometer.txt"):
        (tmp_path / name).unlink()
    source = Tum(tmp_path, keep_encoded=True)
    [info] = source.episodes()
    assert list(source.schema()) == ["image", "timestamp"]
    frames = list(source.frames(info))
    assert len(frames) == 6
    image = frames[0]["image"]
    assert isinstance(image, EncodedImage)
    assert image.data == (tmp_path / "rgb" / "1305031102.000000.png").read_bytes()


@pytest.mark.parametrize("state", [True, False])
def test_euroc(tmp_path: Path, state: bool) -> None:
    want = write_euroc(tmp_path / "MH_01_easy", state=state)
    source = open_source(tmp_path)
    assert isinstance(source, Euroc)
    [info] = source.episodes()
    assert info.key == "MH_01_easy"
    assert info.metadata == {
        "dataset": "EuRoC",
        "cameras": {
            "cam0": {
                "comment": "VI-Sensor cam0",
                "rate_hz": 20.0,
                "resolution": [752.0, 480.0],
                "camera_model": "pinhole",
                "intrinsics": [458.654, 457.296, 367.215, 248.375],
            }
        },
        "frames_without_cam1": 1,
        "cam1_without_frame": 1,
        "imu_before_first_frame": 3,
        "imu_after_last_frame": 10,
        "frames_without_pose": 1,
    }
    assert info.fps == 20
    assert str(source.schema()["imu"]) == "imu: float64 [?, 6]"
    assert source.schema()["imu"].kind == "imu"
    check_frames(source, 0, want)
    for root in ("MH_01_easy", "MH_01_easy/mav0"):
        one = open_source(tmp_path / root)
        assert one.episodes()[0].key == "MH_01_easy"
        assert len(list(one.frames(one.episodes()[0]))) == 5


def test_kitti(tmp_path: Path) -> None:
    root = tmp_path / "dataset"
    want = [write_kitti(root, "00"), write_kitti(root, "11", 1, (7, 20))]
    (root / "poses" / "11.txt").unlink()  # as of the sequences that are for evaluation
    source = open_source(tmp_path)
    assert isinstance(source, Kitti)
    assert [info.key for info in source.episodes()] == ["00", "11"]
    assert str(source.schema()["image_2"]) == "image_2: uint8 [?, 20, 3]"
    assert str(source.schema()["pose"]) == "pose: float64 [3, 4]"
    check_frames(source, 0, want[0])
    check_frames(source, 1, [{k: v for k, v in f.items() if k != "pose"} for f in want[1]])
    camera = {"fx": 718.0, "fy": 718.0, "cx": 607.0, "cy": 185.0, "width": 20, "height": 7}
    assert source.episodes()[1].metadata["camera"] == camera
    assert list(source.episodes()[1].metadata["calibration"]) == ["P0", "P1", "P2", "P3", "Tr"]
    for path in (root, root / "sequences", root / "sequences" / "00"):
        assert open_source(path).episodes()[0].key == "00"


@pytest.mark.parametrize("write", [write_tum, write_euroc, write_kitti])
def test_conversion_keeps_everything(tmp_path: Path, write: Callable[[Path], Frames]) -> None:
    write(tmp_path / "src")
    source = open_source(tmp_path / "src")
    copy = pickle.loads(pickle.dumps(source))
    assert copy.schema() == source.schema()
    report = convert(source, tmp_path / "records", workers=2)
    assert report.bad == ()
    with seqrecord.open(tmp_path / "records") as dataset:
        [info] = source.episodes()
        for number, frame in enumerate(source.frames(info)):
            read = dataset.episodes[info.key][number]
            assert read.keys() == frame.keys()
            for name, value in frame.items():
                np.testing.assert_array_equal(read[name], np.asarray(value))


def test_features_are_chosen(tmp_path: Path) -> None:
    write_kitti(tmp_path)
    source = Kitti(tmp_path, features=["pose", "image_0"])
    assert list(source.schema()) == ["pose", "image_0"]
    assert [list(f) for f in source.frames(source.episodes()[0])] == [["pose", "image_0"]] * 3
    with pytest.raises(SourceError, match=r"no such feature here; .*image_0.*velodyne.*got: depth"):
        Kitti(tmp_path, features=["depth"]).schema()


# --- broken sequences ------------------------------------------------------------------------


def _replace(file: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return change


def _cut(pattern: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = sorted(folder.glob(pattern))[1]
        path.write_bytes(path.read_bytes()[:-7])

    return change


def _remove(pattern: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        sorted(folder.glob(pattern))[1].unlink()

    return change


def _back(file: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        lines = (folder / file).read_text().splitlines()
        (folder / file).write_text("\n".join([*lines[:-2], lines[-1], lines[-2]]))

    return change


STAMP = "1403636579813555584"
BROKEN: dict[str, tuple[Callable[[Path], Frames], Callable[[Path], None], str]] = {
    "tum image": (write_tum, _cut("rgb/*.png"), "truncated PNG|a PNG; .*frame: 1"),
    "tum no image": (write_tum, _remove("depth/*.png"), "cannot be read; .*frame: 1"),
    "tum back": (write_tum, _back("rgb.txt"), "timestamps that go back"),
    "tum pose": (write_tum, _replace("groundtruth.txt", "0.", "nan"), "a bad row in line"),
    "tum out": (write_tum, _replace("depth.txt", "depth/", "../depth/"), "a bad row in line 3"),
    "euroc image": (write_euroc, _cut("mav0/cam1/data/*.png"), "truncated.*frame: 1"),
    "euroc no image": (write_euroc, _remove("mav0/cam0/data/*.png"), "cannot be read; "),
    "euroc back": (write_euroc, _back("mav0/imu0/data.csv"), "timestamps that go back"),
    "euroc out": (
        *(write_euroc, _replace("mav0/cam0/data.csv", f",{STAMP}", f",../{STAMP}")),
        "a bad row in line 3",
    ),
    "euroc stamp": (
        *(write_euroc, _replace("mav0/cam0/data.csv", f"{STAMP},", "1.5,")),
        "a bad row in line 3",
    ),
    "euroc rate": (
        write_euroc,
        _replace("mav0/cam0/sensor.yaml", "rate_hz: 20", "rate_hz: .inf"),
        "a bad rate_hz; .*sensor.yaml",
    ),
    "kitti image": (write_kitti, _cut("sequences/00/image_3/*.png"), "truncated.*frame: 1"),
    "kitti no image": (
        *(write_kitti, _remove("sequences/00/image_3/*.png")),
        "disagrees with times.txt; .*frame: 1; expected: 3 files, from 0 to 2; got: 2 files",
    ),
    "kitti scan": (write_kitti, _cut("sequences/00/velodyne/*"), "a truncated scan; .*frame: 1"),
    "kitti poses": (write_kitti, _replace("poses/00.txt", "\n", "\n1 2 3\n"), "a bad row"),
    "kitti times": (write_kitti, _back("sequences/00/times.txt"), "timestamps that go back"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_sequence_is_refused_by_name(tmp_path: Path, name: str) -> None:
    write, breaks, message = BROKEN[name]
    for part in ("a", "b"):
        write(tmp_path / "src" / part)
    breaks(tmp_path / "src" / "a")
    source = open_source(tmp_path / "src", format=name.split()[0])
    bad, good = source.episodes()
    with pytest.raises(SourceError, match=message) as caught:
        list(source.frames(bad))
    assert caught.value.episode == bad.key
    assert bad.key.startswith("a")
    assert str(tmp_path / "src" / "a") in str(caught.value.file)
    assert len(list(source.frames(good))) == good.num_frames
    report = convert(source, tmp_path / "records", workers=1, skip_bad_episodes=True)
    assert [each.key for each in report.bad] == [bad.key]
    assert report.written == (good.key,)


def test_nothing_there(tmp_path: Path) -> None:
    for source in (Tum(tmp_path), Euroc(tmp_path), Kitti(tmp_path)):
        assert not source.exists()
        with pytest.raises(SourceError, match="no sequence found"):
            source.schema()
    write_tum(tmp_path)
    for path in (tmp_path / "rgb").iterdir():
        path.unlink()
    with pytest.raises(SourceError, match="cannot be read"):
        Tum(tmp_path, features=["image"]).schema()
