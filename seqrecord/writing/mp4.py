"""GOPs back into an MP4 file: packets are copied and get a container and times again."""

from __future__ import annotations

import io
import logging
import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from seqrecord.codecs.video.config import VideoConfig
from seqrecord.codecs.video.decoding import decode_gop
from seqrecord.codecs.video.encoding import encode_gop
from seqrecord.codecs.video.gops import Gop
from seqrecord.codecs.video.packages import pyav, video_errors
from seqrecord.errors import CodecError
from seqrecord.schema import FeatureSpec

__all__ = ["CONTAINED", "shown_only", "write_mp4"]

_logger = logging.getLogger("seqrecord")

CONTAINED = ("h264", "hevc", "av1", "vp9")
"""The codecs that an MP4 file can hold."""

_RAW = {"h264": "h264", "hevc": "hevc"}  # FFmpeg's names of streams without a container
_IVF = {"av1": b"AV01", "vp9": b"VP90"}  # https://wiki.multimedia.cx/index.php/Duck_IVF
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
    av = pyav()
    try:
        with (
            av.open(_bare(codec, size, gops[0]), format=_RAW.get(codec, "ivf")) as bare,
            av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as file,
        ):
            stream = file.add_stream_from_template(bare.streams.video[0], opaque=True)
            stream.time_base = Fraction(1, 1) / fps / _TICKS
            # Frames are decoded before they are shown: by so many packets at most.
            delay = max(place - shown for gop in gops for place, shown in enumerate(gop.order))
            first = 0
            for gop in gops:
                for place, (data, shown) in enumerate(zip(gop.packets, gop.order, strict=True)):
                    packet = av.Packet(data)
                    packet.stream = stream
                    packet.time_base = Fraction(1, 1) / fps / _TICKS
                    packet.pts = (first + shown) * _TICKS
                    packet.dts = (first + place - delay) * _TICKS
                    packet.duration = _TICKS
                    packet.is_keyframe = place == 0
                    file.mux(packet)
                first += gop.num_frames
    except video_errors() as error:
        raise CodecError(
            "packets that cannot be put into an MP4 file", got=str(error)[:300]
        ) from error


def _bare(codec: str, size: tuple[int, int], gop: Gop) -> Any:
    """A stream of which FFmpeg finds out what a container says of it."""
    if codec in _RAW:
        return io.BytesIO(b"".join(gop.packets))
    height, width = size
    head = struct.pack("<4sHH4sHHIIII", b"DKIF", 0, 32, _IVF[codec], width, height, 30, 1, 1, 0)
    frames = (struct.pack("<IQ", len(data), place) + data for place, data in enumerate(gop.packets))
    return io.BytesIO(head + b"".join(frames))


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
