"""The loaders: the format that each reads, and its batches for a training."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import seqrecord
from benchmarks.reused import ByHand
from benchmarks.tartanair.loaders.base import Settings
from benchmarks.tartanair.loaders.raw_files import RawFilesDataset
from benchmarks.tartanair.loaders.streams import tar_batches
from benchmarks.training.trainings import ACTIONS, SHARDS, Training, arguments_of

__all__ = [
    "LOADERS",
    "Batches",
    "Loader",
    "Source",
    "cut_batches",
    "decode_jpeg",
    "lerobot_items",
    "rows_of",
]

RESIDENT = "6GiB"

Batches = Iterable[Mapping[str, Any]]
"""Each iteration is an epoch of batches."""


@dataclass(frozen=True)
class Source:
    """Location of a training's data: folders of the originals and of the loader's format, or
    location, options and URL on S3.
    """

    originals: Path
    folder: Path
    location: str = ""
    options: Mapping[str, Any] | None = None
    url: str = ""


@dataclass(frozen=True, kw_only=True)
class Loader:
    """One loader: `open(training, source, workers)`, the `form` of data that it reads, and so on.

    `workers` are the numbers of processes, or of threads by hand, of which the best is taken; by
    default the command's. `frames` is the source of an epoch's frames. `data` are the supported
    data sets, by default all. `epochs_before` epochs are not measured.
    """

    note: str
    form: str = "records"
    open: Callable[[Training, Source, int], Batches] | None
    workers: Sequence[int] = ()
    frames: str = ""
    epochs_before: int = 0
    data: Sequence[str] = ()
    reads_s3: bool = True
    package: str = ""  # required, and the command that installs it
    install: str = ""


def _map_style(dataset: Dataset[Any], training: Training, workers: int, **more: Any) -> Batches:
    return DataLoader(
        dataset,
        training.batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        **more,
    )


def _original(training: Training, source: Source, workers: int) -> Batches:
    clips = arguments_of(training, source.originals)
    return _map_style(RawFilesDataset(source.folder, **clips), training, workers)


def _lerobot(training: Training, source: Source, workers: int) -> Batches:
    context = "spawn" if workers else None  # its decoders do not survive a fork
    items = lerobot_items(training, source.folder)
    return _map_style(items, training, workers, multiprocessing_context=context)


def lerobot_items(training: Training, root: Path, **more: Any) -> Any:
    """LeRobot's own dataset with the training's windows, decoded by torchcodec."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    fps = json.loads((root / "meta" / "info.json").read_text())["fps"]
    windows: dict[str, range] = arguments_of(training, root)["windows"]
    times = {name: [i / fps for i in window] for name, window in windows.items()}
    backend = {"video_backend": "torchcodec", "delta_timestamps": times}
    return LeRobotDataset("seqrecord/benchmark", root=root, **backend, **more)


def _webdataset(training: Training, source: Source, workers: int) -> Batches:
    where, signed = str(source.folder), ""
    if source.url:
        where, signed = source.url, "?Signature=any"  # required by moto, but not checked
    return cut_batches(training, f"{where}/{{:06d}}.tar{signed}", workers, decode_jpeg)


def cut_batches(
    training: Training, tars: str, workers: int, decode: Callable[[bytes], Any]
) -> Batches:
    """Batches of the samples in tars, by WebDataset; `decode` is called with each JPEG."""
    settings = Settings(
        batch_size=training.batch, shuffle="buffer", shuffle_buffer=training.buffer, workers=workers
    )

    def decoded(samples: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        for sample in samples:
            yield {
                name.rpartition(".")[0]: decode(value) if name.endswith(".jpg") else value
                for name, value in sample.items()
                if not name.startswith("__")
            }

    paths = [tars.format(shard) for shard in range(SHARDS)]
    return tar_batches(paths, settings, to_clips=decoded, collate=_stacked, decode=True)


def decode_jpeg(data: bytes, size: tuple[int, int] | None = None) -> Any:
    """[1, H, W, 3]; scaled to a height and width, if given."""
    image: Image.Image = Image.open(io.BytesIO(data))
    if size is not None:
        image = image.resize(size[::-1], Image.Resampling.BILINEAR)
    return np.asarray(image)[None]


def _stacked(samples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.stack([s[name] for s in samples])) for name in samples[0]}


def _seqrecord(
    training: Training, source: Source, workers: int, memory_limit: str = "1GiB"
) -> Batches:
    pipe = seqrecord.SeqRecordPipe(
        seqrecord.open(source.location or source.folder, storage_options=source.options),
        **arguments_of(training, source.originals),
        batch_size=training.batch,
        last_batch="drop",
        memory_limit=memory_limit,
    )
    if not workers:
        return pipe
    return DataLoader(pipe, batch_size=None, num_workers=workers, persistent_workers=True)


def _by_hand(training: Training, source: Source, threads: int) -> Batches:
    """Copies of memory maps in reused batches."""
    names = [*arguments_of(training, source.originals)["features"]]
    maps = {name: np.load(source.folder / f"{name}.npy", mmap_mode="r") for name in names}
    ends = np.load(source.folder / "ends.npy")
    rows = rows_of(training, names, ends)
    return ByHand(maps, rows, training.batch, threads=threads, drop_last=True)


def rows_of(training: Training, names: Sequence[str], ends: Any) -> dict[str, Any]:
    """Rows of each sample by feature: int64 [samples, N]; `ends` has each frame's last frame."""
    frames = np.arange(len(ends))
    if not training.clip_len:  # ACT: the current frame, and actions up to the episode's last
        actions = np.minimum(frames[:, None] + np.arange(ACTIONS), ends[:, None])
        return {name: actions if name == "action" else frames[:, None] for name in names}
    firsts = np.maximum.accumulate(np.where(np.r_[True, ends[1:] != ends[:-1]], frames, 0))
    is_start = (frames - firsts) % training.stride == 0
    starts = frames[is_start & (frames + training.clip_len - 1 <= ends)]
    return dict.fromkeys(names, starts[:, None] + np.arange(training.clip_len))


LOADERS = {
    "no loader": Loader(
        note="the same batch again and again: the most that the training could reach",
        open=None,
        workers=(0,),
    ),
    "original": Loader(
        note="a map-style class that reopens TartanAir's files for every clip, with DataLoader",
        form="originals",
        open=_original,
        data=("tree", "small"),
        reads_s3=False,
        frames="decoded for each clip",
    ),
    "lerobot": Loader(
        note="LeRobot's map-style class with torchcodec, with DataLoader",
        form="originals",
        open=_lerobot,
        data=("lerobot",),
        reads_s3=False,
        frames="decoded for each clip",
        package="lerobot",
        install="make lerobot-env",
    ),
    "webdataset": Loader(
        note="WebDataset of samples that were cut beforehand into tars",
        form="cut",
        open=_webdataset,
        frames="decoded for each clip",
        package="webdataset",
        install="make install-bench",
    ),
    "by hand": Loader(
        note="memory maps of frames decoded beforehand, copied into reused batches by threads, "
        "without a package",
        form="arrays",
        open=_by_hand,
        workers=(0, 1, 2),
        reads_s3=False,
        frames="mapped",
    ),
    "seqrecord": Loader(
        note="SeqRecordPipe in the process of the training", open=_seqrecord, workers=(0,)
    ),
    "seqrecord, resident": Loader(
        note="SeqRecordPipe in the process of the training, after its first epoch, with "
        f"`memory_limit` {RESIDENT}: all frames stay in memory",
        open=partial(_seqrecord, memory_limit=RESIDENT),
        workers=(0,),
        epochs_before=1,
    ),
    "seqrecord, one worker": Loader(
        note="SeqRecordPipe in one worker of a DataLoader",
        open=_seqrecord,
        workers=(1,),
        frames="as without workers",
    ),
}
