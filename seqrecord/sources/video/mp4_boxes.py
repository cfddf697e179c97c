"""Tables of MP4 and MOV files, compared with the files' sizes before FFmpeg takes memory for them.

FFmpeg makes an entry of some 30 bytes for each sample that the tables name, and a table may name
them by a number alone. Source: ISO/IEC 14496-12.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from seqrecord.errors import SourceError

MAX_PACKETS = 1 << 24
"""In the tables of a file: three days of 60 frames a second."""

_KINDS = frozenset(b"ftyp moov moof mdat free skip wide styp sidx uuid pnot udta".split())
_CONTAINERS = frozenset(
    b"moov trak mdia minf stbl edts dinf mvex moof traf mfra udta tref wave sinf schi".split()
)
_MOST_LEVELS = 16
_MOST_AUDIO = 64  # samples for a byte of the file
_COUNT_AT = {b"stsz": 8, b"stz2": 8, b"sbgp": 8}  # of the number of entries; 4 in others
_ENTRY_BITS = {  # of a row of a table
    b"stts": 64,
    b"ctts": 64,
    b"stsc": 96,
    b"stco": 32,
    b"co64": 64,
    b"stss": 32,
    b"stps": 32,
    b"stsz": 32,
    b"elst": 96,
    b"sbgp": 64,
    b"trun": 0,
    b"stz2": 0,
}
_FIELDS_OF_TRUN = (0x100, 0x200, 0x400, 0x800)


class _Box(NamedTuple):
    kind: bytes
    start: int  # behind its header
    stop: int


class _Track:
    """What is found of a track: its kind of media, number of samples, and size of each."""

    is_video = False
    samples = 0
    sample_bytes = 0
    descriptions = 1


def check_boxes(file: BinaryIO, path: Path, *, reads_all: bool) -> None:
    """Raises `SourceError` for tables that name more samples than the file can hold, and for a
    track of video whose decoder settings change. A file of another kind passes.

    Without `reads_all`, fragments behind the first one are not looked at: elsewhere than on a disk
    each takes a request.
    """
    nbytes = file.seek(0, io.SEEK_END)
    found = _Found(file, path, nbytes)
    fragments = 0
    for box in found.boxes(0, nbytes):
        if box.kind not in _KINDS:
            return
        fragments += box.kind == b"moof"
        if fragments > 1 and not reads_all:
            return
        found.look_into(box, _Track(), 0)


class _Found:
    def __init__(self, file: BinaryIO, path: Path, nbytes: int) -> None:
        self._file, self._path, self._nbytes = file, path, nbytes
        self._in_fragments = 0  # samples

    def boxes(self, start: int, stop: int) -> Iterator[_Box]:
        """Those that follow each other; it ends where one is broken, which FFmpeg judges."""
        while start + 8 <= stop:
            head = self._read(start, 16)
            size, kind, begin = int.from_bytes(head[:4], "big"), head[4:8], start + 8
            if size == 1:
                size, begin = int.from_bytes(head[8:], "big"), start + 16
            end = stop if size == 0 else start + size
            if end < begin:
                return
            yield _Box(kind, begin, min(end, stop))
            start = end

    def look_into(self, box: _Box, track: _Track, level: int) -> None:
        """Look at a box and those in it."""
        if box.kind == b"cmov":
            raise self._refused("a video with a compressed header", box, "one that is not", "cmov")
        if box.kind in _CONTAINERS and level < _MOST_LEVELS:
            inner = _Track() if box.kind == b"trak" else track
            for each in self.boxes(box.start, box.stop):
                self.look_into(each, inner, level + 1)
            if box.kind == b"trak":
                self._check_track(inner, box)
        elif box.kind == b"hdlr":
            track.is_video = self._read(box.start + 8, 4) == b"vide"
        elif box.kind == b"stsd":
            track.descriptions = int.from_bytes(self._read(box.start + 4, 4), "big")
        elif box.kind in _ENTRY_BITS:
            self._check_table(box, track)

    def _check_table(self, box: _Box, track: _Track) -> None:
        at = _COUNT_AT.get(box.kind, 4)
        head = self._read(box.start, 16)
        if box.kind == b"sbgp" and head[:1] == b"\1":
            at += 4
        count, bits = int.from_bytes(head[at : at + 4], "big"), _ENTRY_BITS[box.kind]
        if box.kind == b"stsz":
            track.samples, track.sample_bytes = count, int.from_bytes(head[4:8], "big")
            bits = 0 if track.sample_bytes else bits
        elif box.kind == b"stz2":
            track.samples, bits = count, head[7] if len(head) > 7 else 0
        elif box.kind == b"trun":
            flags = int.from_bytes(head[1:4], "big")
            bits = 32 * sum(bool(flags & each) for each in _FIELDS_OF_TRUN)
            self._in_fragments += count
            if self._in_fragments > self._nbytes:
                raise self._too_many(box, self._nbytes, self._in_fragments)
        if count * bits > 8 * max(0, box.stop - box.start - at - 4):
            raise self._refused(
                "a video with a table that is larger than its box",
                box,
                f"at most {box.stop - box.start} bytes",
                f"{count} entries of {bits // 8} bytes in {box.kind.decode()}",
            )

    def _check_track(self, track: _Track, box: _Box) -> None:
        most = self._nbytes // max(1, track.sample_bytes)
        most = min(most, MAX_PACKETS) if track.is_video else most * _MOST_AUDIO
        if track.samples > most:
            raise self._too_many(box, most, track.samples)
        if track.is_video and track.descriptions > 1:
            raise self._refused(
                "a video whose decoder settings change: re-encode it, as with "
                "ffmpeg -i IN -c:v libx264 OUT",
                box,
                "1 sample description",
                track.descriptions,
            )

    def _too_many(self, box: _Box, most: int, count: int) -> SourceError:
        what = "a video whose tables name more packets than it can hold"
        return self._refused(what, box, f"at most {most}, in {self._nbytes} bytes", count)

    def _refused(self, message: str, box: _Box, expected: str, got: object) -> SourceError:
        at = box.start - 8
        return SourceError(message, file=str(self._path), offset=at, expected=expected, got=got)

    def _read(self, at: int, count: int) -> bytes:
        self._file.seek(at)
        return self._file.read(count)
