"""Cost of reading, in requests, bytes and decoded frames."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class ReadCost:
    """Requests, bytes and decoded frames.

    `requests` are requests to a storage service, 0 for local disks and mounts. `bytes` include gaps
    between pages. `frames_decoded` is counted like `SeqRecordPipe.stats`; `video_frames_decoded` is
    its upper bound for video.

    Example:
        from seqrecord.types import ReadCost

        print(ReadCost(requests=1, bytes=4096) + ReadCost(requests=2, bytes=1024) * 3)
    """

    requests: int = 0
    bytes: int = 0
    frames_decoded: int = 0
    video_frames_decoded: int = 0

    def __add__(self, other: ReadCost) -> ReadCost:
        return ReadCost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, times: int) -> ReadCost:
        return ReadCost(*(getattr(self, f.name) * times for f in fields(self)))
