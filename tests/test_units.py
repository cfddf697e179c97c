"""Sizes as numbers and as text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from seqrecord.units import format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, 0),
        (2147483648, 2147483648),
        (np.int64(7), 7),
        ("12", 12),
        ("12B", 12),
        ("2GiB", 2 << 30),
        (" 1.5 GB ", 1_500_000_000),
        ("1.5 kib", 1536),
        ("0.1 kB", 100),
        ("3TiB", 3 << 40),
        ("9007199254740993", 9007199254740993),  # more than a float holds
        ("0.3 B", 0),
    ],
)
def test_parse(size: Any, expected: int) -> None:
    assert parse_size(size) == expected


@pytest.mark.parametrize(
    "size",
    [
        "",
        "GiB",
        "-1",
        "1 XB",
        "1,5 GB",
        "1e9",
        "inf",
        "٣ GB",
        "9" * 400,
        "9223372036854775808",
        "9" * 30 + "PB",
        1 << 63,
        pytest.param(10**5000, id="long"),
        pytest.param(-(10**5000), id="below"),
        "1..5",
        -1,
        True,
        1.5,
        None,
    ],
)
def test_not_a_size(size: Any) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(size)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        (2 << 30, "2.0 GiB"),
        (5000 << 40, "5000.0 TiB"),
    ],
)
def test_format(size: int, expected: str) -> None:
    assert format_size(size) == expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7d", 604_800), ("12h", 43_200), ("1.5m", 90), ("90", 90), ("0", 0), ("3s", 3)],
)
def test_parse_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "d", "-1d", "7w", "7 days", "1e3", "7D"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)
