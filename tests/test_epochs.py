"""Positions: saved after any batch, taken up exactly there; foreign states are refused."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from seqrecord.errors import ClipError, StateError
from seqrecord.pipes import SeqRecordPipe
from seqrecord.plan import Split
from tests.clip_data import digest, names, write_numbered
from tests.resume_contract import check_resume


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbered(tmp_path_factory.mktemp("epochs") / "records")


def make(path: Path, **changes: Any) -> SeqRecordPipe:
    settings: dict[str, Any] = {"clip_len": 3, "batch_size": 4, "shuffle_buffer": 16, "seed": 5}
    return SeqRecordPipe(path, **{**settings, **changes})


@pytest.mark.parametrize(
    "settings",
    [
        {"features": ["image", "flow", "note"]},
        {"batch_size": None, "features": ["id"]},
        {"batch_size": 5, "stride": 2, "dilation": 2, "drop_last": True, "features": ["id"]},
        {"batch_size": 4, "stride": 7, "clip_len": 2, "memory_limit": 8_000},
    ],
)
def test_resuming_after_any_batch(path: Path, settings: dict[str, Any]) -> None:
    check_resume(lambda: make(path, **settings))


def test_resuming_without_shuffle(path: Path) -> None:
    whole = [digest(batch) for batch in make(path, shuffle=False)]
    for position in range(1, len(whole) + 1):
        pipe = make(path, shuffle=False)
        iterator = iter(pipe)
        for _ in range(position):
            next(iterator)
        again = make(path, shuffle=False)
        again.load_state_dict(pipe.state_dict())
        assert [digest(batch) for batch in again] == whole[position:]


RESUME = """
import hashlib, json, sys
from seqrecord import SeqRecordPipe
from tests.clip_data import digest

path, state = sys.argv[1], json.loads(sys.argv[2])
pipe = SeqRecordPipe(path, clip_len=3, batch_size=4, shuffle_buffer=16, seed=5, num_threads=1)
pipe.load_state_dict(state)
for epoch in range(2):
    for batch in pipe:
        print(hashlib.sha256(repr(digest(batch)).encode()).hexdigest())
"""


def test_resuming_in_a_new_process(path: Path) -> None:
    import hashlib

    pipe = make(path, num_threads=3)
    list(pipe)
    iterator = iter(pipe)
    for _ in range(3):
        next(iterator)
    state = json.dumps(pipe.state_dict())  # with batches in flight
    expected = [digest(batch) for batch in iterator] + [digest(batch) for batch in pipe]
    command = [sys.executable, "-c", RESUME, str(path), state]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
    assert done.stdout.split() == [
        hashlib.sha256(repr(item).encode()).hexdigest() for item in expected
    ]


def test_state_is_a_few_integers_and_a_fingerprint(path: Path) -> None:
    pipe = make(path)
    iterator = iter(pipe)
    next(iterator)
    state = pipe.state_dict()
    assert json.loads(json.dumps(state)) == state
    assert state == {
        "version": 1,
        "epoch": 0,
        "batch": 1,
        "split": [0, 1],
        "fingerprint": state["fingerprint"],
    }
    list(iterator)
    assert (pipe.state_dict()["epoch"], pipe.state_dict()["batch"]) == (1, 0)


def test_an_epoch_left_early_is_over(path: Path) -> None:
    whole = make(path)
    epochs = [[names(batch) for batch in whole] for _ in range(3)]
    pipe = make(path)
    for batch in pipe:
        assert names(batch) == epochs[0][0]
        break
    assert pipe.state_dict()["batch"] == 1
    unused = iter(pipe)  # not begun: it costs no epoch
    assert [names(batch) for batch in pipe] == epochs[1]
    assert [names(batch) for batch in pipe] == epochs[2]
    del unused


def test_set_epoch(path: Path) -> None:
    pipe = make(path)
    epochs = [[names(batch) for batch in pipe] for _ in range(3)]
    pipe.set_epoch(1)
    assert [names(batch) for batch in pipe] == epochs[1]
    assert [names(batch) for batch in pipe] == epochs[2]
    first = []
    pipe.set_epoch(0)
    for batch in pipe:
        first.append(names(batch))
        pipe.set_epoch(2)  # of the next iteration: this one goes on
    assert first == epochs[0]
    assert [names(batch) for batch in pipe] == epochs[2]


@pytest.mark.parametrize("epoch", [-1, 1 << 63, 0.5, "1", None])
def test_not_an_epoch(path: Path, epoch: Any) -> None:
    with pytest.raises(ClipError, match="not an epoch"):
        make(path).set_epoch(epoch)


def test_a_second_iteration_ends_the_first(path: Path) -> None:
    from seqrecord.pipes import SeqRecordStream

    stream = SeqRecordStream(path, clip_len=3)
    first, second = iter(stream), iter(stream)
    with pytest.raises(ClipError, match="another one has begun"):
        next(first)
    next(second)
    third = iter(stream)
    with pytest.raises(ClipError, match="another one has begun"):
        next(second)
    next(third)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 6},
        {"batch_size": 3},
        {"batch_size": None},
        {"drop_last": True},
        {"shuffle": False},
        {"shuffle_buffer": 1},
        {"open_episodes": 1},
        {"clip_len": 2},
        {"stride": 2},
        {"equal": False},
        {"dilation": 2},
        {"features": ["image"]},
        {"episodes": "set/[0123]*", "features": ["id"]},
        {"memory_limit": 10_500},
        {"frame_transform": lambda frame: {"image": frame["image"]}},
    ],
)
def test_a_state_of_other_settings_is_refused(path: Path, changes: dict[str, Any]) -> None:
    pipe = make(path)
    with pytest.raises(StateError, match="another dataset or of other settings"):
        pipe.load_state_dict(make(path, **changes).state_dict())


@pytest.mark.parametrize(
    "changes",
    [
        {"num_threads": 1},
        {"num_threads": 7},
        {"rotate_phase": True},  # the stride is 1
        {"device": "cpu"},
        {"verify": False},
        {"memory_limit": "3GiB"},
        {"episodes": "set/*"},
        {"features": ["image", "flow", "note", "id"]},
        {"frame_transform": dict},
    ],
)
def test_what_does_not_change_the_order_does_not_matter(
    path: Path, changes: dict[str, Any]
) -> None:
    if "frame_transform" in changes:  # not with a feature of variable shape
        base = make(path, features=["image", "id"])
        changes = {**changes, "features": ["image", "id"]}
    else:
        base = make(path)
    iterator = iter(base)
    next(iterator)
    pipe = make(path, **changes)
    pipe.load_state_dict(base.state_dict())
    assert [digest(batch) for batch in pipe] == [digest(batch) for batch in iterator]


def test_a_seed_does_not_matter_without_shuffle(path: Path) -> None:
    make(path, shuffle=False).load_state_dict(make(path, shuffle=False, seed=9).state_dict())


def test_the_order_does_not_depend_on_the_machine(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [names(batch) for batch in make(path, memory_limit=12_000)]
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert [names(batch) for batch in make(path, memory_limit=12_000)] == expected
    assert [names(b) for b in make(path, memory_limit=12_000, num_threads=5)] == expected


def test_a_state_of_another_dataset_is_refused(path: Path, tmp_path: Path) -> None:
    other = write_numbered(tmp_path / "other", chunk_frames=8)
    with pytest.raises(StateError, match="another dataset"):
        make(path).load_state_dict(make(other).state_dict())


JUNK: list[Any] = [
    None,
    [],
    {},
    "state",
    {"epoch": 0},
    {"version": 2},
    {"version": True},
    {"version": "1"},
    {"more": 1},
    {"epoch": -1},
    {"epoch": 1.0},
    {"epoch": "0"},
    {"epoch": None},
    {"epoch": True},
    {"epoch": 1 << 63},
    {"epoch": 10**5000},
    {"batch": -1},
    {"batch": 0.5},
    {"batch": None},
    {"batch": 10**5000},
    {"batch": 1 << 40},
    {"batch": 16},
    {"split": None},
    {"split": 0},
    {"split": [0]},
    {"split": [0, 1, 2]},
    {"split": ["0", "1"]},
    {"split": [0, 0]},
    {"split": [1, 1]},
    {"split": [-1, 1]},
    {"split": [0, 10**30]},
    {"split": {"index": 0, "count": 1}},
    {"split": [True, 2]},
    {"fingerprint": None},
    {"fingerprint": 3},
    {"fingerprint": ""},
    {"fingerprint": "0" * 64},
]


@pytest.mark.parametrize("change", JUNK, ids=range(len(JUNK)))
def test_junk_is_refused_and_changes_nothing(path: Path, change: Any) -> None:
    pipe = make(path)
    iterator = iter(pipe)
    next(iterator)
    before = pipe.state_dict()
    state = {**before, **change} if isinstance(change, dict) and len(change) == 1 else change
    if change == {"epoch": 0}:
        state = change
    with pytest.raises(StateError):
        pipe.load_state_dict(state)
    assert pipe.state_dict() == before


def test_other_splits_in_the_middle_of_an_epoch(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make(path)
    iterator = iter(one)
    next(iterator)
    middle = one.state_dict()
    list(iterator)
    start = one.state_dict()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    pipe = make(path)
    pipe.load_state_dict(middle)
    with pytest.raises(StateError, match=r"expected: part 1 of 2; got: part 0 of 1"):
        iter(pipe)
    pipe.load_state_dict(start)  # between two epochs the number of ranks may change
    expected = make(path)
    expected.set_epoch(1)
    assert [digest(batch) for batch in pipe] == [digest(batch) for batch in expected]


def test_splits_have_fingerprints_of_their_own(path: Path) -> None:
    loader = make(path)._epochs.loader
    assert loader.plan(0, Split(0, 2)).num_batches > 0
    assert len(loader.fingerprint(2)) == len(loader.fingerprint(1)) == 64


def test_a_copy_goes_on_where_the_original_is(path: Path) -> None:
    pipe = make(path)
    iterator = iter(pipe)
    next(iterator)
    other = pickle.loads(pickle.dumps(pipe))
    assert other.state_dict() == pipe.state_dict()
    assert [digest(batch) for batch in other] == [digest(batch) for batch in pipe]
