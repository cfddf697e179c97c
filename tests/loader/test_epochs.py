"""Positions: loaders resume after any batch; states of other loaders are refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from seqrecord import (
    ClipError,
    SeqRecordIterableDataset,
    SeqRecordWriter,
    StateError,
)
from seqrecord.samples import dilate, every, skip_last
from tests.kit.clip_data import (
    LENGTHS,
    begun,
    digests,
    expected_frame,
    make_loader,
    minimum_memory,
    names,
    resumed,
    write_numbered,
)

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")

ID: dict[str, Any] = {"features": ["id"]}


def named(loader: Any, epochs: int = 1) -> list[Any]:
    return [names(batch) for _ in range(epochs) for batch in loader]


def resume_elsewhere(path: Path, state: str) -> list[Any]:
    return digests(resumed(make_loader(path, num_threads=1), json.loads(state)), 2)


def test_resumes_in_a_new_process(path: Path, other_process: Callable[..., Any]) -> None:
    pipe = make_loader(path, num_threads=3)
    list(pipe)
    iterator = begun(pipe, 3)
    state = json.dumps(pipe.state_dict())  # with batches in flight
    expected = digests(iterator) + digests(pipe)
    assert other_process(resume_elsewhere, path, state) == expected


def test_state_is_json(path: Path) -> None:
    pipe = make_loader(path)
    iterator = begun(pipe)
    state = pipe.state_dict()
    assert json.loads(json.dumps(state)) == state
    assert len(json.dumps(state)) < 2000
    (source,) = state.pop("sources")
    settings, request, episodes = (source.pop(k) for k in ("settings", "request", "episodes"))
    assert source.pop("normalization") == {}
    assert source == {"rows": None, "rest": None}
    place = {"epoch": 0, "batch": 1, "batch_size": 1, "ranks": 1, "workers": 1, "worker": None}
    assert state.pop("since") == 0
    assert state.pop("start") is None
    assert state == {"version": 13, **place, "segments": [], "shared_arguments": {}}
    assert request.pop("shapes")
    common = {"clip_len": 3, "stride": 1, "dilation": 1, "windows": {}, "pad": None}
    more = {"shuffle_buffer": 16, "samples": None}
    assert request == {**common, **more, "features": ["flow", "id", "image", "note"]}
    assert episodes.pop("digest")
    assert len(episodes.pop("marks")) == 4 * 4
    assert episodes == {"count": 4, "frames": 75, "dataset": pipe.dataset.fingerprint}
    assert all(settings.pop(name) > 0 for name in ("num_cursors", "block_rows", "aligned"))
    assert settings.pop("rotation") == settings.pop("group") == 0
    asked = {"shuffle": True, "seed": 5, "batch_size": 4, "last_batch": "repeat"}
    assert settings == {**asked, "order": "clips", "is_resident": False, "is_permuted": False}
    list(iterator)
    assert (pipe.state_dict()["epoch"], pipe.state_dict()["batch"]) == (1, 0)


def test_invalid_epochs_are_refused(path: Path) -> None:
    pipe = make_loader(path)
    wrong: list[Any] = [-1, 1 << 63, 0.5, "1", None]
    for value in wrong:
        with pytest.raises(ClipError, match=r"^epoch is (not an integer|too small|too large)"):
            pipe.set_epoch(value)


def test_a_second_iteration_ends_the_first(path: Path) -> None:
    stream = SeqRecordIterableDataset(path, clip_len=3)
    first, second = iter(stream), iter(stream)
    with pytest.raises(ClipError, match="another one has begun"):
        next(first)
    next(second)
    third = iter(stream)
    with pytest.raises(ClipError, match="another one has begun"):
        next(second)
    next(third)


SHORTER = {"frame_transform": lambda frame: {"id": frame["id"][:1]}}


OTHERS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"seed": 6}, "settings: seed; .*expected: seed=5; got: seed=6"),
    ({}, {"last_batch": "drop"}, "settings: last_batch;"),
    ({}, {"shuffle": False}, "settings: shuffle;"),
    ({}, {"shuffle_buffer": 1}, "expected: shuffle_buffer=16; got: shuffle_buffer=1"),
    ({}, {"clip_len": 2}, "expected: clip_len=3; got: clip_len=2"),
    ({}, {"stride": 2, "seed": 6}, "settings: stride, seed; .*expected: stride=1, seed=5; "),
    ({}, {"samples": every(2, rotate=True)}, "settings: samples;"),
    ({}, {"dilation": 2}, "settings: dilation;"),
    ({}, {"samples": dilate(1, 2)}, r"samples; .*got: samples=\['dilate\(dilations=\(1, 2\)\)'"),
    ({}, {"last_batch": "keep"}, "expected: last_batch='repeat'; got: last_batch='keep'"),
    ({}, {"features": ["image"]}, r"expected: features=\['flow', .*; got: features=\['image'\]"),
    ({}, {"episodes": "set/[012]*"}, "other episodes of this dataset; .*got: 3 episodes of 35"),
    ({}, {**ID, **SHORTER}, "settings: features, shapes;"),
    (ID, {**ID, **SHORTER}, r"settings: shapes; .*int64 \[2\].*int64 \[1\]"),
    ({"pad": "before"}, {"pad": "edge"}, "settings: pad"),
    ({"pad": "edge"}, {"pad": "edge", "samples": skip_last(1)}, "settings: samples"),
]


def test_state_of_other_settings_is_refused_with_their_names(path: Path, tmp_path: Path) -> None:
    for base, changes, message in OTHERS:
        state = make_loader(path, **base).state_dict()
        pipe = make_loader(path, **changes)
        before = pipe.state_dict()
        with pytest.raises(StateError, match=message):
            pipe.load_state_dict(state)
        assert pipe.state_dict() == before
    other = write_numbered(tmp_path / "other", chunk_frames=8)
    with pytest.raises(StateError, match="another dataset"):
        make_loader(path).load_state_dict(make_loader(other).state_dict())


# ---- settings derived from memory and defaults


def least(path: Path, **settings: Any) -> int:
    """The lowest memory limit, with fewer cursors than by default."""
    return minimum_memory(partial(make_loader, path, **settings))


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        ({}, {"memory_limit": "3GiB"}),
        ({"memory_limit": "least"}, {}),
        ({"num_cursors": 2, "memory_limit": "least"}, {"num_cursors": 2}),
    ],
)
def test_state_restores_default_settings(
    path: Path, saved: dict[str, Any], loaded: dict[str, Any]
) -> None:
    if "memory_limit" in saved:
        saved = {**saved, "memory_limit": least(path, **saved)}
    one = make_loader(path, **saved)
    iterator = begun(one)
    chosen = one.state_dict()["sources"][0]["settings"]
    other = resumed(make_loader(path, **loaded), one.state_dict())
    assert named(other, 2) == named(iterator) + named(one)
    assert other.state_dict()["sources"][0]["settings"] == chosen
    assert named(pickle.loads(pickle.dumps(other))) == named(one)
    other.set_epoch(0)
    one.set_epoch(0)
    assert named(other) == named(one)


def test_the_order_of_a_state_needs_no_more_than_the_least_memory(path: Path) -> None:
    """Frames that have no room are decoded again."""
    loader = make_loader(path)
    iterator = begun(loader)
    limit = least(path)
    pipe = resumed(make_loader(path, memory_limit=limit), loader.state_dict())
    assert digests(pipe) == digests(iterator)
    assert pipe.stats()["peak_buffer_bytes"] <= limit


# ---- changed datasets


def test_state_fits_the_same_episodes_in_another_dataset(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    features: Any = {"image": {"group": 0}, "note": {"shape": (None,)}}
    with SeqRecordWriter(other, chunk_frames=4, features=features) as writer:
        for key, number in (("more/0", 1), ("set/0", 0), ("more/1", 2), ("set/3", 3)):
            with writer.episode(key) as episode:
                for frame in range(LENGTHS[number]):
                    episode.append(expected_frame(number, frame))
    one, two = (make_loader(where, episodes=["set/3", "set/0"]) for where in (path, other))
    iterator = begun(one)
    assert digests(resumed(two, one.state_dict())) == digests(iterator)


@pytest.mark.parametrize(
    "episodes", [["set/3", "set/0"], "set/*", lambda m: m.get("number", -1) > 0]
)
def test_a_state_survives_an_append(tmp_path: Path, episodes: Any) -> None:
    path = write_numbered(tmp_path / "records")
    pipe = make_loader(path, episodes=episodes)
    iterator = begun(pipe)
    state = pipe.state_dict()
    expected = digests(iterator) + digests(pipe)
    whole = make_loader(path).state_dict()
    with SeqRecordWriter(path, mode="append") as writer, writer.episode("more/0") as episode:
        for frame in range(50):
            episode.append(expected_frame(3, frame % 30))
    assert digests(resumed(make_loader(path, episodes=episodes), state), 2) == expected
    make_loader(path, episodes="set/*").load_state_dict(whole)
    others = ["set/0", "set/1", "set/3", "more/0"]
    with pytest.raises(StateError, match=r"changed: select.*expected: 4 episodes.*got: 4 episodes"):
        make_loader(path, episodes=others).load_state_dict(whole)


FIXED = {"features": ["image", "id"]}  # transforms need fixed shapes


def test_settings_without_effect_on_the_order_may_differ(path: Path) -> None:
    several: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {"num_threads": 7}),
        ({}, {"device": "cpu"}),
        ({}, {"episodes": "set/*"}),
        ({}, {"features": ["image", "flow", "note", "id"]}),
        (FIXED, {**FIXED, "frame_transform": dict}),
        ({"shuffle": False}, {"shuffle": False, "seed": 9}),
    ]
    for base, changes in several:
        pipe = make_loader(path, **base)
        iterator = begun(pipe)
        other = resumed(make_loader(path, **changes), pipe.state_dict())
        assert digests(other) == digests(iterator), changes


def test_the_order_does_not_depend_on_the_machine(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = least(path)
    expected = named(make_loader(path, memory_limit=limit))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert named(make_loader(path, memory_limit=limit)) == expected
    assert named(make_loader(path, memory_limit=limit, num_threads=5)) == expected
