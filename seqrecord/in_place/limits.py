"""Limits of decoded size that protect against small files that declare huge data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from seqrecord.errors import SourceError
from seqrecord.store.schema import MAX_FRAME_BYTES

MAX_FRAMES = 1 << 28
"""Maximum frames of an episode: a month at 100 frames per second."""

MAX_DECODED_RATIO = 10_000
"""Maximum decoded bytes per stored byte. Codecs reach 1,000 for constant features."""

MAX_CHUNK_BYTES = 1 << 31
"""Maximum decoded size of a Zarr chunk, the limit of its default compressor."""

MAX_TEXT_CHUNK_BYTES = 256 << 20
"""Maximum decoded size of a text chunk, which declares none itself."""

_FREE_BYTES = 1 << 30  # always allowed: small data may consist of fill values only


def check_size(noun: str, size: int, limit: int, unit: str = "bytes", **facts: Any) -> None:
    """Raise `SourceError` for something of more than `limit` bytes, or another unit."""
    if size > limit:
        raise SourceError(
            f"{noun} too large", expected=f"at most {limit} {unit}", got=f"{size} {unit}", **facts
        )


def check_frames(count: int) -> None:
    """Raise `SourceError` for an episode of more than `MAX_FRAMES` frames."""
    check_size("episode", count, MAX_FRAMES, "frames")


def check_decoded(decoded: int, stored: int) -> None:
    """Raise `SourceError` if `decoded` bytes exceed the plausible size of `stored` bytes."""
    limit = max(_FREE_BYTES, MAX_DECODED_RATIO * stored)
    if decoded > limit:
        raise SourceError(
            "the data declares far more bytes than it stores",
            expected=f"at most {limit} bytes of {stored} stored",
            got=f"{decoded} bytes",
        )


def check_image_size(shape: Sequence[int], itemsize: int) -> None:
    """Raise `SourceError` for an empty image and for more than `MAX_FRAME_BYTES` bytes."""
    if min(shape) < 1 or itemsize * math.prod(shape) > MAX_FRAME_BYTES:
        raise SourceError(
            "invalid image size",
            expected=f"1 to {MAX_FRAME_BYTES} bytes of pixels",
            got=list(shape),
        )
