"""What the documentation says of the package is there, and it is said in plain words."""

from __future__ import annotations

import importlib
import inspect
import json
import pydoc
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import seqrecord

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "seqrecord"
ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
WAYS = {"A frame's way to disk": "write", "A clip's way to a batch": "read"}
"""By heading: what `modules_that_run` calls the way."""


def named_modules(heading: str) -> list[str]:
    """What docs/architecture.md names below a heading, as `room.module`."""
    text = ARCHITECTURE[ARCHITECTURE.index(f"## {heading}") + 3 :].partition("\n## ")[0]
    return re.findall(rf"`((?:{'|'.join(ROOMS)})(?:\.\w+)+)`", text)


def test_the_map_shows_what_is_there() -> None:
    """Every room, modules that are there, and a glossary that is short."""
    for heading in (*WAYS, "Where to change something"):
        assert len(named_modules(heading)) >= 12
        for name in named_modules(heading):
            path = PACKAGE / name.replace(".", "/")
            assert path.with_suffix(".py").exists() or path.is_dir(), name
    for room in ROOMS:
        assert re.search(rf"│ {room} ", ARCHITECTURE), room
    glossary = ARCHITECTURE[ARCHITECTURE.index("## Glossary") :]
    terms = re.findall(r"^\| (\w[\w ]*) \|", glossary, re.M)
    assert terms[0] == "term"
    assert len(terms) - 1 <= 25


@pytest.mark.slow
def test_the_modules_on_the_two_ways_run_there(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.modules_that_run", str(tmp_path / "records")]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    ran = json.loads(done.stdout)
    for heading, phase in WAYS.items():
        elsewhere = {"engine.device"}  # what the list itself says
        assert set(named_modules(heading)) - elsewhere <= set(ran[phase])


def test_figures_are_measured_ones() -> None:
    """Of loaders and trainings in docs/performance.md, and the first one of README.md."""
    benchmarks, table = ROOT / "benchmarks", (ROOT / "docs" / "performance.md").read_text()
    measured = (benchmarks / "tartanair" / "RESULTS.md").read_text()
    figure = r"([\d.]+)"
    loaders = re.findall(
        rf"^\| `([\w-]+)` \| (.*?) \| {figure} \| {figure} \| {figure} \|$", table, re.M
    )
    assert len(loaders) > 5
    for loader, settings, clips, rate, share in loaders:
        start = re.escape(f"| {loader} | {settings} | {clips} | {rate} |")
        assert re.search(rf"^{start}.*\| copy \| {share} \|$", measured, re.M), loader

    measured = (benchmarks / "training" / "RESULTS.md").read_text()
    parts = {part.partition("\n")[0]: part for part in measured.split("\n## ")[1:]}
    figures = r"([\d.]+ \| \d+ \| [\d.]+)"
    rows = re.findall(rf"^\| (\w+) \| ([\w, ]+) \| {figures} \| {figures} \|$", table, re.M)
    assert len(rows) > 5
    for training, loader, *both in rows:
        for step, figure in zip(("8 ms", "25 ms"), both, strict=True):
            start = rf"\| {step} \| warm \| {loader} \| [\d.]+ \| {re.escape(figure)} \|"
            assert re.search(rf"^{start}", parts[training], re.M), (training, loader, step)

    document = json.loads((benchmarks / "training" / "decoded_once.json").read_text())
    text = (ROOT / "README.md").read_text().partition("<!-- decoded once -->")[2]
    lines = text.strip().partition("<!--")[0].splitlines()[2:]
    for line, loader in zip(lines, ("lerobot", "webdataset", "seqrecord"), strict=True):
        [run] = document["rows"][f"480x640 at 224/{loader}"]
        assert re.findall(r"([\d.]+) \(([\d,]+)\)", line) == [
            (f"{run['epochs'][i]['cpu_seconds']:.2f}", f"{run['epochs'][i]['decoded']:,}")
            for i in (0, 1, 9)
        ]


# The table of promises in docs/storage_details.md names tests that are there

TESTS = Path(__file__).parent


def test_the_tests_that_the_table_names_are_there() -> None:
    text = (TESTS.parent / "docs/storage_details.md").read_text("utf-8")
    table, _, rest = text.partition("## Guarantees of each storage")[2].partition(
        "The tests that show it:"
    )
    lines = re.findall(r"^(\d+)\. (.*)$", rest.partition("**How")[0], re.MULTILINE)
    marks = {mark for group in re.findall(r"\((\d[\d, ]*)\)", table) for mark in group.split(", ")}
    assert marks == {number for number, _ in lines}
    for number, line in lines:
        source, names = "", 0
        for name in re.findall(r"`(\w+(?:\.py)?)`", line):
            if name.endswith(".py"):
                source = (TESTS / name).read_text("utf-8")
            else:
                assert re.search(rf"(def|class) {name}\b", source), f"{number}: {name}"
                names += 1
        assert names, number


# What is public: the root's names and those of its faces, all described in docs/reference

REPO = Path(seqrecord.__file__).parents[1]
PAGES = [REPO / "README.md", *sorted((REPO / "docs").rglob("*.md"))]
USERS = [page for page in PAGES if page.name not in ("architecture.md", "format.md")]
DESCRIBED = {
    name
    for page in PAGES
    for name in re.findall(r"^::: (seqrecord[\w.]+)$", page.read_text(), re.MULTILINE)
}
DEEP = re.compile(r"\bseqrecord(?:\.[a-z_]\w*){2,}\.\w+|\bfrom seqrecord(?:\.\w+){2,} import")


def found(path: str) -> Any:
    """What lies at `seqrecord.name` or `seqrecord.module.name`."""
    value: Any = seqrecord
    for name in path.split(".")[1:]:
        value = getattr(value, name)
    return value


def test_the_root_is_small() -> None:
    assert len(seqrecord.__all__) < 60
    assert seqrecord.__all__ == sorted(seqrecord.__all__)
    assert set(seqrecord.__all__) <= set(dir(seqrecord))
    with pytest.raises(AttributeError, match="no attribute 'Reader'"):
        found("seqrecord.Reader")


def test_every_name_is_described() -> None:
    for name in set(seqrecord.__all__) - {"__version__"}:
        value = found(f"seqrecord.{name}")
        assert value.__doc__, name
        if isinstance(value, type) and issubclass(value, seqrecord.SeqRecordError):
            assert getattr(seqrecord.errors, name) is value
        elif isinstance(value, ModuleType):
            assert any(path.startswith(f"seqrecord.{name}") for path in DESCRIBED), name
        else:
            assert f"seqrecord.{name}" in DESCRIBED
    for name in seqrecord.types.__all__:
        assert f"seqrecord.types.{name}" in DESCRIBED
        assert getattr(seqrecord.types, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'storage'"):
        found("seqrecord.types.storage")


def test_what_is_described_is_there() -> None:
    for path in DESCRIBED:
        module, _, name = path.rpartition(".")
        if path != "seqrecord.errors":
            assert name in importlib.import_module(module).__all__
            found(path)


def test_at_most_one_module_lies_between_the_package_and_a_name() -> None:
    for page in USERS:
        assert not DEEP.search(page.read_text()), page
    for path in DESCRIBED:
        for text in docstrings(found(path)):
            assert not DEEP.search(text), path


def docstrings(value: Any) -> Iterator[str]:
    """Those of a class, of its public methods, or of a function; a type has none."""
    if isinstance(value, type):
        for name, member in vars(value).items():
            if not name.startswith("_"):
                yield inspect.getdoc(member) or ""
    if inspect.isroutine(value) or isinstance(value, (type, ModuleType)):
        yield inspect.getdoc(value) or ""


def test_the_help_of_a_dataset_has_what_a_user_needs_and_no_internals() -> None:
    public = {name for name in vars(seqrecord.Dataset) if not name.startswith("_")}
    assert public == {
        *("close", "episodes", "features", "find_episodes", "fingerprint", "num_frames", "schema"),
        *("compute_statistics", "inventories", "renamed", "resized", "select", "splits"),
        *("statistics", "url", "version"),
    }
    text = pydoc.plain(pydoc.render_doc(seqrecord.Dataset))
    for name in public:
        assert re.search(rf"^ \|  {name}\b", text, re.MULTILINE), name
        assert vars(seqrecord.Dataset)[name].__doc__
    assert "contents" not in text


@pytest.mark.parametrize(
    "face",
    [
        *(seqrecord, seqrecord.edit, seqrecord.export),
        *(seqrecord.sources, seqrecord.storage, seqrecord.types),
    ],
)
def test_a_face_lists_its_names_before_they_are_used(face: ModuleType) -> None:
    assert dir(face) == sorted(face.__all__)
    assert all(getattr(face, name).__doc__ for name in face.__all__)
