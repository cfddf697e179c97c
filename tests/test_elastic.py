"""Epochs that go on with other ranks, workers and batches: every clip once, exactly resumable."""

from __future__ import annotations

import json
import pickle
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.nodes import Loader
from torchdata.stateful_dataloader import StatefulDataLoader

import seqrecord
from seqrecord import SeqRecordIterableDataset, SeqRecordNode, StateError
from seqrecord.errors import MemoryLimitError
from tests.clip_data import begun, digest, digests, make_loader, names, resumed

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]
State = dict[str, Any]
Clip = tuple[str, int]


@cache
def opened(path: Path) -> seqrecord.Dataset:
    return seqrecord.open(path)


def make(path: Path, rank: int, ranks: int, **changes: Any) -> Any:
    settings = {"features": ["id"], "batch_size": 2, **changes}
    return make_loader(
        opened(path), SeqRecordIterableDataset, rank=rank, world_size=ranks, **settings
    )


@dataclass
class EpochSegment:
    """The clips of all ranks until they stopped, and the state of one rank."""

    clips: list[Clip]
    state: State
    repeated: int
    ended: bool


def run(
    path: Path, ranks: int, state: State | None, stop: int | None = None, **changes: Any
) -> EpochSegment:
    """All ranks of a job, each from the same state, until each has given `stop` batches."""
    clips, states, repeated, ended = list[Clip](), [], 0, []
    for rank in range(ranks):
        stream = make(path, rank, ranks, **changes)
        if state is not None:
            stream.load_state_dict(json.loads(json.dumps(state)))
        given = 0
        for batch in stream:
            clips += names(batch)
            given += 1
            if given == stop:
                break
        ended.append(given != stop)
        states.append(stream.state_dict())
        repeated += stream.stats()["duplicate_clips"]
    state = min(states, key=lambda one: one["epoch"])  # without `even_batches`, some end earlier
    assert all(one == state or not changes.get("even_batches", True) for one in states)
    return EpochSegment(clips, state, repeated, all(ended))


def check_epoch(segments: Sequence[EpochSegment], every: set[Clip]) -> None:
    """Check that every clip was yielded, and duplicates only to even out batches, as counted."""
    given = Counter(clip for segment in segments for clip in segment.clips)
    assert set(given) == every
    twice = given.total() - len(given)
    assert twice <= sum(segment.repeated for segment in segments)
    of_stages = [set(segment.clips) for segment in segments]
    assert sum(map(len, of_stages)) == len(given), "given again after a change"


@pytest.fixture
def every(path: Path) -> set[Clip]:
    return given_by(make(path, 0, 1))


def given_by(loader: Any) -> set[Clip]:
    """All clips of a loader, each of which comes once."""
    clips = [clip for batch in loader for clip in names(batch)]
    assert len(clips) == len(set(clips))
    return set(clips)


def test_four_then_two_then_three_ranks(path: Path, every: set[Clip]) -> None:
    first = run(path, 4, None, 3)
    second = run(path, 2, first.state, 4)
    assert [segment["ranks"] for segment in second.state["segments"]] == [4]
    assert (second.state["batch"], second.state["ranks"]) == (4, 2)
    third = run(path, 3, second.state)
    check_epoch([first, second, third], every)
    assert third.repeated < 3
    assert third.state["epoch"] == 1
    assert third.state["segments"] == []
    # The next epoch is an ordinary one.
    fresh = [make(path, 1, 3), make(path, 1, 3)]
    fresh[0].set_epoch(1)
    fresh[1].load_state_dict(third.state)
    assert [digest(batch) for batch in fresh[0]] == [digest(batch) for batch in fresh[1]]


ROWS = {"order": "sequences", "shuffle_buffer": None}
CHANGES: list[Any] = [
    {},
    {"batch_size": None},
    {"even_batches": False},
    {"drop_last": True},
    {"stride": 4, "rotate_phase": True},
    {**ROWS, "stride": 1, "drop_last": True},
    *(
        pytest.param(changes, marks=pytest.mark.slow)
        for changes in (
            {**ROWS},
            {"shuffle": False},
            {"shuffle_buffer": None},
            {"clip_len": None, "windows": {"id": [-2, 0, 3]}, "pad": "edge"},
            {**ROWS, "stride": 1, "even_batches": False},
        )
    ),
]


@pytest.mark.parametrize("changes", CHANGES, ids=repr)
def test_any_changes_of_size(path: Path, changes: dict[str, Any]) -> None:
    every = given_by(make(path, 0, 1, **{**changes, "drop_last": False}))
    drawn = random.Random(repr(changes))
    segments, state, ranks = [], None, 0
    for stop in (*(drawn.randint(1, 5) for _ in range(3)), None):
        # As many ranks as before would go on with their segment, in which a clip may come twice.
        ranks = drawn.choice([number for number in range(1, 5) if number != ranks])
        segments.append(run(path, ranks, state, stop, **changes))
        state = segments[-1].state
        if segments[-1].ended:
            break
    given = Counter(clip for segment in segments for clip in segment.clips)
    if changes.get("drop_last"):
        assert set(given.values()) == {1}
        assert len(every) - 4 * 2 < len(given) <= len(every)
    else:
        check_epoch(segments, every)
    if changes.get("even_batches") is False:
        assert given.total() == len(every)


def test_resuming_within_the_remainder(path: Path) -> None:
    """Exactly, and the epoch after it too, whatever memory there is."""
    first = run(path, 3, None, 5)
    whole = resumed(make(path, 1, 2), first.state)
    assert whole.state_dict() == first.state
    batches, states = [], []
    for batch in whole:
        batches.append(digest(batch))
        states.append(whole.state_dict())
    assert len(batches) == 10  # of 37 clips
    later = digests(whole)
    assert len(later) == 17
    for place, state in [*enumerate(states)][::3]:
        again = resumed(make(path, 1, 2, memory_limit="1GiB"), pickle.loads(pickle.dumps(state)))
        found = digests(again)
        assert found == batches[place + 1 :]
        if place in (0, 6):
            assert digests(again) == later
            again.load_state_dict(state)
            assert again.state_dict() == state


def test_a_change_is_over_when_the_next_epoch_begins(path: Path) -> None:
    state = run(path, 2, None, 3).state
    stream = resumed(make(path, 0, 3), state)
    stream.set_epoch(0)  # keeps the place
    assert len(list(stream)) == -(-(67 - 2 * 3 * 2) // 6)
    stream.load_state_dict(state)
    fresh = make(path, 0, 3)
    for each in (stream, fresh):
        each.set_epoch(2)
    assert digests(stream) == digests(fresh)


def test_the_next_batch_size_may_be_another(path: Path, every: set[Clip]) -> None:
    first = run(path, 2, None, 4)
    for ranks in (2, 1):
        second = run(path, ranks, first.state, 2, batch_size=5)
        third = run(path, ranks, second.state, batch_size=5)
        whole = EpochSegment(second.clips + third.clips, third.state, third.repeated, True)
        check_epoch([first, whole], every)


# ---- DataLoader and StatefulDataLoader


def stopped(loader: Any, steps: int) -> tuple[set[Clip], State]:
    """The clips of so many steps of a loader with workers, and the state then."""
    iterator = iter(loader)
    clips = given_by(item for _ in range(steps) for item in _items(next(iterator)))
    state = loader.dataset.state_dict(batches=steps, batch_size=loader.batch_size)
    return clips, json.loads(json.dumps(state))


def _items(batch: Any) -> list[Any]:
    return batch if isinstance(batch, list) else [batch]


@pytest.mark.parametrize(
    ("workers", "size", "others", "changes"),
    [
        (2, None, (0, 3, 2), {}),
        (2, 4, (1,), {"batch_size": None, "even_batches": False}),
        pytest.param(3, None, (2, 1), {"even_batches": False}, marks=pytest.mark.slow),
        pytest.param(3, 4, (0, 2, 3), {"batch_size": None}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_other_numbers_of_workers(
    path: Path,
    every: set[Clip],
    workers: int,
    size: int | None,
    others: tuple[int, ...],
    changes: dict[str, Any],
) -> None:
    options: Any = {} if size is None else {"collate_fn": list}
    data = make(path, 0, 1, **changes)
    loader: Any = DataLoader(data, batch_size=size, num_workers=workers, **options)
    given, state = stopped(loader, 5)
    for number in others:
        stream = resumed(make(path, 0, 1, **changes), state)
        rest = [
            clip
            for batch in DataLoader(stream, batch_size=None, num_workers=number)
            for clip in names(batch)
        ]
        # The shards continue unchanged. A shard with a clip fewer than others repeats a clip.
        is_equal = changes.get("even_batches", True)
        repeated = -len(every) % workers if number == workers and is_equal else 0
        assert len(set(rest) & given) <= repeated
        assert set(rest) | given == every
        most = max(1, number) + max(1, workers) if is_equal else 1
        assert len(rest) + len(given) - len(every) < most


def test_plain_workers_go_on_where_a_loader_without_stopped(path: Path, every: set[Clip]) -> None:
    first = run(path, 1, None, 9)
    stream = resumed(make(path, 0, 1), first.state)
    loader: Any = DataLoader(stream, batch_size=None, num_workers=2)
    given = [clip for batch in loader for clip in names(batch)]
    check_epoch([first, EpochSegment(given, {}, 1, True)], every)
    assert len(loader) == 34  # of a whole epoch
    parts = [make(path, rank, 2) for rank in range(2)]
    for part in (*parts, stream):
        part.set_epoch(1)
    turns = zip_longest(*map(digests, parts))
    assert digests(loader) == [batch for turn in turns for batch in turn if batch]


def test_the_state_of_one_worker_has_only_its_own_position(path: Path) -> None:
    stateful: Any = StatefulDataLoader(make(path, 0, 1), batch_size=None, num_workers=2)
    iterator = begun(stateful)
    saved = stateful.state_dict()
    del iterator
    of_worker = saved["_snapshot"]["_worker_snapshots"]["worker_0"]["dataset_state"]
    stream = resumed(make(path, 0, 1), of_worker)
    assert len(stream) == 34  # until it is begun
    with pytest.raises(StateError, match="position of one worker of several"):
        iter(stream)
    with pytest.raises(StateError, match="of other settings: batch_size; "):
        make(path, 0, 1, batch_size=5).load_state_dict(of_worker)
    no_states: list[Any] = [None, [], {}, {"_snapshot": {}}, {"fetcher_state": None}]
    for no_state in no_states:
        with pytest.raises(StateError, match="no loader has saved it"):
            stream.load_state_dict(no_state)


def test_a_node_goes_on_with_other_ranks(path: Path, every: set[Clip]) -> None:
    def node(rank: int, ranks: int) -> Any:
        settings: Any = {"features": ["id"], "batch_size": 2, "rank": rank, "world_size": ranks}
        return make_loader(path, SeqRecordNode, **settings)

    given, state = set[Clip](), None
    for rank in range(2):
        loader = Loader(node(rank, 2))
        iterator = iter(loader)
        given |= given_by(next(iterator) for _ in range(4))
        state = loader.state_dict()
    rests = [given_by(resumed(Loader(node(rank, 3)), state)) for rank in range(3)]
    assert not set.union(*rests) & given
    assert set.union(*rests) | given == every
    # After all were given, an iteration is of the next epoch.
    alone, other = node(0, 1), Loader(node(0, 2))
    alone.reset()
    for _ in range(34):
        alone.next()
    state = other.state_dict()
    (name,) = (key for key, value in state.items() if isinstance(value, dict))
    other.load_state_dict({**state, name: alone.state_dict()})
    assert len(list(other)) in (0, 17)


# ---- refused states


def test_a_state_of_more_memory_goes_on_with_less_on_other_ranks(path: Path) -> None:
    changes = {"shuffle_buffer": None}
    state = run(path, 2, None, 2, **changes).state
    with pytest.raises(MemoryLimitError):
        make(path, 0, 2, memory_limit=500, **changes).load_state_dict(state)
    stream = resumed(make(path, 0, 3, memory_limit=500, **changes), state)
    assert len(list(stream)) == len(make(path, 0, 3)) - 2


def test_damaged_segments_are_refused_and_change_nothing(path: Path) -> None:
    state = run(path, 2, run(path, 4, None, 3).state, 2).state
    stream, other = make(path, 0, 2), make(path, 0, 2, seed=6)
    iterator = begun(other)
    before = stream.state_dict()

    def changed(change: Callable[[dict[str, Any]], object]) -> State:
        """The state, with a change of its first segment."""
        copy: State = json.loads(json.dumps(state))
        change(copy["segments"][0])
        return copy

    def segment(**changes: Any) -> State:
        return changed(lambda segment: segment.update(changes))

    def settings(**changes: Any) -> State:
        return changed(lambda segment: segment["settings"].update(changes))

    beyond, unknown = "beyond the epoch's end", "batch that no loader has saved"
    no_rest = {**state, "sources": [{**state["sources"][0], "rest": None}]}
    damaged: list[tuple[State, str]] = [
        (segment(batches=[40]), beyond),
        (segment(batches=[1, 1 << 60]), beyond),
        (segment(ranks=1 << 30), "more cursors than can be planned"),
        (settings(num_cursors=(1 << 31) - 1, seed=5), "more cursors than|beyond"),
        (settings(seed=6), "segments of the saved state have different settings: seed"),
        (settings(shuffle=False), "have different settings: shuffle"),
        ({**state, "segments": []}, "segments that no loader has saved"),
        (no_rest, "segments that no loader has saved"),
        ({**state, "batch": 40}, "beyond the end of its epoch"),
        ({**state, "batch": [3, 3]}, unknown),
        ({**state, "worker": None}, unknown),
        (other.state_dict(), "of other settings: seed"),
    ]
    for one, message in damaged:
        with pytest.raises(StateError, match=message):
            stream.load_state_dict(one)
        assert stream.state_dict() == before
    stream.load_state_dict(state)
    del iterator
