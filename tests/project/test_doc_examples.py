"""Examples of README, docs and public docstrings run unchanged."""

from __future__ import annotations

import gc
import importlib
import inspect
import os
import re
import shlex
import shutil
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from torch.utils.data import DataLoader
from tqdm import tqdm

import seqrecord
from tests.formats.all_cases import made
from tests.formats.camera_originals import ORIGINALS
from tests.formats.format_cases import sequences
from tests.kit.command_line import main
from tests.kit.lerobot_language_data import annotate
from tests.kit.lerobot_video_data import CAMERAS, unpack, with_video
from tests.kit.processes import free_port, run_python
from tests.loader.rank_jobs import finish, start

ROOT = Path(__file__).parents[2]
HEIGHT, WIDTH = 232, 240
SIZES = {"480": HEIGHT, "640": WIDTH}
"""The pages' 480x640 frames are smaller here."""

Frame = dict[str, Any]

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]


@dataclass(frozen=True)
class Page:
    """A page, and the datasets and names that its examples use."""

    path: str
    datasets: Mapping[str, str] = field(default_factory=dict)  # kind of dataset by path
    names: Mapping[str, Any] = field(default_factory=dict)  # besides seqrecord and torch
    instead: Mapping[str, str] = field(default_factory=dict)  # replacements in the page's text
    has_torch: bool = True  # if False, examples import torch themselves


def sequence_model(batch: Frame, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    assert len(hidden) == len(batch["is_first"])
    return hidden.sum(), hidden + 1


ROLLOUTS = count()


def loss_of(batch: Frame) -> float:
    return float(batch["action"].double().mean())


def run_policy() -> Iterator[tuple[str, list[Frame], float]]:
    """Two recordings of a policy: key, frames and reward."""
    for _ in range(2):
        number = next(ROLLOUTS)
        rng = np.random.default_rng(number)
        yield f"rollout/{number:03d}", [robot_frame(rng, step) for step in range(12)], 1.0


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
    """A robot that is done after three steps, and its camera."""

    def __init__(self) -> None:
        self.steps = 0

    def is_done(self) -> bool:
        self.steps += 1
        return self.steps % 4 == 0

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
    Page("llms.txt"),
    Page("docs/index.md", {}, {"recording": RECORDING}),
    Page("docs/codecs.md", {}, {"recording": RECORDING}),
    Page(
        "docs/loaders.md",
        {"tartanair-records": "tartanair"},
        {"DataLoader": DataLoader},
        {'device="cuda"': 'device="cpu"', 'to("cuda"': 'to("cpu"', "pin_memory=True": ""},
    ),
    Page(
        "docs/cameras.md",
        {f"{name}-records": f"{name} cameras" for name in ("tartanair", "scene", "drive")},
    ),
    Page(
        "docs/scenes.md",
        {"scene-records": "scene cameras"},
        instead={"(384, 512)": "(64, 80)", "clip_len=8": "clip_len=4"},
    ),
    Page("docs/rgbd.md", has_torch=False),
    Page(
        "docs/lerobot-training.md",
        {"my-lerobot-dataset": "lerobot", "other-lerobot-dataset": "lerobot"},
        {"device": "cpu", "policy": act},
    ),
    Page(
        "docs/world-models.md",
        {"robot-records": "robot", "my-lerobot-dataset": "lerobot video"},
        {"model": sequence_model},
        {
            '"action": range(5)': '"observation.state": range(5)',
            'keep=["action", "task"]': 'keep=["observation.state", "task"]',
            'batch["action"].shape  # [2, 5, …]': 'batch["observation.state"].shape',
        },
    ),
    Page(
        "docs/recipes.md",
        names={"policy": policy, "model": depth_model, "world_model": world_model},
        has_torch=False,
    ),
    Page(
        "docs/clips.md", {"robot-records": "robot", "lidar-records": "lidar", "gps-records": "gps"}
    ),
    Page("docs/order.md", {"robot-records": "robot"}),
    Page("docs/budgets.md", {"records": "robot"}),
    Page("docs/join.md", {"robot-records": "robot"}, has_torch=False),
    Page("docs/loss-spikes.md", {"robot-records": "robot"}, {"train": loss_of}),
    Page(
        "docs/rollouts.md",
        {"robot-records": "robot"},
        {"train": loss_of, "run_policy": run_policy},
        has_torch=False,
    ),
    Page(
        "docs/derive.md",
        {"robot-records": "robot", "language-records": "language"},
        has_torch=False,
    ),
    Page("docs/ranks.md", {"records": "robot"}, {"DataLoader": DataLoader, "tqdm": tqdm}),
    Page(
        "docs/mixing.md", dict.fromkeys(("bridge-records", "droid-records", "own-records"), "robot")
    ),
    Page(
        "docs/coming-from.md",
        {"robot-records": "robot", "other-records": "robot", "scene-records": "scene cameras"},
    ),
    Page(
        "docs/performance.md", {"robot-records": "robot"}, instead={"/nvme/frames": "cached-frames"}
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
    vectors = {"action": rng.normal(size=7), "imu": rng.normal(size=6)}
    image = np.full((HEIGHT, WIDTH, 3), step, np.uint8)
    return {"image": image, **{name: v.astype(np.float32) for name, v in vectors.items()}}


def language_frame(rng: np.random.Generator, step: int) -> Frame:
    return {**robot_frame(rng, step), "task": "open the door"}


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


def small_frame(rng: np.random.Generator, step: int) -> Frame:
    """Features for all docstrings."""
    image = np.full((48, 64, 3), step, np.uint8)
    return {
        "image": image,
        "image_left": image,
        "depth": np.full((48, 64), 900 + step, np.uint16),
        "depth_left": np.full((48, 64), 0.9, np.float32),
        "flow": np.full((48, 64, 2), step / 9, np.float32),
        "pose": rng.normal(size=7),
        **{name: rng.normal(size=7).astype(np.float32) for name in ("state", "action")},
    }


def write(
    folder: Path,
    key: str,
    lengths: Sequence[int],
    make_frame: Callable[[np.random.Generator, int], Frame],
    features: Any = None,
) -> Path:
    rng, camera = np.random.default_rng(0), {"fx": 320, "fy": 320, "cx": 320, "cy": 240}
    with seqrecord.SeqRecordWriter(folder, codecs="fast", fps=30, features=features) as writer:
        for number, length in enumerate(lengths):
            metadata = {"task": "stack", "camera": camera}
            with writer.episode(key.format(number), metadata=metadata) as episode:
                for step in range(length):
                    episode.append(make_frame(rng, step))
    return folder


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("datasets")
    features: dict[str, Any] = {"lidar": {"points": {"shape": (None, 3)}}}
    kinds: dict[str, tuple[str, int, Callable[[np.random.Generator, int], Frame]]] = {
        "robot": ("demo/{:03d}", 40, robot_frame),
        "language": ("demo/{:03d}", 10, language_frame),
        "lidar": ("drive/{:03d}", 40, lidar_frame),
        "gps": ("drive/{:03d}", 40, gps_frame),
        "tartanair": ("abandonedfactory/Easy/P{:03d}", 26, tartanair_frame),
        "more": ("carwelding/Easy/P{:03d}", 3, tartanair_frame),
    }
    found = {
        kind: write(folder / kind, key, (length, length, length, 8), make_frame, features.get(kind))
        for kind, (key, length, make_frame) in kinds.items()
    }
    run_command(f"seqrecord split {folder / 'robot'} train=0.5 val=0.5")
    unpack(folder, "lerobot_v3").rename(folder / "lerobot")
    for name in CAMERAS:
        with_video(folder / "lerobot", (5, 3, 7), name)
    annotate(folder / "lerobot")
    for name, original in {"tartanair": "tartanair", "scene": "colmap", "drive": "bag"}.items():
        place = found[f"{name} cameras"] = folder / f"{name} cameras"
        ORIGINALS[original].write(folder / f"{name} original")
        options = ORIGINALS[original].options
        source = seqrecord.open_source(folder / f"{name} original", **options)
        seqrecord.convert(source, place, workers=1)
    unpack(folder, "lerobot_video_v3").rename(folder / "lerobot video")
    return {**found, "lerobot": folder / "lerobot", "lerobot video": folder / "lerobot video"}


def pages() -> dict[str, str]:
    """Text of README and of each page in docs, by path."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


def blocks_of(text: str) -> Iterator[tuple[str, str]]:
    """Each block's language and its source, at the page's line numbers.

    Blocks of `py` are Python that needs other repositories or data; they are not run.
    """
    for found in re.finditer(r"^```(python|bash)\n(.*?)^```", text, re.M | re.S):
        language, source = found.groups()
        if source.startswith(">>>"):
            source = re.sub(r"^(>>>|\.\.\.) ?", "", source, flags=re.M)
        yield language, "\n" * text[: found.start(2)].count("\n") + source


def run_command(line: str) -> None:
    program, *arguments = shlex.split(line.replace("\\\n", ""), comments=True)
    assert program == "seqrecord"
    made = CliRunner().invoke(main, arguments)
    assert made.exit_code == 0, made.output


def check_comments(source: str, namespace: dict[str, Any]) -> int:
    """Compare `value  # dtype [1, 2]` with the value, outside of loops."""
    hits = re.findall(r'^(batch\["\w+"\])(?:\.shape)?  # (?:(\w+) )?\[([\d, ]+)\]', source, re.M)
    for expression, dtype, shape in hits:
        value = eval(expression, namespace)
        expected = [SIZES.get(size, int(size)) for size in shape.split(", ")]
        assert list(value.shape) == expected, expression
        assert not dtype or str(value.dtype) == f"torch.{dtype}", expression
    return len(hits)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For torch: on a busy machine, several threads mostly wait for each other."""
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
    namespace: dict[str, Any] = {"__name__": __name__, **page.names}
    if page.has_torch:
        namespace |= {"torch": torch, "seqrecord": seqrecord}
    checked = 0
    for language, source in blocks_of(text):
        if language == "bash":
            if page.path in ("docs/recipes.md", "docs/rgbd.md"):
                run_command(source.strip())
            continue
        exec(compile(source, page.path, "exec"), namespace)
        checked += check_comments(source, namespace)
    if page.path == "docs/clips.md":
        assert checked >= 10
    namespace.clear()
    gc.collect()  # ends abandoned loops and their worker processes


def test_every_page_with_python_examples_is_tested() -> None:
    tested = {page.path for page in PAGES} | {
        "docs/from-lerobot.md",  # in test_from_lerobot.py
        "docs/in-place.md",  # in test_indexing.py
        "docs/sampling.md",  # in test_sampling_page.py
        "docs/jax.md",  # below, in separate processes: JAX does not support forks
    }
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    wanted = {
        str(path.relative_to(ROOT))
        for path in pages
        if re.search(r"^```python\n", path.read_text(), re.M)
    }
    # The first page needs a cloud, the second a package with entry points.
    assert wanted - tested <= {"docs/storage.md", "docs/reference/sources.md"}


@pytest.mark.slow
def test_the_multi_gpu_script_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "recipes.md").read_text()
    sources = [source for language, source in blocks_of(text) if language == "python"]
    (script,) = (source for source in sources if "__main__" in source)
    (tmp_path / "make.py").write_text(sources[0])
    (tmp_path / "train.py").write_text(script)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    output = ""
    for arguments in (["make.py"], [*torchrun, "train.py"]):
        output = run_python(*arguments, cwd=tmp_path, environment={"OMP_NUM_THREADS": "1"}).stdout
    lines = sorted(re.findall(r"rank \d: epoch \d, (\d+) batches", output))
    assert len(lines) == 4
    assert len(set(lines)) == 1


@pytest.mark.slow
def test_the_jax_scripts_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    monkeypatch.chdir(tmp_path)
    pages = [(ROOT / "docs" / name).read_text() for name in ("recipes.md", "jax.md")]
    (make, *_), (alone, several) = ([s for _, s in blocks_of(page)] for page in pages)
    exec(compile(make, "docs/recipes.md", "exec"), {})
    connect, address = "jax.distributed.initialize(", f"127.0.0.1:{free_port()}"
    assert f"{connect})" in several
    scripts = [f"{alone}\nassert inputs['action'].shape == (8, 20, 7)"]
    for rank in range(2):
        script = several.replace(connect, f"{connect}{address!r}, 2, {rank}")
        scripts.append(f"{script}\nassert batch['image'].shape == (32, 4, 48, 64, 3)")
    finish([start(["-c", script], JAX_PLATFORMS="cpu") for script in scripts])


# The `Example:` blocks of public docstrings, each in its own folder with the datasets and originals
# of `PREPARED` that it names, such as `"records/"`. Names: `seqrecord`, `np`, `torch`, `Path`,
# `DataLoader` and the example's own object.

MODULES = [  # `make quick` runs the first one
    *(f"seqrecord.{name}" for name in ("edit", "sources", "export", "statistics")),
    *(f"seqrecord.{name}" for name in ("errors", "types", "lerobot")),
    "seqrecord",
]

WITHOUT_EXAMPLE = {
    "seqrecord.errors.SourceError",
    "seqrecord.lerobot.LeRobotDataset",
    "seqrecord.lerobot.LeRobotMixDataset",
    "seqrecord.lerobot.PlannedSampler",
    "seqrecord.lerobot.mark_dataset",
    "seqrecord.sources.unread_files",
}
"""Classes and functions in the pages' Python examples that lack an `Example:`.

Remove names that get one. Add none, except classes that need LeRobot's package.
"""


def write_records(folder: Path, key: str = "demo/{:03d}") -> None:
    write(folder, key, (40,) * 4, small_frame, {"depth": {"kind": "depth", "unit": "mm"}})
    seqrecord.edit.split_dataset(folder, {"train": 0.5, "val": 0.5})


def write_photos(folder: Path) -> None:
    folder.mkdir()
    for number in range(3):
        Image.new("RGB", (64, 48), (number, 90, 90)).save(folder / f"{number:04d}.jpg")


EXAMPLES = {
    **{name: name for name in ("tartanair", "folders", "webdataset", "videos", "hdf5")},
    "lerobot": "lerobot with video",
    "replay.zarr": "zarr 2",
}

PREPARED: Mapping[str, Callable[[Path], object]] = {
    "records": write_records,
    "more-records": lambda folder: write_records(folder, "more/{:03d}"),
    "photos": write_photos,
    **{name: partial(made, name=case) for name, case in EXAMPLES.items()},
    "tum": sequences.write_tum,
    "euroc": sequences.write_euroc,
}
"""Datasets and originals by the folder's name in examples: `"records/"`, `"photos/0001.jpg"`."""


def public_objects(module: str) -> Iterator[tuple[str, Any]]:
    """Names and objects of a public module's `__all__`, only at their first module."""
    names = importlib.import_module(module)
    for name in sorted(names.__all__):
        item = getattr(names, name)
        is_first = module == "seqrecord" or item is not getattr(seqrecord, name, None)
        if is_first and (inspect.isclass(item) or inspect.isfunction(item)):
            yield f"{module}.{name}", item


def docstrings_of(path: str, item: Any) -> Iterator[tuple[str, str]]:
    """Docstrings of an object and of its own public members."""
    yield path, inspect.cleandoc(item.__doc__ or "")
    for name, member in vars(item).items() if inspect.isclass(item) else ():
        text = getattr(getattr(member, "__func__", member), "__doc__", None)
        has_text = inspect.isroutine(member) or isinstance(member, (property, classmethod))
        if has_text and not name.startswith("_") and isinstance(text, str):
            yield f"{path}.{name}", inspect.cleandoc(text)


def examples_of(docstring: str) -> list[str]:
    """The code of each `Example:` block: the indented lines below it."""
    found = re.finditer(r"^( *)Examples?::?\n((?:\1 +\S.*\n|\s*\n)+)", docstring + "\n", re.M)
    return [textwrap.dedent(match[2]) for match in found]


def has_example(path: str, item: Any) -> bool:
    return any(examples_of(text) for _, text in docstrings_of(path, item))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a dataset or an original, written at its first use."""
    root = tmp_path_factory.mktemp("prepared")

    @lru_cache
    def prepared(name: str) -> Path:
        PREPARED[name](root / name)
        (made,) = root.glob(f"{name}*")
        return made

    return prepared


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("module", MODULES)
def test_examples_of_docstrings_run(
    module: str,
    folders: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "home"))
    for path, item in public_objects(module):
        for name, docstring in docstrings_of(path, item):
            for number, source in enumerate(examples_of(docstring)):
                folder = tmp_path / f"{name}.{number}"
                folder.mkdir()
                monkeypatch.chdir(folder)
                for named in re.findall(r'"([\w.-]+)/', source):
                    if named in PREPARED and not (folder / named).exists():
                        shutil.copytree(folders(named), folder / named, copy_function=os.link)
                names = {"seqrecord": seqrecord, "np": np, "torch": torch, "Path": Path}
                names |= {"DataLoader": DataLoader, item.__name__: item, "__name__": __name__}
                exec(compile(source, f"<example of {name}>", "exec"), names)
                names.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # for an `open` without close
        gc.collect()


def test_objects_used_in_pages_have_an_example_in_their_docstring() -> None:
    blocks = [block for text in pages().values() for block in blocks_of(text)]
    used = {word for kind, code in blocks if kind == "python" for word in re.findall(r"\w+", code)}
    missing = {
        path
        for module in MODULES
        for path, item in public_objects(module)
        if path.rpartition(".")[2] in used and not has_example(path, item)
    }
    added, done = sorted(missing - WITHOUT_EXAMPLE), sorted(WITHOUT_EXAMPLE - missing)
    assert not added, "add an `Example:` to these docstrings"
    assert not done, "remove these names from WITHOUT_EXAMPLE"


def test_an_example_of_docstrings_ends_with_its_indentation() -> None:
    docstring = (
        "Open it.\n\nExample:\n    a = 1\n\n    if a:\n        b = 2\n\nArgs:\n    c: text.\n"
    )
    (source,) = examples_of(docstring)
    names: dict[str, Any] = {}
    exec(source, names)
    assert (names["a"], names["b"]) == (1, 2)
