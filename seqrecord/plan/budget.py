"""The settings of a plan that fit a memory limit, and the least memory that would do."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

import numpy as np

from seqrecord.clips import ClipTable, EpisodeTable
from seqrecord.errors import ClipError, MemoryLimitError
from seqrecord.plan.settings import PlanSettings
from seqrecord.plan.widths import cursor_bound

__all__ = ["default_settings", "least_resident_frames", "mixing_limit"]

REREAD_BY_CURSORS = 0.031  # of all frames: what cutting the epoch into lanes may cost
REREAD = 0.035  # and what further cuts into runs may cost besides
MOST_REREAD = 0.10  # by cursors, where a batch needs more of them
MOST_REREAD_IN_MANY = 0.20  # … in more splits than
MANY_SPLITS = 64
LEAST_RUN_FRAMES = 512
LEAST_BLOCK = 32  # clips of an unshuffled epoch, so that a round is worth its trouble
LEAST_CURSORS = 2  # whatever that reads twice: with one, a batch is of one episode
ENOUGH_CURSORS = 12  # for a batch to be mixed, or as many as it has clips
ENOUGH_SHARE = 16 / 7  # … or, in a larger batch, one for so many of its clips
USUAL_CURSORS = 32
FIRST_ROUND = 256  # clips of an epoch's first round
MOST_CLIPS = 1 << 17  # of a round, which is planned at once
AHEAD = 1.5  # times the frames held, so that loads of the next round have room too


def least_resident_frames(
    table: ClipTable,
    episodes: EpisodeTable,
    settings: PlanSettings,
    open_episodes: int | None = None,
) -> int:
    """The least arena, in frames, for these clips and so many cursors (one for `None`)."""
    return _rows(table, episodes, settings, 1) * (open_episodes or 1)


def default_settings(
    table: ClipTable,
    episodes: EpisodeTable,
    settings: PlanSettings,
    *,
    shuffle_buffer: int | None,
    max_frames: int,
    max_rows: int | None = None,
    open_episodes: int | None = None,
    num_splits: int = 1,
) -> PlanSettings:
    """`settings` with the last four chosen for an arena.

    Cursors first: two for each clip of a batch, so that it and the next come from different ones,
    as far as `max_frames` resident frames allow and as reading some frames twice at the cuts stays
    below `REREAD_BY_CURSORS` of the epoch. Where that is not enough to mix a batch, up to
    `MOST_REREAD`. Whatever that reads twice, there are `LEAST_CURSORS`, or as many as episodes of
    one length. A given `open_episodes` is kept.

    Then blocks as large as `shuffle_buffer` clips a round allow (`None`: any number) and as
    `max_frames` does, with room in `max_rows` rows for all that the next round loads (by default
    `AHEAD` times `max_frames`). The first round has `FIRST_ROUND` clips at most.

    A split of so few clips is one round of a single cursor if it fits, which is a full shuffle and
    reads nothing twice. With `rotate_phase` all that holds for the clips of any phase.

    Raises `MemoryLimitError` when `max_frames` is below `least_resident_frames`, `ClipError` for
    a `shuffle_buffer` below 1.
    """
    if shuffle_buffer is not None and shuffle_buffer < 1:
        raise ClipError("shuffle_buffer is too small", expected="at least 1", got=shuffle_buffer)
    given = open_episodes if settings.shuffle else None
    least = least_resident_frames(table, episodes, settings, given)
    if max_frames < least:
        raise MemoryLimitError(
            "not enough memory for these clips",
            expected=f"room for at least {least} frames",
            got=f"room for {max_frames}",
        )
    spec = table.spec
    sizes = _sizes(table, episodes)
    if not settings.shuffle:
        wanted = max(settings.batch_size or 1, LEAST_BLOCK) * spec.stride
        fits = [size for size in sizes if _rows(table, episodes, settings, size) <= max_frames]
        size = next((size for size in fits if size >= wanted), (fits or [1])[-1])
        return replace(
            settings, open_episodes=1, block_frames=size, run_frames=None, first_block_frames=size
        )
    buffer = min(shuffle_buffer or MOST_CLIPS, MOST_CLIPS)
    share = -(-table.num_clips // num_splits)
    whole = _whole(table, episodes)
    if given is None and share <= min(FIRST_ROUND, buffer):
        single = replace(
            settings,
            open_episodes=1,
            block_frames=whole,
            run_frames=None,
            first_block_frames=whole,
        )
        if cursor_bound(table, episodes, single) <= max_frames:
            return single

    reading = _Reading(table, episodes, num_splits)
    cursors = given
    if cursors is None:
        fit = max_frames // _rows(table, episodes, settings, sizes[0])
        wanted = min(max(2 * (settings.batch_size or 1), USUAL_CURSORS), buffer)
        if spec.stride >= spec.span:  # else chunks are held for clips of later rounds
            wanted = min(wanted, max(LEAST_CURSORS, buffer * spec.stride // sizes[0]))
        affordable = reading.affordable_cursors(wanted, enough_cursors(settings.batch_size))
        cursors = max(1, min(wanted, fit, affordable))

    rows = int(AHEAD * max_frames) if max_rows is None else max_rows
    lane = -(-share * spec.stride // cursors) + spec.span
    longest = -(-whole // (num_splits * cursors))
    first = max(1, FIRST_ROUND * spec.stride // cursors)

    def has_room(tried: int) -> bool:
        held = _rows(table, episodes, settings, tried)
        ahead = _most_ahead(first, tried, lane) // spec.frame_step
        return cursors * held <= max_frames and (
            tried == sizes[0]
            or (
                cursors * (held + ahead) <= rows
                and cursors * tried <= buffer * spec.stride
                and tried < 2 * longest
            )
        )

    # The first that does not fit, in steps of which each halves the rest.
    count = bisect_left(sizes, True, key=lambda tried: not has_room(tried))
    size = sizes[count - 1] if count else 1
    left = REREAD - reading.by_cursors(cursors)
    run = max(LEAST_RUN_FRAMES, round(reading.cut_cost / left)) if left > 0.001 else None
    return replace(
        settings,
        open_episodes=cursors,
        block_frames=size,
        run_frames=run,
        first_block_frames=min(first, size),
    )


def enough_cursors(batch_size: int | None) -> int:
    """How many cursors it takes to mix a batch."""
    if batch_size is None:
        return ENOUGH_CURSORS
    return max(min(batch_size, ENOUGH_CURSORS), int(batch_size / ENOUGH_SHARE))


def mixing_limit(
    table: ClipTable,
    episodes: EpisodeTable,
    settings: PlanSettings,
    *,
    max_frames: int,
    num_splits: int,
) -> str | None:
    """What keeps chosen settings from mixing a batch well, in words; `None` if nothing does."""
    enough = min(settings.batch_size or ENOUGH_CURSORS, ENOUGH_CURSORS)
    enough = min(enough, -(-table.num_clips // num_splits))
    cursors = settings.open_episodes
    if (
        not settings.shuffle
        or cursors >= enough
        or settings.first_block_frames >= _whole(table, episodes)
    ):
        return None
    least = _rows(table, episodes, settings, _sizes(table, episodes)[0])
    if (cursors + 1) * least > max_frames:
        return (
            f"clips are mixed from {cursors} places at a time where {enough} are wanted: "
            f"memory_limit leaves room for {max_frames} frames, {enough * least} are needed"
        )
    reread = _Reading(table, episodes, num_splits).by_cursors(enough)
    return (
        f"clips are mixed from {cursors} places at a time where {enough} are wanted: in "
        f"{num_splits} parts of so short an epoch these would read {reread:.0%} of it twice"
    )


def _rows(
    table: ClipTable, episodes: EpisodeTable, settings: PlanSettings, block_frames: int
) -> int:
    """The most frames that a cursor holds with blocks of this size."""
    tried = replace(settings, block_frames=block_frames, first_block_frames=block_frames)
    return max(1, cursor_bound(table, episodes, tried))


def _sizes(table: ClipTable, episodes: EpisodeTable) -> list[int]:
    """Sizes of block to try, in frames, in ascending order.

    They are multiples of half a clip: smaller ones save little memory, since a clip must be held
    whole, and in the same memory more cursors beat larger blocks (measured by
    benchmarks/tartanair/shuffle_quality.py). Where clips do not overlap, of a chunk, so that all of
    its frames are used in one round.
    """
    half = max(1, table.spec.span // 2)
    if table.spec.stride >= table.spec.span:
        half = max(half, int(episodes.chunk_frames[table.episode].max(initial=1)))
    most = max(half, _whole(table, episodes))
    factors = sorted({factor << doublings for factor in (4, 5, 6, 7) for doublings in range(40)})
    return [half * n for n in [1, 2, 3, *factors] if half * n < 2 * most]


def _most_ahead(first: int, size: int, lane: int) -> int:
    """The most frames that a block of a usual lane brings while the largest one is held.

    The blocks after the ramp are equally large; where there is one only, one of the ramp is held.
    """
    width, ramp = first, 0
    while width < size:
        ramp, width = ramp + width, 2 * width
    if lane <= ramp + size:
        return width // 2
    return -(-(lane - ramp) // -(-(lane - ramp) // size))


def _whole(table: ClipTable, episodes: EpisodeTable) -> int:
    """A block that holds a whole epoch, with all that is counted between runs."""
    chunk = int(episodes.chunk_frames[table.episode].max(initial=1))
    between = len(table.count) * (table.spec.span + 3 * chunk)
    return max(1, table.num_clips * table.spec.stride + between)


class _Reading:
    """What cursors read twice, in so many splits."""

    def __init__(self, table: ClipTable, episodes: EpisodeTable, num_splits: int) -> None:
        used = np.unique(table.episode)
        self._num_splits = num_splits
        even = len(used) == len(table.episode) and len(np.unique(table.count)) == 1
        # Cursors whose lanes are whole episodes.
        self._whole_lanes = len(used) // num_splits if even and len(used) % num_splits == 0 else 0
        # Frames of the chunks that the two halves of a run share when it is cut.
        chunk = int(episodes.chunk_frames[used].max(initial=1))
        self.cut_cost = -(-max(0, table.spec.span - table.spec.stride) // chunk) * chunk
        self._cost = num_splits * self.cut_cost / max(1, int(episodes.num_frames[used].sum()))

    def by_cursors(self, cursors: int) -> float:
        """Share of all frames that so many cursors in every split read a second time."""
        return 0.0 if cursors == self._whole_lanes else self._cost * cursors

    def affordable_cursors(self, wanted: int, enough: int) -> int:
        """How many of the wanted cursors to have, `enough` if that costs at most `MOST_REREAD`."""

        def within(share: float) -> int:
            return wanted if self._cost * wanted <= share else int(share / self._cost)

        most = within(MOST_REREAD if self._num_splits <= MANY_SPLITS else MOST_REREAD_IN_MANY)
        affordable = max(within(REREAD_BY_CURSORS), min(enough, most), LEAST_CURSORS)
        return max(affordable, self._whole_lanes if self._whole_lanes <= wanted else 0)
