"""The channel's slots: no more items are made or wait than it has, and spare ones for a while."""

from __future__ import annotations

import pytest

from seqrecord.engine.channel import Channel, ClosedError
from seqrecord.engine.stats import EngineStats


def reserved(channel: Channel[int]) -> int:
    """How many slots can be had now; they are had."""
    count = 0
    while channel.try_reserve():
        count += 1
    return count


def test_spare_slots_are_had_once_they_are_lent() -> None:
    channel: Channel[int] = Channel(2, EngineStats(), 1)
    assert reserved(channel) == 2
    channel.lend(True)
    channel.lend(True)
    assert reserved(channel) == 1


def test_spare_slots_are_given_back_when_their_items_are_taken() -> None:
    channel: Channel[int] = Channel(2, EngineStats(), 1)
    channel.lend(True)
    for number in range(reserved(channel)):
        channel.put(number)
    channel.lend(False)
    assert [channel.get(), reserved(channel)] == [0, 0]
    assert [channel.get(), reserved(channel)] == [1, 1]


def test_without_a_slot_it_waits_until_the_channel_is_closed() -> None:
    channel: Channel[int] = Channel(1, EngineStats(), 1)
    channel.lend(True)
    assert reserved(channel) == 2
    channel.lend(False)  # one slot less than none
    channel.interrupt()
    with pytest.raises(ClosedError):
        channel.reserve(0)
