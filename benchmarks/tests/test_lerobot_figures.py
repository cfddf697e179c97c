"""The figures of datasets in place, on so little data that they mean nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import seqrecord
from benchmarks.lerobot.in_place import page
from benchmarks.lerobot.linked import CAMERA, make_linked
from tests.lerobot_video_data import CAMERAS, unpack, with_video

ROOT = Path(__file__).parents[2]
MOST_CALLS = 3400  # of which a quarter look at the headers of 50 keyframes


@pytest.mark.timeout(400)
def test_one_command_makes_the_page(tmp_path: Path) -> None:
    root = unpack(tmp_path, "lerobot_v3")
    info = json.loads((root / "meta/info.json").read_text())
    del info["features"]["observation.image"]  # images in tables are not read in place
    (root / "meta/info.json").write_text(json.dumps(info))
    for name in CAMERAS:
        with_video(root, (5, 3, 7), name)
    command = [sys.executable, "-m", "benchmarks.lerobot.in_place", str(tmp_path / "bench")]
    command += ["--root", str(root), "--to", str(tmp_path / "to"), "--linked", "6", "2", "4"]
    command += ["--seconds", "0.2", "--repeats", "1", "--batch", "3", "--threads", "1"]
    command += ["--lerobot", "none", "--memory", "256MiB", "--rows"]
    rows = [
        "index/linked",
        "first/nothing",
        "first/*LeRobot*",
        "*/2+16 uint8/warm",
        "*/s3",
        "*/hub",
    ]
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
            assert run["clips"] == 15
            assert run["video_frames_decoded"] == 30
            assert ("requests" in run) == (place != "warm")
    assert "| 2+16 uint8 | warm | " in text
    assert "| 2.000 | 2.000 | 1.000 |" in text
    again = [*command[:4], "--report"]
    report = subprocess.run(again, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    assert report.stdout == done.stdout


def test_a_dataset_of_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "home"))
    make_linked(tmp_path / "a", episodes=6, files=2, frames=5)
    assert {path.stat().st_nlink for path in (tmp_path / "a").rglob("*.mp4")} == {2}
    with seqrecord.open(tmp_path / "a") as dataset:
        assert [len(episode) for episode in dataset.episodes.values()] == [5] * 6
        first, last = (dataset.episodes[f"episode_{n:06d}"][:] for n in (0, 3))
        assert (first[CAMERA] == last[CAMERA]).all(), "the same place in both files"
        assert not (first["action"] == last["action"]).all()


def test_what_an_episode_of_an_index_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of functions, of which the seconds are made and which do not vary: an episode of 100
    frames takes few of them, however many others its file has."""
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "home"))
    counts: list[int] = []
    for episodes in (4, 4, 24):  # the first imports
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


def test_ratios_are_of_turns_and_whole_epochs() -> None:
    def runs(*rates: float, clips: int = 100) -> list[dict[str, Any]]:
        return [
            {
                "clips_per_second": rate,
                "clips": clips,
                "cpu_seconds": 50.0,
                "video_frames_decoded": 206,
                "peak_memory_bytes": 1e9,
            }
            for rate in rates
        ]

    document = {
        "machine": "a machine",
        "commit": "abc",
        "dataset": {"frames": 100, "cameras": 2, "bytes": 99_000_000},
        "settings": {
            "batch": 8,
            "seconds": 10.0,
            "threads": 2,
            "memory": "2GiB",
            "repeats": 3,
            "linked": [10_000, 100, 100],
        },
        "rows": {
            "in place/2+16 uint8/warm": runs(99.0, 10.0, 30.0),
            "packed/2+16 uint8/warm": runs(100.0, 20.0, 30.0),
            "in place/2+16 uint8/cold": runs(5.0, clips=80),
            "packed/2+16 uint8/cold": [{"error": "a | b"}],
            "index/dataset": [{"seconds": 0.5, "bytes_requested": 990_000, "episodes": 10}],
        },
    }
    text = page(document)
    assert "| 2+16 uint8 | warm | 30.0 | 30.0 | 0.990 | 1.000 | 2.060 | 2.060 | 1.000 |" in text
    assert "| 2+16 uint8 | cold | 5.0 |  |  |  |  |  |  |  |  | 1000 |  | a / b |" in text
    assert "| dataset | 10 | 0.50 |  | 0.99 | 1.0% |" in text
