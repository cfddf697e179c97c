from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from benchmarks.tartanair import shuffle_quality
from benchmarks.tartanair.shuffle_quality import (
    Quality,
    batch_quality,
    buffered,
    default_settings,
    episode_table,
)
from seqrecord import ClipSpec
from seqrecord.clips.tables import enumerate_clips
from seqrecord.sampling import ClipFacts, EpochPlan, PlanSettings


def test_counts_overlaps_and_episodes_by_hand() -> None:
    # batch 0: (0, 0) and (0, 3) overlap; (1, 3) and (0, 4) do not overlap (0, 0) with a span of 4
    # batch 1: (1, 6) overlaps (1, 3) before it; (2, 0) overlaps nothing
    episode = np.array([0, 0, 1, 0, 1, 2])
    start = np.array([0, 3, 3, 4, 6, 0])
    found = batch_quality(episode, start, np.array([4, 2]), span=4)
    assert found == Quality(episodes=2.0, neighbours=4 / 6, carried=0.5)


def test_agrees_with_counting_every_pair() -> None:
    rng = np.random.default_rng(0)
    episode, start = rng.integers(0, 3, 60), rng.integers(0, 40, 60)
    sizes = np.array([7, 20, 1, 15, 17])
    batch = np.repeat(np.arange(5), sizes)
    near = (episode[:, None] == episode) & (abs(start[:, None] - start) < 6)
    same, before = batch[:, None] == batch, batch[:, None] == batch + 1
    found = batch_quality(episode, start, sizes, span=6)
    assert found.neighbours == pytest.approx((near & same).sum() / 60 - 1)
    assert found.carried == pytest.approx((near & before).any(axis=1)[batch > 0].mean())
    assert found.episodes == np.mean([len(set(episode[batch == b].tolist())) for b in range(5)])


def test_a_buffer_emits_every_clip_once_and_none_too_early() -> None:
    order = buffered(500, 100, seed=0)
    assert sorted(order.tolist()) == list(range(500))
    assert (order - np.arange(500)).max() <= 100


@pytest.mark.parametrize("lengths", [(50, 50, 50), (120,), (30, 70, 45, 60)])
def test_small_epochs_come_in_ever_other_orders(lengths: tuple[int, ...]) -> None:
    """One episode of 105 clips came in 17 orders, and its batches were the same in each epoch."""
    batch, span = 8, 16
    episodes = episode_table(lengths, 32)
    table = enumerate_clips(ClipSpec(span), episodes, np.arange(len(lengths)))
    settings = default_settings(
        ClipFacts.of(table, episodes),
        PlanSettings(batch_size=batch),
        shuffle_buffer=None,
        max_held=10_000,
    )
    orders, pairs, neighbours = set(), Counter[tuple[int, int]](), []
    first = np.concatenate(([0], np.cumsum(lengths)))
    for epoch in range(40):
        plan = EpochPlan(table, episodes, settings, epoch=epoch)
        (work,) = plan.rounds()
        clips = first[work.clips.episode] + work.clips.start
        orders.add(tuple(clips.tolist()))
        assert len(set(clips.tolist())) == table.num_clips
        for i in range(0, len(clips), batch):
            some = np.sort(clips[i : i + batch]).tolist()
            pairs.update((a, b) for n, a in enumerate(some) for b in some[:n])
        sizes = np.bincount(np.arange(len(clips)) // batch)
        found = batch_quality(work.clips.episode, work.clips.start, sizes, span)
        rng = np.random.default_rng(epoch)
        order = rng.permutation(len(clips))
        random = batch_quality(work.clips.episode[order], work.clips.start[order], sizes, span)
        neighbours.append(found.neighbours / random.neighbours)
    assert len(orders) == 40
    assert len(pairs) > 0.6 * table.num_clips * (table.num_clips - 1) / 2
    assert max(pairs.values()) < 20
    assert np.mean(neighbours) < 0.5


def test_prints_a_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["shuffle_quality", "--epochs", "1", "--some", "2"])
    shuffle_quality.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    orders = [row for row in rows if row.count("|") == 7]
    parts = [row for row in rows if row.count("|") == 10]
    assert orders[1] == "|---|---|---|---|---|---|"
    assert len(orders) == 2 + 3 + 18
    assert len(parts) == 2 + 8
    assert len(rows) == len(orders) + len(parts)
