"""The experiment on orders: all of them take the same clips, and a run cut short goes on."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.tartanair import order_training
from benchmarks.tartanair.order_report import REFERENCE, Interval, Run, spread, table
from benchmarks.tartanair.order_training import ORDERS, Setup, finished, main, prepare

SETUP = Setup(scenes=2, frames=16, epochs=2, buffer=4)
TINY = ["--scenes", "2", "--frames", "16", "--epochs", "1", "--buffer", "4", "--seeds", "2"]


@pytest.fixture(scope="module", autouse=True)
def small_frames() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(order_training, "HEIGHT", 16)
        monkeypatch.setattr(order_training, "WIDTH", 24)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # for so little, more of them only wait for each other
        yield
        torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("order")
    prepare(folder, SETUP)
    return folder


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Order and seed of the runs that are trained."""
    found = []
    train = order_training.train

    def spy(setup: Any, records: Any, on: Any, by: Any, order: str, seed: int, step: Any) -> Run:
        found.append((order, seed))
        return train(setup, records, on, by, order, seed, step)

    monkeypatch.setattr(order_training, "train", spy)
    return found


def test_orders_differ_in_nothing_but_the_order(folder: Path) -> None:
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


@pytest.mark.slow  # as it trains
def test_an_order_that_leaves_clips_out_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = prepare(folder, SETUP)
    frames = order_training.Frames(records, order_training.TRAIN)
    monkeypatch.setitem(ORDERS, "short", lambda *_: iter([[("scene0/Easy/P000", 0)] * 18]))
    with pytest.raises(RuntimeError, match=r"short: .*every clip once"):
        order_training.train(SETUP, records, frames, frames, "short", 0)


@pytest.mark.slow  # as it trains
def test_runs_are_kept_as_they_end_and_a_resume_goes_on(
    folder: Path,
    tmp_path: Path,
    trained: list[tuple[str, int]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiny = replace(SETUP, epochs=1)
    main([str(folder), *TINY])
    every = [(order, seed) for seed in range(2) for order in ORDERS]
    assert trained == every
    results = folder / "order_training.json"
    whole = results.read_bytes()
    runs = json.loads(whole)["runs"]
    assert [(run["order"], run["seed"]) for run in runs] == every
    assert len({run["losses"][0] for run in runs}) == len(every)
    assert table(runs) in capsys.readouterr().out
    pictures = [path.name for path in folder.glob("*.png")]
    for name in pictures:
        assert f"({name})" in (folder / "order_training.md").read_text()
    if importlib.util.find_spec("matplotlib") is not None:
        assert sorted(pictures) == ["order_errors.png", "order_training.png"]

    kept = folder / "order_training.jsonl"
    text = kept.read_text()
    assert len(text.splitlines()) == len(every)
    kept.write_text(text[:-40])  # killed while it wrote
    trained.clear()
    monkeypatch.setattr(order_training, "DOCS", tmp_path)
    main([str(folder), *TINY, "--resume", "--docs"])
    assert trained == every[-1:]
    assert results.read_bytes() == whole
    assert kept.read_text() == text
    assert len(finished(kept, tiny)) == len(every)
    assert finished(kept, replace(tiny, buffer=5)) == {}
    names = {*pictures, "order_training.json", "order_training.md"}
    assert {path.name for path in tmp_path.iterdir()} == names


# The report


def run(order: str, seed: int, error: float) -> Run:
    return {"order": order, "seed": seed, "losses": [1.0], "errors": [9.0, error]}


def test_intervals_are_students() -> None:
    # Mean 3, standard deviation sqrt(2.5), 4 degrees of freedom: 2.776 * sqrt(2.5 / 5).
    assert Interval.of([1, 2, 3, 4, 5]) == pytest.approx((3, 1.96293), abs=1e-5)
    assert str(Interval.of([1, 2])) == "1.5000 ± 6.3530"


def test_differences_are_by_seed() -> None:
    # Far apart by seed, and always 0.1 above: by seed that is a clear difference.
    runs = [run("sequential", seed, seed + 0.1 + 0.001 * (seed % 2)) for seed in range(3)]
    runs += [run("seqrecord", seed, seed + 0.1 * (-1) ** seed) for seed in range(3)]
    runs += [run(REFERENCE, seed, seed) for seed in reversed(range(3))]
    assert table(runs).splitlines()[2:] == [
        "| sequential | 1.1003 ± 2.4843 | 0.1003 ± 0.0014 | yes |",
        "| seqrecord | 1.0333 ± 2.5008 | 0.0333 ± 0.2869 | no |",
        "| full shuffle | 1.0000 ± 2.4843 |  |  |",
    ]


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([], []),
        ([5], [5]),
        ([30, 10, 20], [30, 10, 20]),
        ([10, 12], [6, 16]),
        ([12, 10], [16, 6]),
        ([0, 9, 11, 40], [-10 / 3, 20 / 3, 50 / 3, 40]),
    ],
)
def test_labels_move_apart(places: list[float], expected: list[float]) -> None:
    assert spread(places, 10) == pytest.approx(expected)
