"""A crew reads as far ahead as it may, and every load is done once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from seqrecord.engine.channel import Channel
from seqrecord.engine.crew import Crew
from seqrecord.engine.loading import Load, Place
from seqrecord.engine.stats import EngineStats
from tests.clip_data import leaves_nothing

LOADS = [Load(0, 0, 0, chunk, chunk * 4, 4) for chunk in range(12)]
PATIENCE = 30  # seconds


class FakeLoader:
    """Notes what is asked of it; `meanwhile` runs in every fetch."""

    def __init__(self, meanwhile: Callable[[Load], None] = lambda load: None) -> None:
        self.fetched: list[int] = []
        self.done: list[tuple[int, Any]] = []
        self._meanwhile = meanwhile
        self._lock = threading.Lock()

    def fetch(self, load: Load) -> str:
        self._meanwhile(load)
        with self._lock:
            self.fetched.append(load.chunk)
        return f"chunk {load.chunk}"

    def __call__(self, load: Load, places: Sequence[Place], fetched: Any = None) -> None:
        with self._lock:
            self.done.append((load.chunk, fetched))


@contextmanager
def crew_of(loader: FakeLoader, *, num_loaders: int = 3, num_ahead: int) -> Iterator[Crew]:
    with Crew(
        loader,  # type: ignore[arg-type]
        num_loaders=num_loaders,
        num_ahead=num_ahead,
        num_copiers=1,
        channel=Channel(1),
        stats=EngineStats(),
    ) as crew:
        yield crew


def test_what_was_read_ahead_is_not_read_again() -> None:
    loader = FakeLoader()
    with crew_of(loader, num_ahead=2) as crew:
        crew.fetch(LOADS[:5])
        crew.fetch(LOADS[:5])  # nothing more: two are under way
        crew.wait([crew.load(load, []) for load in LOADS[:3]])
        assert sorted(loader.fetched) == [0, 1]
        crew.fetch(LOADS[3:])
        crew.wait([crew.load(load, []) for load in LOADS[3:6]])
    assert sorted(loader.fetched) == [0, 1, 3, 4]
    ahead = {0, 1, 3, 4}
    expected = [(i, f"chunk {i}" if i in ahead else None) for i in range(6)]
    assert sorted(loader.done) == expected


def test_a_chunk_that_was_read_counts_until_its_frames_are_stored() -> None:
    loader = FakeLoader()
    with crew_of(loader, num_ahead=1) as crew:
        crew.fetch(LOADS[:1])
        crew.fetch(LOADS[1:])
        done = crew.load(LOADS[0], [])
        crew.wait([done])
        crew.fetch(LOADS[1:2])
        crew.wait([crew.load(LOADS[1], [])])
    assert loader.fetched == [0, 1]


def test_none_is_read_ahead() -> None:
    loader = FakeLoader()
    with crew_of(loader, num_ahead=0) as crew:
        crew.fetch(LOADS)
        crew.wait([crew.load(load, []) for load in LOADS])
    assert loader.fetched == []
    assert len(loader.done) == len(LOADS)


def test_an_error_comes_with_the_load_and_the_next_is_read_ahead() -> None:
    def fail(load: Load) -> None:
        if load.chunk == 0:
            raise OSError("the disk is gone")

    loader = FakeLoader(fail)
    with crew_of(loader, num_ahead=1) as crew:
        crew.fetch(LOADS[:1])
        with pytest.raises(OSError, match="the disk is gone"):
            crew.wait([crew.load(LOADS[0], [])])
        crew.fetch(LOADS[1:2])
        crew.wait([crew.load(LOADS[1], [])])
    assert loader.done == [(1, "chunk 1")]


@pytest.mark.parametrize("num_loaders", [1, 2])
def test_loads_wait_for_what_is_being_read(num_loaders: int) -> None:
    """However few threads there are, for these loads stand in line behind it."""
    goes_on = threading.Event()
    loader = FakeLoader(lambda load: None if goes_on.wait(PATIENCE) else pytest.fail("waited"))
    with crew_of(loader, num_loaders=num_loaders, num_ahead=4) as crew:
        crew.fetch(LOADS[:4])
        loads = [crew.load(load, []) for load in LOADS[:4]]
        assert loader.done == []
        goes_on.set()
        crew.wait(loads)
    assert len(loader.done) == 4


def test_leaving_drops_what_was_read_ahead() -> None:
    loader = FakeLoader()
    with leaves_nothing(), crew_of(loader, num_loaders=1, num_ahead=4) as crew:
        crew.fetch(LOADS)
    assert loader.done == []
