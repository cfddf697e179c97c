"""Columns of a sequence from its tables: lists of images, samples between frames, nearest rows."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.formats.sources.common.aligning import NONE, sample_bounds
from seqrecord.formats.sources.common.sequences import SequenceFrames, SequenceSource, Values
from seqrecord.formats.sources.common.tables import timed_files, timed_values
from seqrecord.in_place.files import is_file


@dataclass(kw_only=True)
class SequenceTables(SequenceFrames):
    """Collects the columns of the sequence in `folder`, on the clock of its frames.

    Args:
        unit: unit of all times, `s` or `ns`.
        times: times of the frames.
    """

    source: SequenceSource
    folder: Path
    unit: str
    times: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def _parse(self) -> Callable[[str], Any]:
        return int if self.unit == "ns" else float

    def begin(self, times: npt.NDArray[Any]) -> None:
        """Set the times of the frames, and add the feature `timestamp`."""
        self.times, self.num_frames = times, len(times)
        self.clock = Values(times, "timestamp", self.unit)
        self.columns["timestamp"] = self.clock

    def has(self, path: Path, **places: str) -> bool:
        """Offer the features of a file, if it exists; return whether any is selected.

        `places` has the files of each feature, such as `depth="depth/*"`.
        """
        if not is_file(path):
            return False
        self.places |= places
        return self.source.wants(*places)

    def images(self, path: Path, folder: Path) -> tuple[npt.NDArray[Any], list[Path]]:
        """Read a list of times and images below `folder`."""
        times, images = timed_files(path, folder, self._parse)
        self.files += [path, *images]
        return times, images

    def rows(
        self, path: Path, columns: Collection[int]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64]] | None:
        """Read times and numbers; `None` for an empty table, which is noted."""
        self.files.append(path)
        times, values = timed_values(path, columns, self._parse)
        if not len(times):
            name = path.relative_to(self.folder).as_posix()
            self.notes.append(f"{name.removeprefix('mav0/')} is empty")
            return None
        return times, values

    def samples(self, path: Path, columns: int) -> tuple[npt.NDArray[Any], ...] | None:
        """Read samples: times, numbers, and the bounds of each frame's samples."""
        if (table_rows := self.rows(path, (columns,))) is None:
            return None
        stamps, values = table_rows
        bounds = sample_bounds(self.times, stamps)
        num_before, num_after = int(bounds[0]), len(stamps) - int(bounds[-1])
        name = "accelerometer" if self.unit == "s" else "imu"
        self.check(path, len(stamps) - num_before - num_after, stamps, "within the time", name)
        self.metadata[f"{name}_before_first_frame"] = num_before
        self.metadata[f"{name}_after_last_frame"] = num_after
        return stamps, values, bounds

    def match_poses(
        self, path: Path, stamps: npt.NDArray[Any], rows: npt.NDArray[np.int64], within: str
    ) -> npt.NDArray[np.bool_]:
        """Return which frames have a pose, by the row of each frame or `NONE`, and count them."""
        has_pose: npt.NDArray[np.bool_] = rows != NONE
        count = int(np.count_nonzero(has_pose))
        self.check(path, count, stamps, within, "pose")
        self.metadata["frames_without_pose"] = len(has_pose) - count
        return has_pose

    def check(
        self, path: Path, num_matched: int, stamps: npt.NDArray[Any], within: str, feature: str
    ) -> None:
        """Raise `SourceError` for a table without a row that matches a frame, with both ranges."""
        if not num_matched:
            times, unit = self.times, self.unit
            raise SourceError(
                f"no row matches a frame; correct the timestamps, or exclude {feature} "
                "(--features)",
                file=str(path),
                expected=f"rows {within} of a frame; frames from {times[0]} to {times[-1]} {unit}",
                got=f"{len(stamps)} rows from {stamps[0]} to {stamps[-1]} {unit}",
            )
