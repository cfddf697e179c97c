"""Muxing of packets into MP4 files, with timestamps and without re-encoding."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from seqrecord.errors import CodecError
from seqrecord.store.codecs.base import Bytes
from seqrecord.video.config import VideoConfig
from seqrecord.video.packages import packet_of, pyav, set_colours, video_errors

CONTAINED = ("h264", "hevc", "av1", "vp9")
"""Codecs that an MP4 file supports."""

_RAW = {"h264": "h264", "hevc": "hevc"}  # FFmpeg's formats of bare streams
_IVF = {"av1": b"AV01", "vp9": b"VP90"}  # https://wiki.multimedia.cx/index.php/Duck_IVF


class TimedPacket(NamedTuple):
    """A packet with its presentation and decoding times in ticks."""

    data: Bytes | bytes
    pts: int
    dts: int
    is_key: bool


def mux_mp4(
    file: str | io.BytesIO,
    config: VideoConfig,
    size: tuple[int, int],
    header_packets: Sequence[Bytes | bytes],
    packets: Iterable[TimedPacket],
    *,
    tick: Fraction,
    duration: int = 1,
    options: dict[str, str],
) -> None:
    """Write an MP4 file with one video stream.

    Args:
        file: a path, or memory.
        config: of the packets, with a codec in `CONTAINED`; the file declares its colours, since
            the packets may not.
        size: height and width.
        header_packets: packets of the first group of pictures, in order, from which FFmpeg
            derives the stream's header.
        packets: all packets in decoding order, with ascending `dts`, at most `pts`.
        tick: duration of a tick in seconds.
        duration: of each frame, in ticks.
        options: for FFmpeg's muxer.

    Raises `CodecError` if the packets cannot be muxed.
    """
    av, codec = pyav(), config.codec
    flags = [options["movflags"]] if "movflags" in options else []
    if (config.matrix, config.range) != (None, None):
        flags.append("write_colr")  # FFmpeg leaves the box out if a colour is unknown
        options = options | {"movflags": "+".join(flags)}
    try:
        with (
            av.open(_bare(codec, size, header_packets), format=_RAW.get(codec, "ivf")) as bare,
            av.open(file, "w", format="mp4", options=options) as out,
        ):
            stream = out.add_stream_from_template(bare.streams.video[0], opaque=True)
            stream.time_base = tick
            set_colours(stream.codec_context, config.matrix, config.range)
            for timed in packets:
                packet = packet_of(timed.data)
                packet.stream = stream
                packet.time_base = tick
                packet.pts, packet.dts, packet.duration = timed.pts, timed.dts, duration
                packet.is_keyframe = timed.is_key
                out.mux(packet)
    except video_errors() as error:
        raise CodecError(
            "cannot write these packets to an MP4 file", got=str(error)[:300]
        ) from error


def _bare(codec: str, size: tuple[int, int], packets: Sequence[Bytes | bytes]) -> Any:
    """A bare stream from which FFmpeg derives the header of the container."""
    if codec in _RAW:
        return io.BytesIO(b"".join(map(bytes, packets)))
    height, width = size
    head = struct.pack("<4sHH4sHHIIII", b"DKIF", 0, 32, _IVF[codec], width, height, 30, 1, 1, 0)
    frames = (struct.pack("<IQ", len(data), i) + bytes(data) for i, data in enumerate(packets))
    return io.BytesIO(head + b"".join(frames))
