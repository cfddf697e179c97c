"""Compare the tables of MP4 and MOV files with the bytes of the file.

A file that was cut ends inside a box, or lacks samples that its tables place behind its end. The
boxes of fragmented files must follow each other up to the end. Format: ISO/IEC 14496-12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.formats.sources.video.file_bytes import Contents, FileBytes, StreamFacts, early_end
from seqrecord.formats.sources.video.mp4_boxes import MAX_PACKETS
from seqrecord.formats.sources.video.mp4_fragments import FragmentOrder, listed_fragments

Ints = npt.NDArray[np.int64]

_MAX_FRAGMENTS = 1 << 22
_MAX_LEVELS = 8
_MOST_SHOWN = 10
_OPENED = frozenset(b"moov trak mdia minf stbl edts mvex moof traf".split())
_TABLES = frozenset(b"tkhd mdhd elst stts ctts stsz stsc stco co64".split())
_KINDS = frozenset(
    b"ftyp moov moof mdat free skip wide styp sidx ssix prft emsg mfra meta uuid udta".split()
)
_HEAD = 8
_MAX_TABLE = 1 << 28  # bytes; `check_boxes` limits the entries
_MOST_UNTIMED = 2  # samples; some writers count one more or less
_RUN_FIELDS = (0x100, 0x200, 0x400, 0x800)  # duration, size, flags, composition offset
_DURATION_FIELD, _SIZE_FIELD = 0x100, 0x200


class _Box(NamedTuple):
    kind: bytes
    at: int
    start: int  # of its content
    stop: int


class _Track:
    """Tables of a track, and the defaults of its fragments."""

    def __init__(self) -> None:
        self.id = 0
        self.tables: dict[bytes, bytes] = {}
        self.sample_bytes = 0


class _Defaults(NamedTuple):
    """What runs without a field of these have."""

    duration: int = 0
    size: int = 0


class _Run:
    """What the runs of a track's fragment have in common."""

    track = duration = size = 0
    begin: int | None = None  # in ticks of the track
    ticks = 0  # of all samples

    def __init__(self, base: int) -> None:
        self.base = base


def check_mp4(data: FileBytes, stream: StreamFacts) -> Contents:
    """Return what a file contains that has all samples of its tables.

    Raises `SourceError` for a box or sample that ends behind the file, and for samples without a
    place. Without `data.is_whole`, fragments are not read.
    """
    tables = _Tables(data, stream)
    notes = tables.check()
    return Contents(tuple(notes), tables.packets, tables.has_offsets)


class _Tables:
    def __init__(self, data: FileBytes, stream: StreamFacts) -> None:
        self._data, self._stream = data, stream
        self._notes: list[str] = []
        self._movie: dict[bytes, bytes] = {}
        self._tracks: dict[int, _Track] = {}
        self._defaults: dict[int, _Defaults] = {}  # by track
        self._order = FragmentOrder(data)
        self._is_fragmented = self._has_movie = self._has_list = False
        self._fragments = 0
        self._has_edits = self.has_offsets = False
        self._samples = 0  # of the stream, in fragments
        self._expected = self._unused = 0  # bytes of a fragment's samples, and outside of samples

    @property
    def packets(self) -> int | None:
        """The stream's number of packets in fragments; edit lists change that of other files."""
        is_counted = self._is_fragmented and self._data.is_whole and not self._has_edits
        return self._samples if is_counted else None

    def check(self) -> list[str]:
        data, at = self._data, 0
        rules: dict[bytes, Callable[[_Box], bool | None]] = {
            b"moov": self._read_movie,
            b"moof": self._check_fragment,
            b"mdat": self._count_unused,
            b"mfra": self._read_list,
            b"sidx": self._check_sidx,
            b"ftyp": self._is_another_file,
        }
        while at < data.nbytes:
            box = self._top(at)
            if box is None:
                self._notes.append(data.rest(at))
                break
            if box.kind in rules and rules[box.kind](box):
                break
            at = box.stop
        if self._fragments and data.is_whole:
            self._order.check()
            if self._unused:
                self._notes.append(f"{self._unused} bytes of fragments belong to no frame")
        if self._fragments and not self._has_list:
            self._notes.append("its end is not verifiable: no table lists its fragments")
        return self._notes

    def _top(self, at: int) -> _Box | None:
        """Return the box at an offset of the file; `None` for bytes after all boxes."""
        data = self._data
        head = data.read(at, _HEAD)
        size, kind = int.from_bytes(head[:4], "big"), head[4:]
        start = at + _HEAD
        if size == 1:
            size, start = data.number(start, 8), start + 8
        stop = data.nbytes if size == 0 else at + size
        is_box = len(kind) == 4 and kind.isalnum() and stop >= start
        if is_box and stop <= data.nbytes:
            return _Box(kind, at, start, stop)
        if is_box and (kind in _KINDS or not self._has_movie):
            raise data.truncated(at, f"the box {kind.decode('latin-1')}", stop)
        if self._has_movie and self._is_rest(at, head):
            return None
        if len(head) < _HEAD:
            raise data.truncated(at, "the head of a box", at + _HEAD)
        raise data.damaged("no box where one must begin", at, "size and type", head.hex())

    def _is_rest(self, at: int, head: bytes) -> bool:
        """Return whether bytes that are no box follow a complete file."""
        if not self._is_fragmented or self._data.are_zeros(at):
            return True
        is_hole = not any(head) or (len(head) < _HEAD and head[0] == 0)  # or bytes of a size
        return not is_hole and not self._data.contains(at, b"moof")

    def _children(self, box: _Box) -> Iterator[_Box]:
        """Yield the boxes in a box, up to the first broken one."""
        at = box.start
        while at + _HEAD <= box.stop:
            head = self._data.read(at, 2 * _HEAD)
            size, kind, start = int.from_bytes(head[:4], "big"), head[4:8], at + _HEAD
            if size == 1:
                size, start = int.from_bytes(head[8:], "big"), start + 8
            is_open = size == 0
            stop = box.stop if is_open else at + size
            in_fragment = box.kind in (b"moof", b"traf")
            if in_fragment and (is_open or stop < start or stop > box.stop):
                message = f"a fragment's box {kind.decode('latin-1')!r} does not fit into it"
                raise self._data.damaged(message, at, f"up to byte {box.stop}", stop)
            if stop < start or stop > box.stop:
                return
            yield _Box(kind, at, start, stop)
            at = stop

    def _read_movie(self, movie: _Box) -> bool:
        """Read the first movie's tables; return whether the rest of the file is not read."""
        if self._has_movie:
            return False
        self._has_movie = True
        for box in self._children(movie):
            if box.kind == b"mvhd":
                self._movie[box.kind] = self._content(box)
            elif box.kind == b"mvex":
                self._is_fragmented = True
                for child in self._children(box):
                    if child.kind == b"trex":
                        body = self._content(child)
                        self._defaults[_number(body, 4)] = _Defaults(
                            _number(body, 12), _number(body, 16)
                        )
            elif box.kind == b"trak":
                track = _Track()
                self._read_track(box, track, 0)
                body = track.tables.get(b"tkhd", b"")
                track.id = _number(body, 20 if body[:1] == b"\1" else 12)
                self._defaults.setdefault(track.id, _Defaults())
                if track.id == self._stream.id:
                    self._check_track(track, box)
        return self._is_fragmented and not self._data.is_whole

    def _is_another_file(self, box: _Box) -> bool:
        """Return whether another file follows, which is not read."""
        is_another = bool(box.at) and self._has_movie and not self._is_fragmented
        if is_another:
            self._notes.append(f"another file from byte {box.at} on, not read")
        return is_another

    def _count_unused(self, box: _Box) -> None:
        self._unused += bool(self._fragments) * (box.stop - box.start - self._expected)
        self._expected = 0

    def _read_track(self, parent: _Box, track: _Track, level: int) -> None:
        for box in self._children(parent):
            if box.kind in _OPENED and level < _MAX_LEVELS:
                self._read_track(box, track, level + 1)
            elif box.kind in _TABLES:
                track.tables.setdefault(box.kind, self._content(box))

    def _content(self, box: _Box) -> bytes:
        return self._data.read(box.start, min(box.stop - box.start, _MAX_TABLE))

    def _check_track(self, track: _Track, box: _Box) -> None:
        """Compare the samples of a track with the file."""
        data, sizes = self._data, _sample_sizes(track.tables)
        self._has_edits = len([*_edits(track.tables.get(b"elst", b""))]) > 1
        self.has_offsets = bool(_rows(track.tables.get(b"ctts", b""), ">i4", 4, 2)[1::2].any())
        self._samples = 0 if sizes is None else int(np.count_nonzero(sizes))
        num_timed = int(_rows(track.tables.get(b"stts", b""), ">u4", 4, 2)[::2].sum())
        if sizes is not None and num_timed > len(sizes) + _MOST_UNTIMED:
            message = "its tables have fewer sizes than times"
            raise data.damaged(message, box.at, f"{num_timed} samples", len(sizes))
        if sizes is None or not len(sizes):
            return
        if not _scale_of(track.tables.get(b"mdhd", b"")):
            raise data.damaged("a track without a time scale", box.at, "ticks per second", 0)
        table, number = (b"co64", ">u8") if b"co64" in track.tables else (b"stco", ">u4")
        chunks = _rows(track.tables.get(table, b""), number, 4)
        runs = _rows(track.tables.get(b"stsc", b""), ">u4", 4, 3).reshape(-1, 3)
        if not len(chunks) or not len(runs):
            raise data.damaged("its tables place no sample", box.at, f"{len(sizes)} samples", 0)
        if (runs[1:, 0] <= runs[:-1, 0]).any():
            return  # left to FFmpeg
        run_ends = np.clip(np.append(runs[1:, 0], len(chunks) + 1) - 1, 0, len(chunks))
        repeats = np.clip(run_ends - np.clip(runs[:, 0] - 1, 0, len(chunks)), 0, None)
        counts = np.repeat(runs[:, 1], repeats)[: len(chunks)]
        ends = np.minimum(np.cumsum(counts), len(sizes))
        if not len(ends) or ends[-1] < len(sizes):
            got = int(ends[-1]) if len(ends) else 0
            message = "its tables place fewer samples than they declare"
            raise data.damaged(message, box.at, f"{len(sizes)} samples", got)
        total = np.concatenate(([0], np.cumsum(sizes)))
        begins = np.concatenate(([0], ends[:-1]))
        stops = chunks[: len(ends)] + total[ends] - total[begins]
        is_outside = (ends > begins) & ((stops > data.nbytes) | (chunks[: len(ends)] < 0))
        if is_outside.any():
            at = int(np.argmax(is_outside))
            raise data.truncated(int(chunks[at]), "a chunk of samples", int(stops[at]))
        self._notes += _duration_notes(track, self._movie.get(b"mvhd", b""), len(sizes))

    def _read_list(self, tables: _Box) -> None:
        self._has_list = True
        for box in self._children(tables):
            if box.kind == b"tfra":
                self._order.listed.update(listed_fragments(self._content(box)))

    def _check_fragment(self, fragment: _Box) -> bool:
        """Check a fragment; return whether it and the rest of the file are not read."""
        self._fragments += 1
        if self._fragments > _MAX_FRAGMENTS or not self._data.is_whole:
            return True
        self._order.begin(fragment.at)
        for box in self._children(fragment):
            if box.kind == b"mfhd":
                self._order.number(_number(self._content(box), 4))
            elif box.kind == b"traf":
                self._check_runs(fragment, box)
        return False

    def _check_runs(self, fragment: _Box, track: _Box) -> None:
        """Compare the samples of a track's fragment with the file."""
        run, position = _Run(fragment.at), None
        for box in self._children(track):
            if box.kind == b"tfhd":
                body = self._content(box)
                flags, at = _number(body, 0) & 0xFFFFFF, 8
                run.track = _number(body, 4)
                if run.track not in self._defaults:
                    expected = f"one of {sorted(self._defaults)[:_MOST_SHOWN]}"
                    message = "a fragment of no track"
                    raise self._data.damaged(message, box.at, expected, run.track)
                run.duration, run.size = self._defaults[run.track]
                if flags & 0x1:
                    run.base, at = _number(body, 8, 8), 16
                at += 4 * bool(flags & 0x2)
                if flags & 0x8:
                    run.duration, at = _number(body, at), at + 4
                if flags & 0x10:
                    run.size = _number(body, at)
            elif box.kind == b"tfdt":
                body = self._content(box)
                run.begin = _number(body, 4, 8 if body[:1] == b"\1" else 4)
            elif box.kind == b"trun":
                position = self._check_run(box, run, position)
        if run.track == self._stream.id and run.begin is not None:
            self._order.time(run.begin, run.ticks)

    def _check_run(self, box: _Box, run: _Run, position: int | None) -> int:
        """Return the byte behind a run of samples."""
        data, body = self._data, self._content(box)
        flags, count, at = _number(body, 0) & 0xFFFFFF, _number(body, 4), 8
        start = run.base if position is None else position
        if flags & 0x1:
            start = run.base + int.from_bytes(body[8:12], "big", signed=True)
            at += 4
        at += 4 * bool(flags & 0x4)
        fields = [field for field in _RUN_FIELDS if flags & field]
        rows = _rows(body[at:], ">u4", 0, max(1, len(fields))).reshape(-1, max(1, len(fields)))
        if len(rows) != (count if fields else 0):
            message = "a fragment lists another number of samples than it declares"
            raise data.damaged(message, box.at, count, len(rows))
        if _SIZE_FIELD in fields:
            sizes = rows[:, fields.index(_SIZE_FIELD)]
            total, num_filled = int(sizes.sum()), int(np.count_nonzero(sizes))
        else:
            total, num_filled = count * run.size, count * bool(run.size)
        if start + total > data.nbytes:
            raise data.truncated(box.at, "the samples of a fragment", start + total)
        has_durations = _DURATION_FIELD in fields
        run.ticks += int(rows[:, 0].sum()) if has_durations else count * run.duration
        self._expected += total
        self._samples += num_filled * (run.track == self._stream.id)
        return start + total

    def _check_sidx(self, box: _Box) -> None:
        """Compare the segments of an index with the file."""
        body = self._content(box)
        is_wide = body[:1] == b"\1"
        at = 20 if is_wide else 16
        first_offset = _number(body, at, 8 if is_wide else 4)
        at += 8 if is_wide else 4
        count = _number(body, at + 2, 2)
        rows = _rows(body[at + 4 :], ">u4", 0, 3).reshape(-1, 3)[:count]
        stop = box.stop + first_offset + int((rows[:, 0] & 0x7FFFFFFF).sum())
        if stop > self._data.nbytes:
            raise self._data.truncated(box.at, "the segments of its index", stop)


def _number(body: bytes, at: int, count: int = 4) -> int:
    return int.from_bytes(body[at : at + count], "big")


def _scale_of(header: bytes) -> int:
    """Return the ticks per second in a movie's or track's header."""
    return _number(header, 20 if header[:1] == b"\1" else 12)


def _rows(body: bytes, kind: str, count_at: int, fields: int = 1) -> Ints:
    """Return the entries of a table whose count is at an offset; all entries for offset 0."""
    item = np.dtype(kind).itemsize * fields
    body = body[count_at + 4 :] if count_at else body
    return np.frombuffer(body, kind, len(body) // item * fields).astype(np.int64)


def _sample_sizes(tables: dict[bytes, bytes]) -> Ints | None:
    """Return the size of each sample in bytes; `None` without a table."""
    body = tables.get(b"stsz")
    if body is not None:
        size, count = _number(body, 4), _number(body, 8)
        if size and count > MAX_PACKETS:
            return None  # refused by `check_boxes`
        sizes: Any = np.full(count, size, np.int64) if size else _rows(body, ">u4", 8)[:count]
        return np.asarray(sizes)
    return None  # compact sizes (stz2) are left to FFmpeg


def _last_time(tables: dict[bytes, bytes], samples: int) -> int:
    """Return the latest end of a sample, in ticks from the first decoding time; 0 if unknown."""
    steps = _rows(tables.get(b"stts", b""), ">u4", 4, 2).reshape(-1, 2)
    shifts = _rows(tables.get(b"ctts", b""), ">i4", 4, 2).reshape(-1, 2)
    if (
        not len(steps)
        or (shifts[:, 0] < 0).any()
        or max(steps[:, 0].sum(), shifts[:, 0].sum()) > samples + _MOST_UNTIMED
    ):
        return 0
    ends = np.cumsum(np.repeat(steps[:, 1], steps[:, 0]))
    if not len(ends):
        return 0
    offsets = np.repeat(shifts[:, 1], shifts[:, 0])[: len(ends)]
    last_shown = int((ends[: len(offsets)] + offsets).max()) if len(offsets) else 0
    return max(int(ends[-1]), last_shown)


def _duration_notes(track: _Track, movie: bytes, samples: int) -> list[str]:
    """Return notes if a header or edit list declares a later end than that of the samples."""
    header = track.tables.get(b"mdhd", b"")
    scale, movie_scale = _scale_of(header), _scale_of(movie)
    declared = _number(header, 24, 8) if header[:1] == b"\1" else _number(header, 16)
    stored_end = _last_time(track.tables, samples)
    if not stored_end:
        return []
    step = stored_end / samples / scale
    is_known = declared < (1 << 32) - 1
    notes = [*early_end(declared / scale, stored_end / scale, step)] if is_known else []
    for begin, duration in _edits(track.tables.get(b"elst", b"")):
        if begin >= 0 and movie_scale and duration < (1 << 32) - 1:
            end = begin / scale + duration / movie_scale
            if note := early_end(end, stored_end / scale + step, step):
                return [*notes, *(f"{text} of an edit list" for text in note)]
    return notes


def _edits(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield start in the media's time scale and duration in the movie's."""
    is_wide = body[:1] == b"\1"
    item, half = (20, 8) if is_wide else (12, 4)
    for at in range(8, min(len(body), 8 + item * 1024) - item + 1, item):
        begin = int.from_bytes(body[at + half : at + 2 * half], "big", signed=True)
        yield begin, _number(body, at, half)
