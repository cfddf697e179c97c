"""A NumPy file for each frame of each feature: SPDL's threads read them, and DALI's readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.tartanair.compare.recordings import Clip, Recordings
from benchmarks.tartanair.loaders.base import (
    Batch,
    Batches,
    Loader,
    Place,
    Settings,
    one_format,
)
from benchmarks.tartanair.loaders.dali_epochs import DaliEpochs, places
from benchmarks.tartanair.loaders.map_style import Order


def prepare(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    for name in recordings.features:
        (folder / name).mkdir()
    for row, frame in enumerate(recordings.rows()):
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
        return {**batch, **places(clips)}


class DaliFrames(DaliEpochs):
    """The files of the clips' frames, read by DALI or, if `external`, by this process."""

    def __init__(
        self, folder: Path, clips: Sequence[Clip], settings: Settings, external: bool
    ) -> None:
        first = {name: np.load(path(folder, name, 0)) for name in settings.features}
        super().__init__(clips, settings, {name: frame.shape for name, frame in first.items()})
        self._folder = folder
        self._external = external
        self._dtypes = {name: frame.dtype for name, frame in first.items()}

    def build(self, clips: Sequence[Clip], size: int) -> Any:
        from nvidia.dali import fn, types

        length = self.settings.clip_len
        rows = [clip.row + i for clip in clips for i in range(length)]

        def source(name: str) -> Any:
            def load(info: Any) -> Any:  # DALI looks at its signature, and asks ahead
                if info.idx_in_epoch >= len(rows):
                    raise StopIteration
                return np.load(path(self._folder, name, rows[info.idx_in_epoch]))

            return load

        def outputs() -> tuple[Any, ...]:
            if self._external:
                return tuple(
                    fn.external_source(
                        source(name),
                        batch=False,
                        parallel=False,
                        dtype=getattr(types, dtype.name.upper().replace("FLOAT32", "FLOAT")),
                    )
                    for name, dtype in self._dtypes.items()
                )
            return tuple(
                fn.readers.numpy(files=[path(self._folder, name, row) for row in rows], name=name)
                for name in self.settings.features
            )

        return self.pipeline(outputs, size * length)


def open_spdl(place: Place, clips: Sequence[Clip], settings: Settings) -> Batches:
    return SpdlEpochs(place.folder, clips, settings)


def open_dali(
    place: Place, clips: Sequence[Clip], settings: Settings, *, external: bool
) -> Batches:
    return DaliFrames(place.folder, clips, settings, external)


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
