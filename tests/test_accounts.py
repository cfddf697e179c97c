"""The inventory of each format: everything of an original is packed or listed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqrecord
from seqrecord import open_source
from seqrecord.sources import LeftOut, TumSource, inventory_of
from seqrecord.writing.dataset_source import DatasetSource
from tests.lerobot_video_data import CAMERAS, unpack
from tests.source_faults import encoded
from tests.source_writers import write_euroc, write_kitti, write_tar, write_tum
from tests.video_file_data import pictures, write_video


def lines(path: Path, **options: Any) -> list[str]:
    return inventory_of(open_source(path, **options)).lines()


def test_tum(tmp_path: Path) -> None:
    for name in ("freiburg1_a", "freiburg1_b"):
        write_tum(tmp_path / name)
        (tmp_path / name / "calibration.txt").write_text("517.3 516.5 318.6 255.3")
    shutil.copy(
        tmp_path / "freiburg1_a/rgb/1305031102.000000.png",
        tmp_path / "freiburg1_a/rgb/1305031109.000000.png",
    )
    (tmp_path / "freiburg1_b/accelerometer.txt").write_text("# timestamp ax ay az\n")
    (tmp_path / "evaluation.json").write_text("{}")
    assert [line for line in lines(tmp_path) if line[:7] != "feature"] == [
        f"format    tum: 2 sequences: {TumSource.expected}",
        "left out  calibration.txt: 2 files, no reader",
        "left out  evaluation.json: 1 file, no reader",
        "left out  rgb/*.png: 1 file, an image that belongs to no feature",
        "note      4 rgb without depth",
        "note      2 depth without rgb",
        "note      2 frames without pose",
        "note      5 accelerometer before first frame",
        "note      14 accelerometer after last frame",
        "note      camera assumed: freiburg1's, named by the path (2 of 2 sequences)",
        "note      unit of depth assumed: 1/5000 m (2 of 2 sequences)",
        "note      accelerometer.txt is empty (1 of 2 sequences)",
    ]
    found = inventory_of(open_source(tmp_path, features=["image"]))
    assert (
        LeftOut("feature depth", 2, "not selected by features=", "sequences", False)
        in found.left_out
    )
    assert [each.pattern for each in found.left_out_data] == [
        "calibration.txt", "evaluation.json", "rgb/*.png"
    ]  # fmt: skip
    assert found.features[0].place == "rgb/*"


def test_euroc(tmp_path: Path) -> None:
    for name in ("MH_01", "MH_02"):
        write_euroc(tmp_path / name)
        leica = tmp_path / name / "mav0/leica0"
        leica.mkdir()
        # The rows that a table of `Folders` would have: no comments of any kind, no empty lines.
        (leica / "data.csv").write_text("#timestamp,x,y,z\n\n  # paused\n% resumed\n1,2,3,4")
        (tmp_path / name / "mav0/body.yaml").write_text("comment: none")
    (tmp_path / "MH_02/mav0/imu0/data.csv").write_text("#timestamp\n")
    (tmp_path / "MH_02/mav0/cam1/sensor.yaml").unlink()
    found = lines(tmp_path)
    assert "left out  leica0/data.csv: 2 rows, no reader" in found
    assert "left out  body.yaml: 2 files, no reader" in found
    assert "note      2 cam1 without frame" in found
    assert "note      imu0/data.csv is empty (1 of 2 sequences)" in found
    unknown = "note      camera cam1 unknown: no pinhole camera in its sensor.yaml"
    assert f"{unknown} (1 of 2 sequences)" in found
    assert sum(line.startswith("left out") for line in found) == 2
    chosen = lines(tmp_path, features=["image_cam0", "pose"])
    assert "left out  feature imu: 2 sequences, not selected by features=" in chosen
    assert sum(line.startswith("left out") for line in chosen) == 8


def test_kitti(tmp_path: Path) -> None:
    root = tmp_path / "dataset"
    write_kitti(root, "00")
    write_kitti(root, "11", 1)
    (root / "sequences/00/oxts").mkdir()
    np.savetxt(root / "sequences/00/oxts/000000.txt", [1, 2])
    (root / "poses/12.txt").write_text("")
    (root / "sequences/11/calib.txt").unlink()
    found = lines(tmp_path)
    assert [line for line in found if line[:7] not in ("feature", "format ")] == [
        "left out  oxts/*.txt: 1 file, no reader",
        "left out  poses/*.txt: 1 file, no reader",
        "note      camera unknown: no P0 in calib.txt (1 of 2 sequences)",
    ]


def test_webdataset(tmp_path: Path) -> None:
    png = encoded(np.zeros((2, 2), np.uint8))
    names = [f"{n}.{ending}" for n in range(3) for ending in ("rgb.png", "mp4", "depth.png")]
    write_tar(tmp_path / "a.tar", {**dict.fromkeys(names, png), "NOTES": b"", ".x.png": b""})
    write_tar(tmp_path / "b.tar", {"0.rgb.png": png, "0.mp4": png})
    write_tar(tmp_path / "c.tar", {})
    (tmp_path / "a.idx").write_text("0")
    assert lines(tmp_path, features=["rgb"])[1:] == [
        "feature   rgb  uint8 [2, 2]  image  from *.tar/*.rgb.png",
        "left out  *.tar/*.mp4: 4 files, no reader",
        "left out  *.tar/NOTES: 1 file, no reader",
        "left out  a.idx: 1 file, no reader",
        "left out  field depth: 3 files, not selected by features=",
        "note      c.tar has no samples",
    ]


@pytest.mark.parametrize("version", ["v21", "v3"])
def test_lerobot(tmp_path: Path, version: str) -> None:
    root = unpack(tmp_path, f"lerobot_video_{version}")
    info = json.loads((root / "meta/info.json").read_text())
    info["splits"] = {"train": "0:3", "val": "10%"}
    info["features"]["observation.images.front"]["info"] = {"video.fps": 30}
    (root / "meta/info.json").write_text(json.dumps(info))
    if version == "v3":
        listed, text = root / "meta/episodes/chunk-000/file-000.parquet", "meta/episodes"
        table = pq.read_table(listed)
        pq.write_table(table.append_column("success", pa.array([1] * 3)), listed)
    else:
        listed, text = root / "meta/episodes.jsonl", "meta/episodes.jsonl"
        rows = [json.loads(line) | {"success": 1} for line in listed.read_text().splitlines()]
        listed.write_text("\n".join(map(json.dumps, rows)))
    path = min(root.glob("data/*/*.parquet"))
    table = pq.read_table(path)
    pq.write_table(table.append_column("torque", pa.array([0.5] * len(table))), path)
    stats = "meta/stats.json" if version == "v3" else "meta/episodes_stats.jsonl"
    for name in (stats, "images/x/0.png", "videos/old.mp4", "README.md"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("{}")
    found = lines(root)
    positions = "left out  features frame_index, episode_index, index: 3 features, follows from "
    positions += "the frame's position"
    rates = "note      observation.images.front: declared frame rate 30 differs from the dataset's "
    rates += "10"
    assert {line for line in found if line[:7] not in ("feature", "format ")} == {
        "left out  frames.npz: 1 file, no reader",
        "left out  x/*.png: 1 file, an image that belongs to no feature",
        "left out  videos/old.mp4: 1 file, no reader",
        "left out  column torque of data/: 16 rows, not declared in meta/info.json",
        f"left out  success in {text}: 3 episodes, no reader",
        f"left out  {stats}: 1 file, recomputed",
        positions,
        "note      split val ignored: '10%' is not a range of episodes",
        rates,
    }
    chosen = inventory_of(open_source(root, without_video=True)).left_out
    assert [each.pattern for each in chosen if "not selected" in each.reason] == [
        f"feature {name}" for name in CAMERAS
    ]


def with_audio(path: Path) -> None:
    """A video of 3 frames, with sound."""
    with av.open(str(path), "w") as file:
        picture: Any = file.add_stream("libx264", rate=10)
        picture.width = picture.height = 32
        picture.pix_fmt = "yuv420p"
        sound: Any = file.add_stream("aac", rate=8000)
        for number in range(3):
            frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), number, np.uint8))
            frame.pts = number
            file.mux(picture.encode(frame))
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        silence.sample_rate, silence.pts = 8000, 0
        file.mux(sound.encode(silence))
        file.mux(picture.encode())
        file.mux(sound.encode())


def test_videos(tmp_path: Path) -> None:
    for number in range(2):
        path = tmp_path / f"{number}/front.mp4"
        path.parent.mkdir()
        with_audio(path)
        path.with_suffix(".srt").write_text("1")
        path.with_suffix(".json").write_text("{}")
        write_video(path.with_name("wrist.mkv"), pictures(3))
    assert lines(tmp_path)[:1] == ["format    videos: 4 files *.mkv, *.mp4"]
    assert [line for line in lines(tmp_path) if "left out" in line] == [
        "left out  audio in *.mkv, *.mp4: 2 streams, no reader",
        "left out  front.json: 2 files, no reader",
        "left out  front.srt: 2 files, no reader",
    ]
    chosen = lines(tmp_path, by_folder=True, features=["front"])
    assert "feature   front  uint8 [32, 32, 3]  image  from */front.*" in chosen
    assert "left out  wrist.*: 2 files, not selected by features=" in chosen
    assert "1 stream, no reader" in lines(tmp_path / "0/front.mp4")[3]


def test_a_dataset_as_a_source(tmp_path: Path) -> None:
    write_tum(tmp_path / "freiburg1_a")
    (tmp_path / "freiburg1_a/scan.pcd").write_text("x")
    seqrecord.convert(open_source(tmp_path / "freiburg1_a"), tmp_path / "one", workers=1)
    source = open_source(tmp_path / "one", features=["image", "pose"])
    report = seqrecord.convert(source, tmp_path / "two", workers=1, strict=True)
    shown = report.inventory.lines()
    assert shown[0] == "format    seqrecord: manifest.json of a dataset of 1 episode"
    assert "feature   pose  float64 [7]  pose, m  from feature pose" in shown
    assert "left out  feature depth: 1 feature, not selected by features=" in shown
    assert "left out  scan.pcd: 1 file, no reader, when tum was packed" in shown
    assert any(line.startswith("note      packed before from tum: 1 sequence") for line in shown)
    with seqrecord.open(tmp_path / "two").renamed({"pose": "camera"}) as dataset:
        found = DatasetSource(dataset).account()
    assert found.places == {"image": "feature image", "camera": "feature pose"}
    assert not [each for each in found.left_out if each.count == 1 and each.is_data]
