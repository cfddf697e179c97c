"""Where the chunks of one group of features lie in episodes: integers, without I/O.

An episode is regular where all of its chunks but the last have one length: places are then found by
arithmetic. Another one has chunks of any lengths, which are looked up::

    regular      |       |       |       |   |      chunk_frames 8
    irregular    |   |           | |         |      chunk_frames 0

Each frame of an episode, or of a run, has one integer as its key. An episode is given by its row of
the index, a run by its number in a plan; both are owners here::

    bit       63    62 ...... 32     31 ...... 0
               0    owner            frame

No owner has frame 2^32 - 1. So there is a key between the frames of one owner and those of the
next: it stands for what lies behind the one's last frame, and before the other's first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from seqrecord.processes.forks import cached_property

IntArray = npt.NDArray[np.int64]

_CHUNKS_AT_ONCE = 1 << 18


@dataclass(frozen=True, eq=False)
class _Edges:
    """Chunks of irregular episodes, one episode after the other: `[start, stop)`; int64[n] each.

    `key` ascends: the number of the episode among the irregular ones, and `start`.
    """

    key: IntArray
    start: IntArray
    stop: IntArray


@dataclass(frozen=True, eq=False)
class ChunkGrid:
    """The chunks of one group in each of n episodes; int64[n] each, but for `edges`.

    Episode `i` has chunks of `chunk_frames[i]` frames, the last one shorter; or of any lengths, and
    `chunk_frames[i]` is 0. Its first chunk is row `first_chunk[i]` of the group's chunk table and
    the others follow. `group` is the number of the group in the schema.

    The methods take arrays of one shape: episodes, as positions in these arrays, and frames, which
    the episodes have. What a regular episode's last chunk lacks counts as there: its `stop` may lie
    behind the episode's end.
    """

    chunk_frames: IntArray
    first_chunk: IntArray
    group: int = 0
    edges: _Edges | None = None
    _number: IntArray | None = None  # of each episode among the irregular ones, where it is one
    _first_edge: IntArray | None = None  # in `edges`, likewise
    whole: ChunkGrid | None = None  # of which this grid has pieces, see `in_pieces`
    by_frame: bool = False  # whether frames are read without the rest of their chunk
    rows: IntArray | None = None  # of the chunk table, where chunks there do not follow each other

    @classmethod
    def of(
        cls,
        num_frames: IntArray,
        first_chunk: IntArray,
        first_frame: npt.NDArray[np.integer],
        *,
        group: int = 0,
    ) -> ChunkGrid:
        """From the first frames of all chunks, one episode after the other.

        `num_frames` and `first_chunk` are of the n episodes; the chunks of episode `i` are the rows
        `[first_chunk[i], first_chunk[i + 1])` of `first_frame`, and cover it.
        """
        count = np.diff(first_chunk, append=len(first_frame))
        size = np.maximum(num_frames, 1, dtype=np.int64)
        several = np.flatnonzero(count > 1)
        size[several] = first_frame[first_chunk[several] + 1]
        parts = np.cumsum(count[several]) // _CHUNKS_AT_ONCE
        for rows in np.split(several, np.flatnonzero(np.diff(parts)) + 1):
            odd = num_frames[rows] > count[rows] * size[rows]  # their last chunk is too long
            owner, place = numbered(count[rows])
            wrong = first_frame[first_chunk[rows][owner] + place] != place * size[rows][owner]
            odd[owner[wrong]] = True
            size[rows[odd]] = 0
        return cls.given(size, num_frames, first_chunk, first_frame, group=group)

    @classmethod
    def given(
        cls,
        chunk_frames: IntArray,
        num_frames: IntArray,
        first_chunk: IntArray,
        first_frame: npt.NDArray[np.integer],
        *,
        group: int = 0,
    ) -> ChunkGrid:
        """As `of`, where `chunk_frames`, int64[n], is known: 0 for irregular episodes."""
        chunk_frames = np.where(num_frames > 0, chunk_frames, 1)
        odd = np.flatnonzero(chunk_frames == 0)
        if not len(odd):
            return cls(chunk_frames, first_chunk, group)
        count = np.diff(first_chunk, append=len(first_frame))[odd]
        owner, place = numbered(count)
        first_edge = np.cumsum(count) - count
        row = first_chunk[odd][owner] + place
        start = first_frame[row].astype(np.int64)
        stop = np.append(start[1:], 0)
        stop[np.append(first_edge[1:], len(row)) - 1] = num_frames[odd]
        number, edge = np.zeros((2, len(chunk_frames)), np.int64)
        number[odd], edge[odd] = np.arange(len(odd)), first_edge
        edges = _Edges(frame_keys(owner, start), start, stop)
        return cls(chunk_frames, first_chunk, group, edges, number, edge)

    def in_pieces(self, num_frames: IntArray, most: int) -> ChunkGrid:
        """The same chunks cut into pieces of at most `most` frames, which count as chunks here.

        Their rows are those of the chunks. `num_frames`, int64[n], are those of the episodes. For
        chunks that are read once and decoded piece by piece.
        """
        size = self.chunk_frames.copy()
        for length in np.unique(size[size > most]).tolist():
            size[self.chunk_frames == length] = _even_piece(length, most)
        odd = np.flatnonzero((size == 0) & (num_frames > 0))
        if not len(odd) and np.array_equal(size, self.chunk_frames):
            return self
        owner, place = numbered(self.place(odd, num_frames[odd] - 1) + 1)
        start, stop = self.bounds(odd[owner], place)
        length = np.minimum(stop, num_frames[odd][owner]) - start
        pieces = -(-length // most)
        chunk, inside = numbered(pieces)
        first_frame = start[chunk] + inside * length[chunk] // pieces[chunk]
        count = np.zeros_like(num_frames)
        np.add.at(count, odd[owner], pieces)
        first_piece = np.cumsum(count) - count
        found = self.given(size, num_frames, first_piece, first_frame, group=self.group)
        return replace(found, whole=self)

    def __len__(self) -> int:
        return len(self.chunk_frames)

    def __repr__(self) -> str:
        odd = "" if self.edges is None else f", {int((self.chunk_frames == 0).sum())} irregular"
        return f"ChunkGrid({len(self)} episodes{odd}, group {self.group})"

    def take(self, episodes: IntArray) -> ChunkGrid:
        """Of these episodes only, as often and in the order in which they are given."""
        whole = None if self.whole is None else self.whole.take(episodes)
        if self.edges is None:
            return replace(
                self,
                whole=whole,
                chunk_frames=self.chunk_frames[episodes],
                first_chunk=self.first_chunk[episodes],
            )
        assert self._number is not None
        assert self._first_edge is not None
        return replace(
            self,
            whole=whole,
            chunk_frames=self.chunk_frames[episodes],
            first_chunk=self.first_chunk[episodes],
            _number=self._number[episodes],
            _first_edge=self._first_edge[episodes],
        )

    @cached_property
    def largest(self) -> IntArray:
        """The length of each episode's largest chunk; int64[n]."""
        if self.edges is None:
            return self.chunk_frames
        found: IntArray = self.chunk_frames.copy()
        odd = np.flatnonzero(found == 0)
        edges, number = self.edges, self._number
        assert number is not None
        owner, _ = split_keys(edges.key)
        most = np.zeros(int(owner[-1]) + 1, np.int64)
        np.maximum.at(most, owner, edges.stop - edges.start)
        found[odd] = most[number[odd]]
        return found

    def block_keys(self, keys: IntArray, length: int, num_frames: IntArray) -> IntArray:
        """Keys of all frames in the blocks that contain some frames, ascending.

        Chunks are cut into blocks of `length` frames. `num_frames` is int64 of all episodes.
        """
        episode, frame = split_keys(keys)
        start, stop = self.bounds(episode, self.place(episode, frame))
        stop = np.minimum(stop, num_frames[episode])
        first = frame - (frame - start) % length
        blocks, some = np.unique(frame_keys(episode, first), return_index=True)
        owner, inside = numbered(np.minimum(length, stop - first)[some])
        return blocks[owner] + inside

    def place(self, episode: IntArray, frame: IntArray) -> IntArray:
        """The number of the chunk, in its episode, that has each frame."""
        size = self.chunk_frames[episode]
        if self.edges is None or not (odd := size == 0).any():
            found: IntArray = frame // size
            return found
        assert self._number is not None
        assert self._first_edge is not None
        found = np.asarray(frame // np.where(odd, 1, size), np.int64)
        some = episode[odd]
        sought = frame_keys(self._number[some], frame[odd])
        edge = np.searchsorted(self.edges.key, sought, side="right") - 1
        found[odd] = edge - self._first_edge[some]
        return found

    def bounds(self, episode: IntArray, place: IntArray) -> tuple[IntArray, IntArray]:
        """First and past-the-last frame of chunks, by their numbers in their episodes."""
        size = self.chunk_frames[episode]
        start = place * size
        stop = start + size
        if self.edges is None or not (odd := size == 0).any():
            return start, stop
        assert self._first_edge is not None
        edge = self._first_edge[episode[odd]] + place[odd]
        start[odd], stop[odd] = self.edges.start[edge], self.edges.stop[edge]
        return start, stop

    def row(self, episode: IntArray, place: IntArray) -> IntArray:
        """The rows of chunks in the group's chunk table, by their numbers in their episodes."""
        if self.whole is not None:
            start, _ = self.bounds(episode, place)
            return self.whole.row(episode, self.whole.place(episode, start))
        found: IntArray = self.first_chunk[episode] + place
        return found if self.rows is None else self.rows[found]

    def start(self, episode: IntArray, frame: IntArray) -> IntArray:
        """The first frame of the chunk that has each frame."""
        return self.bounds(episode, self.place(episode, frame))[0]

    def stop(self, episode: IntArray, frame: IntArray) -> IntArray:
        """The frame behind the chunk that has each frame."""
        return self.bounds(episode, self.place(episode, frame))[1]


def _even_piece(length: int, most: int) -> int:
    """The largest divisor of a length that is at most `most`, or 0 where it is less than half."""
    best = next(size for size in range(most, 0, -1) if length % size == 0)
    return best if 2 * best > most else 0


def numbered(counts: IntArray) -> tuple[IntArray, IntArray]:
    """Owner, and number from 0 on, of `counts[i]` items of each owner `i`, one after the other."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]


def followed(*columns: IntArray, same: IntArray | None = None) -> list[int]:
    """Where runs begin, and where the last one ends: in a run all columns grow by one from each
    place to the next, int64[n] each, and `same`, int64[n], stays; `[0]` of nothing."""
    every = [*columns, *(() if same is None else (same,))]
    count = len(every[0])
    if count < 2:
        return [0, 1][: count + 1]
    breaks = np.zeros(count - 1, np.bool_) if same is None else same[1:] != same[:-1]
    for column in columns:
        breaks = breaks | (column[1:] - column[:-1] != 1)
    return [0, *(breaks.nonzero()[0] + 1).tolist(), count]


_FRAME_BITS = 32
_FRAME = (1 << _FRAME_BITS) - 1
MAX_FRAMES = _FRAME  # of an owner: numbered from 0 on, they leave out the last number
MAX_OWNERS = 1 << 63 - _FRAME_BITS  # so that no key is negative


def frame_keys(owner: IntArray, frame: IntArray) -> IntArray:
    """A number for each frame of each owner, which ascends with both.

    Owners are in `[0, MAX_OWNERS)`, frames in `[0, MAX_FRAMES]`: the last one is past the end. Keys
    of frames in a row follow each other; those of two owners never do.
    """
    return (owner << _FRAME_BITS) + frame


def sought_keys(owner: IntArray, frame: IntArray) -> IntArray:
    """As `grids`, of frames that may lie anywhere: to search among keys of frames.

    The key of a frame outside `[0, MAX_FRAMES)` lies before, or behind, all of its owner's frames,
    and between these and other owners'.
    """
    return frame_keys(owner, np.minimum(np.maximum(frame, -1), MAX_FRAMES))


def split_keys(keys: IntArray) -> tuple[IntArray, IntArray]:
    """Inverse of `grids`: owners and frames."""
    return keys >> _FRAME_BITS, keys & _FRAME
