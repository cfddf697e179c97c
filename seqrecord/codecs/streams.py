"""zlib, bz2 and lzma: Python's own, whose streams do not declare what they decode to."""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import ClassVar, Protocol

import numpy as np

from seqrecord.codecs.base import Bytes, Compressor, Parameters, check_limit, check_size

_LZMA_MEMORY = 128 << 20  # the largest preset needs 65 MiB to decode


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: memoryview, max_length: int, /) -> bytes: ...


class _Stream(Compressor):
    """A stream is decoded in steps, up to the size that it must have."""

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
        """What comes of the stream, up to one byte more than the limit."""
        decompressor = self._decompressor()
        data = decompressor.decompress(blob, limit + 1)
        if len(data) <= limit and (not decompressor.eof or decompressor.unused_data):
            raise ValueError("a truncated stream, or bytes after its end")
        return data

    def _decompressor(self) -> _Decompressor:
        raise NotImplementedError


class Zlib(_Stream):
    codec_id = "zlib"
    parameters: ClassVar[Parameters] = {"level": range(-1, 10)}

    def _decompressor(self) -> _Decompressor:
        return zlib.decompressobj()


class Bz2(_Stream):
    codec_id = "bz2"
    parameters: ClassVar[Parameters] = {"level": range(1, 10)}

    def _decompressor(self) -> _Decompressor:
        return bz2.BZ2Decompressor()


class Lzma(_Stream):
    codec_id = "lzma"
    parameters: ClassVar[Parameters] = {
        "format": (1,),
        "check": (-1,),
        "preset": (None, *range(10)),
        "filters": (None,),
    }

    def _decompressor(self) -> _Decompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_LZMA_MEMORY)
