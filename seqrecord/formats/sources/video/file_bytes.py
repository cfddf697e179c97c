"""Ranges of a video file for the checks of its container, and the errors of these checks."""

from __future__ import annotations

import io
from pathlib import Path
from typing import BinaryIO, NamedTuple

from seqrecord.errors import SourceError
from seqrecord.in_place.files import stored_from

COPY = "copy its readable part, `ffmpeg -i IN -c copy OUT`"
UNVERIFIABLE = "its end is not verifiable: the container declares no size"

_WINDOW = 1 << 14
_BLOCK = 1 << 20
_MOST_STEPS = 2  # frames by which a declared duration may differ


class StreamFacts(NamedTuple):
    """The selected stream: FFmpeg's position and id, its number among the videos, declared end.

    `end` is in seconds, 0 if nothing declares it; `step` is the mean time between frames.
    """

    position: int
    id: int
    number: int
    end: float
    step: float


class Contents(NamedTuple):
    """What a container declares beside its packets.

    `notes` are for the inventory. `packets` is the number of the stream's packets, `None` if FFmpeg
    may return another one. `has_offsets` is whether an MP4's tables have display times beside
    decoding times.
    """

    notes: tuple[str, ...] = ()
    packets: int | None = None
    has_offsets: bool = False


class FileBytes:
    """Read small ranges of an open file, mostly ascending ones, with one window in memory."""

    def __init__(self, file: BinaryIO, path: Path, *, is_whole: bool = True) -> None:
        self._file, self._path = file, path
        self.is_whole = is_whole  # otherwise checks read a few ranges only
        self.nbytes = file.seek(0, io.SEEK_END)
        self._window, self._start = b"", 0

    def read(self, at: int, count: int) -> bytes:
        """Return the bytes at an offset, fewer at the end of the file."""
        window_offset = at - self._start
        if not 0 <= window_offset <= len(self._window) - count:
            self._file.seek(at)
            self._window, self._start, window_offset = self._file.read(max(count, _WINDOW)), at, 0
        return self._window[window_offset : window_offset + count]

    def number(self, at: int, count: int) -> int:
        """Return a big-endian number."""
        return int.from_bytes(self.read(at, count), "big")

    def are_zeros(self, at: int, stop: int | None = None) -> bool:
        """Return whether all bytes from an offset on, up to `stop` or the end, are zero."""
        stop = self.nbytes if stop is None else min(stop, self.nbytes)
        # An interrupted recording may be followed by gigabytes of reserved space.
        while (at := stored_from(self._path, at)) < stop:
            block = self.read(at, min(_BLOCK, stop - at))
            if not block or block.count(0) != len(block):
                return not block
            at += len(block)
        return True

    def contains(self, at: int, text: bytes) -> bool:
        """Return whether a text without zeros is in the rest of the file."""
        while (at := stored_from(self._path, at)) < self.nbytes:
            block = self.read(at, _BLOCK)
            if text in block:
                return True
            at += max(1, len(block) - len(text) + 1)
        return False

    def rest(self, at: int) -> str:
        """Return a note on bytes at the end that belong to nothing."""
        kind = "zeros" if self.are_zeros(at) else "bytes"
        return f"{self.nbytes - at} {kind} after the end of the video, from byte {at}, not read"

    def truncated(self, at: int, part_name: str, stop: int) -> SourceError:
        """Return the error of something at an offset that ends at `stop`, behind the file's end."""
        return SourceError(
            f"truncated video: the file ends inside of {part_name}; {COPY}",
            file=str(self._path),
            offset=at,
            expected=f"at least {stop} bytes",
            got=self.nbytes,
        )

    def damaged(self, message: str, at: int, expected: object, got: object) -> SourceError:
        """Return the error of bytes that the container does not allow."""
        return SourceError(
            f"damaged video: {message}; {COPY}",
            file=str(self._path),
            offset=at,
            expected=expected,
            got=got,
        )


def early_end(declared_end: float, frames_end: float, step: float) -> list[str]:
    """Return a note if frames end, in seconds, more than two frames before the declared end."""
    if declared_end - frames_end <= _MOST_STEPS * step:
        return []
    return [f"frames end at {frames_end:.3f} s, before the declared end at {declared_end:.3f} s"]
