"""Counters, and the bottleneck as text."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from seqrecord import SeqRecordIterableDataset, SeqRecordMix, SeqRecordWriter
from seqrecord.engine.stats import EngineStats


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


@pytest.mark.parametrize("are_mixed", [False, True])
def test_all_time_inside_next_is_waiting(tmp_path: Path, are_mixed: bool) -> None:
    """Also that of columns, here of copies of long metadata."""
    metadata = {"long": list(range(20_000))}
    writer = SeqRecordWriter(tmp_path / "d")
    with writer, writer.episode("e", metadata=metadata) as episode:
        for i in range(24):
            episode.append({"x": np.float32(i)})
    source: dict[str, Any] = {"clip_len": 1, "metadata": ["long"]}
    loader: SeqRecordIterableDataset | SeqRecordMix
    if are_mixed:
        one = SeqRecordIterableDataset(tmp_path / "d", **source)
        loader = SeqRecordMix({"one": one}, batch_size=8)
    else:
        loader = SeqRecordIterableDataset(tmp_path / "d", batch_size=8, **source)
    measured, batches = 0.0, iter(loader)
    for _ in range(3):
        begin = perf_counter()
        next(batches)
        measured += perf_counter() - begin
    assert 0.5 * measured < loader.stats()["data_wait_seconds"] <= measured


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
