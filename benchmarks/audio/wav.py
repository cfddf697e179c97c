"""Recordings of sound in WAV files, and the blocks of samples that are their frames."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

__all__ = ["BLOCK", "FEATURE", "RATE", "Samples", "blocks_in", "read_blocks", "wav_file", "write"]

RATE = 16_000  # samples a second, of one channel
BLOCK = 1_600  # samples of a frame, 100 ms
FEATURE = "audio"

Samples = npt.NDArray[np.int16]


def wav_file(root: Path, key: str) -> Path:
    """Where a recording lies."""
    return root / f"{key}.wav"


def write(path: Path, samples: Samples) -> None:
    """Save samples [T] of 16 bits."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.astype("<i2").tobytes())


def blocks_in(path: Path) -> int:
    """How many whole blocks a file has."""
    with wave.open(str(path)) as file:
        samples: int = file.getnframes()
    return samples // BLOCK


def read_blocks(file: Path | IO[bytes], start: int = 0, stop: int | None = None) -> Samples:
    """Blocks `start` to `stop`, or to the end: int16 [stop - start, BLOCK]. Reads no others."""
    with wave.open(str(file) if isinstance(file, Path) else file) as wav:
        if stop is None:
            stop = wav.getnframes() // BLOCK
        wav.setpos(start * BLOCK)
        samples = bytearray(wav.readframes((stop - start) * BLOCK))  # for arrays to write to
    return np.frombuffer(samples, "<i2").reshape(-1, BLOCK)
