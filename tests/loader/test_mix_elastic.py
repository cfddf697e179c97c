"""Mixes resumed with other ranks or workers: exactly, or at their next epoch."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from seqrecord import EngineOptions, SeqRecordIterableDataset, SeqRecordMix, StateError
from tests.kit.clip_data import begun, minimum_memory, names, resumed
from tests.kit.datasets import written_once
from tests.loader.mix_data import LENGTHS, write_sources

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]
WEIGHTS = {"a": 3, "b": 2, "c": 1}


root = written_once(write_sources)


def mixed(root: Path, **options: Any) -> SeqRecordMix:
    sources = {name: SeqRecordIterableDataset(root / name, clip_len=3) for name in LENGTHS}
    return SeqRecordMix(sources, **{"weights": WEIGHTS, "batch_size": 4, "seed": 5, **options})


def loading(data: Any, workers: int, **options: Any) -> Any:
    return DataLoader(data, batch_size=None, num_workers=workers, **options)


def clips(loader: Any) -> list[Any]:
    return [list(zip(batch["dataset"], names(batch), strict=True)) for batch in loader]


def epoch(root: Path, number: int, **options: Any) -> list[Any]:
    mix = mixed(root, **options)
    mix.set_epoch(number)
    return clips(mix)


def test_a_mix_on_other_ranks_continues_at_its_next_epoch(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning has the number of skipped clips; with equal ranks it continues exactly."""
    options: dict[str, Any] = {"stopping_strategy": "all_exhausted"}
    three, two = ({"rank": rank, **options} for rank in ((1, 3), (0, 2)))
    first = mixed(root, **three)
    first.set_epoch(7)  # no other test warns of this epoch
    iterator = begun(first, 2)
    state = json.loads(json.dumps(first.state_dict()))
    rest = clips(iterator)
    same = resumed(mixed(root, memory_limit="1MiB", **three), state)
    assert clips(same) == rest
    assert clips(same) == epoch(root, 8, **three)
    with caplog.at_level(logging.WARNING, "seqrecord"):
        other = resumed(mixed(root, **two), state)
        assert other.state_dict() == state  # until it begins
        assert [clips(other) for _ in range(2)] == [epoch(root, n, **two) for n in (8, 9)]
        resumed(mixed(root, **two), state).state_dict()
    left = 3 * 4 * len(rest)
    message = f"continues at epoch 8, without the remaining {left} clips"
    assert [message in one for one in caplog.messages if "ranks or workers" in one] == [True]
    # Nothing is skipped between epochs.
    between = mixed(root, **three)
    clips(between)
    other = resumed(mixed(root, **two), between.state_dict())
    assert clips(other) == epoch(root, 1, **two)
    other = resumed(mixed(root, **two), state)
    other.set_epoch(4)
    assert clips(other) == epoch(root, 4, **two)


def test_a_mix_with_workers(root: Path) -> None:
    """Two workers continue exactly, three at the next epoch; so does a StatefulDataLoader."""
    options: dict[str, Any] = {"stopping_strategy": 7}
    original = mixed(root, **options)
    stateful = StatefulDataLoader(original, batch_size=None, num_workers=2)
    iterator = begun(stateful, 3)
    of_workers, saved = stateful.state_dict(), original.state_dict(batches=3)
    rest = clips(iterator)
    again: Any = StatefulDataLoader(mixed(root, **options), batch_size=None, num_workers=2)
    again.load_state_dict(of_workers)
    assert clips(again) == rest
    for each in (again, stateful):
        each.dataset.set_epoch(1)
    assert clips(again) == clips(stateful)
    assert clips(loading(resumed(mixed(root, **options), saved), 2)) == rest
    three, other = mixed(root, **options), resumed(mixed(root, **options), saved)
    three.set_epoch(1)
    assert clips(loading(three, 3)) == clips(loading(other, 3))
    assert other.state_dict(batches=0)["epoch"] == 1
    of_one = of_workers["_snapshot"]["_worker_snapshots"]["worker_0"]["dataset_state"]
    with pytest.raises(StateError, match="the position of one worker of several"):
        mixed(root, **options).load_state_dict(of_one)


def test_workers_use_the_settings_of_a_state_that_the_mix_loads(root: Path) -> None:
    """As if the StatefulDataLoader itself had loaded its state."""

    def mix(**options: Any) -> SeqRecordMix:
        sources = {"a": SeqRecordIterableDataset(root / "a", clip_len=3)}
        return SeqRecordMix(sources, batch_size=4, seed=5, **options)

    def stateful(data: SeqRecordMix) -> Any:
        return StatefulDataLoader(data, batch_size=None, num_workers=2)

    first = mix(memory_limit=minimum_memory(mix))
    loader = stateful(first)
    iterator = begun(loader, 2)
    state, own = first.state_dict(batches=2), loader.state_dict()
    expected = clips(iterator)
    assert clips(stateful(resumed(mix(), state))) == expected
    assert clips(stateful(mix()))[2:] != expected
    data = mix()
    assert clips(resumed(stateful(data), own)) == expected
    assert len(list(data)) == len(data)  # without workers, after an epoch in workers


def test_a_state_of_many_sources_reaches_the_next_workers(root: Path) -> None:
    """They begin the epoch after the one that a StatefulDataLoader has resumed."""

    def mix() -> SeqRecordMix:
        stream = SeqRecordIterableDataset(root / "c", clip_len=3)
        sources = {f"robot {i}": stream for i in range(45)}
        engine = EngineOptions(num_threads=1)
        return SeqRecordMix(sources, batch_size=4, seed=5, engine=engine)

    first: Any = StatefulDataLoader(mix(), batch_size=None, num_workers=1)
    iterator = begun(first)
    state, rest = first.state_dict(), clips(iterator)
    assert len(json.dumps(first.dataset.state_dict(batches=1))) > 1 << 15
    later: Any = StatefulDataLoader(mix(), batch_size=None, num_workers=1)
    later.load_state_dict(state)
    alone = mix()
    alone.set_epoch(1)
    assert [clips(later), clips(later)] == [rest, clips(alone)]
