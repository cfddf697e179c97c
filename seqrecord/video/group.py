"""The group of a video feature: arrays become groups of pictures (GOPs), and these chunks.

A chunk starts at a keyframe and has whole GOPs: as many as fit 32 frames or 48 MiB decoded, at
least one. A frame without the feature is in no GOP.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import CodecError, FrameError, located
from seqrecord.in_place.references import checksum_of_files
from seqrecord.store.format.references import Reference, ReferencedFile, ReferencedGops
from seqrecord.store.format.rows import MAX_EPISODE_FRAMES
from seqrecord.store.schema import Schema
from seqrecord.store.writing.chunking import (
    MAX_REFERENCED_BYTES,
    ChunkGroup,
    EncodedColumn,
    StoredChunk,
)
from seqrecord.video.encoding import encode_gop
from seqrecord.video.gops import MAX_GOP_FRAMES, DecodedFrame, Gop
from seqrecord.video.pages import VideoPageCodec


class VideoGroup(ChunkGroup):
    """Frames of a video feature.

    An episode's video comes frame by frame as arrays, or as GOPs: encoded, or as references into
    original files. `externals` maps the name of such a file to the id of a list and the place in
    it. With `checksums`, the bytes of such files are read for the CRC32C of their pages.
    """

    def __init__(
        self,
        schema: Schema,
        number: int,
        externals: Mapping[str, tuple[str, int]] | None = None,
        *,
        checksums: bool = False,
    ) -> None:
        super().__init__(schema, number)
        self._externals, self._checksums = externals or {}, checksums
        self.codec = VideoPageCodec(next(iter(self.schema.values())))
        self.config = self.codec.config.encoding(self.codec.height, self.codec.width)
        self._own = self.codec.own_config(self.config)

    def begin(self, chunk_frames: int | None) -> None:
        super().begin(chunk_frames)
        self._most = min(self._length.frames or 1, MAX_GOP_FRAMES)
        self._has_arrays = False

    def clear(self) -> None:
        self._ready: deque[StoredChunk] = deque()
        self._present: list[bool] = []  # of the frames of the next chunk
        self._gops: list[Gop] = []  # of the next chunk
        self._arrays: list[npt.NDArray[Any]] = []  # of its next GOP

    @property
    def name(self) -> str:
        return self.codec.spec.name

    def rows_left(self, columns: Mapping[str, EncodedColumn], rows: range) -> int:
        is_kept = self.num_kept is not None and self.name not in columns
        return len(rows) if is_kept else 1

    def add(self, columns: Mapping[str, EncodedColumn], rows: range) -> None:
        column = columns.get(self.name)
        if column is None:
            if self.num_kept is None:  # GOPs may come later
                self._present.append(False)
                self._end_chunk_if(self._has_arrays and len(self._present) >= self._most)
            return
        if self.num_kept is not None:
            raise FrameError("feature has both frames and appended video", feature=self.name)
        if not self._has_arrays:
            self._has_arrays = True
            self._cut_absent()
        assert not isinstance(column, memoryview), "only raw features have memoryviews"
        blob = column[rows.start]
        self._add_array(np.frombuffer(blob.data, self.codec.config.dtype).reshape(blob.shape))

    def _add_array(self, array: npt.NDArray[Any]) -> None:
        self._present.append(True)
        self._arrays.append(array)
        assert self.config.gop is not None
        if len(self._arrays) == self.config.gop:
            self._end_gop()
            self._end_chunk_if(len(self._present) + self.config.gop > self._most)
        else:
            self._end_chunk_if(len(self._present) == MAX_GOP_FRAMES)

    def keep(self, video: Gop | ReferencedGops | DecodedFrame) -> None:
        """Add frames of a source's video: a GOP, references to GOPs (each page becomes a chunk),
        or a frame to be encoded."""
        if self._has_arrays or (self._written and self.num_kept is None):
            raise FrameError(
                "cannot append video: the episode has frames of the feature, or was flushed "
                "without it",
                feature=self.name,
            )
        if self.num_kept is None:
            self.num_kept, self._present = 0, []
        self.num_kept += int(np.sum(video.num_frames))
        if self.num_kept > MAX_EPISODE_FRAMES:
            raise FrameError("video has too many frames", feature=self.name)
        if isinstance(video, DecodedFrame):
            self._keep_frame(video.pixels)
        elif isinstance(video, Gop):
            self._keep_gop(replace(video, config=self.codec.own_config(video.config)))
        else:
            self._end_chunk_if(bool(self._present))
            self._refer(replace(video, config=self.codec.own_config(video.config)))

    def _keep_frame(self, pixels: npt.NDArray[Any]) -> None:
        shape = self.config.shape(self.codec.height, self.codec.width)
        dtype = np.dtype(np.uint16 if self.config.is_grey else np.uint8)
        if (pixels.dtype, pixels.shape) != (dtype, shape):
            raise FrameError(
                "video of another dtype or shape",
                feature=self.name,
                expected=f"{dtype} {list(shape)}",
                got=f"{pixels.dtype} {list(pixels.shape)}",
            )
        if not self._arrays:
            self._end_chunk_if(bool(self._gops) and self._gops[-1].config != self._own)
        self._add_array(pixels)

    def _keep_gop(self, gop: Gop) -> None:
        self._end_gop()
        is_full = len(self._present) + gop.num_frames > self._most
        self._end_chunk_if(bool(self._gops) and (is_full or gop.config != self._gops[-1].config))
        self._gops.append(gop)
        self._present += [True] * gop.num_frames
        self._end_chunk_if(len(self._present) >= self._most)

    def _refer(self, gops: ReferencedGops) -> None:
        pages = gops.pages(self._most, MAX_REFERENCED_BYTES)
        references = Reference.of(gops, pages, *self._externals[gops.file])
        for page, reference in zip(pages, references, strict=True):
            if self._checksums:
                part = ReferencedFile(gops.file, reference.start, reference.stop)
                crc = checksum_of_files([part]) or 1
                reference = replace(reference, crc32c=crc)
            present = [True] * int(gops.num_frames[page.start : page.stop].sum())
            self._ready.append(self._chunk([present], [reference.encode()], (), reference.length))

    def chunks(self, *, rest: bool = False) -> Iterator[StoredChunk]:
        if rest:
            self._cut_absent()
            self._end_chunk_if(bool(self._present))
        while self._ready:
            yield self._ready.popleft()

    def _cut_absent(self) -> None:
        """Cut chunks from waiting frames that all lack the feature."""
        while len(self._present) >= MAX_GOP_FRAMES and not any(self._present):
            rest = self._present[MAX_GOP_FRAMES:]
            del self._present[MAX_GOP_FRAMES:]
            self._end_chunk_if(True)
            self._present = rest

    def _end_gop(self) -> None:
        if self._arrays:
            with located(CodecError, feature=self.name):
                self._gops.append(replace(encode_gop(self.config, self._arrays), config=self._own))
            self._arrays = []

    def _end_chunk_if(self, condition: bool) -> None:
        if not condition:
            return
        self._end_gop()
        self._ready.append(self._chunk([self._present], [self.codec.join(self._gops)]))
        self._present, self._gops = [], []
