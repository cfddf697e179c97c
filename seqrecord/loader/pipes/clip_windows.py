"""The frames of each feature in clips, from `windows`, frames per second and timestamps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError
from seqrecord.loader.clips.frames import (
    Anchor,
    AnchoredWindow,
    ClipFrames,
    ClipKeys,
    ClipWindow,
    MissingFrames,
    NearestWindow,
    OffsetWindow,
    SampleValues,
)
from seqrecord.loader.clips.layouts import episode_layout, missing_frames
from seqrecord.loader.clips.tables import (
    ClipTable,
    ClipUse,
    IntArray,
    enumerate_clips,
    offset_range,
)
from seqrecord.loader.clips.windows import At, Next, Seconds, describe_offsets
from seqrecord.loader.frames.array_specs import ArraySpec
from seqrecord.loader.pipes.distributed import warn_once
from seqrecord.loader.pipes.options import ClipOptions
from seqrecord.store.clip_spec import ClipSpec
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.units import raise_if

if TYPE_CHECKING:
    from seqrecord.loader.clips.frame_lists import FrameLists

_ROWS = 1 << 18  # of which anchors are looked up at once


@dataclass(frozen=True, eq=False, kw_only=True)
class Windows:
    """The window of each feature. Picklable.

    Attributes:
        requested: offsets and seconds of the argument `windows`, by feature.
        nearest: `Latest` and `Next` of the argument, by feature.
        by_feature: windows of features that have one of their own.
        usual: window of the other features: `clip_len` frames, or lists of frames.
        stored: frames of each stored feature.
        required: windows, each with the stored features that its frames must have. A frame
            transform needs all features in the frames of all windows.
        rate: number of each episode's frame rate, int64[E]: offsets of seconds depend on it.
        reach: frames before and behind a clip's start that an episode must have, for each frame
            rate, int64[rates, 2].
        dilations: factors of the offsets that samples may have, ascending.
        pads: whether clips may have frames before the first frame of their episode, and behind the
            last one.
        has_clip_len: whether features without a window have `clip_len` frames, not a single one.
        anchored: windows with anchors.
    """

    requested: Mapping[str, Any]
    nearest: Mapping[str, Any]
    by_feature: Mapping[str, ClipWindow]
    usual: ClipWindow
    stored: ClipFrames
    required: Sequence[tuple[ClipWindow, tuple[str, ...]]]
    rate: IntArray
    reach: IntArray
    dilations: Sequence[int]
    pads: tuple[bool, bool]
    has_clip_len: bool
    anchored: Sequence[AnchoredWindow]

    @property
    def span(self) -> int:
        """The fewest frames of an episode with a clip."""
        return 1 + int(self.reach.sum(axis=1).min())

    def of_arrays(self, arrays: Mapping[str, ArraySpec]) -> ClipFrames:
        """The frames of the arrays in clips. A mask has the window of its feature.

        Raises `ClipError` for requested windows of other features: a frame transform determines
        them.
        """
        windows = {
            name: self.by_feature.get(spec.mask_of or name, self.usual)
            for name, spec in arrays.items()
        }
        if self.requested:
            names = [name for name, spec in arrays.items() if spec.mask_of is None]
            _check_features(self.requested, names)
        return replace(self.stored, windows=windows)

    def missing(self, dataset: Dataset, features: Sequence[str]) -> MissingFrames:
        """The frames that lack any of these stored features, which share a window.

        With `Latest` or `Next`: frames without any value in that direction.
        """
        window = self.stored.windows[features[0]]
        if isinstance(window, NearestWindow):
            return window.unknown_frames
        return missing_frames(dataset.contents, features)

    def check_anchors(self, samples: SampleValues, clips: ClipKeys) -> None:
        """Raise `ClipError` with the row for an invalid value in a column of anchors."""
        frames = replace(self.stored, samples=samples)
        for window in self.anchored:
            window.with_lacking(clips, frames)

    def lack_anchors(
        self, samples: SampleValues, clips: ClipTable, columns: Collection[str]
    ) -> npt.NDArray[np.bool_]:
        """Which clips have an anchor of these columns at a frame that lacks the feature, bool[n].

        Invalid values do not count: a function may remove their rows.
        """
        frames, lacks = replace(self.stored, samples=samples), np.zeros(clips.num_clips, np.bool_)
        for window in self.anchored:
            anchors = tuple(anchor for anchor in window.anchors if anchor.column in columns)
            if not anchors or not len(window.gaps):
                continue
            window_of_columns = replace(window, anchors=anchors)
            for begin in range(0, len(lacks), _ROWS):
                rows = np.arange(begin, min(begin + _ROWS, len(lacks)))
                keys = clips.locate(rows)
                _, is_lacking = window_of_columns.with_lacking(keys, frames, raises=False)
                lacks[rows] |= is_lacking
        return lacks

    def extents(self, selected: IntArray) -> IntArray:
        """The frames before and behind a clip's start that an episode must have; int64[E, 2].

        0 for unselected episodes if windows are in seconds.
        """
        extents: IntArray = self.reach[self.rate]
        if any(isinstance(window, Seconds) for window in self.requested.values()):
            extents[np.setdiff1d(np.arange(len(extents)), selected)] = 0
        return extents

    def frames_behind(self, episode: IntArray, dilation: int) -> IntArray:
        """The frames that clips of episodes must have behind their starts, int64[n]."""
        frames: IntArray = self.reach[self.rate[episode], 1] // self.dilations[0] * dilation
        return frames

    def describe(self, stored_name: Callable[[str], str]) -> dict[str, str]:
        """Windows as text by feature, without default windows: offsets of each rate, or times, and
        the greatest distance. Features have their stored names.
        """
        descriptions = {}
        for name, request in sorted(self.requested.items()):
            if isinstance(request, Seconds) and request.timestamps is not None:
                descriptions[name] = repr(request.with_clock(stored_name(request.timestamps)))
            elif _has_anchors(request):
                descriptions[name] = repr(request)
            else:
                window, rates = self.by_feature[name], range(len(self.reach))
                texts = (describe_offsets(window.frame_offsets_at(rate)) for rate in rates)
                descriptions[name] = "; ".join(dict.fromkeys(texts))
        for name, request in sorted(self.nearest.items()):
            frames = descriptions.get(name, "clip_len")
            descriptions[name] = (
                f"{frames}, {request.limit}={request.most}, unknown={request.unknown}"
            )
        return {stored_name(name): text for name, text in descriptions.items()}


def find_windows(
    options: ClipOptions,
    dataset: Dataset,
    selected: IntArray,
    lists: FrameLists | None = None,
    dilations: Sequence[int] | None = None,
) -> Windows:
    """The windows of a request for the features of a dataset.

    Raises `ClipError` for windows of unknown features, and for seconds if a selected episode has
    neither an fps nor timestamps.

    Args:
        selected: rows of the selected episodes.
        lists: the frames of clips that are lists of frames.
        dilations: the dilations of samples, ascending. Default: from `options`.
    """
    features, is_transformed = dataset.features, options.frame_transform is not None
    step, factors = 1, options.dilations  # drawn ones multiply the offsets of windows
    if not options.has_drawn_steps:
        step, factors = options.dilations[0], (1,)
    factors = factors if dilations is None else tuple(dilations)
    pads = options.pad in ("edge", "before"), options.pad in ("edge", "after")
    requested, by_feature = options.own_windows, dict[str, ClipWindow]()
    rate = np.zeros(len(dataset.contents.index.fps), np.int64)
    if requested:
        requested, by_feature, rate = _requested_windows(options, dataset, selected, pads)
    max_frames = None if options.span is None else options.most_frames
    offsets = OffsetWindow.of(np.arange(options.frames_of_span) * step, max_frames)
    usual: ClipWindow = lists or offsets
    if options.nearest:
        by_feature |= _nearest_windows(options, dataset, selected, by_feature, usual)
    rates = range(int(rate.max(initial=0)) + 1)
    num_frames = episode_layout(dataset.contents).num_frames
    if lists is not None:
        num_frames = lists.num_frames
    stored = ClipFrames(dict.fromkeys(features, usual), num_frames, lists=lists)
    if is_transformed and lists is None:
        all_windows = {window.key: window for window in (usual, *by_feature.values())}
        required = [(window, tuple(features)) for window in all_windows.values()]
    else:
        if requested:
            _check_features(requested, features)
        stored = replace(stored, windows={name: by_feature.get(name, usual) for name in features})
        required = [(stored.windows[names[0]], names) for names in stored.by_window(features)]
    reach = np.zeros((len(rates), 2), np.int64)
    for number in rates:
        offset_lists = [w.frame_offsets_at(number) * factors[0] for w, _ in required]
        reach[number] = np.where(pads, 0, offset_range(offset_lists))
    return Windows(
        requested=requested,
        nearest=options.nearest,
        by_feature=by_feature,
        usual=usual,
        stored=stored,
        required=required,
        rate=rate,
        reach=reach,
        dilations=factors,
        pads=pads,
        has_clip_len=options.clip_len is not None,
        anchored=[inner for window in by_feature.values() for inner in window.anchored],
    )


def enumerate_windows(
    windows: Windows, dataset: Dataset, selected: IntArray, spec: ClipSpec
) -> ClipTable:
    """The clips of selected episodes that are complete with any of the windows' dilations."""
    clips = ClipTable.union(clips_by_dilation(windows, dataset, selected, spec, windows.dilations))
    return clips if windows.requested else replace(clips, num_outside=0)


def clips_by_dilation(
    windows: Windows,
    dataset: Dataset,
    selected: IntArray,
    spec: ClipSpec,
    dilations: Sequence[int],
) -> list[ClipTable]:
    """The clips of selected episodes that are complete with each dilation."""
    table, tables = episode_layout(dataset.contents), list[ClipTable]()
    # Starts to leave out, of windows whose offsets do not tell which frames clips use.
    gaps, starts = dict[tuple[str, ...], MissingFrames](), list[MissingFrames | None]()
    for window, names in windows.required:
        if names not in gaps:
            gaps[names] = windows.missing(dataset, names)
        starts.append(window.starts_without(gaps[names].of_episodes(selected)))
    for dilation in dilations:
        by_rate = list[ClipTable]()
        for rate in range(len(windows.reach)):
            uses = list[ClipUse]()
            for (window, names), excluded in zip(windows.required, starts, strict=True):
                offsets = window.frame_offsets_at(rate) * dilation
                if excluded is None:
                    uses.append(ClipUse(offsets, gaps[names]))
                else:
                    uses.append(ClipUse(offsets, MissingFrames.none()))
                    uses.append(ClipUse(np.zeros(1, np.int64), excluded))
            rows = selected[windows.rate[selected] == rate]
            by_rate.append(enumerate_clips(spec, table, rows, uses=uses, pads=windows.pads))
        tables.append(ClipTable.concatenated(by_rate))
    return tables


def _requested_windows(
    options: ClipOptions, dataset: Dataset, selected: IntArray, pads: tuple[bool, bool]
) -> tuple[dict[str, Any], dict[str, ClipWindow], IntArray]:
    """The argument `windows` with its clocks, its windows, and the rate number of each episode."""
    from seqrecord.loader.clips.timed_windows import offsets_and_times, with_clock

    requested, notice = with_clock(options.own_windows, dataset, selected)
    anchored = {n: w for n, w in requested.items() if _has_anchors(w)}
    plain = {n: w for n, w in requested.items() if n not in anchored}
    by_feature, rate = offsets_and_times(plain, dataset, selected)
    if notice is not None:
        warn_once(notice)
    contents = dataset.contents
    longest = int(contents.index.num_frames[selected].max(initial=1))
    for name, window in anchored.items():
        is_stored = name in contents.features and options.frame_transform is None
        gaps = missing_frames(contents, [name] if is_stored else None)
        anchors = (
            Anchor(part.column, np.array(part.offsets, np.int64), part.within)
            if isinstance(part, At)
            else Anchor(None, np.array([part], np.int64))
            for part in window
        )
        by_feature[name] = AnchoredWindow(tuple(anchors), longest, name, gaps, pads)
    return requested, by_feature, rate


def _nearest_windows(
    options: ClipOptions,
    dataset: Dataset,
    selected: IntArray,
    windows: Mapping[str, ClipWindow],
    usual: ClipWindow,
) -> dict[str, NearestWindow]:
    """The windows of features with `Latest` or `Next`, which look for values."""
    if options.frame_transform is not None:
        raise ClipError(
            "Latest and Next do not go with frame_transform, which needs whole frames",
            expected="clip_transform, or neither Latest nor Next",
            got=", ".join(options.nearest),
        )
    _check_features(options.nearest, dataset.features)
    nearest, num_frames = {}, episode_layout(dataset.contents).num_frames
    for name, request in options.nearest.items():
        gaps = missing_frames(dataset.contents, [name]).of_episodes(selected)
        ahead = isinstance(request, Next)
        is_open = gaps.stop == num_frames[gaps.episode] if ahead else gaps.start == 0
        window = windows.get(name, usual)
        nearest[name] = NearestWindow(
            *(window, gaps, is_open, request.most),
            has_unknown=request.unknown is not None,
            looks_ahead=ahead,
        )
        if isinstance(window, AnchoredWindow):
            lacking = replace(window, gaps=nearest[name].unknown_frames)
            nearest[name] = replace(nearest[name], window=lacking)
    return nearest


def _has_anchors(window: Any) -> bool:
    return isinstance(window, tuple) and any(isinstance(part, At) for part in window)


def _check_features(windows: Iterable[str], features: Collection[str]) -> None:
    """Raise `ClipError` for windows of unknown features."""
    unknown = [name for name in windows if name not in features]
    problem = "windows has a feature that clips do not have"
    raise_if(bool(unknown), problem, ", ".join(features), ", ".join(unknown)[:200])
