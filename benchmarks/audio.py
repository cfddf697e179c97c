"""The audio workload: WAV files of one second, and the loaders of the published comparison.

https://github.com/Jearde/PyTorch-DataLoader-Benchmark trains a linear autoencoder on batches of 32
files [1, 16000]. Here a frame is a file, a clip is a frame, and an episode is a folder of files
from one recording, so the loaders of `benchmarks.tartanair.loaders` read them unchanged. Batches
are int16 [32, 1, 16000]; the network converts them to floats.

Sound is generated as loud, as pitched and as often silent as speech: syllables follow one another,
each with a pitch, three formants and a consonant's hiss before it, some of them pauses. The same
arguments give the same bytes.
"""

from __future__ import annotations

import importlib
import wave
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.tartanair.compare.recordings import Clip, Episode, Feature, Frame, Recordings
from benchmarks.tartanair.loaders import arrays, records, streams
from benchmarks.tartanair.loaders.base import (
    REUSED_GRID,
    Batch,
    Into,
    Loader,
    Read,
    Settings,
    link_originals,
    load_keys,
    map_style,
    places,
)

__all__ = ["FEATURE", "LOADERS", "RATE", "AudioRecordings", "generate", "speech"]

RATE = 16_000  # samples a second, of one channel; also of a frame
FEATURE = "audio"

Samples = npt.NDArray[np.int16]


# ---- recordings


class AudioRecordings(Recordings):
    """Every file of every folder."""

    @classmethod
    def open(cls, root: Path, _features: Sequence[str]) -> AudioRecordings:
        folders = sorted(root.iterdir())
        episodes = tuple(Episode(f.name, sum(1 for _ in f.glob("*.wav"))) for f in folders)
        return cls(root, {FEATURE: Feature("<i2", (RATE,))}, episodes)

    def read(self) -> Iterator[tuple[Episode, Iterator[Frame]]]:
        for episode in self.episodes:
            files = sorted((self.root / episode.key).glob("*.wav"))
            yield episode, ({FEATURE: _decode(str(file))} for file in files)


def _decode(file: str) -> Samples:
    """With Python's own module."""
    with wave.open(file) as wav:
        samples = bytearray(wav.readframes(wav.getnframes()))  # writable
    return np.frombuffer(samples, "<i2")


# ---- generated sound

_HARMONICS = 16
_CONTROLS = 100  # a second, at which pitch and formants are known
_FORMANTS = ((300, 800), (900, 2300), (2300, 3000))  # Hz, lowest and highest
_WIDTHS = np.array([90.0, 130.0, 200.0])  # Hz, of the formants
_PAUSES = 0.2  # of the syllables


def generate(root: Path, episodes: Sequence[int]) -> None:
    """Write a folder for each of `episodes`, which are their numbers of files."""
    for number, count in enumerate(episodes):
        folder = root / f"{number:04d}"
        folder.mkdir(parents=True)
        for index, samples in enumerate(speech(count * RATE, number=number).reshape(count, RATE)):
            with wave.open(str(folder / f"{index:06d}.wav"), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(RATE)
                file.writeframes(samples.astype("<i2").tobytes())


def speech(count: int, *, number: int = 0) -> Samples:
    """`count` samples of a recording: int16 [count]."""
    rng = np.random.default_rng([0, number])
    times = np.arange(0, count / RATE + 1 / _CONTROLS, 1 / _CONTROLS)
    pitch, formants, loudness, hiss = _controls(times, rng)
    at = np.arange(count) / RATE
    phase = 2 * np.pi * np.cumsum(np.interp(at, times, pitch)) / RATE
    voice = np.zeros(count)
    for k in range(1, _HARMONICS + 1):
        away = (k * pitch[:, None] - formants) / _WIDTHS
        resonance = (1 / (1 + away**2)).sum(1) + 0.02
        voice += np.interp(at, times, loudness * resonance / k) * np.sin(k * phase)
    noise = np.diff(rng.standard_normal(count + 1)) * np.interp(at, times, hiss)
    room = rng.standard_normal(count) * 0.002
    sound = voice + 0.1 * noise + room
    samples: Samples = np.round(sound / np.abs(sound).max() * 0.8 * 32767).astype(np.int16)
    return samples


def _controls(
    times: npt.NDArray[np.float64], rng: np.random.Generator
) -> tuple[npt.NDArray[np.float64], ...]:
    """Pitch in Hz [T], formants in Hz [T, 3], loudness of the voice [T] and of the hiss [T]."""
    lengths = rng.uniform(0.12, 0.3, int(times[-1] / 0.12) + 2)  # seconds, of the syllables
    ends = np.cumsum(lengths)
    syllable = np.searchsorted(ends, times)
    since = 1 - (ends[syllable] - times) / lengths[syllable]  # 0 to 1, of the syllable
    count = len(lengths)
    speaker = rng.uniform(95, 220)
    pitch = speaker * 2 ** np.cumsum(rng.normal(0, 0.04, count) - 0.01)
    pitch = np.interp(times, ends, np.clip(pitch, 70, 300))
    formants = np.stack(
        [np.interp(times, ends, rng.uniform(low, high, count)) for low, high in _FORMANTS], axis=1
    )
    spoken = (rng.uniform(size=count) > _PAUSES) * rng.uniform(0.4, 1, count)
    loudness = spoken[syllable] * np.sin(np.pi * np.clip((since - 0.2) / 0.8, 0, 1))
    hiss = spoken[syllable] * np.clip(1 - since / 0.25, 0, 1)
    return pitch, formants, loudness, hiss


# ---- loaders


def read_wavs(make_decode: Callable[[], Callable[[str], Any]]) -> Callable[[Path, Settings], Read]:
    """A file for each frame. `make_decode` imports the decoder: a function of the path."""

    def make_read(folder: Path, _settings: Settings) -> Read:
        files, decode = _files(folder), make_decode()

        def read(clip: Clip, _into: Into) -> Frame:
            frames = [decode(file) for file in files[clip.row : clip.row + clip.stop - clip.start]]
            return {FEATURE: np.stack(frames)}

        return read

    return make_read


def _files(folder: Path) -> list[str]:
    """The file of each row."""
    return sorted(map(str, (folder / "originals").glob("*/*.wav")))


def _torchaudio() -> Callable[[str], Any]:
    try:
        torchaudio = importlib.import_module("torchaudio")
    except OSError as error:  # without the library's path
        found = f"torch {torch.__version__}: {error.__cause__ or error}"
        raise ImportError(f"torchaudio does not load beside {found}") from error
    return lambda file: torchaudio.load(file, normalize=False)[0][0].numpy()


def _soundfile() -> Callable[[str], Any]:
    soundfile: Any = importlib.import_module("soundfile")
    return lambda file: soundfile.read(file, dtype="int16")[0]


class DaliWavEpochs(streams.DaliEpochs):
    """WAV files, read and decoded by DALI."""

    def _outputs(self, clips: Sequence[Clip]) -> tuple[Any, ...]:
        from nvidia.dali import fn, types

        every = _files(self.folder)
        encoded, _label = fn.readers.file(files=[every[clip.row] for clip in clips])
        return (fn.decoders.audio(encoded, dtype=types.INT16, downmix=True)[0],)


class DaliTarEpochs(streams.DaliEpochs):
    """WebDataset's tars, read and shuffled by DALI; each sample's place is in its `source_info`."""

    def batches(self, clips: Sequence[Clip]) -> Iterator[Batch]:
        from nvidia.dali import pipeline_def

        settings, keys = self.settings, load_keys(self.folder)
        self._epoch = getattr(self, "_epoch", settings.seed) + 1
        pipeline = pipeline_def(self._tar_outputs)(
            batch_size=settings.batch_size,
            num_threads=max(1, settings.workers),
            device_id=None,
            prefetch_queue_depth=settings.prefetch,
            seed=self._epoch,
        )
        pipeline.build()
        for left in range(len(clips), 0, -settings.batch_size):
            audio, names = (output.as_array() for output in pipeline.run())
            found = [bytes(name).decode().rsplit(":", 1)[1] for name in names[:left]]
            at = [tuple(map(int, name.partition(".")[0].split("/"))) for name in found]
            read = [Clip(keys[episode], start, start + 1, 0) for episode, start in at]
            yield {FEATURE: torch.from_numpy(np.array(audio[:left, None])), **places(read)}

    def _tar_outputs(self) -> tuple[Any, ...]:
        from nvidia.dali import fn, types

        settings = self.settings
        encoded = fn.readers.webdataset(
            paths=sorted(map(str, self.folder.glob("*.tar"))),
            ext=[f"{FEATURE}.npy"],
            random_shuffle=settings.shuffle != "off",
            initial_fill=settings.shuffle_buffer,
        )
        info = fn.get_property(encoded, key="source_info")
        return fn.decoders.numpy(encoded, dtype=types.INT16), fn.pad(info)


# moto copies the whole file for each range.
_prepare_records = partial(records.prepare_records, max_file_size=16 << 20)
_SHARED = ("by-hand", "memmap", "hdf5", "tensordict", "dali-files", "dali-source", "webdataset")
_EACH = "decoded for each clip"
LOADERS = [
    Loader(
        "original",
        "original",
        link_originals,
        map_style(read_wavs(lambda: _decode)),
        frames=_EACH,
        grid=REUSED_GRID,
    ),
    *(
        Loader(
            name,
            "original",
            link_originals,
            map_style(read_wavs(decode)),
            needs=(name,),
            alone=name == "torchaudio",  # may fail to load
            frames=_EACH,
            grid=REUSED_GRID,
        )
        for name, decode in (("torchaudio", _torchaudio), ("soundfile", _soundfile))
    ),
    Loader(
        "dali-wav",
        "original",
        link_originals,
        DaliWavEpochs,
        needs=("nvidia.dali",),
        frames=_EACH,
        grid=streams.THREADS,
    ),
    Loader(
        "dali-webdataset",
        "webdataset",
        streams.prepare_tars,
        DaliTarEpochs,
        shuffles=("off", "buffer"),
        needs=("nvidia.dali", "webdataset"),
        frames="decoded in each epoch",
        grid=streams.THREADS,
    ),
    *(loader for loader in (*arrays.LOADERS, *streams.LOADERS) if loader.name in _SHARED),
    *(replace(loader, prepare=_prepare_records) for loader in records.LOADERS[:2]),
]
