"""Frames that cannot be kept as they are: decoded front to back, and encoded into GOPs anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.codecs.video.config import VideoConfig
from seqrecord.codecs.video.encoding import encode_gop
from seqrecord.codecs.video.gops import Gop
from seqrecord.codecs.video.packages import pyav, video_errors
from seqrecord.errors import CodecError, SourceError
from seqrecord.sources.video_files import VideoFile, VideoPacket
from seqrecord.sources.video_packets import KEPT

__all__ = ["EncodedAnew", "stored_codec"]

_OTHERS = "h264"  # what videos of a codec that is not kept become
_LOSSLESS = ("ffv1", "huffyuv", "ffvhuff", "rawvideo", "png")
_DECODERS = {"av1": "libdav1d"}
_HIDDEN = -1


def stored_codec(codec: str) -> str:
    """The codec in which a video of `codec` is stored."""
    if codec in KEPT:
        return codec
    return "ffv1" if codec in _LOSSLESS else _OTHERS


class EncodedAnew:
    """Takes packets in decoding order, gives GOPs; the codec stays the file's, if it is kept.

    Args:
        file: whose packets they are.
        take: called with the ticks of frames that were decoded, one by one in the order in which
            they are shown.
    """

    def __init__(self, file: VideoFile, take: Callable[[list[int]], None]) -> None:
        self._file, self._take = file, take
        self._config: VideoConfig | None = None
        self._ticks: list[int] = []  # of wanted packets that went into the decoder
        self._frames: list[npt.NDArray[np.uint8]] = []
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
            raise self._broken(error) from error
        self._context = context

    def add(self, packet: VideoPacket, is_wanted: bool) -> Iterator[Gop]:
        """The GOPs that became full. The frame of a packet that is not wanted goes into none."""
        data = self._file.plain(packet.data, self._is_first or packet.is_cut or packet.is_key)
        self._is_first = False
        coded = pyav().Packet(data)
        # The decoder hands the numbers on to the frames.
        coded.pts = len(self._ticks) if is_wanted else _HIDDEN
        if is_wanted:
            self._ticks.append(packet.tick)
        yield from self._decode(coded)

    def end(self) -> Iterator[Gop]:
        """What is left. Raises `SourceError` if a wanted frame did not come."""
        yield from self._decode(None)
        if self._frames:
            yield self._encode()

    def _decode(self, packet: Any) -> Iterator[Gop]:
        try:
            decoded = self._context.decode(packet)
        except video_errors() as error:
            raise self._broken(error) from error
        for frame in decoded:
            if frame.pts is None or frame.pts == _HIDDEN:
                continue
            self._take([self._ticks[frame.pts]])
            if self._config is None:
                self._config = self._configured(frame)
            self._frames.append(frame.reformat(format="rgb24").to_ndarray())
            if len(self._frames) == self._config.gop:
                yield self._encode()

    def _encode(self) -> Gop:
        assert self._config is not None
        frames, self._frames = self._frames, []
        try:
            return encode_gop(self._config, frames)
        except CodecError as error:
            raise SourceError(error.message, file=str(self._file.path), got=error.got) from error

    def _configured(self, frame: Any) -> VideoConfig:
        codec, pixels = stored_codec(self._file.codec), frame.format.name
        if codec != self._file.codec or codec == "ffv1":
            pixels = "bgr0" if codec == "ffv1" else "yuv420p"
        try:
            config = VideoConfig(codec, pixels, self._file.matrix, self._file.color_range)
        except ValueError as error:
            raise self._broken(error) from error
        return config.encoding(frame.height, frame.width)

    def _broken(self, error: Exception) -> SourceError:
        return SourceError(
            "a video that cannot be decoded", file=str(self._file.path), got=str(error)[:200]
        )
