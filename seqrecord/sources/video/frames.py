"""Frames of a video: their one size and pixel format, and how players turn them.

A feature of video has one size and pixel format, and decoders obey the packets: packets of another
size would be packed, and then be unreadable. Phones write portrait video lying, and a matrix beside
it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.codecs.video.decoding import form_of
from seqrecord.codecs.video.packages import video_errors
from seqrecord.codecs.video.packets import PacketFormat
from seqrecord.errors import SourceError

_HEAD_BYTES = 4096  # of a packet, which begins with its headers
_MOST_KNOWN = 64  # headers that are remembered


class FrameForm(NamedTuple):
    """Size and pixel format of decoded frames."""

    height: int
    width: int
    pixels: str

    def __str__(self) -> str:
        return f"{self.width}x{self.height} {self.pixels}"

    def check(self, other: FrameForm, path: Path, seconds: float) -> None:
        """Raises `SourceError` if `other`, the form of the frames from a time on, is not this."""
        if other != self:
            raise SourceError(
                "a video whose frame size or pixel format changes: re-encode it to one, as with "
                f"ffmpeg -i IN -vf scale={self.width}:{self.height} -pix_fmt {self.pixels} OUT, or "
                "cut it there",
                file=str(path),
                expected=str(self),
                got=f"{other} at {seconds:.3f} s",
            )


class VideoForms:
    """Compares the headers of a video's keyframes with those of its first one.

    A keyframe with headers that are new is decoded.
    """

    def __init__(self, codec: str, format_: PacketFormat, path: Path) -> None:
        self._codec, self._format, self._path = codec, format_, path
        self._known: set[bytes] = set()
        self._first = b""  # keyframe
        self._form: FrameForm | None = None  # of its frame, once another one differs

    def check(self, data: bytes, seconds: float, *, is_key: bool) -> None:
        """Raises `SourceError` if the frames of this packet, shown at a time, differ from those
        before."""
        if is_key and (headers := self._format.headers(data)) not in self._known:
            packet = self._format.bare_packet(data, True)
            if self._first:
                self._first_form().check(self._decoded(packet, seconds), self._path, seconds)
            self._first = self._first or packet
            if len(self._known) < _MOST_KNOWN:
                self._known.add(headers)
        elif not is_key and self._first:
            for height, width in self._format.sizes(data):
                form = self._first_form()
                form.check(form._replace(height=height, width=width), self._path, seconds)

    def check_keyframes(
        self, starts: Iterable[int], sizes: Iterable[int], seconds: Iterable[float]
    ) -> None:
        """The same of keyframes in a local file, whose first bytes are read."""
        with self._path.open("rb", buffering=0) as file:
            for start, size, second in zip(starts, sizes, seconds, strict=True):
                head = os.pread(file.fileno(), min(size, _HEAD_BYTES), start)
                if self._format.headers(head) not in self._known:
                    self.check(os.pread(file.fileno(), size, start), second, is_key=True)

    def _first_form(self) -> FrameForm:
        if self._form is None:
            self._form = self._decoded(self._first, 0)
        return self._form

    def _decoded(self, packet: bytes, seconds: float) -> FrameForm:
        try:
            return FrameForm(*form_of(self._codec, packet))
        except video_errors() as error:
            raise SourceError(
                "a keyframe that cannot be decoded",
                file=str(self._path),
                got=f"{str(error)[:200]} at {seconds:.3f} s",
            ) from error


@dataclass(frozen=True)
class Turn:
    """By quarters, mirrored, or both: first rows become columns, where `is_transposed`, then rows
    and columns whose step is -1 are put in the opposite order."""

    is_transposed: bool = False
    rows: int = 1
    columns: int = 1

    @classmethod
    def of(cls, matrix: bytes) -> Turn:
        """That of a display matrix, nine int32; raises `SourceError` for any other angle.

        A decoded pixel (x, y) is shown at (a x + c y, b x + d y) plus an offset, where a, b are the
        first values and c, d the fourth and fifth (libavutil/display.h). Scales do not count.
        """
        a, b, _, c, d = np.sign(np.frombuffer(matrix, "=i4", 5)).tolist()
        if a and d and not (b or c):
            return cls(False, d, a)
        if b and c and not (a or d):
            return cls(True, b, c)
        raise SourceError("a video that is shown at an angle", expected="a turn by quarters")

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Of a frame as it is shown."""
        return (width, height) if self.is_transposed else (height, width)

    def frame(self, image: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The frame [H, W, C] as it is shown."""
        turned = image.transpose(1, 0, 2) if self.is_transposed else image
        return turned[:: self.rows, :: self.columns]


UPRIGHT = Turn()
