"""Decoding GOPs (groups of pictures) with PyAV, to RGB or 16-bit grey, into given memory.

Packets are not trusted. Frame numbers pass through the decoder as timestamps, so missing, duplicate
or reordered frames are detected, whatever the stream declares. The decoder has a limit of pixels
before it allocates any.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import CodecError
from seqrecord.store.codecs.base import Bytes
from seqrecord.store.codecs.resizing import resize_into
from seqrecord.store.schema import MAX_FRAME_BYTES, CodecConfig
from seqrecord.video.config import VideoConfig
from seqrecord.video.gops import Gop
from seqrecord.video.packages import (
    UNKNOWN_MATRIX,
    colours,
    one_thread,
    packet_of,
    pyav,
    set_colours,
    video_errors,
)

if TYPE_CHECKING:
    from seqrecord.video.depth import DepthScale

# Without it, FFmpeg keeps columns that a stream crops on the left.
_EXACT_CROP = {"flags": "+unaligned"}
_DECODERS = {"av1": "libdav1d"}  # FFmpeg's own decoder needs a GPU
_HIDDEN = 1 << 20  # first timestamp of hidden frames
_SCALING = 0x20 | 0x2000  # swscale: SWS_AREA; SWS_FULL_CHR_H_INT for colour at full width
_MARGIN = 64  # pixels per axis that a stream may code beyond the visible ones


class VideoDecoder:
    """Decoder for the packets of one stream; use it from one thread at a time.

    Frames of deep grey are uint16 [height, width], or with a scale of depth metres, float32
    [height, width]. Others are RGB, uint8 [height, width, 3], as by
    PyAV's `reformat(format="rgb24")`. Matrix and range are from the stream, else from `config`,
    else BT.601 and the limited range (full for the formats `yuvj…`).
    """

    def __init__(self, config: VideoConfig, height: int, width: int) -> None:
        self._config = config
        self._size = height, width
        pixels = (height + _MARGIN) * (width + _MARGIN)
        # The packets of FFV1 do not contain the size.
        context = open_decoder(
            config.codec,
            matrix=config.matrix,
            color_range=config.range,
            size=self._size if config.codec == "ffv1" else None,
            max_pixels=pixels,
        )
        self._context = context
        self._reformatters: dict[tuple[int, ...], Any] = {}

    def decode(self, packets: Iterable[Bytes | bytes], order: Sequence[int]) -> Iterator[Any]:
        """Decode the visible frames of one GOP, as PyAV frames in display order.

        A generator that decodes on demand. Raises `ValueError`, or another of `video_errors()`, if
        the packets do not contain these frames.
        """
        context = self._context
        num_shown = sum(number >= 0 for number in order)
        next_number = 0
        if self._config.codec == "h264":  # others declare colours at each start, or never
            # It keeps those of the last stream that declared any:
            # tests/video/test_video_codecs.py::test_a_reused_decoder_forgets_colours.
            set_colours(context, self._config.matrix, self._config.range)
        try:
            for index, data in enumerate((*packets, None)):
                number = -1 if data is None else order[index]
                for frame in self.send(data, number if number >= 0 else _HIDDEN + index):
                    if frame.pts is not None and frame.pts >= _HIDDEN:
                        continue
                    if frame.pts != next_number:
                        raise ValueError(
                            f"got frame {frame.pts} of a GOP, expected frame {next_number}"
                        )
                    self.check(frame)
                    yield frame
                    next_number += 1
                    if next_number == num_shown:
                        return
            raise ValueError(f"a GOP has {next_number} frames, expected {num_shown}")
        finally:
            if context.is_open:
                context.flush_buffers()

    def send(self, data: Bytes | bytes | None, number: int = 0) -> list[Any]:
        """Decode a packet, or `None` after the last one; return the frames that this completes.

        `pts` of a frame is the `number` of its packet. Raises any of `video_errors()`.
        """
        return _decode(self._context, data, number)

    def check(self, frame: Any) -> None:
        """Raise `ValueError` for an incomplete frame, another size or another pixel format."""
        form = (frame.height, frame.width, frame.format.name)
        expected = (*self._size, self._config.pixel_format)
        if form != expected or frame.is_corrupt:
            problem = "an incomplete frame" if form == expected else str(form)
            raise ValueError(f"{problem}, expected {expected}")

    def convert(self, frame: Any, out: npt.NDArray[Any], *, smooth: bool = True) -> None:
        """Write a decoded frame into `out`, C-contiguous, of the config's dtype and channels.

        If height or width of `out` differ, the frame is scaled. `smooth` averages areas along axes
        that shrink and interpolates linearly along axes that grow, in the same pass for RGB. See
        `resize_into` for other frames.
        """
        is_rgb = not self._config.is_grey
        if is_rgb:
            options = colours(frame)
            # PyAV before 17 keeps the colours of a reformatter's last frame that had any.
            # tests/video/test_video_codecs.py::test_a_reused_decoder_forgets_colours
            reformatter = self._reformatters.get(key := tuple(options.values()))
            if reformatter is None:
                reformatter = pyav().video.reformatter.VideoReformatter()
                self._reformatters[key] = reformatter
            options |= one_thread()
            if smooth and out.shape[:2] != self._size:
                options |= {
                    "height": out.shape[0],
                    "width": out.shape[1],
                    "interpolation": _SCALING,
                }
            frame = reformatter.reformat(frame, format="rgb24", **options)
        plane, size = frame.planes[0], (frame.height, frame.width)
        lines: npt.NDArray[Any] = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
        lines = lines.view("u1" if is_rgb else "<u2")[: size[0], : size[1] * (3 if is_rgb else 1)]
        if self._config.depth is not None:
            lines = self._config.depth.decode(lines)
        if size == out.shape[:2]:
            np.copyto(out.reshape(lines.shape), lines)
        else:
            resize_into(lines.reshape(*size, *out.shape[2:]), out, smooth=smooth)


class GopFrames:
    """Sequential decoder for the frames of one GOP.

    Uses a decoder of its own until the last frame, or until it is garbage collected. Raises
    `CodecError` if the packets do not contain the frames.
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
        """Number of the next frame in the GOP."""
        self._frames = _frames((config, height, width), packets, order)

    def skip(self, count: int) -> None:
        """Decode `count` frames and drop them."""
        for _ in range(count):
            self._next()

    def read_into(self, out: npt.NDArray[Any], *, smooth: bool = True) -> None:
        """Decode the next frame into `out`; see `VideoDecoder.convert`."""
        decoder, frame = self._next()
        try:
            decoder.convert(frame, out, smooth=smooth)
        except video_errors() as error:
            raise CodecError("cannot convert a video frame", got=str(error)[:300]) from error

    def _next(self) -> tuple[VideoDecoder, Any]:
        try:
            decoder_and_frame = next(self._frames)
        except video_errors() as error:
            raise CodecError("cannot decode video packets", got=str(error)[:300]) from error
        except StopIteration:
            raise CodecError("read beyond the last frame of a GOP") from None
        self.position += 1
        return decoder_and_frame


_DecoderKey: TypeAlias = tuple[VideoConfig, int, int]
"""Arguments of a `VideoDecoder`."""

# Idle decoders, oldest first, since opening one is slow. A deque is safe if a finalizer returns a
# decoder at any point; a lock could be held by the same thread.
# tests/video/test_video_codecs.py::test_frames_are_decoded_one_by_one_and_decoders_are_reused
_idle: deque[tuple[_DecoderKey, VideoDecoder]] = deque(maxlen=16)


def _frames(
    stream: _DecoderKey, packets: Sequence[Bytes | bytes], order: Sequence[int]
) -> Iterator[tuple[VideoDecoder, Any]]:
    """Visible frames of a GOP, each with its decoder."""
    decoder = _decoder_for(stream)
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


def _decoder_for(stream: _DecoderKey) -> VideoDecoder:
    for _ in range(len(_idle)):
        try:
            idle_stream, decoder = _idle.popleft()
        except IndexError:  # another thread emptied it
            break
        if idle_stream == stream:
            return decoder
        _idle.append((idle_stream, decoder))
    try:
        return VideoDecoder(*stream)
    except video_errors() as error:
        raise CodecError(
            "no such video decoder in FFmpeg", expected=stream[0].codec, got=str(error)
        ) from error


def decode_gop(config: VideoConfig, height: int, width: int, gop: Gop) -> npt.NDArray[Any]:
    """Decode a GOP to [num_frames, height, width, 3], or without the last axis for deep grey.

    Raises `CodecError` if the GOP is damaged.
    """
    out = np.empty((gop.num_frames, *config.shape(height, width)), config.dtype)
    frames = GopFrames(config, height, width, gop.packets, gop.order)
    for row in out:
        frames.read_into(row)
    return out


def describe_video(
    codec: str,
    gop: Gop,
    *,
    matrix: int | None = None,
    color_range: str | None = None,
    depth: DepthScale | None = None,
) -> tuple[tuple[int, ...], CodecConfig]:
    """Shape of a stream's frames, and its codec configuration.

    Frames are uint8 [H, W, 3]; of gray10le and gray12le uint16 [H, W], or with the scale `depth`
    metres, float32 [H, W].

    Decodes the first packets of `gop`, any GOP of the stream. `matrix` (H.273) and `color_range`
    ("limited", "full") are the container's, used if the stream declares none. Raises `CodecError`
    if decoding fails or the pixel format is unsupported.
    """
    try:
        context = open_decoder(codec, matrix=matrix, color_range=color_range)
        frame = _first_frame(context, gop.packets)
        config = VideoConfig(codec, frame.format.name, matrix, color_range, depth=depth)
    except video_errors() as error:
        raise CodecError("this video cannot be stored encoded", got=str(error)[:300]) from error
    return config.shape(frame.height, frame.width), config.to_json()


def form_of(
    codec: str, keyframe: bytes, *, matrix: int | None = None, color_range: str | None = None
) -> tuple[int, int, str]:
    """Height, width and pixel format of the frame in a packet that decodes alone.

    `matrix` and `color_range` are the container's. Raises any of `video_errors()` if decoding
    fails.
    """
    context = open_decoder(codec, matrix=matrix, color_range=color_range)
    frame = _first_frame(context, (keyframe,))
    return frame.height, frame.width, frame.format.name


def declares_colours(config: VideoConfig, packets: Sequence[bytes]) -> bool:
    """Whether a stream itself declares the colours that its configuration has.

    Of the first of these packets with a frame. Raises `CodecError` if decoding fails.
    """
    try:
        frame = _first_frame(open_decoder(config.codec), packets)
    except video_errors() as error:
        raise CodecError("cannot decode video packets", got=str(error)[:300]) from error
    has_matrix = config.matrix is None or int(frame.colorspace) != UNKNOWN_MATRIX
    return has_matrix and (config.range is None or bool(int(frame.color_range)))


def display_order(codec: str, packets: Iterable[bytes]) -> list[int]:
    """Numbers of packets in the order in which a decoder displays their frames.

    `packets` begin with a keyframe. Raises any of `video_errors()` if decoding fails.
    """
    context, order = open_decoder(codec), list[int]()
    for number, data in enumerate((*packets, None)):
        order += [frame.pts for frame in _decode(context, data, number)]
    return order


def open_decoder(
    codec: str,
    *,
    matrix: int | None = None,
    color_range: str | None = None,
    size: tuple[int, int] | None = None,
    extradata: bytes = b"",
    max_pixels: int = MAX_FRAME_BYTES // 3,
) -> Any:
    """Codec context of PyAV that decodes on the calling thread; all decoders are opened here.

    Args:
        codec: FFmpeg's name of the codec.
        matrix, color_range: the container's colours. FFmpeg chooses the pixel format of H.264 by
            them if the stream declares none, so each decoder of a stream must know them.
        size: height and width, for packets that do not contain them.
        extradata: the container's codec parameters, for packets that require them.
        max_pixels: a larger frame is refused before memory is allocated,
            tests/video/test_video_codecs.py::test_a_frame_that_is_too_large_is_refused_before_memory_is_taken.
    """
    context = pyav().CodecContext.create(_DECODERS.get(codec, codec), "r")
    context.thread_count = 1  # parallelism is over GOPs
    # "strict": frames of H.264 are ordered by the standard, without heuristics.
    strict = {"strict": "1"} if codec == "h264" else {}
    context.options = {"max_pixels": str(max_pixels), **_EXACT_CROP, **strict}
    if size is not None:
        context.height, context.width = size
    if extradata:
        context.extradata = extradata
    set_colours(context, matrix, color_range)
    return context


def _decode(context: Any, data: Bytes | bytes | None, number: int | None = None) -> list[Any]:
    packet = None
    if data is not None:
        packet = packet_of(data)
        packet.pts = number
    frames: list[Any] = context.decode(packet)
    return frames


def _first_frame(context: Any, packets: Sequence[bytes]) -> Any:
    for data in (*packets, None):
        for frame in _decode(context, data):
            return frame
    raise ValueError("no frame in these packets")
