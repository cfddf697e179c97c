"""Epochs that go on with other ranks, workers and batches: every clip once, exactly resumable."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.nodes import Loader
from torchdata.stateful_dataloader import StatefulDataLoader

from seqrecord import SeqRecordIterableDataset, SeqRecordNode, StateError
from seqrecord.errors import MemoryLimitError
from tests.kit.clip_data import begun, digests, make_loader, names, resumed

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]
State = dict[str, Any]
Clip = tuple[str, int]


def make(
    path: Path, rank: int, ranks: int, kind: Any = SeqRecordIterableDataset, **changes: Any
) -> Any:
    settings = {"features": ["id"], "batch_size": 2, **changes}
    return make_loader(path, kind, rank=(rank, ranks), **settings)


@dataclass
class Job:
    """Ranks that each give `stop` batches, or the rest of the epoch: their clips, and the state.

    `batches` is the batch size of DataLoaders with `workers`.
    """

    ranks: int = 1
    stop: int | None = None
    workers: int = 0
    batches: int | None = None

    def run(self, path: Path, state: State | None = None, **changes: Any) -> Job:
        self.clips, self.repeated, states = list[Clip](), 0, list[State]()
        self.ended, is_even = True, changes.get("last_batch") != "keep"
        for rank in range(self.ranks):
            data = make(path, rank, self.ranks, **changes)
            if state is not None:
                data.load_state_dict(json.loads(json.dumps(state)))
            loader, given = data, 0
            if self.workers:
                options: Any = {"collate_fn": list} if self.batches else {}
                options |= {"batch_size": self.batches, "num_workers": self.workers}
                loader = DataLoader(data, **options)
            for given, batch in enumerate(islice(loader, self.stop), start=1):  # noqa: B007
                for one in batch if isinstance(batch, list) else [batch]:
                    self.clips += names(one)
            self.ended &= given != self.stop
            place = {"batches": given, "batch_size": self.batches} if self.workers else {}
            states.append(data.state_dict(**place))
            counted = data.stats()["duplicate_clips"]
            self.repeated += self.workers * is_even if self.workers else counted
        # With `keep`, some end earlier.
        self.state: State = min(states, key=lambda one: one["epoch"])
        assert all(one == self.state or not is_even for one in states)
        return self


@pytest.fixture
def every(path: Path) -> set[Clip]:
    return {clip for batch in make(path, 0, 1) for clip in names(batch)}


UNEVEN = {"batch_size": None, "last_batch": "keep"}
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("jobs", "changes"),
    [
        ([Job(1, 9), Job(1, None, 2)], {}),
        ([Job(1, 5, 2), Job()], {}),
        ([Job(1, 5, 2, 4), Job(1, 1, 1), Job(1, None, 2)], UNEVEN),
        pytest.param([Job(1, 5, 2), Job(1, None, 3)], {}, marks=SLOW),
        pytest.param([Job(1, 5, 3), Job(1, None, 2)], {"last_batch": "keep"}, marks=SLOW),
        pytest.param([Job(1, 5, 3), Job(1, None, 1)], {"last_batch": "keep"}, marks=SLOW),
        pytest.param([Job(1, 5, 3, 4), Job()], {"batch_size": None}, marks=SLOW),
        pytest.param([Job(1, 5, 3, 4), Job(1, None, 2)], {"batch_size": None}, marks=SLOW),
    ],
    ids=str,
)
def test_workers_and_other_numbers_of_them(
    path: Path, jobs: list[Job], changes: dict[str, Any]
) -> None:
    """The next epoch is an ordinary one."""
    whole = make(path, 0, 1, **{**changes, "last_batch": "repeat"})
    every = {clip for batch in whole for clip in names(batch)}
    state = None
    done: list[Job] = []
    for job in jobs:
        done.append(job.run(path, state, **changes))
        state = job.state
        if job.ended:
            break
        assert len(state["segments"]) == len(done) - 1
        place = job.stop, 1, max(1, job.workers)
        assert (state["batch"], state["ranks"], state["workers"]) == place
    assert state is not None
    given = Counter(clip for job in done for clip in job.clips)
    assert set(given) == every
    assert given.total() - len(given) <= sum(job.repeated for job in done)
    assert sum(len(set(job.clips)) for job in done) == len(given), "given again after a change"
    if "last_batch" in changes:
        assert set(given.values()) == {1}
    assert (state["epoch"], state["batch"], state["segments"]) == (1, 0, [])
    fresh = [make(path, job.ranks - 1, job.ranks, **changes) for _ in "ab"]
    fresh[0].set_epoch(1)
    assert digests(fresh[0]) == digests(resumed(fresh[1], state))


# ---- DataLoader and StatefulDataLoader


def test_equal_workers_go_on_with_their_shards(path: Path, every: set[Clip]) -> None:
    """A shard with a clip fewer than others repeats a clip."""
    first = Job(1, 5, 2).run(path)
    second = Job(1, None, 2).run(path, first.state)
    assert set(first.clips) | set(second.clips) == every
    assert len(set(first.clips) & set(second.clips)) <= len(every) % 2
    stream = resumed(make(path, 0, 1), Job(1, 9).run(path).state)
    loader: Any = DataLoader(stream, batch_size=None, num_workers=2)
    assert len(list(loader)) < len(loader) == 34  # of a whole epoch
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
    stream, one = make(path, 0, 1), "position of one worker of several"
    no_states: list[Any] = [None, [], {}, {"_snapshot": {}}, {"fetcher_state": None}]
    for state in (of_worker, *no_states):
        message = one if state is of_worker else "no loader has saved it"
        with pytest.raises(StateError, match=message):
            stream.load_state_dict(state)


def test_a_node_goes_on_with_other_ranks(path: Path, every: set[Clip]) -> None:
    given, state = list[Clip](), None
    for rank in range(2):
        loader = Loader(make(path, rank, 2, SeqRecordNode))
        given += [clip for batch in islice(iter(loader), 4) for clip in names(batch)]
        state = loader.state_dict()
    for rank in range(3):
        rest = resumed(Loader(make(path, rank, 3, SeqRecordNode)), state)
        given += [clip for batch in rest for clip in names(batch)]
    assert set(given) == every
    assert len(given) - len(every) < 3
    # After all were given, an iteration is of the next epoch.
    alone, other = make(path, 0, 1, SeqRecordNode), Loader(make(path, 0, 2, SeqRecordNode))
    alone.reset()
    for _ in range(34):
        alone.next()
    state = other.state_dict()
    (name,) = (key for key, value in state.items() if isinstance(value, dict))
    other.load_state_dict({**state, name: alone.state_dict()})
    assert len(list(other)) in (0, 17)


def test_a_state_of_more_memory_goes_on_with_less_on_other_ranks(path: Path) -> None:
    changes = {"shuffle_buffer": None}
    state = Job(2, 2).run(path, **changes).state
    with pytest.raises(MemoryLimitError):
        make(path, 0, 2, memory_limit=500, **changes).load_state_dict(state)
    stream = resumed(make(path, 0, 3, memory_limit=500, **changes), state)
    assert len(list(stream)) == len(make(path, 0, 3)) - 2
