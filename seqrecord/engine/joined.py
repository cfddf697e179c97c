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

MOST_CLIPS = 1 << 12
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
    full = [group.held for group in groups]  # with all that is loaded in the rounds being joined
    some: list[Round] = []
    clips = nbytes = 0
    for current in rounds:
        more = 0
        brought: list[IntArray | None] = []
        for todo, group in zip(current.groups, groups, strict=True):
            brought.append(_counts(todo.loads, len(group.held)) if len(todo.loads) else None)
            if len(todo.loads):
                more += int(todo.loads.count.sum()) * group.frame_nbytes
        after = [a if b is None else a + b for a, b in zip(full, brought, strict=True)]
        clips, nbytes = clips + len(current.clips), nbytes + more
        if some and (
            clips > most_clips
            or nbytes > most
            or any((a > group.num_rows).any() for a, group in zip(after, groups, strict=True))
        ):
            yield (joined := _join(some))
            freed = [
                _counts(done.frees, len(a)) for done, a in zip(joined.groups, full, strict=True)
            ]
            after = [a - b for a, b in zip(after, freed, strict=True)]
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
    columns = [some for some in columns if len(some)] or columns[:1]
    if len(columns) == 1:
        return columns[0]
    make: Callable[..., _Columns] = type(columns[0])
    return make(*(np.concatenate(some) for some in zip(*map(_arrays, columns), strict=True)))


def _arrays(columns: Clips | Frees | Loads) -> Sequence[IntArray]:
    return tuple(vars(columns).values())
