"""TFRecord files and their messages, encoded by Google's protobuf library."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crc32c import crc32c
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["example", "sequence_example", "write_records"]

_Kinds = descriptor_pb2.FieldDescriptorProto


def _messages() -> dict[str, Any]:
    """The classes of feature.proto and example.proto."""
    file = descriptor_pb2.FileDescriptorProto(name="e.proto", package="t", syntax="proto3")

    def message(name: str, fields: Sequence[tuple[str, int, int, str, bool]]) -> Any:
        made = file.message_type.add(name=name)
        for field, number, kind, type_name, repeated in fields:
            label = _Kinds.LABEL_REPEATED if repeated else _Kinds.LABEL_OPTIONAL
            made.field.add(
                name=field, number=number, type=kind, label=label, type_name=type_name or None
            )
        return made

    def mapping(name: str, field: str, of: str) -> None:
        made = message(name, [(field, 1, _Kinds.TYPE_MESSAGE, f".t.{name}.Entry", True)])
        entry = made.nested_type.add(name="Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=_Kinds.TYPE_STRING, label=1)
        entry.field.add(name="value", number=2, type=_Kinds.TYPE_MESSAGE, label=1, type_name=of)

    sub = _Kinds.TYPE_MESSAGE
    message("BytesList", [("value", 1, _Kinds.TYPE_BYTES, "", True)])
    message("FloatList", [("value", 1, _Kinds.TYPE_FLOAT, "", True)])
    message("Int64List", [("value", 1, _Kinds.TYPE_INT64, "", True)])
    message(
        "Feature",
        [
            ("bytes_list", 1, sub, ".t.BytesList", False),
            ("float_list", 2, sub, ".t.FloatList", False),
            ("int64_list", 3, sub, ".t.Int64List", False),
        ],
    )
    mapping("Features", "feature", ".t.Feature")
    message("FeatureList", [("feature", 1, sub, ".t.Feature", True)])
    mapping("FeatureLists", "feature_list", ".t.FeatureList")
    message("Example", [("features", 1, sub, ".t.Features", False)])
    message(
        "SequenceExample",
        [
            ("context", 1, sub, ".t.Features", False),
            ("feature_lists", 2, sub, ".t.FeatureLists", False),
        ],
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        each.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{each.name}"))
        for each in file.message_type
    }


MESSAGES = _messages()


def _fill(feature: Any, values: Sequence[Any]) -> None:
    kind = {bytes: "bytes_list", float: "float_list", int: "int64_list"}[type(values[0])]
    getattr(feature, kind).value.extend(values)


def example(features: Mapping[str, Sequence[Any]]) -> bytes:
    """A tf.train.Example of lists of bytes, floats or ints."""
    made = MESSAGES["Example"]()
    for name, values in features.items():
        _fill(made.features.feature[name], values)
    return bytes(made.SerializeToString())


def sequence_example(
    context: Mapping[str, Sequence[Any]], lists: Mapping[str, Sequence[Sequence[Any]]]
) -> bytes:
    """A tf.train.SequenceExample; of each of `lists` a list a step."""
    made = MESSAGES["SequenceExample"]()
    for name, values in context.items():
        _fill(made.context.feature[name], values)
    for name, steps in lists.items():
        for values in steps:
            _fill(made.feature_lists.feature_list[name].feature.add(), values)
    return bytes(made.SerializeToString())


def write_records(path: Path, records: Sequence[bytes]) -> Path:
    """A TFRecord file."""

    def masked(data: bytes) -> int:
        crc = crc32c(data)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32

    with path.open("wb") as stream:
        for data in records:
            size = struct.pack("<Q", len(data))
            stream.write(size + struct.pack("<I", masked(size)))
            stream.write(data + struct.pack("<I", masked(data)))
    return path
