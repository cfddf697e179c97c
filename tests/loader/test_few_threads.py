"""If the system starts few threads or none: correct results or a typed error, soon."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import seqrecord
from seqrecord import SeqRecordIterableDataset
from seqrecord.errors import ResourceError
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.local import LocalStorage
from tests.kit.clip_data import check_clip, expected_frame, no_leaks, possible_clips
from tests.kit.faults import FaultyStorage
from tests.kit.made_source import MadeSource
from tests.kit.services.places import as_remote

pytestmark = pytest.mark.timeout(120)  # a deadlock fails


class Limit:
    """Numbers of started and of allowed threads."""

    def __init__(self) -> None:
        self.started = 0
        self.most = 1 << 30


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    limit, start = Limit(), threading.Thread.start

    def start_one(thread: threading.Thread) -> None:
        if limit.started >= limit.most:
            raise RuntimeError("can't start new thread")
        limit.started += 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    return limit


def failing(limit: Limit, do: Callable[[], None], *, least: int) -> list[int]:
    """Repeat `do` with 0, 1, … threads, up to the number it starts without a limit (>= `least`).

    Returns with how many it ended with an error; with all others it went well.
    """
    with no_leaks():
        do()
    most, failed = limit.started, []
    assert most >= least
    for count in range(most):
        limit.started, limit.most = 0, count
        with no_leaks():
            try:
                do()
            except ResourceError as error:
                failed.append((count, error.message))
    message = "no thread can be started: can't start new thread"
    assert {text for _, text in failed} <= {message}
    return [count for count, _ in failed]


def on_network(path: Path) -> Storage:
    """A storage treated as remote, with several requests at a time."""
    return as_remote(
        FaultyStorage(LocalStorage(path), lambda *_: None), max_gap=0, max_bytes=1 << 14
    )


def flipped(clip: dict[str, Any], _generator: np.random.Generator) -> dict[str, Any]:
    return {"image": clip["image"][:, :, ::-1].copy(), "id": clip["id"]}


OPTIONS: dict[str, dict[str, Any]] = {
    "overlapping": {"features": ["image", "flow"], "clip_len": 4},
    "disjoint": {"features": ["image"], "clip_len": 4, "stride": 4},
    "of variable shapes": {"features": ["note"], "clip_len": 2},
    "copied by threads": {"features": ["image", "id"], "clip_len": 3, "clip_transform": flipped},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(
    "is_local", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["local", "network"]
)
def test_an_epoch(path: Path, options: dict[str, Any], is_local: bool, limit: Limit) -> None:
    features, length = options["features"], options["clip_len"]
    expected = possible_clips(features, length, options.get("stride", 1))
    usual: dict[str, Any] = {"batch_size": 8, "memory_limit": "4MiB", **options}

    def epoch() -> None:
        storage = path if is_local else on_network(path)
        found = []
        for batch in SeqRecordIterableDataset(storage, **usual):
            if "clip_transform" in options:
                batch["image"] = torch.flip(batch["image"], [3])
            found += check_clip(batch, features, length)
        assert sorted(found) == sorted(expected)

    failed = failing(limit, epoch, least=2)
    # The scheduler needs a thread. On a network, opening the dataset starts others first.
    assert failed == [*range(len(failed))]
    assert len(failed) == 1 or not is_local


def test_a_mix(path: Path, limit: Limit) -> None:
    def epoch() -> None:
        sources = {
            name: SeqRecordIterableDataset(path, clip_len=2, features=["id"]) for name in "abc"
        }
        mix = seqrecord.SeqRecordMix(sources, batch_size=4, stopping_strategy="first_exhausted")
        assert sum(len(batch["start"]) for batch in mix) > 40

    failed = failing(limit, epoch, least=2)
    assert failed[0] == 0  # the scheduler of all sources; then their threads


def test_random_access(path: Path, limit: Limit) -> None:
    def read() -> None:
        with seqrecord.open(on_network(path)) as dataset:
            clips = seqrecord.SeqRecordMapDataset(
                dataset, clip_len=4, features=["image", "note"], episodes=[0]
            )
            for clip in clips.__getitems__([*range(len(clips))]):
                check_clip(clip, ["image", "note"], 4)

    assert not failing(limit, read, least=2)


def test_a_writer(limit: Limit, tmp_path: Path) -> None:
    def write() -> None:
        path, features = tmp_path / f"{len([*tmp_path.iterdir()])}", {"note": {"shape": (None,)}}
        with seqrecord.SeqRecordWriter(path, max_file_size=2000, features=features) as writer:
            for key in range(5):
                with writer.episode(str(key)) as episode:
                    for frame in range(9):
                        episode.append(expected_frame(1, frame))
        with seqrecord.open(path) as dataset:
            assert {len(episode) for episode in dataset.episodes.values()} == {9}

    assert not failing(limit, write, least=3)


def test_a_recorder(limit: Limit, tmp_path: Path) -> None:
    def record() -> None:
        path = tmp_path / f"{len([*tmp_path.iterdir()])}"
        with seqrecord.SeqRecordRecorder(path) as recorder, recorder.episode("one") as episode:
            for frame in range(9):
                episode.append({"id": np.array([1, frame])})
        with seqrecord.open(path) as dataset:
            assert len(dataset.episodes["one"]) == 9

    assert failing(limit, record, least=2) == [0]


@pytest.mark.slow
def test_a_conversion_by_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process pool has two threads at a time."""
    start, before, most = threading.Thread.start, threading.active_count(), 0
    processes = multiprocessing.active_children()

    def start_one(thread: threading.Thread) -> None:
        if threading.active_count() - before >= most:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    for most in range(3):
        begin = partial(seqrecord.convert, MadeSource(), tmp_path / f"{most}", max_file_size=20_000)
        if most < 2:
            with pytest.raises(ResourceError, match="no thread can be started"):
                begin(workers=2)
        else:
            assert len(begin(workers=2).written) == len(MadeSource().lengths)
        assert threading.active_count() == before
        assert multiprocessing.active_children() == processes
