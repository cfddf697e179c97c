"""DepthToMeters: float32 metres of any unit and dtype, in loaders, statistics and mixes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import seqrecord
from seqrecord import (
    ClipError,
    DepthToMeters,
    HorizontalFlip,
    RandomCrop,
    SeqRecordIterableDataset,
    SeqRecordMapDataset,
    SeqRecordMix,
    SeqRecordPipe,
    edit,
)
from seqrecord.errors import SchemaError
from tests.kit.command_line import run
from tests.kit.datasets import columns, write_dataset


def write(path: Path, depth: Any, unit: str | None = "mm", kind: str | None = "depth") -> Path:
    frames = columns(
        image=[np.full((8, 10, 3), number, np.uint8) for number in range(6)],
        depth=[depth + np.asarray(number, depth.dtype) for number in range(6)],
    )
    write_dataset(path, {"e": frames}, features={"depth": {"kind": kind, "unit": unit}})
    return path


def first(path: Path, **options: Any) -> torch.Tensor:
    batch = next(iter(SeqRecordPipe(path, clip_len=2, batch_size=1, shuffle=False, **options)))
    found: torch.Tensor = batch["depth"]
    return found


def test_units_and_dtypes(tmp_path: Path) -> None:
    """Numbers are rounded once, to the nearest float32."""
    cases: list[tuple[str, str, int | Fraction]] = [
        *(("u2", "mm", 1000), ("u2", "1/5000 m", 5000), ("u2", "1/1000 m", 1000)),
        *(("i4", "mm", 1000), ("u1", "cm", 100), ("u2", "m", 1), ("f4", "m", 1)),
        *(("f2", "dm", 10), ("f8", "km", Fraction(1, 1000)), ("u4", "um", 10**6)),
        ("u2", "0.25 m", 4),
    ]
    for number, (dtype, unit, per_metre) in enumerate(cases):
        values = np.arange(80, dtype=dtype).reshape(8, 10)
        path = write(tmp_path / f"{number}", values, unit)
        expected = [[np.float32(Fraction(float(x)) / per_metre) for x in row] for row in values]
        for step in ("frame_transform", "clip_transform"):
            depth = first(path, **{step: DepthToMeters("depth")})
            assert (depth.dtype, depth.shape) == (torch.float32, (1, 2, 8, 10))
            assert np.array_equal(depth[0, 0].numpy(), np.array(expected)), (dtype, unit)


def test_the_recipe_takes_uint16(tmp_path: Path) -> None:
    values = np.full((8, 10), 2000, np.uint16)
    values[0, 0] = 0
    path = write(tmp_path / "a", values)
    steps: list[Any] = [RandomCrop((8, 10)), HorizontalFlip(0.0), DepthToMeters("depth")]
    for depth in (
        first(path, clip_transform=steps),
        first(path, clip_transform=pickle.loads(pickle.dumps(steps))),
    ):
        valid = depth > 0
        assert not valid[0, 0, 0, 0]
        assert int(valid[0, 0].sum()) == 79
        assert depth[0, 0][valid[0, 0]].tolist() == [2.0] * 79
    assert SeqRecordMapDataset(path, clip_len=2, clip_transform=steps)[0]["depth"][0, 4, 4] == 2.0


def test_pixels_without_depth(tmp_path: Path) -> None:
    bad = np.array([0, -1, np.nan, np.inf, -np.inf, 1.5], np.float32)
    for invalid in (0.0, -1.0, float("nan"), float("inf")):
        convert = DepthToMeters("depth", unit="m", invalid=invalid)
        for depth, want in (
            (bad, [invalid] * 5 + [1.5]),
            (np.array([0, 3], np.uint16), [invalid, 3]),
            (np.float64(1e300), invalid),
        ):
            found = convert({"depth": depth, "other": 1})["depth"]
            assert np.array_equal(found, np.array(want, np.float32), equal_nan=True)
    assert bad[0] == 0  # the input is unchanged
    convert = DepthToMeters("left", "right", unit="mm")
    found = convert({"left": np.uint16(1000), "right": np.uint16(500), "image": 3})
    assert found == {"left": 1.0, "right": 0.5, "image": 3}
    assert repr(convert) == "DepthToMeters('left', 'right', unit='mm')"
    assert repr(DepthToMeters("d", invalid=-1)) == "DepthToMeters('d', invalid=-1)"


def test_unknown_units_are_refused(tmp_path: Path) -> None:
    """The error names both remedies, and both work."""
    path = write(tmp_path / "a", np.full((8, 10), 2000, np.uint16), None)
    with pytest.raises(ClipError, match="the unit is unknown") as caught:
        first(path, frame_transform=DepthToMeters("depth"))
    assert caught.value.feature == "depth"
    expected = str(caught.value.expected)
    assert "DepthToMeters('depth', unit='mm')" in expected
    assert first(path, frame_transform=DepthToMeters("depth", unit="mm")).max() < 3
    command = expected.partition("`seqrecord ")[2].partition("`")[0]
    run(*command.replace("PATH", str(path)).split())
    for unit in (None, "1/1000 m"):
        assert first(path, frame_transform=DepthToMeters("depth", unit=unit)).max() < 3
    with pytest.raises(ClipError, match="unit differs"):
        first(path, frame_transform=DepthToMeters("depth", unit="cm"))


def test_invalid_arguments_are_refused(tmp_path: Path) -> None:
    make: Any = DepthToMeters
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: make(), "invalid feature names"),
        (lambda: make(["depth"]), "invalid feature names"),
        (lambda: make("depth", unit="meters"), "invalid unit"),
        (lambda: make("depth", unit="s"), "invalid unit"),
        (lambda: make("depth", invalid="no"), "invalid is not"),
        (lambda: make("d", unit="m")({"depth": 0}), "no such feature"),
        (lambda: make("d", unit="m")({"d": np.zeros(3, bool)}), "not numeric"),
        (lambda: make("depth")({"depth": np.zeros(3)}), "unit is unknown"),
        (lambda: first(path, frame_transform=make("depth")), "not depth"),
        (lambda: first(path, frame_transform=make("depht")), "not read"),
    ]
    path = write(tmp_path / "a", np.full((8, 10), 2000, np.uint16), "px", "disparity")
    for use, message in cases:
        with pytest.raises(ClipError, match=message):
            use()
    edit.describe_features(path, kinds={"depth": None})
    with pytest.raises(ClipError, match="invalid unit"):
        first(path, frame_transform=DepthToMeters("depth"))


def make_range(clip: dict[str, Any], _: Any) -> dict[str, Any]:
    return {**clip, "range": clip["depth"] * 2}


def test_after_another_function_renamed_and_in_statistics(tmp_path: Path) -> None:
    path = write(tmp_path / "a", np.full((8, 10), 2000, np.uint16))
    options: dict[str, Any] = {"clip_len": 1, "batch_size": 1, "shuffle": False}
    steps: list[Any] = [make_range, DepthToMeters("range", unit="mm")]
    batch = next(iter(SeqRecordPipe(path, clip_transform=steps, **options)))
    assert batch["range"].unique().tolist() == [4.0]
    pipe = SeqRecordPipe(path, rename={"depth": "z"}, clip_transform=DepthToMeters("z"), **options)
    assert next(iter(pipe))["z"].unique().tolist() == [2.0]
    with seqrecord.open(path) as found:
        statistics = found.compute_statistics(frame_transform=DepthToMeters("depth"))
    assert statistics["depth"].min.tolist() == [2.0]


# ---- mixes


def mix(paths: Mapping[str, Path], of_a: Mapping[str, Any] | None = None, **more: Any) -> Any:
    """With options of one dataset, and of all."""
    options = {"a": of_a or {}}
    sources = {
        name: SeqRecordIterableDataset(path, clip_len=2, **options.get(name, {}))
        for name, path in paths.items()
    }
    return SeqRecordMix(sources, batch_size=4, **more)


@pytest.fixture
def two(tmp_path: Path) -> dict[str, Path]:
    """2 metres each, in one dtype and two units."""
    return {
        "a": write(tmp_path / "a", np.full((8, 10), 2000, np.float32), "mm"),
        "b": write(tmp_path / "b", np.full((8, 10), 2, np.float32), "m"),
    }


def test_a_mix_refuses_other_units(two: dict[str, Path]) -> None:
    error = ClipError("none")
    for single in (None, True):
        with pytest.raises(ClipError, match="disagree on the unit of a feature") as caught:
            mix(two, single_source_batches=single)
        error = caught.value
        assert (error.feature, error.got) == ("depth", "a: mm; b: m")
        assert "DepthToMeters('depth')" in str(error.expected)
    outer = {"in": mix({"x": two["a"]}), "b": SeqRecordIterableDataset(two["b"], clip_len=2)}
    with pytest.raises(ClipError, match="disagree on the unit") as caught:
        SeqRecordMix(outer, batch_size=2)
    assert caught.value.got == "in/x: mm; b: m"
    command = str(error.expected).partition("`seqrecord ")[2].partition("`")[0]
    run(*command.split())
    for single in (None, True):
        mix(two, single_source_batches=single)


def test_a_mix_of_depth_in_metres(two: dict[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    convert = {"frame_transform": DepthToMeters("depth")}
    batch = next(iter(mix(two, convert)))
    assert batch["depth"].dtype == torch.float32
    assert batch["depth"].max() < 10
    assert {*batch["dataset"]} == {"a", "b"}
    next(iter(mix(two, {"clip_transform": DepthToMeters("depth")})))
    assert not caplog.records
    run("edit", "describe", two["b"], "--unit", "depth=cm")
    with pytest.raises(ClipError, match="disagree on the unit") as caught:
        mix(two, convert)
    assert caught.value.got == "a: m; b: cm"


def halved(frame: dict[str, Any]) -> dict[str, Any]:
    return {**frame, "depth": frame["depth"] / np.float32(2)}


def in_place(frame: dict[str, Any]) -> dict[str, Any]:
    frame["depth"] *= np.float32(0.001)
    return frame


def brighter(frame: dict[str, Any], _: Any = None) -> dict[str, Any]:
    return {**frame, "image": frame["image"] + np.uint8(1)}


def copied(frame: dict[str, Any]) -> dict[str, Any]:
    columns = ("episode", "start")  # of functions of clips
    return {name: np.array(value) for name, value in frame.items() if name not in columns}


def test_features_changed_by_a_transform_are_exempt(two: dict[str, Path]) -> None:
    """Features passed on unchanged are not."""
    for transform in (halved, in_place):
        mix(two, {"frame_transform": transform})
    for passes_on in (brighter, copied):
        for where, step in (
            ("frame_transform", passes_on),
            ("clip_transform", lambda clip, _, change=passes_on: change(clip)),
        ):
            with pytest.raises(ClipError, match="disagree on the unit"):
                mix(two, {where: step})


def test_a_mix_of_an_unknown_unit_warns_once(
    two: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    edit.describe_features(two["a"], units={"depth": None})
    for _ in range(2):
        mix(two)
    [record] = caplog.records
    assert "a: unknown; b: m" in record.getMessage()
    assert f"seqrecord edit describe {two['a']} --unit depth=m" in record.getMessage()
    edit.describe_features(two["b"], units={"depth": None})
    mix(two)
    assert len(caplog.records) == 1
    edit.describe_features(two["a"], kinds={"depth": "disparity"})
    with pytest.raises(ClipError, match="disagree on the kind of a feature") as caught:
        mix(two)
    assert caught.value.got == "a: disparity; b: depth"
    mix(two, {"rename": {"depth": "disparity"}})
    mix(two, {"features": ["image"]})


def test_units_of_other_spelling_are_one(tmp_path: Path) -> None:
    depth = np.full((8, 10), 2000, np.uint16)
    one, other = write(tmp_path / "a", depth), write(tmp_path / "b", depth, "1/1000 m")
    next(iter(mix({"a": one, "b": other})))
    edit.rename_episodes(other, {"e": "f"})
    edit.merge_datasets([one, other], tmp_path / "merged")
    with seqrecord.open(tmp_path / "merged") as dataset:
        assert dataset.features["depth"].unit == "mm"
    edit.describe_features(other, units={"depth": "cm"})
    with pytest.raises(
        SchemaError, match="different units; correct a wrong one with `seqrecord edit describe`"
    ):
        edit.merge_datasets([one, other], tmp_path / "c")
