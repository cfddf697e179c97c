"""TFRecord files and their messages, encoded by Google's protobuf library."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crc32c import crc32c
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format


def messages_of(file: str) -> dict[str, Any]:
    """Message classes of a `FileDescriptorProto`, given as text, by name."""
    described = text_format.Parse(file, descriptor_pb2.FileDescriptorProto(syntax="proto3"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(described)
    names = {each.name: f"{described.package}.{each.name}" for each in described.message_type}
    find = pool.FindMessageTypeByName
    return {n: message_factory.GetMessageClass(find(full)) for n, full in names.items()}


def _one(name: str, number: int, kind: str, more: str = "label: LABEL_OPTIONAL") -> str:
    return f'field {{ name: "{name}" number: {number} type: TYPE_{kind} {more} }} '


def _many(name: str, number: int, kind: str, of: str = "") -> str:
    return _one(name, number, kind, "label: LABEL_REPEATED" + (of and f' type_name: ".t.{of}"'))


def _sub(name: str, number: int, of: str) -> str:
    return _one(name, number, "MESSAGE", f'label: LABEL_OPTIONAL type_name: ".t.{of}"')


def _map(of: str) -> str:
    entry = _one("key", 1, "STRING") + _sub("value", 2, of)
    return f'nested_type {{ name: "Entry" options {{ map_entry: true }} {entry} }}'


_FIELDS = {  # fields of feature.proto and example.proto
    "BytesList": _many("value", 1, "BYTES"),
    "FloatList": _many("value", 1, "FLOAT"),
    "Int64List": _many("value", 1, "INT64"),
    "Feature": _sub("bytes_list", 1, "BytesList")
    + _sub("float_list", 2, "FloatList")
    + _sub("int64_list", 3, "Int64List"),
    "Features": _many("feature", 1, "MESSAGE", "Features.Entry") + _map("Feature"),
    "FeatureList": _many("feature", 1, "MESSAGE", "Feature"),
    "FeatureLists": _many("feature_list", 1, "MESSAGE", "FeatureLists.Entry") + _map("FeatureList"),
    "Example": _sub("features", 1, "Features"),
    "SequenceExample": _sub("context", 1, "Features") + _sub("feature_lists", 2, "FeatureLists"),
}
_TEXT = [f'message_type {{ name: "{name}" {fields} }}' for name, fields in _FIELDS.items()]
MESSAGES = messages_of(f'name: "e.proto" package: "t" {" ".join(_TEXT)}')


def _fill(feature: Any, values: Sequence[Any]) -> None:
    kind = {bytes: "bytes_list", float: "float_list", int: "int64_list"}[type(values[0])]
    getattr(feature, kind).value.extend(values)


def example(features: Mapping[str, Sequence[Any]]) -> bytes:
    """A tf.train.Example with lists of bytes, floats or ints."""
    made = MESSAGES["Example"]()
    for name, values in features.items():
        _fill(made.features.feature[name], values)
    return bytes(made.SerializeToString())


def sequence_example(
    context: Mapping[str, Sequence[Any]], lists: Mapping[str, Sequence[Sequence[Any]]]
) -> bytes:
    """A tf.train.SequenceExample; `lists` have one list per step."""
    made = MESSAGES["SequenceExample"]()
    for name, values in context.items():
        _fill(made.context.feature[name], values)
    for name, steps in lists.items():
        for values in steps:
            _fill(made.feature_lists.feature_list[name].feature.add(), values)
    return bytes(made.SerializeToString())


def write_records(path: Path, records: Sequence[bytes]) -> Path:
    """Write a TFRecord file."""

    def masked(data: bytes) -> int:
        crc = crc32c(data)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32

    with path.open("wb") as stream:
        for data in records:
            size = struct.pack("<Q", len(data))
            stream.write(size + struct.pack("<I", masked(size)))
            stream.write(data + struct.pack("<I", masked(data)))
    return path
