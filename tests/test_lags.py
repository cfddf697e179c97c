"""Lags of timestamps, and the frames that they allow, against all pairs of frames."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import seqrecord
from seqrecord import FormatError, SeqRecordWriter
from seqrecord.lags import LagCollector, Lags
from seqrecord.reading.statistics import compute_statistics

gaps = st.lists(st.integers(1, 1000), max_size=60)


def collected(episodes: list[list[int]], pieces: list[int]) -> Lags:
    """Of episodes that come in pieces of these lengths, one after the other."""
    collector = LagCollector()
    for times in episodes:
        collector.begin()
        array, at = np.array(times, np.int64), 0
        for i in range(len(times)):
            count = pieces[i % len(pieces)]
            collector.add(array[at : at + count], np.arange(at, min(at + count, len(array))))
            at += count
        collector.keep(len(times))
    return collector.lags


@given(st.lists(gaps, min_size=1, max_size=3), st.lists(st.integers(1, 9), min_size=1, max_size=3))
@example([[8], [1, 1]], [1])  # a short episode with a long lag
def test_frames_within_a_time(episodes: list[list[int]], pieces: list[int]) -> None:
    stamps = [np.cumsum([5, *steps]).tolist() for steps in episodes]
    lags = collected(stamps, pieces)
    assert Lags.from_json(lags.to_json()) == lags
    alone = [collected([times], [7]) for times in stamps]
    merged = Lags.none()
    for one in alone:
        merged = merged.merged(one)
    assert merged == lags
    for i, step in enumerate(1 << k for k in range(13)):
        grown = [t[j + step] - t[j] for t in stamps for j in range(len(t) - step)]
        assert (lags.least[i], lags.most[i]) == (
            min(grown, default=math.inf),
            max(grown, default=-math.inf),
        )
    for time in (0, 1, 7, 500, 2500, 100_000):
        bounds = lags.frames_within(time)
        if not any(episodes):
            continue
        assert bounds is not None
        for times in stamps:
            for start, begin in enumerate(times):
                within = sum(t <= begin + time for t in times[start:]) - 1
                assert min(bounds[0], len(times) - 1 - start) <= within <= bounds[1]


def test_even_times_have_tight_bounds() -> None:
    rng = np.random.default_rng(0)
    times = np.arange(20_000) * 100 + rng.integers(-9, 10, 20_000)
    lags = collected([times.tolist()], [4000])
    assert lags.frames_within(1600) == (15, 16)
    found = lags.frames_within(100 * 10_000)
    assert found is not None
    assert 9_950 <= found[0] <= 10_000 <= found[1] <= 10_010


@pytest.mark.parametrize("times", [[1, 2, 2], [3, 2], [1.0, math.nan, 3.0], [1.0, math.inf]])
def test_times_that_do_not_ascend(times: list[float]) -> None:
    collector = LagCollector()
    collector.begin()
    collector.add(np.array(times), np.arange(len(times)))
    collector.keep(len(times))
    assert collector.lags.frames_within(1) is None


def test_a_frame_without_a_time() -> None:
    for numbers, num_frames in (([0, 2], 3), ([0, 1], 3), ([1, 2], 3)):
        collector = LagCollector()
        collector.begin()
        collector.add(np.array([1, 5]), np.array(numbers))
        collector.keep(num_frames)
        assert collector.lags.frames_within(1) is None


def test_writer_and_stats_keep_the_same(tmp_path: Path) -> None:
    features = {"t": {"kind": "timestamp", "unit": "s"}}
    path = tmp_path / "records"
    with SeqRecordWriter(path, features=features) as writer:
        for number, length in enumerate((30, 1, 700)):
            with writer.episode(f"{number}") as episode:
                for i in range(length):
                    episode.append({"t": np.float64(i / 10), "a": np.int64(i)})
                    if i == 300:
                        episode.flush()
    dataset = seqrecord.open(path)
    assert dataset.statistics is not None
    lags = dataset.statistics["t"].lags
    assert lags == compute_statistics(dataset)["t"].lags
    assert lags is not None
    assert lags.frames_within(0.55) == (5, 5)
    assert dataset.statistics["a"].lags is None
    some = compute_statistics(dataset, max_frames=100)["t"].lags
    assert some is not None
    assert some.frames_within(1) is None or some == lags


@pytest.mark.parametrize(
    "value",
    [
        None, {}, {"least": [1], "most": [1]}, {"least": [2], "most": [1], "is_whole": True},
        {"least": ["1"], "most": [1], "is_whole": True},
        {"least": [1], "most": [], "is_whole": True},
        {"least": [math.nan], "most": [1], "is_whole": True},
        {"least": [1] * 14, "most": [1] * 14, "is_whole": True},
        {"least": [1], "most": [1], "is_whole": 1},
    ],
)  # fmt: skip
def test_lags_that_make_no_sense(value: object) -> None:
    with pytest.raises(FormatError, match="lags of timestamps"):
        Lags.from_json(value)
