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
from tests.project.source_code import Module, imported_names, module_name, parse

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "seqrecord"


BASE = "loose modules"
WITHOUT_TORCH = ("writing", "sources", "indexing", "edit", "export")


def rooms() -> dict[str, tuple[int, str]]:
    """Room to floor and part, from CONTRIBUTING.md's table."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| (\d) \| ([^|]+) \| ([^|]+) \|", text, re.MULTILINE)
    return {BASE: (-1, "core")} | {
        name: (int(floor), part)
        for floor, names, part in rows
        for name in re.findall(r"`(\w+)`", names)
    }


def room_of(name: str) -> str:
    """The room of `seqrecord.x.y`; modules outside of rooms are on the lowest floor."""
    top = name.split(".")[1]
    return top if (PACKAGE / top).is_dir() else BASE


FILES = sorted(
    path
    for path in PACKAGE.rglob("*.py")
    if path not in {PACKAGE / f"{name}.py" for name in ("__init__", "__main__", "samples", "types")}
)


class File(NamedTuple):
    imports: set[str]
    private_imports: list[str]
    module: Module


@pytest.fixture(scope="module")
def files() -> dict[Path, File]:
    """Imports of each file. Syntax trees are not kept: they would slow down garbage collection."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        tree = parse(path)
        imports = imported_names(tree, in_functions=True, for_types=True)
        found[path] = File(imports, [*private_imports(tree)], Module.of(path, tree))
    return found


def test_imports_point_down_and_torch_is_imported_from_the_engine_up(
    files: dict[Path, File],
) -> None:
    """Every room has a floor; the core imports no area. Writing and inspecting datasets does not
    import torch.
    """
    floor = {name: floor for name, (floor, _) in rooms().items()}
    core = {name for name, (_, part) in rooms().items() if part == "core"}
    assert {room_of(module_name(path)) for path in FILES} == set(floor)
    for path in FILES:
        own = room_of(module_name(path))
        for name in files[path].imports:
            other = room_of(name) if name.startswith("seqrecord.") else None
            if name.split(".")[0] in ("torch", "torchdata"):
                assert floor[own] >= floor["engine"], path
                assert own not in WITHOUT_TORCH, path
            elif other == own:
                whole = path.name != "__init__.py" and name == f"seqrecord.{own}"
                assert not whole, f"{path}: a room's modules import each other, not it"
            elif name.split(".")[0] == "seqrecord":
                assert other is not None, f"{path} imports the package root"
                assert floor[other] < floor[own], f"{path} imports {other}"
                assert own not in core or other in core, f"{path} imports the area of {other}"


def test_modules_import_each_other_in_one_direction(files: dict[Path, File]) -> None:
    """Also by imports inside functions, and by those of type checkers."""
    modules = {module_name(path): path for path in FILES}
    graph = {name: files[path].imports & {*modules} for name, path in modules.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError


WRITING = "seqrecord.cli.packing, seqrecord.writing.writer"
INSPECTING = "seqrecord.cli.commands, seqrecord.cli.exporting"
VIDEO = "seqrecord.codecs.chain, seqrecord.format.video_pages"
SLOW = "av fsspec urllib3 PIL pyarrow.parquet pyarrow.compute seqrecord.reading.dataset"


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
UNUSED = """PIL av dateutil fsspec pandas platformdirs pyarrow.compute pyarrow.parquet torchdata
urllib3 seqrecord.reading.index_building seqrecord.reading.summary seqrecord.reading.verify"""


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
    assert int(count) <= 157
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
    assert all(map(le, counts, (362, 570, 620, 28))), counts
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
