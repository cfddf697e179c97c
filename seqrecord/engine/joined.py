"""Rounds of few clips, several of them done as one: what a round costs in Python is paid once.

Rounds are as large as `shuffle_buffer` and memory allow, which may be a hundred clips of a few
kilobytes each. The order is that of the plan all the same: clips of joined rounds follow each
other, loads begin in the order in which clips need them, and when all are done all is freed::

    round     0             1             2              joined
    loads     a b           c d           e              a b c d e
    clips     0 1 2 3       4 5 6         7 8 9          0 1 2 3 4 5 6 7 8 9
    frees             a             b c          d                            a b c d
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from seqrecord.clips import IntArray
from seqrecord.sampling import Clips, Frees, GroupRound, Loads, Round

__all__ = ["GroupRoom", "joined_rounds"]

MOST_CLIPS = 1 << 10
MOST_BYTES = 16 << 20  # of the frames that are loaded; rounds of more are worth their trouble

_Columns = TypeVar("_Columns", Clips, Frees, Loads)


@dataclass(frozen=True, eq=False)
class GroupRoom:
    """The rows that a group of features has in an arena."""

    num_rows: int  # of each cursor's ring
    frame_nbytes: int
    held: IntArray  # frames in each ring when the first round begins; int64[cursors]


def joined_rounds(
    rounds: Iterable[Round],
    groups: Sequence[GroupRoom],
    *,
    most_clips: int = MOST_CLIPS,
    most_bytes: int = MOST_BYTES,
) -> Iterator[Round]:
    """The rounds, those joined that follow each other, are small, and have room in all groups.

    What joined rounds load takes half of all rows at most, so that the next ones can be loaded
    while their clips are gathered.
    """
    total = sum(group.num_rows * len(group.held) * group.frame_nbytes for group in groups)
    most = min(most_bytes, total // 2)
    held = [group.held for group in groups]  # before the rounds that are being joined
    full = held  # and with all that they load
    some: list[Round] = []
    clips = nbytes = 0
    for current in rounds:
        todo = zip(current.groups, held, strict=True)
        brought = [_counts(of_group.loads, len(before)) for of_group, before in todo]
        more = sum(
            int(count.sum()) * group.frame_nbytes
            for count, group in zip(brought, groups, strict=True)
        )
        clips, nbytes = clips + len(current.clips), nbytes + more
        after = [a + b for a, b in zip(full, brought, strict=True)]
        if some and (
            clips > most_clips
            or nbytes > most
            or any((a > g.num_rows).any() for a, g in zip(after, groups, strict=True))
        ):
            yield _join(some)
            held = [
                a - sum(_counts(done.groups[i].frees, len(a)) for done in some)
                for i, a in enumerate(full)
            ]
            after = [a + b for a, b in zip(held, brought, strict=True)]
            some, clips, nbytes = [], len(current.clips), more
        some.append(current)
        full = after
    if some:
        yield _join(some)


def _counts(columns: Loads | Frees, num_cursors: int) -> IntArray:
    """How many frames of each cursor they are of; int64[cursors]."""
    found: IntArray = np.bincount(columns.cursor, columns.count, num_cursors).astype(np.int64)
    return found


def _join(rounds: Sequence[Round]) -> Round:
    first = rounds[0]
    if len(rounds) == 1:
        return first
    groups = []
    for of_group in zip(*(item.groups for item in rounds), strict=True):
        loads = _joined([todo.loads for todo in of_group])
        groups.append(GroupRound(loads, _joined([todo.frees for todo in of_group])))
    return Round(first.index, _joined([item.clips for item in rounds]), tuple(groups))


def _joined(columns: Sequence[_Columns]) -> _Columns:
    """The rows of all, one after the other."""
    make: Callable[..., _Columns] = type(columns[0])
    return make(*(np.concatenate(some) for some in zip(*map(_arrays, columns), strict=True)))


def _arrays(columns: Clips | Frees | Loads) -> Sequence[IntArray]:
    return tuple(vars(columns).values())
