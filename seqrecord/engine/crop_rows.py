"""Rows of a batch that frames are loaded straight into, where the batch has windows of them.

So of a decoded frame, or of a raw page as it was read, only the window is copied, into the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.clip_transforms import Windows
from seqrecord.engine.crops import ClipCrops, copy_window

__all__ = ["CropSlots", "CroppedRows", "WindowRows"]


class CropSlots:
    """The windows of a batch's clips by their slots, each known before its frames are loaded."""

    def __init__(self, crops: ClipCrops, size: int) -> None:
        self.crops = crops
        self._top = np.zeros(size, np.int64)
        self._left = np.zeros(size, np.int64)
        self._flipped = np.zeros(size, np.bool_)

    def put(
        self, slots: npt.NDArray[np.int64], windows: Windows, clips: npt.NDArray[np.int64]
    ) -> None:
        """Say that these slots get the windows of these clips; int64[n] each."""
        self._top[slots] = windows.top[clips]
        self._left[slots] = windows.left[clips]
        self._flipped[slots] = windows.flipped[clips]

    def place(self, slot: int) -> tuple[tuple[int, int], bool]:
        """Top and left of a slot's window, and whether it is flipped."""
        return (int(self._top[slot]), int(self._left[slot])), bool(self._flipped[slot])


class CroppedRows:
    """`Rows` of a batch, arrays [clips * frames, …], some of which get windows of frames.

    `length` frames make a clip.
    """

    def __init__(self, rows: Mapping[str, npt.NDArray[Any]], length: int, slots: CropSlots) -> None:
        self._rows = rows
        self._length = length
        self._slots = slots

    def __getitem__(self, feature: str) -> Any:
        rows = self._rows[feature]
        if feature not in self._slots.crops.features:
            return rows
        is_flow = feature in self._slots.crops.flows
        return WindowRows(rows, self._length, self._slots, is_flow=is_flow)


class WindowRows:
    """The rows of one feature, [clips * frames, height, width, …], that get windows of frames."""

    def __init__(
        self, rows: npt.NDArray[Any], length: int, slots: CropSlots, *, is_flow: bool
    ) -> None:
        self._rows = rows
        self._length = length
        self._slots = slots
        self._is_flow = is_flow

    def __setitem__(self, row: int, frame: npt.NDArray[Any]) -> None:
        """Copy the window of a frame into a row."""
        self.put(row, np.asarray(frame)[None])

    def put(self, row: int, frames: npt.NDArray[Any]) -> None:
        """Copy the windows of frames, [n, H, W, …], into the rows from `row` on."""
        done = 0
        while done < len(frames):
            slot, at = divmod(row + done, self._length)
            count = min(self._length - at, len(frames) - done)
            corner, flipped = self._slots.place(slot)
            out = self._rows[row + done : row + done + count]
            copy_window(frames[done : done + count], out, corner, flipped=flipped)
            if flipped and self._is_flow:
                np.negative(out[..., 0], out=out[..., 0])
            done += count
