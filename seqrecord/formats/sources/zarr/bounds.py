"""Zarr arrays with bounded decoded chunks. Importing this module imports zarr.

zarr's codecs allocate the size that stored bytes declare. So compressors are replaced by
decoders with a limit. Other codecs are accepted only if their output cannot grow much.
"""

from __future__ import annotations

import asyncio
import bz2
import lzma
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from zarr import Array, AsyncArray
from zarr import codecs as zarr_codecs
from zarr.abc.codec import ArrayBytesCodec, BytesBytesCodec

from seqrecord.errors import SourceError
from seqrecord.in_place.limits import MAX_TEXT_CHUNK_BYTES
from seqrecord.store.codecs.base import Bytes, Codec, check_limit
from seqrecord.store.codecs.blosc import Blosc
from seqrecord.store.codecs.compressors import Lz4, Zstd

# zarr's codecs allocate what the bytes declare: tests/formats/test_zarr.py has
# test_no_chunk_decodes_to_more_than_its_array_declares.
_MOST_GROWTH, _EXTRA = 8, 64 << 10  # growth by filters, and bytes for headers
_IMAGES = "imagecodecs_"
_GROW_LITTLE = (
    *("adler32", "astype", "bitround", "bytes", "crc32", "crc32c", "delta", "fixedscaleoffset"),
    *("fletcher32", "jenkins_lookup3", "json2", "msgpack2", "packbits", "quantize", "shuffle"),
    "transpose",
)


_LZMA_MEMORY = 128 << 20  # decoding the largest preset needs 65 MiB

_Decoder: TypeAlias = Callable[[memoryview, int], Bytes]
"""Decodes a blob to at most a number of bytes; raises `ValueError` for more."""


def _decode_stream(make: Callable[[], Any], blob: memoryview, limit: int) -> Bytes:
    """Decode a stream of Python's standard library, which does not declare its size."""
    decompressor = make()
    data = decompressor.decompress(blob, limit + 1)
    check_limit(len(data), limit)
    if not decompressor.eof or decompressor.unused_data:
        raise ValueError("a truncated stream, or bytes after its end")
    return np.frombuffer(data, np.uint8)


_STREAMS: dict[str, Callable[[], Any]] = {
    "bz2": bz2.BZ2Decompressor,
    "gzip": partial(zlib.decompressobj, wbits=31),
    "lzma": partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, memlimit=_LZMA_MEMORY),
    "zlib": zlib.decompressobj,
}
_DECODERS: dict[str, _Decoder] = {
    **{codec.codec_id: codec().decoded for codec in (Blosc, Lz4, Zstd)},
    **{name: partial(_decode_stream, make) for name, make in _STREAMS.items()},
}


def bound_codecs(array: Any) -> Any:
    """Return the array with bounded codecs. Raises `SourceError` for unsupported codecs."""
    metadata, chunk = array.metadata, array.shards or array.chunks
    if array.dtype.kind in "OT":
        limit = MAX_TEXT_CHUNK_BYTES
    else:
        limit = _MOST_GROWTH * array.dtype.itemsize * math.prod(chunk) + _EXTRA
    if metadata.zarr_format == 2:
        filters = [_Numcodec(codec, limit, array) for codec in metadata.filters or ()]
        compressor = metadata.compressor and _Numcodec(metadata.compressor, limit, array)
        changed_metadata = replace(metadata, filters=filters or None, compressor=compressor)
    else:
        codecs = tuple(_codec(codec, limit, chunk) for codec in metadata.codecs)
        changed_metadata = replace(metadata, codecs=codecs)
    return Array(AsyncArray(metadata=changed_metadata, store_path=array.store_path))


class _Numcodec(Codec):  # type: ignore[misc, unused-ignore]
    """A Zarr 2 codec."""

    codec_id = "bounded"

    def __init__(self, codec: Any, limit: int, array: Any) -> None:
        self._codec, self._limit, self._name = codec, limit, codec.codec_id
        self._dtype, self._shape = array.dtype, array.chunks
        self._decoder = _DECODERS.get(self._name)
        if self._decoder is None and not self._name.startswith(("vlen-", _IMAGES)):
            _check_known(self._name)

    def decode(self, buf: Any, out: Any = None) -> Any:
        if self._decoder is not None:
            return self._decoder(_bytes(buf), self._limit)
        if self._name.startswith("vlen-"):
            _check_count(_bytes(buf), self._shape)
        if self._name.startswith(_IMAGES):  # the codec checks the image's shape
            out = np.empty([size for size in self._shape if size > 1], self._dtype)
        return self._codec.decode(buf, out)

    def encode(self, buf: Any) -> Any:
        return self._codec.encode(buf)


@dataclass(frozen=True)
class _Bytes(BytesBytesCodec):  # type: ignore[misc, unused-ignore]
    """A Zarr 3 compressor."""

    decoder: _Decoder
    limit: int
    is_fixed_size = False

    async def _decode_single(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
        data = _bytes(chunk_bytes.as_numpy_array())
        decoded = await asyncio.to_thread(self.decoder, data, self.limit)
        return chunk_spec.prototype.buffer.from_array_like(decoded)

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: Any) -> int:
        raise NotImplementedError


@dataclass(frozen=True)
class VLenUTF8Codec(zarr_codecs.VLenUTF8Codec):  # type: ignore[misc, unused-ignore]
    """Zarr 3 texts. zarr requires this class name."""

    async def _decode_single(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
        _check_count(_bytes(chunk_bytes.as_numpy_array()), chunk_spec.shape)
        return await super()._decode_single(chunk_bytes, chunk_spec)


def _codec(codec: Any, limit: int, chunk: tuple[int, ...]) -> Any:
    if isinstance(codec, zarr_codecs.ShardingCodec):
        if math.prod(codec.chunk_shape) > math.prod(chunk):
            raise SourceError("the shard is smaller than its chunks")
        inner_codecs, index_codecs = (
            tuple(_codec(codec, limit, chunk) for codec in codecs)
            for codecs in (codec.codecs, codec.index_codecs)
        )
        return replace(codec, codecs=inner_codecs, index_codecs=index_codecs)
    if isinstance(codec, zarr_codecs.VLenUTF8Codec):
        return VLenUTF8Codec()
    name = str(codec.to_dict()["name"]).removeprefix("numcodecs.")
    if (decoder := _DECODERS.get(name)) is not None:
        return _Bytes(decoder, limit)
    if isinstance(codec, ArrayBytesCodec) and name != "bytes":
        name = f"{name} of whole arrays"
    _check_known(name)
    return codec


def _bytes(data: Any) -> memoryview:
    array: npt.NDArray[np.uint8] = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return array.data


def _check_known(name: str) -> None:
    if name not in _GROW_LITTLE:
        raise SourceError(
            "unsupported codec: its decoded size has no bound",
            expected=f"a codec among {', '.join(sorted({*_DECODERS, *_GROW_LITTLE}))}",
            got=name,
        )


def _check_count(data: memoryview, shape: tuple[int, ...]) -> None:
    """Check that the declared number of texts equals the chunk's."""
    if (count := int.from_bytes(data[:4], "little")) != math.prod(shape):
        raise SourceError("wrong number of texts in a chunk", expected=math.prod(shape), got=count)
