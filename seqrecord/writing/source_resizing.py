"""Frames of a source that are resized before they are stored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.clips.cameras import INTRINSICS, OWN_INTRINSICS, EpisodeCamera
from seqrecord.errors import SchemaError
from seqrecord.feature_kinds import has_pixels
from seqrecord.format.pages import PageCodec, check_fits
from seqrecord.processes.forks import cached_property
from seqrecord.reading.resizing import Sizes, resize_frame, resized_schema
from seqrecord.schema import Block, EncodedImage, FeatureSpec, Schema
from seqrecord.text import shape_text
from seqrecord.writing.values import plain


@dataclass(frozen=True)
class SourceResizing:
    """Resizes frames of a source. `features` are all of its features, some with another size."""

    features: Schema

    @classmethod
    def of(cls, schema: Schema, sizes: Sizes | None) -> SourceResizing | None:
        """The resizing to `sizes` of a source with this schema; `None` if no size changes.

        Raises `ClipError` as `resized_schema`, and `SchemaError` for per-frame intrinsics.
        """
        if sizes is None:
            return None
        found = cls(resized_schema(schema, sizes))
        for name, spec in schema.items() if found.resized else ():
            owner = name.removesuffix(OWN_INTRINSICS)
            is_of_other = owner != name and owner in schema and owner not in found.resized
            if spec.kind == "intrinsics" and not is_of_other:
                raise SchemaError(
                    "per-frame intrinsics of frames that are resized before they are stored",
                    feature=name,
                    expected=f"features without {name}, or resize= of the loaders",
                    got=", ".join(found.resized),
                )
        return found if found.resized else None

    @cached_property
    def resized(self) -> dict[str, FeatureSpec]:
        """The features with another size."""
        changed = {n: spec for n, spec in self.features.items() if spec.stored_shape is not None}
        return {n: spec for n, spec in changed.items() if spec.stored_shape != spec.shape}

    @property
    def schema(self) -> Schema:
        """The features as they are stored; resized ones have no codec yet."""
        return Schema(
            [
                replace(spec, codec=(), stored_shape=None) if spec.name in self.resized
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
            columns[name] = [self._frame(name, item) for item in columns[name]]
        return Block(block.num_frames, columns)

    def metadata(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """An episode's metadata, with a `camera` that has the intrinsics of resized frames.

        Cameras become those of single features; one whose size is unknown is left out.
        """
        camera = metadata.get("camera")
        if not isinstance(camera, Mapping):
            return metadata
        found: dict[str, Any] = {n: own for n, own in camera.items() if isinstance(own, Mapping)}
        for name, spec in self.features.items():
            own = camera.get(name, camera)
            if not has_pixels(spec.stored) or not isinstance(own, Mapping):
                continue
            found[name] = {n: value for n, value in own.items() if not isinstance(value, Mapping)}
            if name in self.resized:
                height, width = (side or 0 for side in spec.shape[:2])
                of = EpisodeCamera(name, spec.stored.shape[:2], (height, width))
                values = dict(zip(INTRINSICS, of.intrinsics([camera])[0].tolist(), strict=True))
                found[name] |= {**values, "width": width, "height": height}
                if any(map(math.isnan, values.values())):
                    del found[name]
        return {**metadata, "camera": found}

    def _frame(self, name: str, item: Any) -> npt.NDArray[Any]:
        codec, spec = self._codecs[name], self.resized[name]
        if isinstance(item, EncodedImage):
            blob = codec.encode_frame(item)
            frame = np.empty(blob.shape, spec.dtype)
            codec.decode_into(memoryview(codec.join([blob])), 1, [frame])
        else:
            frame = np.asarray(plain(item, name))
            check_fits(codec.spec, frame.dtype, frame.shape)
        out = np.empty([size or 0 for size in spec.shape], spec.dtype)
        resize_frame(spec, np.ascontiguousarray(frame, spec.dtype), out)
        return out

    @cached_property
    def _codecs(self) -> dict[str, PageCodec]:
        """Codecs of frames as the source yields them: video comes decoded."""
        specs = {name: spec.stored for name, spec in self.resized.items()}
        return {
            name: PageCodec(replace(spec, codec=()) if spec.is_video else spec)
            for name, spec in specs.items()
        }
