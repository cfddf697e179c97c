"""Runs: consecutive clips of one episode, which one cursor walks. Pure integers.

The clips of an epoch are a sequence of runs. To shuffle them, runs are cut, which gives two runs
each, and put in another order::

    episodes            |--------A--------|---B---|----------C----------|
    cut                 |---A---|----A----|---B---|-----C-----|----C----|
    in another order    |----C----|---B---|---A---|-----C-----|----A----|
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from seqrecord.clips import ClipTable, IntArray
from seqrecord.errors import ClipError
from seqrecord.frame_keys import MAX_OWNERS, split_keys
from seqrecord.grids import numbered
from seqrecord.sampling.cuts import Cuts
from seqrecord.sampling.random_order import hash64, key_of, permutation

__all__ = ["Runs", "joined_pieces", "merged", "shuffle_runs"]


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs in the order in which they are walked.

    Row `i` holds `count[i]` clips of `episode[i]`, at `first_start[i]` and from there every
    `stride` frames, of run number `run[i]`. A run has more than one row where clips between them
    are left out, for a frame of theirs lacks a feature. What was loaded for one row of a run is
    kept for the next one. Columns are int64[n]; `run` never falls.

    Raises `ClipError` for a run number of 2^31 or more: the key of a frame has no room for it.
    """

    stride: int
    episode: IntArray
    first_start: IntArray
    count: IntArray
    run: IntArray
    first_clip: IntArray = field(init=False)  # clips before the row
    num_clips: int = field(init=False)

    def __post_init__(self) -> None:
        if len(self.run) and self.run[-1] >= MAX_OWNERS:
            raise ClipError(
                "an epoch of more runs than can be numbered; select fewer episodes or clips",
                expected=f"at most {MAX_OWNERS}",
                got=int(self.run[-1]) + 1,
            )
        object.__setattr__(self, "num_clips", int(self.count.sum()))
        object.__setattr__(self, "first_clip", np.cumsum(self.count) - self.count)

    @classmethod
    def of(cls, table: ClipTable) -> Runs:
        """The clips in canonical order, one run for each episode."""
        run = np.cumsum(np.diff(table.episode, prepend=table.episode[:1]) != 0)
        return cls(table.spec.stride, table.episode, table.first_start, table.count, run)

    def __len__(self) -> int:
        return len(self.episode)

    @property
    def last_start(self) -> IntArray:
        """Of each row's last clip; int64[n]."""
        return self.first_start + (self.count - 1) * self.stride

    def find(self, clips: IntArray) -> tuple[IntArray, IntArray]:
        """Row and start, int64[n] each, of clips counted over all rows."""
        row = np.searchsorted(self.first_clip, clips, side="right") - 1
        return row, self.first_start[row] + (clips - self.first_clip[row]) * self.stride

    def snap(self, clips: IntArray, cuts: Cuts) -> IntArray:
        """Each clip moved back, within its row, to the first one that uses nothing before its
        chunk.

        `clips` is int64[n], counted over all rows; `cuts` are of the same rows.
        """
        row, start = self.find(clips)
        begin, _ = cuts.chunks(row, start)
        step = -(-(begin - self.first_start[row]) // self.stride)
        snapped: IntArray = self.first_clip[row] + np.maximum(step, 0)
        return snapped

    def cut(self, cuts: IntArray) -> Runs:
        """The same clips, with a new run at each of `cuts`: int64, ascending, counted in clips."""
        cuts = cuts[(cuts > 0) & (cuts < self.num_clips)]
        bounds = merged(self.first_clip, cuts)
        row, start = self.find(bounds)
        run = self.run[row] + np.searchsorted(cuts, bounds, side="right")
        count = np.diff(bounds, append=self.num_clips)
        return Runs(self.stride, self.episode[row], start, count, run)

    def slices(self, starts: IntArray, stops: IntArray) -> tuple[Runs, IntArray]:
        """The clips `[starts[i], stops[i])`, one slice after the other; and each row's slice.

        `starts` and `stops` are int64[n], counted in clips; a slice may be empty. Runs are
        numbered anew, and each slice begins one.
        """
        first = np.searchsorted(self.first_clip, starts, side="right") - 1
        number = np.searchsorted(self.first_clip, stops, side="left") - first
        owner, inside = numbered(np.where(stops > starts, number, 0))
        row = first[owner] + inside
        begin = np.maximum(self.first_clip[row], starts[owner])
        end = np.minimum(self.first_clip[row] + self.count[row], stops[owner])
        new = (np.diff(owner, prepend=-1) != 0) | (np.diff(self.run[row], prepend=-1) != 0)
        start = self.first_start[row] + (begin - self.first_clip[row]) * self.stride
        runs = Runs(self.stride, self.episode[row], start, end - begin, np.cumsum(new) - 1)
        return runs, owner

    def ordered(self, number: IntArray) -> Runs:
        """The runs in ascending order of `number`, int64[runs], each still front to back."""
        row = np.argsort(number[self.run], kind="stable")
        run = np.cumsum(np.diff(self.run[row], prepend=self.run[row[:1]]) != 0)
        return Runs(self.stride, self.episode[row], self.first_start[row], self.count[row], run)


def joined_pieces(table: ClipTable, first: IntArray, count: IntArray) -> ClipTable:
    """The clips of some pieces of a table: `count[i]` of them from that of the key `first[i]` on.

    int64[n] each, in any order; keys are `frame_keys` of clips' starts. Pieces that touch are one.
    """
    order = np.argsort(first, kind="stable")
    first, count = first[order], count[order]
    episode, start = split_keys(first)
    behind = start + count * table.spec.stride
    other = (start[1:] != behind[:-1]) | (episode[1:] != episode[:-1])
    opens = np.flatnonzero(np.append(True, other)[: len(first)])
    count = np.add.reduceat(count, opens) if len(opens) else count
    return replace(table, episode=episode[opens], first_start=start[opens], count=count)


def merged(one: IntArray, other: IntArray) -> IntArray:
    """The numbers that are in one of two ascending arrays, in ascending order, once each."""
    both = np.sort(np.concatenate((one, other)), kind="stable")  # which merges them
    found: IntArray = both[np.diff(both, prepend=both[:1] - 1) != 0]
    return found


def shuffle_runs(
    runs: Runs, run_frames: int | None, places: Cuts, key: int, *, num_shares: int
) -> Runs:
    """The same clips in runs of about `run_frames` frames, in an order drawn from `key`.

    Runs are cut where chunks begin, see `Cuts`, at places that `key` moves by up to a quarter of a
    run; those no longer than `run_frames` stay whole. The
    order begins in the middle of a run, so that `num_shares` shares, which the clips are divided
    into at fixed places, begin elsewhere for another key; with `run_frames=None` that run is
    the only one cut. It stays whole where each share gets equally many whole runs.
    """
    total = runs.num_clips
    if not total:
        return runs
    length = total
    if run_frames is not None:
        length = min(total, max(1, run_frames // runs.stride))
    steps = np.arange(-(-total // length))
    drawn = hash64(key_of(key, 0), np.append(steps, -1))
    moved = (drawn[:-1] % np.uint64(length // 2 + 1)).astype(np.int64) - length // 4
    moved[0] = 0
    wanted = (int(drawn[-1] % np.uint64(total)) + steps * length + moved) % total

    row = np.searchsorted(runs.first_clip, wanted, side="right") - 1
    run_clips = np.zeros(int(runs.run[-1]) + 1, np.int64)
    np.add.at(run_clips, runs.run, runs.count)
    is_long = run_clips[runs.run[row]] > length
    even = num_shares == 1 or (
        bool((run_clips == run_clips[0]).all()) and len(run_clips) % num_shares == 0
    )
    is_long[0] = not even
    cuts = runs.snap(wanted[is_long], places)
    runs = runs.cut(np.unique(cuts))

    number = np.empty(int(runs.run[-1]) + 1, np.int64)
    number[permutation(key_of(key, 1), len(number))] = np.arange(len(number))
    if not even:
        number[runs.run[np.searchsorted(runs.first_clip, cuts[0])]] = -1
    return runs.ordered(number)
