"""The frames of a group of features that rows use, and where their decoding may begin.

A frame of raw pages, or an encoded image, is decoded alone. A frame of a video is decoded from the
keyframe before it on, and a frame of a compressed chunk with the whole chunk: both are *units*::

    frame      0 1 2 3 4 5 6 7 8 9
    unit       |-------|-------|-----
    row 6          decodes 4 5 6
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from seqrecord.loader.clips.frames import ClipKeys
from seqrecord.store.tables.grids import ChunkGrid, IntArray

_READ_BYTES = 64 << 10


def frames_of_read(nbytes: int) -> int:
    """How many frames of so many bytes are read at once, if each can be read alone: a read of fewer
    bytes takes as long.
    """
    return max(1, _READ_BYTES // max(1, nbytes))


@dataclass(frozen=True, eq=False)
class FrameGroup:
    """The frames of a group of features.

    Attributes:
        offsets: of a row's frames from its start, ascending, int64[T]. Frames outside the episode
            count as its first or last one.
        num_frames: of each episode, int64[episodes].
        nbytes: of a frame in memory.
        grid: the group's chunks; `None` if each frame is decoded alone.
        decoder_bytes: of an open decoder and its packets.
        reads_chunks: whether frames that decode alone are read with their chunk.
        find: returns the frames of clips, int64[n, T], if rows list theirs; `offsets` are then all
            that a row may have.
        num_listed: the most frames in such a row.
    """

    offsets: IntArray
    num_frames: IntArray
    nbytes: int
    grid: ChunkGrid | None = None
    decoder_bytes: int = 0
    reads_chunks: bool = False
    find: Callable[[ClipKeys], IntArray] | None = None
    num_listed: int | None = None

    @property
    def row_frames(self) -> int:
        """The most frames of a row."""
        return len(self.offsets) if self.num_listed is None else self.num_listed

    @property
    def is_alone(self) -> bool:
        """Whether each frame is decoded alone."""
        grid = self.grid
        return grid is None or grid.by_frame or grid.whole_chunks.unit_frames == 1

    def read_until(self, episode: IntArray, stop: IntArray) -> IntArray:
        """The frame behind those that are read for all before `stop`, int64[n] each: of chunks that
        are read or decoded whole, their end.
        """
        grid = self.grid
        if grid is None or not (self.reads_chunks or self._is_decoded_whole):
            return stop
        grid = grid.whole_chunks
        ends = grid.bounds(episode, grid.place(episode, np.maximum(stop - 1, 0)))[1]
        return np.minimum(ends, self.num_frames[episode])

    def read_from(self, episode: IntArray, frame: IntArray) -> IntArray:
        """The first frame that is read for these, int64[n] each."""
        if self.grid is None or not self.reads_chunks:
            return self.units(episode, frame)[0]
        grid = self.grid.whole_chunks
        return grid.bounds(episode, grid.place(episode, frame))[0]

    @property
    def _is_decoded_whole(self) -> bool:
        """Whether units are compressed chunks, and not videos."""
        grid = self.grid
        return grid is not None and not (
            self.is_alone or grid.unit_frames or grid.stored_grid is not None
        )

    def num_together(self, episode: IntArray) -> int:
        """The most frames of these episodes, int64[n], that are loaded together: of a chunk, or of
        one read.
        """
        if self.grid is None or not len(episode):
            return 1
        most = int(self.grid.max_chunk_frames[episode].max())
        return min(most, frames_of_read(self.nbytes)) if self.grid.by_frame else most

    @property
    def span(self) -> int:
        """Frames from the first to the last one of a row."""
        return int(self.offsets[-1] - self.offsets[0]) + 1

    def first(self, episode: IntArray, start: IntArray) -> IntArray:
        """The first frame of rows, int64[n] each."""
        first: IntArray = np.clip(start + self.offsets[0], 0, self.num_frames[episode] - 1)
        return first

    def stop(self, episode: IntArray, start: IntArray) -> IntArray:
        """The frame behind the last one of rows, int64[n] each."""
        last: IntArray = np.clip(start + self.offsets[-1], 0, self.num_frames[episode] - 1)
        return last + 1

    def frames(self, episode: IntArray, start: IntArray) -> IntArray:
        """All frames of rows, int64[n, T]."""
        last = self.num_frames[episode] - 1
        frames: IntArray = np.clip(start[:, None] + self.offsets, 0, last[:, None])
        return frames

    def frames_of(self, clips: ClipKeys) -> IntArray:
        """All frames of clips, int64[n, T], ascending."""
        if self.find is None:
            return self.frames(clips.episode, clips.start)
        return np.sort(self.find(clips), axis=1)

    def units(self, episode: IntArray, frame: IntArray) -> tuple[IntArray, IntArray]:
        """The frames `[begin, stop)` of the units of frames, int64[n] each."""
        if self.is_alone:
            return frame, frame + 1
        assert self.grid is not None
        grid = self.grid.whole_chunks
        begin, stop = grid.bounds(episode, grid.place(episode, frame))
        if grid.unit_frames:
            begin = frame - (frame - begin) % grid.unit_frames
            stop = np.minimum(begin + grid.unit_frames, stop)
        return begin, np.minimum(stop, self.num_frames[episode])
