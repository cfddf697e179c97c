"""Frames that processes share.

    python -m benchmarks.training.shared_frames FOLDER [--rows …] [--to FOLDER]

Writes a small dataset of two cameras into FOLDER, as JPEG and as raw frames, and fills a frame
cache. Then new processes, one alone and four together, each read it for three epochs, as single
frames and as clips: CPU seconds and samples per second of the first epoch and of the later ones,
memory beside batches that no file has, and the proportional share of all memory (PSS) while the
other processes still have theirs. Cold rows begin with dropped page caches. Raw clips of five
features of 480x640 are in a dataset of their own. Repeats of all rows alternate.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

import seqrecord
from benchmarks.checks import minutes_of
from benchmarks.pages import code_of
from benchmarks.reused import ByHand
from benchmarks.suite import Suite, make_parser
from benchmarks.timing import (
    Result,
    Results,
    drop_page_cache,
    markdown,
    median,
    number,
    once,
    ranged,
)

__all__ = [
    *("MAPS", "FIVE", "RAW", "READ", "THREADED", "Job", "Reading", "Row"),
    *(
        "check_samples",
        "compare",
        "main",
        "measure",
        "of_clips",
        "page",
        "rows",
        "write",
        "write_five",
    ),
]

CAMERAS = ("left", "right")
FIVE: Mapping[str, tuple[type[np.generic], tuple[int, ...]]] = {
    "image_left": (np.uint8, (3,)),
    "depth_left": (np.float32, ()),
    "flow": (np.float32, (2,)),
    "mask": (np.uint8, ()),
    "seg_left": (np.uint8, ()),
}
"""Dtypes, and shapes behind height and width, of the dataset of five features."""
CLIP = 16  # frames
EPOCHS = 3
TOGETHER = 4
BATCH = 8
BATCH_OF_FIVE = 4  # clips, 332 MB
THREADS = 2  # by hand, as many as the loader has
RAW, READ = "raw frames", "raw frames, not mapped"
MAPS, THREADED = "NumPy memmaps, reused batch", f"NumPy memmaps, {THREADS} threads"
"""Names of rows: of clips and of five features, with `of_clips`."""

_TIMEOUT = 600  # seconds: a process may end without an answer


@dataclass(frozen=True)
class Job:
    """Frames of a process: of the dataset, with the folder of a cache, or of arrays by hand.

    `loader` is "encoded", "raw", "raw, not mapped", "memmap" or "memory". By hand, `threads` copy
    ahead into four batches; without threads, the consumer copies into one. Files that are `cold`
    are not in the page cache.
    """

    folder: str
    loader: str
    cache: str = ""
    clip_len: int = 1
    cold: bool = False
    batch: int = BATCH
    features: tuple[str, ...] = CAMERAS
    threads: int = 0


@dataclass(frozen=True)
class Reading:
    """CPU seconds per 1,000 samples, and samples per second, of epochs; MiB of own memory, and of
    PSS, beside an empty process.
    """

    first_epoch: float
    later_epoch: float
    first_rate: float
    later_rate: float
    own: float
    shared: float
    total: int  # of sampled pixels, to compare loaders
    cpu_seconds: float  # of all epochs
    window: tuple[float, float]  # their begin and end by the machine's clock


def write(folder: Path, episodes: int = 10, frames: int = 100, side: int = 224) -> None:
    """Write a dataset of JPEG images, and its frames as raw frames and as memmaps."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    base = rng.integers(0, 256, (side, side, 3), np.uint8)
    codecs = dict.fromkeys(CAMERAS, "jpeg")
    with seqrecord.SeqRecordWriter(folder / "encoded", codecs=codecs) as writer:
        for number in range(episodes):
            with writer.episode(f"e{number}") as episode:
                for frame in range(frames):
                    image = np.roll(base, 3 * (number * frames + frame), 0)
                    episode.append({"left": image, "right": image[::-1]})
    dataset = seqrecord.open(folder / "encoded")
    shape = episodes, frames, side, side, 3
    arrays = {
        name: np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.uint8, shape)
        for name in CAMERAS
    }
    with seqrecord.SeqRecordWriter(folder / "raw", codecs="raw") as writer:
        for number, key in enumerate(dataset.episodes):
            decoded = dataset.episodes[key][:]
            with writer.episode(key) as episode:
                for frame in range(frames):
                    episode.append({name: decoded[name][frame] for name in CAMERAS})
            for name, array in arrays.items():
                array[number] = decoded[name]
    for array in arrays.values():
        array.flush()
    dataset.close()


def write_five(
    folder: Path, episodes: int = 4, frames: int = 60, height: int = 480, width: int = 640
) -> None:
    """Write a dataset of five features as raw frames and as memmaps."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    arrays = {}
    for name, (dtype, shape) in FIVE.items():
        size = episodes, frames, height, width, *shape
        arrays[name] = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", dtype, size)
    with seqrecord.SeqRecordWriter(folder / "raw", codecs="raw") as writer:
        for number in range(episodes):
            with writer.episode(f"e{number}") as episode:
                for frame in range(frames):
                    for array in arrays.values():
                        array[number, frame] = rng.integers(0, 256, array.shape[2:], np.uint8)
                    episode.append({name: array[number, frame] for name, array in arrays.items()})
    for array in arrays.values():
        array.flush()


def open_loader(job: Job) -> Iterable[dict[str, Any]]:
    """A loader of the job's frames; each iteration is an epoch."""
    folder = Path(job.folder)
    if job.loader in ("memmap", "memory"):
        return _by_hand(job)
    options: dict[str, Any] = {"clip_len": job.clip_len, "batch_size": job.batch}
    if job.loader == "encoded":
        cache = seqrecord.FrameCache(job.cache, "100GiB") if job.cache else None
        options |= {"memory_limit": "4GiB", "frame_cache": cache}
        return seqrecord.SeqRecordPipe(folder / "encoded", **options)
    verify: Any = "always" if job.loader == "raw, not mapped" else True
    return seqrecord.SeqRecordPipe(seqrecord.open(folder / "raw", verify=verify), **options)


def open_arrays(job: Job) -> dict[str, npt.NDArray[Any]]:
    """The features' arrays [episodes, frames, …], in mapped files or in memory."""
    mode: Any = None if job.loader == "memory" else "r"
    return {n: np.load(Path(job.folder) / f"{n}.npy", mmap_mode=mode) for n in job.features}


def compare(job: Job) -> int:
    """Compare all clips of a loader's epoch with the arrays by hand; returns their number."""
    arrays, count = open_arrays(job), 0
    for batch in open_loader(job):
        clips = zip(batch["episode"], batch["start"].tolist(), strict=True)
        for clip, (key, start) in enumerate(clips):
            for name, array in arrays.items():
                frames = array[int(key[1:]), start : start + job.clip_len]
                assert np.array_equal(batch[name][clip].numpy(), frames), (key, start, name)
            count += 1
    return count


def _by_hand(job: Job) -> ByHand:
    arrays = open_arrays(job)
    num_episodes, num_frames = next(iter(arrays.values())).shape[:2]
    starts = np.arange(num_frames - job.clip_len + 1)
    clips = (np.arange(num_episodes)[:, None] * num_frames + starts).reshape(-1, 1)
    rows = dict.fromkeys(arrays, clips + np.arange(job.clip_len))
    frames = {name: array.reshape(-1, *array.shape[2:]) for name, array in arrays.items()}
    return ByHand(frames, rows, job.batch, threads=job.threads)


def _memory() -> tuple[float, float]:
    """MiB of this process that no file has, and of its PSS."""
    fields = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, value, *_ = line.split()
        fields[name] = int(value) / 1024
    return fields["Anonymous:"], fields["Pss:"]


def _read(job: Job, epochs: int, barrier: Any, answers: Any) -> None:
    """Read all epochs, and wait for the other processes with the frames in memory."""
    torch.set_num_threads(1)
    _ = seqrecord.SeqRecordPipe, seqrecord.FrameCache  # their import is not part of an epoch
    try:
        own, shared = _memory()
        seconds, rates, totals = list[float](), list[float](), list[int]()
        began, clock = time.process_time(), time.monotonic()
        begin, start = began, time.perf_counter()
        loader = open_loader(job)
        for _ in range(epochs):
            total = count = 0
            for batch in loader:
                for name in job.features:  # whole numbers, so that the order does not matter
                    total += int(batch[name][:, :, ::64, ::64].sum(dtype=torch.float64))
                count += len(batch[job.features[0]])
                del batch
            seconds.append(1000 * (time.process_time() - begin) / count)
            rates.append(count / (time.perf_counter() - start))
            begin, start = time.process_time(), time.perf_counter()
            totals.append(total)
        cpu_seconds, window = begin - began, (clock, time.monotonic())
        barrier.wait()
        now = _memory()
        reading = Reading(
            first_epoch=seconds[0],
            later_epoch=min(seconds[1:], default=0.0),
            first_rate=rates[0],
            later_rate=max(rates[1:], default=0.0),
            own=now[0] - own,
            shared=now[1] - shared,
            total=totals[0],
            cpu_seconds=cpu_seconds,
            window=window,
        )
        barrier.wait()
        del loader
        answers.put(reading)
    except BaseException as error:
        barrier.abort()
        answers.put(error)


def measure(job: Job, processes: int = 1, epochs: int = EPOCHS) -> list[Reading]:
    """What each of several new processes takes."""
    if job.cold:
        drop_page_cache(Path(job.folder))
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(processes), context.Queue()
    children = [
        context.Process(target=_read, args=(job, epochs, barrier, answers))
        for _ in range(processes)
    ]
    for child in children:
        child.start()
    readings = [answers.get(timeout=_TIMEOUT) for _ in children]
    for child in children:
        child.join()
    for reading in readings:
        if isinstance(reading, BaseException):
            raise reading
    return readings


class Row(NamedTuple):
    """A row of the table: a job, in several processes at a time."""

    job: Job
    processes: int = 1


def of_clips(name: str, features: str = "") -> str:
    """Name of a row's variant with clips of `CLIP` frames, and of other features."""
    return ", ".join(filter(None, (name, f"clips of {CLIP}", features)))


def rows(frames: Path, five: Path, cache: str, together: int = TOGETHER) -> dict[str, Row]:
    """The rows of the table, of the folders that `write` and `write_five` made."""
    place = str(frames)
    raw = {RAW: "raw", READ: "raw, not mapped", MAPS: "memmap"}
    single = {
        "JPEG, no cache": Job(place, "encoded"),
        "JPEG, warm frame cache": Job(place, "encoded", cache),
        **{name: Job(place, loader) for name, loader in raw.items()},
        THREADED: Job(place, "memmap", threads=THREADS),
    }
    alone = {
        "NumPy arrays in memory": Job(place, "memory"),
        "JPEG, no cache, batches of 64": Job(place, "encoded", batch=64),
        "NumPy arrays in memory, batches of 64": Job(place, "memory", batch=64),
        **{of_clips(name): Job(place, loader, clip_len=CLIP) for name, loader in raw.items()},
        of_clips(THREADED): Job(place, "memmap", clip_len=CLIP, threads=THREADS),
        **{f"{name}, cold": Job(place, loader, cold=True) for name, loader in raw.items()},
    }
    of_five: Any = {"clip_len": CLIP, "batch": BATCH_OF_FIVE, "features": tuple(FIVE)}
    for name, job in {
        RAW: Job(str(five), "raw", **of_five),
        MAPS: Job(str(five), "memmap", **of_five),
        THREADED: Job(str(five), "memmap", threads=THREADS, **of_five),
    }.items():
        alone[of_clips(name, "five features")] = job
    made = {}
    for name, job in single.items():
        made[name] = Row(job)
        made[f"{name}, {together} processes"] = Row(job, together)
    return made | {name: Row(job) for name, job in alone.items()}


_FIGURES = ("first_epoch", "later_epoch", "first_rate", "later_rate", "own", "shared", "total")


def _run(row: Row) -> Result:
    """Medians over the processes of a row; CPU seconds of all of them."""
    readings = measure(row.job, row.processes)
    begins, ends = zip(*(reading.window for reading in readings), strict=True)
    figures = {n: statistics.median(getattr(r, n) for r in readings) for n in _FIGURES}
    return figures | {
        "cpu_seconds": sum(reading.cpu_seconds for reading in readings),
        "seconds": max(ends) - min(begins),
        "num_cores": len(os.sched_getaffinity(0)),
    }


def check_samples(results: Results, made: Mapping[str, Row]) -> None:
    """All rows of the same samples have the same sum of pixels."""
    totals = dict[tuple[str, int], set[float]]()
    for name, runs in results.items():
        job = made[name].job
        totals.setdefault((job.folder, job.clip_len), set()).update(run["total"] for run in runs)
    if different := {place: found for place, found in totals.items() if len(found) > 1}:
        raise ValueError(f"rows have different samples: {different}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--frames", type=int, nargs=2, default=(10, 100), help="episodes, frames")
    parser.add_argument("--side", type=int, default=224, help="of the images")
    parser.add_argument("--five", type=int, nargs=4, default=(4, 60, 480, 640), help="of the other")
    options = parser.parse_args(arguments)
    settings = {name: getattr(options, name) for name in ("frames", "side", "five")}
    code = code_of("training/SHARED_FRAMES.md")
    suite = Suite(options, settings, "shared_frames", code=code)
    if not options.report:
        episodes, length = options.frames
        make = partial(write, episodes=episodes, frames=length, side=options.side)
        frames = once(suite.folder / "frames", make)
        five = once(suite.folder / "five", lambda to: write_five(to, *options.five))
        with tempfile.TemporaryDirectory(dir=suite.folder) as cache:
            made = rows(frames, five, cache)
            measure(made["JPEG, warm frame cache"].job, epochs=1)
            for row in made.values():
                if row.job.loader == "raw" and row.processes == 1 and not row.job.cold:
                    compare(row.job)
            jobs = {name: partial(_run, row) for name, row in made.items()}
            suite.take_turns(suite.wanted(jobs))
            check_samples(suite.rows, made)
    suite.publish(page, "SHARED_FRAMES")


# ---- the page

_COLUMNS = (  # heading, figure, format
    ("CPU s per 1,000 samples, epoch 1", "first_epoch", ".3f"),
    ("later", "later_epoch", ".3f"),
    ("samples/s, epoch 1", "first_rate", ".0f"),
    ("later epochs", "later_rate", ".0f"),
    ("own MiB each", "own", ".0f"),
    ("PSS MiB each", "shared", ".0f"),
)


def page(document: Mapping[str, Any]) -> str:
    """The published page."""
    settings = document["settings"]
    episodes, frames = settings["frames"]
    five = settings["five"]
    nbytes = episodes * frames * len(CAMERAS) * settings["side"] ** 2 * 3
    values = {
        **document,
        "duration": minutes_of(document),
        "table": markdown(["row", *(column for column, _, _ in _COLUMNS)], _lines(document)),
        "data": f"{episodes} episodes of {frames} frames, two cameras at "
        f"{settings['side']}x{settings['side']}, {nbytes / 1e6:.0f} MB",
        "five": "{} episodes of {} frames of {}x{}".format(*five),
        "clip": CLIP,
        "batch": BATCH,
        "batch_of_five": BATCH_OF_FIVE,
    }
    template = Path(__file__).with_name("shared_frames_template.md").read_text()
    return template.format(**values)


def _lines(document: Mapping[str, Any]) -> Iterator[list[str]]:
    for name, runs in document["rows"].items():
        cells = [name]
        for _, key, form in _COLUMNS:
            has_range = key in ("later_epoch", "later_rate")
            cells.append(ranged(runs, key, form) if has_range else number(median(runs, key), form))
        yield cells


if __name__ == "__main__":
    main()
