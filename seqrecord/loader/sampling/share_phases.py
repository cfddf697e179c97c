"""Phases: the places in their episodes at which cursors begin.

Of episodes of one length, equal shares begin at one place of all their episodes, or at few. Then
the clips of a batch are early ones in the first batches of an epoch and late ones in the last.
There each share begins at a drawn place of its first episode, and ends with the clips before it::

    shares      |------A------|------B------|------C------|
    cut         |--A1-|--A2---|---B1----|B2-|C1|----C2----|
    turned      |--A2---|--A1-|B2-|---B1----|----C2----|C1|

Each cursor of a shard has a part of the phases, in which its place is drawn. A cut decodes the
frames twice that clips on both sides of it share: only some of the shares are turned where all
would cost too much. Shares keep their bounds and their clips.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.sampling.random_order import Purpose, hash64, key_of, uniform
from seqrecord.loader.sampling.runs import Cuts, Runs, merged
from seqrecord.store.tables.grids import distinct, ragged_arange

_SHARE_BITS = 20  # of a phase
_STEPS = 16  # places while all cursors advance by an episode
_COMMON_PART = 10  # one tenth of the variance of phases is between steps, at least. Of equal
# phases all is, of two opposite ones a quarter
_BY_CHANCE = 3  # times the mean of random phases


def num_borders(runs: Runs, starts: IntArray) -> int:
    """How often an episode is left before its end: by runs, or where shares begin at clips
    `starts`, int64[n].
    """
    return len(merged(runs.begins, distinct(starts))) - len(distinct(runs.episode))


def turn_shares(runs: Runs, starts: IntArray, places: Cuts, max_turned: int, key: int) -> Runs:
    """The same clips, with other first clips of shares if these begin at few phases.

    Args:
        starts: the first clips of all shares, int64[shards, cursors].
        places: where episodes may be cut.
        max_turned: at most so many shares are turned.
        key: of the drawn places.
    """
    shard, column = np.nonzero(starts < runs.num_clips)
    bounds, place = np.unique(starts[shard, column], return_index=True)
    if places.whole or max_turned < 1 or len(bounds) < 2:
        return runs
    row, start = runs.find(bounds)
    if not _is_in_step((start << _SHARE_BITS) // (places.last[row] + 1)):
        return runs
    clips = np.bincount(runs.episode, runs.count).astype(np.int64)[runs.episode[row]]
    moved = (drawn_phases(shard[place], key) * clips).astype(np.int64) - start // runs.stride
    moved = moved % clips % np.diff(bounds, append=runs.num_clips)
    firsts = np.maximum(runs.snap(bounds + moved, places), bounds)
    turned = np.flatnonzero(firsts > bounds)
    order = np.argsort(hash64(key_of(Purpose.TURNED_SHARES, key), turned), kind="stable")
    turned = np.sort(turned[order[:max_turned]])
    cuts = merged(bounds, firsts[turned])
    parts = runs.cut(cuts[~np.isin(cuts, runs.begins)])
    share = np.searchsorted(bounds, parts.begins, side="right") - 1
    first_clip = bounds.copy()
    first_clip[turned] = firsts[turned]
    number = np.empty(len(share), np.int64)
    number[np.lexsort((parts.begins < first_clip[share], share))] = np.arange(len(share))
    return parts.ordered(number)


def drawn_phases(shard: IntArray, key: int) -> npt.NDArray[np.float64]:
    """A phase in [0, 1) for each cursor, by its shard: a drawn one in each of equal parts."""
    order = np.lexsort((hash64(key_of(Purpose.SHARE_PHASES, key), np.arange(len(shard))), shard))
    _, sizes = np.unique(shard, return_counts=True)
    owner, part = ragged_arange(sizes)
    phases = np.empty(len(shard))
    place = uniform(key_of(Purpose.PLACES_IN_PHASE, key), np.arange(len(shard)))
    phases[order] = (part + place) / sizes[owner]
    return phases


def _is_in_step(phases: IntArray) -> bool:
    """Whether cursors at these phases, int64[n], have steps of one phase while all advance.

    In integers: all machines must decide alike, and sums of floats depend on the processor.
    """
    if (phases == phases[0]).all():
        return True
    whole, count = 1 << _SHARE_BITS, len(phases)
    places = whole // _STEPS * np.arange(_STEPS)[:, None]
    sums = ((phases + places) % whole).sum(axis=1).tolist()
    # The variance of the mean phase, in parts of that of all phases, whole ** 2 / 12.
    common = 12 * (_STEPS * sum(total * total for total in sums) - sum(sums) ** 2)
    unit = (_STEPS * count * whole) ** 2
    return bool(common * _COMMON_PART > unit and common * count > _BY_CHANCE * unit)
