"""The `Example:` blocks of public docstrings run as they are, each in a folder of its own.

An example finds the datasets and originals of `PREPARED` that it names, such as `"records/"`, and
the names `seqrecord`, `np`, `torch`, `Path`, `DataLoader` and its own object. It may write anything
else beside them.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import os
import re
import shutil
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import seqrecord
from tests import originals, source_writers
from tests.language import pages
from tests.test_doc_examples import blocks_of

MODULES = [
    "seqrecord",
    *(f"seqrecord.{name}" for name in ("edit", "sources", "export", "statistics", "storage")),
    *(f"seqrecord.{name}" for name in ("errors", "types", "lerobot")),
]

WITHOUT_EXAMPLE = {
    "seqrecord.errors.SourceError",
    "seqrecord.lerobot.LeRobotDataset",
    "seqrecord.lerobot.LeRobotMixDataset",
    "seqrecord.lerobot.PlannedSampler",
    "seqrecord.lerobot.mark_dataset",
    "seqrecord.lerobot.to_lerobot",
    "seqrecord.sources.unread_files",
}
"""Classes and functions in the Python examples of the pages that lack an `Example:`.

Remove the names that get one. Add none, except of classes that need LeRobot's package.
"""

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def _records(folder: Path, key: str = "demo/{:03d}") -> Path:
    rng = np.random.default_rng(0)
    camera = {"fx": 40, "fy": 40, "cx": 32, "cy": 24}
    features = {"depth": {"kind": "depth", "unit": "mm"}}
    with seqrecord.SeqRecordWriter(folder, codecs="fast", fps=30, features=features) as writer:
        for number in range(4):
            metadata = {"task": "stack", "camera": camera}
            with writer.episode(key.format(number), metadata=metadata) as episode:
                for step in range(40):
                    image = np.full((48, 64, 3), step, np.uint8)
                    frame: dict[str, Any] = {
                        "image": image,
                        "image_left": image,
                        "depth": np.full((48, 64), 900 + step, np.uint16),
                        "depth_left": np.full((48, 64), 0.9, np.float32),
                        "flow": np.full((48, 64, 2), step / 9, np.float32),
                        "pose": rng.normal(size=7),
                        "state": rng.normal(size=7).astype(np.float32),
                        "action": rng.normal(size=7).astype(np.float32),
                    }
                    episode.append(frame)
    seqrecord.edit.split_dataset(folder, {"train": 0.5, "val": 0.5})
    return folder


def _photos(folder: Path) -> Path:
    folder.mkdir()
    for number in range(3):
        Image.new("RGB", (64, 48), (number, 90, 90)).save(folder / f"{number:04d}.jpg")
    return folder


PREPARED: Mapping[str, Callable[[Path], object]] = {
    "records": _records,
    "more-records": lambda folder: _records(folder, "more/{:03d}"),
    "photos": _photos,
    "tartanair": originals.tartanair,
    "folders": originals.folders,
    "webdataset": originals.webdataset,
    "lerobot": originals.lerobot,
    "videos": originals.videos,
    "hdf5": originals.hdf5,
    "replay.zarr": lambda root: originals.zarr_buffer(root, 2),
    "tum": source_writers.write_tum,
    "euroc": source_writers.write_euroc,
}
"""Datasets and originals by the folder's name in examples: `"records/"`, `"photos/0001.jpg"`."""


def public_objects(module: str) -> Iterator[tuple[str, Any]]:
    """Names and objects of a public module's `__all__`, at their first module only."""
    names = importlib.import_module(module)
    for name in sorted(names.__all__):
        item = getattr(names, name)
        is_first = module == "seqrecord" or item is not getattr(seqrecord, name, None)
        if is_first and (inspect.isclass(item) or inspect.isfunction(item)):
            yield f"{module}.{name}", item


def docstrings_of(path: str, item: Any) -> Iterator[tuple[str, str]]:
    """Docstrings of an object and of the public members that its class has itself."""
    yield path, inspect.cleandoc(item.__doc__ or "")
    for name, member in vars(item).items() if inspect.isclass(item) else ():
        text = getattr(getattr(member, "__func__", member), "__doc__", None)
        has_text = inspect.isroutine(member) or isinstance(member, (property, classmethod))
        if has_text and not name.startswith("_") and isinstance(text, str):
            yield f"{path}.{name}", inspect.cleandoc(text)


def examples_of(docstring: str) -> list[str]:
    """The code of each `Example:` block: the lines below it that are indented further."""
    found = re.finditer(r"^( *)Examples?::?\n((?:\1 +\S.*\n|\s*\n)+)", docstring + "\n", re.M)
    return [textwrap.dedent(match[2]) for match in found]


def has_example(path: str, item: Any) -> bool:
    return any(examples_of(text) for _, text in docstrings_of(path, item))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """The folder of a dataset or an original, written at its first use."""
    root, threads = tmp_path_factory.mktemp("prepared"), torch.get_num_threads()
    made: dict[str, Path] = {}

    def prepared(name: str) -> Path:
        if name not in made:
            PREPARED[name](root / name)
            (made[name],) = root.glob(f"{name}*")
        return made[name]

    torch.set_num_threads(1)
    yield prepared
    torch.set_num_threads(threads)


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(
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
                    warnings.simplefilter("ignore", ResourceWarning)  # an `open` left to the end
                    gc.collect()


def test_every_object_of_the_pages_has_an_example() -> None:
    code = "\n".join(
        source
        for text in pages().values()
        for language, source in blocks_of(text)
        if language == "python"
    )
    used = set(re.findall(r"\w+", code))
    lacking = {
        path
        for module in MODULES
        for path, item in public_objects(module)
        if path.rpartition(".")[2] in used and not has_example(path, item)
    }
    added, done = sorted(lacking - WITHOUT_EXAMPLE), sorted(WITHOUT_EXAMPLE - lacking)
    assert not added, "add an `Example:` to these docstrings"
    assert not done, "remove these names from WITHOUT_EXAMPLE"


def test_an_example_ends_with_its_indentation() -> None:
    docstring = (
        "Open it.\n\nExample:\n    a = 1\n\n    if a:\n        b = 2\n\nArgs:\n    c: text.\n"
    )
    (source,) = examples_of(docstring)
    names: dict[str, Any] = {}
    exec(source, names)
    assert (names["a"], names["b"]) == (1, 2)
