"""Check the elements of Matroska and WebM files, whose ends FFmpeg does not miss.

Every element declares its size, so a cut file ends inside one, and a hole breaks their sequence.
Live recordings declare no size for segments and clusters; their last element must be complete.
Format: RFC 8794 (EBML) and RFC 9559 (Matroska).
"""

from __future__ import annotations

import zlib
from collections import Counter
from typing import NamedTuple

from seqrecord.formats.sources.video.file_bytes import (
    UNVERIFIABLE,
    Contents,
    FileBytes,
    StreamFacts,
    early_end,
)

_EBML, _SEGMENT, _CLUSTER = 0x1A45DFA3, 0x18538067, 0x1F43B675
_INFO, _TRACKS, _TRACK = 0x1549A966, 0x1654AE6B, 0xAE
_TRACK_NUMBER, _TRACK_TYPE, _TIME_SCALE = 0xD7, 0x83, 0x2AD7B1
_TIME, _CRC, _BLOCKS = 0xE7, 0xBF, 0xA0
_SIMPLE_BLOCK, _BLOCK, _BLOCK_DURATION = 0xA3, 0xA1, 0x9B
_OPENED = frozenset((_INFO, _TRACKS, _TRACK, _BLOCKS))  # elements whose children are read
_TOP = frozenset((_EBML, _SEGMENT))
_OF_SEGMENT = frozenset(
    (_CLUSTER, _INFO, _TRACKS, 0x1C53BB6B, 0x1254C367, 0x114D9B74, 0x1043A770, 0x1941A469)
)
_OPEN_ENDED = frozenset((_SEGMENT, _CLUSTER))
_VIDEO = 1
_MAX_ELEMENTS = 1 << 22  # half a minute
_MAX_TRACKS = 1 << 10  # FFmpeg takes fewer streams
_HEAD = 12  # most bytes of an ID and a size
_LACING, _LACED = 0b110, -1
_MOST_SHOWN = 10
_CRC_BYTES = 6
_CRC_BLOCK = 1 << 20


class _Element(NamedTuple):
    id: int
    at: int
    start: int  # of its content
    stop: int | None  # None if its size is unknown


class _Level(NamedTuple):
    """An element whose children are being read; without `stop`, up to the end of its parent."""

    id: int
    stop: int | None


def check_matroska(data: FileBytes, stream: StreamFacts) -> Contents:
    """Return what a file of complete elements contains.

    Raises `SourceError` for an element that ends behind the file or its parent, for bytes that are
    no element, and for a cluster whose checksum differs.
    """
    checker = _Elements(data)
    checker.check()
    frames_end = checker.end_of(stream)
    notes = checker.notes + (early_end(stream.end, frames_end, stream.step) if frames_end else [])
    return Contents(tuple(notes), checker.packets_of(stream))


class _Elements:
    def __init__(self, data: FileBytes) -> None:
        self._data = data
        self.notes: list[str] = []
        self._levels: list[_Level] = []
        self._scale = 1_000_000  # nanoseconds
        self._time = self._last_time = 0
        self._track = 0
        self._videos: list[int] = []
        self._tracks: set[int] = set()
        self._track_ends: dict[int, int] = {}
        self._packets: Counter[int] = Counter()
        self._has_all = False

    def end_of(self, stream: StreamFacts) -> float:
        """Return the end of a stream's last frame in seconds; 0 if it is unknown."""
        if not 0 <= stream.number < len(self._videos):
            return 0
        last_tick = self._track_ends.get(self._videos[stream.number])
        return 0 if last_tick is None else last_tick * self._scale / 1e9 + stream.step

    def packets_of(self, stream: StreamFacts) -> int | None:
        """Return a stream's number of blocks; `None` if some have several frames."""
        if not self._has_all or not 0 <= stream.number < len(self._videos):
            return None
        return self._packets[self._videos[stream.number]]

    def check(self) -> None:
        at = 0
        for _ in range(_MAX_ELEMENTS):
            if at >= self._data.nbytes:
                self._has_all = _LACED not in self._packets
                self._check_levels(at)
                return
            self._leave(at)
            element = self._read(at)
            if element is None:
                self.notes.append(self._data.rest(at))
                return
            if element.id == _CLUSTER and not self._data.is_whole:
                return
            at = self._enter(element)
        self.notes.append(f"not checked from byte {at} on: more than {_MAX_ELEMENTS} elements")

    def _check_levels(self, at: int) -> None:
        """Elements with a size were compared with the file when they began."""
        self._leave(at)
        if self._levels and UNVERIFIABLE not in self.notes:
            self.notes.append(UNVERIFIABLE)

    def _leave(self, at: int) -> None:
        while self._levels and self._levels[-1].stop is not None and at >= self._levels[-1].stop:
            self._levels.pop()

    @property
    def _limit(self) -> int | None:
        return next(
            (level.stop for level in reversed(self._levels) if level.stop is not None), None
        )

    def _read(self, at: int) -> _Element | None:
        """Return the element at an offset; `None` for zeros or other bytes after all elements."""
        data, limit = self._data, self._limit
        head = data.read(at, _HEAD)
        id_bytes = 9 - head[0].bit_length()
        number = int.from_bytes(head[:id_bytes], "big")
        size_bytes = 9 - head[id_bytes].bit_length() if id_bytes < len(head) else 1
        is_valid = id_bytes <= 4 and size_bytes <= 8 and number + 1 != 2 << (7 * id_bytes)
        is_inside = bool(self._levels) or number in _TOP
        if not is_inside and at:
            return None
        if not is_valid:
            if limit is None and (data.are_zeros(at) or (head[0] and not self._continues(at))):
                return None
            raise data.damaged("no element where one must begin", at, "an EBML ID", head[:4].hex())
        start = at + id_bytes + size_bytes
        if start > data.nbytes:
            raise data.truncated(at, "the head of an element", start)
        size = int.from_bytes(head[id_bytes : id_bytes + size_bytes], "big")
        mask = (1 << (7 * size_bytes)) - 1
        size &= mask
        if size == mask:
            if number not in _OPEN_ENDED:
                raise data.damaged("an element without a size", at, "a size", f"{number:#x}")
            return _Element(number, at, start, None)
        stop = start + size
        if stop > data.nbytes:
            raise data.truncated(at, _name(number), stop)
        if limit is not None and stop > limit and number not in _TOP:
            message = f"{_name(number)} is larger than the element around it"
            raise data.damaged(message, at, f"up to byte {limit}", stop)
        return _Element(number, at, start, stop)

    def _continues(self, at: int) -> bool:
        """Return whether another cluster follows after bytes that are no element."""
        return self._data.contains(at, _CLUSTER.to_bytes(4, "big"))

    def _enter(self, element: _Element) -> int:
        """Take an element's content; returns where to read on."""
        number, start, stop = element.id, element.start, element.stop
        if number in _TOP:
            self._levels.clear()
        elif number in _OF_SEGMENT:
            while self._levels and self._levels[-1].id != _SEGMENT:
                self._levels.pop()  # a cluster of unknown size ends here
        if number in _OPEN_ENDED or number in _OPENED:
            self._levels.append(_Level(number, stop))
            if number == _CLUSTER and stop is not None:
                self._check_crc(element, stop)
            return start
        assert stop is not None
        self._take(number, start, stop)
        return stop

    def _take(self, number: int, start: int, stop: int) -> None:
        data, count = self._data, min(stop - start, 8)
        if number == _TIME:
            self._time = data.number(start, count)
        elif number == _TIME_SCALE:
            self._scale = data.number(start, count)
        elif number == _TRACK_NUMBER:
            self._track = data.number(start, count)
            self._tracks.add(self._track)
            if len(self._tracks) > _MAX_TRACKS:
                raise data.damaged("too many tracks", start, _MAX_TRACKS, len(self._tracks))
        elif number == _TRACK_TYPE and data.number(start, count) == _VIDEO:
            self._videos.append(self._track)
        elif number in (_SIMPLE_BLOCK, _BLOCK):
            self._take_block(start, stop)
        elif number == _BLOCK_DURATION and self._track in self._track_ends:
            end = self._last_time + data.number(start, count)
            self._track_ends[self._track] = max(end, self._track_ends[self._track])

    def _take_block(self, start: int, stop: int) -> None:
        """Take track and time of a block: a number, int16 and flags in front of its frames."""
        head = self._data.read(start, min(_HEAD, stop - start))
        length = 9 - head[0].bit_length() if head else _HEAD
        track = int.from_bytes(head[:length], "big") - (1 << (7 * length))
        if len(head) < length + 3 or track not in self._tracks:
            expected = f"a track of {sorted(self._tracks)[:_MOST_SHOWN]}"
            raise self._data.damaged("a block of no track", start, expected, head[:4].hex())
        time = int.from_bytes(head[length : length + 2], "big", signed=True)
        self._track, self._last_time = track, self._time + time
        self._track_ends[track] = max(self._track_ends.get(track, self._last_time), self._last_time)
        self._packets[_LACED if head[length + 2] & _LACING else track] += 1

    def _check_crc(self, cluster: _Element, stop: int) -> None:
        """Compare a cluster with its checksum, the first child if there is one."""
        data, at = self._data, cluster.start + _CRC_BYTES
        head = data.read(cluster.start, _CRC_BYTES)
        if len(head) < _CRC_BYTES or head[0] != _CRC or head[1] != 0x84 or at > stop:
            return
        crc = 0
        while at < stop:
            block = data.read(at, min(_CRC_BLOCK, stop - at))
            if not block:
                return
            crc, at = zlib.crc32(block, crc), at + len(block)
        if crc != (declared := int.from_bytes(head[2:], "little")):
            raise data.damaged(
                "the checksum of a cluster differs", cluster.at, f"{declared:#010x}", f"{crc:#010x}"
            )


def _name(number: int) -> str:
    names = {_SEGMENT: "the segment", _CLUSTER: "a cluster", _SIMPLE_BLOCK: "a block"}
    return names.get(number, f"element {number:#x}")
