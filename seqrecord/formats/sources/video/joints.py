"""Times of packets, also of MPEG-TS files whose parts were joined by `cat`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seqrecord.errors import SourceError
from seqrecord.formats.sources.video.file_bytes import COPY

_USUAL_RATE = 30.0  # of files that declare none
_MOST_SINCE = 2  # FFmpeg marks the packet before the next or the one before that


class Joints:
    """Shift the times of joined parts, so that each part continues the one before.

    With `can_join`, times that go back at a keyframe begin a part, and a packet that FFmpeg marks
    as corrupt may be in front of one: counters of MPEG-TS begin again there. Elsewhere it is a
    truncated packet.
    """

    def __init__(self, path: Path, fps: float | None, tick: float, *, can_join: bool) -> None:
        self._path, self._can_join = path, can_join
        self._step = max(1, round(1 / ((fps or _USUAL_RATE) * tick)))
        self._last_dts: int | None = None
        self._last_tick = self._shift = 0
        self._count = 0
        self._since = 0  # packets since the marked one
        self._suspect: int | None = None  # offset of a marked packet

    def tick(self, packet: Any) -> int:
        """Return the display time of the next packet. Raises `SourceError` if it is damaged."""
        self._count += 1
        tick = packet.dts if packet.pts is None else packet.pts
        if tick is None:
            raise SourceError("video frame without a time", file=str(self._path))
        if not self._can_join:
            if packet.is_corrupt:
                raise self._truncated(packet.pos)
            return int(tick)
        if packet.is_keyframe:
            self._suspect, self._since = None, 0
        if self._suspect is not None:
            self._since += 1
            if self._since > _MOST_SINCE:
                raise self._truncated(self._suspect)
        if packet.is_corrupt:
            self._suspect = self._suspect or packet.pos
        dts = tick if packet.dts is None else packet.dts
        if packet.is_keyframe and self._last_dts is not None and dts < self._last_dts:
            self._shift = self._last_tick + self._step - tick
        self._last_dts, shifted_tick = dts, tick + self._shift
        self._last_tick = max(self._last_tick, shifted_tick)
        return int(shifted_tick)

    def check_end(self, expected: int | None) -> None:
        """Raise `SourceError` if the last packet was damaged, or packets are missing."""
        if expected is not None and self._count < expected:
            raise SourceError(
                f"damaged video: packets of the container cannot be read; {COPY}",
                file=str(self._path),
                expected=f"{expected} packets",
                got=self._count,
            )
        if self._suspect is not None:
            raise self._truncated(self._suspect)

    def _truncated(self, at: int | None) -> SourceError:
        return SourceError(f"truncated video; {COPY}", file=str(self._path), offset=at)
