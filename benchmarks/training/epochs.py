"""Epochs of one loader in its own process: frames decoded and CPU seconds of each.

All loaders deliver the same samples of ACT in batches of the same shapes and dtypes: images uint8
[batch, 1, H, W, 3] of each camera, the state and the actions.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import psutil
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, get_worker_info

import seqrecord
from benchmarks.reused import ByHand
from benchmarks.timing import answer, drop_page_cache, warm
from benchmarks.training.loaders import (
    Batches,
    cut_batches,
    decode_jpeg,
    lerobot_items,
    rows_of,
)
from benchmarks.training.trainings import TRAININGS, arguments_of, resized

__all__ = ["MEMORY", "ROWS", "EpochsJob", "Row", "measure"]

ACT = TRAININGS["act"]
MEMORY = "4GiB"


@dataclass(frozen=True)
class Row:
    """A row of the tables: a loader, and the form of the data that it reads, see `_jobs`.

    `is_scaled` rows exist only where images are scaled. `cache` is the state of seqrecord's frame
    cache at the start: "empty", "warm", "cold" (not in the page cache), or none. `share` is the
    part of the frames that fits into `memory_limit`.
    """

    name: str
    loader: str
    form: str
    is_scaled: bool = True
    cache: str = ""
    share: float | None = None


ROWS = {
    "lerobot": Row("LeRobot's class", "lerobot", "originals", is_scaled=False),
    "webdataset": Row("WebDataset, JPEG of the video's size", "webdataset", "cut", is_scaled=False),
    "webdataset-small": Row("WebDataset, JPEG of the batch's size", "webdataset", "cut_small"),
    "arrays": Row("NumPy arrays in memory, filled in epoch 1", "arrays", "arrays"),
    "memmap": Row("NumPy memmaps, written beforehand", "memmap", "arrays"),
    "seqrecord": Row("seqrecord", "seqrecord", "records", is_scaled=False),
    "packed": Row("seqrecord, packed at the batch's size", "seqrecord", "packed"),
    "fills": Row("seqrecord, fills a frame cache", "seqrecord", "records", cache="empty"),
    "warm": Row("… second process, warm", "seqrecord", "records", cache="warm"),
    "cold": Row("… second process, cold", "seqrecord", "records", cache="cold"),
    "larger": Row(
        "… data of three times the memory", "seqrecord", "records", cache="warm", share=1 / 3
    ),
}


@dataclass(frozen=True)
class EpochsJob:
    """A loader, the LeRobot dataset, the folder read by the loader, and the images' height and
    width in batches, if they are scaled. `cache` is a folder, cold if `is_cold`."""

    loader: str
    originals: str
    folder: str
    epochs: int
    workers: int
    size: tuple[int, int] | None = None
    cache: str = ""
    is_cold: bool = False
    memory: str = MEMORY


class Counter:
    """Number of frames returned by decoders in all worker processes."""

    def __init__(self, workers: int) -> None:
        counts: Any = torch.zeros(workers + 1, dtype=torch.int64)
        self._counts = counts.share_memory_()

    def add(self, count: int) -> None:
        info = get_worker_info()
        self._counts[-1 if info is None else info.id] += count

    @property
    def total(self) -> int:
        return int(self._counts.sum())


def measure(job: EpochsJob) -> dict[str, Any]:
    """Figures by epoch: `decoded`, `cpu_seconds` of all processes, `seconds`, `samples`, and sums
    of actions and of a subset of pixels to compare loaders."""
    torch.set_num_threads(1)
    warm(Path(job.folder))
    if job.cache:
        (drop_page_cache if job.is_cold else warm)(Path(job.cache))
    counter = Counter(job.workers)
    loader: Any = _OPEN[job.loader](job, counter)
    cameras = _cameras(job)
    epochs: list[dict[str, float]] = []
    for _ in range(job.epochs):
        decoded, before, begin = counter.total, cpu_seconds(), time.perf_counter()
        samples, actions, pixels = 0, 0.0, 0.0
        batch: Mapping[str, Any]
        for batch in loader:
            for name in cameras:
                assert batch[name].dtype == torch.uint8
                assert batch[name].shape[1:] == (1, *(job.size or batch[name].shape[2:4]), 3)
                pixels += float(batch[name][:, :, ::16, ::16].sum())
            actions += float(batch["action"].double().sum())
            samples += len(batch["action"])
            del batch  # before the next one: loaders reuse freed buffers
        epochs.append(
            {
                "seconds": time.perf_counter() - begin,
                "cpu_seconds": cpu_seconds() - before,
                "decoded": loader.stats()["video_frames_decoded"]
                if hasattr(loader, "stats")
                else counter.total - decoded,
                "samples": samples,
                "actions": actions,
                "pixels": pixels,
            }
        )
    sums = {name: sum(epoch[name] for epoch in epochs) for name in ("seconds", "cpu_seconds")}
    return {"epochs": epochs, **sums, "num_cores": len(os.sched_getaffinity(0))}


def cpu_seconds() -> float:
    """CPU seconds of this process, to the microsecond, and its children, including ended ones."""
    total = time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total


def _cameras(job: EpochsJob) -> list[str]:
    names = arguments_of(ACT, Path(job.originals))["features"]
    return [name for name in names if name not in ("observation.state", "action")]


# ---- loaders


def _seqrecord(job: EpochsJob, _counter: Counter) -> Batches:
    arguments = resized(arguments_of(ACT, Path(job.originals)), job.size)
    cache = seqrecord.FrameCache(job.cache, "100GiB") if job.cache else None
    return seqrecord.SeqRecordPipe(
        job.folder, **arguments, batch_size=ACT.batch, memory_limit=job.memory, frame_cache=cache
    )


class _Arrays:
    """A loader by hand: samples of one array per feature, copied into reused batches."""

    def __init__(self, job: EpochsJob, counter: Counter, *, is_mapped: bool) -> None:
        self._job, self._counter = job, counter
        self._cameras, folder = _cameras(job), Path(job.folder)
        self._arrays: dict[str, Any] = {
            name: np.load(folder / f"{name}.npy", mmap_mode="r" if name in self._cameras else None)
            for name in (*self._cameras, "observation.state", "action", "ends")
        }
        self._is_filled = is_mapped
        self._loader: ByHand | None = None

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        if not self._is_filled:
            self._arrays |= {name: self._decoded(name) for name in self._cameras}
            self._is_filled = True
        if self._loader is None:
            names = (*self._cameras, "observation.state", "action")
            arrays = {name: self._arrays[name] for name in names}
            rows = rows_of(ACT, names, self._arrays["ends"])
            self._loader = ByHand(arrays, rows, ACT.batch, threads=0)
        yield from self._loader

    def _decoded(self, camera: str) -> Any:
        """All images of a camera, decoded front to back."""
        size = self._job.size
        assert size is not None, "a scaled row"
        frames = np.empty(self._arrays[camera].shape, np.uint8)
        at = 0
        for path in sorted((Path(self._job.originals) / "videos" / camera).rglob("*.mp4")):
            with av.open(path) as video:
                for frame in video.decode(video=0):
                    image = frame.to_image().resize(size[::-1], Image.Resampling.BILINEAR)
                    frames[at] = image
                    at += 1
        self._counter.add(at)
        return frames


def _webdataset(job: EpochsJob, counter: Counter) -> Batches:
    def decode(data: bytes) -> Any:
        counter.add(1)
        return decode_jpeg(data, job.size)

    return cut_batches(ACT, f"{job.folder}/{{:06d}}.tar", job.workers, decode)


class _LeRobot(Dataset[dict[str, torch.Tensor]]):
    """Items of LeRobot's class, with torchcodec. Images stay uint8 and are scaled like
    torchvision's: the slower conversion to floats at the end of the class's decoding is skipped."""

    def __init__(self, job: EpochsJob, counter: Counter) -> None:
        import torchcodec.decoders  # noqa: F401  # here, not again in each worker
        from lerobot.datasets import lerobot_dataset, video_utils

        from benchmarks.lerobot.theirs import undivided

        decode = undivided(video_utils)

        def counted(*arguments: Any) -> torch.Tensor:
            images: torch.Tensor = decode(*arguments)
            counter.add(len(images))
            return images

        lerobot_dataset.decode_video_frames = counted
        root, self._cameras = Path(job.originals), _cameras(job)
        self._names = list(arguments_of(ACT, root)["windows"])
        scaled = self._scaled if job.size else None
        self._items = lerobot_items(ACT, root, image_transforms=scaled)
        self._size = job.size

    def _scaled(self, image: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor
        [scaled] = torch.nn.functional.interpolate(
            image[None], self._size, mode="bilinear", antialias=True
        )
        return scaled

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        item = self._items[number]
        found = {name: item[name] for name in self._names}
        return found | {name: found[name].permute(1, 2, 0)[None] for name in self._cameras}


def _lerobot(job: EpochsJob, counter: Counter) -> Batches:
    return DataLoader(
        _LeRobot(job, counter),
        ACT.batch,
        shuffle=True,
        num_workers=job.workers,
        persistent_workers=job.workers > 0,
    )


_OPEN: dict[str, Callable[[EpochsJob, Counter], Batches]] = {
    "lerobot": _lerobot,
    "webdataset": _webdataset,
    "arrays": partial(_Arrays, is_mapped=False),
    "memmap": partial(_Arrays, is_mapped=True),
    "seqrecord": _seqrecord,
}


if __name__ == "__main__":
    answer(lambda size, **job: measure(EpochsJob(**job, size=size and tuple(size))))
