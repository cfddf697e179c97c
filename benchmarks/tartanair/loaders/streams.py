"""Loaders that make batches themselves: WebDataset, SPDL, DALI, FFCV, Microsoft's `seqrecord`."""

from __future__ import annotations

import importlib
import io
import os
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterDataPipe

from benchmarks.reused import Memory
from benchmarks.tartanair.compare.recordings import Clip, Recordings
from benchmarks.tartanair.loaders.base import (
    GRID,
    Batch,
    Batches,
    Loader,
    Order,
    Settings,
    load_features,
    load_keys,
    load_remote,
    loader_arguments,
    memory_of,
    places,
    without_one_worker,
)
from benchmarks.tartanair.loaders.rootless import without_roots

__all__ = [
    "IN_PROCESS",
    "LOADERS",
    "THREADS",
    "DaliEpochs",
    "Window",
    "collate",
    "npy",
    "prepare_tars",
    "tar_batches",
    "windows",
]

Frame = dict[str, Any]
"""Feature to array, `episode` and `index`."""

Window = list[Frame]


def windows(frames: Iterable[Frame], settings: Settings) -> Iterator[Window]:
    """Every clip of frames in order, as references to its frames."""
    recent: deque[Frame] = deque(maxlen=settings.clip_len)
    for frame in frames:
        if frame["index"] == 0:
            recent.clear()
        recent.append(frame)
        if len(recent) == settings.clip_len and recent[0]["index"] % settings.stride == 0:
            yield list(recent)


def collate(clips: Sequence[Window], memory: Memory) -> Batch:
    """A batch, each frame copied once."""
    batch: Batch = {}
    for name, array in memory.take(len(clips)).items():
        for into, clip in zip(array, clips, strict=True):
            for row, frame in zip(into, clip, strict=True):
                row[...] = frame[name]
        batch[name] = torch.from_numpy(array)
    batch["episode"] = [clip[0]["episode"] for clip in clips]
    batch["start"] = torch.tensor([clip[0]["index"] for clip in clips])
    return batch


# ---- WebDataset: a tar of NumPy files for each episode


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def tar_batches(
    tars: Sequence[str],
    settings: Settings,
    *,
    to_clips: Callable[[Iterable[dict[str, Any]]], Iterator[Any]],
    collate: Callable[[list[Any]], Any],
    wanted: Callable[[str], bool] | None = None,
    decode: bool = False,
) -> Batches:
    """Batches of the clips that `to_clips` makes of the tars' samples, with WebDataset's shuffles.

    Only files whose names are `wanted` are read; with `decode`, WebDataset decodes them.
    """
    import webdataset

    shuffled = settings.shuffle != "off"
    dataset = webdataset.WebDataset(
        list(tars),
        shardshuffle=len(tars) if shuffled else False,
        seed=settings.seed,
        empty_check=False,
        select_files=wanted,
    )
    if decode:
        dataset = dataset.decode()
    dataset = dataset.compose(to_clips)
    if shuffled:
        dataset = dataset.shuffle(settings.shuffle_buffer)
    dataset = dataset.batched(settings.batch_size, collation_fn=collate)
    return DataLoader(dataset, batch_size=None, **loader_arguments(settings))


def prepare_tars(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    import webdataset

    for number, (_, frames) in enumerate(recordings.read()):
        with webdataset.TarWriter(str(folder / f"{number:06d}.tar")) as tar:
            for index, frame in enumerate(frames):
                files = {f"{name}.npy": npy(array) for name, array in frame.items()}
                tar.write({"__key__": f"{number:06d}/{index:06d}", **files})


def _wanted(name: str, features: Sequence[str]) -> bool:
    return name.partition(".")[2].removesuffix(".npy") in features


def _to_windows(
    samples: Iterable[dict[str, Any]], keys: Sequence[str], settings: Settings
) -> Iterator[Window]:
    def frames() -> Iterator[Frame]:
        for sample in samples:
            number, index = map(int, sample["__key__"].split("/"))
            arrays = {name: sample[f"{name}.npy"] for name in settings.features}
            yield {**arrays, "episode": keys[number], "index": index}

    return windows(frames(), settings)


def _tars(folder: Path) -> list[str]:
    """The tars of a folder, or of the store that it refers to, from which curl reads."""
    if remote := load_remote(folder):
        return [f"pipe:curl -sfL '{url}'" for url in remote["tars"]]
    return sorted(map(str, folder.glob("*.tar")))


def _memory(folder: Path, settings: Settings) -> Memory:
    return memory_of(load_features(folder, settings.features), settings)


def open_tars(folder: Path, _clips: Sequence[Clip], settings: Settings) -> Batches:
    return tar_batches(
        _tars(folder),
        settings,
        to_clips=partial(_to_windows, keys=load_keys(folder), settings=settings),
        collate=partial(collate, memory=_memory(folder, settings)),
        wanted=partial(_wanted, features=settings.features),
        decode=True,
    )


# ---- a NumPy file for each frame of each feature, read by SPDL's threads or DALI


def prepare_files(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    for name in recordings.features:
        (folder / name).mkdir()
    for row, frame in enumerate(recordings.rows()):
        for name, array in frame.items():
            np.save(_path(folder, name, row), array)


def _path(folder: Path, feature: str, row: int) -> str:
    return f"{folder}/{feature}/{row:08d}.npy"


class Epochs(ABC):
    """Batches of clips, reordered in each epoch."""

    def __init__(self, folder: Path, clips: Sequence[Clip], settings: Settings) -> None:
        self.folder = folder
        self.clips = clips
        self.settings = settings
        self.features = load_features(folder, settings.features)
        self._order = Order(len(clips), settings)

    def __iter__(self) -> Iterator[Batch]:
        yield from self.batches([self.clips[number] for number in self._order])

    @abstractmethod
    def batches(self, clips: Sequence[Clip]) -> Iterator[Batch]:
        """Batches of these clips, in this order."""


class SpdlEpochs(Epochs):
    """Each batch is read by one thread of SPDL's pipeline."""

    _memory: Memory | None = None

    def batches(self, clips: Sequence[Clip]) -> Iterator[Batch]:
        from spdl.pipeline import PipelineBuilder

        threads = max(1, self.settings.workers)
        ahead = max(1, self.settings.prefetch)
        if self._memory is None:
            self._memory = memory_of(self.features, self.settings, threads + ahead + 3)
        pipeline = (
            PipelineBuilder()
            .add_source(list(clips))
            .aggregate(self.settings.batch_size)
            .pipe(self._read, concurrency=threads, output_order="input")
            .add_sink(ahead)
            .build(num_threads=threads)
        )
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    def _read(self, clips: Sequence[Clip]) -> Batch:
        import spdl.io

        assert self._memory is not None
        batch: Batch = {}
        for name, array in self._memory.take(len(clips)).items():
            for into, clip in zip(array, clips, strict=True):
                for j, row in enumerate(into):
                    with open(_path(self.folder, name, clip.row + j), "rb") as file:  # noqa: PTH123 - quicker
                        row[...] = spdl.io.load_npy(file.read())
            batch[name] = torch.from_numpy(array)
        return {**batch, **places(clips)}


class DaliEpochs(Epochs):
    """Frames' files, read by DALI on the CPU or, if `external`, by this process."""

    external = False

    def batches(self, clips: Sequence[Clip]) -> Iterator[Batch]:
        size = self.settings.batch_size
        whole = len(clips) // size * size
        # A pipeline's batches have one size: the epoch's last batch uses its own pipeline.
        for part in (clips[:whole], clips[whole:]):
            if part:
                yield from self._run(part, min(size, len(part)))

    def _run(self, clips: Sequence[Clip], size: int) -> Iterator[Batch]:
        from nvidia.dali import pipeline_def

        settings = self.settings
        pipeline = pipeline_def(partial(self._outputs, clips))(
            batch_size=size * settings.clip_len,
            num_threads=max(1, settings.workers),
            device_id=None,
            prefetch_queue_depth=max(1, settings.prefetch),
        )
        pipeline.build()
        memory = memory_of(self.features, settings)
        for at in range(0, len(clips), size):
            arrays = memory.take(size)
            for array, output in zip(arrays.values(), pipeline.run(), strict=True):
                np.copyto(array, output.as_array().reshape(array.shape))  # DALI reuses its buffers
            batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
            yield {**batch, **places(clips[at : at + size])}

    def _outputs(self, clips: Sequence[Clip]) -> tuple[Any, ...]:
        from nvidia.dali import fn, types

        rows = [clip.row + i for clip in clips for i in range(self.settings.clip_len)]

        def source(name: str) -> Any:
            def load(info: Any) -> Any:  # DALI inspects its signature, and prefetches
                if info.idx_in_epoch >= len(rows):
                    raise StopIteration
                return np.load(_path(self.folder, name, rows[info.idx_in_epoch]))

            return load

        if self.external:
            dtypes = {n: np.dtype(f.dtype).name.upper() for n, f in self.features.items()}
            return tuple(
                fn.external_source(
                    source(name),
                    batch=False,
                    parallel=False,
                    dtype=getattr(types, dtype.replace("FLOAT32", "FLOAT")),
                )
                for name, dtype in dtypes.items()
            )
        return tuple(
            fn.readers.numpy(files=[_path(self.folder, name, row) for row in rows], name=name)
            for name in self.features
        )


class DaliSourceEpochs(DaliEpochs):
    external = True


# ---- FFCV: a file of frames; a clip is the indices of its frames


class FfcvRows:
    """Frames for FFCV's writer, which requests them by index, in order."""

    def __init__(self, recordings: Recordings) -> None:
        self._count = recordings.num_frames
        self._rows = recordings.rows()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, _number: int) -> tuple[Any, ...]:
        return tuple(next(self._rows).values())


def prepare_ffcv(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    from ffcv.fields import NDArrayField
    from ffcv.writer import DatasetWriter

    fields = {
        name: NDArrayField(np.dtype(dtype), shape)
        for name, (dtype, shape) in recordings.features.items()
    }
    page = max(8 << 20, 1 << (recordings.frame_nbytes() * 2).bit_length())
    writer = DatasetWriter(str(folder / "frames.beton"), fields, page_size=page, num_workers=1)
    writer.from_indexed_dataset(FfcvRows(recordings))


class FfcvEpochs(Epochs):
    """Batches of FFCV's loader, compiled once."""

    def __init__(self, folder: Path, clips: Sequence[Clip], settings: Settings) -> None:
        super().__init__(folder, clips, settings)
        workers = max(1, settings.workers)
        if workers > len(os.sched_getaffinity(0)):
            # Read by Numba at its import; otherwise it limits workers to the number of cores.
            os.environ["NUMBA_NUM_THREADS"] = str(workers)
        from ffcv.fields.decoders import NDArrayDecoder
        from ffcv.loader import Loader as FfcvLoader
        from ffcv.loader import OrderOption
        from ffcv.transforms import ToTensor

        # FFCV's batches have the fields in the file's order.
        everything = load_features(folder)
        self._names = [name for name in everything if name in settings.features]
        pipelines = {
            name: [NDArrayDecoder(), ToTensor()] if name in self._names else None
            for name in everything
        }
        self._loader = FfcvLoader(
            str(folder / "frames.beton"),
            batch_size=settings.batch_size * settings.clip_len,
            num_workers=workers,
            order=OrderOption.SEQUENTIAL,
            indices=self._rows(clips),
            pipelines=pipelines,
            drop_last=False,
            batches_ahead=settings.prefetch,
        )

    def batches(self, clips: Sequence[Clip]) -> Iterator[Batch]:
        size = self.settings.batch_size
        self._loader.traversal_order.indices = self._rows(clips)
        for number, frames in enumerate(self._loader):
            chosen = clips[number * size : (number + 1) * size]
            batch: Batch = {
                name: array.reshape(len(chosen), -1, *array.shape[1:])
                for name, array in zip(self._names, frames, strict=True)
            }
            yield {**batch, **places(chosen)}

    def _rows(self, clips: Sequence[Clip]) -> Any:
        firsts = np.array([clip.row for clip in clips])
        return (firsts[:, None] + np.arange(self.settings.clip_len)).reshape(-1)


# ---- Microsoft's `seqrecord`, installed in a separate folder, as it has our name

MICROSOFT = Path(sys.prefix) / "microsoft-seqrecord"


def _microsoft() -> Any:
    """Microsoft's record class; its package imports pipes removed from torchdata."""
    with without_roots(MICROSOFT, "seqrecord", "seqrecord.robot"):
        module = importlib.import_module("seqrecord.robot.seqrecord")
    return module.RSeqRecord


def prepare_microsoft(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    record = _microsoft()(str(folder / "records"))
    frame: Mapping[str, Any] | None = None
    for _, frames in recordings.read():
        for index, frame in enumerate(frames):
            record.write_item(frame, is_seq_start=index == 0)
    # It drops the last clips of the last episode, so an episode of one frame is appended.
    record.write_item(frame, is_seq_start=True)
    record.close_recordfile()
    record.dump()


class Segments(IterDataPipe[Window]):
    """Clips of Microsoft's pipe with their positions; the pipe ignores the stride."""

    def __init__(self, folder: str, clips: Sequence[Clip], settings: Settings) -> None:
        self._folder = folder
        self._clips = {clip.row: clip for clip in clips}
        self._settings = settings

    def __iter__(self) -> Iterator[Window]:
        record = _microsoft().load_record_from_dict(self._folder)
        features = list(self._settings.features)
        plan = record.get_metadata4segment(self._settings.clip_len, features)
        segments = record.read_segments(plan)
        for row, segment in zip(plan["head4segment"], segments, strict=True):
            if clip := self._clips.get(row):
                place = {"episode": clip.episode, "index": clip.start}
                yield [
                    {**dict(zip(features, frame, strict=True)), **place}
                    for frame in zip(*(segment[name] for name in features), strict=True)
                ]


def open_microsoft(folder: Path, clips: Sequence[Clip], settings: Settings) -> Batches:
    """Microsoft's chain: a shuffle buffer of clips of mapped files, then a filter."""
    pipe: Any = Segments(str(folder / "records"), clips, settings)
    if settings.shuffle != "off":
        pipe = pipe.shuffle(buffer_size=settings.shuffle_buffer)
    pipe = pipe.sharding_filter().batch(settings.batch_size)
    pipe = pipe.collate(partial(collate, memory=_memory(folder, settings)))
    return DataLoader(pipe, batch_size=None, **loader_arguments(settings))


_CORES = len(os.sched_getaffinity(0))
# `workers` are threads of SPDL, DALI and FFCV, which have at least one. More of them than cores
# cannot win: files in the page cache leave nothing to wait for.
THREADS: tuple[Mapping[str, Any], ...] = tuple(
    {"workers": count} for count in (1, 2, 4) if count <= max(2, _CORES)
)
REUSED_THREADS = (*THREADS, *({**cell, "reused": True} for cell in THREADS[:2]))
IN_PROCESS: tuple[Mapping[str, Any], ...] = (*GRID, {"reused": True})

LOADERS = [
    Loader(
        "webdataset",
        "webdataset",
        prepare_tars,
        open_tars,
        shuffles=("off", "buffer"),
        needs=("webdataset",),
        frames="decoded in each epoch",
        grid=without_one_worker(IN_PROCESS),
    ),
    Loader(
        "spdl",
        "numpy-files",
        prepare_files,
        SpdlEpochs,
        needs=("spdl.io", "spdl.pipeline"),
        grid=REUSED_THREADS,
    ),
    Loader(
        "dali-files",
        "numpy-files",
        prepare_files,
        DaliEpochs,
        needs=("nvidia.dali",),
        grid=REUSED_THREADS,
    ),
    Loader(
        "dali-source",
        "numpy-files",
        prepare_files,
        DaliSourceEpochs,
        needs=("nvidia.dali",),
        grid=REUSED_THREADS,
    ),
    Loader(
        "ffcv",
        "ffcv",
        prepare_ffcv,
        FfcvEpochs,
        needs=("ffcv", "cv2"),
        install="make install-ffcv",
        alone=True,
        frames="mapped",
        grid=THREADS,
    ),
    Loader(
        "microsoft-seqrecord",
        "microsoft-seqrecord",
        prepare_microsoft,
        open_microsoft,
        shuffles=("off", "buffer"),
        needs=(str(MICROSOFT),),
        alone=True,
        frames="mapped",
        grid=without_one_worker(IN_PROCESS),
    ),
]
