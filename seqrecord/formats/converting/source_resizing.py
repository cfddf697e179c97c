"""Frames of a source that are resized before they are stored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SchemaError
from seqrecord.store.cameras.crop_windows import FloatArray
from seqrecord.store.cameras.intrinsics import (
    INTRINSICS,
    OWN_INTRINSICS,
    EpisodeCamera,
    followed_feature,
)
from seqrecord.store.feature_kinds import is_picture
from seqrecord.store.format.page_kinds import page_codec
from seqrecord.store.format.pages import check_fits
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.reading.resizing import Sizes, resize_frame, resized_schema
from seqrecord.store.schema import Block, EncodedImage, FeatureSpec, Schema
from seqrecord.store.text import shape_text
from seqrecord.store.writing.values import plain

_FACTS = (*INTRINSICS, "width", "height")
_UNIT = {"fx": 1, "fy": 1, "cx": 0, "cy": 0}


@dataclass(frozen=True)
class SourceResizing:
    """Resizes frames of a source. `features` are all of its features, some with another size."""

    features: Schema

    @classmethod
    def of(cls, schema: Schema, sizes: Sizes | None) -> SourceResizing | None:
        """The resizing to `sizes` of a source with this schema; `None` if no size changes.

        Raises `ClipError` as `resized_schema` and `followed_feature`, and `SchemaError` for
        per-frame intrinsics of frames whose size varies.
        """
        if sizes is None:
            return None
        resizing = cls(resized_schema(schema, sizes))
        for name, change in resizing.intrinsics.items():
            if np.isnan(change).any():
                raise SchemaError(
                    "per-frame intrinsics of frames whose size varies",
                    feature=name,
                    expected=f"features without {name}, or a Resize as clip_transform",
                    got=", ".join(resizing.resized),
                )
        return resizing if resizing.resized else None

    @cached_property
    def resized(self) -> dict[str, FeatureSpec]:
        """The features with another size."""
        return {n: spec for n, spec in self.features.items() if spec.stored.shape != spec.shape}

    @cached_property
    def intrinsics(self) -> dict[str, FloatArray]:
        """The per-frame intrinsics that change: scales of x and y, and offsets; float64 [4]."""
        images = {
            name: (spec.stored.shape[:2], spec.shape[:2]) if name in self.resized else None
            for name, spec in self._pictures.items()
        }
        names = [name for name, spec in self.features.items() if spec.kind == "intrinsics"]
        intrinsics = {}
        for name in names if self.resized else ():
            owner = name.removesuffix(OWN_INTRINSICS)  # perhaps not selected: never another image's
            image = followed_feature(name, names, images, {*self.features, owner})
            if image in self.resized:
                intrinsics[name] = self._camera(image).intrinsics(_UNIT)
        return intrinsics

    @cached_property
    def _pictures(self) -> dict[str, FeatureSpec]:
        return {
            name: spec
            for name, spec in self.features.items()
            if name in self.resized or is_picture(name, spec.stored, spec.kind)
        }

    def _size(self, name: str) -> tuple[int, int]:
        height, width = (side or 0 for side in self.features[name].shape[:2])
        return height, width

    def _camera(self, name: str) -> EpisodeCamera:
        return EpisodeCamera(name, self.features[name].stored.shape[:2], self._size(name))

    def _along_x(self, name: str, camera: Any) -> float:
        """Factor of widths, of a camera whose intrinsics are known."""
        lens = EpisodeCamera(name, self.features[name].stored.shape[:2]).camera_in(camera)
        width = self.features[name].stored.shape[1] or lens["width"]
        return float(self.features[name].shape[1] or 0) / width

    @property
    def schema(self) -> Schema:
        """The features as they are stored; resized ones have no codec yet."""
        return Schema(
            [
                replace(spec.stored, shape=spec.shape, codec=()) if spec.name in self.resized
                else spec.stored
                for spec in self.features.values()
            ]
        )  # fmt: skip

    @property
    def notes(self) -> list[str]:
        """A line for each resized feature, for inventories."""
        return [
            f"{n}: resized from {shape_text(s.stored.shape[:2])} to {shape_text(s.shape[:2])}"
            for n, s in self.resized.items()
        ]

    def block(self, block: Block) -> Block:
        """Resize the frames of a block. Raises `FrameError` for frames of another shape."""
        columns = dict(block.columns)
        for name in self.resized.keys() & columns.keys():
            columns[name] = [self._frame(name, frame) for frame in columns[name]]
        for name in self.intrinsics.keys() & columns.keys():
            columns[name] = [
                self._resized_intrinsics(name, plain(frame_intrinsics, name))
                for frame_intrinsics in columns[name]
            ]
        return Block(block.num_frames, columns)

    def metadata(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """An episode's metadata, with a `camera` that has the intrinsics of resized frames.

        Cameras become those of single features; intrinsics of an unknown size are left out.
        """
        camera = metadata.get("camera")
        if not isinstance(camera, Mapping):
            return metadata
        cameras: dict[str, Any] = {
            n: feature_camera
            for n, feature_camera in camera.items()
            if isinstance(feature_camera, Mapping)
        }
        for name in self._pictures:
            feature_camera = camera.get(name, camera)
            if not isinstance(feature_camera, Mapping):
                continue
            camera_values = {
                n: value for n, value in feature_camera.items() if not isinstance(value, Mapping)
            }
            if name in self.resized:
                numbers = self._camera(name).intrinsics(camera).tolist()
                new_values: dict[str, Any] = {}
                if not any(map(math.isnan, numbers)):
                    sides = reversed(self._size(name))
                    new_values = dict(zip(_FACTS, (*numbers, *sides), strict=True))
                    if isinstance(camera_values.get("skew"), int | float):
                        new_values["skew"] = camera_values["skew"] * self._along_x(name, camera)
                other_values = {n: v for n, v in camera_values.items() if n not in _FACTS}
                camera_values = {**other_values, **new_values}
            cameras[name] = camera_values
        return {
            **metadata,
            "camera": {
                name: feature_camera for name, feature_camera in cameras.items() if feature_camera
            },
        }

    def _resized_intrinsics(self, name: str, frame_intrinsics: Any) -> Any:
        """The intrinsics of the resized frame; writers refuse values of another shape."""
        values, spec = np.asarray(frame_intrinsics), self.features[name]
        if values.shape != spec.shape:
            return frame_intrinsics
        along_x, along_y, x, y = self.intrinsics[name].tolist()
        if values.ndim == 1:
            resized = values * (along_x, along_y, along_x, along_y) + (0, 0, x, y)
        else:
            resized = np.array([[along_x, 0, x], [0, along_y, y], [0, 0, 1]]) @ values
        return resized.astype(spec.dtype)

    def _frame(self, name: str, source_frame: Any) -> npt.NDArray[Any]:
        codec, spec = self._codecs[name], self.resized[name]
        if isinstance(source_frame, EncodedImage):
            blob = codec.encode_frame(source_frame)
            frame = np.empty(blob.shape, spec.dtype)
            codec.decode_into(memoryview(codec.join([blob])), 1, [frame])
        else:
            frame = np.asarray(plain(source_frame, name))
            check_fits(codec.spec, frame.dtype, frame.shape)
        out = np.empty([size or 0 for size in spec.shape], spec.dtype)
        resize_frame(spec, np.ascontiguousarray(frame, spec.dtype), out)
        return out

    @cached_property
    def _codecs(self) -> dict[str, Any]:
        return {name: page_codec(spec) for name, spec in self.resized.items()}
