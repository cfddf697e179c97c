"""Cursors and blocks: as many cursors as reading and memory allow, then blocks as memory allows.

More cursors mix better. Each one begins inside an episode, and so decodes frames twice. They are
measured: for a number of cursors, shares are cut with a key of their own, equal for all ranks,
epochs and seeds, and the frames that the cuts decode twice are counted.

1. *Reading*: the most cursors that decode at most `USUAL_REREAD` of the frames twice, or at most
   `MOST_REREAD` while there are fewer than the clips of a batch.
2. *Memory*: one cursor walks over rows of the table; its greatest memory, and the frames of a chunk
   that are loaded with others, times the number of cursors, fit into `room`, see `CursorWalk`.
3. *Phase*: if the mean phase of all cursors varies over the epoch by more than `MOST_PHASE` times
   what independent clips vary by, begins keep phases that keyframes do not have, as far as
   `MOST_REREAD` allows; if this does not suffice, there are fewer cursors. Only if a clip is short
   beside its episode.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from seqrecord.loader.clips.frames import ClipKeys
from seqrecord.loader.sampling.cursor_shares import (
    GOLDEN,
    EpisodeSequence,
    coprime_part,
    cut_bytes,
    leading,
    median,
    num_read,
    num_used,
    share_out,
    unit_frames,
)
from seqrecord.loader.sampling.decoding_units import FrameGroup
from seqrecord.loader.sampling.frame_life import FrameLife, life_of_frames, peak_bytes
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.tables.grids import IntArray, distinct, ragged_arange

USUAL_REREAD = 0.035
MOST_REREAD = 0.09
MOST_PHASE = 2.0
BLOCKS = tuple(size << power for power in range(14) for size in (2, 3))
"""Rows of blocks, of which the longest that fits is taken."""

UNLIMITED = 1 << 62
"""Bytes of a process without a limit."""

_KEY = 0  # of measurements
_USUAL_BLOCK = 16  # rows, of more cursors than a batch needs
_MOST_BLOCK = 64  # rows, unless a batch has several rows of a block, which would overlap
_APART = 3  # of rows that do not overlap
_MOST_ROWS = 1 << 17  # of a round
_WALKED_ROWS = 1 << 12
_WALKED_FRAMES = 1 << 21
_BEGINS = 2
_MOST_MEASURED = 1 << 12  # shares whose phases are measured
_TIMES = 32
_QUARTER = 4
_TRIES = 8  # numbers of cursors, where begins do not align


Walk = tuple[list[tuple[FrameGroup, FrameLife]], int]


@dataclass(frozen=True)
class ShareSettings:
    """The settings of an order.

    Attributes:
        num_cursors: cursors of each shard.
        block_rows: rows of a block, about.
        aligned: the part of the begins of shares that move to units.
        rotation: of the shards from turn to turn; see `cursor_shares`.
        reread: frames decoded twice because shares begin inside episodes, in parts of all.
        is_resident: whether frames stay in memory for later epochs.
        is_permuted: whether an epoch is a permutation of its rows.
    """

    num_cursors: int
    block_rows: int
    aligned: float = 1.0
    rotation: int = 0
    reread: float = 0.0
    is_resident: bool = False
    is_permuted: bool = False

    @property
    def round_rows(self) -> int:
        """Rows of the longest round."""
        return self.num_cursors * self.block_rows


@dataclass(frozen=True, eq=False)
class ShareRequest:
    """What settings depend on.

    Attributes:
        table: the rows of an epoch, at least one.
        groups: the groups of features.
        batch_size: rows of a batch.
        num_ranks: number of ranks.
        num_workers: DataLoader workers of a rank, at least 1.
        keeps_frames: whether frames stay in memory, so that a process decodes each once.
        max_cursors: upper bound of the number of cursors.
        max_round_rows: upper bound of the rows of a round.
    """

    table: RowTable
    groups: Sequence[FrameGroup]
    batch_size: int
    num_ranks: int = 1
    num_workers: int = 1
    keeps_frames: bool = False
    max_cursors: int | None = None
    max_round_rows: int | None = None
    _measured: dict[tuple[float, ...], float] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def _sequence(self) -> EpisodeSequence:
        return EpisodeSequence.shuffled(self.table, _KEY)

    @cached_property
    def _walk(self) -> CursorWalk:
        return CursorWalk(self._sequence, self.groups)

    @property
    def num_shards(self) -> int:
        return self.num_ranks * self.num_workers

    @property
    def most_rows(self) -> int:
        """Rows of the longest round, at most."""
        return min(self.max_round_rows or _MOST_ROWS, _MOST_ROWS)

    def choose(self, room: int = UNLIMITED) -> ShareSettings:
        """The settings, with `room` bytes for frames and decoders of a process: where one cursor
        does not fit, those of one with blocks of one row.
        """
        most = max(1, len(self.table) // self.num_shards)
        most = min(most, self.most_rows, self.max_cursors or most)
        most = self._last(most, lambda count: self._block(count, room) is not None)
        if not self.keeps_frames or self.num_shards > 1:
            most = min(most, max(1, self._num_units // self.num_shards))
            most = self._last(most, lambda count: self._reread(count) <= self._most_reread(count))
        most = self._with_block(most, room)
        count, aligned, rotation = self._spread(most, room)
        reread = self._reread(count, aligned)
        return ShareSettings(count, self._block(count, room) or 1, aligned, rotation, reread)

    def least_room(self, num_cursors: int) -> int:
        """The bytes that so many cursors need at least."""
        return self._total(num_cursors, self._least_block(num_cursors))

    @staticmethod
    def _last(most: int, fits: Callable[[int], bool]) -> int:
        """About the greatest number up to `most` that fits, at least 1."""
        low, high = 1, most + 1
        while high - low > max(1, low // 16):
            middle = most if high > most and low == 1 else (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    # ---- memory

    def _least_block(self, num_cursors: int) -> int:
        if num_cursors == 1:
            return 1
        usual = _USUAL_BLOCK if num_cursors > self.batch_size else 1
        return max(usual, -(-2 * self.batch_size // num_cursors))

    def _block(self, num_cursors: int, room: int) -> int | None:
        """The longest block that fits; `None` if none does that is long enough."""
        least, most = self._least_block(num_cursors), _MOST_BLOCK
        if num_cursors > 1 and num_cursors * least > self.most_rows:
            return None
        if num_cursors < self.batch_size:  # rows of a batch overlap in shorter blocks
            span = max(group.span for group in self.groups) / self.table.stride
            most = max(most, ceil(_APART * parts_of_block(self.batch_size, num_cursors) * span))
        most = max(least, min(most, self.most_rows // num_cursors))
        blocks = sorted({least, most, *(block for block in BLOCKS if least <= block <= most)})
        fitting = bisect_right(blocks, room, key=lambda b: self._total(num_cursors, b))
        return blocks[fitting - 1] if fitting else None

    def _with_block(self, num_cursors: int, room: int) -> int:
        """The most cursors up to a number with a block that fits. Rounded up, blocks of fewer
        cursors may not.
        """
        while num_cursors > 1 and self._block(num_cursors, room) is None:
            num_cursors -= 1
        return num_cursors

    def _total(self, num_cursors: int, block: int) -> int:
        """The most bytes of all cursors of a process."""
        if self.keeps_frames:
            return 0
        together = min(num_cursors * self._together, self._used_bytes)
        return self._walk.total(num_cursors, block) + together

    @cached_property
    def _together(self) -> int:
        """The bytes of frames that a cursor has since they are loaded with others."""
        episode = self.table.episode
        return sum(one.nbytes * (one.num_together(episode) - 1) for one in self.groups)

    # ---- reading

    @cached_property
    def _num_units(self) -> int:
        """How many rows begin units, about: more begins of shares would not align."""
        group, table = leading(self.groups), self.table
        if group.is_alone:
            return len(table)
        return max(1, min(len(table), len(table) * table.stride // unit_frames(group)))

    @cached_property
    def _used_bytes(self) -> int:
        """The bytes of all frames that rows need."""
        return sum(group.nbytes * num_used(self.table, group) for group in self.groups)

    @cached_property
    def _read_bytes(self) -> int:
        """The bytes of all frames that are read for rows."""
        return sum(group.nbytes * num_read(self.table, group) for group in self.groups)

    def _most_reread(self, num_cursors: int) -> float:
        return MOST_REREAD if num_cursors <= self.batch_size else USUAL_REREAD

    def _reread(self, num_cursors: int, aligned: float = 1.0) -> float:
        """The frames that are decoded twice, in parts of all."""
        if self.keeps_frames and self.num_shards == 1:
            return 0.0
        if (key := (num_cursors, aligned)) not in self._measured:
            self._measured[key] = self._measure_reread(num_cursors, aligned)
        return self._measured[key]

    def _measure_reread(self, num_cursors: int, aligned: float) -> float:
        num_shares = self.num_shards * num_cursors
        if num_shares <= _MOST_MEASURED:
            return self._cut(self.num_shards, num_cursors, aligned) / max(1, self._read_bytes)
        # Each begin costs the same on average; those of the last turn are not aligned.
        last = self.num_shards if self.num_shards > 1 else 0
        cut = (num_shares - last) * self._cut(1, _MOST_MEASURED, aligned)
        cut += last * self._cut(1, _MOST_MEASURED, 0.0)
        return cut / _MOST_MEASURED / max(1, self._read_bytes)

    def _cut(self, num_shards: int, num_cursors: int, aligned: float) -> int:
        """The bytes of frames that are decoded twice."""
        numbers = num_shards, num_cursors, _KEY
        # As dealt: shares of last turns, which make shards equal, are not aligned.
        begin = share_out(self._sequence, self.groups, *numbers, aligned).begin
        begin %= self._sequence.total
        row = distinct(self._sequence.find(begin)[1])  # empty shares begin where others do
        return int(cut_bytes(self.table, self.groups, row).sum())

    # ---- phase

    def _spread(self, most: int, room: int) -> tuple[int, float, int]:
        """The number of cursors, the part of their begins that align with units, and the rotation
        of shards.
        """
        span = max(group.span for group in self.groups)
        rows = int(median(np.diff(self.table.bounds)))
        is_short = span * _QUARTER < (rows - 1) * self.table.stride + span
        if not is_short or most * self.num_shards > _MOST_MEASURED:
            return most, 1.0, 0
        are_alone = all(group.is_alone for group in self.groups)
        # Ranks share their steps, workers do not.
        rotations = (0,) if self.num_workers == 1 else (0, coprime_part(self.num_shards))
        tried, count = list[tuple[float, int, float, int]](), most
        tries = _TRIES
        while count and tries:
            wanted = MOST_PHASE / min(self.num_ranks * self.batch_size, self.num_shards * count)
            for rotation in rotations:
                aligned, phase = 1.0, self._phase(count, 1.0, rotation, room)
                if phase > wanted and not are_alone:
                    aligned = self._least_aligned(count)
                    phase = self._phase(count, aligned, rotation, room)
                if phase <= wanted:
                    return count, aligned, rotation
                tried.append((phase / wanted, -count, aligned, rotation))
            count, tries = self._with_block(count - max(1, count // 16), room), tries - 1
        # Fewer cursors that do not suffice either would cost episodes for nothing.
        _, count, aligned, rotation = min(t for t in tried if -t[1] >= most * 7 // 8)
        return -count, aligned, rotation

    def _least_aligned(self, num_cursors: int) -> float:
        """The least part of begins that align, so that at most `MOST_REREAD` is decoded twice."""
        low, high = self._reread(num_cursors, 1.0), self._reread(num_cursors, 0.0)
        part = (MOST_REREAD - low) / max(high - low, 1e-9)
        return 1.0 - min(1.0, max(0.0, part))

    def _phase(self, num_cursors: int, aligned: float, rotation: int, room: int) -> float:
        """How much the mean phase of cursors varies over the epoch, in parts of what phases vary
        by: of all cursors of a step's shards, averaged over steps.
        """
        numbers = self.num_shards, num_cursors, _KEY
        shares = share_out(self._sequence, self.groups, *numbers, aligned, rotation)
        counts = np.diff(shares.begin, append=shares.begin[0] + self._sequence.total)
        cursor, begin = shares.cursor[counts > 0], shares.begin[counts > 0]
        counts = counts[counts > 0]
        times = (np.arange(_TIMES) + 0.5) / _TIMES
        row = begin + np.floor(times[:, None] * counts).astype(np.int64)
        place, row = self._sequence.find(row % self._sequence.total)
        owner, bounds = self._sequence.order[place], self.table.bounds
        phase = (row - bounds[owner] + 0.5) / (bounds[owner + 1] - bounds[owner])
        worker = cursor // num_cursors % self.num_workers
        means = [
            np.average(phase[:, worker == number], axis=1, weights=counts[worker == number])
            for number in range(self.num_workers)
            if (worker == number).any()
        ]
        # A round mixes the phases of its blocks.
        block = self._block(num_cursors, room) or 1
        num_blocks = len(self.table) / (self.num_shards * num_cursors * block)
        rounds = np.cumsum(np.diff((times * num_blocks).astype(np.int64), prepend=0) != 0)
        rounds -= rounds[0]
        sizes = np.bincount(rounds)
        of_rounds = np.stack([np.bincount(rounds, mean) / sizes for mean in means])
        return float(np.average((of_rounds - 0.5) ** 2, axis=1, weights=sizes).mean() * 12)


def parts_of_block(batch_size: int, num_cursors: int) -> float:
    """How many rows of a block are evenly spread: those of a batch, rounded up, and one more.

    If a batch has at most one row of each cursor: 1 / GOLDEN, so that any number is.
    """
    if num_cursors >= batch_size:
        return 1 / GOLDEN
    return -(-batch_size // num_cursors) + 1.0


class CursorWalk:
    """The memory of a cursor that walks over rows of a table.

    It walks over rows of a shuffle, of the shortest episodes, which have most frames for their
    rows, and of the longest, whose windows are not cut. Its rounds have one row: with blocks of n
    rows, a round and the loads of the next one are any 2 n rows in turn. What longer parts need
    is at most the sum of what their parts need.

    Where a share begins with the last rows of an episode, they and the next episode need more, at
    most as much as a row that is a piece of its own.

    Args:
        sequence: the shuffle.
        groups: the groups of features.
    """

    def __init__(self, sequence: EpisodeSequence, groups: Sequence[FrameGroup]) -> None:
        self._table, self._groups = sequence.table, groups
        by_length = np.argsort(np.diff(sequence.table.bounds), kind="stable")
        self._orders = sequence.order, by_length, by_length[::-1]
        frames = max(group.row_frames for group in groups)
        self._rows = max(_WALKED_ROWS >> 4, min(_WALKED_ROWS, _WALKED_FRAMES // frames))
        self._peaks = dict[int, int]()

    def total(self, num_cursors: int, block: int) -> int:
        """The most bytes of frames and decoders of cursors with blocks of so many rows.

        Many cursors are not at their worst places together, so begins of two shares suffice.
        """
        return num_cursors * self._peak(block) + min(num_cursors, _BEGINS) * self._single

    def _peak(self, block: int) -> int:
        """The most bytes of one cursor that is not at the begin of its share."""
        if block not in self._peaks:
            rows = min(2 * block, len(self._table))
            parts = -(-rows // (self._rows // 2))
            ahead = -(-rows // parts) - 1
            peak = max(peak_bytes(lives, num_rows, ahead) for lives, num_rows in self._walks)
            self._peaks[block] = parts * peak
        return self._peaks[block]

    @cached_property
    def _walks(self) -> list[Walk]:
        return [self._walk(order, self._rows) for order in self._orders]

    @cached_property
    def _single(self) -> int:
        """The most bytes of a row that is a piece of its own."""
        walks = [self._walk(order, self._rows >> 3, singly=True) for order in self._orders]
        return max(peak_bytes(lives, num_rows, 0) for lives, num_rows in walks)

    def _walk(self, order: IntArray, most: int, *, singly: bool = False) -> Walk:
        """The lives of frames, and the number of rows."""
        bounds, order = self._table.bounds, order[:most]
        ends = np.cumsum(bounds[order + 1] - bounds[order])
        ends = np.minimum(ends[: np.searchsorted(ends, most) + 1], most)
        run, offset = ragged_arange(np.diff(ends, prepend=0))
        row = bounds[order[run]] + offset
        episode, start = self._table.locate(row)
        clips = ClipKeys(episode, start, self._table.samples(row), np.zeros_like(row))
        rounds = np.arange(len(run))
        run = rounds if singly else run
        lives = [
            (group, life_of_frames(group, run, episode, group.frames_of(clips), rounds))
            for group in self._groups
        ]
        return lives, len(rounds)
