"""Converts windows in seconds to frames, by the episodes' fps or timestamps."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError
from seqrecord.store.clips.frames import OffsetWindow, TimedWindow
from seqrecord.store.clips.grids import IntArray
from seqrecord.store.clips.windows import Seconds
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
from seqrecord.store.text import counted

_MOST_BYTES = 16 << 20  # timestamps cached in memory
_ROUNDING = 1e-9  # of a time


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
    All episodes have number 0 if their offsets are equal.

    Raises `ClipError` if no frame is close enough to a time, and if a window's number of frames
    differs between episodes.
    """
    index, converted, by_rate = dataset.contents.index, dict[str, Any](), dict[str, IntArray]()
    rate, clocks = np.zeros(len(index.fps), np.int64), dict[str, Timestamps]()
    values, first_rows, which = np.unique(
        index.fps[selected], return_index=True, return_inverse=True
    )
    for name, window in windows.items():
        if not isinstance(window, Seconds):
            converted[name] = OffsetWindow.of(window)
        elif window.timestamps is None:
            keys = [index.key(row) for row in selected[first_rows].tolist()]
            by_rate[name] = window.at_rates(values.tolist(), keys, name)
        else:
            if window.timestamps not in clocks:
                clocks[window.timestamps] = Timestamps(dataset, window.timestamps, selected)
            converted[name] = clocks[window.timestamps].window(window)
    if all((offsets == offsets[0]).all() for offsets in by_rate.values()):
        return converted | {n: OffsetWindow(offsets[:1]) for n, offsets in by_rate.items()}, rate
    rate[selected] = which
    return converted | {n: OffsetWindow(offsets, rate) for n, offsets in by_rate.items()}, rate


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
        self._selected = selected[dataset.contents.index.num_frames[selected] > 1]
        self._read: dict[int, npt.NDArray[np.float64]] = {}
        self._read_bytes = 0
        time_spans = self._time_spans
        if len(unknown := time_spans.unknown(self._selected, self._place)):
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

    def window(self, seconds: Seconds) -> TimedWindow:
        """Return the window for these times."""
        first, last = min(seconds.time_list), max(seconds.time_list)
        outside, slack = None, self._least_step() / 2
        if isinstance(seconds, _NearestSeconds):
            outside = seconds.outside_tolerance
        else:
            slack = min(slack, seconds.tolerance)
        return TimedWindow(
            seconds.time_list,
            seconds.tolerance,
            seconds.out_of_range == "pad",
            first_offset=self._bounds(first)[0],
            last_offset=self._bounds(last)[1],
            frames_before=self._frames_beyond(-first - max(slack, _ROUNDING * abs(first))),
            frames_after=self._frames_beyond(last - max(slack, _ROUNDING * abs(last))),
            clock=self,
            outside_tolerance=outside,
        )

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
        near = 0  # for episodes of a single frame
        if len(self._selected):
            nearest, _ = self._frames_within(abs(time))
            near = int(nearest.min())
        far = self._frames_beyond(abs(time))
        return (near, far) if time > 0 else (-far, -near)

    def _frames_beyond(self, time: float) -> int:
        """Return a number of frames that lasts longer than `time` everywhere; 0 for none."""
        if time <= 0:
            return 0
        _, furthest = self._frames_within(time)
        return int(furthest.max(initial=0)) + 1

    def _frames_within(self, time: float) -> tuple[IntArray, IntArray]:
        """See `EpisodeTimeSpans.frames_within`; for the selected episodes and a time in seconds."""
        return self._time_spans.frames_within(self._selected, self._place, time / self._unit)

    def _least_step(self) -> float:
        """Return the shortest time between two frames; 0 for episodes of a single frame."""
        if not len(self._selected):
            return 0.0
        growth = self._time_spans.min_growth[self._selected, self._place, 0]
        return float(growth.min()) * self._unit

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
