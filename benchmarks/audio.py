"""The workload of sound: recordings in WAV files, and the loaders of their clips.

A frame is a block of 1,600 samples at 16 kHz, 100 ms. A clip of 1 s is ten frames, int16
[10, 1600]. Sound is generated as loud, as pitched and as often silent as speech: syllables follow
one another, each with a pitch, three formants and a consonant's hiss before it, some of them
pauses. The same arguments give the same bytes.
"""

from __future__ import annotations

import io
import wave
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import default_collate

from benchmarks.tartanair.compare.recordings import Clip, Episode, Feature, Frame, Recordings
from benchmarks.tartanair.loaders import arrays, records
from benchmarks.tartanair.loaders.base import (
    Batches,
    Loader,
    Read,
    Settings,
    link_originals,
    map_style,
)
from benchmarks.tartanair.loaders.streams import tar_batches

__all__ = ["BLOCK", "FEATURE", "LOADERS", "RATE", "AudioRecordings", "generate", "speech"]

RATE = 16_000  # samples a second, of one channel
BLOCK = 1_600  # samples of a frame
FEATURE = "audio"
_RECORDINGS_PER_TAR = 50

Samples = npt.NDArray[np.int16]


# ---- recordings


class AudioRecordings(Recordings):
    """Every block of every file."""

    @classmethod
    def open(cls, root: Path, _features: Sequence[str]) -> AudioRecordings:
        files = sorted(root.glob("*.wav"))
        episodes = tuple(Episode(file.stem, len(_read_blocks(file))) for file in files)
        return cls(root, {FEATURE: Feature("<i2", (BLOCK,))}, episodes)

    def read(self) -> Iterator[tuple[Episode, Iterator[Frame]]]:
        for episode in self.episodes:
            blocks = _read_blocks(self.root / f"{episode.key}.wav")
            yield episode, ({FEATURE: block} for block in blocks)


def _read_blocks(file: Path | IO[bytes], start: int = 0, stop: int | None = None) -> Samples:
    """Blocks `start` to `stop`, or to the end: int16 [stop - start, BLOCK]. Reads no others."""
    with wave.open(str(file) if isinstance(file, Path) else file) as wav:
        if stop is None:
            stop = wav.getnframes() // BLOCK
        wav.setpos(start * BLOCK)
        samples = bytearray(wav.readframes((stop - start) * BLOCK))  # for arrays to write to
    return np.frombuffer(samples, "<i2").reshape(-1, BLOCK)


# ---- generated sound

_HARMONICS = 16
_CONTROLS = 100  # a second, at which pitch and formants are known
_FORMANTS = ((300, 800), (900, 2300), (2300, 3000))  # Hz, lowest and highest
_WIDTHS = np.array([90.0, 130.0, 200.0])  # Hz, of the formants
_PAUSES = 0.2  # of the syllables


def generate(root: Path, episodes: Sequence[int]) -> None:
    """Write a WAV file for each of `episodes`, which are their numbers of blocks."""
    root.mkdir(parents=True)
    for number, blocks in enumerate(episodes):
        with wave.open(str(root / f"{number:05d}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(speech(blocks * BLOCK, number=number).astype("<i2").tobytes())


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


def read_wav(folder: Path, _settings: Settings) -> Read:
    """Each file is opened anew for every clip, of which only the clip is read."""

    def read(clip: Clip) -> Frame:
        file = folder / "originals" / f"{clip.episode}.wav"
        return {FEATURE: _read_blocks(file, clip.start, clip.stop)}

    return read


def prepare_numpy(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    for episode, frames in recordings.read():
        np.save(folder / f"{episode.key}.npy", np.concatenate([f[FEATURE] for f in frames]))


def read_numpy(folder: Path, _settings: Settings) -> Read:
    """A NumPy file of samples [T] for each recording, mapped anew for every clip."""

    def read(clip: Clip) -> Frame:
        samples = np.load(folder / f"{clip.episode}.npy", mmap_mode="r")
        part = samples[clip.start * BLOCK : clip.stop * BLOCK]
        return {FEATURE: np.array(part).reshape(-1, BLOCK)}

    return read


def prepare_tars(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    import webdataset

    keys = [episode.key for episode in recordings.episodes]
    for first in range(0, len(keys), _RECORDINGS_PER_TAR):
        with webdataset.TarWriter(str(folder / f"{first:06d}.tar")) as tar:
            for key in keys[first : first + _RECORDINGS_PER_TAR]:
                tar.write({"__key__": key, "wav": (recordings.root / f"{key}.wav").read_bytes()})


def _to_clips(samples: Iterable[dict[str, Any]], settings: Settings) -> Iterator[dict[str, Any]]:
    for sample in samples:
        blocks = _read_blocks(io.BytesIO(sample["wav"]))
        for start in range(0, len(blocks) - settings.clip_len + 1, settings.stride):
            part = blocks[start : start + settings.clip_len]
            yield {FEATURE: part, "episode": sample["__key__"], "start": start}


def open_tars(folder: Path, _clips: Sequence[Clip], settings: Settings) -> Batches:
    return tar_batches(
        sorted(map(str, folder.glob("*.tar"))),
        settings,
        to_clips=partial(_to_clips, settings=settings),
        collate=default_collate,
    )


LOADERS = [
    Loader("original", "original", link_originals, map_style(read_wav)),
    *records.LOADERS,
    arrays.MEMMAP,
    Loader("numpy-files", "numpy-recordings", prepare_numpy, map_style(read_numpy)),
    Loader(
        "webdataset",
        "webdataset-wavs",
        prepare_tars,
        open_tars,
        shuffles=("off", "buffer"),
        needs=("webdataset",),
    ),
]
