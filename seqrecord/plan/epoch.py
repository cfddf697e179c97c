"""An epoch as integers: which chunks to load, which clips to emit, which frames to free.

The clips of an epoch, episode by episode, are cut into *runs* at places drawn from the seed; the
runs are permuted and laid end to end, and that is cut into one lane for each cursor of each split.
All cursors of a split then walk their lanes at the same pace, one block a round::

    runs, permuted      |----C----|--A--|-------D-------|---B---|----E----|
    lanes of 3 cursors  |--- cursor 0 ---|---- cursor 1 ----|-- cursor 2 --|
    round 0             block of C        block of D         block of B
    round 1             of C and A        the next of D      of B and E
    ...
    one round:  load chunks  ->  emit the blocks' clips, dealt over the cursors  ->  free frames

Everything is a pure function of the selected clips and the settings, whatever else the dataset
holds, and any round can be computed alone. The clips that the rounds emit form one stream; batches
are consecutive parts of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from seqrecord.clips import ClipTable, EpisodeTable
from seqrecord.errors import ClipError
from seqrecord.order import IntArray, hash64, key_of
from seqrecord.plan.batches import Batches
from seqrecord.plan.blocks import Pieces, slice_pieces
from seqrecord.plan.dealing import deal
from seqrecord.plan.lanes import Lanes, Walk
from seqrecord.plan.runs import shuffle_runs
from seqrecord.plan.settings import PlanSettings, Split
from seqrecord.plan.shares import share_of
from seqrecord.plan.steps import Clips, Frees, Loads, Round
from seqrecord.plan.widths import Widths, cursor_bound

__all__ = ["EpochPlan", "check_drop_last", "resident_bound"]

_RUNS, _CURSORS, _CLIPS = range(3)  # what a random number is for: no two uses share a stream
_WHOLE = Split()
_CLIPS_AT_ONCE = 1 << 15  # rounds are computed in groups of about so many clips


class EpochPlan:
    """The plan of one split of one epoch.

    Splits cover the epoch, and all have equally many clips in equally many batches, full ones but
    for the last: where they do not come out even, a split gives one clip that another gives too,
    and `num_repeated` is 1. With `drop_last` every batch is full, no clip is given twice, and
    `num_dropped` clips of the split are left out.

    With `settings.equal` off every clip is in exactly one split; counts may differ by one clip,
    and a split may be empty.

    Raises `ClipError` when `drop_last` leaves no batch in any split. An epoch without any clip has
    no batches.
    """

    num_clips: int  # that this split emits
    num_dropped: int  # that it would emit without `drop_last`
    num_repeated: int  # of `num_clips`, that another split emits too
    num_batches: int
    num_rounds: int
    num_cursors: int
    max_resident_frames: int  # the arena's rows: in no round are more frames held

    def __init__(
        self,
        table: ClipTable,
        episodes: EpisodeTable,
        settings: PlanSettings,
        *,
        epoch: int = 0,
        split: Split = _WHOLE,
    ) -> None:
        total = table.num_clips
        self.settings, self.epoch, self.split = settings, epoch, split
        self._spec, self._episodes = table.spec, episodes
        self._key = key_of(settings.seed, epoch)
        # Episodes count by their place in the selection: rows may differ between datasets.
        self._selected = table.selected

        sequence = _sequence(table, episodes, settings, self._key, split.count)
        share = share_of(
            sequence,
            episodes.chunk_frames[sequence.episode],
            split,
            settings.open_episodes if settings.shuffle else 1,
            fill=settings.equal and not settings.drop_last,
        )
        size, self.num_clips = settings.batch_size or 1, share.num_clips
        if settings.drop_last:
            check_drop_last(total, settings, split.count)
            kept = total // split.count if settings.equal else share.num_clips
            self.num_clips = kept // size * size
        self.num_dropped = share.num_clips - self.num_clips
        self.num_repeated = share.num_repeated
        self._batches = Batches(size, self.num_clips)
        self.num_batches = self._batches.count
        self._lanes = Lanes(
            *slice_pieces(sequence, share.start, share.stop),
            Widths.of(table, episodes, settings),
            chunk_frames=episodes.chunk_frames,
            span=table.spec.span,
        )
        self._before = np.minimum(self._lanes.clips_before_rounds(), self.num_clips)
        self.num_cursors = self._lanes.num_cursors
        self.num_rounds = int(np.searchsorted(self._before, self.num_clips))
        if self.num_rounds < self._lanes.num_rounds:
            self._lanes.end_before(self.num_rounds)
        self.max_resident_frames = self.num_cursors * cursor_bound(
            table, episodes, settings, longest=self._lanes.longest
        )

    def __repr__(self) -> str:
        return (
            f"EpochPlan(epoch {self.epoch}, split {self.split.index} of {self.split.count}: "
            f"{self.num_clips} clips in {self.num_batches} batches, {self.num_rounds} rounds of "
            f"{self.num_cursors} cursors, at most {self.max_resident_frames} frames resident)"
        )

    @property
    def frame_step(self) -> int:
        """Frames between two that a load brings; more than 1 where no clip uses the others."""
        return self._spec.frame_step

    @cached_property
    def is_disjoint(self) -> bool:
        """Whether every frame that a round loads is of one clip only, which that round emits."""
        spec = self._spec
        return (
            spec.stride >= spec.span
            and (spec.frame_step == spec.dilation or spec.length == 1)
            and not self._lanes.share_chunks()
        )

    @cached_property
    def most_batches(self) -> int:
        """The most batches that the clips of one round are part of."""
        before = self._before[: self.num_rounds + 1]
        first, last = before[:-1], before[1:] - 1
        places = [self._batches.places(clips[last >= first])[0] for clips in (first, last)]
        return int((places[1] - places[0]).max(initial=-1)) + 1

    def first_clip(self, batch: int) -> int:
        """How many clips the batches before this one hold; `num_clips` for `num_batches`.

        Raises `IndexError` outside `[0, num_batches]`.
        """
        return self._batches.first_clip(batch)

    def locate(self, batch: int) -> tuple[int, int]:
        """Where a batch begins: its round, and how many of that round's clips come before it.

        To resume there, load `resident(round)`, go on with `rounds(round)` and skip so many clips.
        """
        clip = self.first_clip(batch)
        index = int(np.searchsorted(self._before, clip, side="right")) - 1
        index = min(index, self.num_rounds)
        return index, clip - int(self._before[index])

    def resident(self, round_index: int) -> Loads:
        """Loads that bring exactly the frames held when a round begins, before its own loads."""
        walk = self._lanes.held(round_index)
        return self._loads(walk, walk.first, walk.loaded_before)[1]

    def rounds(self, first_round: int = 0) -> Iterator[Round]:
        """The rounds from `first_round` on, computed as they are taken."""
        group = max(1, _CLIPS_AT_ONCE * self.num_rounds // max(1, self.num_clips))
        for start in range(first_round, self.num_rounds, group):
            yield from self._rounds(start, min(start + group, self.num_rounds))

    def _rounds(self, start: int, stop: int) -> Iterator[Round]:
        walk, turn = self._walk(start, stop)
        marks = np.arange(start, stop + 1)
        loads_round, loads = self._loads(walk, walk.loaded_before, walk.loaded)
        loads_at = np.searchsorted(loads_round, marks).tolist()
        clips = self._clips(walk, turn)
        clips_at = (self._before[start : stop + 1] - self._before[start]).tolist()
        frees_round, frees = self._frees(walk)
        frees_at = np.searchsorted(frees_round, marks).tolist()
        for i in range(stop - start):
            yield Round(
                start + i,
                loads.part(loads_at[i], loads_at[i + 1]),
                clips.part(clips_at[i], clips_at[i + 1]),
                frees.part(frees_at[i], frees_at[i + 1]),
            )

    def _walk(self, start: int, stop: int) -> tuple[Walk, IntArray]:
        """The parts of rounds `[start, stop)`, by round and turn, and each one's turn, int64[n].

        A cursor's turn is drawn in every round. What it loads comes in the order of the turns too,
        so that the first clips need not wait for all loads of their round.
        """
        walk = self._lanes.walk(start, stop)
        number = walk.round * max(1, self.num_cursors) + walk.cursor
        drawn = hash64(key_of(self._key, _CURSORS), number)
        # Equal numbers for the parts of one block, which keep their order.
        walk = walk.take(np.lexsort((drawn, walk.round)))
        block = np.cumsum(np.diff(walk.round * max(1, self.num_cursors) + walk.cursor) != 0)
        block = np.append(0, block) if len(walk) else block
        return walk, block - block[np.searchsorted(walk.round, walk.round)]

    def _loads(self, walk: Walk, start: IntArray, stop: IntArray) -> tuple[IntArray, Loads]:
        """Round, int64[n], and row of each chunk that has wanted frames in `[start, stop)`."""
        chunk_frames = self._episodes.chunk_frames[walk.episode]
        first_chunk = start // chunk_frames
        chunks = np.where(stop > start, -(-stop // chunk_frames) - first_chunk, 0)
        row = np.repeat(np.arange(len(walk)), chunks)
        chunk = first_chunk[row] + np.arange(len(row)) - (np.cumsum(chunks) - chunks)[row]
        size = chunk_frames[row]
        first = np.maximum(start[row], chunk * size)
        first += (self._spec.phase - first) % self.frame_step
        count = -(-(np.minimum(stop[row], (chunk + 1) * size) - first) // self.frame_step)
        some = count > 0
        row = row[some]
        episode = walk.episode[row]
        return walk.round[row], Loads(
            walk.cursor[row],
            walk.run[row],
            episode,
            self._episodes.first_chunk[episode] + chunk[some],
            first[some],
            count[some],
        )

    def _frees(self, walk: Walk) -> tuple[IntArray, Frees]:
        """Round, int64[n], and row of each run that frees something."""
        some = walk.kept > walk.first
        first = walk.first[some]
        count = -(-(walk.kept[some] - first) // self.frame_step)
        return walk.round[some], Frees(walk.cursor[some], walk.run[some], first, count)

    def _clips(self, walk: Walk, turn: IntArray) -> Clips:
        """The clips of whole rounds in the order in which they are emitted."""
        first = int(self._before[walk.round[0]]) if len(walk) else 0
        block, start = deal(
            walk,
            turn,
            np.searchsorted(self._selected, walk.episode),
            stride=self._spec.stride,
            span=self._spec.span,
            num_cursors=self.num_cursors,
            spread=self.num_cursors < (self.settings.batch_size or 1),
            key=key_of(self._key, _CLIPS) if self.settings.shuffle else None,
        )
        clip = np.arange(first, min(first + len(block), self.num_clips))
        block, start = block[: len(clip)], start[: len(clip)]
        return Clips(
            walk.cursor[block],
            walk.run[block],
            walk.episode[block],
            start,
            *self._batches.places(clip),
        )


def check_drop_last(total: int, settings: PlanSettings, num_splits: int) -> None:
    """Raise `ClipError` when `drop_last` leaves no batch of `total` clips in any split."""
    size = settings.batch_size or 1
    least = num_splits * size if settings.equal else num_splits * (size - 1) + 1
    if settings.drop_last and 0 < total < least:
        raise ClipError(
            "drop_last leaves no batch at all",
            expected=f"at least {least} clips: a batch of {size} in each of {num_splits} parts"
            if settings.equal
            else f"at least {least} clips: a batch of {size} in one of {num_splits} parts",
            got=f"{total} clips; smaller batches, fewer workers, or no drop_last",
        )


def resident_bound(table: ClipTable, episodes: EpisodeTable, settings: PlanSettings) -> int:
    """The most frames held at once in any split of any epoch.

    With `rotate_phase`, of the epochs of every phase that has clips of the same episodes.
    """
    cursors = settings.open_episodes if settings.shuffle else 1
    return cursors * cursor_bound(table, episodes, settings)


def _sequence(
    table: ClipTable, episodes: EpisodeTable, settings: PlanSettings, key: int, num_splits: int
) -> Pieces:
    """All clips of an epoch, in the order in which splits and lanes share them out."""
    pieces = Pieces(
        table.spec.stride,
        table.episode,
        table.first_start,
        table.count,
        np.cumsum(np.diff(table.episode, prepend=table.episode[:1]) != 0),
    )
    if not settings.shuffle:
        return pieces
    return shuffle_runs(
        pieces,
        settings.run_frames,
        episodes.chunk_frames[table.episode],
        key_of(key, _RUNS),
        num_lanes=num_splits * settings.open_episodes,
    )
