"""Decoded frames that processes share: `python -m benchmarks.training.shared_frames`.

Writes a small dataset of two cameras to a temporary folder and fills a frame cache. Then new
processes, one alone and four together, each read it for three epochs: CPU seconds of the
first epoch and of the later ones, memory beside batches that no file has, and their proportional
share of all memory (PSS) while the others still have theirs.
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
from benchmarks.timing import markdown

__all__ = ["Job", "Reading", "measure", "write"]

CAMERAS = ("left", "right")
EPOCHS = 3
REPEATS = 5
TOGETHER = 4
BATCH = 8
_TIMEOUT = 600  # seconds: a process may end without an answer


@dataclass(frozen=True)
class Job:
    """Frames of a process: of the dataset, with the folder of a cache, or of memmaps by hand."""

    folder: str
    loader: str  # "seqrecord" or "memmap"
    cache: str = ""


@dataclass(frozen=True)
class Reading:
    """CPU seconds of epochs; MiB of own memory, and of PSS, beside an empty process."""

    first_epoch: float
    later_epoch: float
    own: float
    shared: float
    total: int  # of sampled pixels, to compare loaders


def write(folder: Path, episodes: int = 10, frames: int = 100, side: int = 224) -> None:
    """Write a dataset of JPEG images, and its frames as memmaps."""
    rng = np.random.default_rng(0)
    base = rng.integers(0, 256, (side, side, 3), np.uint8)
    codecs = dict.fromkeys(CAMERAS, "jpeg")
    with seqrecord.SeqRecordWriter(folder / "records", codecs=codecs) as writer:
        for number in range(episodes):
            with writer.episode(f"e{number}") as episode:
                for frame in range(frames):
                    image = np.roll(base, 3 * (number * frames + frame), 0)
                    episode.append({"left": image, "right": image[::-1]})
    dataset = seqrecord.open(folder / "records")
    for name in CAMERAS:
        shape = dataset.num_frames, side, side, 3
        array = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.uint8, shape)
        for number, key in enumerate(dataset.episodes):
            array[number * frames :][:frames] = dataset.episodes[key][:][name]
        array.flush()
    dataset.close()


def open_loader(job: Job) -> Iterable[dict[str, Any]]:
    """A loader of the job's frames; each iteration is an epoch."""
    folder = Path(job.folder)
    if job.loader == "memmap":
        return Memmaps({n: np.load(folder / f"{n}.npy", mmap_mode="r") for n in CAMERAS})
    cache = seqrecord.FrameCache(job.cache, "100GiB") if job.cache else None
    return seqrecord.SeqRecordPipe(
        folder / "records", clip_len=1, batch_size=BATCH, memory_limit="4GiB", frame_cache=cache
    )


class Memmaps:
    """Batches of memmaps by hand, in reused memory."""

    def __init__(self, arrays: dict[str, npt.NDArray[np.uint8]]) -> None:
        self._arrays, self._epoch = arrays, 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        arrays, count = self._arrays, len(self._arrays[CAMERAS[0]])
        batch = {name: np.empty((BATCH, *arrays[name].shape[1:]), np.uint8) for name in CAMERAS}
        order = np.random.default_rng(self._epoch).permutation(count)
        self._epoch += 1
        for begin in range(0, count - count % BATCH, BATCH):
            for name in CAMERAS:
                arrays[name].take(order[begin : begin + BATCH], 0, batch[name], "clip")
            yield {name: torch.from_numpy(batch[name])[:, None] for name in CAMERAS}


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
        seconds, totals = list[float](), list[int]()
        begin = time.process_time()
        loader = open_loader(job)
        for _ in range(epochs):
            total = 0
            for batch in loader:
                total += sum(int(batch[name][:, :, ::64, ::64].sum()) for name in CAMERAS)
                del batch
            seconds.append(time.process_time() - begin)
            begin = time.process_time()
            totals.append(total)
        barrier.wait()
        now = _memory()
        reading = Reading(
            seconds[0], min(seconds[1:], default=0.0), now[0] - own, now[1] - shared, totals[0]
        )
        barrier.wait()
        del loader
        answers.put(reading)
    except BaseException as error:
        barrier.abort()
        answers.put(error)


def measure(job: Job, processes: int = 1, epochs: int = EPOCHS) -> list[Reading]:
    """What each of several new processes takes."""
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
    cache = str(folder / "cache")
    measure(Job(str(folder), "seqrecord", cache), epochs=1)
    jobs = {
        "seqrecord, no cache": Job(str(folder), "seqrecord"),
        "seqrecord, warm frame cache": Job(str(folder), "seqrecord", cache),
        "NumPy memmaps, reused batches": Job(str(folder), "memmap"),
    }
    readings: dict[tuple[str, int], list[Reading]] = {}
    for _ in range(repeats):
        for name, job in jobs.items():
            for count in (1, together):
                readings.setdefault((name, count), []).extend(measure(job, count))
    assert len({reading.total for of_row in readings.values() for reading in of_row}) == 1
    for (name, count), of_row in readings.items():
        cells = [name, str(count)]
        for field, form in (
            ("first_epoch", ".3f"),
            ("later_epoch", ".3f"),
            ("own", ".0f"),
            ("shared", ".0f"),
        ):
            cells.append(format(statistics.median(getattr(r, field) for r in of_row), form))
        yield cells


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.shared_frames")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    repeats = parser.parse_args(arguments).repeats
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        columns = ["row", "processes", "CPU s, epoch 1", "later", "own MiB each", "PSS MiB each"]
        print(markdown(columns, rows(Path(folder), repeats)))


if __name__ == "__main__":
    main()
