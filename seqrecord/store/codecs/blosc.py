"""Blosc, with byte planes stored uncompressed if they hardly shrink.

The lowest bytes of measured floats are close to noise. LZ4 shrinks them by a quarter or a third, in
matches so short that decoding them takes as long as all other planes together. Uncompressed planes
decode at memory bandwidth and need no encoding. Blosc itself stores a plane uncompressed only if
compression would enlarge it.

::

    buffer    │ header 16 │ starts i32 [blocks] │ block 0 │ block 1 │ …
    block     │ size i32 │ plane 0 │ size i32 │ plane 1 │ …     a single plane in a short block

A plane whose size is its share of the block is uncompressed. The layout is c-blosc's
README_CHUNK_FORMAT; any Blosc 1 decodes it.

Several small frames decode in one call: buffers of one block each, with equal headers, become the
blocks of a single buffer::

    buffers    │ header │ start │ block │  │ header │ start │ block │  …
    as one     │ header' │ starts │ header │ start │ block │ header │ start │ block │ …
                               └──────────────────────▲
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from seqrecord.store.codecs.base import MAX_BUFFER_BYTES, Bytes, Compressor, Parameters, numcodecs

Encode = Callable[[npt.NDArray[Any]], bytes]

_HEADER = struct.Struct("<BBBBIII")  # versions, flags, typesize, nbytes, blocksize, cbytes
_SIZE = struct.Struct("<i")
_HEAD = np.dtype(  # the header, and the start of the first block
    [(name, "<u4") for name in ("kind", "nbytes", "blocksize", "cbytes", "start")]
)
_FORMAT = 2
_MAX_BYTES = numcodecs.blosc.MAX_BUFFERSIZE
_BYTE_PLANES, _COPIED, _UNSPLIT = 0x01, 0x02, 0x10
_MAX_PLANES, _MIN_PLANE_BYTES = 16, 128  # limits of Blosc for separate planes
_SEVERAL = 3  # blobs; joining fewer takes longer than decoding them one by one
_JOINED = 128 << 10  # bytes of a blob; copying a larger one takes longer than a call
_WORTH = 2 / 3  # a plane is stored uncompressed if a quick LZ4 leaves more than this share

# Blosc's own threads share one context per process, so concurrent calls queue for it. Without
# them, each call has its own context and calls run in parallel.
numcodecs.blosc.use_threads = False


class Blosc(Compressor):
    """The Blosc compressor."""

    codec_id = "blosc"
    # Direct call: the codec's method spends ten Python calls on conversions.
    _decompress = staticmethod(numcodecs.blosc.decompress)
    parameters: ClassVar[Parameters] = {
        "cname": ("blosclz", "lz4", "lz4hc", "zlib", "zstd"),
        "clevel": range(10),
        "shuffle": range(-1, 3),
        "blocksize": range((1 << 24) + 1),
        "typesize": (1, 2, 4, 8),
    }

    def __init__(self, *, typesize: int | None = None, **parameters: Any) -> None:
        # Older numcodecs take the type size from the array, not as a parameter.
        self._typesize = typesize
        super().__init__(**parameters)
        self._probe: Any = None  # for chains that favour speed over size: see `encode_planes`
        if parameters.get("cname") == "lz4hc" and parameters.get("shuffle", 1) == 1:
            quick = {**parameters, "id": "blosc", "cname": "lz4", "clevel": 9}
            self._probe = numcodecs.get_codec(quick)

    def encode(self, numbers: npt.NDArray[Any]) -> bytes:
        if self._typesize is not None and numbers.nbytes % self._typesize == 0:
            numbers = numbers.reshape(-1).view(f"<u{self._typesize}")
        if self._probe is not None and numbers.itemsize > 1:
            return encode_planes(self._codec.encode, self._probe.encode, numbers)
        return super().encode(numbers)

    def decode_frames(self, blobs: Sequence[memoryview], out: Bytes) -> None:
        """See `Compressor`."""
        if len(blobs) < _SEVERAL or min(map(len, blobs)) < _HEAD.itemsize:
            super().decode_frames(blobs, out)
            return
        sizes, nbytes = np.array([len(blob) for blob in blobs]), out.shape[1]
        heads = np.frombuffer(b"".join([blob[: _HEAD.itemsize] for blob in blobs]), _HEAD)
        kind, block = heads["kind"], heads["blocksize"]  # kind: versions, flags, typesize
        is_valid = (heads["nbytes"] == nbytes) & (block > 0) & (block <= nbytes)
        is_valid &= (heads["cbytes"] == sizes) & (sizes <= _MAX_BYTES)
        is_valid &= (kind & 0xFF == _FORMAT) & (kind >> 24 != 0)
        if not is_valid.all():  # decode one by one: the invalid blob raises
            super().decode_frames(blobs, out)
            return
        fits = (block == nbytes) & (sizes <= _JOINED) & (kind & _COPIED << 16 == 0)
        fits &= (heads["start"] >= _HEAD.itemsize) & (heads["start"] < sizes)
        is_boundary = (kind[1:] != kind[:-1]) | ~fits[1:] | ~fits[:-1]
        max_blobs = max(1, MAX_BUFFER_BYTES // nbytes)
        is_boundary[max_blobs - 1 :: max_blobs] = True
        for begin, stop in pairwise([0, *(is_boundary.nonzero()[0] + 1).tolist(), len(blobs)]):
            if stop - begin == 1:
                self._decompress(blobs[begin], out[begin])
                continue
            members = slice(begin, stop)
            buffer = _join_buffers(blobs[members], heads[members], sizes[members])
            self._decompress(buffer, out[members].reshape(-1))

    def _declared_size(self, blob: memoryview) -> int:
        """Decoded size in the header of a blob.

        Blosc is not given the length of the blob and trusts the header, so this checks the header.
        """
        if len(blob) < _HEADER.size:
            raise ValueError(f"a Blosc blob of {len(blob)} bytes")
        version, _, _, typesize, nbytes, blocksize, cbytes = _HEADER.unpack_from(blob)
        if version != _FORMAT or not len(blob) == cbytes <= _MAX_BYTES or typesize == 0:
            raise ValueError(
                f"a Blosc header of version {version}, type size {typesize}, {cbytes} bytes; "
                f"expected version {_FORMAT} and {len(blob)} bytes"
            )
        if not 0 < blocksize <= nbytes:
            raise ValueError(f"Blosc blocks of {blocksize} bytes in a frame of {nbytes}")
        return int(nbytes)


def _join_buffers(
    blobs: Sequence[memoryview], heads: npt.NDArray[Any], sizes: npt.NDArray[np.int64]
) -> bytes:
    """Join one-block buffers, whose headers differ in `cbytes` only, to one Blosc buffer.

    Raises `ValueError` if a block is longer than its buffer.
    """
    body_start = _HEADER.size + _SIZE.size * len(blobs)
    starts = body_start + np.cumsum(sizes) - sizes + heads["start"]
    total, block = body_start + int(sizes.sum()), int(heads["blocksize"][0])
    header = bytes(blobs[0][:4]) + struct.pack("<III", block * len(blobs), block, total)
    buffer = b"".join([header, starts.astype("<i4").tobytes(), *blobs])
    # Blosc would read on in the next blob, so block sizes are followed first
    # (tests/store/test_codecs.py::test_a_blob_that_claims_bytes_of_the_next_one). It refuses
    # negative sizes itself: here they are large numbers.
    numbers = np.ndarray(total - _SIZE.size + 1, "<u4", buffer, strides=(1,))  # at every byte
    positions, last_position = starts, len(numbers) - 1
    for _ in range(_num_planes(header[2], header[3], block)):
        positions = positions + numbers[np.minimum(positions, last_position)]
        positions += _SIZE.size
    if (positions > body_start + np.cumsum(sizes)).any():
        raise ValueError("a Blosc blob is shorter than its block")
    return buffer


def _num_planes(flags: int, typesize: int, block: int) -> int:
    """Number of separately encoded parts of a full block of `block` bytes."""
    is_split = (
        not flags & _UNSPLIT and typesize <= _MAX_PLANES and block // typesize >= _MIN_PLANE_BYTES
    )
    return typesize if is_split else 1


def encode_planes(encode: Encode, probe: Encode, numbers: npt.NDArray[Any]) -> bytes:
    """`encode(numbers)`, a Blosc buffer, but with poorly compressible planes uncompressed.

    `probe` is a fast encoder with the same blocks; the size of its planes decides.
    """
    sketch = _Buffer(probe(numbers))
    data = numbers.reshape(-1).view(np.uint8).reshape(-1, numbers.itemsize)
    emptied = data.copy()
    plain_planes: dict[tuple[int, int], bytes] = {}
    for block, planes in enumerate(sketch.blocks):
        part = slice(block * sketch.length, (block + 1) * sketch.length)
        for byte, plane in enumerate(planes):
            if len(planes) > 1 and len(plane) > _WORTH * sketch.length:
                plain_planes[block, byte] = data[part, byte].tobytes()
                emptied[part, byte] = 0  # takes no time to encode
    if not plain_planes:
        return encode(numbers)
    buffer = _Buffer(encode(emptied.reshape(-1).view(numbers.dtype)))
    if buffer.length != sketch.length or len(buffer.blocks) != len(sketch.blocks):
        return encode(numbers)
    for (block, byte), plane in plain_planes.items():
        buffer.blocks[block][byte] = plane
    blob = buffer.join()
    return blob if len(blob) < numbers.nbytes else encode(numbers)


class _Buffer:
    """A parsed Blosc buffer.

    `blocks` has the encoded planes of each block, or one item if Blosc does not separate planes. It
    is empty if the buffer is not compressed. `length` is the size of a decoded plane.
    """

    def __init__(self, blob: bytes) -> None:
        self._header = blob[: _HEADER.size]
        _, _, flags, typesize, nbytes, blocksize, _ = _HEADER.unpack(self._header)
        self.length = blocksize // typesize
        self.blocks: list[list[bytes]] = []
        num_planes = _num_planes(flags, typesize, blocksize)
        if flags & _COPIED or not flags & _BYTE_PLANES:
            return
        for number in range(-(-nbytes // blocksize)):
            (offset,) = _SIZE.unpack_from(blob, _HEADER.size + number * _SIZE.size)
            planes = []
            for _ in range(num_planes if (number + 1) * blocksize <= nbytes else 1):
                (size,) = _SIZE.unpack_from(blob, offset)
                planes.append(blob[offset + _SIZE.size : offset + _SIZE.size + size])
                offset += _SIZE.size + size
            self.blocks.append(planes)

    def join(self) -> bytes:
        """Serialize the buffer."""
        blocks = [b"".join(_SIZE.pack(len(p)) + p for p in planes) for planes in self.blocks]
        starts = np.cumsum([_HEADER.size + _SIZE.size * len(blocks), *map(len, blocks)])
        header = self._header[:-4] + _SIZE.pack(starts[-1])
        return b"".join([header, starts[:-1].astype("<i4").tobytes(), *blocks])
