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

from seqrecord.clips.chosen import ChosenClips
from seqrecord.clips.depth import DepthToMeters, bound
from seqrecord.clips.excerpts import Excerpts
from seqrecord.clips.frames import ClipFrames, ClipUse
from seqrecord.clips.grids import numbered
from seqrecord.clips.tables import ClipSpec, ClipTable, EpisodeTable, IntArray, enumerate_clips
from seqrecord.clips.transforms import ClipFunction, chain_of
from seqrecord.engine.calls import ClipFunctions, Drawn
from seqrecord.errors import ClipError, located
from seqrecord.indexing.opening import dataset_of
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
from seqrecord.pipes.chosen_clips import ClipList, ListedClips, read_clip_list
from seqrecord.pipes.clip_reader import ClipReader
from seqrecord.pipes.clip_windows import SelectedWindows
from seqrecord.pipes.collating import SingleClip, batch_memory
from seqrecord.pipes.distributed import say_once
from seqrecord.pipes.draws import ClipDraws, ClipEpisodes, SelectedSteps
from seqrecord.pipes.options import ClipOptions, LoaderOptions
from seqrecord.processes.forks import PerProcess, cached_property
from seqrecord.reading.dataset import DatasetLike
from seqrecord.reading.frames import ArraySpec
from seqrecord.sampling import Phases
from seqrecord.sampling.memory import USUAL_LIMIT
from seqrecord.sampling.random_order import clips_before, times_in_epoch, typical_table
from seqrecord.statistics.by_feature import Statistics
from seqrecord.text import counted, repr_of, shown_place
from seqrecord.units import format_size, parse_size

_OF_DRAWS = ("crop", "flipped", "intrinsics")  # no features beside a `clip_transform`
_EPISODES_AT_ONCE = 1 << 12  # whose chunks are looked at
_SHOWN = 10  # names in an error
_EXCERPTS = 4  # that fit into the memory limit, at least: a cursor may hold parts of two

# With each of the dilations that may be drawn, those of some episodes by their rows, of others…
_Uses: TypeAlias = list[list[tuple[IntArray, list[ClipUse]]]]
_Options = TypeVar("_Options", bound=ClipOptions)


class ClipSelection:
    """The clips of a dataset that a request is for. Picklable.

    With `rotate_phase`, `clips` are those of all phases, and with weights each as often as it can
    come; `clips_in` gives those of one epoch.

    What is left out is said in a warning, logged to `seqrecord` once, and counted in `clips`.

    Raises `ClipError` where there is no clip at all, and for a feature that no tensor can hold.

    Attributes:
        dataset: with the requested features only.
        selected: rows of the selected episodes, int64[n].
        episodes: of the requested groups, led by the one with most bytes a frame: plans cut them
            by the chunks of that one.
        typical_clips: those from which settings are chosen that hold for every epoch.
        phases: of one epoch after the other, where they rotate.
        chosen: the clips of the argument `clips` that lack nothing.
        excerpts: what these use of episodes, where they are lists of frames: plans know of their
            excerpts as episodes, and of places there as frames and starts.
        left_out: what would be clips, or has none, in words; empty if nothing is.
        windows: which frames clips have of `arrays`.
        steps: how far apart these are, where that is drawn.
        arrays: of each feature of a frame, after `frame_transform` or padding.
        unchanged: the features that `frame_transform` leaves as they are.
        nested: those of them that come as nested tensors.
        squeezed: those of them that come without an axis of frames.
        draws: what `clip_transform` makes of clips.
        made: dtype and shape of the features of a frame of batches.
        lengths: how many frames of each of these a clip of a batch has.
        metadata: entries that clips have of their episodes'.
        times_without_frame: of windows in time, that `columns` has told.
    """

    phases: Phases | None = None
    chosen: ChosenClips | None = None
    excerpts: Excerpts | None = None
    steps: SelectedSteps | None = None
    squeezed: frozenset[str] = frozenset()
    metadata: tuple[str, ...] = ()
    times_without_frame = 0
    unchanged: frozenset[str] = frozenset()

    def __init__(
        self, location: DatasetLike, options: ClipOptions, *, is_smallest: bool = False
    ) -> None:
        """`is_smallest`: with excerpts as small as can be, for the least memory."""
        self.spec, self.is_smallest = options.spec, is_smallest
        self.dataset = dataset_of(location, features=options.features)
        with located(ClipError, file=self.dataset.url):
            if options.rename is not None:
                self.dataset = self.dataset.renamed(options.rename)
            if options.resize is not None:
                self.dataset = self.dataset.resized(options.resize)
            self._select(options)
        self._memory = PerProcess(batch_memory)  # as long as this lives
        self._memory.get()
        if self.left_out:
            say_once(
                f"{shown_place(self.dataset.url)}: {self.clips.num_clips:,} clips; "
                f"left out: {self.left_out}"
            )

    def _select(self, options: ClipOptions) -> None:
        self.frame_transform = bound(options.frame_transform, self.dataset.features)
        self.transform_is_deterministic = options.deterministic_transform or isinstance(
            options.frame_transform, DepthToMeters
        )
        self.selected = self.dataset.find_episodes(options.episodes, options.split)
        self._last: tuple[tuple[int, int], ClipTable] | None = None  # see `clips_in`
        rotates = isinstance(options, LoaderOptions) and options.rotate_phase
        every = replace(self.spec, stride=1) if rotates else self.spec
        uses: _Uses = []
        if options.lists_frames:
            self._list(options)
        else:
            self.windows = SelectedWindows(options, self.dataset, self.selected)
            uses = self.windows.uses()
            if options.clips is not None:
                self.clips = self._choose(options.clips, uses)
            else:
                self.clips = self._enumerate(every, uses)
        self.left_out = self._describe_excluded()
        self.typical_clips = self.clips
        if every != self.spec:
            self.phases = Phases.of(self.clips, self.spec.stride)
            self.typical_clips = typical_table(self.clips, self.spec.stride)
        if not self.clips.num_clips:
            raise ClipError(
                f"no clip has all of its frames and features; left out: {self.left_out}",
                expected=f"{self.windows.span} frames with {', '.join(self.dataset.features)}",
            )
        metadata, transform = tuple(options.metadata or ()), options.clip_transform
        cameras, functions = ((), ()) if transform is None else chain_of(transform)
        functions = tuple(bound(function, self.dataset.features) for function in functions)
        wanted = (*metadata, "camera") if cameras or self.dataset.contents.sizes else metadata
        repeats = self.chosen is not None and self.chosen.repeats
        self._facts = ClipEpisodes(self.dataset, wanted, self.excerpts, repeats=repeats)
        if options.has_drawn_steps:
            several = uses if len(uses) > 1 else []
            whole = [self._enumerate(ClipSpec(1), [use]) for use in several]
            self.steps = SelectedSteps(options.dilations, options.reverse, whole, self._facts)
        first = self.clips.locate(np.zeros(1, np.int64))
        self.arrays, self.nested = self._look(options.ragged, *first)
        if isinstance(options, LoaderOptions) and self.excerpts is not None:
            first = self._divide(options, self.excerpts)
        self.windows.give({name: spec.mask_of for name, spec in self.arrays.items()})
        check_tensors(self.arrays)
        nbytes = bytes_by_group(self.stored, self.dataset.features)
        pieces = in_pieces(self.dataset.contents.episode_table, self.dataset.features)
        if self.excerpts is not None:
            pieces = self.excerpts.table(pieces)
        self.episodes = pieces.led_by(nbytes.index(max(nbytes)), self.clips.selected)
        if self.frame_transform is not None:  # needs whole frames: loads of that group bring all
            self.episodes = EpisodeTable(self.episodes.num_frames, (self.episodes.lead,))
        self.draws = ClipDraws(cameras, self.arrays, self.dataset, self._facts, first[0])
        self.made, self.lengths = self.draws.made, self.windows.frames.lengths
        if functions:
            self._call(functions, *first)
        self.nested &= {name for name, spec in self.made.items() if not spec.is_fixed}
        if options.squeeze and not functions:
            fixed = {n for n, spec in self.made.items() if spec.is_fixed or spec.value != "array"}
            self.squeezed = frozenset(fixed.intersection(self.windows.alone))
        self._check_names(metadata, () if transform is None else _OF_DRAWS)
        self.metadata = metadata

    def _call(
        self, functions: tuple[ClipFunction, ...], episode: IntArray, start: IntArray
    ) -> None:
        """Have functions called with clips: they say what they make of the given one."""
        clip = ClipReader(self, 0).example(episode, start)
        place = int(self._facts.rows(episode)[0]), int(self._facts.starts(episode, start)[0])
        found = ClipFunctions.of(functions, self.dataset, clip, *place, self.made)
        self.draws.functions = found
        self.made = {n: replace(spec, shape=spec.shape[1:]) for n, spec in found.made.items()}
        self.lengths = {n: int(spec.shape[0] or 0) for n, spec in found.made.items()}
        check_tensors(self.made)

    def columns(
        self, episode: IntArray, start: IntArray, frames: ClipFrames, drawn: Drawn
    ) -> dict[str, Any]:
        """What batches tell of clips beside features, each a list or a tensor of clips.

        The clips are given by the rows of their episodes and their starts, int64[n] each. There are
        `episode`, a list of keys; `start`; what is drawn; `<feature>_is_pad`, bool[n, T], and
        `<feature>_age`, int64[n, T]; and lists of metadata, `None` where an episode has none.
        """
        facts, windows = self._facts.of(episode), self.windows
        told: dict[str, Any] = {"episode": [one.key for one in facts]}
        told["start"] = torch.from_numpy(self._facts.starts(episode, start))
        if (listed := self._facts.frames(episode, start)) is not None:
            told["frames"] = torch.from_numpy(listed)
        told |= self.draws.told(drawn, facts, episode)
        for name in dict.fromkeys((*windows.padded, *windows.aged)):
            found = frames.find(name, episode, start)
            if name in windows.padded:
                told[f"{name}_is_pad"] = torch.from_numpy(found.is_pad)
                self.times_without_frame += found.num_far
            if found.age is not None:
                told[f"{name}_age"] = torch.from_numpy(found.age)
        if self.steps is not None and frames.draw is not None:
            told |= self.steps.told(frames.draw(episode, start, frames.place))
        for name in self.metadata:  # which its user may change
            told[name] = [deepcopy(one.metadata[name]) for one in facts]
        return told

    @cached_property
    def told(self) -> dict[str, Any]:
        """The columns of no clips: their names, and dtypes and shapes of the tensors."""
        none = np.zeros(0, np.int64)
        return self.columns(none, none, self.drawn_frames(0, 0), self.draws.draw(0, 0, none, none))

    def singles(
        self, features: Mapping[str, Sequence[Any]], columns: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """The clips of a batch, of its features and `columns`, each a sequence of clips."""
        self._memory.get()  # a copy in another process keeps some, too
        values = {**features, **columns, "start": columns["start"].tolist()}
        make = partial(SingleClip.of, frozenset(self.metadata)) if self.metadata else dict
        # No loop in Python: it would take as long again.
        rows = zip(*values.values(), strict=True)
        return list(map(make, map(zip, repeat(tuple(values)), rows)))

    def compute_statistics(self, **options: Any) -> Statistics:
        """Of all frames of the selected episodes, after `frame_transform`."""
        episodes = self.selected.tolist()
        return self.dataset.compute_statistics(
            episodes=episodes, frame_transform=self.frame_transform, **options
        )

    def portable(self, options: _Options) -> _Options:
        """The options for another process: a function that chose episodes need not be picklable."""
        if not callable(options.episodes):
            return options
        keys = self.dataset.contents.index.keys.take(self.selected).to_pylist()
        return replace(options, episodes=keys)

    def drawn_frames(self, seed: int, epoch: int) -> ClipFrames:
        """Which frames clips have of each feature in an epoch."""
        frames = self.windows.frames
        if self.steps is None:
            return frames
        return replace(frames, draw=partial(self.steps.draw, seed, epoch))

    @property
    def differs_by_epoch(self) -> bool:
        """Whether an epoch has other clips than the next."""
        by_weight = self.chosen is not None and self.chosen.differs_by_epoch
        return by_weight or self.phases is not None

    def clips_in(self, epoch: int, *, seed: int, shuffle: bool) -> ClipTable:
        """The clips of an epoch."""
        if not self.differs_by_epoch:
            return self.clips
        if self.phases is not None:
            epoch = self.phases.of_epoch(epoch, seed=seed, shuffle=shuffle)
        if self._last is None or self._last[0] != (epoch, seed):
            if self.chosen is not None:
                times = times_in_epoch(self.chosen, seed=seed, epoch=epoch)
                left_out = self.clips.num_incomplete
                selected = self.clips.selected
                made = self.chosen.table(self.spec, selected, times, num_incomplete=left_out)
            else:
                made = self._enumerate(replace(self.spec, phase=epoch), self.windows.uses())
            self._last = (epoch, seed), made
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
            numbers = self.chosen.as_listed[numbers]
        return self.clips.locate(numbers)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What tells the selected episodes from others, as JSON, whatever else the dataset holds.

        The digest is of their keys, lengths, and pages of the requested features. Where they are in
        the dataset does not matter: the order is that of the selection. Nor does it matter where
        the files lie that pages refer to.
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
        """What tells the chosen clips, and how often they come, from others."""
        if self.chosen is None:
            return None
        chosen, digest, episode = self.chosen, hashlib.sha256(), self.chosen.episode
        listed = self._facts.frames(episode, chosen.start)
        if listed is not None:  # where episodes are divided, too
            for numbers in (listed, episode):
                digest.update(np.ascontiguousarray(numbers, "<i8").data)
            episode = self._facts.rows(episode)
        for numbers in (chosen.row, np.searchsorted(self.selected, episode), chosen.start):
            digest.update(np.ascontiguousarray(numbers, "<i8").data)
        digest.update(np.ascontiguousarray(chosen.weight, "<f8").data)
        return digest.hexdigest()

    def describe(self) -> str:
        """A line for people, and one for each feature with its dtype and shape in a clip."""
        over = f" in every {len(self.phases)} epochs" if self.phases is not None else ""
        lines = [f"{shown_place(self.dataset.url)!r}, {self.clips.num_clips} clips{over}"]
        if self.left_out:
            lines[0] += f"; left out: {self.left_out}"
        for name, spec in self.made.items():
            frames = () if name in self.squeezed else (self.lengths[name],)
            whole = ArraySpec(spec.dtype, (*frames, *spec.shape))
            lines.append(f"{name}: {whole if spec.value == 'array' else spec}")
        return "\n  ".join(lines)

    def _enumerate(self, spec: ClipSpec, uses: _Uses) -> ClipTable:
        """The clips that lack nothing with one of the dilations."""
        pads, drop_last = self.windows.pads, self.windows.drop_last
        make = partial(enumerate_clips, spec, self.dataset.contents.episode_table)
        tables = [
            [make(rows, uses=some, pads=pads, drop_last=drop_last) for rows, some in use]
            for use in uses
        ]
        found = ClipTable.united([ClipTable.concatenated(some) for some in tables])
        return found if self.windows.asked else replace(found, num_outside=0)

    def _describe_excluded(self) -> str:
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

    def _choose(self, clips: ClipList, uses: _Uses) -> ClipTable:
        """Those of the list that are of the selected episodes and lack nothing."""
        index = self.dataset.contents.index
        named = read_clip_list(clips, index.keys, index.num_frames, self.windows.reaches)
        listed = ChosenClips.of(*named)
        listed = listed.taken(np.isin(listed.episode, self.selected))
        self.selected = np.unique(listed.episode)
        some = [[(rows[np.isin(rows, self.selected)], of) for rows, of in use] for use in uses]
        whole = self._enumerate(self.spec, some).has(listed.episode, listed.start)
        self.chosen, left_out = listed.taken(whole), int((~whole).sum())
        times = self.chosen.most
        return self.chosen.table(self.spec, self.selected, times, num_incomplete=left_out)

    def _list(self, options: ClipOptions, most: int | None = None) -> None:
        """Those clips of the list of their frames that are of the selected episodes and lack
        nothing; excerpts have at most `most` frames."""
        found = ListedClips.of(options.clips, self.dataset.contents, self.selected, most)
        self.selected, self.excerpts, self.chosen = found.selected, found.excerpts, found.chosen
        self.windows = SelectedWindows(options, self.dataset, self.selected, self.excerpts)
        excerpts, times = np.arange(len(self.excerpts)), self.chosen.most
        left_out = found.num_incomplete
        self.clips = self.chosen.table(self.spec, excerpts, times, num_incomplete=left_out)

    def _divide(self, options: LoaderOptions, excerpts: Excerpts) -> tuple[IntArray, IntArray]:
        """Divide excerpts that are too large for memory, and say what that decodes more; the
        excerpt and the start of the first clip, int64[1] each."""
        nbytes = max(1, sum(spec.nbytes for spec in self.arrays.values()))
        limit = USUAL_LIMIT if options.memory_limit is None else parse_size(options.memory_limit)
        needed = _EXCERPTS * int(excerpts.num_frames.max()) * nbytes
        if needed > limit or self.is_smallest:
            self._list(options, 1 if self.is_smallest else max(1, limit // (_EXCERPTS * nbytes)))
            self.typical_clips = self.clips
            self._facts = self._facts.of_excerpts(self.excerpts)
            assert self.excerpts is not None
            more = len(self.excerpts.frames) / len(excerpts.frames) - 1
            say_once(
                f"{shown_place(self.dataset.url)}: the frames that clips use of an episode are too "
                f"many to hold at once, so an epoch decodes {more:.0%} more frames than there are; "
                f"with a memory_limit of {needed} ({format_size(needed)}) it decodes each once"
            )
        return self.clips.locate(np.zeros(1, np.int64))

    @cached_property
    def stored(self) -> dict[str, ArraySpec]:
        """Each feature of a frame as it is decoded."""
        return stored_arrays(self.dataset, np.unique(self._facts.rows(self.clips.episode)))

    def _look(
        self, ragged: Ragged, episode: IntArray, start: IntArray
    ) -> tuple[dict[str, ArraySpec], frozenset[str]]:
        """What frames of clips have, such as the given one, and what comes as nested tensors."""
        if (transform := self.frame_transform) is None:
            return ragged_arrays(ragged, self.stored)
        if ragged != "list":
            raise ClipError(
                "ragged does not go with frame_transform, which gives frames of one shape",
                expected='ragged="list"',
                got=repr_of(ragged, 100),
            )
        key, stored = self._facts.of(episode)[0].key, self.windows.stored
        place = stored.find(next(iter(stored.windows)), episode, start).frames[:, 0]
        frame = int(stored.stored(episode, place)[1][0])
        place_of = self.dataset, key, frame
        arrays, self.unchanged = transformed_arrays(transform, *place_of, self.stored)
        return arrays, frozenset()

    def _check_names(self, metadata: Sequence[str], reserved: Sequence[str]) -> None:
        """Raise `ClipError` where two things of a batch have one name, and for metadata that no
        selected episode has."""
        taken = (*self.told, *reserved)
        if wrong := [name for name in self.made if name in taken]:
            names = ", ".join(f"'{name}': 'my_{name}'" for name in wrong)
            raise ClipError(
                "a feature has the name of a batch's extra column; give it another name: "
                f"rename={{{names}}}",
                got=", ".join(wrong),
            )
        del self.told  # without the metadata
        if twice := [name for name in metadata if name in self.made or name in taken]:
            raise ClipError(
                "a feature, or a batch's extra column, has the name of this metadata",
                expected="names that are not in clips yet",
                got=", ".join(twice),
            )
        missing, seen = set(metadata), set[str]()
        for row in self.selected.tolist():
            if not missing:
                return
            entries = self.dataset.contents.index.episode_metadata(row)
            missing -= entries.keys()
            seen |= entries.keys()
        if missing:
            more = ", …" if len(seen) > _SHOWN else ""
            raise ClipError(
                "no selected episode has this metadata",
                expected=f"some of {', '.join(sorted(seen)[:_SHOWN])}{more}" if seen else "nothing",
                got=", ".join(sorted(missing)),
            )
