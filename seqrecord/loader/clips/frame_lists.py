"""Clips given as lists of frames, such as pairs of views: integers, without I/O.

The *listed frames* of an episode are those that some of its clips use, in order. A plan takes them
for the episode: clips are lists of places among them, within one common window::

    clips       3 41    3 17    17 60
    listed      3   17   41   60            frames
    places      0   1    2    3
    clips       0 2     0 1     1 3         as places
    starts      0       1       2           unique, at or after the clip's first place

Plans and engines see places only, and decode each frame once for all clips. If lists differ in
length, the last frame of a shorter one is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from seqrecord.loader.clips.frames import ClipFrames, ClipKeys, ClipWindow, Reach, WindowFrames
from seqrecord.loader.clips.tables import EpisodeLayout
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.tables.grids import ChunkGrid, IntArray, frame_keys, split_keys


@dataclass(frozen=True, eq=False)
class FrameLists(ClipWindow):
    """Frame lists of n samples, and the listed frames of their episodes.

    Those of episode `i` are `frames[first[i]:first[i + 1]]` of `episode[i]`, a row of the index;
    both ascend. Sample `j` belongs to episode `owner[j]`, starts at `start[j]` and has the frames
    at `places[j]`, int64[T], the first `length_of[j]` of them if not `None`. Samples are sorted by
    episode and start.
    """

    episode: IntArray
    first: IntArray
    frames: IntArray
    owner: IntArray
    start: IntArray
    places: IntArray
    length_of: IntArray | None = None

    @classmethod
    def of(cls, episode: IntArray, frames: IntArray) -> tuple[FrameLists, IntArray]:
        """The lists of samples in any order: `episode`, int64[n], and `frames`, int64[n, T]; -1
        follows a shorter list. Also returns the index of each sample in these arrays, int64[n].
        """
        lengths, frames = (frames >= 0).sum(axis=1), with_last_repeated(frames)
        order = np.lexsort((frames.min(axis=1), episode))  # then as listed
        episode, frames = episode[order], frames[order]
        owner = np.cumsum(np.diff(episode, prepend=episode[:1]) != 0)
        keys = frame_keys(owner[:, None], frames)
        unique_keys, places = np.unique(keys, return_inverse=True)
        owners, listed = split_keys(unique_keys)
        count = int(owner[-1]) + 1
        offsets = np.searchsorted(owners, np.arange(count + 1))
        places = places.reshape(keys.shape) - offsets[owner][:, None]
        # The start is the first place, or the next one that no other clip has as its start.
        number, apart = np.arange(len(owner)), 4 * (len(owner) + len(unique_keys) + 1)
        begin = np.searchsorted(owner, owner)
        early = places.min(axis=1) - (number - begin) + owner * apart
        start = np.maximum.accumulate(early) - owner * apart + (number - begin)
        rows = episode[np.searchsorted(owner, np.arange(count))]
        length_of = None if (lengths == frames.shape[1]).all() else lengths[order]
        return cls(rows, offsets, listed, owner, start, places, length_of), order

    def __len__(self) -> int:
        return len(self.episode)

    @property
    def num_frames(self) -> IntArray:
        """Number of listed frames of each episode, int64[episodes]."""
        return np.diff(self.first)

    def stored_frames(self, owner: IntArray, places: IntArray) -> tuple[IntArray, IntArray]:
        """Episode rows and frames of places, in arrays of the same shape."""
        return self.episode[owner], self.frames[self.first[owner] + places]

    def frames_of(self, row: IntArray) -> IntArray:
        """Frames of samples by row, in the user's order, int64[n, T]; -1 behind a shorter list."""
        return np.where(self._is_pad(row), -1, self.filled_of(row))

    def filled_of(self, row: IntArray) -> IntArray:
        """Like `frames_of`, with the last frame of a shorter list repeated."""
        return self.stored_frames(self.owner[row][:, None], self.places[row])[1]

    def starts_of(self, row: IntArray) -> IntArray:
        """The earliest frame of samples by row, int64[n]."""
        return self.stored_frames(self.owner[row], self.places[row].min(axis=1))[1]

    def from_row(self, row: int) -> FrameLists:
        """The samples from a row on, which becomes row 0."""
        length_of = None if self.length_of is None else self.length_of[row:]
        owner, start, places = self.owner[row:], self.start[row:], self.places[row:]
        return replace(self, owner=owner, start=start, places=places, length_of=length_of)

    def _is_pad(self, row: IntArray) -> npt.NDArray[np.bool_]:
        """Which places of samples follow a shorter list; bool[n, T]."""
        count = self.places.shape[1]
        lengths = np.full(len(row), count) if self.length_of is None else self.length_of[row]
        return np.arange(count) >= lengths[:, None]

    def table(self, episodes: EpisodeLayout) -> EpisodeLayout:
        """The listed frames as episodes, with the chunks that contain them.

        Long video chunks are not cut into pieces: the listed frames in one chunk are decoded at
        once.
        """
        owner = np.repeat(np.arange(len(self)), self.num_frames)
        row = self.episode[owner]
        groups = []
        for group in episodes.groups:
            grid = group if group.stored_grid is None else group.stored_grid
            chunk = grid.row(row, grid.place(row, self.frames))
            begins = np.flatnonzero(
                (np.diff(owner, prepend=-1) != 0) | (np.diff(chunk, prepend=-1) != 0)
            )
            first_chunk = np.searchsorted(begins, self.first[:-1])
            first_frame = begins - self.first[owner[begins]]
            grid_of_lists = ChunkGrid.of(
                self.num_frames, first_chunk, first_frame, group=grid.group
            )
            listed = replace(grid_of_lists, rows=chunk[begins], by_frame=grid.by_frame)
            unit = int(grid.unit_frames == 1)  # or the listed frames of a chunk
            groups.append(replace(listed, unit_frames=unit))
        return EpisodeLayout(self.num_frames, tuple(groups), episodes.leading)

    # ---- `ClipWindow`, for all features

    @property
    def length(self) -> int:
        """Frames per clip."""
        return int(self.places.shape[1])

    @cached_property
    def reach(self) -> Reach:
        """See `ClipWindow`: of places from starts."""
        apart = self.places - self.start[:, None]
        return Reach(np.array([min(0, int(apart.min())), int(apart.max())]), is_whole=True)

    def frame_offsets_at(self, rate: int) -> IntArray:  # noqa: ARG002
        """See `ClipWindow`: the least and the greatest one, for clips are complete."""
        return self.reach.offsets

    def find(self, clips: ClipKeys, frames: ClipFrames, *, checks: bool = True) -> WindowFrames:  # noqa: ARG002
        """See `ClipFrames.find`; returns places."""
        return WindowFrames(self.places[clips.row], self._is_pad(clips.row))


def with_last_repeated(frames: IntArray) -> IntArray:
    """Frames, int64[n, T], with -1 behind shorter lists replaced by their last frame."""
    last_place = np.maximum((frames >= 0).sum(axis=1) - 1, 0)
    return np.where(frames < 0, np.take_along_axis(frames, last_place[:, None], axis=1), frames)
