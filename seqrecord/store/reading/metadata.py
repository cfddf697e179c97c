"""Reads a dataset's metadata: manifest, index, edits, and footers of record files.

Large index files are memory-mapped from their disk. Remote ones are first copied to an unnamed
temporary file, deleted with its last user. Mapped pages belong to the system's page cache, not to
the process. A mapped file that is truncated ends the process with SIGBUS, so small files are read
instead.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
import pyarrow as pa

from seqrecord.errors import (
    ChecksumError,
    FormatError,
    NotFoundError,
    StateError,
    StorageError,
    located,
)
from seqrecord.store.checksum import crc32c
from seqrecord.store.format.footer import (
    RECORDS,
    TAIL_BYTES,
    Footer,
    parse_footer,
    parse_header,
    parse_tail,
)
from seqrecord.store.format.index import Index
from seqrecord.store.format.manifest import (
    EDITS,
    IndexFile,
    Manifest,
    check_record_path,
    check_size,
    read_manifest,
    read_named,
)
from seqrecord.store.format.rows import HEADER_BYTES, most_table_bytes
from seqrecord.store.processes.system import reserve
from seqrecord.store.storage.base import Storage, short_read, worth_rereading
from seqrecord.store.storage.open_files import with_descriptor
from seqrecord.store.storage.parallel import map_files, request_threads
from seqrecord.store.storage.ranges import ByteRange
from seqrecord.store.text import counted, first_of

if TYPE_CHECKING:
    from seqrecord.store.format.edits import Edit, Edits

_logger = logging.getLogger("seqrecord")


@dataclass(frozen=True)
class MapSizes:
    """Sizes in bytes; the defaults were measured."""

    small: int = 32 << 20  # larger files are mapped
    block: int = 32 << 20  # of a mapped file, checked at a time
    piece: int = 8 << 20  # of a remote file, per request; clients may need three times as much


_SIZES = MapSizes()
_COPIES = 2  # concurrent requests


def load(storage: Storage) -> tuple[Manifest, Index]:
    """Load manifest and index of a dataset. No record file is read.

    Large index files are memory-mapped; see `map_file`. Raises `NotFoundError` if there is no
    dataset, and `FormatError` for a damaged one.
    """
    manifest = read_manifest(storage)
    with contextlib.suppress(NotFoundError):
        return manifest, load_index(storage, manifest)
    # A concurrent commit may have deleted the old index.
    manifest = read_manifest(storage)
    with explain_missing_file():
        return manifest, load_index(storage, manifest)


@contextlib.contextmanager
def explain_missing_file() -> Iterator[None]:
    """Explain a missing file in the block, after the manifest was read a second time."""
    try:
        yield
    except NotFoundError as error:
        raise NotFoundError(
            "a file named by the manifest is missing, also after the manifest was read again: "
            "either other processes commit and clean continuously, or it is lost; "
            "`seqrecord reindex` recreates index and manifest",
            file=error.file,
        ) from error


def load_version(
    storage: Storage, manifest: Manifest, *, verify: bool = False
) -> tuple[Manifest, Index]:
    """Load the index of an earlier `manifest`, which was verified then.

    Writers keep record files but delete old indexes; then the index of the current version is used
    if its content is equal, with the record files of this version in the returned manifest.
    Otherwise the index is rebuilt from the footers, and so is a damaged one. Raises `StateError` if
    the record files have changed too.
    """
    with contextlib.suppress(NotFoundError, FormatError):
        return manifest, load_index(storage, manifest, verify=verify)
    with contextlib.suppress(NotFoundError, FormatError):
        current, index = load(storage)
        # The fingerprint does not cover splits; edits do.
        if (current.fingerprint, current.edits) == (manifest.fingerprint, manifest.edits):
            # Its files alone: statistics and values of texts may be others.
            names = ("record_files", "index", "left_out", "copied")
            return replace(manifest, **{name: getattr(current, name) for name in names}), index
    cause: Exception | None = None
    try:
        _logger.info(
            "%s: index deleted or damaged; rebuilding it from the record files", storage.url
        )
        paths = [file.path for file in manifest.record_files]
        footers = map_files(storage, lambda path: read_footer(storage, path), paths)
        edits = read_edits(storage, manifest.edits)
        index = index_of(footers, paths, manifest.left_out, edits, manifest.splits)
        if (got := index.fingerprint()) == manifest.fingerprint:
            return manifest, index
    except (NotFoundError, FormatError) as error:
        got, cause = str(error), error
    raise StateError(
        "the dataset has changed since it was opened; open it again",
        file=storage.url,
        expected=f"the record files of fingerprint {manifest.fingerprint}",
        got=got,
    ) from cause


def index_of(
    footers: Mapping[str, Footer],
    paths: Sequence[str],
    left_out: Collection[str] = (),
    edits: Edits | None = None,
    splits: Sequence[str] = (),
) -> Index:
    """Build the index of record files numbered as in `paths`.

    Raises `FormatError` like `build_index`, with the path.
    """
    from seqrecord.store.reading.index_building import build_index  # rarely needed by `open`

    built = build_index(footers, paths, left_out, edits, splits)
    number = {path: position for position, path in enumerate(paths)}
    files = np.array([number[path] for path in built.files], np.uint32)
    groups = (replace(group, file=files[group.file]) for group in built.index.groups)
    return replace(built.index, groups=tuple(groups))


def load_index(storage: Storage, manifest: Manifest, *, verify: bool = True) -> Index:
    """Load the index of this manifest; see `load`."""

    max_bytes = max_index_bytes(manifest)

    def table(name: str) -> MappedFile:
        return map_table(storage, manifest.index[name], max_bytes[name], verify=verify)

    mapped = map_files(storage, table, manifest.index)
    tables = {name: pa.py_buffer(table.data) for name, table in mapped.items()}
    sizes = [file.size for file in manifest.record_files]

    def release() -> None:
        for table in mapped.values():
            table.release()

    try:
        index = Index.decode(
            manifest.schema, tables, sizes, num_splits=len(manifest.splits), release=release
        )
    except FormatError as error:  # its file is the table name
        error.file = f"{storage.url}/{manifest.index[error.file or 'episodes'].path}"
        raise
    counts = (len(index.num_frames), int(index.num_frames.sum()))
    if counts != (manifest.num_episodes, manifest.num_frames):
        raise FormatError(
            "the index differs from the manifest in episodes and frames",
            file=f"{storage.url}/{manifest.index['episodes'].path}",
            expected=(manifest.num_episodes, manifest.num_frames),
            got=counts,
        )
    return index


def max_index_bytes(manifest: Manifest) -> dict[str, int]:
    """Return the maximum size of each index table of a dataset, in bytes."""
    record_bytes = sum(file.size for file in manifest.record_files)
    counts = (manifest.num_episodes, manifest.num_frames, record_bytes)
    return most_table_bytes(manifest.schema, *counts)


def map_table(
    storage: Storage, file: IndexFile, max_bytes: int, *, verify: bool = True
) -> MappedFile:
    """Load one table of the index, and check its length and checksum against the manifest.

    `max_bytes` is the table's limit in `max_index_bytes`.
    """
    check_size(storage, file, "an index file", max_bytes)
    size, checksum = file.size, int(file.crc32c, 16)
    mapped = map_file(storage, file.path, size, checksum=verify)
    is_wrong = verify and mapped.crc32c != checksum
    if is_wrong and worth_rereading(storage, file.path, [ByteRange(0, size)]):
        mapped = map_file(storage, file.path, size, checksum=True)
    if verify and mapped.crc32c != checksum:
        message, url = "an index file does not match its checksum", f"{storage.url}/{file.path}"
        raise ChecksumError.of(message, checksum, mapped.crc32c or 0, file=url, offset=0)
    return mapped


class MappedFile:
    """A file's bytes: read-only `data`, and their CRC32C if requested."""

    def __init__(self, data: bytearray | mmap.mmap) -> None:
        self.data = memoryview(data).toreadonly()
        self.crc32c: int | None = None
        self._map = data if isinstance(data, mmap.mmap) else None

    def release(self) -> None:
        """Free the memory of mapped bytes; the next access reads them again."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)


def map_file(
    storage: Storage, path: str, size: int, *, checksum: bool, sizes: MapSizes = _SIZES
) -> MappedFile:
    """Map or read the first `size` bytes of a file. Raises `StorageError` if it is shorter."""
    # Small files are read: a mapped one that another process truncates ends this one with SIGBUS
    # (tests/store/test_mapped.py::test_a_truncated_file_of_an_open_dataset_is_an_error).
    is_large = size > sizes.small
    if is_large and (local := storage.local_path(path)) is not None:
        mapped = _map_local(local, size)
    elif is_large and (file := _temporary(size)) is not None:
        with file:
            _copy(storage, path, size, file, sizes.piece)
            mapped = MappedFile(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ))
    else:
        try:
            data = bytearray(size)
        except MemoryError as error:
            raise StorageError(
                "no room for a copy of the file; set TMPDIR to a folder with more space",
                file=f"{storage.url}/{path}",
                expected=f"{size} bytes",
            ) from error
        storage.read_ranges(path, [ByteRange(0, size)], [memoryview(data)])
        mapped = MappedFile(data)
    if checksum:
        mapped.crc32c = 0
        for start in range(0, size, sizes.block):
            mapped.crc32c = crc32c(mapped.data[start : start + sizes.block], start=mapped.crc32c)
            mapped.release()
    return mapped


def _map_local(path: str, size: int) -> MappedFile:
    try:
        with with_descriptor(lambda: Path(path).open("rb", buffering=0)) as file:
            if (actual := os.fstat(file.fileno()).st_size) < size:
                raise short_read(path, ByteRange(0, size), actual)
            # Python's mmap duplicates the descriptor.
            return MappedFile(
                with_descriptor(lambda: mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ))
            )
    except FileNotFoundError:
        raise NotFoundError("no such file", file=path) from None
    except OSError as error:
        raise StorageError(error.strerror or str(error), file=path) from error


def _temporary(size: int) -> IO[bytes] | None:
    """Create a temporary file of `size` bytes; `None` if there is no space."""
    file = None
    try:
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - for the caller
        reserve(file.fileno(), size)
    except OSError:
        if file is not None:
            file.close()
        return None
    return file


def _copy(storage: Storage, path: str, size: int, file: IO[bytes], piece: int) -> None:
    """Copy the first `size` bytes of a file, several requests at a time.

    The client processes one response while the server sends another.
    """
    target = mmap.mmap(file.fileno(), size)
    buffer = memoryview(target)

    def copy(offset: int) -> None:
        item = ByteRange(offset, min(offset + piece, size))
        storage.read_ranges(path, [item], [buffer[item.start : item.stop]])
        target.madvise(mmap.MADV_DONTNEED)  # written to the file

    with request_threads(_COPIES, "copy") as threads:
        offsets = range(0, size, piece)
        deque(threads.map(copy, offsets, len(offsets)), maxlen=0)


def read_edits(storage: Storage, files: Sequence[IndexFile]) -> Edits:
    """Combine the edits of a manifest. Raises `FormatError` with the file."""
    from seqrecord.store.format.edits import Edits  # `open` needs none

    by_path = {file.path: file for file in files}
    edits = map_files(storage, lambda path: edits_in(storage, by_path[path]), by_path)
    return Edits.of(edit for file in files for edit in edits[file.path])


def edits_in(storage: Storage, file: IndexFile) -> list[Edit]:
    """Read a file of edits that a manifest names. Raises `FormatError` with the file."""
    from seqrecord.store.format.edits import MAX_EDIT_BYTES, parse_edit

    data = read_named(storage, file, "a file of edits", MAX_EDIT_BYTES)
    with located(FormatError, file=f"{storage.url}/{file.path}"):
        return parse_edit(data)


def loose_edits(storage: Storage) -> list[IndexFile]:
    """The files of edits on a storage that count where no manifest names them, in order.

    The log names files that an edit needs and that are missing. Raises `FormatError` with the file.
    """
    from seqrecord.store.format.edits import MAX_EDIT_BYTES, parse_edit, valid_edits

    files: dict[str, IndexFile] = {}
    edits: dict[str, list[Edit]] = {}
    for path in sorted(file.path for file in storage.files(EDITS)):
        if path.endswith(".json"):
            data, _ = storage.read_whole(path, MAX_EDIT_BYTES)
            files[path] = IndexFile(path, len(data), f"{crc32c(data):08x}")
            with located(FormatError, file=f"{storage.url}/{path}"):
                edits[path] = parse_edit(data)
    valid = [*dict.fromkeys(valid_edits(edits))]
    if gone := [path for path in valid if path not in files]:
        _logger.warning(
            "%s: lost %s of edits: %s",
            *(storage.url, counted(len(gone), "file"), first_of(gone, 3)),
        )
    return [files[path] for path in valid if path in files]


def record_sizes(storage: Storage) -> dict[str, int]:
    """Return the size in bytes of all finished record files, by path, sorted."""
    files = storage.files(RECORDS)
    return {file.path: file.size for file in files if file.path.endswith(".seqrec")}


def read_footers(storage: Storage, sizes: Mapping[str, int]) -> dict[str, Footer]:
    """Read the footers of finished record files, by path; see `read_footer`."""
    return map_files(storage, lambda path: read_footer(storage, path, sizes[path]), sizes)


@dataclass(frozen=True)
class DamagedFile:
    """A skipped record file: its path in the dataset, the problem, and the byte offset.

    The file itself is not changed.
    """

    path: str
    reason: str
    offset: int | None = None

    @classmethod
    def of(cls, path: str, error: FormatError) -> DamagedFile:
        """Create from an error."""
        facts = (("expected", error.expected), ("got", error.got))
        suffix = "".join(f"; {name}: {fact}" for name, fact in facts if fact is not None)
        return cls(path, error.message + suffix, error.offset)

    @classmethod
    def logged(cls, storage: Storage, path: str, error: FormatError) -> DamagedFile:
        """Create from an error, and log a warning."""
        file = cls.of(path, error)
        _logger.warning("damaged record file skipped (not deleted): %s/%s", storage.url, file)
        return file

    def __str__(self) -> str:
        place = "" if self.offset is None else f" at offset {self.offset}"
        return f"{self.path}{place}: {self.reason}"


def readable_footers(
    storage: Storage, sizes: Mapping[str, int]
) -> tuple[dict[str, Footer], dict[str, FormatError]]:
    """Return the footers of intact record files, and the errors of damaged ones.

    Raises `FormatError` for a path that is not a record file's.
    """
    for path in sizes:
        check_record_path(storage, path)

    def read(path: str) -> Footer | FormatError:
        try:
            return read_footer(storage, path, sizes[path])
        except FormatError as error:
            return error

    outcomes = map_files(storage, read, sizes)
    footers = {path: outcome for path, outcome in outcomes.items() if isinstance(outcome, Footer)}
    return footers, {p: e for p, e in outcomes.items() if isinstance(e, FormatError)}


def read_file_id(storage: Storage, path: str) -> str:
    """Read the id in a record file's header. Raises `FormatError` with the file."""
    data = bytearray(HEADER_BYTES)
    storage.read_ranges(path, [ByteRange(0, HEADER_BYTES)], [memoryview(data)])
    with located(FormatError, file=f"{storage.url}/{path}"):
        return parse_header(data)


def read_footer(storage: Storage, path: str, size: int | None = None) -> Footer:
    """Read the footer of a finished record file, and check that its header matches.

    Three reads, none of a page, and a request for the size unless `size` is given. Raises
    `FormatError` with file, offset, expected and actual value.
    """
    ranges: list[ByteRange] = []

    def read(start: int, stop: int) -> bytes:
        data, item = bytearray(stop - start), ByteRange(start, stop)
        storage.read_ranges(path, [item], [memoryview(data)])
        ranges.append(item)
        return bytes(data)

    size = storage.size(path) if size is None else size
    with located(FormatError, file=f"{storage.url}/{path}"):
        try:
            return _footer(read, size)
        except FormatError:
            if not worth_rereading(storage, path, ranges):
                raise
        return _footer(read, size)


def _footer(read: Callable[[int, int], bytes], size: int) -> Footer:
    start, _ = parse_tail(read(max(0, size - TAIL_BYTES), size), size)
    file_id = parse_header(read(0, HEADER_BYTES))
    footer = parse_footer(read(start, size), start)
    if footer.file_id != file_id:
        raise FormatError(
            "header and footer belong to different files",
            offset=start,
            expected=file_id,
            got=footer.file_id,
        )
    return footer
