"""Elastic epochs: the remaining clips after a change of ranks or workers.

An epoch in which the number of shards changes has *segments*. In each segment, a fixed number of
shards returns batches of its own plan; the next segment plans the remaining clips like an epoch::

    segment 0, 4 shards   |#######    |########   |#######    |########   |     # returned
    segment 1, 2 shards          |#####-------------|######--------------|
    segment 2, 3 shards                |-------|-------|-------|

The remaining clips follow from the plans. A shard in round `r` has returned, of each cursor, all
clips before block `r`, some clips of that block, and none behind it. So one piece of each cursor's
runs remains, and the clips of round `r` that were not dealt yet. They are computed for all shards
at once, in columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from seqrecord.clips.grids import frame_keys, ragged_arange, run_bounds
from seqrecord.clips.tables import ClipTable, EpisodeTable, IntArray
from seqrecord.errors import StateError
from seqrecord.sampling.batches import BatchDraws, ShardBatches
from seqrecord.sampling.bounds import PlanSettings
from seqrecord.sampling.cursors import Cursors
from seqrecord.sampling.epoch import EpochLayout
from seqrecord.sampling.fixed_shards import shuffled
from seqrecord.sampling.runs import CursorShares, Shard, Window, concatenated_pieces
from seqrecord.sampling.sequences import remaining_sequences

_AT_ONCE = 1 << 18
_MAX_CURSORS = 1 << 24  # of all shards of a segment


@dataclass(frozen=True)
class EpochSegment:
    """A finished segment: worker `w` of each rank has returned `batches[w]` batches.

    A rank without workers counts as one worker. `settings` are the settings of the plan.
    """

    ranks: int
    batches: tuple[int, ...]
    settings: PlanSettings

    @property
    def num_shards(self) -> int:
        """The number of shards, which are numbered rank by rank, worker by worker."""
        return self.ranks * len(self.batches)

    @property
    def given(self) -> IntArray:
        """The number of batches that each shard has returned; int64[shards]."""
        return np.tile(np.array(self.batches, np.int64), self.ranks)


def find_remaining(
    table: ClipTable,
    episodes: EpisodeTable,
    segments: Sequence[EpochSegment],
    *,
    epoch: int,
    windows: Sequence[Window] | None = None,
    draws: BatchDraws | None = None,
    at_once: int = _AT_ONCE,
) -> ClipTable:
    """The clips of `table` that remain after all `segments` of an epoch.

    A duplicate that only evens out batches counts as returned by the clip's own shard. If every
    shard has returned its last batch, nothing remains, not even clips dropped by `drop_last`.

    Shards are processed in groups of about `at_once` clips. Raises `StateError` for a segment with
    more batches than its plan.
    """
    for number, segment in enumerate(segments):
        _check_size(segment)
        if segment.settings.order == "sequences":
            table = remaining_sequences(
                table, segment.settings, segment.given, epoch=epoch, segment=number
            )
        else:
            table = _RemainingClips(
                table, episodes, segment, epoch, number, windows, draws, at_once
            ).table()
    return table


def _check_size(segment: EpochSegment) -> None:
    settings, shards = segment.settings, segment.num_shards
    follows = settings.order == "sequences"
    each = settings.batch_size or 1 if follows else settings.cursors
    if shards * each > _MAX_CURSORS:
        raise StateError(
            f"a segment has more {'rows' if follows else 'cursors'} than can be planned",
            expected=f"at most {_MAX_CURSORS}, of all shards",
            got=f"{shards} shards of {each}",
        )


class _RemainingClips:
    """The remaining clips of a table after one segment."""

    def __init__(
        self,
        table: ClipTable,
        episodes: EpisodeTable,
        segment: EpochSegment,
        epoch: int,
        number: int,
        windows: Sequence[Window] | None,
        draws: BatchDraws | None,
        at_once: int,
    ) -> None:
        self._table, self._at_once, count = table, at_once, segment.num_shards
        windows = tuple(windows or [Window.of(table.spec)] * len(episodes.groups))
        settings, self._epoch = segment.settings, epoch
        self._is_shuffled = settings.resident and epoch > 0 and not number  # see `ShuffledPlan`
        of_shares = 0 if self._is_shuffled else epoch
        layout = EpochLayout.of(table, episodes, windows, settings, count, of_shares, number)
        self._layout = layout
        self._sequence, self._shares = layout.share_out(table, np.arange(count))
        workers = len(segment.batches)
        batches = [
            ShardBatches.of(settings, draws, epoch, number, Shard(worker, count, workers))
            for worker in range(workers)
        ]
        clips = layout.num_clips(self._shares, batches)
        longest = clips.reshape(segment.ranks, workers).max(axis=0).tolist()
        most = [one.count(clip) for one, clip in zip(batches, longest, strict=True)]
        if any(given > has for given, has in zip(segment.batches, most, strict=True)):
            raise StateError(
                "a segment of an epoch is beyond the epoch's end",
                expected=f"at most {max(most)} batches of each of {count} shards",
                got=f"{max(segment.batches)} batches",
            )
        # Products stay small: no shard has given more batches than it has.
        pairs = zip(batches, segment.batches, strict=True)
        given = np.array([one.first_clip(given) for one, given in pairs])
        self._given = np.minimum(np.tile(given, segment.ranks), clips)
        self._is_over = bool((self._given == clips).all())

    def table(self) -> ClipTable:
        """The remaining clips in canonical order."""
        if self._is_shuffled:
            return self._in_order(*_intervals(np.flatnonzero(self._left())))
        found = [] if self._is_over else list(map(self._remaining, self._groups()))
        empty = np.zeros(0, np.int64)
        columns = zip(*found, strict=True) if found else [[empty]] * 3
        start, stop, twice = (np.concatenate(list(column)) for column in columns)
        return self._in_order(*_without(start, stop, twice))

    def _left(self) -> npt.NDArray[np.bool_]:
        """Mask of the sequence's clips that remain of full shuffles."""
        left = np.full(self._sequence.num_clips, not self._is_over)
        for shard, given in enumerate(self._given.tolist() if not self._is_over else ()):
            shares = zip(self._shares.start[shard], self._shares.stop[shard], strict=True)
            own = np.concatenate([np.arange(*share) for share in shares])
            place = Shard(shard, len(self._given))
            left[own[shuffled(self._layout.settings, self._epoch, place, len(own))[:given]]] = False
        return left

    def _groups(self) -> Iterator[IntArray]:
        """Groups of shards that have clips, with the same number of cursors in a group."""
        sizes = self._shares.stop - self._shares.start
        cursors = (sizes > 0).sum(axis=1)
        for count in np.unique(cursors[cursors > 0]).tolist():
            shards = np.flatnonzero(cursors == count)
            width = max(1, self._at_once // max(1, int(sizes[shards].sum(axis=1).max())))
            for first in range(0, len(shards), width):
                yield shards[first : first + width]

    def _remaining(self, shards: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Remaining intervals of the sequence in these shards, and clips returned for others."""
        cursors = self._cursors(shards)
        longest = cursors.lengths.reshape(len(shards), -1).max(axis=1)
        lengths, kind = np.unique(longest, return_inverse=True)
        sizes = self._layout.sizes
        rounds = np.array([sizes.rounds(length) for length in lengths.tolist()])[kind]
        found = []
        for number in np.unique(rounds).tolist():  # one or two numbers, as a rule
            chosen = rounds == number
            some = cursors if chosen.all() else self._cursors(shards[chosen])
            assert some.num_rounds == number
            found.append(self._remaining_in_rounds(shards[chosen], some))
        start, stop, twice = (np.concatenate(column) for column in zip(*found, strict=True))
        return start, stop, twice

    def _cursors(self, shards: IntArray) -> Cursors:
        """The cursors of some shards, one shard after the other."""
        start, stop = (bounds[shards] for bounds in self._shares[:2])
        return self._layout.cursors(self._sequence, start, stop)

    def _remaining_in_rounds(
        self, shards: IntArray, cursors: Cursors
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Like `_remaining`, for shards with the same numbers of cursors and rounds."""
        shape = (len(shards), -1)
        number = cursors.count // len(shards)
        given = self._given[shards]
        shares = CursorShares(*(column[shards] for column in self._shares))
        start, stop = shares.start, shares.stop
        some = stop > start
        # From clip numbers of the cursors to clip numbers of the sequence.
        shift = start[some] - cursors.begin
        end = stop[some] - shift
        last = np.arange(number - 1, cursors.count, number)
        own = end.copy()
        own[last] -= shares.repeated

        index = self._rounds(cursors, given)
        first = cursors.first_clips(np.repeat(index, number)[None])[0]
        behind = cursors.first_clips(np.repeat(index + 1, number)[None])[0]
        dealt = given - (first - cursors.begin).reshape(shape).sum(axis=1)
        clip, cursor, is_left = self._round(cursors, index, first, behind, dealt)
        some = is_left & (clip < own[cursor])
        fragments = _intervals(np.sort(clip[some] + shift[cursor[some]]))

        # A clip that is given for another shard, which has it too, was given if it is not left.
        extra = end[last] - 1
        waits = np.isin(extra, clip[is_left]) | (extra >= behind[last])
        twice = (extra + shift[last])[(shares.repeated > 0) & ~waits]
        begin = np.minimum(behind, own)
        return (
            np.concatenate((begin + shift, fragments[0])),
            np.concatenate((own + shift, fragments[1])),
            twice,
        )

    def _rounds(self, cursors: Cursors, given: IntArray) -> IntArray:
        """The current round of each shard, int64[shards]: the last that begins at or before its
        position.
        """
        number = cursors.count // len(given)
        low, high = np.zeros_like(given), np.full_like(given, cursors.num_rounds)
        while (low < high).any():
            tried = (low + high + 1) // 2
            clips = cursors.first_clips(np.repeat(tried, number)[None]) - cursors.begin
            fits = clips.reshape(len(given), -1).sum(axis=1) <= given
            low, high = np.where(fits, tried, low), np.where(fits, high, tried - 1)
        return low

    def _round(
        self,
        cursors: Cursors,
        index: IntArray,
        first: IntArray,
        behind: IntArray,
        dealt: IntArray,
    ) -> tuple[IntArray, IntArray, npt.NDArray[np.bool_]]:
        """The clips of each shard's current round: number, cursor, and whether it remains; [n]
        each.

        Shard `i` is in round `index[i]`, and has returned its first `dealt[i]` clips. The blocks
        are clips `[first, behind)`, int64[cursors].
        """
        number = cursors.count // len(index)
        blocks = cursors.lead_blocks(first, behind)
        shard, inside = np.divmod(blocks.cursor, number)
        blocks = replace(blocks, round=shard)
        blocks, position = self._layout.in_order(blocks, index[shard] * number + inside)
        row, start = self._layout.deal(blocks, position, number)
        shard = blocks.round[row]
        place = np.arange(len(shard)) - np.searchsorted(shard, np.arange(len(index)))[shard]
        clip = blocks.clip[row] + (start - blocks.first[row]) // self._table.spec.stride
        return clip, blocks.cursor[row], place >= dealt[shard]

    def _in_order(self, start: IntArray, stop: IntArray) -> ClipTable:
        """The table of the intervals `[start, stop)` of the sequence."""
        found = []
        for i in range(0, len(start), self._at_once):
            some = slice(i, i + self._at_once)
            rows = self._sequence.slices(start[some], stop[some])[0]
            found.append((frame_keys(rows.episode, rows.first_start), rows.count))
        empty = np.zeros(0, np.int64)
        columns = zip(*found, strict=True) if found else [[empty]] * 2
        place, count = (np.concatenate(list(column)) for column in columns)
        if self._table.repeats:  # then rows may overlap: clip by clip
            owner, number = ragged_arange(count)
            place = place[owner] + self._table.spec.stride * number
            count = np.ones(len(place), np.int64)
        return concatenated_pieces(self._table, place, count)


def _intervals(clips: IntArray) -> tuple[IntArray, IntArray]:
    """Ascending numbers as half-open intervals."""
    edges = np.array(run_bounds(clips), np.int64)
    return clips[edges[:-1]], clips[edges[1:] - 1] + 1


def _without(start: IntArray, stop: IntArray, clips: IntArray) -> tuple[IntArray, IntArray]:
    """Sort disjoint intervals, and remove some numbers from them."""
    some = stop > start
    start, stop = np.sort(start[some]), np.sort(stop[some])
    clips = np.unique(clips)
    row = np.searchsorted(start, clips, side="right") - 1
    clips = clips[(row >= 0) & (clips < stop[row])] if len(start) else clips[:0]
    start = np.sort(np.concatenate((start, clips + 1)))
    stop = np.sort(np.concatenate((stop, clips)))
    some = stop > start
    return start[some], stop[some]
