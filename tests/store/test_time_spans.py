"""TimeSpans of timestamps, and their numbers of frames, match brute force over all pairs."""

from __future__ import annotations

import base64
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seqrecord
from seqrecord import FormatError, reindex
from seqrecord.edit import merge_datasets
from seqrecord.store.format.time_spans import (
    EpisodeTimeSpans,
    TimeSpanCollector,
    TimeSpans,
    num_time_spans,
)
from tests.kit.datasets import columns, write_dataset

gaps = st.lists(st.integers(1, 1000), max_size=60)


def collected(episodes: list[list[int]], pieces: list[int]) -> list[TimeSpans]:
    """Time spans of episodes, added in pieces of these lengths."""
    collector, found = TimeSpanCollector(), []
    for times in episodes:
        collector.begin()
        array, at = np.array(times, np.int64), 0
        for i in range(len(times)):
            count = pieces[i % len(pieces)]
            collector.add(array[at : at + count], np.arange(at, min(at + count, len(array))))
            at += count
        time_spans = collector.time_spans(len(times))
        assert time_spans is not None
        found.append(time_spans)
    return found


def table(time_spans: list[TimeSpans | None], longest: int) -> EpisodeTimeSpans:
    return EpisodeTimeSpans.of([[one] for one in time_spans], 1, longest)


@given(st.lists(gaps, min_size=1, max_size=3), st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_frames_within_a_time(episodes: list[list[int]], pieces: list[int]) -> None:
    stamps = [np.cumsum([5, *steps]).tolist() for steps in episodes]
    time_spans = collected(stamps, pieces)
    for times, one in zip(stamps, time_spans, strict=True):
        assert TimeSpans.from_text(one.to_text(), len(times)) == one
        assert len(one.min_growth) == len(one.max_growth) == num_time_spans(len(times))
        for i in range(num_time_spans(len(times))):
            grown = [times[j + (1 << i)] - times[j] for j in range(len(times) - (1 << i))]
            assert (one.min_growth[i], one.max_growth[i]) == (min(grown), max(grown))
    rows = np.arange(len(stamps))
    every = table([*time_spans], max(map(len, stamps)))
    every.check(np.array([len(times) for times in stamps]))
    for time in (0, 1, 7, 500, 2500, 100_000):
        least, most = every.frames_within(rows, 0, time)
        for row, times in enumerate(stamps):
            for start, begin in enumerate(times):
                within = sum(t <= begin + time for t in times[start:]) - 1
                assert min(int(least[row]), len(times) - 1 - start) <= within
                assert within <= most[row] or len(times) == 1


def test_even_times_have_tight_bounds() -> None:
    rng = np.random.default_rng(0)
    times = np.arange(20_000) * 100 + rng.integers(-9, 10, 20_000)
    every = table([*collected([times.tolist()], [4000])], 20_000)
    rows = np.zeros(1, np.int64)
    assert [bound.tolist() for bound in every.frames_within(rows, 0, 1600)] == [[15], [16]]
    least, most = every.frames_within(rows, 0, 100 * 10_000)
    assert 9_950 <= least[0] <= 10_000 <= most[0] <= 10_010


def test_each_episode_has_its_own_bounds() -> None:
    fast, slow = np.arange(0, 5_000, 10), np.arange(0, 60_000, 1_000)
    every = table([*collected([fast.tolist(), slow.tolist(), [7]], [9])], 500)
    rows = np.arange(3)
    assert [bound.tolist() for bound in every.frames_within(rows, 0, 2_005)] == [[200, 2, 0]] * 2
    both = table([*collected([fast.tolist()], [9])], 500).extended(
        table([*collected([slow.tolist(), [7]], [9])], 60)
    )
    assert np.array_equal(both.min_growth, every.min_growth, equal_nan=True)
    assert np.array_equal(both.max_growth, every.max_growth, equal_nan=True)


def test_unusable_timestamps() -> None:
    """Times that do not ascend, or are missing."""
    for times in ([1, 2, 2], [3, 2], [1.0, math.nan, 3.0], [1.0, math.inf]):
        collector = TimeSpanCollector()
        collector.add(np.array(times), np.arange(len(times)))
        every = table([collector.time_spans(len(times))], len(times))
        assert every.unknown(np.zeros(1, np.int64), 0).tolist() == [0]
    for numbers, num_frames in (([0, 2], 3), ([0, 1], 3), ([1, 2], 3)):
        collector = TimeSpanCollector()
        collector.add(np.array([1, 5]), np.array(numbers))
        assert collector.time_spans(num_frames) is None


def _bounds(path: Path) -> list[list[int]]:
    time_spans = seqrecord.open(path).contents.index.time_spans
    assert time_spans is not None
    return [bound.tolist() for bound in time_spans.frames_within(np.arange(3), 0, 0.55)]


def test_the_index_stores_time_spans(tmp_path: Path) -> None:
    """After a flush, with several record files, rebuilt, and merged."""
    features = {"t": {"kind": "timestamp", "unit": "s"}}
    path = tmp_path / "records"
    episodes = {
        f"{number}": columns(t=np.arange(length) / (10 * (number + 1)), a=np.arange(length))
        for number, length in enumerate((30, 1, 700))
    }
    options: dict[str, Any] = {"features": features, "chunk_frames": 50, "max_file_size": 2000}
    write_dataset(path, episodes, flush_at=[300], **options)
    expected = [[5, 0, 16], [5, 0, 16]]
    assert _bounds(path) == expected
    assert len(seqrecord.open(path).contents.manifest.record_files) > 1
    before = seqrecord.open(path).contents.index.encode()
    for file in (path / "index").glob("*.arrow"):
        file.unlink()
    reindex(path)
    assert _bounds(path) == expected
    assert seqrecord.open(path).contents.index.encode() == before
    assert not seqrecord.verify(path).problems
    merged = tmp_path / "merged"
    merge_datasets([path], merged)
    assert _bounds(merged) == expected


def test_invalid_time_spans() -> None:
    numbers = [
        *([1.0, 2.0, 3.0, 4.0, 1.0, 1.0], [2.0, 2.0, 1.0, 2.0]),
        *([1.0, 2.0, 1.0, math.inf], [math.nan, 2.0, 1.0, 2.0]),
    ]
    texts = [base64.b64encode(np.array(each).tobytes()).decode() for each in numbers]
    others: list[object] = [None, "", "é", "=", 3, []]
    for text in (*others, *texts):
        with pytest.raises(FormatError, match="time spans of timestamps"):
            TimeSpans.from_text(text, 4)
    good = table([TimeSpans((1.0, 2.0), (1.0, 2.0)), TimeSpans((), ())], 4)
    good.check(np.array([4, 1]))
    for place, least, most in (
        *(((0, 0, 0), math.nan, 1), ((0, 0, 0), 2, 1), ((0, 0, 1), math.inf, math.inf)),
        *(((0, 0, 1), math.nan, math.nan), ((1, 0, 0), 1, 1), ((1, 0, 1), math.nan, 1)),
    ):
        bad = replace(good, min_growth=good.min_growth.copy(), max_growth=good.max_growth.copy())
        bad.min_growth[place], bad.max_growth[place] = least, most
        with pytest.raises(FormatError, match="time spans of timestamps") as caught:
            bad.check(np.array([4, 1]))
        assert caught.value.got == f"row {place[0]}"
