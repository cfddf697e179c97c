"""Statistics of frames match NumPy on the same frames."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import reduce
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import seqrecord
from seqrecord import FeatureSpec, Schema
from seqrecord.errors import FormatError
from seqrecord.statistics import FeatureStatistics, Statistics
from tests.kit.datasets import write_dataset

Array = npt.NDArray[Any]


def spec(name: str, dtype: str, shape: tuple[int | None, ...]) -> FeatureSpec:
    return FeatureSpec(name, np.dtype(dtype), shape)


SCHEMA = Schema(
    [
        spec("image", "|u1", (32, 40, 3)),
        spec("depth", "<f4", (32, 40)),
        spec("half", "<f2", (5, 4)),
        spec("flag", "|b1", ()),
        spec("action", "<f8", (7,)),
        spec("imu", "<f4", (None, 6)),
        spec("ragged", "<i2", (None, None)),
        spec("spectrum", "<c8", (4,)),
    ]
)


def frame(rng: np.random.Generator) -> dict[str, Array]:
    depth = rng.normal(5, 2, (32, 40)).astype("<f4")
    depth[:4] = np.inf
    depth[4, :2] = np.nan
    return {
        "image": rng.integers(0, 256, (32, 40, 3), np.uint8),
        "depth": depth,
        "half": rng.normal(0, 1, (5, 4)).astype("<f2"),
        "flag": np.array(rng.random() < 0.25),
        "action": rng.normal(np.arange(7), 1, 7),
        "imu": rng.normal(0, 1, (rng.integers(0, 12), 6)).astype("<f4"),
        "ragged": rng.integers(-9, 9, tuple(rng.integers(1, 6, 2)), np.int16),
        "spectrum": np.ones(4, "<c8"),
    }


def episodes(seed: int, lengths: Sequence[int]) -> dict[str, list[dict[str, Array]]]:
    rng = np.random.default_rng(seed)
    return {f"e{i}": [frame(rng) for _ in range(count)] for i, count in enumerate(lengths)}


def statistics_of(schema: Schema, data: Mapping[str, Iterable[dict[str, Any]]]) -> Statistics:
    """Statistics of a dataset with these episodes."""
    with TemporaryDirectory() as folder:
        write_dataset(f"{folder}/d", data, schema=schema, codecs="raw")
        return seqrecord.open(f"{folder}/d").statistics


def test_a_short_last_axis_is_the_channel_axis() -> None:
    shapes: dict[tuple[int | None, ...], int] = {
        **dict.fromkeys([(), (257,), (None,), (480, 640), (480, 640, 1), (16, 33), (3, None)], 1),
        **{(n,): n for n in (7, 256)},
        (480, 640, 3): 3,
        **dict.fromkeys([(10, 6), (None, 6)], 6),
    }
    schema = Schema([spec(f"f{n}", "|u1", shape) for n, shape in enumerate(shapes)])
    frame = {s.name: np.ones([n or 2 for n in s.shape], "u1") for s in schema.values()}
    found = statistics_of(schema, {"e": [frame]})
    assert [len(found[name].mean) for name in schema] == [*shapes.values()]


def test_statistics_match_the_frames() -> None:
    """All values of small features count; channels are separate, infinities are counted."""
    data = episodes(1, [30, 1, 12])
    statistics = statistics_of(SCHEMA, data)
    frames = [item for items in data.values() for item in items]
    assert statistics.num_frames == 43
    assert set(statistics) == set(SCHEMA) - {"spectrum"}
    channels = {"half": 4, "flag": 1, "action": 7, "imu": 6, "ragged": 1, "image": 3, "depth": 1}
    for name, number in channels.items():
        rows = np.concatenate([item[name].reshape(-1, number) for item in frames])
        exact = rows[np.isfinite(rows).all(axis=1)].astype(np.float64)
        got = statistics[name]
        assert got.num_frames == 43
        assert got.count.tolist() == [len(exact)] * number
        np.testing.assert_allclose([got.mean, got.std], [exact.mean(0), exact.std(0)], 1e-7, 1e-9)
        np.testing.assert_array_equal([got.min, got.max], [exact.min(0), exact.max(0)])
        if name not in ("image", "depth"):
            assert got.rank_error == 0  # all of these few numbers are kept
            expected = np.quantile(exact, [0.1, 0.5], axis=0, method="inverted_cdf")
            np.testing.assert_array_equal(got.quantile([0.1, 0.5]), expected)
            assert got.quantile(0.5).shape == (number,)
    depth = statistics["depth"]
    assert (depth.num_nan[0], depth.num_infinite[0]) == (43 * 2, 43 * 4 * 40)


def test_sampled_pixels_of_large_frames_are_uniform() -> None:
    """The value of each pixel is its position, so quantiles show the sampled positions."""
    height, width, count = 60, 80, 200
    places = np.arange(height * width, dtype="<f4").reshape(height, width)
    schema = Schema([spec("place", "<f4", (height, width))])
    got = statistics_of(schema, {"e": [{"place": places}] * count})["place"]
    assert got.num_drawn.tolist() == [count * 128]
    assert got.quantile([0, 1]).tolist() == [[0], [places.size - 1]]
    shares = [0.01, 0.25, 0.5, 0.75, 0.99]
    np.testing.assert_allclose(got.quantile(shares)[:, 0] / places.size, shares, atol=0.005)


def test_array_layout_does_not_change_statistics() -> None:
    """Later changes to an added array do not count either."""
    [frames] = episodes(3, [4]).values()
    expected = statistics_of(SCHEMA, {"e": frames}).to_json()
    views: list[Callable[[Array], Array]] = [
        np.asfortranarray,
        lambda a: np.ascontiguousarray(a[::-1])[::-1],
        lambda a: a.astype(a.dtype.newbyteorder(">")),
    ]
    for view in views:
        moved = [{n: view(a) if a.ndim else a for n, a in f.items()} for f in frames]
        assert statistics_of(SCHEMA, {"e": moved}).to_json() == expected
    schema = Schema([spec("action", "<f4", (2,)), spec("big", "<f4", (50, 50))])
    frame = {"action": np.ones(2, "<f4"), "big": np.ones((50, 50), "<f4")}

    def refilled() -> Iterator[dict[str, Any]]:
        yield frame
        for array in frame.values():
            array[...] = 0

    got = statistics_of(schema, {"e": refilled()})
    assert (got["action"].min.tolist(), got["big"].min.tolist()) == ([1, 1], [1])


def test_many_frames_are_sketched_in_pieces() -> None:
    schema = Schema([spec("x", "<f4", (None,)), spec("big", "<f4", (40, 40))])
    values = np.random.default_rng(6).normal(0, 1, (1000, 120)).astype("<f4")
    frames = ({"x": row, "big": np.full((40, 40), row[0])} for row in values)
    got = statistics_of(schema, {"e": frames})
    assert 0 < got["x"].rank_error < 0.002
    ordered = np.sort(values.ravel())
    for share in (0.01, 0.5, 0.99):
        rank = np.searchsorted(ordered, got["x"].quantile(share)[0].astype("<f4")) / len(ordered)
        assert rank == pytest.approx(share, abs=got["x"].rank_error + 1e-5)
    np.testing.assert_allclose(got["big"].mean[0], values[:, 0].mean(), rtol=1e-4)


# ---- difficult distributions

SHARES = [0.0, 0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1.0]
KINDS: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "normal": lambda rng, count: rng.normal(3, 100, count),
    "few values": lambda rng, count: rng.integers(0, 5, count),
    "sorted": lambda rng, count: np.arange(count) % 30_000,
    "falling": lambda rng, count: np.arange(count)[::-1] % 30_000,
    "heavy tail": lambda rng, count: rng.pareto(1, count).clip(0, 30_000),
    "constant": lambda rng, count: np.full(count, 7),
}


def draw(kind: str, rng: np.random.Generator, count: int, dtype: str) -> Array:
    values = KINDS[kind](rng, count)
    if np.dtype(dtype).kind in "iu":
        values = values.clip(np.iinfo(dtype).min, np.iinfo(dtype).max)
    return values.astype(dtype)


def of_numbers(values: Array) -> FeatureStatistics:
    """Statistics of one channel, in frames small enough that all numbers count."""
    frames = [{"x": part} for part in np.split(values, range(120, len(values), 120))]
    return statistics_of(Schema([spec("x", values.dtype.str, (None,))]), {"e": frames})["x"]


def as_json(found: FeatureStatistics) -> str:
    return json.dumps(Statistics(found.num_frames, {"x": found}).to_json())


def through_json(found: FeatureStatistics) -> FeatureStatistics:
    return Statistics.from_json(json.loads(as_json(found)))["x"]


def check(found: FeatureStatistics, values: Array) -> None:
    """Compare with these numbers, within the documented errors."""
    assert found.count.tolist() == found.num_drawn.tolist() == [len(values)]
    if not len(values):
        return
    assert (found.min[0], found.max[0]) == (values.min(), values.max())
    exact = values.astype(np.float64)
    size = max(abs(exact.min()), abs(exact.max()))
    assert found.mean[0] == pytest.approx(exact.mean(), rel=1e-9, abs=1e-12 * size)
    assert found.std[0] == pytest.approx(exact.std(), rel=1e-9, abs=1e-9 * size)
    ordered, error = np.sort(values), found.rank_error * len(values)
    for share, [number] in zip(SHARES, found.quantile(SHARES), strict=True):
        value = np.array(number).astype(values.dtype)
        assert value in values
        assert np.searchsorted(ordered, value, "left") <= share * len(values) + error + 1e-6
        assert np.searchsorted(ordered, value, "right") >= share * len(values) - error - 1e-6


@given(
    kind=st.sampled_from([*KINDS]),
    dtype=st.sampled_from(["|u1", "<i2", "<u4", "<i8", "<f4", "<f8"]),
    parts=st.lists(st.integers(0, 4_000), min_size=1, max_size=3),
    seed=st.integers(0, 2**32),
)
def test_parts_added_and_merged(kind: str, dtype: str, parts: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = [draw(kind, rng, count, dtype) for count in parts]
    found = [of_numbers(array) for array in arrays]
    before = [*map(as_json, found)]
    merged = reduce(FeatureStatistics.merged, found)
    assert ([*map(as_json, found)] == before) is True, "merging does not change its input"
    values = np.concatenate(arrays)
    for each in (of_numbers(values), merged, through_json(merged)):
        check(each, values)


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.slow] * (n % 2)) for n, k in enumerate(KINDS)]
)
def test_many_merged_parts_stay_within_half_a_percent(kind: str) -> None:
    values = draw(kind, np.random.default_rng(1), 64_000, "<f4")
    found = [of_numbers(part) for part in np.array_split(values, 8)]
    while len(found) > 1:  # merged in pairs, as workers' results are
        found = [one.merged(two) for one, two in zip(found[::2], found[1::2], strict=True)]
    check(found[0], values)
    assert 0 < found[0].rank_error < 0.005


@pytest.mark.parametrize(
    ("dtype", "channels"), [("|u1", 3), ("<u2", 1), ("<i8", 7), ("<f4", 3), ("<f8", 1)]
)
def test_moments_and_non_finite_counts(dtype: str, channels: int) -> None:
    """Non-finite numbers are counted separately."""
    for count in (1, 500, 70_001):
        rng = np.random.default_rng(count)
        pixels = (1e6 * (dtype != "|u1") + rng.integers(0, 200, (count, channels))).astype(dtype)
        if dtype[1] == "f" and count > 1:
            for row, value in enumerate((np.nan, np.inf, -np.inf, np.inf)):
                pixels[row::100, 0] = value
        schema = Schema([spec("x", dtype, (count, channels))])
        found = statistics_of(schema, {"e": [{"x": pixels}]})["x"]
        for column, sketch in enumerate(found.sketches):
            numbers = pixels[:, column].astype(np.float64)
            exact = numbers[np.isfinite(numbers)]
            assert sketch.count == len(exact)
            infinite = [(numbers == sign * np.inf).sum() for sign in (1, -1)]
            assert sketch.nan == np.isnan(numbers).sum()
            assert [sketch.positive_infinity, sketch.negative_infinity] == infinite
            moments = (exact.mean(), exact.std())
            np.testing.assert_allclose((sketch.mean, sketch.std), moments, 1e-12)
            assert (sketch.min, sketch.max) == (exact.min(), exact.max())


def test_numbers_with_overflowing_squares_and_without_quantiles() -> None:
    for size in (1e300, 1e-200):
        pixels = np.array([[1, 1], [np.nan, 2], [3, 3]]) * [size, 1]
        found = statistics_of(Schema([spec("x", "<f8", (2,))]), {"e": [{"x": p} for p in pixels]})
        got = [found["x"].mean, found["x"].std, found["x"].min, found["x"].max]
        np.testing.assert_allclose(np.array(got)[:, 0] / size, [2, 1, 1, 3])
        np.testing.assert_allclose(np.array(got)[:, 1], [2, np.sqrt(2 / 3), 1, 3])
    nothing = through_json(of_numbers(np.array([np.nan])))
    assert np.isnan(nothing.quantile([0, 0.5, 1])).all()
    assert nothing.rank_error == 0
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="from 0 to 1"):
            nothing.quantile(share)


def test_the_largest_numbers_do_not_overflow() -> None:
    most = np.finfo(np.float64).max
    values = np.tile([most, -most, most, most], 1000)
    with np.errstate(all="raise", under="ignore"):
        one = through_json(of_numbers(values).merged(of_numbers(values[:3])))
    assert one.mean[0] == pytest.approx(most / 2, rel=1e-3)
    assert one.std[0] == pytest.approx(most * np.sqrt(0.75), rel=1e-3)
    integers = of_numbers(np.array([2**63 - 1, -(2**63) + 1, 5], np.int64))
    for found in (integers, through_json(integers)):
        [sketch] = found.sketches
        assert (sketch.min, sketch.max) == (-(2**63) + 1, 2**63 - 1)


BAD: dict[str, list[Any]] = {
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


def changed(value: dict[str, Any], path: str, new: object) -> dict[str, Any]:
    copy: dict[str, Any] = deepcopy(value)
    *inner, last = path.split("/")
    place: Any = copy
    for key in inner:
        place = place[int(key) if isinstance(place, list) else key]
    place[last] = new
    return copy


def test_bad_json_is_refused() -> None:
    good = Statistics(1, {"x": of_numbers(np.array([1, 2, 3, 4], np.float32))}).to_json()
    [channel] = good["features"]["x"]["channels"]
    channels: list[Any] = [None, [], "x", {}, {"count": 1}, {**channel, "more": 1}]
    channels += [{**channel, key: value} for key, values in BAD.items() for value in values]
    files = [changed(good, "features/x/channels", [bad]) for bad in channels]
    good = statistics_of(SCHEMA, episodes(8, [11])).to_json()
    bad: list[tuple[str, object]] = [
        *(("format", "seqrecord"), ("version", 2), ("version", True), ("more", 1)),
        *(("num_frames", value) for value in (-1, 10, 1.0)),
        *(("features", []), ("features/flag", None), ("features/flag/num_frames", 12)),
        *(("features/flag/channels", value) for value in ([], [None])),
        *(("features/flag/dtype", value) for value in ("<f2", ["<f4"], "<f8")),
        ("features/depth/channels/0/count", 0),
    ]
    for file in (*files, *(changed(good, path, new) for path, new in bad)):
        with pytest.raises(FormatError):
            Statistics.from_json(file)


def test_statistics_of_another_schema_are_refused() -> None:
    schema = Schema([spec("action", "<f8", (7,))])
    statistics = statistics_of(schema, {"e": [{"action": np.zeros(7)}]})
    statistics.check(schema)
    for name, dtype, channels in (
        *(("action", "<f4", 7), ("action", "<f8", 6), ("action", "<c8", 7)),
        ("pose", "<f8", 7),
    ):
        with pytest.raises(FormatError, match="feature: action"):
            statistics.check(Schema([spec(name, dtype, (channels,))]))


# ---- use


def test_normalising_is_one_line() -> None:
    for dtype, channels in ((np.uint8, 3), (np.float32, 1), (np.float64, 3)):
        numbers = np.random.default_rng(0).integers(0, 200, (50, 4, channels)).astype(dtype)
        numbers[..., 0] = 7  # constant
        schema = Schema([FeatureSpec("x", np.dtype(dtype), (4, channels))])
        statistics = statistics_of(schema, {"e": [{"x": frame} for frame in numbers]})["x"]
        rows = numbers.reshape(-1, channels).astype(np.float64)
        expected = (numbers - rows.mean(0)) / np.where(rows.std(0) > 0, rows.std(0), 1)
        normal = statistics.normalize(numbers)
        assert normal.dtype == (np.float64 if dtype is np.float64 else np.float32)
        np.testing.assert_allclose(normal, expected, atol=1e-5)
        tensor = torch.from_numpy(numbers)
        np.testing.assert_array_equal(statistics.normalize(tensor).numpy(), normal)
        assert statistics.normalize(tensor.half()).dtype == torch.float32
        np.testing.assert_array_equal(tensor.numpy(), numbers)


def test_constants_and_large_offsets() -> None:
    """Equal numbers of many parts have no deviation; integers are not rounded to float32."""
    times = 1_700_000_000 + np.arange(40)
    for dtype, column in (("<i8", times), ("<f8", np.full(40, 0.1)), ("<f4", np.full(40, 1 / 3))):
        values = column.astype(dtype)
        parts = [of_numbers(part) for part in np.split(values, (1, 8, 15))]
        merged = through_json(reduce(FeatureStatistics.merged, parts))
        expected = (values - values.astype("f8").mean()) / (values.std() if dtype == "<i8" else 1)
        for found in (merged.normalize(values), merged.normalize(torch.from_numpy(values))):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8)
        if dtype != "<i8":
            assert (merged.mean[0], merged.std[0]) == (values[0], 0)


def test_normalising_on_a_gpu_does_not_block() -> None:
    calls: list[Any] = []

    class OnGpu(torch.Tensor):
        is_cuda = True

        def pin_memory(self, *_: Any) -> Any:
            calls.append("pinned")
            return self

        def to(self, *args: Any, **kwargs: Any) -> Any:
            calls.append(kwargs)
            return super().to(*args, **kwargs)

    schema = Schema([FeatureSpec("x", np.dtype("<f4"), (3,))])
    frames = [{"x": np.arange(3, dtype="<f4") * n} for n in range(5)]
    statistics = statistics_of(schema, {"e": frames})["x"]
    numbers = torch.ones(2, 3)
    found = statistics.normalize(numbers.as_subclass(OnGpu))
    assert calls == ["pinned", {"non_blocking": True}] * 2
    assert torch.equal(found.as_subclass(torch.Tensor), statistics.normalize(numbers))
