"""Bytes that loads read, by brute force."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import seqrecord
from seqrecord.format.pages import aligned
from seqrecord.reading.chunk_sizes import chunk_bytes, max_chunk_bytes, overlapping_chunk_bytes
from tests.clip_data import LENGTHS, write_numbered

GROUPS = {"image": 0, "flow": 1, "note": 1, "id": 2}


@pytest.mark.parametrize("flush_at", [[], [1, 6, 7, 8, 21]])
def test_bytes_beside_each_chunk(tmp_path: Path, flush_at: list[int]) -> None:
    path = write_numbered(
        tmp_path / "r", groups=GROUPS, chunk_frames=None if not flush_at else 4, flush_at=flush_at
    )
    dataset = seqrecord.open(path)
    reader, groups = dataset.contents.chunks, dataset.contents.index.groups
    sizes = [chunk_bytes(group, ["image", "note", "id"]) for group in groups]
    chunks = [[reader.chunk_at(g, row) for row in range(len(s))] for g, s in enumerate(sizes)]
    for some, nbytes in zip(chunks, sizes, strict=True):
        for chunk, size in zip(some, nbytes.tolist(), strict=True):
            pages = [page for page in reader.pages(chunk) if page.feature != "flow"]
            assert size == sum(aligned(page.stop - page.start) for page in pages)
    for lead, leading in enumerate(chunks):
        for other, others in enumerate(chunks):
            beside = overlapping_chunk_bytes(groups[lead], groups[other], sizes[other])
            expected = [
                sum(
                    size
                    for there, size in zip(others, sizes[other].tolist(), strict=True)
                    if there.episode == chunk.episode
                    and there.first_frame < chunk.first_frame + chunk.num_frames
                    and chunk.first_frame < there.first_frame + there.num_frames
                )
                for chunk in leading
            ]
            assert beside.tolist() == expected
    for count in (1, 2, 5, 100):
        for group, some, nbytes in zip(groups, chunks, sizes, strict=True):
            touched = [
                sum(
                    size
                    for chunk, size in zip(some, nbytes.tolist(), strict=True)
                    if chunk.episode == episode
                    and chunk.first_frame < first + count
                    and first < chunk.first_frame + chunk.num_frames
                )
                for episode, length in enumerate(LENGTHS)
                for first in range(length)
            ]
            assert max_chunk_bytes(group, nbytes, count) == max(touched)
    assert sum(LENGTHS) == int(np.sum(groups[0].num_frames))
