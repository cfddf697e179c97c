"""GOPs back into an MP4 file: packets are copied and get a container and times again."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

from seqrecord.codecs.video.config import VideoConfig
from seqrecord.codecs.video.container import TimedPacket, mux_mp4
from seqrecord.codecs.video.decoding import decode_gop
from seqrecord.codecs.video.encoding import encode_gop
from seqrecord.codecs.video.gops import Gop
from seqrecord.schema import FeatureSpec

__all__ = ["shown_only", "write_mp4"]

_logger = logging.getLogger("seqrecord")

_TICKS = 512  # a frame: times are as exact as other writers have them


def write_mp4(
    path: Path, codec: str, size: tuple[int, int], gops: Sequence[Gop], fps: Fraction
) -> None:
    """A file whose frame i is shown at `i / fps` seconds.

    Args:
        path: where it goes.
        codec: one of `CONTAINED`.
        size: height and width.
        gops: all of whose frames are shown.
        fps: frames a second.

    Raises `ValueError` for GOPs with frames that are not shown, of which a player would know
    nothing, and `CodecError` for packets that no file can be made of.
    """
    if any(-1 in gop.order for gop in gops):
        raise ValueError("frames that are not shown cannot be put into a file")
    # Frames are decoded before they are shown: by so many packets at most.
    delay = max(place - shown for gop in gops for place, shown in enumerate(gop.order))
    mux_mp4(
        str(path),
        codec,
        size,
        gops[0].packets,
        _timed(gops, delay),
        tick=Fraction(1, 1) / fps / _TICKS,
        duration=_TICKS,
        options={"movflags": "faststart"},
    )


def _timed(gops: Sequence[Gop], delay: int) -> Iterator[TimedPacket]:
    first = 0
    for gop in gops:
        for place, (data, shown) in enumerate(zip(gop.packets, gop.order, strict=True)):
            pts, dts = (first + shown) * _TICKS, (first + place - delay) * _TICKS
            yield TimedPacket(data, pts, dts, place == 0)
        first += gop.num_frames


def shown_only(gops: Sequence[Gop], spec: FeatureSpec, where: str) -> list[Gop]:
    """The GOPs of a feature; those with frames that are not shown are encoded anew, with a warning
    that says `where`.
    """
    config = VideoConfig.from_json(spec.codec[0])
    height, width = (n or 0 for n in spec.shape[:2])
    found, count = [], 0
    for gop in gops:
        if -1 in gop.order:
            count += gop.num_frames
            gop = encode_gop(config, decode_gop(config, height, width, gop))
        found.append(gop)
    if count:
        _logger.warning(
            "%s: %d frames were encoded anew: they need frames that are not shown", where, count
        )
    return found
