"""The channel between an engine and its consumer."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest

from seqrecord.engine.channel import Channel, ClosedError


def test_items_come_in_order_and_then_the_end() -> None:
    channel: Channel[int] = Channel(3)
    for item in range(3):
        channel.reserve()
        channel.put(item)
    channel.end()
    assert [channel.get() for _ in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(StopIteration):
            channel.get()


def test_the_error_comes_once_after_the_items() -> None:
    channel: Channel[int] = Channel(1)
    channel.reserve()
    channel.put(1)
    channel.end(KeyError("x"))
    assert channel.get() == 1
    with pytest.raises(KeyError, match="x"):
        channel.get()
    with pytest.raises(StopIteration):
        channel.get()


def test_an_error_does_not_look_like_the_end() -> None:
    channel: Channel[int] = Channel(1)
    channel.end(StopIteration("of a user's function"))
    with pytest.raises(RuntimeError, match="StopIteration was raised") as caught:
        channel.get()
    assert isinstance(caught.value.__cause__, StopIteration)


def wait_for_length(made: Sequence[int], length: int) -> None:
    """And see that it does not go on."""
    deadline = time.monotonic() + 60
    while len(made) < length:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    time.sleep(0.02)
    assert len(made) == length


def test_the_producer_waits_for_slots() -> None:
    channel: Channel[int] = Channel(2)
    made: list[int] = []

    def produce() -> None:
        for item in range(5):
            channel.reserve()
            made.append(item)
            channel.put(item)
        channel.end()

    thread = threading.Thread(target=produce)
    thread.start()
    wait_for_length(made, 2)
    assert channel.get() == 0
    wait_for_length(made, 3)
    assert [channel.get() for _ in range(4)] == [1, 2, 3, 4]
    thread.join()


@pytest.mark.parametrize("side", ["reserve", "get"])
def test_closing_wakes_whoever_waits(side: str) -> None:
    channel: Channel[int] = Channel(0)
    raised = []

    def wait() -> None:
        try:
            getattr(channel, side)()
        except ClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.02)
    channel.close()
    thread.join(60)
    assert len(raised) == 1
    channel.put(3)  # dropped
    channel.end(ValueError("not for anyone"))
    with pytest.raises(ClosedError):
        channel.get()
