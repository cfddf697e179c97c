"""bench, its advice, and the command `seqrecord bench`."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import seqrecord
from seqrecord import (
    Budget,
    ClipError,
    EngineOptions,
    FeatureSpec,
    NotFoundError,
    SeqRecordIterableDataset,
    bench,
)
from seqrecord.errors import MemoryLimitError
from seqrecord.store.storage.base import Storage, StorageWrapper
from seqrecord.store.storage.local import LocalStorage
from seqrecord.store.storage.ranges import ByteRange
from seqrecord.tools.profiler.advice import Sizes, advise
from seqrecord.tools.profiler.bench import BenchOptions, measure
from seqrecord.types import FeatureSummary, Progress, StepTimes
from tests.kit.command_line import fail, run
from tests.kit.datasets import HEIGHT, WIDTH, write_small, written_once

dataset = written_once(write_small, episodes={"a/Easy": 11, "b/Easy": 9}, missing=False)


def test_an_epoch(dataset: Path) -> None:
    seen: list[Progress] = []
    names = ["image_left", "range"]
    options: dict[str, Any] = {"clip_len": 4, "batch_size": 3, "features": names}
    report = bench(dataset, **options, progress=seen.append)
    assert (report.num_batches, report.num_clips, report.num_frames) == (5, 14, 56)
    assert seen == [Progress(i, 5) for i in range(1, 6)]
    with seqrecord.open(dataset, features=names) as records:
        clips = [
            episode.read(range(start, start + 4))
            for episode in records.episodes.values()
            for start in range(len(episode) - 3)
        ]
        columns = [records.contents.index.schema.position(name) for name in names]
        pages = int(records.contents.index.groups[0].page_length[:, columns].sum())
    image, depths = HEIGHT * WIDTH * 3, [a.nbytes for clip in clips for a in clip["range"]]
    numbers = 8 * 14  # `start` is delivered as well
    assert report.clip_bytes == 56 * image + sum(depths) + numbers
    assert pages <= report.stats["bytes_read"] <= 2 * pages
    assert report.steady_clips == 14 - 3
    per_clip = report.clip_bytes / 14
    rates = (report.clips_per_second, report.frames_per_second, report.bytes_per_second)
    assert rates == pytest.approx([11 * n / report.steady_seconds for n in (1, 4, per_clip)])
    assert 0 < report.first_batch_seconds < report.seconds
    assert report.steady_seconds + report.first_batch_seconds <= report.seconds
    assert 0 < report.copying.p50 < report.seconds
    assert report.peak_memory > 50 << 20
    assert report.url == str(dataset)
    assert report.most_clips_per_second is None
    report = bench(dataset, clip_len=4, max_batches=1)
    assert report.steady_clips == report.num_clips == 4
    assert report.waiting.mean == report.first_batch_seconds
    assert bench(dataset, clip_len=4, batch_size=None, max_batches=3).num_clips == 3


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """`pass_time(seconds)` advances the clock of `bench`, which otherwise stands still."""
    bench_module = sys.modules[measure.__module__]  # `bench` is its function, too
    clock = [0.0]

    def advance(seconds: float) -> None:
        clock.append(clock[-1] + seconds)

    monkeypatch.setattr(bench_module, "time", SimpleNamespace(sleep=advance))
    monkeypatch.setattr(bench_module, "perf_counter", lambda: clock[-1])
    return advance


@pytest.mark.usefixtures("pass_time")
def test_a_slow_consumer(dataset: Path) -> None:
    report = bench(dataset, clip_len=4, batch_size=4, consumer_seconds=0.1, max_batches=3)
    assert report.num_batches == 3
    assert report.consuming.p50 == pytest.approx(0.1)
    assert report.seconds == pytest.approx(0.3)
    assert report.waiting.max == 0
    assert "the consumer is the bottleneck" in report.advice[0]
    assert report.stats["bottleneck"].startswith("the consumer")
    assert report.advice[1:] == ("too few batches for reliable figures: increase `max_batches`.",)


def test_maximum_clips_per_second_of_a_training(
    dataset: Path, pass_time: Callable[[float], None]
) -> None:
    """A step takes 0.2 s with the loader running, 0.1 s alone."""
    seen: list[dict[str, Any]] = []

    def step(batch: dict[str, Any]) -> None:
        seen.append(batch)
        pass_time(0.2 if len(seen) <= 4 else 0.1)

    report = bench(dataset, clip_len=4, batch_size=2, step=step, max_batches=4)
    assert report.alone is not None
    assert report.alone.mean == pytest.approx(0.1)
    assert report.consuming.mean == pytest.approx(0.2)
    assert report.most_clips_per_second == pytest.approx(20)
    assert report.clips_per_second == pytest.approx(10)
    assert len(seen) == 4 + 4
    assert all(batch is seen[3] for batch in seen[4:])
    [line] = [line for line in str(report).splitlines() if "at most" in line]
    assert "20.0/s" in line
    assert "50 %" in line
    assert "2.00 times" in line
    assert report.to_json()["most_clips_per_second"] == pytest.approx(20)
    # The maximum is of a full batch: the last one has two of 14 clips.
    seen.clear()

    def by_clip(batch: dict[str, Any]) -> None:
        seen.append(batch)
        pass_time(0.1 * len(batch["start"]))

    report = bench(dataset, clip_len=4, batch_size=4, step=by_clip)
    assert [len(batch["start"]) for batch in seen[:4]] == [4, 4, 4, 2]
    assert all(batch is seen[2] for batch in seen[4:])
    assert report.most_clips_per_second == pytest.approx(10)


@pytest.mark.parametrize("batch_size", [None, 2])
def test_frame_counts_of_windows_and_clip_lists(dataset: Path, batch_size: int | None) -> None:
    options: dict[str, Any] = {"batch_size": batch_size}
    windows = {"image_left": [-1, 0, 1], "pose": [0], "range": [0, 1]}
    report = bench(dataset, windows=windows, **options)
    assert report.num_frames == 3 * report.num_clips == 3 * (9 + 7)
    report = bench(dataset, windows={"pose": [0]}, squeeze_time=True, **options)
    assert report.num_frames == report.num_clips == 20
    clips = {"episode": ["a/Easy", "b/Easy"], "frames": [[3, 8], [0, 5]]}
    assert bench(dataset, samples=clips, **options).num_frames == 4
    assert BenchOptions().clip_len == BenchOptions(pad="edge").clip_len == 16


class SlowStorage(StorageWrapper):
    """Reads one chunk at a time: the first takes a second, others 50 ms."""

    seconds, turn = 1.0, threading.Lock()

    def __init__(self, inner: Storage, pass_time: Callable[[float], None]) -> None:
        super().__init__(inner)
        self.pass_time = pass_time

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        if path.endswith(".seqrec"):
            with self.turn:
                time.sleep(self.seconds / 5)  # the consumer waits meanwhile
                self.pass_time(self.seconds)
                self.seconds = 0.05
        super().read_ranges(path, ranges, buffers)


def test_a_slow_loader(dataset: Path, pass_time: Callable[[float], None]) -> None:
    storage: Any = SlowStorage(LocalStorage(dataset), pass_time)
    options: dict[str, Any] = {"clip_len": 4, "stride": 4, "batch_size": 1, "shuffle": False}
    options |= {"engine": EngineOptions(num_threads=1), "features": ["image_left", "pose"]}
    report = bench(storage, **options)
    assert report.first_batch_seconds >= 1
    assert 0.02 <= report.waiting.max < report.first_batch_seconds, "the first does not count"
    assert report.clip_bytes == 4 * (4 * (HEIGHT * WIDTH * 3 + 7 * 8) + 8)
    assert report.clips_per_second == pytest.approx(3 / report.steady_seconds)


def test_decoding_in_a_frame_transform(dataset: Path) -> None:
    """Its time is of no feature: no advice may name one, or divide by their sum."""

    def slow(frame: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.005)
        return {"image": frame["image_left"], "range": frame["flow"]}

    options: dict[str, Any] = {"clip_len": 4, "batch_size": 3, "frame_transform": slow}
    report = bench(dataset, features=["image_left", "flow"], **options)
    assert {*report.stats["decode_seconds_by_feature"].values()} == {0.0}
    assert "Decoding is the bottleneck" in report.advice[0]
    assert "Write smaller frames" in report.advice[0]


@pytest.mark.usefixtures("pass_time")
def test_steps_shorter_than_the_tick_of_the_clock(dataset: Path) -> None:
    report = bench(dataset, clip_len=4, max_batches=3)
    assert (report.seconds, report.steady_seconds) == (0, 0)
    assert np.isfinite([report.clips_per_second, report.bytes_per_second]).all()
    assert "clips " in str(report)


def test_copies_are_timed_separately(dataset: Path, pass_time: Callable[[float], None]) -> None:
    options = BenchOptions(clip_len=4, max_batches=12, batch_size=1, device="cpu")
    stream = SeqRecordIterableDataset(dataset, clip_len=4, batch_size=1)
    report = measure(stream, options, synchronize=lambda: pass_time(0.05))
    assert report.copying.p50 == pytest.approx(0.05)
    assert report.seconds == pytest.approx(12 * 0.05)
    assert "copying to the device is the bottleneck" in report.advice[0]
    assert report.stats["bottleneck"].startswith("copying frames to the device")
    assert "copy to device" in str(report)


def test_wrong_requests(dataset: Path, tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"max_batches": 0}, ClipError, "max_batches"),
        ({"consumer_seconds": float("nan")}, ClipError, "consumer_seconds"),
        ({"clip_len": 4, "memory_limit": "1KB"}, MemoryLimitError, "memory"),
        ({"clip_len": 9, "last_batch": "keep", "rank": (0, 8)}, ClipError, "no batch to time"),
        *[({"clip_len": 4, "device": "cuda"}, ClipError, "device not available")]
        * (not torch.cuda.is_available()),
    ]
    for options, error, message in wrong:
        with pytest.raises(error, match=message):
            bench(dataset, **options)
    with pytest.raises(NotFoundError):
        bench(tmp_path)
    little = ["--loader", "memory_limit=1KB"]
    for arguments in ([tmp_path], [dataset, "--clip-len", 400], [dataset, *little]):
        fail("bench", *arguments, "--quiet")
    assert "not a size" in fail("bench", dataset, "--loader", "memory_limit=much", code=2)


def test_step_times() -> None:
    seconds = np.random.default_rng(0).random(101)
    times, ordered = StepTimes.of(seconds.tolist()), sorted(seconds)
    assert times.mean == pytest.approx(sum(ordered) / 101)
    found = [times.p50, times.p95, times.max]
    assert found == pytest.approx([ordered[50], ordered[95], ordered[100]])


LOADS: dict[str, Any] = {"waiting_for_loads_seconds": 5.0, "gather_seconds": 1.0, "batches": 50}
DECODES = {**LOADS, "decode_seconds": 9.0, "fetch_seconds": 1.0}
BY_FEATURE = {**DECODES, "decode_seconds_by_feature": {"image": 2.0, "flow": 6.0}}
NOT_BY_FEATURE = {"decode_seconds_by_feature": {"image": 0.0, "flow": 0.0}}


GIB = 1 << 30
CODECS: dict[str, Any] = {
    "image": ({"id": "zstd", "level": 3},),
    "flow": ({"id": "zstd", "level": 3},),
    "video": ({"id": "video", "codec": "h264"},),
    "raw": (),
}


def sizes(stored: dict[str, float], raw: float = 30, disk: float = 100, memory: int = 8) -> Sizes:
    """Features of `stored` GiB each, `raw` GiB decoded."""
    features = {
        name: FeatureSummary(
            FeatureSpec(f"stored_{name}", np.dtype(np.uint8), (64, 64, 3), codec=CODECS[name]),
            *(10, 0, int(size * GIB), int(raw * GIB)),
        )
        for name, size in stored.items()
    }
    total = sum(feature.stored_bytes for feature in features.values())
    return Sizes(features, total, disk * GIB, memory * GIB)


USUAL = sizes({"image": 10, "flow": 10})
LONG_READS = {**DECODES, "fetch_seconds": 36.0}
ADVICE: list[tuple[dict[str, Any], tuple[int, int, int], list[str]]] = [
    (DECODES, (1, 0, 30), ["the consumer is the bottleneck", "97 %"]),
    (DECODES, (2, 6, 2), ["copying to the device is the bottleneck", "80 %"]),
    (DECODES, (9, 0, 1), ["waits for data 90 %", "Decoding", "90 %", "Write smaller frames"]),
    (BY_FEATURE, (9, 0, 1), ["Decoding", "75 % of that for flow"]),
    (BY_FEATURE, (9, 0, 1), ["`seqrecord write --codec stored_flow=fast`: up to 40.0 GiB instead"]),
    (DECODES, (9, 0, 1), ["2 of 4 cores are in use"]),
    (LONG_READS, (9, 0, 1), ["Reading", "80 %", "Copy the dataset (20.0 GiB) to a local disk"]),
    ({**LONG_READS, "is_local": True}, (9, 0, 1), ["larger chunks", "--codec stored_image=small"]),
    ({**DECODES, "gather_seconds": 6.0}, (9, 0, 1), ["Copying clips into batches", "60 %"]),
    ({**BY_FEATURE, **NOT_BY_FEATURE}, (9, 0, 1), ["Decoding", "time. Write smaller frames"]),
    ({**DECODES, "decode_seconds_by_feature": {}}, (9, 0, 1), ["time. Write smaller frames"]),
    ({"batches": 50}, (9, 0, 1), ["waits for data 90 %"]),  # an engine with fewer counters
    ({"batches": 50}, (0, 0, 0), ["the consumer is the bottleneck"]),
]
TOO_LARGE: list[tuple[str, Sizes, str]] = [  # the slowest feature
    ("video", sizes({"video": 0.25}, raw=27), "A lossless codec for video takes up to 27.0 GiB"),
    ("video", sizes({"video": 10}, raw=30, disk=20), "up to 30.0 GiB instead of 10.0 GiB: write"),
    ("raw", sizes({"raw": 30}), "Write smaller frames"),
    ("unknown", USUAL, "Write smaller frames"),
]


def test_advice() -> None:
    times = ("waiting", "copying", "consuming")
    options: dict[str, Any] = {"seconds": 10.0, "threads": 2, "cores": 4, "sizes": USUAL}
    for stats, step, words in ADVICE:
        options |= {"is_local": stats.get("is_local", False), **dict(zip(times, step, strict=True))}
        [line] = advise(stats, median_wait=step[0], **options)
        assert all(word in line for word in words), line
        assert "\n" not in line
        assert not (options["is_local"] and "local disk" in line)
    # More memory helps if loads waited for memory, and if the machine has it.
    same: dict[str, Any] = {**options, "waiting": 9.0, "consuming": 9.0, "is_local": True}
    bursts = [(9.0, 1, 2, 0), (3.1, 1, 2, 0), (2.9, 1, 2, 1), (0.0, 1, 4, 1), (0.0, 0, 2, 0)]
    for median, throttled, limit, more in [*bursts, (0.0, 1, 5, 0)]:
        stats = {**DECODES, "loads_throttled": throttled, "memory_limit": limit * GIB}
        _, *lines = advise(stats, median_wait=median, **same)
        assert len(lines) == more
        assert all(f"increase `memory_limit` to {2 * limit}.0 GiB" in line for line in lines)
    # No advice without the space for it.
    for name, limits, expected in TOO_LARGE:
        same["sizes"], stats = limits, {**DECODES, "decode_seconds_by_feature": {name: 9.0}}
        [line] = advise(stats, median_wait=9, **same)
        assert expected in line
        assert "--codec" not in line
    for limits in (sizes({"image": 20}, disk=10), sizes({"video": 20})):
        [line] = advise(LONG_READS, median_wait=9, **{**same, "sizes": limits})
        assert "--codec" not in line
        assert ("larger chunks" in line) == (limits.disk > limits.stored)


def test_the_command(dataset: Path) -> None:
    options: list[Any] = ["--clip-len", 4, "--batch-size", 2, "--features", "image_left,flow"]
    for text in ("stride=2", "memory_limit=1GB", "shuffle=false", "engine={num_threads: 1}"):
        options += ["--loader", text]
    result = run("bench", dataset, *options, "--max-batches", 2, "--consumer-ms", 5)
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"{dataset}: 2 batches, 4 clips in ")
    [waiting] = [line for line in lines if line.startswith("  waiting for data ")]
    [consumer] = [line for line in lines if line.startswith("  consumer ")]
    assert float(consumer.split()[1]) >= 5
    assert int(waiting.split()[-2]) + int(consumer.split()[-2]) in (99, 100, 101)
    for word in ("frames/s", "GB/s", "first batch", "peak memory", "with one batch in memory"):
        assert word in result.stdout
    assert not any(line.startswith("  copy to device") for line in lines)
    assert "2/2 batches" in result.stderr


LOADER: list[tuple[list[Any], dict[str, Any]]] = [
    (["windows={pose: {start: -1, stop: 2}}", "pad=edge"], {"pad": "edge", "num_frames": 60}),
    (["resize={image_left: [16, 8]}", "clip_len=2"], {"resize": "{'image_left': (16, 8)}"}),
    (["clip_len=[2, 4]", "batch_size={size: 8}"], {"batch_size": vars(Budget(8))}),
    (["engine={num_cursors: 1, num_threads: 1}", "clip_len=4"], {"num_threads": 1}),
]


@pytest.mark.parametrize(("given", "expected"), LOADER)
def test_arguments_of_the_loader(dataset: Path, given: list[str], expected: dict[str, Any]) -> None:
    options = ["--features", "image_left,pose", "--json", "--quiet"]
    loader = [word for text in given for word in ("--loader", text)]
    report = json.loads(run("bench", dataset, *options, *loader).stdout)
    found = {**report, **report["settings"]}
    assert {name: found[name] for name in expected} == expected
    assert ("num_cursors=1" in found.get("engine", "")) == ("engine" in given[0])


def test_wrong_arguments_of_the_loader(dataset: Path) -> None:
    wrong = ("padd=edge: pad", "pad=both: 'before'", "pad: NAME=VALUE", "windows={a: YAML")
    for text, _, message in (one.partition(": ") for one in wrong):
        assert message in fail("bench", dataset, "--loader", text, code=2)
    twice = ["--batch-size", 3, "--loader", "batch_size=2"]
    assert "batch_size is given" in fail("bench", dataset, *twice, code=2)


def test_the_command_as_json_and_a_trace(dataset: Path, tmp_path: Path) -> None:
    trace = tmp_path / "epoch.json"
    options = ["--clip-len", 4, "--json", "--quiet", "--consumer-ms", 2, "--trace", trace]
    result = run("bench", dataset, *options)
    assert result.stderr == ""
    report = json.loads(result.stdout)
    assert report["num_clips"] == 14
    settings = {"batch_size": 4, "device": None, "stride": 1, "order": "clips"}
    assert {name: report["settings"][name] for name in settings} == settings
    assert set(report["waiting"]) == {"mean", "p50", "p95", "max"}
    assert report["stats"]["frames_decoded"] >= 20
    assert report["clips_per_second"] > 0
    kinds = {event.get("cat") for event in json.loads(trace.read_text())}
    assert kinds >= {"fetch", "decode", "gather", "consumer", "wait"}
    assert [path.name for path in tmp_path.iterdir()] == ["epoch.json"]
