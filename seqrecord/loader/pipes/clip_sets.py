"""The samples that a loader selects from a dataset."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError
from seqrecord.loader.clips.samples import ComputedValues, Samples
from seqrecord.loader.pipes.clip_windows import SelectedWindows
from seqrecord.loader.pipes.options import ClipOptions
from seqrecord.loader.pipes.sample_epochs import SampleEpochs
from seqrecord.loader.sampling.sample_functions import BuiltIn
from seqrecord.store.clips.frames import ClipKeys
from seqrecord.store.clips.tables import ClipSpec, ClipTable, IntArray
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.reading.contents import update_digest
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.text import counted, repr_of
from seqrecord.store.units import raise_if

if TYPE_CHECKING:
    import pyarrow as pa

    from seqrecord.loader.clips.frame_lists import FrameLists


@dataclass(frozen=True, eq=False)
class DatasetEpisodes:
    """The episodes of a dataset. Implements `SampleEpisodes`. Picklable.

    Values of features are read once for the `selected` episodes.
    """

    windows: SelectedWindows
    selected: IntArray
    excerpts: FrameLists | None = None
    _values: dict[str, npt.NDArray[Any]] = field(default_factory=dict, repr=False)

    @property
    def keys(self) -> pa.StringArray:
        """See `SampleEpisodes`."""
        return self.windows.dataset.contents.index.keys

    @property
    def num_frames(self) -> IntArray:
        """See `SampleEpisodes`."""
        return self.windows.dataset.contents.index.num_frames

    def stored_frames(self, clips: ClipKeys) -> tuple[IntArray, IntArray]:
        """See `SampleEpisodes`."""
        if self.excerpts is None:
            return clips.episode, clips.start
        return self.excerpts.episode[clips.episode], self.excerpts.starts_of(clips.row)

    def from_row(self, row: int) -> DatasetEpisodes:
        """See `SampleEpisodes`."""
        if self.excerpts is None:
            return self
        return replace(self, excerpts=self.excerpts.from_row(row))

    def extent(self, clips: ClipKeys, samples: Samples) -> tuple[IntArray, IntArray]:
        """See `SampleEpisodes`."""
        if self.excerpts is not None:
            frames = self.excerpts.filled_of(clips.row)
            return frames.min(axis=1), frames.max(axis=1)
        dilation = np.ones_like(clips.start)
        if "dilation" in samples.columns:
            dilation = np.asarray(samples.values("dilation", clips))
        found = replace(self.windows.stored, samples=samples)
        windows = [found.windows[names[0]] for names in found.by_window(found.windows)]
        first, last = zip(*(one.ends(clips, found, dilation) for one in windows), strict=True)
        return np.minimum.reduce(first), np.maximum.reduce(last)

    def complete(self, dilation: int) -> ClipTable:
        """See `SampleEpisodes`."""
        return self.windows.enumerate(ClipSpec(1), self.selected, [dilation])

    def metadata(self, name: str, episodes: IntArray) -> list[Any]:
        """See `SampleEpisodes`."""
        index = self.windows.dataset.contents.index
        return [index.episode_metadata(row).get(name) for row in episodes.tolist()]

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
        """The values of all frames of the selected episodes."""
        dataset, problem = self.windows.dataset, "samples have no such value of each frame"
        scalars = [n for n, one in dataset.features.items() if one.value_kind.is_scalar(one)]
        features = ", ".join(scalars)
        if feature not in scalars or len(dataset.contents.missing_frames([feature])):
            expected = f"text or number, in all frames and in features=; such: {features or 'none'}"
            raise ClipError(problem, expected=expected, got=repr_of(feature, 100))
        dataset = dataset.select([feature])
        keys = dataset.contents.index.keys_of(self.selected)
        found = [np.asarray(dataset.episodes[key][:][feature]).reshape(-1) for key in keys]
        return np.concatenate(found)


@dataclass(frozen=True, eq=False)
class ClipSet:
    """The samples of a request. Picklable.

    Attributes:
        windows: the frames of each feature.
        selected: rows of the selected episodes, int64[n].
        epochs: the samples of each epoch.
        excerpts: the used frames of each episode, if `samples` lists frames. Plans take excerpts
            for episodes, and places in them for frames and starts.
    """

    windows: SelectedWindows
    selected: IntArray
    epochs: SampleEpochs
    excerpts: FrameLists | None = None
    _digests: dict[int, str] = field(default_factory=dict, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_digests": {}}

    @classmethod
    def of(
        cls,
        options: ClipOptions,
        windows: SelectedWindows,
        selected: IntArray,
        base: Samples,
        excerpts: FrameLists | None = None,
    ) -> ClipSet:
        """The samples of a table, with the functions of a request."""
        return cls(windows, selected, SampleEpochs(base, options.functions, options.seed), excerpts)

    @classmethod
    def of_dataset(cls, options: ClipOptions, dataset: Dataset, selected: IntArray) -> ClipSet:
        """All complete clips of selected episodes."""
        windows = SelectedWindows(options, dataset, selected)
        base = Samples(windows.enumerate(options.spec), DatasetEpisodes(windows, selected))
        return cls.of(options, windows, selected, base)

    def checked(self) -> ClipSet:
        """Without samples that lack an anchored frame. Raises `ClipError` if none is left."""
        found = self
        if found.windows.anchored and len(found.epochs.base):
            found = found._with_anchors()
        base = found.epochs.base
        repeat = found.epochs.samples_in(0).repeat if len(base) else None
        if repeat is not None and len(repeat):
            total = round(float(repeat.sum()), 9)  # 1 of six times 1/6
            expected = "a sum of at least 1, the mean number of samples in an epoch"
            raise_if(total < 1, "repeat is too small: some epochs have no sample", expected, total)
        if not len(base) or not found.epochs.clips.num_clips:
            skipped = f"; skipped: {found.left_out}" if found.left_out else ""
            raise ClipError(
                f"no clip has all of its frames{skipped}",
                expected=f"{found.windows.span} frames with {', '.join(found.dataset.features)}",
            )
        return found

    def _with_anchors(self) -> ClipSet:
        """Without samples of a table that have an anchor at a frame without the feature.

        Raises `ClipError` for invalid columns. Computed ones are checked in each batch.
        """
        samples = self.epochs.samples_in(0)
        keys, columns = samples.keys, samples.columns.values()
        is_computed = any(isinstance(column, ComputedValues) for column in columns)
        lacks = self.windows.lacks_anchors(samples, keys.take(slice(1)) if is_computed else keys)
        if is_computed or self.epochs.functions or not lacks.any():  # in a batch, they are errors
            return self
        base = self.epochs.base.filter(~lacks)
        number = base.clips.num_incomplete + int(lacks.sum())
        base = replace(base, clips=replace(base.clips, num_incomplete=number))
        return replace(self, epochs=replace(self.epochs, base=base))

    def with_seed(self, seed: int) -> ClipSet:
        """The same samples with another seed of their functions."""
        if seed == self.epochs.seed:
            return self
        return replace(self, epochs=replace(self.epochs, seed=seed))

    @property
    def dataset(self) -> Dataset:
        """The dataset, with the requested features only."""
        return self.windows.dataset

    @cached_property
    def left_out(self) -> str:
        """Numbers of the episodes and clips left out, with reasons; empty if there are none."""
        found, clips, windows = [], self.epochs.base.clips, self.windows
        if clips.num_short_episodes:
            found.append(
                f"{clips.num_short_episodes:,} of {counted(len(self.selected), 'episode')}, "
                f"too short for a clip of {counted(windows.span, 'frame')}"
            )
        if clips.num_outside:
            found.append(
                f"{counted(clips.num_outside, 'clip')} with frames beyond the ends of their "
                'episodes, which pad="edge" gives'
            )
        if clips.num_incomplete:
            lacking = [
                name
                for name in self.dataset.features
                if np.isin(windows.missing([name]).episode, self.selected).any()
            ]
            every = clips.num_clips + clips.num_incomplete
            found.append(
                f"{clips.num_incomplete:,} of {counted(every, 'clip')}, for frames that lack "
                f"{', '.join(lacking)}"
            )
        return "; ".join(found)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """See `Contents.identity`."""
        return self.dataset.contents.identity(self.selected)

    def samples_digest(self, epoch: int) -> Any:
        """The samples of an epoch as JSON: names and arguments of built-in functions; for a table,
        or with users' functions, a hash of all rows and columns.
        """
        names = [
            repr(one) if isinstance(one, BuiltIn) and one.is_implicit else "function"
            for one in self.epochs.functions
        ]
        is_listed = self.epochs.base.listed is not None or bool(self.epochs.base.columns)
        epoch = epoch if "function" in names else -1
        if epoch not in self._digests and (epoch >= 0 or is_listed):
            self._digests[epoch] = self._digest(
                self.epochs.base if epoch < 0 else self.epochs.samples_in(epoch)
            )
        found = [self._digests[epoch], *names] if epoch in self._digests else names
        return found if names else next(iter(found), None)

    def _digest(self, samples: Samples) -> str:
        digest, keys, columns = hashlib.sha256(), samples.keys, samples.columns
        frames, episode = keys.start, keys.episode
        if self.excerpts is not None:  # the same wherever episodes are divided
            frames = self.excerpts.frames_of(keys.row)
            episode = self.excerpts.episode[episode]
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
