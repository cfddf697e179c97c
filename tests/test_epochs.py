"""Positions: saved after any batch, taken up exactly there; foreign states are refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from seqrecord import ClipError, SeqRecordPipe, SeqRecordStream, SeqRecordWriter, StateError
from seqrecord.errors import MemoryLimitError
from tests.clip_data import LENGTHS, digest, effective, expected_frame, names, write_numbered
from tests.resume_contract import check_resume
from tests.torch_process import run_code


def make(path: Path, **changes: Any) -> SeqRecordPipe:
    settings: dict[str, Any] = {"clip_len": 3, "batch_size": 4, "shuffle_buffer": 16, "seed": 5}
    return SeqRecordPipe(path, **effective({**settings, **changes}))


@pytest.mark.parametrize(
    "settings",
    [
        {"features": ["image", "flow", "note"]},
        {"batch_size": None, "features": ["id"]},
        {"batch_size": 5, "stride": 2, "dilation": 2, "drop_last": True, "features": ["id"]},
        {"batch_size": 4, "stride": 7, "clip_len": 2, "features": ["id"], "memory_limit": 800},
    ],
)
def test_resuming_after_any_batch(path: Path, settings: dict[str, Any], thorough: bool) -> None:
    check_resume(lambda: make(path, **settings), positions=range if thorough else every_fifth)


def every_fifth(count: int) -> range:
    return range(2, count, 5)


def test_resuming_without_shuffle(path: Path) -> None:
    whole = [digest(batch) for batch in make(path, shuffle=False)]
    for position in range(1, len(whole) + 1, 3):
        pipe = make(path, shuffle=False)
        iterator = iter(pipe)
        for _ in range(position):
            next(iterator)
        again = make(path, shuffle=False)
        again.load_state_dict(pipe.state_dict())
        assert [digest(batch) for batch in again] == whole[position:]


RESUME = """
import hashlib, json, sys
from seqrecord import EngineOptions, SeqRecordPipe
from tests.clip_data import digest

path, state = sys.argv[1], json.loads(sys.argv[2])
pipe = SeqRecordPipe(path, clip_len=3, batch_size=4, seed=5,
                     engine=EngineOptions(shuffle_buffer=16, num_threads=1))
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
    done = run_code(RESUME, path, state)
    assert done.stdout.split() == [
        hashlib.sha256(repr(item).encode()).hexdigest() for item in expected
    ]


def test_state_is_json(path: Path) -> None:
    pipe = make(path)
    iterator = iter(pipe)
    next(iterator)
    state = pipe.state_dict()
    assert json.loads(json.dumps(state)) == state
    (source,) = state["sources"]
    settings = source["settings"]
    assert state == {
        "version": 6,
        "epoch": 0,
        "batch": 1,
        "sharing": {"ranks": 1, "workers": 1, "worker": 0},
        "asked": {},
        "rest": None,
        "sources": [
            {
                "settings": settings,
                "request": {
                    "clip_len": 3,
                    "stride": 1,
                    "dilation": 1,
                    "reverse": 0.0,
                    "windows": {},
                    "pad": None,
                    "drop_last_frames": 0,
                    "features": ["flow", "id", "image", "note"],
                    "frame_transform": source["request"]["frame_transform"],
                    "shuffle_buffer": 16,
                    "clips": None,
                },
                "episodes": {
                    "count": 4,
                    "frames": 75,
                    "digest": source["episodes"]["digest"],
                    "dataset": pipe.dataset.fingerprint,
                },
                "left": [],
            }
        ],
    }
    asked: dict[str, Any] = {
        "shuffle": True,
        "seed": 5,
        "batch_size": 4,
        "drop_last": False,
        "equal": True,
    }
    chosen = ["block_frames", "first_block_frames", "num_cursors", "num_shares", "run_frames"]
    asked |= {"rotate_phase": False, "order": "clips"}
    assert settings == {**asked, **{name: settings[name] for name in chosen}}
    assert all(settings[name] > 0 for name in chosen if settings[name] is not None)
    assert len(json.dumps(state)) < 2000
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


def test_set_epoch_of_the_epoch_that_was_loaded_keeps_the_place(path: Path) -> None:
    pipe = make(path)
    epochs = [[names(batch) for batch in pipe] for _ in range(3)]
    pipe.set_epoch(1)
    iterator = iter(pipe)
    for _ in range(4):
        next(iterator)
    state = pipe.state_dict()

    def loaded() -> SeqRecordPipe:
        other = make(path)
        other.load_state_dict(state)
        return other

    pipe = loaded()
    for epoch in (1, 2):  # as Accelerate does, each time
        pipe.set_epoch(epoch)
        assert [names(batch) for batch in pipe] == epochs[epoch][4 if epoch == 1 else 0 :]
    pipe = loaded()
    pipe.set_epoch(2)
    assert [names(batch) for batch in pipe] == epochs[2]
    pipe = loaded()
    next(iter(pipe))
    pipe.set_epoch(1)  # begun: now it is asked for anew
    assert [names(batch) for batch in pipe] == epochs[1]
    pipe = pickle.loads(pickle.dumps(loaded()))
    pipe.set_epoch(1)
    assert pipe.state_dict() == state
    assert [names(batch) for batch in pipe] == epochs[1][4:]


def test_set_epoch_between_making_and_beginning_an_iteration(path: Path) -> None:
    # Accelerate asks a StatefulDataLoader for its state first, which makes one.
    pipe = make(path)
    epochs = [[names(batch) for batch in pipe] for _ in range(3)]
    for epoch in (0, 2):
        pipe = make(path)
        iterator = iter(pipe)
        pipe.set_epoch(epoch)
        assert [names(batch) for batch in iterator] == epochs[epoch]
        assert pipe.state_dict()["epoch"] == epoch + 1


@pytest.mark.parametrize("epoch", [-1, 1 << 63, 0.5, "1", None])
def test_not_an_epoch(path: Path, epoch: Any) -> None:
    with pytest.raises(ClipError, match=r"^epoch is (not an integer|too small|too large)"):
        make(path).set_epoch(epoch)


def test_a_second_iteration_ends_the_first(path: Path) -> None:
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
    ("changes", "said"),
    [
        ({"seed": 6}, "settings: seed; .*expected: seed=5; got: seed=6"),
        ({"drop_last": True}, "settings: drop_last;"),
        ({"shuffle": False}, "settings: shuffle;"),
        ({"shuffle_buffer": 1}, "expected: shuffle_buffer=16; got: shuffle_buffer=1"),
        ({"num_cursors": 1}, "expected: num_cursors=.*; got: num_cursors=1"),
        ({"clip_len": 2}, "expected: clip_len=3; got: clip_len=2"),
        ({"stride": 2, "seed": 6}, "settings: stride, seed; .*expected: stride=1, seed=5; got: "),
        ({"stride": 2, "rotate_phase": True}, "settings: stride, rotate_phase;"),
        ({"dilation": 2}, "settings: dilation;"),
        ({"equal": False}, "expected: equal=True; got: equal=False"),
        ({"features": ["image"]}, r"expected: features=\['flow', .*; got: features=\['image'\]"),
        (
            {"episodes": "set/[012]*"},
            "other episodes of this dataset; .*got: 3 episodes of 35",
        ),
        (
            {"features": ["image"], "frame_transform": lambda f: {"image": f["image"][:1]}},
            "settings: features;",
        ),
    ],
)
def test_a_state_of_other_settings_is_refused_and_says_which(
    path: Path, changes: dict[str, Any], said: str
) -> None:
    state = make(path).state_dict()
    pipe = make(path, **changes)
    before = pipe.state_dict()
    with pytest.raises(StateError, match=said):
        pipe.load_state_dict(state)
    assert pipe.state_dict() == before


def test_a_state_of_another_frame_transform_is_refused(path: Path) -> None:
    state = make(path, features=["id"]).state_dict()
    pipe = make(path, features=["id"], frame_transform=lambda frame: {"id": frame["id"][:1]})
    with pytest.raises(StateError, match=r"settings: frame_transform; .*int64 \[2\].*int64 \[1\]"):
        pipe.load_state_dict(state)


# ---- settings that memory and defaults choose


def least(path: Path, **settings: Any) -> int:
    """The least memory limit, with which there are fewer cursors than by default."""
    with pytest.raises(MemoryLimitError, match="at least") as error:
        make(path, **{**settings, "memory_limit": 1})
    return int(str(error.value.expected).split()[2])


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        ({}, {"memory_limit": "3GiB"}),
        ({"memory_limit": "least"}, {}),
        ({"num_cursors": 2}, {}),
        ({"num_cursors": 2, "memory_limit": "least"}, {"num_cursors": 2}),
    ],
)
def test_a_state_brings_the_settings_that_were_chosen(
    path: Path, saved: dict[str, Any], loaded: dict[str, Any]
) -> None:
    if "memory_limit" in saved:
        saved = {**saved, "memory_limit": least(path, **saved)}
    one, other = make(path, **saved), make(path, **loaded)
    iterator = iter(one)
    next(iterator)
    chosen = one.state_dict()["sources"][0]["settings"]
    other.load_state_dict(one.state_dict())
    expected = [names(batch) for batch in iterator] + [names(b) for _ in range(2) for b in one]
    assert [names(b) for _ in range(3) for b in other] == expected
    assert other.state_dict()["sources"][0]["settings"] == chosen
    copy = pickle.loads(pickle.dumps(other))
    assert [names(b) for b in copy] == [names(b) for b in one]
    other.set_epoch(0)
    one.set_epoch(0)
    assert [names(b) for b in other] == [names(b) for b in one]


def test_settings_that_do_not_fit_say_what_would(path: Path) -> None:
    state = make(path).state_dict()
    pipe = make(path, memory_limit=least(path))
    before = pipe.state_dict()
    with pytest.raises(
        MemoryLimitError, match=r"order of the saved state.*at least \d+ bytes"
    ) as e:
        pipe.load_state_dict(state)
    assert pipe.state_dict() == before
    enough = int(str(e.value.expected).split()[2])
    with pytest.raises(MemoryLimitError):
        make(path, memory_limit=enough - 1).load_state_dict(state)
    pipe = make(path, memory_limit=enough)
    pipe.load_state_dict(state)
    assert [digest(batch) for batch in pipe] == [digest(batch) for batch in make(path)]


# ---- datasets that change


def appended(path: Path) -> None:
    with SeqRecordWriter(path, mode="append") as writer, writer.episode("more/0") as episode:
        for frame in range(50):
            episode.append(expected_frame(3, frame % 30))


def test_a_state_is_of_episodes_wherever_they_are(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    said: Any = {"image": {"group": 0}, "note": {"shape": (None,)}}
    with SeqRecordWriter(other, chunk_frames=4, features=said) as writer:
        for key, number in (("more/0", 1), ("set/0", 0), ("more/1", 2), ("set/3", 3)):
            with writer.episode(key) as episode:
                for frame in range(LENGTHS[number]):
                    episode.append(expected_frame(number, frame))
    one, two = (make(where, episodes=["set/3", "set/0"]) for where in (path, other))
    iterator = iter(one)
    next(iterator)
    two.load_state_dict(one.state_dict())
    assert [digest(batch) for batch in two] == [digest(batch) for batch in iterator]


@pytest.mark.parametrize(
    "episodes", [["set/3", "set/0"], "set/*", lambda m: m.get("number", -1) > 0]
)
def test_a_state_survives_an_append(tmp_path: Path, episodes: Any) -> None:
    path = write_numbered(tmp_path / "records")
    pipe = make(path, episodes=episodes)
    iterator = iter(pipe)
    next(iterator)
    state = pipe.state_dict()
    expected = [digest(batch) for batch in iterator] + [digest(batch) for batch in pipe]
    whole = make(path).state_dict()
    appended(path)
    pipe = make(path, episodes=episodes)
    pipe.load_state_dict(state)
    assert [digest(batch) for _ in range(2) for batch in pipe] == expected
    with pytest.raises(StateError, match=r"has changed: select.*expected: 4 episodes.*got: 5 ep"):
        make(path).load_state_dict(whole)
    make(path, episodes="set/*").load_state_dict(whole)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_threads": 1},
        {"num_threads": 7},
        {"rotate_phase": True},  # the stride is 1
        {"device": "cpu"},
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
    limit = least(path)
    expected = [names(batch) for batch in make(path, memory_limit=limit)]
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert [names(batch) for batch in make(path, memory_limit=limit)] == expected
    assert [names(b) for b in make(path, memory_limit=limit, num_threads=5)] == expected


def test_a_state_of_another_dataset_is_refused(path: Path, tmp_path: Path) -> None:
    other = write_numbered(tmp_path / "other", chunk_frames=8)
    with pytest.raises(StateError, match="another dataset"):
        make(path).load_state_dict(make(other).state_dict())


_SESSIONS: list[Any] = [
    {"ranks": ranks, "batches": batches, "settings": {}, "by_clip": False}
    for ranks, batches in [(1, []), (0, [1]), (1 << 30, [1, 1]), (1, [-1]), (1, [1.5]), (1, 1)]
]
_NO_SESSIONS: list[Any] = [None, {}, "", [1], [{}], [[]]]
NO_DICTS: list[Any] = [None, [], {}, 1]
_RESTS: list[Any] = [
    1,
    {},
    {"epoch": 0, "left": None, "number": 1},
    {"epoch": 0, "left": None, "number": 1, "sources": []},
    *(
        {"epoch": 0, "left": None, "number": 1, "sources": [source]}
        for source in (
            *({"pending": value, "following": 0} for value in _NO_SESSIONS),
            *(
                {"pending": [[0, sessions]], "following": 1}
                for sessions in (*_NO_SESSIONS, *([session] for session in _SESSIONS))
            ),
            {"pending": [[0]], "following": 1},
            {"pending": [], "following": None},
            {"pending": []},
        )
    ),
]
_SOURCES: list[dict[str, Any]] = [
    *({"left": value} for value in _NO_SESSIONS),
    *({name: junk} for name in ("settings", "request", "episodes") for junk in NO_DICTS),
    *(
        {"settings": {"num_cursors": value}}
        for value in (0, -1, None, 1 << 20, (1 << 31) - 1, 1 << 31, "1", True, 10**5000)
    ),
    *({"settings": {"block_frames": value}} for value in (0, 1 << 31, 1.5, None)),
    *({"settings": {"run_frames": value}} for value in (0, 1 << 31, [1])),
    {"settings": {"shuffle": 1}},
    {"settings": {"more": 1}},
    {"settings": {"seed": "0"}},
    {"settings": {"seed": 10**5000}},
    {"request": {"clip_len": "3"}},
    {"request": {"features": 10**5000}},
    {"episodes": {"digest": "0" * 64}},
    {"episodes": {"digest": "", "count": 10**5000}},
    {"episodes": {"digest": None}},
]
JUNK: list[Any] = [
    None,
    [],
    {},
    "state",
    {"version": 5},
    {"mix_version": 2},
    {"version": True},
    {"version": "6"},
    {"more": 1},
    *(
        {name: value}
        for name in ("epoch", "batch")
        for value in (-1, 1.0, "1", None, True, 1 << 63, 10**5000)
    ),
    *(
        {"sharing": {name: value}}
        for name in ("ranks", "workers", "worker")
        for value in (-1, 1.0, "1", None, True, 1 << 63, 10**5000)
    ),
    {"batch": 1 << 40},
    {"batch": 16},
    {"sharing": {"ranks": 0}},
    {"sharing": {"ranks": 1 << 31}},
    {"sharing": {"workers": 0}},
    {"sharing": {"worker": 1}},
    *({"sharing": junk} for junk in NO_DICTS),
    {"batch": [1]},
    {"batch": []},
    {"asked": None},
    {"asked": {"shares": []}},
    *({"rest": junk} for junk in _RESTS),
    *({"sources": junk} for junk in (*NO_DICTS, [1], [{}])),
    *({"sources": change} for change in _SOURCES),
]


def changed(state: dict[str, Any], change: Any) -> Any:
    if not isinstance(change, dict) or not change:
        return change
    found = dict(state)
    for name, value in change.items():
        old: Any = state.get(name)
        if isinstance(old, list) and isinstance(value, dict) and value:
            found[name] = [changed(old[0], value)]
        else:
            is_part = isinstance(value, dict) and value and isinstance(old, dict)
            found[name] = {**old, **value} if is_part else value
    return found


@pytest.mark.parametrize("change", JUNK, ids=range(len(JUNK)))
def test_junk_is_refused_and_changes_nothing(path: Path, change: Any) -> None:
    pipe = make(path)
    iterator = iter(pipe)
    next(iterator)
    before = pipe.state_dict()
    with pytest.raises((StateError, MemoryLimitError)):
        pipe.load_state_dict(changed(before, change))
    assert pipe.state_dict() == before
    assert len(list(iterator)) == len(pipe) - 1


def test_between_two_epochs_the_number_of_ranks_may_change(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make(path)
    list(one)
    start = one.state_dict()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    pipe = make(path)
    pipe.load_state_dict(start)
    expected = make(path)
    expected.set_epoch(1)
    assert [digest(batch) for batch in pipe] == [digest(batch) for batch in expected]


@pytest.mark.parametrize("settings", [{}, {"batch_size": None}, {"equal": False}])
def test_the_state_of_any_rank_is_everyones(
    path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")

    def of_rank(rank: int) -> SeqRecordPipe:
        monkeypatch.setenv("RANK", str(rank))
        return make(path, **settings)

    states, rests = [], []
    for rank in range(3):
        pipe = of_rank(rank)
        iterator = iter(pipe)
        for _ in range(3):
            next(iterator)
        states.append(pipe.state_dict())
        rests.append([digest(b) for b in iterator] + [digest(b) for b in pipe])
    assert states[0] == states[1] == states[2]
    assert len({repr(rest) for rest in rests}) == 3
    for rank in range(3):
        pipe = of_rank(rank)
        pipe.load_state_dict(states[(rank + 1) % 3])
        assert [digest(b) for _ in range(2) for b in pipe] == rests[rank]


def test_a_rank_that_has_one_batch_fewer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only without `equal` there is one."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    pipes = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        pipes.append(make(path, batch_size=None, equal=False, features=["id"]))
        list(pipes[-1])
        pipes[-1].set_epoch(0)
    lengths = []
    for rank, pipe in enumerate(pipes):
        monkeypatch.setenv("RANK", str(rank))
        lengths.append(len(pipe))
    assert abs(lengths[0] - lengths[1]) == 1
    longer = lengths.index(max(lengths))
    monkeypatch.setenv("RANK", str(longer))
    iterator = iter(pipes[longer])
    for _ in range(max(lengths)):
        next(iterator)
    state = pipes[longer].state_dict()
    monkeypatch.setenv("RANK", str(1 - longer))
    pipes[1 - longer].load_state_dict(state)
    assert list(pipes[1 - longer]) == []
    assert len(list(pipes[1 - longer])) == min(lengths)


def test_a_copy_goes_on_where_the_original_is(path: Path) -> None:
    pipe = make(path)
    iterator = iter(pipe)
    next(iterator)
    other = pickle.loads(pickle.dumps(pipe))
    assert other.state_dict() == pipe.state_dict()
    assert [digest(batch) for batch in other] == [digest(batch) for batch in pipe]
