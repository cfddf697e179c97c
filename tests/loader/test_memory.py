"""Memory limits are respected; errors of too small ones name the least that suffices."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seqrecord
from seqrecord import FeatureSpec, Schema, SeqRecordPipe, SeqRecordWriter
from seqrecord.errors import MemoryLimitError
from seqrecord.loader.engine.buffers import ChunkBuffers
from seqrecord.loader.pipes.job_memory import predict_memory
from seqrecord.loader.pipes.options import LoaderOptions
from seqrecord.loader.sampling.frame_sizes import CONSUMER, FrameSizes, MemoryDivision
from seqrecord.loader.sampling.plan_settings import PlanSettings
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.loader.sampling.runs import Window
from seqrecord.loader.sampling.settings_choice import SettingsRequest
from seqrecord.samples import every
from seqrecord.store.storage.base import StorageWrapper
from seqrecord.store.storage.local import LocalStorage
from tests.kit.clip_data import (
    effective_arguments,
    minimum_memory,
    names,
    peak_of,
    possible_clips,
    write_numbered,
)
from tests.kit.datasets import columns, write_dataset, written_once
from tests.kit.processes import run_code, run_python
from tests.loader.clip_cases import Case, cases

SHAPE = (256, 256, 3)  # of an image: large compared with all other memory
FRAME = 256 * 256 * 3
CHUNK = 8  # frames

BESIDE = 1 << 20
"""Bytes of an epoch other than frames, batches and chunks: its plan, threads, code."""


path = written_once(write_numbered, codecs="raw", shape=SHAPE, chunk_frames=CHUNK)


tiny = written_once(write_numbered, shape=(64, 64, 9), chunk_frames=CHUNK)


requests = st.fixed_dictionaries(
    {
        "clip_len": st.integers(1, 6),
        "stride": st.integers(1, 4),
        "samples": st.none() | st.integers(1, 4).map(lambda n: every(n, rotate=True)),
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
).map(effective_arguments)


costly = settings(max_examples=settings().max_examples // 5)


def check_taken(work: Callable[[], object], most: int) -> None:
    """The peak of `work` is at most `most` bytes in at least one run out of three.

    Threads of an earlier test may still allocate, but not in every run.
    """
    amounts: list[int] = []
    while not amounts or (amounts[-1] > most and len(amounts) < 3):
        amounts.append(peak_of(work))
    assert min(amounts) <= most, amounts


@costly
@given(request=requests)
def test_the_least_memory_suffices(path: Path, request: dict[str, Any]) -> None:
    least = minimum_memory(partial(SeqRecordPipe, path, **request))
    with pytest.raises(MemoryLimitError, match=f"at least {least} bytes"):
        SeqRecordPipe(path, **request, memory_limit=least - 1)
    pipe = SeqRecordPipe(path, **request, memory_limit=least)
    expected = possible_clips(*(request[n] for n in ("features", "clip_len", "stride", "dilation")))
    rotates = 1 if request["samples"] is None else request["samples"].arguments["n"]
    epochs = len({start % rotates for _, start in expected})
    clips: list[tuple[str, int]] = []

    def run() -> None:
        clips.clear()
        for _ in range(epochs):
            for batch in pipe:
                clips.extend(names(batch))

    check_taken(run, least + BESIDE)
    assert sorted(clips) == sorted(expected)


@costly
@given(request=requests, limit=st.sampled_from([2, 4, 10, 30]).map(lambda n: n << 20))
def test_the_limit_is_respected(path: Path, request: dict[str, Any], limit: int) -> None:
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
WEIGHTED = {"episode": ["set/0", "set/3"], "start": [3, 9], "repeat": [3, 2]}
CASES: dict[str, dict[str, Any]] = {  # besides the random requests
    "sequences": {"clip_len": 4, "stride": 4, "order": "sequences", "batch_size": 2},
    "windows": {"windows": {"image": [-2, 0], "id": range(8)}, "pad": "edge"},
    "lists": {"samples": LISTED},
    "pairs": {"samples": PAIRS},
    "lists of one feature": {"samples": LISTED, "features": ["id"]},
    "lists in order": {"samples": LISTED, "shuffle": False},
    "weights": {"clip_len": 2, "samples": WEIGHTED},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("batch_size", [pytest.param(None, marks=pytest.mark.slow), 5])
def test_the_least_memory_of_an_error_suffices(
    tiny: Path, name: str, batch_size: int | None
) -> None:
    options = {"features": ["image", "id"], "batch_size": batch_size, **CASES[name]}
    make = partial(SeqRecordPipe, tiny, **options)
    number = minimum_memory(make)
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
            sources = {key: seqrecord.SeqRecordIterableDataset(tiny, **options) for key in "ab"}
            next(iter(seqrecord.SeqRecordMix(sources, batch_size=3, memory_limit=memory_limit)))

        make(minimum_memory(make))


def test_batches_of_the_consumer_are_freed_when_it_drops_them(path: Path) -> None:
    """tracemalloc counts them: else the tests above would prove nothing."""
    limit = 16 << 20
    pipe = SeqRecordPipe(path, clip_len=4, batch_size=4, features=["image"], memory_limit=limit)
    batches: list[Any] = []
    remaining = 0

    def run() -> None:
        nonlocal remaining
        batches.extend(pipe)
        assert tracemalloc.get_traced_memory()[0] > len(batches) * 16 * FRAME * 0.9 > 2 * limit
        batches.clear()
        remaining = tracemalloc.get_traced_memory()[0]

    peak_of(run)
    assert remaining <= limit + BESIDE


def test_the_memory_of_a_dropped_pipe_is_freed_before_the_next_one(path: Path) -> None:
    """Without the garbage collector, which would free cycles too."""
    clips: Any = {"clip_len": 5, "features": ["image"], "batch_size": 9}
    make = partial(SeqRecordPipe, path, **clips, engine=seqrecord.EngineOptions(num_cursors=3))
    limit = minimum_memory(make)
    pipes = [make(memory_limit=limit) for _ in range(2)]

    def run() -> None:
        while pipes:
            for _batch in pipes.pop():
                pass
            del _batch

    gc.disable()
    try:
        assert peak_of(run) <= limit + BESIDE
    finally:
        gc.enable()


@pytest.mark.parametrize("phases", [{}, {"samples": every(4, rotate=True)}])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_the_next_epoch_reuses_the_memory(
    path: Path, phases: dict[str, Any], device: str | None
) -> None:
    settings: dict[str, Any] = {**phases, "clip_len": 3, "batch_size": 4, "features": ["image"]}
    pipe = SeqRecordPipe(path, **settings, memory_limit="32MiB", device=device)
    growth = 0

    def run() -> None:
        nonlocal growth
        for _ in range(2):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            for _batch in pipe:
                pass
            del _batch
            growth = tracemalloc.get_traced_memory()[1] - before

    peak_of(run)
    assert growth < BESIDE + 2 * 12 * FRAME  # two batches not needed before


def test_a_writer_has_two_raw_chunks(tmp_path: Path) -> None:
    """Each once: threads compute the digests of one while frames fill the other."""
    schema = Schema([FeatureSpec("image", np.dtype("u1"), SHAPE)])
    frame = np.zeros(SHAPE, np.uint8)
    options: dict[str, Any] = {"codecs": "raw", "chunk_frames": 32, "statistics": False}
    numbers = iter(range(3))

    def write() -> None:
        with SeqRecordWriter(tmp_path / str(next(numbers)), schema=schema, **options) as writer:
            for key in ("one", "two"):
                with writer.episode(key) as episode:
                    for _ in range(40):
                        episode.append({"image": frame})

    check_taken(write, 2 * 32 * FRAME + BESIDE)


def test_invalid_limits(path: Path) -> None:
    limits: list[Any] = ["none", -1, 1.5, "1 parsec"]
    for limit in limits:
        with pytest.raises(ValueError, match="memory_limit: not a size"):
            SeqRecordPipe(path, clip_len=2, memory_limit=limit)


def test_chunks_in_flight_take_a_part_of_the_limit(path: Path) -> None:
    storage = StorageWrapper(LocalStorage(path))  # hides that the files are local
    loaders = []
    for chunks in (32, 200):
        limit = chunks * CHUNK * FRAME
        pipe = SeqRecordPipe(storage, clip_len=2, features=["image"], memory_limit=limit)
        for _clip in pipe:
            pass
        loaders.append(pipe.stats()["num_loaders"])
    assert 1 <= loaders[0] <= 32 // 8
    assert loaders[1] == 16


_MIB = 1 << 20
_LARGEST = 24_000 * 12  # bytes of a frame of `points`; about 60 on the disk

# The peak counts after all code is loaded and a first epoch has run. Memory beyond the limit is for
# thread stacks and the allocator, which by default keeps up to 2 MiB of freed blocks.
_MEASURE = """
import ctypes, json, sys
import seqrecord

ctypes.CDLL(None).mallopt(-3, 64 << 10)  # M_MMAP_THRESHOLD: larger blocks go back to the system

def status(name):
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024

root, options = sys.argv[1], json.loads(sys.argv[2])
for batch in seqrecord.SeqRecordPipe(root, **options | {"features": ["step"]}):
    pass
if options.get("ragged") == "nested":  # the first one loads much code
    import torch
    from seqrecord.loader.engine.arena import nested
    nested([torch.zeros(2, 3), torch.zeros(1, 3)])
pipe = seqrecord.SeqRecordPipe(root, **options)
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # the peak counts from here
count = 0
for epoch in range(2):
    for batch in pipe:
        count += 1
stats = pipe.stats()
print(json.dumps([status("VmHWM") - before, stats["peak_buffer_bytes"], count]))
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five episodes of 60 frames of 8,000 to 24,000 equal points."""
    path = tmp_path_factory.mktemp("variable") / "records"
    rng = np.random.default_rng(0)
    schema = Schema(
        [
            FeatureSpec("points", np.dtype("<f4"), (None, 3)),
            FeatureSpec("step", np.dtype("<i8"), ()),
        ]
    )
    together = {"step": {"group": 0}}
    with SeqRecordWriter(
        path, schema=schema, features=together, codecs="small", chunk_frames=16
    ) as writer:
        for number in range(5):
            with writer.episode(f"e{number}") as episode:
                for step in range(60):
                    count = 24_000 if step == 30 else int(rng.integers(8_000, 24_000))
                    points = np.full((count, 3), step, "<f4")
                    episode.append({"points": points, "step": np.array(step)})
    assert sum(file.stat().st_size for file in path.rglob("*.seqrec")) < 300_000
    return path


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 4, "clip_len": 2},
        pytest.param({"batch_size": None, "clip_len": 4, "stride": 4}, marks=pytest.mark.slow),
        pytest.param({"batch_size": 2, "clip_len": 3, "shuffle": False}, marks=pytest.mark.slow),
        pytest.param({"batch_size": 3, "clip_len": 2, "ragged": "pad"}, marks=pytest.mark.slow),
        pytest.param({"batch_size": 4, "clip_len": 2, "ragged": "nested"}, marks=pytest.mark.slow),
    ],
    ids=lambda options: " ".join(f"{name}={value}" for name, value in options.items()),
)
def test_resident_memory_stays_within_the_limit(root: Path, options: dict[str, Any]) -> None:
    limit = 16 * _MIB
    ran = run_code(_MEASURE, root, json.dumps({**options, "memory_limit": limit}))
    growth, resident, count = json.loads(ran.stdout)
    assert count > 10
    assert growth <= limit + 4 * _MIB, f"{growth / _MIB:.1f} MiB used of 16 MiB"
    assert 10 * _LARGEST <= resident <= limit


def test_the_least_memory_counts_decoded_frames(root: Path, tmp_path: Path) -> None:
    with pytest.raises(MemoryLimitError, match="at least"):
        SeqRecordPipe(root, clip_len=4, batch_size=4, memory_limit=16 * _LARGEST)
    # Only the largest frame of the selected episodes counts.
    with SeqRecordWriter(
        tmp_path / "x", schema=Schema([FeatureSpec("a", np.dtype("u1"), (None,))])
    ) as writer:
        for key, count in (("small", 10), ("large", 100_000)):
            with writer.episode(key) as episode:
                for _ in range(4):
                    episode.append({"a": np.zeros(count, "u1")})
    for episodes, expected in (("small", 10), ("large", 100_000), ("*", 100_000)):
        least = minimum_memory(
            partial(SeqRecordPipe, tmp_path / "x", clip_len=2, episodes=episodes)
        )
        assert 8 * expected <= least <= 20 * expected + 10_000  # 3 clips of 2, and 2 or more frames


def test_chunk_buffers_grow_only_if_none_is_large_enough() -> None:
    chunks = ChunkBuffers(2)
    small, large = chunks.acquire(10), chunks.acquire(100)
    for _ in range(2):
        chunks.release(large)
        chunks.release(small)
        assert chunks.acquire(8) is small
        assert chunks.acquire(8) is large
    chunks.release(small)
    chunks.release(large)
    larger = chunks.acquire(101)  # replaces the smaller array
    assert len(larger) == 101
    assert chunks.acquire(1) is small
    assert len(chunks.acquire(1)) == 1


@pytest.mark.parametrize(
    ("limit", "frames", "batch"), [(8_000_000, 100, 300_000), (1_000_000, 900, 30_000)]
)
def test_a_division_of_memory_stays_within_the_limit(limit: int, frames: int, batch: int) -> None:
    sizes = FrameSizes((1000,), 20_000, batch)
    plan = MemoryDivision(sizes, limit, prefetch=2, max_loads=1, frames=(frames,))
    made, of_all = plan.memory, plan.with_all([frames]).in_memory
    assert of_all is not None
    most = limit + sizes.beside_arena(2, 1)
    together = plan.clips_at_once(made, 100) - 1  # more batches of a clip each
    assert plan.nbytes(made) + together * (made.prefetch + CONSUMER) * batch <= most
    assert plan.nbytes(of_all) <= most
    # Each resident frame takes a few bytes more.
    assert plan.with_all([limit // 1001]).in_memory is None


@given(
    cases(),
    st.booleans(),
    st.none() | st.integers(1, 5),
    st.none() | st.integers(1, 6),
    st.tuples(st.integers(1, 9), st.integers(0, 200)),
    st.integers(0, 50_000),
)
def test_settings_stay_within_the_limit_or_the_error_names_the_least(
    case: Case,
    shuffle: bool,
    batch_size: int | None,
    num_cursors: int | None,
    nbytes: tuple[int, int],
    more: int,
) -> None:
    """Also with the settings of a loaded state, which need no more."""
    if not case.table.num_clips:
        return
    wanted, (frame, chunk) = PlanSettings(shuffle=shuffle, batch_size=batch_size), nbytes
    sizes = FrameSizes((frame,), chunk, frame * (batch_size or 1) * case.spec.length)
    place = RowTable.of(case.table), case.episodes, [Window.of(case.spec)], None
    request = SettingsRequest(*place, wanted, sizes, 2, 1, num_cursors, url="a dataset")
    least = request.least_limit
    for limit in (1, least - 1):
        with pytest.raises(MemoryLimitError, match=f"a dataset.*at least {least} bytes"):
            request.choose(limit, ())
    for limit in (least, least + more):
        made = request.choose(limit, ())
        for fitted in (made, request.keep(made.settings, limit, ())):
            division = fitted.division
            memory = division.memory
            assert memory.num_rows[0] >= min(case.spec.length, case.episodes.num_frames.max())
            batches = (memory.prefetch + CONSUMER) * division.clips_at_once(memory, 32)
            chunks = memory.max_loads + memory.max_read_ahead
            used = sizes.held(memory.num_rows) + batches * sizes.batch + chunks * chunk
            assert used <= limit


def test_refused_memory_names_the_limit(root: Path) -> None:
    sizes = [0]

    def refuse(frame: dict[str, Any]) -> dict[str, Any]:
        np.empty(sizes[0], np.uint8)
        return frame

    pipe = SeqRecordPipe(root, clip_len=2, frame_transform=refuse)
    sizes[0] = 1 << 60
    with pytest.raises(MemoryLimitError, match=r"a smaller memory_limit .* Unable to allocate"):
        list(pipe)


# ---- predicted and measured

_RUN = """
import gc, json, sys, time
import seqrecord

def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name))

path, clips = sys.argv[1], json.loads(sys.argv[2])
for _ in seqrecord.SeqRecordPipe(sys.argv[3], **clips, episodes=["0"]):
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
@pytest.mark.parametrize("gop", [1, 2])
def test_memory_of_large_video_stays_within_the_limit(tmp_path: Path, gop: int) -> None:
    """A decoder takes several times the memory of the frame that it decodes."""
    pytest.importorskip("av")
    image = np.random.default_rng(0).integers(0, 256, (90, 160, 3), np.uint8)
    for name, times in (("small", 1), ("large", 12)):
        pixels = image.repeat(times, 0).repeat(times, 1)
        with SeqRecordWriter(tmp_path / name, codecs=f"h264:gop={gop}") as writer:
            for number in range(3):
                with writer.episode(str(number)) as episode:
                    for frame in range(12):
                        episode.append({"image": np.roll(pixels, 7 * frame, 1)})
    clips = {"clip_len": 1, "memory_limit": "122MiB"}
    done = run_python("-c", _RUN, tmp_path / "large", json.dumps(clips), tmp_path / "small")
    assert 40 * _MIB < int(done.stdout) <= 122 * _MIB


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory on Linux")
@pytest.mark.parametrize(
    ("clips", "limit"),
    [({}, 200 << 20), ({"shuffle": False}, 200 << 20), ({}, 120 << 20)],
    ids=["shuffled", "in order", "with one load at a time"],
)
def test_peak_memory(tmp_path: Path, clips: Mapping[str, Any], limit: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (240, 320, 3), np.uint8)
    with SeqRecordWriter(tmp_path / "records", codecs="balanced") as writer:
        for number in range(10):
            with writer.episode(str(number)) as episode:
                for frame in range(50):
                    episode.append({"image": image ^ np.uint8(frame)})
    arguments = {"clip_len": 8, "batch_size": 4, "memory_limit": limit, **clips}
    with seqrecord.open(tmp_path / "records") as dataset:
        predicted = predict_memory(dataset, LoaderOptions(**arguments))
    path = tmp_path / "records"
    command = ["-c", _RUN, path, json.dumps(arguments), path]
    peaks = [int(run_python(*command).stdout) for _ in range(2)]
    # Another process's load adds to one run's peak, or keeps its batches from being ready.
    # The allocator and decoders' scratch buffers add a few percent to the planned buffers.
    assert min(peaks) <= min(1.05 * predicted, 200 << 20)
    assert 0.7 * predicted <= max(peaks)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="PSS on Linux")
def test_memory_of_resident_frames(tmp_path: Path) -> None:
    """In one process, two workers and four ranks; see tests/loader/resident_memory.py."""
    image = np.random.default_rng(0).integers(0, 256, (240, 320, 3), np.uint8)
    with SeqRecordWriter(tmp_path, codecs={"image": "png"}) as writer:
        for number in range(20):
            with writer.episode(str(number)) as episode:
                for frame in range(50):
                    episode.append({"image": image ^ np.uint8(frame)})
    clips = {"clip_len": 8, "batch_size": 4, "memory_limit": "2GiB", "seed": 0}
    module = "tests.loader.resident_memory"
    done = run_python("-m", module, tmp_path, json.dumps(clips), timeout=230)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["way"] for row in rows] == ["one process", "2 workers", "4 ranks"]
    assert min(row["predicted"] for row in rows) > 1000 * image.nbytes
    for row in rows:
        assert row["measured"] == pytest.approx(row["predicted"], rel=0.15)


def test_copies_of_one_listed_frame_are_decoded_together(tmp_path: Path) -> None:
    """Two runs of a cursor load the only frame of a list in one call."""
    png = [{"id": "seqrecord.image", "format": "png"}]
    with seqrecord.SeqRecordWriter(tmp_path / "r", codecs={"image": png}) as writer:
        for key, count in zip("abc", (1, 2, 12), strict=True):
            with writer.episode(key) as episode:
                for i in range(count):
                    episode.append({"image": np.full((8, 8, 3), i, np.uint8)})
    lists = [[0, 0], [0, 0], [6, 10], [0, 0], [3, 11], [7, 4]]
    table = {"episode": [*"bbcacc"], "frames": lists, "repeat": [1, 2, 1, 0, 1, 2]}
    for seed, epoch, shard, batch_size in product(range(3), range(3), range(3), (1, 3)):
        pipe = seqrecord.SeqRecordPipe(
            tmp_path / "r",
            samples=table,
            seed=seed,
            rank=(shard, 3),
            batch_size=batch_size,
            last_batch="keep",
        )
        pipe.set_epoch(epoch)
        for batch in pipe:
            assert batch["image"][..., 0, 0, 0].tolist() == batch["frames"].tolist()


def test_compressed_frames_are_decoded_once(tmp_path: Path) -> None:
    """But for those of two cursors, where one begins, which read the page twice."""
    rows = np.tile(np.arange(256), (240, 1))
    write_dataset(
        tmp_path, {f"e{i}": columns(x=rows + i) for i in range(6)}, codecs="fast", chunk_frames=40
    )
    pipe = SeqRecordPipe(tmp_path, clip_len=4, batch_size=32, memory_limit="2.2MiB")
    assert sum(len(batch["start"]) for batch in pipe) == 6 * (240 - 3)
    assert not pipe.stats()["features_resident"]
    [table] = pipe.dataset.contents.index.groups
    assert pipe.stats()["frames_decoded"] <= 1.1 * 6 * 240
    assert pipe.stats()["bytes_read"] <= 1.5 * table.page_length.sum()
