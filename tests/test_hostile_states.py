"""States with altered numbers raise StateError at once or resume without a crash."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from seqrecord import SeqRecordError, SeqRecordIterableDataset, SeqRecordMix, StateError
from seqrecord.errors import MemoryLimitError
from tests.clip_data import begun, digest, digests, resumed
from tests.mix_data import write_sources

HUGE = (1 << 31) - 1, 1 << 45, (1 << 62) - 1
ODD: tuple[Any, ...] = -1, 0, 2, 1 << 63, 10**5000, True, 1.5, "1", None, []

Loader = SeqRecordMix | SeqRecordIterableDataset


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sources(tmp_path_factory.mktemp("hostile_states"))


def mixed(root: Path, world_size: int = 1) -> SeqRecordMix:
    """The epochs of `b` and `c` differ in length."""
    chosen = {"episode": ["e/0", "e/1", "e/0"], "start": [4, 0, 7], "weight": [1.5, 3.2, 0.3]}
    sources = {
        "a": SeqRecordIterableDataset(root / "a", clip_len=3),
        "b": SeqRecordIterableDataset(root / "b", clip_len=3, clips=chosen),
        "c": SeqRecordIterableDataset(root / "c", clip_len=3, stride=4, rotate_phase=True),
    }
    weights = {"a": 3, "b": 2, "c": 1}
    return SeqRecordMix(
        sources, weights=weights, batch_size=4, stopping_strategy=5, rank=0, world_size=world_size
    )


def stream(root: Path, world_size: int = 1, **options: Any) -> SeqRecordIterableDataset:
    options = {"batch_size": 4, "rank": 0, "world_size": world_size, **options}
    return SeqRecordIterableDataset(root / "a", clip_len=3, **options)


def sequences(root: Path, world_size: int = 1) -> SeqRecordIterableDataset:
    return stream(root, world_size, batch_size=2, order="sequences")


KINDS: list[Callable[[Path, int], Loader]] = [stream, mixed, sequences]


def state_of(kind: Callable[[Path, int], Loader], root: Path, *sizes: int) -> dict[str, Any]:
    """A state after two batches with each of these world sizes in turn."""
    state: dict[str, Any] | None = None
    for world_size in sizes:
        loader = kind(root, world_size)
        if state is not None:
            loader.load_state_dict(state)
        iterator = iter(loader)
        next(iterator, None)
        next(iterator, None)
        state = json.loads(json.dumps(loader.state_dict()))
    assert state is not None
    return state


def numbers_in(state: Any, *names: Any) -> Iterator[tuple[Any, ...]]:
    """Paths of the numbers, except arguments and digests."""
    items = state.items() if isinstance(state, dict) else enumerate(state)
    for name, value in items:
        if isinstance(value, (dict, list)):
            if name not in ("request", "episodes", "shared_arguments"):
                yield from numbers_in(value, *names, name)
        elif value is None or isinstance(value, (int, float)):
            yield (*names, name)


def changed(state: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(state))
    inner: Any = copy
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    return copy


def check(loader: Loader, before: dict[str, Any], state: dict[str, Any]) -> None:
    """A refused state changes nothing; an accepted one gives a batch or a typed error."""
    try:
        loader.load_state_dict(state)
    except (StateError, MemoryLimitError):
        assert loader.state_dict() == before
        return
    try:
        next(iter(loader), None)
    except SeqRecordError:
        return
    loader.state_dict()


@pytest.mark.parametrize("kind", KINDS)
def test_odd_and_huge_numbers(root: Path, kind: Any, thorough: bool) -> None:
    """Each number is replaced, in a state after one or several world sizes."""
    draws, values = random.Random(0), (*HUGE, *ODD) if thorough else HUGE
    for sizes in ([2], [1, 3, 2]) if thorough else ([2],):
        state, loader = state_of(kind, root, *sizes), kind(root, 2)
        before = loader.state_dict()
        for place in numbers_in(state):
            for value in draws.sample(values, 4 if thorough else 2):
                check(loader, before, changed(state, place, value))
                loader = kind(root, 2) if loader.state_dict() != before else loader


def test_resuming_a_far_epoch_is_fast(root: Path) -> None:
    """The sources' positions were once counted from the first epoch, which took forever."""
    mix = mixed(root)
    mix.set_epoch(1 << 40)
    iterator = begun(mix)
    state = mix.state_dict()
    expected = [digest(batch) for batch in iterator]
    assert digests(resumed(mixed(root), state)) == expected
    with pytest.raises(StateError, match="of no epoch"):
        mix.load_state_dict({**state, "epoch": 1 << 61})
