"""Names in the lists of originals under which no file system has a file, and names of no files.

They cost the episode that lists them, not the conversion: packed and read in place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

import seqrecord
from seqrecord.errors import NotFoundError, StorageError
from seqrecord.store.storage.local import LocalStorage
from tests.formats.all_cases import CASES, made
from tests.formats.cases import index_source


class Listed(NamedTuple):
    """A list of a case: a pattern of a name in it, and the episode that has the list."""

    case: str
    file: str
    name: bytes
    episode: str


LISTS = [
    Listed("tum", "office/rgb.txt", rb"rgb/1305031102\.033000\.png", "office"),
    Listed("euroc", "b/mav0/cam1/data.csv", rb"(?<=,)1403636579813555584\.png", "b"),
    Listed("rosbag2 of sqlite", "run_1/metadata.yaml", rb"run_1(?=\.db3)", "run_1"),
]
NAMES: dict[str, Callable[[str], str]] = {
    "a long folder": lambda name: f"{'x' * 300}/{name}",
    "a folder": lambda _: "folder",
    "a long name": lambda name: "x" * 300 + Path(name).suffix,
    "a long path": lambda name: "y/" * 3000 + name,
    "a file as folder": lambda name: f"list/{name}",
    "a pipe": lambda _: "pipe",
    "a missing folder": lambda name: f"missing/{name}",
    "a null byte": lambda name: f"\0{name}",
    "a backslash": lambda name: f"a\\{name}",
    "a control character": lambda name: f"a\x01/{name}",
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.slow] * (number > 1))
        for number, kind in enumerate(NAMES)
    ],
)
@pytest.mark.parametrize("listed", LISTS, ids=lambda listed: listed.case)
def test_a_listed_name_costs_its_episode(tmp_path: Path, listed: Listed, kind: str) -> None:
    case, root = CASES[listed.case], made(tmp_path / "original", listed.case)
    path = root / listed.file
    for folder in filter(Path.is_dir, (path.parent, path.parent / "data")):
        (folder / "list").write_text("a file")
        (folder / "folder").mkdir()
        os.mkfifo(folder / "pipe")
    name = re.search(listed.name, data := path.read_bytes())
    assert name is not None
    other = NAMES[kind](name[0].decode())
    if case.source == "McapSource":  # of a path it takes the last part, `other` is YAML
        other = other.replace("/", "x").replace("\\", "x").replace("\0", "x").replace("\x01", "x")
    path.write_bytes(data.replace(name[0], other.encode()))
    source = case.opened(root)
    keys = [info.key for info in source.episodes()]
    assert listed.episode in keys
    good = tuple(key for key in keys if key != listed.episode)
    packed = partial(seqrecord.convert, source, tmp_path / "packed")
    indexed = partial(index_source, source, tmp_path / "index")
    for convert in (packed,) if case.referred is None else (packed, indexed):
        report = convert(workers=1, skip_bad_episodes=True)
        assert (report.written, [bad.key for bad in report.bad]) == (good, [listed.episode])


@pytest.mark.parametrize("path", ["x" * 300, "y/" * 3000 + "y", "file/y", "loop/y"])
def test_a_storage_has_no_file_of_an_impossible_name(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("a file")
    (tmp_path / "loop").symlink_to("loop")
    storage = LocalStorage(tmp_path)
    for look in (storage.size, storage.identity):
        with pytest.raises(NotFoundError):
            look(path)
    with pytest.raises(StorageError):
        storage.put(path, b"", expected=None)
