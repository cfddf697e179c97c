"""CRC32C against its published test vectors."""

from __future__ import annotations

import array
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord.checksum import Buffer, combined_crc32c, crc32c


@pytest.mark.parametrize(
    ("data", "value"),
    [  # RFC 3720, B.4, and the check value of the CRC catalogue
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_vectors(data: bytes, value: int) -> None:
    for same in (data, bytearray(data), memoryview(data), memoryview(bytearray(data))):
        assert crc32c(same) == value


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_parts_count_as_joined(parts: list[bytes]) -> None:
    assert crc32c(*parts) == crc32c(b"".join(parts))


def test_any_buffer() -> None:
    numbers: list[Buffer] = [
        memoryview(array.array("I", [1, 2, 3])),
        np.array([[1, 2, 3]], "<u4").data,
    ]
    for buffer in numbers:
        assert crc32c(buffer) == crc32c(bytes(buffer))


@pytest.mark.parametrize(
    ("size", "count", "last"), [(1, 1, 1), (7, 3, 2), (4096, 5, 4096), (100_001, 3, 17)]
)
def test_joined_checksums(size: int, count: int, last: int) -> None:
    data = random.Random(size).randbytes(size * (count - 1) + last)
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    assert len(parts) == count
    assert combined_crc32c([crc32c(part) for part in parts], size, last) == crc32c(data)


def test_nothing_joined() -> None:
    assert combined_crc32c([], 5, 5) == crc32c(b"") == 0
