"""Packets of a video stream: where decoding can start, and the display order of frames.

AVI has no display times, and some files lost them: Matroska copied from AVI, MP4 without `ctts`.
Their times ascend from packet to packet although B-frames are displayed before earlier packets.
Only a decoder has the order then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from seqrecord.errors import SourceError, located
from seqrecord.video.decoding import display_order
from seqrecord.video.gops import MAX_GOP_PACKETS
from seqrecord.video.packages import video_errors
from seqrecord.video.packets import PacketFormat, Start

_logger = logging.getLogger("seqrecord")

MAX_LEADING = 64
"""Maximum packets between a keyframe and the first one shown after it."""


class VideoPacket(NamedTuple):
    """A packet of a container.

    Args:
        data: its bytes.
        tick: display time of its frame, in `VideoFile.tick` seconds.
        start: kind of random access point that it begins.
        is_key: whether the container marks it as a keyframe.
        is_shown: whether its frame is displayed; edit lists hide frames.
        is_cut: whether decoding can start at it.
        pos: offset in the file of the packet, or of its container header.
    """

    data: bytes
    tick: int
    start: Start
    is_key: bool
    is_shown: bool
    is_cut: bool = False
    pos: int | None = None


def mark_cuts(packets: Iterator[VideoPacket]) -> Iterator[VideoPacket]:
    """Set `is_cut` of packets, which may depend on the following packets.

    Leading frames that are undecodable after a random access point (RASL frames of HEVC) follow it
    but are displayed before it. Decoding can start there if there are none, and at the first packet
    if they are dropped.
    """
    pending: list[VideoPacket] = []  # a possible cut and the packets after it
    first_packet = next(packets, None)
    if first_packet is None:
        return
    yield first_packet._replace(is_cut=first_packet.start.is_closed or first_packet.start.may_lead)
    is_dropping = first_packet.start.may_lead
    for packet in packets:
        if is_dropping and packet.start.is_broken:
            continue
        is_dropping = is_dropping and not (packet.start.is_closed or packet.start.may_lead)
        if pending:
            is_leading = packet.tick < pending[0].tick or packet.start.is_broken
            if is_leading and len(pending) < MAX_LEADING:
                pending.append(packet)
                if packet.start.is_broken:
                    yield from _release(pending, False)
                continue
            yield from _release(pending, len(pending) < MAX_LEADING)
        if packet.start.may_lead:
            pending.append(packet)
        elif packet.start.is_closed:
            yield packet._replace(is_cut=True)
        else:
            yield packet
    yield from _release(pending, True)


def _release(pending: list[VideoPacket], is_cut: bool) -> Iterator[VideoPacket]:
    if pending:
        yield pending[0]._replace(is_cut=is_cut)
        yield from pending[1:]
    pending.clear()


def _with_order(group: list[VideoPacket], order: list[int]) -> list[VideoPacket]:
    """Assign the display times of a group's shown packets in another order."""
    packets, shown_numbers = [*group], [i for i in order if group[i].is_shown]
    ticks = sorted(group[i].tick for i in shown_numbers)
    for i, tick in zip(shown_numbers, ticks, strict=True):
        packets[i] = packets[i]._replace(tick=tick)
    return packets


class FrameOrder:
    """Proves the display times of one file's packets, or assigns them in the decoder's order.

    Decodes the first group of pictures whose times are in decoding order although it has B-frames
    or the stream declares reordering (`is_declared`). If the decoder displays it in another order,
    all such groups are decoded. No group is decoded in files with display times.
    """

    def __init__(self, codec: str, format_: PacketFormat, path: Path, *, is_declared: bool) -> None:
        self._codec, self._format, self._path = codec, format_, path
        self._is_declared = is_declared
        # Groups without and with B-frames, in the decoder's order.
        self._tested_kinds: set[bool] = set()
        self._is_proved = self._is_wrong = False

    def prove_order(
        self, packets: Iterator[VideoPacket], *, any_order: bool
    ) -> Iterator[VideoPacket]:
        """Yield marked packets with their display times; at most a group of pictures is in memory.

        Groups of more than `MAX_GOP_PACKETS` packets keep wrong times if `any_order`. Otherwise
        they raise `SourceError`, as do frames that cannot be decoded.
        """
        group: list[VideoPacket] = []
        for packet in packets:
            if group and (packet.is_cut or self._is_proved or len(group) > MAX_GOP_PACKETS):
                yield from self._check_group(group, packet.is_cut, any_order)
                group = []
            group.append(packet)
        if group:
            yield from self._check_group(group, True, any_order)

    def _check_group(
        self, group: list[VideoPacket], is_whole: bool, any_order: bool
    ) -> list[VideoPacket]:
        """Return packets with display times. Only a whole group gets new ones."""
        if self._is_proved:
            return group
        visible = [i for i, packet in enumerate(group) if not packet.start.is_hidden]
        ticks, has_b = [group[i].tick for i in visible], any(p.start.is_b for p in group)
        if ticks != sorted(ticks):
            self._is_proved = not self._is_wrong  # the container has display times
            return group
        can_decode = group[0].is_cut
        if self._is_wrong and not (can_decode or any_order):
            raise self._too_long()
        if not can_decode or self._is_settled(has_b):
            return group
        order = self._decode_order(group, visible if is_whole else None)
        if order == sorted(order):
            self._tested_kinds.add(has_b)
            self._is_proved = has_b and not self._is_wrong
            return group
        if not (is_whole or any_order):
            raise self._too_long()
        if not self._is_wrong:
            _logger.info("%s: display times are missing; ordered by decoding", self._path)
        self._is_wrong = True
        return _with_order(group, order) if is_whole else group

    def _is_settled(self, has_b: bool) -> bool:
        """Whether groups of this kind need no decoder for their order."""
        is_tested = has_b in self._tested_kinds and not self._is_wrong
        return is_tested or not (has_b or self._is_declared)

    def _decode_order(self, group: list[VideoPacket], visible: list[int] | None) -> list[int]:
        """Return the packets of a group in the decoder's display order.

        Raises `SourceError` for a group that cannot be decoded, and unless `visible` packets have a
        frame each.
        """
        with located(SourceError, file=str(self._path)):
            try:
                packets = (self._format.bare_packet(p.data, i == 0) for i, p in enumerate(group))
                order = display_order(self._codec, packets)
            except video_errors() as error:
                raise SourceError("cannot decode the video", got=str(error)[:200]) from error
            if visible is not None and sorted(order) != visible:
                expected = f"{len(visible)} frames"
                raise SourceError("cannot decode all frames", expected=expected, got=len(order))
        return order

    def _too_long(self) -> SourceError:
        return SourceError(
            "the video has no display times, and a group of pictures is too long to be ordered by "
            "decoding; re-encode it, `ffmpeg -fflags +genpts -i IN -c:v libx264 OUT.mp4`",
            file=str(self._path),
            expected=f"keyframes at most {MAX_GOP_PACKETS} packets apart",
        )
