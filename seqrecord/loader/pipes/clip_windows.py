"""The frames of each feature in clips, from `windows`, frames per second and timestamps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError
from seqrecord.loader.pipes.distributed import warn_once
from seqrecord.loader.pipes.options import ClipOptions
from seqrecord.store.clips.frames import (
    Anchor,
    AnchoredWindow,
    ClipFrames,
    ClipKeys,
    ClipUse,
    ClipWindow,
    MissingFrames,
    NearestWindow,
    OffsetWindow,
    SampleValues,
    offset_range,
)
from seqrecord.store.clips.grids import distinct
from seqrecord.store.clips.tables import ClipSpec, ClipTable, IntArray, enumerate_clips
from seqrecord.store.clips.windows import At, Next, Seconds, describe_offsets
from seqrecord.store.reading.array_specs import ArraySpec
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.units import raise_if

if TYPE_CHECKING:
    from seqrecord.loader.clips.frame_lists import FrameLists


class SelectedWindows:
    """The windows of a dataset's features, with default windows of `clip_len` frames. Picklable.

    Raises `ClipError` for windows of unknown features, and for seconds if a selected episode has
    neither an fps nor timestamps.

    Args:
        selected: rows of the selected episodes.
        excerpts: the frames of clips that are lists of frames.
        dilations: the dilations of samples, ascending. Default: from `options`.

    Attributes:
        requested: offsets and seconds of the argument `windows`.
        anchored: windows with anchors.
        has_clip_len: whether features without a window have `clip_len` frames, not a single one.
        pads: whether clips may have frames before the first frame of their episode, and behind the
            last one.
        span: the fewest frames of an episode with a clip.
        stored: the frames of each stored feature.
        usual: the window of features without a window.
    """

    def __init__(
        self,
        options: ClipOptions,
        dataset: Dataset,
        selected: IntArray,
        excerpts: FrameLists | None = None,
        dilations: Sequence[int] | None = None,
    ) -> None:
        self.dataset, self._selected = dataset, selected
        num_frames = dataset.contents.episode_table.num_frames
        if excerpts is not None:
            num_frames = excerpts.num_frames
        self._no_features = ClipFrames({}, num_frames, excerpts=excerpts)
        step, factors = 1, options.dilations  # drawn ones multiply the offsets of windows
        if not options.has_drawn_steps:
            step, factors = options.dilations[0], (1,)
        self.dilations = factors if dilations is None else tuple(dilations)
        self.has_clip_len = options.clip_len is not None
        self.pads = options.pad in ("edge", "before"), options.pad in ("edge", "after")
        self.is_transformed = options.frame_transform is not None
        self.requested, by_feature = options.own_windows, dict[str, ClipWindow]()
        self._rate = np.zeros(len(dataset.contents.index.fps), np.int64)  # of each episode
        if self.requested:
            by_feature = self._of_request()
        max_frames = None if options.span is None else options.most_frames
        offsets = OffsetWindow.of(np.arange(options.frames_of_span) * step, max_frames)
        self.usual: ClipWindow = excerpts or offsets
        self._nearest = options.nearest
        self._windows = by_feature
        if self._nearest:
            self._windows = {**by_feature, **self._looking(by_feature)}
        self.anchored = [inner for window in self._windows.values() for inner in window.anchored]
        self._rates = range(int(self._rate.max(initial=0)) + 1)
        if self.is_transformed and excerpts is None:  # it needs all features, of every window
            all_windows = (self.usual, *self._windows.values())
            offset_lists = [w.frame_offsets_at(rate) for w in all_windows for rate in self._rates]
            whole = OffsetWindow.of(distinct(np.concatenate(offset_lists)), max_frames)
            of_features = dict.fromkeys(dataset.features, whole)
            self.stored = replace(self._no_features, windows=of_features)
        else:
            self.stored = self.of_features(dict.fromkeys(dataset.features))
        self._reach = np.zeros((len(self._rates), 2), np.int64)
        for rate in self._rates:
            windows = self.stored.windows.values()
            reach = offset_range([w.frame_offsets_at(rate) * self.dilations[0] for w in windows])
            self._reach[rate] = np.where(self.pads, 0, reach)
        self.span = 1 + int(self._reach.sum(axis=1).min())

    def _of_request(self) -> dict[str, ClipWindow]:
        """The windows of the argument `windows`. Sets its offsets and seconds, and frame rates."""
        from seqrecord.loader.clips.timed_windows import offsets_and_times, with_clock

        self.requested, notice = with_clock(self.requested, self.dataset, self._selected)
        anchored = {n: w for n, w in self.requested.items() if _has_anchors(w)}
        plain = {n: w for n, w in self.requested.items() if n not in anchored}
        by_feature, self._rate = offsets_and_times(plain, self.dataset, self._selected)
        if notice is not None:
            warn_once(notice)
        return by_feature | {name: self._anchored(name, w) for name, w in anchored.items()}

    def of_features(self, arrays: Mapping[str, ArraySpec | None]) -> ClipFrames:
        """The frames of features, `None` for stored ones. A mask has the window of its feature.

        With a frame transform, features may differ from the dataset's.
        """
        windows, names = dict[str, ClipWindow](), list[str]()
        for name, spec in arrays.items():
            mask_of = None if spec is None else spec.mask_of
            windows[name] = self._windows.get(mask_of or name, self.usual)
            if mask_of is None:
                names.append(name)
        if self.requested:
            _check_features(self.requested, names)
        return replace(self._no_features, windows=windows)

    def _looking(self, windows: Mapping[str, Any]) -> dict[str, NearestWindow]:
        """The windows of features with `Latest` or `Next`, which look for values."""
        if self.is_transformed:
            raise ClipError(
                "Latest and Next do not go with frame_transform, which needs whole frames",
                expected="clip_transform, or neither Latest nor Next",
                got=", ".join(self._nearest),
            )
        _check_features(self._nearest, self.dataset.features)
        nearest, num_frames = {}, self.dataset.contents.episode_table.num_frames
        for name, request in self._nearest.items():
            gaps = self.dataset.contents.missing_frames([name])
            gaps = gaps.subset(np.isin(gaps.episode, self._selected))
            ahead = isinstance(request, Next)
            is_open = gaps.stop == num_frames[gaps.episode] if ahead else gaps.start == 0
            window = windows.get(name, self.usual)
            nearest[name] = NearestWindow(
                *(window, gaps, is_open, request.most),
                has_unknown=request.unknown is not None,
                looks_ahead=ahead,
            )
            if isinstance(window, AnchoredWindow):
                lacking = replace(window, gaps=nearest[name].unknown_frames)
                nearest[name] = replace(nearest[name], window=lacking)
        return nearest

    def _anchored(self, name: str, window: Sequence[int | At]) -> AnchoredWindow:
        """A window with anchors."""
        contents = self.dataset.contents
        is_stored = name in contents.features and not self.is_transformed
        gaps = contents.missing_frames([name] if is_stored else None)
        longest = int(contents.index.num_frames[self._selected].max(initial=1))
        anchors = (
            Anchor(part.column, np.array(part.offsets, np.int64), part.within)
            if isinstance(part, At)
            else Anchor(None, np.array([part], np.int64))
            for part in window
        )
        return AnchoredWindow(tuple(anchors), longest, name, gaps, self.pads)

    def enumerate(
        self,
        spec: ClipSpec,
        selected: IntArray | None = None,
        dilations: Sequence[int] | None = None,
    ) -> ClipTable:
        """The clips that are complete with at least one dilation.

        `selected` are episode rows; by default all selected ones.
        """
        rows, windows = self._selected if selected is None else selected, self.stored.windows
        contents, union = self.dataset.contents, list[ClipTable]()
        gaps = {names[0]: self.missing(names) for names in self.stored.by_window(windows)}
        for dilation in dilations or self.dilations:
            tables = []
            for rate in self._rates:
                uses = [
                    ClipUse(windows[name].frame_offsets_at(rate) * dilation, lack)
                    for name, lack in gaps.items()
                ]
                part = rows[self._rate[rows] == rate]
                tables.append(
                    enumerate_clips(spec, contents.episode_table, part, uses=uses, pads=self.pads)
                )
            union.append(ClipTable.concatenated(tables))
        clips = ClipTable.union(union)
        return clips if self.requested else replace(clips, num_outside=0)

    def lacks_anchors(self, samples: SampleValues, clips: ClipKeys) -> npt.NDArray[np.bool_]:
        """Which clips have an anchor at a frame that lacks the feature, bool[n].

        Raises `ClipError` with the row for an invalid column.
        """
        frames, lacks = (
            replace(self._no_features, samples=samples),
            np.zeros(len(clips.start), bool),
        )
        for window in self.anchored:
            lacks |= window.with_lacking(clips, frames)[1]
        return lacks

    @property
    def extents(self) -> IntArray:
        """The frames before and behind a clip's start that an episode must have; int64[E, 2].

        0 for unselected episodes if windows are in seconds.
        """
        extents: IntArray = self._reach[self._rate]
        if any(isinstance(window, Seconds) for window in self.requested.values()):
            extents[np.setdiff1d(np.arange(len(extents)), self._selected)] = 0
        return extents

    def missing(self, features: Sequence[str]) -> MissingFrames:
        """The frames that lack any of these stored features, which share a window.

        With `Latest` or `Next`: frames without any value in that direction.
        """
        window = self.stored.windows[features[0]]
        if isinstance(window, NearestWindow):
            return window.unknown_frames
        return self.dataset.contents.missing_frames(features)

    def describe(self) -> dict[str, str]:
        """Windows as text by feature, without default windows: offsets of each rate, or times, and
        the greatest distance.
        """
        descriptions = {}
        for name, request in sorted(self.requested.items()):
            is_timed = isinstance(request, Seconds) and request.timestamps is not None
            if is_timed or _has_anchors(request):
                descriptions[name] = repr(request)
            else:
                window = self._windows[name]
                texts = (describe_offsets(window.frame_offsets_at(rate)) for rate in self._rates)
                descriptions[name] = "; ".join(dict.fromkeys(texts))
        for name, request in sorted(self._nearest.items()):
            frames = descriptions.get(name, "clip_len")
            descriptions[name] = (
                f"{frames}, {request.limit}={request.most}, unknown={request.unknown}"
            )
        return descriptions


def _has_anchors(window: Any) -> bool:
    return isinstance(window, tuple) and any(isinstance(part, At) for part in window)


def _check_features(windows: Iterable[str], features: Collection[str]) -> None:
    """Raise `ClipError` for windows of unknown features."""
    unknown = [name for name in windows if name not in features]
    problem = "windows has a feature that clips do not have"
    raise_if(bool(unknown), problem, ", ".join(features), ", ".join(unknown)[:200])
