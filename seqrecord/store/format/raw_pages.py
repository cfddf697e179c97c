"""Raw pages: bytes of fixed-shape frames, without a codec.

::

    │ frame 0 │ frame 1 │ …
    │ slice 0     │ slice 1     │ …     each with a CRC32C behind the chunk's pages

A slice is the fewest frames of at least 4 KiB, so that some frames can be read and checked alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import FormatError
from seqrecord.store.checksum import Buffer
from seqrecord.store.format.page_kinds import (
    Blob,
    EncodedColumn,
    Memo,
    PageCodec,
    PageKind,
    encode_each,
)
from seqrecord.store.format.pages import FramePages, check_fits, row_of, slice_frames
from seqrecord.store.schema import FeatureSpec

_MEMORY_BYTES = 48 << 20  # allocated at once, of a page whose size is not known yet


class RawPages(FramePages):
    """Raw pages of one feature."""

    def encode_block(self, frames: npt.NDArray[Any] | Sequence[Any]) -> EncodedColumn:
        """Return one buffer for all frames of a block, if possible not a copy."""
        spec = self.spec
        if isinstance(frames, np.ndarray):
            check_fits(spec, frames.dtype, frames.shape[1:])
            return _bytes_of(frames.astype(spec.dtype, order="C", copy=False))
        if len(frames) == 1:
            [frame] = frames
            is_array = type(frame) is np.ndarray and frame.dtype == spec.dtype
            if is_array and frame.shape == spec.shape:
                return _bytes_of(np.ascontiguousarray(frame))  # the common case
        return memoryview(b"".join(blob.data for blob in encode_each(self.encode_frame, frames)))

    def join(self, blobs: Sequence[Blob]) -> Buffer:
        """Concatenate blobs, of one frame or many, to a page."""
        return self.join_parts([blob.data for blob in blobs])

    def cut(self, page: memoryview, count: int, positions: range) -> Buffer:  # noqa: ARG002
        size = self.spec.nbytes
        return page[positions.start * size : positions.stop * size]

    def decode_into(
        self,
        page: memoryview,
        count: int,
        out: Sequence[npt.NDArray[Any]] | npt.NDArray[Any],
        positions: Sequence[int] | range | None = None,
        memo: Memo | None = None,  # noqa: ARG002
    ) -> None:
        numbers = range(count) if positions is None else positions
        if len(page) != count * self.spec.nbytes:
            raise FormatError(
                "a raw page with a wrong length",
                feature=self.spec.name,
                expected=f"{count * self.spec.nbytes} bytes",
                got=len(page),
            )
        shape = (count, *(n or 0 for n in self.spec.shape))
        frames = np.frombuffer(page, self.spec.dtype).reshape(shape)
        self.check_bools(frames)
        if isinstance(out, np.ndarray) and isinstance(numbers, range) and numbers.step > 0:
            np.copyto(out, frames[numbers.start : numbers.stop : numbers.step])
        else:
            for i, position in enumerate(numbers):
                np.copyto(row_of(out, i), frames[position])


class _RawColumn:
    """Bytes of a raw feature's frames, in memory that is used again for every second page.

    Fresh memory would cost as much as the copy. The page before may still be hashed.
    """

    def __init__(self, codec: PageCodec) -> None:
        assert isinstance(codec, RawPages)
        self._codec, self._nbytes = codec, codec.spec.nbytes
        self._memory = self._spare = np.empty(0, np.uint8)
        self._start = self._stop = 0  # of the bytes that are not taken yet

    def clear(self) -> None:
        if self._start:
            self._memory, self._spare = self._spare, self._memory
        self._start = self._stop = 0

    def add(self, column: EncodedColumn, rows: range, expected: int) -> None:
        nbytes = self._nbytes
        assert isinstance(column, memoryview), "raw frames are encoded in blocks"
        data, expected = column[rows.start * nbytes : rows.stop * nbytes], expected * nbytes
        leftover = self._memory[self._start : self._stop]
        size = len(leftover) + len(data)
        if self._start or size > len(self._memory):
            memory = self._memory
            if self._start:
                memory, self._spare = self._spare, memory
            if size > len(memory):
                memory = np.empty(max(size, min(expected, max(2 * size, _MEMORY_BYTES))), np.uint8)
            memory[: len(leftover)] = leftover
            self._memory = memory
        self._memory[len(leftover) : size] = data
        self._start, self._stop = 0, size

    def take(self, count: int) -> tuple[Buffer, Sequence[Blob]]:
        size = count * self._nbytes
        self._start += size
        return self._codec.join_parts([self._memory[self._start - size : self._start].data]), ()


class _Raw(PageKind):
    name = "raw"
    codec = RawPages
    in_slices = True

    def can_be_length(
        self, spec: FeatureSpec, length: npt.NDArray[Any], count: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        fits: npt.NDArray[np.bool_] = length == count * spec.nbytes
        return fits

    def slice_bytes(self, spec: FeatureSpec) -> int:
        return slice_frames(spec) * spec.nbytes

    def column(self, codec: PageCodec) -> _RawColumn:
        return _RawColumn(codec)


RAW = _Raw()


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    """The bytes of a C-contiguous array."""
    return array.reshape(-1).view(np.uint8).data
