"""Finding TartanAir's trajectories in a folder tree."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from seqrecord.errors import SourceError
from seqrecord.sources.exported import DESCRIPTION
from seqrecord.sources.files import is_directory, list_folder
from seqrecord.sources.tartanair_layout import LAYOUTS, Layout, PixelFiles

__all__ = ["DIFFICULTIES", "Trajectory", "find_trajectories", "trajectory_of"]

DIFFICULTIES = {"Easy": "Easy", "Hard": "Hard", "Data_easy": "Easy", "Data_hard": "Hard"}
"""Difficulty by the name of its folder."""

_TRAJECTORY = re.compile(r"P\d+", re.ASCII)


@dataclass(frozen=True)
class Trajectory:
    """One trajectory's folder. `entries` are the names in it, `layout` is `None` if none fits."""

    path: Path
    layout: Layout | None
    entries: frozenset[str]

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def difficulty(self) -> str | None:
        return DIFFICULTIES.get(self.path.parent.name)

    @property
    def environment(self) -> str | None:
        parent = self.path.parent
        return (parent.parent if self.difficulty else parent).name or None

    @property
    def key(self) -> str:
        """`ENV/Easy/P000`, whichever of these folders the source begins at."""
        return "/".join(_key_parts(self.path))

    @property
    def pixels(self) -> list[PixelFiles]:
        """The kinds of files whose folder is there, of both cameras."""
        pixels = self.layout.pixels if self.layout else ()
        return [files for files in pixels if files.folder in self.entries]


def find_trajectories(root: Path) -> list[Trajectory]:
    """All trajectories in order of their keys; none if `root` is no such tree.

    `root` may hold environments (each perhaps in a folder of the same name again, as the original
    zip files have it), or be an environment, a difficulty or a trajectory.
    """
    found = sorted(_walk(root), key=lambda trajectory: trajectory.key)
    for one, other in pairwise(found):
        if one.key == other.key:
            raise SourceError(
                "two folders hold the same trajectory",
                file=str(one.path),
                episode=one.key,
                got=str(other.path),
            )
    return found


def trajectory_of(root: Path, key: str) -> Trajectory:
    """The trajectory named `key` below `root`, found without walking the tree."""
    parts = key.split("/")
    tails = [parts[len(parts) - depth :] for depth in range(len(parts) + 1)]
    for tail in (*tails, [parts[0], *parts]):  # the last one: ENV/ENV/Easy/P000
        path = root.joinpath(*tail)
        if list(_key_parts(path)) == parts and ".." not in parts and is_directory(path):
            return _open(path)
    raise SourceError("no such trajectory", file=str(root), episode=key)


def _walk(root: Path) -> Iterator[Trajectory]:
    here = _open(root)
    if here.layout:
        yield here
        return
    folders = _folders(root)
    if root.name in DIFFICULTIES:
        yield from _in_difficulty(root, folders)
    elif not DIFFICULTIES.keys().isdisjoint(folders):
        yield from _in_environment(root, folders)
    elif any(map(_TRAJECTORY.fullmatch, folders)):
        yield from _in_difficulty(root, folders)
    else:
        for name in folders:
            yield from _in_environment(root / name, _folders(root / name))


def _in_environment(path: Path, folders: Sequence[str]) -> Iterator[Trajectory]:
    if path.name in folders:
        yield from _in_environment(path / path.name, _folders(path / path.name))
    for name in folders:
        if name in DIFFICULTIES:
            yield from _in_difficulty(path / name, _folders(path / name))


def _in_difficulty(path: Path, folders: Sequence[str]) -> Iterator[Trajectory]:
    for name in folders:
        trajectory = _open(path / name)
        # One that is empty or half downloaded is still an episode: a bad one, not none.
        if trajectory.layout or _TRAJECTORY.fullmatch(name):
            yield trajectory


def _folders(path: Path) -> list[str]:
    return sorted(name for name, is_folder in list_folder(path) if is_folder)


def _open(path: Path) -> Trajectory:
    entries = frozenset(name for name, _ in list_folder(path))
    fits = [layout for layout in LAYOUTS if not entries.isdisjoint(layout.names)]
    if DESCRIPTION in entries:  # an exported episode, whatever its features are called
        fits = []
    return Trajectory(path, fits[0] if fits else None, entries)


def _key_parts(path: Path) -> tuple[str, ...]:
    """Names from the environment on; a nested environment counts once."""
    depth = 3 if path.parent.name in DIFFICULTIES else 2
    return path.parts[1:][-depth:]
