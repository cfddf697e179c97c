"""The settings of a plan that fit a memory limit, and the least memory that would do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from seqrecord.clips import ClipTable, EpisodeTable
from seqrecord.errors import ClipError, MemoryLimitError
from seqrecord.plan.blocks import window_frames
from seqrecord.plan.epoch import cursor_bound
from seqrecord.plan.settings import PlanSettings

__all__ = ["default_settings", "least_resident_frames"]

MAX_REREAD_BY_CURSORS = 0.03  # of all frames: what cutting the epoch into lanes may cost
MAX_REREAD = 0.035  # and what further cuts into runs may cost besides
LEAST_RUN_FRAMES = 512
LEAST_BLOCK = 32  # clips of an unshuffled epoch, so that a round is worth its trouble
FEWER_CURSORS = 0.9  # so much of the most cursors is given up for larger blocks
LEAST_CURSORS = 2  # whatever that reads twice: with one, a batch is of one episode
SMALL = 2  # an epoch of so many shuffle buffers is held whole where there is room


def least_resident_frames(
    table: ClipTable,
    episodes: EpisodeTable,
    open_episodes: int | None = None,
    *,
    any_phase: bool = False,
) -> int:
    """The least arena, in frames, for these clips and so many cursors (one for `None`).

    With `any_phase`, whatever the phase of the clips.
    """
    frames, _ = cursor_bound(table, episodes, 1, any_phase=any_phase)
    return max(1, frames) * (open_episodes or 1)


def default_settings(
    table: ClipTable,
    episodes: EpisodeTable,
    settings: PlanSettings,
    *,
    shuffle_buffer: int,
    max_frames: int,
    open_episodes: int | None = None,
    num_splits: int = 1,
) -> PlanSettings:
    """`settings` with `open_episodes`, `block_frames` and `run_frames` chosen for an arena.

    As many cursors as it takes to deal a batch and the next from different ones and to have
    `shuffle_buffer` clips to choose from in a round, as far as `max_frames` resident frames allow
    and as reading some frames twice at the cuts stays below `MAX_REREAD` of the epoch; then blocks
    as large as `shuffle_buffer` and `max_frames` allow. Whatever that reads twice, there are
    `LEAST_CURSORS`, or as many as episodes of one length. A given `open_episodes` is kept.

    An epoch of at most `SMALL` shuffle buffers is one round of whole episodes if it fits, which is
    a full shuffle and reads nothing twice.

    With `rotate_phase` all that holds for the clips of any phase.

    Raises `MemoryLimitError` when `max_frames` is below `least_resident_frames`, `ClipError` for
    a `shuffle_buffer` below 1.
    """
    if shuffle_buffer < 1:
        raise ClipError("shuffle_buffer is too small", expected="at least 1", got=shuffle_buffer)
    any_phase = settings.rotate_phase
    least = least_resident_frames(
        table, episodes, open_episodes if settings.shuffle else None, any_phase=any_phase
    )
    if max_frames < least:
        raise MemoryLimitError(
            "not enough memory for these clips",
            expected=f"room for at least {least} frames",
            got=f"room for {max_frames}",
        )
    sizes = [1, *_sizes(table, episodes)]
    smallest, *tries, whole = (_Try(table, episodes, size, num_splits, any_phase) for size in sizes)
    if not settings.shuffle:
        wanted = max(settings.batch_size or 1, LEAST_BLOCK) * table.spec.stride
        fits = [block.size for block in tries if block.rows <= max_frames] or [smallest.size]
        size = next((size for size in fits if size >= wanted), fits[-1])
        return replace(settings, open_episodes=1, block_frames=size, run_frames=None)

    fits_whole = whole.num_blocks * whole.rows <= max_frames
    if open_episodes is None and fits_whole and table.num_clips <= SMALL * shuffle_buffer:
        return replace(
            settings,
            open_episodes=max(1, whole.num_blocks),
            block_frames=whole.size,
            run_frames=None,
        )

    def cursors(block: _Try) -> int:
        """How many cursors to give blocks of this size; 0 when they don't fit."""
        fit = max_frames // block.rows
        if open_episodes is not None:
            return open_episodes if open_episodes <= fit else 0
        # Twice the batch, so that the batch before came from the other cursors.
        dealt = min(2 * (settings.batch_size or 1), shuffle_buffer)
        wanted = max(-(-shuffle_buffer // block.clips), dealt)
        return min(wanted, fit, max(LEAST_CURSORS, block.affordable_cursors(wanted)))

    fitting = [block for block in tries if cursors(block)] or [smallest]
    enough = FEWER_CURSORS * cursors(fitting[0])
    block = max(
        (
            block
            for block in fitting
            if cursors(block) >= enough and cursors(block) * block.clips <= shuffle_buffer
        ),
        key=lambda block: cursors(block) * block.clips,
        default=fitting[0],
    )
    left = MAX_REREAD - block.reread(cursors(block))
    run = max(LEAST_RUN_FRAMES, round(block.cut_cost / left)) if left > 0.001 else None
    return replace(settings, open_episodes=cursors(block), block_frames=block.size, run_frames=run)


def _sizes(table: ClipTable, episodes: EpisodeTable) -> list[int]:
    """Sizes of block to try, in frames, in ascending order; the last one holds whole episodes.

    They are multiples of half a clip: smaller ones save little memory, since a clip must be held
    whole, and in the same memory more cursors beat larger blocks (measured by
    benchmarks/tartanair/shuffle_quality.py).
    """
    half = max(1, table.spec.span // 2)
    longest = int(episodes.num_frames[table.episode].max(initial=1))
    multiples = sorted({factor << doublings for factor in (1, 3) for doublings in range(32)})
    return [half, *(half * n for n in multiples[1:] if half * n < longest), max(half, longest)]


class _Try:
    """What blocks of `size` frames would mean."""

    def __init__(
        self,
        table: ClipTable,
        episodes: EpisodeTable,
        size: int,
        num_splits: int,
        any_phase: bool,
    ) -> None:
        spec = table.spec
        chunk_frames = episodes.chunk_frames[table.episode]
        window = window_frames(size, chunk_frames, stride=spec.stride, span=spec.span)
        num_blocks = max(
            1, int((-(-table.count * spec.stride // np.maximum(window, spec.stride))).sum())
        )
        used = np.unique(table.episode)
        even = len(used) == len(table.episode) and len(np.unique(table.count)) == 1
        # Cursors whose lanes begin where episodes do, or all as far from there.
        self._whole_lanes = len(used) // num_splits if even and len(used) % num_splits == 0 else 0
        self.size = size
        self.num_blocks = num_blocks
        self.rows = max(1, cursor_bound(table, episodes, size, any_phase=any_phase)[0])
        self.clips = max(1, -(-table.num_clips // num_blocks))  # in a usual block
        # Frames of the chunks that the two halves of a run share when it is cut at a block.
        chunk = int(chunk_frames.max(initial=1))
        shared = max(0, spec.span - spec.stride)
        self.cut_cost = -(-shared // chunk) * chunk + (chunk if size < chunk else 0)
        # A lane that ends between two blocks cuts a run, unless a run ends there anyway.
        cut_share = 1 - len(used) / num_blocks
        self._reread = (
            num_splits * cut_share * self.cut_cost / max(1, int(episodes.num_frames[used].sum()))
        )

    def reread(self, cursors: int) -> float:
        """Share of all frames that so many cursors in every split read a second time."""
        return self._reread * cursors

    def affordable_cursors(self, wanted: int) -> int:
        """How many of the wanted cursors stay within `MAX_REREAD_BY_CURSORS`."""
        if self.reread(wanted) <= MAX_REREAD_BY_CURSORS:
            return wanted
        affordable = int(MAX_REREAD_BY_CURSORS / self._reread)
        if affordable < wanted // 2 and affordable < self._whole_lanes <= wanted:
            return self._whole_lanes
        return affordable
