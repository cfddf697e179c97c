"""The arguments `place`, `pad_to` and `normalize`: types and checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from seqrecord.pipes.checks import are_names, check
from seqrecord.statistics.normalization import MODES, Normalization
from seqrecord.units import is_integer

MOST_VALUES = 1 << 16  # of a vector in batches

Places: TypeAlias = Mapping[str, Sequence[int]]
VectorSizes: TypeAlias = Mapping[str, int]
Normalize: TypeAlias = "Mapping[str, str | Normalization]"


def check_place(name: str, value: Any) -> dict[str, tuple[int, ...]]:
    """Return places by feature: distinct indices in batches."""
    are_right = isinstance(value, Mapping) and are_names(value)
    check(name, value, are_right, 'a dict by feature: {"action": [0, 1, 2, 31]}')
    expected = f"distinct indices from 0 to {MOST_VALUES - 1}, one for each value"
    found = {}
    for feature, places in value.items():
        is_list = isinstance(places, (Sequence, np.ndarray)) and not isinstance(
            places, (str, bytes)
        )
        numbers: list[Any] = list(places) if is_list and getattr(places, "ndim", 1) == 1 else [-1]
        are_right = all(is_integer(one) and 0 <= one < MOST_VALUES for one in numbers)
        are_right = are_right and 0 < len(numbers) == len(set(numbers))
        check(f"{name} of {feature}", places, are_right, expected)
        found[feature] = tuple(map(int, numbers))
    return found


def check_pad_to(name: str, value: Any) -> dict[str, int]:
    """Return sizes by feature."""
    are_right = isinstance(value, Mapping) and are_names(value)
    check(name, value, are_right, 'a dict by feature: {"action": 32}')
    for feature, size in value.items():
        is_right = is_integer(size) and 1 <= size <= MOST_VALUES
        check(f"{name} of {feature}", size, is_right, f"a size from 1 to {MOST_VALUES}")
    return {feature: int(size) for feature, size in value.items()}


def check_normalize(name: str, value: Any) -> dict[str, str | Normalization]:
    """Return modes or normalizations by feature."""
    are_right = isinstance(value, Mapping) and are_names(value)
    check(name, value, are_right, 'a dict by feature: {"action": "mean_std"}')
    for feature, one in value.items():
        is_right = isinstance(one, Normalization) or (isinstance(one, str) and one in MODES)
        expected = " or ".join((*map(repr, MODES), "a seqrecord.Normalization"))
        check(f"{name} of {feature}", one, is_right, expected)
    return dict(value)
