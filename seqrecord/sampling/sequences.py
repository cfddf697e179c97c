"""Sequences: an epoch in which each row of a batch follows an episode, clip by clip.

A *sequence* is consecutive clips of an episode: a clip that is left out, because a frame lacks a
feature, ends one and begins another. Row b of every batch continues row b of the batch before; when
its sequence ends, the row begins another one::

    batch               0     1     2     3     4     5
    row 0               A0    A1    A2    C0    C1    F0
    row 1               B0    B1    B2    B3    E0    E1
    row 2               D4    D5    D6    G0    G1            D is cut: another row has D0 to D3
    is_first of row 0   yes               yes         yes
    is_last of row 0                yes         yes   yes

Each row is a cursor that advances by one clip a round, and a round is a batch. So a row holds the
frames of a clip, and what of its last chunk the next clips need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from seqrecord.clips import ClipTable, EpisodeTable, IntArray
from seqrecord.errors import ClipError, StateError
from seqrecord.frame_keys import frame_keys
from seqrecord.sampling.bounds import cursor_bounds
from seqrecord.sampling.epoch import check_drop_last, key_of_stage
from seqrecord.sampling.facts import ClipFacts
from seqrecord.sampling.needs import Blocks
from seqrecord.sampling.parts import Part
from seqrecord.sampling.plan import Plan
from seqrecord.sampling.random_order import key_of, permutation
from seqrecord.sampling.rounds import Clips
from seqrecord.sampling.runs import Runs, joined_pieces
from seqrecord.sampling.sequence_rows import (
    Rows,
    equal_bounds,
    equal_rows,
    whole_bounds,
    whole_rows,
)
from seqrecord.sampling.settings import PlanSettings
from seqrecord.sampling.walks import Walk
from seqrecord.sampling.windows import Window

__all__ = [
    "COLUMNS",
    "SequencePlan",
    "frames_left_out",
    "sequence_settings",
    "sequences_left",
]

COLUMNS = ("is_first", "is_last")
"""What batches tell of their clips."""

_EPISODES = 4  # what a number drawn for an epoch is for: see `epoch`, which has others


class SequencePlan(Plan):
    """The plan of one part of one epoch, of which each row of a batch follows an episode.

    `settings` are those of `sequence_settings`. With `shuffle` episodes come in an order drawn from
    seed and epoch, else in that of `table`.

    All parts have equally many batches, full ones but for the last, and equally many clips: a part
    that has one less than others gives one that another gives too. Sequences are cut for that,
    `num_cut` of them at the begin of a row of this part. With `drop_last` every batch is full, and
    no clip is given twice.

    With `settings.equal` off every clip is in exactly one part and no sequence is cut. Rows end at
    different times, the last ones first: batches then have fewer rows. With `drop_last` those
    batches are left out.

    Raises `ClipError` when `drop_last` leaves no batch in any part.
    """

    num_cut: int  # of this part's rows, that begin inside a sequence
    num_sequences: int  # of this part; one that is cut counts in each of its rows

    def _lay_out(self, table: ClipTable, stage: int) -> None:
        settings, episodes = self.settings, self._episodes

        rows, full = _rows_of(table, settings, self.epoch, self.part, stage)
        self.num_repeated, self.num_cut = rows.num_repeated, rows.num_cut
        start, stop = rows.start, rows.stop
        total = int((stop - start).sum())
        if settings.drop_last:
            stop = np.minimum(stop, start + full)
            some = stop > start
            start, stop = start[some], stop[some]
        mine, cursor = rows.runs.slices(start, stop)
        self._sequences = mine
        self.num_sequences = len(mine)
        self._cursors = _Rows(mine, cursor, episodes, self._windows)
        self.num_cursors = self._cursors.count
        self.num_rounds = self.num_batches = self._cursors.num_rounds
        lengths = stop - start
        # Of the rows, which have fewer clips from one to the next, so many have a clip left.
        batches = np.arange(self.num_batches)
        going_on = len(lengths) - np.searchsorted(lengths[::-1], batches, side="right")
        self._before = np.append(0, np.cumsum(going_on))
        self.num_clips = int(self._before[-1])
        self.num_dropped = total - self.num_clips
        bounds = cursor_bounds(ClipFacts.of(table, episodes, self._windows), settings)
        self._resident = [self.num_cursors * bound for bound in bounds]

    @property
    def counts(self) -> dict[str, int]:
        """Of the clips and of the sequences."""
        return {
            **super().counts,
            "sequences": self.num_sequences,
            "sequences_cut": self.num_cut,
        }

    def columns(self, batch: int) -> Mapping[str, npt.NDArray[np.bool_]]:
        """`is_first` and `is_last`, bool[rows]: whether a row's clip begins, and ends, a sequence.

        That is as the row gives it: the first and the last clips of a row are such in any case.
        """
        count = self.first_clip(batch + 1) - self.first_clip(batch)
        clip = self._cursors.begin[:count] + batch
        row, _ = self._sequences.find(clip)
        first = self._sequences.first_clip[row]
        return {
            "is_first": clip == first,
            "is_last": clip + 1 == first + self._sequences.count[row],
        }

    def _first_clip(self, batch: int) -> int:
        return int(self._before[batch])

    def _in_order(self, blocks: Blocks) -> tuple[Blocks, IntArray]:
        order = np.lexsort((blocks.cursor, blocks.round))
        return blocks.take(order), blocks.cursor[order]

    def _clips(self, blocks: Blocks, position: IntArray) -> Clips:
        return Clips(
            blocks.cursor, blocks.run, blocks.episode, blocks.first, blocks.round, position
        )


class _Rows(Walk):
    """Rows of a batch: cursors that advance by one clip a round."""

    def __init__(
        self,
        runs: Runs,
        cursor: IntArray,
        episodes: EpisodeTable,
        windows: Sequence[Window],
    ) -> None:
        super().__init__(runs, cursor, episodes, windows)
        self.num_rounds = int((self._stop - self.begin).max(initial=0))

    def _first_clips(self, rounds: IntArray) -> IntArray:
        clips: IntArray = np.minimum(self.begin + rounds[:, None], self._stop)
        return clips


def sequence_settings(settings: PlanSettings, stride: int) -> PlanSettings:
    """The settings of an epoch of sequences: a cursor for each row, which advances by a clip."""
    return replace(
        settings,
        num_cursors=settings.batch_size or 1,
        block_frames=stride,
        run_frames=None,
        first_block_frames=stride,
    )


def frames_left_out(table: ClipTable, num_frames: IntArray) -> int:
    """How many frames of the selected episodes are in no clip.

    `num_frames`, int64, is that of all episodes. Where a frame is in several clips, these are of
    one row of `table`; so it is but with a `dilation` above 1 and clips that overlap.
    """
    spec = table.spec
    # Frames are `i * stride + j * dilation`. Two pairs are the same frame where their i differ by
    # multiples of `every` and their j by as many of `back`: all but the first of them count twice.
    common = int(np.gcd(spec.stride, spec.dilation))
    every, back = spec.dilation // common, spec.stride // common
    again = np.maximum(0, table.count - every) * max(0, spec.length - back)
    used = int((table.count * spec.length - again).sum())
    return int(num_frames[table.selected].sum()) - used


def sequences_left(
    table: ClipTable, settings: PlanSettings, batches: IntArray, *, epoch: int, stage: int
) -> ClipTable:
    """The clips of `table` that parts have not given, which `batches`, int64[parts], were given of.

    A clip that a part has given only to equalise counts as given by the part that has it. Nothing
    is left where every part has given all of its batches, not even what `drop_last` leaves out.
    What is left of a sequence is a sequence of its own.

    Raises `StateError` for more batches than there are.
    """
    runs, size = _in_order(table, settings, epoch, stage), settings.batch_size or 1
    count = len(batches)
    if settings.equal:
        start, stop = equal_bounds(runs, np.arange(count), count, size)
        total = runs.num_clips // count if settings.drop_last else -(-runs.num_clips // count)
        most = np.full(count, total // size if settings.drop_last else -(-total // size))
    else:
        runs, start, stop = whole_bounds(runs, np.arange(count), count, size)
        lengths = stop - start
        most = lengths.min(axis=1) if settings.drop_last else lengths.max(axis=1)
    if batches.max() > most.max(initial=0):
        raise StateError(
            "a part of an epoch has given more batches than it has",
            expected=f"at most {int(most.max())}",
            got=int(batches.max()),
        )
    begin = np.minimum(start + batches[:, None], stop).ravel()
    if (batches >= most).all():  # a part may have ended before others
        begin = stop.ravel()
    left = runs.slices(begin, stop.ravel())[0]
    return joined_pieces(table, frame_keys(left.episode, left.first_start), left.count)


def _in_order(table: ClipTable, settings: PlanSettings, epoch: int, stage: int) -> Runs:
    """The clips of all episodes in the order in which they are given out."""
    runs = Runs.of(table)
    if settings.shuffle and len(runs):
        key = key_of(key_of_stage(settings, epoch, stage), _EPISODES)
        runs = runs.ordered(permutation(key, int(runs.run[-1]) + 1))
    return runs


def _rows_of(
    table: ClipTable, settings: PlanSettings, epoch: int, part: Part, stage: int
) -> tuple[Rows, int]:
    """The rows of a part, and how many batches have all of them in each part, or in this one."""
    runs, size = _in_order(table, settings, epoch, stage), settings.batch_size or 1
    if settings.equal:
        if settings.drop_last and not stage:
            check_drop_last(table.num_clips, settings, part.count)
        rows = equal_rows(runs, part, size, fill=not settings.drop_last)
        return rows, runs.num_clips // part.count // size
    rows = whole_rows(runs, part, size)
    # The last part's rows are the longest ones.
    last = Part(part.count - 1, part.count)
    most = rows if part == last else whole_rows(runs, last, size)
    if settings.drop_last and not stage and len(runs) and not most.full(size):
        raise ClipError(
            "drop_last leaves no batch at all",
            expected=f"at least {(size - 1) * part.count + 1} episodes: one for each row",
            got=f"{int(runs.run[-1]) + 1} episodes; smaller batches, fewer workers, no drop_last, "
            "or equal=True, which cuts episodes",
        )
    return rows, rows.full(size)
