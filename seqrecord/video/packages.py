"""Access to PyAV, imported at first use (0.1 s) and installed by the extra `video`."""

from __future__ import annotations

from functools import cache
from typing import Any

from seqrecord.errors import MissingPackageError
from seqrecord.store.codecs.base import Bytes

SWS_BT601 = 5  # number of swscale
_NON_BT601 = (1, 4, 7, 9)  # H.273 matrices other than BT.601; swscale has the same numbers
_CONVERTIBLE = (0, 2, 5, 6, *_NON_BT601)  # all that swscale has; 0 is RGB itself
_COLOURED = 3  # planes or channels; grey, RGB and palettes need no matrix
UNKNOWN_MATRIX = 2  # H.273
_RANGES = {None: 0, "limited": 1, "full": 2}  # AVColorRange


@cache
def pyav() -> Any:
    """The module `av`. Raises `MissingPackageError` if it is not installed."""
    try:
        import av
    except ImportError as error:
        raise MissingPackageError(
            "video requires PyAV, the extra `video`: pip install av"
        ) from error
    return av


def packet_of(data: Bytes | bytes) -> Any:
    """Make a PyAV packet with a copy of these bytes, followed by zeros.

    Decoders read up to 64 bytes after a packet (FFmpeg's `AV_INPUT_BUFFER_PADDING_SIZE`), and these
    bytes may affect frames. PyAV 16 and later do not copy the given bytes.
    """
    # Not `Packet(data)`, but a copy with padding:
    # tests/video/test_video_codecs.py::test_bytes_after_a_packet_are_ignored
    packet = pyav().Packet(len(data))
    if len(data):
        packet.update(data)
    return packet


def video_errors() -> tuple[type[Exception], ...]:
    """Exceptions of PyAV for damaged packets and for settings that a codec does not support."""
    return (pyav().error.FFmpegError, ValueError, RuntimeError, OSError, EOFError, MemoryError)


def colours(frame: Any) -> dict[str, int]:
    """Arguments for converting a frame to RGB; PyAV before 17 assumes BT.601 without them.

    Raises `ValueError` for a matrix without a conversion, of which PyAV before 17 makes BT.601.
    """
    matrix = int(frame.colorspace)
    form = frame.format
    is_yuv = not (form.is_rgb or form.has_palette) and len(form.components) >= _COLOURED
    if is_yuv and matrix not in _CONVERTIBLE:
        raise ValueError(f"the matrix {matrix} (H.273) of a frame is not supported")
    if matrix not in _NON_BT601:
        return {}
    return {
        "src_colorspace": matrix,
        "dst_colorspace": SWS_BT601,
        "src_color_range": int(frame.color_range),
        "dst_color_range": _RANGES["full"],
    }


def set_colours(context: Any, matrix: int | None, color_range: str | None) -> None:
    """Set a codec context's matrix (H.273) and range ("limited", "full"); `None` for unknown."""
    context.colorspace = UNKNOWN_MATRIX if matrix is None else matrix
    context.color_range = _RANGES[color_range]


@cache
def one_thread() -> dict[str, int]:
    """Arguments that make PyAV convert colours on the calling thread; none before PyAV 17."""
    frame = pyav().VideoFrame(16, 16, "yuv420p")
    try:
        frame.reformat(format="rgb24", threads=1)
    except TypeError:
        return {}
    return {"threads": 1}
