"""A memory limit is kept, and one that is too small says the least that would do."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqrecord import EngineOptions, SeqRecordIterableDataset, SeqRecordMix, SeqRecordPipe
from seqrecord.errors import MemoryLimitError
from seqrecord.storage import LocalStorage, StorageWrapper
from tests.clip_data import effective, least_memory, names, possible_clips, write_numbered

SHAPE = (256, 256, 3)  # of an image: what isn't of frames is little beside them
FRAME = 256 * 256 * 3
CHUNK = 8  # frames

BESIDE = 1 << 20
"""Bytes that an epoch takes besides frames, batches and chunks: its plan, threads, code."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("memory")
    return write_numbered(folder / "records", codecs="raw", shape=SHAPE, chunk_frames=CHUNK)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    return write_numbered(folder / "records", shape=(64, 64, 9), chunk_frames=CHUNK)


requests = st.fixed_dictionaries(
    {
        "clip_len": st.integers(1, 6),
        "stride": st.integers(1, 4),
        "rotate_phase": st.booleans(),
        "dilation": st.integers(1, 3),
        "features": st.lists(st.sampled_from(["flow", "id", "note"]), unique=True).map(
            lambda others: [*others, "image"]
        ),
        "batch_size": st.none() | st.integers(1, 9),
        "shuffle": st.booleans(),
        "shuffle_buffer": st.sampled_from([1, 16, 1000]),
        "num_cursors": st.none() | st.integers(1, 9),
        "num_threads": st.integers(1, 4),
    }
).map(effective)


costly = settings(max_examples=settings().max_examples // 5)


def taken(work: Callable[[], object]) -> int:
    """The most bytes that Python and NumPy have allocated at a time, of what `work` allocates."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def check_taken(work: Callable[[], object], most: int) -> None:
    """`work`, done again, takes at most `most` bytes.

    Threads that an earlier test has left for a while may allocate too, but not each time.
    """
    amounts: list[int] = []
    while not amounts or (amounts[-1] > most and len(amounts) < 3):
        amounts.append(taken(work))
    assert min(amounts) <= most, amounts


@costly
@given(request=requests)
def test_the_least_that_would_do(path: Path, request: dict[str, Any]) -> None:
    least = least_memory(partial(SeqRecordPipe, path, **request))
    with pytest.raises(MemoryLimitError, match=f"at least {least} bytes"):
        SeqRecordPipe(path, **request, memory_limit=least - 1)
    pipe = SeqRecordPipe(path, **request, memory_limit=least)
    every = possible_clips(request["features"], request["clip_len"], 1, request["dilation"])
    rotates = request.get("rotate_phase", False)
    epochs = len({start % request["stride"] for _, start in every}) if rotates else 1
    clips: list[tuple[str, int]] = []

    def run() -> None:
        clips.clear()
        for _ in range(epochs):
            for batch in pipe:
                clips.extend(names(batch))

    check_taken(run, least + BESIDE)
    stride = 1 if rotates else request["stride"]
    expected = possible_clips(request["features"], request["clip_len"], stride, request["dilation"])
    assert sorted(clips) == sorted(expected)


@costly
@given(request=requests, limit=st.sampled_from([2, 4, 10, 30]).map(lambda n: n << 20))
def test_the_limit_is_kept(path: Path, request: dict[str, Any], limit: int) -> None:
    try:
        pipe = SeqRecordPipe(path, **request, memory_limit=limit)
    except MemoryLimitError:
        return
    check_taken(lambda: [None for _ in range(2) for _ in pipe], limit + BESIDE)
    assert 0 < pipe.stats()["peak_buffer_bytes"] <= limit


LISTED = {
    "episode": [f"set/{i % 2 * 3}" for i in range(40)],
    "frames": [[(7 * i) % 23, (11 * i + 5) % 23, (3 * i + 1) % 23] for i in range(40)],
}
PAIRS = {"episode": ["set/3"] * 39, "frames": [[i, i + 1] for i in range(39)]}
SOME = {"episode": ["set/0", "set/3"], "start": [3, 9], "weight": [3, 2]}
CASES: dict[str, dict[str, Any]] = {  # beside those that are drawn above
    "sequences": {"clip_len": 4, "stride": 4, "order": "sequences", "batch_size": 2},
    "windows": {"windows": {"image": [-2, 0], "id": range(8)}, "pad": "edge"},
    "lists": {"clips": LISTED},
    "pairs": {"clips": PAIRS},
    "lists of one feature": {"clips": LISTED, "features": ["id"]},
    "lists in order": {"clips": LISTED, "shuffle": False},
    "weights": {"clip_len": 2, "clips": SOME},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("batch_size", [pytest.param(None, marks=pytest.mark.slow), 5])
def test_the_least_memory_of_an_error_suffices(
    tiny: Path, name: str, batch_size: int | None
) -> None:
    options = {"features": ["image", "id"], "batch_size": batch_size, **CASES[name]}
    make = partial(SeqRecordPipe, tiny, **options)
    number = least_memory(make)
    for refused in (number // 2, number - 1):
        with pytest.raises(MemoryLimitError, match=f"at least {number} bytes"):
            make(memory_limit=refused)
    for limit in (number, number * 5 // 4):
        pipe = make(memory_limit=limit)
        assert sum(len(names(clip)) for clip in pipe) >= 1
        assert pipe.stats()["peak_buffer_bytes"] <= limit


def test_the_least_memory_of_a_mix_suffices(tiny: Path) -> None:
    for name in ("lists", "windows"):
        options = {"features": ["image", "id"], **CASES[name]}

        def make(memory_limit: int, options: Any = options) -> None:
            sources = {key: SeqRecordIterableDataset(tiny, **options) for key in "ab"}
            next(iter(SeqRecordMix(sources, batch_size=3, memory_limit=memory_limit)))

        make(least_memory(make))


def test_what_the_consumer_holds_is_not_kept_for_the_next_time(path: Path) -> None:
    """And the meter sees it: else the tests above would say nothing."""
    limit = 16 << 20
    pipe = SeqRecordPipe(path, clip_len=4, batch_size=4, features=["image"], memory_limit=limit)
    held: list[Any] = []
    left = 0

    def run() -> None:
        nonlocal left
        held.extend(pipe)
        assert tracemalloc.get_traced_memory()[0] > len(held) * 16 * FRAME * 0.9 > 2 * limit
        held.clear()
        left = tracemalloc.get_traced_memory()[0]

    taken(run)
    assert left <= limit + BESIDE


def test_an_epoch_of_other_needs_begins_without_the_memory_of_the_one_before(path: Path) -> None:
    """Without the garbage collector, which would find a cycle some time."""
    clips: Any = {"clip_len": 5, "features": ["image"], "batch_size": 9}
    make = partial(SeqRecordPipe, path, **clips, engine=EngineOptions(num_cursors=3))
    limit = least_memory(make)
    pipes = [make(memory_limit=limit) for _ in range(2)]

    def run() -> None:
        while pipes:
            for _batch in pipes.pop():
                pass
            del _batch

    gc.disable()
    try:
        assert taken(run) <= limit + BESIDE
    finally:
        gc.enable()


@pytest.mark.parametrize("phases", [{}, {"stride": 4, "rotate_phase": True}])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_the_next_epoch_takes_over_the_memory(
    path: Path, phases: dict[str, Any], device: str | None
) -> None:
    settings: dict[str, Any] = {**phases, "clip_len": 3, "batch_size": 4, "features": ["image"]}
    pipe = SeqRecordPipe(path, **settings, memory_limit="32MiB", device=device)
    held = 0

    def run() -> None:
        nonlocal held
        for _ in range(2):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            for _batch in pipe:
                pass
            del _batch
            held = tracemalloc.get_traced_memory()[1] - before

    taken(run)
    assert held < BESIDE + 2 * 12 * FRAME  # batches that it had not needed before


def test_not_a_limit(path: Path) -> None:
    limits: list[Any] = ["none", -1, 1.5, "1 parsec"]
    for limit in limits:
        with pytest.raises(ValueError, match="memory_limit: not a size"):
            SeqRecordPipe(path, clip_len=2, memory_limit=limit)


def test_chunks_in_flight_take_a_part_of_the_limit(path: Path) -> None:
    storage = StorageWrapper(LocalStorage(path))  # no local files, as far as anyone knows
    loaders = []
    for chunks in (32, 200):
        limit = chunks * CHUNK * FRAME
        pipe = SeqRecordPipe(storage, clip_len=2, features=["image"], memory_limit=limit)
        for _clip in pipe:
            pass
        loaders.append(pipe.stats()["num_loaders"])
    assert 1 <= loaders[0] <= 32 // 8
    assert loaders[1] == 16
