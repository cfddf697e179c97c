"""Statistics of frames match NumPy on the same frames."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial, reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import seqrecord
from seqrecord import FeatureSpec, Schema, SeqRecordWriter, add_statistics, convert, edit, errors
from seqrecord.errors import FormatError
from seqrecord.statistics import FeatureStatistics, Statistics
from seqrecord.store.checksum import crc32c
from seqrecord.types import Progress
from tests.kit import command_line
from tests.kit.datasets import (
    EPISODES,
    columns,
    flip,
    small_frames,
    small_schema,
    write_dataset,
    write_episodes,
    write_small,
)
from tests.kit.made_source import MadeSource
from tests.kit.tiny import change_manifest

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


def test_deviation_of_large_numbers_behind_nan() -> None:
    """As of a cloud of points whose first rows have no return: more than a block of numbers."""
    values = 1.7e9 + np.random.default_rng(0).uniform(0, 0.1, (120_000, 4))
    values[:100_000, :3] = np.nan
    found = statistics_of(Schema([spec("x", "<f8", values.shape)]), {"e": [{"x": values}]})["x"]
    np.testing.assert_allclose(found.std, np.nanstd(values - 1.7e9, axis=0), rtol=1e-3)
    np.testing.assert_allclose(found.mean, 1.7e9 + np.nanmean(values - 1.7e9, axis=0), rtol=1e-12)


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


# Statistics of writers


run = partial(command_line.run, "stats", "--quiet")


def kept(folder: Path) -> Statistics:
    return seqrecord.open(folder).statistics


def computed(folder: Path) -> Statistics:
    return seqrecord.open(folder).compute_statistics()


def file_of(folder: Path) -> Path:
    with seqrecord.open(folder) as reader:
        assert reader.contents.manifest.statistics is not None
        return folder / reader.contents.manifest.statistics.path


def write(folder: Path, keys: str, **arguments: Any) -> Path:
    values = np.arange(10, dtype=np.float32)[:, None].repeat(3, axis=1)
    write_dataset(folder, {key: columns(x=values + ord(key)) for key in keys}, **arguments)
    return folder


def test_episodes_with_nan_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By statistics, after appends, renames and merges, and by loaders that read such frames."""

    def frame(key: str, number: int) -> dict[str, Any]:
        is_odd = (key, number) in (("b", 2), ("b", 4), ("c", 0))
        value = np.full(3, np.nan if is_odd else number, np.float32)
        return {"action": value, "depth": np.full((4, 5), np.nan, np.float32)}

    def places(folder: Path, statistics: Statistics | None = None) -> list[tuple[str, int, int]]:
        found = statistics or kept(folder)
        assert not found["depth"].non_finite
        return [(at.episode, at.frame, at.count) for at in found["action"].non_finite]

    def loaded(folder: Path, **options: Any) -> list[str]:
        caplog.clear()
        options |= {"clip_len": 1, "windows": {"action": [0]}}
        for _ in range(2):
            if "random" in folder.name:
                clips = seqrecord.SeqRecordMapDataset(folder, **options)
                assert [clips[i] for i in range(len(clips))]
            else:
                assert len([*seqrecord.SeqRecordPipe(folder, shuffle=False, **options)])
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    folder = tmp_path
    for codecs in ("raw", "balanced"):
        folder = tmp_path / ("random" if codecs == "balanced" else codecs)
        for mode, keys in (("create", "ab"), ("append", "cd")):
            episodes = {key: [frame(key, number) for number in range(6)] for key in keys}
            write_dataset(folder, episodes, codecs=codecs, mode=mode)
        assert places(folder) == [("b", 2, 6), ("c", 0, 3)]
        assert places(folder, computed(folder)) == places(folder)
        text = "NaN or infinities of action: 9 values; b from frame 2 (6), c from frame 0 (3)"
        assert text in run(folder).stdout
        assert json.loads(run(folder, "--json").stdout)["action"]["non_finite"] == [
            {"episode": "b", "frame": 2, "count": 6},
            {"episode": "c", "frame": 0, "count": 3},
        ]
        assert loaded(folder, episodes=["a", "d"]) == []
        [message] = loaded(folder)
        text = f"{folder}: NaN or infinite values; feature action: 9 values; b from frame 2 (6)"
        assert message == f"{text}, c from frame 0 (3)"
        assert loaded(folder, episodes=["a", "b"]) == [text]
    edit.rename_episodes(folder, {"b": "c", "c": "b"})
    assert places(folder) == [("c", 2, 6), ("b", 0, 3)]
    edit.merge_datasets([folder, tmp_path / "raw"], tmp_path / "all", prefixes=["x/", "y/"])
    merged = [("x/c", 2, 6), ("x/b", 0, 3), ("y/b", 2, 6), ("y/c", 0, 3)]
    assert places(tmp_path / "all") == merged
    stored = folder / json.loads((folder / "manifest.json").read_bytes())["statistics"]["path"]
    stored.write_bytes(stored.read_bytes().replace(b'"c"', b'"\\u001b"'))  # no episode
    sums = {"size": stored.stat().st_size, "crc32c": f"{crc32c(stored.read_bytes()):08x}"}
    change_manifest(folder, lambda manifest: manifest["statistics"].update(sums))
    edit.rename_episodes(folder, {"a": "e"})
    assert places(folder) == [("\x1b", 2, 6), ("b", 0, 3)]
    assert "\x1b" not in run(folder).stdout
    write_dataset(
        tmp_path / "none", {"b": [frame("b", number) for number in range(6)]}, statistics=False
    )
    assert loaded(tmp_path / "none") == []
    add_statistics(tmp_path / "none")
    assert len(loaded(tmp_path / "none")) == 1
    json_of = kept(folder).to_json()
    assert Statistics.from_json(json_of)["action"].non_finite == kept(folder)["action"].non_finite
    wrong: Any
    for wrong in ([], [["a", -1, 1]], [["a", 0]], [[3, 0, 1]], {}):
        json_of["features"]["action"]["non_finite"] = wrong
        with pytest.raises(errors.FormatError):
            Statistics.from_json(json_of)


@pytest.mark.parametrize("shape", [(200,), (200, 1), (4, 50)])
def test_nan_of_wide_states_is_named(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Also of those with quantiles of a sample of 128 numbers a frame."""
    values = [np.full(shape, np.nan if i >= 2 else i, np.float32) for i in range(4)]
    episodes = {"a": columns(x=values[:2]), "b": columns(x=values)}
    for codec in ("raw", "balanced"):
        path = tmp_path / codec
        write_dataset(path, episodes, codecs=codec, features={"x": {"kind": "state"}})
        for statistics in (kept(path), computed(path)):
            [place] = statistics["x"].non_finite
            assert (place.episode, place.frame, place.count) == ("b", 2, 400)


def assert_close(one: Statistics, two: Statistics) -> None:
    """Equal up to rounding and the tolerance of quantiles."""
    assert (one.num_frames, list(one)) == (two.num_frames, list(two))
    for name in one:
        for column in ("num_frames", "count", "num_drawn", "num_nan", "num_infinite", "min", "max"):
            np.testing.assert_array_equal(
                getattr(one[name], column), getattr(two[name], column), f"{name} {column}"
            )
        shares = [0.01, 0.5, 0.99]
        if one[name].rank_error == two[name].rank_error == 0:
            np.testing.assert_array_equal(one[name].quantile(shares), two[name].quantile(shares))
        np.testing.assert_allclose(one[name].mean, two[name].mean, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(one[name].std, two[name].std, rtol=1e-9, atol=1e-12)


def test_writers_store_statistics_except_of_encoded_features(small: Path, tmp_path: Path) -> None:
    write_small(tmp_path / "d")
    got, expected = kept(tmp_path / "d"), computed(tmp_path / "d")
    assert set(expected) - set(got) == {"photo"}  # stored as PNG and not decoded here
    assert got.num_frames == sum(EPISODES.values())
    assert_close(got, Statistics(expected.num_frames, {n: expected[n] for n in got}))
    assert "no statistics of photo; use --recompute" in run(tmp_path / "d").stderr
    assert run(tmp_path / "d", "--recompute").stderr == ""
    photo = kept(tmp_path / "d")["photo"]
    frames = [f for i, n in enumerate(EPISODES.values()) for f in small_frames(i, n)]
    assert photo.num_frames == len(frames)
    assert photo.mean == pytest.approx(np.mean([f["photo"] for f in frames], (0, 1, 2)), abs=3)
    # A conversion may decode pages that it copies.
    chosen: dict[str, list[str]] = {"auto": ["photo"], "all": [], "none": list(small_schema())}
    for statistics, missing in chosen.items():
        command = ("write", "--src", small, "--dst", tmp_path / statistics)
        command_line.run(*command, "--statistics", statistics)
        with seqrecord.open(tmp_path / statistics) as reader:
            assert reader.statistics.missing(reader.features) == missing
    before, version = kept(tmp_path / "all"), file_of(tmp_path / "all")
    assert before["photo"].count.tolist() == photo.count.tolist()
    assert_close(add_statistics(tmp_path / "all", only_lacking=True), before)
    assert file_of(tmp_path / "all") == version  # complete statistics are not written again


def test_an_append_merges_and_an_empty_append_keeps_them(tmp_path: Path) -> None:
    old = file_of(write(tmp_path / "d", "ab"))
    write(tmp_path / "d", "cd", mode="append")
    assert_close(kept(tmp_path / "d"), kept(write(tmp_path / "whole", "abcd")))
    assert old.exists()  # for readers of the previous manifest
    write(tmp_path / "d", "e", mode="append")
    assert old.exists()  # to restore an earlier version
    edit.clean(tmp_path / "d", older_than=0)
    assert not old.exists()
    assert file_of(tmp_path / "d").exists()
    before = kept(tmp_path / "d").to_json()
    write(tmp_path / "d", "", mode="append")
    write(tmp_path / "d", "", mode="append", statistics=False)
    seqrecord.reindex(tmp_path / "d")  # the frames are the same
    assert kept(tmp_path / "d").to_json() == before
    (tmp_path / "d" / "manifest.json").unlink()
    seqrecord.reindex(tmp_path / "d")
    assert not kept(tmp_path / "d")


@pytest.mark.parametrize("first", [False, True])
def test_no_statistics_are_stored_if_some_frames_lack_them(tmp_path: Path, first: bool) -> None:
    path = write(tmp_path / "d", "ab", statistics=first)
    write(path, "cd", mode="append", statistics=not first)
    assert not kept(path)
    assert add_statistics(path).num_frames == 40
    assert_close(kept(path), kept(write(tmp_path / "whole", "abcd")))
    write(path, "e", mode="append")  # from now on they are kept again
    assert kept(path).num_frames == 50
    with pytest.raises(errors.NotFoundError, match="no dataset"):
        add_statistics(tmp_path)


def test_statistics_of_aborted_flushed_and_resumed_episodes(tmp_path: Path) -> None:
    """Aborted, flushed, or recovered by a resume, which has no statistics of them."""
    zeros, bad = {"x": np.zeros(3)}, {"x": np.full(4, 100.0)}
    for flushed in (False, True):
        path = tmp_path / f"{flushed}"
        with SeqRecordWriter(path) as writer:
            write_episodes(writer, {"z": [zeros]})
            episode = writer.episode("a")
            episode.append(zeros)
            if flushed:
                episode.flush()
            episode.append({"x": np.full(3, 100.0)})
            with pytest.raises(errors.FrameError):
                episode.append(bad)
            with writer.episode("c") as episode:
                for number in range(5):
                    episode.append({"x": np.full(3, float(number))})
                    if number % 2:
                        episode.flush()
        assert kept(path).num_frames == 6 + flushed
        assert kept(path)["x"].max.tolist() == [4, 4, 4]
        assert_close(kept(path), computed(path))
    writer = SeqRecordWriter(tmp_path / "d")
    write_episodes(writer, {"a": [zeros]})
    writer.abort()
    write_dataset(tmp_path / "d", {"b": [zeros]}, mode="resume")
    with seqrecord.open(tmp_path / "d") as reader:
        assert list(reader.episodes) == ["a", "b"]
        assert not reader.statistics


def test_conversions_merge_statistics_of_workers(tmp_path: Path) -> None:
    source = MadeSource()
    for workers in (1, 2):
        convert(source, tmp_path / str(workers), workers=workers, max_file_size=30_000)
    assert_close(kept(tmp_path / "1"), kept(tmp_path / "2"))
    assert_close(kept(tmp_path / "1"), computed(tmp_path / "2"))
    convert(source, tmp_path / "none", workers=1, statistics=False)
    assert not kept(tmp_path / "none")


def test_damaged_and_invalid_files_are_refused(tmp_path: Path) -> None:
    path = file_of(write(tmp_path / "d", "ab"))
    data = path.read_bytes()

    def refuse(error: type[Exception], match: str) -> None:
        with seqrecord.open(tmp_path / "d") as reader, pytest.raises(error, match=match):
            _ = reader.statistics

    def sign(manifest: dict[str, Any]) -> None:
        manifest["statistics"].update(crc32c=f"{crc32c(path.read_bytes()):08x}")

    path.write_bytes(data[:-1])
    refuse(errors.FormatError, path.name)
    path.write_bytes(data)
    flip(path, len(data) // 2)
    refuse(errors.ChecksumError, path.name)
    path.unlink()
    refuse(errors.NotFoundError, path.name)
    for old, new, match in (
        (b'"version": 1', b'"version": 7', "bad version"),
        (b'"num_frames": 20', b'"num_frames": 19', "bad num_frames"),
        (b'"x": {', b'"y": {', "feature: y"),
        (b'"nan": 0', b'"nan": X', "not valid JSON"),
        (b'"nan": 0', b'"nan":-1', "a bad nan"),
    ):
        assert old in data
        path.write_bytes(data.replace(old, new, 1))
        change_manifest(tmp_path / "d", sign)
        refuse(errors.FormatError, match)


# Computed


@pytest.mark.parametrize("num_threads", [1, 3])
def test_computed_statistics_match_the_frames(
    small: Path, tmp_path: Path, num_threads: int
) -> None:
    reports: list[Progress] = []
    got = seqrecord.open(small).compute_statistics(num_threads=num_threads, progress=reports.append)
    convert(seqrecord.open_source(small), tmp_path / "d", codecs={"photo": "balanced"}, workers=1)
    whole = kept(tmp_path / "d")  # the writer got all frames
    assert_close(got, Statistics(whole.num_frames, {name: whole[name] for name in got}))
    assert got.num_frames == sum(EPISODES.values())
    assert set(got) == set(small_schema())
    assert got["flow"].num_frames == got.num_frames - len(EPISODES)  # their last frame lacks it
    frames = [progress.done for progress in reports]
    assert frames == sorted(frames)
    assert frames[-1] == reports[0].total == got.num_frames  # frames without a feature count too


def test_statistics_of_selected_features_and_after_a_transform(small: Path) -> None:
    with seqrecord.open(small, features=["flow", "step"]) as reader:
        got = reader.compute_statistics()
        assert list(got) == ["flow", "step"]
        steps = [reader.select(["step"]).episodes[key][:]["step"] for key in EPISODES]
        assert got["step"].mean == pytest.approx(np.concatenate(steps).mean())
        assert got["step"].max == np.concatenate(steps).max()
        same = reader.compute_statistics(frame_transform=lambda frame: frame)
        wrong: list[dict[str, Any]] = [{"max_frames": 0}, {"num_threads": 0}]
        for options in wrong:
            with pytest.raises(errors.ClipError, match="at least 1"):
                reader.compute_statistics(**options)
    # A transform does not get frames without a feature.
    assert same["step"].num_frames == same["flow"].num_frames == got.num_frames - len(EPISODES)
    flow = [Statistics(17, {"flow": found["flow"]}) for found in (same, computed(small))]
    assert_close(*flow)


def test_statistics_of_sampled_frames(tmp_path: Path) -> None:
    """Spans of 8 frames, since a frame takes 4 MiB."""
    frames = [{"x": np.full((1024, 1024), number, np.float32)} for number in range(32)]
    write_dataset(tmp_path / "d", {"a": frames, "b": frames}, codecs="fast")
    with seqrecord.open(tmp_path / "d") as reader:
        some = reader.compute_statistics(max_frames=16)
        one = reader.compute_statistics(max_frames=1)
    assert (some.num_frames, one.num_frames) == (64, 64)
    assert [s["x"].num_frames for s in (some, one)] == [24, 8]
    # Frames 0 to 7 and 16 to 23 of a, 8 to 15 of b.
    assert (some["x"].min.tolist(), some["x"].max.tolist()) == ([0], [23])


# Of a split, after a transform, of a mix


def doubled(frame: dict[str, Any]) -> dict[str, Any]:
    return {"x": frame["x"] * 2, "sum": np.float64(frame["x"].sum())}


@pytest.mark.parametrize("transform", [None, doubled])
def test_statistics_of_a_split_and_after_a_transform(tmp_path: Path, transform: Any) -> None:
    write(tmp_path / "d", "abc")
    seqrecord.edit.split_episodes(tmp_path / "d", ["a", "c"], "train")
    rows = np.concatenate([np.arange(10) + ord(key) for key in "ac"]) * (2 if transform else 1)
    options = {"split": "train", "frame_transform": transform}
    dataset = seqrecord.open(tmp_path / "d")
    loader = seqrecord.SeqRecordIterableDataset(dataset, clip_len=4, **options)
    for found in (
        dataset.compute_statistics(**options),
        dataset.compute_statistics(episodes=[0, 2], frame_transform=transform),
        loader.compute_statistics(num_threads=1),
        seqrecord.SeqRecordMix({"one": loader}, batch_size=1).compute_statistics()["one"],
    ):
        assert (found.num_frames, found["x"].num_frames) == (20, 20)
        assert list(found) == (["x", "sum"] if transform else ["x"])
        np.testing.assert_allclose(found["x"].mean, [rows.mean()] * 3)
        np.testing.assert_allclose(found["x"].std, [rows.std()] * 3)
    table = run(tmp_path / "d", "--split", "train").stdout
    assert table == f"{dataset.compute_statistics(split='train')}\n"
    assert kept(tmp_path / "d").num_frames == 30  # the stored frames
    with pytest.raises(errors.ClipError, match="unknown split"):
        dataset.compute_statistics(split="nope")


def test_errors_of_a_transform_name_the_frame(tmp_path: Path) -> None:
    dataset = seqrecord.open(write(tmp_path / "d", "ab"))
    with pytest.raises(errors.ClipError) as caught:
        dataset.compute_statistics(
            frame_transform=lambda frame: {"x": frame["x"][: 3 - (frame["x"][0] == ord("b"))]}
        )
    assert (caught.value.episode, caught.value.frame) == ("a", 1)


# `seqrecord stats`


@pytest.fixture
def without_statistics(tmp_path: Path) -> Path:
    action = np.array([[number, np.nan, -1] for number in range(100)], np.float32)
    frames = columns(action=action, flag=np.arange(100) == 3)
    write_dataset(tmp_path / "d", {"a": frames, "b": frames}, statistics=False)
    return tmp_path / "d"


def test_the_command(without_statistics: Path) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in without_statistics.rglob("*"))
    table = run(without_statistics, "--dry-run").stdout
    assert (
        sorted((path, path.stat().st_mtime_ns) for path in without_statistics.rglob("*")) == before
    )
    assert not kept(without_statistics)
    lines = table.splitlines()
    head = "feature mean std min 1% 50% 99% max NaN infinite numbers frames"
    assert lines[0].split() == head.split()
    assert " ".join(lines[1].split()) == "action[0] 49.5 28.866 0 0 49 98 99 0 0 200 200"
    assert lines[2].split() == ["action[1]", *["nan"] * 7, "200", "0", "0", "200"]
    assert " ".join(lines[4].split()) == "flag 0.01 0.099499 0 0 0 0 1 0 0 200 200"
    assert len(lines) == 6
    assert lines[5].startswith("NaN or infinities of action: 200 values; a from frame 0 (100), b")
    for _ in range(2):  # computed and stored, then read
        assert run(without_statistics).stdout == table
        assert kept(without_statistics)
    found = json.loads(run(without_statistics, "--json").stdout)
    expected = {"mean": [49.5, None, -1], "q99": [98, None, -1], "num_nan": [0, 200, 0]}
    assert {name: found["action"][name] for name in expected} == expected
    assert (found["flag"]["num_frames"], found["flag"]["rank_error"]) == (200, 0)
    seqrecord.add_statistics(without_statistics, max_frames=100)
    assert kept(without_statistics)["flag"].num_frames < 200
    run(without_statistics, "--recompute")
    assert kept(without_statistics)["flag"].num_frames == 200


def test_the_table_shows_the_sampled_pixels(tmp_path: Path) -> None:
    """Large frames: all pixels are counted, quantiles use a sample of pixels."""
    depth = np.full((40, 40), 5, np.float32)
    depth[:10] = np.nan
    write_dataset(tmp_path / "d", {"a": [{"depth": depth, "x": np.float32(1)} for _ in range(2)]})
    _, line, _, note = run(tmp_path / "d").stdout.splitlines()
    assert line.split() == ["depth", "5", "0", *["5"] * 5, "800", "0", "2,400", "2"]
    found = json.loads(run(tmp_path / "d", "--json").stdout)["depth"]
    [drawn] = found["num_drawn"]
    assert 150 < drawn <= 256
    assert note == f"quantiles of depth: of a random sample of {drawn} numbers"


@pytest.mark.parametrize(("command", "keys"), [("delete", "ab"), ("keep", "aa")])
def test_an_edit_that_removes_statistics_logs_it(
    tmp_path: Path, command: str, keys: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "d", "ab")
    for number in range(2):
        caplog.clear()
        write(tmp_path / "d", "xy"[number], mode="append", statistics=not number)
        command_line.run("edit", command, tmp_path / "d", keys[number])
        assert ("`seqrecord stats" in caplog.text) == (number == 0)


def test_statistics_of_other_channels_are_not_merged(tmp_path: Path) -> None:
    for name, value in (("six", np.zeros(6)), ("seven", np.zeros(7)), ("f4", np.ones(6, "f4"))):
        write_dataset(tmp_path / name, {"a": [{"x": value, name: value}]})
    six, seven, single = (kept(tmp_path / name) for name in ("six", "seven", "f4"))
    with pytest.raises(errors.SchemaError) as caught:
        six["x"].merged(seven["x"])
    assert (caught.value.expected, caught.value.got) == ("6 channels", "7 channels")
    assert list(six.merged(seven)) == []
    both = six.merged(single)["x"]  # of two dtypes
    assert both.mean.tolist() == [0.5] * 6
    assert [sketch.dtype for sketch in both.sketches] == [np.float64] * 6
