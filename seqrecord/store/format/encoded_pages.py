"""Encoded pages: a blob per frame, behind a table of offsets.

::

    │ offsets u32 [n + 1] │ shapes u32 [n, d] │ blob 0 │ blob 1 │ …

Offsets count from the page's start; the first is that of blob 0, the last is the page's length.
Shapes are present only for features with a variable dimension. Without a codec, a blob is the
frame's bytes in C order. The blob of a frame with a dimension of 0 is empty.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import CodecError, FormatError
from seqrecord.store.checksum import Buffer
from seqrecord.store.codecs.images import FILES, IMAGE
from seqrecord.store.format.page_kinds import Blob, EncodedColumn, Memo, PageCodec, PageKind
from seqrecord.store.format.pages import FramePages, are_bools, is_small_frame, row_of
from seqrecord.store.format.references import FrameReference
from seqrecord.store.schema import FeatureSpec

_COSTLY_IMAGES = ("png", "jpeg", "any", "jpegxl")  # decoding others costs less than writing


class EncodedPages(FramePages):
    """Encoded pages of one feature."""

    def join(self, blobs: Sequence[Blob]) -> Buffer:
        """Concatenate blobs to a page, empty for none. Raises `FrameError` if it is too large."""
        if not blobs:
            return b""
        parts = [blob.data for blob in blobs]
        table_size = table_bytes(self.spec, len(parts))
        offsets = np.cumsum([table_size, *map(len, parts)], dtype=np.int64)
        shapes = b""
        if not self.spec.is_fixed:
            shapes = np.array([blob.shape for blob in blobs], "<u4").tobytes()
        return self.join_parts([offsets.astype("<u4").tobytes(), shapes, *parts])

    def cut(self, page: memoryview, count: int, positions: range) -> Buffer:
        offsets = self.offsets(page, count).tolist()
        blobs = (page[offsets[i] : offsets[i + 1]] for i in positions)
        shapes = (self.shape_of(count, i, page) for i in positions)
        return self.join(list(map(Blob, blobs, shapes)))

    def shapes(self, page: memoryview, count: int) -> list[tuple[int, ...]]:
        if self.spec.is_fixed:
            return super().shapes(page, count)
        self.offsets(page, count)  # checks that the table is inside the page
        table = page[(count + 1) * 4 : table_bytes(self.spec, count)]
        shapes = [*struct.iter_unpack(f"<{len(self.spec.shape)}I", table)]
        positions = dict(zip(reversed(shapes), reversed(range(count)), strict=True))
        for position in sorted(positions.values()):  # the first frame of each shape
            self.shape_of(count, position, page)
        return shapes

    def shape_of(self, count: int, position: int, table: memoryview) -> tuple[int, ...]:
        """Return one frame's shape. `table` needs the first `table_bytes` of the page."""
        if self.spec.is_fixed:
            return tuple(n or 0 for n in self.spec.shape)
        rank = len(self.spec.shape)
        offset = (count + 1 + position * rank) * 4
        shape = struct.unpack_from(f"<{rank}I", table, offset)
        if not self.spec.accepts(shape) or not is_small_frame(shape, self.spec):
            raise FormatError(
                "a frame with an impossible shape",
                feature=self.spec.name,
                offset=offset,
                expected=self.spec,
                got=list(shape),
            )
        return shape

    def decode_into(
        self,
        page: memoryview,
        count: int,
        out: Sequence[npt.NDArray[Any]] | npt.NDArray[Any],
        positions: Sequence[int] | range | None = None,
        memo: Memo | None = None,
    ) -> None:
        """As `PageCodec.decode_into`; `memo` keeps the parsed offsets."""
        numbers = range(count) if positions is None else positions
        offsets = None if memo is None else memo.get("offsets")
        if offsets is None:
            offsets = self.offsets(page, count)
            if memo is not None:
                memo["offsets"] = offsets
        if isinstance(out, np.ndarray) and self._decode_frames(page, offsets, out, numbers):
            return
        for i, position in enumerate(numbers):
            blob = page[offsets[position] : offsets[position + 1]]
            try:
                self.decode_blob(blob, row_of(out, i))
            except CodecError as error:
                raise error.located(
                    feature=self.spec.name, offset=int(offsets[position])
                ) from error.__cause__

    def reference(self, page: memoryview, length: int, count: int) -> FrameReference:
        return FrameReference.parse(page, length, self.spec.name, count)

    def resolve(self, reference: FrameReference, data: memoryview) -> memoryview:
        return reference.page(data)

    def _decode_frames(
        self,
        page: memoryview,
        offsets: npt.NDArray[np.int64],
        out: npt.NDArray[Any],
        positions: Sequence[int] | range,
    ) -> bool:
        """Decode several frames with one call. Returns false if unsupported or unsuccessful."""
        if not len(positions) or not self.spec.codec or not self.spec.is_fixed:
            return False
        numbers = np.asarray(positions)
        bounds = zip(offsets[numbers].tolist(), offsets[numbers + 1].tolist(), strict=True)
        blobs = [page[start:stop] for start, stop in bounds]
        frames = out[: len(blobs)]
        return self._codec.decode_frames(blobs, frames) and are_bools(frames)

    def decode_blob(self, blob: memoryview, out: npt.NDArray[Any]) -> None:
        """Decode one blob into `out`."""
        if self.spec.codec:
            self._codec.decode_into(blob, out)
        elif len(blob) == out.nbytes:
            out[...] = np.frombuffer(blob, self.spec.dtype).reshape(out.shape)
        else:
            raise CodecError(
                "a frame with a wrong length",
                feature=self.spec.name,
                expected=f"{out.nbytes} bytes",
                got=len(blob),
            )
        self.check_bools(out)

    def offsets(self, page: memoryview, count: int) -> npt.NDArray[np.int64]:
        """Parse and check the page's blob offsets: int64 [count + 1]; the last is the page's
        length.
        """
        if count == 0 and len(page) == 0:
            return np.zeros(1, np.int64)
        table = table_bytes(self.spec, count)
        if count > 0 and len(page) >= table:
            offsets = np.frombuffer(page[: (count + 1) * 4], "<u4").astype(np.int64)
            if offsets[0] == table and offsets[-1] == len(page) and np.all(np.diff(offsets) >= 0):
                return offsets
        raise FormatError(
            "a page's offsets are out of order or outside it",
            feature=self.spec.name,
            offset=0,
            expected=f"{count + 1} offsets from {table} up to {len(page)}",
            got=f"a page of {len(page)} bytes",
        )


class _EncodedColumn:
    """Blobs of a feature's frames."""

    def __init__(self, codec: PageCodec) -> None:
        assert isinstance(codec, EncodedPages)
        self._codec = codec
        self.clear()

    def clear(self) -> None:
        self._blobs: list[Blob] = []

    def add(self, column: EncodedColumn, rows: range, expected: int) -> None:  # noqa: ARG002
        assert not isinstance(column, memoryview), "only raw frames are encoded in blocks"
        self._blobs += column[rows.start : rows.stop]

    def take(self, count: int) -> tuple[Buffer, Sequence[Blob]]:
        blobs, self._blobs = self._blobs[:count], self._blobs[count:]
        return self._codec.join(blobs), blobs


class _Encoded(PageKind):
    name = "encoded"
    codec = EncodedPages

    def can_be_length(
        self, spec: FeatureSpec, length: npt.NDArray[Any], count: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        fits: npt.NDArray[np.bool_]
        fits = np.where(count == 0, length == 0, length >= table_bytes(spec, count))
        return fits

    def may_refer(self, spec: FeatureSpec) -> bool:
        """Pages may refer to the frames' files, if these are images of one shape."""
        return bool(spec.codec) and spec.codec[0]["id"] == IMAGE and spec.is_fixed

    def keeps_encoding(self, spec: FeatureSpec) -> bool:
        return any(config.get("format") in FILES for config in spec.codec)

    def is_lossy(self, spec: FeatureSpec) -> bool:
        return bool(spec.codec) and (
            spec.codec[0]["id"] == IMAGE and spec.codec[0].get("format") in ("jpeg", "any")
        )

    def is_costly(self, spec: FeatureSpec) -> bool:
        return any(
            config["id"] == IMAGE and config.get("format") in _COSTLY_IMAGES
            for config in spec.codec
        )

    def column(self, codec: PageCodec) -> _EncodedColumn:
        return _EncodedColumn(codec)


ENCODED = _Encoded()


def table_bytes(spec: FeatureSpec, count: Any) -> Any:
    """Return the size of offsets and shapes in a page of `count` frames."""
    return (count + 1) * 4 + (0 if spec.is_fixed else count * len(spec.shape) * 4)
