"""What all codecs share: numcodecs, the check of a decoded size, and temporaries of a thread."""

from __future__ import annotations

import lzma
import threading
import warnings
import zlib
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

# On import numcodecs warns about the package that it takes CRC32C from; we take none from it. It
# sets a filter first, which no filter of ours could overrule, so the warning is caught here.
with warnings.catch_warnings(record=True) as _caught:
    import numcodecs
    import numcodecs.blosc
    from numcodecs.abc import Codec
    from numcodecs.registry import register_codec

for _warning in _caught:
    if not str(_warning.message).startswith("crc32c usage is deprecated"):
        warnings.warn_explicit(
            _warning.message, _warning.category, _warning.filename, _warning.lineno
        )

__all__ = [
    "ERRORS",
    "MAX_BUFFER_BYTES",
    "Bytes",
    "Codec",
    "Compressor",
    "Filter",
    "Parameters",
    "UIntArray",
    "check_limit",
    "check_size",
    "numcodecs",
    "output",
    "register_codec",
    "thread_buffer",
]

UIntArray = npt.NDArray[np.unsignedinteger[Any]]
Bytes = npt.NDArray[np.uint8]

Parameters = dict[str, Collection[object]]
"""The parameters that a codec takes, and the values that each may have."""

ERRORS = (ValueError, RuntimeError, OSError, EOFError, MemoryError, zlib.error, lzma.LZMAError)
"""What the libraries raise on blobs that are not theirs or are damaged."""

MAX_BUFFER_BYTES = 4 << 20
"""The most that `thread_buffer` gives out for one purpose."""

_local = threading.local()


class Compressor:
    """A codec of numcodecs that ends a chain, with parameters that have been checked.

    The blobs come out of files, so nothing in them is trusted: a size that they declare is compared
    with the expected one before a library sees them, and a library that takes no limit is fed in
    steps. Every failure is one of `ERRORS`.
    """

    codec_id: ClassVar[str]
    parameters: ClassVar[Parameters]

    def __init__(self, **parameters: Any) -> None:
        self._codec = numcodecs.get_codec({"id": self.codec_id, **parameters})

    def encode(self, numbers: npt.NDArray[Any]) -> bytes:
        """The blob of a C-contiguous array."""
        return bytes(self._codec.encode(numbers))

    def decode_into(self, blob: memoryview, out: Bytes) -> None:
        """Undo `encode` into `out`, uint8 [N], which the blob must fill exactly.

        Holds the GIL only for the checks.
        """
        check_size(self._declared_size(blob), out.size)
        self._decompress(blob, out)

    def decoded(self, blob: memoryview, limit: int) -> Bytes:
        """What a blob decodes to, uint8 [N]; `ValueError` where that is more than `limit` bytes."""
        size = self._declared_size(blob)
        check_limit(size, limit)
        out = np.empty(size, np.uint8)
        self._decompress(blob, out)
        return out

    def decode_frames(self, blobs: Sequence[memoryview], out: Bytes) -> None:
        """As `decode_into` of each blob into its row of `out`, uint8 [n, N], in fewer calls where
        the library can."""
        for blob, row in zip(blobs, out, strict=True):
            self.decode_into(blob, row)

    def _decompress(self, blob: bytes | memoryview, out: Bytes) -> object:
        """Decode a blob that declares the size of `out`."""
        return self._codec.decode(blob, out)

    def _declared_size(self, blob: memoryview) -> int:
        """How many bytes a blob says that it decodes to; `ValueError` if it does not say."""
        raise NotImplementedError


class Filter(Protocol):
    """A reversible transform of unsigned integers, of one shape and dtype, that helps to compress.

    It is exact modulo the integers' range, and is undone in place; docs/codecs.md defines the
    bytes. Floats are filtered through their bit patterns, so NaN payloads and negative zeros
    survive.

    Undoing is what a training run pays for, on every frame of every epoch, so that direction takes
    only a few NumPy calls that each run over much memory. Few, because a call that releases the GIL
    must get it back: beside a thread that computes in Python every call can wait for 5 ms.
    """

    codec_id: ClassVar[str]
    parameters: ClassVar[Parameters]

    def __init__(self, **parameters: Any) -> None: ...

    def check(self, shape: tuple[int, ...], itemsize: int) -> None:
        """Raise `ValueError` unless arrays of this shape and element size can be filtered."""
        ...

    def encode(self, buf: UIntArray) -> UIntArray:
        """A new C-contiguous array."""
        ...

    def decode(self, buf: UIntArray, out: UIntArray | None = None) -> UIntArray:
        """The inverse into `out`, which may be `buf` itself."""
        ...


def check_size(got: int, size: int) -> None:
    """`ValueError` unless a blob decodes to so many bytes."""
    if got != size:
        raise ValueError(f"{'more than ' if got > size else ''}{min(got, size)} bytes, not {size}")


def check_limit(size: int, limit: int) -> None:
    """`ValueError` for a blob that decodes to more."""
    if size > limit:
        raise ValueError(f"more than {limit} bytes")


def output(buf: UIntArray, out: UIntArray | None) -> UIntArray:
    """`buf` itself if that is where the result goes, else `out` or a new array with its values."""
    if out is None:
        return np.array(buf, order="C", copy=True)
    if out is not buf:
        np.copyto(out, buf)
    return out


def thread_buffer(purpose: str, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """This thread's temporary [count] for one purpose; it holds anything at all.

    At most `MAX_BUFFER_BYTES`, since a thread keeps it for as long as it lives: fresh memory costs
    more than what is done in it. The next call for the same purpose gives the same memory.
    """
    nbytes = count * dtype.itemsize
    if nbytes > MAX_BUFFER_BYTES:
        raise ValueError(f"a temporary of {nbytes} bytes, at most {MAX_BUFFER_BYTES} are kept")
    buffer: npt.NDArray[np.uint8] | None = getattr(_local, purpose, None)
    if buffer is None or buffer.size < nbytes:
        buffer = np.empty(nbytes, np.uint8)
        setattr(_local, purpose, buffer)
    return buffer[:nbytes].view(dtype)
