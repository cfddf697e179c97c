"""Finding original files in a tree: whether there is one, and which there are."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from seqrecord.errors import SourceError
from seqrecord.sources.files import list_folder

__all__ = [
    "MAX_DEPTH",
    "find_files",
    "find_folders",
    "has_file",
    "has_folder",
    "key_of",
    "natural_order",
]

MAX_DEPTH = 32  # a link that leads back up would never end

_DIGITS = re.compile(r"(\d+)", re.ASCII)
_QUICK = 10_000  # entries of folders that are looked at to see which format fits


def has_file(root: Path, fits: Callable[[Path], bool]) -> bool:
    """Whether a file that `fits` is `root`, or is among the first entries of the tree below it.

    Folders near the root are looked at first, and ten thousand entries in all: whether a format
    fits must not take a walk over millions of files.
    """
    if root.is_file():
        return fits(root)
    looked = 0
    waiting = deque([root])
    while waiting:
        folder = waiting.popleft()
        for name, is_folder in list_folder(folder):
            looked += 1
            if looked > _QUICK:
                return False
            if is_folder:
                waiting.append(folder / name)
            elif fits(folder / name):
                return True
    return False


def has_folder(root: Path, fits: Callable[[set[str]], bool]) -> bool:
    """As `has_file`, of a folder whose names of files and folders fit."""
    looked = 0
    waiting = deque([root] if root.is_dir() else [])
    while waiting:
        folder = waiting.popleft()
        names: dict[str, bool] = {}
        for name, is_folder in list_folder(folder):
            looked += 1
            if looked > _QUICK:
                break
            names[name] = is_folder
        if fits(set(names)):
            return True
        if looked > _QUICK:
            return False
        waiting.extend(folder / name for name, is_folder in names.items() if is_folder)
    return False


def find_folders(root: Path, fits: Callable[[set[str]], bool]) -> list[Path]:
    """All folders from `root` down whose names of files and folders fit, in the order of paths.

    Nothing is looked for inside of those.
    """
    found: list[Path] = []
    waiting = deque([(root, 0)])
    while waiting:
        folder, depth = waiting.popleft()
        if depth > MAX_DEPTH:
            raise _too_deep(folder)
        names = dict(list_folder(folder))
        if fits(set(names)):
            found.append(folder)
        else:
            waiting.extend((folder / n, depth + 1) for n, is_folder in names.items() if is_folder)
    return sorted(found, key=lambda path: [natural_order(part) for part in path.parts])


def find_files(root: Path, fits: Callable[[Path], bool]) -> list[Path]:
    """All files that fit below `root`, or itself, in the order of their paths and numbers."""
    found = [root] if root.is_file() and fits(root) else []
    if root.is_dir():
        found.extend(_walk(root, fits, 0))
    return sorted(found, key=lambda path: [natural_order(part) for part in path.parts])


def key_of(path: Path, root: Path, *, ending: bool = False) -> str:
    """An episode's key: its path below `root`, without the file's ending unless it is asked for."""
    named = path if ending or not path.suffix else path.with_suffix("")
    return named.relative_to(root if root != path else root.parent).as_posix()


def natural_order(name: str) -> tuple[list[tuple[int, str]], str]:
    """Sorts `frame_2` before `frame_10`, and is a total order."""
    parts = _DIGITS.split(name)
    return [(int(part), "") if i % 2 else (0, part) for i, part in enumerate(parts)], name


def _walk(folder: Path, fits: Callable[[Path], bool], depth: int) -> Iterator[Path]:
    if depth > MAX_DEPTH:
        raise _too_deep(folder)
    for name, is_folder in list_folder(folder):
        if is_folder:
            yield from _walk(folder / name, fits, depth + 1)
        elif fits(folder / name):
            yield folder / name


def _too_deep(folder: Path) -> SourceError:
    return SourceError(
        "folders nested too deeply", file=str(folder), expected=f"at most {MAX_DEPTH} levels"
    )
