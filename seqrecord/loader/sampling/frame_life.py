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


@dataclass(frozen=True, eq=False)
class FrameLife:
    """The frames of runs.

    Attributes:
        run: number of the run, int64[frames].
        frame: in the episode, int64[frames]; ascending in each unit.
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
) -> FrameLife:
    """The life of the frames of rows.

    Args:
        group: of the frames.
        run: run of each row, ascending, int64[rows].
        episode: of each row.
        frames: that each row uses, int64[rows, T].
        rounds: of each row.
    """
    is_new = np.diff(run, prepend=-1) != 0
    opens, number = np.flatnonzero(is_new), np.cumsum(is_new) - 1
    low = np.minimum.reduceat(frames.min(axis=1), opens)
    size = np.maximum.reduceat(frames.max(axis=1), opens) - low + 1
    begin = np.cumsum(size) - size
    # Of each frame among those of all runs, column by column, which halves the time below.
    place = np.add(frames.T, (begin - low)[number], order="C")
    place, first, last = _first_and_last(place, rounds, int(size.sum()))
    owner = np.searchsorted(begin, place, side="right") - 1
    frame = place - (begin - low)[owner]
    begins = group.units(episode[opens][owner], frame)[0]
    is_new = (np.diff(owner, prepend=-1) != 0) | (np.diff(begins, prepend=-1) != 0)
    unit = np.cumsum(is_new) - 1
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


def _decoded_in_order(
    run: IntArray,
    frame: IntArray,
    first: IntArray,
    last: IntArray,
    unit: IntArray,
    begin: IntArray,
) -> FrameLife:
    """The life of frames that decoders pass in order, by unit and frame; `begin` of their units."""
    is_new = np.diff(unit, prepend=-1) != 0
    opens = np.flatnonzero(is_new)
    ends = np.append(opens[1:], len(unit)) - 1
    # The minimum over a frame and the later ones of its unit: units are kept apart by an offset.
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
