"""Check the chunks of AVI files against the file and against its index.

Format: Microsoft's AVI RIFF file reference, and OpenDML 1.02 for files above 1 GiB.
"""

from __future__ import annotations

import re

from seqrecord.formats.sources.video.file_bytes import (
    UNVERIFIABLE,
    Contents,
    FileBytes,
    StreamFacts,
)

_FOURCC = re.compile(rb"[ -~]{4}")
_HEAD = 8
_LIST_HEAD = 12
_ENTRY = 16
_PARTS_HEAD = 24
_MAX_CHUNKS = 1 << 22
_FORMS = (b"AVI ", b"AVIX")
_UNKNOWN = (0, 0xFFFFFFFF)
# See tests/formats/test_cut_videos.py::test_unusual_avi_files_stay_accepted.
_ROUNDING = 8  # some writers count the head of the file, or miss padding
_MOST_DIFFERENT = 2  # frames


def check_avi(data: FileBytes, stream: StreamFacts) -> Contents:
    """Return what a file of complete chunks contains.

    Raises `SourceError` for a chunk that ends behind the file, for chunks whose sequence is broken,
    if the index does not agree with them either, and for an index with more frames than there are.
    """
    checker = _Chunks(data, stream)
    checker.check()
    return Contents(tuple(checker.notes), checker.packets)


class _Chunks:
    def __init__(self, data: FileBytes, stream: StreamFacts) -> None:
        self._data, self._stream = data, stream
        self.notes: list[str] = []
        self._chunks = self._frames = 0
        self._headers = self._declared = 0
        self._filled = 0  # frames that are not empty: those are packets
        self._has_all = False  # chunks
        self._codes = {b"%02d%s" % (stream.position, kind) for kind in (b"dc", b"db")}

    @property
    def packets(self) -> int | None:
        """The stream's number of packets; `None` if some chunks were not read."""
        return self._filled if self._has_all else None

    def check(self) -> None:
        data, at = self._data, 0
        self._has_all = data.is_whole
        while at < data.nbytes:
            head = data.read(at, _LIST_HEAD)
            if head[:4] != b"RIFF" or head[8:] not in _FORMS:
                is_cut = b"RIFF".startswith(head[:4]) and len(head) < _LIST_HEAD
                if is_cut:
                    raise data.truncated(at, "the head of a chunk", at + _LIST_HEAD)
                self.notes.append(data.rest(at))
                break
            size = int.from_bytes(head[4:8], "little")
            stop = at + _HEAD + size
            if size in _UNKNOWN:
                self.notes.append(UNVERIFIABLE)
                stop = data.nbytes
            elif stop > data.nbytes + _ROUNDING:
                raise data.truncated(at, "a RIFF chunk", stop)
            if not data.is_whole:
                return
            self._check_riff(at + _LIST_HEAD, min(stop, data.nbytes), is_open=size in _UNKNOWN)
            at = stop + stop % 2
        if self._has_all and self._declared - self._frames > _MOST_DIFFERENT:
            self.notes.append(f"{self._frames} frames, of {self._declared} that are declared")

    def _check_riff(self, at: int, stop: int, *, is_open: bool) -> None:
        data, movie, index, broken_offset = self._data, 0, None, None
        previous_frames = self._filled
        while at < stop:
            kind, size = self._head(at, stop)
            start, end = at + _HEAD, at + _HEAD + size
            form = data.read(start, 4)
            if kind == b"LIST" and form == b"movi":
                movie = start
                end, broken_offset = self._check_movie(start + 4, end, stop, is_open=is_open)
                at = end
                continue
            if end > data.nbytes:
                if data.are_zeros(at):
                    return
                raise data.truncated(at, f"chunk {kind.decode('latin-1')!r}", end)
            if kind == b"LIST" and form == b"hdrl":
                self._read_headers(start + 4, end)
            elif kind == b"idx1":
                index = (start, end)
            at = end + end % 2
        if broken_offset is not None and not (
            index is not None and self._is_indexed(movie, *index)
        ):
            got = data.read(broken_offset, 4).hex()
            raise data.damaged("no chunk where one must begin", broken_offset, "a FourCC", got)
        if index is not None and self._has_all:
            num_indexed, num_present = self._count_indexed(*index), self._filled - previous_frames
            if num_indexed > num_present:
                message = "its index has more frames than its list of frames"
                raise data.damaged(message, index[0], f"{num_indexed} frames", num_present)

    def _head(self, at: int, stop: int) -> tuple[bytes, int]:
        head = self._data.read(at, _HEAD)
        if len(head) < _HEAD and stop >= self._data.nbytes and any(head):
            raise self._data.truncated(at, "the head of a chunk", at + _HEAD)
        return head[:4], int.from_bytes(head[4:], "little")

    def _check_movie(
        self, at: int, declared: int, stop: int, *, is_open: bool
    ) -> tuple[int, int | None]:
        """Return the end of the chunks with frames, and where their sequence is broken."""
        data, start = self._data, at
        is_open = is_open or declared <= start
        end = declared
        if is_open:
            end = stop
            if UNVERIFIABLE not in self.notes:
                self.notes.append(UNVERIFIABLE)
        if end > data.nbytes + _ROUNDING:
            raise data.truncated(start - _LIST_HEAD, "the list of frames", end)
        while at < end:
            kind, size = self._head(at, end)
            if is_open and kind == b"idx1":
                return at, None
            if not _FOURCC.fullmatch(kind):
                if is_open and data.are_zeros(at):
                    self.notes.append(data.rest(at))
                    return end + end % 2, None
                self._has_all = False
                return end + end % 2, at
            if at + _HEAD + size > data.nbytes:
                raise data.truncated(at, f"chunk {kind.decode('ascii')!r}", at + _HEAD + size)
            self._chunks += 1
            if self._chunks > _MAX_CHUNKS:
                self.notes.append(f"not checked from byte {at} on: more than {_MAX_CHUNKS} chunks")
                self._has_all = False
                return end + end % 2, None
            if kind == b"LIST":
                at += _LIST_HEAD  # `rec `: chunks that are read together
                continue
            self._frames += kind in self._codes
            self._filled += kind in self._codes and size > 0
            at += _HEAD + size + size % 2
        return end + end % 2, None

    def _read_headers(self, at: int, stop: int) -> None:
        """Read how many frames the stream's header declares."""
        while at + _HEAD <= stop:
            kind, size = self._head(at, stop)
            if kind == b"LIST":
                at += _LIST_HEAD
                continue
            if kind == b"strh":
                if self._headers == self._stream.position and self._data.read(at + 8, 4) == b"vids":
                    self._declared = int.from_bytes(self._data.read(at + 40, 4), "little")
                self._headers += 1
            elif kind == b"indx":
                self._check_parts(at, min(size, stop - at - _HEAD))
            at += _HEAD + size + size % 2

    def _check_parts(self, at: int, size: int) -> None:
        """Compare a stream's list of indexes, one for each RIFF chunk (OpenDML), with the file."""
        body = self._data.read(at + _HEAD, size)
        if len(body) < _PARTS_HEAD or body[3]:
            return  # an index of chunks
        count = int.from_bytes(body[4:8], "little")
        for part in range(_PARTS_HEAD, len(body) - _ENTRY + 1, _ENTRY)[:count]:
            begin = int.from_bytes(body[part : part + 8], "little")
            stop = begin + int.from_bytes(body[part + 8 : part + 12], "little")
            if stop > self._data.nbytes:
                raise self._data.truncated(at, "a part of its index", stop)

    def _count_indexed(self, start: int, stop: int) -> int:
        """Return how many of the stream's frames an index has: places that are not empty.

        Some writers repeat a frame's entry for dropped frames.
        """
        places = set()
        for at in range(start, stop - _ENTRY + 1, _ENTRY):
            entry = self._data.read(at, _ENTRY)
            if entry[:4] in self._codes and any(entry[12:]):
                places.add(entry[8:12])
        return len(places)

    def _is_indexed(self, movie: int, start: int, stop: int) -> bool:
        """Return whether all chunks of the index are where it says.

        Offsets count from the list's type or from the begin of the file.
        """
        data, base = self._data, None
        for at in range(start, stop - _ENTRY + 1, _ENTRY):
            entry = data.read(at, _ENTRY)
            offset = int.from_bytes(entry[8:12], "little")
            expected_head = entry[:4] + entry[12:]
            bases = (movie, 0) if base is None else (base,)
            base = next((n for n in bases if data.read(n + offset, _HEAD) == expected_head), None)
            if base is None or base + offset + _HEAD + int.from_bytes(entry[12:], "little") > (
                data.nbytes
            ):
                return False
        return base is not None
