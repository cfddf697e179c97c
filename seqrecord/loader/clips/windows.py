"""The argument `windows`: frame offsets, `At`, `Seconds`, `Latest` or `Next` by feature."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import islice
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError, located
from seqrecord.loader.clips.tables import IntArray
from seqrecord.store.clip_spec import MAX_LENGTH, MAX_SETTING
from seqrecord.store.text import repr_of
from seqrecord.store.units import are_names, check, check_integer, is_number, raise_if

_TOLERANCE = 1e-4  # seconds
_ROUNDING = 1e-6  # of a step
_MOST = 1 << 20  # times of a window
_FURTHEST = 1 << 31  # exclusive, frames from a clip's start


@dataclass(frozen=True, repr=False)
class Seconds:
    """A window in seconds, relative to the time of the clip's frame `start`.

    `Seconds(-0.5, 0)` selects all frames of the last half second, `start` included.
    `Seconds([-0.2, -0.1, 0])` selects the frames at three times.

    Frame times come from the fps of each episode, or from the feature `timestamps`. An episode has
    an fps only if its timestamps match it. If a selected episode has no fps, `timestamps` defaults
    to the only feature of kind `timestamp`, or to the one named `timestamp` or `log_time`. If fps
    differ between episodes or are missing, pass a list of times or `step`: all clips need equally
    many frames.

    Each time selects the nearest frame. Between two frames, this is by fps the even offset, as
    in LeRobot (0.05, 0.15 and 0.25 s at 10 fps: the frames 0, 2 and 2), and by timestamps the
    earlier one.

    Args:
        first: first time in seconds; or a list of times, without `last`.
        last: last time in seconds, inclusive.
        step: seconds between times. Default: all frames from `first` to `last`.
        tolerance: largest difference in seconds between a time and its frame. Unless `timestamps`
            is given, episodes with an fps from which their timestamps drift, as of a slow loop,
            have the nearest frames; outside the episode within half a step, or `tolerance` if more.
        timestamps: feature of kind `timestamp`, one number per frame. Each time selects the frame
            with the nearest timestamp. Requires a list of times or `step`. The loader's `features`
            need not include it.
        out_of_range: for a time without a frame within `tolerance` by `timestamps`: "error" raises
            `ClipError`; "pad" selects the nearest frame, marks it in `<feature>_is_pad` and counts
            it in `stats()["times_without_frame"]`.

    Raises `ClipError` for times that are not numbers, not in order, or too far apart.

    Example:
        pipe = seqrecord.SeqRecordPipe(
            "records/",
            features=["image", "action"],
            windows={"image": seqrecord.Seconds([-0.1, 0]), "action": seqrecord.Seconds(0, 0.5)},
            batch_size=2,
        )
        batch = next(iter(pipe))  # at 30 fps: image [2, 2, 48, 64, 3], action [2, 16, 7]
    """

    first: float | Iterable[float]
    last: float | None = None
    _: KW_ONLY
    step: float | None = None
    tolerance: float = _TOLERANCE
    timestamps: str | None = None
    out_of_range: str = "error"

    def __post_init__(self) -> None:
        first_time, last_time, step, clock = self.first, self.last, self.step, self.timestamps
        mode: Any = self.out_of_range  # may be an array
        if last_time is None:
            is_scalar = isinstance(first_time, (str, bytes)) or getattr(first_time, "ndim", 1) == 0
            if not isinstance(first_time, Iterable) or is_scalar:
                expected, got = "Seconds(-0.5, 0) or Seconds([-0.5, 0])", repr_of(first_time, 90)
                problem = "Seconds requires two times or a list of times"
                raise ClipError(problem, expected=expected, got=f"Seconds({got})")
            first_time = tuple(
                _number("a time of Seconds", time) for time in islice(first_time, _MOST + 1)
            )
            problem = "Seconds: a list of times must not be empty, and excludes step"
            got = f"{len(first_time)} times, step={repr_of(step, 50)}"
            raise_if(not first_time or step is not None, problem, got=got)
            count: float = len(first_time)
        else:
            begin = _number("first of Seconds", first_time)
            last_time = _number("last of Seconds", last_time)
            problem = "Seconds: last is before first"
            raise_if(begin > last_time, problem, "first <= last", f"{begin:g}, {last_time:g}")
            step = None if step is None else _number("step of Seconds", step)
            raise_if(step is not None and step <= 0, "step of Seconds is too small", "> 0", step)
            first_time, count = begin, 0 if step is None else (last_time - begin) / step + 1
        raise_if(count > _MOST, "Seconds has too many times", f"at most {_MOST}")
        is_name = clock is None or isinstance(clock, str)
        raise_if(not is_name, "timestamps of Seconds is not a feature's name", "a name", clock)
        problem = "Seconds with timestamps requires a list of times or step"
        raise_if(clock is not None and not count, problem, "either", f"{first_time}, {last_time}")
        modes = ("error",) if clock is None else ("error", "pad")
        is_mode = isinstance(mode, str) and mode in modes
        expected = "'error', or 'pad' together with timestamps"
        check("out_of_range of Seconds", mode, is_mode, expected)
        tolerance = _number("tolerance of Seconds", self.tolerance)
        raise_if(tolerance < 0, "tolerance of Seconds is too small", "0 or more", tolerance)
        fields = {"first": first_time, "last": last_time, "step": step, "tolerance": tolerance}
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        texts = [str(list(self.times))] if self.times else [f"{self.first:g}", f"{self.last:g}"]
        names = ("step", "tolerance", "timestamps", "out_of_range")
        options = {name: getattr(self, name) for name in names}
        non_defaults = {n: value for n, value in options.items() if value != getattr(Seconds, n)}
        texts += [
            f"{n}={v!r}" if isinstance(v, str) else f"{n}={v:g}" for n, v in non_defaults.items()
        ]
        return f"Seconds({', '.join(texts)})"

    @property
    def times(self) -> tuple[float, ...] | None:
        """The list of times; `None` for all from `first` to `last`."""
        return self.first if isinstance(self.first, tuple) else None

    def with_clock(self, feature: str) -> Seconds:
        """The same times, found by a timestamp feature. Requires a list of times, or `step`."""
        return replace(self, timestamps=feature)

    def offsets(self, fps: float, feature: str) -> IntArray:
        """Convert the times to frame offsets, int64[T], at `fps`.

        As for LeRobot's `delta_timestamps`, each time selects the nearest frame. Raises `ClipError`
        with the feature's name if that frame is further than `tolerance` away, and for an `fps`
        that is not above 0.
        """
        check("fps", fps, is_number(fps) and fps > 0, "frames per second, a number above 0")
        slack = self.tolerance * fps
        if self.times is None and self.step is None:
            begin, end = self._bounds[0] * fps - slack, self._bounds[1] * fps + slack
            _check_range(feature, [begin, end], count=end - begin)
            first_offset, last_offset = math.ceil(begin), math.floor(end)
            if first_offset > last_offset:
                raise ClipError(
                    "no frame within Seconds",
                    feature=feature,
                    expected=f"frames {1 / fps:g} s apart",
                    got=self,
                )
            return np.arange(first_offset, last_offset + 1)
        exact_offsets = np.array(self.time_list) * fps
        _check_range(feature, exact_offsets)
        offsets = np.round(exact_offsets)
        far_numbers = np.flatnonzero(np.abs(offsets - exact_offsets) > slack)
        if len(far_numbers):
            number = int(far_numbers[0])
            raise ClipError(
                "no frame within the tolerance of a time of Seconds",
                feature=feature,
                expected=f"a multiple of {1 / fps:g} s, within {self.tolerance:g} s; or "
                f"tolerance={0.51 / fps:.2g} for the nearest frame",
                got=f"{exact_offsets[number] / fps:g} s, with the nearest frame at "
                f"{offsets[number] / fps:g} s",
            )
        return offsets.astype(np.int64)

    def at_rates(self, rates: Sequence[float], episodes: Sequence[str], feature: str) -> IntArray:
        """Convert the times to offsets at each frame rate, int64[n, T].

        `episodes` has one key per rate. Also raises `ClipError` if the numbers of frames differ.
        """
        offsets_by_rate: list[IntArray] = []
        for fps, episode in zip(rates, episodes, strict=True):
            with located(ClipError, episode=episode):
                offsets_by_rate.append(self.offsets(fps, feature))
            if len(offsets_by_rate[-1]) != len(offsets_by_rate[0]):
                raise ClipError(
                    "Seconds selects different numbers of frames in episodes with different fps",
                    episode=episode,
                    feature=feature,
                    expected=f"{len(offsets_by_rate[0])} frames, as at {rates[0]:g} fps; pass step "
                    "or a list of times",
                    got=f"{len(offsets_by_rate[-1])} frames at {fps:g} fps",
                )
        return np.stack(offsets_by_rate)

    @property
    def time_list(self) -> tuple[float, ...]:
        """The times in seconds: the list, or every `step` seconds."""
        if self.times is not None:
            return self.times
        assert self.step is not None
        first_time, last_time = self._bounds
        count = math.floor((last_time - first_time) / self.step + _ROUNDING) + 1
        return tuple(first_time + i * self.step for i in range(count))

    @property
    def _bounds(self) -> tuple[float, float]:
        assert isinstance(self.first, float)
        assert self.last is not None
        return self.first, self.last


def delta_timestamps(
    times: Mapping[str, Iterable[float]], fps: float, *, tolerance: float = _TOLERANCE
) -> dict[str, list[int]]:
    """Convert LeRobot's `delta_timestamps` (seconds) to the argument `windows` (frame offsets).

    Each time becomes the nearest frame, as in LeRobot. Raises `ClipError` with the feature's name
    if that frame is more than `tolerance` seconds away, and for times or an `fps` that are not
    valid.

    Example:
        windows = seqrecord.delta_timestamps({"image": [-0.1, 0], "action": [0, 0.1]}, fps=30)
        print(windows)  # {"image": [-3, 0], "action": [0, 3]}
    """
    argument: Any = times
    is_right = isinstance(argument, Mapping) and are_names(argument)
    expected = 'a dict such as {"image": [-0.1, 0], "action": [0, 0.1]}'
    check("delta_timestamps", argument, is_right, expected)
    windows = {name: Seconds(seconds, tolerance=tolerance) for name, seconds in times.items()}
    return {name: window.offsets(fps, name).tolist() for name, window in windows.items()}


@dataclass(frozen=True)
class Nearest:
    """A window whose frames may take the value of another frame: base of `Latest` and `Next`."""

    window: Iterable[int | At] | At | Seconds | None = None
    _: KW_ONLY
    unknown: str | None = None

    limit: ClassVar[str]
    """Name of the field with the largest distance in frames."""

    def __post_init__(self) -> None:
        name = f"{self.limit} of {type(self).__name__}"
        if self.most is not None:
            distance = check_integer(name, self.most, least=0, most=_FURTHEST - 1)
            object.__setattr__(self, self.limit, distance)
        mode: Any = self.unknown  # may be an array
        is_right = mode is None or (isinstance(mode, str) and mode == "zeros")
        check(f"unknown of {type(self).__name__}", mode, is_right, "None or 'zeros'")

    @property
    def most(self) -> int | None:
        """Largest distance in frames between a frame and its value; `None` for any."""
        distance: int | None = getattr(self, self.limit)
        return distance


@dataclass(frozen=True)
class Latest(Nearest):
    """A window that fills frames without a value with the last value before them.

    For features that not every frame has, such as a GPS at 1 Hz, or a text stored only when it
    changes. `<feature>_age`, int64 [T], is the age of each value in frames, 0 for a value of the
    frame itself.

    The loader keeps the feature's group in memory for as many frames as the window looks back.
    Store such features in a group of their own or with small ones, which is the writer's default.
    Cannot be combined with `frame_transform`.

    Args:
        window: frame offsets from the clip's start, or `Seconds`. Default: the `clip_len` frames of
            the clip.
        max_age: largest age of a value in frames. Default: unlimited.
        unknown: for clips with a frame that has no value, or none within `max_age`: `None` drops
            these clips and counts them; "zeros" fills in zeros or empty texts, with age -1. The
            zeros are stored values: `vectors=` normalizes them like others. Crops of images whose
            size varies raise `ClipError` for them.

    Raises `ClipError` if `max_age` is not a number of frames, or `unknown` is another value.

    Example:
        pipe = seqrecord.SeqRecordPipe(
            "records/", clip_len=4, windows={"state": seqrecord.Latest([-1, 0])}, batch_size=2
        )
        age = next(iter(pipe))["state_age"]  # int64 [2, 2]
    """

    _: KW_ONLY
    max_age: int | None = None

    limit = "max_age"


@dataclass(frozen=True)
class Next(Nearest):
    """A window that fills frames without a value with the next value behind them.

    The mirror of `Latest`, for what is to come: the next instruction, the next change of a gripper.
    `<feature>_wait`, int64 [T], is the time to each value in frames, 0 for a value of the frame
    itself.

    The loader keeps the feature's group in memory for as many frames as the window looks ahead, see
    `Latest`. Cannot be combined with `frame_transform`.

    Args:
        window: frame offsets from the clip's start, or `Seconds`. Default: the `clip_len` frames of
            the clip.
        max_wait: longest time to a value in frames. Default: unlimited.
        unknown: for clips with a frame behind the last value, or further than `max_wait` before the
            next one: `None` drops these clips and counts them; "zeros" fills in zeros or empty
            texts, with wait -1; the zeros are stored values, see `Latest`.

    Raises `ClipError` if `max_wait` is not a number of frames, or `unknown` is another value.

    Example:
        pipe = seqrecord.SeqRecordPipe(
            "records/", clip_len=4, windows={"state": seqrecord.Next([0, 1])}, batch_size=2
        )
        wait = next(iter(pipe))["state_wait"]  # int64 [2, 2]
    """

    _: KW_ONLY
    max_wait: int | None = None

    limit = "max_wait"


@dataclass(frozen=True)
class At:
    """Frames at offsets from a frame number in a column of `samples`, instead of from `start`.

    A window is an anchor, or a list with offsets and anchors: `[0, At("goal")]` has the frames
    `start` and `goal`. `pad` and masks `<feature>_is_pad` apply as to other frames.

    `within` limits the distance of the column from `start`, in frames: clips then read the frames
    around their start once, like other windows. Without it, an anchor may be anywhere in the
    episode: each place in the epoch from which clips are mixed keeps the frames of an episode's
    samples in memory (if functions or random numbers choose other ones in each epoch, all its
    frames), shards begin at episodes where possible, and `memory_limit` must suffice for one
    episode. Frames are read once, too.

    Args:
        column: name of a `samples` column with integers.
        offsets: an offset in frames, or several.
        within: least and greatest value of the column minus `start`.

    Raises `ClipError` for invalid values.

    Example:
        samples = {"episode": ["demo/000", "demo/001"], "start": [3, 8], "goal": [39, 20]}
        pipe = seqrecord.SeqRecordPipe(
            "records/",
            samples=samples,
            windows={"image": [0, seqrecord.At("goal")], "action": range(4)},
            batch_size=2,
        )
        batch = next(iter(pipe))  # image [2, 2, 48, 64, 3]: the frames start and goal
    """

    column: str
    offsets: int | Iterable[int] = 0
    within: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        column: Any = self.column
        is_name = isinstance(column, str) and column != ""
        raise_if(not is_name, "At has no column", "a name", column)
        is_one = isinstance(self.offsets, int) or getattr(self.offsets, "ndim", 1) == 0
        offsets: Any = _checked_frames(column, [self.offsets] if is_one else self.offsets)
        is_wrong = isinstance(offsets, Seconds) or any(isinstance(offset, At) for offset in offsets)
        raise_if(is_wrong, "offsets of At are not frames", "such as 0 or range(4)", offsets)
        object.__setattr__(self, "offsets", offsets)
        if self.within is not None:
            try:
                min_distance, max_distance = (
                    check_integer("within of At", limit) for limit in self.within
                )
            except (TypeError, ValueError, ClipError):
                min_distance, max_distance = 1, 0
            is_right = -MAX_SETTING < min_distance <= max_distance < MAX_SETTING
            expected = "least and greatest distance in frames, such as (1, 64)"
            check("within of At", self.within, is_right, expected)
            object.__setattr__(self, "within", (min_distance, max_distance))


Offsets: TypeAlias = tuple[int | At, ...]
Windows: TypeAlias = Mapping[str, Iterable[int | At] | At | Seconds | Nearest]


def check_windows(windows: Any) -> dict[str, Offsets | Seconds | Nearest]:
    """Check the argument `windows` and convert offsets to tuples of integers and anchors.

    Raises `ClipError` for other types, empty windows, and offsets that are not integers.
    """
    is_right = isinstance(windows, Mapping) and bool(windows) and are_names(windows)
    expected = 'a dict such as {"image": [-1, 0], "action": range(16)}'
    check("windows", windows, is_right, expected)
    checked: dict[str, Offsets | Seconds | Nearest] = {}
    for name, window in windows.items():
        if not isinstance(window, Nearest):
            checked[name] = _checked_frames(name, window)
        elif window.window is None:
            checked[name] = window
        else:
            checked[name] = replace(window, window=_checked_frames(name, window.window))
    return checked


def describe_offsets(offsets: IntArray) -> str:
    """Format offsets: `-1,0`, or `0:16` and `0:32:2` if evenly spaced."""
    step = int(offsets[1] - offsets[0]) if len(offsets) > 1 else 1
    if len(offsets) < 3 or step < 1 or (np.diff(offsets) != step).any():
        return ",".join(map(str, offsets.tolist()))
    text = f"{offsets[0]}:{offsets[-1] + 1}"
    return text if step == 1 else f"{text}:{step}"


def _checked_frames(name: str, window: Any) -> Offsets | Seconds:
    if isinstance(window, Seconds):
        return window
    window = [window] if isinstance(window, At) else window
    is_long = isinstance(window, range) and bool(window[MAX_LENGTH:])  # not expanded
    try:
        if isinstance(window, (str, bytes, Mapping)):
            raise TypeError
        entries = () if is_long else islice(window, MAX_LENGTH + 1)
        offsets = tuple(
            offset if isinstance(offset, At) else check_integer(name, offset) for offset in entries
        )
    except (TypeError, ClipError):
        raise ClipError(
            "a window is not valid",
            feature=name,
            expected="frame offsets such as [-1, 0] or range(16), At, Seconds, Latest or Next",
            got=repr_of(window, 100),
        ) from None
    max_offset = max((abs(offset) for offset in offsets if not isinstance(offset, At)), default=0)
    if not 0 < len(offsets) <= MAX_LENGTH or max_offset >= MAX_SETTING:
        raise ClipError(
            "a window is empty or too long",
            feature=name,
            expected=f"1 to {MAX_LENGTH} offsets, each within {MAX_SETTING - 1} frames",
            got=repr_of(window, 100)
            if is_long
            else f"{len(offsets)} offsets, the largest {repr_of(max_offset)}",
        )
    return offsets


def _check_range(feature: str, offsets: npt.ArrayLike, *, count: float = 1) -> None:
    """Raise `ClipError` for frame offsets that are too large or too many."""
    max_offset = float(np.abs(offsets).max())
    if not (max_offset < _FURTHEST and count <= _MOST):
        raise ClipError(
            "Seconds covers too many frames",
            feature=feature,
            expected=f"at most {_MOST} frames, each within {_FURTHEST - 1} of the clip's start",
            got=f"{count:.0f} frames, the furthest at {max_offset:.0f}",
        )


def _number(name: str, value: Any) -> float:
    try:
        # A duration of NumPy would be a number of its own unit.
        if isinstance(value, (bool, np.bool_, np.timedelta64, str, bytes)):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not abs(number) < 1e9:
        raise ClipError(f"{name} is not a number of seconds", got=repr_of(value, 100))
    return number
