"""Chunks of record files as they are stored: their pages are checked, and not decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.checksum import Buffer, crc32c
from seqrecord.errors import ChecksumError
from seqrecord.format import Footer
from seqrecord.format.pages import page_offsets, slice_table
from seqrecord.format.rows import features_of, present_frames
from seqrecord.schema import Schema
from seqrecord.storage.ranges import ByteRange
from seqrecord.writing.open_file import StoredChunk

__all__ = ["page_ranges", "stored_chunk"]


def page_ranges(row: npt.NDArray[Any]) -> list[ByteRange]:
    """Where the pages of a chunk lie in its file, one for each feature of its group."""
    lengths = row["pages"]["length"]
    starts = int(row["offset"]) + page_offsets(lengths)[:-1]
    return [
        ByteRange(start, start + length)
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]


def stored_chunk(
    footer: Footer, schema: Schema, group: int, number: int, pages: Sequence[Buffer]
) -> StoredChunk:
    """Chunk `number` of a group of a record file, with these bytes of its pages.

    Of features that `schema`, which continues the footer's, has dropped nothing is left: their
    pages are empty, and all frames lack them; their bytes do not count. Raises `ChecksumError`,
    with the offset, for a page that is not as it was written.
    """
    row = footer.chunks[group][number : number + 1].copy()
    num_frames = int(row["num_frames"][0])
    specs, places = schema.group(group), features_of(schema)[group].tolist()
    gaps = footer.gaps[group]
    gaps = gaps[slice(*np.searchsorted(gaps["chunk"], [number, number + 1]))]
    missing = {
        feature: present_frames(gaps[gaps["feature"] == feature], num_frames)
        for feature in np.unique(gaps["feature"]).tolist()
    }
    said = row["pages"][0]
    kept: list[Buffer] = []
    for column, (spec, page, item) in enumerate(
        zip(specs.values(), pages, page_ranges(row[0]), strict=True)
    ):
        if spec.is_dropped:
            said[column] = (0, crc32c(b""))
            missing[places[column]] = np.zeros(num_frames, np.bool_)
            kept.append(b"")
        elif (actual := crc32c(page)) != (stored := int(said["crc32c"][column])):
            raise ChecksumError(
                "a page does not match its checksum",
                offset=item.start,
                feature=spec.name,
                expected=f"CRC32C {stored:08x}",
                got=f"{actual:08x}",
            )
        else:
            kept.append(page)
    for column, spec in enumerate(specs.variable):
        if spec.is_dropped:
            row["largest"][0, column] = 0
    missing = dict(sorted(missing.items()))
    return StoredChunk(group, row, missing, (*kept, slice_table(specs, kept)))
