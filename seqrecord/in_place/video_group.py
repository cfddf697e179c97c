"""The group of a video feature whose packets are in original files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from seqrecord.in_place.references import checksum_of_range
from seqrecord.store.schema import Schema
from seqrecord.store.writing.chunking import MAX_REFERENCED_BYTES
from seqrecord.video.group import VideoGroup
from seqrecord.video.references import PacketReference, ReferencedGops


class ReferringVideoGroup(VideoGroup):
    """Frames of a video feature, also as references to packets: each page becomes a chunk.

    `externals` maps the name of an original file to the id of a list and the place in it. With
    `checksums`, referenced bytes are read for their CRC32C.
    """

    def __init__(
        self,
        schema: Schema,
        number: int,
        externals: Mapping[str, tuple[str, int]],
        *,
        checksums: bool,
    ) -> None:
        super().__init__(schema, number)
        self._externals, self._checksums = externals, checksums

    def keep_others(self, video: Any) -> None:
        if not isinstance(video, ReferencedGops):
            super().keep_others(video)
        self.end_chunk_if(self.has_frames)
        gops = replace(video, config=self.codec.own_config(video.config))
        pages = gops.pages(self.max_frames, MAX_REFERENCED_BYTES)
        references = PacketReference.of(gops, pages, *self._externals[gops.file])
        for page, reference in zip(pages, references, strict=True):
            if self._checksums:
                checksum = checksum_of_range(gops.file, reference.start, reference.stop)
                reference = replace(reference, crc32c=checksum or 1)
            count = int(gops.num_frames[page.start : page.stop].sum())
            self.add_reference(count, reference.encode(), reference.length)
