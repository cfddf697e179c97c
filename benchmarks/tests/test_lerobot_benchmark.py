"""The benchmark against LeRobot, on very little data; its figures mean nothing."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from benchmarks.lerobot.__main__ import best_settings, figures, main, page
from benchmarks.lerobot.data import CAMERA, LEROBOT, make_linked
from benchmarks.lerobot.equal import CAMERAS as PICTURES
from benchmarks.lerobot.equal import LENGTHS, VARIANTS, number_of, picture
from benchmarks.lerobot.in_place import page as page_in_place
from tests.kit.lerobot_video_data import CAMERAS, unpack, with_video

ROOT = Path(__file__).parents[2]
STAND_IN = ROOT / "benchmarks" / "lerobot" / "stand_in"

PACKAGE = '''
"""The parts of lerobot that the benchmark calls."""
import json
import torch
from lerobot.datasets import video_utils
decode_video_frames = video_utils.decode_video_frames

class LeRobotDatasetMetadata:
    def __init__(self, _name, root):
        self.fps = json.loads(open(f"{root}/meta/info.json").read())["fps"]

class LeRobotDataset(torch.utils.data.Dataset):
    def __init__(self, _name, root, video_backend=None, delta_timestamps=None):
        info = json.loads(open(f"{root}/meta/info.json").read())
        self.fps, self.count = info["fps"], info["total_frames"]
        self.root, self.backend, self.windows = root, video_backend, delta_timestamps

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        item = {}
        for name, deltas in self.windows.items():
            if name == "action":
                item[name] = torch.zeros(len(deltas), 2)
                continue
            path = f"{self.root}/videos/{name}/chunk-000/file-000.mp4"
            times = [max(0.0, i / self.fps + delta) for delta in deltas]
            item[name] = decode_video_frames(path, times, 0.02, self.backend)
        return item
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A dataset with two cameras and 15 frames."""
    root = unpack(tmp_path, "lerobot_v3")
    for name in CAMERAS:
        with_video(root, (5, 3, 7), name)
    return root


@pytest.fixture
def lerobot(tmp_path: Path) -> Path:
    """A Python with a stub of `lerobot` that reads with the stand-in for torchvision."""
    package = tmp_path / "python" / "lerobot" / "datasets"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "lerobot_dataset.py").write_text(PACKAGE)
    utils = "import torchvision\ndef decode_video_frames(*_): raise TypeError('not for uint8')\n"
    (package / "video_utils.py").write_text(utils)
    for name in ("lerobot", "torch", "torchcodec", "av"):
        info = tmp_path / "python" / f"{name}-9.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.0\n")
    python = tmp_path / "python" / "python"
    paths = os.pathsep.join(map(str, (tmp_path / "python", STAND_IN, ROOT)))
    python.write_text(f'#!/bin/sh\nPYTHONPATH={paths} exec {sys.executable} "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return python


@pytest.mark.timeout(400)
def test_one_command_measures_all_rows(tmp_path: Path, root: Path, lerobot: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.lerobot", str(tmp_path / "bench")]
    command += ["--root", str(root), "--lerobot", str(lerobot)]
    command += ["--draft", "--to", str(tmp_path / "to")]
    command += ["--seconds", "0.2", "--repeats", "1", "--batch", "3", "--threads", "1", "--rows"]
    command += [
        "try/2+16 uint8/*/0",
        "lerobot/2+16 uint8/*",
        "seqrecord/2+16 uint8/*",
        "by hand/2+16 uint8/warm",
    ]
    more = ["seqrecord/16+16 float/warm", "pyav/front", "conversion"]
    done = subprocess.run(
        [*command, *more], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    text = (tmp_path / "to" / "RESULTS.md").read_text()
    assert done.stdout == f"{text}\n"
    document = json.loads((tmp_path / "to" / "results.json").read_text())
    assert document == json.loads((tmp_path / "bench" / "results.json").read_text())
    found: dict[str, list[dict[str, Any]]] = document["rows"]
    for place in ("warm", "cold"):
        [theirs], [ours] = (found[f"{one}/2+16 uint8/{place}"] for one in ("lerobot", "seqrecord"))
        assert theirs["clips_per_second"] > 0
        assert theirs["batches"] >= 30
        assert (ours["clips"], ours["video_frames_decoded"]) == (15, 30)
    [hand] = found["by hand/2+16 uint8/warm"]
    [ours] = found["seqrecord/2+16 uint8/warm"]
    assert (hand["clips"], hand["whole"]) == (15, True)
    assert hand["cpu_seconds"] <= hand["num_cores"] * hand["seconds"] + 0.1
    assert found["seqrecord/16+16 float/warm"][0]["clips_per_second"] > 0
    assert 0 < found["pyav/front"][0]["frames"] <= 30  # as many as the seconds allow
    assert found["conversion"][0]["source_bytes"] == document["settings"]["dataset"]["bytes"]
    assert found["lerobot/2+16 uint8/azurite"] == [{"skipped": "reads local files only"}]
    azurite = found["seqrecord/2+16 uint8/azurite"]
    assert "skipped" in azurite[0] or [run["clips"] for run in azurite] == [15]
    assert "lerobot 9.0" in text
    assert "| 2+16 uint8 | warm | " in text
    assert "pyav, 0 workers" in text  # this lerobot lacks torchcodec
    assert "| try/2+16 uint8/torchcodec/0 | AttributeError: " in text


DATASET: dict[str, Any] = {"frames": 100, "episodes": 2, "cameras": 2, "shape": [480, 640, 3]}
DATASET |= {"codec": "av1", "bytes": 99_000_000, "frame_bytes": 2 * 480 * 640 * 3}
SETTINGS: dict[str, Any] = {"batch": 8, "seconds": 20.0, "threads": 2, "memory": "2GiB"}
SETTINGS |= {"repeats": 3, "dataset": DATASET, "versions": {"lerobot": "0.4.4"}}
SETTINGS["linked"] = [10_000, 100, 100]


def document(rows: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    shared = {"machine": "a machine", "commit": "abc", "settings": SETTINGS}
    return {**shared, "rows": rows}


def clips(*rates: float, **more: Any) -> list[dict[str, Any]]:
    return [{"clips_per_second": rate, "clips": 100, "seconds": 2.0, **more} for rate in rates]


def test_figures_use_medians() -> None:
    made = document(
        {
            "lerobot/16+16 uint8/warm": clips(5.0, 4.0, 60.0),
            "seqrecord/16+16 uint8/warm": clips(10.0, 250.0, 260.0, video_frames_decoded=210),
            "by hand/16+16 uint8/warm": clips(600.0),
            "seqrecord/2+16 uint8/warm": clips(50.0, video_frames_decoded=202),
            "by hand/2+16 uint8/warm": clips(600.0),
            "torchcodec/front": [{"frames_per_second": 100.0}],
            "pyav/front": [{"frames_per_second": 120.0}],
            "conversion": [{"bytes": 99, "source_bytes": 100, "rate_to_copying": 0.4}],
        }
    )
    found = {figure.target: figure for figure in figures(made)}
    values = {target: figure.value for target, figure in found.items()}
    assert values.pop(10) is None  # LeRobot's row did not run
    assert values == pytest.approx({40: 50, 0.8: 101 / 120, 1.02: 0.99, 1.05: 1.05, 0.5: 0.4})
    reached = {target: figure.is_reached for target, figure in found.items()}
    assert reached == {40: True, 10: None, 0.8: True, 1.02: True, 1.05: True, 0.5: False}
    text = page(made)
    assert "| conversion: rate to copying the files | >= 0.5 | **0.40** |" in text
    # 60 clips/s decoded, 600 copied: one after the other 54.5.
    assert "| 2+16 uint8 | 60 | 600 | 55 | 50 | 0.92 |  |" in text
    assert "\n| 16+16 uint8 | 60 |" not in text
    assert "Left out, above their limits: 16+16 uint8." in text


def test_fastest_settings_of_lerobot_are_chosen() -> None:
    found = best_settings(
        {
            "try/2+16 uint8/pyav/0": clips(3.0),
            "try/2+16 uint8/pyav/2": clips(9.0),
            "try/2+16 uint8/torchcodec/2": [{"error": "no such file"}],
            "try/2+16 float/pyav/0": [{"skipped": "needs lerobot"}],
        }
    )
    assert found == {"2+16 uint8": ("pyav", 2)}


def test_a_run_whose_trials_failed_is_not_published(tmp_path: Path) -> None:
    document = json.loads((ROOT / "benchmarks/lerobot/results.json").read_text())
    (tmp_path / "results.json").write_text(json.dumps(document))
    main([str(tmp_path), "--report", "--to", str(tmp_path / "whole")])
    name = next(name for name in document["rows"] if "torchcodec/2" in name)
    document["rows"][name] = [{"error": "no libavutil.so.59"}]
    (tmp_path / "results.json").write_text(json.dumps(document))
    with pytest.raises(SystemExit, match=f"not published.*{re.escape(name)}: no libavutil"):
        main([str(tmp_path), "--report", "--to", str(tmp_path / "part")])
    assert (tmp_path / "whole" / "RESULTS.md").exists()
    assert not (tmp_path / "part").exists()


# Data in place

MOST_CALLS = 5_000  # boundaries of readers and digests of pages take 500


@pytest.mark.timeout(400)
def test_page_of_data_in_place(tmp_path: Path) -> None:
    root = unpack(tmp_path, "lerobot_v3")
    info = json.loads((root / "meta/info.json").read_text())
    del info["features"]["observation.image"]  # images in tables are not read in place
    (root / "meta/info.json").write_text(json.dumps(info))
    for name in CAMERAS:
        with_video(root, (5, 3, 7), name)
    command = [sys.executable, "-m", "benchmarks.lerobot.in_place", str(tmp_path / "bench")]
    command += [
        "--root",
        str(root),
        "--draft",
        "--to",
        str(tmp_path / "to"),
        "--linked",
        "6",
        "2",
        "4",
    ]
    command += ["--seconds", "0.2", "--repeats", "1", "--batch", "3", "--threads", "1"]
    command += ["--lerobot", "none", "--memory", "256MiB", "--rows"]
    rows = ["index/linked", "first/nothing", "first/*LeRobot*", "*/2+16 uint8/warm"]
    rows += ["*/s3", "*/hub"]
    done = subprocess.run([*command, *rows], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    text = (tmp_path / "to" / "IN_PLACE.md").read_text()
    assert done.stdout.decode() == f"{text}\n"
    document = json.loads((tmp_path / "to" / "in_place.json").read_text())
    found: dict[str, list[dict[str, Any]]] = document["rows"]
    skipped = [name for name, runs in found.items() if "skipped" in runs[0]]
    assert len(skipped) == 3, "LeRobot's classes"
    assert not [runs for runs in found.values() if "error" in runs[0]]
    assert found["index/linked"][0]["episodes"] == 6
    for place in ("warm", "s3", "hub"):
        for way in ("in place", "packed"):
            [run] = found[f"{way}/2+16 uint8/{place}"]
            assert (run["clips"], run["video_frames_decoded"]) == (15, 30)
            assert ("requests" in run) == (place != "warm")
    assert "| 2+16 uint8 | warm | " in text
    assert "| 2.000 | 2.000 | 1.000 |" in text


def test_linked_files_have_the_same_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "home"))
    make_linked(tmp_path / "a", episodes=6, files=2, frames=5)
    assert {path.stat().st_nlink for path in (tmp_path / "a").rglob("*.mp4")} == {2}
    with seqrecord.open(tmp_path / "a") as dataset:
        assert [len(episode) for episode in dataset.episodes.values()] == [5] * 6
        first, last = (dataset.episodes[f"episode_{n:06d}"][:] for n in (0, 3))
        assert (first[CAMERA] == last[CAMERA]).all(), "same position in both files"
        assert not (first["action"] == last["action"]).all()


def test_calls_per_indexed_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Function calls dominate the time but do not vary: an episode of 100 frames takes few of
    them, regardless of the number of episodes in its file."""
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "home"))
    counts: list[int] = []
    for episodes in (4, 4, 24):  # the first one imports modules
        root = tmp_path / str(len(counts))
        make_linked(root, episodes=episodes, files=1, frames=100)
        calls = 0

        def count(_frame: object, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            seqrecord.open(root).close()
        finally:
            sys.setprofile(None)
        counts.append(calls)
    assert (counts[2] - counts[1]) / 20 < MOST_CALLS


def test_ratios_use_repeats_and_whole_epochs() -> None:
    def runs(*rates: float, clips: int = 100) -> list[dict[str, Any]]:
        more = {"cpu_seconds": 50.0, "video_frames_decoded": 206, "peak_memory_bytes": 1e9}
        return [{"clips_per_second": rate, "clips": clips, **more} for rate in rates]

    text = page_in_place(
        document(
            {
                "in place/2+16 uint8/warm": runs(99.0, 10.0, 30.0),
                "packed/2+16 uint8/warm": runs(100.0, 20.0, 30.0),
                "in place/2+16 uint8/cold": runs(5.0, clips=80),
                "packed/2+16 uint8/cold": [{"error": "a | b"}],
                "in place/2+16 uint8/s3": runs(30.0),
                "packed/2+16 uint8/s3": runs(20.0, clips=80),
                "index/dataset": [{"seconds": 0.5, "bytes_requested": 990_000, "episodes": 10}],
            }
        )
    )
    assert "| 2+16 uint8 | warm | 30.0 | 30.0 | 0.990 | 1.000 | 2.060 | 2.060 | 1.000 |" in text
    assert "| 2+16 uint8 | cold | 5.0 |  |  |  |  |  |  |  |  | 1000 |  | a / b |" in text
    assert "| 2+16 uint8 | s3 | 30.0 | 20.0 |  |  | 2.060 |  |  |" in text, "a row that was cut"
    assert "| dataset | 10 | 0.50 |  | 0.99 | 1.0% |" in text


# Items read in place equal those of LeRobot's own class, decoded by the same PyAV

ROWS = sum(LENGTHS)
needs_lerobot = pytest.mark.skipif(not LEROBOT.exists(), reason="needs lerobot: make lerobot-env")


def run_equal(version: str, home: Path, *arguments: Any) -> list[dict[str, Any]]:
    """Output of `benchmarks.lerobot.equal` with this version of lerobot."""
    own = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(home / "hf"), "SEQRECORD_HOME": str(home)}
    if version == "v2.1":
        own["PYTHONPATH"] = str(LEROBOT.parents[1] / "v2")
    command = [str(LEROBOT), "-m", "benchmarks.lerobot.equal", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **own}, check=True, stdout=subprocess.PIPE, text=True
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@needs_lerobot
@pytest.mark.timeout(400)
@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_every_item_equals_lerobots(version: str, tmp_path: Path) -> None:
    """Several episodes per file and files per camera; B-frames; frames hidden by edit lists."""
    data = tmp_path / "data"
    run_equal(version, tmp_path, "write", data)
    info = json.loads((data / "own/meta/info.json").read_text())
    assert info["codebase_version"] == version
    files = [len(list(data.glob(f"own/videos/**/{name}/**/*.mp4"))) for name in PICTURES]
    if version == "v3.0":
        assert len(set(files)) == 3, "cameras have different frame counts per file"
        assert 1 < files[0] < len(LENGTHS), "several episodes per file, several files per camera"
    for result in run_equal(version, tmp_path, "compare", *(data / each for each in VARIANTS)):
        assert result["differ"] == {}
        assert result["clips"] == 2 * ROWS
        compared = result["compared"]
        for name in (*PICTURES, "observation.state", "action", "tactile", "timestamp", "task"):
            assert compared.pop(name) == 4 * ROWS
        masks = {f"{name}_is_pad" for name in (*PICTURES, "observation.state", "action")}
        assert compared == dict.fromkeys(masks, 2 * ROWS)


@needs_lerobot
def test_swapped_videos_are_reported(tmp_path: Path) -> None:
    """The videos of two episodes are swapped after the dataset was written."""
    run_equal("v2.1", tmp_path, "write", tmp_path / "data")
    own = tmp_path / "data" / "own"
    same = [number for number, length in enumerate(LENGTHS) if length == LENGTHS[0]]
    one, other = (next(own.rglob(f"*.front/episode_{number:06d}.mp4")) for number in same)
    one.rename(tmp_path / "kept.mp4")
    other.rename(one)
    (tmp_path / "kept.mp4").rename(other)
    [result] = run_equal("v2.1", tmp_path, "compare", own)
    # Windows with a wrong frame differ too, in both loaders.
    assert result["differ"] == {"observation.images.front: ours is wrong": 4 * 2 * LENGTHS[0]}


def test_images_encode_their_number() -> None:
    for camera, size in enumerate(PICTURES.values()):
        for episode, frame in ((0, 0), (6, 11), (63, 255)):
            image = picture(camera, episode, frame, size)
            assert number_of(image) == (camera, episode, frame)
            assert number_of(np.clip(image, 60, 190)) == (camera, episode, frame)
