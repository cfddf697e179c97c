"""Common base of codecs: numcodecs, protocols, checks of decoded sizes, temporary buffers."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

# numcodecs warns on import about its dependency for CRC32C, which is not used here. It sets a
# warning filter that has precedence over filters of ours, so the warning is caught.
with warnings.catch_warnings(record=True) as _caught:
    import numcodecs as numcodecs
    import numcodecs.blosc
    from numcodecs.abc import Codec as Codec

for _warning in _caught:
    if not str(_warning.message).startswith("crc32c usage is deprecated"):
        warnings.warn_explicit(
            _warning.message, _warning.category, _warning.filename, _warning.lineno
        )

UIntArray = npt.NDArray[np.unsignedinteger[Any]]
Bytes = npt.NDArray[np.uint8]

Parameters = dict[str, Collection[object]]
"""Allowed values for each parameter of a codec."""

ERRORS = (ValueError, RuntimeError, OSError, EOFError, MemoryError)
"""Errors that the libraries raise on damaged or foreign blobs."""

MAX_BUFFER_BYTES = 4 << 20
"""Maximum size of a `thread_buffer`."""

_local = threading.local()


class Compressor:
    """A numcodecs codec that ends a chain, with checked parameters.

    Blobs come from files and are not trusted. A declared size is compared with the expected one
    before a library decodes the blob. A failure raises an error in `ERRORS`.
    """

    codec_id: ClassVar[str]
    parameters: ClassVar[Parameters]

    def __init__(self, **parameters: Any) -> None:
        self._codec = numcodecs.get_codec({"id": self.codec_id, **parameters})

    def encode(self, numbers: npt.NDArray[Any]) -> bytes:
        """Encode a C-contiguous array to a blob."""
        return bytes(self._codec.encode(numbers))

    def decode_into(self, blob: memoryview, out: Bytes) -> None:
        """Decode a blob into `out`, uint8 [N]; it must decode to exactly N bytes.

        The GIL is released except for the checks.
        """
        check_size(self._declared_size(blob), out.size)
        self._decompress(blob, out)

    def decoded(self, blob: memoryview, limit: int) -> Bytes:
        """Decode a blob to uint8 [N]; raises `ValueError` if N is above `limit`."""
        size = self._declared_size(blob)
        check_limit(size, limit)
        out = np.empty(size, np.uint8)
        self._decompress(blob, out)
        return out

    def decode_frames(self, blobs: Sequence[memoryview], out: Bytes) -> None:
        """Decode each blob into its row of `out`, uint8 [n, N].

        Faster than `decode_into` per blob if the library decodes several at once.
        """
        for blob, row in zip(blobs, out, strict=True):
            self.decode_into(blob, row)

    def _decompress(self, blob: bytes | memoryview, out: Bytes) -> object:
        """Decode a blob whose declared size is that of `out`."""
        return self._codec.decode(blob, out)

    def _declared_size(self, blob: memoryview) -> int:
        """Decoded size that a blob declares; raises `ValueError` if it declares none."""
        raise NotImplementedError


class Filter:
    """A reversible transform of unsigned integers, same shape and dtype, that improves compression.

    It is exact modulo the range of the integers, and decodes in place; docs/codecs.md defines the
    bytes. Floats are filtered as bit patterns, so NaN payloads and negative zeros survive.

    Decoding runs for every frame of every epoch, so it uses few NumPy calls over large arrays. Each
    call that releases the GIL must acquire it again, which can take 5 ms if another thread runs
    Python code.
    """

    codec_id: ClassVar[str]
    parameters: ClassVar[Parameters] = {}

    def check(self, shape: tuple[int, ...], itemsize: int) -> None:
        """Raise `ValueError` unless arrays of this shape and item size can be filtered."""

    def is_serial(self, shape: tuple[int, ...], itemsize: int) -> bool:  # noqa: ARG002
        """Whether decoding is bound by the adder rather than by memory."""
        return False

    def encode(self, frame: UIntArray) -> UIntArray:
        """Filter a frame into a new C-contiguous array."""
        raise NotImplementedError

    def decode(self, frames: UIntArray, out: UIntArray) -> None:
        """Inverse of `encode` for frames [n, …] into `out`, which may be `frames` itself.

        Both are C-contiguous.
        """
        raise NotImplementedError


def named_parameters(
    name: str, text: str, keys: Collection[str], texts: Collection[str] = ()
) -> dict[str, Any]:
    """Parameters `KEY=VALUE,…` of a named codec; values are JSON, or text for the keys `texts`.

    Raises `ValueError` for unknown keys and other values.
    """
    parameters: dict[str, Any] = {}
    for item in text.split(",") if text else []:
        key, equals, value = item.partition("=")
        if key not in keys or not equals:
            takes = ", ".join(keys) or "no parameter"
            raise ValueError(f"{name} takes {takes}, not {item[:50]!r}")
        try:
            parameters[key] = value if key in texts else json.loads(value)
        except (ValueError, RecursionError):
            parameters[key] = None
        if parameters[key] is None:  # null, too: no argument has this value
            raise ValueError(f"{name}: {key} is not a number: {value[:50]!r}")
    return parameters


def check_size(got: int, size: int) -> None:
    """Raise `ValueError` unless the decoded size `got` equals `size`."""
    if got != size:
        raise ValueError(f"{'more than ' if got > size else ''}{min(got, size)} bytes, not {size}")


def check_limit(size: int, limit: int) -> None:
    """Raise `ValueError` if the decoded size exceeds `limit`."""
    if size > limit:
        raise ValueError(f"more than {limit} bytes")


def thread_buffer(purpose: str, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """An uninitialized array [count], cached per thread and purpose.

    Allocation costs more than the arithmetic done in the array. A thread keeps its buffers until it
    ends, therefore they have at most `MAX_BUFFER_BYTES`. The next call for the same purpose returns
    the same memory.
    """
    nbytes = count * dtype.itemsize
    if nbytes > MAX_BUFFER_BYTES:
        raise ValueError(f"a temporary of {nbytes} bytes; at most {MAX_BUFFER_BYTES} are cached")
    buffer: npt.NDArray[np.uint8] | None = getattr(_local, purpose, None)
    if buffer is None or buffer.size < nbytes:
        buffer = np.empty(nbytes, np.uint8)
        setattr(_local, purpose, buffer)
    return buffer[:nbytes].view(dtype)
