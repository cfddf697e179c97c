"""Frames of video files that are not kept as packets: decoded front to back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.codecs.video.packages import pyav, video_errors
from seqrecord.errors import SourceError
from seqrecord.sources.video_files import VideoFile, VideoPacket
from seqrecord.sources.video_packets import KEPT
from seqrecord.sources.video_rows import TOLERANCE, Rows

__all__ = ["FrameDecoder", "read_frames", "undecodable"]

_DECODERS = {"av1": "libdav1d"}
_HIDDEN = -1


def read_frames(
    file: VideoFile, times: npt.NDArray[np.float64], *, tolerance: float = TOLERANCE
) -> Iterator[Any]:
    """The frames nearest to `times`, decoded, as PyAV's `VideoFrame`, in their order.

    Args:
        file: an open file.
        times: seconds [rows], ascending, by the file's clock.
        tolerance: seconds from a row's time to its frame's, which must be nearer than that.

    Raises `SourceError` for rows that have no frame or share one, for times that go back, and for
    a file that is truncated, damaged, or does not begin with a keyframe.
    """
    rows = Rows(file, times, tolerance)
    decoder = FrameDecoder(file, rows.take)
    is_first = True
    for packet in () if rows.are_complete else file.packets(rows.first_tick):
        if is_first and not (packet.is_cut or packet.is_key):
            raise SourceError("a video that does not begin with a keyframe", file=str(file.path))
        is_first = False
        yield from decoder.add(packet, rows.want(packet))
        if rows.are_complete:
            break
    yield from decoder.end()
    rows.check_all()


class FrameDecoder:
    """Takes packets in decoding order, gives decoded frames in the order in which they are shown.

    Args:
        file: whose packets they are.
        take: called with the tick of each wanted frame before it is given.

    Raises `SourceError` for packets that cannot be decoded.
    """

    def __init__(self, file: VideoFile, take: Callable[[list[int]], None]) -> None:
        self._file, self._take = file, take
        self._ticks: list[int] = []  # of wanted packets that went into the decoder
        self._is_first = True
        try:
            context = pyav().CodecContext.create(_DECODERS.get(file.codec, file.codec), "r")
            if file.codec not in KEPT and file.extradata:
                context.extradata = file.extradata
            if file.codec not in KEPT:
                context.height, context.width = file.size
            if file.codec == "h264":
                context.options = {"strict": "1"}
        except video_errors() as error:
            raise undecodable(file, error) from error
        self._context = context

    def add(self, packet: VideoPacket, is_wanted: bool) -> Iterator[Any]:
        """The frames that came; the frame of a packet that is not wanted is left out."""
        data = self._file.plain(packet.data, self._is_first or packet.is_cut or packet.is_key)
        self._is_first = False
        coded = pyav().Packet(data)
        # The decoder hands the numbers on to the frames.
        coded.pts = len(self._ticks) if is_wanted else _HIDDEN
        if is_wanted:
            self._ticks.append(packet.tick)
        yield from self._decode(coded)

    def end(self) -> Iterator[Any]:
        """The frames that are left."""
        yield from self._decode(None)

    def _decode(self, packet: Any) -> Iterator[Any]:
        try:
            decoded = self._context.decode(packet)
        except video_errors() as error:
            raise undecodable(self._file, error) from error
        for frame in decoded:
            if frame.pts is not None and frame.pts != _HIDDEN:
                self._take([self._ticks[frame.pts]])
                yield frame


def undecodable(file: VideoFile, error: Exception) -> SourceError:
    return SourceError("a video that cannot be decoded", file=str(file.path), got=str(error)[:200])
