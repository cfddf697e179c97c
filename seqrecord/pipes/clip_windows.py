"""Which frames of each feature clips have, by `windows`, frames a second and timestamps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.clips.excerpts import Excerpts
from seqrecord.clips.frames import (
    ClipFrames,
    ClipUse,
    ClipWindow,
    KnownWindow,
    MissingFrames,
    OffsetWindow,
    TimedWindow,
    reach_of,
)
from seqrecord.clips.tables import IntArray
from seqrecord.clips.windows import Seconds
from seqrecord.errors import ClipError
from seqrecord.feature_kinds import size_in
from seqrecord.format.index import Index
from seqrecord.format.lags import (
    EpisodeLags,
    clock_of,
    has_lags,
    is_plausible,
    is_unit_of_time,
    with_lags,
)
from seqrecord.pipes.checks import refuse
from seqrecord.pipes.distributed import say_once
from seqrecord.pipes.options import ClipOptions
from seqrecord.reading.dataset import Dataset
from seqrecord.sampling import Window
from seqrecord.text import counted

_MOST_BYTES = 16 << 20  # of timestamps in memory


@dataclass(frozen=True, eq=False)
class FeatureWindows:
    """The windows of the features of clips. Picklable.

    Attributes:
        selected: the windows of the dataset's features.
        frames: the frames of each feature, before any draw.
        padded: features with a column `<feature>_is_pad`.
        aged: features with a column `<feature>_age`.
        alone: features without a window.
    """

    selected: SelectedWindows
    frames: ClipFrames
    padded: Sequence[str]
    aged: Sequence[str]
    alone: Sequence[str]

    def of_groups(self, stride: int) -> list[Window]:
        """The window of each group of features; of one group, where frames are transformed."""
        selected, groups = self.selected, dict[int, list[ClipWindow]]()
        features, is_transformed = selected.dataset.features, selected.is_transformed
        for name, window in self.frames.windows.items():
            if is_transformed or name in features:  # no mask of another one
                group = 0 if is_transformed else features[name].group
                groups.setdefault(group, []).append(window)
        found = []
        for _, windows in sorted(groups.items()):
            held = [w.held * dilation for w in windows for dilation in selected.dilations]
            is_even = all(isinstance(w, OffsetWindow) and w.rate is None for w in windows)
            reach = max(window.reach for window in windows)
            pad = any(selected.pads) or not is_even
            found.append(Window.around(held, stride, pad=pad, reach=reach))
        return found


class SelectedWindows:
    """The windows of a dataset's features, including those of `clip_len` frames. Picklable.

    Raises `ClipError` for windows of other features, and for seconds where a selected episode has
    neither an fps nor timestamps.

    Args:
        selected: rows of the selected episodes.
        excerpts: the frames of clips that are lists of frames.

    Attributes:
        asked: offsets and seconds of the argument `windows`.
        pads: whether clips may have frames before the first one of their episode, and behind the
            last one.
        span: the fewest frames of an episode with a clip.
        stored: the frames of each stored feature.
    """

    def __init__(
        self,
        options: ClipOptions,
        dataset: Dataset,
        selected: IntArray,
        excerpts: Excerpts | None = None,
    ) -> None:
        self.dataset, self._selected, self._excerpts = dataset, selected, excerpts
        self.dilations = options.dilations if options.has_drawn_steps else (1,)
        self._all_have = options.clip_len is not None
        self.pads = options.pad in ("edge", "before"), options.pad in ("edge", "after")
        self.drop_last = options.drop_last_frames
        self.is_transformed = options.frame_transform is not None
        self.asked, self._latest = _timed(options.own_windows, dataset, selected), options.latest
        step = 1 if options.has_drawn_steps else options.dilations[0]
        offsets = OffsetWindow.of(np.arange(options.clip_len or 1) * step)
        self._others: OffsetWindow | Excerpts = excerpts or offsets
        self._windows, self._rate = self._find()
        self._rates = range(int(self._rate.max(initial=0)) + 1)
        if self.is_transformed and excerpts is None:  # it needs all features, of every window
            every = [window.held for window in (self._others, *self._windows.values())]
            whole = OffsetWindow.of(np.unique(np.concatenate(every)))
            self.stored = self._frames(dict.fromkeys(dataset.features, whole))
        else:
            self.stored = self.of_features(dict.fromkeys(dataset.features)).frames
        self._reach = np.zeros((len(self._rates), 2), np.int64)
        for rate in self._rates:
            windows = self.stored.windows.values()
            reach = reach_of(w.held_at(rate) * self.dilations[0] for w in windows)
            self._reach[rate] = np.where(self.pads, 0, reach)
        self._reach[:, 1] = np.maximum(self._reach[:, 1], self.drop_last)
        self.span = 1 + int(self._reach.sum(axis=1).min())

    def of_features(self, features: Mapping[str, str | None]) -> FeatureWindows:
        """The windows of these features: other ones than the dataset's, if frames are transformed.

        The value of a mask is the name of its feature, whose window it has.
        """
        names = [name for name, mask_of in features.items() if mask_of is None]
        _refuse_others(self.asked, names)
        found = {n: self._windows.get(of or n, self._others) for n, of in features.items()}
        padded = [
            name
            for name in names
            if (any(self.pads) and (self._all_have or name in self.asked)) or found[name].pads
        ]
        aged = [name for name in names if isinstance(found[name], KnownWindow)]
        alone = [name for name, window in found.items() if window is self._others]
        return FeatureWindows(self, self._frames(found), padded, aged, alone)

    def _find(self) -> tuple[dict[str, ClipWindow], IntArray]:
        """The windows of features that do not have `clip_len` frames, each the newest; and the rate
        of each episode of the dataset, int64[E]."""
        dataset, selected = self.dataset, self._selected
        found, rate = _by_rate(self.asked, dataset, selected)
        clocks: dict[str, Timestamps] = {}
        for name, window in self.asked.items():
            if not isinstance(window, Seconds):
                found[name] = OffsetWindow.of(window)
            elif window.timestamps is not None:
                if window.timestamps not in clocks:
                    clocks[window.timestamps] = Timestamps(dataset, window.timestamps, selected)
                found[name] = clocks[window.timestamps].window(window)
        if self._latest and self.is_transformed:
            raise ClipError(
                "Latest does not go with frame_transform, which needs whole frames",
                expected="clip_transform, or no Latest",
                got=", ".join(self._latest),
            )
        _refuse_others(self._latest, dataset.features)
        for name, asked in self._latest.items():
            missing = dataset.select([name]).contents.missing_frames()
            found[name] = KnownWindow(
                found.get(name, self._others),
                missing.taken(np.isin(missing.episode, selected)),
                asked.max_age,
                asked.unknown is not None,
            )
        return found, rate

    def _frames(self, windows: Mapping[str, ClipWindow]) -> ClipFrames:
        if (excerpts := self._excerpts) is not None:
            return ClipFrames(windows, excerpts.num_frames, excerpts=excerpts)
        return ClipFrames(windows, self.dataset.contents.episode_table.num_frames)

    def uses(self) -> list[list[tuple[IntArray, list[ClipUse]]]]:
        """What clips use of the stored features, and the frames that lack one of these, with each
        of the dilations that may be drawn; of episodes of one rate, by their rows, and of others.
        """
        windows, selected = self.stored.windows, self._selected
        sets = [(windows[n[0]], self.missing(n)) for n in self.stored.alike(windows)]
        episodes = [selected[self._rate[selected] == rate] for rate in self._rates]
        return [
            [
                (rows, [ClipUse(window.held_at(rate) * d, lack) for window, lack in sets])
                for rate, rows in enumerate(episodes)
            ]
            for d in self.dilations
        ]

    @property
    def reaches(self) -> IntArray:
        """How many frames before and behind a clip's start there must be in each episode of the
        dataset, int64[E, 2]. Of those that are not selected, 0 where seconds make it differ."""
        found: IntArray = self._reach[self._rate]
        if any(isinstance(window, Seconds) for window in self.asked.values()):
            found[np.setdiff1d(np.arange(len(found)), self._selected)] = 0
        return found

    def missing(self, features: Sequence[str]) -> MissingFrames:
        """The frames that lack one of the stored features, of which clips have the same frames.

        Of last known values, those for which there is none.
        """
        window = self.stored.windows[features[0]]
        if isinstance(window, KnownWindow):
            return window.unknown
        return self.dataset.select(features).contents.missing_frames()

    def describe(self) -> dict[str, str]:
        """The windows as text, by feature, where there are any but those of `clip_len`: offsets,
        of each rate, or times; and how old values may be."""
        found = {}
        for name, asked in sorted(self.asked.items()):
            if isinstance(asked, Seconds) and asked.timestamps is not None:
                found[name] = repr(asked)
            else:
                every = (
                    describe_offsets(self._windows[name].held_at(rate)) for rate in self._rates
                )
                found[name] = "; ".join(dict.fromkeys(every))
        for name, latest in sorted(self._latest.items()):
            frames = found.get(name, "clip_len")
            found[name] = f"{frames}, max_age={latest.max_age}, unknown={latest.unknown}"
        return found


def _timed(asked: Mapping[str, Any], dataset: Dataset, selected: IntArray) -> dict[str, Any]:
    """The windows, those in seconds by timestamps if a selected episode has no fps.

    Raises `ClipError` if there are no timestamps, or a window does not name its times.
    """
    index = dataset.contents.index
    windows = [n for n, w in asked.items() if isinstance(w, Seconds) and w.timestamps is None]
    clock = clock_of(index.schema)
    lacking = selected[_is_irregular(index, clock, selected)] if windows else selected[:0]
    if not len(lacking):
        return dict(asked)
    episode = index.key(int(lacking[0]))
    if clock is None:
        several = with_lags(index.schema)
        raise ClipError(
            "Seconds need episodes that say how many frames a second they have, or a timestamp",
            episode=episode,
            expected=f"timestamps= one of {', '.join(several)}"
            if several
            else "an fps that all timestamps fit, as of SeqRecordWriter.episode; or a feature of "
            "kind timestamp, and Seconds(…, timestamps=feature)",
            got="none",
        )
    if unlisted := [n for n in windows if asked[n].times is None and asked[n].step is None]:
        raise ClipError(
            "Seconds without a list of times or step need episodes of a regular fps",
            episode=episode,
            feature=unlisted[0],
            expected=f"a list of times, or step=, which are looked up in {clock}",
            got=asked[unlisted[0]],
        )
    unit = index.schema[clock].unit or "unknown unit, taken as s"
    say_once(
        f"{dataset.url}: {len(lacking):,} of {counted(len(selected), 'episode')} without a regular "
        f"fps: Seconds use the timestamps of feature {clock} ({unit})"
    )
    return {n: w.with_clock(clock) if n in windows else w for n, w in asked.items()}


def _is_irregular(index: Index, clock: str | None, selected: IntArray) -> npt.NDArray[np.bool_]:
    """Whether episodes have no fps, or one that their timestamps contradict, as after a change of
    the unit; bool [n]."""
    fps = index.fps[selected]
    found: npt.NDArray[np.bool_] = fps == 0
    if clock is not None and index.lags is not None:
        place, size = with_lags(index.schema).index(clock), size_in(index.schema[clock].unit, "s")
        with np.errstate(divide="ignore"):
            others = index.lags.contradict(selected, place, 1 / (fps * (size or 1.0)))
        if size is None:
            others &= is_plausible(index.lags.mean_steps(selected, place))
        found |= others
    return found


def _by_rate(
    asked: Mapping[str, Any], dataset: Dataset, selected: IntArray
) -> tuple[dict[str, Any], IntArray]:
    """Those windows in seconds that are by frames a second: offsets in frames, of each number of
    these, which is a rate; and that of all episodes, int64[E], 0 of those that are not selected.

    All episodes are of one rate where all offsets are the same, or there are no such windows.

    Raises `ClipError` where no frame is near enough to a time, and where episodes have different
    numbers of frames in a window.
    """
    windows = {n: w for n, w in asked.items() if isinstance(w, Seconds) and w.timestamps is None}
    index = dataset.contents.index
    rate, fps = np.zeros(len(index.fps), np.int64), index.fps[selected]
    values, first, which = np.unique(fps, return_index=True, return_inverse=True)
    keys = [index.key(row) for row in selected[first].tolist()]
    offsets = {n: w.at_rates(values.tolist(), keys, n) for n, w in windows.items()}
    if all((some == some[0]).all() for some in offsets.values()):
        return {n: OffsetWindow(some[:1]) for n, some in offsets.items()}, rate
    rate[selected] = which
    return {n: OffsetWindow(some, rate) for n, some in offsets.items()}, rate


class Timestamps:
    """The timestamps of one feature of a dataset, in seconds: a `Clock`. Picklable.

    Those of an episode are read when it is first asked for; some stay in memory.

    Raises `ClipError` for a feature that is no timestamp, and for one that a frame of a selected
    episode does not have, or that does not ascend.

    Args:
        selected: rows of the selected episodes.
    """

    def __init__(self, dataset: Dataset, feature: str, selected: IntArray) -> None:
        schema, lags = dataset.contents.index.schema, dataset.contents.index.lags
        if (spec := schema.get(feature)) is None:
            raise ClipError(
                "Seconds are by a feature that is not there",
                expected=", ".join(schema),
                got=feature,
            )
        if not has_lags(spec) or not is_unit_of_time(spec.unit):
            raise ClipError(
                "Seconds are by a feature that is not a timestamp",
                feature=feature,
                expected="kind timestamp, unit s, ms, us or ns, one number a frame",
                got=f"kind {spec.kind}, unit {spec.unit}, {spec.dtype} {list(spec.shape)}",
            )
        self._dataset = dataset.select([feature])
        self._feature = feature
        self._unit = size_in(spec.unit, "s") or 1.0
        self.unit = spec.unit or "s, as the unit is unknown"
        self._place = with_lags(schema).index(feature)
        self._selected = selected[dataset.contents.index.num_frames[selected] > 1]
        self._read: dict[int, npt.NDArray[np.float64]] = {}
        self._read_bytes = 0
        assert lags is not None, "an index without the lags of its timestamps"
        if len(unknown := lags.unknown(self._selected, self._place)):
            raise ClipError(
                "timestamps do not ascend, or a frame has none",
                **self.name(int(unknown[0])),  # type: ignore[arg-type]
                expected="one for each frame of every episode, later than that before",
                got=f"timestamps in {self.unit}",
            )
        if spec.unit is None:
            self._check_unit(lags)

    def _check_unit(self, lags: EpisodeLags) -> None:
        """Raise `ClipError` for timestamps of unknown unit that cannot be seconds."""
        steps = lags.mean_steps(self._selected, self._place)
        for row, step in zip(self._selected.tolist(), steps.tolist(), strict=True):
            if np.isfinite(step) and not is_plausible(step):
                name = self._dataset.contents.stored_name(self._feature)
                import shlex

                url = shlex.quote(self._dataset.url)
                raise ClipError(
                    "timestamps without a unit that cannot be seconds",
                    **self.name(row),  # type: ignore[arg-type]
                    expected="a unit such as ns, us, ms or s: `seqrecord edit describe "
                    f"{url} --unit {name}=ns`",
                    got=f"frames {step:g} s apart, if the unit is s",
                )

    def __getstate__(self) -> dict[str, Any]:  # windows have been made
        return {**self.__dict__, "_read": {}, "_read_bytes": 0, "_selected": self._selected[:0]}

    def window(self, seconds: Seconds) -> TimedWindow:
        """The window of these times."""
        first, _ = self._bounds(min(seconds.asked))
        _, last = self._bounds(max(seconds.asked))
        pads = seconds.out_of_range == "pad"
        return TimedWindow(seconds.asked, seconds.tolerance, pads, first, last, self)

    def seconds(self, episode: int) -> npt.NDArray[np.float64]:
        """See `Clock`."""
        if (found := self._read.get(episode)) is not None:
            return found
        name, row = self._feature, self._dataset.episodes[self.name(episode)["episode"]]
        stamps = row.read(range(len(row)), features=[name])[name].reshape(-1)
        whole = stamps.astype(np.int64 if stamps.dtype.kind in "iu" else np.float64)
        found = np.asarray((whole - whole[:1]) * self._unit, np.float64)
        if not (np.diff(found) > 0).all():
            raise ClipError(
                "timestamps do not ascend",
                **self.name(episode),  # type: ignore[arg-type]
                got=f"timestamps in {self.unit}",
            )
        if self._read_bytes > _MOST_BYTES:
            self._read, self._read_bytes = {}, 0
        self._read[episode] = found
        self._read_bytes += found.nbytes
        return found

    def name(self, episode: int) -> dict[str, str]:
        """See `Clock`."""
        key = self._dataset.contents.index.key(episode)
        return {"file": self._dataset.url, "episode": key, "feature": self._feature}

    def _bounds(self, time: float) -> tuple[int, int]:
        """The least and the greatest offset at which the nearest frame to a time can be."""
        lags = self._dataset.contents.index.lags
        if not time or lags is None:
            return 0, 0
        near, far = 0, 1  # of episodes of one frame, which have none at any other time
        if len(self._selected):
            least, most = lags.frames_within(self._selected, self._place, abs(time) / self._unit)
            near, far = int(least.min()), int(most.max()) + 1
        return (near, far) if time > 0 else (-far, -near)


def describe_offsets(offsets: IntArray) -> str:
    """Offsets as text: `-1,0`, or `0:16` and `0:32:2` where they are evenly spaced."""
    step = int(offsets[1] - offsets[0]) if len(offsets) > 1 else 1
    if len(offsets) < 3 or step < 1 or (np.diff(offsets) != step).any():
        return ",".join(map(str, offsets.tolist()))
    text = f"{offsets[0]}:{offsets[-1] + 1}"
    return text if step == 1 else f"{text}:{step}"


def _refuse_others(windows: Iterable[str], features: Iterable[str]) -> None:
    """Raise `ClipError` for windows of features that clips do not have."""
    others = [name for name in windows if name not in [*features]]
    problem = "windows has a feature that clips do not have"
    refuse(bool(others), problem, ", ".join(features), ", ".join(others)[:200])
