"""Interleaving: how many cursors, and which blocks, mix the batches of a shard. Pure integers.

More cursors mix better, but each begins inside an episode, where frames are read twice. So the
number of cursors is bounded by a fraction of repeated reads; memory bounds it too (see `memory`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from seqrecord.loader.sampling.bounds import ClipStats, PlanSettings
from seqrecord.loader.sampling.passes import PASSES_OF_CURSOR
from seqrecord.loader.sampling.spreading import Spreading
from seqrecord.store.units import MAX_INT

# Figures: sets of benchmarks.tartanair.default_mixing, with the value and without it or with the
# other one. "Episodes" are those of a batch, compared with a full shuffle of the shard alone: the
# table of today compares with one of the dataset.
LEAST_CURSORS = 2  # 1: 33 % of the episodes for 60 % (video, GOP 50, 8 shards, batches of 4)
ENOUGH_CURSORS = 12  # for a batch, or as many as it has clips. 1: 95 % of the episodes for 119 %
ENOUGH_EPISODES = 0.95  # 0: 13 episodes in a batch for 32 (400 short ones, 8 shards)
ENOUGH_OF_ALL = 0.85  # … of the dataset in a batch of a shard whose frames stay; else it is logged
MOST_OF_A_BLOCK = 8  # clips of a batch, which dealing keeps apart. 32: 7.3 episodes for 8.0
CLOSE = 1.15  # clips of a batch for each cursor, from which on blocks must be long enough for them.
# 1.0: 7.9 episodes for 8.9 (ten episodes, batches of 32, 1,000 frames in memory)
SPREAD_BLOCKS = 2  # times as long, of runs of any length. 1: 2.4 overlapping neighbours for 0.35
# (30 episodes of 600 frames, GOP 250, batches of 32, 8 shards)
REREAD_BY_CURSORS = 0.031  # fraction of frames that dividing the epoch among cursors may read twice
REREAD = 0.035  # … and cuts of runs. Without cuts 52 % of the pairs of a batch come together again
# in the next epoch, for 7 % (one episode of 20,000 frames; by chance 2.6 %)
MOST_REREAD = 0.10  # by cursors, where a batch needs more. 0.031: 3.8 episodes for 7.6
MOST_REREAD_IN_MANY = 0.20  # … in many shards. 0.10: 7.2 episodes for 14.9 (256 shards)
MANY_SHARDS = 64
FIRST_ROUND = 256  # clips of an epoch's first round. Without: 15,348 before the first batch
RUNS_PER_CLIP = 2  # of a batch, in a shard of spread runs. 1: 0.88 of a full shuffle's episodes for
# 1.12 (50 of 100 frames, clips of 4, 8 shards; benchmarks.ranks)

_FACTORS = np.array([1, 2, 3, *(factor << i for i in range(40) for factor in (4, 5, 6, 7))])
"""Candidate lengths of blocks, in the shortest one."""


@dataclass(frozen=True, eq=False)
class Interleaving:
    """The numbers of cursors and lengths of blocks that mix the batches of a shard well.

    Attributes:
        batch_size: clips of a batch.
        span: frames of a clip.
        num_clips: clips of a shard.
        enough: cursors for a batch, about its number of episodes in a full shuffle.
        whole: cursors that read one whole episode each; 0 if episodes do not divide evenly.
        passes: the most cursors that begin with passes, see `sampling.passes`.
        most: cursors for which a shard has room, where shares begin at keyframes.
        reread_by_cursor: fraction of all frames that one cursor more in every shard reads twice.
        reread_by_shards: … and that the shards read twice, whatever the cursors.
        budget: the greatest such fraction.
        blocks: candidate lengths of a block in frames, ascending.
        runs: of a shard, each read by a cursor, where episodes are cut and spread over the shards,
            because other shares would have too few of them (see `spreading`); else 0.
        cuts: for so many runs.
        reread_by_cuts: fraction of all frames that they read twice.
    """

    batch_size: int
    span: int
    num_clips: int
    enough: int
    whole: int
    passes: int
    most: int
    reread_by_cursor: float
    reread_by_shards: float
    budget: float
    blocks: list[int]
    runs: int = 0
    cuts: int = 0
    reread_by_cuts: float = 0.0

    @classmethod
    def of(
        cls, stats: ClipStats, settings: PlanSettings, num_shards: int, stay: bool
    ) -> Interleaving:
        """Derive the numbers. A single shard whose frames `stay` reads nothing twice."""
        size, span, stride = settings.batch_size, stats.window.span, stats.spec.stride
        num_clips = -(-stats.num_clips // num_shards)
        full = episodes_in_batch(max(1, stats.num_episodes), size or ENOUGH_CURSORS)
        enough = max(min(size or ENOUGH_CURSORS, ENOUGH_CURSORS), ceil(ENOUGH_EPISODES * full))
        whole, rest = divmod(stats.num_episodes, num_shards)
        most = MAX_INT
        if stats.keyframes:  # shorter shares could not begin at keyframes
            shortest = 2 * -(-stats.most_keyframes // stride) + 1
            most = max(1, stats.num_clips // (num_shards * shortest))
        reread = (0.0, 0.0) if stay and num_shards == 1 else stats.reread(num_shards)
        # Multiples of half a clip: shorter steps save little memory, because clips stay whole, and
        # in the same memory more cursors beat longer blocks (benchmarks/tartanair/ORDER.md). If
        # clips do not overlap: multiples of a chunk, so that a round uses whole chunks.
        shortest = max(1, span // 2, stats.largest_chunk if stride >= span else 0)
        factor = -(-2 * max(shortest, stats.whole_block()) // shortest)
        dealt = cls(
            size or 1,
            span,
            num_clips,
            min(enough, num_clips),
            whole if stats.is_even and not rest else 0,
            stats.num_passes // (PASSES_OF_CURSOR * num_shards),
            most,
            *reread,
            MOST_REREAD if num_shards <= MANY_SHARDS else MOST_REREAD_IN_MANY,
            (shortest * _FACTORS[: np.searchsorted(_FACTORS, factor)]).tolist(),
        )
        # Passes are dealt to shards and cursors so that copies come evenly; equal shares of spread
        # runs would undo that (test_copies_are_spread_in_the_batches_of_each_rank).
        if num_shards == 1 or stay or stats.uncut or stats.num_passes:
            return dealt
        episodes = 1 + (stats.num_episodes - 1) / num_shards  # of adjacent clips
        is_mixed = dealt.affordable(dealt.enough) >= dealt.enough
        if num_clips <= FIRST_ROUND:  # a shard of one round
            is_mixed = episodes_in_batch(episodes, dealt.batch_size) >= ENOUGH_EPISODES * full
        return dealt if is_mixed else dealt.spread(Spreading(stats, num_shards))

    def spread(self, spreading: Spreading) -> Interleaving:
        """These numbers for shards of runs, or unchanged if they have no more of them.

        Two runs for each clip of a batch, if the usual repeated reads allow so many.
        """
        usual = spreading.cuts_for(
            RUNS_PER_CLIP * max(self.batch_size, ENOUGH_CURSORS), REREAD_BY_CURSORS
        )
        cuts = max(usual, spreading.cuts_for(self.enough, self.budget))
        runs = spreading.num_runs(cuts)
        if runs <= self.affordable(self.enough):
            return self
        reread = spreading.reread(cuts)
        # One more, because shards begin and end inside runs.
        return replace(self, runs=ceil(runs) + 1, cuts=cuts, reread_by_cuts=reread)

    @property
    def ways(self) -> list[tuple[int, int]]:
        """Pairs of cursors and block length that mix a batch well; most cursors first.

        Either each clip of a batch comes from another cursor, or blocks are long enough for
        several.
        """
        ways = {}
        for clips in (CLOSE, *range(2, MOST_OF_A_BLOCK + 1)):  # of a block
            cursors = max(self.enough, ceil(self.batch_size / clips))
            ways[cursors] = self.block(cursors)
        return [*ways.items()]

    def affordable_ways(self) -> list[tuple[int, int]]:
        """The `ways` that repeated reads allow, and the whole episodes of a shard."""
        ways, affordable = self.ways, list[tuple[int, int]]()
        for cursors, block in ways:
            if cursors <= self.affordable(cursors):
                affordable.append((cursors, block))
        if self.whole >= ways[-1][0]:  # these read nothing twice
            affordable.append((self.whole, self.block(self.whole)))
        if self.runs and not affordable:
            affordable.append((self.runs, self.block(self.runs)))
        return affordable

    def affordable(self, wanted: int) -> int:
        """The number of cursors, at most `wanted`, that repeated reads allow."""
        if self.runs:
            return min(wanted, self.runs)
        whole = self.whole if self.whole <= wanted else 0
        wanted = min(wanted, self.most)
        numbers = []
        for budget in (REREAD_BY_CURSORS, self.budget):
            number = wanted
            if self.reread_by_cursor * wanted + self.reread_by_shards > budget:
                left = budget - self.reread_by_shards
                number = int(left / self.reread_by_cursor) if self.reread_by_cursor else wanted
            numbers.append(max(0, number))
        usual, most = numbers
        number = max(usual, min(self.enough, most), LEAST_CURSORS)
        return max(number, whole, min(wanted, self.passes))

    def block(self, cursors: int) -> int:
        """The block length in frames with which this number of cursors mixes a batch well."""
        longer = SPREAD_BLOCKS if self.runs else 1
        return max(self.blocks[0], longer * self.apart(cursors))

    def apart(self, cursors: int) -> int:
        """The block length in frames at which a batch's clips of one block do not overlap."""
        if self.batch_size <= CLOSE * cursors:
            return 1
        return min(-(-self.batch_size // cursors), MOST_OF_A_BLOCK) * self.span

    def reread(self, cursors: int) -> float:
        """Fraction of all frames read twice with this number of cursors."""
        if self.runs:
            return self.reread_by_cuts
        if cursors == self.whole or cursors <= self.passes:
            return 0.0
        return self.reread_by_cursor * cursors + self.reread_by_shards


def episodes_in_batch(episodes: float, size: int) -> float:
    """Expected number of episodes in a batch of `size` clips, if all episodes have one length."""
    return episodes * (1 - (1 - 1 / episodes) ** size)
