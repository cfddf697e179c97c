"""Numbers that are none, too large, or of another kind: an error of ours that shows what came."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord.edit import split_dataset
from tests.datasets import write_small

_HUGE = 10**5000  # too large for a float, and for Python to print
_NUMBERS: dict[str, Any] = {
    "huge": _HUGE,
    "below": -_HUGE,
    "large": 10**400,
    "nan": float("nan"),
    "inf": float("inf"),
    "true": True,
    "numpy nan": np.float64("nan"),
    "numpy true": np.True_,
    "duration": np.timedelta64(1, "s"),
    "fraction": Fraction(_HUGE, 3),
    "complex": 1j,
    "inside": [_HUGE, float("nan")],
    "array": np.array([10**20], object),
}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "records"
    write_small(folder)
    return folder


def _pipe(**settings: Any) -> Callable[[Path, Any], Any]:
    def make(records: Path, value: Any) -> Any:
        these = {name: make(value) for name, make in settings.items()}
        return seqrecord.SeqRecordPipe(
            records, **{"clip_len": 2, "features": ["image_left", "pose"], **these}
        )

    return make


def _weighted(records: Path, value: Any) -> Any:
    sources = {"a": seqrecord.SeqRecordIterableDataset(records, clip_len=2)}
    return seqrecord.SeqRecordMix(sources, weights={"a": value}, batch_size=1)


_TAKE: dict[str, Callable[[Path, Any], Any]] = {
    "HorizontalFlip": lambda _, value: seqrecord.HorizontalFlip(value),
    "CenterCrop": lambda _, value: seqrecord.CenterCrop(value),
    "RandomCrop": _pipe(clip_transform=seqrecord.RandomCrop),
    "Seconds": lambda _, value: seqrecord.Seconds(value, 0),
    "Seconds last": lambda _, value: seqrecord.Seconds(0, value),
    "Seconds every": lambda _, value: seqrecord.Seconds(0, 1, step=value),
    "Seconds list": lambda _, value: seqrecord.Seconds([value]),
    "tolerance": lambda _, value: seqrecord.Seconds(0, 1, tolerance=value),
    **{
        name: _pipe(**{name: lambda value: value})
        for name in ("dilation", "reverse", "batch_size", "num_cursors", "memory_limit", "seed")
    },
    "windows": _pipe(windows=lambda value: {"pose": [value]}),
    "weights": _weighted,
    "split": lambda records, value: split_dataset(records, {"a": value}),
    "split by": lambda records, value: split_dataset(records, {"a": 1}, by=value),
    "select": lambda records, value: seqrecord.open(records).select(value),
}


@pytest.mark.parametrize("take", list(_TAKE))
def test_a_number_that_is_none_is_refused(take: str, records: Path) -> None:
    for name, value in _NUMBERS.items():
        if take == "weights" and name in ("huge", "large", "fraction"):  # which are ratios
            assert _TAKE[take](records, value).shares == {"a": 1}
            continue
        with pytest.raises(seqrecord.SeqRecordError) as caught:
            _TAKE[take](records, value)
        assert len(str(caught.value)) < 700, name
