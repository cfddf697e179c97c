"""LeRobot datasets read in place equal what LeRobot's own class gives, decoded by the same PyAV."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.lerobot.data import LEROBOT
from benchmarks.lerobot.equal import CAMERAS, LENGTHS, VARIANTS, number_of, picture

ROOT = Path(__file__).parents[2]
ROWS = sum(LENGTHS)

needs_lerobot = pytest.mark.skipif(not LEROBOT.exists(), reason="needs lerobot: make lerobot-env")


def run(version: str, home: Path, *arguments: Any) -> list[dict[str, Any]]:
    """What `benchmarks.lerobot.equal` prints by a Python with the lerobot of this version."""
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
def test_every_item_is_that_of_lerobot(version: str, tmp_path: Path) -> None:
    """Several episodes a file and several files a camera; B-frames; frames that edit lists hide."""
    data = tmp_path / "data"
    run(version, tmp_path, "write", data)
    info = json.loads((data / "own/meta/info.json").read_text())
    assert info["codebase_version"] == version
    files = [len(list(data.glob(f"own/videos/**/{name}/**/*.mp4"))) for name in CAMERAS]
    if version == "v3.0":
        assert len(set(files)) == 3, "cameras have different frame counts a file"
        assert 1 < files[0] < len(LENGTHS), "several episodes a file, several files a camera"
    for result in run(version, tmp_path, "compare", *(data / each for each in VARIANTS)):
        assert result["differ"] == {}
        assert result["clips"] == 2 * ROWS
        compared = result["compared"]
        for name in (*CAMERAS, "observation.state", "action", "tactile", "timestamp", "task"):
            assert compared.pop(name) == 4 * ROWS
        masks = {f"{name}_is_pad" for name in (*CAMERAS, "observation.state", "action")}
        assert compared == dict.fromkeys(masks, 2 * ROWS)


@needs_lerobot
def test_another_frame_is_told(tmp_path: Path) -> None:
    """Two episodes' videos change places, after the dataset was written."""
    run("v2.1", tmp_path, "write", tmp_path / "data")
    own = tmp_path / "data" / "own"
    same = [number for number, length in enumerate(LENGTHS) if length == LENGTHS[0]]
    one, other = (next(own.rglob(f"*.front/episode_{number:06d}.mp4")) for number in same)
    one.rename(tmp_path / "kept.mp4")
    other.rename(one)
    (tmp_path / "kept.mp4").rename(other)
    [result] = run("v2.1", tmp_path, "compare", own)
    # Of windows with a frame too, and by both loaders.
    assert result["differ"] == {"observation.images.front: ours is wrong": 4 * 2 * LENGTHS[0]}


def test_pictures_say_which_they_are() -> None:
    for camera, size in enumerate(CAMERAS.values()):
        for episode, frame in ((0, 0), (6, 11), (63, 255)):
            image = picture(camera, episode, frame, size)
            assert number_of(image) == (camera, episode, frame)
            assert number_of(np.clip(image, 60, 190)) == (camera, episode, frame)
