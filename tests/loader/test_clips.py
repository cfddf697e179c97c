"""Enumeration of clips, missing frames, and integer keys of frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord import ClipError, ClipSpec
from seqrecord.loader.clips.frames import MOST_COPIES
from seqrecord.loader.clips.tables import (
    ClipTable,
    EpisodeLayout,
    MissingFrames,
    enumerate_clips,
    missing_from_bitmaps,
)
from seqrecord.store.format.manifest import MAX_EPISODES
from seqrecord.store.format.rows import MAX_EPISODE_FRAMES
from seqrecord.store.tables.grids import (
    MAX_FRAMES,
    MAX_OWNERS,
    ChunkGrid,
    distinct,
    frame_keys,
    search_keys,
    split_keys,
)
from tests.loader.clip_cases import Case, cases, episode_table

ALL_64 = np.uint64(2**64 - 1)


def located(table: ClipTable) -> list[tuple[int, int]]:
    episode, start, sample, _ = table.locate(np.arange(table.num_clips))
    assert (sample // MOST_COPIES).tolist() == [*range(table.num_clips)]
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


def test_missing_frames_from_bitmaps_by_hand() -> None:
    def found(episodes: EpisodeLayout, *rows: Any) -> list[tuple[int, int, int]]:
        chunk, present = (np.array(row) for row in rows)
        words = np.zeros_like(chunk)
        return runs(missing_from_bitmaps(episodes, [(chunk, words, present.astype(np.uint64))]))

    # Gaps of all features count, in any order of rows: chunk rows 0 1 2 | 3 4
    both = found(episode_table([10, 5], [4, 4]), [4, 1, 0, 1], [0b0, 0b1101, 0b0111, 0b1110])
    assert both == [(0, 3, 6), (1, 4, 5)]
    # A whole episode is one run; bits past the last frame do not count.
    episodes = episode_table([64 * 3 + 1, 64], [64, 64])
    assert found(episodes, range(4), np.zeros(4)) == [(0, 0, 193)]
    assert found(episodes, range(4), np.full(4, ALL_64)) == []
    assert found(episode_table([3], [64]), [0], [0b111]) == []
    # An episode without frames owns no chunk.
    grid = ChunkGrid(np.array([4, 4, 4]), np.array([0, 1, 1]))
    assert found(EpisodeLayout(np.array([4, 0, 4]), (grid,)), [1], [0b0111]) == [(2, 3, 4)]
    # Runs continue across the groups in which bitmaps are expanded.
    count = (1 << 16) + 10
    assert found(episode_table([count], [1]), range(count), np.zeros(count)) == [(0, 0, count)]


@given(cases(), st.integers(1, 40), st.integers(0, 90))
def test_every_nth_start(case: Case, n: int, phase: int) -> None:
    """Also where `n` and the stride have a common factor, and no start has the remainder."""
    table = case.table
    found = table.with_stride(n, phase)
    clips = found.locate(np.arange(found.num_clips))
    every_clip = table.locate(np.arange(table.num_clips))
    wanted = [
        (episode, start, sample)
        for episode, start, sample in zip(
            every_clip.episode.tolist(),
            every_clip.start.tolist(),
            every_clip.sample.tolist(),
            strict=True,
        )
        if (start - phase) % n == 0
    ]
    columns = (clips.episode.tolist(), clips.start.tolist(), clips.sample.tolist())
    assert list(zip(*columns, strict=True)) == wanted
    again = found.with_stride(n, phase)
    assert again.num_clips == found.num_clips


@pytest.mark.parametrize(("stride", "n"), [(4, 6), (6, 4), (6, 9), (10, 15), (3, 6), (6, 3)])
def test_every_nth_start_of_each_remainder(stride: int, n: int) -> None:
    table = Case.of(ClipSpec(2, stride), [70, 33], 8).table
    starts = {(0, s) for s in range(0, 69, stride)} | {(1, s) for s in range(0, 32, stride)}
    for phase in range(n):
        found = table.with_stride(n, phase)
        clips = found.locate(np.arange(found.num_clips))
        wanted = sorted(one for one in starts if one[1] % n == phase)
        assert [*zip(clips.episode.tolist(), clips.start.tolist(), strict=True)] == wanted


def test_repeats_are_equal_clips() -> None:
    def repeats(*rows: tuple[int, int, int], stride: int = 1) -> bool:
        episode, first, count = (np.array(column) for column in zip(*rows, strict=True))
        return ClipTable(ClipSpec(1, stride), np.arange(9), episode, first, count).repeats

    assert not repeats((0, 0, 5))
    assert not repeats((0, 0, 5), (0, 5, 2))  # adjacent
    assert repeats((0, 0, 5), (0, 4, 2))
    assert repeats((0, 3, 1), (0, 3, 1))
    assert not repeats((0, 3, 1), (1, 3, 1))  # of other episodes
    assert not repeats((0, 3, 4), (1, 0, 1), (1, 2, 3))
    assert repeats((1, 0, 1), (2, 0, 4), (2, 3, 1))
    assert not repeats((0, 0, 3), (0, 6, 2), stride=2)
    assert repeats((0, 0, 4), (0, 6, 2), stride=2)


@pytest.mark.parametrize(("stride", "phase"), [(1, 0), (3, 0), (3, 2), (4, 1)])
def test_union_of_tables(stride: int, phase: int) -> None:
    """Each clip once, whatever tables have it; adjacent ones in one run."""

    def table(*rows: tuple[int, int, int]) -> ClipTable:
        """Clips by episode, number of the first start, and count."""
        episode, number, count = (np.array(column) for column in zip(*rows, strict=True))
        return ClipTable(spec, np.arange(3), episode, phase + number * stride, count)

    spec = ClipSpec(2, stride, phase=phase)
    union = ClipTable.union([table((0, 0, 4), (2, 1, 1)), table((0, 2, 3), (0, 7, 2), (1, 0, 1))])
    clips = union.locate(np.arange(union.num_clips))
    numbers = [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 7), (0, 8), (1, 0), (2, 1)]
    wanted = [(episode, phase + number * stride) for episode, number in numbers]
    assert [*zip(clips.episode.tolist(), clips.start.tolist(), strict=True)] == wanted
    assert union.count.tolist() == [5, 2, 1, 1]


def test_refuses_values_out_of_range() -> None:
    for selected in ([1, 0], [0, 0], [-1], [2]):
        with pytest.raises(IndexError, match="ascending rows in"):
            enumerate_clips(ClipSpec(2), episode_table([9, 9], [4, 4]), np.array(selected))
    table = Case.of(ClipSpec(2), [9], 4).table
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


# Limits of owners for earlier widths of the frame number: 33 and 40 bits.
EDGES = (0, 1 << 23, 1 << 24, 1 << 30, MAX_OWNERS - 1)
owners = st.integers(0, MAX_OWNERS - 1) | st.sampled_from(EDGES)
frames = st.integers(0, MAX_FRAMES - 1) | st.sampled_from((0, 1, MAX_FRAMES - 2, MAX_FRAMES - 1))
places = st.tuples(owners, frames)


def key_of(place: tuple[int, int]) -> int:
    return int(frame_keys(*map(np.int64, place)))


@given(st.lists(places, min_size=1, max_size=20))
def test_keys_are_in_the_order_of_owners_and_frames(pairs: list[tuple[int, int]]) -> None:
    owner, frame = np.array(pairs, np.int64).T
    keys = frame_keys(owner, frame)
    assert keys.dtype == np.int64
    assert (keys >= 0).all()
    assert [pairs[i] for i in np.argsort(keys, kind="stable")] == sorted(pairs)
    assert list(zip(*map(np.ndarray.tolist, split_keys(keys)), strict=True)) == pairs


@given(places, places)
def test_only_consecutive_frames_have_consecutive_keys(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    follows = other == (one[0], one[1] + 1)
    assert (key_of(other) - key_of(one) == 1) == follows
    # The key after an owner's last frame is no frame of the next owner.
    assert key_of((one[0], MAX_FRAMES)) != key_of(other)


@given(places, owners, st.integers(-(1 << 62), 1 << 62))
def test_search_keys_may_be_out_of_range(place: tuple[int, int], owner: int, frame: int) -> None:
    sought = int(search_keys(np.int64(owner), np.int64(frame)))
    assert (key_of(place) < sought) == (place < (owner, frame))
    assert (key_of(place) > sought) == (place > (owner, frame))


def test_limits_of_datasets_fit_into_keys() -> None:
    assert MAX_EPISODES <= MAX_OWNERS
    assert MAX_EPISODE_FRAMES <= MAX_FRAMES


@pytest.mark.parametrize("shape", [(0,), (1,), (7, 3), (1000,)])
def test_distinct_values(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(-50, 50, shape)
    assert distinct(values).tolist() == sorted({*values.reshape(-1).tolist()})
