"""References: pages with packets or frames in external files, and lists of these files.

The normative text is docs/format.md. A list is immutable and named by the hash of its content.
Pages name their list, so the manifest need not.

::

    page     │ p u32 + 2^31 │ list u64 │ file u32 │ crc32c u32 │ start u64 │ extradata u32 │
             │ offsets u32 [p] │ sizes u32 [p] │ frames u32 [p] │ config │ extradata │
    list     JSON: names of files, sizes and identities (such as an e-tag)

`start` is the offset of the page's range in the file. Packet i of the page is the bytes
`[start + offsets[i], start + offsets[i] + sizes[i])` of the file, as its container stores it.
`config` is there if p has the mark 2^30, as in a page with packets (`format.video_pages`).

For a feature other than video, a packet is a frame encoded alone, such as a PNG file. `file` may
then be a folder, and each frame a whole file in it. The range is the concatenation of these files,
and `extradata` is JSON: the files' names and identities.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ChecksumError, FormatError, LocationError
from seqrecord.store.checksum import crc32c
from seqrecord.store.format.text import ID, parse_json
from seqrecord.store.json_object import JsonObject
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.storage.base import LINKED, Storage, check_path
from seqrecord.video.config import VideoConfig
from seqrecord.video.pages import (
    BEGINS,
    NOT_SHOWN,
    OWN_CONFIG,
    encode_config,
    page_of_packets,
    parse_config,
)

EXTERNALS = "externals"  # folder of the lists
MAX_LIST_FILES = 100_000
MAX_LIST_BYTES = 1 << 25
MAX_EXTRADATA = 1 << 16
MAX_NAMES = 1 << 20  # bytes

_MARK = 1 << 31  # set in the number of packets
_HEAD = struct.Struct("<IQIIQI")
_TEXT = re.compile(r"[\x20-\x7e]{0,1000}")
_VERSION = 1


@dataclass(frozen=True)
class ReferencedFile:
    """A frame encoded alone in an external file: the bytes `[start, stop)`.

    `stop` is `None` for a whole file of unknown size.
    """

    file: str
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, eq=False)
class ReferencedGops:
    """Closed groups of pictures in one external file; g groups, p packets.

    Packet i is the bytes `[starts[i], starts[i] + sizes[i])` of `file` and shows the frame
    `order[i]` of its group, -1 for none. `first` are the groups' first packets. `extradata` is the
    container's codec configuration.
    """

    file: str
    extradata: bytes
    starts: npt.NDArray[np.int64]  # [p], ascending
    sizes: npt.NDArray[np.int64]  # [p]
    order: npt.NDArray[np.int64]  # [p]
    first: npt.NDArray[np.int64]  # [g]
    config: VideoConfig | None = None  # as in `Gop`

    @cached_property
    def num_frames(self) -> npt.NDArray[np.int64]:
        """Number of frames shown by each group, int64 [g]."""
        counts: npt.NDArray[np.int64] = np.add.reduceat(self.order >= 0, self.first, dtype=np.int64)
        return counts

    def pages(self, most_frames: int, most_bytes: int) -> list[range]:
        """Divide the groups into pages: ranges of group numbers.

        A page has at most `most_frames` frames and spans at most `most_bytes` of the file, but has
        at least one group.
        """
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
    """An external file: its path below a root, and its size and identity when indexed.

    `identity` is text that changes with the file, such as an e-tag or modification time; `None` if
    the store reports only the size. Size 0 stands for a folder; pages then name files in it. An
    empty path is the root itself.
    """

    root: str
    path: str
    size: int
    identity: str | None = None


class Sample(NamedTuple):
    """CRC32C of parts of an external file. It identifies the file after a move.

    `name` is a file in the external folder `number`; empty for the external file itself.
    """

    number: int
    name: str
    size: int
    crc32c: int


SAMPLED_FILES = 16  # for each root
_SAMPLED_BYTES = 1 << 16


def sampled_ranges(size: int) -> list[tuple[int, int]]:
    """Return the byte ranges `[start, stop)` of a sample: 64 KiB at beginning, middle and end.

    A file of up to 192 KiB is covered whole.
    """
    if size <= 3 * _SAMPLED_BYTES:
        return [(0, size)] if size else []
    starts = (0, (size - _SAMPLED_BYTES) // 2, size - _SAMPLED_BYTES)
    return [(start, start + _SAMPLED_BYTES) for start in starts]


@dataclass(frozen=True)
class ExternalList:
    """External files, named in pages by the list's id and a number, and samples of some.

    `new` has number and CRC32C of files whose modification time was too recent to prove that they
    are unchanged, see `storage.new_since`. `made` is drawn for each list that is written: the same
    files have another list id when they are indexed again.
    """

    files: tuple[ExternalFile, ...]
    samples: tuple[Sample, ...] = ()
    new: tuple[tuple[int, int], ...] = ()
    made: str | None = None

    @cached_property
    def id(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the list's text."""
        return _id_of(self.encode())

    def encode(self) -> bytes:
        """Encode the list as JSON text."""
        roots = list(dict.fromkeys(file.root for file in self.files))
        number = {root: at for at, root in enumerate(roots)}
        value = {
            "format": "seqrecord externals",
            "version": _VERSION,
            "roots": roots,
            "files": [[number[f.root], f.path, f.size, f.identity] for f in self.files],
            **({"samples": self.samples} if self.samples else {}),
            **({"new": self.new} if self.new else {}),
            **({"made": self.made} if self.made else {}),
        }
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def parse(cls, data: bytes, list_id: str) -> ExternalList:
        """Inverse of `encode`. Raises `FormatError` for invalid input."""
        if (actual := _id_of(data)) != list_id:
            raise ChecksumError("a list of files does not match its name", got=actual)
        keys, optional = ("roots", "files"), ("samples", "new", "made")
        found = JsonObject.of_file(parse_json(data), "externals", _VERSION, keys, optional)
        roots = found.texts("roots", re.compile(r"[^\x00-\x1f\x7f]{1,4096}"), MAX_LIST_FILES)
        files = [_file(item, roots) for item in found.list("files", 1, MAX_LIST_FILES)]
        items = found.list("samples", 1, MAX_LIST_FILES) if "samples" in found.value else ()
        new = found.list("new", 1, MAX_LIST_FILES) if "new" in found.value else ()
        samples = tuple(_sample(item, len(files)) for item in items)
        made = found.text("made", ID) if "made" in found.value else None
        return cls(tuple(files), samples, tuple(_new(item, len(files)) for item in new), made)


def list_path(list_id: str) -> str:
    """Return a list's path in its dataset."""
    return f"{EXTERNALS}/{list_id}.json"


def stored_list_ids(storage: Storage) -> list[str]:
    """Return the ids of all lists in a dataset's storage, sorted."""
    paths = (PurePosixPath(file.path) for file in storage.files(EXTERNALS))
    return sorted(path.stem for path in paths if path.suffix == ".json")


def _id_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _file(item: object, roots: Sequence[str]) -> ExternalFile:
    what = "external file"
    root, path, size, identity = _checked(item, what, (len(roots), str, 2**63, None))
    if size == 0 and identity is not None:
        raise FormatError("an invalid external file", got=repr(item)[:100])
    if path or size:
        _check_inside(path, "an external file outside its root")
    return ExternalFile(roots[root], path, size, identity)


def _sample(item: object, num_files: int) -> Sample:
    what = "sample of an external file"
    sample = Sample(*_checked(item, what, (num_files, str, 2**63, 2**32)))
    if sample.name:
        _check_inside(sample.name, "a sample outside its folder")
    return sample


def _new(item: object, num_files: int) -> tuple[int, int]:
    number, checksum = _checked(item, "checksum of a new external file", (num_files, 2**32))
    return number, checksum


def _checked(item: object, what: str, kinds: Sequence[Any]) -> list[Any]:
    """Check a list of values, each of a kind of `_is_right`."""
    if isinstance(item, list) and len(item) == len(kinds) and all(map(_is_right, item, kinds)):
        return item
    raise FormatError(f"an invalid {what}", got=repr(item)[:100])


def _is_right(value: object, kind: Any) -> bool:
    """Whether a value is an identity (`None`), text (`str`) or an integer from 0 below `kind`."""
    if kind is None:
        return value is None or (isinstance(value, str) and _TEXT.fullmatch(value) is not None)
    if kind is str:
        return isinstance(value, str)
    return type(value) is int and 0 <= value < kind


def _check_inside(path: str, message: str) -> None:
    try:
        check_path(path)
    except LocationError as error:
        raise FormatError(message, got=error.got) from error


class FolderFile(NamedTuple):
    """A referenced file of an external folder; `identity` as in `ExternalFile`."""

    name: str
    identity: str | None


@dataclass(frozen=True, eq=False)
class Reference:
    """A page whose packets are in an external file: number `file` of the list `list_id`.

    The packets are in the range of the file of `length` bytes from `start`. `offsets` count from
    `start`; `sizes` are in bytes. `frames` are as in a video page. `crc32c` is the checksum of the
    range, with 1 in place of 0; 0 if the range was never read. `extradata` is the container's codec
    configuration.

    For a feature other than video, packet i is frame i. If `file` is a folder, each frame is a
    whole file: `parts` are these files, and `extradata` encodes them.
    """

    list_id: str
    file: int
    start: int
    offsets: npt.NDArray[np.int64]  # [p], from start
    sizes: npt.NDArray[np.int64]  # [p]
    frames: npt.NDArray[np.uint32]  # [p], as they are stored
    extradata: bytes = b""
    crc32c: int = 0
    parts: tuple[FolderFile, ...] = ()
    config: VideoConfig | None = None  # of the packets, instead of the feature's

    @classmethod
    def of(
        cls, gops: ReferencedGops, pages: Sequence[range], list_id: str, file: int
    ) -> list[Reference]:
        """Create the references of groups of pictures, one for each of `ReferencedGops.pages`."""
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
            extradata, config = gops.extradata, gops.config
            found.append(cls(list_id, file, start, *tables, extradata, config=config))
        return found

    @classmethod
    def of_frames(
        cls,
        place: tuple[str, int],
        starts: Sequence[int],
        sizes: Sequence[int],
        parts: Sequence[FolderFile] = (),
    ) -> Reference:
        """Create the reference to frames encoded alone.

        `place` is list id and file number. Frame i is `sizes[i]` bytes at `starts[i]` of the file,
        or the whole file `parts[i]` if `file` is a folder.
        """
        if parts:
            starts = [0, *accumulate(sizes[:-1])]
        offsets = np.array(starts, np.int64) - starts[0]
        names = json.dumps(parts, separators=(",", ":")).encode() if parts else b""
        frames = np.arange(len(sizes), dtype=np.uint32)
        length = np.array(sizes, np.int64)
        return cls(*(*place, starts[0], offsets, length, frames, names), parts=tuple(parts))

    @property
    def is_video(self) -> bool:
        """Whether the packets are video, not frames encoded alone."""
        return bool(self.frames[0] & BEGINS)

    @property
    def length(self) -> int:
        """Bytes to read: the range for video, the sum of the sizes for frames encoded alone."""
        return self.stop - self.start if self.is_video else int(self.sizes.sum())

    @property
    def stop(self) -> int:
        """End of the range in the file."""
        return self.start + int(self.offsets[-1] + self.sizes[-1])

    def encode(self) -> bytes:
        """Encode the page."""
        head = _HEAD.pack(
            _MARK | len(self.offsets) | (0 if self.config is None else OWN_CONFIG),
            *(int(self.list_id, 16), self.file, self.crc32c, self.start, len(self.extradata)),
        )
        tables = (np.asarray(t).astype("<u4").tobytes() for t in (self.offsets, self.sizes))
        frames = self.frames.astype("<u4").tobytes()
        return b"".join((head, *tables, frames, encode_config(self.config), self.extradata))

    @property
    def offset_table_bytes(self) -> int:
        """Size of the offset table, in bytes, before frames encoded alone; 0 for video."""
        return 0 if self.is_video else 4 * (len(self.sizes) + 1)

    def page(self, data: memoryview, codec: str | None) -> memoryview:
        """Return the page with the packets themselves, given the bytes of the range.

        `codec` is the video codec. It is `None` for frames encoded alone; `data` is then
        `offset_table_bytes` of free space and the frames' bytes, and becomes the page.

        Raises `ChecksumError` if the range changed since it was indexed, `FormatError` for invalid
        extradata.
        """
        if self.crc32c and (actual := crc32c(data[self.offset_table_bytes :]) or 1) != self.crc32c:
            message = "a range of an external file does not match its checksum"
            raise ChecksumError.of(message, self.crc32c, actual, offset=self.start)
        if codec is None:
            offsets = self.offset_table_bytes + np.append(0, np.cumsum(self.sizes))
            data[: self.offset_table_bytes] = offsets.astype("<u4").tobytes()
            return data
        try:
            own = self.config.codec if self.config is not None else codec
            from seqrecord.video.packets import packet_format  # only video has packets

            form = packet_format(own, self.extradata)
        except ValueError as error:
            raise FormatError(f"a page of references: {error}") from error
        begins = (self.frames >= BEGINS).tolist()
        places = zip(self.offsets.tolist(), self.sizes.tolist(), begins, strict=True)
        packets = [form.bare_packet(bytes(data[a : a + n]), first) for a, n, first in places]
        try:
            return memoryview(page_of_packets(packets, self.frames, self.config))
        except ValueError as error:
            raise FormatError(f"a page of references to too many bytes: {error}") from error


def named_file(page: memoryview) -> tuple[str, int]:
    """Return the list id and file number of a page of references, without validation."""
    _, list_id, file, *_ = _HEAD.unpack_from(page)
    return f"{list_id:016x}", file


def portable_bytes(page: memoryview, file: ExternalFile) -> bytes:
    """Return bytes that identify the content of a page of references to `file`, at any place."""
    identity = file.identity and file.identity.partition(LINKED)[0]
    known = json.dumps([file.path, file.size, identity]).encode()
    return b"".join((known, page[:4], page[16:]))


def least_reference_bytes(count: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the minimum size of a page that references `count` frames."""
    return _HEAD.size + 12 * count


def parse_reference(
    page: memoryview, length: int, feature: str, num_frames: int | None = None
) -> Reference:
    """Parse a page of references to a range of `length` bytes. Validates all input.

    `num_frames` is the page's number of frames; `None` for video. Raises `FormatError` with the
    offset in the page. For video, `parse_video_page` later checks that each frame appears once.
    """

    def refuse(what: str, at: int, expected: object, got: object) -> FormatError:
        return FormatError(
            f"a page of references {what}", feature=feature, offset=at, expected=expected, got=got
        )

    if len(page) < _HEAD.size or not page[3] & 0x80:  # the mark
        raise refuse("without its head", 0, f"{_HEAD.size} bytes or more", len(page))
    marked, list_id, file, stored, start, extra = _HEAD.unpack_from(page)
    own = OWN_CONFIG if num_frames is None else 0
    count, config = marked & ~(_MARK | own), None
    begin = _HEAD.size + 12 * count  # of the extradata
    if marked & own and begin <= len(page):
        config, begin = parse_config(page, begin, feature)
    most = MAX_EXTRADATA if num_frames is None else MAX_NAMES
    if not count or extra > most or len(page) != begin + extra:
        expected = f"tables of {count} packets and {extra} bytes"
        raise refuse("with a wrong length", 0, expected, len(page))
    table = np.frombuffer(page[_HEAD.size : _HEAD.size + 12 * count], "<u4").reshape(3, count)
    offsets, sizes = table[0].astype(np.int64), table[1].astype(np.int64)
    ends = offsets + sizes
    fits = sizes.min() > 0 and offsets[0] == 0 and bool((offsets[1:] >= ends[:-1]).all())
    if not fits or (ends[-1] if num_frames is None else sizes.sum()) != length:
        expected = f"packets one behind the other, from 0 to {length}"
        raise refuse(
            "with overlapping packets, or packets outside it", _HEAD.size, expected, ends[-1]
        )
    if start + int(ends[-1]) >= 2**63:
        raise refuse("with an impossible start", 20, "below 2**63", start)
    extradata = bytes(page[begin:])
    parts: tuple[FolderFile, ...] = ()
    if num_frames is not None:
        if count != num_frames or (table[2] != np.arange(count)).any():
            raise refuse("with frames missing or out of order", 0, num_frames, count)
        if length + 4 * (count + 1) >= 2**32:
            raise refuse("with too many bytes", _HEAD.size, "below 2**32", length)
        if extradata:
            parts = _parts(extradata, count)
            if start or (offsets[1:] != ends[:-1]).any() or len(parts) != count:
                at = len(page) - extra
                raise refuse("with files that are not contiguous", at, count, len(parts))
    form = f"{list_id:016x}", file, start, offsets, sizes, table[2], extradata, stored, parts
    return Reference(*form, config)


def _parts(names: bytes, count: int) -> tuple[FolderFile, ...]:
    """Parse the file names of a page; empty if they are invalid."""
    value = parse_json(names)
    if not isinstance(value, list) or len(value) != count:
        return ()
    parts: dict[str, FolderFile] = {}
    for item in value:
        try:
            part = FolderFile(*_checked(item, "file of a folder", (str, None)))
            parts[check_path(part.name)] = part
        except (FormatError, LocationError):
            return ()
    return () if any("/" in name for name in parts) else tuple(parts.values())
