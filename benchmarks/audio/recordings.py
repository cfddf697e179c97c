"""A folder of WAV files as recordings.

A frame is a block of 1,600 samples, 100 ms: the unit in which clips begin and end. So a clip of
1 s is 10 frames, int16 [10, 1600], and flattening it gives its samples. With a stride of 1 a clip
begins every 100 ms and each sample is in ten clips; with a stride of 10 clips do not overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.audio.wav import BLOCK, FEATURE, blocks_in, read_blocks, wav_file
from benchmarks.tartanair.compare.recordings import Episode, Feature, Frame, Recordings

__all__ = ["AudioRecordings"]


class AudioRecordings(Recordings):
    """Every block of every file."""

    @classmethod
    def open(cls, root: Path, _features: Sequence[str], _cache: Path) -> AudioRecordings:
        files = sorted(root.glob("*.wav"))
        episodes = tuple(Episode(file.stem, blocks_in(file)) for file in files)
        return cls(root, {FEATURE: Feature("<i2", (BLOCK,))}, episodes)

    def read(self) -> Iterator[tuple[Episode, Iterator[Frame]]]:
        for episode in self.episodes:
            blocks = read_blocks(wav_file(self.root, episode.key))
            yield episode, ({FEATURE: block} for block in blocks)
