"""References to video: pages whose packets are in the files of an original.

The normative text is docs/format.md. Beside the tables of all references, see
`store.format.references`, a page has the container's codec configuration, and may have a video
configuration of its own::

    │ p u32 + 2^31 │ list u64 │ file u32 │ crc32c u32 │ start u64 │ extradata u32 │
    │ offsets u32 [p] │ sizes u32 [p] │ frames u32 [p] │ config │ extradata │

Packet i is the bytes `[start + offsets[i], start + offsets[i] + sizes[i])` of the file, as its
container stores it. `config` is there if p has the mark 2^30, as in a page with packets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from seqrecord.errors import FormatError
from seqrecord.store.format.references import (
    HEAD,
    MAX_EXTRADATA,
    Reference,
    count_items,
    parse_items,
)
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.storage.ranges import ByteRange
from seqrecord.video.config import VideoConfig
from seqrecord.video.packets import packet_format
from seqrecord.video.page_tables import (
    BEGINS,
    NOT_SHOWN,
    OWN_CONFIG,
    encode_config,
    page_of_packets,
    parse_config,
)


@dataclass(frozen=True, eq=False)
class ReferencedGops:
    """Closed groups of pictures in one external file; g groups, p packets.

    Packet i is the bytes `[starts[i], starts[i] + sizes[i])` of `file` and shows the frame
    `order[i]` of its group, -1 for none. Groups begin at packets `group_starts`. `extradata` is the
    container's codec configuration.
    """

    file: str
    extradata: bytes
    starts: npt.NDArray[np.int64]  # [p], ascending
    sizes: npt.NDArray[np.int64]  # [p]
    order: npt.NDArray[np.int64]  # [p]
    group_starts: npt.NDArray[np.int64]  # [g]
    config: VideoConfig | None = None  # as in `Gop`

    @cached_property
    def num_frames(self) -> npt.NDArray[np.int64]:
        """Number of frames shown by each group, int64 [g]."""
        counts: npt.NDArray[np.int64] = np.add.reduceat(
            self.order >= 0, self.group_starts, dtype=np.int64
        )
        return counts

    def pages(self, max_frames: int, max_bytes: int) -> list[range]:
        """Divide the groups into pages: ranges of group numbers.

        A page has at most `max_frames` frames and spans at most `max_bytes` of the file, but has
        at least one group.
        """
        ends = self.starts + self.sizes
        stops = [*ends[self.group_starts[1:] - 1].tolist(), int(ends[-1])]
        starts = self.starts[self.group_starts].tolist()
        begin = frames = 0
        ranges: list[range] = []
        for group, count in enumerate(self.num_frames.tolist()):
            is_long = frames + count > max_frames or stops[group] - starts[begin] > max_bytes
            if group > begin and is_long:
                ranges.append(range(begin, group))
                begin, frames = group, 0
            frames += count
        return [*ranges, range(begin, len(starts))]


@dataclass(frozen=True, eq=False, kw_only=True)
class PacketReference(Reference):
    """A page whose packets are in an external file.

    `frames` are as in a video page. `extradata` is the container's codec configuration, `config`
    that of the packets, instead of the feature's.
    """

    config: VideoConfig | None = None

    @classmethod
    def of(
        cls, gops: ReferencedGops, pages: Sequence[range], list_id: str, file: int
    ) -> list[PacketReference]:
        """Create references to groups of pictures, one for each of `ReferencedGops.pages`."""
        bounds = [*gops.group_starts[[page.start for page in pages]].tolist(), len(gops.starts)]
        frame_starts = np.cumsum(gops.num_frames) - gops.num_frames
        for page in pages:
            frame_starts[page.start : page.stop] -= frame_starts[page.start]
        packets = np.concatenate((gops.group_starts[1:], [len(gops.starts)])) - gops.group_starts
        frames = np.where(gops.order < 0, NOT_SHOWN, np.repeat(frame_starts, packets) + gops.order)
        frames = frames.astype(np.uint32)
        frames[gops.group_starts] |= np.uint32(BEGINS)
        return [
            cls(
                list_id=list_id,
                file=file,
                start=int(gops.starts[begin]),
                offsets=gops.starts[begin:stop] - int(gops.starts[begin]),
                sizes=gops.sizes[begin:stop],
                frames=frames[begin:stop],
                extradata=gops.extradata,
                config=gops.config,
            )
            for begin, stop in pairwise(bounds)
        ]

    @classmethod
    def parse(cls, page: memoryview, length: int, feature: str) -> PacketReference:
        """Parse a page of references to a range of `length` bytes. Validates all input.

        Raises `FormatError` with the offset in the page. `parse_video_page` later checks that each
        frame appears once.
        """
        marked, config = count_items(page, feature), None
        count = marked & ~OWN_CONFIG
        begin = HEAD.size + 12 * count
        if marked & OWN_CONFIG and begin <= len(page):
            config, begin = parse_config(page, begin, feature)
        fields = parse_items(
            *(page, length, feature),
            count=count,
            begin=begin,
            max_extradata=MAX_EXTRADATA,
            has_gaps=True,
        )
        return cls(**fields, config=config)

    def encode(self) -> bytes:
        marks = 0 if self.config is None else OWN_CONFIG
        return self._encoded(marks, encode_config(self.config))

    @property
    def length(self) -> int:
        return self.stop - self.start

    def ranges(self) -> list[ByteRange]:
        return [ByteRange(self.start, self.stop)]

    def page(self, data: memoryview, codec: str) -> memoryview:
        """Return the page with the packets themselves, given the bytes of the range.

        `codec` is the feature's codec. Raises `ChecksumError` if the range changed since it was
        indexed, `FormatError` for invalid extradata.
        """
        self.check(data)
        try:
            form = packet_format(
                codec if self.config is None else self.config.codec, self.extradata
            )
        except ValueError as error:
            raise FormatError(f"a page of references: {error}") from error
        begins = (self.frames >= BEGINS).tolist()
        places = zip(self.offsets.tolist(), self.sizes.tolist(), begins, strict=True)
        packets = [form.bare_packet(bytes(data[a : a + n]), is_start) for a, n, is_start in places]
        try:
            return memoryview(page_of_packets(packets, self.frames, self.config))
        except ValueError as error:
            raise FormatError(f"a page of references to too many bytes: {error}") from error
