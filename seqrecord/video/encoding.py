"""Encoding GOPs (groups of pictures) with PyAV, each GOP separately and thus closed.

Encoders use one thread and settings with which equal frames give equal bytes on one build of
FFmpeg. An exception is x265 for frames as small as 64 pixels.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import CodecError
from seqrecord.video.config import GREY16, VideoConfig
from seqrecord.video.gops import Gop
from seqrecord.video.packages import SWS_BT601, one_thread, pyav, video_errors

_ENCODERS: dict[str, tuple[str, dict[str, str]]] = {
    "h264": ("libx264", {"preset": "veryfast", "mbtree": "0"}),  # mbtree is not deterministic
    "hevc": (
        "libx265",
        {
            "preset": "fast",
            "x265-params": "log-level=none:pools=none:frame-threads=1:repeat-headers=1:open-gop=0",
        },
    ),
    "av1": ("libsvtav1", {"preset": "8", "svtav1-params": "lp=1"}),
    "vp9": ("libvpx-vp9", {"deadline": "good", "cpu-used": "5", "b": "0"}),
    "ffv1": ("ffv1", {"level": "1", "coder": "1"}),  # later levels need extradata
}
_BT601, _LIMITED = 6, 1  # H.273's matrix of SMPTE 170M; AVColorRange
_NARROW = 64  # minimum width of x265, its coding unit in pixels
_RATE = 30  # frames per second; hardly matters, as rate control is by quality


def encode_gop(config: VideoConfig, frames: Sequence[npt.NDArray[Any]] | npt.NDArray[Any]) -> Gop:
    """Encode frames to one GOP: uint8 [height, width, 3], or uint16 [height, width] for `gray16le`.

    All frames have one size. YUV uses BT.601 and the limited range, and the stream declares it.
    Raises `CodecError` if the encoder fails or is missing in this build of FFmpeg.
    """
    if config.depth is not None and frames[0].dtype.kind == "f":
        raise CodecError("cannot encode metres as depth codes; choose a codec such as balanced")
    height, width = frames[0].shape[:2]
    config = config.encoding(height, width)
    try:
        context = _encoder(config, height, width)
        reformatter = pyav().video.reformatter.VideoReformatter()
        packets: list[Any] = []
        for number, frame in enumerate(frames):
            packets += context.encode(_picture(reformatter, config, frame, number))
        packets += context.encode(None)
        return Gop(tuple(map(bytes, packets)), tuple(packet.pts for packet in packets))
    except video_errors() as error:
        raise CodecError(f"cannot encode frames as {config.codec}", got=str(error)[:300]) from error


def _encoder(config: VideoConfig, height: int, width: int) -> Any:
    name, options = _ENCODERS[config.codec]
    if config.codec == "hevc" and width < _NARROW:
        # x265 would write out of bounds, which crashes the process: a limit of our own.
        # tests/video/test_video_codecs.py::test_narrow_frames_of_hevc_are_refused
        raise CodecError(
            "frames are too narrow for the HEVC encoder",
            expected=f"{_NARROW} pixels or more",
            got=f"{width} pixels",
        )
    if name == "libsvtav1":  # limits its log, which has twenty lines per GOP
        os.environ.setdefault("SVT_LOG", "1")
    context = pyav().CodecContext.create(name, "w")
    context.width, context.height, context.pix_fmt = width, height, config.pixel_format
    context.time_base, context.framerate = Fraction(1, _RATE), Fraction(_RATE)
    context.thread_count = 1
    # Longer than the GOP, so that only its first frame is a keyframe.
    context.gop_size = 2 * (config.gop or 1)
    if config.pixel_format.startswith("yuv"):
        context.colorspace, context.color_range = _BT601, _LIMITED
    context.options = options | ({} if config.quality is None else {"crf": str(config.quality)})
    try:
        with _usual_scheduling():
            context.open()
    except video_errors() as error:
        if is_odd(config.pixel_format, height, width):
            raise CodecError(
                f"{config.codec} with {config.pixel_format} does not support odd sizes: crop the "
                "frames, or choose another codec or pixel format",
                expected="an even height and width, or ffv1, or h264:pixel_format=yuv444p",
                got=f"{width}x{height}",
            ) from error
        raise
    return context


def is_odd(pixel_format: str, height: int, width: int) -> bool:
    """Whether height or width is odd along an axis of subsampled chroma."""
    odd_rows = height % 2 and any(chroma in pixel_format for chroma in ("420", "440"))
    odd_columns = width % 2 and any(chroma in pixel_format for chroma in ("420", "422"))
    return bool(odd_rows or odd_columns)


@contextmanager
def _usual_scheduling() -> Iterator[None]:
    """Undo the real-time scheduling that SVT-AV1 sets if permitted, which is so for root.

    It affects the opening thread and the encoder's threads, and would starve all other threads.
    """
    if not hasattr(os, "sched_getscheduler"):  # macOS
        yield
        return
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    old_threads = _threads()
    try:
        yield
    finally:
        for thread in (0, *(_threads() - old_threads)):
            with suppress(ProcessLookupError):  # the thread has ended
                if os.sched_getscheduler(thread) == os.SCHED_FIFO != policy:
                    os.sched_setscheduler(thread, policy, priority)


def _threads() -> set[int]:
    """Kernel ids of this process's threads."""
    return {int(path.name) for path in Path("/proc/self/task").iterdir()}


def _picture(reformatter: Any, config: VideoConfig, frame: Any, number: int) -> Any:
    source_format = GREY16 if config.pixel_format == GREY16 else "rgb24"
    picture = pyav().VideoFrame.from_ndarray(np.ascontiguousarray(frame), format=source_format)
    options = dict(one_thread())
    if config.pixel_format.startswith("yuv"):
        options |= {"dst_colorspace": SWS_BT601, "dst_color_range": _LIMITED}
    if config.pixel_format != source_format:
        picture = reformatter.reformat(picture, format=config.pixel_format, **options)
    picture.pts, picture.time_base = number, Fraction(1, _RATE)
    return picture
