"""Rooms, floors and imports of the code match CONTRIBUTING.md."""

from __future__ import annotations

import ast
import re
import sys
import threading
from graphlib import TopologicalSorter
from operator import le
from pathlib import Path
from types import CodeType, FrameType
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
    code_line_numbers,
    complexity,
    imported_names,
    line_numbers,
    module_name,
    parse,
)

ROOT = Path(__file__).parents[2]
WITHOUT_TORCH = ("store", "video", "in_place", "cloud", "formats", "tools.edit")
COMPLEX: set[str] = set()
"""Functions with a complexity above 20. Only remove from this list."""

FLAT_PARTS = {"video", "in_place", "cloud", "cuda"}  # each is one room


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
    sizes: dict[str, int]  # lines of code of the module and of its classes, without nested classes
    complexities: dict[str, int]


@pytest.fixture(scope="module")
def files() -> dict[Path, File]:
    """Facts of each file. Syntax trees are not kept: they would slow down garbage collection."""
    return {path: facts(path) for path in PACKAGE.rglob("*.py")}


def facts(path: Path) -> File:
    tree, module = parse(path), module_name(path).removeprefix("seqrecord.")
    lines = code_line_numbers(path.read_text(), tree)
    sizes, complexities = {module: len(lines)}, dict[str, int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            sizes[f"{module}.{node.name}"] = len(lines & {*line_numbers(node)})
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            name = f"{module}.{node.name}"
            complexities[name] = max(complexity(node), complexities.get(name, 0))
    imports = imported_names(tree, in_functions=True, for_types=True)
    return File(imports, [*private_imports(tree)], sizes, complexities)


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


def test_classes_and_modules_are_small(files: dict[Path, File]) -> None:
    """A class of more than 250 lines of code, or a module of more than 500, has a second idea."""
    sizes = {name: lines for file in files.values() for name, lines in file.sizes.items()}
    modules = {module_name(path).removeprefix("seqrecord.") for path in files}
    assert {n for n, lines in sizes.items() if lines > (500 if n in modules else 250)} == set()


def test_functions_are_simple(files: dict[Path, File]) -> None:
    """Complexity is at most 20, except for functions that are listed."""
    complexities = {
        name: count for file in files.values() for name, count in file.complexities.items()
    }
    assert {name for name, count in complexities.items() if count > 20} == COMPLEX


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
print(len([name for name in {*sys.modules} - before if name.startswith("seqrecord")]))
print(*{*sys.argv[2:]} & ({*sys.modules} - before))
import seqrecord.cli
"""
UNUSED = """PIL av dateutil fsspec numpy.ma pandas platformdirs pyarrow.compute pyarrow.parquet
torchdata urllib3 seqrecord.store.reading.index_building seqrecord.store.reading.summary
seqrecord.tools.verify"""


def test_a_first_batch_imports_little(tmp_path: Path) -> None:
    """And prints nothing. Pandas is installed: pyarrow may import it."""
    path, codecs = tmp_path / "records", {"image": "balanced", "id": "raw"}
    with SeqRecordWriter(path, codecs=codecs) as writer, writer.episode("one") as episode:
        for i in range(4):
            episode.append({"image": np.full((8, 8, 3), i, np.uint8), "id": np.array([i])})
    (tmp_path / "pandas.py").touch()
    paths = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = run_python("-c", LOADING, path, *UNUSED.split(), environment=paths)
    count, *rest = done.stdout.splitlines()
    assert int(count) <= 159
    assert (rest, done.stderr) == ([""], "")


def test_originals_are_opened_without_pandas(tmp_path: Path) -> None:
    (tmp_path / "pandas.py").touch()
    code = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{LOADING}"
    done = run_code(code, unpack(tmp_path, "lerobot_video_v3"), "pandas", "pyarrow.compute")
    assert done.stdout.splitlines()[1:] == [""]


class Calls:
    """Functions of the package that are called in a `with` block, in all new threads, and pairs of
    modules of which one calls the other."""

    def __init__(self) -> None:
        self.functions: set[CodeType] = set()
        self.pairs: set[tuple[str, str]] = set()

    def __enter__(self) -> Calls:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            self.functions.add(frame.f_code)
            caller = "" if frame.f_back is None else frame.f_back.f_code.co_filename
            if caller.startswith(str(PACKAGE)) and caller != frame.f_code.co_filename:
                self.pairs.add((caller, frame.f_code.co_filename))


def test_preparation_goes_one_way(path: Path) -> None:
    """From options over the selection and the plan to the loader, with few functions."""
    options: dict[str, Any] = {"clip_len": 4, "batch_size": 4}
    next(iter(SeqRecordPipe(path, **options)))  # imports
    with seqrecord.open(path) as dataset, Calls() as made:
        pipe = SeqRecordPipe(dataset, **options)
    assert {pair for pair in made.pairs if pair[::-1] in made.pairs} == set()
    with Calls() as by_path:
        SeqRecordPipe(path, **options)
    with Calls() as first:
        batches = iter(pipe)
        next(batches)
    for _ in range(3):
        next(batches)
    with Calls() as steady:
        next(batches)
    counts = [len(calls.functions) for calls in (made, by_path, first, steady)]
    assert all(map(le, counts, (238, 454, 623, 25))), counts
    assert len({code.co_filename for code in steady.functions}) <= 12


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
