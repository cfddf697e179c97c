"""Clip sets: the clips of a dataset that a loader was asked for, and those of each epoch."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from seqrecord.clips.chosen import ChosenClips
from seqrecord.clips.excerpts import Excerpts
from seqrecord.clips.frames import ClipUse
from seqrecord.clips.grids import numbered
from seqrecord.clips.tables import ClipSpec, ClipTable, IntArray, enumerate_clips
from seqrecord.errors import ClipError
from seqrecord.pipes.arrays import groups_of
from seqrecord.pipes.chosen_clips import ClipList, ListedClips, read_clip_list
from seqrecord.pipes.clip_windows import SelectedWindows
from seqrecord.pipes.options import ClipOptions, LoaderOptions
from seqrecord.processes.forks import cached_property
from seqrecord.reading.dataset import Dataset
from seqrecord.sampling import Phases
from seqrecord.sampling.random_order import clips_before, times_in_epoch, typical_table
from seqrecord.text import counted

_EPISODES_AT_ONCE = 1 << 12  # of which chunks are hashed together

_Uses: TypeAlias = list[list[tuple[IntArray, list[ClipUse]]]]
"""For each dilation, pairs of episode rows and the frames that their clips use."""


@dataclass(frozen=True, eq=False)
class ClipSet:
    """The clips of a request. Picklable.

    Attributes:
        dataset: with the requested features only.
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

    dataset: Dataset
    spec: ClipSpec
    windows: SelectedWindows
    selected: IntArray
    clips: ClipTable
    phases: Phases | None = None
    chosen: ChosenClips | None = None
    excerpts: Excerpts | None = None
    _last: dict[tuple[int, int], ClipTable] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, options: ClipOptions, dataset: Dataset, selected: IntArray) -> ClipSet:
        """The clips of selected episodes. Raises `ClipError` where there is none."""
        if options.lists_frames:
            found = cls.of_lists(options, dataset, selected)
        else:
            windows, spec = SelectedWindows(options, dataset, selected), options.spec
            if options.clips is not None:
                found = _of_table(options.clips, dataset, spec, windows, selected)
            elif isinstance(options, LoaderOptions) and options.rotate_phase:
                every = _enumerate(replace(spec, stride=1), dataset, windows, windows.uses())
                phases = Phases.of(every, spec.stride)
                found = cls(dataset, spec, windows, selected, every, phases)
            else:
                clips = _enumerate(spec, dataset, windows, windows.uses())
                found = cls(dataset, spec, windows, selected, clips)
        if not found.clips.num_clips:
            raise ClipError(
                f"no clip has all of its frames and features; left out: {found.left_out}",
                expected=f"{found.windows.span} frames with {', '.join(dataset.features)}",
            )
        return found

    @classmethod
    def of_lists(
        cls, options: ClipOptions, dataset: Dataset, selected: IntArray, most: int | None = None
    ) -> ClipSet:
        """The clips of a table of frame lists. Excerpts have at most `most` frames."""
        found = ListedClips.of(options.clips, dataset.contents, selected, most)
        windows = SelectedWindows(options, dataset, found.selected, found.excerpts)
        excerpts, chosen = np.arange(len(found.excerpts)), found.chosen
        lacking = found.num_incomplete
        clips = chosen.table(options.spec, excerpts, chosen.most, num_incomplete=lacking)
        return cls(
            dataset,
            options.spec,
            windows,
            found.selected,
            clips,
            chosen=chosen,
            excerpts=found.excerpts,
        )

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
                spec, windows = replace(self.spec, phase=epoch), self.windows
                found = _enumerate(spec, self.dataset, windows, windows.uses())
            self._last.clear()
            self._last[epoch, seed] = found
        return found

    def clips_before(self, epoch: int, num_parts: int, *, seed: int, shuffle: bool) -> int:
        """The number of clips in each of `num_parts` equal parts of all epochs before one."""
        if self.phases is not None:
            return self.phases.clips_before(epoch, num_parts, seed=seed, shuffle=shuffle)
        if self.chosen is not None:
            return clips_before(self.chosen, epoch, num_parts, seed=seed)
        return epoch * -(-self.clips.num_clips // num_parts)

    def locate(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        """Episode rows and starts, int64[n] each, of clips by their numbers.

        Numbers follow the canonical order, or the table `clips`.
        """
        if self.chosen is not None:
            numbers = self.chosen.as_listed[numbers]
        return self.clips.locate(numbers)

    def of_dilations(self) -> list[ClipTable]:
        """For each dilation, if there are several, the clips of stride 1 that lack no feature."""
        uses, dataset, windows = self.windows.uses(), self.dataset, self.windows
        if len(uses) == 1:
            return []
        return [_enumerate(ClipSpec(1), dataset, windows, [use]) for use in uses]

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
        """Identity of the selected episodes, as JSON, whatever else the dataset contains.

        The digest covers keys, lengths, and pages of the requested features. It does not depend on
        the episodes' places in the dataset, since the order is that of the selection, nor on the
        paths of referenced files.
        """
        dataset, rows, index = self.dataset, self.selected, self.dataset.contents.index
        keys = index.keys.take(rows).to_pylist()
        digest = hashlib.sha256(json.dumps(keys, separators=(",", ":")).encode())
        digest.update(np.ascontiguousarray(index.num_frames[rows], "<i8").data)
        for group in groups_of(dataset):
            columns = [group.schema.position(n) for n in group.schema if n in dataset.features]
            for some in np.array_split(rows, 1 + len(rows) // _EPISODES_AT_ONCE):
                owner, place = numbered(group.num_chunks[some])
                chunks = group.first_chunk[some][owner] + place
                digest.update(np.ascontiguousarray(group.num_frames[chunks], "<u4").data)
                sums = dataset.contents.chunks.lasting_sums(group, chunks)
                for table in (group.page_length[chunks], sums):
                    digest.update(np.ascontiguousarray(table[:, columns], "<u4").data)
        for number, name in enumerate(sorted(dataset.features, key=dataset.contents.stored_name)):
            gaps = dataset.select([name]).contents.missing_frames()
            gaps = gaps.taken(np.isin(gaps.episode, rows))
            place = np.searchsorted(rows, gaps.episode)
            for numbers in (np.full(len(gaps), number), place, gaps.start, gaps.stop):
                digest.update(np.ascontiguousarray(numbers, "<i8").data)
        return {
            "count": len(rows),
            "frames": int(index.num_frames[rows].sum()),
            "digest": digest.hexdigest(),
            "dataset": dataset.fingerprint,
        }

    @cached_property
    def chosen_digest(self) -> str | None:
        """A hash of the chosen clips and their weights."""
        if self.chosen is None:
            return None
        chosen, digest, episode = self.chosen, hashlib.sha256(), self.chosen.episode
        if self.excerpts is not None:  # the same wherever episodes are divided
            for numbers in (self.excerpts.frames_of(episode, chosen.start), episode):
                digest.update(np.ascontiguousarray(numbers, "<i8").data)
            episode = self.excerpts.episode[episode]
        for numbers in (chosen.row, np.searchsorted(self.selected, episode), chosen.start):
            digest.update(np.ascontiguousarray(numbers, "<i8").data)
        digest.update(np.ascontiguousarray(chosen.weight, "<f8").data)
        return digest.hexdigest()


def _of_table(
    clips: ClipList, dataset: Dataset, spec: ClipSpec, windows: SelectedWindows, selected: IntArray
) -> ClipSet:
    """The listed clips of selected episodes that lack no feature."""
    index, uses = dataset.contents.index, windows.uses()
    listed = ChosenClips.of(*read_clip_list(clips, index.keys, index.num_frames, windows.reaches))
    listed = listed.taken(np.isin(listed.episode, selected))
    selected = np.unique(listed.episode)
    some = [[(rows[np.isin(rows, selected)], of) for rows, of in use] for use in uses]
    whole = _enumerate(spec, dataset, windows, some).has(listed.episode, listed.start)
    chosen, lacking = listed.taken(whole), int((~whole).sum())
    table = chosen.table(spec, selected, chosen.most, num_incomplete=lacking)
    return ClipSet(dataset, spec, windows, selected, table, chosen=chosen)


def _enumerate(
    spec: ClipSpec, dataset: Dataset, windows: SelectedWindows, uses: _Uses
) -> ClipTable:
    """The clips that lack no feature with one of the dilations."""
    pads, drop_last = windows.pads, windows.drop_last
    make = partial(enumerate_clips, spec, dataset.contents.episode_table)
    tables = [
        [make(rows, uses=some, pads=pads, drop_last=drop_last) for rows, some in use]
        for use in uses
    ]
    found = ClipTable.united([ClipTable.concatenated(some) for some in tables])
    return found if windows.asked else replace(found, num_outside=0)
