"""Messages of arbitrary bytes: each is a message, or a `ValueError`."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord.sources.common.images import pixels
from seqrecord.sources.mcap.messages import (
    FOXGLOVE_TYPES,
    ROS_TYPES,
    decode_foxglove,
    decode_ros,
    field_numbers,
)
from seqrecord.sources.mcap.protobuf import fields, read_varint, varints
from tests.bags import IMAGE, IMU, JOINTS, STORE, image, imu, joints

GOOD = [
    (IMAGE, image(np.zeros((2, 3, 3), np.uint8), "rgb8")),
    (IMU, imu([0.0] * 10)),
    (JOINTS, joints(["a", "b"], [1, 2], [3, 4])),
]
NUMBERS = {1: "width", 2: "height", 3: "encoding", 4: "step", 5: "data", 6: "format"}


@given(st.sampled_from([*ROS_TYPES]), st.binary(max_size=120), st.sampled_from([0, 1]))
def test_ros(name: str, data: bytes, order: int) -> None:
    with suppress(ValueError):
        decode_ros(name, bytes([0, order, 0, 0]) + data)


@given(st.sampled_from(GOOD), st.data())
def test_ros_messages_that_are_changed(good: tuple[str, Any], data: st.DataObject) -> None:
    name, message = good
    whole = bytes(STORE.serialize_cdr(message, name))
    at = data.draw(st.integers(0, len(whole) - 1))
    cut = data.draw(st.integers(0, len(whole)))
    changed = whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :]
    for each in (changed, whole[:cut], changed[:cut]):
        with suppress(ValueError):
            decode_ros(name, each)


@pytest.mark.parametrize(("name", "message"), GOOD, ids=[name for name, _ in GOOD])
def test_both_orders_of_bytes(name: str, message: Any) -> None:
    both = [
        decode_ros(name, bytes(STORE.serialize_cdr(message, name, little_endian=little)))
        for little in (True, False)
    ]
    assert both[0].names == both[1].names
    assert both[0].values.keys() == both[1].values.keys()
    for end, value in both[0].values.items():
        np.testing.assert_array_equal(value, both[1].values[end])


@given(st.sampled_from([*FOXGLOVE_TYPES]), st.binary(max_size=120))
def test_foxglove_in_protocol_buffers(name: str, data: bytes) -> None:
    with suppress(ValueError):
        decode_foxglove(name, data, NUMBERS)
    with suppress(ValueError):
        field_numbers(data, name)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(
    st.sampled_from([*FOXGLOVE_TYPES]),
    st.fixed_dictionaries({}, optional=dict.fromkeys(["data", "width", "height", "step"], JSON)),
    JSON,
)
def test_foxglove_in_json(name: str, message: dict[str, Any], other: Any) -> None:
    picture = {"encoding": "rgb8", "data": base64.b64encode(bytes(60)).decode(), **message}
    for value in (picture, message, other):
        with suppress(ValueError):
            decode_foxglove(name, json.dumps(value).encode(), None)


@given(
    st.binary(max_size=60),
    st.integers(0, 2**32 - 1) | st.integers(0, 9),
    st.integers(0, 2**32 - 1) | st.integers(0, 9),
    st.integers(0, 2**32 - 1) | st.integers(0, 40),
    st.sampled_from(["rgb8", "bgra8", "mono16", "32FC3", "64FC1", "8SC2", "bayer_bggr16", "x"]),
    st.booleans(),
)
def test_pixels(
    data: bytes, height: int, width: int, step: int, encoding: str, big_endian: bool
) -> None:
    with suppress(ValueError):
        got = pixels(
            memoryview(data),
            height=height,
            width=width,
            step=step,
            encoding=encoding,
            big_endian=big_endian,
        )
        assert got.shape[:2] == (height, width)
        assert got.nbytes <= len(data)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30))
def test_varints(numbers: list[int]) -> None:
    data = bytearray()
    for number in numbers:
        rest = number % 2**64
        while rest >= 128:
            data.append(rest & 127 | 128)
            rest >>= 7
        data.append(rest)
    assert varints(memoryview(data)).tolist() == numbers
    position = 0
    for number in numbers:
        got, position = read_varint(memoryview(data), position)
        assert got == number % 2**64


@given(st.binary(max_size=60))
def test_any_bytes_as_varints_and_fields(data: bytes) -> None:
    with suppress(ValueError):
        varints(memoryview(data))
    with suppress(ValueError):
        assert sum(len(v) for _, _, v in fields(memoryview(data)) if isinstance(v, memoryview)) < 60
