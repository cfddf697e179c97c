"""Sketches against the numbers themselves: counts, moments, extremes, quantiles' bound."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqrecord.errors import FormatError
from seqrecord.statistics.moments import moments_of
from seqrecord.statistics.sketch import LEVEL_VALUES, Sketch, sketch_dtype

SHARES = [0.0, 0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1.0]


def draw(kind: str, rng: np.random.Generator, count: int, dtype: str) -> npt.NDArray[Any]:
    """Numbers of a kind that is hard in its own way."""
    makers: dict[str, Callable[[], npt.NDArray[Any]]] = {
        "normal": lambda: rng.normal(3, 100, count),
        "few values": lambda: rng.integers(0, 5, count),
        "sorted": lambda: np.arange(count) % 30_000,
        "falling": lambda: np.arange(count)[::-1] % 30_000,
        "heavy tail": lambda: rng.pareto(1, count).clip(0, 30_000),
        "constant": lambda: np.full(count, 7),
    }
    values = makers[kind]()
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        values = values.clip(info.min, info.max)
    return values.astype(dtype)


KINDS = ["normal", "few values", "sorted", "falling", "heavy tail", "constant"]


def check(sketch: Sketch, values: npt.NDArray[Any]) -> None:
    """That a sketch says of all these numbers what it promises."""
    assert sketch.count == len(values)
    assert sum(len(level) << h for h, level in enumerate(sketch.levels)) == len(values)
    assert all(len(level) < LEVEL_VALUES for level in sketch.levels)
    if not len(values):
        return
    assert (sketch.min, sketch.max) == (values.min(), values.max())
    exact = values.astype(np.float64)
    size = max(abs(exact.min()), abs(exact.max()))
    assert sketch.mean == pytest.approx(exact.mean(), rel=1e-9, abs=1e-12 * size)
    assert sketch.std == pytest.approx(exact.std(), rel=1e-9, abs=1e-9 * size)
    ordered, error = np.sort(values), sketch.rank_error * len(values)
    for share, found in zip(SHARES, sketch.quantiles(SHARES), strict=True):
        value = np.array(found).astype(values.dtype)
        assert value in values
        smaller = np.searchsorted(ordered, value, "left")
        no_larger = np.searchsorted(ordered, value, "right")
        assert smaller <= share * len(values) + error + 1e-6
        assert no_larger >= share * len(values) - error - 1e-6


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from(["|u1", "<i2", "<u4", "<i8", "<f4", "<f8"]),
    parts=st.lists(st.integers(0, 9_000), min_size=1, max_size=6),
    seed=st.integers(0, 2**32),
)
def test_parts_added_and_merged(kind: str, dtype: str, parts: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = [draw(kind, rng, count, dtype) for count in parts]
    added, merged = Sketch(np.dtype(dtype)), Sketch(np.dtype(dtype))
    for array in arrays:
        added.add(array)
        part = Sketch(np.dtype(dtype))
        part.add(array)
        before = part.to_json()
        merged.merge(part)
        assert part.to_json() == before, "what is merged is left as it is"
    for sketch in (added, merged):
        check(sketch, np.concatenate(arrays))
        check(
            Sketch.from_json(json.loads(json.dumps(sketch.to_json())), sketch.dtype),
            np.concatenate(arrays),
        )


@pytest.mark.parametrize("kind", KINDS)
def test_many_numbers_in_small_parts_stay_within_half_a_percent(kind: str) -> None:
    rng = np.random.default_rng(1)
    values = draw(kind, rng, 1_000_000, "<f4")
    trees = [Sketch(np.dtype("<f4")) for _ in range(16)]
    for number, part in enumerate(np.array_split(values, 2_000)):
        trees[number % 16].add(part)
    while len(trees) > 1:  # as workers' sketches are merged
        for one, two in zip(trees[::2], trees[1::2], strict=True):
            one.merge(two)
        trees = trees[::2]
    check(trees[0], values)
    assert 0 < trees[0].rank_error < 0.005


def test_what_is_not_finite_is_counted_apart() -> None:
    values = np.array([1, np.nan, 3, np.inf, -np.inf, np.inf, 2], np.float32)
    one, two = Sketch(np.dtype("<f4")), Sketch(np.dtype("<f4"))
    one.add(values)
    two.add(np.array([np.nan, np.nan], np.float32))
    two.merge(one)
    for sketch, nan in ((one, 1), (two, 3)):
        counts = (sketch.nan, sketch.positive_infinity, sketch.negative_infinity)
        assert counts == (nan, 2, 1)
        check(sketch, np.array([1, 3, 2], np.float32))


def test_quantiles_are_of_what_was_drawn() -> None:
    every = np.arange(3000.0)
    sketch = Sketch(np.dtype("<f8"))
    sketch.add_moments(moments_of(every[:, None])[0])
    assert np.isnan(sketch.quantiles([0.5])).all()
    sketch.add_drawn(every[1000:1010])
    again = Sketch.from_json(json.loads(json.dumps(sketch.to_json())), sketch.dtype)
    for one in (sketch, again):
        assert (one.count, one.weight, one.mean) == (3000, 10, 1499.5)
        assert one.quantiles([0, 0.5, 1]).tolist() == [0, 1004, 2999]


@pytest.mark.parametrize("count", [1, 500, 70_001])
@pytest.mark.parametrize("channels", [1, 3, 7])
@pytest.mark.parametrize("dtype", ["|u1", "<u2", "<i8", "<f4", "<f8"])
def test_moments_of_all_numbers(dtype: str, channels: int, count: int) -> None:
    rng = np.random.default_rng(count)
    pixels = (1e6 * (dtype != "|u1") + rng.integers(0, 200, (count, channels))).astype(dtype)
    odd = np.zeros((3, channels), int)
    if dtype[1] == "f" and count > 1:
        for row, value in enumerate((np.nan, np.inf, -np.inf)):
            pixels[row::100, 0] = value
            odd[row, 0] = len(pixels[row::100])
    for column, found in enumerate(map(astuple, moments_of(pixels))):
        finite = pixels[np.isfinite(pixels[:, column]), column]
        exact = finite.astype(np.float64)
        assert found[:4] == (len(finite), *odd[:, column])
        np.testing.assert_allclose(found[4:6], (exact.mean(), exact.std()), rtol=1e-12)
        assert found[6:] == (finite.min(), finite.max())


def test_moments_of_what_has_no_square() -> None:
    for size in (1e300, 1e-200):
        pixels = np.array([[1, 1], [np.nan, 2], [3, 3]]) * [size, 1]
        large, usual = map(astuple, moments_of(pixels))
        np.testing.assert_allclose(np.array(large[4:]) / size, [2, 1, 1, 3])
        np.testing.assert_allclose(usual[4:], [2, np.sqrt(2 / 3), 1, 3])


def test_nothing_has_no_quantiles() -> None:
    sketch = Sketch(np.dtype("<f8"))
    sketch.add(np.array([np.nan]))
    assert np.isnan(sketch.quantiles([0, 0.5, 1])).all()
    assert sketch.rank_error == 0
    assert Sketch.from_json(sketch.to_json(), sketch.dtype).to_json() == sketch.to_json()
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="from 0 to 1"):
            sketch.quantiles([share])


def test_the_largest_floats_overflow_nothing() -> None:
    most = np.finfo(np.float64).max
    values = np.tile([most, -most, most, most], 1000)
    one, two = Sketch(np.dtype("<f8")), Sketch(np.dtype("<f8"))
    with np.errstate(all="raise", under="ignore"):
        one.add(values)
        two.add(values[:3])
        one.merge(two)
    assert np.isfinite([one.mean, one.std]).all()
    assert one.mean == pytest.approx(most / 2, rel=1e-3)
    assert one.std == pytest.approx(most * np.sqrt(0.75), rel=1e-3)
    Sketch.from_json(json.loads(json.dumps(one.to_json())), one.dtype)


def test_large_integers_keep_their_extremes() -> None:
    values = np.array([2**63 - 1, -(2**63) + 1, 5], np.int64)
    sketch = Sketch(np.dtype("<i8"))
    sketch.add(values)
    assert (sketch.min, sketch.max) == (-(2**63) + 1, 2**63 - 1)
    again = Sketch.from_json(json.loads(json.dumps(sketch.to_json())), sketch.dtype)
    assert (again.min, again.max) == (sketch.min, sketch.max)


def test_dtypes_in_which_numbers_are_kept() -> None:
    for name, kept in {"|b1": "|u1", "<f2": "<f4", "<f4": "<f4", "<i8": "<i8"}.items():
        assert sketch_dtype(np.dtype(name)) == np.dtype(kept)
    assert sketch_dtype(np.dtype("<c8")) is None


BAD: dict[str, Any] = {
    "count": [3, -1, 1.0, True, None, 2**60],
    "nan": [-1, "1", None],
    "positive_infinity": [-1],
    "negative_infinity": [0.5],
    "over": [-1, 2**52],
    "under": [None],
    "mean": [9.0, float("nan"), float("inf"), "1", None, True],
    "std": [-1.0, 50.0, float("nan")],
    "min": [2.0, None, "1", float("nan"), 0.1],
    "max": [3.0, 1e300, 10**400, None],
    "levels": [None, ["AAA="], ["é"], [1], ["AAAA"], [""] * 60, ["A" * 10**6], ["AADAfw=="]],
}


@pytest.mark.parametrize("key", BAD)
def test_bad_json_is_refused(key: str) -> None:
    sketch = Sketch(np.dtype("<f4"))
    sketch.add(np.array([1, 2, 3, 4], np.float32))
    good = sketch.to_json()
    Sketch.from_json(good, sketch.dtype)
    others: list[Any] = [None, [], "x", {}, {"count": 1}, {**good, "more": 1}]
    for bad in (*({**good, key: value} for value in BAD[key]), *others):
        with pytest.raises(FormatError):
            Sketch.from_json(bad, sketch.dtype)
