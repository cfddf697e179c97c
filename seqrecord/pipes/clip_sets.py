"""The samples that a loader selects from a dataset."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seqrecord.clips.samples import Samples
from seqrecord.clips.tables import IntArray
from seqrecord.errors import ClipError
from seqrecord.pipes.clip_episodes import DatasetEpisodes
from seqrecord.pipes.clip_windows import SelectedWindows
from seqrecord.pipes.options import ClipOptions
from seqrecord.pipes.sample_epochs import SampleEpochs
from seqrecord.processes.forks import cached_property
from seqrecord.reading.contents import update_digest
from seqrecord.reading.dataset import Dataset
from seqrecord.sampling.sample_functions import BuiltIn
from seqrecord.text import counted

if TYPE_CHECKING:
    from seqrecord.clips.frame_lists import FrameLists


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
        if not len(found.epochs.base) or not found.epochs.clips.num_clips:
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
        keys, is_computed = samples.keys, any(map(callable, samples.columns.values()))
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
