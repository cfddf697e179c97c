"""Decoded frames of a page go into rows: of an arena, or of batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.engine.device.video import DeviceFrames
from seqrecord.engine.direct import Slice
from seqrecord.engine.ragged import Padded, clear_rows
from seqrecord.errors import ClipError
from seqrecord.reading.chunks import ChunkReader, Page
from seqrecord.reading.frames import mask_name

__all__ = ["clear", "store"]


def store(
    reader: ChunkReader,
    page: Page,
    data: memoryview,
    inside: npt.NDArray[np.int64],
    slices: Iterable[Slice],
) -> None:
    """Decode frames of a page, counted from the chunk's first, into rows of their feature."""
    spec = reader.features[page.feature]
    for item in slices:
        target = item.target[page.feature]
        frames = inside[item.first : item.first + item.length].tolist()
        if isinstance(target, DeviceFrames):
            page.memo.setdefault("open_video", target.open)
        if spec.is_fixed:
            out = target[item.row : item.row + item.length]
            reader.decode(page, data, _as_range(frames), out)
            continue
        found = reader.shapes(page, data)
        shapes = [found[page.position(i) or 0] for i in frames]
        if spec.value == "array" and not isinstance(target, np.ndarray):
            arrays = target.make(item.row, shapes)
            reader.decode(page, data, frames, arrays)
            continue
        if spec.value == "array":
            target = Padded(spec, target, item.target[mask_name(page.feature)])
        for row, (frame, shape) in enumerate(zip(frames, shapes, strict=True), item.row):
            array = np.empty(shape, spec.dtype)
            reader.decode(page, data, [frame], [array])
            try:
                target.put(row, reader.value(page, array, frame))
            except ClipError as error:
                raise error.located(frame=page.chunk.first_frame + frame) from None


def clear(reader: ChunkReader, pages: Iterable[Page], item: Slice) -> None:
    """Make zeros of rows for frames that lack features of which clips have last values."""
    for page in pages:
        clear_rows(reader.features[page.feature], item.target, item.row, item.length)


def _as_range(frames: list[int]) -> range | list[int]:
    """The frames as a range where they are evenly spaced: it is decoded in one go."""
    step: Any = frames[1] - frames[0] if len(frames) > 1 else 1
    run = range(frames[0], frames[0] + step * len(frames), step)
    return run if list(run) == frames else frames
