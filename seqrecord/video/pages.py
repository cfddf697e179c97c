"""Pages of video: encoding, cutting and decoding; `page_tables` has their bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import CodecError, FormatError, FrameError
from seqrecord.store.feature_kinds import is_image, known_kind
from seqrecord.store.format.page_kinds import Blob, Memo, PageCodec
from seqrecord.store.format.pages import MAX_PAGE_BYTES, check_fits
from seqrecord.store.schema import FeatureSpec
from seqrecord.video.config import VideoConfig
from seqrecord.video.decoding import GopFrames
from seqrecord.video.gops import Gop
from seqrecord.video.page_tables import (
    BEGINS,
    NOT_SHOWN,
    VideoTable,
    page_of_packets,
    parse_video_page,
)
from seqrecord.video.references import PacketReference


class VideoPageCodec(PageCodec):
    """Encodes and decodes the pages of one video feature. Thread-safe.

    Frames are collected as arrays, and encoded together by `VideoGroup`. Frames are decoded into
    arrays of any height and width. `smooth` selects interpolation when frames are resized: true for
    images, false for other kinds such as masks. Raises `SchemaError` for an unknown configuration.
    """

    config: VideoConfig

    def __init__(self, spec: FeatureSpec) -> None:
        super().__init__(spec)
        self.height, self.width = (n or 0 for n in spec.stored.shape[:2])
        self.smooth = is_image(spec, known_kind(spec.name, spec, spec.kind))

    def encode_frame(self, frame: Any) -> Blob:
        """Return a frame's bytes in C order: many frames are encoded together later."""
        array = np.asarray(frame)
        check_fits(self.spec, array.dtype, array.shape)
        return Blob(array.astype(self.spec.dtype, copy=False).tobytes(), array.shape)

    def join(self, gops: Sequence[Gop]) -> bytes:
        """Encode groups of pictures with one configuration as a page, empty for none.

        Raises `FrameError` if it is too large.
        """
        if not gops:
            return b""
        config = self.own_config(gops[0].config)
        packets = [packet for gop in gops for packet in gop.packets]
        numbers: list[int] = []
        first_frame = 0
        for gop in gops:
            frame_numbers = [NOT_SHOWN if n < 0 else first_frame + n for n in gop.order]
            frame_numbers[0] |= BEGINS
            numbers += frame_numbers
            first_frame += gop.num_frames
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
        """As `PageCodec.cut`. Whole groups of pictures remain, up to the last packet of a chosen
        frame. Packets of other frames become packets without a shown frame.
        """
        if not positions:
            return b""
        table = self.parse(page, count)
        shown = (table.order >= positions.start) & (table.order < positions.stop)
        group = int(np.searchsorted(table.first_frame, positions.start, side="right")) - 1
        packet_range = slice(int(table.first_packet[group]), int(np.flatnonzero(shown)[-1]) + 1)
        frames = np.where(shown, table.order - positions.start, NOT_SHOWN)[packet_range].astype(
            np.uint32
        )
        begins = table.first_packet[group:-1] - packet_range.start
        frames[begins[begins < len(frames)]] |= np.uint32(BEGINS)
        bounds = table.offsets[packet_range.start : packet_range.stop + 1].tolist()
        packets = [bytes(page[a:b]) for a, b in pairwise(bounds)]
        return page_of_packets(packets, frames, table.config)

    def decode_into(
        self,
        page: memoryview,
        count: int,
        out: Sequence[npt.NDArray[Any]] | npt.NDArray[Any],
        positions: Sequence[int] | range | None = None,
        memo: Memo | None = None,
    ) -> None:
        """As `PageCodec.decode_into`, in the cheapest order. `memo` keeps the reader, which decodes
        on from its last frame; `open_video` in it creates a device's reader.
        """
        memo = {} if memo is None else memo
        if (reader := memo.get("video")) is None:
            reader = memo["video"] = self.reader(page, count, memo.get("open_video"))
        reader.decode_into(range(count) if positions is None else positions, out)

    def runs(self, page: memoryview, count: int) -> npt.NDArray[np.int64]:
        return self.parse(page, count).first_frame

    def reference(self, page: memoryview, length: int, count: int) -> PacketReference:  # noqa: ARG002
        return PacketReference.parse(page, length, self.spec.name)

    def resolve(self, reference: PacketReference, data: memoryview) -> memoryview:
        return reference.page(data, self.config.codec)

    def num_decoded(self, memo: Memo) -> int:
        reader: VideoReader | None = memo.get("video")
        return 0 if reader is None else reader.num_decoded

    def parse(self, page: memoryview, count: int) -> VideoTable:
        """Parse and check the table of a page with `count` frames; see `parse_video_page`."""
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
        """Parse the table of a page with `count` frames and return a `VideoReader`.

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
        previous, target = -1, None
        # In the order of the file, whatever the request: a decoder cannot go back.
        # tests/video/test_video_pages.py::test_frames_are_decoded_once_for_any_request
        for i in np.argsort(np.asarray(positions, np.int64), kind="stable").tolist():
            if (position := positions[i]) == previous:
                assert target is not None
                np.copyto(out[i], target)
                continue
            self._read(position, out[i])
            previous, target = position, out[i]

    def _read(self, position: int, out: npt.NDArray[Any]) -> None:
        table = self._table
        group = int(np.searchsorted(table.first_frame, position, side="right")) - 1
        group_position = position - int(table.first_frame[group])
        try:
            if (
                self._frames is None
                or group != self._group
                or group_position < self._frames.position
            ):
                self._frames, self._group = self._open(group), group
            begin = self._frames.position
            self._frames.skip(group_position - begin)
            self._frames.read_into(out, smooth=self._codec.smooth)
            self.num_decoded += group_position + 1 - begin
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
        group_order = np.where(order < 0, -1, order - table.first_frame[group]).tolist()
        config = table.config or codec.config
        return GopFrames(config, codec.height, codec.width, packets, group_order)
