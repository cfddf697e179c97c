"""Convert video files to independent GOPs or frames; packets are copied if possible.

A file is cut at frames where decoding can start. Unselected frames of a GOP are stored but not
shown: frames before an episode's first one, frames hidden by an edit list, and frames between the
rows of a slower table. So copied packets decode to identical bits.

Frames come decoded, and are encoded again by the writer, in three cases: more than 256 frames
between two possible starts (as in open GOPs, whose frames refer to frames before the keyframe),
other codecs, and rotated video, since packets do not contain the rotation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from heapq import heappop, heappush
from itertools import chain, groupby
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import CodecError, SourceError, located
from seqrecord.formats.sources.common.specs import feature_spec
from seqrecord.formats.sources.video.files import NO_KEYFRAME, VideoFile
from seqrecord.formats.sources.video.frame_forms import UPRIGHT, FrameForm
from seqrecord.formats.sources.video.order import VideoPacket
from seqrecord.store.codecs.exif import turned
from seqrecord.store.feature_kinds import pixel_kind
from seqrecord.store.originals.protocol import OtherSizeError
from seqrecord.store.schema import FeatureSpec
from seqrecord.video.config import GREY16, VideoConfig
from seqrecord.video.decoding import EXACT_CROP, describe_video
from seqrecord.video.depth import DepthScale
from seqrecord.video.encoding import is_odd
from seqrecord.video.gops import MAX_GOP_FRAMES, MAX_GOP_PACKETS, DecodedFrame, Gop
from seqrecord.video.packages import colours, packet_of, pyav, video_errors
from seqrecord.video.packets import PASSTHROUGH

TOLERANCE = 1e-4
"""Maximum difference in seconds between a frame's time and a row's, lerobot's `tolerance_s`."""

NO_FRAME = (
    "the row has no frame of its own in the video; `tolerance` accepts frames at other times: "
    "seqrecord.open(…, tolerance=0.01), or --source-option tolerance=0.01; lerobot-train has "
    "--tolerance_s"
)
NO_PICTURE = "the row's frame cannot be decoded, or an edit list hides it"

_DECODERS = {"av1": "libdav1d"}
_HIDDEN = -1
_BYTE, _WORD = 8, 16  # bits
_GREY_NDIM = 2
_DEEP = "dtype=uint16 decodes them"
_TURNED = "the file rotates or mirrors them"
_OTHERS = "h264"  # target for codecs that are not kept
_LOSSLESS = ("ffv1", "huffyuv", "ffvhuff", "rawvideo", "png", "gif")

_Wanted: TypeAlias = "tuple[VideoPacket, bool]"
"""A packet, and whether its frame is selected."""


def read_gops(
    file: VideoFile,
    times: npt.NDArray[np.float64] | None = None,
    *,
    tolerance: float = TOLERANCE,
    config: VideoConfig | None = None,
    is_deep: bool = False,
) -> Iterator[Gop | DecodedFrame]:
    """Yield the frames nearest to `times`, or all displayed frames, as GOPs in order.

    Frames whose packets cannot be stored come decoded, one by one.

    Reads from the last possible start before the first frame up to the last frame. One GOP is in
    memory at a time.

    Args:
        file: an open file.
        times: ascending seconds [rows] by the file's clock. Each row gets the nearest frame, which
            must be less than `tolerance` away, as in lerobot.
        tolerance: seconds.
        config: the file's `own_config`.
        is_deep: decode all frames, colour to uint16.

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
                reason = _DEEP if is_deep else _TURNED if is_turned else _why_not(file, packets)
                if reason:
                    break
            if not reason:
                for gop in _passed_through(file, packets, rows):
                    yield replace(gop, config=config)
                continue
            yield from _redrawn(file, chain(packets, group), rows, reason, is_deep=is_deep)
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


def video_spec(
    name: str, file: VideoFile, *, depth: DepthScale | None = None, is_deep: bool = False
) -> FeatureSpec:
    """Return the spec of a file's frames, with the codec in which they are stored.

    The pixel format decides: uint16 [H, W] for grey above 8 bits, or with `depth` metres, float32
    [H, W]; otherwise uint8 [H, W, 3]. With `is_deep`, colour above 8 bits is uint16 [H, W, 3],
    without a codec. Decodes the first frame. Raises `SourceError` for an unsupported video.
    """
    with located(SourceError, file=str(file.path)):
        first = next(read_gops(file), None)
        if first is None:
            raise SourceError("video without frames")
        with _source_errors():
            if isinstance(first, Gop):
                shape, codec = describe_video(
                    *(file.codec, first),
                    matrix=file.matrix,
                    color_range=file.color_range,
                    depth=depth,
                )
                config = VideoConfig.from_json(codec)
                bits = config.bits
            else:
                shape, config = first.pixels.shape, _config(file, first, depth)
                bits = first.bits
    dtype, codecs = config.dtype, [config.to_json()]
    if is_deep and bits > _BYTE and not config.is_grey:
        dtype, codecs = np.dtype(np.uint16), []
    kind = pixel_kind(name, dtype, shape)
    if not config.is_grey and kind in (None, "depth", "disparity", "flow"):  # at most a rendering
        kind = "image"
    return feature_spec(name, dtype, shape, file.path, codec=tuple(codecs), kind=kind)


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
    if (config := VideoConfig.of(spec)) is None:
        return None
    known = config.decoding
    pixels = file.pixel_format and _stored_pixels(file, file.pixel_format)
    found: tuple[object, ...] = (file.codec, pixels, file.matrix, file.color_range)
    if found == (known.codec, known.pixel_format, known.matrix, known.range):
        return None
    own = VideoConfig.from_json(video_spec(spec.name, file, depth=known.depth).codec[0])
    return None if own == known else own


def _stored_pixels(file: VideoFile, pixels: str) -> str:
    """Return the stored pixel format of a kept codec.

    Rotated video is re-encoded to limited range, which the yuvj formats do not support.
    """
    return pixels if file.turn == UPRIGHT else pixels.replace("yuvj", "yuv")


class _RowFrames:
    """Assign frames to rows, and check that they are complete and in order.

    `times` are ascending seconds [rows] by the file's clock; `None` selects all displayed frames.
    Each frame must be nearer than `tolerance` to its row's time. Methods raise `SourceError`.
    """

    def __init__(
        self, file: VideoFile, times: npt.NDArray[np.float64] | None, tolerance: float
    ) -> None:
        self.taken = 0
        self.decodes = False
        self._tick, self._tolerance = file.tick, tolerance
        self._times: list[float] | None = None if times is None else times.tolist()
        self._found = 0
        self._pending = set[int | None]()  # rows with a packet, without a frame so far
        self._last: int | None = None
        if times is not None:
            back = np.flatnonzero(~(np.diff(times) > 0))
            if len(back) or not np.isfinite(times).all():
                frame = int(back[0]) + 1 if len(back) else None
                raise SourceError("timestamps are not ascending", frame=frame)

    @property
    def first_tick(self) -> int | None:
        """Tick from which to read: that of the first row, rounded up for safety."""
        if not self._times:
            return None
        return round((self._times[0] + self._tolerance) / self._tick)

    @property
    def are_all(self) -> bool:
        """Whether all displayed frames are selected."""
        return self._times is None

    @property
    def are_complete(self) -> bool:
        """Whether the packets of all rows were read, and `decodes` their frames."""
        done = min(self._found, self.taken) if self.decodes else self._found
        return self._times is not None and done >= len(self._times)

    def want(self, packet: VideoPacket) -> bool:
        """Return whether a packet's frame is displayed and selected; call it once per packet."""
        row = None if self._times is None else self._row(packet.tick)
        is_wanted = packet.is_shown and (self._times is None or row is not None)
        self._found += is_wanted
        self._pending.add(row)
        return is_wanted

    def take(self, tick: int) -> bool:
        """Count the next frame, in display order, if it is selected; returns whether it is."""
        if self._last is not None and tick <= self._last:
            raise SourceError(
                "frame times are not ascending",
                frame=self.taken,
                expected=f"more than {self._last * self._tick:.6f} s",
                got=f"{tick * self._tick:.6f} s",
            )
        self._last = tick
        row = self.taken if self._times is None else self._row(tick)
        if row is not None and self._times is not None and row != self.taken:
            raise self._lacking(self._times)
        self.taken += row is not None
        self._pending.discard(row)
        return row is not None

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
            NO_PICTURE if self.taken in self._pending else NO_FRAME,
            frame=self.taken,
            expected=f"a frame within {self._tolerance} s of {times[self.taken]:.6f} s",
        )


def _packets(file: VideoFile, rows: _RowFrames) -> Iterator[_Wanted]:
    """Yield the packets up to the last row's."""
    is_first = True
    packets = file.packets(rows.first_tick, any_order=rows.are_all)
    for packet in () if rows.are_complete else packets:
        if is_first and not (packet.is_cut or packet.is_key):
            raise SourceError(NO_KEYFRAME)
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
    with _source_errors():  # an empty packet
        gop = Gop(tuple(packets), tuple(order[:stop]))
    yield gop


def _redrawn(
    file: VideoFile, packets: Iterable[_Wanted], rows: _RowFrames, reason: str, *, is_deep: bool
) -> Iterator[DecodedFrame]:
    """Yield the selected frames as players show them; with `is_deep`, colour above 8 bits as
    uint16."""
    for frame in _decoded(file, packets, rows):
        parts, rounded = frame.format.components, []
        bits = max(part.bits for part in parts)
        num_colours = sum(not part.is_alpha for part in parts)
        if bits > _WORD:
            raise SourceError(
                "unsupported pixel format", expected="integers", got=frame.format.name
            )
        if num_colours == 1 and bits > _BYTE:
            order = ">" if frame.format.is_big_endian else "<"
            plane, step = frame.planes[0], len(parts)
            lines = np.frombuffer(plane, f"{order}u2").reshape(-1, plane.line_size // 2)
            pixels = lines[: frame.height, : frame.width * step : step].astype(np.uint16)
        else:
            form = "rgb48le" if is_deep else "rgb24"
            pixels = frame.reformat(format=form, **colours(frame)).to_ndarray()
            if bits > _BYTE and not is_deep:
                rounded.append(f"{bits} bits rounded to 8")
        if num_colours < len(parts):
            rounded.append("alpha dropped")
        codec = f"{file.codec} {frame.format.name}"
        yield DecodedFrame(turned(pixels, file.turn), codec, reason, bits, ", ".join(rounded))


def _config(file: VideoFile, frame: DecodedFrame, depth: DepthScale | None) -> VideoConfig:
    """Return the encoding of frames like this one."""
    if frame.pixels.ndim == _GREY_NDIM:
        return VideoConfig("ffv1", GREY16, depth=depth)
    codec, pixels = file.codec, _stored_pixels(file, frame.codec.split()[1])
    if codec not in PASSTHROUGH:
        codec = "ffv1" if codec in _LOSSLESS else _OTHERS
        pixels = "bgr0" if codec == "ffv1" else "yuv420p"
    if codec in ("h264", "hevc") and is_odd(pixels, *file.size):
        pixels = "yuv444p"
    return VideoConfig(codec, pixels, file.matrix, file.color_range)


def _decoded(file: VideoFile, packets: Iterable[_Wanted], rows: _RowFrames) -> Iterator[Any]:
    """Decode the selected frames of packets in decoding order; yields in display order.

    If all frames are selected, the decoder's order counts and ticks are assigned in it, since some
    containers have no display times. Otherwise frames with ticks in another order are refused.
    """
    sent: list[int] = []  # ticks of displayed packets
    waiting: list[int] = []  # a heap of those without a frame so far
    with _source_errors():
        context = pyav().CodecContext.create(_DECODERS.get(file.codec, file.codec), "r")
        if file.codec not in PASSTHROUGH:
            context.height, context.width = file.coded_size
            if file.extradata:
                context.extradata = file.extradata
        context.options = EXACT_CROP | ({"strict": "1"} if file.codec == "h264" else {})
    is_first, form, rows.decodes = True, None, True
    for each in chain(packets, (None,)):
        coded = None
        if each is not None:
            packet, _ = each
            is_start = is_first or packet.is_cut or packet.is_key
            coded, is_first = packet_of(file.bare_packet(packet.data, is_start)), False
            coded.is_keyframe = packet.is_key  # FFmpeg's PNG adds other packets to the last frame
            # The decoder copies pts to the frames.
            coded.pts = len(sent) if packet.is_shown else _HIDDEN
            if packet.is_shown:
                sent.append(packet.tick)
                heappush(waiting, packet.tick)
        with _source_errors():
            frames = context.decode(coded)
        for frame in frames:
            if frame.pts == _HIDDEN or (frame.pts is None and not rows.are_all):
                continue
            if not waiting:
                raise SourceError("the video has more frames than packets")
            earliest = heappop(waiting)
            tick = earliest if rows.are_all else sent[frame.pts]
            found = FrameForm(frame.height, frame.width, frame.format.name)
            form = form or found
            form.check(found, file.path, tick * file.tick)
            if rows.take(tick):
                yield frame
    rows.decodes = False


@contextmanager
def _source_errors() -> Iterator[None]:
    """Convert errors of PyAV and codecs to `SourceError`."""
    try:
        yield
    except CodecError as error:
        raise SourceError(error.message, expected=error.expected, got=error.got) from error
    except video_errors() as error:
        raise SourceError("cannot decode the video", got=str(error)[:200]) from error
