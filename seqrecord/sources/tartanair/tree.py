"""Find TartanAir trajectories by the names of folders and files, at any depth."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from seqrecord.originals.files import list_folder
from seqrecord.sources.common.originals import by_key, check_depth, has_file, key_of
from seqrecord.sources.folders.exported import DESCRIPTION
from seqrecord.sources.tartanair.layout import LAYOUTS, PixelFiles, TartanAirLayout

DIFFICULTIES = {"Easy": "Easy", "Hard": "Hard", "Data_easy": "Easy", "Data_hard": "Hard"}
"""Difficulty by folder name."""

_TRAJECTORY = re.compile(r"P\d+", re.ASCII)
_POSES = frozenset(file for layout in LAYOUTS for *_, file in layout.poses)


@dataclass(frozen=True)
class Trajectory:
    """A trajectory's folder. `entries` are all names in it, `folders` those of folders.

    `layout` is `None` if no version matches.
    """

    path: Path
    layout: TartanAirLayout | None
    entries: frozenset[str]
    folders: frozenset[str]
    key: str = ""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def difficulty(self) -> str | None:
        return DIFFICULTIES.get(self.path.parent.name)

    @property
    def is_named(self) -> bool:
        """Whether the folder name follows TartanAir's convention."""
        return self.difficulty is not None or bool(_TRAJECTORY.fullmatch(self.name))

    @property
    def environment(self) -> str | None:
        parent = self.path.parent
        return (
            (parent.parent if self.difficulty else parent).name or None if self.is_named else None
        )

    @property
    def pixels(self) -> list[PixelFiles]:
        """Kinds of files of both cameras whose folder exists."""
        pixels = self.layout.pixels if self.layout else ()
        return [files for files in pixels if files.folder in self.entries]

    @property
    def has_files(self) -> bool:
        """Whether files have the names of the layout; folder names alone are not enough.

        Pose files count only if all folders belong to the layout.
        """
        if self.layout is None:
            return False
        if any(has_frames(self, files) for files in self.pixels):
            return True
        return bool(_POSES & self.entries) and self.folders <= {*self.layout.names, "imu"}


def is_tartanair(root: Path) -> bool:
    """Return whether the first entries of the tree contain a file of a trajectory."""
    return has_file(root, _is_of_trajectory)


def find_trajectories(root: Path) -> dict[str, Trajectory]:
    """Return all trajectories by key, sorted by key.

    Trajectories may be at any depth. A folder named P000 without files is a broken trajectory if it
    is below a difficulty's folder, or if it is `root` or directly in `root`. Keys are
    `ENV/Easy/P000` if the folders have such names, `ENV/P000` for a trajectory that is `root` or
    directly in it, and otherwise the path below `root`. Raises `SourceError` for duplicate keys.
    """
    found = [replace(trajectory, key=_key(trajectory, root)) for trajectory in _walk(root, root)]
    found.sort(key=lambda trajectory: trajectory.key)
    by_key((each.key, each.path) for each in found)
    return {trajectory.key: trajectory for trajectory in found}


def open_trajectory(path: Path) -> Trajectory:
    """Return a folder as a trajectory, whatever its content."""
    listed = dict(list_folder(path))
    entries = frozenset(listed)
    folders = frozenset(name for name, is_folder in listed.items() if is_folder)
    fits = [layout for layout in LAYOUTS if not entries.isdisjoint(layout.names)]
    if DESCRIPTION in entries:  # an exported episode with any feature names
        fits = []
    every = [Trajectory(path, layout, entries, folders) for layout in fits]
    sound = [each for each in every if each.has_files] if len(every) > 1 else []
    return (*sound, *every, Trajectory(path, None, entries, folders))[0]


def has_frames(trajectory: Trajectory, files: PixelFiles) -> bool:
    """Return whether any file of this kind exists."""
    if files.folder not in trajectory.folders:
        return False
    names = (name for name, _ in list_folder(trajectory.path / files.folder))
    return any(map(files.pattern.fullmatch, names))


def _walk(path: Path, root: Path, depth: int = 0) -> list[Trajectory]:
    check_depth(path, depth)
    here = open_trajectory(path)
    if here.layout and (here.is_named or here.has_files):
        return [here]
    below = (_walk(path / name, root, depth + 1) for name in sorted(here.folders))
    found = [trajectory for each in below for trajectory in each]
    is_placed = here.difficulty is not None or root in (path, path.parent)
    if not found and is_placed and _TRAJECTORY.fullmatch(here.name):
        return [here]  # an incomplete download: a broken trajectory
    return found


def _key(trajectory: Trajectory, root: Path) -> str:
    path = trajectory.path
    if trajectory.difficulty is not None:
        return "/".join(path.parts[1:][-3:])
    if trajectory.is_named and root in (path, path.parent):
        return "/".join(path.parts[1:][-2:])
    return key_of(path, root, ending=True)


def _is_of_trajectory(path: Path) -> bool:
    """Return whether a file name belongs to a trajectory; pose files also need their folder."""
    folder = path.parent.name
    for layout in LAYOUTS:
        for files in layout.pixels:
            if files.folder == folder and files.pattern.fullmatch(path.name):
                return not any(name == DESCRIPTION for name, _ in list_folder(path.parent.parent))
    return path.name in _POSES and open_trajectory(path.parent).has_files
