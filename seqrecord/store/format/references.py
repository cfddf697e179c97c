"""References: pages with packets or frames in external files, and lists of these files.

The normative text is docs/format.md. A list is immutable and named by the hash of its content.
Pages name their list, so the manifest need not.

::

    page     │ p u32 + 2^31 │ list u64 │ file u32 │ crc32c u32 │ start u64 │ extradata u32 │
             │ offsets u32 [p] │ sizes u32 [p] │ frames u32 [p] │ extradata │
    list     JSON: names of files, sizes and identities (such as an e-tag)

`start` is the offset of the page's range in the file. Item i of the page is the bytes
`[start + offsets[i], start + offsets[i] + sizes[i])` of the file.

In pages of frames encoded alone, item i is frame i, such as a PNG file. `file` may be a folder, and
each frame a whole file in it. The range is the concatenation of these files, and `extradata` is
JSON: the files' names and identities. In pages of video, items are packets, see
`video.references`.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ChecksumError, FormatError, LocationError
from seqrecord.store.checksum import crc32c
from seqrecord.store.format.text import ID, parse_json
from seqrecord.store.json_object import JsonObject
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.storage.base import LINKED, Storage, check_path
from seqrecord.store.storage.ranges import ByteRange

EXTERNALS = "externals"  # folder of the lists
MAX_LIST_FILES = 100_000
MAX_LIST_BYTES = 1 << 25
MAX_EXTRADATA = 1 << 16
MAX_NAMES = 1 << 20  # bytes

_MARK = 1 << 31  # set in the number of packets
HEAD = struct.Struct("<IQIIQI")
_TEXT = re.compile(r"[\x20-\x7e]{0,1000}")
_VERSION = 1


@dataclass(frozen=True)
class ReferencedFile:
    """A frame that is a whole external file."""

    file: str


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
    """CRC32C over parts of an external file. It identifies the file after a move.

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

    `new_checksums` has number and CRC32C of files whose modification time was too recent to prove
    that they are unchanged, see `new_since`. `nonce` is drawn for each list that is
    written: the same files have another list id when they are indexed again.
    """

    files: tuple[ExternalFile, ...]
    samples: tuple[Sample, ...] = ()
    new_checksums: tuple[tuple[int, int], ...] = ()
    nonce: str | None = None

    @cached_property
    def id(self) -> str:
        """The list's text as SHA-256: the first 16 hexadecimal digits."""
        return _id_of(self.encode())

    def encode(self) -> bytes:
        """Encode the list as JSON text."""
        roots = list(dict.fromkeys(file.root for file in self.files))
        number = {root: place for place, root in enumerate(roots)}
        value = {
            "format": "seqrecord externals",
            "version": _VERSION,
            "roots": roots,
            "files": [[number[f.root], f.path, f.size, f.identity] for f in self.files],
            **({"samples": self.samples} if self.samples else {}),
            **({"new": self.new_checksums} if self.new_checksums else {}),
            **({"made": self.nonce} if self.nonce else {}),
        }
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def parse(cls, data: bytes, list_id: str) -> ExternalList:
        """Inverse of `encode`. Raises `FormatError` for invalid input."""
        if (actual := _id_of(data)) != list_id:
            raise ChecksumError("a list of files does not match its name", got=actual)
        keys, optional = ("roots", "files"), ("samples", "new", "made")
        fields = JsonObject.of_file(parse_json(data), "externals", _VERSION, keys, optional)
        roots = fields.texts("roots", re.compile(r"[^\x00-\x1f\x7f]{1,4096}"), MAX_LIST_FILES)
        files = [_file(item, roots) for item in fields.list("files", 1, MAX_LIST_FILES)]
        items = fields.list("samples", 1, MAX_LIST_FILES) if "samples" in fields.value else ()
        checksums = fields.list("new", 1, MAX_LIST_FILES) if "new" in fields.value else ()
        samples = tuple(_sample(item, len(files)) for item in items)
        nonce = fields.text("made", ID) if "made" in fields.value else None
        what, kinds = "checksum of a new external file", (len(files), 2**32)
        pairs = (_check_list(item, what, kinds) for item in checksums)
        return cls(tuple(files), samples, tuple((file, crc32c) for file, crc32c in pairs), nonce)


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
    root, path, size, identity = _check_list(item, what, (len(roots), str, 2**63, None))
    if size == 0 and identity is not None:
        raise FormatError("an invalid external file", got=repr(item)[:100])
    if path or size:
        _check_inside(path, "an external file outside its root")
    return ExternalFile(roots[root], path, size, identity)


def _sample(item: object, num_files: int) -> Sample:
    what = "sample of an external file"
    sample = Sample(*_check_list(item, what, (num_files, str, 2**63, 2**32)))
    if sample.name:
        _check_inside(sample.name, "a sample outside its folder")
    return sample


def _check_list(item: object, what: str, kinds: Sequence[Any]) -> list[Any]:
    """Check a list of values, each of a kind in `_is_right`."""
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


@dataclass(frozen=True, eq=False, kw_only=True)
class Reference(ABC):
    """A page whose items are in an external file: number `file` of the list `list_id`.

    They are in the range of the file from `start`. `offsets` count from `start`; `sizes` are in
    bytes. `frames` tells what the items are. `crc32c` is the checksum of the range, with 1 in place
    of 0; 0 if the range was never read.
    """

    list_id: str
    file: int
    start: int
    offsets: npt.NDArray[np.int64]  # [p], from start
    sizes: npt.NDArray[np.int64]  # [p]
    frames: npt.NDArray[np.uint32]  # [p], as they are stored
    extradata: bytes = b""
    crc32c: int = 0

    parts: ClassVar[tuple[FolderFile, ...]] = ()
    """Whole files, one for each item, if `file` is a folder."""

    offset_table_bytes: ClassVar[int] = 0
    """Free space for a table before the bytes that are read."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Number of bytes to read."""

    @abstractmethod
    def ranges(self) -> list[ByteRange]:
        """Return the bytes of the file to read, one behind the other."""

    def place(self, offset: int) -> tuple[str, int]:  # noqa: ARG002
        """Return the file in the folder, empty for none, and the offset in the file, of an offset
        in the page with the items themselves.
        """
        return "", self.start

    @property
    def stop(self) -> int:
        """End of the range in the file."""
        return self.start + int(self.offsets[-1] + self.sizes[-1])

    def encode(self) -> bytes:
        """Encode the page."""
        return self._encoded(0, b"")

    def _encoded(self, marks: int, config: bytes) -> bytes:
        head = HEAD.pack(
            _MARK | marks | len(self.offsets),
            *(int(self.list_id, 16), self.file, self.crc32c, self.start, len(self.extradata)),
        )
        tables = (np.asarray(t).astype("<u4").tobytes() for t in (self.offsets, self.sizes))
        frames = self.frames.astype("<u4").tobytes()
        return b"".join((head, *tables, frames, config, self.extradata))

    def check(self, data: memoryview) -> None:
        """Raise `ChecksumError` if the range, `data`, changed since it was indexed."""
        if self.crc32c and (actual := crc32c(data) or 1) != self.crc32c:
            message = "a range of an external file does not match its checksum"
            raise ChecksumError.of(message, self.crc32c, actual, offset=self.start)


@dataclass(frozen=True, eq=False, kw_only=True)
class FrameReference(Reference):
    """A page whose frames, each encoded alone, are in an external file, or files in a folder.

    `parts` are these files, which `extradata` encodes.
    """

    parts: tuple[FolderFile, ...] = ()  # type: ignore[misc]

    @classmethod
    def of_files(
        cls, place: tuple[str, int], sizes: Sequence[int], parts: Sequence[FolderFile]
    ) -> FrameReference:
        """Create the reference to whole files of a folder.

        `place` is list id and number of the folder. Frame i is `parts[i]`, of `sizes[i]` bytes.
        """
        return cls(
            list_id=place[0],
            file=place[1],
            start=0,
            offsets=np.cumsum([0, *sizes[:-1]], dtype=np.int64),
            sizes=np.array(sizes, np.int64),
            frames=np.arange(len(sizes), dtype=np.uint32),
            extradata=json.dumps(parts, separators=(",", ":")).encode(),
            parts=tuple(parts),
        )

    @classmethod
    def parse(cls, page: memoryview, length: int, feature: str, count: int) -> FrameReference:
        """Parse a page of references to `count` frames of `length` bytes. Validates all input.

        Raises `FormatError` with the offset in the page.
        """
        num_items = count_items(page, feature)
        begin = HEAD.size + 12 * num_items
        fields = parse_items(
            *(page, length, feature),
            count=num_items,
            begin=begin,
            max_extradata=MAX_NAMES,
            has_gaps=False,
        )
        if num_items != count or (fields["frames"] != np.arange(num_items)).any():
            raise refusal(feature, "with frames missing or out of order", 0, count, num_items)
        if length + 4 * (count + 1) >= 2**32:
            raise refusal(feature, "with too many bytes", HEAD.size, "below 2**32", length)
        parts = _parts(fields["extradata"], count) if fields["extradata"] else ()
        reference = cls(**fields, parts=parts)
        if reference.extradata and not reference.is_of_folder:
            problem = "with files that are not contiguous"
            raise refusal(feature, problem, begin, count, len(parts))
        return reference

    @property
    def is_of_folder(self) -> bool:
        """Whether each frame is a whole file, one behind the other."""
        ends = self.offsets + self.sizes
        is_contiguous = not self.start and bool((self.offsets[1:] == ends[:-1]).all())
        return is_contiguous and len(self.parts) == len(self.sizes)

    @property
    def length(self) -> int:
        return int(self.sizes.sum())

    @property
    def offset_table_bytes(self) -> int:  # type: ignore[override]
        return 4 * (len(self.sizes) + 1)

    def ranges(self) -> list[ByteRange]:
        starts = (self.start + self.offsets).tolist()
        return [ByteRange(a, a + n) for a, n in zip(starts, self.sizes.tolist(), strict=True)]

    def place(self, offset: int) -> tuple[str, int]:
        ends = np.cumsum(self.sizes)
        position = offset - self.offset_table_bytes
        frame = int(np.searchsorted(ends[:-1], position, side="right"))
        if self.parts:
            return self.parts[frame].name, 0
        return "", self.start + int(self.offsets[frame])

    def page(self, data: memoryview) -> memoryview:
        """Return the page with the frames themselves, in `data`: `offset_table_bytes` of free space
        and the frames' bytes.

        Raises `ChecksumError` if these changed since they were indexed.
        """
        free = self.offset_table_bytes
        self.check(data[free:])
        data[:free] = (free + np.append(0, np.cumsum(self.sizes))).astype("<u4").tobytes()
        return data


def named_file(page: memoryview) -> tuple[str, int]:
    """Return a reference page's list id and file number, without validation."""
    _, list_id, file, *_ = HEAD.unpack_from(page)
    return f"{list_id:016x}", file


def portable_bytes(page: memoryview, file: ExternalFile) -> bytes:
    """Return bytes that identify what a page refers to in `file`, wherever the file is."""
    identity = file.identity and file.identity.partition(LINKED)[0]
    description = json.dumps([file.path, file.size, identity]).encode()
    return b"".join((description, page[:4], page[16:]))


def least_reference_bytes(count: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the minimum size of a page that references `count` frames."""
    return HEAD.size + 12 * count


def count_items(page: memoryview, feature: str) -> int:
    """Return the number of items, with marks of its kind. Raises `FormatError` without a head."""
    if len(page) < HEAD.size or not page[3] & 0x80:  # the mark
        raise refusal(feature, "without its head", 0, f"{HEAD.size} bytes or more", len(page))
    return int(HEAD.unpack_from(page)[0]) & ~_MARK


def parse_items(
    page: memoryview,
    length: int,
    feature: str,
    *,
    count: int,
    begin: int,
    max_extradata: int,
    has_gaps: bool,
) -> dict[str, Any]:
    """Parse a page that refers to `length` bytes: head, tables and extradata, and check them.

    `count` is the number of items, `begin` the offset of the extradata, of at most `max_extradata`
    bytes.
    With `has_gaps` bytes between items are read, too. Returns the fields of `Reference`.
    """
    _, list_id, file, checksum, start, extradata_bytes = HEAD.unpack_from(page)
    if not count or extradata_bytes > max_extradata or len(page) != begin + extradata_bytes:
        expected = f"tables of {count} packets and {extradata_bytes} bytes"
        raise refusal(feature, "with a wrong length", 0, expected, len(page))
    table = np.frombuffer(page[HEAD.size : HEAD.size + 12 * count], "<u4").reshape(3, count)
    offsets, sizes = table[0].astype(np.int64), table[1].astype(np.int64)
    ends = offsets + sizes
    fits = sizes.min() > 0 and offsets[0] == 0 and bool((offsets[1:] >= ends[:-1]).all())
    if not fits or int(ends[-1] if has_gaps else sizes.sum()) != length:
        problem = "with overlapping packets, or packets outside it"
        expected = f"packets one behind the other, from 0 to {length}"
        raise refusal(feature, problem, HEAD.size, expected, ends[-1])
    if start + int(ends[-1]) >= 2**63:
        raise refusal(feature, "with an impossible start", 20, "below 2**63", start)
    return {
        "list_id": f"{list_id:016x}",
        "file": file,
        "start": start,
        "offsets": offsets,
        "sizes": sizes,
        "frames": table[2],
        "extradata": bytes(page[begin:]),
        "crc32c": checksum,
    }


def refusal(feature: str, problem: str, offset: int, expected: object, got: object) -> FormatError:
    """Return the error for a malformed reference page."""
    return FormatError(
        f"a page of references {problem}",
        feature=feature,
        offset=offset,
        expected=expected,
        got=got,
    )


def _parts(names: bytes, count: int) -> tuple[FolderFile, ...]:
    """Parse the file names of a page; empty if they are invalid."""
    value = parse_json(names)
    if not isinstance(value, list) or len(value) != count:
        return ()
    parts: dict[str, FolderFile] = {}
    for item in value:
        try:
            part = FolderFile(*_check_list(item, "file of a folder", (str, None)))
            parts[check_path(part.name)] = part
        except (FormatError, LocationError):
            return ()
    return () if any("/" in name for name in parts) else tuple(parts.values())
