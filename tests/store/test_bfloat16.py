"""Features of bfloat16: words of 16 bits on disk, float32 for users of NumPy."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import seqrecord
from seqrecord import FeatureSpec, Schema, edit, export
from seqrecord.errors import ClipError, FrameError, SchemaError
from seqrecord.types import BFLOAT16
from tests.kit.datasets import write_dataset, write_episodes
from tests.kit.made_source import GivenSource

ml_dtypes = pytest.importorskip("ml_dtypes")

SPECIAL = [0.0, -0.0, 1.0, -3.140625, float("inf"), float("-inf"), 2.0**-133, 3.3895314e38]
"""Numbers that bfloat16 represents: also the smallest and the largest."""


def latents(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Frames with a vector, a grid that is compressed, and rows of a number that varies."""
    random = torch.Generator().manual_seed(seed)
    sizes = {"state": (5,), "latent": (4, 16, 20), "tokens": (0, 6)}

    def value(name: str, number: int) -> torch.Tensor:
        first, *rest = sizes[name]
        made = torch.randn((first or 1 + number % 3, *rest), generator=random)
        return made.bfloat16()

    return [{name: value(name, number) for name in sizes} for number in range(count)]


FEATURES: dict[str, Any] = {"tokens": {"shape": (None, 6)}, "state": {"kind": "state"}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    episodes = {key: latents(9, seed) for seed, key in enumerate("ab")}
    write_dataset(tmp_path / "records", episodes, features=FEATURES, chunk_frames=4)
    return tmp_path / "records"


def check(dataset: seqrecord.Dataset, key: str = "a", seed: int = 0) -> None:
    """Assert that an episode has the frames that `path` was written from."""
    frames, episode = latents(9, seed), dataset.episodes[key]
    for name in dataset.features:
        expected = [frame[name].float().numpy() for frame in frames]
        for number, array in enumerate(expected):
            np.testing.assert_array_equal(episode[number][name], array, strict=True)
        for array, value in zip(episode[2:9:3][name], expected[2:9:3], strict=True):
            np.testing.assert_array_equal(array, value, strict=True)


def test_numbers_are_read_as_exact_float32(path: Path) -> None:
    with seqrecord.open(path) as dataset:
        check(dataset)
        check(dataset, "b", 1)
        assert [str(spec) for spec in dataset.features.values()] == [
            "state: bfloat16 [5]",
            "latent: bfloat16 [4, 16, 20]",
            "tokens: bfloat16 [?, 6]",
        ]
        assert all(spec.dtype == BFLOAT16 for spec in dataset.features.values())
    assert seqrecord.verify(path, deep=True).ok


def test_the_schema_names_the_type_and_pages_have_words(tmp_path: Path) -> None:
    values = torch.tensor(SPECIAL).bfloat16()
    write_dataset(tmp_path / "r", {"a": [{"x": values}]}, codecs="raw")
    [feature] = json.loads((tmp_path / "r" / "manifest.json").read_bytes())["schema"]
    assert (feature["dtype"], feature["shape"], feature["value"]) == ("bfloat16", [8], "array")
    [file] = (tmp_path / "r").glob("records/*.seqrec")
    words = b"".join(struct.pack("<f", number)[2:] for number in SPECIAL)
    assert file.read_bytes()[64 : 64 + 16] == words
    with seqrecord.open(tmp_path / "r") as dataset:
        found = dataset.episodes["a"][0]["x"]
    np.testing.assert_array_equal(found.view("u4"), np.array(SPECIAL, np.float32).view("u4"))


VALUES: dict[str, Any] = {
    "torch": torch.tensor([1.5, -2.0]).bfloat16(),
    "a view": torch.tensor([[1.5, 7.0], [-2.0, 8.0]]).bfloat16()[:, 0],
    "ml_dtypes": np.array([1.5, -2.0], ml_dtypes.bfloat16),
    "float32": np.array([1.5, -2.0], np.float32),
    "big endian": np.array([1.5, -2.0], ">f4"),
    "a tensor of float32": torch.tensor([1.5, -2.0]),
}
X = Schema([FeatureSpec("x", BFLOAT16, (2,))])


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("way", ["schema", "inferred", "recorder", "source"])
def test_values_of_bfloat16_and_exact_float32_are_written(
    tmp_path: Path, kind: str, way: str
) -> None:
    root, frames = tmp_path / "r", [{"x": VALUES["torch"]}, {"x": VALUES[kind]}]
    if way == "recorder":
        with seqrecord.SeqRecordRecorder(root) as recorder:
            write_episodes(recorder, {"a": frames})
    elif way == "source":
        seqrecord.convert(GivenSource(X, {"a": frames}), root, workers=1)
    else:
        write_dataset(root, {"a": frames}, schema=X if way == "schema" else None)
    with seqrecord.open(root) as dataset:
        assert dataset.features["x"].dtype == BFLOAT16
        assert dataset.episodes["a"][0:2]["x"].tolist() == [[1.5, -2.0]] * 2


REFUSED: dict[str, tuple[Any, str]] = {
    "rounded": (np.array([1.5, 1.1], np.float32), r"would round.*ml_dtypes\.bfloat16\); got: 1\.1"),
    "small": (np.array([1.5, 1e-40], np.float32), "would round"),
    "float64": (
        np.array([1.5, -2.0], np.float64),
        r"expected: x: bfloat16 \[2\]; got: float64 \[2\]",
    ),
    "float16": (np.array([1.5, -2.0], np.float16), "got: float16"),
    "words": (np.array([1, 2], np.uint16), "got: uint16"),
    "shape": (torch.ones(3).bfloat16(), r"got: bfloat16 \[3\]"),
    "a gradient": (torch.ones(2).bfloat16().requires_grad_(), r"expected: value\.detach\(\)"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_values_that_would_be_rounded_or_cast_are_refused(tmp_path: Path, kind: str) -> None:
    value, match = REFUSED[kind]
    good = {"x": VALUES["torch"]}
    with pytest.raises(FrameError, match=match) as caught:
        write_dataset(tmp_path / "r", {"a": [good, {"x": value}]}, schema=X)
    assert (caught.value.episode, caught.value.frame, caught.value.feature) == ("a", 1, "x")


def test_any_nan_stays_a_nan(tmp_path: Path) -> None:
    """The last bits of a NaN are no number: dropping them alone would make an infinity."""
    bits = np.array([0x7F80_0001, 0xFFC0_0000], np.uint32)
    frames = [{"x": bits.view(np.float32)}]
    write_dataset(tmp_path / "r", {"a": frames}, schema=X, statistics=False)
    with seqrecord.open(tmp_path / "r") as dataset:
        found = dataset.episodes["a"][0]["x"]
    assert np.isnan(found).all()
    assert np.signbit(found).tolist() == [False, True]


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16, np.dtype(ml_dtypes.bfloat16)])
def test_a_schema_takes_each_spelling(dtype: Any) -> None:
    spec = FeatureSpec("x", dtype, (2,))
    assert spec == X["x"]
    assert FeatureSpec.from_json(spec.to_json()) == spec
    assert str(Schema([spec])) == "Schema(x: bfloat16 [2])"


def test_other_structured_dtypes_are_refused() -> None:
    for dtype in (np.dtype([("x", "<u2")]), np.dtype([("bfloat16", "<i2")]), np.dtype("V2")):
        with pytest.raises(SchemaError, match="cannot be stored"):
            FeatureSpec("x", dtype, (2,))


def test_statistics_are_those_of_the_numbers(path: Path, tmp_path: Path) -> None:
    with seqrecord.open(path) as dataset:
        written, computed = dataset.statistics, dataset.compute_statistics()
    frames = [frame for seed in range(2) for frame in latents(9, seed)]
    wide = [{n: v.float() for n, v in frame.items()} for frame in frames]
    write_dataset(tmp_path / "wide", {"a": wide[:9], "b": wide[9:]}, features=FEATURES)
    with seqrecord.open(tmp_path / "wide") as dataset:
        expected = dataset.statistics
    for found in (written, computed):
        for name in expected:
            numbers: list[npt.NDArray[Any]] = [found[name].mean, found[name].min, found[name].std]
            wanted = [expected[name].mean, expected[name].min, expected[name].std]
            np.testing.assert_allclose(numbers, wanted, rtol=1e-6)
            assert found[name].quantile([0.1]).tolist() == expected[name].quantile([0.1]).tolist()


def test_nan_in_a_vector_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frames = [{"state": torch.tensor([1.0, float("nan")]).bfloat16()}]
    write_dataset(tmp_path / "r", {"a": frames}, features={"state": {"kind": "state"}})
    assert "state has NaN or infinite values, first in episode a, frame 0" in caplog.text


def test_statistics_of_a_transform_get_float32(path: Path) -> None:
    dtypes = set()

    def double(frame: dict[str, Any]) -> dict[str, Any]:
        dtypes.add(frame["state"].dtype)
        return {"state": 2 * frame["state"]}

    with seqrecord.open(path) as dataset:
        plain, doubled = (
            dataset.compute_statistics(),
            dataset.compute_statistics(frame_transform=double),
        )
    assert dtypes == {np.dtype(np.float32)}
    np.testing.assert_allclose(doubled["state"].mean, 2 * plain["state"].mean)


def test_edits_and_merges_keep_the_numbers(path: Path, tmp_path: Path) -> None:
    write_dataset(tmp_path / "more", {"c": latents(9, 2)}, features=FEATURES, chunk_frames=3)
    edit.merge_datasets([path, tmp_path / "more"], tmp_path / "merged")
    edit.trim_episodes(tmp_path / "merged", ["a"], slice(2, 6))
    edit.rename_features(tmp_path / "merged", {"state": "pose"})
    edit.add_feature(tmp_path / "merged", "half", lambda e: torch.ones(len(e), 2).bfloat16())
    edit.add_feature(tmp_path / "merged", "wide", lambda e: e[:]["pose"])
    with seqrecord.open(tmp_path / "merged") as dataset:
        first = dataset.episodes["a"][0]
        np.testing.assert_array_equal(first["pose"], latents(9)[2]["state"].float().numpy())
        check(dataset.select(["latent", "tokens"]), "c", 2)
        assert str(dataset.features["half"]) == "half: bfloat16 [2]"
        assert str(dataset.features["wide"]) == "wide: float32 [5]"
    edit.rewrite_files(tmp_path / "merged", min_unused=0.01)
    assert seqrecord.verify(tmp_path / "merged", deep=True).ok


def test_a_dataset_is_packed_again_with_another_codec(path: Path, tmp_path: Path) -> None:
    for codec in ("raw", "small"):
        seqrecord.convert(seqrecord.open_source(path), tmp_path / codec, codecs=codec, workers=1)
        with seqrecord.open(tmp_path / codec) as dataset:
            check(dataset)


def test_codecs_of_pictures_and_resizing_are_refused(path: Path, tmp_path: Path) -> None:
    write_dataset(tmp_path / "r", {"a": [{"near": torch.ones(16, 20).bfloat16()}]})
    source = seqrecord.open_source(tmp_path / "r")
    for codec in ("png", "ffv1"):
        with pytest.raises(SchemaError, match=r"bfloat16 \[16, 20\]"):
            seqrecord.convert(source, tmp_path / codec, codecs={"near": codec}, workers=1)
    with pytest.raises(ClipError, match=r"cannot be resized.*bfloat16 \[16, 20\]"):
        seqrecord.convert(source, tmp_path / "small", resize={"near": (8, 10)}, workers=1)


def test_a_dataset_of_bfloat16_is_continued(path: Path) -> None:
    write_dataset(path, {"c": latents(9, 2)}, mode="append")
    wide = [{n: v.float() for n, v in frame.items()} for frame in latents(9, 3)]
    write_dataset(path, {"d": wide}, mode="append")
    with seqrecord.open(path) as dataset:
        check(dataset, "c", 2)
        check(dataset, "d", 3)


def test_exports_to_formats_without_bfloat16_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"no bfloat16.*feature: state.*got: bfloat16 \[5\]"):
        export.to_files(path, None, tmp_path / "files")
    edit.drop_features(path, ["tokens"])
    with pytest.raises(SchemaError, match="LeRobot and Parquet have no bfloat16"):
        export.to_lerobot(path, tmp_path / "lerobot", fps=10)
    assert not (tmp_path / "lerobot").exists()


def test_info_and_pages_show_numbers(path: Path, tmp_path: Path) -> None:
    summary = seqrecord.summarize(path)
    assert "bfloat16" in str(summary)
    with seqrecord.open(path) as dataset:
        assert "bfloat16" in dataset._repr_html_()
    seqrecord.view(path, "a").savefig(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000
