"""What is loaded: the kinds of recordings of the published comparisons, each with its loaders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.audio.generate import generate as generate_audio
from benchmarks.audio.recordings import AudioRecordings
from benchmarks.audio.wav import FEATURE as AUDIO_FEATURE
from benchmarks.rgbd.frames import DEPTH, IMAGE
from benchmarks.rgbd.generate import generate as generate_rgbd
from benchmarks.rgbd.recordings import RgbdRecordings
from benchmarks.tartanair.compare.recordings import Recordings
from benchmarks.tartanair.compare.tree import Tree
from benchmarks.tartanair.generate import generate as generate_tree
from benchmarks.tartanair.loaders.base import USUAL, Loader, Settings
from benchmarks.tartanair.loaders.registry import all_loaders, loaders_in

__all__ = ["TARTANAIR", "WORKLOADS", "Workload"]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One kind of recordings.

    `generate(root, episodes)` writes recordings of so many frames each, and
    `open(root, features, cache)` finds them again. `base` is the settings of a row where no axis
    says otherwise. `heading`, `what` is loaded, in words, and a `note` about the rows are for
    results beside TartanAir's.
    """

    name: str
    generate: Callable[[Path, Sequence[int]], object]
    open: Callable[[Path, Sequence[str], Path], Recordings]
    loaders: Callable[[], Mapping[str, Loader]]
    base: Settings
    frame_nbytes: int  # about, for what fits
    num_frames: tuple[int, int]  # fewest and most, where it is left to what fits
    episode_frames: int | None = None  # of a recording, where the published ones have one length
    heading: str = ""
    what: str = ""
    note: str = ""

    def episodes(self, num_frames: int, count: int | None) -> list[int]:
        """How many frames each recording has: `count` recordings of `num_frames` in all."""
        if count is None and self.episode_frames is not None:
            return [self.episode_frames] * (num_frames // self.episode_frames) or [num_frames]
        count = count or 4
        return [num_frames // count] * count


def _generate_tree(root: Path, episodes: Sequence[int]) -> None:
    generate_tree(root, episodes=episodes)


TARTANAIR = Workload(
    name="tartanair",
    generate=_generate_tree,
    open=Tree.open,
    loaders=all_loaders,
    base=USUAL,
    frame_nbytes=4_700_000,  # of five features
    num_frames=(160, 2_000),
)
AUDIO = Workload(
    name="audio",
    generate=generate_audio,
    open=AudioRecordings.open,
    loaders=partial(loaders_in, "benchmarks.audio.loaders"),
    base=Settings(features=(AUDIO_FEATURE,), clip_len=10, batch_size=32),
    frame_nbytes=3_200,
    num_frames=(10_000, 100_000),
    episode_frames=100,
    heading="Audio",
    what="Sound like speech at 16 kHz in WAV files, in clips of 1 s, ten frames of 100 ms",
    note="In its first epoch, which is not counted, `seqrecord` reads and checks all frames; "
    "without workers it has them in memory from then on, as the files of other loaders are in the "
    "page cache.",
)
RGBD = Workload(
    name="rgbd",
    generate=generate_rgbd,
    open=RgbdRecordings.open,
    loaders=partial(loaders_in, "benchmarks.rgbd.loaders"),
    base=Settings(features=(IMAGE, DEPTH)),
    frame_nbytes=1_540_000,
    num_frames=(240, 1_920),
    episode_frames=240,
    heading="RGB-D",
    what="Colour and depth of 480x640 in JPEG and 16-bit PNG files, as an RGB-D camera saves them, "
    "in clips of 16 frames resized to 192x256",
)
WORKLOADS = {workload.name: workload for workload in (TARTANAIR, AUDIO, RGBD)}
