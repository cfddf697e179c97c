"""Pages of video: whole groups of pictures. The normative text is docs/format.md.

::

    │ p u32 │ offsets u32 [p + 1] │ frames u32 [p] │ packet 0 │ packet 1 │ …
    │ p u32 + 2^30 │ offsets u32 [p + 1] │ frames u32 [p] │ n u32 │ config, n bytes │ packet 0 │ …

Offsets count from the page's start; the first is that of packet 0, the last is the page's length.
`frames` is the number of each packet's frame in the page, or `NOT_SHOWN`. Its highest bit is set
at the first packet of each group of pictures. `config` is the JSON of a video configuration that
replaces the feature's, for packets of another codec or pixel format.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import CodecError, FormatError, FrameError, SchemaError
from seqrecord.store.feature_kinds import is_image, known_kind
from seqrecord.store.format.pages import MAX_PAGE_BYTES
from seqrecord.store.format.text import parse_json
from seqrecord.store.schema import FeatureSpec
from seqrecord.video.config import VideoConfig, video_config
from seqrecord.video.gops import MAX_GOP_FRAMES, MAX_GOP_PACKETS, Gop

if TYPE_CHECKING:
    from seqrecord.video.decoding import GopFrames

BEGINS = 1 << 31  # in `frames`: first packet of a group of pictures
NOT_SHOWN = BEGINS - 1  # in `frames`: the packet shows no frame
OWN_CONFIG = 1 << 30  # in the number of packets: the page has a configuration of its own
MAX_CONFIG = 1 << 10  # bytes


@dataclass(frozen=True, eq=False)
class VideoTable:
    """Parsed table of a video page.

    `order` is each packet's frame, -1 if not shown. `first_packet` and `first_frame` are the
    bounds of the groups of pictures, in packets and in frames.
    """

    offsets: npt.NDArray[np.int64]  # [packets + 1]
    order: npt.NDArray[np.int64]  # [packets], in the page
    first_packet: npt.NDArray[np.int64]  # [groups + 1]
    first_frame: npt.NDArray[np.int64]  # [groups + 1]
    config: VideoConfig | None = None  # instead of the feature's


class VideoPageCodec:
    """Encodes and decodes the pages of one video feature. Thread-safe.

    `smooth` selects interpolation when frames are resized: true for images, false for other kinds
    such as masks. Raises `SchemaError` for an unknown configuration.
    """

    def __init__(self, spec: FeatureSpec) -> None:
        self.spec = spec
        try:
            self.config = video_config(spec.codec, spec.dtype, spec.stored.shape)
        except ValueError as error:
            raise SchemaError(
                "this codec is not allowed", feature=spec.name, got=str(error)
            ) from error
        self.height, self.width = (n or 0 for n in spec.stored.shape[:2])
        self.smooth = is_image(spec, known_kind(spec.name, spec, spec.kind))

    def join(self, gops: Sequence[Gop]) -> bytes:
        """Encode groups of pictures of one configuration as a page, empty for none.

        Raises `FrameError` if it is too large.
        """
        if not gops:
            return b""
        config = self.own_config(gops[0].config)
        packets = [packet for gop in gops for packet in gop.packets]
        numbers: list[int] = []
        first = 0
        for gop in gops:
            own = [NOT_SHOWN if n < 0 else first + n for n in gop.order]
            own[0] |= BEGINS
            numbers += own
            first += gop.num_frames
        try:
            return page_of_packets(packets, np.array(numbers, np.uint32), config)
        except ValueError as error:
            raise FrameError(
                "a page is too large",
                feature=self.spec.name,
                expected=f"at most {MAX_PAGE_BYTES} bytes",
                got=str(error),
            ) from None

    def cut(self, page: memoryview, count: int, positions: range) -> bytes:
        """Return the page of some consecutive frames of a page with `count` frames.

        Nothing is decoded: whole groups of pictures remain, up to the last packet of a chosen
        frame. Packets of other frames become packets without a shown frame.
        """
        if not positions:
            return b""
        table = self.parse(page, count)
        shown = (table.order >= positions.start) & (table.order < positions.stop)
        group = int(np.searchsorted(table.first_frame, positions.start, side="right")) - 1
        some = slice(int(table.first_packet[group]), int(np.flatnonzero(shown)[-1]) + 1)
        frames = np.where(shown, table.order - positions.start, NOT_SHOWN)[some].astype(np.uint32)
        begins = table.first_packet[group:-1] - some.start
        frames[begins[begins < len(frames)]] |= np.uint32(BEGINS)
        bounds = table.offsets[some.start : some.stop + 1].tolist()
        packets = [bytes(page[a:b]) for a, b in pairwise(bounds)]
        return page_of_packets(packets, frames, table.config)

    def parse(self, page: memoryview, count: int) -> VideoTable:
        """Parse and check the table of a page of `count` frames; see `parse_video_page`."""
        return parse_video_page(page, count, self.spec.name)

    def own_config(self, config: VideoConfig | None) -> VideoConfig | None:
        """Return the configuration that a page needs for packets of `config`; `None` for the
        feature's.

        Raises `FrameError` if frames have another dtype.
        """
        if config is None or config.decoding == self.config.decoding:
            return None
        if config.dtype != self.config.dtype:
            raise FrameError(
                "video of another dtype",
                feature=self.spec.name,
                expected=self.config.dtype,
                got=f"{config.dtype} of {config.pixel_format}",
            )
        return config.decoding

    def reader(
        self,
        page: memoryview,
        count: int,
        make: Callable[[VideoPageCodec, memoryview, VideoTable], Any] | None = None,
    ) -> Any:
        """Parse the table of a page of `count` frames and return a `VideoReader`.

        `make` creates another reader with the same methods.
        """
        table = parse_video_page(page, count, self.spec.name)
        if table.config is not None and table.config.dtype != self.config.dtype:
            raise FormatError(
                "a page of video of another dtype",
                feature=self.spec.name,
                offset=0,
                expected=self.config.dtype,
                got=table.config.pixel_format,
            )
        return (make or VideoReader)(self, page, table)


class VideoReader:
    """Reads frames of one page. Not thread-safe.

    The decoder keeps its position. Frames read in order are decoded once, in any number of calls.
    `num_decoded` counts decoded frames, including frames needed only as references for others.
    """

    def __init__(self, codec: VideoPageCodec, page: memoryview, table: VideoTable) -> None:
        self.num_decoded = 0
        self._codec, self._page, self._table = codec, page, table
        self._group = -1
        self._frames: GopFrames | None = None

    def decode_into(
        self,
        positions: Sequence[int] | range,
        out: Sequence[npt.NDArray[Any]] | npt.NDArray[Any],
    ) -> None:
        """Decode frames of the page into `out[i]`, C-contiguous, in the cheapest order.

        Raises `CodecError` with the group's offset in the page if decoding fails.
        """
        last, target = -1, None
        for i in np.argsort(np.asarray(positions, np.int64), kind="stable").tolist():
            if (position := positions[i]) == last:
                assert target is not None
                np.copyto(out[i], target)
                continue
            self._read(position, out[i])
            last, target = position, out[i]

    def _read(self, position: int, out: npt.NDArray[Any]) -> None:
        table = self._table
        group = int(np.searchsorted(table.first_frame, position, side="right")) - 1
        inside = position - int(table.first_frame[group])
        try:
            if self._frames is None or group != self._group or inside < self._frames.position:
                self._frames, self._group = self._open(group), group
            before = self._frames.position
            self._frames.skip(inside - before)
            self._frames.read_into(out, smooth=self._codec.smooth)
            self.num_decoded += inside + 1 - before
        except CodecError as error:
            self._frames = None
            offset = int(table.offsets[table.first_packet[group]])
            raise error.located(feature=self._codec.spec.name, offset=offset) from error.__cause__

    def _open(self, group: int) -> GopFrames:
        table, codec = self._table, self._codec
        start, stop = table.first_packet[group : group + 2].tolist()
        ends = table.offsets[start : stop + 1].tolist()
        packets = [np.frombuffer(self._page[a:b], np.uint8) for a, b in pairwise(ends)]
        order = table.order[start:stop]
        inside = np.where(order < 0, -1, order - table.first_frame[group]).tolist()
        config = table.config or codec.config
        from seqrecord.video.decoding import GopFrames  # with the first decoded frame

        return GopFrames(config, codec.height, codec.width, packets, inside)


def page_of_packets(
    packets: Sequence[bytes], frames: npt.NDArray[np.uint32], config: VideoConfig | None = None
) -> bytes:
    """Return the page of these packets. `frames`, [p], is each packet's frame number. `config` is
    the packets' configuration if it differs from the feature's.

    Raises `ValueError` if the page would be too large.
    """
    first = _first_packet(len(packets), config)
    offsets = np.cumsum([first, *map(len, packets)], dtype=np.int64)
    if offsets[-1] > MAX_PAGE_BYTES:
        raise ValueError(f"a page of {offsets[-1]} bytes")
    mark = 0 if config is None else OWN_CONFIG
    head = np.array([len(packets) | mark], "<u4").tobytes()
    table = offsets.astype("<u4").tobytes() + frames.astype("<u4").tobytes()
    return b"".join((head, table, encode_config(config), *packets))


def encode_config(config: VideoConfig | None) -> bytes:
    """Return the part of a page with a configuration of its own; empty for the feature's."""
    if config is None:
        return b""
    text = json.dumps(config.to_json(), separators=(",", ":")).encode()
    return len(text).to_bytes(4, "little") + text


def parse_config(page: memoryview, at: int, feature: str) -> tuple[VideoConfig, int]:
    """Return the configuration at offset `at` of a page, and the offset of its end.

    Raises `FormatError` if it is invalid.
    """
    size = int.from_bytes(page[at : at + 4], "little")
    end = at + 4 + size
    try:
        if size > MAX_CONFIG or end > len(page):
            raise ValueError(f"{size} bytes in a page of {len(page)} bytes")
        value = parse_json(bytes(page[at + 4 : end]))
        if not isinstance(value, dict):
            raise ValueError("no object")
        return VideoConfig.from_json(value), end
    except (FormatError, ValueError) as error:
        raise FormatError(
            "a page of video with an invalid configuration",
            feature=feature,
            offset=at,
            got=str(error)[:200],
        ) from error


def _first_packet(count: int, config: VideoConfig | None = None) -> int:
    """Return the offset of the first of `count` packets."""
    return 4 + 4 * (2 * count + 1) + len(encode_config(config))


def least_video_bytes(count: Any) -> Any:
    """Return the minimum size of a page of `count` frames: a packet of one byte for each."""
    return 8 + 9 * count


def parse_video_page(page: memoryview, count: int, feature: str) -> VideoTable:
    """Parse and check the table of a page of `count` frames. Raises `FormatError` if invalid."""

    def refuse(what: str, at: int, expected: object, got: object) -> FormatError:
        return FormatError(
            f"a page of video {what}", feature=feature, offset=at, expected=expected, got=got
        )

    size = len(page)
    marked = int(np.frombuffer(page[:4], "<u4")[0]) if size >= 4 else 0
    num_packets, config = marked & ~OWN_CONFIG, None
    begin = tables = _first_packet(num_packets)
    if not max(1, count) <= num_packets <= (size - 8) // 9:
        expected = f"{max(1, count)} or more, in {size} bytes"
        raise refuse("with an impossible number of packets", 0, expected, num_packets)
    if marked & OWN_CONFIG:
        config, begin = parse_config(page, tables, feature)
    numbers = np.frombuffer(page[4:tables], "<u4").astype(np.int64)
    offsets, frames = numbers[: num_packets + 1], numbers[num_packets + 1 :]
    if offsets[0] != begin or offsets[-1] != size or (np.diff(offsets) < 1).any():
        expected = f"{num_packets + 1} that rise from {begin} to {size}"
        raise refuse("whose offsets do not rise, or lead outside it", 4, expected, offsets[[0, -1]])
    begins = frames >= BEGINS
    frames = frames & NOT_SHOWN
    at = 4 + 4 * (num_packets + 1)
    if not begins[0]:
        raise refuse("that does not begin with a group of pictures", at, "its bit set", "not set")
    shown = frames != NOT_SHOWN
    groups = np.cumsum(begins) - 1
    per_group = np.bincount(groups[shown], minlength=int(groups[-1]) + 1)
    first_packet = np.append(np.flatnonzero(begins), num_packets)
    first_frame = np.concatenate([[0], np.cumsum(per_group)])
    # The shown frames, sorted within their groups, must be 0, 1, …, count - 1.
    order = frames[shown][np.lexsort((frames[shown], groups[shown]))]
    if len(order) != count or (order != np.arange(count)).any():
        expected = f"each of {count} frames once, group after group"
        raise refuse("with a frame twice, or missing", at, expected, f"{len(order)} frames")
    if not 1 <= per_group.min() <= per_group.max() <= MAX_GOP_FRAMES:
        expected = f"1 to {MAX_GOP_FRAMES}"
        raise refuse(
            "with a group of an impossible number of frames", at, expected, per_group.max()
        )
    if (most := int(np.diff(first_packet).max())) > MAX_GOP_PACKETS:
        expected = f"at most {MAX_GOP_PACKETS}"
        raise refuse("with a group of too many packets", at, expected, most)
    order = np.where(shown, frames, -1)
    return VideoTable(offsets, order, first_packet, first_frame, config)
