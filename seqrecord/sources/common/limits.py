"""Limits of all sources, in one place: what few stored bytes may stand for."""

from __future__ import annotations

from seqrecord.errors import SourceError

MAX_FRAMES = 1 << 28
"""Of an episode: a month at 100 frames a second."""

MAX_DECODED_RATIO = 10_000
"""Decoded bytes for a stored one. Codecs reach 1,000 where a feature never changes."""

MAX_CHUNK_BYTES = 1 << 31
"""Of a chunk of Zarr, decoded: the limit of its usual compressor."""

MAX_TEXT_CHUNK_BYTES = 256 << 20
"""Of a chunk of texts, whose decoded size nothing declares."""

_FREE_BYTES = 1 << 30  # decoded from any number of stored ones: small data may be all fill values


def check_frames(count: int) -> None:
    """Raises `SourceError` for an episode of more frames than `MAX_FRAMES`."""
    if count > MAX_FRAMES:
        raise SourceError(
            "an episode of too many frames", expected=f"at most {MAX_FRAMES}", got=count
        )


def check_decoded(decoded: int, stored: int) -> None:
    """Raises `SourceError` where `stored` bytes declare more than they can be meant for."""
    most = max(_FREE_BYTES, MAX_DECODED_RATIO * stored)
    if decoded > most:
        raise SourceError(
            "an original that declares far more than it stores",
            expected=f"at most {most} bytes of {stored} stored",
            got=f"{decoded} bytes",
        )
