"""Which clips, of which features, a loader gives, and what their arrays look like."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch

from seqrecord.chosen import ChosenClips
from seqrecord.clip_frames import ClipFrames
from seqrecord.clip_uses import ClipUse
from seqrecord.clips import (
    ClipSpec,
    ClipTable,
    EpisodeTable,
    IntArray,
    enumerate_clips,
)
from seqrecord.errors import ClipError
from seqrecord.forks import cached_property
from seqrecord.format.index import GroupIndex
from seqrecord.grids import numbered
from seqrecord.pipes.arrays import (
    Ragged,
    bytes_by_group,
    check_tensors,
    in_pieces,
    ragged_arrays,
    stored_arrays,
    transformed_arrays,
)
from seqrecord.pipes.checks import ClipList, read_clip_list
from seqrecord.pipes.collating import keep_memory_for
from seqrecord.pipes.columns import RESERVED, Columns
from seqrecord.pipes.distributed import say_once
from seqrecord.pipes.draws import SAID, ClipDraws, ClipNumbers, SelectedSteps
from seqrecord.pipes.options import ClipOptions, LoaderOptions
from seqrecord.pipes.selected_windows import SelectedWindows
from seqrecord.reading.frames import ArraySpec
from seqrecord.reading.reader import DatasetLike, SeqRecordReader, reader_of
from seqrecord.sampling import Phases
from seqrecord.sampling.random_order import clips_before, times_in_epoch, typical_table
from seqrecord.text import counted, repr_of

__all__ = ["ClipSelection", "digest_of", "groups_of", "identity_of"]

_Uses: TypeAlias = list[list[tuple[IntArray, list[ClipUse]]]]
"""With each of the dilations that may be drawn, those of some episodes by their rows, of others…"""

_Options = TypeVar("_Options", bound=ClipOptions)


class ClipSelection:
    """The clips of a dataset that a request is for. Picklable.

    With `rotate_phase`, `clips` are those of all phases, and with weights each as often as it can
    come; `clips_in` gives those of one epoch.

    What is left out is said in a warning, logged to `seqrecord` once, and counted in `clips`.

    Raises `ClipError` where there is no clip at all, and for a feature that no tensor can hold.
    """

    dataset: SeqRecordReader  # with the requested features only
    spec: ClipSpec
    selected: IntArray  # rows of the selected episodes
    clips: ClipTable
    episodes: EpisodeTable  # of the requested groups, led by the one with most bytes a frame
    phases: Phases | None = None  # the phases of one epoch after the other
    chosen: ChosenClips | None = None  # those of the argument `clips` that lack nothing
    left_out: str  # what would be clips, or has none, in words; empty if nothing is
    arrays: dict[str, ArraySpec]  # of each feature of a frame, after `frame_transform` or padding
    nested: frozenset[str]  # those of them that come as nested tensors
    columns: Columns  # what clips have beside features
    draws: ClipDraws | None = None  # what `clip_transform` makes of clips
    times_without_frame: int = 0  # of windows in time, that `masks` has said
    windows: SelectedWindows  # which frames clips have of `arrays`
    steps: SelectedSteps | None = None  # how far apart these are, where that is drawn

    def __init__(self, location: DatasetLike, options: ClipOptions) -> None:
        self.spec = options.spec
        self.dataset = reader_of(
            location,
            features=options.features,
            verify=options.verify,
            storage_options=options.storage_options,
            cache_dir=options.cache_dir,
            cache_limit=options.cache_limit,
        )
        self.frame_transform = options.frame_transform
        table = self.dataset.episode_table
        self.selected = self.dataset.find_episodes(options.episodes, options.split)
        self._last: tuple[int, ClipTable] | None = None  # phase or epoch, and its clips
        rotates = isinstance(options, LoaderOptions) and options.rotate_phase
        every = replace(self.spec, stride=1) if rotates else self.spec
        self.windows = SelectedWindows(options, self.dataset, self.selected)
        uses = self.windows.uses()
        if options.clips is not None:
            self.clips = self._choose(options.clips, table, uses)
        else:
            self.clips = self._enumerate(every, table, uses)
        if options.windows is None:
            self.clips = replace(self.clips, num_outside=0)
        self.left_out = self._left_out()
        if every != self.spec:
            self.phases = Phases.of(self.clips, self.spec.stride)
            self._phase_uses = uses
        if not self.clips.num_clips:
            raise ClipError(
                f"no clip has all of its frames and features; left out: {self.left_out}",
                file=self.dataset.url,
                expected=f"{self.windows.span} frames with {', '.join(self.dataset.features)}",
            )
        if options.has_drawn_steps:
            self.steps = self._steps(options, table, uses)
        self.arrays, self.nested = self._look(options.ragged)
        self.windows.give({name: spec.mask_of for name, spec in self.arrays.items()})
        self._check_names(self.arrays)
        check_tensors(self.arrays, url=self.dataset.url)
        self.episodes = self._episodes(table)
        if options.clip_transform is not None:
            self.draws = self._draws(options.clip_transform)
        self.nested &= {name for name, spec in self.made.items() if not spec.is_fixed}
        said = (() if self.draws is None else SAID) + self._step_names
        self.columns = Columns(
            self.dataset,
            options.metadata or (),
            self.selected,
            (*self.made, *said, *self.windows.said_names),
        )
        keep_memory_for(self)
        if self.left_out:
            say_once(
                f"{self.dataset.url}: {self.clips.num_clips:,} clips; left out: {self.left_out}"
            )

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        keep_memory_for(self)

    @property
    def typical_clips(self) -> ClipTable:
        """Clips from which settings are chosen that hold for every epoch."""
        if self.phases is None:
            return self.clips
        return typical_table(self.clips, self.spec.stride)

    @property
    def made(self) -> Mapping[str, ArraySpec]:
        """The features of a frame of batches."""
        return self.arrays if self.draws is None else self.draws.made

    @property
    def lengths(self) -> Mapping[str, int]:
        """How many frames of each feature a clip of a batch has."""
        if self.draws is None:
            return self.clip_frames.lengths
        return self.draws.lengths

    def said_of_frames(
        self, frames: ClipFrames, episode: IntArray, start: IntArray
    ) -> dict[str, torch.Tensor]:
        """What batches tell of the frames of clips, which are given by the rows of their episodes
        and their starts, int64[n] each: `<feature>_is_pad`, bool[n, T], `<feature>_age`,
        int64[n, T], and what was drawn."""
        windows, masks, ages = self.windows, {}, {}
        for name in dict.fromkeys((*windows.padded, *windows.aged)):
            found = frames.find(name, episode, start)
            if name in windows.padded:
                masks[f"{name}_is_pad"] = torch.from_numpy(found.is_pad)
                self.times_without_frame += found.num_far
            if found.age is not None:
                ages[f"{name}_age"] = torch.from_numpy(found.age)
        said = {**masks, **ages}
        if self.steps is not None and frames.draw is not None:
            said |= self.steps.said(frames.draw(episode, start))
        return said

    def portable(self, options: _Options) -> _Options:
        """The options for another process: a function that chose episodes need not be picklable."""
        if not callable(options.episodes):
            return options
        keys = self.dataset.index.keys.take(self.selected).to_pylist()
        return replace(options, episodes=keys)

    @property
    def clip_frames(self) -> ClipFrames:
        """Which frames clips have of each feature, before anything is drawn."""
        return ClipFrames(self.windows.of, self.episodes.num_frames)

    def drawn_frames(self, seed: int, epoch: int) -> ClipFrames:
        """Which frames clips have of each feature in an epoch."""
        if self.steps is None:
            return self.clip_frames
        return replace(self.clip_frames, draw=partial(self.steps.draw, seed, epoch))

    @property
    def differs_by_epoch(self) -> bool:
        """Whether an epoch has other clips than the next."""
        by_weight = self.chosen is not None and self.chosen.differs_by_epoch
        return by_weight or self.phases is not None

    def clips_in(self, epoch: int, *, seed: int, shuffle: bool) -> ClipTable:
        """The clips of an epoch."""
        if not self.differs_by_epoch:
            return self.clips
        key = epoch
        if self.phases is not None:
            key = self.phases.of_epoch(epoch, seed=seed, shuffle=shuffle)
        if self._last is None or self._last[0] != key:
            self._last = key, self._made(key, seed)
        return self._last[1]

    def clips_before(self, epoch: int, num_parts: int, *, seed: int, shuffle: bool) -> int:
        """How many clips each of so many equal parts has of all epochs before one."""
        if self.phases is not None:
            return self.phases.clips_before(epoch, num_parts, seed=seed, shuffle=shuffle)
        if self.chosen is not None:
            return clips_before(self.chosen, epoch, num_parts, seed=seed)
        return epoch * -(-self.clips.num_clips // num_parts)

    def locate(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        """Rows of the episodes, and first frames, int64[n] each, of clips by their numbers.

        They are numbered in canonical order, or as they were chosen.
        """
        if self.chosen is not None:
            numbers = np.argsort(self.chosen.row, kind="stable")[numbers]
        return self.clips.locate(numbers)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What tells the selected episodes from others, as JSON, whatever else the dataset holds.

        The digest is of their keys, lengths, and pages of the requested features. Where they are in
        the dataset does not matter: the order is that of the selection.
        """
        return identity_of(self.dataset, self.selected)

    @cached_property
    def chosen_digest(self) -> str | None:
        """What tells the chosen clips, and how often they come, from others."""
        if self.chosen is None:
            return None
        return digest_of(self.chosen, self.selected)

    def describe(self) -> str:
        """A line for people, and one for each feature with its dtype and shape in a clip."""
        over = f" in every {len(self.phases)} epochs" if self.phases is not None else ""
        lines = [f"{self.dataset.url!r}, {self.clips.num_clips} clips{over}"]
        if self.left_out:
            lines[0] += f"; left out: {self.left_out}"
        for name, spec in self.made.items():
            whole = ArraySpec(spec.dtype, (self.lengths[name], *spec.shape))
            lines.append(f"{name}: {whole if spec.value == 'array' else spec}")
        return "\n  ".join(lines)

    def _enumerate(self, spec: ClipSpec, table: EpisodeTable, uses: _Uses) -> ClipTable:
        """The clips that lack nothing with one of the dilations."""
        pad = self.windows.is_padded
        return ClipTable.united(
            [
                ClipTable.joined(
                    [enumerate_clips(spec, table, rows, uses=some, pad=pad) for rows, some in use]
                )
                for use in uses
            ]
        )

    def _left_out(self) -> str:
        """How many episodes and clips are left out, and why; empty if none is."""
        said = []
        if self.clips.num_short_episodes:
            said.append(
                f"{self.clips.num_short_episodes:,} of {counted(len(self.selected), 'episode')}, "
                f"too short for a clip of {counted(self.windows.span, 'frame')}"
            )
        if self.clips.num_outside:
            said.append(
                f"{counted(self.clips.num_outside, 'clip')} with frames beyond the ends of their "
                'episodes, which pad="edge" gives'
            )
        if self.clips.num_incomplete:
            lacking = [
                name
                for name in self.dataset.features
                if np.isin(self.windows.missing([name]).episode, self.selected).any()
            ]
            every = self.clips.num_clips + self.clips.num_incomplete
            said.append(
                f"{self.clips.num_incomplete:,} of {counted(every, 'clip')}, for frames that lack "
                f"{', '.join(lacking)}"
            )
        return "; ".join(said)

    def _steps(self, options: ClipOptions, table: EpisodeTable, uses: _Uses) -> SelectedSteps:
        whole: list[ClipTable] = []
        if len(uses) > 1:
            whole = [self._enumerate(ClipSpec(1), table, [use]) for use in uses]
        numbers = ClipNumbers(self.dataset)
        return SelectedSteps(options.dilations, options.reverse, whole, numbers)

    @property
    def _step_names(self) -> tuple[str, ...]:
        return () if self.steps is None else self.steps.names

    def _choose(self, clips: ClipList, table: EpisodeTable, uses: _Uses) -> ClipTable:
        """Those of the list that are of the selected episodes and lack nothing."""
        index, spec = self.dataset.index, self.spec
        listed = read_clip_list(
            clips, index.keys, index.num_frames, reach=self.windows.reaches, url=self.dataset.url
        )
        listed = listed.taken(np.isin(listed.episode, self.selected))
        self.selected = np.unique(listed.episode)
        pad = self.windows.is_padded
        found = [listed.complete(spec, table, use, pad=pad) for use in uses]
        whole = np.logical_or.reduce(found)
        self.chosen = listed.taken(whole)
        return self.chosen.table(
            spec, self.selected, self.chosen.most, num_incomplete=int((~whole).sum())
        )

    def _made(self, key: int, seed: int) -> ClipTable:
        """The clips of a phase, or of an epoch."""
        if self.chosen is not None:
            times = times_in_epoch(self.chosen, seed=seed, epoch=key)
            return self.chosen.table(
                self.spec, self.selected, times, num_incomplete=self.clips.num_incomplete
            )
        spec = replace(self.spec, phase=key)
        found = self._enumerate(spec, self.dataset.episode_table, self._phase_uses)
        return replace(found, num_outside=found.num_outside if self.clips.num_outside else 0)

    def _episodes(self, table: EpisodeTable) -> EpisodeTable:
        """The episodes as plans see them, which are cut by the chunks of the largest frames.

        What transforms frames needs whole ones: then loads are those of that group only.
        """
        nbytes = bytes_by_group(self.stored, self.dataset.features)
        pieces = in_pieces(table, self.dataset.features)
        found = pieces.led_by(nbytes.index(max(nbytes)), self.selected)
        if self.frame_transform is None:
            return found
        return EpisodeTable(found.num_frames, (found.lead,))

    @cached_property
    def stored(self) -> dict[str, ArraySpec]:
        """Each feature of a frame as it is decoded."""
        return stored_arrays(self.dataset, np.unique(self.clips.episode))

    def _look(self, ragged: Ragged) -> tuple[dict[str, ArraySpec], frozenset[str]]:
        """What frames of clips have, and which features come as nested tensors."""
        if self.frame_transform is None:
            return ragged_arrays(ragged, self.stored, url=self.dataset.url)
        if ragged != "list":
            raise ClipError(
                "ragged does not go with frame_transform, which gives frames of one shape",
                expected='ragged="list"',
                got=repr_of(ragged, 100),
            )
        episode, start = self.windows.first_frame(*self.clips.locate(np.zeros(1, np.int64)))
        key = self.dataset.index.key(episode)
        made = transformed_arrays(self.frame_transform, self.dataset, key, start, self.stored)
        return made, frozenset()

    def _draws(self, transform: Any) -> ClipDraws:
        episode, start = (int(column[0]) for column in self.clips.locate(np.zeros(1, np.int64)))
        draws = ClipDraws(
            transform,
            self.arrays,
            self.dataset,
            clip_frames=self.drawn_frames(0, 0),
            episode=episode,
            start=start,
            frame_transform=self.frame_transform,
        )
        self._check_names(draws.made)
        return draws

    def _check_names(self, names: Iterable[str]) -> None:
        taken = {*RESERVED, *self.windows.said_names, *self._step_names}
        reserved = [name for name in names if name in taken]
        if reserved:
            raise ClipError(
                "a feature has the name of what clips tell of themselves",
                file=self.dataset.url,
                got=", ".join(reserved),
            )


_CHUNKS_AT_ONCE = 1 << 16


def identity_of(dataset: SeqRecordReader, rows: IntArray) -> dict[str, Any]:
    """What tells episodes, by their rows, from others, as JSON; see `ClipSelection.identity`."""
    index = dataset.index
    keys = index.keys.take(rows).to_pylist()
    digest = hashlib.sha256(json.dumps(keys, separators=(",", ":")).encode())
    digest.update(np.ascontiguousarray(index.num_frames[rows], "<i8").data)
    for group in groups_of(dataset):
        wanted = [name for name in group.schema if name in dataset.features]
        columns = [group.schema.position(name) for name in wanted]
        counts = group.num_chunks[rows]
        blocks = np.cumsum(counts) // _CHUNKS_AT_ONCE
        for block in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(blocks)) + 1):
            chunks = _chunks(group, rows[block])
            digest.update(np.ascontiguousarray(group.num_frames[chunks], "<u4").data)
            for table in (group.page_length, group.page_crc32c):
                pages = table[chunks]
                if len(columns) < pages.shape[1]:
                    pages = pages[:, columns]
                digest.update(np.ascontiguousarray(pages, "<u4").data)
        for numbers in _gaps(dataset, group, wanted, rows):
            digest.update(np.ascontiguousarray(numbers, "<u8").data)
    return {
        "count": len(rows),
        "frames": int(index.num_frames[rows].sum()),
        "digest": digest.hexdigest(),
        "dataset": dataset.fingerprint,
    }


def digest_of(chosen: ChosenClips, selected: IntArray) -> str:
    """What tells chosen clips of the selected episodes, and how often they come, from others."""
    digest = hashlib.sha256()
    place = np.searchsorted(selected, chosen.episode)
    for numbers in (chosen.row, place, chosen.start):
        digest.update(np.ascontiguousarray(numbers, "<i8").data)
    digest.update(np.ascontiguousarray(chosen.weight, "<f8").data)
    return digest.hexdigest()


def groups_of(dataset: SeqRecordReader) -> list[GroupIndex]:
    """The groups of the features that a dataset was opened with, by their numbers."""
    numbers = {spec.group for spec in dataset.features.values()}
    return [dataset.index.groups[number] for number in sorted(numbers)]


def _gaps(
    dataset: SeqRecordReader, group: GroupIndex, wanted: list[str], rows: IntArray
) -> list[IntArray]:
    """Of each gap of these episodes: its place, the chunk in it, feature, presence."""
    columns = [dataset.index.schema.position(name) for name in wanted]
    gaps = group.gaps[np.isin(group.gaps["feature"], columns)]
    chunk = gaps["chunk"].astype(np.int64)
    episode = np.searchsorted(group.first_chunk, chunk, side="right") - 1
    some = np.isin(episode, rows)
    chunk -= group.first_chunk[episode]
    feature = np.searchsorted(columns, gaps["feature"])
    place = np.searchsorted(rows, episode)
    return [numbers[some] for numbers in (place, chunk, feature, gaps["word"], gaps["present"])]


def _chunks(group: GroupIndex, rows: IntArray) -> slice | IntArray:
    """The rows of a chunk table that some episodes have."""
    first, count = group.first_chunk[rows], group.num_chunks[rows]
    if rows[-1] - rows[0] == len(rows) - 1:
        return slice(int(first[0]), int(first[-1] + count[-1]))  # a view, of the mapped file
    owner, place = numbered(count)
    chunks: IntArray = first[owner] + place
    return chunks
