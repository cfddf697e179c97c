"""Compressors: Zstandard and LZ4, which declare the decoded size; zlib, bz2 and lzma streams.

The streams do not declare their size; modules of Python's standard library decode them.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import ClassVar, Protocol

import numpy as np

from seqrecord.codecs.base import Bytes, Compressor, Parameters, check_limit, check_size

_MAGIC = b"\x28\xb5\x2f\xfd"


class Zstd(Compressor):
    """The Zstandard compressor."""

    codec_id = "zstd"
    parameters: ClassVar[Parameters] = {"level": range(-7, 20), "checksum": (False, True)}

    def _declared_size(self, blob: memoryview) -> int:
        """Content size in the first Zstandard frame (RFC 8878, 3.1.1.1)."""
        if len(blob) < 6 or blob[:4] != _MAGIC:
            raise ValueError("not a Zstandard frame")
        descriptor = blob[4]
        size_flag, single_segment = descriptor >> 6, bool(descriptor & 0x20)
        width = (1 if single_segment else 0, 2, 4, 8)[size_flag]
        start = 5 + (not single_segment) + (0, 1, 2, 4)[descriptor & 3]
        if width == 0 or len(blob) < start + width:
            raise ValueError("a Zstandard frame that does not declare its size")
        return int.from_bytes(blob[start : start + width], "little") + (256 if width == 2 else 0)


class Lz4(Compressor):
    """The LZ4 compressor."""

    codec_id = "lz4"
    parameters: ClassVar[Parameters] = {"acceleration": range(1, 65538)}

    def _declared_size(self, blob: memoryview) -> int:
        """Size before the LZ4 block, as numcodecs writes it."""
        if len(blob) < 5:
            raise ValueError(f"an LZ4 blob of {len(blob)} bytes")
        return int.from_bytes(blob[:4], "little")


_LZMA_MEMORY = 128 << 20  # decoding the largest preset needs 65 MiB


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: memoryview, max_length: int, /) -> bytes: ...


class _StreamCompressor(Compressor):
    """A compressor whose streams are decoded up to the expected size."""

    def decode_into(self, blob: memoryview, out: Bytes) -> None:
        data = self._read(blob, out.size)
        check_size(len(data), out.size)
        out[:] = np.frombuffer(data, np.uint8)

    def decoded(self, blob: memoryview, limit: int) -> Bytes:
        """See `Compressor`."""
        data = self._read(blob, limit)
        check_limit(len(data), limit)
        return np.frombuffer(data, np.uint8)

    def _read(self, blob: memoryview, limit: int) -> bytes:
        """Decode at most `limit + 1` bytes of a stream."""
        decompressor = self._decompressor()
        data = decompressor.decompress(blob, limit + 1)
        if len(data) <= limit and (not decompressor.eof or decompressor.unused_data):
            raise ValueError("a truncated stream, or bytes after its end")
        return data

    def _decompressor(self) -> _Decompressor:
        raise NotImplementedError


class Zlib(_StreamCompressor):
    codec_id = "zlib"
    parameters: ClassVar[Parameters] = {"level": range(-1, 10)}

    def _decompressor(self) -> _Decompressor:
        return zlib.decompressobj()


class Bz2(_StreamCompressor):
    codec_id = "bz2"
    parameters: ClassVar[Parameters] = {"level": range(1, 10)}

    def _decompressor(self) -> _Decompressor:
        return bz2.BZ2Decompressor()


class Lzma(_StreamCompressor):
    codec_id = "lzma"
    parameters: ClassVar[Parameters] = {
        "format": (1,),
        "check": (-1,),
        "preset": (None, *range(10)),
        "filters": (None,),
    }

    def _decompressor(self) -> _Decompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_LZMA_MEMORY)
