"""The Python examples of README and docs run as they stand, page by page, in an empty folder."""

from __future__ import annotations

import gc
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch.utils.data import DataLoader
from tqdm import tqdm

import seqrecord
from tests.command_line import main
from tests.lerobot_video_data import CAMERAS, unpack, with_video

ROOT = Path(__file__).parents[1]
HEIGHT, WIDTH = 232, 240
SIZES = {"480": HEIGHT, "640": WIDTH}
"""What frames of the pages' 480x640 pixels have here, so that little is written."""

Frame = dict[str, Any]

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]


@dataclass(frozen=True)
class Page:
    """A page, what its examples find in the folder, and what they take for granted."""

    path: str
    datasets: Mapping[str, str] = field(default_factory=dict)  # what is at a path
    names: Mapping[str, Any] = field(default_factory=dict)  # beside seqrecord and torch
    instead: Mapping[str, str] = field(default_factory=dict)  # text of the page, and what runs
    knows_torch: bool = True  # else examples import all that they use


def sequence_model(batch: Frame, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    assert len(hidden) == len(batch["is_first"])
    return hidden.sum(), hidden + 1


def policy(image: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    assert image.shape[1:] == (3, 48, 64)
    assert state.shape == (len(image), 7)
    return torch.zeros(len(image), 20, 7)


def act(images: torch.Tensor, state: torch.Tensor, texts: list[str]) -> torch.Tensor:
    assert images.shape == (len(texts), 2, 3, 224, 224)
    assert state.shape == (len(texts), 3)
    return torch.zeros(len(texts), 16, 2)


def depth_model(images: torch.Tensor) -> torch.Tensor:
    assert images.dtype == torch.uint8
    return images.float().mean(-1)


def world_model(
    image: torch.Tensor, action: torch.Tensor, hidden: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    assert len(image) == len(action) == len(hidden)
    return hidden.sum(), hidden + 1


RECORDING = [
    (np.full((24, 32, 3), i, np.uint8), np.ones((24, 32), np.float32), np.zeros(7))
    for i in range(20)
]


class Robot:
    """A robot that is done after three looks, and its camera."""

    def __init__(self) -> None:
        self.looks = 0

    def is_done(self) -> bool:
        self.looks += 1
        return self.looks % 4 == 0

    def read(self) -> Any:
        return RECORDING[0][0]

    def state(self) -> Any:
        return RECORDING[0][2]


PAGES = [
    Page(
        "README.md",
        {"tartanair-records": "tartanair"},
        {"recording": RECORDING, "train": lambda batch: batch["image"]},
    ),
    Page("docs/index.md", {}, {"recording": RECORDING}),
    Page(
        "docs/loaders.md",
        {"tartanair-records": "tartanair"},
        {"DataLoader": DataLoader},
        {'device="cuda"': 'device="cpu"', '(loader, "cuda")': '(loader, "cpu")'},
    ),
    Page("docs/rgbd.md", knows_torch=False),
    Page(
        "docs/lerobot-training.md",
        {"my-lerobot-dataset": "lerobot", "other-lerobot-dataset": "lerobot"},
        {"device": "cpu", "policy": act},
    ),
    Page("docs/world-models.md", {"robot-records": "robot"}, {"model": sequence_model}),
    Page(
        "docs/recipes.md",
        names={"policy": policy, "model": depth_model, "world_model": world_model},
        knows_torch=False,
    ),
    Page(
        "docs/clips.md", {"robot-records": "robot", "lidar-records": "lidar", "gps-records": "gps"}
    ),
    Page("docs/ranks.md", {"records": "robot"}, {"DataLoader": DataLoader, "tqdm": tqdm}),
    Page(
        "docs/mixing.md", dict.fromkeys(("bridge-records", "droid-records", "own-records"), "robot")
    ),
    Page("docs/reference/loaders.md", {"records": "robot"}),
    Page("docs/reference/data.md", {"records": "tartanair"}),
    Page(
        "docs/reference/writing.md",
        {"records": "tartanair", "more-records": "more"},
        {"robot": Robot(), "camera": Robot(), "depth": RECORDING[0][1]},
        {'"records/",\n    features=': '"depth-records/",\n    features='},
    ),
    Page(
        "docs/reference/edit.md",
        {"records": "tartanair", "more-records": "more"},
        instead={'"kitchen/*"': '"*/Easy/*"'},
    ),
    Page("docs/reference/export.md", {"demos": "robot"}),
]


def robot_frame(rng: np.random.Generator, step: int) -> Frame:
    return {
        "image": np.full((HEIGHT, WIDTH, 3), step, np.uint8),
        "action": rng.normal(size=7).astype(np.float32),
        "imu": rng.normal(size=6).astype(np.float32),
    }


def lidar_frame(rng: np.random.Generator, step: int) -> Frame:
    points = rng.random((int(rng.integers(1, 5)), 3), np.float32)
    return {"points": points, "note": f"step {step}"}


def gps_frame(rng: np.random.Generator, step: int) -> Frame:
    frame = {"action": rng.normal(size=7).astype(np.float32)}
    return frame if step % 10 else {**frame, "gps": rng.random(3, np.float32)}


def tartanair_frame(rng: np.random.Generator, step: int) -> Frame:
    return {
        "image_left": np.full((HEIGHT, WIDTH, 3), step, np.uint8),
        "depth_left": np.full((HEIGHT, WIDTH), step, np.float32),
        "flow": rng.random((HEIGHT // 4, WIDTH // 4, 2), np.float32),
        "action": rng.normal(size=7).astype(np.float32),
    }


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, rng = tmp_path_factory.mktemp("datasets"), np.random.default_rng(0)
    camera = {"fx": 320, "fy": 320, "cx": 320, "cy": 240}
    kinds: dict[str, tuple[str, int, Callable[[np.random.Generator, int], Frame]]] = {
        "robot": ("demo/{:03d}", 40, robot_frame),
        "lidar": ("drive/{:03d}", 40, lidar_frame),
        "gps": ("drive/{:03d}", 40, gps_frame),
        "tartanair": ("abandonedfactory/Easy/P{:03d}", 26, tartanair_frame),
        "more": ("carwelding/Easy/P{:03d}", 3, tartanair_frame),
    }
    for kind, (key, num_frames, make_frame) in kinds.items():
        said: Any = {"points": {"shape": (None, 3)}} if kind == "lidar" else None
        with seqrecord.SeqRecordWriter(
            folder / kind, codecs="fast", fps=30, features=said
        ) as writer:
            for number in range(4):
                metadata = {"task": "stack", "camera": camera}
                with writer.episode(key.format(number), metadata=metadata) as episode:
                    for step in range(num_frames if number < 3 else 8):
                        episode.append(make_frame(rng, step))
        if kind == "robot":
            run_command(f"seqrecord split {folder / kind} train=0.5 val=0.5")
    unpack(folder, "lerobot_v3").rename(folder / "lerobot")
    for name in CAMERAS:
        with_video(folder / "lerobot", (5, 3, 7), name)
    return {kind: folder / kind for kind in (*kinds, "lerobot")}


def blocks_of(text: str) -> Iterator[tuple[str, str]]:
    """Each block's language and its lines, at the place where the page has them."""
    for found in re.finditer(r"^```(python|bash)\n(.*?)^```", text, re.M | re.S):
        language, source = found.groups()
        if source.startswith(">>>"):
            source = re.sub(r"^(>>>|\.\.\.) ?", "", source, flags=re.M)
        yield language, "\n" * text[: found.start(2)].count("\n") + source


def run_command(line: str) -> None:
    program, *arguments = shlex.split(line, comments=True)
    assert program == "seqrecord"
    made = CliRunner().invoke(main, arguments)
    assert made.exit_code == 0, made.output


def check_comments(source: str, there: dict[str, Any]) -> int:
    """Compare `value  # dtype [1, 2]` with the value, in lines that are in no loop."""
    said = re.findall(r'^(batch\["\w+"\])(?:\.shape)?  # (?:(\w+) )?\[([\d, ]+)\]', source, re.M)
    for expression, dtype, shape in said:
        value = eval(expression, there)
        want = [SIZES.get(size, int(size)) for size in shape.split(", ")]
        assert list(value.shape) == want, expression
        assert not dtype or str(value.dtype) == f"torch.{dtype}", expression
    return len(said)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Of torch's: on a busy machine several wait for each other longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_examples_run(
    page: Page, datasets: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "home"))
    for name, kind in page.datasets.items():
        shutil.copytree(datasets[kind], tmp_path / name, copy_function=os.link)
    text = (ROOT / page.path).read_text()
    for old, new in page.instead.items():
        assert old in text, old
        text = text.replace(old, new)
    for name, file in re.findall(r"^```yaml\n# ([\w.-]+)\n(.*?)^```", text, re.M | re.S):
        Path(name).write_text(file)
    there: dict[str, Any] = {"__name__": __name__, **page.names}
    if page.knows_torch:
        there |= {"torch": torch, "seqrecord": seqrecord}
    checked = 0
    for language, source in blocks_of(text):
        if language == "bash":
            if page.path in ("docs/recipes.md", "docs/rgbd.md"):
                run_command(source.strip())
            continue
        exec(compile(source, page.path, "exec"), there)
        checked += check_comments(source, there)
    if page.path == "docs/clips.md":
        assert checked >= 10
    there.clear()
    gc.collect()  # ends loops that were left, and their worker processes


def test_every_page_of_how_to_train_is_here() -> None:
    tested = {page.path for page in PAGES} | {
        "docs/from-lerobot.md",  # in test_from_lerobot.py
        "docs/in-place.md",  # in test_indexing.py
    }
    there = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    wanted = {
        str(path.relative_to(ROOT))
        for path in there
        if re.search(r"^```python\n", path.read_text(), re.M)
    }
    # The examples of the first need a cloud, those of the second a package with entry points.
    assert wanted - tested <= {"docs/storage.md", "docs/reference/sources.md"}


@pytest.mark.slow
def test_the_script_for_several_gpus(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "recipes.md").read_text()
    sources = [source for language, source in blocks_of(text) if language == "python"]
    (script,) = (source for source in sources if "__main__" in source)
    (tmp_path / "make.py").write_text(sources[0])
    (tmp_path / "train.py").write_text(script)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    outputs = [
        subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=env,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for arguments in (["make.py"], [*torchrun, "train.py"])
    ]
    lines = sorted(re.findall(r"rank \d: epoch \d, (\d+) batches", outputs[1]))
    assert len(lines) == 4
    assert len(set(lines)) == 1
