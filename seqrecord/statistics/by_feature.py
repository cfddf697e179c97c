"""Statistics of a dataset's features, as they are computed, merged, stored and used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import FormatError, SchemaError, StatisticsKeyError, located
from seqrecord.json_object import JsonObject
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.statistics.sketch import Sketch, sketch_dtype
from seqrecord.text import repr_of, table_lines

MAX_CHANNELS = 256  # of a feature of one dimension
_MAX_IMAGE_CHANNELS = 32  # of one of more: a last axis that is longer is a width
_PLANES = frozenset("image depth disparity mask segmentation".split())  # noqa: SIM905 - of two axes
_VERSION = 1
_SHOWN_QUANTILES = (0.01, 0.5, 0.99)
_SHOWN_CHANNELS = 8  # of a feature, in a table


def num_channels(spec: FeatureSpec) -> int | None:
    """How many channels a feature's statistics have; `None` for a feature without statistics.

    The last axis is that of the channels if its length is fixed and at most 256 for a vector, 32
    for anything else; or there is one channel. Complex numbers, text and bytes have no statistics.
    """
    if sketch_dtype(spec.dtype) is None or spec.value != "array":
        return None
    if len(spec.shape) == 2 and spec.kind in _PLANES:
        return 1
    last = spec.shape[-1] if spec.shape else None
    most = MAX_CHANNELS if len(spec.shape) == 1 else _MAX_IMAGE_CHANNELS
    return 1 if last is None or last > most else last


@dataclass(frozen=True, eq=False)
class FeatureStatistics:
    """Statistics of one feature. All arrays are [C], a number for each channel of the last axis.

    C is 1 for a feature without channels: see `num_channels`. So `normalize`, which is
    `(x - mean) / std`, takes frames, clips and batches of either kind. NaN and infinities are
    counted and are in nothing else.

    Quantiles of frames of more than 128 pixels are of 128 of them, which are drawn by a seed;
    `num_drawn` says of how many numbers in all. Everything else is of all numbers of `num_frames`
    frames, those that were looked at.
    """

    num_frames: int
    sketches: tuple[Sketch, ...]

    @property
    def count(self) -> npt.NDArray[np.int64]:
        """Finite numbers: int64 [C]."""
        return np.array([sketch.count for sketch in self.sketches], np.int64)

    @property
    def num_drawn(self) -> npt.NDArray[np.int64]:
        """Numbers that quantiles are of, at most `count`: int64 [C]."""
        return np.array([sketch.weight for sketch in self.sketches], np.int64)

    @property
    def num_nan(self) -> npt.NDArray[np.int64]:
        """Numbers that were NaN: int64 [C]."""
        return np.array([sketch.nan for sketch in self.sketches], np.int64)

    @property
    def num_infinite(self) -> npt.NDArray[np.int64]:
        """Numbers that were infinite, of either sign: int64 [C]."""
        return np.array(
            [sketch.positive_infinity + sketch.negative_infinity for sketch in self.sketches],
            np.int64,
        )

    @property
    def mean(self) -> npt.NDArray[np.float64]:
        """Mean: float64 [C], NaN for a channel without numbers."""
        return self._reals([sketch.mean for sketch in self.sketches])

    @property
    def std(self) -> npt.NDArray[np.float64]:
        """Standard deviation of the population: float64 [C], NaN for a channel without numbers."""
        return self._reals([sketch.std for sketch in self.sketches])

    @property
    def min(self) -> npt.NDArray[np.float64]:
        """The least number: float64 [C], NaN for a channel without numbers."""
        return self._reals([sketch.min or 0.0 for sketch in self.sketches])

    @property
    def max(self) -> npt.NDArray[np.float64]:
        """The greatest number: float64 [C], NaN for a channel without numbers."""
        return self._reals([sketch.max or 0.0 for sketch in self.sketches])

    @property
    def rank_error(self) -> float:
        """The bound on the rank of a quantile, as a share of `num_drawn`; see `quantile`."""
        return max(sketch.rank_error for sketch in self.sketches)

    def quantile(self, share: float | Sequence[float]) -> npt.NDArray[np.float64]:
        """The number below which this share of all lies: float64 [C], or [shares, C] for several.

        Each is one of the numbers, NaN for a channel without any. For share q, at most
        `q + rank_error` of those drawn are smaller and at least `q - rank_error` are smaller or
        equal. Raises `ValueError` for a share outside 0 to 1.
        """
        shares = [share] if isinstance(share, (int, float)) else list(share)
        found = np.stack([sketch.quantiles(shares) for sketch in self.sketches], axis=-1)
        return found[0] if isinstance(share, (int, float)) else found

    def normalize(self, values: Any) -> Any:
        """`(values - mean) / std`, of an array or a tensor [..., C], or [...] where C is 1.

        It is of the same kind, on the same device, and float32, or float64 where the values are. A
        channel that is always the same (std 0), or that no number was seen of, only loses its mean.
        Raises `ValueError` where the last axis is not that of the channels.
        """
        if (channels := len(self.sketches)) > 1 and tuple(values.shape[-1:]) != (channels,):
            raise ValueError(
                f"statistics of {channels} channels are for values [..., {channels}], as they are "
                f"stored; got {list(values.shape)}: normalize before permute"
            )
        mean = np.nan_to_num(self.mean)
        std = np.where(np.nan_to_num(self.std) > 0, self.std, 1.0)
        if isinstance(values, np.ndarray):
            kind = np.float64 if values.dtype == np.float64 else np.float32
            made: npt.NDArray[Any] = (values.astype(kind) - mean.astype(kind)) / std.astype(kind)
            return made
        numbers = values if values.is_floating_point() else values.float()
        numbers = numbers.float() if numbers.itemsize < np.float32().itemsize else numbers
        return (numbers - _beside(numbers, mean)).div_(_beside(numbers, std))

    def merged(self, other: FeatureStatistics) -> FeatureStatistics:
        """The statistics of what both have seen, each number counted once.

        Where their dtypes differ, in one that holds both, as `numpy.result_type` says. Raises
        `SchemaError` where they have different numbers of channels.
        """
        if len(self.sketches) != len(other.sketches):
            raise SchemaError(
                "statistics of other channels cannot be merged",
                expected=f"{len(self.sketches)} channels",
                got=f"{len(other.sketches)} channels",
            )
        sketches = []
        for one, two in zip(self.sketches, other.sketches, strict=True):
            dtype = np.result_type(one.dtype, two.dtype)
            sketch = one.as_dtype(dtype)
            sketch.merge(two.as_dtype(dtype))
            sketches.append(sketch)
        return FeatureStatistics(self.num_frames + other.num_frames, tuple(sketches))

    def _reals(self, values: Sequence[float | int]) -> npt.NDArray[np.float64]:
        return np.where(self.count > 0, np.array(values, np.float64), np.nan)


class Statistics(Mapping[str, FeatureStatistics]):
    """Statistics of a dataset, by feature; those of `num_frames` frames.

    A feature that is not there has none: a complex one, text, or images that were kept encoded.
    Asking for one raises `StatisticsKeyError`. There is no feature at all, and `bool()` is false,
    where a dataset has no statistics; `lacking` is the dataset's URL then.
    """

    def __init__(
        self,
        num_frames: int,
        features: Mapping[str, FeatureStatistics],
        *,
        lacking: str | None = None,
    ) -> None:
        self.num_frames = num_frames
        self.lacking = lacking
        self._features = dict(features)

    def __getitem__(self, name: str) -> FeatureStatistics:
        if name in self._features:
            return self._features[name]
        if self.lacking is not None:
            raise StatisticsKeyError(
                "the dataset has no statistics",
                file=self.lacking,
                feature=name,
                expected=f"`seqrecord stats {self.lacking}` first, which computes them",
            )
        raise StatisticsKeyError(
            "there are no statistics of this feature",
            feature=name,
            expected=", ".join(self) or "no feature",
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._features)

    def __len__(self) -> int:
        return len(self._features)

    def __repr__(self) -> str:
        return f"Statistics({self.num_frames} frames of {', '.join(self) or 'no feature'})"

    def merged(self, other: Statistics) -> Statistics:
        """The statistics of both datasets together, of the features that both have with as many
        channels."""
        return Statistics(
            self.num_frames + other.num_frames,
            {
                name: self[name].merged(other[name])
                for name in self
                if name in other and len(self[name].sketches) == len(other[name].sketches)
            },
        )

    def missing(self, schema: Schema) -> list[str]:
        """The features of which there are none, and could be."""
        return [n for n, spec in schema.items() if n not in self and num_channels(spec) is not None]

    def check(self, schema: Schema) -> None:
        """Raise `FormatError` unless these can be statistics of a dataset of this schema."""
        for name, feature in self.items():
            expected = None
            if name in schema and (count := num_channels(schema[name])) is not None:
                expected = (count, sketch_dtype(schema[name].dtype))
            got = (len(feature.sketches), feature.sketches[0].dtype)
            if got != expected:
                raise FormatError(
                    "statistics of a feature that the dataset does not have so",
                    feature=name,
                    expected=expected and f"{expected[0]} channels of {expected[1]}",
                    got=f"{got[0]} channels of {got[1]}",
                )

    def to_json(self) -> dict[str, Any]:
        """As JSON; see docs/format.md."""
        return {
            "format": "seqrecord statistics",
            "version": _VERSION,
            "num_frames": self.num_frames,
            "features": {
                name: {
                    "dtype": feature.sketches[0].dtype.str,
                    "num_frames": feature.num_frames,
                    "channels": [sketch.to_json() for sketch in feature.sketches],
                }
                for name, feature in self.items()
            },
        }

    @classmethod
    def from_json(cls, value: object) -> Statistics:
        """Inverse of `to_json`; trusts nothing. Raises `FormatError`."""
        keys = ("num_frames", "features")
        found = JsonObject.of_file(value, "statistics", _VERSION, keys)
        by_name = found.value["features"]
        if not isinstance(by_name, dict):
            raise FormatError("statistics are not by feature", got=repr_of(by_name, 50))
        num_frames = found.integer("num_frames")
        features = {}
        for name, feature in by_name.items():
            with located(FormatError, feature=name[:200]):
                features[name] = _feature(feature, num_frames)
        return cls(num_frames, features)

    def summary(self) -> dict[str, Any]:
        """What people look at, as JSON: no sketches; `null` for a channel without numbers."""
        return {name: _summary(feature) for name, feature in self.items()}

    def __str__(self) -> str:
        """A table with a line for each channel, and of how many numbers quantiles are, if not of
        all."""
        quantiles = [f"{share:.0%}" for share in _SHOWN_QUANTILES]
        rows: list[Sequence[str]] = [
            (
                "feature",
                "mean",
                "std",
                "min",
                *quantiles,
                "max",
                "NaN",
                "infinite",
                "numbers",
                "frames",
            )
        ]
        for name, feature in self.items():
            columns = [feature.mean, feature.std, feature.min]
            columns += [*feature.quantile(_SHOWN_QUANTILES), feature.max]
            counts = [feature.num_nan, feature.num_infinite, feature.count]
            for channel in range(min(len(feature.sketches), _SHOWN_CHANNELS)):
                label = name if len(feature.sketches) == 1 else f"{name}[{channel}]"
                reals = [f"{column[channel]:.5g}" for column in columns]
                numbers = (*(count[channel] for count in counts), feature.num_frames)
                rows.append((label, *reals, *(f"{number:,}" for number in numbers)))
            if (more := len(feature.sketches) - _SHOWN_CHANNELS) > 0:
                rows.append((f"… {more} more", *[""] * (len(rows[0]) - 1)))
        notes = [
            f"quantiles of {name}: of {feature.num_drawn.max():,} numbers, drawn from all"
            for name, feature in self.items()
            if (feature.num_drawn < feature.count).any()
        ]
        return "\n".join([*table_lines(rows, left=1), *notes])


def _summary(feature: FeatureStatistics) -> dict[str, Any]:
    columns = {
        "mean": feature.mean,
        "std": feature.std,
        "min": feature.min,
        "max": feature.max,
        **{f"q{share * 100:02.0f}": feature.quantile(share) for share in _SHOWN_QUANTILES},
    }
    return {
        "num_frames": feature.num_frames,
        "count": feature.count.tolist(),
        "num_drawn": feature.num_drawn.tolist(),
        "num_nan": feature.num_nan.tolist(),
        "num_infinite": feature.num_infinite.tolist(),
        **{
            name: [None if np.isnan(number) else float(number) for number in column]
            for name, column in columns.items()
        },
        "rank_error": feature.rank_error,
    }


def _feature(value: object, num_frames: int) -> FeatureStatistics:
    found = JsonObject(value, ("dtype", "num_frames", "channels"), "a feature's statistics")
    channels = found.list("channels", 1, MAX_CHANNELS)
    if (name := found.value["dtype"]) not in _DTYPES:
        expected = ", ".join(_DTYPES)
        raise FormatError(
            "statistics of a dtype that has none", expected=expected, got=repr_of(name, 50)
        )
    dtype = np.dtype(name)
    sketches = tuple(Sketch.from_json(item, dtype) for item in channels)
    return FeatureStatistics(found.integer("num_frames", most=num_frames), sketches)


def _beside(numbers: Any, values: npt.NDArray[np.float64]) -> Any:
    """A tensor of values on the device of others. From memory that is not pinned it would wait for
    all that a GPU has yet to do."""
    made, is_late = numbers.new_tensor(values, device="cpu"), numbers.is_cuda
    return (made.pin_memory() if is_late else made).to(numbers.device, non_blocking=is_late)


_DTYPES = ("|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f4", "<f8")
