"""References: pages whose packets or frames lie in files that are not ours, and lists of these
files. The normative text is docs/format.md.

A list never changes, and its name says what it holds, so pages name it and the manifest need not.

::

    page     │ p u32 + 2^31 │ list u64 │ file u32 │ crc32c u32 │ start u64 │ extradata u32 │
             │ offsets u32 [p] │ sizes u32 [p] │ frames u32 [p] │ extradata │
    list     JSON: names of files, their sizes and what tells that they are still the same

`start` is where in the file the range of the page begins. Packet i of the page is the bytes
`[start + offsets[i], start + offsets[i] + sizes[i])` of the file, as its container has it.

Of a feature that is no video a packet is a frame, encoded alone, such as a PNG file. `file` may
then be a folder: each frame is a whole file in it, the range is these files one behind the other,
and in the place of `extradata` is JSON: the files' names and what tells that they are the same.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.checksum import crc32c
from seqrecord.codecs.video.packets import packet_format
from seqrecord.errors import ChecksumError, FormatError, LocationError
from seqrecord.format.text import parse_json
from seqrecord.format.video_pages import BEGINS, NOT_SHOWN, page_of_packets
from seqrecord.json_object import JsonObject
from seqrecord.processes.forks import cached_property
from seqrecord.storage.base import check_path

EXTERNALS = "externals"  # the folder of the lists
MAX_LIST_FILES = 100_000
MAX_LIST_BYTES = 1 << 25
MAX_EXTRADATA = 1 << 16
MAX_NAMES = 1 << 20  # bytes

_MARK = 1 << 31  # in the number of packets
_HEAD = struct.Struct("<IQIIQI")
HEAD_BYTES = _HEAD.size
_TEXT = re.compile(r"[\x20-\x7e]{0,1000}")
_VERSION = 1


@dataclass(frozen=True)
class ReferencedFile:
    """A frame that is encoded alone and stays where it is: the bytes `[start, stop)` of a file.

    Where `stop` is `None` it is the whole file, whose size is not known yet.
    """

    file: str
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, eq=False)
class ReferencedGops:
    """Closed groups of pictures, g of them, whose packets stay where they are, in one file.

    Packet i is the bytes `[starts[i], starts[i] + sizes[i])` of the file called `file`, and gives
    the frame `order[i]` of its group, -1 for none. Groups begin with the packets `first`.
    `extradata` is what the container says of the codec.
    """

    file: str
    extradata: bytes
    starts: npt.NDArray[np.int64]  # [p], ascending
    sizes: npt.NDArray[np.int64]  # [p]
    order: npt.NDArray[np.int64]  # [p]
    first: npt.NDArray[np.int64]  # [g]

    @cached_property
    def num_frames(self) -> npt.NDArray[np.int64]:
        """How many frames each group shows, int64 [g]."""
        counts: npt.NDArray[np.int64] = np.add.reduceat(self.order >= 0, self.first, dtype=np.int64)
        return counts

    def pages(self, most_frames: int, most_bytes: int) -> list[range]:
        """The groups of each page: as many as show so many frames together, in so many bytes of the
        file, and at least one."""
        ends = self.starts + self.sizes
        stops = [*ends[self.first[1:] - 1].tolist(), int(ends[-1])]
        starts = self.starts[self.first].tolist()
        begin = frames = 0
        found: list[range] = []
        for group, count in enumerate(self.num_frames.tolist()):
            is_long = frames + count > most_frames or stops[group] - starts[begin] > most_bytes
            if group > begin and is_long:
                found.append(range(begin, group))
                begin, frames = group, 0
            frames += count
        return [*found, range(begin, len(starts))]


@dataclass(frozen=True)
class ExternalFile:
    """A file that is not ours: its path below a root, and what it was like when it was indexed.

    `identity` is text that changes with the file, such as its e-tag or the time of its change;
    `None` where the store tells nothing but the size. One of size 0 is a folder: pages say which
    files in it they refer to. Its path may be empty: the root itself.
    """

    root: str
    path: str
    size: int
    identity: str | None = None


class Sample(NamedTuple):
    """The CRC32C of parts of an external file, by which it is known again at another place.

    `name` is that of a file in the external folder `number`, or empty for the file itself.
    """

    number: int
    name: str
    size: int
    crc32c: int


SAMPLED_FILES = 16  # of each root
_SAMPLED_BYTES = 1 << 16


def sampled_ranges(size: int) -> list[tuple[int, int]]:
    """The parts `[start, stop)` of a file of so many bytes that a sample covers: 64 KiB at its
    beginning, middle and end, or all of it."""
    if size <= 3 * _SAMPLED_BYTES:
        return [(0, size)] if size else []
    starts = (0, (size - _SAMPLED_BYTES) // 2, size - _SAMPLED_BYTES)
    return [(start, start + _SAMPLED_BYTES) for start in starts]


@dataclass(frozen=True)
class ExternalList:
    """The external files that pages name by the list's id and a number, and samples of some."""

    files: tuple[ExternalFile, ...]
    samples: tuple[Sample, ...] = ()

    @cached_property
    def id(self) -> str:
        """The first 16 hexadecimal digits of the SHA-256 of its text."""
        return _id_of(self.encode())

    def encode(self) -> bytes:
        """The list as JSON text."""
        roots = list(dict.fromkeys(file.root for file in self.files))
        number = {root: at for at, root in enumerate(roots)}
        value = {
            "format": "seqrecord externals",
            "version": _VERSION,
            "roots": roots,
            "files": [[number[f.root], f.path, f.size, f.identity] for f in self.files],
            **({"samples": self.samples} if self.samples else {}),
        }
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def parse(cls, data: bytes, list_id: str) -> ExternalList:
        """Inverse of `encode`; trusts nothing. Raises `FormatError`."""
        if (actual := _id_of(data)) != list_id:
            raise ChecksumError("a list of files that is not as its name says", got=actual)
        keys, optional = ("roots", "files"), ("samples",)
        found = JsonObject.of_file(parse_json(data), "externals", _VERSION, keys, optional)
        roots = found.texts("roots", re.compile(r"[^\x00-\x1f\x7f]{1,4096}"), MAX_LIST_FILES)
        files = [_file(item, roots) for item in found.list("files", 1, MAX_LIST_FILES)]
        items = found.list("samples", 1, MAX_LIST_FILES) if "samples" in found.value else ()
        return cls(tuple(files), tuple(_sample(item, len(files)) for item in items))


def list_path(list_id: str) -> str:
    """The path of a list in its dataset."""
    return f"{EXTERNALS}/{list_id}.json"


def _id_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _file(item: object, roots: Sequence[str]) -> ExternalFile:
    if not isinstance(item, list) or len(item) != 4:
        raise FormatError("an external file is not a list of four", got=repr(item)[:100])
    root, path, size, identity = item
    if (
        type(root) is not int
        or not 0 <= root < len(roots)
        or not isinstance(path, str)
        or type(size) is not int
        or not 0 <= size < 2**63
        or not _is_identity(identity)
        or (size == 0 and identity is not None)
    ):
        raise FormatError("an external file that cannot be", got=repr(item)[:100])
    try:
        if path or size:
            check_path(path)
    except LocationError as error:
        raise FormatError("an external file outside its root", got=error.got) from error
    return ExternalFile(roots[root], path, size, identity)


def _sample(item: object, num_files: int) -> Sample:
    if (
        not isinstance(item, list)
        or len(item) != 4
        or not all(type(n) is int and n >= 0 for n in (item[0], *item[2:]))
        or not isinstance(item[1], str)
        or item[0] >= num_files
        or item[2] >= 2**63
        or item[3] >= 2**32
    ):
        raise FormatError("a sample of an external file that cannot be", got=repr(item)[:100])
    if item[1]:
        try:
            check_path(item[1])
        except LocationError as error:
            raise FormatError("a sample outside its folder", got=error.got) from error
    return Sample(*item)


def _is_identity(value: object) -> bool:
    return value is None or (isinstance(value, str) and _TEXT.fullmatch(value) is not None)


class PartOfFolder(NamedTuple):
    """A file of an external folder to which a page refers: its name, and see `ExternalFile`."""

    name: str
    identity: str | None


@dataclass(frozen=True, eq=False)
class Reference:
    """A page whose packets lie in an external file: number `file` of the list `list_id`.

    `start` and `length` are the range of the file that holds all packets, which are given by their
    `offsets` from its start and their `sizes`. `frames` are as in a page that holds its packets.
    `crc32c` is that of the range, 1 where it would be 0; 0 where it was not read. `extradata`
    is what the container says of the codec.

    Of a feature that is no video, packet i is its frame i. `parts` are the files that `frames` are
    whole files of, if `file` is a folder; `extradata` tells them.
    """

    list_id: str
    file: int
    start: int
    offsets: npt.NDArray[np.int64]  # [p], from start
    sizes: npt.NDArray[np.int64]  # [p]
    frames: npt.NDArray[np.uint32]  # [p], as they are stored
    extradata: bytes = b""
    crc32c: int = 0
    parts: tuple[PartOfFolder, ...] = ()

    @classmethod
    def of(
        cls, gops: ReferencedGops, pages: Sequence[range], list_id: str, file: int
    ) -> list[Reference]:
        """The pages of these groups of pictures, see `ReferencedGops.pages`."""
        bounds = [*gops.first[[page.start for page in pages]].tolist(), len(gops.starts)]
        before = np.cumsum(gops.num_frames) - gops.num_frames
        for page in pages:
            before[page.start : page.stop] -= before[page.start]
        packets = np.concatenate((gops.first[1:], [len(gops.starts)])) - gops.first
        frames = np.where(gops.order < 0, NOT_SHOWN, np.repeat(before, packets) + gops.order)
        frames = frames.astype(np.uint32)
        frames[gops.first] |= np.uint32(BEGINS)
        found = []
        for begin, stop in pairwise(bounds):
            start = int(gops.starts[begin])
            tables = gops.starts[begin:stop] - start, gops.sizes[begin:stop], frames[begin:stop]
            found.append(cls(list_id, file, start, *tables, gops.extradata))
        return found

    @classmethod
    def of_frames(
        cls,
        place: tuple[str, int],
        starts: Sequence[int],
        sizes: Sequence[int],
        parts: Sequence[PartOfFolder] = (),
    ) -> Reference:
        """The page of frames that are encoded alone, at these places of a file, or that are these
        `parts` of a folder: number `place[1]` of the list `place[0]`."""
        if parts:
            starts = [0, *accumulate(sizes[:-1])]
        offsets = np.array(starts, np.int64) - starts[0]
        names = json.dumps(parts, separators=(",", ":")).encode() if parts else b""
        frames = np.arange(len(sizes), dtype=np.uint32)
        length = np.array(sizes, np.int64)
        return cls(*(*place, starts[0], offsets, length, frames, names), parts=tuple(parts))

    @property
    def is_video(self) -> bool:
        """Whether its packets are of video, rather than frames that are encoded alone."""
        return bool(self.frames[0] & BEGINS)

    @property
    def length(self) -> int:
        """Bytes that are read: the range, or of frames that are encoded alone theirs together."""
        return self.stop - self.start if self.is_video else int(self.sizes.sum())

    @property
    def stop(self) -> int:
        """Where in the file the range ends."""
        return self.start + int(self.offsets[-1] + self.sizes[-1])

    def encode(self) -> bytes:
        """The page's bytes."""
        head = _HEAD.pack(
            _MARK | len(self.offsets),
            *(int(self.list_id, 16), self.file, self.crc32c, self.start, len(self.extradata)),
        )
        tables = (np.asarray(t).astype("<u4").tobytes() for t in (self.offsets, self.sizes))
        return b"".join((head, *tables, self.frames.astype("<u4").tobytes(), self.extradata))

    @property
    def room(self) -> int:
        """Bytes in front of frames that are encoded alone in the page that holds them."""
        return 0 if self.is_video else 4 * (len(self.sizes) + 1)

    def page(self, data: memoryview, codec: str | None) -> memoryview:
        """The page that holds these packets, given the bytes of the range: of video of this codec.

        Of frames that are encoded alone, `data` has their bytes one behind the other, and `room` in
        front of them; it becomes the page.

        Raises `ChecksumError` for a range that is not as it was read when it was indexed, and
        `FormatError` for extradata that is none.
        """
        if self.crc32c and (actual := crc32c(data[self.room :]) or 1) != self.crc32c:
            raise ChecksumError(
                "a range of an external file does not match its checksum",
                offset=self.start,
                expected=f"CRC32C {self.crc32c:08x}",
                got=f"{actual:08x}",
            )
        if codec is None:
            offsets = self.room + np.append(0, np.cumsum(self.sizes))
            data[: self.room] = offsets.astype("<u4").tobytes()
            return data
        try:
            form = packet_format(codec, self.extradata)
        except ValueError as error:
            raise FormatError(f"a page of references: {error}") from error
        begins = (self.frames >= BEGINS).tolist()
        places = zip(self.offsets.tolist(), self.sizes.tolist(), begins, strict=True)
        packets = [form.bare_packet(bytes(data[a : a + n]), first) for a, n, first in places]
        try:
            return memoryview(page_of_packets(packets, self.frames))
        except ValueError as error:
            raise FormatError(f"a page of references to too many bytes: {error}") from error


def named_file(page: memoryview) -> tuple[str, int]:
    """The list that a page of references names, and the file in it; both may not be there."""
    _, list_id, file, *_ = _HEAD.unpack_from(page)
    return f"{list_id:016x}", file


def lasting_sum(page: memoryview, file: ExternalFile) -> int:
    """A checksum of a page of references to this file, that is the same wherever the file lies."""
    known = json.dumps([file.path, file.size, file.identity]).encode()
    return crc32c(page[16:], start=crc32c(page[:4], start=crc32c(known)))


def least_reference_bytes(count: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The fewest bytes of a page that refers to `count` frames."""
    return _HEAD.size + 12 * count


def parse_reference(
    page: memoryview, length: int, feature: str, num_frames: int | None = None
) -> Reference:
    """The reference that a page is, to a range of `length` bytes. Trusts nothing.

    `num_frames` is how many frames a page has that is no video. Raises `FormatError` with the
    offset in the page. That each frame of video is given once is checked where its packets are
    read, see `parse_video_page`.
    """

    def refuse(what: str, at: int, expected: object, got: object) -> FormatError:
        return FormatError(
            f"a page of references {what}", feature=feature, offset=at, expected=expected, got=got
        )

    if len(page) < _HEAD.size or not page[3] & 0x80:  # the mark
        raise refuse("without its head", 0, f"{_HEAD.size} bytes or more", len(page))
    marked, list_id, file, stored, start, extra = _HEAD.unpack_from(page)
    count = marked & ~_MARK
    most = MAX_EXTRADATA if num_frames is None else MAX_NAMES
    if not count or extra > most or len(page) != _HEAD.size + 12 * count + extra:
        expected = f"tables of {count} packets and {extra} bytes"
        raise refuse("of another length than its head says", 0, expected, len(page))
    table = np.frombuffer(page[_HEAD.size : _HEAD.size + 12 * count], "<u4").reshape(3, count)
    offsets, sizes = table[0].astype(np.int64), table[1].astype(np.int64)
    ends = offsets + sizes
    fits = sizes.min() > 0 and offsets[0] == 0 and bool((offsets[1:] >= ends[:-1]).all())
    if not fits or (ends[-1] if num_frames is None else sizes.sum()) != length:
        expected = f"packets one behind the other, from 0 to {length}"
        raise refuse("whose packets overlap, or lead outside it", _HEAD.size, expected, ends[-1])
    if start + int(ends[-1]) >= 2**63:
        raise refuse("to a place that no file has", 20, "below 2**63", start)
    extradata = bytes(page[_HEAD.size + 12 * count :])
    parts: tuple[PartOfFolder, ...] = ()
    if num_frames is not None:
        if count != num_frames or (table[2] != np.arange(count)).any():
            raise refuse("that is not of its frames in order", 0, num_frames, count)
        if length + 4 * (count + 1) >= 2**32:
            raise refuse("to too many bytes", _HEAD.size, "below 2**32", length)
        if extradata:
            parts = _parts(extradata, count)
            if start or (offsets[1:] != ends[:-1]).any() or len(parts) != count:
                at = len(page) - extra
                raise refuse("whose files are not one behind the other", at, count, len(parts))
    form = f"{list_id:016x}", file, start, offsets, sizes, table[2], extradata, stored, parts
    return Reference(*form)


def _parts(names: bytes, count: int) -> tuple[PartOfFolder, ...]:
    """The files of a folder that a page names, checked; none where these are no such names."""
    value = parse_json(names)
    if not isinstance(value, list) or len(value) != count:
        return ()
    parts: dict[str, PartOfFolder] = {}
    for item in value:
        if not (isinstance(item, list) and len(item) == 2 and isinstance(item[0], str)):
            return ()
        name, identity = item
        if "/" in name or not _is_identity(identity):
            return ()
        try:
            parts[check_path(name)] = PartOfFolder(name, identity)
        except LocationError:
            return ()
    return tuple(parts.values())
