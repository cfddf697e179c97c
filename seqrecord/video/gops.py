"""One closed group of pictures (GOP), as packets without a container."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from seqrecord.video.config import MAX_GOP_FRAMES as MAX_GOP_FRAMES
from seqrecord.video.config import VideoConfig

MAX_GOP_PACKETS = 2 * MAX_GOP_FRAMES


@dataclass(frozen=True)
class Gop:
    """A closed group of pictures: `packets` in decoding order; the first is a keyframe.

    A fresh decoder can decode all frames. Therefore H.264 and HEVC are in Annex B with parameter
    sets in band, AV1 has its sequence header in the first packet, and VP9 and FFV1 (version 1) are
    unchanged.

    `order[i]` is the display position of packet i's frame in the GOP; each of `0 … num_frames - 1`
    occurs once. It is -1 for a packet without a visible frame, such as a hidden reference frame of
    VP9, or a frame before the start of an edit list that other frames refer to.

    `config` is the configuration of the packets if it may differ from the feature's, such as
    another codec; frames have the same size and dtype.

    Raises `ValueError` for inconsistent values.
    """

    packets: tuple[bytes, ...]
    order: tuple[int, ...]
    config: VideoConfig | None = None

    def __post_init__(self) -> None:
        shown = sorted(number for number in self.order if number != -1)
        if len(self.packets) != len(self.order) or not all(self.packets):
            raise ValueError("a GOP needs a number for each packet, and no empty packet")
        if shown != list(range(len(shown))) or not shown:
            raise ValueError("a GOP's frame numbers are not a permutation of 0, 1, …")
        if len(shown) > MAX_GOP_FRAMES or len(self.packets) > MAX_GOP_PACKETS:
            raise ValueError(
                f"a GOP of {len(shown)} frames in {len(self.packets)} packets; at most "
                f"{MAX_GOP_FRAMES} in {MAX_GOP_PACKETS} are allowed"
            )

    @property
    def num_frames(self) -> int:
        """Number of visible frames."""
        return sum(number != -1 for number in self.order)

    def select_frames(self, frames: range) -> Gop:
        """The GOP of some consecutive frames; needed packets of other frames are not shown."""
        if len(frames) == self.num_frames:
            return self
        order = [n - frames.start if n in frames else -1 for n in self.order]
        stop = max(place for place, n in enumerate(order) if n != -1) + 1
        return Gop(self.packets[:stop], tuple(order[:stop]), self.config)

    @property
    def nbytes(self) -> int:
        """Bytes of all packets."""
        return sum(map(len, self.packets))


@dataclass(frozen=True)
class DecodedFrame:
    """A frame of an original video whose packets cannot be stored.

    Args:
        pixels: uint8 [H, W, 3], or uint16 [H, W] or [H, W, 3]; depth codes as codes.
        codec: the original's codec and pixel format, `prores yuv422p10le`.
        reason: why the packets cannot be stored.
        bits: of the original's values.
        rounded: values that `pixels` lack: `10 bits rounded to 8`; empty for none.
    """

    pixels: npt.NDArray[Any]
    codec: str
    reason: str
    bits: int = 8
    rounded: str = ""

    num_frames = 1

    def select_frames(self, frames: range) -> DecodedFrame:  # noqa: ARG002 - as in `Gop`
        """The frame itself."""
        return self
