"""A NumPy file for each frame of each feature: SPDL's threads read them, and DALI's readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.tartanair.compare.tree import Clip, Tree
from benchmarks.tartanair.loaders.base import (
    Batch,
    Batches,
    Loader,
    Place,
    Settings,
    one_format,
)
from benchmarks.tartanair.loaders.map_style import Order


def prepare(tree: Tree, folder: Path, _settings: Settings) -> None:
    for name in tree.features:
        (folder / name).mkdir()
    for row, frame in enumerate(tree.rows()):
        for name, array in frame.items():
            np.save(path(folder, name, row), array)


def path(folder: Path, feature: str, row: int) -> str:
    return f"{folder}/{feature}/{row:08d}.npy"


class SpdlEpochs:
    """Each batch is read by one of the pipeline's threads."""

    def __init__(self, folder: Path, clips: Sequence[Clip], settings: Settings) -> None:
        self._folder = folder
        self._clips = clips
        self._settings = settings
        self._order = Order(len(clips), settings)

    def __iter__(self) -> Iterator[Batch]:
        from spdl.pipeline import PipelineBuilder

        settings = self._settings
        threads = max(1, settings.workers)
        pipeline = (
            PipelineBuilder()
            .add_source(list(self._order))
            .aggregate(settings.batch_size)
            .pipe(self._read, concurrency=threads, output_order="input")
            .add_sink(max(1, settings.prefetch))
            .build(num_threads=threads)
        )
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    def _read(self, numbers: Sequence[int]) -> Batch:
        import spdl.io

        clips = [self._clips[number] for number in numbers]
        batch: Batch = {}
        for name in self._settings.features:
            array: Any = None
            for i, clip in enumerate(clips):
                for j in range(clip.stop - clip.start):
                    with open(path(self._folder, name, clip.row + j), "rb") as file:  # noqa: PTH123 - quicker
                        frame = spdl.io.load_npy(file.read())
                    if array is None:
                        shape = (len(clips), clip.stop - clip.start, *frame.shape)
                        array = np.empty(shape, frame.dtype)
                    array[i, j] = frame
            batch[name] = torch.from_numpy(array)
        return {**batch, **names(clips)}


class DaliEpochs:
    """DALI reads the files in the order of the clips; the source of names is this process."""

    def __init__(
        self, folder: Path, clips: Sequence[Clip], settings: Settings, external: bool
    ) -> None:
        self._folder = folder
        self._clips = clips
        self._settings = settings
        self._external = external
        self._order = Order(len(clips), settings)

    def __iter__(self) -> Iterator[Batch]:
        clips = [self._clips[number] for number in self._order]
        size = self._settings.batch_size
        whole = len(clips) // size * size
        # A pipeline's batches are of one size: the rest of the epoch has one of its own.
        for part in (clips[:whole], clips[whole:]):
            if part:
                yield from self._run(part, min(size, len(part)))

    def _run(self, clips: Sequence[Clip], size: int) -> Iterator[Batch]:
        pipeline = self._build(clips, size)
        length = self._settings.clip_len
        for at in range(0, len(clips), size):
            outputs = pipeline.run()
            batch: Batch = {}
            for name, output in zip(self._settings.features, outputs, strict=True):
                frames = np.array(output.as_array())  # DALI reuses its own
                clips_of_frames = frames.reshape(size, length, *frames.shape[1:])
                batch[name] = torch.from_numpy(clips_of_frames)
            yield {**batch, **names(clips[at : at + size])}

    def _build(self, clips: Sequence[Clip], size: int) -> Any:
        from nvidia.dali import fn, pipeline_def, types

        length = self._settings.clip_len
        rows = [clip.row + i for clip in clips for i in range(length)]

        def source(name: str) -> Any:
            def load(info: Any) -> Any:  # DALI looks at its signature, and asks ahead
                if info.idx_in_epoch >= len(rows):
                    raise StopIteration
                return np.load(path(self._folder, name, rows[info.idx_in_epoch]))

            return load

        @pipeline_def  # type: ignore[untyped-decorator]
        def make() -> Any:
            outputs = []
            for name in self._settings.features:
                if self._external:
                    dtype = np.load(path(self._folder, name, rows[0])).dtype
                    outputs.append(
                        fn.external_source(
                            source(name),
                            batch=False,
                            parallel=False,
                            dtype=getattr(types, dtype.name.upper().replace("FLOAT32", "FLOAT")),
                        )
                    )
                else:
                    files = [path(self._folder, name, row) for row in rows]
                    outputs.append(fn.readers.numpy(files=files, name=name))
            return tuple(outputs)

        pipeline = make(
            batch_size=size * length,
            num_threads=max(1, self._settings.workers),
            device_id=None,
            prefetch_queue_depth=max(1, self._settings.prefetch),
        )
        pipeline.build()
        return pipeline


def names(clips: Sequence[Clip]) -> Batch:
    return {
        "episode": [clip.episode for clip in clips],
        "start": torch.tensor([clip.start for clip in clips]),
    }


def open_spdl(place: Place, clips: Sequence[Clip], settings: Settings) -> Batches:
    return SpdlEpochs(place.folder, clips, settings)


def open_dali(
    place: Place, clips: Sequence[Clip], settings: Settings, *, external: bool
) -> Batches:
    return DaliEpochs(place.folder, clips, settings, external)


LOADERS = [
    Loader(
        name="spdl",
        format=one_format("numpy-files"),
        prepare=prepare,
        open=open_spdl,
        needs=("spdl.io", "spdl.pipeline"),
        note="a file a frame and feature; workers are threads, at least one",
    ),
    *(
        Loader(
            name=name,
            format=one_format("numpy-files"),
            prepare=prepare,
            open=partial(open_dali, external=external),
            needs=("nvidia.dali",),
            note="a file a frame and feature, on the CPU; workers are threads, at least one",
        )
        for name, external in (("dali-files", False), ("dali-source", True))
    ),
]
