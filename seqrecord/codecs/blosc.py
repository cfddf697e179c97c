"""Blosc, with byte planes that hardly shrink stored as they are.

The lowest bytes of measured floats are close to noise. LZ4 takes a quarter or a third off them, in
matches so short that undoing them costs as much as all other planes together; stored, they decode
at the speed of memory, and need not be encoded. Blosc itself stores a plane only if it would grow.

::

    buffer    │ header 16 │ starts i32 [blocks] │ block 0 │ block 1 │ …
    block     │ size i32 │ plane 0 │ size i32 │ plane 1 │ …     all planes as one in a short block

A plane is stored if its size is its share of the block. This is c-blosc's README_CHUNK_FORMAT; any
Blosc 1 decodes it.

Small frames are decoded several in one call: buffers of one block each, with headers that say the
same, are what the blocks of a single buffer would be::

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

from seqrecord.codecs.base import MAX_BUFFER_BYTES, Bytes, Compressor, Parameters, numcodecs

Encode = Callable[[npt.NDArray[Any]], bytes]

_HEADER = struct.Struct("<BBBBIII")  # versions, flags, typesize, nbytes, blocksize, cbytes
_SIZE = struct.Struct("<i")
_HEAD = np.dtype(  # the header, and the start of the first block
    [(name, "<u4") for name in ("kind", "nbytes", "blocksize", "cbytes", "start")]
)
_FORMAT = 2
_MAX_BYTES = numcodecs.blosc.MAX_BUFFERSIZE
_BYTE_PLANES, _COPIED, _UNSPLIT = 0x01, 0x02, 0x10
_MAX_PLANES, _MIN_PLANE_BYTES = 16, 128  # what Blosc keeps apart
_SEVERAL = 3  # blobs: for fewer, to look at them together takes longer
_JOINED = 128 << 10  # bytes of a blob: to copy a larger one takes longer than a call
_WORTH = 2 / 3  # of its size: a plane that a quick LZ4 leaves larger is stored

# Blosc's own threads use one context for the whole process. With many threads calling it they only
# queue for that; without, each call has its own context and they run side by side.
numcodecs.blosc.use_threads = False


class Blosc(Compressor):
    """Compresses with Blosc."""

    codec_id = "blosc"
    # The codec's own method first makes arrays of both, in ten calls of Python.
    _decompress = staticmethod(numcodecs.blosc.decompress)
    parameters: ClassVar[Parameters] = {
        "cname": ("blosclz", "lz4", "lz4hc", "zlib", "zstd"),
        "clevel": range(10),
        "shuffle": range(-1, 3),
        "blocksize": range((1 << 24) + 1),
        "typesize": (1, 2, 4, 8),
    }

    def __init__(self, *, typesize: int | None = None, **parameters: Any) -> None:
        # Older numcodecs do not take the type size; they take it from the array.
        self._typesize = typesize
        super().__init__(**parameters)
        self._probe: Any = None  # for whom speed matters more than size: see `encode_planes`
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
        if not is_valid.all():  # which one?
            super().decode_frames(blobs, out)
            return
        fits = (block == nbytes) & (sizes <= _JOINED) & (kind & _COPIED << 16 == 0)
        fits &= (heads["start"] >= _HEAD.itemsize) & (heads["start"] < sizes)
        apart = (kind[1:] != kind[:-1]) | ~fits[1:] | ~fits[:-1]
        most = max(1, MAX_BUFFER_BYTES // nbytes)
        apart[most - 1 :: most] = True
        for begin, stop in pairwise([0, *(apart.nonzero()[0] + 1).tolist(), len(blobs)]):
            if stop - begin == 1:
                self._decompress(blobs[begin], out[begin])
                continue
            some = slice(begin, stop)
            joined = _concatenated(blobs[some], heads[some], sizes[some])
            self._decompress(joined, out[some].reshape(-1))

    def _declared_size(self, blob: memoryview) -> int:
        """The size that a Blosc blob declares.

        Blosc is not told how long the blob is: it believes the header, so that is checked here.
        """
        if len(blob) < _HEADER.size:
            raise ValueError(f"a Blosc blob of {len(blob)} bytes")
        version, _, _, typesize, nbytes, blocksize, cbytes = _HEADER.unpack_from(blob)
        if version != _FORMAT or not len(blob) == cbytes <= _MAX_BYTES or typesize == 0:
            raise ValueError(
                f"Blosc's header says version {version}, type size {typesize}, {cbytes} bytes; "
                f"expected version {_FORMAT} and {len(blob)} bytes"
            )
        if not 0 < blocksize <= nbytes:
            raise ValueError(f"Blosc blocks of {blocksize} bytes in a frame of {nbytes}")
        return int(nbytes)


def _concatenated(
    blobs: Sequence[memoryview], heads: npt.NDArray[Any], sizes: npt.NDArray[np.int64]
) -> bytes:
    """One Blosc buffer of buffers of one block each, whose headers differ in their size alone.

    `ValueError` for one whose block is longer than the buffer.
    """
    begin = _HEADER.size + _SIZE.size * len(blobs)
    starts = begin + np.cumsum(sizes) - sizes + heads["start"]
    total, block = begin + int(sizes.sum()), int(heads["blocksize"][0])
    header = bytes(blobs[0][:4]) + struct.pack("<III", block * len(blobs), block, total)
    joined = b"".join([header, starts.astype("<i4").tobytes(), *blobs])
    # Blosc would read on in the next blob. (A size below 0, which Blosc refuses, is a large one.)
    numbers = np.ndarray(total - _SIZE.size + 1, "<u4", joined, strides=(1,))  # at any byte
    at, last = starts, len(numbers) - 1
    for _ in range(_num_planes(header[2], header[3], block)):
        at = at + numbers[np.minimum(at, last)]
        at += _SIZE.size
    if (at > begin + np.cumsum(sizes)).any():
        raise ValueError("a Blosc blob is shorter than its block")
    return joined


def _num_planes(flags: int, typesize: int, block: int) -> int:
    """How many parts a whole block of so many bytes is encoded in."""
    apart = (
        not flags & _UNSPLIT and typesize <= _MAX_PLANES and block // typesize >= _MIN_PLANE_BYTES
    )
    return typesize if apart else 1


def encode_planes(encode: Encode, probe: Encode, numbers: npt.NDArray[Any]) -> bytes:
    """`encode(numbers)`, a Blosc buffer of byte planes, but with poor planes stored.

    `probe` is a quick encoder with the same blocks, which tells which planes those are.
    """
    sketch = _Buffer(probe(numbers))
    data = numbers.reshape(-1).view(np.uint8).reshape(-1, numbers.itemsize)
    emptied = data.copy()
    stored: dict[tuple[int, int], bytes] = {}
    for block, planes in enumerate(sketch.blocks):
        part = slice(block * sketch.length, (block + 1) * sketch.length)
        for byte, plane in enumerate(planes):
            if len(planes) > 1 and len(plane) > _WORTH * sketch.length:
                stored[block, byte] = data[part, byte].tobytes()
                emptied[part, byte] = 0  # encodes in no time
    if not stored:
        return encode(numbers)
    buffer = _Buffer(encode(emptied.reshape(-1).view(numbers.dtype)))
    if buffer.length != sketch.length or len(buffer.blocks) != len(sketch.blocks):
        return encode(numbers)
    for (block, byte), plane in stored.items():
        buffer.blocks[block][byte] = plane
    blob = buffer.join()
    return blob if len(blob) < numbers.nbytes else encode(numbers)


class _Buffer:
    """A Blosc buffer taken apart.

    `blocks` are the encoded planes of each block, all as one where Blosc does not keep them apart;
    there are none where nothing is encoded. `length` is that of a decoded plane.
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
            (at,) = _SIZE.unpack_from(blob, _HEADER.size + number * _SIZE.size)
            planes = []
            for _ in range(num_planes if (number + 1) * blocksize <= nbytes else 1):
                (size,) = _SIZE.unpack_from(blob, at)
                planes.append(blob[at + _SIZE.size : at + _SIZE.size + size])
                at += _SIZE.size + size
            self.blocks.append(planes)

    def join(self) -> bytes:
        """The buffer again."""
        blocks = [b"".join(_SIZE.pack(len(p)) + p for p in planes) for planes in self.blocks]
        starts = np.cumsum([_HEADER.size + _SIZE.size * len(blocks), *map(len, blocks)])
        header = self._header[:-4] + _SIZE.pack(starts[-1])
        return b"".join([header, starts[:-1].astype("<i4").tobytes(), *blocks])
