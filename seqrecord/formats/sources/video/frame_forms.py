"""Frame size, pixel format and rotation of videos.

A video feature has one size and pixel format. Packets of another size would be packed and then be
unreadable, since decoders follow the packets. Phones store portrait video rotated, with a matrix
beside it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from seqrecord.errors import SourceError
from seqrecord.in_place.remote import remote_files
from seqrecord.store.storage.ranges import ByteRange
from seqrecord.video.decoding import form_of
from seqrecord.video.packages import video_errors
from seqrecord.video.packets import PacketFormat

UPRIGHT = 1
"""EXIF orientation of videos that are shown as stored."""

_HEAD_BYTES = 4096  # headers are at the start of a packet
_MOST_KNOWN = 64  # cached headers
# A request each: all keyframes of a long video would be thousands. The number is tested by
# tests/formats/test_video_intake.py::test_keyframes_on_a_url.
_REMOTE_KEYFRAMES = 8


class FrameForm(NamedTuple):
    """Size and pixel format of decoded frames."""

    height: int
    width: int
    pixels: str

    def __str__(self) -> str:
        return f"{self.width}x{self.height} {self.pixels}"

    def check(self, form: FrameForm, path: Path, seconds: float) -> None:
        """Raise `SourceError` if frames from a time on have the different form `form`."""
        if form != self:
            raise SourceError(
                "the frame size or pixel format changes within the video; re-encode it, "
                f"`ffmpeg -i IN -vf scale={self.width}:{self.height} -pix_fmt {self.pixels} OUT`, "
                "or split it there",
                file=str(path),
                expected=str(self),
                got=f"{form} at {seconds:.3f} s",
            )


class VideoForms:
    """Compare the headers of a video's keyframes with the first keyframe.

    A keyframe with new headers is decoded. `colours` are the container's, as for `form_of`.
    """

    def __init__(
        self, codec: str, format_: PacketFormat, path: Path, colours: Mapping[str, Any]
    ) -> None:
        self._codec, self._format, self._path, self._colours = codec, format_, path, colours
        self._checked_headers: set[bytes] = set()
        self._first_keyframe = b""  # first keyframe
        self._form: FrameForm | None = None  # of the first keyframe, decoded on demand

    def check(self, data: bytes, seconds: float, *, is_key: bool) -> None:
        """Raise `SourceError` if the frames of this packet differ from the first ones.

        `seconds` is the packet's display time.
        """
        if is_key and (headers := self._format.headers(data)) not in self._checked_headers:
            packet = self._format.bare_packet(data, True)
            if self._first_keyframe:
                self._first_form().check(self._decode_form(packet, seconds), self._path, seconds)
            self._first_keyframe = self._first_keyframe or packet
            if len(self._checked_headers) < _MOST_KNOWN:
                self._checked_headers.add(headers)
        elif not is_key and self._first_keyframe:
            for height, width in self._format.sizes(data):
                form = self._first_form()
                form.check(form._replace(height=height, width=width), self._path, seconds)

    def check_keyframes(
        self, starts: Sequence[int], sizes: Sequence[int], seconds: Sequence[float]
    ) -> bool:
        """Like `check`, for keyframes in the file; reads their first bytes.

        Returns whether decoding can start at each of them. On a URL this is checked for
        `_REMOTE_KEYFRAMES` of them, and nothing else.
        """
        if (remote := remote_files(self._path)) is not None:
            indices = range(0, len(starts), -(-len(starts) // _REMOTE_KEYFRAMES) or 1)
            ranges = [ByteRange(starts[i], starts[i] + min(sizes[i], _HEAD_BYTES)) for i in indices]
            heads = [bytearray(byte_range.length) for byte_range in ranges]
            remote.read(remote.name_of(self._path), ranges, [memoryview(head) for head in heads])
            decoding_starts = [self._format.start(bytes(head)) for head in heads]
            return all(start.is_closed or start.is_hidden for start in decoding_starts)
        with self._path.open("rb", buffering=0) as file:
            for start, size, second in zip(starts, sizes, seconds, strict=True):
                head = os.pread(file.fileno(), min(size, _HEAD_BYTES), start)
                if self._format.start(head).is_hidden:  # long headers
                    head = os.pread(file.fileno(), size, start)
                if not self._format.start(head).is_closed:
                    return False
                if self._format.headers(head) not in self._checked_headers:
                    self.check(os.pread(file.fileno(), size, start), second, is_key=True)
        return True

    def has_b(self, starts: Sequence[int], sizes: Sequence[int]) -> bool:
        """Return whether any of these packets in the local file has a B-frame."""
        with self._path.open("rb", buffering=0) as file:
            pairs = zip(starts, sizes, strict=True)
            heads = (
                os.pread(file.fileno(), min(size, _HEAD_BYTES), start) for start, size in pairs
            )
            return any(self._format.start(head).is_b for head in heads)

    def _first_form(self) -> FrameForm:
        if self._form is None:
            self._form = self._decode_form(self._first_keyframe, 0)
        return self._form

    def _decode_form(self, packet: bytes, seconds: float) -> FrameForm:
        try:
            return FrameForm(*form_of(self._codec, packet, **self._colours))
        except video_errors() as error:
            raise SourceError(
                "cannot decode a keyframe",
                file=str(self._path),
                got=f"{str(error)[:200]} at {seconds:.3f} s",
            ) from error


def orientation_of_matrix(matrix: bytes) -> int:
    """Return the EXIF orientation, 1 to 8, of a display matrix of nine int32.

    A decoded pixel (x, y) is shown at (a x + c y, b x + d y) plus an offset. a and b are the first
    two values, c and d the fourth and fifth (libavutil/display.h). Scales are ignored. Raises
    `SourceError` for other angles than multiples of 90 degrees.
    """
    a, b, _, c, d = np.sign(np.frombuffer(matrix, "=i4", 5)).tolist()
    if (orientation := _ORIENTATIONS.get((a, b, c, d))) is None:
        raise SourceError("unsupported video rotation", expected="a multiple of 90 degrees")
    return orientation


_ORIENTATIONS = {
    (1, 0, 0, 1): UPRIGHT,
    (-1, 0, 0, 1): 2,
    (-1, 0, 0, -1): 3,
    (1, 0, 0, -1): 4,
    (0, 1, 1, 0): 5,
    (0, 1, -1, 0): 6,
    (0, -1, -1, 0): 7,
    (0, -1, 1, 0): 8,
}
