"""Loaders of random arguments deliver the recorded clips; and the comparison finds faults."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

from seqrecord import EngineOptions, RandomCrop
from seqrecord.samples import dilate, every, future_goal, reverse
from tests.loader import unordered
from tests.loader.clip_digests import Reader
from tests.loader.configurations import PROCESSES, STREAMS, drawn, text_of
from tests.loader.digests import main
from tests.loader.unordered import GOLDEN, open_records, outcome_of, read_file

Change = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return open_records(tmp_path_factory.mktemp("unordered"))


@pytest.mark.filterwarnings("ignore")  # of arguments that have no effect, and of torch
def test_recorded_clips(thorough: bool, records: Any, pytestconfig: pytest.Config) -> None:
    """Of 2,000 configurations, as many as fit here, drawn by `--share-seed`."""
    header, golden = read_file(GOLDEN)
    rng = random.Random(pytestconfig.getoption("--share-seed"))
    numbers = rng.sample(range(header["count"]), 110 if thorough else 2)
    num_compared = 0
    for number, configuration in zip(numbers, drawn(header["seed"], numbers), strict=True):
        if configuration["kind"] in PROCESSES and not thorough:
            continue
        if unordered.is_drawn_differently(configuration, golden[number]):
            assert hypothesis.__version__ != header["hypothesis"], text_of(configuration)
            continue
        outcome = outcome_of(records, configuration)
        differences = unordered.differences(outcome.line(number, configuration), golden[number])
        assert not outcome.faults + differences, f"--only {number}: {text_of(configuration)}"
        num_compared += 1
    if not num_compared:
        pytest.skip(f"hypothesis {header['hypothesis']} draws the recorded configurations")


CONFIGURATION: dict[str, Any] = {
    "kind": "pipe",
    "options": {
        "features": ["image", "action", "id"],
        "seed": 3,
        "shuffle": True,
        "episodes": "kitchen/*",
        "clip_len": 3,
        "batch_size": 4,
        "last_batch": "repeat",
        "metadata": ["task"],
        "clip_transform": RandomCrop((5, 7)),
        "output": "torch",
    },
    "ranks": 2,
    "epoch": 1,
    "taken": 3,
    "later ranks": 3,
    "later size": None,
}


class Changed:
    """A loader whose batches are changed."""

    def __init__(self, loader: Any, change: Change) -> None:
        self._loader, self._change = loader, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._change, iter(self._loader))


def rows(batch: dict[str, Any], numbers: list[int]) -> dict[str, Any]:
    return {
        name: value[numbers] if isinstance(value, torch.Tensor) else [value[n] for n in numbers]
        for name, value in batch.items()
    }


def with_value(batch: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """The batch with another value of the first clip."""
    column = batch[name].clone() if isinstance(batch[name], torch.Tensor) else [*batch[name]]
    column[0] = value
    return {**batch, name: column}


CHANGES: dict[str, tuple[Change, str]] = {
    "missing": (lambda batch: rows(batch, [*range(1, len(batch["id"]))]), "missing, at most"),
    "twice": (lambda batch: rows(batch, [0, *range(len(batch["id"]) - 1)]), "repeated, at most"),
    "frame": (
        lambda batch: with_value(batch, "image", batch["image"][0].flip(0)),
        "differs in image",
    ),
    "clip": (lambda batch: with_value(batch, "action", batch["action"][-1]), "differs in action"),
    "start": (lambda batch: with_value(batch, "start", batch["start"][0] + 1), "differs in"),
    "crop": (lambda batch: with_value(batch, "crop", batch["crop"][0] + 1), "differs in crop"),
    "metadata": (lambda batch: with_value(batch, "task", "other"), "differs in task"),
    "column": (lambda batch: {**batch, "more": batch["start"]}, "differs in more"),
}


@pytest.mark.parametrize(("change", "fault"), CHANGES.values(), ids=CHANGES)
def test_faults(records: Any, monkeypatch: pytest.MonkeyPatch, change: Change, fault: str) -> None:
    monkeypatch.setattr(unordered, "maker", partial(changed_maker, change=change))
    outcome = outcome_of(records, CONFIGURATION)
    assert any(fault in text for text in outcome.faults), outcome.faults


def changed_maker(records: Any, configuration: Any, change: Change) -> Callable[..., Any]:
    """A maker of pipes whose batches are changed."""
    make = partial(STREAMS["pipe"], records, **configuration["options"])
    return lambda rank, **more: Changed(make(**more, rank=rank), change)


def test_forms_of_columns(records: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = outcome_of(records, CONFIGURATION).line(0, CONFIGURATION)
    change: Change = lambda batch: {**batch, "start": batch["start"].int()}  # noqa: E731
    monkeypatch.setattr(unordered, "maker", partial(changed_maker, change=change))
    outcome = outcome_of(records, CONFIGURATION)
    assert outcome.faults == []
    assert unordered.differences(outcome.line(0, CONFIGURATION), before) == ["columns"]


def test_a_wrong_share(records: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make = partial(STREAMS["pipe"], records, **CONFIGURATION["options"])
    first_share = lambda rank, **more: make(**more, rank=(0, rank[1]))  # noqa: E731
    monkeypatch.setattr(unordered, "maker", lambda *_: first_share)
    faults = outcome_of(records, CONFIGURATION).faults
    assert any("epoch 1: " in text and " missing, at most 0" in text for text in faults)
    assert any("a resumed epoch: " in text and " missing, at most 0" in text for text in faults)


def test_values_of_all_loaders(records: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that plain passes share is in the digests."""
    before = outcome_of(records, CONFIGURATION).line(0, CONFIGURATION)
    read_clips = Reader.clips

    def clips(reader: Reader, batch: Any) -> Any:
        last_frame = batch["id"].clone()
        last_frame[:, -1] = last_frame[:, 0]
        return read_clips(reader, {**batch, "id": last_frame})

    monkeypatch.setattr(Reader, "clips", clips)
    outcome = outcome_of(records, CONFIGURATION)
    assert outcome.faults == []
    assert unordered.differences(outcome.line(0, CONFIGURATION), before) == ["values"]


OTHER_ORDERS: dict[str, dict[str, Any]] = {
    "not shuffled": {"shuffle": False},
    "cursors": {"engine": EngineOptions(num_cursors=5, shuffle_buffer=5)},
    "memory": {"memory_limit": "least"},
}


@pytest.mark.parametrize("change", OTHER_ORDERS.values(), ids=OTHER_ORDERS)
def test_another_order(records: Any, change: dict[str, Any]) -> None:
    samples = [dilate(1, 2), reverse(0.5), every(2), future_goal()]
    options = {**CONFIGURATION["options"], "samples": samples}
    lines = []
    for more in ({}, change):
        configuration = {**CONFIGURATION, "options": {**options, **more}}
        outcome = outcome_of(records, configuration)
        assert not outcome.faults
        assert not outcome.error
        lines.append(outcome.line(0, configuration))
    assert unordered.differences(*lines) == []


def test_a_file_of_one_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "clips.jsonl.gz"
    options = ["--unordered", "--only", "3", "7", "--seed", "5"]
    assert main([*options, "--to", str(path)]) == 0
    assert main([*options, "--compare", str(path)]) == 0
    header, lines = read_file(path)
    unordered.write_file(path, header["seed"], [{**lines[0], "values": "x", "columns": "y"}])
    assert main([*options, "--compare", str(path), "--show"]) == 1
    report = capsys.readouterr().out.splitlines()
    assert report[-1] == "2 configurations, 0 refused, 2 differ"
    assert any(text.startswith("3: values; columns: {") for text in report)
    assert any(text.startswith(f"7: not in {path}: {{") for text in report)
