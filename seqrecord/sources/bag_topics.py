"""Topics as features: which features a topic has, and a message's values for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.schema import EncodedImage, FeatureSpec
from seqrecord.sources.bag_files import Topic
from seqrecord.sources.embedded import embedded_spec, embedded_value
from seqrecord.sources.messages import (
    FOXGLOVE_TYPES,
    ROS_TYPES,
    Encoded,
    Message,
    check_definition,
    decode_foxglove,
    decode_ros,
    field_numbers,
)
from seqrecord.sources.specs import feature_spec, text_spec

__all__ = ["IMAGES", "READABLE", "TopicFeatures", "can_read", "decoder"]

READABLE = f"{', '.join(ROS_TYPES)} (cdr), {', '.join(FOXGLOVE_TYPES)} (protobuf, json)"
"""The types of messages that become features, in words."""

IMAGES = ("Image", "CompressedImage", "RawImage")
"""How names of types end that are images."""


def can_read(topic: Topic) -> bool:
    """Whether messages of this topic become features."""
    if topic.encoding == "cdr":
        return topic.type in ROS_TYPES
    return topic.encoding in ("protobuf", "json") and topic.type in FOXGLOVE_TYPES


def decoder(topic: Topic, path: Path) -> Callable[[bytes], Message]:
    """What decodes messages of a topic for which `can_read`.

    It raises `ValueError`; this function `SourceError`, where the file defines the type otherwise.
    """
    try:
        if topic.encoding == "cdr":
            if topic.definition and topic.definition_encoding == "ros2msg":
                check_definition(topic.type, topic.definition.decode(errors="replace"))
            return lambda data: decode_ros(topic.type, data)
        numbers = None
        if topic.encoding == "protobuf":
            numbers = field_numbers(topic.definition, topic.type)
        return lambda data: decode_foxglove(topic.type, data, numbers)
    except ValueError as error:
        raise SourceError(str(error)[:500], file=str(path), got=topic.name[:200]) from error


class TopicFeatures:
    """The features of one topic, as its first message has them."""

    def __init__(self, prefix: str, message: Message, path: Path, *, keep_encoded: bool) -> None:
        self.names = message.names
        self.specs: dict[str, FeatureSpec] = {}
        for suffix, value in message.values.items():
            name = f"{prefix}.{suffix}" if suffix else prefix
            if isinstance(value, Encoded):
                spec = embedded_spec(name, value.data, path, keep_encoded=keep_encoded)
            elif isinstance(value, str):
                spec = text_spec(name, path)
            else:
                meaning = {"kind": message.kind, "unit": message.units.get(suffix)}
                spec = feature_spec(name, value.dtype, value.shape, path, **meaning)
            self.specs[suffix] = spec

    def select(self, names: Mapping[str, Any]) -> TopicFeatures:
        """Those whose names are in `names`."""
        chosen = object.__new__(TopicFeatures)
        chosen.names = self.names
        chosen.specs = {suffix: spec for suffix, spec in self.specs.items() if spec.name in names}
        return chosen

    def frame(
        self, message: Message, path: Path
    ) -> dict[str, npt.NDArray[Any] | EncodedImage | str]:
        """The values of a later message by feature; those that it lacks are left out.

        Elements that have names are put into the order of the first message. Raises `SourceError`
        for values of another dtype or shape, and for other names.
        """
        frame: dict[str, npt.NDArray[Any] | EncodedImage | str] = {}
        order = self._order(message, path)
        for suffix, spec in self.specs.items():
            value = message.values.get(suffix)
            if isinstance(value, Encoded):
                frame[spec.name] = embedded_value(value.data, spec, path)
            elif isinstance(value, str):
                frame[spec.name] = value
            elif value is not None:
                if value.dtype != spec.dtype or not spec.accepts(value.shape):
                    raise SourceError(
                        "a message that differs from the first one",
                        file=str(path),
                        feature=spec.name,
                        expected=str(spec),
                        got=f"{value.dtype.name} {list(value.shape)}",
                    )
                frame[spec.name] = value if order is None else value[order]
        return frame

    def _order(self, message: Message, path: Path) -> list[int] | None:
        """Where the elements of the first message are in this one, if not in the same places."""
        if message.names == self.names:
            return None
        places = {name: i for i, name in enumerate(message.names)}
        if places.keys() != {*self.names} or len(places) != len(message.names):
            raise SourceError(
                "a message of other joints than the first one",
                file=str(path),
                feature=next((spec.name for spec in self.specs.values()), None),
                expected=", ".join(self.names)[:200],
                got=", ".join(message.names)[:200],
            )
        return [places[name] for name in self.names]
