from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from seqrecord import ClipError, ClipSpec
from seqrecord.clips.grids import ChunkGrid
from seqrecord.clips.tables import (
    ClipTable,
    EpisodeTable,
    MissingFrames,
    enumerate_clips,
    missing_from_bitmaps,
)
from tests.clip_cases import Case, cases, episode_table

ALL_64 = np.uint64(2**64 - 1)


def located(table: ClipTable) -> list[tuple[int, int]]:
    episode, start = table.locate(np.arange(table.num_clips))
    return list(zip(episode.tolist(), start.tolist(), strict=True))


def runs(missing: MissingFrames) -> list[tuple[int, int, int]]:
    columns = (missing.episode.tolist(), missing.start.tolist(), missing.stop.tolist())
    return list(zip(*columns, strict=True))


@given(cases())
def test_enumerates_every_whole_clip_in_order(case: Case) -> None:
    table = case.table
    assert located(table) == case.clips()
    assert table.num_clips == len(case.clips())
    possible = {episode: len(case.possible_starts(episode)) for episode in case.selected}
    assert table.num_short_episodes == list(possible.values()).count(0)
    assert table.num_incomplete == sum(possible.values()) - table.num_clips
    assert (table.count > 0).all()
    assert repr(table) == (
        f"ClipTable({len(case.clips())} clips of {len({e for e, _ in case.clips()})} episodes, "
        f"{table.num_short_episodes} episodes too short, {table.num_incomplete} incomplete)"
    )


@given(cases())
def test_missing_runs_are_the_missing_frames(case: Case) -> None:
    found = runs(case.missing_frames)
    assert {(e, f) for e, start, stop in found for f in range(start, stop)} == case.missing
    assert found == sorted(found)
    for (e, _, stop), (next_e, start, _) in itertools.pairwise(found):
        assert e != next_e or stop < start


def test_missing_frames_from_bitmaps_by_hand() -> None:
    def found(episodes: EpisodeTable, *rows: Any) -> list[tuple[int, int, int]]:
        chunk, present = (np.array(row) for row in rows)
        words = np.zeros_like(chunk)
        return runs(missing_from_bitmaps(episodes, [(chunk, words, present.astype(np.uint64))]))

    # Features unite, whatever the order of rows: chunk rows 0 1 2 | 3 4
    both = found(episode_table([10, 5], [4, 4]), [4, 1, 0, 1], [0b0, 0b1101, 0b0111, 0b1110])
    assert both == [(0, 3, 6), (1, 4, 5)]
    # A whole episode is one run; bits past the last frame do not count.
    episodes = episode_table([64 * 3 + 1, 64], [64, 64])
    assert found(episodes, range(4), np.zeros(4)) == [(0, 0, 193)]
    assert found(episodes, range(4), np.full(4, ALL_64)) == []
    assert found(episode_table([3], [64]), [0], [0b111]) == []
    # An episode without frames owns no chunk.
    grid = ChunkGrid(np.array([4, 4, 4]), np.array([0, 1, 1]))
    assert found(EpisodeTable(np.array([4, 0, 4]), (grid,)), [1], [0b0111]) == [(2, 3, 4)]
    # Many bitmaps join across the groups in which they are expanded.
    count = (1 << 16) + 10
    assert found(episode_table([count], [1]), range(count), np.zeros(count)) == [(0, 0, count)]


def test_refuses_what_is_out_of_range() -> None:
    for selected in ([1, 0], [0, 0], [-1], [2]):
        with pytest.raises(IndexError, match="ascending rows in"):
            enumerate_clips(ClipSpec(2), episode_table([9, 9], [4, 4]), np.array(selected))
    table = enumerate_clips(ClipSpec(2), episode_table([9], [4]), np.arange(1))
    for position in (-1, 8):
        with pytest.raises(IndexError, match=r"outside \[0, 8\)"):
            table.locate(np.array([position]))
    rows: list[tuple[dict[str, Any], str]] = [
        ({"length": 0}, "length"),
        ({"length": (1 << 20) + 1}, "length"),
        ({"length": 2.0}, "length"),
        ({"length": True}, "length"),
        ({"length": 2, "stride": 0}, "stride"),
        ({"length": 2, "stride": 1 << 31}, "stride"),
        ({"length": 2, "stride": "1"}, "stride"),
        ({"length": 2, "dilation": 0}, "dilation"),
        ({"length": 2, "dilation": 1 << 31}, "dilation"),
        ({"length": 2, "phase": 1}, "phase"),
        ({"length": 2, "stride": 4, "phase": -1}, "phase"),
    ]
    for numbers, name in rows:
        with pytest.raises(ClipError, match=name):
            ClipSpec(**numbers)


def test_span_and_frame_step() -> None:
    rows = [((1, 1, 5), 1, 1), ((16,), 16, 1), ((3, 1, 3), 7, 1), ((16, 4), 16, 1)]
    rows += [((3, 4, 6), 13, 2), ((1, 4, 3), 1, 4), ((3, 3, 3), 7, 3)]
    for numbers, span, step in rows:
        spec = ClipSpec(*map(np.int64, numbers))
        assert (spec.span, spec.frame_step) == (span, step)
        assert type(spec.length) is int
