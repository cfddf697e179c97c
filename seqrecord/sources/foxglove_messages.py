"""Images of Foxglove's schemas, as protocol buffers or as JSON.

https://docs.foxglove.dev/docs/sdk/schemas. In JSON, bytes are base64.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from seqrecord.sources.images import pixels
from seqrecord.sources.protobuf import fields
from seqrecord.sources.ros_messages import Encoded, Message

__all__ = ["FOXGLOVE_TYPES", "decode_foxglove", "field_numbers"]

FOXGLOVE_TYPES = {
    "foxglove.RawImage": ("width", "height", "encoding", "step", "data"),
    "foxglove.CompressedImage": ("data", "format"),
}
"""By name: the fields that are read."""


def decode_foxglove(
    type_name: str, data: bytes | memoryview, numbers: dict[int, str] | None
) -> Message:
    """A message of one of `FOXGLOVE_TYPES`; raises `ValueError` for bytes that are none.

    `numbers` are the fields of the protocol buffer by number; `None` for JSON.
    """
    found = _json(data) if numbers is None else _protobuf(memoryview(data), numbers)
    image = found.get("data", b"")
    if type_name == "foxglove.CompressedImage":
        return Message({"": Encoded(bytes(image))}, "image")
    sizes = {name: found.get(name, 0) for name in ("width", "height", "step")}
    if not all(isinstance(size, int) for size in sizes.values()):
        raise ValueError(f"sizes that are no numbers: {sizes}"[:200])
    encoding = str(found.get("encoding", ""))
    array = pixels(memoryview(image), encoding=encoding, big_endian=False, **sizes)
    return Message({"": array}, "image")


def field_numbers(descriptors: bytes, type_name: str) -> dict[int, str]:
    """The fields of a message by number, from a `FileDescriptorSet`.

    https://github.com/protocolbuffers/protobuf/blob/main/src/google/protobuf/descriptor.proto.
    Raises `ValueError` where the message, or a field that is needed, is not in it.
    """
    package, _, name = type_name.rpartition(".")
    for file in _children(memoryview(descriptors), 1):
        if _text(file, 2) != package:
            continue
        for message in _children(file, 4):
            if _text(message, 1) == name:
                found = {}
                for each in _children(message, 2):
                    number = next((v for n, _, v in fields(each) if n == 3), None)
                    if isinstance(number, int):
                        found[number] = _text(each, 1)
                if set(FOXGLOVE_TYPES[type_name]) <= {*found.values()}:
                    return found
    raise ValueError(f"no definition of {type_name} with {', '.join(FOXGLOVE_TYPES[type_name])}")


def _protobuf(data: memoryview, numbers: dict[int, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, _, value in fields(data):
        name = numbers.get(number)
        if name in ("encoding", "format"):
            value = bytes(value).decode() if isinstance(value, memoryview) else ""  # type: ignore[assignment]
        if name is not None:
            found[name] = value
    if not isinstance(found.get("data", b""), (bytes, memoryview)):
        raise ValueError("data that is no bytes")
    return found


def _json(data: bytes | memoryview) -> dict[str, Any]:
    try:
        found = json.loads(bytes(data))
        if not isinstance(found, dict):
            raise ValueError("not an object")
        return {**found, "data": base64.b64decode(found.get("data", ""), validate=True)}
    except (TypeError, RecursionError) as error:
        raise ValueError(f"not a message in JSON: {error}") from error


def _children(message: memoryview, number: int) -> list[memoryview]:
    return [v for n, _, v in fields(message) if n == number and isinstance(v, memoryview)]


def _text(message: memoryview, number: int) -> str:
    found = _children(message, number)
    return bytes(found[-1]).decode() if found else ""
