"""Check the tables of MP4 and MOV files against the file size, before FFmpeg allocates memory.

FFmpeg allocates about 30 bytes per sample in the tables, and a table can declare samples by a
single number. Format: ISO/IEC 14496-12.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from seqrecord.errors import SourceError

MAX_PACKETS = 1 << 24
"""Maximum packets in the tables of a file: three days at 60 frames per second."""

_KINDS = frozenset(b"ftyp moov moof mdat free skip wide styp sidx uuid pnot udta".split())
_CONTAINERS = frozenset(
    b"moov trak mdia minf stbl edts dinf mvex moof traf mfra udta tref wave sinf schi".split()
)
_MOST_LEVELS = 16
_MOST_AUDIO = 64  # samples per byte of the file
_COUNT_AT = {b"stsz": 8, b"stz2": 8, b"sbgp": 8}  # offset of the entry count; 4 in others
_ENTRY_BITS = {  # bits per table row
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
    start: int  # after its header
    stop: int


class _Track:
    """A track: kind of media, number of samples, and bytes per sample."""

    is_video = False
    samples = 0
    sample_bytes = 0
    descriptions = 1


def check_boxes(file: BinaryIO, path: Path, *, reads_all: bool) -> None:
    """Raise `SourceError` if tables declare too many samples, or if decoder settings change.

    Files of other formats pass. Without `reads_all`, only the first fragment is checked: on a URL
    each one takes a request.
    """
    nbytes = file.seek(0, io.SEEK_END)
    checker = _BoxChecker(file, path, nbytes)
    fragments = 0
    for box in checker.boxes(0, nbytes):
        if box.kind not in _KINDS:
            return
        fragments += box.kind == b"moof"
        if fragments > 1 and not reads_all:
            return
        checker.check(box, _Track(), 0)


class _BoxChecker:
    def __init__(self, file: BinaryIO, path: Path, nbytes: int) -> None:
        self._file, self._path, self._nbytes = file, path, nbytes
        self._in_fragments = 0  # samples

    def boxes(self, start: int, stop: int) -> Iterator[_Box]:
        """Yield consecutive boxes up to the first broken one, which is left to FFmpeg."""
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

    def check(self, box: _Box, track: _Track, level: int) -> None:
        """Check a box and the boxes inside."""
        if box.kind == b"cmov":
            raise self._error("compressed video header", box, "an uncompressed one", "cmov")
        if box.kind in _CONTAINERS and level < _MOST_LEVELS:
            inner_track = _Track() if box.kind == b"trak" else track
            for child in self.boxes(box.start, box.stop):
                self.check(child, inner_track, level + 1)
            if box.kind == b"trak":
                self._check_track(inner_track, box)
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
            bits = 32 * sum(bool(flags & field) for field in _FIELDS_OF_TRUN)
            self._in_fragments += count
            if self._in_fragments > self._nbytes:
                raise self._too_many(box, self._nbytes, self._in_fragments)
        if count * bits > 8 * max(0, box.stop - box.start - at - 4):
            raise self._error(
                "a table of the video is larger than its box",
                box,
                f"at most {box.stop - box.start} bytes",
                f"{count} entries of {bits // 8} bytes in {box.kind.decode()}",
            )

    def _check_track(self, track: _Track, box: _Box) -> None:
        max_samples = self._nbytes // max(1, track.sample_bytes)
        max_samples = min(max_samples, MAX_PACKETS) if track.is_video else max_samples * _MOST_AUDIO
        if track.samples > max_samples:
            raise self._too_many(box, max_samples, track.samples)
        if track.is_video and track.descriptions > 1:
            raise self._error(
                "the decoder settings change within the video; re-encode it, "
                "`ffmpeg -i IN -c:v libx264 OUT`",
                box,
                "1 sample description",
                track.descriptions,
            )

    def _too_many(self, box: _Box, max_samples: int, count: int) -> SourceError:
        message = "the video's tables declare more packets than fit into the file"
        return self._error(message, box, f"at most {max_samples}, in {self._nbytes} bytes", count)

    def _error(self, message: str, box: _Box, expected: str, got: object) -> SourceError:
        at = box.start - 8
        return SourceError(message, file=str(self._path), offset=at, expected=expected, got=got)

    def _read(self, at: int, count: int) -> bytes:
        self._file.seek(at)
        return self._file.read(count)
