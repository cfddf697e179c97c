"""The experiment on clip orders, and the shuffle quality of plans."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.prose import replaced
from benchmarks.tartanair import default_mixing, order_training, shuffle_quality
from benchmarks.tartanair.default_mixing import CASES, PIXELS, Case, measured
from benchmarks.tartanair.order_report import REFERENCE, Interval, Run, runs_of, table
from benchmarks.tartanair.order_training import ORDERS, Setup, main, prepare
from benchmarks.timing import ROOT
from seqrecord import ClipSpec
from seqrecord.loader.clips.tables import enumerate_clips
from seqrecord.loader.sampling.bounds import ClipStats, PlanSettings
from seqrecord.loader.sampling.epoch import EpochPlan

SETUP = Setup(scenes=2, frames=16, epochs=2, buffer=4)
TINY = ["--scenes", "2", "--frames", "16", "--epochs", "1", "--buffer", "4", "--seeds", "2"]


@pytest.fixture(scope="module", autouse=True)
def small_frames() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(order_training, "HEIGHT", 16)
        monkeypatch.setattr(order_training, "WIDTH", 24)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # on little data, more threads only wait for each other
        yield
        torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("order")
    prepare(folder, SETUP)
    return folder


def test_orders_contain_the_same_clips(folder: Path) -> None:
    records = prepare(folder, SETUP)
    every = [(f"scene{scene}/Easy/P000", start) for scene in range(2) for start in range(9)]
    epochs = {}
    for name, order in ORDERS.items():
        for number in range(2):
            batches = list(order(SETUP, records, 0, number))
            assert [len(batch) for batch in batches] == [8, 8, 2]
            epochs[name, number] = [clip for batch in batches for clip in batch]
            assert sorted(epochs[name, number]) == every
            assert list(order(SETUP, records, 0, number)) == batches
    assert epochs["sequential", 0] == epochs["sequential", 1] == every
    shuffled = [tuple(epoch) for (name, _), epoch in epochs.items() if name != "sequential"]
    assert len({*shuffled, tuple(every)}) == 7


@pytest.mark.slow  # trains
def test_order_that_lacks_clips_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = prepare(folder, SETUP)
    frames = order_training.Frames(records, order_training.TRAIN)
    monkeypatch.setitem(ORDERS, "short", lambda *_: iter([[("scene0/Easy/P000", 0)] * 18]))
    with pytest.raises(RuntimeError, match=r"short: .*every clip once"):
        order_training.train(SETUP, records, frames, frames, "short", 0)


@pytest.mark.slow  # trains
def test_command_runs(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(folder), *TINY, "--draft", "--to", str(tmp_path)])
    document = json.loads((tmp_path / "order_training.json").read_text())
    runs = runs_of(document)
    every = [(order, seed) for seed in range(2) for order in ORDERS]
    assert [(run["order"], run["seed"]) for run in runs] == every
    assert len({run["losses"][0] for run in runs}) == len(every)
    text = (tmp_path / "order_training.md").read_text()
    assert table(runs) in text
    assert text in capsys.readouterr().out
    if importlib.util.find_spec("matplotlib") is not None:
        for picture in tmp_path.glob("*.png"):
            assert f"({picture.name})" in text


# The report


def run(order: str, seed: int, error: float) -> Run:
    return {"order": order, "seed": seed, "losses": [1.0], "errors": [9.0, error]}


def test_intervals_use_students_t() -> None:
    # Mean 3, standard deviation sqrt(2.5), 4 degrees of freedom: 2.776 * sqrt(2.5 / 5).
    assert Interval.of([1, 2, 3, 4, 5]) == pytest.approx((3, 1.96293), abs=1e-5)
    assert str(Interval.of([1, 2])) == "1.5000 ± 6.3530"


def test_differences_are_by_seed() -> None:
    # Seeds differ widely, the order's difference by seed is always 0.1: significant.
    runs = [run("sequential", seed, seed + 0.1 + 0.001 * (seed % 2)) for seed in range(3)]
    runs += [run("seqrecord", seed, seed + 0.1 * (-1) ** seed) for seed in range(3)]
    runs += [run(REFERENCE, seed, seed) for seed in reversed(range(3))]
    assert table(runs).splitlines()[2:] == [
        "| sequential | 1.1003 ± 2.4843 | 0.1003 ± 0.0014 | yes |",
        "| seqrecord | 1.0333 ± 2.5008 | 0.0333 ± 0.2869 | no |",
        "| full shuffle | 1.0000 ± 2.4843 |  |  |",
    ]


# Shuffle quality


def test_batch_quality_equals_counts_of_pairs() -> None:
    rng = np.random.default_rng(0)
    episode, start = rng.integers(0, 3, 60), rng.integers(0, 40, 60)
    sizes = np.array([7, 20, 1, 15, 17])
    batch = np.repeat(np.arange(5), sizes)
    near = (episode[:, None] == episode) & (abs(start[:, None] - start) < 6)
    same, before = batch[:, None] == batch, batch[:, None] == batch + 1
    found = shuffle_quality.batch_quality(episode, start, sizes, span=6)
    assert found.neighbours == pytest.approx((near & same).sum() / 60 - 1)
    assert found.carried == pytest.approx((near & before).any(axis=1)[batch > 0].mean())
    assert found.episodes == np.mean([len(set(episode[batch == b].tolist())) for b in range(5)])


@pytest.mark.parametrize("lengths", [(50, 50, 50), (120,), (30, 70, 45, 60)])
def test_small_epochs_have_different_orders(lengths: tuple[int, ...]) -> None:
    """One episode of 105 clips had only 17 orders, and the same batches in each epoch."""
    batch, span = 8, 16
    episodes = shuffle_quality.episode_table(lengths, 32)
    table = enumerate_clips(ClipSpec(span), episodes, np.arange(len(lengths)))
    settings = shuffle_quality.default_settings(
        ClipStats.of(table, episodes),
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
            members = np.sort(clips[i : i + batch]).tolist()
            pairs.update((a, b) for n, a in enumerate(members) for b in members[:n])
        sizes = np.bincount(np.arange(len(clips)) // batch)
        found = shuffle_quality.batch_quality(work.clips.episode, work.clips.start, sizes, span)
        rng = np.random.default_rng(epoch)
        order = rng.permutation(len(clips))
        random = shuffle_quality.batch_quality(
            work.clips.episode[order], work.clips.start[order], sizes, span
        )
        neighbours.append(found.neighbours / random.neighbours)
    assert len(orders) == 40
    assert len(pairs) > 0.6 * table.num_clips * (table.num_clips - 1) / 2
    assert max(pairs.values()) < 20
    assert np.mean(neighbours) < 0.5


def test_tables_of_orders() -> None:
    orders = [*shuffle_quality.orders(epochs=1)]
    assert len(orders) == 1 + 3 + 18
    parts = [*shuffle_quality.shards(epochs=1, sampled=2)]
    assert len(parts) == 1 + 8


@pytest.mark.page
def test_the_page_has_the_tables_of_this_code() -> None:
    """After a change: `python -m benchmarks.tartanair.shuffle_quality --write`, and the same of
    `default_mixing`.
    """
    page = (ROOT / shuffle_quality.PAGE).read_text()
    tables = {**shuffle_quality.TABLES, "defaults": default_mixing.table}
    for name, lines in tables.items():
        assert page == replaced(page, name, "\n".join(lines()) + "\n"), name


# Default settings mix batches about as well as a full shuffle does, and read little twice


@pytest.mark.parametrize(("num_frames", "num_shards"), [(60, 1), (60, 8), (200, 1), (400, 1)])
def test_short_sets_of_large_frames_are_mixed_well(num_frames: int, num_shards: int) -> None:
    """Whole episodes or shards stay in memory if cuts would read too many frames twice."""
    case = Case("two cameras", (num_frames,) * 20, (8,), (22 * PIXELS,), (16,))
    found = measured(case, 16, num_shards)
    assert found.is_good(num_shards), found
    assert found.nbytes <= 8 << 30


def test_default_settings_mix_well() -> None:
    """The table has every case and batch size; bad mixing is reported."""
    _, *rows = default_mixing.table()
    assert len(rows) == 2 * sum(len(case.batch_sizes) for case in CASES)
    assert all(row.endswith("| yes |") for row in rows)
    case = next(case for case in CASES if case.name == "five, uneven")
    found, limited = measured(case, 8, 1), measured(case, 8, 1, memory_limit=2 << 30)
    assert found.nbytes <= 8 << 30
    assert not limited.is_good(1)
    assert limited.nbytes <= 2 << 30
