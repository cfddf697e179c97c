"""An epoch as integers: which chunks to load, which clips to emit, which frames to free.

The clips of an epoch, episode by episode, are *runs*. These are cut at places drawn from the seed
and put in another order; the sequence is shared out equally among the *cursors* of all parts. In a
*round* every cursor of a part advances by a *block*::

    runs                |----C----|--A--|-------D-------|---B---|----E----|
    shared out          |--- cursor 0 ---|---- cursor 1 ----|-- cursor 2 --|
    round 0             block of C        block of D         block of B
    round 1             of C and A        the next of D      of B and E
    ...
    one round:  load chunks  ->  emit the blocks' clips, dealt over the cursors  ->  free frames

Everything is a pure function of the selected clips and the settings, whatever else the dataset
holds, and any round can be computed alone. The clips that the rounds emit form one stream; batches
are consecutive parts of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from seqrecord.clips import ClipTable, EpisodeTable, IntArray
from seqrecord.errors import ClipError
from seqrecord.sampling.blocks import BlockSizes
from seqrecord.sampling.bounds import cursor_bounds
from seqrecord.sampling.cursors import Cursors
from seqrecord.sampling.dealing import deal
from seqrecord.sampling.facts import ClipFacts
from seqrecord.sampling.needs import Blocks
from seqrecord.sampling.parts import Part, share_out
from seqrecord.sampling.random_order import hash64, key_of
from seqrecord.sampling.rounds import Clips, GroupRound, Loads, Round, frees_of, loads_of
from seqrecord.sampling.runs import Runs, shuffle_runs
from seqrecord.sampling.settings import PlanSettings
from seqrecord.sampling.windows import Window

__all__ = ["EpochPlan", "GroupPlan", "check_drop_last"]

_RUNS, _CURSORS, _CLIPS = range(3)  # what a random number is for: no two uses share a stream
_WHOLE = Part()
_CLIPS_AT_ONCE = 1 << 15  # rounds are computed in groups of about so many clips


@dataclass(frozen=True)
class GroupPlan:
    """What holds for a group of features in all rounds.

    `group` is its number in the schema. In no round are more than `max_resident_frames` held.
    """

    group: int
    window: Window  # what a clip uses
    max_resident_frames: int  # the arena's rows


class EpochPlan:
    """The plan of one part of one epoch.

    `windows` are what clips use of each group of `episodes`; by default whole clips of all. Which
    clips come when depends on the leading group alone.

    Parts cover the epoch, and all have equally many clips in equally many batches, full ones but
    for the last: where they do not come out even, a part gives one clip that another gives too,
    and `num_repeated` is 1. With `drop_last` every batch is full, no clip is given twice, and
    `num_dropped` clips of the part are left out.

    With `settings.equal` off every clip is in exactly one part; counts may differ by one clip,
    and a part may be empty.

    Raises `ClipError` when `drop_last` leaves no batch in any part. An epoch without any clip has
    no batches.
    """

    num_clips: int  # that this part emits
    num_dropped: int  # that it would emit without `drop_last`
    num_repeated: int  # of `num_clips`, that another part emits too
    num_batches: int
    num_rounds: int
    num_cursors: int
    leading: int  # of the groups

    def __init__(
        self,
        table: ClipTable,
        episodes: EpisodeTable,
        settings: PlanSettings,
        *,
        epoch: int = 0,
        part: Part = _WHOLE,
        windows: Sequence[Window] | None = None,
    ) -> None:
        self.settings, self.epoch, self.part = settings, epoch, part
        self._spec, self._episodes = table.spec, episodes
        self._key = key_of(settings.seed, epoch)
        self._windows = tuple(windows or [Window.of(table.spec)] * len(episodes.groups))
        self.leading = episodes.leading
        self._repeats = table.repeats
        # Episodes count by their place in the selection: rows may differ between datasets.
        self._selected = table.selected

        sequence = Runs.of(table)
        if settings.shuffle:
            sequence = shuffle_runs(
                sequence,
                settings.run_frames,
                episodes.lead.take(sequence.episode),
                key_of(self._key, _RUNS),
                num_cursors=part.count * settings.num_cursors,
            )
        start, stop, self.num_repeated = share_out(
            sequence,
            episodes.lead.take(sequence.episode),
            part,
            settings.cursors,
            fill=settings.equal and not settings.drop_last,
        )
        total = self.num_clips = int((stop - start).sum())
        self._batch_size = size = settings.batch_size or 1
        if settings.drop_last:
            check_drop_last(table.num_clips, settings, part.count)
            kept = table.num_clips // part.count if settings.equal else total
            self.num_clips = kept // size * size
        self.num_dropped = total - self.num_clips
        self.num_batches = -(-self.num_clips // size)
        facts = ClipFacts.of(table, episodes, self._windows)
        self._cursors = Cursors(
            *sequence.slices(start, stop), BlockSizes.of(facts, settings), episodes, self._windows
        )
        self._before = np.minimum(self._cursors.clips_before_rounds(), self.num_clips)
        self.num_cursors = self._cursors.count
        self.num_rounds = int(np.searchsorted(self._before, self.num_clips))
        if self.num_rounds < self._cursors.num_rounds:
            self._cursors.end_before(self.num_rounds)
        bounds = cursor_bounds(facts, settings, longest=self._cursors.longest)
        self._resident = [self.num_cursors * bound for bound in bounds]

    def __repr__(self) -> str:
        return (
            f"EpochPlan(epoch {self.epoch}, part {self.part.index} of {self.part.count}: "
            f"{self.num_clips} clips in {self.num_batches} batches, {self.num_rounds} rounds of "
            f"{self.num_cursors} cursors, at most {self._resident} frames resident)"
        )

    @cached_property
    def groups(self) -> tuple[GroupPlan, ...]:
        """The groups, in the order of those of the episode table."""
        return tuple(
            GroupPlan(grid.group, window, resident)
            for grid, window, resident in zip(
                self._episodes.groups, self._windows, self._resident, strict=True
            )
        )

    @cached_property
    def disjoint_groups(self) -> tuple[bool, ...]:
        """Of each group, whether every frame that a round loads is of one clip only, which that
        round emits."""
        return tuple(map(self._is_disjoint, range(len(self._windows))))

    @property
    def is_disjoint(self) -> bool:
        """Whether all groups are."""
        return all(self.disjoint_groups)

    @cached_property
    def most_batches(self) -> int:
        """The most batches that the clips of one round are part of."""
        before = self._before[: self.num_rounds + 1]
        first, last = before[:-1], before[1:] - 1
        spans = last // self._batch_size - first // self._batch_size
        return int(spans[last >= first].max(initial=-1)) + 1

    def first_clip(self, batch: int) -> int:
        """How many clips the batches before this one hold; `num_clips` for `num_batches`.

        Raises `IndexError` outside `[0, num_batches]`.
        """
        if not 0 <= batch <= self.num_batches:
            raise IndexError(f"a batch's number is not in [0, {self.num_batches}]: {batch}")
        return min(batch * self._batch_size, self.num_clips)

    def locate(self, batch: int) -> tuple[int, int]:
        """Where a batch begins: its round, and how many of that round's clips come before it.

        To resume there, load `resident(round)`, go on with `rounds(round)` and skip so many clips.
        """
        clip = self.first_clip(batch)
        index = int(np.searchsorted(self._before, clip, side="right")) - 1
        index = min(index, self.num_rounds)
        return index, clip - int(self._before[index])

    def resident(self, round_index: int) -> tuple[Loads, ...]:
        """Loads that bring exactly the frames held when a round begins, before its own loads.

        One of each group.
        """
        held = self._cursors.held(round_index)
        return tuple(self._loads(i, b, b.held, b.loaded_before)[1] for i, b in enumerate(held))

    def rounds(self, first_round: int = 0) -> Iterator[Round]:
        """The rounds from `first_round` on, computed as they are taken."""
        group = max(1, _CLIPS_AT_ONCE * self.num_rounds // max(1, self.num_clips))
        for start in range(first_round, self.num_rounds, group):
            yield from self._rounds(start, min(start + group, self.num_rounds))

    def _is_disjoint(self, group: int) -> bool:
        window = self._windows[group]
        apart = window.span <= self._spec.stride and window.is_dense and not self._repeats
        return apart and not self._cursors.share_chunks(group)

    def _loads(
        self, group: int, blocks: Blocks, start: IntArray, stop: IntArray
    ) -> tuple[IntArray, Loads]:
        """See `loads_of`."""
        grid, window = self._episodes.groups[group], self._windows[group]
        phase = self._spec.phase + window.offset
        return loads_of(blocks, start, stop, grid, window.frame_step, phase)

    def _rounds(self, start: int, stop: int) -> Iterator[Round]:
        marks = np.arange(start, stop + 1)
        by_group: list[list[GroupRound]] = []
        found = [self._in_order(blocks) for blocks in self._cursors.blocks(start, stop)]
        clips = self._clips(*found[self.leading])
        for i, (blocks, _) in enumerate(found):
            loads_round, loads = self._loads(i, blocks, blocks.loaded_before, blocks.loaded)
            frees_round, frees = frees_of(blocks, self._windows[i].frame_step)
            loads_at = pairwise(np.searchsorted(loads_round, marks).tolist())
            frees_at = pairwise(np.searchsorted(frees_round, marks).tolist())
            by_group.append(
                [
                    GroupRound(loads.rows(*rows), frees.rows(*freed))
                    for rows, freed in zip(loads_at, frees_at, strict=True)
                ]
            )
        clips_at = (self._before[start : stop + 1] - self._before[start]).tolist()
        for i, rows in enumerate(pairwise(clips_at)):
            groups = tuple(rounds[i] for rounds in by_group)
            yield Round(start + i, clips.rows(*rows), groups)

    def _in_order(self, blocks: Blocks) -> tuple[Blocks, IntArray]:
        """The blocks of whole rounds, and each row's position in its round, int64[n].

        Rows come by round and position. A cursor's position is drawn in every round. What it loads
        comes in that order too, so that the first clips need not wait for all loads of their round.
        """
        number = blocks.round * max(1, self.num_cursors) + blocks.cursor
        drawn = hash64(key_of(self._key, _CURSORS), number)
        # Equal numbers for the rows of one block, which keep their order.
        order = np.lexsort((drawn, blocks.round))
        blocks, number = blocks.take(order), number[order]
        block = np.cumsum(np.diff(number, prepend=number[:1]) != 0)
        return blocks, block - block[np.searchsorted(blocks.round, blocks.round)]

    def _clips(self, blocks: Blocks, position: IntArray) -> Clips:
        """The clips of whole rounds in the order in which they are emitted."""
        first = int(self._before[blocks.round[0]]) if len(blocks) else 0
        row, start = deal(
            blocks,
            position,
            np.searchsorted(self._selected, blocks.episode),
            stride=self._spec.stride,
            span=self._windows[self.leading].span,
            num_cursors=self.num_cursors,
            spread=self.num_cursors < self._batch_size,
            key=key_of(self._key, _CLIPS) if self.settings.shuffle else None,
        )
        clip = np.arange(first, min(first + len(row), self.num_clips))
        row, start = row[: len(clip)], start[: len(clip)]
        batch, slot = np.divmod(clip, self._batch_size)
        return Clips(blocks.cursor[row], blocks.run[row], blocks.episode[row], start, batch, slot)


def check_drop_last(total: int, settings: PlanSettings, num_parts: int) -> None:
    """Raise `ClipError` when `drop_last` leaves no batch of `total` clips in any part."""
    size = settings.batch_size or 1
    least = num_parts * size if settings.equal else num_parts * (size - 1) + 1
    if settings.drop_last and 0 < total < least:
        parts = f"each of {num_parts} parts" if settings.equal else f"one of {num_parts} parts"
        raise ClipError(
            "drop_last leaves no batch at all",
            expected=f"at least {least} clips: a batch of {size} in {parts}",
            got=f"{total} clips; smaller batches, fewer workers, or no drop_last",
        )
