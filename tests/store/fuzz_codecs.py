"""Decode damaged blobs without checksums: `python -m tests.store.fuzz_codecs SEED COUNT`.

Runs as a process of its own: the exit status shows a crash in a C library. The blob ends right
before an inaccessible page, and so does the output: a library that reads or writes one byte too
far crashes at once.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import struct
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import CodecError
from seqrecord.store.codecs.chain import FrameCodec, resolve
from seqrecord.store.schema import CodecConfig

_TOGETHER = 4  # frames per batch call
_libc = ctypes.CDLL(None, use_errno=True)


def guarded(nbytes: int) -> npt.NDArray[np.uint8]:
    """`nbytes` of memory that end right before an inaccessible page."""
    page = mmap.PAGESIZE
    size = -(-max(nbytes, 1) // page) * page
    memory = mmap.mmap(-1, size + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert _libc.mprotect(ctypes.c_void_p(address + size), page, 0) == 0
    return np.frombuffer(memory, np.uint8, count=nbytes, offset=size - nbytes)


def frames(rng: np.random.Generator) -> list[npt.NDArray[Any]]:
    smooth = np.cumsum(rng.integers(-2, 3, (40, 60, 3)), axis=1)
    return [
        smooth.astype("u1"),
        (smooth[..., 0] > 0).astype("u1"),
        smooth[..., 0].astype("<u2"),
        np.ascontiguousarray(smooth[..., :2] / np.float32(7), dtype="<f4"),
        rng.integers(0, 256, (3000,)).astype("u1"),
        rng.normal(size=(50, 70)).astype("<f4"),
        np.zeros((40, 60, 3), "u1"),
    ]


def chains(frame: npt.NDArray[Any]) -> list[tuple[CodecConfig, ...]]:
    found = [
        resolve(name, frame.dtype, frame.shape, feature="x")
        for name in ("fast", "balanced", "small")
    ]
    found += [({"id": name},) for name in ("zstd", "lz4")]
    found += [
        ({"id": "blosc", "cname": cname, "clevel": 3, "shuffle": shuffle, "blocksize": blocksize},)
        for cname in ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
        for shuffle in (0, 1, 2)
        for blocksize in (0, 1024)
    ]
    if frame.dtype in (np.uint8, np.uint16) and frame.ndim > 1:
        found += [({"id": "seqrecord.image", "format": name},) for name in ("png", "jpegxl")]
        if frame.dtype == np.uint8:
            found.append(({"id": "seqrecord.image", "format": "jpeg", "quality": 90},))
    return found


def damage(blob: bytes, rng: random.Random) -> bytes:
    """Truncate, extend, flip bits, or overwrite four bytes with a wrong size or offset."""
    data = bytearray(blob)
    kind = rng.randrange(5)
    if kind == 0:
        return bytes(data[: rng.randrange(len(data))])
    if kind == 1:
        return bytes(data + rng.randbytes(rng.randrange(1, 40)))
    if kind == 2:
        at = rng.randrange(max(1, min(len(data), 64) - 4))
        value = rng.choice(
            [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, len(data), rng.getrandbits(32)]
        )
        data[at : at + 4] = struct.pack("<I", value)
        return bytes(data)
    for _ in range(rng.choice([1, 1, 2, 30])):
        # Half of the flips hit the headers with sizes and offsets.
        end = min(len(data), 48) if rng.random() < 0.5 else len(data)
        data[rng.randrange(end)] ^= 1 << rng.randrange(8)
    return bytes(data)


def main(seed: int, count: int) -> None:
    rng = random.Random(seed)
    cases = []
    for frame in frames(np.random.default_rng(seed)):
        memory = guarded(frame.nbytes)
        out = memory.view(frame.dtype).reshape(frame.shape)
        several = guarded(_TOGETHER * frame.nbytes).view(frame.dtype)
        for chain in chains(frame):
            codec = FrameCodec(chain, frame.dtype, frame.shape)
            cases.append((codec, codec.encode(frame), out, several.reshape(-1, *frame.shape)))
    decoded = refused = 0
    for _ in range(count):
        codec, blob, out, several = rng.choice(cases)
        data = damage(blob, rng)
        source = guarded(len(data))
        source[:] = np.frombuffer(data, np.uint8)
        try:
            codec.decode_into(source.data, out)
            decoded += 1
        except CodecError:
            refused += 1
        blobs = [memoryview(blob)] * _TOGETHER
        blobs[rng.randrange(_TOGETHER)] = source.data
        codec.decode_frames(blobs, several)
    print(f"{decoded} decoded, {refused} refused")  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
