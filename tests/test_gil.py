"""The watch for threads that hold the GIL: tried now and then, and late for a while."""

from __future__ import annotations

from seqrecord.engine.gil import GilWatch


class Clock:
    """Time that passes in `sleep`, by so much more than asked for."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.more = 0.0
        self.sleeps = 0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        self.now += seconds + self.more


def test_a_thread_that_waits_for_the_gil_is_late() -> None:
    clock = Clock()
    watch = GilWatch(clock, clock.sleep)
    assert not watch.is_late()
    clock.now, clock.more = clock.now + 1, 0.005
    assert watch.is_late()


def test_it_is_not_tried_again_at_once() -> None:
    clock = Clock()
    watch = GilWatch(clock, clock.sleep)
    for _ in range(100):
        assert not watch.is_late()
    clock.more = 0.005
    assert not watch.is_late()
    assert clock.sleeps == 1
    clock.now += 1
    assert watch.is_late()


def test_one_lucky_try_is_not_the_end_but_several_are() -> None:
    clock = Clock()
    watch = GilWatch(clock, clock.sleep)
    clock.more = 0.005
    assert watch.is_late()
    clock.more, found = 0.0, []
    for _ in range(5):
        clock.now += 1
        found.append(watch.is_late())
    assert found[0]
    assert not found[-1]
    assert found == sorted(found, reverse=True)
