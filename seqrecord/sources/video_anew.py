"""Frames that cannot be kept as they are: decoded front to back, and encoded into GOPs anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.codecs.video.config import VideoConfig
from seqrecord.codecs.video.encoding import encode_gop
from seqrecord.codecs.video.gops import Gop
from seqrecord.codecs.video.packages import colours
from seqrecord.errors import CodecError, SourceError
from seqrecord.sources.video_decoding import FrameDecoder, undecodable
from seqrecord.sources.video_files import VideoFile, VideoPacket
from seqrecord.sources.video_packets import KEPT

__all__ = ["EncodedAnew", "stored_codec"]

_OTHERS = "h264"  # what videos of a codec that is not kept become
_LOSSLESS = ("ffv1", "huffyuv", "ffvhuff", "rawvideo", "png")


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
        self._file = file
        self._decoder = FrameDecoder(file, take)
        self._config: VideoConfig | None = None
        self._frames: list[npt.NDArray[np.uint8]] = []

    def add(self, packet: VideoPacket, is_wanted: bool) -> Iterator[Gop]:
        """The GOPs that became full. The frame of a packet that is not wanted goes into none."""
        yield from self._full(self._decoder.add(packet, is_wanted))

    def end(self) -> Iterator[Gop]:
        """What is left. Raises `SourceError` if a wanted frame did not come."""
        yield from self._full(self._decoder.end())
        if self._frames:
            yield self._encode()

    def _full(self, decoded: Iterable[Any]) -> Iterator[Gop]:
        for frame in decoded:
            if self._config is None:
                self._config = self._configured(frame)
            self._frames.append(frame.reformat(format="rgb24", **colours(frame)).to_ndarray())
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
            raise undecodable(self._file, error) from error
        return config.encoding(frame.height, frame.width)
