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

from collections.abc import Sequence

import numpy as np

from seqrecord.clips import ClipTable, EpisodeTable, IntArray
from seqrecord.errors import ClipError
from seqrecord.sampling.blocks import BlockSizes
from seqrecord.sampling.bounds import cursor_bounds
from seqrecord.sampling.cursors import Cursors
from seqrecord.sampling.cuts import Cuts
from seqrecord.sampling.dealing import deal, in_order
from seqrecord.sampling.facts import ClipFacts
from seqrecord.sampling.needs import Blocks
from seqrecord.sampling.parts import share_out
from seqrecord.sampling.plan import Plan
from seqrecord.sampling.random_order import hash64, key_of
from seqrecord.sampling.rounds import Clips
from seqrecord.sampling.runs import Runs, shuffle_runs
from seqrecord.sampling.settings import PlanSettings
from seqrecord.sampling.windows import Window

__all__ = ["CLIPS", "CURSORS", "EpochPlan", "check_drop_last", "key_of_stage", "sequence_of"]

_RUNS, CURSORS, CLIPS = range(3)  # what a number drawn for an epoch is for


class EpochPlan(Plan):
    """The plan of one part of one epoch.

    Which clips come when depends on the leading group, and on that whose chunks are cut at (see
    `cuts`).

    Parts cover the epoch, and all have equally many clips in equally many batches, full ones but
    for the last: where they do not come out even, a part gives one clip that another gives too,
    and `num_repeated` is 1. With `drop_last` every batch is full, no clip is given twice, and
    `num_dropped` clips of the part are left out.

    With `settings.equal` off every clip is in exactly one part; counts may differ by one clip,
    and a part may be empty.

    Raises `ClipError` when `drop_last` leaves no batch in any part of a whole epoch. An epoch
    without any clip has no batches.
    """

    def _lay_out(self, table: ClipTable, stage: int) -> None:
        settings, part, episodes = self.settings, self.part, self._episodes
        self._key = key_of_stage(settings, self.epoch, stage)
        # Episodes count by their place in the selection: rows may differ between datasets.
        self._selected = table.selected

        sequence = sequence_of(table, episodes, settings, self._key, part.count, self._windows)
        start, stop, self.num_repeated = share_out(
            sequence,
            Cuts.of(sequence.episode, episodes, self._windows),
            part,
            settings,
        )
        total = self.num_clips = int((stop - start).sum())
        size = self._batch_size
        if settings.drop_last:
            if not stage:
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

    def _in_order(self, blocks: Blocks) -> tuple[Blocks, IntArray]:
        # A cursor's position is drawn in every round.
        number = blocks.round * max(1, self.num_cursors) + blocks.cursor
        order, position = in_order(blocks, number, hash64(key_of(self._key, CURSORS), number))
        return blocks.take(order), position

    def _clips(self, blocks: Blocks, position: IntArray) -> Clips:
        first = int(self._before[blocks.round[0]]) if len(blocks) else 0
        row, start = deal(
            blocks,
            position,
            np.searchsorted(self._selected, blocks.episode),
            stride=self._spec.stride,
            span=self._windows[self.leading].span,
            num_cursors=self.num_cursors,
            batch_size=self._batch_size,
            key=key_of(self._key, CLIPS) if self.settings.shuffle else None,
        )
        clip = np.arange(first, min(first + len(row), self.num_clips))
        row, start = row[: len(clip)], start[: len(clip)]
        batch, slot = np.divmod(clip, self._batch_size)
        return Clips(blocks.cursor[row], blocks.run[row], blocks.episode[row], start, batch, slot)


def key_of_stage(settings: PlanSettings, epoch: int, stage: int) -> int:
    """The key of all random numbers of a stage of an epoch."""
    return key_of(settings.seed, epoch, *([stage] if stage else []))


def sequence_of(
    table: ClipTable,
    episodes: EpisodeTable,
    settings: PlanSettings,
    key: int,
    num_parts: int,
    windows: Sequence[Window],
) -> Runs:
    """The runs in the order in which they are shared out to the cursors of all parts."""
    sequence = Runs.of(table)
    if not settings.shuffle:
        return sequence
    return shuffle_runs(
        sequence,
        settings.run_frames,
        Cuts.of(
            sequence.episode,
            episodes,
            windows,
            anywhere=num_parts == 1 and settings.num_shares is not None,
        ),
        key_of(key, _RUNS),
        num_shares=num_parts * settings.shares,
    )


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
