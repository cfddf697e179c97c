"""Source for TartanAir, versions 1 and 2: https://theairlab.org/tartanair-dataset."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from seqrecord.errors import SourceError, located
from seqrecord.format.references import ExternalFile
from seqrecord.originals.files import is_file
from seqrecord.originals.protocol import EpisodeInfo, SourceFormat
from seqrecord.originals.references import external_files, external_folders, referring_schema
from seqrecord.processes.forks import cached_property
from seqrecord.schema import FeatureSpec, Frame, Schema
from seqrecord.sources.common.array_files import array_header
from seqrecord.sources.common.images import load_imagecodecs
from seqrecord.sources.common.originals import FirstError, Originals, find_files
from seqrecord.sources.common.specs import chosen_names
from seqrecord.sources.inventory import Account, LeftOut, not_selected, unread_files
from seqrecord.sources.tartanair.layout import (
    CAMERAS,
    IMU_ROWS,
    LAYOUTS,
    PixelFiles,
    Size,
    TartanAirLayout,
)
from seqrecord.sources.tartanair.trajectory_frames import (
    TrajectoryFrames,
    imu_counts,
    list_frames,
    read_frames,
)
from seqrecord.sources.tartanair.tree import (
    DIFFICULTIES,
    Trajectory,
    find_trajectories,
    has_frames,
    is_tartanair,
    open_trajectory,
)


@dataclass(frozen=True)
class TartanAirSource(Originals):
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
    episode without a folder lacks its features. IMU files that fit no trajectory are not packed.

    The source is a snapshot: its schema is determined once and pickled with it.

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
    in_place: bool = False

    unpickled = ("_found",)

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

    def schema(self) -> Schema:
        return referring_schema(self._probed[0]) if self.in_place else self._probed[0]

    def referring(self) -> TartanAirSource:
        """Return a copy of the source that references images instead of copying them."""
        return self if self.in_place else replace(self, keep_encoded=True, in_place=True)

    def external_files(self) -> dict[str, ExternalFile]:
        """Return the folders of files that frames may reference, see `external_folders`."""
        return external_folders(self.path, sorted(self._pixel_folders(are_referred_to=True)))

    def copied_files(self) -> dict[str, ExternalFile]:
        """Return the files of poses, IMU samples and codes, whose values an index copies."""
        folders = self._pixel_folders(are_referred_to=False)
        paths = (
            path
            for trajectory in self._trajectories
            for path in find_files(trajectory.path, is_file)
            if path.suffix == ".txt" or path.parent.name == "imu" or path.parent in folders
        )
        return external_files(self.path, paths)

    def _pixel_folders(self, *, are_referred_to: bool) -> set[Path]:
        schema = self.schema()
        return {
            trajectory.path / files.folder
            for trajectory in self._trajectories
            for files in trajectory.pixels
            if bool(files.kept(self.exif)) == are_referred_to
            and any(feature.name in schema for feature in files.features)
        }

    def episodes(self) -> Sequence[EpisodeInfo]:
        return [self._info(trajectory) for trajectory in self._trajectories]

    def account(self) -> Account:
        """Report places of features, files that are not packed, and decoding."""
        found = self._trajectories
        taken = [t for t in self._found.values() if t not in found]
        versions = sorted({t.layout.version for t in found if t.layout})
        first = next(trajectory for trajectory in found if trajectory.layout)
        files = next((files.folder for files in first.pixels if has_frames(first, files)), "")
        noun = "trajectory" if len(found) == 1 else "trajectories"
        reason = f"{len(found)} {noun} of TartanAir {' and '.join(versions)}, such as "
        offered = {spec.name: place for layout in LAYOUTS for spec, place in _places(layout)}
        _, _, every = replace(self, cameras=CAMERAS)._everything()
        left_out = [
            not_selected(f"feature {name}", also=" or cameras=")
            for name in every
            if name not in self.schema()
        ]
        if taken:
            not_chosen = f"not selected by difficulty={self.difficulty}"
            left_out.append(LeftOut("trajectories", len(taken), not_chosen, "episodes", False))
        is_taken = partial(_is_taken, {t.path: t for t in self._found.values()}, {*every})
        return Account(
            f"{reason}{first.key}/{files}",
            {name: offered[name] for name in self.schema()},
            (*unread_files(self.path, is_taken), *left_out),
            tuple(_NOTES[version] for version in versions),
        )

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        with located(SourceError, episode=info.key):
            schema, sizes, folders = self._probed
            if info.key not in folders:
                raise SourceError("no such trajectory", file=str(self.root), got=info.key)
            trajectory = open_trajectory(folders[info.key])
            size = sizes.get(trajectory.layout.version) if trajectory.layout else None
            yield from read_frames(
                *(trajectory, schema, size or (0, 0)),
                keep_encoded=self.keep_encoded,
                in_place=self.in_place,
                exif=self.exif,
            )

    def exists(self) -> bool:
        """Return whether the first entries below `root` contain files with TartanAir's names."""
        return is_tartanair(self.path)

    @cached_property
    def _found(self) -> dict[str, Trajectory]:
        return find_trajectories(self.path)

    @property
    def _trajectories(self) -> list[Trajectory]:
        found = [t for t in self._found.values() if self.difficulty in (None, t.difficulty)]
        if not any(trajectory.layout for trajectory in found):
            level = f"{self.difficulty} " if self.difficulty else ""
            raise SourceError(
                f"no {level}TartanAir trajectory found",
                file=str(self.root),
                expected="[ENV/][Easy|Hard|Data_easy|Data_hard/]P000/ with image_left, depth_left, "
                "flow, pose_left.txt or image_lcam_front, depth_lcam_front, pose_lcam_front.txt …",
                got=f"{len(found)} folders without files" if found else None,
            )
        return found

    @cached_property
    def _probed(self) -> tuple[Schema, dict[str, Size], dict[str, Path]]:
        """Schema, image size by layout version, and folders by key."""
        layouts, sizes, offered = self._everything()
        names = chosen_names(offered, self.features, self.path, "no such feature")
        for layout in layouts:
            for files in layout.pixels:
                if files.needs_imagecodecs and any(f.name in names for f in files.features):
                    load_imagecodecs()
        folders = {key: trajectory.path for key, trajectory in self._found.items()}
        return Schema([offered[name] for name in names]), sizes, folders

    def _everything(
        self,
    ) -> tuple[list[TartanAirLayout], dict[str, Size], dict[str, FeatureSpec]]:
        """Return the layouts, the image size by version, and the features of the cameras."""
        layouts = [
            layout for layout in LAYOUTS if any(t.layout is layout for t in self._trajectories)
        ]
        sizes = {layout.version: size for layout in layouts if (size := self._find_size(layout))}
        offered: dict[str, FeatureSpec] = {}
        for layout in layouts:
            for spec in self._offered(layout, sizes.get(layout.version)):
                offered[spec.name] = spec
        return layouts, sizes, offered

    def _offered(self, layout: TartanAirLayout, size: Size | None) -> Iterator[FeatureSpec]:
        """Yield the features that any trajectory of this layout has."""
        trajectories = [t for t in self._trajectories if t.layout is layout]
        entries = frozenset[str]().union(*(t.entries for t in trajectories))
        for files in layout.pixels:
            if files.camera in self.cameras and size and _some_has(trajectories, files):
                is_kept = self.in_place or (self.keep_encoded and files.is_image)
                codec = files.kept(self.exif) if is_kept else ()
                for spec in files.features:
                    yield replace(spec, shape=(*size, *spec.shape[2:]), codec=codec)
        for spec, camera, file in layout.poses:
            if file in entries and camera in self.cameras:
                yield spec
        for name, file, unit in layout.imu:
            if "imu" in entries and (found := self._imu_dtype(layout, file)):
                yield FeatureSpec(name, found, (IMU_ROWS, 3), kind="imu", unit=unit)

    def _find_size(self, layout: TartanAirLayout) -> Size | None:
        """Return the image size from the first valid header of a trajectory's first files."""
        errors = FirstError()
        for trajectory in self._trajectories:
            for files in trajectory.pixels if trajectory.layout is layout else ():
                folder = trajectory.path / files.folder
                with errors.skipped(episode=trajectory.key):
                    for name in list_frames(folder, [files])[0].values():
                        return files.size(folder / name, self.exif)
        if errors.first:
            raise errors.first
        return None

    def _imu_dtype(self, layout: TartanAirLayout, file: str) -> np.dtype[Any] | None:
        """Return the dtype of the first IMU file that fits its frames; `None` if there is none."""
        for trajectory in self._trajectories:
            path = trajectory.path / "imu" / file
            if trajectory.layout is layout and "imu" in trajectory.entries and is_file(path):
                try:
                    header = array_header(path)
                    counts = imu_counts(len(TrajectoryFrames(trajectory).ids))
                except SourceError:
                    continue
                if header.dtype.kind == "f" and header.shape in [(n, 3) for n in counts]:
                    return header.dtype
        return None

    def _info(self, trajectory: Trajectory) -> EpisodeInfo:
        try:
            ids = TrajectoryFrames(trajectory).ids
        except SourceError:
            ids = []  # raised by `frames`
        layout = trajectory.layout
        metadata: dict[str, Any] = {
            "dataset": " ".join(["TartanAir", *([layout.version] if layout else [])]),
            "env": trajectory.environment,
            "difficulty": trajectory.difficulty,
            "trajectory": trajectory.name,
            "first_frame_id": ids[0] if ids else None,
        }
        if layout and (size := self._probed[1].get(layout.version)):
            metadata["camera"] = _intrinsics(size, layout.centre)
        return EpisodeInfo(trajectory.key, len(ids), metadata, layout.fps if layout else None)


FORMAT = SourceFormat(
    "tartanair",
    "ENV/Easy/P000/image_left/000000_left.png, or "
    "ENV/Data_easy/P000/image_lcam_front/000000_lcam_front.png",
    TartanAirSource,
    options=("cameras", "difficulty", "exif"),
    takes_urls=True,
)


_NOTES = {
    "V1": "TartanAir V1: frame rate not documented; poses in NED",
    "V2": "TartanAir V2: depth PNGs decoded as bytes of float32, flow PNGs as "
    "(value - 32768) / 64 and a mask; 10 frames per second; poses in NED",
}


def _places(layout: TartanAirLayout) -> Iterator[tuple[FeatureSpec, str]]:
    """Yield the features of a layout and the patterns of their files."""
    for files in layout.pixels:
        for spec in files.features:
            yield spec, f"*/{files.folder}/{files.shown}"
    for spec, _, file in layout.poses:
        yield spec, f"*/{file}"
    for name, file, unit in layout.imu:
        spec = FeatureSpec(name, np.dtype("<f8"), (IMU_ROWS, 3), kind="imu", unit=unit)
        yield spec, f"*/imu/{file}"


def _is_taken(found: Mapping[Path, Trajectory], features: Collection[str], path: Path) -> bool:
    """Return whether a file belongs to a packed or excluded feature."""
    if (trajectory := found.get(path.parent)) is not None:
        poses = trajectory.layout.poses if trajectory.layout else ()
        return any(file == path.name for *_, file in poses)
    trajectory = found.get(path.parent.parent)
    if trajectory is None or trajectory.layout is None:
        return False
    if path.parent.name == "imu":
        names = {file: name for name, file, _ in trajectory.layout.imu}
        return names.get(path.name) in features
    folder = path.parent.name
    kinds = [files for files in trajectory.layout.pixels if files.folder == folder]
    return any(files.pattern.fullmatch(path.name) for files in kinds)


def _some_has(trajectories: Sequence[Trajectory], files: PixelFiles) -> bool:
    return any(has_frames(trajectory, files) for trajectory in trajectories)


def _intrinsics(size: Size, centre: float) -> dict[str, float | int]:
    """Return the camera: its field of view is 90 degrees, so fx = fy = 320 at a width of 640."""
    height, width = size
    return {
        "fx": width / 2,
        "fy": width / 2,
        "cx": width / 2 - centre,
        "cy": height / 2 - centre,
        "width": width,
        "height": height,
    }
