"""The argument `windows`: offsets in frames, `Seconds`, or `Latest` values, by feature."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.clips.tables import MAX_LENGTH, MAX_SETTING, IntArray
from seqrecord.errors import ClipError, located
from seqrecord.text import repr_of
from seqrecord.units import check_integer

_TOLERANCE = 1e-4  # seconds
_ROUNDING = 1e-6  # of a step
_MOST = 1 << 20  # times of a window
_FURTHEST = 1 << 31  # exclusive, frames from a clip's start


@dataclass(frozen=True, init=False)
class Seconds:
    """Frames of a clip by their time, counted from that of the clip's frame `start`.

    `Seconds(-0.5, 0)` are all frames of the half second up to and with the clip's own;
    `Seconds([-0.2, -0.1, 0])` the frames at three times. Frames lie `1 / fps` seconds apart, by
    the fps of each episode, or at the timestamps `timestamps`. An episode has an fps only if its
    timestamps fit. If a selected episode has none, the timestamps of the dataset are `timestamps`:
    the only feature of kind `timestamp`, or the one called `timestamp` or `log_time`. If episodes
    differ in their fps, or without fps, use a list of times or `step`, which give all clips equally
    many frames.

    Raises `ClipError` for times that are no numbers, out of order, or too far apart.

    Args:
        first: the first time, in seconds; or a list of times, and no `last`.
        last: the last time, which counts too.
        step: seconds from one time to the next; each frame by default.
        tolerance: how far a frame may lie from its time, in seconds.
        timestamps: a feature of kind `timestamp`, one number a frame, of which the nearest is taken
            to each time; with a list of times, or `step`. It need not be read otherwise.
        out_of_range: what to do about a time that has no frame within `tolerance`, by such a
            feature. "error" raises `ClipError`. "pad" takes the nearest frame, which
            `<feature>_is_pad` tells, and `stats()["times_without_frame"]` counts.
    """

    times: tuple[float, ...] | None
    first: float
    last: float
    step: float | None
    tolerance: float
    timestamps: str | None
    out_of_range: str

    def __init__(
        self,
        first: float | Iterable[float],
        last: float | None = None,
        *,
        step: float | None = None,
        tolerance: float = _TOLERANCE,
        timestamps: str | None = None,
        out_of_range: str = "error",
    ) -> None:
        times = None
        if last is None:
            is_scalar = isinstance(first, (str, bytes)) or getattr(first, "ndim", 1) == 0
            if not isinstance(first, Iterable) or is_scalar:
                raise ClipError(
                    "Seconds needs two times, or a list of times",
                    expected="Seconds(-0.5, 0) or Seconds([-0.5, 0])",
                    got=f"Seconds({repr_of(first, 90)})",
                )
            some = islice(first, _MOST + 1)
            times = tuple(_number("a time of Seconds", time) for time in some)
            if not times or step is not None:
                raise ClipError(
                    "a list of times of Seconds has at least one, and no step",
                    got=f"{len(times)} times, step={repr_of(step, 50)}",
                )
            begin, end = min(times), max(times)
        else:
            begin, end = _number("first of Seconds", first), _number("last of Seconds", last)
        if begin > end:
            raise ClipError("Seconds ends before it begins", expected="first <= last", got=self)
        step = None if step is None else _number("step of Seconds", step)
        if step is not None and step <= 0:
            raise ClipError("step of Seconds is too small", expected="above 0", got=step)
        count = len(times or ()) if step is None else (end - begin) / step + 1
        if count > _MOST:
            raise ClipError("Seconds has too many times", expected=f"at most {_MOST}")
        if not (timestamps is None or isinstance(timestamps, str)):
            raise ClipError(
                "timestamps of Seconds is not a feature's name", got=repr_of(timestamps, 100)
            )
        if timestamps is not None and times is None and step is None:
            raise ClipError(
                "Seconds by a feature need to be told each time", expected="a list, or step"
            )
        one: Any = out_of_range  # an array, perhaps
        if (
            not isinstance(one, str)
            or one not in ("error", "pad")
            or (one == "pad" and timestamps is None)
        ):
            raise ClipError(
                "out_of_range of Seconds is not valid",
                expected="'error'; or, with timestamps, 'pad'",
                got=repr_of(out_of_range, 100),
            )
        near = _number("tolerance of Seconds", tolerance)
        if near < 0:
            raise ClipError("tolerance of Seconds is too small", expected="0 or more", got=near)
        for name, value in (
            ("times", times), ("first", begin), ("last", end), ("step", step), ("tolerance", near),
            ("timestamps", timestamps), ("out_of_range", out_of_range),
        ):  # fmt: skip
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        if "times" not in vars(self):
            return "Seconds"
        said = f"{self.first:g}, {self.last:g}" if self.times is None else f"{list(self.times)}"
        said += "" if self.step is None else f", step={self.step:g}"
        said += "" if self.tolerance == _TOLERANCE else f", tolerance={self.tolerance:g}"
        said += "" if self.timestamps is None else f", timestamps={self.timestamps!r}"
        said += "" if self.out_of_range == "error" else f", out_of_range={self.out_of_range!r}"
        return f"Seconds({said})"

    def with_clock(self, feature: str) -> Seconds:
        """The same times, by a feature of timestamps. They are a list, or `step` so many."""
        more: dict[str, Any] = {
            "tolerance": self.tolerance,
            "timestamps": feature,
            "out_of_range": self.out_of_range,
        }
        if self.times is not None:
            return Seconds(self.times, **more)
        return Seconds(self.first, self.last, step=self.step, **more)

    def offsets(self, fps: float, feature: str) -> IntArray:
        """In frames, int64[T], at so many frames a second.

        As LeRobot does for its `delta_timestamps`: a time is the nearest frame, and an error where
        that is further away than `tolerance`. Raises `ClipError`, which names the feature.
        """
        slack = self.tolerance * fps
        if self.times is None and self.step is None:
            begin, end = self.first * fps - slack, self.last * fps + slack
            _check_range(feature, [begin, end], count=end - begin)
            first, last = math.ceil(begin), math.floor(end)
            if first > last:
                raise ClipError(
                    "no frame lies within Seconds",
                    feature=feature,
                    expected=f"frames {1 / fps:g} s apart",
                    got=self,
                )
            return np.arange(first, last + 1)
        asked = np.array(self.asked) * fps
        _check_range(feature, asked)
        offsets = np.round(asked)
        wrong = np.flatnonzero(np.abs(offsets - asked) > slack)
        if len(wrong):
            at = int(wrong[0])
            raise ClipError(
                "no frame is near enough to a time of Seconds",
                feature=feature,
                expected=f"a multiple of {1 / fps:g} s, to {self.tolerance:g} s",
                got=f"{asked[at] / fps:g} s, and the nearest frame at {offsets[at] / fps:g} s",
            )
        return offsets.astype(np.int64)

    def at_rates(self, rates: Sequence[float], episodes: Sequence[str], feature: str) -> IntArray:
        """The same at each of these frames a second, int64[n, T]; episodes of each are named.

        Raises `ClipError` where they are not equally many, too.
        """
        found: list[IntArray] = []
        for fps, episode in zip(rates, episodes, strict=True):
            with located(ClipError, episode=episode):
                found.append(self.offsets(fps, feature))
            if len(found[-1]) != len(found[0]):
                raise ClipError(
                    "episodes of different frames a second have other numbers of frames in Seconds",
                    episode=episode,
                    feature=feature,
                    expected=f"{len(found[0])} frames, as at {rates[0]:g} frames a second; ask for "
                    "times with a list or step",
                    got=f"{len(found[-1])} at {fps:g}",
                )
        return np.stack(found)

    @property
    def asked(self) -> tuple[float, ...]:
        """The times, of a list or `step` so many seconds."""
        if self.times is not None:
            return self.times
        assert self.step is not None
        count = math.floor((self.last - self.first) / self.step + _ROUNDING) + 1
        return tuple(self.first + i * self.step for i in range(count))


def delta_timestamps(
    times: Mapping[str, Iterable[float]], fps: float, *, tolerance: float = _TOLERANCE
) -> dict[str, list[int]]:
    """LeRobot's `delta_timestamps`, in seconds, as `windows` of a loader: offsets in frames.

    A time is the nearest frame, as LeRobot has it. Raises `ClipError`, which names the feature,
    where that is more than `tolerance` seconds away.
    """
    windows = {name: Seconds(some, tolerance=tolerance) for name, some in times.items()}
    return {name: window.offsets(fps, name).tolist() for name, window in windows.items()}


@dataclass(frozen=True)
class Latest:
    """The newest value at or before each frame of a window: of a feature that not every frame has,
    such as a GPS that measures once a second, or a text that is written where it changes.

    `<feature>_age`, int64 [T], says how many frames before it was measured, 0 for now.
    `Latest()` is for the `clip_len` frames of a clip, `Latest([-1, 0])` and
    `Latest(Seconds(-1, 0))` for those of a window. The frames of the feature's group are held for
    as many frames as one looks back, so such features should lie in a group of their own, or of
    small ones (the writer's default). Not with `frame_transform`.

    Raises `ClipError` for an age that is no number of frames, and for another `unknown`.

    Args:
        window: the frames: offsets from a clip's start, or `Seconds`; by default those that clips
            have of features without a window.
        max_age: how many frames old a value may be; of any age by default.
        unknown: what to do with clips that have frames for which no value is known: before the
            first one, or where it is too old. `None` leaves them out, and counts them. "zeros"
            gives them with zeros, empty texts, and an age of -1.
    """

    window: Iterable[int] | Seconds | None = None
    _: KW_ONLY
    max_age: int | None = None
    unknown: str | None = None

    def __post_init__(self) -> None:
        if self.max_age is not None:
            age = check_integer("max_age of Latest", self.max_age, least=0, most=_FURTHEST - 1)
            object.__setattr__(self, "max_age", age)
        one: Any = self.unknown  # an array, perhaps
        if one is not None and not (isinstance(one, str) and one == "zeros"):
            raise ClipError(
                "unknown of Latest is not valid",
                expected="None or 'zeros'",
                got=repr_of(one, 100),
            )


Windows: TypeAlias = Mapping[str, Iterable[int] | Seconds | Latest]


def check_windows(windows: Any) -> dict[str, tuple[int, ...] | Seconds | Latest]:
    """The argument `windows`, with offsets as tuples of integers.

    Raises `ClipError` for other types, empty windows, and offsets that are no integers.
    """
    if not (
        isinstance(windows, Mapping) and windows and all(isinstance(name, str) for name in windows)
    ):
        raise ClipError(
            "windows is not valid",
            expected='a dict such as {"image": [-1, 0], "action": range(16)}',
            got=repr_of(windows),
        )
    found: dict[str, tuple[int, ...] | Seconds | Latest] = {}
    for name, window in windows.items():
        if not isinstance(window, Latest):
            found[name] = _checked_frames(name, window)
        elif window.window is None:
            found[name] = window
        else:
            found[name] = replace(window, window=_checked_frames(name, window.window))
    return found


def describe_offsets(offsets: IntArray) -> str:
    """Offsets as text: `-1,0`, or `0:16` and `0:32:2` where they are evenly spaced."""
    step = int(offsets[1] - offsets[0]) if len(offsets) > 1 else 1
    if len(offsets) < 3 or step < 1 or (np.diff(offsets) != step).any():
        return ",".join(map(str, offsets.tolist()))
    text = f"{offsets[0]}:{offsets[-1] + 1}"
    return text if step == 1 else f"{text}:{step}"


def _checked_frames(name: str, window: Any) -> tuple[int, ...] | Seconds:
    if isinstance(window, Seconds):
        return window
    is_long = isinstance(window, range) and bool(window[MAX_LENGTH:])  # none of it is looked at
    try:
        if isinstance(window, (str, bytes, Mapping)):
            raise TypeError
        some = () if is_long else islice(window, MAX_LENGTH + 1)
        offsets = tuple(check_integer(name, one) for one in some)
    except (TypeError, ClipError):
        raise ClipError(
            "a window is not valid",
            feature=name,
            expected="offsets in frames, integers such as [-1, 0] or range(16); Seconds; or Latest",
            got=repr_of(window, 100),
        ) from None
    most = max(map(abs, offsets), default=0)
    if not 0 < len(offsets) <= MAX_LENGTH or most >= MAX_SETTING:
        raise ClipError(
            "a window is empty, or too long",
            feature=name,
            expected=f"1 to {MAX_LENGTH} offsets, each within {MAX_SETTING - 1} frames",
            got=repr_of(window, 100)
            if is_long
            else f"{len(offsets)} offsets, the furthest {repr_of(most)} frames away",
        )
    return offsets


def _check_range(feature: str, offsets: npt.ArrayLike, *, count: float = 1) -> None:
    """Raise `ClipError` for offsets of a feature, in frames, that no episode has, or too many."""
    furthest = float(np.abs(offsets).max())
    if not (furthest < _FURTHEST and count <= _MOST):
        raise ClipError(
            "Seconds are too many frames",
            feature=feature,
            expected=f"at most {_MOST} frames, each within {_FURTHEST - 1} of a clip's start",
            got=f"{count:.0f} frames, the furthest {furthest:.0f} away",
        )


def _number(what: str, value: Any) -> float:
    try:
        # A duration of NumPy would be a number of its own unit.
        if isinstance(value, (bool, np.bool_, np.timedelta64, str, bytes)):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not abs(number) < 1e9:
        raise ClipError(f"{what} is not a number of seconds", got=repr_of(value, 100))
    return number
