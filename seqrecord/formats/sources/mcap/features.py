"""Features of a topic, from its first message."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.formats.sources.common.embedded import embedded_spec, embedded_value
from seqrecord.formats.sources.common.images import IMAGE_FORMATS, embedded_format
from seqrecord.formats.sources.common.specs import check_like_first, feature_spec, text_spec
from seqrecord.formats.sources.mcap.messages import Encoded, Message, Packet, Value
from seqrecord.formats.sources.mcap.videos import describe
from seqrecord.store.feature_kinds import pixel_kind
from seqrecord.store.schema import EncodedImage, FeatureSpec


class TopicFeatures:
    """The features of one topic from its first message, restricted to `selected_names` if given.

    `decoded_format` is the format of images that cannot be kept encoded, such as `webp`.
    """

    def __init__(
        self,
        prefix: str,
        message: Message,
        path: Path,
        selected_names: Container[str] | None,
        **image_options: Any,
    ) -> None:
        self.names = {suffix: value.names for suffix, value in message.items() if value.names}
        self._prefix = prefix
        self._first_suffixes = frozenset(message) if selected_names is None else None
        self.specs: dict[str, FeatureSpec] = {}
        self.decoded_format: str | None = None
        for suffix, value in message.items():
            name = self._name_of(suffix)
            if selected_names is not None and name not in selected_names:
                continue
            data, kind, unit = value.data, value.kind, value.unit
            if isinstance(data, Encoded):
                spec = embedded_spec(name, data.data, path, **image_options)
                if (format_ := embedded_format(data.data)) not in IMAGE_FORMATS.values():
                    self.decoded_format = format_
                if kind == "depth":
                    _check_depth(spec, path)
                    dtype = np.dtype("<f4") if data.inverse else spec.dtype
                    spec = replace(spec, kind="depth", unit=unit, dtype=dtype)
            elif isinstance(data, str):
                spec = text_spec(name, path)
            elif isinstance(data, Packet):
                config, size = describe(data, path)
                kind = pixel_kind(name, config.dtype, size) or kind
                spec = feature_spec(name, config.dtype, size, path, kind=kind)
            else:
                if kind == "image":
                    kind = pixel_kind(name, data.dtype, data.shape) or kind
                    unit = unit if kind == "depth" else None
                spec = feature_spec(name, data.dtype, value.shape, path, kind=kind, unit=unit)
            self.specs[suffix] = spec

    def _name_of(self, suffix: str) -> str:
        return ".".join(filter(None, (self._prefix, suffix)))

    def unread(self, message: Message) -> list[str]:
        """Return names of values that the first message lacks, unless features are selected."""
        if self._first_suffixes is None:
            return []
        return [self._name_of(suffix) for suffix in message if suffix not in self._first_suffixes]

    @property
    def poses(self) -> set[str]:
        """Names of poses, which a message whose translation is not finite lacks."""
        return {spec.name for spec in self.specs.values() if spec.kind == "pose"}

    def frame(
        self, message: Message, path: Path, exif: str | None
    ) -> dict[str, npt.NDArray[Any] | EncodedImage | str]:
        """Return a later message's values by feature, without missing ones.

        Named elements are reordered like the first message. Raises `SourceError` for another dtype,
        shape or set of names.
        """
        frame: dict[str, npt.NDArray[Any] | EncodedImage | str] = {}
        for suffix, spec in self.specs.items():
            if (value := message.get(suffix)) is None:
                continue
            data = value.data
            assert not isinstance(data, Packet)  # decoded by `TopicVideo`
            if isinstance(data, Encoded) and data.inverse:
                codes = replace(spec, dtype=np.dtype("<u2"))
                pixels = embedded_value(data.data, codes, path, exif)
                frame[spec.name] = data.depth(np.asarray(pixels))
            elif isinstance(data, Encoded):
                frame[spec.name] = embedded_value(data.data, spec, path, exif)
            elif isinstance(data, str):
                frame[spec.name] = data
            elif spec.kind == "pose" and not np.isfinite(data[:3]).all():
                continue  # tracking failed
            else:
                order = self._order(value, suffix, path)
                check_like_first("the message", data.dtype, data.shape, spec, path)
                frame[spec.name] = data if order is None else data[..., order]
        return frame

    def _order(self, value: Value, suffix: str, path: Path) -> list[int] | None:
        """Return indices that reorder named elements like the first message; `None` if equal."""
        first_names, names = self.names.get(suffix, ()), value.names
        if names == first_names:
            return None
        places = {name: i for i, name in enumerate(names)}
        if places.keys() != {*first_names} or len(places) != len(names):
            raise SourceError(
                f"the message has other {'joints' if value.kind == 'state' else 'columns'} than "
                "the first one",
                file=str(path),
                feature=self.specs[suffix].name,
                expected=", ".join(first_names)[:200],
                got=", ".join(names)[:200],
            )
        return [places[name] for name in first_names]


def _check_depth(spec: FeatureSpec, path: Path) -> None:
    """Raise `SourceError` unless an encoded depth image has the type that its message declares."""
    if spec.dtype != np.uint16 or len(spec.shape) != 2:
        raise SourceError(
            "the payload of a depth image differs from its declared encoding",
            file=str(path),
            feature=spec.name,
            expected="a PNG of one channel of 16 bits",
            got=f"{spec.dtype} {list(spec.shape)}",
        )
