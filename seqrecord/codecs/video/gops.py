"""Gop: one closed group of pictures, as packets without a container."""

from __future__ import annotations

from dataclasses import dataclass

MAX_GOP_FRAMES = 256
"""The most shown frames of a GOP; decoding one frame takes decoding those before it."""

MAX_GOP_PACKETS = 2 * MAX_GOP_FRAMES


@dataclass(frozen=True)
class Gop:
    """One closed group of pictures: `packets` in decoding order, of which the first is a keyframe.

    A decoder that has seen nothing else gives all of its frames. So H.264 and HEVC are in Annex B
    with their parameter sets in band, AV1 has its sequence header in the first packet, and VP9 and
    FFV1 (of version 1) are as they are.

    `order[i]` is the number, among the shown frames of the GOP, of the frame that packet i gives:
    each of `0 … num_frames - 1` once. It is -1 for a packet of which no frame is shown: one that
    gives none, as VP9's hidden reference frames, or one that is only there because others refer to
    it, as the frames before the first of an edit list.

    Raises `ValueError` for what is none.
    """

    packets: tuple[bytes, ...]
    order: tuple[int, ...]

    def __post_init__(self) -> None:
        shown = sorted(number for number in self.order if number != -1)
        if len(self.packets) != len(self.order) or not all(self.packets):
            raise ValueError("a GOP needs a number for each packet, and no packet may be empty")
        if shown != list(range(len(shown))) or not shown:
            raise ValueError("the shown frames of a GOP are not 0, 1, … in some order")
        if len(shown) > MAX_GOP_FRAMES or len(self.packets) > MAX_GOP_PACKETS:
            raise ValueError(
                f"a GOP of {len(shown)} frames in {len(self.packets)} packets; at most "
                f"{MAX_GOP_FRAMES} in {MAX_GOP_PACKETS} are allowed"
            )

    @property
    def num_frames(self) -> int:
        """How many frames it shows."""
        return sum(number != -1 for number in self.order)

    @property
    def nbytes(self) -> int:
        """Bytes of all packets."""
        return sum(map(len, self.packets))
