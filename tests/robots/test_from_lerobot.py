"""Commands of docs/lerobot-training.md and docs/from-lerobot.md, run on a small dataset."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.lerobot.__main__ import parse
from seqrecord import convert, open_source
from tests.kit.command_line import main
from tests.kit.lerobot_stand_in import install
from tests.kit.lerobot_video_data import CAMERAS, unpack, with_video

ROOT = Path(__file__).parents[2]
FIRST, TEXT = (
    (ROOT / "docs" / name).read_text() for name in ("lerobot-training.md", "from-lerobot.md")
)
LINES = [
    shlex.split(line, comments=True)
    for block in re.findall(r"^```bash\n(.*?)^```", FIRST + TEXT, re.M | re.S)
    for line in block.splitlines()
]
PYTHON = re.findall(r"^```python\n(.*?)^```", TEXT, re.M | re.S)


def dataset(name: str = "my-lerobot-dataset", cameras: Sequence[str] = CAMERAS[:1]) -> Path:
    """Three episodes in the current folder."""
    root = unpack(Path(f"{name}-"), "lerobot_v3").rename(name)
    for camera in cameras:
        with_video(root, (5, 3, 7), camera)
    return root


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def test_every_line_is_tested() -> None:
    programs = [words[0] for words in LINES]
    plugin = ["pip", "SEQRECORD_LEROBOT=1"]
    first = ["pip", "seqrecord", *plugin, *["seqrecord"] * 3, "make", "make"]
    assert programs == [*first, plugin[1], "SEQRECORD_LEROBOT_MIX=mix.yaml", "lerobot-train"]
    assert len(PYTHON) == 3
    makefile = (ROOT / "Makefile").read_text()
    made = {word for words in LINES if words[0] == "make" for word in words[1:]}
    assert made <= set(re.findall(r"^([a-z-]+):", makefile, re.M))
    assert re.search(r"-m benchmarks\.lerobot \S+ \$\(ARGS\)", makefile)
    [arguments] = re.findall(r'ARGS="(.*?)"', FIRST)
    assert parse(["bench/lerobot", *shlex.split(arguments)]).folder == Path("bench/lerobot")


def test_convert_and_back() -> None:
    dataset(cameras=CAMERAS)
    for _, *arguments in (words for words in LINES if words[0] == "seqrecord"):
        short = ["2" if word == "16" else word for word in arguments]  # episodes have 3 frames
        made = CliRunner().invoke(main, short)
        if arguments[0] != "doctor":  # this dataset's statistics are wrong
            assert made.exit_code == 0, made.output
    info = json.loads(Path("back/meta/info.json").read_text())
    assert (info["codebase_version"], info["total_frames"]) == ("v3.0", 15)


def test_marks_for_lerobots_main_branch() -> None:
    convert(open_source(dataset(cameras=())), "my-records", workers=1)
    exec(PYTHON[1], {})
    for name in ("my-lerobot-dataset", "my-records"):
        info = json.loads(Path(name, "meta/info.json").read_text())
        assert info["storage_format"] == "seqrecord"
    assert json.loads(Path("my-records/meta/info.json").read_text())["total_frames"] == 15


def test_lerobots_class_and_several_datasets() -> None:
    for name in ("my-lerobot-dataset", "one", "two"):
        dataset(name)
    variables: dict[str, Any] = {}
    exec(PYTHON[2], variables)
    assert variables["batch"][CAMERAS[0]].shape == (7, 2, 3, 48, 64)  # 15 items in batches of 8
    assert variables["state"] == {"epoch": 1, "start_index": 0}
    Path("mix.yaml").write_text("sources: {one: {location: one}, two: {location: two}}")
    exec(PYTHON[0], variables)
    assert variables["batch"]["action"].shape == (8, 16, 2)
    assert sorted(variables["batch"]["dataset"]) == ["one"] * 4 + ["two"] * 4
