"""Clips that are lists of frames, such as pairs of views: integers, without I/O.

An excerpt has those frames of an episode that some clips use, in order, without the others. There
these clips are like others, of a window that holds all of them, wherever they start::

    clips       3 41    3 17    17 60
    excerpt     3   17   41   60            frames
    places      0   1    2    3
    clips       0 2     0 1     1 3         of places
    starts      0       1       2           each its own, and no earlier than the first place

So plans and engines know of places alone, and each frame is decoded once for all clips of its
excerpt. An episode is one excerpt, or several where so many frames are not to be held at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from seqrecord.clips.frames import ClipFrames, WindowFrames
from seqrecord.clips.grids import ChunkGrid, IntArray, frame_keys, split_keys
from seqrecord.clips.tables import EpisodeTable
from seqrecord.processes.forks import cached_property


@dataclass(frozen=True, eq=False)
class FrameLists:
    """FrameLists, and what each of n clips has of its own: a `ClipWindow`.

    Excerpt `i` has the frames `frames[first[i]:first[i + 1]]` of `episode[i]`, a row of the index;
    both ascend. Clip `j` is in `excerpt[j]`, starts at `start[j]`, and has the frames at
    `places[j]`, int64[T]; clips ascend by both.
    """

    episode: IntArray
    first: IntArray
    frames: IntArray
    excerpt: IntArray
    start: IntArray
    places: IntArray
    pads = False
    lookback = 0

    @classmethod
    def of(
        cls, episode: IntArray, frames: IntArray, most: int | None = None
    ) -> tuple[FrameLists, IntArray]:
        """Of clips by the rows of their episodes, int64[n], and their frames, int64[n, T], in any
        order; and which of these each clip of the excerpts is, int64[n].

        FrameLists have at most `most` frames, or those of one clip.
        """
        order = np.lexsort((frames.max(axis=1), frames.min(axis=1), episode))
        episode, frames = episode[order], frames[order]
        excerpt = np.cumsum(np.diff(episode, prepend=episode[:1]) != 0)
        if most is not None:
            excerpt = _divided(excerpt, frames, most)
        keys = frame_keys(excerpt[:, None], frames)
        found, places = np.unique(keys, return_inverse=True)
        owner, inside = split_keys(found)
        count = int(excerpt[-1]) + 1
        first = np.searchsorted(owner, np.arange(count + 1))
        places = places.reshape(keys.shape) - first[excerpt][:, None]
        # Each start is the first place, or where another clip has that one the next that is free.
        number, apart = np.arange(len(excerpt)), 4 * (len(excerpt) + len(found) + 1)
        begin = np.searchsorted(excerpt, excerpt)
        early = places.min(axis=1) - (number - begin) + excerpt * apart
        start = np.maximum.accumulate(early) - excerpt * apart + (number - begin)
        owners = episode[np.searchsorted(excerpt, np.arange(count))]
        return cls(owners, first, inside, excerpt, start, places), order

    def __len__(self) -> int:
        return len(self.episode)

    @property
    def num_frames(self) -> IntArray:
        """Of each excerpt; int64[excerpts]."""
        return np.diff(self.first)

    def stored(self, excerpt: IntArray, places: IntArray) -> tuple[IntArray, IntArray]:
        """The rows of episodes, and the frames of these at some places; of one shape."""
        return self.episode[excerpt], self.frames[self.first[excerpt] + places]

    def frames_of(self, excerpt: IntArray, start: IntArray) -> IntArray:
        """The frames of some clips, int64[n, T], as they were listed."""
        places = self.places[self._clips(excerpt, start)]
        return self.stored(excerpt[:, None], places)[1]

    def table(self, episodes: EpisodeTable) -> EpisodeTable:
        """The excerpts as episodes, with what they have of the chunks of these.

        Long chunks of video are whole: what an excerpt has of one is decoded at once.
        """
        owner = np.repeat(np.arange(len(self)), self.num_frames)
        row = self.episode[owner]
        groups = []
        for some in episodes.groups:
            grid = some if some.whole is None else some.whole
            chunk = grid.row(row, grid.place(row, self.frames))
            begins = np.flatnonzero(
                (np.diff(owner, prepend=-1) != 0) | (np.diff(chunk, prepend=-1) != 0)
            )
            first_chunk = np.searchsorted(begins, self.first[:-1])
            first_frame = begins - self.first[owner[begins]]
            found = ChunkGrid.of(self.num_frames, first_chunk, first_frame, group=grid.group)
            groups.append(replace(found, rows=chunk[begins], by_frame=grid.by_frame))
        return EpisodeTable(self.num_frames, tuple(groups), episodes.leading)

    # ---- the window of all features

    @property
    def length(self) -> int:
        """How many frames a clip has."""
        return int(self.places.shape[1])

    @property
    def key(self) -> object:
        """Equal for windows of the same frames."""
        return self

    @cached_property
    def frame_offsets(self) -> IntArray:
        """The offsets from starts at which places can be."""
        apart = self.places - self.start[:, None]
        return np.arange(min(0, int(apart.min())), int(apart.max()) + 1)

    def frame_offsets_at(self, _rate: int) -> IntArray:
        """The same, for frames a second mean nothing here."""
        return self.frame_offsets

    def find(self, excerpt: IntArray, start: IntArray, _frames: ClipFrames) -> WindowFrames:
        """See `ClipFrames.find`; of places."""
        places = self.places[self._clips(excerpt, start)]
        return WindowFrames(places, np.zeros(places.shape, np.bool_))

    def _clips(self, excerpt: IntArray, start: IntArray) -> IntArray:
        return np.searchsorted(self._keys, frame_keys(excerpt, start))

    @cached_property
    def _keys(self) -> IntArray:
        return frame_keys(self.excerpt, self.start)


def _divided(episode: IntArray, frames: IntArray, most: int) -> IntArray:
    """The number of each clip's excerpt, int64[n], where these have at most `most` frames.

    `episode` is the number of each clip's episode, from 0 on; it never falls.
    """
    keys = np.unique(frame_keys(episode[:, None], frames))
    is_large = np.bincount(split_keys(keys)[0]) > most
    begins = np.diff(episode, prepend=-1) != 0
    held: set[int] = set()
    for clip in np.flatnonzero(is_large[episode]).tolist():
        mine = set(frames[clip].tolist())
        if begins[clip] or len(held) + len(mine - held) > most:
            begins[clip], held = True, mine
        else:
            held |= mine
    return np.cumsum(begins) - 1
