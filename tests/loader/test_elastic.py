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
from torchdata.stateful_dataloader import StatefulDataLoader

import seqrecord
from seqrecord import Budget, EngineOptions, SeqRecordIterableDataset, SeqRecordMix, StateError
from tests.kit.clip_data import begun, digests, make_loader, names, resumed
from tests.kit.datasets import columns, noise, write_dataset, written_once

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]
State = dict[str, Any]
Clip = tuple[str, int]


def make(path: Path, rank: int = 0, ranks: int = 1, **changes: Any) -> Any:
    settings = {"features": ["id"], "batch_size": 2, **changes}
    return make_loader(path, SeqRecordIterableDataset, rank=(rank, ranks), **settings)


@dataclass
class Job:
    """A rank that gives `stop` batches, or the rest of the epoch: its clips, and its state.

    `batches` is the batch size of a DataLoader with `workers`.
    """

    stop: int | None = None
    workers: int = 0
    batches: int | None = None

    def run(self, path: Path, state: State | None = None, **changes: Any) -> Job:
        data, given = make(path, **changes), 0
        if state is not None:
            data.load_state_dict(json.loads(json.dumps(state)))
        options: Any = {"collate_fn": list} if self.batches else {}
        options |= {"batch_size": self.batches, "num_workers": self.workers}
        self.clips = list[Clip]()
        for batch in islice(DataLoader(data, **options) if self.workers else data, self.stop):
            for one in batch if isinstance(batch, list) else [batch]:
                self.clips += names(one)
            given += 1
        place = {"batches": given, "batch_size": self.batches} if self.workers else {}
        self.ended, self.state = given != self.stop, data.state_dict(**place)
        return self


UNEVEN = {"batch_size": None, "last_batch": "keep"}
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("jobs", "changes"),
    [
        ([Job(9), Job(None, 2)], {}),
        ([Job(5, 2), Job()], {}),
        ([Job(5, 2, 4), Job(1, 1), Job(None, 2)], UNEVEN),
        pytest.param([Job(5, 2), Job(None, 3)], {}, marks=SLOW),
        pytest.param([Job(5, 3), Job(None, 2)], {"last_batch": "keep"}, marks=SLOW),
        pytest.param([Job(5, 3), Job(None, 1)], {"last_batch": "keep"}, marks=SLOW),
        pytest.param([Job(5, 3, 4), Job()], {"batch_size": None}, marks=SLOW),
        pytest.param([Job(5, 3, 4), Job(None, 2)], {"batch_size": None}, marks=SLOW),
    ],
    ids=str,
)
def test_workers_and_other_numbers_of_them(
    path: Path, jobs: list[Job], changes: dict[str, Any]
) -> None:
    """The next epoch is an ordinary one."""
    whole = make(path, **{**changes, "last_batch": "repeat"})
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
    is_even = changes.get("last_batch") != "keep"
    assert given.total() - len(given) <= is_even * sum(max(1, job.workers) for job in done)
    assert sum(len(set(job.clips)) for job in done) == len(given), "given again after a change"
    if "last_batch" in changes:
        assert set(given.values()) == {1}
    assert (state["epoch"], state["batch"], state["segments"]) == (1, 0, [])
    fresh = [make(path, **changes) for _ in "ab"]
    fresh[0].set_epoch(1)
    assert digests(fresh[0]) == digests(resumed(fresh[1], state))


# ---- DataLoader and StatefulDataLoader


def test_equal_workers_go_on_with_their_shards(path: Path) -> None:
    """A shard with a clip fewer than others repeats a clip."""
    every = {clip for batch in make(path) for clip in names(batch)}
    first = Job(5, 2).run(path)
    second = Job(None, 2).run(path, first.state)
    assert set(first.clips) | set(second.clips) == every
    assert len(set(first.clips) & set(second.clips)) <= len(every) % 2
    stream = resumed(make(path), Job(9).run(path).state)
    loader: Any = DataLoader(stream, batch_size=None, num_workers=2)
    assert len(list(loader)) < len(loader) == 34  # of a whole epoch
    parts = [make(path, rank, 2) for rank in range(2)]
    for part in (*parts, stream):
        part.set_epoch(1)
    turns = zip_longest(*map(digests, parts))
    assert digests(loader) == [batch for turn in turns for batch in turn if batch]


def test_the_state_of_one_worker_has_only_its_own_position(path: Path) -> None:
    stateful: Any = StatefulDataLoader(make(path), batch_size=None, num_workers=2)
    iterator = begun(stateful)
    saved = stateful.state_dict()
    del iterator
    of_worker = saved["_snapshot"]["_worker_snapshots"]["worker_0"]["dataset_state"]
    stream, one = make(path), "position of one worker of several"
    no_states: list[Any] = [None, [], {}, {"_snapshot": {}}, {"fetcher_state": None}]
    for state in (of_worker, *no_states):
        message = one if state is of_worker else "no loader has saved it"
        with pytest.raises(StateError, match=message):
            stream.load_state_dict(state)


def test_a_state_of_more_memory_goes_on_with_less_on_other_ranks(path: Path) -> None:
    changes = {"shuffle_buffer": None}
    begun(stream := make(path, 0, 2, **changes), 2)
    state = stream.state_dict()
    stream = resumed(make(path, 0, 3, memory_limit=500, **changes), state)
    assert len(list(stream)) == len(make(path, 0, 3)) - 2


# ---- the end of an epoch, and many shards


LENGTHS = {"a": 9, "b": 20, "c": 1, "d": 9}


complete = written_once(write_dataset, LENGTHS, codecs="raw")
"""A dataset of small frames that lack nothing, so they stay in memory by default."""


@pytest.mark.parametrize("ranks", [(1, 2), (2, 1), (2, 3)], ids=str)
@pytest.mark.parametrize("epoch", [0, 1])
def test_frames_that_stay_and_other_ranks(
    complete: Path, epoch: int, ranks: tuple[int, int]
) -> None:
    """The order of the first epoch differs from that of later ones, also in a state."""
    before, after = ranks

    def loaders(count: int) -> list[SeqRecordIterableDataset]:
        settings: Any = {"clip_len": 2, "batch_size": 3, "last_batch": "keep"}
        return [
            SeqRecordIterableDataset(complete, rank=(rank, count), **settings)
            for rank in range(count)
        ]

    clips, state = Counter[Clip](), State()
    for stream in loaders(before):
        for _ in range(epoch):
            list(stream)
        for batch in islice(stream, 2):
            clips.update(names(batch))
        state = stream.state_dict()  # of any rank
    for stream in loaders(after):
        for batch in resumed(stream, json.loads(json.dumps(state))):
            clips.update(names(batch))
    expected = [(key, start) for key, length in LENGTHS.items() for start in range(length - 1)]
    assert clips == Counter(expected)


@pytest.mark.parametrize("ranks", [(1, 2), (2, 1), (2, 3), (3, 32)], ids=str)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"shuffle": False},
        {"last_batch": "drop"},
        {"last_batch": "keep", "batch_size": None},
        {"order": "sequences"},
        {"engine": EngineOptions(num_cursors=2)},
    ],
    ids=str,
)
def test_a_state_of_the_last_batch_ends_the_epoch_on_other_ranks(
    complete: Path, ranks: tuple[int, int], changes: dict[str, Any]
) -> None:
    """It was saved inside the loop, before the iteration has ended."""
    before, after = ranks

    def loader(rank: int, count: int) -> SeqRecordIterableDataset:
        settings: Any = {"clip_len": 2, "batch_size": 4, **changes}
        return SeqRecordIterableDataset(complete, rank=(rank, count), **settings)

    if changes.get("last_batch") == "drop":
        after = min(after, 3)
    streams = [loader(rank, before) for rank in range(before)]
    stream = max(streams, key=len)  # last_batch="keep" gives some ranks a clip fewer
    state = [stream.state_dict() for _ in stream][-1]
    for rank in {0, after - 1}:
        following = loader(rank, after)
        following.set_epoch(1)
        continued = resumed(loader(rank, after), json.loads(json.dumps(state)))
        assert digests(continued) == []
        assert digests(continued) == digests(following)


@pytest.mark.parametrize(("size", "ranks"), [(8, 16), (64, 3), (None, 20)])
@pytest.mark.parametrize("stride", [1, 3])
def test_more_shards_and_clips_of_a_batch_than_frames(
    complete: Path, size: int | None, ranks: int, stride: int
) -> None:
    dataset = seqrecord.open(complete)
    loaders = [
        SeqRecordIterableDataset(
            dataset, clip_len=1, stride=stride, batch_size=size, rank=(rank, ranks)
        )
        for rank in range(ranks)
    ]
    batches = [list(loader) for loader in loaders]
    assert len({len(of_rank) for of_rank in batches}) == 1
    clips = {clip for of_rank in batches for batch in of_rank for clip in names(batch)}
    starts = {(key, i) for key, length in LENGTHS.items() for i in range(0, length, stride)}
    assert clips == starts


def test_a_mix_of_a_source_of_one_frame(complete: Path) -> None:
    sources = {
        name: SeqRecordIterableDataset(complete, clip_len=1, episodes=episodes)
        for name, episodes in (("one", ["c"]), ("every", None))
    }
    for ranks in (2, 8):
        mix = SeqRecordMix(sources, batch_size=4, rank=(0, ranks), stopping_strategy=3)
        assert [len(batch["episode"]) for batch in mix] == [4, 4, 4]


# ---- lists of frames

LISTED: dict[str, Any] = {
    "episode": ["b"] * 40,
    "frames": [[i % 20, (7 * i + i // 20) % 20] for i in range(40)],
}
"""Each list once."""


_ROWS = columns(image=noise(20, 48, 64, 1))
images = written_once(write_dataset, {"a": _ROWS[:5], "b": _ROWS}, codecs="fast", chunk_frames=4)


def listed(path: Path, limit: str, size: int = 4, **changes: Any) -> SeqRecordIterableDataset:
    return SeqRecordIterableDataset(
        path, samples=LISTED, batch_size=size, memory_limit=limit, **changes
    )


def rows_of(items: Any) -> list[tuple[int, ...]]:
    return [tuple(row) for batch in items for row in batch["frames"].tolist()]


SMALL, MIDDLE, LARGE = "100KiB", "200KiB", "8MiB"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((SMALL, 4), (LARGE, 4)),
        ((SMALL, 4), (LARGE, 3)),
        ((SMALL, 1), (MIDDLE, 8)),
        ((MIDDLE, 4), (LARGE, 1)),
        ((LARGE, 8), (LARGE, 1)),
    ],
)
@pytest.mark.parametrize("ranks", [1, 3])
def test_lists_of_frames_with_other_memory_and_batches(
    images: Path, before: tuple[str, int], after: tuple[str, int], ranks: int
) -> None:
    stream = listed(images, *before)
    found = rows_of(islice(stream, 3))
    state, rest = json.loads(json.dumps(stream.state_dict())), []
    for rank in range(ranks):
        rest += rows_of(resumed(listed(images, *after, rank=(rank, ranks)), state))
    assert set(found + rest) == set(map(tuple, LISTED["frames"]))
    assert len(found + rest) - 40 < ranks
    if (before[1], ranks) == (after[1], 1):
        again = resumed(listed(images, *before), state)
        continued = resumed(listed(images, *after), state)
        assert digests(continued, 2) == digests(again, 2)


def test_a_state_of_batches_of_frames_needs_batches_of_frames(complete: Path) -> None:
    sizes = (Budget(12), Budget(9), 4)
    loaders = [SeqRecordIterableDataset(complete, clip_len=(2, 3), batch_size=n) for n in sizes]
    for saved in loaders:
        begun(saved)
        for loader in loaders:
            if loader is not saved:
                with pytest.raises(StateError, match="frames_per_batch"):
                    loader.load_state_dict(saved.state_dict())
