"""Video files as GOPs that stand alone, or as frames: packets are copied, and re-encoded only
where they must.

A file is cut at the frames with which a decoder can begin. Frames of a GOP that nobody asked for
stay in it and are not shown: those before an episode's first frame, those that an edit list hides,
those between the rows of a slower table. So what is kept decodes to the same bits. What no `Gop`
can hold is re-encoded, with a warning: more than 256 frames between two such places, as where
groups of pictures are open (their frames refer to those before the keyframe), and other codecs.
So is video that players turn, as portrait video of phones: packets say nothing of that.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
from seqrecord.meanings import pixel_kind
from seqrecord.schema import FeatureSpec
from seqrecord.sources.common.specs import feature_spec
from seqrecord.sources.video.files import VideoFile, VideoPacket
from seqrecord.sources.video.frames import UPRIGHT, FrameForm

_logger = logging.getLogger("seqrecord")

TOLERANCE = 1e-4
"""Seconds by which a frame's time may differ from a row's: `tolerance_s` of lerobot."""

_DECODERS = {"av1": "libdav1d"}
_HIDDEN = -1
_TURNED = "players turn or mirror them, so they are turned"
_OTHERS = "h264"  # what videos of a codec that is not kept become
_LOSSLESS = ("ffv1", "huffyuv", "ffvhuff", "rawvideo", "png")

_Wanted: TypeAlias = "tuple[VideoPacket, bool]"
"""A packet, and whether its frame is wanted."""


def read_gops(
    file: VideoFile, times: npt.NDArray[np.float64] | None = None, *, tolerance: float = TOLERANCE
) -> Iterator[Gop]:
    """The frames nearest to `times`, or all that are shown, as GOPs in their order.

    Reads from the last place before the first frame where a decoder can begin, up to the last
    frame, and holds one GOP in memory.

    Args:
        file: an open file.
        times: seconds [rows], ascending, by the file's clock. Each row gets the frame that is
            nearest to it, which must be less than `tolerance` away, as lerobot has it.
        tolerance: seconds.

    Raises `SourceError` for rows that have no frame or share one, for times that go back, and for
    a file that is truncated, damaged, or does not begin with a keyframe.
    """
    with located(SourceError, file=str(file.path)):
        is_turned = file.turn != UPRIGHT  # asked before the walk over the file
        rows = _Rows(file, times, tolerance)
        for group in _groups(_packets(file, rows)):
            held: list[_Wanted] = []
            reason = ""
            for each in group:
                held.append(each)
                if reason := _TURNED if is_turned else _why_not(file, held):
                    break
            if not reason:
                yield from _passed_through(file, held, rows)
                continue
            before = rows.taken
            yield from _encoded_anew(file, chain(held, group), rows)
            if count := rows.taken - before:
                _logger.warning("%s: %d frames were re-encoded: %s", file.path, count, reason)
        rows.check_all()


def read_frames(
    file: VideoFile, times: npt.NDArray[np.float64], *, tolerance: float = TOLERANCE
) -> Iterator[Any]:
    """The frames nearest to `times`, decoded, as PyAV's `VideoFrame`, in their order.

    Arguments and errors are those of `read_gops`.
    """
    with located(SourceError, file=str(file.path)):
        rows = _Rows(file, times, tolerance)
        yield from _decoded(file, _packets(file, rows), rows)
        rows.check_all()


def video_spec(name: str, file: VideoFile) -> FeatureSpec:
    """The feature that the frames of a file make: uint8 [H, W, 3], with the codec of their video.

    Decodes the first frame. Raises `SourceError` for a video that cannot be stored.
    """
    codec = stored_codec(file.codec)
    if codec != "ffv1":
        with located(SourceError, file=str(file.path)):
            first = next(read_gops(file), None)
            if first is None:
                raise SourceError("a video without frames")
            with _source_errors():
                shape, config = describe_video(
                    codec, first, matrix=file.matrix, color_range=file.color_range
                )
    else:  # its packets do not say how large a frame is
        shape, config = (*file.size, 3), VideoConfig(codec, "bgr0").to_json()
    kind = pixel_kind(name, np.dtype(np.uint8), shape) or "image"
    return feature_spec(name, np.dtype(np.uint8), shape, file.path, codec=(config,), kind=kind)


def check_file(file: VideoFile, spec: FeatureSpec) -> None:
    """Raises `SourceError` unless the frames of a file can be stored as those of the feature."""
    expected = spec.codec[0]["codec"], spec.codec[0]["pixel_format"], spec.shape[:2]
    codec = stored_codec(file.codec)
    pixels: str | None = expected[1]
    if codec == file.codec and codec != "ffv1":
        pixels = file.pixel_format and _stored_pixels(file, file.pixel_format)
    if (codec, pixels, file.size) != expected:
        raise SourceError(
            "a video that differs from the first one",
            file=str(file.path),
            feature=spec.name,
            expected="{} {} {}".format(*expected),
            got=f"{codec} {pixels} {file.size}",
        )


def _stored_pixels(file: VideoFile, pixels: str) -> str:
    """What becomes of the pixels of a file whose codec is kept: what is re-encoded as a whole is of
    the limited range, which formats called yuvj cannot say."""
    return pixels if file.turn == UPRIGHT else pixels.replace("yuvj", "yuv")


def stored_codec(codec: str) -> str:
    """The codec in which a video of `codec` is stored."""
    if codec in PASSTHROUGH:
        return codec
    return "ffv1" if codec in _LOSSLESS else _OTHERS


class _Rows:
    """Which frames of a file are wanted, and whether they come in order, each once.

    `times` are seconds [rows], ascending, by the file's clock; `None` wants all that are shown.
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
        """Where reading begins: the tick of the first row, rounded up to be on the safe side."""
        if self._times is None:
            return None
        return round((self._times[0] + self._tolerance) / self._tick)

    @property
    def are_complete(self) -> bool:
        """Whether packets of all rows have come."""
        return self._times is not None and self._found >= len(self._times)

    def want(self, packet: VideoPacket) -> bool:
        """Whether the frame of a packet that has just come is shown and wanted."""
        is_wanted = packet.is_shown and (self._times is None or self._row(packet.tick) is not None)
        self._found += is_wanted
        return is_wanted

    def take(self, tick: int) -> None:
        """The next frame, in the order in which they are shown."""
        if self._last is not None and tick <= self._last:
            raise SourceError(
                "frames whose times go back",
                frame=self.taken,
                expected=f"more than {self._last * self._tick:.6f} s",
                got=f"{tick * self._tick:.6f} s",
            )
        if self._times is not None and self._row(tick) != self.taken:
            raise self._lacking(self._times)
        self._last = tick
        self.taken += 1

    def check_all(self) -> None:
        """Raises `SourceError` if a wanted frame did not come."""
        if self._times is not None and self.taken < len(self._times):
            raise self._lacking(self._times)
        if self._times is None and self.taken != self._found:
            raise SourceError(
                "a video of which frames cannot be decoded",
                expected=f"{self._found} frames",
                got=self.taken,
            )

    def _row(self, tick: int) -> int | None:
        """The row of the frame at a tick."""
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
            "a row without a frame of its own in the video",
            frame=self.taken,
            expected=f"one within {self._tolerance} s of {times[self.taken]:.6f} s",
        )


def _packets(file: VideoFile, rows: _Rows) -> Iterator[_Wanted]:
    """The packets up to that of the last row."""
    is_first = True
    for packet in () if rows.are_complete else file.packets(rows.first_tick):
        if is_first and not (packet.is_cut or packet.is_key):
            raise SourceError("a video that does not begin with a keyframe")
        is_first = False
        yield packet, rows.want(packet)
        if rows.are_complete:
            return


def _groups(packets: Iterable[_Wanted]) -> Iterator[Iterator[_Wanted]]:
    """Those from each place where a decoder can begin up to the next one."""
    count = 0

    def number(each: _Wanted) -> int:
        nonlocal count
        count += each[0].is_cut
        return count

    return (group for _, group in groupby(packets, number))


def _why_not(file: VideoFile, group: list[_Wanted]) -> str:
    """Why no `Gop` can hold these packets, which lie between two cuts, of which some are wanted;
    empty if one can.
    """
    if file.codec not in PASSTHROUGH:
        return f"packets of {file.codec} are not kept"
    if not group[0][0].is_cut:
        return "no decoder is sure to begin at its first keyframe"
    if len(group) <= MAX_GOP_FRAMES or (
        len(group) <= MAX_GOP_PACKETS and sum(wanted for _, wanted in group) <= MAX_GOP_FRAMES
    ):
        return ""
    if any(packet.is_key for packet, _ in group[1:]):
        return "groups of pictures are open: frames refer to those before their keyframe"
    return f"keyframes are more than {MAX_GOP_FRAMES} frames apart"


def _passed_through(file: VideoFile, group: list[_Wanted], rows: _Rows) -> Iterator[Gop]:
    """The packets of a GOP as they are, if any of its frames is wanted."""
    shown = sorted((packet.tick, i) for i, (packet, wanted) in enumerate(group) if wanted)
    if not shown:
        return
    order = [-1] * len(group)
    for number, (tick, i) in enumerate(shown):
        rows.take(tick)
        order[i] = number
    stop = max(i for _, i in shown) + 1  # no frame refers to a packet that comes later
    packets = (file.bare_packet(packet.data, i == 0) for i, (packet, _) in enumerate(group[:stop]))
    yield Gop(tuple(packets), tuple(order[:stop]))


def _encoded_anew(file: VideoFile, packets: Iterable[_Wanted], rows: _Rows) -> Iterator[Gop]:
    """GOPs of the wanted frames; the codec stays the file's, if it is kept."""
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
    """How frames like this one are encoded."""
    codec, pixels = stored_codec(file.codec), _stored_pixels(file, frame.format.name)
    if codec != file.codec or codec == "ffv1":
        pixels = "bgr0" if codec == "ffv1" else "yuv420p"
    height, width = file.size
    if codec in ("h264", "hevc") and is_odd(pixels, height, width):
        raise SourceError(
            f"a video of an odd size, which must be re-encoded ({codec}, {pixels}): crop it, as by "
            "ffmpeg -i IN -vf 'crop=trunc(iw/2)*2:trunc(ih/2)*2' OUT, or keep each pixel by a "
            "codec that takes such a size: ffmpeg -i IN -c:v ffv1 OUT.mkv",
            expected="an even height and width",
            got=f"{width}x{height} {file.codec} {frame.format.name}",
        )
    with _source_errors():
        config = VideoConfig(codec, pixels, file.matrix, file.color_range)
        return config.encoding(*file.size)


def _decoded(file: VideoFile, packets: Iterable[_Wanted], rows: _Rows) -> Iterator[Any]:
    """The wanted frames of packets that come in decoding order, as they are shown."""
    ticks: list[int] = []  # of wanted packets that went into the decoder
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
            # The decoder hands the numbers on to the frames.
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
    """What PyAV and its codecs raise as `SourceError`."""
    try:
        yield
    except CodecError as error:
        raise SourceError(error.message, expected=error.expected, got=error.got) from error
    except video_errors() as error:
        raise SourceError("a video that cannot be decoded", got=str(error)[:200]) from error
