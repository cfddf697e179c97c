"""Modules, tests, names and figures of the documentation exist."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import multiprocessing
import pydoc
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import click
import numpy as np
import pytest

import seqrecord
from seqrecord import LoaderOptions
from seqrecord.cli import main
from seqrecord.store.feature_kinds import KINDS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "seqrecord"
PARTS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
WAYS = {"A frame's way to disk": "write", "A clip's way to a batch": "read"}


def named_modules(heading: str) -> list[str]:
    """Modules in a section of docs/architecture.md, as `part.room.module`."""
    text = ARCHITECTURE[ARCHITECTURE.index(f"## {heading}") + 3 :].partition("\n## ")[0]
    return re.findall(rf"`((?:{'|'.join(PARTS)})(?:\.\w+)+)`", text)


def test_the_architecture_page_lists_parts_and_existing_modules() -> None:
    """Every part, and only modules that exist."""
    for heading in (*WAYS, "Where to change something"):
        assert named_modules(heading)
        for name in named_modules(heading):
            path = PACKAGE / name.replace(".", "/")
            assert path.with_suffix(".py").exists() or path.is_dir(), name
    for part in PARTS:
        assert re.search(rf"^\| `{part}` \|", ARCHITECTURE, re.M), part


def test_paths_in_the_contributors_pages_exist() -> None:
    for page in ("CONTRIBUTING.md", "docs/contributing.md", "docs/architecture.md"):
        text = (ROOT / page).read_text()
        found = re.findall(r"`((?!build/)(?:\w+/)+[\w.-]*\w)`", text)
        for path in found:
            places = [folder / path for folder in (ROOT, PACKAGE, ROOT / "tests")]
            assert any(place.exists() for place in places), f"{page}: {path}"
        assert found


def write_and_read(folder: Path, results: Any) -> None:
    """Put the modules that run while frames are written and while batches are read, by phase."""
    ran: dict[str, set[str]] = {"write": set(), "read": set()}
    phase = "write"

    def watch(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and frame.f_code.co_name != "<module>" and path.is_relative_to(PACKAGE):
            ran[phase].add(".".join(path.relative_to(PACKAGE).with_suffix("").parts))

    threading.setprofile(watch)
    sys.setprofile(watch)
    rng = np.random.default_rng(0)
    with seqrecord.SeqRecordWriter(folder) as writer:
        for number in range(3):
            with writer.episode(f"a/{number}") as episode:
                for _ in range(150):
                    image = rng.integers(0, 255, (48, 64, 3), np.uint8)
                    episode.append({"image": image, "depth": rng.random((48, 64), np.float32)})
    phase = "read"
    list(seqrecord.SeqRecordPipe(folder, clip_len=8, batch_size=4, memory_limit="8MiB"))
    sys.setprofile(None)
    results.put(ran)


@pytest.mark.slow
def test_modules_of_the_write_and_read_paths_run(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    results: Any = fork.Queue()
    process = fork.Process(target=write_and_read, args=(tmp_path / "records", results))
    process.start()
    ran = results.get(timeout=300)
    process.join()
    for heading, phase in WAYS.items():
        elsewhere = {
            "engine.device",
            "reading.frame_cache",
        }  # not run by default, as the list states
        assert set(named_modules(heading)) - elsewhere <= ran[phase]


# The table of guarantees in docs/storage_details.md names existing tests


def test_tests_named_in_the_table_exist() -> None:
    text = (ROOT / "docs/storage_details.md").read_text("utf-8")
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
                [file] = (ROOT / "tests").rglob(name)
                source = file.read_text("utf-8")
            else:
                assert re.search(rf"(def|class) {name}\b", source), f"{number}: {name}"
                names += 1
        assert names, number


# The format

FORMAT = (ROOT / "docs/format.md").read_text("utf-8")


def test_keys_of_a_manifest(tmp_path: Path) -> None:
    """Of a plain dataset: all that docs/format.md has, but for those that may be missing."""
    with seqrecord.SeqRecordWriter(tmp_path / "records") as writer, writer.episode("a") as episode:
        episode.append({"action": np.zeros(2)})
    section = FORMAT.partition("\n## Manifest\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    keys = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    [optional] = re.findall(r"exactly these keys; (.*?) alone may be missing", section)
    manifest = json.loads((tmp_path / "records/manifest.json").read_text("utf-8"))
    assert manifest.keys() == keys - {*re.findall(r"`(\w+)`", optional)}


def test_usual_kinds() -> None:
    [kinds] = re.findall(r"The usual kinds are (.*?);", FORMAT)
    assert sorted(re.findall(r"`(\w+)`", kinds)) == sorted(KINDS)


# Public names: of the root and of its public modules, all described in docs/reference

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
USERS = [page for page in PAGES if page.name not in ("architecture.md", "format.md")]
DESCRIBED = {
    name
    for page in PAGES
    for name in re.findall(r"^::: (seqrecord[\w.]+)$", page.read_text(), re.MULTILINE)
}
DEEP = re.compile(r"\bseqrecord(?:\.[a-z_]\w*){2,}\.\w+|\bfrom seqrecord(?:\.\w+){2,} import")


def public_object(path: str) -> Any:
    """The object at `seqrecord.name` or `seqrecord.module.name`."""
    value: Any = seqrecord
    for name in path.split(".")[1:]:
        value = getattr(value, name)
    return value


def test_messages_of_the_page_about_imperfect_datasets_exist() -> None:
    page = (ROOT / "docs/lerobot-imperfect.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    messages = [text for row in rows for text in re.findall(r"`([^`]+)`", row[1])]
    assert len(messages) > 8
    begins = [message[:12] for message in messages]  # only modules with one are parsed
    modules = [path.read_text() for path in PACKAGE.rglob("*.py")]
    texts = [
        node.value
        for module in modules
        if any(begin in module for begin in begins)
        for node in ast.walk(ast.parse(module))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    for message in messages:
        assert any(message in text for text in texts), message


def test_claims_of_equality_with_lerobot_name_the_commit_of_the_comparison() -> None:
    """Which `make test-lerobot` compared last."""
    claim = re.compile(r"equal (LeRobot's|those of lerobot)|LeRobot's, bit for|same items, bit for")
    compared = (ROOT / "benchmarks/lerobot/TRAINING.md").read_text()
    [commit] = re.findall(r"differed at (commit `[0-9a-f]{8}`)", compared)
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    lines = [line for page in pages for line in page.read_text().splitlines()]
    claims = [line for line in lines if claim.search(line)]
    assert len(claims) > 5
    for line in claims:
        assert commit in line, line


def test_public_names() -> None:
    """Listed in `__all__` before first use, existing, and described."""
    faces: list[Any] = [seqrecord, seqrecord.edit, seqrecord.export, seqrecord.sources]
    for face in (*faces, seqrecord.samples, seqrecord.types):
        assert dir(face) == sorted(face.__all__)
        assert all(getattr(face, name).__doc__ for name in face.__all__)
    assert seqrecord.__all__ == sorted(seqrecord.__all__)
    for name in set(seqrecord.__all__) - {"__version__"}:
        value = public_object(f"seqrecord.{name}")
        if isinstance(value, type) and issubclass(value, seqrecord.SeqRecordError):
            assert getattr(seqrecord.errors, name) is value
        elif isinstance(value, ModuleType):
            assert any(path.startswith(f"seqrecord.{name}") for path in DESCRIBED), name
        else:
            assert f"seqrecord.{name}" in DESCRIBED
    assert {f"seqrecord.types.{name}" for name in seqrecord.types.__all__} <= DESCRIBED
    for module in ("edit", "export", "lerobot", "samples", "sources", "statistics", "viewer"):
        names = importlib.import_module(f"seqrecord.{module}").__all__
        for name in (name for name in names if not name.isupper()):
            assert {f"seqrecord.{name}", f"seqrecord.{module}.{name}"} & DESCRIBED, name
    for path in ("seqrecord.Reader", "seqrecord.storage", "seqrecord.types.storage"):
        with pytest.raises(AttributeError, match=f"no attribute '{path.rpartition('.')[2]}'"):
            public_object(path)


def test_public_names_have_one_place() -> None:
    """No name is in two public modules, and no object has two names.

    A few errors, to be caught, are in the package as well as in `seqrecord.errors`.
    """
    stems = [file.stem for file in (ROOT / "seqrecord").glob("[a-z]*.py")]
    faces = [seqrecord, *(importlib.import_module(f"seqrecord.{stem}") for stem in stems)]
    places: dict[str, list[str]] = {}
    names: dict[int, set[str]] = {}
    for face in faces:
        for name in getattr(face, "__all__", ()):
            value = getattr(face, name)
            is_error = isinstance(value, type) and issubclass(value, seqrecord.SeqRecordError)
            if isinstance(value, ModuleType) or (is_error and face is seqrecord):
                continue
            places.setdefault(name, []).append(face.__name__)
            if callable(value):
                names.setdefault(id(value), set()).add(name)
    assert len(places) > 100
    assert not {name: modules for name, modules in places.items() if len(modules) > 1}
    assert not [several for several in names.values() if len(several) > 1]


def test_names_of_llms_txt_exist() -> None:
    """Names of the package, arguments of loaders, commands, and pages."""
    text = (ROOT / "llms.txt").read_text()
    for path in re.findall(r"`(seqrecord\.\w+)", text):
        public_object(path)
    rows = re.findall(r"^\| (`\w+`.*?) \|", text, re.M)
    arguments = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert arguments <= {item.name for item in fields(LoaderOptions)}
    assert len(arguments) > 20
    commands = set(re.findall(r"`seqrecord (\w+)", text))
    assert commands <= {*main.list_commands(click.Context(main))}
    assert all((ROOT / page).exists() for page in re.findall(r"\]\(([\w/.-]+)\)", text))


def options_of(command: click.Command | None, *name: str) -> dict[tuple[str, ...], set[str]]:
    """The options of a command, or of each command of a group."""
    assert command is not None
    if not isinstance(command, click.Group):
        return {name: {option for each in command.params for option in each.opts}}
    context, found = click.Context(command), dict[tuple[str, ...], set[str]]()
    for part in command.list_commands(context):
        found |= options_of(command.get_command(context, part), *name, part)
    return found


def test_commands_in_pages_have_these_options() -> None:
    options, found = options_of(main), 0
    for page in (*PAGES, ROOT / "llms.txt"):
        for line in re.findall(r"^(?:\$ )?seqrecord (\w[^`#\n]*)", page.read_text(), re.M):
            words = tuple(line.split())
            known = options.get(words[:2]) or options.get(words[:1])
            if page.name == "licences.md":  # sentences
                continue
            assert known is not None, f"{page.name}: {line}"
            given = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert given <= known, f"{page.name}: {line}"
            found += 1
    assert found > 50


def test_options_of_commands_are_in_pages() -> None:
    """Except general ones; `--help` has all."""
    text = "\n".join(page.read_text() for page in PAGES)
    shown = {*re.findall(r"--[a-z][a-z-]*", text)}
    known = {"--debug", "--quiet", "--output", "--start", "--chunk-frames"}
    for command, options in options_of(main).items():
        missing = {option for option in options if option.startswith("--")} - shown
        assert missing <= known, command


def test_described_names() -> None:
    """They exist, with at most one module between the package and a name."""
    for page in USERS:
        assert not DEEP.search(page.read_text()), page
    for path in DESCRIBED:
        module, _, name = path.rpartition(".")
        assert path == "seqrecord.errors" or name in importlib.import_module(module).__all__
        for text in docstrings(public_object(path)):
            assert not DEEP.search(text), path


def docstrings(value: Any) -> Iterator[str]:
    """Docstrings of a class and its public methods, or of a function; a type has none."""
    if isinstance(value, type):
        for name, member in vars(value).items():
            if not name.startswith("_"):
                yield inspect.getdoc(member) or ""
    if inspect.isroutine(value) or isinstance(value, (type, ModuleType)):
        yield inspect.getdoc(value) or ""


def test_values_in_comments_of_examples_are_values_of_the_api() -> None:
    """`stopping_strategy=20,  # …; or "first_exhausted"`: the docstring or type has the value."""
    package = "\n".join(path.read_text() for path in (ROOT / "seqrecord").rglob("*.py"))
    unknown, found = [], 0
    for page in PAGES:
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S):
            for name, comment in re.findall(r"\b(\w+)=[^\n]*?  # ([^\n]*)", block):
                for value in re.findall(r'(?<!\w)"(\w+)"(?!:)', comment):
                    found += 1
                    near = rf'\b{name}\b.{{0,800}}(?<!\w)"{value}"'
                    if not re.search(near, package, re.S):
                        unknown.append(f"{page.name}: {name}={value!r}")
    assert found, "no value in a comment"
    assert not unknown


def test_the_help_of_a_dataset_has_public_members_only() -> None:
    public = {name for name in vars(seqrecord.Dataset) if not name.startswith("_")}
    assert public == {
        *(
            "bad_episodes",
            "close",
            "dictionaries",
            "episodes",
            "features",
            "find_episodes",
            "fingerprint",
            "num_frames",
            "schema",
        ),
        *("compute_statistics", "inventories", "renamed", "resized", "select", "splits"),
        *("statistics", "url", "version"),
    }
    text = pydoc.plain(pydoc.render_doc(seqrecord.Dataset))
    for name in public:
        assert re.search(rf"^ \|  {name}\b", text, re.MULTILINE), name
        assert vars(seqrecord.Dataset)[name].__doc__
    assert "contents" not in text
