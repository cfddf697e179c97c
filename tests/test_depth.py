"""DepthToMeters: float32 metres of any unit and dtype, in loaders, statistics and mixes."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
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
    SeqRecordDataset,
    SeqRecordPipe,
    SeqRecordWriter,
    edit,
)
from tests.command_line import run


def write(path: Path, depth: Any, unit: str | None = "mm", kind: str | None = "depth") -> Path:
    said: Mapping[str, Any] = {"depth": {"kind": kind, "unit": unit}}
    with SeqRecordWriter(path, features=said) as writer, writer.episode("e") as episode:
        for number in range(6):
            image = np.full((8, 10, 3), number, np.uint8)
            episode.append({"image": image, "depth": depth + np.asarray(number, depth.dtype)})
    return path


def first(path: Path, **options: Any) -> torch.Tensor:
    batch = next(iter(SeqRecordPipe(path, clip_len=2, batch_size=1, shuffle=False, **options)))
    found: torch.Tensor = batch["depth"]
    return found


@pytest.mark.parametrize(
    ("dtype", "unit", "per_metre"),
    [
        ("u2", "mm", 1000),
        ("u2", "1/5000 m", 5000),
        ("u2", "1/1000 m", 1000),
        ("i4", "mm", 1000),
        ("u1", "cm", 100),
        ("u2", "m", 1),
        ("f4", "m", 1),
        ("f2", "dm", 10),
        ("f8", "km", Fraction(1, 1000)),
        ("u4", "um", 1_000_000),
        ("u2", "0.25 m", 4),
    ],
)
def test_units_and_dtypes(tmp_path: Path, dtype: str, unit: str, per_metre: Fraction) -> None:
    """Numbers are rounded once, to the nearest float32."""
    values = np.arange(80, dtype=dtype).reshape(8, 10)
    path = write(tmp_path / "a", values, unit)
    expected = [[np.float32(Fraction(float(x)) / per_metre) for x in row] for row in values]
    for step in (
        {"frame_transform": DepthToMeters("depth")},
        {"clip_transform": DepthToMeters("depth")},
    ):
        depth = first(path, **step)
        assert depth.dtype == torch.float32
        assert depth.shape == (1, 2, 8, 10)
        assert np.array_equal(depth[0, 0].numpy(), np.array(expected))
        assert bool((depth > 0).any())


def test_the_recipe_takes_uint16(tmp_path: Path) -> None:
    values = np.full((8, 10), 2000, np.uint16)
    values[0, 0] = 0
    path = write(tmp_path / "a", values)
    steps = [RandomCrop((8, 10)), HorizontalFlip(0.0), DepthToMeters("depth")]
    for depth in (
        first(path, clip_transform=steps),
        first(path, clip_transform=pickle.loads(pickle.dumps(steps))),
    ):
        valid = depth > 0
        assert not valid[0, 0, 0, 0]
        assert int(valid[0, 0].sum()) == 79
        assert depth[0, 0][valid[0, 0]].unique().tolist() == [2.0]
    assert SeqRecordDataset(path, clip_len=2, clip_transform=steps)[0]["depth"][0, 4, 4] == 2.0


@pytest.mark.parametrize("invalid", [0.0, -1.0, float("nan"), float("inf")])
def test_pixels_without_depth(tmp_path: Path, invalid: float) -> None:
    bad = np.array([0, -1, np.nan, np.inf, -np.inf, 1.5], np.float32)
    convert = DepthToMeters("depth", unit="m", invalid=invalid)
    found = convert({"depth": bad, "other": 1})["depth"]
    assert np.array_equal(found, np.array([invalid] * 5 + [1.5], np.float32), equal_nan=True)
    found = convert({"depth": np.array([0, 3], np.uint16)})["depth"]
    assert np.array_equal(found, np.array([invalid, 3], np.float32), equal_nan=True)
    assert bad[0] == 0  # what it gets stays as it is
    assert convert({"depth": np.float64(1e300)})["depth"] == np.float32(invalid) or np.isnan(
        invalid
    )


def test_several_features() -> None:
    convert = DepthToMeters("left", "right", unit="mm")
    found = convert({"left": np.uint16(1000), "right": np.uint16(500), "image": 3})
    assert found == {"left": 1.0, "right": 0.5, "image": 3}
    assert repr(convert) == "DepthToMeters('left', 'right', unit='mm')"
    assert repr(DepthToMeters("d", invalid=-1)) == "DepthToMeters('d', invalid=-1)"


def test_unknown_units_are_refused(tmp_path: Path) -> None:
    """The error names both remedies, and both work."""
    path = write(tmp_path / "a", np.full((8, 10), 2000, np.uint16), None)
    with pytest.raises(ClipError, match="unit of depth is not known") as caught:
        first(path, frame_transform=DepthToMeters("depth"))
    assert caught.value.feature == "depth"
    said = str(caught.value.expected)
    assert "DepthToMeters('depth', unit='mm')" in said
    assert first(path, frame_transform=DepthToMeters("depth", unit="mm")).max() < 3
    command = said.partition("`seqrecord ")[2].partition("`")[0]
    run(*command.replace("PATH", str(path)).split())
    assert first(path, frame_transform=DepthToMeters("depth")).max() < 3
    with pytest.raises(ClipError, match="another unit"):
        first(path, frame_transform=DepthToMeters("depth", unit="cm"))
    assert first(path, frame_transform=DepthToMeters("depth", unit="1/1000 m")).max() < 3
    with pytest.raises(ClipError, match="not known"):
        DepthToMeters("depth")({"depth": np.zeros(3)})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DepthToMeters(), "not names of features"),
        (lambda: DepthToMeters(["depth"]), "not names of features"),  # type: ignore[arg-type]
        (lambda: DepthToMeters("depth", unit="meters"), "not a unit of depth"),
        (lambda: DepthToMeters("depth", unit="s"), "not a unit of depth"),
        (lambda: DepthToMeters("depth", invalid="no"), "invalid is not"),  # type: ignore[arg-type]
        (lambda: DepthToMeters("d", unit="m")({"depth": 0}), "no such feature"),
        (lambda: DepthToMeters("d", unit="m")({"d": np.zeros(3, bool)}), "not numbers"),
    ],
)
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ClipError, match=message):
        make()


def test_features_that_are_no_depth(tmp_path: Path) -> None:
    path = write(tmp_path / "a", np.full((8, 10), 2000, np.uint16), "px", "disparity")
    with pytest.raises(ClipError, match="no depth"):
        first(path, frame_transform=DepthToMeters("depth"))
    with pytest.raises(ClipError, match="not read"):
        first(path, frame_transform=DepthToMeters("depht"))
    edit.describe_features(path, kinds={"depth": None})
    with pytest.raises(ClipError, match="not a unit of depth"):
        first(path, frame_transform=DepthToMeters("depth"))


def make_range(clip: dict[str, Any], _: Any) -> dict[str, Any]:
    return {**clip, "range": clip["depth"] * 2}


def test_after_another_function_and_renamed(tmp_path: Path) -> None:
    path = write(tmp_path / "a", np.full((8, 10), 2000, np.uint16))
    options: dict[str, Any] = {"clip_len": 1, "batch_size": 1, "shuffle": False}
    steps = [make_range, DepthToMeters("range", unit="mm")]
    batch = next(iter(SeqRecordPipe(path, clip_transform=steps, **options)))
    assert batch["range"].unique().tolist() == [4.0]
    pipe = SeqRecordPipe(path, rename={"depth": "z"}, clip_transform=DepthToMeters("z"), **options)
    assert next(iter(pipe))["z"].unique().tolist() == [2.0]


def test_statistics_are_of_metres(tmp_path: Path) -> None:
    path = write(tmp_path / "a", np.full((8, 10), 2000, np.uint16))
    with seqrecord.open(path) as found:
        statistics = found.compute_statistics(frame_transform=DepthToMeters("depth"))
    assert statistics["depth"].min.tolist() == [2.0]
