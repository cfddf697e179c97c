"""Source for TartanAir, versions 1 and 2: https://theairlab.org/tartanair-dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.formats.sources.common.array_files import array_header, read_array
from seqrecord.formats.sources.common.cameras import Camera
from seqrecord.formats.sources.common.originals import Scan, has_folder
from seqrecord.formats.sources.common.sequences import (
    SequenceFrames,
    SequenceSource,
    Values,
    image_size,
)
from seqrecord.formats.sources.inventory import Account, LeftOut
from seqrecord.formats.sources.tartanair.layout import (
    CAMERAS,
    IMU_ROWS,
    LAYOUTS,
    TartanAirLayout,
    camera_of,
)
from seqrecord.formats.sources.tartanair.trajectories import (
    DIFFICULTIES,
    Trajectory,
    find_trajectories,
    read_poses,
)
from seqrecord.in_place.boundary import skipping_unreadable
from seqrecord.in_place.files import is_file
from seqrecord.store.originals.protocol import SourceFormat
from seqrecord.store.processes.forks import cached_property


@dataclass(frozen=True)
class TartanAirSource(SequenceSource):
    """A TartanAir tree as downloaded, versions 1 and 2.

    `root` is a folder of environments, one environment, one difficulty or one trajectory.
    Trajectories are also found in folders with other names: `samples/office_P000`.

    Features of version 1 (version 2 has `_lcam_front` and `_rcam_front` in place of `_left` and
    `_right`, and a flow and mask per camera):

    - `image_left` uint8 [H, W, 3], RGB
    - `depth_left` float32 [H, W], metres along the optical axis
    - `flow` float32 [H, W, 2], pixels to the next frame
    - `mask` uint8 [H, W], validity of the flow: 0 valid, 1 occluded by another surface, 10 occluded
      by its own, 100 out of view
    - `seg_left` uint8 [H, W], labels that differ between environments
    - `pose_left` float64 [7], `tx ty tz qx qy qz qw` in metres, NED
    - `imu_acc` and `imu_gyro` [10, 3], version 2 only: the samples from a frame to the next

    Version 2 has 10 frames per second; the rate of version 1 is not documented. Flow, mask and IMU
    samples of the last frame are optional: their files refer to a frame that TartanAir dropped. An
    episode without a folder lacks its features. IMU files of another length are not packed; the
    inventory lists them.

    Args:
        root: folder of trajectories.
        features: names to read, in that order; by default all features of `cameras`.
        keep_encoded: keep images as PNG.
        cameras: `left`, `right` or both.
        difficulty: `Easy` or `Hard`; both by default.
        in_place: reference images, npy files and segmentation PNGs instead of copying them.
        exif: `apply` or `ignore` the EXIF orientation of images.

    Raises `SourceError` with file, episode and feature for inconsistent or unreadable data.
    """

    cameras: Sequence[str] = CAMERAS
    difficulty: str | None = None

    expected = (
        "ENV/Easy/P000/image_left/000000_left.png, or "
        "ENV/Data_easy/P000/image_lcam_front/000000_lcam_front.png"
    )
    selected_also_by = " or cameras="

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "cameras", tuple(self.cameras))
        if not self.cameras or not set(self.cameras) <= set(CAMERAS):
            raise SourceError(
                "unknown camera", expected="left, right or both", got=", ".join(self.cameras)
            )
        if self.difficulty is not None:
            levels = {name.lower(): level for name, level in DIFFICULTIES.items()}
            if self.difficulty.lower() not in levels:
                raise SourceError(
                    "unknown difficulty", expected="Easy or Hard", got=self.difficulty
                )
            object.__setattr__(self, "difficulty", levels[self.difficulty.lower()])

    def exists(self) -> bool:
        """Return whether the first entries below `root` contain files with TartanAir's names."""
        return has_folder(
            self.path,
            lambda path, names: self.is_sequence(path, names) and Trajectory(path).is_sound,
        )

    def is_sequence(self, folder: Path, names: set[str]) -> bool:  # noqa: ARG002
        return any(not layout.names.isdisjoint(names) for layout in LAYOUTS)

    def wants(self, *names: str) -> bool:
        camera_names = self._of_cameras(names)
        return bool(camera_names) and super().wants(*camera_names)

    def open(self, folder: Path) -> SequenceFrames:
        trajectory = Trajectory(folder)
        count, layout = len(trajectory.frames.ids), trajectory.layout
        assert layout is not None  # else it has no frames
        metadata = _metadata(trajectory, layout, self.exif)
        frames = SequenceFrames(count, metadata=metadata, fps=layout.fps, notes=[layout.note])
        for files in trajectory.pixels:
            if not trajectory.lacks(files):
                frames.places |= dict.fromkeys(files.features, files.shown)
                if self.wants(*files.features):
                    paths = trajectory.paths(files)
                    frames.files += filter(None, paths)
                    frames.columns |= files.columns(paths)
        for name in layout.poses:
            if (file := f"{name}.txt") in trajectory.entries:
                frames.places[name] = file
                if self.wants(name):
                    frames.files.append(folder / file)
                    frames.columns[name] = Values(_poses(folder / file, name, count), "pose", "m")
        for name, (file, unit) in layout.imu.items():
            path = folder / "imu" / file
            shapes = [(IMU_ROWS * n, 3) for n in (count - 1, count)]
            if not is_file(path):
                continue
            if (shape := array_header(path).shape) not in shapes:
                min_rows, max_rows = (rows for rows, _ in shapes)
                frames.notes.append(
                    f"imu/{file} not packed: {list(shape)}, expected [{min_rows}, 3] or "
                    f"[{max_rows}, 3], {IMU_ROWS} samples from each frame to the next"
                )
            else:
                frames.places[name] = f"imu/{file}"
                if self.wants(name):
                    frames.files.append(path)
                    samples = read_array(path).reshape(-1, IMU_ROWS, 3)
                    has_samples = np.arange(count) < len(samples)
                    frames.columns[name] = Values(samples, "imu", unit, has_samples)
        return frames

    def scan(self, scan: Scan) -> None:
        super().scan(scan)
        scan.offered = dict.fromkeys(self._of_cameras(scan.offered))

    def _of_cameras(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if camera_of(name) in (None, *self.cameras)]

    def account(self) -> Account:
        """Report all trajectories. Reads their lists again; broken trajectories are skipped."""
        account, num_unselected = super().account(), len(self._trajectories) - len(self._folders)
        if not num_unselected:
            return account
        reason = f"not selected by difficulty={self.difficulty}"
        left_out = LeftOut("trajectories", num_unselected, reason, "episodes", is_data=False)
        return replace(account, left_out=(*account.left_out, left_out))

    @cached_property
    def _trajectories(self) -> list[Trajectory]:
        trajectories = find_trajectories(self.path, self.path)
        return sorted(trajectories, key=lambda trajectory: trajectory.key(self.path))

    @cached_property
    def _folders(self) -> dict[Path, Mapping[str, Path]]:
        trajectories = [t for t in self._trajectories if self.difficulty in (None, t.difficulty)]
        if not any(trajectory.layout for trajectory in trajectories):
            level = f"{self.difficulty} " if self.difficulty else ""
            raise SourceError(
                f"no {level}TartanAir trajectory found",
                file=str(self.root),
                expected=self.expected,
                got=f"{len(trajectories)} folders without files" if trajectories else None,
            )
        return {
            trajectory.path: {trajectory.key(self.path): trajectory.path}
            for trajectory in trajectories
        }


FORMAT = SourceFormat(
    "tartanair",
    TartanAirSource.expected,
    TartanAirSource,
    options=("cameras", "difficulty", "exif"),
    takes_urls=True,
)


def _poses(path: Path, feature: str, count: int) -> npt.NDArray[np.float64]:
    poses = read_poses(path)
    if len(poses) != count:
        raise SourceError(
            "the number of poses differs from the number of frames",
            file=str(path),
            feature=feature,
            expected=f"{count} lines",
            got=f"{len(poses)} lines",
        )
    return poses


def _metadata(trajectory: Trajectory, layout: TartanAirLayout, exif: str | None) -> dict[str, Any]:
    """Return the metadata; the camera's field of view is 90 degrees, so fx = fy = width / 2."""
    ids, _, first_file = trajectory.frames
    metadata: dict[str, Any] = {
        "dataset": f"TartanAir {layout.version}",
        "env": trajectory.environment,
        "difficulty": trajectory.difficulty,
        "trajectory": trajectory.path.name,
        "first_frame_id": ids[0],
    }
    with skipping_unreadable():  # raised by reading
        if first_file is not None:
            height, width = image_size(first_file, exif)
            x, y = width / 2, height / 2
            camera = Camera(x, x, x - layout.centre, y - layout.centre, width, height)
            metadata["camera"] = camera.to_json()
    return metadata
