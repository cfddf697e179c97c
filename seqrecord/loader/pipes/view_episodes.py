"""The selected episodes of a dataset, for its samples; samples that lack frames."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError
from seqrecord.loader.clips.frames import ClipKeys
from seqrecord.loader.clips.layouts import missing_frames
from seqrecord.loader.clips.samples import ComputedValues, Samples
from seqrecord.loader.clips.tables import ClipTable, IntArray
from seqrecord.loader.pipes.clip_windows import (
    Windows,
    clips_by_dilation,
    enumerate_windows,
    find_windows,
)
from seqrecord.loader.pipes.epoch_samples import EpochSamples
from seqrecord.loader.pipes.options import ClipOptions
from seqrecord.store.clip_spec import ClipSpec
from seqrecord.store.reading.contents import update_digest
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.text import counted, repr_of
from seqrecord.store.units import raise_if

if TYPE_CHECKING:
    import pyarrow as pa

    from seqrecord.loader.clips.frame_lists import FrameLists


@dataclass(frozen=True, eq=False)
class ViewEpisodes:
    """The selected episodes of a dataset. Implements `SampleEpisodes`. Picklable.

    Attributes:
        dataset: the dataset, with the requested features only.
        windows: the window of each feature.
        selected: rows of the selected episodes, int64[n]. Values of their features are read once.
        lists: the listed frames of each episode, if samples are lists of frames.
        num_rows: the rows of the user's table; `None` without one.
        stops: each sample's segment's end, int64[samples], if a table has segments.
    """

    dataset: Dataset
    windows: Windows
    selected: IntArray
    lists: FrameLists | None = None
    num_rows: int | None = None
    stops: IntArray | None = None
    _values: dict[str, npt.NDArray[Any]] = field(default_factory=dict, repr=False)

    @property
    def keys(self) -> pa.StringArray:
        """See `SampleEpisodes`."""
        return self.dataset.contents.index.keys

    @property
    def num_frames(self) -> IntArray:
        """See `SampleEpisodes`."""
        return self.dataset.contents.index.num_frames

    def stored_frames(self, clips: ClipKeys) -> tuple[IntArray, IntArray]:
        """See `SampleEpisodes`."""
        if self.lists is None:
            return clips.episode, clips.start
        return self.lists.episode[clips.episode], self.lists.starts_of(clips.row)

    def from_row(self, row: int) -> ViewEpisodes:
        """See `SampleEpisodes`."""
        if self.lists is not None:
            return replace(self, lists=self.lists.from_row(row))
        return self if self.stops is None else replace(self, stops=self.stops[row:])

    def extent(self, clips: ClipKeys, samples: Samples) -> tuple[IntArray, IntArray]:
        """See `SampleEpisodes`."""
        if self.lists is not None:
            frames = self.lists.filled_of(clips.row)
            return frames.min(axis=1), frames.max(axis=1)
        dilation = samples.dilation(clips, self.windows.dilations[0])
        found = replace(self.windows.stored, samples=samples)
        ends = (window.ends(clips, found, dilation) for window, _ in self.windows.required)
        first, last = zip(*ends, strict=True)
        return np.minimum.reduce(first), np.maximum.reduce(last)

    def complete(
        self, dilations: Sequence[int]
    ) -> list[Callable[[ClipKeys], npt.NDArray[np.bool_]]]:
        """See `SampleEpisodes`."""
        place = self.windows, self.dataset, self.selected
        tables = clips_by_dilation(*place, ClipSpec(1), dilations)
        pairs = zip(tables, dilations, strict=True)
        return [partial(self._are_complete, table, dilation) for table, dilation in pairs]

    def _are_complete(
        self, table: ClipTable, dilation: int, clips: ClipKeys
    ) -> npt.NDArray[np.bool_]:
        """Whether clips are in a table, which has a dilation, and inside their segments."""
        are_complete = table.has(clips.episode, clips.start)
        if self.stops is not None:
            last = clips.start + self.windows.frames_behind(clips.episode, dilation)
            are_complete &= last < self.stops[clips.row]
        return are_complete

    def metadata(self, name: str, episodes: IntArray) -> list[Any]:
        """See `SampleEpisodes`."""
        index = self.dataset.contents.index
        return [index.episode_metadata(row).get(name) for row in episodes.tolist()]

    def stored_name(self, name: str, *, has_metadata: bool = False) -> str:
        """See `SampleEpisodes`."""
        stored_name = self.dataset.contents.stored_name(name)
        if stored_name == name or name not in self.dataset.features:
            return name
        is_metadata = has_metadata and any(
            value is not None for value in self.metadata(name, self.selected)
        )
        return name if is_metadata else stored_name

    def values(
        self, feature: str, episode: IntArray, frame: IntArray, *, segments: bool = False
    ) -> npt.NDArray[Any]:
        """See `SampleEpisodes`."""
        if feature not in self._values:
            self._values[feature] = self._read(feature)
        values = self._values[feature]
        if segments:
            values = np.cumsum(np.append(False, values[1:] != values[:-1]))
        count = self.num_frames[self.selected]
        place = (np.cumsum(count) - count)[np.searchsorted(self.selected, episode)] + frame
        found: npt.NDArray[Any] = values[place]
        return found

    def _read(self, feature: str) -> npt.NDArray[Any]:
        """The values of the selected episodes' frames."""
        dataset, problem = self.dataset, "samples have no such value of each frame"
        scalars = [n for n, one in dataset.features.items() if one.value_kind.is_scalar(one)]
        features = ", ".join(scalars)
        if feature not in scalars or len(missing_frames(dataset.contents, [feature])):
            expected = f"text or number, in all frames and in features=; such: {features or 'none'}"
            raise ClipError(problem, expected=expected, got=repr_of(feature, 100))
        dataset = dataset.select([feature])
        keys = dataset.contents.index.keys_of(self.selected)
        found, texts = list[npt.NDArray[Any]](), dict[str, str]()
        for key in keys:
            values = dataset.episodes[key][:][feature]
            if isinstance(values, list):
                # Not an array of `U`, which has room for the longest text in each frame.
                values = np.array([texts.setdefault(text, text) for text in values], object)
            found.append(values.reshape(-1))
        whole: npt.NDArray[Any] = np.concatenate(found)
        return whole

    def digest(self, samples: Samples) -> str:
        """See `SampleEpisodes`."""
        digest, keys, columns = hashlib.sha256(), samples.keys, samples.columns
        frames, episode = keys.start, keys.episode
        if self.lists is not None:  # the same wherever episodes are divided
            frames = self.lists.frames_of(keys.row)
            episode = self.lists.episode[episode]
        place = np.searchsorted(self.selected, episode)
        update_digest(digest, "<i8", samples.rows_listed, place, frames)
        for name in sorted(columns):
            values = samples.values(name, keys)
            if isinstance(values, np.ndarray):
                digest.update(f"{name} {values.dtype} {values.shape}".encode())
                update_digest(digest, values.dtype.newbyteorder("<").str, values)
            else:
                digest.update(json.dumps([name, values]).encode())
        return digest.hexdigest()


def complete_clips(
    options: ClipOptions, dataset: Dataset, selected: IntArray
) -> tuple[ViewEpisodes, Samples]:
    """All complete clips of selected episodes."""
    windows = find_windows(options, dataset, selected)
    episodes = ViewEpisodes(dataset, windows, selected)
    return episodes, Samples(enumerate_windows(windows, dataset, selected, options.spec), episodes)


def checked_samples(
    options: ClipOptions, episodes: ViewEpisodes, samples: Samples
) -> tuple[EpochSamples, str]:
    """The samples of each epoch, without those that lack an anchored frame, and what is left out.

    `samples` is the table before functions. Raises `ClipError` if no sample is left.
    """
    epochs, windows = EpochSamples(samples, options.functions, options.seed), episodes.windows
    if windows.anchored and len(epochs.base):
        epochs = _with_anchors(epochs, windows)
    base = epochs.base
    repeat = epochs.in_epoch(0).samples.repeat if len(base) else None
    if repeat is not None and len(repeat):
        total = round(float(repeat.sum()), 9)  # 1 of six times 1/6
        expected = "a sum of at least 1, the mean number of samples in an epoch"
        raise_if(total < 1, "repeat is too small: some epochs have no sample", expected, total)
    left_out = _describe_left_out(episodes, base.clips)
    if not len(base) or not epochs.common.clips.num_clips:
        skipped = f"; skipped: {left_out}" if left_out else ""
        raise ClipError(
            f"no clip has all of its frames{skipped}",
            expected=f"{windows.span} frames with {', '.join(episodes.dataset.features)}",
        )
    return epochs, left_out


def _with_anchors(epochs: EpochSamples, windows: Windows) -> EpochSamples:
    """The samples without rows of a table that have an anchor at a frame without the feature.

    Raises `ClipError` for invalid columns. Columns that are computed, or that functions add, are
    checked in each batch.
    """
    samples, base = epochs.in_epoch(0).samples, epochs.base
    keys, columns = samples.keys, samples.columns.values()
    is_computed = any(isinstance(column, ComputedValues) for column in columns)
    windows.check_anchors(samples, keys.take(slice(1)) if is_computed else keys)
    # What functions choose and add depends on the rows: they are called again, without these. They
    # may replace a column of the table, whose values do not matter then.
    kept = [name for name, column in base.columns.items() if samples.columns.get(name) is column]
    is_lacking = windows.lack_anchors(base, base.clips, kept)
    if not is_lacking.any():
        return epochs
    number = base.clips.num_incomplete + int(is_lacking.sum())
    base = base.filter(~is_lacking)
    base = replace(base, clips=replace(base.clips, num_incomplete=number))
    return replace(epochs, base=base)


def _describe_left_out(episodes: ViewEpisodes, clips: ClipTable) -> str:
    """Numbers of the episodes and clips left out of a table, with reasons; empty without any."""
    reasons, windows, selected = [], episodes.windows, episodes.selected
    if clips.num_short_episodes:
        reasons.append(
            f"{clips.num_short_episodes:,} of {counted(len(selected), 'episode')}, "
            f"too short for a clip of {counted(windows.span, 'frame')}"
        )
    if clips.num_outside:
        reasons.append(
            f"{counted(clips.num_outside, 'clip')} with frames beyond the ends of their "
            'episodes, which pad="edge" gives, with masks of the repeated frames'
        )
    if clips.num_incomplete:
        lacking = [
            name
            for name in episodes.dataset.features
            if np.isin(windows.missing(episodes.dataset, [name]).episode, selected).any()
        ]
        every = clips.num_clips + clips.num_incomplete
        reasons.append(
            f"{clips.num_incomplete:,} of {counted(every, 'clip')}, for frames that lack "
            f"{', '.join(lacking)}"
        )
    return "; ".join(reasons)
