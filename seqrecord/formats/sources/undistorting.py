"""Removal of lens distortion while a source is packed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError, located
from seqrecord.formats.sources.common.cameras import Camera
from seqrecord.formats.sources.scenes.views import well_formed
from seqrecord.store.cameras.distortion import COEFFICIENTS, FISHEYE, MODEL, OPENCV
from seqrecord.store.cameras.intrinsics import INTRINSICS
from seqrecord.store.feature_kinds import is_image, is_picture, known_kind
from seqrecord.store.originals.inventory import Account, account_of
from seqrecord.store.originals.protocol import EpisodeInfo, Source
from seqrecord.store.originals.wrapping import Scope, SourceWrapper
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.schema import FeatureSpec, Frame, Schema

_DIRECTED = ("flow", "disparity", "normals")  # values that depend on the pixel grid


def undistorted(source: Source) -> Source:
    """Return a source of the same images without lens distortion.

    Cameras come from the metadata `camera` with a `distortion_model`, and from the features
    `intrinsics` and `distortion`. Images keep their size and intrinsics: each pixel takes the value
    at the place to which the lens maps it, linearly interpolated for images and the nearest one for
    depth and masks. Pixels outside of the original are 0. Video of cameras without distortion is
    kept, but decoded if the source is a dataset.

    Raises `SourceError` if no camera has a distortion, and for features that cannot be undistorted:
    video, encoded images, flow, disparity and normals.

    Example:
        import seqrecord
        from seqrecord.sources import undistorted

        source = seqrecord.open_source("records/")
        # seqrecord.convert(undistorted(source), "pinhole_records/")
    """
    undistorted_source = UndistortedSource(source)
    if not undistorted_source.distorted_features:
        raise SourceError(
            "no camera with a distortion; leave out --undistort",
            expected=f"a metadata `camera` with {MODEL} {OPENCV} or {FISHEYE}",
            got=", ".join(source.schema()),
        )
    if (decoding_video := getattr(source, "decoding_video", None)) is not None:
        return UndistortedSource(decoding_video())
    return undistorted_source


@dataclass(frozen=True)
class UndistortedSource(SourceWrapper):
    """See `undistorted`."""

    source: Source

    unchanged = Scope.FRAMES

    @cached_property
    def distorted_features(self) -> dict[str, FeatureSpec]:
        """Features of a camera with a distortion in any episode."""
        cameras = [info.metadata.get("camera") for info in self.source.episodes()]
        distorted_specs = {
            name: spec
            for name, spec in self.source.schema().items()
            if is_picture(name, spec, spec.kind)
            and any(_feature_camera(name, camera).get(MODEL) for camera in cameras)
        }
        for name, spec in distorted_specs.items():
            kind = known_kind(name, spec, spec.kind)
            if spec.codec or kind in _DIRECTED:
                raise SourceError(
                    "the feature cannot be undistorted; leave it out (--features), or pack images "
                    "without --keep-encoded",
                    feature=name,
                    expected="decoded images, depth or masks",
                    got="encoded images or video" if spec.codec else str(kind),
                )
        return distorted_specs

    def schema(self) -> Schema:
        names = {f"{name}_distortion" for name in self.distorted_features} | {"distortion"}
        schema = self.source.schema()
        return Schema([spec for name, spec in schema.items() if name not in names])

    def episodes(self) -> Sequence[EpisodeInfo]:
        return [
            replace(info, metadata=_without_distortion(info.metadata))
            for info in self.source.episodes()
        ]

    def account(self) -> Account:
        account = account_of(self.source)
        notes = (f"{name}: lens distortion removed" for name in self.distorted_features)
        return replace(account, notes=(*account.notes, *notes))

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        cameras = info.metadata.get("undistorted", info.metadata.get("camera"))
        schema, maps = self.schema(), dict[Camera, _Places]()
        for number, frame in enumerate(self.source.frames(info)):
            values: dict[str, Any] = {n: value for n, value in frame.items() if n in schema}
            for name in self.distorted_features.keys() & values.keys():
                pixels, spec = values[name], self.distorted_features[name]
                with located(SourceError, episode=info.key, feature=name, frame=number):
                    camera = _camera(name, frame, cameras, pixels.shape[:2])
                if camera is not None:
                    if camera not in maps:
                        maps = {camera: _places(camera), **dict([*maps.items()][:1])}
                    is_linear = is_image(spec, known_kind(name, spec, spec.kind))
                    values[name] = _remap(pixels, maps[camera], is_linear=is_linear)
            yield values


_Places: TypeAlias = npt.NDArray[np.float32]
"""Row and column in the original of each pixel, float32 [2, H, W]."""


def _feature_camera(name: str, cameras: Any) -> Mapping[str, Any]:
    """Return a feature's camera in the metadata `camera`; empty if it has none."""
    camera = cameras.get(name, cameras) if isinstance(cameras, Mapping) else {}
    return camera if isinstance(camera, Mapping) else {}


def _without_distortion(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Move the distorted cameras to `undistorted`."""

    def plain(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {n: plain(v) for n, v in value.items() if n not in (MODEL, COEFFICIENTS)}

    cameras = metadata.get("camera")
    if plain(cameras) == cameras:
        return metadata
    changed_metadata = {**metadata, "camera": plain(cameras), "undistorted": cameras}
    return {name: value for name, value in changed_metadata.items() if name != "camera" or value}


def _camera(
    name: str, frame: Mapping[str, Any], cameras: Any, size: tuple[int, int]
) -> Camera | None:
    """Return the camera of an image with height and width `size`; `None` without distortion."""
    camera_values = _feature_camera(name, cameras)
    if (model := camera_values.get(MODEL)) is None:
        return None
    values, factors = (
        frame.get(f"{name}_{kind}", frame.get(kind, default))
        for kind, default in (
            ("intrinsics", [camera_values.get(intrinsic) for intrinsic in INTRINSICS]),
            ("distortion", camera_values.get(COEFFICIENTS)),
        )
    )
    camera_size = camera_values.get("height"), camera_values.get("width")
    is_per_frame = f"{name}_intrinsics" in frame or "intrinsics" in frame
    if not is_per_frame and None not in camera_size and camera_size != size:
        raise SourceError(
            "the camera has another image size",
            expected="height {} and width {}".format(*camera_size),
            got="height {} and width {}".format(*size),
        )
    with well_formed(Path(name), "fx, fy, cx, cy and coefficients"):
        camera = Camera.of(values, size[::-1], Path(name), model=model, coefficients=factors)
    if camera.model not in (None, OPENCV, FISHEYE):
        raise SourceError(
            "unknown distortion of a camera", expected=f"{OPENCV} or {FISHEYE}", got=model
        )
    return camera if camera.model else None


def _places(camera: Camera) -> _Places:
    rows, columns = np.indices(camera.size, np.float64)
    scale, centre = (camera.fx, camera.fy), (camera.cx, camera.cy)
    plane = (np.stack([columns, rows], axis=-1) - centre) / scale
    source_points = camera.distorted(plane) * scale + centre
    return np.moveaxis(source_points[..., ::-1], -1, 0).astype(np.float32)


def _remap(pixels: npt.NDArray[Any], places: _Places, *, is_linear: bool) -> npt.NDArray[Any]:
    """Return the pixels [H, W, …] at these places; 0 outside of the image."""
    last_pixels = np.array(pixels.shape[:2], np.float32)[:, None, None] - 1
    is_inside = ((places > -0.5) & (places < last_pixels + 0.5)).all(axis=0)
    is_inside = is_inside.reshape(*is_inside.shape, *[1] * (pixels.ndim - 2))
    places = np.clip(places, 0, last_pixels)
    if not is_linear:
        row, column = np.rint(places).astype(np.int64)
        return np.where(is_inside, pixels[row, column], 0).astype(pixels.dtype)
    row, column = np.minimum(
        places.astype(np.int64), np.maximum(last_pixels.astype(np.int64) - 1, 0)
    )
    row_weight, column_weight = (part.reshape(is_inside.shape) for part in places - (row, column))
    next_row, next_column = (
        np.minimum(n + 1, int(m.item())) for n, m in zip((row, column), last_pixels, strict=True)
    )
    upper = pixels[row, column] * (1 - column_weight) + pixels[row, next_column] * column_weight
    lower = (
        pixels[next_row, column] * (1 - column_weight)
        + pixels[next_row, next_column] * column_weight
    )
    remapped = np.where(is_inside, upper * (1 - row_weight) + lower * row_weight, 0)
    return (np.rint(remapped) if pixels.dtype.kind in "ui" else remapped).astype(pixels.dtype)
