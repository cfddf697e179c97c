"""LZ4 blocks."""

from __future__ import annotations

from typing import ClassVar

from seqrecord.codecs.base import Compressor, Parameters


class Lz4(Compressor):
    """Compresses with LZ4."""

    codec_id = "lz4"
    parameters: ClassVar[Parameters] = {"acceleration": range(1, 65538)}

    def _declared_size(self, blob: memoryview) -> int:
        """The size in front of an LZ4 block, which is how numcodecs stores it."""
        if len(blob) < 5:
            raise ValueError(f"an LZ4 blob of {len(blob)} bytes")
        return int.from_bytes(blob[:4], "little")
