"""Mixes resumed with other ranks or workers."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from seqrecord import EngineOptions, SeqRecordIterableDataset, SeqRecordMix, StateError
from tests.kit.clip_data import begun, minimum_memory, names, resumed
from tests.kit.datasets import written_once
from tests.loader.mix_data import LENGTHS, write_source, write_sources

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


def of_ranks(root: Path, count: int, state: Any, batches: int | None, **options: Any) -> Any:
    """So many batches of each rank after a state, by default those of the epoch; and the state."""
    found, states = list[Any](), list[Any]()
    for rank in range(count):
        mix = mixed(root, rank=(rank, count), **options)
        if state is not None:
            mix.load_state_dict(state)
        iterator = iter(mix)
        found.append(list(islice(iterator, batches)))
        states.append(json.loads(json.dumps(mix.state_dict())))
    assert all(one == states[0] for one in states)
    lengths = {len(one) for one in found}
    assert len(lengths) == 1, "ranks have equal numbers of batches"
    named = [Counter(batch["dataset"]) for batch in chain(*found)]
    assert named == named[: len(found[0])] * count, "… with as many clips of each source"
    return found, states[0]


def clips_of(batches: Any) -> Iterator[tuple[str, Any]]:
    for batch in batches:
        yield from zip(batch["dataset"], names(batch), strict=True)


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources whose numbers of clips of 3 frames are multiples of up to 4 ranks."""
    folder = tmp_path_factory.mktemp("even")
    for number, (name, lengths) in enumerate({"a": (26, 14, 14), "b": (26,), "c": (14,)}.items()):
        write_source(folder / name, number, lengths)
    return folder


@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted", 7])
@pytest.mark.parametrize("seed", range(3))
def test_a_mix_continues_on_other_ranks(even: Path, stop: Any, seed: int) -> None:
    """Inside an epoch, and between epochs, with other batches: each clip of a source comes once
    before any again.
    """
    rng, state = random.Random(seed), None
    total, slack = Counter[tuple[str, Any]](), 0
    for _ in range(8):
        count, batches = rng.randint(1, 4), rng.choice([None, 1, 2, 3])
        options: dict[str, Any] = {"stopping_strategy": stop, "batch_size": rng.choice([4, 3])}
        found, state = of_ranks(even, count, state, batches, **options)
        for one in found:
            total.update(clips_of(one))
            shares = Counter(name for name, _ in clips_of(one))
            number = sum(shares.values())
            assert all(abs(shares[n] - number * w / 6) < 2 for n, w in WEIGHTS.items())
        slack += 2 * count  # repeated clips, and those of a pass that some ranks have begun
    for name, num_clips in {"a": 48, "b": 24, "c": 12}.items():
        times = [n for (source, _), n in total.items() if source == name]
        times += [0] * (num_clips - len(times))
        assert sum(max(0, n - min(times) - 1) for n in times) <= slack


def test_a_changed_mix_gives_what_is_left(root: Path) -> None:
    """Without repeats, the clips of a pass on three ranks and then on one are all of its clips."""
    options: dict[str, Any] = {"weights": {"a": 1, "b": 0, "c": 0}, "stopping_strategy": 6}
    num_clips = sum(length - 2 for length in LENGTHS["a"])
    found, state = of_ranks(root, 3, None, 2, **options)
    given = Counter(chain(*map(clips_of, found)))
    assert max(given.values()) == 1
    rest, _ = of_ranks(root, 1, state, None, **options)
    more = [*clips_of(rest[0])][: num_clips - len(given)]
    assert Counter(more) + given == Counter({*more, *given})
    assert len(rest[0]) == 3 * (6 - 2), "what three ranks had left of their epoch"


def test_rows_of_a_changed_mix(root: Path) -> None:
    """Also of batches before the change."""
    options: dict[str, Any] = {"stopping_strategy": 9}
    before, state = of_ranks(root, 3, None, 2, **options, batch_size=5)
    after, state = of_ranks(root, 2, state, 3, **options)
    again, later = of_ranks(root, 2, state, None, **options)
    next_epoch, _ = of_ranks(root, 2, later, None, **options)
    reader = resumed(mixed(root, rank=(0, 2), **options), state)

    def check(batches: Any, ranks: int, first: int = 0, **place: Any) -> None:
        for rank, of_rank in enumerate(batches):
            for number, batch in enumerate(of_rank):
                whose = {"rank": (rank, ranks), "segment": place["segment"]}
                rows = reader.rows(place["epoch"], first + number, **whose)
                assert rows["dataset"] == batch["dataset"]
                assert rows["episode"] == batch["episode"]
                assert rows["start"].tolist() == batch["start"].tolist()

    check(before, 3, epoch=0, segment=0)
    check(after, 2, epoch=0, segment=1)
    check(again, 2, first=3, epoch=0, segment=None)
    check(next_epoch, 2, epoch=1, segment=None)


def test_a_mix_with_workers(root: Path) -> None:
    """Two workers continue exactly, three with what is left; so does a StatefulDataLoader."""
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
    other = resumed(mixed(root, **options), saved)
    of_three = loading(other, 3)
    left = clips(of_three)
    assert len(left) == 4, "what two workers had left"
    assert other.state_dict(batches=0)["epoch"] == 0
    alone = clips(resumed(mixed(root, **options), other.state_dict(batches=0)))
    assert len(alone) == 4
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
