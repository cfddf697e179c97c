"""What a selection leaves out, in words."""

from __future__ import annotations

import numpy as np

from seqrecord.clips import ClipTable, IntArray
from seqrecord.pipes.selected_windows import SelectedWindows
from seqrecord.reading.reader import SeqRecordReader
from seqrecord.text import counted

__all__ = ["said_of_left_out"]


def said_of_left_out(
    clips: ClipTable, selected: IntArray, windows: SelectedWindows, dataset: SeqRecordReader
) -> str:
    """How many episodes and clips are left out, and why; empty if none is.

    `selected` are the rows of the selected episodes.
    """
    said = []
    if clips.num_short_episodes:
        said.append(
            f"{clips.num_short_episodes:,} of {counted(len(selected), 'episode')}, too short "
            f"for a clip of {counted(windows.span, 'frame')}"
        )
    if clips.num_outside:
        said.append(
            f"{counted(clips.num_outside, 'clip')} with frames beyond the ends of their "
            'episodes, which pad="edge" gives'
        )
    if clips.num_incomplete:
        lacking = [
            name
            for name in dataset.features
            if np.isin(windows.missing([name]).episode, selected).any()
        ]
        every = clips.num_clips + clips.num_incomplete
        said.append(
            f"{clips.num_incomplete:,} of {counted(every, 'clip')}, for frames that lack "
            f"{', '.join(lacking)}"
        )
    return "; ".join(said)
