"""Video files as GOPs that stand alone: packets are copied, and encoded anew only where they must.

A file is cut at the frames with which a decoder can begin. Frames of a GOP that nobody asked for
stay in it and are not shown: those before an episode's first frame, those that an edit list hides,
those between the rows of a slower table. So what is kept decodes to the same bits. What no `Gop`
can hold is encoded anew, with a warning: more than 256 frames between two such places, as where
groups of pictures are open (their frames refer to those before the keyframe), and other codecs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from seqrecord.codecs.video.config import VideoConfig
from seqrecord.codecs.video.decoding import describe
from seqrecord.codecs.video.gops import MAX_GOP_FRAMES, MAX_GOP_PACKETS, Gop
from seqrecord.errors import CodecError, SourceError
from seqrecord.schema import CodecConfig, FeatureSpec
from seqrecord.sources.specs import feature_spec
from seqrecord.sources.video_anew import EncodedAnew, stored_codec
from seqrecord.sources.video_files import VideoFile, VideoPacket
from seqrecord.sources.video_packets import KEPT
from seqrecord.sources.video_rows import TOLERANCE, Rows

__all__ = ["check_file", "read_gops", "video_spec"]

_logger = logging.getLogger("seqrecord")


def read_gops(
    file: VideoFile,
    times: npt.NDArray[np.float64] | None = None,
    *,
    tolerance: float = TOLERANCE,
    quiet: bool = False,
) -> Iterator[Gop]:
    """The frames nearest to `times`, or all that are shown, as GOPs in their order.

    Reads from the last place before the first frame where a decoder can begin, up to the last
    frame, and holds one GOP in memory.

    Args:
        file: an open file.
        times: seconds [rows], ascending, by the file's clock. Each row gets the frame that is
            nearest to it, which must be less than `tolerance` away, as lerobot has it.
        tolerance: seconds.
        quiet: do not warn of what is encoded anew.

    Raises `SourceError` for rows that have no frame or share one, for times that go back, and for
    a file that is truncated, damaged, or does not begin with a keyframe.
    """
    rows = Rows(file, times, tolerance)
    group: list[VideoPacket] = []
    wants: list[bool] = []  # of the packets of the group
    anew: EncodedAnew | None = None
    reason, before = "", 0
    for packet in () if rows.are_complete else file.packets(rows.first_tick):
        if packet.is_cut or not (group or anew):
            if anew:
                yield from anew.end()
                _warn(file, "" if quiet else reason, rows.taken - before)
            elif group:
                yield from _kept(file, group, wants, rows)
            group, wants, anew = [], [], None
        is_wanted = rows.want(packet)
        if anew is None:
            group.append(packet)
            wants.append(is_wanted)
            reason = _why_not(file, group, wants)
            if not reason:
                if rows.are_complete:
                    break
                continue
            before = rows.taken
            anew = EncodedAnew(file, rows.take)
            for each, was_wanted in zip(group[:-1], wants, strict=False):
                yield from anew.add(each, was_wanted)
            group = []
        yield from anew.add(packet, is_wanted)
        if rows.are_complete:
            break
    if anew:
        yield from anew.end()
        _warn(file, "" if quiet else reason, rows.taken - before)
    elif group:
        yield from _kept(file, group, wants, rows)
    rows.check_all()


def video_spec(name: str, file: VideoFile) -> FeatureSpec:
    """The feature that the frames of a file make: uint8 [H, W, 3], with the codec of their video.

    Decodes the first frame. Raises `SourceError` for a video that cannot be stored.
    """
    codec = stored_codec(file.codec)
    shape: tuple[int, ...] = (*file.size, 3)
    config: CodecConfig = {}
    try:
        if codec == "ffv1":  # its packets do not say how large a frame is
            config = VideoConfig(codec, "bgr0").to_json()
        else:
            first = next(read_gops(file, quiet=True), None)
            if first is None:
                raise SourceError("a video without frames", file=str(file.path))
            shape, config = describe(codec, first, matrix=file.matrix, color_range=file.color_range)
    except CodecError as error:
        raise SourceError(error.message, file=str(file.path), got=error.got) from error
    return feature_spec(name, np.dtype(np.uint8), shape, file.path, codec=(config,), kind="image")


def check_file(file: VideoFile, spec: FeatureSpec) -> None:
    """Raises `SourceError` unless the frames of a file can be stored as those of the feature."""
    expected = spec.codec[0]["codec"], spec.codec[0]["pixel_format"], spec.shape[:2]
    codec = stored_codec(file.codec)
    pixels = file.pixel_format if codec == file.codec and codec != "ffv1" else expected[1]
    if (codec, pixels, file.size) != expected:
        got = codec, pixels, file.size
        file.close()
        raise SourceError(
            "a video that differs from the first one",
            file=str(file.path),
            feature=spec.name,
            expected="{} {} {}".format(*expected),
            got="{} {} {}".format(*got),
        )


def _kept(
    file: VideoFile, group: list[VideoPacket], wants: list[bool], rows: Rows
) -> Iterator[Gop]:
    """The packets of a GOP as they are, if any of its frames is wanted."""
    shown = sorted((group[i].tick, i) for i, is_wanted in enumerate(wants) if is_wanted)
    if not shown:
        return
    rows.take([tick for tick, _ in shown])
    order = [-1] * len(group)
    for number, (_, i) in enumerate(shown):
        order[i] = number
    stop = max(i for _, i in shown) + 1  # no frame refers to a packet that comes later
    packets = (file.plain(each.data, i == 0) for i, each in enumerate(group[:stop]))
    yield Gop(tuple(packets), tuple(order[:stop]))


def _why_not(file: VideoFile, group: list[VideoPacket], wants: list[bool]) -> str:
    """Why no `Gop` can hold these packets, which lie between two cuts, of which some are wanted;
    empty if one can.
    """
    if file.codec not in KEPT:
        return f"packets of {file.codec} are not kept"
    if not group[0].is_cut:
        if not group[0].is_key:
            raise SourceError("a video that does not begin with a keyframe", file=str(file.path))
        return "no decoder is sure to begin at its first keyframe"
    if len(group) <= MAX_GOP_FRAMES or (
        len(group) <= MAX_GOP_PACKETS and sum(wants) <= MAX_GOP_FRAMES
    ):
        return ""
    if any(each.is_key for each in group[1:]):
        return "groups of pictures are open: frames refer to those before their keyframe"
    return f"keyframes are more than {MAX_GOP_FRAMES} frames apart"


def _warn(file: VideoFile, reason: str, count: int) -> None:
    if count and reason:
        _logger.warning("%s: %d frames were encoded anew: %s", file.path, count, reason)
