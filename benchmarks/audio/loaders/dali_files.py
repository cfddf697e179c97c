"""NVIDIA DALI on the CPU: WAV files that it decodes, and NumPy files of which it reads the clip."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.audio.loaders.numpy_files import FORMAT, npy_file
from benchmarks.audio.loaders.numpy_files import prepare as prepare_numpy
from benchmarks.audio.wav import BLOCK, FEATURE, wav_file
from benchmarks.tartanair.compare.recordings import Clip
from benchmarks.tartanair.loaders.base import (
    Batches,
    Loader,
    Place,
    Settings,
    one_format,
    prepare_link,
)
from benchmarks.tartanair.loaders.dali_epochs import DaliEpochs

SHAPES = {FEATURE: (BLOCK,)}


class WavEpochs(DaliEpochs):
    """For every clip its file is decoded whole, which is what DALI can do, and cut."""

    def __init__(self, root: Path, clips: Sequence[Clip], settings: Settings) -> None:
        super().__init__(clips, settings, SHAPES)
        self._root = root

    def build(self, clips: Sequence[Clip], size: int) -> Any:
        from nvidia.dali import fn, types

        def outputs() -> tuple[Any, ...]:
            encoded, start = fn.readers.file(
                files=[str(wav_file(self._root, clip.episode)) for clip in clips],
                labels=[clip.start * BLOCK for clip in clips],
            )
            samples, _rate = fn.decoders.audio(encoded, dtype=types.INT16)
            length = self.settings.clip_len * BLOCK
            return (fn.slice(samples, start=start, shape=[length], axes=[0]),)

        return self.pipeline(outputs, size)


class NumpyEpochs(DaliEpochs):
    """Regions of the files; where they begin comes from this process."""

    def __init__(self, folder: Path, clips: Sequence[Clip], settings: Settings) -> None:
        super().__init__(clips, settings, SHAPES)
        self._folder = folder

    def build(self, clips: Sequence[Clip], size: int) -> Any:
        from nvidia.dali import fn, types

        def start(info: Any) -> Any:  # DALI asks ahead
            if info.idx_in_epoch >= len(clips):
                raise StopIteration
            return np.array([clips[info.idx_in_epoch].start * BLOCK], np.int32)

        def outputs() -> tuple[Any, ...]:
            starts = fn.external_source(start, batch=False, parallel=False, dtype=types.INT32)
            files = [str(npy_file(self._folder, clip.episode)) for clip in clips]
            length = self.settings.clip_len * BLOCK
            return (fn.readers.numpy(files=files, roi_start=starts, roi_shape=[length]),)

        return self.pipeline(outputs, size)


def open_wav(place: Place, clips: Sequence[Clip], settings: Settings) -> Batches:
    return WavEpochs(place.folder / "wav", clips, settings)


def open_numpy(place: Place, clips: Sequence[Clip], settings: Settings) -> Batches:
    return NumpyEpochs(place.folder, clips, settings)


LOADERS = [
    Loader(
        name="dali-wav",
        format=one_format("original"),
        prepare=prepare_link("wav"),
        open=open_wav,
        storages=("local", "cold"),
        needs=("nvidia.dali",),
        note="WAV files, decoded whole for every clip; workers are threads, at least one",
    ),
    Loader(
        name="dali-numpy",
        format=one_format(FORMAT),
        prepare=prepare_numpy,
        open=open_numpy,
        needs=("nvidia.dali",),
        note="a .npy a recording, of which it reads a region; workers are threads, at least one",
    ),
]
