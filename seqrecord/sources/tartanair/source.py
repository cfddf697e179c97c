"""TartanAir, versions 1 and 2, as it is downloaded: https://theairlab.org/tartanair-dataset."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from seqrecord.errors import SourceError, located
from seqrecord.format.references import ExternalFile
from seqrecord.processes.forks import cached_property
from seqrecord.schema import FeatureSpec, Frame, Schema
from seqrecord.sources.base import EpisodeInfo, SourceFormat
from seqrecord.sources.common.array_files import array_header
from seqrecord.sources.common.files import is_file
from seqrecord.sources.common.images import load_imagecodecs
from seqrecord.sources.common.originals import FirstError, Originals, find_files
from seqrecord.sources.common.references import external_files, external_folders, referring_schema
from seqrecord.sources.common.specs import chosen_names
from seqrecord.sources.inventory import Account, LeftOut, not_selected, unread_files
from seqrecord.sources.tartanair.frames import (
    FrameLists,
    imu_counts,
    list_frames,
    read_frames,
)
from seqrecord.sources.tartanair.layout import (
    CAMERAS,
    IMU_ROWS,
    LAYOUTS,
    PixelFiles,
    Size,
    TartanAirLayout,
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
    """A TartanAir tree as a source of episodes.

    `root` is a folder of environments, one environment, one difficulty or one trajectory; so is any
    tree with trajectories, whatever their folders are called: `samples/office_P000`.
    `features` are the names to read, in that order; by default all that the tree has for
    `cameras`. `difficulty` is `Easy` or `Hard`. With `keep_encoded` images stay PNG, and with
    `in_place` where they are; so do npy files, and PNG files of segmentations.

    Features of version 1 (those of version 2 end in `_lcam_front` and `_rcam_front` instead):
    `image_left` uint8 [H, W, 3], RGB; `depth_left` float32 [H, W], metres along the optical axis;
    `flow` float32 [H, W, 2], pixels to the next frame; `mask` uint8 [H, W], that flow's: 0 valid,
    1 and 10 occluded by another surface or its own, 100 out of view; `seg_left` uint8 [H, W],
    numbers that may mean other objects in another environment; `pose_left` float64 [7],
    `tx ty tz qx qy qz qw` in metres, NED. Version 2 adds `imu_acc` and `imu_gyro` [10, 3], the
    samples from a frame up to the next.

    Kinds and units are these, and version 2 has 10 frames a second; version 1 does not tell.

    The last frame has flow, mask and imu only where the files for it are there, which lead to a
    frame that was not kept; an episode that lacks a folder lacks its features.
    imu files are left out where they fit the frames of no trajectory.
    A source is a snapshot: its schema is worked out once and travels with it when it is pickled.
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
                "no such camera", expected="left, right or both", got=", ".join(self.cameras)
            )
        if self.difficulty is not None:
            levels = {name.lower(): level for name, level in DIFFICULTIES.items()}
            if self.difficulty.lower() not in levels:
                raise SourceError("no such difficulty", expected="Easy, Hard", got=self.difficulty)
            object.__setattr__(self, "difficulty", levels[self.difficulty.lower()])

    def schema(self) -> Schema:
        return referring_schema(self._probed[0]) if self.in_place else self._probed[0]

    def referring(self) -> TartanAirSource:
        """The same source, whose images stay where they are."""
        return replace(self, keep_encoded=True, in_place=True)

    def external_files(self) -> dict[str, ExternalFile]:
        """The folders of files that its frames may refer to, see `external_folders`."""
        folders = {
            trajectory.path / files.folder
            for trajectory in self._trajectories
            for files in trajectory.pixels
            if files.kept(self.exif) and files.features[0].name in self.schema()
        }
        return external_folders(self.path, sorted(folders))

    def copied_files(self) -> dict[str, ExternalFile]:
        """The files of poses and IMU samples, whose values an index copies."""
        paths = (
            path
            for trajectory in self._trajectories
            for path in find_files(trajectory.path, is_file)
            if path.suffix == ".txt" or path.parent.name == "imu"
        )
        return external_files(self.path, paths)

    def episodes(self) -> Sequence[EpisodeInfo]:
        return [self._info(trajectory) for trajectory in self._trajectories]

    def account(self) -> Account:
        """Places of features, files of no feature, and what is decoded."""
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
                raise SourceError("no such trajectory", file=str(self.root))
            trajectory = open_trajectory(folders[info.key])
            size = sizes.get(trajectory.layout.version) if trajectory.layout else None
            yield from read_frames(
                *(trajectory, schema, size or (0, 0)),
                keep_encoded=self.keep_encoded,
                in_place=self.in_place,
                exif=self.exif,
            )

    def exists(self) -> bool:
        """Whether there are files named as TartanAir's among the first entries below `root`."""
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
                got=f"{len(found)} folders named like one" if found else None,
            )
        return found

    @cached_property
    def _probed(self) -> tuple[Schema, dict[str, Size], dict[str, Path]]:
        """The schema, the image size by layout version, and folders by key."""
        layouts, sizes, offered = self._everything()
        names = chosen_names(offered, self.features, self.path, "no such feature in this tree")
        for layout in layouts:
            for files in layout.pixels:
                if files.needs_imagecodecs and any(f.name in names for f in files.features):
                    load_imagecodecs()
        folders = {key: trajectory.path for key, trajectory in self._found.items()}
        return Schema([offered[name] for name in names]), sizes, folders

    def _everything(
        self,
    ) -> tuple[list[TartanAirLayout], dict[str, Size], dict[str, FeatureSpec]]:
        """The layouts, the image size by version, and the features of the cameras."""
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
        """The features that some trajectory of this layout has."""
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
        """From the first trajectory whose first file of any kind has a sound header."""
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
        """From the first trajectory whose imu file fits its frames; `None` if that is none."""
        for trajectory in self._trajectories:
            path = trajectory.path / "imu" / file
            if trajectory.layout is layout and "imu" in trajectory.entries and is_file(path):
                try:
                    header = array_header(path)
                    counts = imu_counts(len(FrameLists(trajectory).ids))
                except SourceError:
                    continue
                if header.dtype.kind == "f" and header.shape in [(n, 3) for n in counts]:
                    return header.dtype
        return None

    def _info(self, trajectory: Trajectory) -> EpisodeInfo:
        try:
            ids = FrameLists(trajectory).ids
        except SourceError:
            ids = []  # `frames` says what is wrong
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
    "V1": "TartanAir V1: no frame rate known; poses in NED",
    "V2": "TartanAir V2: depth PNGs decoded as the bytes of float32, flow PNGs as "
    "(value - 32768) / 64 and a mask; 10 frames a second; poses in NED",
}


def _places(layout: TartanAirLayout) -> Iterator[tuple[FeatureSpec, str]]:
    """The features of a layout, and the patterns of their files."""
    for files in layout.pixels:
        for spec in files.features:
            yield spec, f"*/{files.folder}/{files.shown}"
    for spec, _, file in layout.poses:
        yield spec, f"*/{file}"
    for name, file, unit in layout.imu:
        spec = FeatureSpec(name, np.dtype("<f8"), (IMU_ROWS, 3), kind="imu", unit=unit)
        yield spec, f"*/imu/{file}"


def _is_taken(found: Mapping[Path, Trajectory], features: Collection[str], path: Path) -> bool:
    """Whether a file is one of a feature."""
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
    """TartanAir's cameras see 90 degrees across: fx = fy = 320 at a width of 640."""
    height, width = size
    return {
        "fx": width / 2,
        "fy": width / 2,
        "cx": width / 2 - centre,
        "cy": height / 2 - centre,
        "width": width,
        "height": height,
    }
