"""`seqrecord plan` predicts requests, bytes, frames and memory of the run."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import (
    ClipError,
    Latest,
    SeqRecordIterableDataset,
    SeqRecordPipe,
    SeqRecordWriter,
    plan,
)
from seqrecord.types import PlanReport, ReadCost
from tests.clip_data import LARGE, write_numbered
from tests.command_line import run
from tests.fault_proxy import FaultProxy, Request
from tests.hub_stub import HubStub
from tests.lerobot_video_data import CAMERAS, unpack
from tests.places import PLACES, Place

# Workers are forked while the proxy's threads run.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

CLIPS: dict[str, Any] = {"clip_len": 3, "batch_size": 4, "seed": 5}


class Meter(FaultProxy):
    """A proxy that counts requests and requested bytes."""

    def __init__(self, target: str) -> None:
        self.nbytes, self._guarded = 0, threading.Lock()
        super().__init__(target, self._note)

    def reset(self) -> None:
        super().reset()
        self.nbytes = 0

    def _note(self, request: Request) -> None:
        if request.method == "GET" and request.range and "manifest.json" not in request.path:
            first, _, last = request.range.removeprefix("bytes=").partition("-")
            with self._guarded:
                self.nbytes += int(last) + 1 - int(first)


def assert_close(expected: float, actual: float, share: float = 0.02, *, least: float = 0) -> None:
    assert abs(expected - actual) <= max(share * actual, least), (expected, actual)


def write(folder: Path, codecs: Any = "raw", **options: Any) -> Path:
    return write_numbered(folder / "records", codecs=codecs, shape=LARGE, **options)


def write_poses(folder: Path, *, episodes: int, frames: int, **options: Any) -> Path:
    """Frames small enough to stay in memory."""
    path = folder / "records"
    with SeqRecordWriter(path, **{"codecs": "raw", **options}) as writer:
        for number in range(episodes):
            with writer.episode(str(number)) as episode:
                for _ in range(frames):
                    episode.append({"pose": np.zeros(7, np.float32)})
    return path


def run_and_compare(place: Place, epochs: int = 2, **clips: Any) -> PlanReport:
    """Compare plan and run, without workers, on one rank."""
    with Meter(place.host) as meter:
        url, options = place.at(meter.host)
        with seqrecord.open(url, storage_options=options) as planned:
            report: PlanReport = plan(planned, epochs=epochs, **clips)
        meter.reset()
        with seqrecord.open(url, storage_options=options) as dataset:
            pipe = SeqRecordPipe(dataset, **clips)
            # A process's first use of obstore requests the manifest's length too.
            assert abs(report.opening.requests - meter.requests) <= 1
            for epoch in range(epochs):
                meter.reset()
                list(pipe)
                found = report.later_epoch if epoch else report.first_epoch
                share = 0.1 if epoch else 0.0  # epochs differ in their cuts
                assert_close(found.requests, meter.requests, share)
                assert_close(found.bytes, meter.nbytes, share)
                assert_close(found.frames_decoded, pipe.stats()["frames_decoded"], share)
    return report


def run_ranks(path: Path, report: PlanReport, epochs: int, **clips: Any) -> tuple[int, int]:
    """Bytes read and frames decoded by all ranks of a plan."""
    nbytes = frames = 0
    for rank in range(ranks := int(report.settings["ranks"])):
        pipe = SeqRecordPipe(path, rank=rank, world_size=ranks, **clips)
        for _ in range(epochs):
            assert sum(1 for _ in pipe) == report.batches // ranks
            nbytes += pipe.stats()["bytes_read"]
            frames += pipe.stats()["frames_decoded"]
    return nbytes, frames


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_the_run_makes_the_planned_requests(place: Place, tmp_path: Path) -> None:
    place.copy(write(tmp_path, codecs={"image": "raw", "flow": "balanced"}))
    report = run_and_compare(place, **CLIPS)
    assert report.first_epoch.requests > 10
    assert report.later_epoch.requests > 10


@pytest.mark.parametrize(
    ("several", "written"),
    [
        ([{"features": ["id"]}], {"groups": None, "codecs": "balanced"}),
        (
            [
                {"shuffle": False},
                {"windows": {"image": [-1, 0], "id": range(4)}, "pad": "edge", "clip_len": None},
                {"windows": {"flow": Latest()}},
                {"frame_transform": lambda frame: {"image": frame["image"]}},
                {"memory_limit": "1MiB"},
                {"stride": 5},
            ],
            {},
        ),
        ([{"order": "sequences"}], {"codecs": "small"}),
        ([{"batch_size": None}], {"groups": {"image": 0, "id": 1, "note": 1, "flow": 2}}),
    ],
)
@pytest.mark.parametrize("place", ["gs"], indirect=True)
def test_plans_of_all_kinds_of_clips(
    tmp_path: Path, place: Place, several: list[dict[str, Any]], written: dict[str, Any]
) -> None:
    place.copy(write(tmp_path, **written))
    for clips in several:
        run_and_compare(place, **{**CLIPS, **clips})


@pytest.mark.usefixtures("start_method")
@pytest.mark.parametrize("place", ["gs"], indirect=True)
@pytest.mark.parametrize(
    ("ranks", "workers", "method"),
    [
        (2, 1, "fork"),
        pytest.param(2, 0, "fork", marks=pytest.mark.slow),
        pytest.param(1, 2, "fork", marks=pytest.mark.slow),
        # Each epoch starts new workers, which open the dataset.
        pytest.param(1, 1, "forkserver", marks=pytest.mark.slow),
    ],
)
def test_ranks_and_workers(
    place: Place, large: Path, ranks: int, workers: int, method: str
) -> None:
    place.copy(large)
    multiprocessing.set_start_method(method, force=True)
    with Meter(place.host) as meter:
        url, options = place.at(meter.host)
        with seqrecord.open(url, storage_options=options) as planned:
            report = plan(planned, epochs=2, ranks=ranks, workers=workers, **CLIPS)
        meter.reset()
        batches = 0
        for rank in range(ranks):
            dataset = seqrecord.open(url, storage_options=options)
            stream = SeqRecordIterableDataset(dataset, rank=rank, world_size=ranks, **CLIPS)
            loader: Any = DataLoader(stream, batch_size=None, num_workers=workers)
            batches += sum(1 for _ in range(2) for _ in loader)
        assert_close(report.total.requests, meter.requests, least=ranks)
        assert_close(report.total.bytes, meter.nbytes, 0.05)  # epochs differ in their cuts
    assert batches == 2 * report.batches


@pytest.fixture
def start_method() -> Iterator[None]:
    """Restores the process's start method after the test."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(None, force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


@pytest.mark.usefixtures("start_method")
@pytest.mark.parametrize("place", ["gs"], indirect=True)
def test_plans_count_opening_by_workers_that_do_not_fork(place: Place, path: Path) -> None:
    place.copy(path)
    plan(path, workers=1, **CLIPS)
    assert multiprocessing.get_start_method(allow_none=True) is None, "`plan` does not set it"
    found = {}
    with seqrecord.open(place.url, storage_options=place.options) as dataset:
        for method in ("fork", "forkserver"):
            multiprocessing.set_start_method(method, force=True)
            found[method] = plan(dataset, epochs=2, workers=1, **CLIPS)
    fresh, forked = (found[method].total for method in ("forkserver", "fork"))
    opening = found["fork"].opening
    # A worker that has the manifest's length sends one request less.
    assert 0 <= 2 * opening.requests - (fresh.requests - forked.requests) <= 2 < opening.requests
    assert fresh.bytes - forked.bytes == 2 * opening.bytes > 0


@pytest.fixture(scope="module")
def poses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_poses(tmp_path_factory.mktemp("poses"), episodes=30, frames=30)


@pytest.mark.parametrize(
    ("ranks", "epochs", "clips"),
    [
        (1, 5, {}),
        (3, 4, {"shuffle": False}),
        (2, 4, {"fixed_shards": False}),
        (2, 4, {"stride": 30, "rotate_phase": True}),
    ],
)
def test_small_frames_stay_in_memory(
    poses: Path, ranks: int, epochs: int, clips: dict[str, Any]
) -> None:
    """Later epochs read nothing, or less than the first if ranks change their clips."""
    clips = {"clip_len": 4, "stride": 30, "batch_size": 4, "seed": 5, **clips}
    report = plan(poses, epochs=epochs, ranks=ranks, **clips)
    nbytes, frames = run_ranks(poses, report, epochs, **clips)
    if "fixed_shards" in clips or "rotate_phase" in clips:
        assert report.later_epoch == report.first_epoch
        assert report.first_epoch.bytes < nbytes <= report.total.bytes
        assert report.first_epoch.frames_decoded < frames <= report.total.frames_decoded
    else:
        assert report.later_epoch == ReadCost()
        assert (report.total.bytes, report.total.frames_decoded) == (nbytes, frames)


@pytest.mark.parametrize("codecs", ["raw", {"pose": [{"id": "zstd", "level": 1}]}], ids=str)
def test_small_frames_of_the_first_epoch(tmp_path: Path, codecs: Any, thorough: bool) -> None:
    """Clips of the same chunks, overlapping or not."""
    size = {"episodes": 300 if thorough else 100, "frames": 40, "chunk_frames": 16}
    path = write_poses(tmp_path, codecs=codecs, **size)
    several: list[Any] = [{}, {"stride": 16}, {"dilation": 2}, {"order": "sequences"}]
    for clips in several if thorough else several[codecs == "raw" :: 2]:
        arguments: dict[str, Any] = {"clip_len": 8, "seed": 5, "batch_size": 32, **clips}
        for ranks in (1, 2):
            report = plan(path, ranks=ranks, **arguments)
            nbytes, frames = run_ranks(path, report, 1, **arguments)
            assert_close(report.first_epoch.bytes, nbytes)  # pages at cuts are read in other pieces
            assert report.first_epoch.frames_decoded == frames


@pytest.mark.parametrize("place", ["gs"], indirect=True)
def test_a_large_enough_cache_serves_later_epochs(
    place: Place, tmp_path: Path, large: Path
) -> None:
    place.copy(large)
    options: dict[str, Any] = {"storage_options": place.options, "cache_dir": tmp_path / "cache"}
    rotated = {"stride": 8, "rotate_phase": True}  # each epoch has other frames
    cases: list[tuple[str, Any]] = [("16MiB", {}), ("100MiB", {}), ("100MiB", rotated)]
    for limit, more in cases:
        with seqrecord.open(place.url, cache_limit=limit, **options) as dataset:
            report = plan(dataset, epochs=3, **CLIPS, **more)
        first, found = report.first_epoch, report.later_epoch
        if more:
            assert found == first
            continue
        served = limit == "100MiB" or first.bytes <= 16 << 20
        assert (found.requests == found.bytes == 0) == served
        assert found.frames_decoded == first.frames_decoded, "frames are decoded again"
        assert report.total.requests >= first.requests
    assert not list((tmp_path / "cache").rglob("*.seqrec*"))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStub]:
    """A dataset with video and its index."""
    pytest.importorskip("av")
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "home"))
    with HubStub(unpack(tmp_path, "lerobot_video_v3")) as hub:
        seqrecord.open(hub.url, storage_options={"endpoint": hub.endpoint}).close()
        yield hub


VIDEO: dict[str, Any] = {"clip_len": 2, "batch_size": 2, "features": list(CAMERAS)}


def test_an_index_in_place_and_its_cache(hub: HubStub, tmp_path: Path) -> None:
    options: dict[str, Any] = {"storage_options": {"endpoint": hub.endpoint}}
    with seqrecord.open(hub.url, **options) as dataset:
        report = plan(dataset, epochs=2, **VIDEO)
    hub.counts.clear()
    hub.sent = frames = 0
    with seqrecord.open(hub.url, **options) as dataset:
        pipe = SeqRecordPipe(dataset, **VIDEO)
        for _ in range(2):
            list(pipe)
            frames += pipe.stats()["frames_decoded"]
    assert_close(report.total.bytes, hub.sent)
    assert hub.counts["store"] <= report.total.requests <= hub.counts.total()
    assert report.total.frames_decoded == frames
    options |= {"cache_dir": tmp_path / "cache", "cache_limit": "1GiB"}
    with seqrecord.open(hub.url, **options) as dataset:
        report = plan(dataset, epochs=5, workers=1, **VIDEO)
    assert report.first_epoch.bytes > 0
    assert (report.later_epoch.requests, report.later_epoch.bytes) == (0, 0)
    assert report.later_epoch.frames_decoded == report.first_epoch.frames_decoded


def test_video(tmp_path: Path) -> None:
    pytest.importorskip("av")
    from tests.video_data import moving

    with SeqRecordWriter(tmp_path / "records", codecs={"image": "h264"}) as writer:
        for number in range(3):
            with writer.episode(str(number)) as episode:
                for image in moving(70, seed=number):
                    episode.append({"image": image})
    more: list[Any] = [{}, {"stride": 9, "shuffle": False}]
    for arguments in more:
        clips = {"clip_len": 4, "batch_size": 4, **arguments}
        total = plan(tmp_path / "records", **clips).total
        pipe = SeqRecordPipe(tmp_path / "records", **clips)
        list(pipe)
        stats = pipe.stats()
        assert (total.frames_decoded, total.bytes) == (stats["frames_decoded"], stats["bytes_read"])
        assert stats["video_frames_decoded"] <= total.video_frames_decoded
        assert_close(total.video_frames_decoded, stats["video_frames_decoded"], 0.1)


_RUN = """
import gc, json, sys, time
import seqrecord

def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name))

path, clips = sys.argv[1], json.loads(sys.argv[2])
for _ in seqrecord.SeqRecordPipe(path, **clips, episodes=["0"]):
    pass  # excludes memory of libraries that a process's first epoch loads
del _
gc.collect()
pipe = seqrecord.SeqRecordPipe(path, **clips)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
begin = status("VmRSS")
for number, batch in enumerate(pipe):
    time.sleep(1.0 if number % 20 == 5 else 0.0)  # until all waiting batches are ready
print(status("VmHWM") - begin)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory on Linux")
@pytest.mark.parametrize("clips", [{}, {"shuffle": False}])
def test_peak_memory(tmp_path: Path, clips: Mapping[str, Any]) -> None:
    image = np.random.default_rng(0).integers(0, 256, (240, 320, 3), np.uint8)
    with SeqRecordWriter(tmp_path / "records", codecs="balanced") as writer:
        for number in range(10):
            with writer.episode(str(number)) as episode:
                for frame in range(50):
                    episode.append({"image": image ^ np.uint8(frame)})
    arguments = {"clip_len": 8, "batch_size": 4, "memory_limit": "200MiB", **clips}
    report = plan(tmp_path / "records", **arguments)
    command = [sys.executable, "-c", _RUN, str(tmp_path / "records"), json.dumps(arguments)]
    runs = [subprocess.run(command, check=True, stdout=subprocess.PIPE) for _ in range(2)]
    peaks = [int(run.stdout) for run in runs]
    # Another process's load adds to one run's peak, or keeps its batches from being ready.
    # The allocator and decoders' scratch buffers add a few percent to the planned buffers.
    assert min(peaks) <= min(1.05 * report.peak_memory, 200 << 20)
    assert 0.7 * report.peak_memory <= max(peaks)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="PSS on Linux")
def test_memory_of_resident_frames(tmp_path: Path) -> None:
    """In one process, two workers and four ranks; see tests/resident_memory.py."""
    image = np.random.default_rng(0).integers(0, 256, (240, 320, 3), np.uint8)
    with SeqRecordWriter(tmp_path, codecs={"image": "png"}) as writer:
        for number in range(20):
            with writer.episode(str(number)) as episode:
                for frame in range(50):
                    episode.append({"image": image ^ np.uint8(frame)})
    clips = {"clip_len": 8, "batch_size": 4, "memory_limit": "2GiB", "seed": 0}
    command = [sys.executable, "-m", "tests.resident_memory", str(tmp_path), json.dumps(clips)]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1]
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["way"] for row in rows] == ["one process", "2 workers", "4 ranks"]
    assert min(row["predicted"] for row in rows) > 1000 * image.nbytes
    for row in rows:
        assert_close(row["measured"], row["predicted"], 0.15)


def test_prices_hours_and_settings(large: Path) -> None:
    costs: dict[str, Any] = {"bandwidth": "1MB", "price_per_gb": 3, "price_per_request": 0.5}
    report = plan(large, epochs=4, workers=2, **costs, **CLIPS)
    total = report.total
    assert total.bytes == report.first_epoch.bytes + 3 * report.later_epoch.bytes
    assert report.hours == pytest.approx(total.bytes / 1e6 / 3600)
    assert report.price == pytest.approx(total.bytes / 1e9 * 3 + 0.5 * total.requests)
    assert report.first_batch_seconds == pytest.approx(report.first_batch.bytes / 1e6)
    assert 0 < report.first_batch.bytes < report.first_epoch.bytes
    single = plan(large, **CLIPS)
    assert (single.hours, single.first_batch_seconds, single.price) == (None, None, 0)
    # More ranks than clips
    assert plan(large, ranks=200, even_batches=False, **CLIPS).clips == single.clips < 200
    # A mount has no requests
    with seqrecord.open(large, storage_options={"mount": True}) as dataset:
        report = plan(dataset, price_per_request=1, **CLIPS)
        clips = {"episode": [*dataset.episodes][:1], "frames": [[0, 2]]}
    assert (report.opening.requests, report.total.requests, report.price) == (0, 0, 0)
    assert report.first_epoch.bytes > 0
    # Windows and lists define the frames of a clip
    for arguments in ({"windows": {"image": [-1, 0]}, "squeeze_time": True}, {"clips": clips}):
        report = plan(large, **arguments)
        assert report == plan(large, clip_len=None, **arguments)
        assert report.settings["clip_len"] is None
    assert plan(large, pad="edge").settings["clip_len"] == 16


def test_the_command(large: Path) -> None:
    options = ("--clip-len", 3, "--epochs", 2, "--ranks", 2, "--workers", 1, "--bandwidth", "1MB")
    found = json.loads(run("plan", large, "--json", *options, "--price-per-gb", 5).stdout)
    arguments: dict[str, Any] = {"epochs": 2, "ranks": 2, "workers": 1, "bandwidth": 10**6}
    report = plan(large, clip_len=3, price_per_gb=5, **arguments).to_json()
    assert found == json.loads(json.dumps(report)) | {"settings": found["settings"]}
    text = run("plan", large, *options).stdout
    assert f"{report['total']['frames_decoded']:,}" in text
    assert "later epoch" in text
    # The arguments of a loader
    with seqrecord.open(large) as dataset:
        key = next(iter(dataset.episodes))
    others = ("--clip-len", 3, "--episodes", key, "--stride", 3)
    report = plan(large, clip_len=3, episodes=key, stride=3).to_json()
    assert (report["settings"]["stride"], report["settings"]["episode_filter"]) == (3, key)
    assert json.loads(run("plan", large, "--json", *others).stdout) == report
    found = json.loads(run("bench", large, "--json", "--quiet", *others).stdout)
    assert found["num_clips"] == report["clips"]
    assert "train" in run("plan", large, "--split", "train", code=1).stderr  # no such split
    report = plan(large, episodes=lambda _: True, pad="edge", stride=2, rotate_phase=True).to_json()
    assert json.loads(json.dumps(report))["settings"]["rotate_phase"]


def test_persistent_workers(poses: Path) -> None:
    """Persistent workers keep small frames and open the dataset once."""
    restarted, persistent = (
        plan(poses, epochs=3, workers=2, persistent_workers=each) for each in (False, True)
    )
    assert restarted.first_epoch == persistent.first_epoch == restarted.later_epoch
    assert persistent.later_epoch == ReadCost()
    assert "persistent workers  False" in str(restarted)
    assert "persistent workers  True" in str(persistent)


def test_invalid_arguments_are_refused(path: Path) -> None:
    cases: list[dict[str, Any]] = [
        {"epochs": 0},
        {"workers": -1},
        {"bandwidth": "fast"},
        {"bandwidth": 0},
        {"price_per_gb": -1},
        {"price_per_request": float("nan")},
        {"rank": 0, "world_size": 2},
        {"device": "cpu"},
    ]
    for wrong in cases:
        with pytest.raises(ClipError, match=next(iter(wrong))):
            plan(path, clip_len=3, **wrong)
