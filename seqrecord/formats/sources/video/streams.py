"""Convert video files to independent GOPs or frames; packets are copied if possible.

A file is cut at frames where decoding can start. Unselected frames of a GOP are stored but not
shown: frames before an episode's first one, frames hidden by an edit list, and frames between the
rows of a slower table. So copied packets decode to identical bits.

Frames come decoded, and are encoded again by the writer, in four cases: more than 256 frames
between two possible starts (as in open GOPs, whose frames refer to frames before the keyframe),
other codecs, frames that refer to others that an edit list skips, and rotated video, since packets
do not contain the rotation.
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
from seqrecord.video.decoding import describe_video, display_order, open_decoder
from seqrecord.video.depth import DepthScale
from seqrecord.video.encoding import is_odd
from seqrecord.video.gops import MAX_GOP_FRAMES, MAX_GOP_PACKETS, DecodedFrame, Gop
from seqrecord.video.packages import colours, packet_of, video_errors
from seqrecord.video.packets import PASSTHROUGH

TOLERANCE = 1e-4
"""Maximum difference in seconds between a frame's time and a row's, lerobot's `tolerance_s`."""

NO_FRAME = (
    "the row has no frame of its own in the video; `tolerance` accepts frames at other times: "
    "seqrecord.open(…, tolerance=0.01), or --source-option tolerance=0.01; lerobot-train has "
    "--tolerance_s"
)
NO_PICTURE = "the row's frame cannot be decoded, or an edit list hides it"

_HIDDEN = -1
_BYTE, _WORD = 8, 16  # bits
_GREY_NDIM = 2
_DEEP = "dtype=uint16 decodes them"
_TURNED = "the file rotates or mirrors them"
_OTHERS = "h264"  # target for codecs that are not kept
_LOSSLESS = ("ffv1", "huffyuv", "ffvhuff", "rawvideo", "png", "gif")

_SelectedPacket: TypeAlias = "tuple[VideoPacket, bool]"
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
            packets: list[_SelectedPacket] = []
            reason = ""
            for selected_packet in group:
                packets.append(selected_packet)
                reason = (
                    _DEEP if is_deep else _TURNED if is_turned else _reason_to_decode(file, packets)
                )
                if reason:
                    break
            reason = reason or _reason_of_edits(file, packets)
            if not reason:
                for gop in _pass_through(file, packets, rows):
                    yield replace(gop, config=config)
                continue
            yield from _redraw(file, chain(packets, group), rows, reason, is_deep=is_deep)
        rows.check_all()


def read_frames(
    file: VideoFile, times: npt.NDArray[np.float64], *, tolerance: float = TOLERANCE
) -> Iterator[Any]:
    """Yield the frames nearest to `times` as decoded PyAV `VideoFrame` objects, in order.

    Arguments and errors are those of `read_gops`.
    """
    with located(SourceError, file=str(file.path)):
        rows = _RowFrames(file, times, tolerance)
        yield from _decode(file, _packets(file, rows), rows)
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
        first_part = next(read_gops(file), None)
        if first_part is None:
            raise SourceError("video without frames")
        with _source_errors():
            if isinstance(first_part, Gop):
                shape, codec = describe_video(
                    *(file.codec, first_part),
                    matrix=file.matrix,
                    color_range=file.color_range,
                    depth=depth,
                )
                config = VideoConfig.from_json(codec)
                bits = config.bits
            else:
                shape, config = first_part.pixels.shape, _config(file, first_part, depth)
                bits = first_part.bits
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
    decoding = config.decoding
    pixels = file.pixel_format and _stored_pixels(file, file.pixel_format)
    file_decoding: tuple[object, ...] = (file.codec, pixels, file.matrix, file.color_range)
    if file_decoding == (decoding.codec, decoding.pixel_format, decoding.matrix, decoding.range):
        return None
    file_config = VideoConfig.from_json(video_spec(spec.name, file, depth=decoding.depth).codec[0])
    return None if file_config == decoding else file_config


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
        self.num_taken = 0
        self.decodes = False
        self._tick, self._tolerance = file.tick, tolerance
        self._times: list[float] | None = None if times is None else times.tolist()
        self._num_selected = 0
        self._pending = set[int | None]()  # rows with a packet, without a frame so far
        self._last_tick: int | None = None
        if times is not None:
            backward_rows = np.flatnonzero(~(np.diff(times) > 0))
            if len(backward_rows) or not np.isfinite(times).all():
                frame = int(backward_rows[0]) + 1 if len(backward_rows) else None
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
        num_done = min(self._num_selected, self.num_taken) if self.decodes else self._num_selected
        return self._times is not None and num_done >= len(self._times)

    def want(self, packet: VideoPacket) -> bool:
        """Return whether a packet's frame is displayed and selected; call it once per packet."""
        row = None if self._times is None else self._row(packet.tick)
        is_wanted = packet.is_shown and (self._times is None or row is not None)
        self._num_selected += is_wanted
        self._pending.add(row)
        return is_wanted

    def take(self, tick: int) -> bool:
        """Count the next frame, in display order, if it is selected; returns whether it is."""
        if self._last_tick is not None and tick <= self._last_tick:
            raise SourceError(
                "frame times are not ascending",
                frame=self.num_taken,
                expected=f"more than {self._last_tick * self._tick:.6f} s",
                got=f"{tick * self._tick:.6f} s",
            )
        self._last_tick = tick
        row = self.num_taken if self._times is None else self._row(tick)
        if row is not None and self._times is not None and row != self.num_taken:
            raise self._missing_frame(self._times)
        self.num_taken += row is not None
        self._pending.discard(row)
        return row is not None

    def check_all(self) -> None:
        """Raise `SourceError` if a selected frame is missing."""
        if self._times is not None and self.num_taken < len(self._times):
            raise self._missing_frame(self._times)
        if self._times is None and self.num_taken != self._num_selected:
            raise SourceError(
                "cannot decode all frames of the video",
                expected=f"{self._num_selected} frames",
                got=self.num_taken,
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

    def _missing_frame(self, times: list[float]) -> SourceError:
        return SourceError(
            NO_PICTURE if self.num_taken in self._pending else NO_FRAME,
            frame=self.num_taken,
            expected=f"a frame within {self._tolerance} s of {times[self.num_taken]:.6f} s",
        )


def _packets(file: VideoFile, rows: _RowFrames) -> Iterator[_SelectedPacket]:
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


def _groups(packets: Iterable[_SelectedPacket]) -> Iterator[Iterator[_SelectedPacket]]:
    """Split packets at possible starts of decoding."""
    count = 0

    def number(selected_packet: _SelectedPacket) -> int:
        nonlocal count
        count += selected_packet[0].is_cut
        return count

    return (group for _, group in groupby(packets, number))


def _reason_to_decode(file: VideoFile, group: list[_SelectedPacket]) -> str:
    """Return why these packets between two cuts cannot be one `Gop`; empty if they can."""
    if file.codec not in PASSTHROUGH:
        return f"packets of {file.codec} are not supported"
    if not group[0][0].is_cut:
        return "decoding may fail at its first keyframe"
    if len(group) <= MAX_GOP_FRAMES or (
        len(group) <= MAX_GOP_PACKETS
        and sum(is_selected for _, is_selected in group) <= MAX_GOP_FRAMES
    ):
        return ""
    if any(packet.is_key for packet, _ in group[1:]):
        return "open GOPs: frames refer to frames before their keyframe"
    return f"keyframes are more than {MAX_GOP_FRAMES} frames apart"


def _reason_of_edits(file: VideoFile, group: list[_SelectedPacket]) -> str:
    """Return why packets with hidden ones cannot be one `Gop`; empty if they can.

    An edit list may skip packets, and in open GOPs frames refer to some before their keyframe.
    Decodes these groups only.
    """
    if all(packet.is_shown for packet, _ in group):
        return ""
    packets = (file.bare_packet(packet.data, i == 0) for i, (packet, _) in enumerate(group))
    selected = [i for i, (_, is_selected) in enumerate(group) if is_selected]
    try:
        decoded = [i for i in display_order(file.codec, packets) if i in selected]
    except video_errors():  # damaged packets, whose rows have errors of their own
        return ""
    is_whole = decoded == sorted(selected, key=lambda i: group[i][0].tick)
    return "" if is_whole else "frames refer to others that an edit list skips"


def _pass_through(file: VideoFile, group: list[_SelectedPacket], rows: _RowFrames) -> Iterator[Gop]:
    """Yield the packets of a GOP unchanged, if any of its frames is selected."""
    shown_packets = sorted(
        (packet.tick, i) for i, (packet, is_selected) in enumerate(group) if is_selected
    )
    if not shown_packets:
        return
    order = [-1] * len(group)
    for number, (tick, i) in enumerate(shown_packets):
        rows.take(tick)
        order[i] = number
    stop = max(i for _, i in shown_packets) + 1  # frames refer to earlier packets only
    packets = (file.bare_packet(packet.data, i == 0) for i, (packet, _) in enumerate(group[:stop]))
    with _source_errors():  # an empty packet
        gop = Gop(tuple(packets), tuple(order[:stop]))
    yield gop


def _redraw(
    file: VideoFile,
    packets: Iterable[_SelectedPacket],
    rows: _RowFrames,
    reason: str,
    *,
    is_deep: bool,
) -> Iterator[DecodedFrame]:
    """Yield the selected frames as players show them; with `is_deep`, colour above 8 bits as
    uint16."""
    for frame in _decode(file, packets, rows):
        parts, losses = frame.format.components, []
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
            with _source_errors():
                pixels = frame.reformat(format=form, **colours(frame)).to_ndarray()
            if bits > _BYTE and not is_deep:
                losses.append(f"{bits} bits rounded to 8")
        if num_colours < len(parts):
            losses.append("alpha dropped")
        codec = f"{file.codec} {frame.format.name}"
        yield DecodedFrame(turned(pixels, file.turn), codec, reason, bits, ", ".join(losses))


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


def _decode(file: VideoFile, packets: Iterable[_SelectedPacket], rows: _RowFrames) -> Iterator[Any]:
    """Decode the selected frames of packets in decoding order; yields in display order.

    If all frames are selected, the decoder's order counts and ticks are assigned in it, since some
    containers have no display times. Otherwise frames with ticks in another order are refused.
    """
    sent_ticks: list[int] = []  # ticks of displayed packets
    pending_ticks: list[int] = []  # a heap of those without a frame so far
    with _source_errors():
        has_framing = file.codec not in PASSTHROUGH  # packets as in the container
        context = open_decoder(
            file.codec,
            matrix=file.matrix,
            color_range=file.color_range,
            size=file.coded_size if has_framing else None,
            extradata=file.extradata if has_framing else b"",
        )
        context.thread_count = 0  # whole files are decoded in order here, so slices are parallel
    is_first, form, rows.decodes = True, None, True
    for selected_packet in chain(packets, (None,)):
        coded_packet = None
        if selected_packet is not None:
            packet, _ = selected_packet
            is_start = any((is_first, packet.is_cut, packet.is_key))
            coded_packet, is_first = packet_of(file.bare_packet(packet.data, is_start)), False
            # FFmpeg's PNG adds other packets to the last frame.
            coded_packet.is_keyframe = packet.is_key
            # The decoder copies pts to the frames.
            coded_packet.pts = _HIDDEN
            if packet.is_shown:
                coded_packet.pts = len(sent_ticks)
                sent_ticks.append(packet.tick)
                heappush(pending_ticks, packet.tick)
        with _source_errors():
            frames = context.decode(coded_packet)
        for frame in frames:
            if frame.pts == _HIDDEN or (frame.pts is None and not rows.are_all):
                continue
            if not pending_ticks:
                raise SourceError("the video has more frames than packets")
            earliest_tick = heappop(pending_ticks)
            tick = earliest_tick if rows.are_all else sent_ticks[frame.pts]
            frame_form = FrameForm(frame.height, frame.width, frame.format.name)
            form = form or frame_form
            form.check(frame_form, file.path, tick * file.tick)
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
