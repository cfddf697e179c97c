"""The files of a TartanAir trajectory's frames, from the names in its folders."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.originals.files import list_folder
from seqrecord.sources.common.tables import read_rows
from seqrecord.sources.tartanair.layout import PixelFiles
from seqrecord.sources.tartanair.tree import Trajectory


class TrajectoryFrames:
    """File names of a trajectory's frames; each folder is listed once, on demand.

    `ids` are the frames that every folder must have, from the first folder with one file per frame,
    even if its feature is not selected: the frames must not depend on the selected features.
    `origin` names that folder, for errors; `first` is its first file.

    Raises `SourceError` for no frames and for a gap in the ids.
    """

    def __init__(self, trajectory: Trajectory) -> None:
        self._trajectory = trajectory
        self._listed: dict[str, dict[PixelFiles, dict[int, str]]] = {}
        self.first: Path | None = None
        self.ids, self.origin = self._reference()
        folder = str(trajectory.path)
        if not self.ids:
            raise SourceError("trajectory without frames", file=folder)
        for one, other in pairwise(self.ids):
            if other != one + 1:
                raise SourceError(
                    "gap in the frame ids; the download may be incomplete",
                    file=folder,
                    expected=f"frame {one + 1} {self.origin}",
                    got=f"frame {other} after {one}",
                )

    def lacks(self, files: PixelFiles) -> bool:
        """Return whether a folder shared with another feature has only the other feature's files.

        For example, optical flow and its mask share a folder and are downloaded separately.
        """
        return not self._names(files) and any(self._listed[files.folder].values())

    def paths(self, files: PixelFiles) -> list[Path | None]:
        """Return the files of all frames. Raises `SourceError` for missing and additional ones.

        Files between two frames may also exist for the last frame; they refer to a frame that
        TartanAir dropped.
        """
        names, folder = self._names(files), self._trajectory.path / files.folder
        is_whole = not files.between or self.ids[-1] in names
        _check_ids(names, self.ids if is_whole else self.ids[:-1], folder, self.origin)
        return [folder / names[each] if each in names else None for each in self.ids]

    def _names(self, files: PixelFiles) -> dict[int, str]:
        """Return file names by frame id, ascending; for pairs of frames by the first id."""
        if files.folder not in self._listed:
            kinds = [other for other in self._trajectory.pixels if other.folder == files.folder]
            listed = _list_frames(self._trajectory.path / files.folder, kinds)
            self._listed[files.folder] = dict(zip(kinds, listed, strict=True))
        return self._listed[files.folder][files]

    def _reference(self) -> tuple[list[int], str]:
        for files in sorted(self._trajectory.pixels, key=lambda files: files.between):
            if names := self._names(files):
                self.first = self._trajectory.path / files.folder / next(iter(names.values()))
                ids = list(names)
                if files.between and self._num_poses()[0] != len(ids):
                    ids.append(ids[-1] + 1)
                return ids, f"as in {files.folder}/"
        count, origin = self._num_poses()
        return list(range(count)), origin

    def _num_poses(self) -> tuple[int, str]:
        """Return the number of lines of the first pose file and its origin for errors; 0 without
        one."""
        layout = self._trajectory.layout
        for *_, file in layout.poses if layout else ():
            if file in self._trajectory.entries:
                return len(read_poses(self._trajectory.path / file)), f"as in {file}"
        return 0, ""


def read_poses(path: Path) -> npt.NDArray[np.float64]:
    """Read poses, float64 [T, 7]: metres, then a quaternion."""
    return read_rows(path).numbers(7)


def _list_frames(folder: Path, kinds: Sequence[PixelFiles]) -> list[dict[int, str]]:
    """Return file names by id for each kind of files in `folder`; other names are ignored."""
    found: list[dict[int, str]] = [{} for _ in kinds]
    for name, _ in list_folder(folder):
        for files, names in zip(kinds, found, strict=True):
            match = files.pattern.fullmatch(name)
            if match is None:
                continue
            first, *second = map(int, match.groups())
            if second and second[0] != first + 1:
                raise SourceError(
                    "the file connects frames that are not consecutive",
                    file=str(folder / name),
                    expected=f"frames {first} and {first + 1}",
                    got=f"{first} and {second[0]}",
                )
            if first in names:
                raise SourceError(
                    "two files have the same frame number",
                    file=str(folder / name),
                    got=f"{names[first]} too",
                )
            names[first] = name
    return [dict(sorted(names.items())) for names in found]


def _check_ids(ids: Collection[int], want: Sequence[int], folder: Path, origin: str) -> None:
    missing = sorted(set(want).difference(ids))
    extra = sorted(set(ids).difference(want))
    if missing or extra:
        span = f"frames {want[0]} to {want[-1]}" if want else "no frame"
        facts = [f"{len(ids)} files"]
        facts += [f"frame {missing[0]} missing"] if missing else []
        facts += [f"frame {extra[0]} too many"] if extra else []
        raise SourceError(
            "the features have different frames",
            file=str(folder),
            expected=f"{len(want)} files, {span}, {origin}",
            got=", ".join(facts),
        )
