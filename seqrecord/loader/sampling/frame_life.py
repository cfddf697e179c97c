"""The life of frames: when each is decoded and freed, from the rows of rounds.

Frames of a *run*, the rows of one piece, have a life of their own. A frame that decodes alone is
decoded in the first round with a row that uses it. A frame of a unit, see `decoding_units`, is
decoded when it or a later used frame of its unit is first needed, by one decoder of the unit, which
is open from its first frame to its last. A frame is freed after the last round that uses it::

    frame of the unit   0   1   2   3   4   5
    first used in           2       1   4           round
    decoded in              1       1   4           and 0, 2 to pass over
    last used in            3       1   4
    the decoder is open     1 ..................4

With `gap`, a frame whose unit has no use in the next `gap` rounds is freed, and decoded again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from seqrecord.loader.sampling.decoding_units import FrameGroup
from seqrecord.store.tables.grids import IntArray, distinct

_NEVER = np.iinfo(np.int64).max
# Sparse tables have more places than uses, and sort the uses.
_PLACES_PER_USE = 4
_BYTES_PER_USE = 64


@dataclass(frozen=True, eq=False)
class FrameLife:
    """The frames of runs.

    Attributes:
        run: number of the run, int64[frames].
        frame: in the episode, int64[frames]; ascending in each stay of a unit.
        first: round in which it is decoded.
        last: last round that uses it.
        opened: round in which a decoder is opened, int64[decoders].
        closed: last round in which it decodes.
        num_decoded: frames decoded, those before the first used one of a unit included.
    """

    run: IntArray
    frame: IntArray
    first: IntArray
    last: IntArray
    opened: IntArray
    closed: IntArray
    num_decoded: int

    def __len__(self) -> int:
        return len(self.frame)


def life_of_frames(
    group: FrameGroup,
    run: IntArray,
    episode: IntArray,
    frames: IntArray,
    rounds: IntArray,
    gap: int | None = None,
) -> FrameLife:
    """The life of the frames of rows.

    Args:
        group: of the frames.
        run: run of each row, ascending, int64[rows].
        episode: of each row.
        frames: that each row uses, int64[rows, T].
        rounds: of each row.
        gap: the most rounds without a use that a frame stays.
    """
    is_new = np.diff(run, prepend=-1) != 0
    opens, number = np.flatnonzero(is_new), np.cumsum(is_new) - 1
    low = np.minimum.reduceat(frames.min(axis=1), opens)
    size = np.maximum.reduceat(frames.max(axis=1), opens) - low + 1
    begin = np.cumsum(size) - size
    # Of each frame among those of all runs, column by column, which halves the time below.
    place = np.add(frames.T, (begin - low)[number], order="C")
    if gap is None:
        place, first, last = _first_and_last(place, rounds, int(size.sum()))
    else:
        place, first = _uses(place, rounds, number, begin, size)
        last = first
    owner = np.searchsorted(begin, place, side="right") - 1
    frame = place - (begin - low)[owner]
    begins = group.units(episode[opens][owner], frame)[0]
    is_new = (np.diff(owner, prepend=-1) != 0) | (np.diff(begins, prepend=-1) != 0)
    unit = np.cumsum(is_new) - 1
    if gap is not None:
        unit, order = _stays(unit, first, gap)
        owner, frame, begins, used = (c[order] for c in (owner, frame, begins, first))
        is_new = (np.diff(unit, prepend=-1) != 0) | (np.diff(frame, prepend=-1) != 0)
        opens_of = np.flatnonzero(is_new)
        unit, owner, frame, begins, first = (
            c[opens_of] for c in (unit, owner, frame, begins, used)
        )
        last = used[np.append(opens_of[1:], len(used)) - 1]
    runs = run[opens][owner]
    if group.is_alone:
        none = np.zeros(0, np.int64)
        return FrameLife(runs, frame, first, last, none, none, len(frame))
    return _decoded_in_order(runs, frame, first, last, unit, begins)


def _first_and_last(
    place: IntArray, rounds: IntArray, num_places: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Used places, ascending, and the first and last round of each."""
    used = None
    if num_places > _PLACES_PER_USE * place.size:
        used = distinct(place)
        place, num_places = np.searchsorted(used, place), len(used)
    first, last = np.full(num_places, _NEVER), np.full(num_places, -1)
    for column in place:
        np.minimum.at(first, column, rounds)
        np.maximum.at(last, column, rounds)
    if used is None:
        used = np.flatnonzero(last >= 0)
        first, last = first[used], last[used]
    return used, first, last


def _uses(
    place: IntArray, rounds: IntArray, run: IntArray, begin: IntArray, size: IntArray
) -> tuple[IntArray, IntArray]:
    """Distinct pairs of a place and a round that uses it, ascending.

    Run `i` has the `size[i]` places from `begin[i]` on.
    """
    opens = np.flatnonzero(np.diff(run, prepend=-1) != 0)
    low = np.minimum.reduceat(rounds, opens)
    width = np.maximum.reduceat(rounds, opens) - low + 1
    num_keys = size * width
    base = np.cumsum(num_keys) - num_keys
    keys = place * width[run] + ((base - begin * width - low)[run] + rounds)
    total = int(num_keys.sum())
    if total > _BYTES_PER_USE * place.size:
        keys = distinct(keys)
    else:
        is_used = np.zeros(total, np.bool_)
        is_used[keys] = True
        keys = np.flatnonzero(is_used)
    owner = np.searchsorted(base, keys, side="right") - 1
    place, at = np.divmod(keys - base[owner], width[owner])
    return place + begin[owner], at + low[owner]


def _stays(unit: IntArray, rounds: IntArray, gap: int) -> tuple[IntArray, IntArray]:
    """The stay of each use, and the order of uses by stay, place and round.

    Uses, by place and round, in units and rounds.
    """
    width = int(rounds.max()) + 1
    keys = unit * width + rounds
    pairs = distinct(keys)
    units, at = np.divmod(pairs, width)
    is_new = (np.diff(units, prepend=-1) != 0) | (np.diff(at, prepend=0) > gap)
    stay = (np.cumsum(is_new) - 1)[np.searchsorted(pairs, keys)]
    order = np.argsort(stay, kind="stable")
    return stay[order], order


def _decoded_in_order(
    run: IntArray,
    frame: IntArray,
    first: IntArray,
    last: IntArray,
    stay: IntArray,
    begin: IntArray,
) -> FrameLife:
    """The life of frames that decoders pass in order, by stay and frame; `begin` of their units."""
    is_new = np.diff(stay, prepend=-1) != 0
    opens = np.flatnonzero(is_new)
    ends = np.append(opens[1:], len(stay)) - 1
    # The minimum over a frame and the later ones of its stay: stays are kept apart by an offset.
    offset = np.cumsum(is_new) * (int(first.max()) + 1)
    needed = np.minimum.accumulate((first + offset)[::-1])[::-1] - offset
    num_decoded = int((frame[ends] - begin[ends] + 1).sum())
    return FrameLife(run, frame, needed, last, needed[opens], first[ends], num_decoded)


def peak_bytes(
    lives: Iterable[tuple[FrameGroup, FrameLife]], num_rounds: int, ahead: int = 1
) -> int:
    """The most bytes of frames and open decoders in any round.

    With `ahead`, frames of the next rounds are already decoded, so many rounds before.
    """
    change = np.zeros(num_rounds + 1, np.int64)
    for group, life in lives:
        frames = np.maximum(life.first - ahead, 0), life.last + 1, group.nbytes
        decoders = np.maximum(life.opened - ahead, 0), life.closed + 1, group.decoder_bytes
        for begin, stop, nbytes in (frames, decoders):
            change += nbytes * np.bincount(begin, minlength=num_rounds + 1)
            change -= nbytes * np.bincount(stop, minlength=num_rounds + 1)
    return int(np.cumsum(change).max(initial=0))
