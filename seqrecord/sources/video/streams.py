"""Convert video files to independent GOPs or frames; packets are copied if possible.

A file is cut at frames where decoding can start. Unselected frames of a GOP are stored but not
shown: frames before an episode's first one, frames hidden by an edit list, and frames between the
rows of a slower table. So copied packets decode to identical bits.

Re-encoding happens, with a warning, in three cases: more than 256 frames between two possible
starts (as in open GOPs, whose frames refer to frames before the keyframe), other codecs, and
rotated video, since packets do not contain the rotation.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, groupby, islice
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.codecs.video.config import VideoConfig
from seqrecord.codecs.video.decoding import describe_video
from seqrecord.codecs.video.encoding import encode_gop, is_odd
from seqrecord.codecs.video.gops import MAX_GOP_FRAMES, MAX_GOP_PACKETS, Gop
from seqrecord.codecs.video.packages import colours, packet_of, pyav, video_errors
from seqrecord.codecs.video.packets import PASSTHROUGH
from seqrecord.errors import CodecError, SourceError, located
from seqrecord.feature_kinds import pixel_kind
from seqrecord.schema import FeatureSpec
from seqrecord.sources.common.specs import feature_spec
from seqrecord.sources.video.files import VideoFile, VideoPacket
from seqrecord.sources.video.frames import UPRIGHT, FrameForm
from seqrecord.text import counted

_logger = logging.getLogger("seqrecord")

TOLERANCE = 1e-4
"""Maximum difference in seconds between a frame's time and a row's, lerobot's `tolerance_s`."""

_DECODERS = {"av1": "libdav1d"}
_HIDDEN = -1
_TURNED = "the file rotates or mirrors them"
_OTHERS = "h264"  # target for codecs that are not kept
_LOSSLESS = ("ffv1", "huffyuv", "ffvhuff", "rawvideo", "png")

_Wanted: TypeAlias = "tuple[VideoPacket, bool]"
"""A packet, and whether its frame is selected."""


def read_gops(
    file: VideoFile,
    times: npt.NDArray[np.float64] | None = None,
    *,
    tolerance: float = TOLERANCE,
    config: VideoConfig | None = None,
) -> Iterator[Gop]:
    """Yield the frames nearest to `times`, or all displayed frames, as GOPs in order.

    Reads from the last possible start before the first frame up to the last frame. One GOP is in
    memory at a time.

    Args:
        file: an open file.
        times: ascending seconds [rows] by the file's clock. Each row gets the nearest frame, which
            must be less than `tolerance` away, as in lerobot.
        tolerance: seconds.
        config: the file's `own_config`.

    Raises `SourceError` for rows without a frame of their own, times that are not ascending, and
    files that are truncated, damaged, or do not begin with a keyframe.
    """
    with located(SourceError, file=str(file.path)):
        is_turned = file.turn != UPRIGHT  # must be read before the packets
        rows = _RowFrames(file, times, tolerance)
        for group in _groups(_packets(file, rows)):
            packets: list[_Wanted] = []
            reason = ""
            for each in group:
                packets.append(each)
                if reason := _TURNED if is_turned else _why_not(file, packets):
                    break
            if not reason:
                for gop in _passed_through(file, packets, rows):
                    yield replace(gop, config=config)
                continue
            before = rows.taken
            for gop in _reencoded(file, chain(packets, group), rows):
                yield replace(gop, config=config)
            if count := rows.taken - before:
                _logger.warning("%s: re-encoded %s: %s", file.path, counted(count, "frame"), reason)
        rows.check_all()


def read_frames(
    file: VideoFile, times: npt.NDArray[np.float64], *, tolerance: float = TOLERANCE
) -> Iterator[Any]:
    """Yield the frames nearest to `times` as decoded PyAV `VideoFrame` objects, in order.

    Arguments and errors are those of `read_gops`.
    """
    with located(SourceError, file=str(file.path)):
        rows = _RowFrames(file, times, tolerance)
        yield from _decoded(file, _packets(file, rows), rows)
        rows.check_all()


def video_spec(name: str, file: VideoFile) -> FeatureSpec:
    """Return the spec of a file's frames: uint8 [H, W, 3], with the codec of the video.

    Decodes the first frame. Raises `SourceError` for an unsupported video.
    """
    codec = stored_codec(file.codec)
    if codec != "ffv1":
        with located(SourceError, file=str(file.path)):
            first = next(read_gops(file), None)
            if first is None:
                raise SourceError("video without frames")
            with _source_errors():
                shape, config = describe_video(
                    codec, first, matrix=file.matrix, color_range=file.color_range
                )
    else:  # FFV1 packets do not contain the frame size
        shape, config = (*file.size, 3), VideoConfig(codec, "bgr0").to_json()
    kind = pixel_kind(name, np.dtype(np.uint8), shape) or "image"
    return feature_spec(name, np.dtype(np.uint8), shape, file.path, codec=(config,), kind=kind)


class OtherSizeError(SourceError):
    """A video whose frames have another size than the first one's."""


def check_size(file: VideoFile, spec: FeatureSpec) -> None:
    """Raise `OtherSizeError` unless a file's frames have the feature's size."""
    if file.size != spec.shape[:2]:
        height, width = spec.shape[:2]
        raise OtherSizeError(
            "the video has another size than the first one; for one dataset, scale it with "
            f"`ffmpeg -i IN -vf scale={width}:{height} OUT`",
            file=str(file.path),
            feature=spec.name,
            expected=[height, width],
            got=list(file.size),
        )


def own_config(file: VideoFile, spec: FeatureSpec) -> VideoConfig | None:
    """Return the configuration of a file's stored packets; `None` if it is the feature's.

    Raises `OtherSizeError` for another size, and `SourceError` for an unsupported video.
    """
    check_size(file, spec)
    known = VideoConfig.from_json(spec.codec[0]).decoding
    pixels = file.pixel_format and _stored_pixels(file, file.pixel_format)
    found: tuple[object, ...] = (file.codec, pixels, file.matrix, file.color_range)
    if found == (known.codec, known.pixel_format, known.matrix, known.range):
        return None
    own = VideoConfig.from_json(video_spec(spec.name, file).codec[0])
    return None if own == known else own


def _stored_pixels(file: VideoFile, pixels: str) -> str:
    """Return the stored pixel format of a kept codec.

    Rotated video is re-encoded to limited range, which the yuvj formats do not support.
    """
    return pixels if file.turn == UPRIGHT else pixels.replace("yuvj", "yuv")


def stored_codec(codec: str) -> str:
    """Return the codec in which a video of `codec` is stored."""
    if codec in PASSTHROUGH:
        return codec
    return "ffv1" if codec in _LOSSLESS else _OTHERS


class _RowFrames:
    """Assign frames to rows, and check that they are complete and in order.

    `times` are ascending seconds [rows] by the file's clock; `None` selects all displayed frames.
    Each frame must be nearer than `tolerance` to its row's time. Methods raise `SourceError`.
    """

    def __init__(
        self, file: VideoFile, times: npt.NDArray[np.float64] | None, tolerance: float
    ) -> None:
        self.taken = 0
        self._tick, self._tolerance = file.tick, tolerance
        self._times: list[float] | None = None if times is None else times.tolist()
        self._found = 0
        self._last: int | None = None
        if times is not None:
            back = np.flatnonzero(~(np.diff(times) > 0))
            if len(back) or not np.isfinite(times).all():
                frame = int(back[0]) + 1 if len(back) else None
                raise SourceError("timestamps are not ascending", frame=frame)

    @property
    def first_tick(self) -> int | None:
        """Tick from which to read: that of the first row, rounded up for safety."""
        if self._times is None:
            return None
        return round((self._times[0] + self._tolerance) / self._tick)

    @property
    def are_complete(self) -> bool:
        """Whether the packets of all rows were read."""
        return self._times is not None and self._found >= len(self._times)

    def want(self, packet: VideoPacket) -> bool:
        """Return whether a packet's frame is displayed and selected; call it once per packet."""
        is_wanted = packet.is_shown and (self._times is None or self._row(packet.tick) is not None)
        self._found += is_wanted
        return is_wanted

    def take(self, tick: int) -> None:
        """Count the next frame, in display order."""
        if self._last is not None and tick <= self._last:
            raise SourceError(
                "frame times are not ascending",
                frame=self.taken,
                expected=f"more than {self._last * self._tick:.6f} s",
                got=f"{tick * self._tick:.6f} s",
            )
        if self._times is not None and self._row(tick) != self.taken:
            raise self._lacking(self._times)
        self._last = tick
        self.taken += 1

    def check_all(self) -> None:
        """Raise `SourceError` if a selected frame is missing."""
        if self._times is not None and self.taken < len(self._times):
            raise self._lacking(self._times)
        if self._times is None and self.taken != self._found:
            raise SourceError(
                "cannot decode all frames of the video",
                expected=f"{self._found} frames",
                got=self.taken,
            )

    def _row(self, tick: int) -> int | None:
        """Return the row of the frame at a tick, or `None`."""
        assert self._times is not None
        time = tick * self._tick
        row = bisect_left(self._times, time)
        if row and (
            row == len(self._times) or time - self._times[row - 1] < self._times[row] - time
        ):
            row -= 1
        return row if abs(self._times[row] - time) < self._tolerance else None

    def _lacking(self, times: list[float]) -> SourceError:
        return SourceError(
            "the row has no frame of its own in the video",
            frame=self.taken,
            expected=f"a frame within {self._tolerance} s of {times[self.taken]:.6f} s",
        )


def _packets(file: VideoFile, rows: _RowFrames) -> Iterator[_Wanted]:
    """Yield the packets up to the last row's."""
    is_first = True
    for packet in () if rows.are_complete else file.packets(rows.first_tick):
        if is_first and not (packet.is_cut or packet.is_key):
            raise SourceError("the video does not begin with a keyframe")
        is_first = False
        yield packet, rows.want(packet)
        if rows.are_complete:
            return


def _groups(packets: Iterable[_Wanted]) -> Iterator[Iterator[_Wanted]]:
    """Split packets at possible starts of decoding."""
    count = 0

    def number(each: _Wanted) -> int:
        nonlocal count
        count += each[0].is_cut
        return count

    return (group for _, group in groupby(packets, number))


def _why_not(file: VideoFile, group: list[_Wanted]) -> str:
    """Return why these packets between two cuts cannot be one `Gop`; empty if they can."""
    if file.codec not in PASSTHROUGH:
        return f"packets of {file.codec} are not supported"
    if not group[0][0].is_cut:
        return "decoding may fail at its first keyframe"
    if len(group) <= MAX_GOP_FRAMES or (
        len(group) <= MAX_GOP_PACKETS and sum(wanted for _, wanted in group) <= MAX_GOP_FRAMES
    ):
        return ""
    if any(packet.is_key for packet, _ in group[1:]):
        return "open GOPs: frames refer to frames before their keyframe"
    return f"keyframes are more than {MAX_GOP_FRAMES} frames apart"


def _passed_through(file: VideoFile, group: list[_Wanted], rows: _RowFrames) -> Iterator[Gop]:
    """Yield the packets of a GOP unchanged, if any of its frames is selected."""
    shown = sorted((packet.tick, i) for i, (packet, wanted) in enumerate(group) if wanted)
    if not shown:
        return
    order = [-1] * len(group)
    for number, (tick, i) in enumerate(shown):
        rows.take(tick)
        order[i] = number
    stop = max(i for _, i in shown) + 1  # frames refer to earlier packets only
    packets = (file.bare_packet(packet.data, i == 0) for i, (packet, _) in enumerate(group[:stop]))
    yield Gop(tuple(packets), tuple(order[:stop]))


def _reencoded(file: VideoFile, packets: Iterable[_Wanted], rows: _RowFrames) -> Iterator[Gop]:
    """Yield GOPs of the selected frames, in the file's codec if it is supported."""
    decoded = _decoded(file, packets, rows)
    first = next(decoded, None)
    if first is None:
        return
    config = _config(file, first)
    frames = (
        file.turn.frame(frame.reformat(format="rgb24", **colours(frame)).to_ndarray())
        for frame in chain((first,), decoded)
    )
    while some := list(islice(frames, config.gop)):
        with _source_errors():
            gop = encode_gop(config, some)
        yield gop


def _config(file: VideoFile, frame: Any) -> VideoConfig:
    """Return the encoder settings for frames like this one."""
    codec, pixels = stored_codec(file.codec), _stored_pixels(file, frame.format.name)
    if codec != file.codec or codec == "ffv1":
        pixels = "bgr0" if codec == "ffv1" else "yuv420p"
    height, width = file.size
    if codec in ("h264", "hevc") and is_odd(pixels, height, width):
        raise SourceError(
            f"cannot re-encode a video of odd size ({codec}, {pixels}); crop it, "
            "`ffmpeg -i IN -vf 'crop=trunc(iw/2)*2:trunc(ih/2)*2' OUT`, or use a codec "
            "that supports odd sizes, `ffmpeg -i IN -c:v ffv1 OUT.mkv`",
            expected="an even height and width",
            got=f"{width}x{height} {file.codec} {frame.format.name}",
        )
    with _source_errors():
        config = VideoConfig(codec, pixels, file.matrix, file.color_range)
        return config.encoding(*file.size)


def _decoded(file: VideoFile, packets: Iterable[_Wanted], rows: _RowFrames) -> Iterator[Any]:
    """Decode the selected frames of packets in decoding order; yields in display order."""
    ticks: list[int] = []  # of selected packets sent to the decoder
    with _source_errors():
        context = pyav().CodecContext.create(_DECODERS.get(file.codec, file.codec), "r")
        if file.codec not in PASSTHROUGH:
            context.height, context.width = file.coded_size
            if file.extradata:
                context.extradata = file.extradata
        if file.codec == "h264":
            context.options = {"strict": "1"}
    is_first, form = True, None
    for each in chain(packets, (None,)):
        coded = None
        if each is not None:
            packet, is_wanted = each
            is_start = is_first or packet.is_cut or packet.is_key
            coded, is_first = packet_of(file.bare_packet(packet.data, is_start)), False
            # The decoder copies pts to the frames.
            coded.pts = len(ticks) if is_wanted else _HIDDEN
            if is_wanted:
                ticks.append(packet.tick)
        with _source_errors():
            frames = context.decode(coded)
        for frame in frames:
            if frame.pts is not None and frame.pts != _HIDDEN:
                found = FrameForm(frame.height, frame.width, frame.format.name)
                form = form or found
                form.check(found, file.path, ticks[frame.pts] * file.tick)
                rows.take(ticks[frame.pts])
                yield frame


@contextmanager
def _source_errors() -> Iterator[None]:
    """Convert errors of PyAV and codecs to `SourceError`."""
    try:
        yield
    except CodecError as error:
        raise SourceError(error.message, expected=error.expected, got=error.got) from error
    except video_errors() as error:
        raise SourceError("cannot decode the video", got=str(error)[:200]) from error
