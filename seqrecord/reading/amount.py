"""How much is read and decoded."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Amount:
    """Requests, bytes and decoded frames.

    `requests` go to services; a local disk or a mount needs none. `bytes` include gaps between
    pages. `frames_decoded` counts as `SeqRecordPipe.stats` does; `video_frames_decoded` is the most
    that it can count.
    """

    requests: int = 0
    bytes: int = 0
    frames_decoded: int = 0
    video_frames_decoded: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, times: int) -> Amount:
        return Amount(*(getattr(self, f.name) * times for f in fields(self)))
