"""Which clips, of which features, a loader gives, and what their arrays look like."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch

from seqrecord.chosen import ChosenClips
from seqrecord.clip_frames import ClipFrames
from seqrecord.clip_transforms import chain_of
from seqrecord.clip_uses import ClipUse
from seqrecord.clips import ClipSpec, ClipTable, EpisodeTable, IntArray, enumerate_clips
from seqrecord.engine.draws import Drawn
from seqrecord.errors import ClipError
from seqrecord.forks import cached_property
from seqrecord.grids import numbered
from seqrecord.pipes.arrays import (
    Ragged,
    bytes_by_group,
    check_tensors,
    groups_of,
    in_pieces,
    ragged_arrays,
    stored_arrays,
    transformed_arrays,
)
from seqrecord.pipes.checks import ClipList, read_clip_list
from seqrecord.pipes.clip_reader import ClipReader
from seqrecord.pipes.clip_windows import SelectedWindows
from seqrecord.pipes.collating import SingleClip, keep_memory_for
from seqrecord.pipes.distributed import say_once
from seqrecord.pipes.draws import ClipDraws, EpisodeFacts, SelectedSteps
from seqrecord.pipes.options import ClipOptions, LoaderOptions
from seqrecord.reading.frames import ArraySpec
from seqrecord.reading.reader import DatasetLike, SeqRecordReader, reader_of
from seqrecord.sampling import Phases
from seqrecord.sampling.phases import typical_table
from seqrecord.sampling.weights import clips_before, times_in_epoch
from seqrecord.text import counted, repr_of

__all__ = ["ClipSelection"]

_OF_DRAWS = ("crop", "flipped", "intrinsics")  # no features beside a `clip_transform`
_EPISODES_AT_ONCE = 1 << 12  # whose chunks are looked at
_SHOWN = 10  # names in an error

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
    draws: ClipDraws | None = None  # what `clip_transform` makes of clips
    times_without_frame: int = 0  # of windows in time, that `masks` has said
    windows: SelectedWindows  # which frames clips have of `arrays`
    steps: SelectedSteps | None = None  # how far apart these are, where that is drawn
    metadata: tuple[str, ...] = ()  # entries that clips have of their episodes'

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
        metadata, transform = tuple(options.metadata or ()), options.clip_transform
        wanted = metadata if transform is None else (*metadata, "camera")
        self._facts = EpisodeFacts(self.dataset, wanted)
        if options.has_drawn_steps:
            whole = []
            if len(uses) > 1:
                whole = [self._enumerate(ClipSpec(1), table, [use]) for use in uses]
            self.steps = SelectedSteps(options.dilations, options.reverse, whole, self._facts)
        self.arrays, self.nested = self._look(options.ragged)
        self.windows.give({name: spec.mask_of for name, spec in self.arrays.items()})
        check_tensors(self.arrays, url=self.dataset.url)
        self.episodes = self._episodes(table)
        if transform is not None:
            self._draw_by(transform)
        self.nested &= {name for name, spec in self.made.items() if not spec.is_fixed}
        self._check_names(metadata)
        self.metadata = metadata
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

    def draw(
        self,
        seed: int,
        epoch: int,
        episode: IntArray,
        start: IntArray,
        *,
        sequences: ClipTable | None = None,
    ) -> Drawn:
        """See `ClipDraws.draw`."""
        if self.draws is None:
            return Drawn()
        return self.draws.draw(seed, epoch, episode, start, sequences=sequences)

    def columns(
        self, episode: IntArray, start: IntArray, frames: ClipFrames, drawn: Drawn
    ) -> dict[str, Any]:
        """What batches tell of clips beside features, each a list or a tensor of clips.

        The clips are given by the rows of their episodes and their starts, int64[n] each. There are
        `episode`, a list of keys; `start`; what is drawn; `<feature>_is_pad`, bool[n, T], and
        `<feature>_age`, int64[n, T]; and lists of metadata, `None` where an episode has none.
        """
        facts, windows = self._facts.of(episode), self.windows
        told = {"episode": [one.key for one in facts], "start": torch.from_numpy(start)}
        if self.draws is not None:
            told |= self.draws.told(drawn, facts)
        for name in dict.fromkeys((*windows.padded, *windows.aged)):
            found = frames.find(name, episode, start)
            if name in windows.padded:
                told[f"{name}_is_pad"] = torch.from_numpy(found.is_pad)
                self.times_without_frame += found.num_far
            if found.age is not None:
                told[f"{name}_age"] = torch.from_numpy(found.age)
        if self.steps is not None and frames.draw is not None:
            told |= self.steps.told(frames.draw(episode, start))
        for name in self.metadata:  # which its user may change
            told[name] = [deepcopy(one.metadata[name]) for one in facts]
        return told

    @cached_property
    def told(self) -> dict[str, Any]:
        """The columns of no clips: their names, and dtypes and shapes of the tensors."""
        none = np.zeros(0, np.int64)
        return self.columns(none, none, self.drawn_frames(0, 0), self.draw(0, 0, none, none))

    def singles(
        self, features: Mapping[str, Sequence[Any]], columns: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """The clips of a batch, of its features and `columns`, each a sequence of clips."""
        values = {**features, **columns, "start": columns["start"].tolist()}
        make = partial(SingleClip.of, frozenset(self.metadata)) if self.metadata else dict
        # No loop in Python: it would take as long again.
        rows = zip(*values.values(), strict=True)
        return list(map(make, map(zip, repeat(tuple(values)), rows)))

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
        dataset, rows, index = self.dataset, self.selected, self.dataset.index
        keys = index.keys.take(rows).to_pylist()
        digest = hashlib.sha256(json.dumps(keys, separators=(",", ":")).encode())
        digest.update(np.ascontiguousarray(index.num_frames[rows], "<i8").data)
        for group in groups_of(dataset):
            columns = [group.schema.position(n) for n in group.schema if n in dataset.features]
            for some in np.array_split(rows, 1 + len(rows) // _EPISODES_AT_ONCE):
                owner, place = numbered(group.num_chunks[some])
                chunks = group.first_chunk[some][owner] + place
                digest.update(np.ascontiguousarray(group.num_frames[chunks], "<u4").data)
                for table in (group.page_length, group.page_crc32c):
                    digest.update(np.ascontiguousarray(table[chunks][:, columns], "<u4").data)
        for number, name in enumerate(sorted(dataset.features)):
            gaps = dataset.select([name]).missing_frames()
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
        """What tells the chosen clips, and how often they come, from others."""
        if self.chosen is None:
            return None
        chosen, digest = self.chosen, hashlib.sha256()
        for numbers in (chosen.row, np.searchsorted(self.selected, chosen.episode), chosen.start):
            digest.update(np.ascontiguousarray(numbers, "<i8").data)
        digest.update(np.ascontiguousarray(chosen.weight, "<f8").data)
        return digest.hexdigest()

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
        episode, start = self.clips.locate(np.zeros(1, np.int64))
        key, frame = (
            self.dataset.index.key(int(episode[0])),
            self.windows.first_frame(episode, start),
        )
        made = transformed_arrays(self.frame_transform, self.dataset, key, frame, self.stored)
        return made, frozenset()

    def _draw_by(self, transform: Any) -> None:
        """Have a `clip_transform` make what batches have."""
        steps, functions = chain_of(transform)
        episode, start = self.clips.locate(np.zeros(1, np.int64))
        self.draws = draws = ClipDraws(
            steps,
            self.arrays,
            self.clip_frames.lengths,
            dataset=self.dataset,
            facts=self._facts,
            episode=episode,
        )
        if functions:
            draws.call(functions, ClipReader(self, 0).example(episode, start), episode, start)

    def _check_names(self, metadata: Sequence[str]) -> None:
        """Raise `ClipError` where two things of a batch have one name, and for metadata that no
        selected episode has."""
        taken = (*self.told, *(() if self.draws is None else _OF_DRAWS))
        if reserved := [name for name in self.made if name in taken]:
            raise ClipError(
                "a feature has the name of what clips tell of themselves",
                file=self.dataset.url,
                got=", ".join(reserved),
            )
        del self.told  # without the metadata
        if twice := [name for name in metadata if name in self.made or name in taken]:
            raise ClipError(
                "a feature, or what clips tell of themselves, has the name of this metadata",
                file=self.dataset.url,
                expected="names that are not in clips yet",
                got=", ".join(twice),
            )
        missing, seen = set(metadata), set[str]()
        for row in self.selected.tolist():
            if not missing:
                return
            entries = self.dataset.index.episode_metadata(row)
            missing -= entries.keys()
            seen |= entries.keys()
        if missing:
            more = ", …" if len(seen) > _SHOWN else ""
            raise ClipError(
                "no selected episode has this metadata",
                file=self.dataset.url,
                expected=f"some of {', '.join(sorted(seen)[:_SHOWN])}{more}" if seen else "nothing",
                got=", ".join(sorted(missing)),
            )
