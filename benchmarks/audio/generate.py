"""Sound that is as loud, as pitched and as often silent as speech; it says nothing.

Syllables follow one another, each with a pitch, three formants and a consonant's hiss before it,
some of them pauses. The same arguments give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.audio.wav import BLOCK, RATE, Samples, wav_file, write

__all__ = ["generate", "speech"]

_HARMONICS = 16
_CONTROLS = 100  # a second, at which pitch and formants are known
_FORMANTS = ((300, 800), (900, 2300), (2300, 3000))  # Hz, lowest and highest
_WIDTHS = np.array([90.0, 130.0, 200.0])  # Hz, of the formants
_PAUSES = 0.2  # of the syllables


def generate(root: Path, episodes: Sequence[int], *, seed: int = 0) -> None:
    """Write a WAV file for each of `episodes`, which are their numbers of 100 ms blocks."""
    root.mkdir(parents=True)
    for number, blocks in enumerate(episodes):
        write(wav_file(root, f"{number:05d}"), speech(blocks * BLOCK, seed=seed, number=number))


def speech(count: int, *, seed: int = 0, number: int = 0) -> Samples:
    """`count` samples of a recording: int16 [count]."""
    rng = np.random.default_rng([seed, number])
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
