"""Statistics of a dataset's features: access, merging, normalization, JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import FormatError, SchemaError, StatisticsKeyError, located
from seqrecord.store.json_object import JsonObject
from seqrecord.store.schema import FeatureSpec, Schema
from seqrecord.store.statistics.moments import coarsest_eps, usable_scales
from seqrecord.store.statistics.sketch import Sketch, sketch_dtype
from seqrecord.store.text import counted, first_of, printable, repr_of, table_lines

MAX_CHANNELS = 256  # of a one-dimensional feature
_MAX_IMAGE_CHANNELS = 32  # of others; a longer last axis is a width
_PLANES = frozenset("image depth disparity mask segmentation".split())  # noqa: SIM905 - [H, W]
_VERSION = 1
_SHOWN_QUANTILES = (0.01, 0.5, 0.99)
_MOST_SHOWN = 5  # of these in a line
_MOST_LISTED = 100  # episodes with NaN or infinities, per feature
_SHOWN_CHANNELS = 8  # rows per feature in a table
_LAST_COLUMNS = ("max", "NaN", "infinite", "numbers", "frames")  # after the quantiles


def num_channels(spec: FeatureSpec) -> int | None:
    """Number of channels in a feature's statistics; `None` for a feature without statistics.

    The last axis is the channel axis if its length is fixed, and at most 256 for a vector or 32
    otherwise. Any other feature has one channel. Complex numbers, text and bytes have no
    statistics.
    """
    dtype = spec.value_kind.number_dtype(spec)
    if dtype is None or sketch_dtype(dtype) is None:
        return None
    if len(spec.shape) == 2 and spec.kind in _PLANES:
        return 1
    num_last = spec.shape[-1] if spec.shape else None
    max_channels = MAX_CHANNELS if len(spec.shape) == 1 else _MAX_IMAGE_CHANNELS
    return 1 if num_last is None or num_last > max_channels else num_last


@dataclass(frozen=True)
class NonFinite:
    """NaN and infinities of a feature in one episode.

    `frame` is the first frame with such a value, and `count` the number of values.
    """

    episode: str
    frame: int
    count: int

    @classmethod
    def of(
        cls, episode: str, frames: npt.NDArray[Any], numbers: npt.NDArray[np.int64]
    ) -> NonFinite | None:
        """NaN and infinities of frames [n, …] with these numbers in the episode, int64 [n]."""
        is_non_finite = ~np.isfinite(frames)
        if not is_non_finite.any():
            return None
        first_place = is_non_finite.reshape(len(numbers), -1).any(axis=1).argmax()
        return cls(episode, int(numbers[first_place]), int(is_non_finite.sum()))


def add_non_finite(places: list[NonFinite], additions: Iterable[NonFinite]) -> None:
    """Append to `places`; an episode is listed once, and at most 100 are."""
    for place in additions:
        if places and places[-1].episode == place.episode:
            previous = places[-1]
            frame, count = min(previous.frame, place.frame), previous.count + place.count
            places[-1] = NonFinite(place.episode, frame, count)
        elif len(places) < _MOST_LISTED:
            places.append(place)


@dataclass(frozen=True, eq=False)
class FeatureStatistics:
    """Statistics of one feature; arrays are [C], one number per channel of the last axis.

    C is 1 for a feature without a channel axis, so that `normalize`, `(x - mean) / std`, broadcasts
    to frames, clips and batches. NaN and infinities are counted separately and ignored otherwise.

    Quantiles of frames with more than 128 pixels use a random sample of 128 pixels per frame, drawn
    by a fixed seed; `num_drawn` is the size of the sample. All else uses every number of the
    `num_frames` frames.

    `non_finite` lists the first 100 episodes with NaN or infinities, for an action, a state, a
    pose, IMU values and similar floats.

    Example:
        seqrecord.add_statistics("records/")
        pose = seqrecord.open("records/").statistics["pose"]
        print(pose.mean, pose.std, pose.quantile([0.01, 0.99]))
    """

    num_frames: int
    sketches: tuple[Sketch, ...]
    non_finite: tuple[NonFinite, ...] = ()

    @property
    def count(self) -> npt.NDArray[np.int64]:
        """Number of finite values: int64 [C]."""
        return np.array([sketch.count for sketch in self.sketches], np.int64)

    @property
    def num_drawn(self) -> npt.NDArray[np.int64]:
        """Number of values in the sample for quantiles, at most `count`: int64 [C]."""
        return np.array([sketch.weight for sketch in self.sketches], np.int64)

    @property
    def num_nan(self) -> npt.NDArray[np.int64]:
        """Number of NaN values: int64 [C]."""
        return np.array([sketch.nan for sketch in self.sketches], np.int64)

    @property
    def num_infinite(self) -> npt.NDArray[np.int64]:
        """Number of infinite values with either sign: int64 [C]."""
        return np.array(
            [sketch.positive_infinity + sketch.negative_infinity for sketch in self.sketches],
            np.int64,
        )

    @property
    def mean(self) -> npt.NDArray[np.float64]:
        """Mean: float64 [C], NaN for a channel without finite values."""
        return self._reals([sketch.mean for sketch in self.sketches])

    @property
    def std(self) -> npt.NDArray[np.float64]:
        """Population standard deviation: float64 [C], NaN for a channel without finite values."""
        return self._reals([sketch.std for sketch in self.sketches])

    @property
    def min(self) -> npt.NDArray[np.float64]:
        """Minimum: float64 [C], NaN for a channel without finite values."""
        return self._reals([sketch.min or 0.0 for sketch in self.sketches])

    @property
    def max(self) -> npt.NDArray[np.float64]:
        """Maximum: float64 [C], NaN for a channel without finite values."""
        return self._reals([sketch.max or 0.0 for sketch in self.sketches])

    @property
    def rank_error(self) -> float:
        """Bound on the rank error of a quantile, relative to `num_drawn`; see `quantile`."""
        return max(sketch.rank_error for sketch in self.sketches)

    def quantile(self, share: float | Sequence[float]) -> npt.NDArray[np.float64]:
        """Quantiles of shares between 0 and 1: float64 [C], or [shares, C] for a sequence.

        Each quantile is a value of the sample; NaN for a channel without finite values. For share
        q, at most `q + rank_error` of the sample is smaller, and at least `q - rank_error` is
        smaller or equal. Raises `ValueError` for a share outside of [0, 1].
        """
        shares = [share] if isinstance(share, (int, float)) else list(share)
        quantiles = np.stack([sketch.quantiles(shares) for sketch in self.sketches], axis=-1)
        return quantiles[0] if isinstance(share, (int, float)) else quantiles

    def normalize(self, values: Any) -> Any:
        """Compute `(values - mean) / std` of an array or tensor [..., C], or [...] if C is 1.

        The result has the type and device of `values`, and is float32, or float64 for float64
        values; integers of 32 and 64 bits are subtracted in float64. A constant channel, or one
        without finite values, is divided by 1. Raises `ValueError` if the last axis does not
        have C channels.
        """
        if (channels := len(self.sketches)) > 1 and tuple(values.shape[-1:]) != (channels,):
            raise ValueError(
                f"expected values [..., {channels}], channels last, as stored; got "
                f"{list(values.shape)}: normalize before permute"
            )
        mean = np.nan_to_num(self.mean)
        eps = coarsest_eps(sketch.dtype for sketch in self.sketches)
        std, _ = usable_scales(self.std, self.std, self.min, self.max, eps=eps)
        if isinstance(values, np.ndarray):
            exact = np.result_type(values.dtype, np.float32)
            normalized = (values - mean.astype(exact)) / std.astype(exact)
            is_float = values.dtype.kind == "f"
            return normalized if is_float else normalized.astype(np.float32, copy=False)
        is_real, is_wide = values.is_floating_point(), values.itemsize >= np.float32().itemsize
        numbers = values if is_real and is_wide else values.double() if is_wide else values.float()
        normalized = (numbers - _to_device_of(numbers, mean)).div_(_to_device_of(numbers, std))
        return normalized if is_real else normalized.float()

    def non_finite_text(self) -> str:
        """One line about the episodes with NaN or infinities; the first five are listed."""
        places = [
            f"{place.episode} from frame {place.frame} ({place.count:,})"
            for place in self.non_finite
        ]
        count = int(self.num_nan.sum() + self.num_infinite.sum())
        return f"{counted(count, 'value')}; {printable(first_of(places, _MOST_SHOWN))}"

    def merged(self, other: FeatureStatistics) -> FeatureStatistics:
        """Statistics of both inputs together, each value counted once.

        Different dtypes are promoted by `numpy.result_type`. Raises `SchemaError` if the numbers of
        channels differ.
        """
        if len(self.sketches) != len(other.sketches):
            raise SchemaError(
                "cannot merge statistics of different numbers of channels",
                expected=f"{len(self.sketches)} channels",
                got=f"{len(other.sketches)} channels",
            )
        sketches = []
        for left, right in zip(self.sketches, other.sketches, strict=True):
            dtype = np.result_type(left.dtype, right.dtype)
            sketch = left.as_dtype(dtype)
            sketch.merge(right.as_dtype(dtype))
            sketches.append(sketch)
        places = [*self.non_finite]
        add_non_finite(places, other.non_finite)
        num_frames = self.num_frames + other.num_frames
        return FeatureStatistics(num_frames, tuple(sketches), tuple(places))

    def _reals(self, values: Sequence[float | int]) -> npt.NDArray[np.float64]:
        return np.where(self.count > 0, np.array(values, np.float64), np.nan)


class Statistics(Mapping[str, FeatureStatistics]):
    """Statistics of a dataset by feature name, from `num_frames` frames.

    Features without statistics are absent: complex numbers, text, and images stored encoded. Access
    to an absent feature raises `StatisticsKeyError`. If a dataset has no statistics, the mapping is
    empty (`bool()` is false) and `lacking` is the dataset's URL.

    Example:
        seqrecord.add_statistics("records/")
        print(seqrecord.open("records/").statistics)
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
            "no statistics of this feature",
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
        """Statistics of both datasets together.

        Includes the common features with equal numbers of channels.
        """
        return Statistics(
            self.num_frames + other.num_frames,
            {
                name: self[name].merged(other[name])
                for name in self
                if name in other and len(self[name].sketches) == len(other[name].sketches)
            },
        )

    def rekeyed(self, change: Callable[[str], str]) -> Statistics:
        """The same statistics, of episodes with other keys."""
        features = {
            name: replace(
                feature,
                non_finite=tuple(
                    replace(place, episode=change(place.episode)) for place in feature.non_finite
                ),
            )
            for name, feature in self.items()
        }
        return Statistics(self.num_frames, features, lacking=self.lacking)

    def missing(self, schema: Schema) -> list[str]:
        """Names of features that could have statistics but have none."""
        return [n for n, spec in schema.items() if n not in self and num_channels(spec) is not None]

    def fitting(self, schema: Schema) -> Statistics:
        """The same statistics, of the features whose channels and dtype match the schema."""
        features = {
            name: feature
            for name, feature in self.items()
            if _form(feature) == _expected_form(schema, name)
        }
        return Statistics(self.num_frames, features, lacking=self.lacking)

    def check(self, schema: Schema) -> None:
        """Raise `FormatError` unless features, channels and dtypes match the schema."""
        for name, feature in self.items():
            got, expected = _form(feature), _expected_form(schema, name)
            if got != expected:
                raise FormatError(
                    "statistics do not match the schema",
                    feature=name,
                    expected=expected and f"{expected[0]} channels of {expected[1]}",
                    got=f"{got[0]} channels of {got[1]}",
                )

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON; see docs/format.md."""
        return {
            "format": "seqrecord statistics",
            "version": _VERSION,
            "num_frames": self.num_frames,
            "features": {
                name: {
                    "dtype": feature.sketches[0].dtype.str,
                    "num_frames": feature.num_frames,
                    "channels": [sketch.to_json() for sketch in feature.sketches],
                    **(
                        {"non_finite": [[*vars(place).values()] for place in feature.non_finite]}
                        if feature.non_finite
                        else {}
                    ),
                }
                for name, feature in self.items()
            },
        }

    @classmethod
    def from_json(cls, value: object) -> Statistics:
        """Inverse of `to_json`; raises `FormatError` for malformed input."""
        keys = ("num_frames", "features")
        fields = JsonObject.of_file(value, "statistics", _VERSION, keys)
        by_name = fields.value["features"]
        if not isinstance(by_name, dict):
            raise FormatError("statistics are not by feature", got=repr_of(by_name, 50))
        num_frames = fields.integer("num_frames")
        features = {}
        for name, feature in by_name.items():
            with located(FormatError, feature=name[:200]):
                features[name] = _feature(feature, num_frames)
        return cls(num_frames, features)

    def summary(self) -> dict[str, Any]:
        """The main numbers as JSON, without sketches; `null` for a channel without values."""
        return {name: _summary(feature) for name, feature in self.items()}

    def __str__(self) -> str:
        """A table with a row per channel; a note gives the sample size of drawn quantiles."""
        quantiles = [f"{share:.0%}" for share in _SHOWN_QUANTILES]
        rows: list[Sequence[str]] = [("feature", "mean", "std", "min", *quantiles, *_LAST_COLUMNS)]
        for name, feature in self.items():
            columns = [feature.mean, feature.std, feature.min]
            columns += [*feature.quantile(_SHOWN_QUANTILES), feature.max]
            counts = [feature.num_nan, feature.num_infinite, feature.count]
            for channel in range(min(len(feature.sketches), _SHOWN_CHANNELS)):
                label = name if len(feature.sketches) == 1 else f"{name}[{channel}]"
                reals = [f"{column[channel]:.5g}" for column in columns]
                numbers = (*(count[channel] for count in counts), feature.num_frames)
                rows.append((label, *reals, *(f"{number:,}" for number in numbers)))
            if (num_hidden := len(feature.sketches) - _SHOWN_CHANNELS) > 0:
                rows.append((f"… {num_hidden} more", *[""] * (len(rows[0]) - 1)))
        notes = [
            f"quantiles of {name}: of a random sample of {feature.num_drawn.max():,} numbers"
            for name, feature in self.items()
            if (feature.num_drawn < feature.count).any()
        ]
        return "\n".join([*table_lines(rows, num_left=1), *notes, *self.non_finite_notes()])

    def non_finite_notes(self) -> list[str]:
        """One line for each feature with NaN or infinities."""
        return [
            f"NaN or infinities of {name}: {feature.non_finite_text()}"
            for name, feature in self.items()
            if feature.non_finite
        ]


def _form(feature: FeatureStatistics) -> tuple[int, np.dtype[Any]]:
    """Number of channels, and the dtype in which their numbers are kept."""
    return len(feature.sketches), feature.sketches[0].dtype


def _expected_form(schema: Schema, name: str) -> tuple[int, np.dtype[Any] | None] | None:
    """The form of a feature's statistics in a dataset of this schema; `None` for none."""
    if name not in schema or (count := num_channels(schema[name])) is None:
        return None
    return count, sketch_dtype(schema[name].dtype)


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
        "non_finite": [vars(place) for place in feature.non_finite],
        **{
            name: [None if np.isnan(number) else float(number) for number in column]
            for name, column in columns.items()
        },
        "rank_error": feature.rank_error,
    }


def _feature(value: object, num_frames: int) -> FeatureStatistics:
    keys = ("dtype", "num_frames", "channels")
    fields = JsonObject(value, keys, "a feature's statistics", optional=("non_finite",))
    channels = fields.list("channels", 1, MAX_CHANNELS)
    if (name := fields.value["dtype"]) not in _DTYPES:
        expected = ", ".join(_DTYPES)
        raise FormatError(
            "statistics of an unsupported dtype", expected=expected, got=repr_of(name, 50)
        )
    dtype = np.dtype(name)
    sketches = tuple(Sketch.from_json(item, dtype) for item in channels)
    places = fields.list("non_finite", 1, _MOST_LISTED) if "non_finite" in fields.value else []
    non_finite = tuple(map(_place, places))
    return FeatureStatistics(fields.integer("num_frames", maximum=num_frames), sketches, non_finite)


def _place(value: object) -> NonFinite:
    if isinstance(value, list) and [type(member) for member in value] == [str, int, int]:
        place = NonFinite(*value)
        if place.frame >= 0 and place.count > 0:
            return place
    raise FormatError("not a place of NaN or infinities", got=repr_of(value, 100))


def _to_device_of(numbers: Any, values: npt.NDArray[np.float64]) -> Any:
    """Copy an array to the device of `numbers`, as a tensor.

    Pinned memory avoids a wait for queued work of the GPU.
    """
    tensor, is_late = numbers.new_tensor(values, device="cpu"), numbers.is_cuda
    return (tensor.pin_memory() if is_late else tensor).to(numbers.device, non_blocking=is_late)


_DTYPES = ("|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f4", "<f8")
