"""What every plan has: what an engine asks of it, and how rounds are made of cursors' blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from seqrecord.clips.grids import numbered
from seqrecord.clips.tables import ClipSpec, ClipTable, EpisodeTable, IntArray
from seqrecord.processes.forks import cached_property
from seqrecord.sampling.bounds import PlanSettings
from seqrecord.sampling.cursors import Blocks, CursorSchedule
from seqrecord.sampling.runs import Shard, Window

_WHOLE = Shard()
_CLIPS_AT_ONCE = 1 << 15  # rounds are computed in groups of about so many clips
_CLIPS_AT_FIRST = 1 << 11  # … an epoch's first ones in smaller groups: batches wait for these

_Rows = TypeVar("_Rows", bound="_Columns")


@dataclass(frozen=True, eq=False)
class _Columns:
    """Columns of equal length, int64 each; a row is one thing to do, for one cursor."""

    cursor: IntArray

    def __len__(self) -> int:
        return len(self.cursor)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)})"

    def rows(self: _Rows, start: int, stop: int) -> _Rows:
        """Rows `[start, stop)`, without a copy."""
        return type(self)(*[column[start:stop] for column in vars(self).values()])


@dataclass(frozen=True, eq=False, repr=False)
class Loads(_Columns):
    """Chunks to read, and which of their frames to decode, roughly in the order of their use.

    Row `i` brings `count[i]` frames, `first[i]`, `first[i] + frame_step`, … of `episode[i]`, all of
    row `chunk[i]` of the group's chunk table, to cursor `cursor[i]`, for run `run[i]`. A cursor may
    hold frames of several runs, even the same frames for two of them; runs are numbered over all
    cursors, and are the same in all groups. A frame that lacks a requested feature is used by no
    clip: it keeps its place but nothing need be decoded for it.
    """

    run: IntArray
    episode: IntArray
    chunk: IntArray
    first: IntArray
    count: IntArray


@dataclass(frozen=True, eq=False, repr=False)
class Clips(_Columns):
    """Clips in the order in which they are emitted.

    Clip `i` consists of the frames of each group's window at `start[i]` which cursor `cursor[i]`
    holds for run `run[i]`, and is place `slot[i]` of batch `batch[i]` of the epoch. With
    `batch_size=None` every clip counts as a batch of its own. No two clips of all shards and
    segments of an epoch have the same `place`.
    """

    run: IntArray
    episode: IntArray
    start: IntArray
    batch: IntArray
    slot: IntArray
    place: IntArray


@dataclass(frozen=True, eq=False, repr=False)
class Frees(_Columns):
    """Frames that no later clip of the run needs, `first`, `first + frame_step`, …

    They come in the order in which the cursor has loaded them.
    """

    run: IntArray
    first: IntArray
    count: IntArray


@dataclass(frozen=True, eq=False)
class GroupRound:
    """What a round does with one group: do `loads`, and when its clips are emitted, `frees`."""

    loads: Loads
    frees: Frees


@dataclass(frozen=True, eq=False)
class Round:
    """One round, in this order: do all groups' loads, emit `clips`, then do their frees.

    `groups` may be empty where nothing is to be loaded.
    """

    index: int
    clips: Clips
    groups: tuple[GroupRound, ...]


@dataclass(frozen=True)
class GroupPlan:
    """What holds for a group of features in all rounds.

    `group` is its number in the schema. In no round are more than `max_resident_frames` held.
    Where chunks are loaded `in_pieces`, loads of a cursor go on where the one before ended.
    """

    group: int
    window: Window  # what a clip uses
    max_resident_frames: int  # the arena's rows
    in_pieces: bool = False


class Plan(ABC):
    """The plan of one shard of one epoch: rounds of cursors, whose clips are one stream of batches.

    `windows` are what clips use of each group of `episodes`; by default whole clips of all. In an
    epoch whose shards have changed `segment` times, `table` has what was left of it (see
    `sampling.elastic`). A subclass lays out the clips, and says in which order a round's clips
    come.
    """

    settings: PlanSettings
    epoch: int
    shard: Shard
    num_clips: int  # that this shard emits
    num_dropped: int  # that it would emit without `drop_last`
    num_repeated: int  # of `num_clips`, that another shard emits too
    num_batches: int
    num_rounds: int
    num_cursors: int
    leading: int  # of the groups

    _spec: ClipSpec
    _episodes: EpisodeTable
    _windows: tuple[Window, ...]  # of each group
    _batch_size: int
    _segment: int
    _cursors: CursorSchedule
    _before: IntArray  # clips before each round, and before the end
    _resident: list[int]  # the most frames held, of each group

    def __init__(
        self,
        table: ClipTable,
        episodes: EpisodeTable,
        settings: PlanSettings,
        *,
        epoch: int = 0,
        shard: Shard = _WHOLE,
        segment: int = 0,
        windows: Sequence[Window] | None = None,
    ) -> None:
        self.settings, self.epoch, self.shard = settings, epoch, shard
        self._spec, self._episodes = table.spec, episodes
        self._windows = tuple(windows or [Window.of(table.spec)] * len(episodes.groups))
        self.leading = episodes.leading
        self._batch_size = settings.batch_size or 1
        self._segment = segment
        self._lay_out(table, segment)

    @abstractmethod
    def _lay_out(self, table: ClipTable, segment: int) -> None:
        """Set what follows from the clips: all attributes above that are not arguments."""

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(epoch {self.epoch}, shard {self.shard.index} of "
            f"{self.shard.count}: {self.num_clips} clips in {self.num_batches} batches, "
            f"{self.num_rounds} rounds of {self.num_cursors} cursors, at most {self._resident} "
            "frames resident)"
        )

    @property
    def counts(self) -> dict[str, int]:
        """What this shard's statistics say of its clips."""
        return {
            "clips_dropped": self.num_dropped,
            "duplicate_clips": self.num_repeated,
            "num_interleaved": self.num_cursors,
        }

    @cached_property
    def groups(self) -> tuple[GroupPlan, ...]:
        """The groups, in the order of those of the episode table."""
        return tuple(
            GroupPlan(grid.group, window, resident, grid.whole is not None)
            for grid, window, resident in zip(
                self._episodes.groups, self._windows, self._resident, strict=True
            )
        )

    def first_clip(self, batch: int) -> int:
        """How many clips the batches before this one hold; `num_clips` for `num_batches`.

        Raises `IndexError` outside `[0, num_batches]`.
        """
        if not 0 <= batch <= self.num_batches:
            raise IndexError(f"a batch's number is not in [0, {self.num_batches}]: {batch}")
        return self._first_clip(batch)

    def locate_clip(self, clip: int) -> tuple[int, int]:
        """Where a clip of the shard is: its round, and how many of that round's clips come before.

        Clips are counted as they are emitted. To resume there, load `resident(round)`, go on with
        `rounds(round)` and skip so many clips.
        """
        index = int(np.searchsorted(self._before, clip, side="right")) - 1
        index = min(index, self.num_rounds)
        return index, clip - int(self._before[index])

    def columns(self, batch: int) -> Mapping[str, npt.NDArray[np.bool_]]:  # noqa: ARG002
        """What this plan says of the clips of a batch beside their names, bool[clips] each."""
        return {}

    def resident(self, round_index: int) -> tuple[Loads, ...]:
        """Loads that bring exactly the frames held when a round begins, before its own loads.

        One of each group.
        """
        held = self._cursors.held(round_index)
        return tuple(self._loads(i, b, b.held, b.loaded_before)[1] for i, b in enumerate(held))

    def used(self, group: int) -> tuple[IntArray, IntArray, IntArray]:
        """What clips use of a group, by its place: see `CursorSchedule.used`."""
        return self._cursors.used(group)

    def rounds(self, start: int = 0, stop: int | None = None) -> Iterator[Round]:
        """The rounds `[start, stop)`, computed as they are taken."""
        for begin, end in self.spans(start, stop):
            yield from self._rounds(begin, end)

    def spans(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, int]]:
        """Rounds `[begin, end)` that are computed together, of those in `[start, stop)`."""
        clips, stop = _CLIPS_AT_FIRST, self.num_rounds if stop is None else stop
        while start < stop:
            group = max(1, clips * self.num_rounds // max(1, self.num_clips))
            yield start, min(start + group, stop)
            start, clips = start + group, min(4 * clips, _CLIPS_AT_ONCE)

    def merged(self, start: int, stop: int, *, loads: bool = True) -> Round:
        """The rounds `[start, stop)` as one; without `loads`, its clips alone."""
        blocks = self._cursors.blocks(start, stop)
        clips = self._clips(*self._in_order(blocks[self.leading]))
        groups = [
            GroupRound(
                self._loads(i, some, some.loaded_before, some.loaded)[1], self._frees(i, some)[1]
            )
            for i, some in enumerate(blocks)
            if loads
        ]
        return Round(start, clips, tuple(groups))

    def _places(self, number: IntArray) -> IntArray:
        """`Clips.place` of clips by their numbers in this shard."""
        place: IntArray = number * self.shard.count + self.shard.index + (self._segment << 48)
        return place

    def _first_clip(self, batch: int) -> int:
        return min(batch * self._batch_size, self.num_clips)

    def _rounds(self, start: int, stop: int) -> Iterator[Round]:
        marks = np.arange(start, stop + 1)
        found = [self._in_order(blocks) for blocks in self._cursors.blocks(start, stop)]
        clips = self._clips(*found[self.leading])
        groups = []
        for i, (blocks, _) in enumerate(found):
            loads = self._loads(i, blocks, blocks.loaded_before, blocks.loaded)
            frees = self._frees(i, blocks)
            done = map(GroupRound, _by_round(*loads, marks), _by_round(*frees, marks))
            groups.append(list(done))
        clips_at = (self._before[start : stop + 1] - self._before[start]).tolist()
        for i, (rows, *of_groups) in enumerate(zip(pairwise(clips_at), *groups, strict=True)):
            yield Round(start + i, clips.rows(*rows), tuple(of_groups))

    def _loads(
        self, group: int, blocks: Blocks, start: IntArray, stop: IntArray
    ) -> tuple[IntArray, Loads]:
        """The round, int64[n], and the load of each chunk with wanted frames in `[start, stop)`.

        `start` and `stop` are int64[rows of blocks].
        """
        grid, window = self._episodes.groups[group], self._windows[group]
        step, phase = window.frame_step, self._spec.phase + window.offset
        some = stop > start
        first_place = grid.place(blocks.episode, start)
        last_place = grid.place(blocks.episode, np.maximum(stop - 1, start))
        row, inside = numbered(np.where(some, last_place - first_place + 1, 0))
        place, episode = first_place[row] + inside, blocks.episode[row]
        begin, end = grid.bounds(episode, place)
        first = np.maximum(start[row], begin)
        first += (phase - first) % step
        count = -(-(np.minimum(stop[row], end) - first) // step)
        some = count > 0
        row, episode = row[some], episode[some]
        return blocks.round[row], Loads(
            blocks.cursor[row],
            blocks.run[row],
            episode,
            grid.row(episode, place[some]),
            first[some],
            count[some],
        )

    def _frees(self, group: int, blocks: Blocks) -> tuple[IntArray, Frees]:
        """The round, int64[n], and what is freed in it, of each row that frees something."""
        some = blocks.kept > blocks.held
        first = blocks.held[some]
        count = -(-(blocks.kept[some] - first) // self._windows[group].frame_step)
        return blocks.round[some], Frees(blocks.cursor[some], blocks.run[some], first, count)

    @abstractmethod
    def _in_order(self, blocks: Blocks) -> tuple[Blocks, IntArray]:
        """The blocks of whole rounds, and each row's position in its round, int64[n].

        Rows come by round and position: what is needed first is loaded first.
        """

    @abstractmethod
    def _clips(self, blocks: Blocks, position: IntArray) -> Clips:
        """The clips of whole rounds in the order in which they are emitted."""


def _by_round(rounds: IntArray, columns: _Rows, marks: IntArray) -> Iterator[_Rows]:
    """The rows of each round between two marks; `rounds` never falls."""
    at = np.searchsorted(rounds, marks).tolist()
    return (columns.rows(*rows) for rows in pairwise(at))
