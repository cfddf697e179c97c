"""Rooms, floors and imports of the code match CONTRIBUTING.md."""

from __future__ import annotations

import ast
import re
import sys
from graphlib import TopologicalSorter
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pytest

import seqrecord
from seqrecord import SeqRecordPipe, SeqRecordWriter
from tests.kit.lerobot_video_data import unpack
from tests.kit.processes import run_code, run_python
from tests.project.private_names import private_imports
from tests.project.source_code import (
    PACKAGE,
    PUBLIC_FILES,
    imported_names,
    module_name,
    parse,
)

ROOT = Path(__file__).parents[2]
WITHOUT_TORCH = ("store", "companions", "video", "in_place", "cloud", "formats", "tools.edit")
FLAT_PARTS = {
    "camera",
    "companions",
    "frame_cache",
    "recipes",
    "video",
    "in_place",
    "cloud",
    "cuda",
}  # each is one room


def rooms() -> dict[str, int]:
    """Room to floor, from CONTRIBUTING.md's table."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| (\d) \| ([^|]+) \|", text, re.MULTILINE)
    return {
        room: int(floor) for floor, names in rows for room in re.findall(r"`(\w+\.\w+)`", names)
    }


def room_of(name: str) -> str:
    """The room of `seqrecord.x.y.z`: a folder of a part, or the part itself for a loose module."""
    parts = name.split(".")[1:]
    if parts[0] in {"errors", "version"}:
        return "store"
    is_folder = len(parts) > 1 and (PACKAGE / parts[0] / parts[1]).is_dir()
    return f"{parts[0]}.{parts[1]}" if is_folder and parts[0] not in FLAT_PARTS else parts[0]


FILES = sorted(
    path
    for path in PACKAGE.rglob("*.py")
    if path not in {PACKAGE / f"{n}.py" for n in PUBLIC_FILES}
)


class File(NamedTuple):
    imports: set[str]
    private_imports: list[str]


@pytest.fixture(scope="module")
def files() -> dict[Path, File]:
    """Facts of each file. Syntax trees are not kept: they would slow down garbage collection."""
    trees = ((path, parse(path)) for path in PACKAGE.rglob("*.py"))
    return {
        path: File(
            imported_names(tree, in_functions=True, for_types=True), [*private_imports(tree)]
        )
        for path, tree in trees
    }


def test_imports_point_down_and_torch_is_imported_from_the_engine_up(
    files: dict[Path, File],
) -> None:
    """Every room has a floor. Imports of other parts are checked by `test_parts`. Writing and
    inspecting datasets does not import torch.
    """
    floor = rooms()
    inside = {room_of(module_name(path)) for path in FILES}
    assert {room for room in inside if "." in room} == set(floor)
    for path in FILES:
        own = room_of(module_name(path))
        part = own.partition(".")[0]
        for name in files[path].imports:
            if name.split(".")[0] in ("torch", "torchdata"):
                assert part not in WITHOUT_TORCH, path
                assert own not in WITHOUT_TORCH, path
            elif name.startswith("seqrecord.") and (room := room_of(name)) != own:
                is_same_part = room.partition(".")[0] == part
                if is_same_part and path.name != "recorder.py":
                    assert floor.get(room, -1) < floor.get(own, -1), f"{path} imports {room}"
            elif path.name != "__init__.py":
                assert name != f"seqrecord.{own}", f"{path}: modules import each other, not it"


def test_modules_import_each_other_in_one_direction(files: dict[Path, File]) -> None:
    """Also by imports inside functions, and by those of type checkers."""
    modules = {module_name(path): path for path in FILES}
    graph = {name: files[path].imports & {*modules} for name, path in modules.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError


WRITING = "seqrecord.tools.cli.packing, seqrecord.store.writing.writer"
INSPECTING = "seqrecord.tools.cli.commands, seqrecord.tools.cli.exporting"
VIDEO = "seqrecord.store.codecs.chain, seqrecord.video.pages"
SLOW = "av fsspec urllib3 PIL pyarrow.parquet pyarrow.compute seqrecord.store.reading.dataset"


def test_slow_packages_are_not_imported() -> None:
    """Packages that a writer on a local disk does not need; nothing is printed."""
    code = f"import sys, {WRITING}; print(*set({SLOW.split()}) & sys.modules.keys())\n"
    packages = ["torch", "matplotlib", "av"]
    code += f"import {INSPECTING}, {VIDEO}; print(*set({packages}) & sys.modules.keys())"
    done = run_python("-c", code)
    assert (done.stdout, done.stderr) == ("\n\n", "")


LOADING = """
import sys
import torch

before = {*sys.modules}
import seqrecord

with seqrecord.open(sys.argv[1]) as dataset:
    pipe = seqrecord.SeqRecordPipe(dataset, clip_len=2, batch_size=2)
    next(iter(pipe))
    pipe.state_dict()
print(*{*sys.argv[2:]} & ({*sys.modules} - before))
import seqrecord.cli
"""
UNUSED = """PIL av dateutil fsspec numpy.ma pandas platformdirs pyarrow.compute pyarrow.parquet
torchdata urllib3 seqrecord.camera seqrecord.companions seqrecord.frame_cache seqrecord.recipes
seqrecord.store.reading.index_building seqrecord.store.reading.summary seqrecord.tools"""


def test_a_first_batch_imports_little(tmp_path: Path) -> None:
    """And prints nothing. Pandas is installed: pyarrow may import it."""
    path, codecs = tmp_path / "records", {"image": "balanced", "id": "raw"}
    with SeqRecordWriter(path, codecs=codecs) as writer, writer.episode("one") as episode:
        for i in range(4):
            episode.append({"image": np.full((8, 8, 3), i, np.uint8), "id": np.array([i])})
    (tmp_path / "pandas.py").touch()
    paths = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = run_python("-c", LOADING, path, *UNUSED.split(), environment=paths)
    assert (done.stdout, done.stderr) == ("\n", "")


def test_originals_are_opened_without_pandas(tmp_path: Path) -> None:
    (tmp_path / "pandas.py").touch()
    code = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{LOADING}"
    done = run_code(code, unpack(tmp_path, "lerobot_video_v3"), "pandas", "pyarrow.compute")
    assert done.stdout == "\n"


class Calls:
    """Pairs of modules of the package of which one calls the other in a `with` block."""

    def __init__(self) -> None:
        self.pairs: set[tuple[str, str]] = set()

    def __enter__(self) -> Calls:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            caller = "" if frame.f_back is None else frame.f_back.f_code.co_filename
            if caller.startswith(str(PACKAGE)) and caller != frame.f_code.co_filename:
                self.pairs.add((caller, frame.f_code.co_filename))


def test_preparation_goes_one_way(path: Path) -> None:
    """From options over the selection and the plan to the loader: no module calls its caller."""
    options: dict[str, Any] = {"clip_len": 4, "batch_size": 4}
    next(iter(SeqRecordPipe(path, **options)))  # imports
    with seqrecord.open(path) as dataset, Calls() as made:
        SeqRecordPipe(dataset, **options)
    assert made.pairs
    assert {pair for pair in made.pairs if pair[::-1] in made.pairs} == set()


def test_no_private_module_of_torch_is_imported(files: dict[Path, File]) -> None:
    for code in (
        "import torch._C",
        "def f(): from torch.utils.data import _utils",
        "importlib.import_module('torchdata.nodes._x')",
    ):
        assert list(private_imports(ast.parse(code)))
    assert not [
        (path, file.private_imports) for path, file in files.items() if file.private_imports
    ]
