"""The experiment on clip orders, and the shuffle quality of plans."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.mixing import EpochRows, measure
from benchmarks.tartanair import default_mixing, order_training, shuffle_quality
from benchmarks.tartanair.default_mixing import (
    CASES,
    PIXELS,
    Case,
    Group,
    Job,
    PlannedEpoch,
    measured,
    plan_epoch,
)
from benchmarks.tartanair.order_report import REFERENCE, Interval, Run, runs_of, table
from benchmarks.tartanair.order_training import ORDERS, Setup, main, prepare
from benchmarks.timing import ROOT
from seqrecord import ClipSpec
from seqrecord.loader.clips.tables import enumerate_clips
from seqrecord.loader.sampling.epoch_plans import EpochPlan
from seqrecord.loader.sampling.plan_settings import PlanSettings

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


@pytest.mark.parametrize("lengths", [(50, 50, 50), (120,), (30, 70, 45, 60)])
def test_small_epochs_have_different_orders(lengths: tuple[int, ...]) -> None:
    """One episode of 105 clips had only 17 orders, and the same batches in each epoch."""
    batch, span = 8, 16
    episodes = shuffle_quality.episode_table(lengths, 32)
    table = enumerate_clips(ClipSpec(span), episodes, np.arange(len(lengths)))
    settings = shuffle_quality.default_settings(
        table, episodes, PlanSettings(batch_size=batch), max_frames=10_000
    )
    orders, pairs, neighbours = set(), Counter[tuple[int, int]](), []
    first = np.concatenate(([0], np.cumsum(lengths)))
    for epoch in range(40):
        plan = EpochPlan(table, episodes, settings, epoch=epoch)
        planned = plan.clips(0, plan.num_rounds)
        clips = first[planned.episode] + planned.start
        orders.add(tuple(clips.tolist()))
        assert len(set(clips.tolist())) == table.num_clips
        for i in range(0, len(clips), batch):
            members = np.sort(clips[i : i + batch]).tolist()
            pairs.update((a, b) for n, a in enumerate(members) for b in members[:n])
        step = np.arange(len(clips)) // batch
        rows = EpochRows(step, np.zeros_like(step), planned.episode, planned.start)
        neighbours.append(measure(rows, lengths, span).neighbours.ratio)
    assert len(orders) == 40
    assert len(pairs) > 0.6 * table.num_clips * (table.num_clips - 1) / 2
    assert max(pairs.values()) < 20
    assert np.mean(neighbours) < 1.2  # of a full shuffle


def test_tables_of_orders() -> None:
    orders = [*shuffle_quality.orders(epochs=1)]
    assert len(orders) == 1 + 3 + 15
    parts = [*shuffle_quality.shards(epochs=1, sampled=2)]
    assert len(parts) == 1 + 8


# After a change: `python -m benchmarks.tartanair.shuffle_quality --write`, and the same of
# `default_mixing`.


@pytest.mark.page
@pytest.mark.parametrize("name", shuffle_quality.TABLES)
def test_the_page_has_the_tables_of_this_code(name: str) -> None:
    page = (ROOT / shuffle_quality.PAGE).read_text()
    assert "\n".join(shuffle_quality.TABLES[name]()) in page


@pytest.mark.page
def test_the_pages_have_the_default_settings_of_this_code() -> None:
    rows = list(default_mixing.rows_of())
    assert default_mixing.table(rows) in (ROOT / shuffle_quality.PAGE).read_text()
    text = (ROOT / default_mixing.DOCS).read_text()
    assert default_mixing.summary(rows) in text
    assert default_mixing.shortfalls(rows) in text


# Default settings


@pytest.mark.parametrize(
    ("num_frames", "num_ranks", "least"),
    [(60, 1, 0.65), (60, 8, 0.26), (200, 1, 0.85), (400, 1, 0.85)],
)
def test_short_sets_of_large_frames_are_mixed(
    num_frames: int, num_ranks: int, least: float
) -> None:
    """There are as many cursors as reading and memory allow, in short sets fewer than a batch."""
    case = Case("two cameras", (num_frames,) * 20, (Group(22 * PIXELS, 8, 1),))
    planned = plan_epoch(case, Job(16, num_ranks))
    found = measured(case, planned)
    assert found.rank_episodes.ratio >= least
    assert found.decodes <= 1.1
    assert planned.nbytes <= 8 << 30


def test_less_memory_mixes_worse() -> None:
    (case,) = (case for case in CASES if case.name == "20 of uneven lengths, five features")
    free, limited = (plan_epoch(case, Job(8, memory_limit=limit)) for limit in (None, 2 << 30))
    assert free.nbytes <= 8 << 30
    assert limited.nbytes <= 2 << 30
    episodes = [measured(case, planned).step_episodes.ratio for planned in (free, limited)]
    assert episodes[0] > 1 > 2 * episodes[1]


def test_the_table_has_rows_of_each_job_and_epoch() -> None:
    """Of any order: here of sequential reading, whose frames stay."""
    case = Case("short", (40,) * 3, (Group(192, 16),), 8, (2,), (1, 2), in_summary=True)

    def sequential(case: Case, job: Job, epoch: int) -> PlannedEpoch:
        rows = plan_epoch(case, job, epoch).rows
        order = np.lexsort((rows.start, rows.episode))
        rows = replace(rows, episode=rows.episode[order], start=rows.start[order])
        return PlannedEpoch(rows, "one", 1 << 30, is_resident=True)

    rows = list(default_mixing.rows_of([case], sequential))
    assert [(row.job.ranks, row.epoch) for row in rows] == [
        *((1, "first"), (1, "later"), (2, "first"), (2, "later")),
    ]
    _, _, *lines = default_mixing.table(rows).splitlines()
    assert lines[0].startswith("| short | 1 | 2 | first | one | 50 | 0.6")
    assert lines[0].endswith("| 1.000 | 1.00 |")
    assert len(default_mixing.summary(rows).splitlines()) == 2 + 2  # of one rank
    assert default_mixing.summary(rows).splitlines()[2].startswith("| short | 1 | first | 0.6")
    found = default_mixing.shortfalls(rows)
    assert found.startswith("Of 4 rows without and 0 with workers")
    assert "a step has less than 0.95 of the episodes in 4 and 0;" in found
