"""Damaged states raise typed errors at once, or resume without a crash."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import seqrecord
from seqrecord import ClipError, SeqRecordIterableDataset, SeqRecordMix, StateError
from seqrecord.errors import MemoryLimitError
from seqrecord.samples import SampleRandom, Samples, every
from seqrecord.store.processes.threads import error_of
from tests.kit.clip_data import begun, digest, digests, names, resumed
from tests.kit.datasets import written_once
from tests.loader.mix_data import write_sources

HUGE = (1 << 31) - 1, 1 << 45, (1 << 62) - 1
ODD: tuple[Any, ...] = -1, 0, 2, 1 << 63, 10**5000, True, 1.5, "1", None, []
BEYOND = "beyond the end of its epoch"

Loader = SeqRecordMix | SeqRecordIterableDataset


root = written_once(write_sources)


CHOSEN = {"episode": ["e/0", "e/1", "e/0"], "start": [4, 0, 7], "repeat": [1.5, 3.2, 0.3]}
SAMPLES: dict[str, Any] = {"a": None, "b": CHOSEN, "c": every(4, rotate=True)}
MIXED: dict[str, Any] = {"weights": {"a": 3, "b": 2, "c": 1}, "batch_size": 4}


def mixed(root: Path, world_size: int = 1) -> SeqRecordMix:
    """The epochs of `b` and `c` differ in length."""
    sources = {
        name: SeqRecordIterableDataset(root / name, clip_len=3, samples=samples)
        for name, samples in SAMPLES.items()
    }
    return SeqRecordMix(sources, **MIXED, stopping_strategy=5, rank=(0, world_size))


def stream(root: Path, world_size: int = 1, **options: Any) -> SeqRecordIterableDataset:
    options = {"batch_size": 4, "rank": (0, world_size), **options}
    return SeqRecordIterableDataset(root / "a", clip_len=3, **options)


def sequences(root: Path, world_size: int = 1) -> SeqRecordIterableDataset:
    return stream(root, world_size, batch_size=2, order="sequences")


KINDS: list[Callable[[Path, int], Loader]] = [stream, mixed, sequences]


def state_of(kind: Callable[[Path, int], Loader], root: Path, *sizes: int) -> dict[str, Any]:
    """A state after two batches with each of these world sizes in turn."""
    state = dict[str, Any]()
    for world_size in sizes:
        loader = kind(root, world_size)
        if state:
            loader.load_state_dict(state)
        iterator = iter(loader)
        deque(islice(iterator, 2), maxlen=0)
        state = json.loads(json.dumps(loader.state_dict()))
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


def changed(state: dict[str, Any], place: Sequence[Any], value: Any) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(state))
    inner: Any = copy
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    return copy


@pytest.mark.parametrize("kind", KINDS)
def test_odd_and_huge_numbers(root: Path, kind: Any, thorough: bool) -> None:
    """Each number is replaced, in a state after one or several world sizes.

    A refused state changes nothing; an accepted one gives a batch or a typed error.
    """
    draws, values = random.Random(0), (*HUGE, *ODD) if thorough else HUGE
    for sizes in ([2], [1, 3, 2]) if thorough else ([2],):
        state, loader = state_of(kind, root, *sizes), kind(root, 2)
        before = loader.state_dict()
        count = 4 if thorough else 2
        drawn = [(place, v) for place in numbers_in(state) for v in draws.sample(values, count)]
        for place, value in drawn:
            try:
                loader.load_state_dict(changed(state, place, value))
            except (StateError, MemoryLimitError):
                assert loader.state_dict() == before
                continue
            try:
                next(iter(loader), None)
            except seqrecord.SeqRecordError:
                pass
            else:
                loader.state_dict()
            loader = kind(root, 2)


NUMBERS: list[Any] = [-1, 1.0, "1", None, True, 1 << 63, 10**5000]
NO_DICTS: list[Any] = [None, [], {}, 1]
SEGMENT = {"ranks": 4, "workers": 1, "batch": 1, "batch_size": 1}
REFUSED: dict[str, list[Any]] = {
    "version": [5, 9, True, "10"],
    **{name: [*NUMBERS, [1], []] for name in ("epoch", "batch")},
    **{name: [0, *NUMBERS] for name in ("batch_size", "ranks", "workers")},
    "worker": [0, 1, *(number for number in NUMBERS if number is not None)],
    "shared_arguments": [None, {"shares": []}],
    "segments": [None, {}, "", [1], [{}], [[]], [{**SEGMENT, "settings": {}}], [SEGMENT]],
    "sources": [*NO_DICTS, [1], [{}]],
    "sources.0.rest": [[], {}, 1, {"seed": 5}],
    **{f"sources.0.{name}": NO_DICTS for name in ("settings", "request", "episodes")},
    "sources.0.settings.num_cursors": [0, -1, None, 1 << 24, "1", True, 10**5000],
    "sources.0.settings.block_rows": [0, 1 << 31, 1.5, None],
    "sources.0.settings.aligned": [-1, (1 << 20) + 1, [1], None, 0.5],
    "sources.0.settings.rotation": [-1, 1 << 24, "0"],
    "sources.0.settings.group": [-1, 9, 1 << 24, None],
    "sources.0.settings.is_permuted": [1, None],
    "sources.0.settings.seed": ["0", 10**5000],
    "sources.0.settings.shuffle": [1],
    "sources.0.settings.more": [1],
    "sources.0.request.clip_len": ["3"],
    "sources.0.request.features": [10**5000],
    "sources.0.episodes.digest": ["0" * 64, None, ""],
}


def test_invalid_entries_are_refused_and_change_nothing(root: Path) -> None:
    loader = stream(root)
    iterator = begun(loader)
    before, accepted = loader.state_dict(), []
    whole: list[Any] = [None, [], {}, "state", {"more": 1}, {"mix_version": 2}]
    places = {name: [int(n) if n.isdigit() else n for n in name.split(".")] for name in REFUSED}
    damaged = [(name, value) for name, values in REFUSED.items() for value in values]
    for state in (*whole, *(changed(before, places[name], value) for name, value in damaged)):
        try:
            loader.load_state_dict(state)
        except (StateError, MemoryLimitError):
            assert loader.state_dict() == before
        else:
            accepted.append(state)
    assert accepted == []
    assert len(list(iterator)) == len(loader) - 1


@pytest.mark.parametrize(
    ("kind", "place", "value", "message"),
    [
        (stream, "segments.0.batch", 40, BEYOND),
        (stream, "segments.0.batch", 1 << 60, BEYOND),
        (stream, "segments.0.ranks", 1 << 23, "shards or cursors than can be planned"),
        (stream, "segments.0.settings.0.seed", 6, "segments .* have different settings: seed"),
        (stream, "segments.0.settings.0.shuffle", False, "have different settings: shuffle"),
        (stream, "version", 9, "another version; .*the last that resumes older ones.*got: 9"),
        (mixed, "sources", [], "sources that no loader has saved"),
        (mixed, "sources.2", None, "another type in sources"),
        (mixed, "shared_arguments.seed", 6, "another kind of loader, or of another mix: seed"),
    ],
)
def test_damaged_states_are_refused(
    root: Path, kind: Any, place: str, value: Any, message: str
) -> None:
    state, loader = state_of(kind, root, 1, 2), kind(root, 2)
    before = loader.state_dict()
    names = [int(name) if name.isdigit() else name for name in place.split(".")]
    with pytest.raises(StateError, match=message):
        loader.load_state_dict(changed(state, names, value))
    assert loader.state_dict() == before
    assert resumed(loader, state).state_dict() == state


@pytest.mark.parametrize("kind", KINDS)
def test_a_position_beyond_the_end_is_an_error_of_the_iteration(root: Path, kind: Any) -> None:
    for sizes in ((2,), (1, 2)) if kind is not mixed else ((2,),):
        loader = resumed(kind(root, 2), {**state_of(kind, root, *sizes), "batch": 1 << 40})
        for _ in range(2):
            with pytest.raises(StateError, match=BEYOND):
                next(iter(loader))


def test_resuming_a_far_epoch_is_fast(root: Path) -> None:
    """The clips of all epochs before are counted; an epoch that would take forever is refused."""
    mix = mixed(root)
    mix.set_epoch(1 << 8)
    iterator = begun(mix)
    state = mix.state_dict()
    expected = [digest(batch) for batch in iterator]
    assert digests(resumed(mixed(root), state)) == expected
    mix.load_state_dict({**state, "epoch": 1 << 61})
    with pytest.raises(ClipError, match="an epoch that no mix comes to"):
        next(iter(mix))


@pytest.mark.parametrize("epoch", [0, 1 << 10, 1 << 40])
def test_far_epochs_give_samples_as_often_as_the_first_one(root: Path, epoch: int) -> None:
    """Epochs of 5 clips; those before are added in closed form."""
    source = SeqRecordIterableDataset(root / "b", clip_len=3, samples=CHOSEN)
    mix = SeqRecordMix({"b": source}, batch_size=4, stopping_strategy=250)
    mix.set_epoch(epoch)
    times = Counter(clip for batch in mix for clip in names(batch))
    assert times.total() == 1000
    for episode, start, repeat in zip(*CHOSEN.values(), strict=True):
        assert abs(times.pop((episode, start)) - 200 * repeat) < 25
    assert not times


def test_positions_too_far_to_count_are_refused_at_once(root: Path) -> None:
    mix = mixed(root)
    mix.set_epoch(1 << 40)
    with pytest.raises(ClipError, match="source 'c' of a mix: the position in a mix is too far"):
        next(iter(mix))


def test_another_iteration_ends_the_count_of_epochs(root: Path) -> None:
    """A user's function chooses rows: it is called for all epochs before, here for minutes."""

    def chosen(samples: Samples, epoch: int, _rng: SampleRandom) -> Samples:
        return samples.filter(samples["start"] % 3 != epoch % 3)

    def mix() -> SeqRecordMix:
        source = SeqRecordIterableDataset(root / "a", clip_len=3, samples=chosen)
        return SeqRecordMix({"a": source}, batch_size=4, stopping_strategy=5)

    far, errors = mix(), list[BaseException | None]()
    far.set_epoch(1 << 40)
    iterator = iter(far)
    consumer = threading.Thread(target=lambda: errors.append(error_of(partial(next, iterator))))
    consumer.start()
    consumer.join(0.5)
    assert consumer.is_alive()
    far.set_epoch(0)
    assert digest(next(iter(far))) == digest(next(iter(mix())))
    consumer.join(5)
    [error] = errors
    assert isinstance(error, ClipError)
    assert "another one has begun" in str(error)
