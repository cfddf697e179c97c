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
from seqrecord.store.format.page_kinds import EncodedColumn
from seqrecord.store.format.rows import MAX_EPISODE_FRAMES
from seqrecord.store.schema import Schema
from seqrecord.store.writing.chunking import ChunkGroup, StoredChunk
from seqrecord.video.encoding import encode_gop
from seqrecord.video.gops import MAX_GOP_FRAMES, DecodedFrame, Gop
from seqrecord.video.pages import VideoPageCodec


class VideoGroup(ChunkGroup):
    """Frames of a video feature.

    An episode's video comes frame by frame as arrays, or as encoded GOPs. `in_place` derives a
    group that also takes references into original files.
    """

    keeps_video = True

    def __init__(self, schema: Schema, number: int) -> None:
        super().__init__(schema, number)
        self.codec = VideoPageCodec(next(iter(self.schema.values())))
        self.config = self.codec.config.encoding(self.codec.height, self.codec.width)
        self._page_config = self.codec.own_config(self.config)

    def begin(self, chunk_frames: int | None) -> None:
        super().begin(chunk_frames)
        self.max_frames = self._length.frames or 1
        self._has_arrays = False

    def clear(self) -> None:
        self._finished_chunks: deque[StoredChunk] = deque()
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
                self.end_chunk_if(self._has_arrays and len(self._present) >= self.max_frames)
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
            self.end_chunk_if(len(self._present) + self.config.gop > self.max_frames)
        else:
            self.end_chunk_if(len(self._present) == MAX_GOP_FRAMES)

    def keep(self, video: Any) -> None:
        """Add frames of a source's video: a `Gop`, or a `DecodedFrame` to be encoded."""
        if self._has_arrays or (self._num_written and self.num_kept is None):
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
            self.keep_others(video)

    def keep_others(self, video: Any) -> None:
        """Add frames of another class. Raises `FrameError`."""
        raise FrameError(
            "frames of a class that video cannot store",
            feature=self.name,
            expected="a Gop or DecodedFrame",
            got=type(video).__name__,
        )

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
            self.end_chunk_if(bool(self._gops) and self._gops[-1].config != self._page_config)
        self._add_array(pixels)

    def _keep_gop(self, gop: Gop) -> None:
        self._end_gop()
        is_full = len(self._present) + gop.num_frames > self.max_frames
        self.end_chunk_if(bool(self._gops) and (is_full or gop.config != self._gops[-1].config))
        self._gops.append(gop)
        self._present += [True] * gop.num_frames
        self.end_chunk_if(len(self._present) >= self.max_frames)

    def chunks(self, *, with_tail: bool = False) -> Iterator[StoredChunk]:
        if with_tail:
            self._cut_absent()
            self.end_chunk_if(bool(self._present))
        while self._finished_chunks:
            yield self._finished_chunks.popleft()

    def add_reference(self, num_frames: int, page: bytes, length: int) -> None:
        """Add a chunk whose page refers to `length` bytes of an external file."""
        self._finished_chunks.append(self._chunk([[True] * num_frames], [page], (), length))

    @property
    def has_frames(self) -> bool:
        """Whether frames wait for their chunk."""
        return bool(self._present)

    def _cut_absent(self) -> None:
        """Cut chunks from waiting frames that all lack the feature."""
        # Frames of the next chunk may still get the feature, so a shorter tail waits.
        while len(self._present) >= MAX_GOP_FRAMES and not any(self._present):
            later_frames = self._present[MAX_GOP_FRAMES:]
            del self._present[MAX_GOP_FRAMES:]
            self.end_chunk_if(True)
            self._present = later_frames

    def _end_gop(self) -> None:
        if self._arrays:
            with located(CodecError, feature=self.name):
                self._gops.append(
                    replace(encode_gop(self.config, self._arrays), config=self._page_config)
                )
            self._arrays = []

    def end_chunk_if(self, condition: bool) -> None:
        if not condition:
            return
        self._end_gop()
        self._finished_chunks.append(self._chunk([self._present], [self.codec.join(self._gops)]))
        self._present, self._gops = [], []
