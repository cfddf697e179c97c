"""Find TartanAir trajectories by the names of folders and files, and list their frames' files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.formats.sources.common.originals import check_depth, key_of
from seqrecord.formats.sources.common.tables import read_rows
from seqrecord.formats.sources.folders.exported import DESCRIPTION
from seqrecord.formats.sources.tartanair.layout import LAYOUTS, PixelFiles, TartanAirLayout
from seqrecord.in_place.files import list_folder
from seqrecord.store.processes.forks import cached_property

DIFFICULTIES = {"Easy": "Easy", "Hard": "Hard", "Data_easy": "Easy", "Data_hard": "Hard"}
"""Difficulty by folder name."""

_TRAJECTORY = re.compile(r"P\d+", re.ASCII)
_POSES = frozenset(file for layout in LAYOUTS for file in layout.pose_files)


class FrameIds(NamedTuple):
    """Frames that every folder must have; `origin` names their folder, `first` is a file in it."""

    ids: Sequence[int]
    origin: str
    first: Path | None = None


class Trajectory:
    """A trajectory's folder. `entries` are all names in it, `folders` those of folders.

    `layout` is `None` if no version matches.
    """

    def __init__(self, path: Path) -> None:
        folder_entries = dict(list_folder(path))
        self.path, self.entries = path, frozenset(folder_entries)
        self.folders = frozenset(name for name, is_folder in folder_entries.items() if is_folder)
        self._files: dict[PixelFiles, dict[int, str]] = {}
        fitting_layouts = [
            layout for layout in LAYOUTS if not self.entries.isdisjoint(layout.names)
        ]
        if DESCRIPTION in self.entries:  # an exported episode with any feature names
            fitting_layouts = []
        sound_layouts = filter(self.has_files, fitting_layouts if len(fitting_layouts) > 1 else ())
        self.layout: TartanAirLayout | None = (*sound_layouts, *fitting_layouts, None)[0]

    @property
    def difficulty(self) -> str | None:
        return DIFFICULTIES.get(self.path.parent.name)

    @property
    def is_named(self) -> bool:
        """Whether the folder name follows TartanAir's convention."""
        return self.difficulty is not None or bool(_TRAJECTORY.fullmatch(self.path.name))

    @property
    def environment(self) -> str | None:
        parent = self.path.parent
        return (
            (parent.parent if self.difficulty else parent).name or None if self.is_named else None
        )

    @property
    def pixels(self) -> list[PixelFiles]:
        """Both cameras' kinds of files whose folder exists."""
        pixels = self.layout.pixels if self.layout else ()
        return [files for files in pixels if files.folder in self.entries]

    def key(self, root: Path) -> str:
        """Return the episode's key.

        It is `ENV/Easy/P000` if the folders have such names, `ENV/P000` for a trajectory that is
        `root` or directly in it, and otherwise the path below `root`.
        """
        if self.difficulty is not None:
            return "/".join(self.path.parts[1:][-3:])
        if self.is_named and root in (self.path, self.path.parent):
            return "/".join(self.path.parts[1:][-2:])
        return key_of(self.path, root, ending=True)

    @property
    def is_sound(self) -> bool:
        """Whether it has files of its layout."""
        return self.layout is not None and self.has_files(self.layout)

    def has_files(self, layout: TartanAirLayout) -> bool:
        """Return whether files have the names of the layout; folder names alone are not enough.

        Pose files count only if all folders belong to the layout.
        """
        for files in layout.pixels:
            if files.folder in self.folders:
                names = (name for name, _ in list_folder(self.path / files.folder))
                if any(map(files.pattern.fullmatch, names)):
                    return True
        return bool(_POSES & self.entries) and self.folders <= {*layout.names, "imu"}

    @cached_property
    def frames(self) -> FrameIds:
        """The frames, from the first folder with one file per frame.

        Its feature may be unselected: the frames must not depend on the selected features. Raises
        `SourceError` for no frames and for a gap in the ids.
        """
        frames = self._frames()
        if not frames.ids:
            raise SourceError("trajectory without frames", file=str(self.path))
        for frame, next_frame in pairwise(frames.ids):
            if next_frame != frame + 1:
                raise SourceError(
                    "gap in the frame ids; the download may be incomplete",
                    file=str(self.path),
                    expected=f"frame {frame + 1} {frames.origin}",
                    got=f"frame {next_frame} after {frame}",
                )
        return frames

    def _frames(self) -> FrameIds:
        for files in sorted(self.pixels, key=lambda files: files.between):
            if names := self._names(files):
                ids = list(names)
                if files.between and self._num_poses()[0] != len(ids):
                    ids.append(ids[-1] + 1)
                first_file = self.path / files.folder / names[ids[0]]
                return FrameIds(ids, f"as in {files.folder}/", first_file)
        count, origin = self._num_poses()
        return FrameIds(range(count), origin)

    def _num_poses(self) -> tuple[int, str]:
        """Return the number of lines in the first pose file, and its origin for errors."""
        for file in self.layout.pose_files if self.layout else ():
            if file in self.entries:
                return len(read_poses(self.path / file)), f"as in {file}"
        return 0, ""

    def lacks(self, files: PixelFiles) -> bool:
        """Return whether a folder shared with another feature has only the other feature's files.

        For example, optical flow and its mask share a folder and are downloaded separately.
        """
        neighbours = (neighbour for neighbour in self.pixels if neighbour.folder == files.folder)
        return not self._names(files) and any(map(self._names, neighbours))

    def paths(self, files: PixelFiles) -> list[Path | None]:
        """Return the files of all frames. Raises `SourceError` for missing and additional ones.

        Files between two frames may also exist for the last frame; they refer to a frame that
        TartanAir dropped.
        """
        names, (ids, origin, _) = self._names(files), self.frames
        folder = self.path / files.folder
        expected_ids = ids if not files.between or ids[-1] in names else ids[:-1]
        missing_ids, extra_ids = (
            sorted(set(a).difference(b)) for a, b in ((expected_ids, names), (names, expected_ids))
        )
        if missing_ids or extra_ids:
            span = f"frames {expected_ids[0]} to {expected_ids[-1]}" if expected_ids else "no frame"
            facts = [f"{len(names)} files"]
            facts += [f"frame {missing_ids[0]} missing"] if missing_ids else []
            facts += [f"frame {extra_ids[0]} too many"] if extra_ids else []
            raise SourceError(
                "the features have different frames",
                file=str(folder),
                expected=f"{len(expected_ids)} files, {span}, {origin}",
                got=", ".join(facts),
            )
        return [folder / names[frame] if frame in names else None for frame in ids]

    def _names(self, files: PixelFiles) -> dict[int, str]:
        """Return file names by frame id, ascending; for pairs of frames by the first id."""
        if files not in self._files:
            names: dict[int, str] = {}
            for name, _ in list_folder(self.path / files.folder):
                if (match := files.pattern.fullmatch(name)) is None:
                    continue
                path = str(self.path / files.folder / name)
                frame, *partners = map(int, match.groups())
                if partners and partners[0] != frame + 1:
                    raise SourceError(
                        "the file connects frames that are not consecutive",
                        file=path,
                        expected=f"frames {frame} and {frame + 1}",
                        got=f"{frame} and {partners[0]}",
                    )
                if (earlier_name := names.setdefault(frame, name)) != name:
                    message = "two files have the same frame number"
                    raise SourceError(message, file=path, got=f"{earlier_name} too")
            self._files[files] = dict(sorted(names.items()))
        return self._files[files]


def find_trajectories(path: Path, root: Path, depth: int = 0) -> list[Trajectory]:
    """Return all trajectories from `path` down, which is `root` or below.

    Trajectories may be at any depth. A folder named P000 without files is a broken trajectory if it
    is below a difficulty's folder, or if it is `root` or directly in `root`.
    """
    check_depth(path, depth)
    trajectory = Trajectory(path)
    if (trajectory.layout and trajectory.is_named) or trajectory.is_sound:
        return [trajectory]
    subfolder_groups = (
        find_trajectories(path / name, root, depth + 1) for name in sorted(trajectory.folders)
    )
    trajectories = [trajectory for group in subfolder_groups for trajectory in group]
    is_placed = trajectory.difficulty is not None or root in (path, path.parent)
    if not trajectories and is_placed and _TRAJECTORY.fullmatch(path.name):
        return [trajectory]  # an incomplete download: a broken trajectory
    return trajectories


def read_poses(path: Path) -> npt.NDArray[np.float64]:
    """Read poses, float64 [T, 7]: metres, then a quaternion."""
    return read_rows(path).numbers(7)
