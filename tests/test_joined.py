"""Rounds of few clips that are done as one: the same integers, in the same order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seqrecord.engine.joined import GroupRoom, joined_rounds
from seqrecord.sampling import Clips, Frees, GroupRound, Loads, Round


def columns(kind: type, rows: Sequence[tuple[int, ...]], width: int) -> object:
    return kind(*np.array(rows, np.int64).reshape(-1, width).T)


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[Round], list[GroupRoom]]:
    """Rounds of a few cursors, of which some group's rings are filled and emptied."""
    cursors, groups = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    held = [[draw(st.integers(0, 5)) for _ in range(cursors)] for _ in range(groups)]
    begin = [np.array(of_group) for of_group in held]
    most = [max(of_group) for of_group in held]
    rounds, number = [], 0
    for index in range(draw(st.integers(0, 12))):
        done = []
        for group in range(groups):
            loads, frees = [], []
            for cursor in range(cursors):
                for _ in range(draw(st.integers(0, 2))):
                    loads.append((cursor, 0, 0, number, number, count := draw(st.integers(1, 4))))
                    number += 1
                    held[group][cursor] += count
                most[group] = max(most[group], held[group][cursor])
                if freed := draw(st.integers(0, held[group][cursor])):
                    frees.append((cursor, 0, number, freed))
                    held[group][cursor] -= freed
            made = columns(Loads, loads, 6), columns(Frees, frees, 4)
            done.append(GroupRound(*made))  # type: ignore[arg-type]
        clips = [(0, 0, 0, index, 0, i) for i in range(draw(st.integers(0, 5)))]
        rounds.append(Round(index, columns(Clips, clips, 6), tuple(done)))  # type: ignore[arg-type]
    rooms = [
        GroupRoom(most[group] + draw(st.integers(0, 30)), draw(st.integers(1, 9)), begin[group])
        for group in range(groups)
    ]
    return rounds, rooms


def rows(columns: Clips | Frees | Loads) -> list[tuple[int, ...]]:
    return list(zip(*(column.tolist() for column in vars(columns).values()), strict=True))


@given(plan=plans(), clips=st.integers(1, 12), nbytes=st.integers(1, 400))
def test_joined_rounds(plan: tuple[list[Round], list[GroupRoom]], clips: int, nbytes: int) -> None:
    rounds, rooms = plan
    found = list(joined_rounds(iter(rounds), rooms, most_clips=clips, most_bytes=nbytes))
    half = sum(room.num_rows * len(room.held) * room.frame_nbytes for room in rooms) // 2
    held = [room.held.copy() for room in rooms]
    firsts = [item.index for item in found]
    assert firsts == sorted(set(firsts))
    assert firsts[:1] == ([0] if rounds else [])
    for item, stop in zip(found, [*firsts, len(rounds)][1:], strict=True):
        some = rounds[item.index : stop]
        assert rows(item.clips) == [row for one in some for row in rows(one.clips)]
        for group in range(len(rooms)):
            todo = item.groups[group]
            assert rows(todo.loads) == [r for one in some for r in rows(one.groups[group].loads)]
            assert rows(todo.frees) == [r for one in some for r in rows(one.groups[group].frees)]

        def fits(count: int, first: int = item.index) -> bool:
            """Whether so many rounds may be done as one, by counting each frame."""
            part = rounds[first : first + count]
            size = 0
            for group, room in enumerate(rooms):
                full = held[group].copy()
                for one in part:
                    loads = one.groups[group].loads
                    for cursor, frames in zip(loads.cursor, loads.count, strict=True):
                        full[cursor] += frames
                        size += int(frames) * room.frame_nbytes
                if (full > room.num_rows).any():
                    return False
            return size <= min(nbytes, half) and sum(len(one.clips) for one in part) <= clips

        assert len(some) == 1 or fits(len(some))
        if stop < len(rounds):
            assert not fits(len(some) + 1)
        for group in range(len(rooms)):
            for row in rows(item.groups[group].loads):
                held[group][row[0]] += row[-1]
            for row in rows(item.groups[group].frees):
                held[group][row[0]] -= row[-1]
