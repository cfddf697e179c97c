"""The clips of a dataset that a loader selects, and the clips of each epoch."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from seqrecord.clips.frame_lists import FrameLists
from seqrecord.clips.frames import ClipKeys
from seqrecord.clips.sample_tables import read_frame_lists, read_samples, table_columns
from seqrecord.clips.samples import SampleTable
from seqrecord.clips.tables import ClipSpec, ClipTable, IntArray
from seqrecord.errors import ClipError
from seqrecord.pipes.clip_windows import SelectedWindows
from seqrecord.pipes.options import ClipOptions, LoaderOptions
from seqrecord.processes.forks import cached_property
from seqrecord.reading.contents import update_digest
from seqrecord.reading.dataset import Dataset
from seqrecord.sampling import Phases
from seqrecord.sampling.random_order import clips_before, times_in_epoch, typical_table
from seqrecord.text import counted


@dataclass(frozen=True, eq=False)
class ClipSet:
    """The clips of a request. Picklable.

    Attributes:
        spec: length, stride and dilation.
        windows: the frames of each feature.
        selected: rows of the selected episodes, int64[n].
        clips: all clips: of every phase with `rotate_phase`, and as often as each sample can come.
        phases: the phases of `rotate_phase`.
        samples: the samples of the argument `samples` that lack no feature.
        excerpts: the used frames of each episode, if `samples` lists frames. Plans take excerpts
            for episodes, and places in them for frames and starts.
    """

    spec: ClipSpec
    windows: SelectedWindows
    selected: IntArray
    clips: ClipTable
    phases: Phases | None = None
    samples: SampleTable | None = None
    excerpts: FrameLists | None = None
    _last: dict[tuple[int, int], ClipTable] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, options: ClipOptions, dataset: Dataset, selected: IntArray) -> ClipSet:
        """The clips of selected episodes. Raises `ClipError` if there is none."""
        spec = options.spec
        if options.lists_frames:
            found = cls.of_lists(options, dataset, selected)
        elif options.samples is not None:
            found = cls._of_starts(options, dataset, selected)
        else:
            windows = SelectedWindows(options, dataset, selected)
            if isinstance(options, LoaderOptions) and options.rotate_phase:
                every = windows.enumerate(replace(spec, stride=1))
                found = cls(spec, windows, selected, every, Phases.of(every, spec.stride))
            else:
                found = cls(spec, windows, selected, windows.enumerate(spec))
        if not found.clips.num_clips:
            skipped = f"; skipped: {found.left_out}" if found.left_out else ""
            raise ClipError(
                f"no clip has all of its frames{skipped}",
                expected=f"{found.windows.span} frames with {', '.join(dataset.features)}",
            )
        return found

    @classmethod
    def of_lists(
        cls, options: ClipOptions, dataset: Dataset, selected: IntArray, most: int | None = None
    ) -> ClipSet:
        """The clips of a table of frame lists, in excerpts of at most `most` frames."""
        index, missing = dataset.contents.index, dataset.contents.missing_frames()
        columns, keys = table_columns(options.samples), index.keys
        selected, excerpts, samples, lacking = read_frame_lists(
            columns, keys, index.num_frames, missing, selected, most
        )
        windows = SelectedWindows(options, dataset, selected, excerpts)
        rows, spec = np.arange(len(excerpts)), options.spec
        table = samples.table(spec, rows, samples.most, num_incomplete=lacking)
        return cls(spec, windows, selected, table, None, samples, excerpts)

    @classmethod
    def _of_starts(cls, options: ClipOptions, dataset: Dataset, selected: IntArray) -> ClipSet:
        """The clips of a table of starts that lack no feature."""
        index, spec = dataset.contents.index, options.spec
        columns, dilations = table_columns(options.samples), None
        if "dilation" in columns:
            dilations = np.unique(columns["dilation"]).tolist()
        windows = SelectedWindows(options, dataset, selected, dilations=dilations)
        listed = read_samples(columns, index.keys, index.num_frames, windows.extents)
        every = SampleTable.of(*listed)
        every = every.take(np.flatnonzero(np.isin(every.episode, selected)))
        selected = np.unique(every.episode)
        whole = np.zeros(len(every), np.bool_)
        for some in [windows.dilations] if dilations is None else [(one,) for one in dilations]:
            mine = np.arange(len(every))
            if dilations is not None:
                mine = np.flatnonzero(every.columns["dilation"] == some)
            complete = windows.enumerate(spec, selected, some)
            whole[mine] = complete.has(every.episode[mine], every.start[mine])
        samples, lacking = every.take(np.flatnonzero(whole)), int((~whole).sum())
        table = samples.table(spec, selected, samples.most, num_incomplete=lacking)
        return cls(spec, windows, selected, table, samples=samples)

    @property
    def dataset(self) -> Dataset:
        """The dataset, with the requested features only."""
        return self.windows.dataset

    @property
    def differs_by_epoch(self) -> bool:
        """Whether epochs have different clips."""
        by_samples = self.samples is not None and self.samples.differs_by_epoch
        return by_samples or self.phases is not None

    @property
    def repeats(self) -> bool:
        """Whether an epoch may contain a clip twice."""
        return self.samples is not None and self.samples.repeats

    @cached_property
    def typical(self) -> ClipTable:
        """The clips from which the settings of all epochs are chosen."""
        return self.clips if self.phases is None else typical_table(self.clips, self.spec.stride)

    def in_epoch(self, epoch: int, *, seed: int, shuffle: bool) -> ClipTable:
        """The clips of an epoch."""
        if not self.differs_by_epoch:
            return self.clips
        if self.phases is not None:
            epoch = self.phases.of_epoch(epoch, seed=seed, shuffle=shuffle)
        if (found := self._last.get((epoch, seed))) is None:
            if self.samples is not None:
                times = times_in_epoch(self.samples, seed=seed, epoch=epoch)
                lacking, selected = self.clips.num_incomplete, self.clips.selected
                found = self.samples.table(self.spec, selected, times, num_incomplete=lacking)
            else:
                found = self.windows.enumerate(replace(self.spec, phase=epoch))
            self._last.clear()
            self._last[epoch, seed] = found
        return found

    def clips_before(self, epoch: int, num_shards: int, *, seed: int, shuffle: bool) -> int:
        """The number of clips in each of `num_shards` equal shards of all epochs before one."""
        if self.phases is not None:
            return self.phases.clips_before(epoch, num_shards, seed=seed, shuffle=shuffle)
        if self.samples is not None:
            return clips_before(self.samples, epoch, num_shards, seed=seed)
        return epoch * -(-self.clips.num_clips // num_shards)

    def locate(self, numbers: IntArray) -> ClipKeys:
        """Clips by their numbers, int64[n], in canonical order, or in the order of `samples`."""
        if self.samples is not None:
            numbers = self.samples.as_listed[numbers]
        return self.clips.locate(numbers)

    def of_dilations(self) -> list[ClipTable]:
        """For each dilation, if some are drawn, the clips of stride 1 that lack no feature."""
        listed = () if self.samples is None else self.samples.columns
        is_drawn = len(self.windows.dilations) > 1 and "dilation" not in listed
        some = self.windows.dilations if is_drawn else ()
        return [self.windows.enumerate(ClipSpec(1), dilations=[one]) for one in some]

    @cached_property
    def left_out(self) -> str:
        """Numbers of the episodes and clips left out, with reasons; empty if there are none."""
        found, clips, windows = [], self.clips, self.windows
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

    @cached_property
    def samples_digest(self) -> str | None:
        """A hash of the table of samples."""
        if self.samples is None:
            return None
        samples, digest = self.samples, hashlib.sha256()
        frames, episode = samples.start, samples.episode
        if self.excerpts is not None:  # the same wherever episodes are divided
            frames = self.excerpts.frames_of(np.arange(len(samples)))
            episode = self.excerpts.episode[episode]
        place = np.searchsorted(self.selected, episode)
        update_digest(digest, "<i8", samples.row, place, frames)
        update_digest(digest, "<f8", samples.repeat)
        for name, column in sorted(samples.columns.items()):
            if isinstance(column, np.ndarray):
                digest.update(f"{name} {column.dtype} {column.shape}".encode())
                update_digest(digest, column.dtype.newbyteorder("<").str, column)
            else:
                digest.update(json.dumps([name, column.to_pylist()]).encode())
        return digest.hexdigest()
