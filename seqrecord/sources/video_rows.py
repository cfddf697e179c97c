"""Which frame of a video file belongs to which row of a table."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.sources.video_files import VideoFile, VideoPacket

__all__ = ["TOLERANCE", "Rows"]

TOLERANCE = 1e-4
"""Seconds by which a frame's time may differ from a row's: `tolerance_s` of lerobot."""


class Rows:
    """Which frames of a file are wanted, and whether they come in order, each once.

    Args:
        file: an open file.
        times: seconds [rows], ascending, by the file's clock; `None` wants all that are shown.
        tolerance: seconds from a row's time to its frame's, which must be nearer than that.

    Methods raise `SourceError`.
    """

    def __init__(
        self, file: VideoFile, times: npt.NDArray[np.float64] | None, tolerance: float
    ) -> None:
        self.taken = 0
        self._file, self._tolerance = file, tolerance
        self._times: list[float] | None = None if times is None else times.tolist()
        self._found = 0
        self._last: int | None = None
        if times is not None and len(times):
            back = np.flatnonzero(~(np.diff(times) > 0))
            if len(back) or not np.isfinite(times).all():
                raise SourceError(
                    "timestamps that go back",
                    file=str(file.path),
                    frame=int(back[0]) + 1 if len(back) else None,
                )

    @property
    def first_tick(self) -> int | None:
        """Where reading begins: the tick of the first row, rounded up to be on the safe side."""
        if self._times is None:
            return None
        return round((self._times[0] + self._tolerance) / self._file.tick)

    @property
    def are_complete(self) -> bool:
        """Whether packets of all rows have come."""
        return self._times is not None and self._found >= len(self._times)

    def want(self, packet: VideoPacket) -> bool:
        """Whether the frame of a packet that has just come is shown and wanted."""
        is_wanted = packet.is_shown and (self._times is None or self._row(packet.tick) is not None)
        self._found += is_wanted
        return is_wanted

    def take(self, ticks: list[int]) -> None:
        """The next frames, in the order in which they are shown."""
        for tick in ticks:
            if self._last is not None and tick <= self._last:
                raise SourceError(
                    "frames whose times go back",
                    file=str(self._file.path),
                    frame=self.taken,
                    expected=f"more than {self._last * self._file.tick:.6f} s",
                    got=f"{tick * self._file.tick:.6f} s",
                )
            if self._times is not None and self._row(tick) != self.taken:
                raise self._lacking()
            self._last = tick
            self.taken += 1

    def check_all(self) -> None:
        """Raises `SourceError` if a wanted frame did not come."""
        if self._times is not None and self.taken < len(self._times):
            raise self._lacking()
        if self._times is None and self.taken != self._found:
            raise SourceError(
                "a video of which frames cannot be decoded",
                file=str(self._file.path),
                expected=f"{self._found} frames",
                got=self.taken,
            )

    def _row(self, tick: int) -> int | None:
        """The row of the frame at a tick."""
        assert self._times is not None
        time = tick * self._file.tick
        row = bisect_left(self._times, time)
        if row and (
            row == len(self._times) or time - self._times[row - 1] < self._times[row] - time
        ):
            row -= 1
        return row if abs(self._times[row] - time) < self._tolerance else None

    def _lacking(self) -> SourceError:
        assert self._times is not None
        return SourceError(
            "a row without a frame of its own in the video",
            file=str(self._file.path),
            frame=self.taken,
            expected=f"one within {self._tolerance} s of {self._times[self.taken]:.6f} s",
        )
