"""Source for scenes: images with poses and intrinsics, in several layouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from seqrecord.errors import SourceError, located
from seqrecord.formats.sources.common.sequences import SequenceFrames, SequenceSource
from seqrecord.formats.sources.scenes import colmap, nerfstudio, scannet, videos
from seqrecord.formats.sources.scenes.views import Layout, sequence_of
from seqrecord.in_place.boundary import reader_boundary
from seqrecord.in_place.files import list_folder
from seqrecord.store.originals.protocol import SourceFormat
from seqrecord.store.processes.forks import cached_property

LAYOUTS: Mapping[str, Layout] = {
    layout.name: layout
    for layout in (
        *(nerfstudio.LAYOUT, scannet.IPHONE, scannet.SCANNET, videos.ARKIT, videos.RE10K),
        *(videos.CO3D, colmap.LAYOUT),
    )
}
"""Layouts by name. A folder that fits several has the first one."""


@dataclass(frozen=True)
class SceneSource(SequenceSource):
    """Scenes of nerfstudio, COLMAP and public datasets.

    Frames are in the order of their images' names. Listed views without an image file are left out;
    the metadata counts them, and frames without a pose, which lack the feature. All conventions
    become one: pixel centres at integers, poses camera-to-world with OpenCV's axes. Intrinsics are
    in pixels of the frames; intrinsics of another image size are scaled.

    Features:

    - `image`, and `depth` and `mask` if the scene has them
    - `pose` float64 [4, 4], camera-to-world: x to the right, y down, z forward
    - `intrinsics` float64 [4]: fx, fy, cx, cy in pixels, if they vary; else the metadata has
      `camera`. `image_intrinsics`, `depth_intrinsics` and `mask_intrinsics` if depth has another
      size than images
    - `distortion` float64 [n], if it varies; else it is part of `camera`
    - `frame_number` or `frame_name`, and `timestamp` if names are times: see `FolderSource`

    Args:
        root: a folder of scenes at any depth, or one scene.
        features: names to read, in that order; all by default.
        keep_encoded: keep RGB images as PNG or JPEG.
        in_place: reference images instead of copying them.
        exif: `apply` or `ignore` the EXIF orientation of images.
        layout: name of the layout, if a scene has several: a key of `LAYOUTS`.

    Raises `SourceError` with file, episode and feature for inconsistent or unreadable data.
    """

    layout: str | None = field(default=None, kw_only=True)

    expected = "; ".join(layout.expected for layout in LAYOUTS.values())

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layout is not None and self.layout not in LAYOUTS:
            raise SourceError(
                "unknown layout of scenes", expected=f"any of {', '.join(LAYOUTS)}", got=self.layout
            )

    def exists(self) -> bool:
        return super().exists() and bool(self._places)

    def is_sequence(self, folder: Path, names: set[str]) -> bool:
        return any(layout.fits(names) and layout.holds(folder) for layout in self._allowed)

    def sequences(self, folder: Path) -> Mapping[str, Path]:
        names, key = {name for name, _ in list_folder(folder)}, self.key(folder)
        for layout in self._allowed:
            if not (layout.fits(names) and layout.holds(folder)):
                continue
            try:
                with reader_boundary(file=str(folder)):
                    places = layout.places(folder)
            except SourceError as error:  # one broken list does not hide the other scenes
                self._unlisted[folder] = error
                return {key: folder}
            if places:
                self._layouts.update(dict.fromkeys(places.values(), (layout.name, folder)))
                return {f"{key}/{name}".rstrip("/"): place for name, place in places.items()}
        return {}

    def open(self, folder: Path) -> SequenceFrames:
        if (error := self._unlisted.get(folder)) is not None:
            raise type(error)(error.message, **error.context()) from error
        name, parent = self._layouts[folder]
        with located(SourceError, file=str(folder)):
            scene = LAYOUTS[name].read(folder, self.exif)
            return sequence_of(scene, name, parent, self.wants, exif=self.exif)

    @property
    def _allowed(self) -> Iterable[Layout]:
        return LAYOUTS.values() if self.layout is None else [LAYOUTS[self.layout]]

    @cached_property
    def _layouts(self) -> dict[Path, tuple[str, Path]]:
        """Layout and folder by argument of `open`."""
        return {}

    @cached_property
    def _unlisted(self) -> dict[Path, SourceError]:
        """Errors of folders whose scenes cannot be listed."""
        return {}


FORMAT = SourceFormat(
    "scenes", SceneSource.expected, SceneSource, ("exif", "layout"), takes_urls=True
)
