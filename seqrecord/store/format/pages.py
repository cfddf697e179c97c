"""Pages: one feature's frames in one chunk, as bytes. The normative text is docs/format.md.

::

    raw page      │ frame 0 │ frame 1 │ …                          a fixed shape and no codec
    other page    │ offsets u32 [n + 1] │ shapes u32 [n, d] │ blob 0 │ blob 1 │ …

A page contains only frames that have the feature. Offsets count from the page's start; the first
is that of blob 0, the last is the page's length. Shapes are present only for features with a
variable dimension. Without a codec, a blob is the frame's bytes in C order. A page without frames
is empty, and so is the blob of a frame with a dimension of 0.

The pages of a chunk are followed by the checksums of slices of its raw pages. They allow a reader
to read and check parts of a page.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.errors import CodecError, FormatError, FrameError, SchemaError, located
from seqrecord.store.checksum import Buffer, crc32c
from seqrecord.store.codecs.chain import FrameCodec
from seqrecord.store.codecs.exif import check_upright
from seqrecord.store.codecs.images import probe
from seqrecord.store.schema import MAX_FRAME_BYTES, EncodedImage, FeatureSpec, Schema

ALIGNMENT = 64
MAX_PAGE_BYTES = 2**32 - 1
SLICE_BYTES = 4096  # minimum size of a slice, except for the last of a page
DIGEST_BYTES = 16


class Blob(NamedTuple):
    """One encoded frame and its shape."""

    data: bytes | memoryview
    shape: tuple[int, ...]


class PageCodec:
    """Encodes and decodes the pages of one feature. Thread-safe.

    Raises `SchemaError` for unknown codecs.
    """

    def __init__(self, spec: FeatureSpec) -> None:
        self.spec = spec
        with located(SchemaError, feature=spec.name):
            self._codec = FrameCodec(spec.codec, spec.dtype, spec.shape)

    def encode_frame(self, frame: npt.ArrayLike | EncodedImage) -> Blob:
        """Encode one frame.

        Raises `FrameError` if dtype or shape differ from the feature's. Dtypes are never converted.
        """
        spec = self.spec
        array = frame if isinstance(frame, EncodedImage) else np.asarray(frame)
        if isinstance(array, EncodedImage):
            dtype, shape = _header(array, spec)
        else:
            dtype, shape = array.dtype, array.shape
        check_fits(spec, dtype, shape)
        if not _is_small(shape, spec):
            raise FrameError(
                "a frame of this feature is too large",
                feature=spec.name,
                expected=f"at most {MAX_FRAME_BYTES} bytes",
                got=f"{dtype} {list(shape)}",
            )
        if isinstance(array, np.ndarray):
            array = np.asarray(array, dtype=spec.dtype, order="C")
            if not _are_bools(array):
                raise FrameError(
                    "a bool that is neither 0 nor 1", feature=spec.name, expected="bytes 0 and 1"
                )
            if not spec.codec:
                return Blob(array.tobytes(), shape)
        with located(CodecError, feature=spec.name):
            return Blob(bytes(self._codec.encode(array)), shape)

    def join(self, blobs: Sequence[Blob]) -> Buffer:
        """Concatenate blobs to a page, empty for no frames; a raw page's blobs may have many.

        Raises `FrameError` if it is too large.
        """
        parts = [blob.data for blob in blobs]
        if parts and not self.spec.is_raw:
            offsets = np.cumsum(
                [table_bytes(self.spec, len(parts)), *map(len, parts)], dtype=np.int64
            )
            shapes = b""
            if not self.spec.is_fixed:
                shapes = np.array([blob.shape for blob in blobs], "<u4").tobytes()
            parts = [offsets.astype("<u4").tobytes(), shapes, *parts]
        if (length := sum(map(len, parts))) > MAX_PAGE_BYTES:
            raise FrameError(
                "a page is too large; write smaller chunks",
                feature=self.spec.name,
                expected=f"at most {MAX_PAGE_BYTES} bytes",
                got=f"{length} bytes",
            )
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def cut(self, page: memoryview, count: int, positions: range) -> Buffer:
        """Return the page of some consecutive frames of a page with `count` frames.

        Nothing is decoded.
        """
        if self.spec.is_raw:
            size = self.spec.nbytes
            return page[positions.start * size : positions.stop * size]
        offsets = self.offsets(page, count).tolist()
        blobs = (page[offsets[i] : offsets[i + 1]] for i in positions)
        shapes = (self.shape_of(count, i, page) for i in positions)
        return self.join(list(map(Blob, blobs, shapes)))

    def shapes(self, page: memoryview, count: int) -> list[tuple[int, ...]]:
        """Return the shapes of the page's `count` frames, checked against the feature's."""
        if not self.spec.is_fixed:
            self.offsets(page, count)  # checks that the table is inside the page
        return [self.shape_of(count, position, page) for position in range(count)]

    def shape_of(self, count: int, position: int, table: memoryview) -> tuple[int, ...]:
        """Return one frame's shape. `table` needs the first `table_bytes` of the page."""
        if self.spec.is_fixed:
            return tuple(n or 0 for n in self.spec.shape)
        rank = len(self.spec.shape)
        at = (count + 1 + position * rank) * 4
        shape = struct.unpack_from(f"<{rank}I", table, at)
        if not self.spec.accepts(shape) or not _is_small(shape, self.spec):
            raise FormatError(
                "a frame with an impossible shape",
                feature=self.spec.name,
                offset=at,
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
        offsets: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Decode frames of a page with `count` frames directly into `out`.

        `positions` selects frames of the page, `None` all. `out[i]` is a C-contiguous array with
        the dtype and shape of frame `positions[i]`. `offsets` avoids parsing the page's offsets
        again. Raises `FormatError` or `CodecError`, with the offset inside the page.
        """
        wanted = range(count) if positions is None else positions
        if self.spec.is_raw:
            self._copy_raw(page, count, out, wanted)
            return
        if offsets is None:
            offsets = self.offsets(page, count)
        if isinstance(out, np.ndarray) and self._decode_frames(page, offsets, out, wanted):
            return
        for i, position in enumerate(wanted):
            blob = page[offsets[position] : offsets[position + 1]]
            try:
                self.decode_blob(blob, _row(out, i))
            except CodecError as error:
                raise error.located(
                    feature=self.spec.name, offset=int(offsets[position])
                ) from error.__cause__

    def _decode_frames(
        self,
        page: memoryview,
        offsets: npt.NDArray[np.int64],
        out: npt.NDArray[Any],
        wanted: Sequence[int] | range,
    ) -> bool:
        """Decode several frames with one call. Returns false if unsupported or unsuccessful."""
        if not len(wanted) or not self.spec.codec or not self.spec.is_fixed:
            return False
        where = np.asarray(wanted)
        bounds = zip(offsets[where].tolist(), offsets[where + 1].tolist(), strict=True)
        blobs = [page[start:stop] for start, stop in bounds]
        some = out[: len(blobs)]
        return self._codec.decode_frames(blobs, some) and _are_bools(some)

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
        if not _are_bools(out):
            raise self._not_bools()

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

    def _copy_raw(
        self,
        page: memoryview,
        count: int,
        out: Sequence[npt.NDArray[Any]] | npt.NDArray[Any],
        wanted: Sequence[int] | range,
    ) -> None:
        if len(page) != count * self.spec.nbytes:
            raise FormatError(
                "a raw page with a wrong length",
                feature=self.spec.name,
                expected=f"{count * self.spec.nbytes} bytes",
                got=len(page),
            )
        shape = (count, *(n or 0 for n in self.spec.shape))
        frames = np.frombuffer(page, self.spec.dtype).reshape(shape)
        if not _are_bools(frames):
            raise self._not_bools()
        if isinstance(out, np.ndarray) and isinstance(wanted, range) and wanted.step > 0:
            np.copyto(out, frames[wanted.start : wanted.stop : wanted.step])
        else:
            for i, position in enumerate(wanted):
                np.copyto(_row(out, i), frames[position])

    def _not_bools(self) -> CodecError:
        return CodecError(
            "a bool that is neither 0 nor 1", feature=self.spec.name, expected="bytes 0 and 1"
        )


def aligned(offset: int) -> int:
    """Round up to a multiple of `ALIGNMENT`."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def page_offsets(lengths: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
    """Return page offsets in a chunk, and the slice table's: int64 [..., F + 1].

    `lengths`, [..., F], are page lengths in schema order. Pages are aligned; an empty page takes no
    bytes.
    """
    offsets = np.zeros((*lengths.shape[:-1], lengths.shape[-1] + 1), np.int64)
    np.cumsum(_padded(lengths), axis=-1, out=offsets[..., 1:])
    return offsets


def chunk_bytes(lengths: npt.NDArray[np.integer[Any]], schema: Schema) -> npt.NDArray[np.int64]:
    """Return the size of chunks in bytes, int64 [...]: padded pages and slice checksums.

    `lengths`, [..., F], are the page lengths of the features of `schema`.
    """
    total: npt.NDArray[np.int64] = np.einsum("...f->...", _padded(lengths))  # 3x faster than sum()
    for column, spec in enumerate(schema.values()):
        if spec.is_raw:
            total += 4 * num_slices(spec, lengths[..., column].astype(np.int64) // spec.nbytes)
    return total


def slice_frames(spec: FeatureSpec) -> int:
    """Return the frames in a slice of a raw page: the fewest with `SLICE_BYTES`, at least 1."""
    return max(1, -(-SLICE_BYTES // spec.nbytes))


def num_slices(spec: FeatureSpec, count: Any) -> Any:
    """Return the number of slices in a raw page of `count` frames. The last may be shorter."""
    return -(-count // slice_frames(spec))


_HINT = "; for a variable shape, pass schema= or features= with None for that dimension"


def check_fits(spec: FeatureSpec, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Raise `FrameError` unless dtype and shape match the feature. Byte order is ignored."""
    if dtype.newbyteorder("<") != spec.dtype or not spec.accepts(shape):
        hint = "" if spec.accepts(shape) else _HINT
        raise FrameError(
            f"an array does not fit its feature{hint}",
            feature=spec.name,
            expected=spec,
            got=f"{dtype} {list(shape)}",
        )


def slice_sums(spec: FeatureSpec, page: Buffer) -> npt.NDArray[np.uint32]:
    """Compute the CRC32C of each slice of a raw page: uint32 [num_slices]."""
    view, size = memoryview(page), slice_frames(spec) * spec.nbytes
    return np.array([crc32c(view[at : at + size]) for at in range(0, len(view), size)], "<u4")


def slice_table(schema: Schema, pages: Sequence[Buffer]) -> bytes:
    """Return the bytes after a chunk's pages: the checksums of all slices of its raw pages."""
    return b"".join(
        slice_sums(spec, page).tobytes()
        for spec, page in zip(schema.values(), pages, strict=True)
        if spec.is_raw
    )


def page_digest(page: Buffer, num_frames: int, present: npt.NDArray[np.bool_] | None) -> bytes:
    """Compute the digest that identifies a page's content: 16 bytes, zeros for an empty page.

    `num_frames` is that of the chunk; `present`, bool [num_frames], is true for frames in the page,
    `None` if all are. A page with the same digest has the same bytes for the same frames.
    """
    if not len(page):
        return bytes(DIGEST_BYTES)
    digest = hashlib.sha256(page)
    there = np.ones(num_frames, np.bool_) if present is None else present
    digest.update(np.packbits(there, bitorder="little").tobytes())
    digest.update(num_frames.to_bytes(4, "little"))
    return digest.digest()[:DIGEST_BYTES]


def table_bytes(spec: FeatureSpec, count: Any) -> Any:
    """Return the size of offsets and shapes in a page of `count` frames (neither raw nor video)."""
    return (count + 1) * 4 + (0 if spec.is_fixed else count * len(spec.shape) * 4)


def _padded(lengths: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
    return -(-lengths.astype(np.int64) // ALIGNMENT) * ALIGNMENT


def _is_small(shape: Sequence[int], spec: FeatureSpec) -> bool:
    """Return whether a frame of this shape fits the memory limit; dimensions of 0 count as 1."""
    return math.prod(max(n, 1) for n in shape) * spec.dtype.itemsize <= MAX_FRAME_BYTES


def _row(out: Sequence[npt.NDArray[Any]] | npt.NDArray[Any], i: int) -> npt.NDArray[Any]:
    """Return `out[i]` as a writable array, also if a frame is a scalar."""
    return out[i, ...] if isinstance(out, np.ndarray) else out[i]


def _are_bools(array: npt.NDArray[Any]) -> bool:
    """Return false for a bool array with a byte other than 0 or 1. NumPy does not check that."""
    if array.dtype != np.bool_ or not array.size:
        return True
    return int(array.view(np.uint8).max()) <= 1


def _header(image: EncodedImage, spec: FeatureSpec) -> tuple[np.dtype[Any], tuple[int, ...]]:
    try:
        header = probe(image.data)
        if not any("exif" in config for config in spec.codec):
            check_upright(header.orientation)
    except ValueError as error:
        raise FrameError(
            "cannot keep this image encoded", feature=spec.name, got=str(error)
        ) from error
    return header.dtype, header.shape
