"""The workloads: kinds of recordings of published comparisons, each with its loaders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks import audio, rgbd
from benchmarks.tartanair.compare.recordings import Recordings, Tree
from benchmarks.tartanair.generate import generate as generate_tree
from benchmarks.tartanair.loaders import arrays, records, streams
from benchmarks.tartanair.loaders.base import BASELINE, USUAL, Loader, Settings

__all__ = ["AUDIO", "RGBD", "TARTANAIR", "WORKLOADS", "Workload"]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One kind of recordings.

    `generate(root, episodes)` writes recordings of these numbers of frames, and
    `open(root, features)` finds them again. `base` is the settings unless a row says otherwise.
    """

    name: str
    heading: str
    what: str
    generate: Callable[[Path, Sequence[int]], object]
    open: Callable[[Path, Sequence[str]], Recordings]
    rows: Sequence[Loader]
    base: Settings
    frame_nbytes: int  # about, to choose how many fit
    num_frames: tuple[int, int]  # fewest and most, where as many are made as fit
    episode_frames: int | None = None  # of a recording; None: four recordings
    note: str = ""

    @cached_property
    def loaders(self) -> dict[str, Loader]:
        """By name: the baseline and ours first."""
        ordered = sorted(self.rows, key=lambda row: (row.name != BASELINE, "seqr" not in row.name))
        return {loader.name: loader for loader in ordered}

    def episodes(self, num_frames: int) -> list[int]:
        """The number of frames of each recording, for about `num_frames` in all."""
        if self.episode_frames is None:
            return [num_frames // 4] * 4
        return [self.episode_frames] * (num_frames // self.episode_frames) or [num_frames]


def _generate_tree(root: Path, episodes: Sequence[int]) -> None:
    generate_tree(root, episodes=episodes)


TARTANAIR = Workload(
    name="tartanair",
    heading="TartanAir",
    what="Rendered frames",
    generate=_generate_tree,
    open=Tree.open,
    rows=[*records.LOADERS, *arrays.LOADERS, *streams.LOADERS],
    base=USUAL,
    frame_nbytes=4_700_000,  # of five features
    num_frames=(160, 2_000),
)
AUDIO = Workload(
    name="audio",
    heading="Audio",
    what="Sound like speech at 16 kHz in WAV files, in clips of 1 s, ten frames of 100 ms",
    generate=audio.generate,
    open=audio.AudioRecordings.open,
    rows=audio.LOADERS,
    base=Settings(features=(audio.FEATURE,), clip_len=10, batch_size=32),
    frame_nbytes=3_200,
    num_frames=(10_000, 100_000),
    episode_frames=100,
    note=" In its first epoch, which is not counted, `seqrecord` reads and checks all frames; "
    "without workers it has them in memory from then on, as the files of other loaders are in the "
    "page cache.",
)
RGBD = Workload(
    name="rgbd",
    heading="RGB-D",
    what="Colour and depth of 480x640 in JPEG and 16-bit PNG files, as an RGB-D camera saves them, "
    "in clips of 16 frames resized to 192x256",
    generate=rgbd.generate,
    open=rgbd.RgbdRecordings.open,
    rows=rgbd.LOADERS,
    base=Settings(features=(rgbd.IMAGE, rgbd.DEPTH)),
    frame_nbytes=1_540_000,
    num_frames=(240, 1_920),
    episode_frames=240,
)
WORKLOADS = {workload.name: workload for workload in (TARTANAIR, AUDIO, RGBD)}
