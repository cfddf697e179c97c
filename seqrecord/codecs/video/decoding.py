"""Decodes groups of pictures by PyAV: RGB, or 16 bits of grey, in memory that is given.

Nothing in a packet is trusted. The numbers of the frames travel through the decoder as timestamps,
so a frame that is missing, comes twice or comes out of order is noticed, whatever the stream says
of itself. A decoder is told how many pixels a frame has before it may allocate any.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.codecs.base import Bytes
from seqrecord.codecs.resizing import resize_into
from seqrecord.codecs.video.config import GREY16, VideoConfig
from seqrecord.codecs.video.gops import Gop
from seqrecord.codecs.video.packages import colours, one_thread, packet_of, pyav, video_errors
from seqrecord.errors import CodecError
from seqrecord.schema import MAX_FRAME_BYTES, CodecConfig

_DECODERS = {"av1": "libdav1d"}  # FFmpeg's own needs a GPU
_RANGES = {None: 0, "limited": 1, "full": 2}  # AVColorRange
_HIDDEN = 1 << 20  # timestamps of frames that are not shown begin here
_SCALING = 0x20 | 0x2000  # swscale's SWS_AREA; and SWS_FULL_CHR_H_INT, or colours are at half width
_MARGIN = 64  # pixels that a stream may code beside those that it shows, of each axis


class VideoDecoder:
    """A decoder of one stream's packets, for one thread at a time.

    Frames of `gray16le` are uint16 [height, width]. Others are RGB, uint8 [height, width, 3], as
    PyAV's `reformat(format="rgb24")` makes them: by the matrix and the range that the stream names,
    else those of `config`; where neither names one, by BT.601 and, but for the formats `yuvj…`, the
    limited range.
    """

    def __init__(self, config: VideoConfig, height: int, width: int) -> None:
        av = pyav()
        self._config = config
        self._size = height, width
        context = av.CodecContext.create(_DECODERS.get(config.codec, config.codec), "r")
        context.thread_count = 1  # the threads are ours
        options = {"max_pixels": str((height + _MARGIN) * (width + _MARGIN))}
        if config.codec == "ffv1":  # its packets do not say their size
            context.width, context.height = width, height
        if config.codec == "h264":
            options["strict"] = "1"  # frames are put in order by the standard, not by a guess
        if config.matrix is not None:
            context.colorspace = config.matrix
        if config.range is not None:
            context.color_range = _RANGES[config.range]
        context.options = options
        self._context = context
        self._reformatter = av.video.reformatter.VideoReformatter()

    def decode(self, packets: Iterable[Bytes | bytes], order: Sequence[int]) -> Iterator[Any]:
        """The shown frames of one GOP, as PyAV's frames, in the order in which they are shown.

        They are decoded as they are taken. `ValueError`, or another of `video_errors()`, for
        packets that do not give them.
        """
        context = self._context
        shown = sum(number >= 0 for number in order)
        due = 0
        try:
            for place, data in enumerate((*packets, None)):
                packet = None
                if data is not None:
                    packet = packet_of(data)
                    number = order[place]
                    packet.pts = packet.dts = None
                    packet.pts = number if number >= 0 else _HIDDEN + place
                for frame in context.decode(packet):
                    if frame.pts is not None and frame.pts >= _HIDDEN:
                        continue
                    if frame.pts != due:
                        raise ValueError(f"frame {frame.pts} of a GOP came where {due} was due")
                    self._check(frame)
                    yield frame
                    due += 1
                    if due == shown:
                        return
            raise ValueError(f"a GOP gave {due} frames, not {shown}")
        finally:
            if context.is_open:
                context.flush_buffers()

    def convert(self, frame: Any, out: npt.NDArray[Any], *, smooth: bool = True) -> None:
        """Write a decoded frame into `out`, C-contiguous and of the config's dtype and shape, or of
        another height and width.

        RGB is scaled in the same pass: `smooth` averages areas along an axis that shrinks, and
        interpolates linearly along one that grows. For the rest see `resize_into`.
        """
        is_rgb = self._config.pixel_format != GREY16
        if is_rgb:
            how = colours(frame) | one_thread()
            if smooth and out.shape[:2] != self._size:
                how |= {"height": out.shape[0], "width": out.shape[1], "interpolation": _SCALING}
            frame = self._reformatter.reformat(frame, format="rgb24", **how)
        plane, size = frame.planes[0], (frame.height, frame.width)
        lines = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
        lines = lines.view("u1" if is_rgb else "<u2")[: size[0], : size[1] * (3 if is_rgb else 1)]
        if size == out.shape[:2]:
            np.copyto(out.reshape(lines.shape), lines)
        else:
            resize_into(lines.reshape(*size, *out.shape[2:]), out, smooth=smooth)

    def _check(self, frame: Any) -> None:
        found = (frame.height, frame.width, frame.format.name)
        expected = (*self._size, self._config.pixel_format)
        if found != expected or frame.is_corrupt:
            what = "a frame that is not whole" if found == expected else str(found)
            raise ValueError(f"{what}, expected {expected}")


class GopFrames:
    """The frames of one GOP, decoded one after the other as they are asked for.

    It has a decoder of its own, until it has given its last frame, or nobody refers to it. Raises
    `CodecError` for packets that do not give these frames.
    """

    def __init__(
        self,
        config: VideoConfig,
        height: int,
        width: int,
        packets: Sequence[Bytes | bytes],
        order: Sequence[int],
    ) -> None:
        self.position = 0
        """The number, in the GOP, of the frame that comes next."""
        self._frames = _frames(_Stream(config, height, width), packets, order)

    def skip(self, count: int) -> None:
        """Decode so many frames that nobody wants."""
        for _ in range(count):
            self._next()

    def read_into(self, out: npt.NDArray[Any], *, smooth: bool = True) -> None:
        """Decode the next frame into `out`, see `VideoDecoder.convert`."""
        decoder, frame = self._next()
        try:
            decoder.convert(frame, out, smooth=smooth)
        except video_errors() as error:
            raise CodecError("a video frame cannot be converted", got=str(error)[:300]) from error

    def _next(self) -> tuple[VideoDecoder, Any]:
        try:
            found = next(self._frames)
        except video_errors() as error:
            raise CodecError("packets of video do not decode", got=str(error)[:300]) from error
        except StopIteration:
            raise CodecError("more frames are wanted than a GOP has") from None
        self.position += 1
        return found


class _Stream(NamedTuple):
    """What a decoder is made for."""

    config: VideoConfig
    height: int
    width: int


# Decoders that nobody uses, the oldest first: opening one takes time. A deque, for a finalizer may
# give one back anywhere.
_idle: deque[tuple[_Stream, VideoDecoder]] = deque(maxlen=16)


def _frames(
    stream: _Stream, packets: Sequence[Bytes | bytes], order: Sequence[int]
) -> Iterator[tuple[VideoDecoder, Any]]:
    """The shown frames of a GOP, and the decoder that gave them."""
    decoder = _take(stream)
    failed = False
    try:
        for frame in decoder.decode(packets, order):
            yield decoder, frame
    except Exception:
        failed = True
        raise
    finally:
        if not failed:
            _idle.append((stream, decoder))


def _take(stream: _Stream) -> VideoDecoder:
    for _ in range(len(_idle)):
        try:
            item = _idle.popleft()
        except IndexError:  # another thread was faster
            break
        if item[0] == stream:
            return item[1]
        _idle.append(item)
    try:
        return VideoDecoder(*stream)
    except video_errors() as error:
        raise CodecError(
            "there is no such video decoder here", expected=stream.config.codec, got=str(error)
        ) from error


def decode_gop(config: VideoConfig, height: int, width: int, gop: Gop) -> npt.NDArray[Any]:
    """All frames of a GOP: [num_frames, height, width, 3], of `gray16le` without the last axis.

    Raises `CodecError` if it is broken.
    """
    out = np.empty((gop.num_frames, *config.shape(height, width)), config.dtype)
    frames = GopFrames(config, height, width, gop.packets, gop.order)
    for row in out:
        frames.read_into(row)
    return out


def describe_video(
    codec: str, gop: Gop, *, matrix: int | None = None, color_range: str | None = None
) -> tuple[tuple[int, int, int], CodecConfig]:
    """The shape [H, W, 3] of a stream's frames, and the configuration under which it is kept.

    `gop` is any of it, of which the first packets are decoded. `matrix` (H.273) and `color_range`
    ("limited", "full") are what the container says, for a stream that says nothing of it. Raises
    `CodecError` for what does not decode, and for pixels that are none of `VideoConfig`'s formats.
    """
    context = _context(codec)
    try:
        frame = _first_frame(context, gop.packets)
        config = VideoConfig(codec, frame.format.name, matrix, color_range)
        if config.pixel_format == GREY16:
            raise ValueError(f"frames of {GREY16}, which are no pictures in colour")
    except video_errors() as error:
        raise CodecError("not a video that can be kept", got=str(error)[:300]) from error
    return (frame.height, frame.width, 3), config.to_json()


def form_of(codec: str, keyframe: bytes) -> tuple[int, int, str]:
    """Height, width and pixel format of the frame of a packet that stands alone.

    Raises one of `video_errors()` for what does not decode.
    """
    context = _context(codec)
    frame = _first_frame(context, (keyframe,))
    return frame.height, frame.width, frame.format.name


def _context(codec: str) -> Any:
    context = pyav().CodecContext.create(_DECODERS.get(codec, codec), "r")
    context.thread_count = 1
    context.options = {"max_pixels": str(MAX_FRAME_BYTES // 3)}
    return context


def _first_frame(context: Any, packets: Sequence[bytes]) -> Any:
    for data in (*packets, None):
        packet = None if data is None else packet_of(data)
        for frame in context.decode(packet):
            return frame
    raise ValueError("the packets give no frame")
