"""Frames of several clips, each once: spans of them, cut by chunks, against brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seqrecord.frame_keys import frame_keys
from seqrecord.grids import ChunkGrid
from seqrecord.pipes.clip_sets import Spans


@st.composite
def grids(draw: st.DrawFn) -> list[list[int]]:
    """Lengths of the chunks of each episode, of one length or of any."""
    lengths = st.integers(1, 7)
    same = st.tuples(lengths, st.integers(1, 5)).map(lambda one: [one[0]] * one[1])
    return draw(st.lists(same | st.lists(lengths, min_size=1, max_size=5), min_size=1, max_size=4))


@given(grids(), st.data())
def test_each_frame_is_in_one_part_of_one_chunk(
    chunks: list[list[int]], data: st.DataObject
) -> None:
    counts = np.array([len(one) for one in chunks])
    first_frame = np.concatenate([np.cumsum(one) - one for one in chunks])
    num_frames = np.array([sum(one) for one in chunks])
    first_chunk = np.cumsum(counts) - counts
    grid = ChunkGrid.of(num_frames, first_chunk, first_frame)
    length = data.draw(st.integers(1, int(num_frames.max())))
    runs = [
        frame_keys(np.int64(episode), np.int64(start))
        for episode, total in enumerate(num_frames.tolist())
        for start in range(total - length + 1)
    ]
    asked = np.array(data.draw(st.lists(st.sampled_from(runs), min_size=1, max_size=12)))
    spans = Spans.of(asked, length)
    wanted = (asked[:, None] + np.arange(length)).reshape(-1)

    every = [np.arange(a, b) for a, b in zip(spans.first, spans.stop, strict=True)]
    np.testing.assert_array_equal(np.concatenate(every), np.unique(wanted))
    assert (spans.first[1:] > spans.stop[:-1]).all()

    chunk, first, stop, of_span = spans.in_chunks(grid)
    episode = np.searchsorted(first_chunk, chunk, side="right") - 1
    held = np.concatenate(chunks)[chunk]
    assert (first >= first_frame[chunk]).all()
    assert (first < stop).all()
    assert (stop <= first_frame[chunk] + held).all()
    parts = [frame_keys(e, np.arange(a, b)) for e, a, b in zip(episode, first, stop, strict=True)]
    np.testing.assert_array_equal(np.concatenate(parts), np.unique(wanted))

    # As if the frames had been read one after the other.
    sizes = stop - first
    rows = spans.rows((np.cumsum(sizes) - sizes)[of_span])
    np.testing.assert_array_equal(np.concatenate(parts)[rows], wanted)
