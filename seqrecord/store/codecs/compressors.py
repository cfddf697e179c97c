"""Compressors that declare the decoded size: Zstandard and LZ4."""

from __future__ import annotations

from typing import ClassVar

from seqrecord.store.codecs.base import Compressor, Parameters

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
