"""Counters, and the bottleneck as text."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from seqrecord.loader.engine.batches import do_nothing
from seqrecord.loader.engine.run import Run
from seqrecord.loader.engine.stats import EngineStats


def test_counters_add_up_over_threads() -> None:
    stats = EngineStats()
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4000):
            pool.submit(stats.add, bytes_read=2, clips=1)
    assert stats.bytes_read == 8000
    assert stats.report()["clips"] == 4000
    for amount in (3, 9, 4):
        stats.note_resident(amount)
    assert stats.report()["peak_buffer_bytes"] == 9
    for _ in range(2):
        stats.add_decoding({"image": 1.5, "depth": 0.5})
    report = stats.report()["decode_seconds_by_feature"]
    assert report == {"image": 3.0, "depth": 1.0}
    stats.add_decoding({"image": 1.0})
    assert report["image"] == 3.0  # earlier reports do not change
    counted = {"requests": 5}  # a storage counts from its creation
    stats.watch(lambda: counted)
    counted = {"requests": 12, "retries": 2}
    assert (stats.report()["requests"], stats.report()["retries"]) == (7, 2)


def test_waiting_percent_of_an_epoch() -> None:
    stats = EngineStats()
    assert stats.report()["waiting_percent"] == 0
    for begin in (0, 3, 6):
        stats.add_waiting(stats.begun + begin, stats.begun + begin + 1)
    report = stats.report()
    assert report["data_wait_seconds"] == pytest.approx(3)
    assert report["epoch_seconds"] == pytest.approx(7)
    assert report["waiting_percent"] == pytest.approx(300 / 7)


class SlowChannel:
    """A channel of three batches; each call passes seconds of a clock."""

    def __init__(self, clock: list[float]) -> None:
        self.clock, self.left = clock, 3

    def take(self, _process: int) -> Any:
        self.clock[0] += 2 if self.left else 0
        self.left -= 1
        return None if self.left < 0 else SlowBatch()

    def to_items(self, _batch: SlowBatch, number: int) -> list[Any]:
        self.clock[0] += 1
        return [{"number": number}]

    def end(self, _error: BaseException | None) -> None:
        """Its batches are there."""

    def close(self) -> None:
        self.clock[0] += 0.5


class SlowBatch(list[Any]):
    """A batch without clips."""

    def arrive(self) -> None:
        """It is on the host."""


def test_all_time_inside_next_is_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    channel: Any = SlowChannel(clock)
    stats = EngineStats(begun=clock[0])
    clock[0] += 8  # the plan
    run = Run(channel, do_nothing, stats, channel.to_items, 0, {})
    for _ in run:
        clock[0] += 100
    report, inside = run.report(), 8 + 3 * (2 + 1) + 0.5
    assert (report["data_wait_seconds"], report["epoch_seconds"]) == (inside, inside + 300)


@pytest.mark.parametrize(
    ("seconds", "word"),
    [
        ({"waiting_for_consumer_seconds": 2.0, "fetch_seconds": 9.0}, "consumer"),
        ({"data_wait_seconds": 2.0, "fetch_seconds": 9.0}, "reading"),
        ({"data_wait_seconds": 2.0, "decode_seconds": 9.0}, "decoding"),
        ({"data_wait_seconds": 2.0, "gather_seconds": 9.0}, "copying clips"),
        ({"data_wait_seconds": 2.0, "device_seconds": 9.0}, "the bus"),
        # Two decoding threads took longer than the copying thread, which never waited for them.
        ({"decode_seconds": 9.0, "gather_seconds": 6.0}, "copying clips"),
        (
            {"decode_seconds": 9.0, "gather_seconds": 6.0, "waiting_for_loads_seconds": 7.0},
            "decoding",
        ),
    ],
)
def test_bottleneck(seconds: dict[str, float], word: str) -> None:
    stats = EngineStats()
    assert stats.report()["bottleneck"] == "no batch delivered yet"
    stats.add(clips=1, **seconds)
    assert word in stats.report()["bottleneck"]
