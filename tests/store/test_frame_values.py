"""Frame values other than plain arrays are stored without loss, or refused with a remedy."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import seqrecord
from seqrecord import FeatureSpec, Schema, SeqRecordRecorder
from seqrecord.errors import SchemaError, SourceError
from tests.kit.datasets import write_dataset, write_episodes
from tests.kit.made_source import GivenSource

ONES = torch.ones(2, 3)


class Failing:
    """Like an array of another library on an unavailable device."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise RuntimeError("on a device that is gone")


class Subclass(np.ndarray):
    pass


class Convertible:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.ones(3, np.float32)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:.*deprecated")
def test_quantised_tensors(tmp_path: Path) -> None:
    try:
        value = torch.quantize_per_tensor(ONES, 0.1, 0, torch.qint8)
    except (RuntimeError, AttributeError) as error:
        pytest.skip(str(error))
    with pytest.raises(SchemaError, match=r"value\.dequantize\(\)"):
        write_dataset(tmp_path, {"e": [{"x": value}]})


def turned_picture(orientation: int = 6) -> Image.Image:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stream = io.BytesIO()
    Image.new("RGB", (4, 6)).save(stream, "JPEG", exif=exif)
    return Image.open(stream)


def animation() -> Image.Image:
    stream = io.BytesIO()
    pictures = [Image.new("RGB", (4, 6), (n, 0, 0)) for n in range(3)]
    pictures[0].save(stream, "GIF", save_all=True, append_images=pictures[1:])
    return Image.open(stream)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "masked": (lambda: np.ma.masked_less(np.arange(3), 1), r"mask; .*value\.filled\(0\)"),
    "nothing masked": (lambda: np.ma.array(np.arange(3)), r"value\.filled\(0\)"),
    "the masked constant": (lambda: np.ma.masked, r"value\.filled\(0\)"),
    "a list of masked": (lambda: [np.zeros(2), np.ma.masked_less(np.arange(2), 1)], "mask"),
    "nested lists": (lambda: [[1, 2], [3, np.ma.masked]], "mask"),
    "bfloat16": (lambda: ONES.bfloat16(), r"expected: value\.float\(\); .*bfloat16"),
    "float8": (lambda: ONES.to(torch.float8_e4m3fn), r"expected: value\.float\(\)"),
    "a gradient": (lambda: ONES.clone().requires_grad_(), r"expected: value\.detach\(\); "),
    "a parameter": (lambda: torch.nn.Parameter(ONES), r"expected: value\.detach\(\); "),
    "both": (lambda: ONES.bfloat16().requires_grad_(), r"value\.detach\(\)\.float\(\)"),
    "sparse": (lambda: ONES.to_sparse(), r"value\.to_dense\(\)"),
    "compressed rows": (lambda: ONES.to_sparse_csr(), r"value\.to_dense\(\)"),
    "meta": (lambda: torch.ones(2, device="meta"), "a tensor with values"),
    "conjugated": (lambda: (ONES + 1j).conj(), r"value\.resolve_conj\(\)"),
    "negated": (lambda: (ONES + 1j).conj().imag, r"value\.resolve_neg\(\)"),
    "failing": (Failing, "Failing: RuntimeError: on a device that is gone"),
    "a ragged list": (lambda: [[1], [1, 2]], "cannot be converted"),
    "objects": (lambda: np.array([{}, None]), "object.*|for objects, an array of numbers"),
    "structured": (lambda: np.zeros(2, [("x", "f4"), ("y", "i2")]), r"array\['name'\]"),
    "records": (lambda: np.rec.array(np.zeros(2, [("x", "f4")])), r"array\['name'\]"),
    "datetimes": (lambda: np.zeros(2, "M8[ns]"), r"array\.astype\('int64'\)"),
    "texts": (lambda: np.array(["a", "bc"]), "for texts, a str"),
    "a turned picture": (turned_picture, r"ImageOps\.exif_transpose\(value\)"),
    "an animation": (animation, "a file of 3 pictures"),
}


Frames = list[dict[str, Any]]


def schema_of(frames: Frames) -> Schema:
    return Schema([FeatureSpec(n, v.dtype, v.shape) for n, v in frames[0].items()])


def by_recorder(root: Path, frames: Frames) -> None:
    with SeqRecordRecorder(root) as recorder:
        write_episodes(recorder, {"e": frames})


WAYS: dict[str, Callable[[Path, Frames], object]] = {
    "writer": lambda root, frames: write_dataset(root, {"e": frames}),
    "schema": lambda root, frames: write_dataset(root, {"e": frames}, schema=schema_of(frames)),
    "recorder": by_recorder,
    "source": lambda root, frames: seqrecord.convert(
        GivenSource(schema_of(frames), {"e": frames}), root, workers=1
    ),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("way", WAYS)
def test_values_that_would_lose_data_are_refused(tmp_path: Path, way: str, thorough: bool) -> None:
    few = ["masked", "bfloat16", "failing", "structured", "texts", "an animation"]
    for case in REFUSED if thorough or way == "writer" else few:
        make, match = REFUSED[case]
        good = np.zeros(3, np.int64)
        dtype_only = case in ("objects", "structured", "records", "datetimes", "texts")
        values = [make()] if dtype_only and way == "writer" else [good, make()]
        if dtype_only and way != "writer":
            match = "does not fit its feature"
        with pytest.raises((SchemaError, SourceError), match=match) as caught:
            WAYS[way](tmp_path / case, [{"x": value} for value in values])
        assert caught.value.feature == "x", case
        if values[0] is good:
            assert (caught.value.episode, caught.value.frame) == ("e", 1), case


VALUES: list[Any] = [
    *(ONES, ONES.half(), ONES.t(), torch.tensor(3), ONES.to(torch.complex64), ONES > 0),
    *(torch.zeros(2, dtype=torch.uint16), [1, 2], 3.5, True, np.float32(2), np.ones((2, 2)).T),
    *(np.eye(2).view(Subclass), Convertible(), Image.new("L", (4, 6), 7), turned_picture(1)),
]


@pytest.mark.parametrize("way", ["writer", "recorder"])
def test_values_that_convert_to_arrays_without_loss(tmp_path: Path, way: str) -> None:
    WAYS[way](tmp_path, [{f"x{number}": value for number, value in enumerate(VALUES)}] * 2)
    got = seqrecord.open(tmp_path).episodes["e"][1]
    for number, value in enumerate(VALUES):
        np.testing.assert_array_equal(got[f"x{number}"], np.asarray(value), strict=True)
