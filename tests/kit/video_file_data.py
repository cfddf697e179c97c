"""Videos written by PyAV, with the frames that PyAV decodes from front to back."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from fractions import Fraction
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

HEIGHT, WIDTH = 48, 64
try:
    HAS_TABLES = int(version("av").partition(".")[0]) >= 17  # PyAV exposes a container's tables
except PackageNotFoundError:
    HAS_TABLES = False
QUIET = "log-level=none:pools=none:frame-threads=1"


def pictures(count: int, first: int = 0) -> npt.NDArray[np.uint8]:
    """uint8 [count, HEIGHT, WIDTH, 3]: smooth, moving, and each different."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    images = []
    for i in range(first, first + count):
        image = np.stack([2 * x + 5 * i, 3 * y + 7 * i, x + y + i], -1) // 2 % 256
        image[8:16, i % 50 : i % 50 + 8] = 255
        images.append(image.astype(np.uint8))
    return np.stack(images)


def write_video(
    path: Path,
    images: npt.NDArray[np.uint8],
    codec: str = "libx264",
    *,
    options: Mapping[str, str] | None = None,
    pixels: str = "yuv420p",
    times: Sequence[int] | None = None,
    rate: int = 30,
    key_frames: Sequence[int] = (),
    p_frames: Sequence[int] = (),
) -> Path:
    """`times`: milliseconds of each frame, instead of `rate`; `key_frames`: forced keyframes;
    `p_frames`: frames that are not B-frames."""
    import av

    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    chosen = dict(options or {})
    if codec == "libx265" and len(images) <= 2:
        chosen["bf"] = "0"  # x265 delays B-frames by 2; the times of fewer frames are undefined
    with av.open(str(path), "w") as file:
        stream: Any = file.add_stream(codec, rate=rate, options=chosen)
        stream.height, stream.width = images.shape[1:3]
        stream.pix_fmt = pixels
        stream.codec_context.thread_count = 1
        if times is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for i, image in enumerate(images):
            frame = av.VideoFrame.from_ndarray(image)
            frame.pts = i if times is None else times[i]
            frame.time_base = Fraction(1, rate) if times is None else Fraction(1, 1000)
            if i in key_frames:
                frame.pict_type = av.video.frame.PictureType.I
            if i in p_frames:
                frame.pict_type = av.video.frame.PictureType.P
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    if os.sched_getscheduler(0) != policy:
        os.sched_setscheduler(0, policy, priority)  # SVT-AV1 sets root's threads to real time
    return path


def decoded(path: Path) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.uint8]]:
    """Times in seconds [T] and frames uint8 [T, H, W, 3], decoded front to back."""
    import av

    with av.open(str(path)) as file:
        frames: list[Any] = list(file.decode(file.streams.video[0]))
        times = [frame.pts * float(frame.time_base) for frame in frames]
        images = [frame.reformat(format="rgb24").to_ndarray() for frame in frames]
    return np.array(times), np.stack(images)


def copy_packets(
    whole: Path,
    path: Path,
    options: Mapping[str, str] | None = None,
    packets: slice = slice(None),
    decoded_before: int = 0,
    color_range: int | None = None,
    matrix: int | None = None,
) -> Path:
    """Copy packets of a video into another container with these options.

    `decoded_before` is the number of packets between a frame's decoding and its display.
    `color_range` (1 for limited, 2 for full) and `matrix` (H.273) are what the container declares:
    MP4 in a box `colr`, which needs the option `movflags=write_colr`, Matroska in `Colour`.
    """
    import av

    with (
        av.open(str(whole)) as source,
        av.open(str(path), "w", options=dict(options or {})) as target,
    ):
        stream = target.add_stream_from_template(source.streams.video[0], opaque=True)
        if color_range is not None:
            stream.codec_context.color_range = color_range
        if matrix is not None:
            stream.codec_context.colorspace = matrix
        copied = [packet for packet in source.demux(source.streams.video[0]) if packet.size]
        for packet in copied[packets]:
            if decoded_before:
                packet.dts -= decoded_before * packet.duration
            packet.stream = stream
            target.mux(packet)
    return path


def declare_full_range(path: Path) -> Path:
    """Let the container of a video declare the full range, which its packets do not."""
    copy = path.with_name(f"copy{path.suffix}")
    copy_packets(path, copy, {"movflags": "write_colr"}, color_range=2)
    return copy.replace(path)


def write_fragmented(whole: Path, path: Path) -> Path:
    """Rewrite an MP4 as a fragmented one, like streams over HTTP (DASH)."""
    return copy_packets(whole, path, {"movflags": "dash+frag_keyframe+empty_moov"})


def set_display_matrix(path: Path, a: int, b: int, c: int, d: int) -> Path:
    """Set the display matrix of an MP4's first track."""
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 44
    struct.pack_into(">9i", data, at, *(n << 16 for n in (a, b, 0, c, d, 0, 0, 0)), 1 << 30)
    path.write_bytes(data)
    return path


def hide_first(path: Path, frames: int, rate: int = 30) -> None:
    """Let the edit list of an MP4 start `frames` later."""
    data = bytearray(path.read_bytes())
    at = data.index(b"elst") + 12  # after version, flags and the number of entries
    duration, begin = struct.unpack_from(">Ii", data, at)
    (scale,) = struct.unpack_from(">I", data, data.index(b"mdhd") + 16)
    struct.pack_into(">Ii", data, at, duration, begin + frames * scale // rate)
    path.write_bytes(data)


def overwrite_keyframes(path: Path) -> None:
    """Overwrite the slices of an MP4's H.264 keyframes, behind the header of each unit."""
    import av

    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        keyframes = [
            (packet.pos, packet.size)
            for packet in container.demux(video=0)
            if packet.size and packet.is_keyframe and packet.pos is not None
        ]
    for position, size in keyframes:
        unit = position
        while unit < position + size:
            (length,) = struct.unpack_from(">I", data, unit)
            if data[unit + 4] & 31 == 5:  # a slice of a keyframe
                data[unit + 5 : unit + 4 + length] = b"\xff" * (length - 1)
            unit += 4 + length
    path.write_bytes(data)


def set_edits(path: Path, *edits: tuple[int, int], rate: int = 25) -> None:
    """Let the edit list of an MP4 show `edits`: each a first frame and a number of frames.

    The file has as many edits before: a video that begins later than at 0 has two.
    """
    data = bytearray(path.read_bytes())
    at = data.index(b"elst") + 12  # after version, flags and the number of entries
    (media_scale,) = struct.unpack_from(">I", data, data.index(b"mdhd") + 16)
    (movie_scale,) = struct.unpack_from(">I", data, data.index(b"mvhd") + 16)
    assert struct.unpack_from(">I", data, at - 4) == (len(edits),)
    _, begin = struct.unpack_from(">Ii", data, at + 12 * (len(edits) - 1))
    for number, (first, count) in enumerate(edits):
        times = count * movie_scale // rate, begin + first * media_scale // rate
        struct.pack_into(">Ii", data, at + 12 * number, *times)
    path.write_bytes(data)
