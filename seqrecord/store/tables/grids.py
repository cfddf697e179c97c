"""Positions of one group's chunks in episodes: integers, without I/O.

An episode is regular if its chunks, except the last, have one length; positions are then
computed. Chunks of irregular episodes have any lengths and are looked up::

    regular      |       |       |       |   |      chunk_frames 8
    irregular    |   |           | |         |      chunk_frames 0

Each frame of an episode, or of a run, has an integer key. The owner is the row of the episode in
the index, or the number of the run in its plan::

    bit       63    62 ...... 32     31 ...... 0
               0    owner            frame

No owner has frame 2^32 - 1. Its key separates the frames of one owner from the next owner's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.store.processes.forks import cached_property

IntArray = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

_CHUNKS_AT_ONCE = 1 << 18


@dataclass(frozen=True, eq=False)
class _Edges:
    """Chunks `[start, stop)` of irregular episodes, episode by episode; int64[n] each.

    `key` combines the number of the episode among the irregular ones with `start`; it ascends.
    Episode `i` of the grid, if irregular, has the number `number[i]` and its chunks from
    `first_edge[i]` on.
    """

    key: IntArray
    start: IntArray
    stop: IntArray
    number: IntArray
    first_edge: IntArray

    def take(self, episodes: IntArray) -> _Edges:
        """The chunks for a grid of these episodes."""
        return replace(self, number=self.number[episodes], first_edge=self.first_edge[episodes])


@dataclass(frozen=True, eq=False)
class ChunkGrid:
    """Chunks of one group in n episodes; int64[n] each, except `edges`.

    Episode `i` has chunks of `chunk_frames[i]` frames, the last one shorter; or chunks of any
    lengths if `chunk_frames[i]` is 0. Its chunks are the rows from `first_chunk[i]` on in the
    group's chunk table. `group` is the number of the group in the schema.

    Methods take arrays of one shape: indices of episodes, and frames inside them. The last chunk of
    a regular episode is treated as full: its `stop` may exceed the episode's end.
    """

    chunk_frames: IntArray
    first_chunk: IntArray
    group: int = 0
    edges: _Edges | None = None
    stored_grid: ChunkGrid | None = None  # the grid before `in_pieces`
    by_frame: bool = False  # frames are read without the rest of their chunk
    unit_frames: int = 0  # decoded together, from a chunk's first frame on; 0: whole chunks
    rows: IntArray | None = None  # in the chunk table, if not consecutive

    @classmethod
    def of(
        cls,
        num_frames: IntArray,
        first_chunk: IntArray,
        first_frame: npt.NDArray[np.integer],
        *,
        group: int = 0,
    ) -> ChunkGrid:
        """Build a grid from the first frames of all chunks, episode by episode.

        `num_frames` and `first_chunk` have n items. The chunks of episode `i` are the rows
        `[first_chunk[i], first_chunk[i + 1])` of `first_frame`; they cover the episode.
        """
        count = np.diff(first_chunk, append=len(first_frame))
        size = np.maximum(num_frames, 1, dtype=np.int64)
        long_episodes = np.flatnonzero(count > 1)
        size[long_episodes] = first_frame[first_chunk[long_episodes] + 1]
        parts = np.cumsum(count[long_episodes]) // _CHUNKS_AT_ONCE
        for rows in np.split(long_episodes, np.flatnonzero(np.diff(parts)) + 1):
            is_irregular = num_frames[rows] > count[rows] * size[rows]  # the last chunk is too long
            owner, place = ragged_arange(count[rows])
            is_shifted = first_frame[first_chunk[rows][owner] + place] != place * size[rows][owner]
            is_irregular[owner[is_shifted]] = True
            size[rows[is_irregular]] = 0
        return cls.from_lengths(size, num_frames, first_chunk, first_frame, group=group)

    @classmethod
    def from_lengths(
        cls,
        chunk_frames: IntArray,
        num_frames: IntArray,
        first_chunk: IntArray,
        first_frame: npt.NDArray[np.integer],
        *,
        group: int = 0,
    ) -> ChunkGrid:
        """Like `of`, with the chunk lengths `chunk_frames`, int64[n]; 0 for irregular episodes."""
        chunk_frames = np.where(num_frames > 0, chunk_frames, 1)
        irregular = np.flatnonzero(chunk_frames == 0)
        if not len(irregular):
            return cls(chunk_frames, first_chunk, group)
        count = np.diff(first_chunk, append=len(first_frame))[irregular]
        owner, place = ragged_arange(count)
        first_edge = np.cumsum(count) - count
        row = first_chunk[irregular][owner] + place
        start = np.maximum(first_frame[row], 0, dtype=np.int64)  # without hidden frames
        stop = np.append(start[1:], 0)
        stop[np.append(first_edge[1:], len(row)) - 1] = num_frames[irregular]
        number, edge = np.zeros((2, len(chunk_frames)), np.int64)
        number[irregular], edge[irregular] = np.arange(len(irregular)), first_edge
        edges = _Edges(frame_keys(owner, start), start, stop, number, edge)
        return cls(chunk_frames, first_chunk, group, edges)

    def in_pieces(self, num_frames: IntArray, max_frames: int) -> ChunkGrid:
        """Cut chunks into pieces of at most `max_frames` frames, the chunks of the new grid.

        For chunks that are read once and decoded piece by piece. `row` still returns rows of
        chunks. `num_frames`, int64[n], are the lengths of the episodes.
        """
        size = self.chunk_frames.copy()
        for length in distinct(size[size > max_frames]).tolist():
            size[self.chunk_frames == length] = _even_piece(length, max_frames)
        irregular = np.flatnonzero((size == 0) & (num_frames > 0))
        if not len(irregular) and np.array_equal(size, self.chunk_frames):
            return self
        owner, place = ragged_arange(self.place(irregular, num_frames[irregular] - 1) + 1)
        start, stop = self.bounds(irregular[owner], place)
        length = np.minimum(stop, num_frames[irregular][owner]) - start
        pieces = -(-length // max_frames)
        chunk, place_in_chunk = ragged_arange(pieces)
        first_frame = start[chunk] + place_in_chunk * length[chunk] // pieces[chunk]
        count = np.zeros_like(num_frames)
        np.add.at(count, irregular[owner], pieces)
        first_piece = np.cumsum(count) - count
        grid = self.from_lengths(size, num_frames, first_piece, first_frame, group=self.group)
        return replace(grid, stored_grid=self)

    def __len__(self) -> int:
        return len(self.chunk_frames)

    def __repr__(self) -> str:
        num_irregular = 0 if self.edges is None else int((self.chunk_frames == 0).sum())
        suffix = "" if self.edges is None else f", {num_irregular} irregular"
        return f"ChunkGrid({len(self)} episodes{suffix}, group {self.group})"

    @property
    def whole_chunks(self) -> ChunkGrid:
        """The grid of stored chunks, without pieces."""
        return self if self.stored_grid is None else self.stored_grid

    def take(self, episodes: IntArray) -> ChunkGrid:
        """The grid of these episodes, in the given order; repetitions are allowed."""
        return replace(
            self,
            chunk_frames=self.chunk_frames[episodes],
            first_chunk=self.first_chunk[episodes],
            edges=None if self.edges is None else self.edges.take(episodes),
            stored_grid=None if self.stored_grid is None else self.stored_grid.take(episodes),
        )

    @cached_property
    def max_chunk_frames(self) -> IntArray:
        """Each episode's largest chunk in frames, int64[n]."""
        if self.edges is None:
            return self.chunk_frames
        lengths: IntArray = self.chunk_frames.copy()
        irregular, edges = np.flatnonzero(lengths == 0), self.edges
        owner, _ = split_keys(edges.key)
        max_lengths = np.zeros(int(owner[-1]) + 1, np.int64)
        np.maximum.at(max_lengths, owner, edges.stop - edges.start)
        lengths[irregular] = max_lengths[edges.number[irregular]]
        return lengths

    def block_keys(self, keys: IntArray, length: int, num_frames: IntArray) -> IntArray:
        """Keys of all frames in the blocks that contain the given frames, ascending.

        Blocks are runs of `length` frames inside chunks. `num_frames`, int64, has the lengths of
        all episodes.
        """
        episode, frame = split_keys(keys)
        start = np.maximum(self.start(episode, frame), 0)
        blocks = distinct(frame_keys(episode, frame - (frame - start) % length))
        episode, start = split_keys(blocks)
        _, stop = self.bounds(episode, self.place(episode, start))
        stop = np.minimum(stop, num_frames[episode])
        owner, place_in_block = ragged_arange(np.minimum(length, stop - start))
        return blocks[owner] + place_in_block

    def place(self, episode: IntArray, frame: IntArray) -> IntArray:
        """Number of each frame's chunk in its episode."""
        size = self.chunk_frames[episode]
        if self.edges is None or not (is_irregular := size == 0).any():
            chunk_number: IntArray = frame // size
            return chunk_number
        chunk_number = np.asarray(frame // np.where(is_irregular, 1, size), np.int64)
        irregular, edges = episode[is_irregular], self.edges
        keys = frame_keys(edges.number[irregular], frame[is_irregular])
        chunk_number[is_irregular] = (
            np.searchsorted(edges.key, keys, side="right") - 1 - edges.first_edge[irregular]
        )
        return chunk_number

    def bounds(self, episode: IntArray, place: IntArray) -> tuple[IntArray, IntArray]:
        """Start and stop frame of chunks, by their numbers in their episodes."""
        size = self.chunk_frames[episode]
        start = place * size
        stop = start + size
        if self.edges is None or not (is_irregular := size == 0).any():
            return start, stop
        edge = self.edges.first_edge[episode[is_irregular]] + place[is_irregular]
        start[is_irregular], stop[is_irregular] = self.edges.start[edge], self.edges.stop[edge]
        return start, stop

    def row(self, episode: IntArray, place: IntArray) -> IntArray:
        """Rows of chunks in the group's chunk table, by their numbers in their episodes."""
        if self.stored_grid is not None:
            start, _ = self.bounds(episode, place)
            return self.stored_grid.row(episode, self.stored_grid.place(episode, start))
        table_row: IntArray = self.first_chunk[episode] + place
        return table_row if self.rows is None else self.rows[table_row]

    def start(self, episode: IntArray, frame: IntArray) -> IntArray:
        """First frame of each frame's chunk."""
        return self.bounds(episode, self.place(episode, frame))[0]

    def stop(self, episode: IntArray, frame: IntArray) -> IntArray:
        """End (exclusive) of each frame's chunk."""
        return self.bounds(episode, self.place(episode, frame))[1]


def _even_piece(length: int, max_frames: int) -> int:
    """Largest divisor of a length up to `max_frames`; 0 if it is at most half of that."""
    piece_frames = next(size for size in range(max_frames, 0, -1) if length % size == 0)
    return piece_frames if 2 * piece_frames > max_frames else 0


def ragged_arange(counts: IntArray) -> tuple[IntArray, IntArray]:
    """Owner, and index within the owner, of each item in order; owner `i` has `counts[i]`.

    `ragged_arange([2, 3])` returns `[0, 0, 1, 1, 1]` and `[0, 1, 0, 1, 2]`.
    """
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]


def distinct(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Distinct values of an array, ascending, [n]."""
    # Not `numpy.unique`: it imports `numpy.ma`, 15 to 30 ms of CPU in each new process.
    values = np.sort(values, axis=None)
    is_new = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=is_new[1:])
    return values[is_new]


def nearest_frames(times: Reals, frame_times: Reals) -> IntArray:
    """The frame nearest to each time, the earlier if two are; int64 with the shape of `times`.

    `frame_times`, float64 [frames], at least one, ascend.
    """
    later = np.searchsorted(frame_times, times).clip(0, len(frame_times) - 1)
    earlier = (later - 1).clip(0)
    nearest: IntArray = np.where(
        times - frame_times[earlier] <= frame_times[later] - times, earlier, later
    )
    return nearest


def run_bounds(*columns: IntArray, constant: IntArray | None = None) -> list[int]:
    """Bounds of runs: indices of their beginnings, then the total length. `[0]` for empty columns.

    Within a run, all `columns`, int64[n] each, increase by 1 from item to item, and
    `constant`, int64[n], keeps its value.
    """
    count = len(columns[0] if constant is None else constant)
    if count < 2:
        return [0, 1][: count + 1]
    breaks = np.zeros(count - 1, np.bool_)
    if constant is not None:
        breaks = constant[1:] != constant[:-1]
    for column in columns:
        breaks = breaks | (column[1:] - column[:-1] != 1)
    return [0, *(breaks.nonzero()[0] + 1).tolist(), count]


_FRAME_BITS = 32
_FRAME = (1 << _FRAME_BITS) - 1
# One number less than fits: keys of two owners are never consecutive, so that runs of frames end
# with their episode
# (tests/loader/test_clips.py::test_only_consecutive_frames_have_consecutive_keys).
MAX_FRAMES = _FRAME  # per owner; the last 32-bit number is reserved
MAX_OWNERS = 1 << 63 - _FRAME_BITS  # keys are not negative


def frame_keys(owner: IntArray | int, frame: IntArray) -> IntArray:
    """Integer keys of frames, ascending by owner and frame.

    Owners are in `[0, MAX_OWNERS)`, frames in `[0, MAX_FRAMES]`; the last value marks the end. Keys
    of consecutive frames are consecutive; keys of different owners are not.
    """
    return (owner << _FRAME_BITS) + frame


def search_keys(owner: IntArray, frame: IntArray) -> IntArray:
    """Like `frame_keys`, for frames out of range, as search values among keys of frames.

    The key of a frame outside `[0, MAX_FRAMES)` is between the keys of its owner's frames and those
    of other owners.
    """
    return frame_keys(owner, np.minimum(np.maximum(frame, -1), MAX_FRAMES))


def split_keys(keys: IntArray) -> tuple[IntArray, IntArray]:
    """Split keys into owners and frames; inverse of `frame_keys`."""
    return keys >> _FRAME_BITS, keys & _FRAME
