"""General compressors, undone into a buffer of a size that is known beforehand.

The blobs come out of files, so nothing in them is trusted: a size that they declare is compared
with the expected one before a library sees them, and a library that takes no limit is fed in steps.
Every failure is a `ValueError` or one of `ERRORS`.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from collections.abc import Callable, Collection
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from seqrecord.codecs.blosc_planes import encode_planes
from seqrecord.codecs.library import numcodecs

__all__ = ["COMPRESSORS", "ERRORS", "Compressor"]

COMPRESSORS: dict[str, dict[str, Collection[object]]] = {
    "blosc": {
        "cname": ("blosclz", "lz4", "lz4hc", "zlib", "zstd"),
        "clevel": range(10),
        "shuffle": range(-1, 3),
        "blocksize": range((1 << 24) + 1),
        "typesize": (1, 2, 4, 8),
    },
    "zstd": {"level": range(-7, 20), "checksum": (False, True)},
    "lz4": {"acceleration": range(1, 65538)},
    "zlib": {"level": range(-1, 10)},
    "bz2": {"level": range(1, 10)},
    "lzma": {"format": (1,), "check": (-1,), "preset": (None, *range(10)), "filters": (None,)},
}
"""The ids that may be used, each with its parameters and the values that those may have."""

ERRORS = (ValueError, RuntimeError, OSError, EOFError, MemoryError, zlib.error, lzma.LZMAError)
"""What the libraries raise on blobs that are not theirs or are damaged."""

# Blosc's own threads use one context for the whole process. With many threads calling it they only
# queue for that; without, each call has its own context and they run side by side.
numcodecs.blosc.use_threads = False

_BLOSC_HEADER = struct.Struct("<BBBBIII")  # versions, flags, typesize, nbytes, blocksize, cbytes
_BLOSC_FORMAT = 2
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_LZMA_MEMORY = 128 << 20  # the largest preset needs 65 MiB to decode

Bytes = npt.NDArray[np.uint8]


class _Incremental(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: memoryview, max_length: int, /) -> bytes: ...


class Compressor:
    """A numcodecs codec, made of a configuration that has been checked against `COMPRESSORS`."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.id: str = config["id"]
        self._typesize: int | None = config.get("typesize")
        # Older numcodecs do not take it; they take the type size from the array.
        config = {name: value for name, value in config.items() if name != "typesize"}
        self._codec = numcodecs.get_codec(config)
        self._probe: Any = None  # for whom speed matters more than size: see `blosc_planes`
        if self.id == "blosc" and config.get("cname") == "lz4hc" and config.get("shuffle", 1) == 1:
            self._probe = numcodecs.get_codec({**config, "cname": "lz4", "clevel": 9})

    def encode(self, numbers: npt.NDArray[Any]) -> bytes:
        """The blob of a C-contiguous array."""
        if self._typesize is not None and numbers.nbytes % self._typesize == 0:
            numbers = numbers.reshape(-1).view(f"<u{self._typesize}")
        if self._probe is not None and numbers.itemsize > 1:
            return encode_planes(self._codec.encode, self._probe.encode, numbers)
        return bytes(self._codec.encode(numbers))

    def decode_into(self, blob: memoryview, out: Bytes) -> None:
        """Undo `encode` into `out`, uint8 [N], which the blob must fill exactly.

        Raises one of `ERRORS`. Holds the GIL only for the checks.
        """
        if self.id in _DECLARED:
            _expect(_DECLARED[self.id](blob), out.size)
            self._codec.decode(blob, out)
            return
        data = _INCREMENTAL[self.id](blob, out.size)
        _expect(len(data), out.size)
        out[:] = np.frombuffer(data, np.uint8)


def _blosc_size(blob: memoryview) -> int:
    """The size that a Blosc blob declares.

    Blosc is not told how long the blob is: it believes the header, which is therefore checked here.
    """
    if len(blob) < _BLOSC_HEADER.size:
        raise ValueError(f"a Blosc blob of {len(blob)} bytes")
    version, _, _, typesize, nbytes, blocksize, cbytes = _BLOSC_HEADER.unpack_from(blob)
    if version != _BLOSC_FORMAT or cbytes != len(blob) or typesize == 0:
        raise ValueError(
            f"Blosc's header says version {version}, type size {typesize}, {cbytes} bytes; "
            f"expected version {_BLOSC_FORMAT} and {len(blob)} bytes"
        )
    if not 0 < blocksize <= nbytes:
        raise ValueError(f"Blosc blocks of {blocksize} bytes in a frame of {nbytes}")
    return int(nbytes)


def _zstd_size(blob: memoryview) -> int:
    """The content size that the first Zstandard frame declares (RFC 8878, 3.1.1.1)."""
    if len(blob) < 6 or blob[:4] != _ZSTD_MAGIC:
        raise ValueError("not a Zstandard frame")
    descriptor = blob[4]
    size_flag, single_segment = descriptor >> 6, bool(descriptor & 0x20)
    width = (1 if single_segment else 0, 2, 4, 8)[size_flag]
    start = 5 + (not single_segment) + (0, 1, 2, 4)[descriptor & 3]
    if width == 0 or len(blob) < start + width:
        raise ValueError("a Zstandard frame that does not declare its size")
    return int.from_bytes(blob[start : start + width], "little") + (256 if width == 2 else 0)


def _lz4_size(blob: memoryview) -> int:
    """The size in front of an LZ4 block, which is how numcodecs stores it."""
    if len(blob) < 5:
        raise ValueError(f"an LZ4 blob of {len(blob)} bytes")
    return int.from_bytes(blob[:4], "little")


def _decompress_at_most(decompressor: _Incremental, blob: memoryview, size: int) -> bytes:
    data = decompressor.decompress(blob, size + 1)  # one more, to see the end or an excess
    if len(data) <= size and (not decompressor.eof or decompressor.unused_data):
        raise ValueError("a truncated stream, or bytes after its end")
    return data


def _expect(got: int, size: int) -> None:
    if got != size:
        raise ValueError(f"{'more than ' if got > size else ''}{min(got, size)} bytes, not {size}")


_DECLARED: dict[str, Callable[[memoryview], int]] = {
    "blosc": _blosc_size,
    "zstd": _zstd_size,
    "lz4": _lz4_size,
}
_INCREMENTAL: dict[str, Callable[[memoryview, int], bytes]] = {
    "zlib": lambda blob, size: _decompress_at_most(zlib.decompressobj(), blob, size),
    "bz2": lambda blob, size: _decompress_at_most(bz2.BZ2Decompressor(), blob, size),
    "lzma": lambda blob, size: _decompress_at_most(
        lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_LZMA_MEMORY), blob, size
    ),
}
