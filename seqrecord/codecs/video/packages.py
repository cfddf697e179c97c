"""PyAV, imported when video is first used: it takes 0.1 s, and the extra `video` installs it."""

from __future__ import annotations

from functools import cache
from typing import Any

from seqrecord.codecs.base import Bytes
from seqrecord.errors import MissingPackageError

SWS_BT601 = 5  # as swscale numbers it
_OTHERS = (1, 4, 7, 9, 10)  # of H.273: the matrices that are no BT.601, which swscale numbers alike
_FULL = 2  # AVColorRange


@cache
def pyav() -> Any:
    """The module `av`. Raises `MissingPackageError` where it is not installed."""
    try:
        import av
    except ImportError as error:
        raise MissingPackageError(
            "video is read and written by PyAV, the extra `video`: pip install av"
        ) from error
    return av


def packet_of(data: Bytes | bytes) -> Any:
    """A packet of PyAV with a copy of these bytes, and zeros behind it.

    Decoders read up to 64 bytes behind a packet (FFmpeg's `AV_INPUT_BUFFER_PADDING_SIZE`), and what
    lies there may change frames. PyAV 16 and later do not copy bytes that they are given.
    """
    packet = pyav().Packet(len(data))
    if len(data):
        packet.update(data)
    return packet


def video_errors() -> tuple[type[Exception], ...]:
    """What PyAV raises on packets that are none, and on settings that a codec does not take."""
    return (pyav().error.FFmpegError, ValueError, RuntimeError, OSError, EOFError, MemoryError)


def colours(frame: Any) -> dict[str, int]:
    """What a conversion of a frame to RGB has to be told: PyAV before 17 takes every matrix for
    BT.601."""
    matrix = int(frame.colorspace)
    if matrix not in _OTHERS:
        return {}
    return {
        "src_colorspace": matrix,
        "dst_colorspace": SWS_BT601,
        "src_color_range": int(frame.color_range),
        "dst_color_range": _FULL,
    }


@cache
def one_thread() -> dict[str, int]:
    """What keeps a conversion of colours on the thread that asks for it: PyAV 17 and later must be
    told, and those before know no other way."""
    frame = pyav().VideoFrame(16, 16, "yuv420p")
    try:
        frame.reformat(format="rgb24", threads=1)
    except TypeError:
        return {}
    return {"threads": 1}
