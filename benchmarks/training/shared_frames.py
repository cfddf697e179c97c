"""Frames that processes share: `python -m benchmarks.training.shared_frames`.

Writes a small dataset of two cameras to a temporary folder, as JPEG and as raw frames, and fills a
frame cache. Then new processes, one alone and four together, each read it for three epochs, as
single frames and as clips: CPU seconds and samples per second of the first epoch and of the later
ones, memory beside batches that no file has, and the proportional share of all memory (PSS) while
the other processes still have theirs. Cold rows begin with dropped page caches. Repeats of all rows
alternate.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import seqrecord
from benchmarks.timing import drop_page_cache, markdown

__all__ = ["Job", "Reading", "measure", "write"]

CAMERAS = ("left", "right")
CLIP = 16  # frames
EPOCHS = 3
REPEATS = 5
TOGETHER = 4
BATCH = 8
COLUMNS = {
    "CPU s per 1,000 samples, epoch 1": ("first_epoch", ".3f"),
    "later": ("later_epoch", ".3f"),
    "samples/s, epoch 1": ("first_rate", ".0f"),
    "later epochs": ("later_rate", ".0f"),
    "own MiB each": ("own", ".0f"),
    "PSS MiB each": ("shared", ".0f"),
}
"""Fields of `Reading`, and their formats."""

_TIMEOUT = 600  # seconds: a process may end without an answer


@dataclass(frozen=True)
class Job:
    """Frames of a process: of the dataset, with the folder of a cache, or of memmaps by hand.

    `loader` is "encoded", "raw", "raw, not mapped" or "memmap". Files that are `cold` are not in
    the page cache.
    """

    folder: str
    loader: str
    cache: str = ""
    clip_len: int = 1
    cold: bool = False


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


def write(folder: Path, episodes: int = 10, frames: int = 100, side: int = 224) -> None:
    """Write a dataset of JPEG images, and its frames as raw frames and as memmaps."""
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


def open_loader(job: Job) -> Iterable[dict[str, Any]]:
    """A loader of the job's frames; each iteration is an epoch."""
    folder = Path(job.folder)
    if job.loader == "memmap":
        arrays = {n: np.load(folder / f"{n}.npy", mmap_mode="r") for n in CAMERAS}
        return Memmaps(arrays, job.clip_len)
    options: dict[str, Any] = {"clip_len": job.clip_len, "batch_size": BATCH}
    if job.loader == "encoded":
        cache = seqrecord.FrameCache(job.cache, "100GiB") if job.cache else None
        options |= {"memory_limit": "4GiB", "frame_cache": cache}
        return seqrecord.SeqRecordPipe(folder / "encoded", **options)
    verify: Any = "always" if job.loader == "raw, not mapped" else True
    return seqrecord.SeqRecordPipe(seqrecord.open(folder / "raw", verify=verify), **options)


class Memmaps:
    """Batches of memmaps by hand, in reused memory."""

    def __init__(self, arrays: dict[str, npt.NDArray[np.uint8]], clip_len: int) -> None:
        self._arrays, self._epoch, self._clip_len = arrays, 0, clip_len

    def __iter__(self) -> Iterator[dict[str, Any]]:
        num_episodes, num_frames, *shape = self._arrays[CAMERAS[0]].shape
        count = num_frames - self._clip_len + 1
        order = np.random.default_rng(self._epoch).permutation(num_episodes * count)
        frames = order[:, None] // count * num_frames + order[:, None] % count
        frames = frames + np.arange(self._clip_len)
        arrays = {name: array.reshape(-1, *shape) for name, array in self._arrays.items()}
        clips = {n: np.empty((BATCH, self._clip_len, *shape), np.uint8) for n in CAMERAS}
        self._epoch += 1
        for begin in range(0, len(order), BATCH):
            rows = frames[begin : begin + BATCH]
            batch = {name: clips[name][: len(rows)] for name in CAMERAS}
            for name in CAMERAS:
                arrays[name].take(rows, 0, batch[name], "clip")
            yield {name: torch.from_numpy(batch[name]) for name in CAMERAS}


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
        begin, start = time.process_time(), time.perf_counter()
        loader = open_loader(job)
        for _ in range(epochs):
            total = count = 0
            for batch in loader:
                total += sum(int(batch[name][:, :, ::64, ::64].sum()) for name in CAMERAS)
                count += len(batch[CAMERAS[0]])
                del batch
            seconds.append(1000 * (time.process_time() - begin) / count)
            rates.append(count / (time.perf_counter() - start))
            begin, start = time.process_time(), time.perf_counter()
            totals.append(total)
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


def rows(folder: Path, repeats: int = REPEATS, together: int = TOGETHER) -> Iterator[list[str]]:
    """Cells of the table: medians of the repeats, which alternate."""
    place, cache = str(folder), str(folder / "cache")
    measure(Job(place, "encoded", cache), epochs=1)
    by_hand = "NumPy memmaps, reused batches"
    raw = {"raw frames": "raw", "raw frames, not mapped": "raw, not mapped", by_hand: "memmap"}
    jobs = {
        "JPEG, no cache": Job(place, "encoded"),
        "JPEG, warm frame cache": Job(place, "encoded", cache),
        **{name: Job(place, loader) for name, loader in raw.items()},
    }
    for name, loader in raw.items():
        jobs[f"{name}, clips of {CLIP}"] = Job(place, loader, clip_len=CLIP)
        jobs[f"{name}, cold"] = Job(place, loader, cold=True)
    readings: dict[tuple[str, int], list[Reading]] = {}
    for _ in range(repeats):
        for name, job in jobs.items():
            for count in (1,) if job.cold or job.clip_len > 1 else (1, together):
                readings.setdefault((name, count), []).extend(measure(job, count))
    totals = dict[int, set[int]]()
    for (name, _), of_row in readings.items():
        totals.setdefault(jobs[name].clip_len, set()).update(r.total for r in of_row)
    assert all(len(of_length) == 1 for of_length in totals.values()), "loaders differ"
    for (name, count), of_row in readings.items():
        cells = [name, str(count)]
        for field, form in COLUMNS.values():
            cells.append(format(statistics.median(getattr(r, field) for r in of_row), form))
        yield cells


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.shared_frames")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    repeats = parser.parse_args(arguments).repeats
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        print(markdown(["row", "processes", *COLUMNS], rows(Path(folder), repeats)))


if __name__ == "__main__":
    main()
