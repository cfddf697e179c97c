"""Facts: the few numbers of clips and episodes that decide how much memory a plan needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seqrecord.clips import ClipSpec, ClipTable, EpisodeTable, IntArray
from seqrecord.sampling.cuts import cut_group
from seqrecord.sampling.windows import Window

__all__ = ["ClipFacts", "GroupFacts"]


@dataclass(frozen=True)
class GroupFacts:
    """Of one group: what a clip uses, and the largest chunk of the episodes that have clips."""

    window: Window
    largest_chunk: int


@dataclass(frozen=True, eq=False)
class ClipFacts:
    """The few numbers of a clip table that decide how many frames are held, and read twice.

    The regular ones of the selected episodes have chunks of `chunks` frames in the leading group;
    int64[n], ascending. The longest episode with chunks of `chunks[i]` that has any clip has
    `longest[i]` frames, or 0 where none has one. The largest chunk of the irregular ones has
    `irregular` frames, 0 where there is none.
    """

    spec: ClipSpec
    chunks: IntArray
    longest: IntArray
    irregular: int
    longest_irregular: int  # episode that has clips
    groups: tuple[GroupFacts, ...]
    leading: int  # of `groups`
    num_clips: int
    num_rows: int  # of the clip table
    num_episodes: int  # that have clips
    parted: bool  # whether clips between others of an episode may be left out
    num_frames: int  # of these
    is_even: bool  # whether they have equally many clips, in one row each
    keyframes: int = 0  # frames of chunks that are decoded in pieces, on the average; 0 for none
    most_keyframes: int = 0  # frames of the largest of them
    any_clips: bool = False  # whether an epoch may leave out some of the clips
    repeats: bool = False  # whether any clip is there more than once
    by_frame: bool = False  # whether frames are read without the rest of their chunk

    @classmethod
    def of(
        cls,
        table: ClipTable,
        episodes: EpisodeTable,
        windows: Sequence[Window] | None = None,
        *,
        any_clips: bool = False,
    ) -> ClipFacts:
        """`windows`, one for each group of `episodes`; by default whole clips of all.

        With `any_clips` they hold for all epochs, of which each may leave out some clips: then
        `table` is that of `phases.typical_table`, or has each clip as often as it can come.
        """
        windows = windows or [Window.of(table.spec)] * len(episodes.groups)
        used = table.episode[np.diff(table.episode, prepend=-1) != 0]
        sizes = episodes.lead.chunk_frames
        chunks = np.unique(sizes[table.selected])
        chunks = chunks[chunks > 0]
        regular = used[sizes[used] > 0]
        longest = np.zeros_like(chunks)
        size = np.searchsorted(chunks, sizes[regular])
        np.maximum.at(longest, size, episodes.num_frames[regular])
        odd = table.selected[sizes[table.selected] == 0]
        irregular = int(episodes.lead.largest[odd].max()) if len(odd) else 0
        lengths = episodes.num_frames[used]
        cut, keyframes, gops = episodes.groups[cut_group(episodes)], 0, used[:0]
        if cut.whole is not None and len(used):
            gops = cut.whole.largest[used]
            keyframes = round(float(np.average(gops, weights=lengths)))
        return cls(
            table.spec,
            chunks,
            longest,
            irregular,
            int(lengths[sizes[used] == 0].max(initial=0)),
            tuple(
                GroupFacts(window, int(grid.largest[used].max(initial=1)))
                for window, grid in zip(windows, episodes.groups, strict=True)
            ),
            episodes.leading,
            num_clips=table.num_clips,
            num_rows=len(table.count),
            num_episodes=len(used),
            parted=any_clips or len(used) < len(table.count),
            num_frames=int(lengths.sum()),
            is_even=len(used) == len(table.count) and bool((table.count == table.count[:1]).all()),
            any_clips=any_clips,
            repeats=table.repeats,
            keyframes=keyframes,
            most_keyframes=int(gops.max(initial=0)),
            by_frame=cut.by_frame,
        )

    @property
    def window(self) -> Window:
        """What clips use of the leading group."""
        return self.groups[self.leading].window

    @property
    def largest_chunk(self) -> int:
        """Of the leading group, in episodes that have clips; at least 1."""
        odd = self.irregular if self.longest_irregular else 1
        return int(self.chunks[self.longest > 0].max(initial=odd))

    @property
    def longest_episode(self) -> int:
        """Frames of the longest episode that has clips."""
        return int(self.longest.max(initial=self.longest_irregular))

    @property
    def whole_block(self) -> int:
        """The frames of a block that holds a whole epoch, with all that counts between runs."""
        between = self.num_rows * (self.window.span + 3 * self.largest_chunk)
        return max(1, self.num_clips * self.spec.stride + between)

    @property
    def cuts_anywhere(self) -> bool:
        """Whether to cut a chunk costs nothing: its frames are read one by one."""
        return self.by_frame and self.largest_chunk > self.window.span

    @property
    def cut_frames(self) -> int:
        """Frames that are read twice where a run is cut: of the chunks that both runs need, or what
        both need of one that is decoded in pieces."""
        shared = max(0, self.window.span - self.spec.stride)
        if self.keyframes or self.cuts_anywhere:
            return shared
        return -(-shared // self.largest_chunk) * self.largest_chunk

    def reread_by_one(self, num_parts: int) -> float:
        """Share of all frames that each cursor more in every part reads a second time."""
        return num_parts * self.cut_frames / max(1, self.num_frames)

    def reread_by_parts(self, num_parts: int) -> float:
        """Share of all frames that are decoded a second time whatever cursors there are: one cursor
        of each part but the first begins anywhere, behind a keyframe."""
        return (num_parts - 1) * (self.keyframes // 2) / max(1, self.num_frames)

    def reread(self, cursors: int, num_parts: int) -> float:
        """Share of all frames that so many cursors in every part read a second time."""
        if cursors == self.whole_cursors(num_parts):
            return 0.0
        return self.reread_by_one(num_parts) * cursors + self.reread_by_parts(num_parts)

    def whole_cursors(self, num_parts: int) -> int:
        """How many cursors of a part walk a whole episode each; 0 where it does not come out."""
        whole, rest = divmod(self.num_episodes, num_parts)
        return whole if self.is_even and not rest else 0
