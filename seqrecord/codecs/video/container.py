"""Packets in an MP4 file: they are copied, and get times again."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from seqrecord.codecs.base import Bytes
from seqrecord.codecs.video.packages import packet_of, pyav, video_errors
from seqrecord.errors import CodecError

CONTAINED = ("h264", "hevc", "av1", "vp9")
"""The codecs that an MP4 file can hold."""

_RAW = {"h264": "h264", "hevc": "hevc"}  # FFmpeg's names of streams without a container
_IVF = {"av1": b"AV01", "vp9": b"VP90"}  # https://wiki.multimedia.cx/index.php/Duck_IVF


class TimedPacket(NamedTuple):
    """A packet, when it is shown and when it is decoded, in ticks."""

    data: Bytes | bytes
    pts: int
    dts: int
    is_key: bool


def mux_mp4(
    file: str | io.BytesIO,
    codec: str,
    size: tuple[int, int],
    first: Sequence[Bytes | bytes],
    packets: Iterable[TimedPacket],
    *,
    tick: Fraction,
    duration: int = 1,
    options: dict[str, str],
) -> None:
    """Write a file of one stream.

    Args:
        file: a path, or memory.
        codec: one of `CONTAINED`.
        size: height and width.
        first: packets of the first group of pictures, from its first on, which tell what a
            container says of the stream.
        packets: all of them, in the order in which they are decoded; of which `dts` ascends, and
            is never above `pts`.
        tick: seconds.
        duration: of each frame, in ticks.
        options: of FFmpeg's muxer.

    Raises `CodecError` for packets that no file can be made of.
    """
    av = pyav()
    try:
        with (
            av.open(_bare(codec, size, first), format=_RAW.get(codec, "ivf")) as bare,
            av.open(file, "w", format="mp4", options=options) as out,
        ):
            stream = out.add_stream_from_template(bare.streams.video[0], opaque=True)
            stream.time_base = tick
            for item in packets:
                packet = packet_of(item.data)
                packet.stream = stream
                packet.time_base = tick
                packet.pts, packet.dts, packet.duration = item.pts, item.dts, duration
                packet.is_keyframe = item.is_key
                out.mux(packet)
    except video_errors() as error:
        raise CodecError(
            "packets that cannot be put into an MP4 file", got=str(error)[:300]
        ) from error


def _bare(codec: str, size: tuple[int, int], packets: Sequence[Bytes | bytes]) -> Any:
    """A stream of which FFmpeg finds out what a container says of it."""
    if codec in _RAW:
        return io.BytesIO(b"".join(map(bytes, packets)))
    height, width = size
    head = struct.pack("<4sHH4sHHIIII", b"DKIF", 0, 32, _IVF[codec], width, height, 30, 1, 1, 0)
    frames = (struct.pack("<IQ", len(data), i) + bytes(data) for i, data in enumerate(packets))
    return io.BytesIO(head + b"".join(frames))
