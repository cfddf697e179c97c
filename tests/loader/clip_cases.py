"""Small datasets, as integers, for the tests of clips and plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from seqrecord import ClipSpec
from seqrecord.loader.clips.samples import SampleEpisodes, Samples, empty_clips
from seqrecord.loader.clips.tables import (
    ClipTable,
    EpisodeLayout,
    MissingFrames,
    enumerate_clips,
)
from seqrecord.store.tables.grids import ChunkGrid, IntArray


@dataclass(frozen=True)
class Case:
    """A clip request on a small dataset; `missing` contains pairs (episode, frame)."""

    num_frames: tuple[int, ...]
    chunk_frames: tuple[int, ...]
    spec: ClipSpec
    selected: tuple[int, ...]
    missing: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def of(cls, spec: ClipSpec, num_frames: Sequence[int], chunk_frames: int) -> Case:
        """All episodes, in chunks of equal length."""
        count = len(num_frames)
        return cls((*num_frames,), (chunk_frames,) * count, spec, (*range(count),))

    @property
    def episodes(self) -> EpisodeLayout:
        return episode_table(self.num_frames, self.chunk_frames)

    @property
    def table(self) -> ClipTable:
        return enumerate_clips(
            self.spec, self.episodes, np.array(self.selected, np.int64), self.missing_frames
        )

    @property
    def missing_frames(self) -> MissingFrames:
        pairs = np.array([(e, f, f + 1) for e, f in sorted(self.missing)], np.int64)
        return MissingFrames.of(*pairs.reshape(-1, 3).T)

    def clips(self) -> list[tuple[int, int]]:
        """(episode, start) of every clip, by brute force."""
        return [
            (episode, start)
            for episode in self.selected
            for start in self.possible_starts(episode)
            if not any((episode, frame) in self.missing for frame in self.frames(start))
        ]

    def possible_starts(self, episode: int) -> list[int]:
        last = self.num_frames[episode] - self.spec.span
        return list(range(self.spec.phase, last + 1, self.spec.stride))

    def frames(self, start: int) -> list[int]:
        return [start + i * self.spec.dilation for i in range(self.spec.length)]


def episode_table(num_frames: Sequence[int], *chunk_frames: Sequence[int]) -> EpisodeLayout:
    """Episodes with consecutive chunks, whose lengths are given by group and episode."""
    lengths = np.array(num_frames, np.int64)
    grids = []
    for group, sizes in enumerate(np.array(chunk_frames, np.int64)):
        chunks = -(-lengths // sizes)
        grids.append(ChunkGrid(sizes, np.cumsum(chunks) - chunks, group))
    return EpisodeLayout(lengths, tuple(grids))


def layout_of(num_frames: npt.ArrayLike, *grids: ChunkGrid, leading: int = 0) -> EpisodeLayout:
    """Episodes with the chunks of each group."""
    return EpisodeLayout(np.array(num_frames, np.int64), grids, leading)


def clips_of(
    spec: ClipSpec, episodes: EpisodeLayout, missing: MissingFrames | None = None
) -> ClipTable:
    """The clips of all episodes."""
    return enumerate_clips(spec, episodes, np.arange(len(episodes)), missing)


def grid_of(chunks: Sequence[Sequence[int]], group: int = 0) -> ChunkGrid:
    """Chunk grid from the chunk lengths of each episode."""
    count = np.array([len(lengths) for lengths in chunks])
    begins = [begin for lengths in chunks for begin in [0, *accumulate(lengths)][:-1]]
    num_frames = np.array([sum(lengths) for lengths in chunks])
    first_frame = np.array(begins, np.uint32)
    return ChunkGrid.of(num_frames, np.cumsum(count) - count, first_frame, group=group)


@st.composite
def specs(draw: st.DrawFn) -> ClipSpec:
    stride = draw(st.integers(1, 9))
    return ClipSpec(
        length=draw(st.integers(1, 6)),
        stride=stride,
        dilation=draw(st.integers(1, 4)),
        phase=draw(st.integers(0, stride - 1)),
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_frames = draw(st.lists(st.integers(1, 70), min_size=1, max_size=6))
    chunk_frames = draw(
        st.lists(
            st.sampled_from([1, 2, 3, 4, 5, 8, 16, 31, 64]),
            min_size=len(num_frames),
            max_size=len(num_frames),
        )
    )
    episodes = st.integers(0, len(num_frames) - 1)
    selected = draw(st.sets(episodes)) or set(range(len(num_frames)))
    gaps = draw(st.lists(st.tuples(episodes, st.integers(0, 69), st.integers(1, 9)), max_size=5))
    missing = {
        (episode, frame)
        for episode, start, length in gaps
        for frame in range(start, start + length)
        if frame < num_frames[episode]
    }
    return Case(
        tuple(num_frames),
        tuple(chunk_frames),
        draw(specs()),
        tuple(sorted(selected)),
        frozenset(missing),
    )


def listed_clips(
    spec: ClipSpec, num_episodes: int, episode: IntArray, start: IntArray, times: IntArray
) -> ClipTable:
    """The clips of a user's table, each `times`, int64[n]."""
    clips, none = empty_clips(spec, np.arange(num_episodes)), cast(SampleEpisodes, None)
    samples = Samples.of(clips, none, episode, start, {"times": times})
    return samples.repeated(np.asarray(samples.values("times", samples.keys)))
