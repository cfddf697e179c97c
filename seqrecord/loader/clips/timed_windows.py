"""Converts windows in seconds to frames, by the episodes' fps or timestamps."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError
from seqrecord.loader.clips.frames import OffsetWindow, TimedWindow
from seqrecord.loader.clips.windows import Seconds
from seqrecord.store.feature_kinds import size_in
from seqrecord.store.format.frame_rates import MAX_DRIFT, MAX_EXTRA, MAX_OFF
from seqrecord.store.format.index import Index
from seqrecord.store.format.time_spans import (
    EpisodeTimeSpans,
    clock_of,
    is_plausible,
    is_timestamp,
    is_unit_of_time,
    timestamp_features,
)
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.tables.grids import IntArray
from seqrecord.store.text import counted

_MOST_BYTES = 16 << 20  # timestamps cached in memory
_ROUNDING = 1e-9  # of a time
_MOST_RATES = 256  # different windows of which each is enumerated by itself
_EXACT_BITS = 5  # of a number of frames that is rounded


def with_clock(
    windows: Mapping[str, Any], dataset: Dataset, selected: IntArray
) -> tuple[dict[str, Any], str | None]:
    """Assign a timestamp feature to windows in seconds if an episode has no regular fps.

    Returns the windows, and in that case a notice for the log, else `None`. Raises `ClipError` if
    there are no timestamps, or a window has neither a list of times nor a step.
    """
    index = dataset.contents.index
    timed = [n for n, w in windows.items() if isinstance(w, Seconds) and w.timestamps is None]
    clock = clock_of(index.schema) if timed else None
    lacking = selected[_is_irregular(index, clock, selected)] if timed else selected[:0]
    if not len(lacking):
        return dict(windows), None
    episode = index.key(int(lacking[0]))
    if clock is None:
        several = timestamp_features(index.schema)
        raise ClipError(
            "Seconds need episodes with an fps, or a timestamp feature",
            episode=episode,
            expected=f"timestamps= one of {', '.join(several)}"
            if several
            else "an fps consistent with all timestamps, see SeqRecordWriter.episode; or a "
            "feature of kind timestamp, and Seconds(…, timestamps=feature)",
            got="none",
        )
    if _keep_rate(index, clock, selected):
        windows = {**windows, **{n: _nearest(windows[n], index, selected, n) for n in timed}}
    if unlisted := [n for n in timed if windows[n].times is None and windows[n].step is None]:
        raise ClipError(
            "Seconds without a list of times or step need episodes with a regular fps",
            episode=episode,
            feature=unlisted[0],
            expected=f"a list of times, or step=, for lookup in {clock}",
            got=windows[unlisted[0]],
        )
    unit = index.schema[clock].unit or "unknown unit, taken as s"
    notice = (
        f"{dataset.url}: {len(lacking):,} of {counted(len(selected), 'episode')} without a regular "
        f"fps: Seconds use the timestamps of feature {clock} ({unit})"
    )
    return {n: w.with_clock(clock) if n in timed else w for n, w in windows.items()}, notice


def offsets_and_times(
    windows: Mapping[str, Any], dataset: Dataset, selected: IntArray
) -> tuple[dict[str, Any], IntArray]:
    """Convert windows to frame offsets for each frame rate, or to times for timestamps.

    Also returns the number of each episode's rate, int64 [E], 0 for episodes that are not selected.
    Episodes have the same number if their offsets are equal, and the numbers of frames that their
    clips need around the start.

    Raises `ClipError` if no frame is close enough to a time, and if a window's number of frames
    differs between episodes.
    """
    index, converted, needed = dataset.contents.index, dict[str, Any](), dict[str, IntArray]()
    by_fps, clocks = dict[str, IntArray](), dict[str, Timestamps]()
    values, first_rows, fps_number = np.unique(
        index.fps[selected], return_index=True, return_inverse=True
    )
    for name, window in windows.items():
        if not isinstance(window, Seconds):
            converted[name] = OffsetWindow.of(window)
        elif window.timestamps is None:
            keys = [index.key(row) for row in selected[first_rows].tolist()]
            by_fps[name] = window.at_rates(values.tolist(), keys, name)
        else:
            if window.timestamps not in clocks:
                clocks[window.timestamps] = Timestamps(dataset, window.timestamps, selected)
            needed[name] = clocks[window.timestamps].frames_needed(window)
    unequal = [name for name, offsets in by_fps.items() if (offsets != offsets[0]).any()]
    if not unequal:
        fps_number = np.zeros_like(fps_number)
    needed = _with_few_values(needed)
    rate = np.zeros(len(index.fps), np.int64)
    rate[selected] = _row_numbers(fps_number[:, None], *needed.values())
    _, examples = np.unique(rate[selected], return_index=True)
    for name, offsets in by_fps.items():
        of_rates = OffsetWindow(offsets[fps_number[examples]], rate)
        converted[name] = of_rates if name in unequal else OffsetWindow(offsets[:1])
    for name, frames in needed.items():
        clock = clocks[windows[name].timestamps]
        converted[name] = clock.window(windows[name], *frames[examples].T.tolist())
    return converted, rate


def _with_few_values(needed: dict[str, IntArray]) -> dict[str, IntArray]:
    """The numbers of frames, int64[n, 2] each; with many different rows, up to a sixteenth larger.

    Clips are enumerated once for each different row, and rows of uneven episodes may all differ.
    """
    if _row_numbers(*needed.values()).max(initial=0) < _MOST_RATES:
        return needed
    rounded = {}
    for name, numbers in needed.items():
        shift = np.maximum(np.frexp(numbers)[1] - _EXACT_BITS, 0)
        increased = -(-numbers >> shift) << shift
        rounded[name] = np.minimum(increased, numbers.max(axis=0))
    return rounded


def _row_numbers(*columns: IntArray) -> IntArray:
    """Numbers of rows, int64[n]: equal rows of these columns, int64[n, k] each, have one number."""
    numbers = np.zeros(len(columns[0]) if columns else 0, np.int64)
    for column in chain.from_iterable(array.T for array in columns):
        pairs = numbers * (int(column.max(initial=0)) + 1) + column  # far below 2**63
        _, numbers = np.unique(pairs, return_inverse=True)
    return numbers


class Timestamps:
    """Timestamps of one feature, in seconds; implements `Clock`. Picklable.

    Read for each episode on demand, with a cache. Raises `ClipError` for a feature that is not a
    timestamp, and if timestamps of a selected episode are missing or do not ascend.

    Args:
        selected: rows of the selected episodes.
    """

    def __init__(self, dataset: Dataset, feature: str, selected: IntArray) -> None:
        schema = dataset.contents.index.schema
        if (spec := schema.get(feature)) is None:
            raise ClipError(
                "Seconds use an unknown feature",
                expected=", ".join(schema),
                got=feature,
            )
        if not is_timestamp(spec) or not is_unit_of_time(spec.unit):
            raise ClipError(
                "Seconds use a feature that is not a timestamp",
                feature=feature,
                expected="kind timestamp, unit s, ms, us or ns, one number a frame",
                got=f"kind {spec.kind}, unit {spec.unit}, {spec.dtype} {list(spec.shape)}",
            )
        self._dataset = dataset.select([feature])
        self._feature = feature
        self._unit = size_in(spec.unit, "s") or 1.0
        self.unit = spec.unit or "s, as the unit is unknown"
        self._place = timestamp_features(schema).index(feature)
        self._selected = selected
        self._read: dict[int, npt.NDArray[np.float64]] = {}
        self._read_bytes = 0
        time_spans = self._time_spans
        if len(unknown := time_spans.unknown(selected[self._has_steps], self._place)):
            raise ClipError(
                "timestamps do not ascend, or are missing in a frame",
                **self.name(int(unknown[0])),  # type: ignore[arg-type]
                expected="a timestamp in each frame of every episode, in ascending order",
                got=f"timestamps in {self.unit}",
            )
        steps = time_spans.mean_steps(self._selected, self._place)
        implausible = np.flatnonzero(np.isfinite(steps) & ~is_plausible(steps))
        if spec.unit is None and len(implausible):
            name, url = dataset.contents.stored_name(feature), shlex.quote(dataset.url)
            raise ClipError(
                "timestamps without a unit are implausible as seconds",
                **self.name(int(self._selected[implausible[0]])),  # type: ignore[arg-type]
                expected="a unit such as ns, us, ms or s: `seqrecord edit describe "
                f"{url} --unit {name}=ns`",
                got=f"frames {steps[implausible[0]]:g} s apart, if the unit is s",
            )

    def __getstate__(self) -> dict[str, Any]:  # without the cache
        return {**self.__dict__, "_read": {}, "_read_bytes": 0, "_selected": self._selected[:0]}

    def window(self, seconds: Seconds, before: list[int], after: list[int]) -> TimedWindow:
        """Return the window for these times; for `before` and `after`, see `frames_needed`."""
        first, last = min(seconds.time_list), max(seconds.time_list)
        outside = seconds.outside_tolerance if isinstance(seconds, _NearestSeconds) else None
        return TimedWindow(
            seconds.time_list,
            seconds.tolerance,
            seconds.out_of_range == "pad",
            first_offset=self._bounds(first)[0],
            last_offset=self._bounds(last)[1],
            frames_before=tuple(before),
            frames_after=tuple(after),
            clock=self,
            outside_tolerance=outside,
        )

    def frames_needed(self, seconds: Seconds) -> IntArray:
        """Return the frames that a complete clip has before and behind its start.

        For each selected episode, int64 [n, 2].
        """
        slack = self._least_steps() / 2
        if not isinstance(seconds, _NearestSeconds):
            slack = np.minimum(slack, seconds.tolerance)
        times = -min(seconds.time_list), max(seconds.time_list)
        columns = [self._frames_beyond(t - np.maximum(slack, _ROUNDING * abs(t))) for t in times]
        return np.stack(columns, axis=1)

    def seconds(self, episode: int) -> npt.NDArray[np.float64]:
        """See `Clock`."""
        if (times := self._read.get(episode)) is not None:
            return times
        name, row = self._feature, self._dataset.episodes[self.name(episode)["episode"]]
        stamps = row.read(range(len(row)), features=[name])[name].reshape(-1)
        whole = stamps.astype(np.int64 if stamps.dtype.kind in "iu" else np.float64)
        times = np.asarray((whole - whole[:1]) * self._unit, np.float64)
        if not (np.diff(times) > 0).all():
            raise ClipError(
                "timestamps do not ascend",
                **self.name(episode),  # type: ignore[arg-type]
                got=f"timestamps in {self.unit}",
            )
        if self._read_bytes > _MOST_BYTES:
            self._read, self._read_bytes = {}, 0
        self._read[episode] = times
        self._read_bytes += times.nbytes
        return times

    def period(self, episode: int) -> float:
        """See `Clock`."""
        fps = float(self._dataset.contents.index.fps[episode])
        return 1 / fps if fps else 0.0

    def name(self, episode: int) -> dict[str, str]:
        """See `Clock`."""
        key = self._dataset.contents.index.key(episode)
        return {"file": self._dataset.url, "episode": key, "feature": self._feature}

    def _bounds(self, time: float) -> tuple[int, int]:
        """Return minimum and maximum frame offset of the frame nearest to a time."""
        if not time:
            return 0, 0
        times = np.full(len(self._selected), abs(time))
        nearest, _ = self._frames_within(times)
        near = int(nearest[self._has_steps].min()) if self._has_steps.any() else 0
        far = int(self._frames_beyond(times).max(initial=1))
        return (near, far) if time > 0 else (-far, -near)

    def _frames_beyond(self, times: npt.NDArray[np.float64]) -> IntArray:
        """Return a number of frames that lasts longer than the episode's time; 0 for none."""
        _, furthest = self._frames_within(times)
        return np.where(times > 0, furthest + 1, 0)

    def _frames_within(self, times: npt.NDArray[np.float64]) -> tuple[IntArray, IntArray]:
        """See `EpisodeTimeSpans.frames_within`; for the selected episodes and times in seconds."""
        return self._time_spans.frames_within(self._selected, self._place, times / self._unit)

    def _least_steps(self) -> npt.NDArray[np.float64]:
        """Return the shortest time between two frames of each episode; by fps for one frame."""
        steps = self._time_spans.min_growth[self._selected, self._place, 0] * self._unit
        with np.errstate(divide="ignore"):
            periods = 1 / self._dataset.contents.index.fps[self._selected]
        steps = np.where(self._has_steps, steps, periods)
        return np.where(np.isfinite(steps), steps, 0.0)

    @property
    def _has_steps(self) -> npt.NDArray[np.bool_]:
        """Which of the selected episodes have more than one frame, bool [n]."""
        return self._dataset.contents.index.num_frames[self._selected] > 1

    @property
    def _time_spans(self) -> EpisodeTimeSpans:
        time_spans = self._dataset.contents.index.time_spans
        assert time_spans is not None, "an index without time spans"
        return time_spans


def _keep_rate(index: Index, clock: str, selected: IntArray) -> bool:
    """Whether the mean rate of all episodes may be near their fps, as in a slow loop."""
    if index.time_spans is None or not index.fps[selected].all():
        return False
    place, unit = timestamp_features(index.schema).index(clock), index.schema[clock].unit
    num_steps = index.num_frames[selected] - 1
    shortest, longest = index.time_spans.durations(selected, place, num_steps)
    periods = index.fps[selected] * (size_in(unit, "s") or 1.0)
    allowed = np.maximum(MAX_DRIFT * num_steps, MAX_OFF) * (1 + 1e-6)
    is_off = (shortest * periods > num_steps + allowed) | (longest * periods < num_steps - allowed)
    return not is_off.any()


@dataclass(frozen=True, repr=False)
class _NearestSeconds(Seconds):
    """Seconds in episodes that keep their rate; see `TimedWindow.outside_tolerance`."""

    outside_tolerance: float = 0.0


def _nearest(window: Seconds, index: Index, selected: IntArray, feature: str) -> _NearestSeconds:
    """The window for the nearest frames, all within a step that fits the episodes' fps.

    From first to last without a step, it has the times i / fps. Raises `ClipError` for none.
    """
    rates = np.unique(index.fps[selected])
    near = max(window.tolerance, (1 + MAX_EXTRA) / 2 / float(rates[0]))
    first, last = window.first, window.last
    if window.times is None and window.step is None and len(rates) == 1:
        times = window.offsets(float(rates[0]), feature) / float(rates[0])
        first, last = times.tolist(), None
    return _NearestSeconds(
        first, last, step=window.step, tolerance=near, outside_tolerance=window.tolerance
    )


def _is_irregular(index: Index, clock: str | None, selected: IntArray) -> npt.NDArray[np.bool_]:
    """Return which episodes have no fps, or one contradicted by their timestamps, bool [n].

    The latter happens after a change of the unit.
    """
    fps = index.fps[selected]
    is_irregular: npt.NDArray[np.bool_] = fps == 0
    if clock is not None and index.time_spans is not None:
        place, size = (
            timestamp_features(index.schema).index(clock),
            size_in(index.schema[clock].unit, "s"),
        )
        with np.errstate(divide="ignore"):
            contradicted = index.time_spans.contradict(
                selected, place, 1 / (fps * (size or 1.0)), index.num_frames[selected] - 1
            )
        if size is None:
            contradicted &= is_plausible(index.time_spans.mean_steps(selected, place))
        is_irregular |= contradicted
    return is_irregular
