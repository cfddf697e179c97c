"""Zstandard."""

from __future__ import annotations

from typing import ClassVar

from seqrecord.codecs.base import Compressor, Parameters

_MAGIC = b"\x28\xb5\x2f\xfd"


class Zstd(Compressor):
    """Compresses with Zstandard."""

    codec_id = "zstd"
    parameters: ClassVar[Parameters] = {"level": range(-7, 20), "checksum": (False, True)}

    def _declared_size(self, blob: memoryview) -> int:
        """The content size that the first Zstandard frame declares (RFC 8878, 3.1.1.1)."""
        if len(blob) < 6 or blob[:4] != _MAGIC:
            raise ValueError("not a Zstandard frame")
        descriptor = blob[4]
        size_flag, single_segment = descriptor >> 6, bool(descriptor & 0x20)
        width = (1 if single_segment else 0, 2, 4, 8)[size_flag]
        start = 5 + (not single_segment) + (0, 1, 2, 4)[descriptor & 3]
        if width == 0 or len(blob) < start + width:
            raise ValueError("a Zstandard frame that does not declare its size")
        return int.from_bytes(blob[start : start + width], "little") + (256 if width == 2 else 0)
