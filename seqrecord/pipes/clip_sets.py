"""The clips of a dataset that a loader selects, and the clips of each epoch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from seqrecord.clips.chosen import ChosenClips
from seqrecord.clips.clip_lists import read_clip_list, read_frame_lists
from seqrecord.clips.frame_lists import FrameLists
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
        clips: all clips: of every phase with `rotate_phase`, and as often as each can come with
            weights.
        phases: the phases of `rotate_phase`.
        chosen: the clips of the argument `clips` that lack no feature.
        excerpts: the used frames of each episode, if `clips` lists frames. Plans take excerpts for
            episodes, and places in them for frames and starts.
    """

    spec: ClipSpec
    windows: SelectedWindows
    selected: IntArray
    clips: ClipTable
    phases: Phases | None = None
    chosen: ChosenClips | None = None
    excerpts: FrameLists | None = None
    _last: dict[tuple[int, int], ClipTable] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, options: ClipOptions, dataset: Dataset, selected: IntArray) -> ClipSet:
        """The clips of selected episodes. Raises `ClipError` if there is none."""
        spec = options.spec
        if options.lists_frames:
            found = cls.of_lists(options, dataset, selected)
        else:
            windows = SelectedWindows(options, dataset, selected)
            if options.clips is not None:
                found = cls._of_starts(options, windows, selected)
            elif isinstance(options, LoaderOptions) and options.rotate_phase:
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
        selected, excerpts, chosen, lacking = read_frame_lists(
            options.clips, index.keys, index.num_frames, missing, selected, most
        )
        windows = SelectedWindows(options, dataset, selected, excerpts)
        rows, spec = np.arange(len(excerpts)), options.spec
        table = chosen.table(spec, rows, chosen.most, num_incomplete=lacking)
        return cls(spec, windows, selected, table, None, chosen, excerpts)

    @classmethod
    def _of_starts(
        cls, options: ClipOptions, windows: SelectedWindows, selected: IntArray
    ) -> ClipSet:
        """The clips of a table of starts that lack no feature."""
        index, spec = windows.dataset.contents.index, options.spec
        listed = read_clip_list(options.clips, index.keys, index.num_frames, windows.extents)
        found = ChosenClips.of(*listed)
        found = found.subset(np.isin(found.episode, selected))
        selected = np.unique(found.episode)
        whole = windows.enumerate(spec, selected).has(found.episode, found.start)
        chosen, lacking = found.subset(whole), int((~whole).sum())
        table = chosen.table(spec, selected, chosen.most, num_incomplete=lacking)
        return cls(spec, windows, selected, table, chosen=chosen)

    @property
    def dataset(self) -> Dataset:
        """The dataset, with the requested features only."""
        return self.windows.dataset

    @property
    def differs_by_epoch(self) -> bool:
        """Whether epochs have different clips."""
        by_weight = self.chosen is not None and self.chosen.differs_by_epoch
        return by_weight or self.phases is not None

    @property
    def repeats(self) -> bool:
        """Whether an epoch may contain a clip twice."""
        return self.chosen is not None and self.chosen.repeats

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
            if self.chosen is not None:
                times = times_in_epoch(self.chosen, seed=seed, epoch=epoch)
                lacking, selected = self.clips.num_incomplete, self.clips.selected
                found = self.chosen.table(self.spec, selected, times, num_incomplete=lacking)
            else:
                found = self.windows.enumerate(replace(self.spec, phase=epoch))
            self._last.clear()
            self._last[epoch, seed] = found
        return found

    def clips_before(self, epoch: int, num_shards: int, *, seed: int, shuffle: bool) -> int:
        """The number of clips in each of `num_shards` equal shards of all epochs before one."""
        if self.phases is not None:
            return self.phases.clips_before(epoch, num_shards, seed=seed, shuffle=shuffle)
        if self.chosen is not None:
            return clips_before(self.chosen, epoch, num_shards, seed=seed)
        return epoch * -(-self.clips.num_clips // num_shards)

    def locate(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        """Episode rows and starts, int64[n] each, of clips by their numbers.

        Numbers follow the canonical order, or the table `clips`.
        """
        if self.chosen is not None:
            numbers = self.chosen.as_listed[numbers]
        return self.clips.locate(numbers)

    def of_dilations(self) -> list[ClipTable]:
        """For each dilation, if there are several, the clips of stride 1 that lack no feature."""
        some = self.windows.dilations if len(self.windows.dilations) > 1 else ()
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
    def chosen_digest(self) -> str | None:
        """A hash of the chosen clips and their weights."""
        if self.chosen is None:
            return None
        chosen, digest, episode = self.chosen, hashlib.sha256(), self.chosen.episode
        if self.excerpts is not None:  # the same wherever episodes are divided
            update_digest(digest, "<i8", self.excerpts.frames_of(episode, chosen.start), episode)
            episode = self.excerpts.episode[episode]
        place = np.searchsorted(self.selected, episode)
        update_digest(digest, "<i8", chosen.row, place, chosen.start)
        update_digest(digest, "<f8", chosen.weight)
        return digest.hexdigest()
