"""Bytes of video pages: whole groups of pictures. The normative text is docs/format.md.

::

    │ p u32 │ offsets u32 [p + 1] │ frames u32 [p] │ packet 0 │ packet 1 │ …
    │ p u32 + 2^30 │ offsets u32 [p + 1] │ frames u32 [p] │ n u32 │ config, n bytes │ packet 0 │ …

Offsets count from the page's start; the first is that of packet 0, the last is the page's length.
`frames` is the number of each packet's frame in the page, or `NOT_SHOWN`. Its highest bit is set
at each first packet in a group of pictures. `config` is the JSON of a video configuration that
replaces the feature's, for packets of another codec or pixel format.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import FormatError
from seqrecord.store.format.pages import MAX_PAGE_BYTES
from seqrecord.store.format.text import parse_json
from seqrecord.video.config import VideoConfig
from seqrecord.video.gops import MAX_GOP_FRAMES, MAX_GOP_PACKETS

BEGINS = 1 << 31  # in `frames`: first packet of a group of pictures
NOT_SHOWN = BEGINS - 1  # in `frames`: the packet shows no frame
OWN_CONFIG = 1 << 30  # in the number of packets: the page has a configuration of its own
MAX_CONFIG = 1 << 10  # bytes


@dataclass(frozen=True, eq=False)
class VideoTable:
    """Parsed table of a video page.

    `order` is each packet's frame, -1 if not shown. `first_packet` and `first_frame` are the
    bounds that divide packets and frames into groups of pictures.
    """

    offsets: npt.NDArray[np.int64]  # [packets + 1]
    order: npt.NDArray[np.int64]  # [packets], in the page
    first_packet: npt.NDArray[np.int64]  # [groups + 1]
    first_frame: npt.NDArray[np.int64]  # [groups + 1]
    config: VideoConfig | None = None  # instead of the feature's


def page_of_packets(
    packets: Sequence[bytes], frames: npt.NDArray[np.uint32], config: VideoConfig | None = None
) -> bytes:
    """Return the page of these packets. `frames`, [p], is each packet's frame number. `config` is
    the packets' configuration if it differs from the feature's.

    Raises `ValueError` if the page would be too large.
    """
    packets_start = _first_packet(len(packets), config)
    offsets = np.cumsum([packets_start, *map(len, packets)], dtype=np.int64)
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
    """Return the offset of the first packet, in a page with `count`."""
    return 4 + 4 * (2 * count + 1) + len(encode_config(config))


def min_video_bytes(count: Any) -> Any:
    """Return the minimum size of a page with `count` frames: a packet of one byte for each."""
    return 8 + 9 * count


def parse_video_page(page: memoryview, count: int, feature: str) -> VideoTable:
    """Parse and check the table of a page with `count` frames. Raises `FormatError` if invalid."""

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
    if (max_packets := int(np.diff(first_packet).max())) > MAX_GOP_PACKETS:
        expected = f"at most {MAX_GOP_PACKETS}"
        raise refuse("with a group of too many packets", at, expected, max_packets)
    order = np.where(shown, frames, -1)
    return VideoTable(offsets, order, first_packet, first_frame, config)
